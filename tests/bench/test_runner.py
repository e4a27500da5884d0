"""The command of the benchmarks: which failures count, and where ``fullfield bench`` went."""

from __future__ import annotations

import pytest

from benchmarks.bench import failed
from fullfield.cli.main import main as fullfield

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bench"], "benchmarks"),
        (["bench", "tvl1", "-q"], "benchmarks"),
        (["reproduce"], "benchmarks reproduce"),
        (["analyze", "lookups", "a.npy"], "benchmarks analyze"),
        (["flow", "a.png", "b.png", "--alt-cuda-corr=RAFT"], "benchmarks models --alt-cuda-corr DIR"),
    ],
)
def test_runner_names_moved_commands(words: list[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fullfield(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("fullfield: error: ")
    assert said.endswith(f"in a checkout of fullfield run python -m {command}\n")
    assert said.count("\n") == 1


# ---- going through the cases


def test_runner_reports_failed_checks_of_ours() -> None:
    rows = [
        {"name": "a", "ours": True, "status": "check failed", "reason": "off"},
        {"name": "b", "ours": False, "status": "failed", "reason": "broken"},
        {"name": "c", "status": "failed", "reason": "broken"},
        {"name": "d", "ours": True, "status": "out of memory", "reason": "large"},
        {"name": "e"},
    ]
    part = {"case": "peers", "status": "check failed", "reason": "all off", "rows": []}
    assert failed([{"label": "one", "rows": rows}, part]) == ["one: a: off", "one: c: broken", "peers: all off"]
