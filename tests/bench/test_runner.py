"""The command of the benchmarks: which failures count, and where ``fullfield bench`` went."""

from __future__ import annotations

import pytest

from benchmarks.bench import failed

pytestmark = pytest.mark.unit


# ---- going through the cases


def test_runner_reports_failed_checks_of_fullfield() -> None:
    rows = [
        {"name": "a", "ours": True, "status": "check failed", "reason": "off"},
        {"name": "b", "ours": False, "status": "failed", "reason": "broken"},
        {"name": "c", "status": "failed", "reason": "broken"},
        {"name": "d", "ours": True, "status": "out of memory", "reason": "large"},
        {"name": "e"},
    ]
    part = {"case": "peers", "status": "check failed", "reason": "all off", "rows": []}
    assert failed([{"label": "one", "rows": rows}, part]) == ["one: a: off", "one: c: broken", "peers: all off"]
