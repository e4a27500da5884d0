"""Wording of errors about arguments."""

from __future__ import annotations

import pytest

from fullfield import _check

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("TVL1", ["raft", "tvl1"], "; did you mean tvl1?"),
        ("rfat", ["tvl1", "raft"], "; did you mean raft?"),
        ("lamda", ["theta", "lambda_"], "; did you mean lambda_?"),
        (
            "sintel",
            ["sintel-clean", "sintel-final", "sintel-clean-test"],
            "; did you mean sintel-clean or sintel-final?",
        ),
        ("LOGC", ["logc4", "slog3", "logc3"], "; did you mean logc4 or logc3?"),
        ("acescG", ["ACEScg", "acescg"], "; did you mean ACEScg?"),
        ("gpu", ["cpu", "cuda"], ""),
        ("", ["cpu", "cuda"], ""),
    ],
)
def test_suggest_nearest_returns_nearest_name(word: str, known: list[str], hint: str) -> None:
    assert _check.format_did_you_mean_hint(word, known) == hint
    assert _check.format_did_you_mean_hint(word, known, word) == hint.replace("?", f" instead of {word}?")


def test_list_differences_names_nested_paths() -> None:
    before = {"seed": 1, "style": {"fog": 0.1, "blur": 0.3}, "gone": "x", "list": [1, 2]}
    now = {"seed": 2, "style": {"fog": 0.5, "blur": 0.3}, "new": {"a": 1}, "later": None, "list": [1, 2]}
    assert _check.describe_config_differences(before, now) == [
        "seed was 1, is 2",
        "style.fog was 0.1, is 0.5",
        "gone was 'x', is None",
        "new was None, is {'a': 1}",
    ]
    assert _check.describe_config_differences([1], {"seed": 2}, "training.") == ["training.seed was None, is 2"]
    assert _check.describe_config_differences({"a": None}, {"a": {"b": 1, "c": 2}}) == ["a was None, is {'b': 1, ...}"]
    assert _check.describe_config_differences(now, now) == []
