"""Frame ranges in the spellings of Nuke and fileseq."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullfield import InputError
from fullfield.sequences.names import format_frames, parse_frames


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("7", [7]),
        ("1-5", [1, 2, 3, 4, 5]),
        ("5-1", [1, 2, 3, 4, 5]),
        ("1001-1004", [1001, 1002, 1003, 1004]),
        ("1-10x2", [1, 3, 5, 7, 9]),
        ("1-10x3", [1, 4, 7, 10]),
        ("10-1x3", [1, 4, 7, 10]),
        ("10-1x-3", [1, 4, 7, 10]),
        ("10-1x4", [2, 6, 10]),
        ("1-3,20", [1, 2, 3, 20]),
        ("1-3, 20", [1, 2, 3, 20]),
        ("1-3 20 30-31", [1, 2, 3, 20, 30, 31]),
        ("20,1-3,2", [1, 2, 3, 20]),
        ("1-10y3", [2, 3, 5, 6, 8, 9]),
        ("1-6:3", [1, 2, 3, 4, 5, 6]),
        ("-3--1", [-3, -2, -1]),
        ("-1-1", [-1, 0, 1]),
        ("-5", [-5]),
        ("0001-0003", [1, 2, 3]),
        (" 4 ", [4]),
        ("1-10x20", [1]),
    ],
)
def test_spellings(text: str, frames: list[int]) -> None:
    assert parse_frames(text) == frames


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-", "1..5", "1.5", "1-5x", "1-5x0", "1-5z2", "1,,2-", "1-2-3", "1-999999999", "1-1y1", "٣"]
)
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"^--frames: expected"):
        parse_frames(text, "--frames")


def test_a_range_in_words() -> None:
    assert format_frames([3, 1, 2, 7]) == "1-3,7"
    assert format_frames([1, 3, 5, 8, 9]) == "1-5x2,8-9"
    assert format_frames([1, 4]) == "1,4"
    assert format_frames([]) == ""
    assert format_frames([-2, -1]) == "-2--1"


@given(st.sets(st.integers(-200, 200), min_size=1, max_size=40))
def test_words_and_back(numbers: set[int]) -> None:
    assert parse_frames(format_frames(numbers)) == sorted(numbers)
