"""Checks of arguments; each error names the argument, what was expected and what was given."""

from __future__ import annotations

import math
import numbers
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch


class InputError(ValueError):
    """Error for input that cannot be used; its message is one line and names the argument or file.

    The command line prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


class SetupError(InputError):
    """Error of the machine or its setup: a device, package, kernel or memory is missing."""


class NotEnoughMemoryError(SetupError):
    """Input that needs more memory than is free."""


def describe_value(value: object) -> str:
    """Describe a value in a few words: ``float32 tensor [3, 4] on cpu``, ``str 'abc'``."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        kind = "tensor" if hasattr(value, "device") and hasattr(value, "stride") else "array"
        place = f" on {getattr(value, 'device', '')}" if kind == "tensor" else ""
        if kind == "array" and not shape:
            return f"{dtype} {value!s}"
        return f"{dtype} {kind} {list(shape)}{place}"
    try:
        text = " ".join(repr(value).split())
    except RecursionError:
        text = "nested too deeply"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def require(condition: bool, name: str, expected: str, actual: object) -> None:
    """Raise :class:`InputError` ``name: expected …, got …`` unless ``condition`` holds."""
    if not condition:
        raise InputError(
            f"{name}: expected {expected}, got {actual if isinstance(actual, str) else describe_value(actual)}"
        )


def convert_path_to_text(value: object, name: str = "path") -> str:
    """Return a path as text, as it was given; InputError for anything but a str or an ``os.PathLike`` of one."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise InputError(f"{name}: expected a path, got {describe_value(value)}")
    return path


def check_tensor(
    value: Any,
    name: str,
    shape: Sequence[int | str | None],
    *,
    dtypes: Collection[torch.dtype] | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Check that ``value`` is a tensor of the given shape, dtype and device, and return it.

    ``shape`` holds one entry per dimension: an int for an exact size, a name (``"H"``) or None for any size.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise InputError(f"{name}: expected a tensor {_format_shape(shape)}, got {describe_value(value)}")
    is_valid = value.ndim == len(shape) and all(
        not isinstance(want, int) or have == want for have, want in zip(value.shape, shape, strict=True)
    )
    if not is_valid:  # formatted only on failure: under torch.compile sizes may be symbols
        raise InputError(f"{name}: expected shape {_format_shape(shape)}, got {describe_value(value)}")
    if dtypes is not None and value.dtype not in dtypes:
        names = " or ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise InputError(f"{name}: expected dtype {names}, got {describe_value(value)}")
    if device is not None and value.device != device:
        raise InputError(f"{name}: expected device {device}, got {describe_value(value)}")
    return value


def check_not_meta(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Check that a tensor holds values (not on the device ``meta``) and return it."""
    require(not tensor.is_meta, name, "a tensor that holds values", tensor)
    return tensor


def _format_shape(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("*" if s is None else str(s) for s in shape) + "]"


def resolve_available_device(value: Any, name: str = "device") -> torch.device:
    """Check that ``value`` names a device of this machine, and return it; SetupError if it does not."""
    import torch

    try:
        selected = torch.device(value)
        if selected.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=selected)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = reason if len(reason) <= 120 else reason[:117].rsplit(" ", 1)[0] + " ..."
        raise SetupError(f"{name}: expected a device of this machine, got {value!r} ({reason})") from None
    return selected


def read_torchrun_rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as ``torchrun`` sets them; 0 and 1 without it."""
    rank, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    is_valid = rank.isdecimal() and count.isdecimal() and int(rank) < int(count)
    expected = "numbers as torchrun sets them, the first the smaller"
    require(is_valid, "RANK, WORLD_SIZE", expected, f"{rank!r}, {count!r}")
    return int(rank), int(count)


def check_number(
    value: object,
    name: str,
    *,
    integer: bool = False,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Check a finite real number: ``low <= value <= high``, ``above < value < below``."""
    kind: type = numbers.Integral if integer else numbers.Real  # NumPy's scalars are registered as these
    usual = type(value) is int or (type(value) is float and not integer)
    if usual or (isinstance(value, kind) and not isinstance(value, bool)):
        real = float(value)  # type: ignore[arg-type]  # a number
        if (
            math.isfinite(real)
            and (low is None or real >= low)
            and (high is None or real <= high)
            and (above is None or real > above)
            and (below is None or real < below)
        ):
            return
    bounds = [  # formatted only on failure: layers call this often
        f"{sign} {bound:g}"
        for sign, bound in ((">=", low), (">", above), ("<=", high), ("<", below))
        if bound is not None
    ]
    expected = ("an integer " if integer else "a number ") + " and ".join(bounds)
    require(False, name, expected.strip(), describe_value(value))


def check_choice(value: object, name: str, options: Collection[object]) -> None:
    """Check that ``value`` is one of ``options``; the error for a name suggests the nearest one."""
    if value not in options:
        names = [str(option) for option in options]
        text = f"{value!r}{format_did_you_mean_hint(value, names)}" if isinstance(value, str) else value
        require(False, name, f"one of {', '.join(names)}", text)


_SIMILARITY = 0.7  # of 1: a slip is close enough, another word ("gpu" for "cpu") is not
_SHORTEST_BEGINNING = 3


def format_did_you_mean_hint(word: str, known_names: Sequence[str], mistaken_name: str = "") -> str:
    """Return the end of a message about an unknown ``word``: ``; did you mean tvl1?``, or "" if no name is similar.

    Names that begin with ``word`` come first, then the most similar one; case does not count.

    Args:
        word: the name that is not known.
        known_names: the names that are.
        mistaken_name: what to put after "instead of"; nothing by default.
    """
    from difflib import get_close_matches

    names = {name.casefold(): name for name in reversed(known_names)}
    requested = word.casefold()
    longer = [name for name in names if name.startswith(requested)] if len(requested) >= _SHORTEST_BEGINNING else []
    close = [name for name in reversed(longer) if len(name) == min(map(len, longer))]
    close = close or get_close_matches(requested, names, 1, _SIMILARITY)
    instead = f" instead of {mistaken_name}" if mistaken_name else ""
    return f"; did you mean {' or '.join(names[name] for name in close)}{instead}?" if close else ""


def describe_config_differences(before: Any, now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the differences between two nested configurations, such as ``style.fog was 0.15, is 0.5``.

    A missing name counts as None, as does every name when ``before`` is not a mapping. Long values are shortened.
    """
    from reprlib import Repr

    short = Repr()
    short.maxstring = short.maxother = 100
    short.maxdict = 1
    before = before if isinstance(before, dict) else {}
    changes = []
    for name in before | dict(now):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += describe_config_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            changes.append(f"{prefix}{name} was {short.repr(old)}, is {short.repr(new)}")
    return changes
