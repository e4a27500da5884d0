"""How complaints are worded."""

from __future__ import annotations

from fullfield import _check


def test_differences_are_named_by_their_path() -> None:
    before = {"seed": 1, "style": {"fog": 0.1, "blur": 0.3}, "gone": "x", "list": [1, 2]}
    now = {"seed": 2, "style": {"fog": 0.5, "blur": 0.3}, "new": {"a": 1}, "later": None, "list": [1, 2]}
    assert _check.differences(before, now) == [
        "seed was 1, is 2",
        "style.fog was 0.1, is 0.5",
        "gone was 'x', is None",
        "new was None, is {'a': 1}",
    ]
    assert _check.differences([1], {"seed": 2}, "training.") == ["training.seed was None, is 2"]
    assert _check.differences(now, now) == []
