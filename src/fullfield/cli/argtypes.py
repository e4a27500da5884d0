"""Types of arguments that several verbs take; numbers are ASCII, without underscores or spaces."""

from __future__ import annotations

import argparse
import math
import re

_MAX_FACTOR = 64
_MAX_THREADS = 1024
_MAX_PIXELS = 15360 * 8640  # 16K
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


def parse_integer(text: str) -> int:
    """Return a whole number of at most 18 digits."""
    if _INTEGER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most 18 digits, got {text!r}")
    return int(text)


def parse_nonnegative_integer(text: str) -> int:
    """Return a whole number of at most 18 digits, at least 0."""
    value = parse_integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, got {value}")
    return value


def parse_finite_number(text: str) -> float:
    """Return a finite decimal number."""
    value = float(text) if _NUMBER.fullmatch(text) else float("inf")
    if value in (float("inf"), float("-inf")):
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def parse_comma_separated_names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, got {text!r}")
    return items


def parse_nonzero_number_or_fraction(text: str) -> float:
    """Return a number other than 0, or a fraction such as 1/2."""
    numerator, slash, denominator = text.partition("/")
    value = (
        parse_finite_number(numerator) / (parse_finite_number(denominator) or math.nan)
        if slash
        else parse_finite_number(text)
    )
    if not math.isfinite(value) or value == 0:
        raise argparse.ArgumentTypeError(f"expected a number other than 0, got {text!r}")
    return value


def parse_one_or_two_factors(text: str) -> float | tuple[float, float]:
    """Return a factor, or one for each axis."""
    values = [parse_nonzero_number_or_fraction(item) for item in text.split(",")]
    if len(values) > 2:
        raise argparse.ArgumentTypeError(f"expected one or two numbers, got {text!r}")
    return (values[0], values[1]) if len(values) == 2 else values[0]


def parse_scale_factor(text: str) -> float:
    """Return a number above 0 and at most 64, or a fraction such as 1/2."""
    value = parse_nonzero_number_or_fraction(text)
    if not 0 < value <= _MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"expected a number > 0, at most {_MAX_FACTOR}, got {text!r}")
    return value


def parse_positive_number(text: str) -> float:
    """Return a finite number above 0."""
    value = parse_finite_number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text!r}")
    return value


def parse_positive_integer(text: str) -> int:
    """Return a whole number of at least 1."""
    if not (re.fullmatch(r"[0-9]{1,10}", text) and 1 <= int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return int(text)


def parse_thread_count(text: str) -> int:
    """Return a number of CPU threads."""
    value = parse_positive_integer(text)
    if value > _MAX_THREADS:
        raise argparse.ArgumentTypeError(f"expected at most {_MAX_THREADS} threads, got {text}")
    return value


def parse_wxh_as_height_width(text: str) -> tuple[int, int]:
    """Return ``WxH`` as height and width, each at least 1, together at most 16K."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})[xX×]([1-9][0-9]{0,5})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected WxH such as 512x224, got {text!r}")
    width, height = int(match[1]), int(match[2])
    if width * height > _MAX_PIXELS:
        raise argparse.ArgumentTypeError(f"expected at most {_MAX_PIXELS} pixels (16K), got {text}")
    return height, width


def parse_update_count_or_range(text: str) -> int | tuple[int, int]:
    """Return ``N`` as a number, ``LOW-HIGH`` as two."""
    match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", text)
    return parse_integer(text) if match is None else (int(match[1]), int(match[2]))
