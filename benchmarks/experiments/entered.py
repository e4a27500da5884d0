"""Plugin of pytest for ``mutate.py``: writes whether each test passed, its seconds and entered functions."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_SOURCE = os.environ["ENTERED_SOURCE"] + os.sep
_FILE = Path(os.environ["ENTERED_FILE"] + os.environ.get("PYTEST_XDIST_WORKER", ""))
_codes: dict[int, CodeType] = {}


def _trace(frame: FrameType, _event: str, _argument: object) -> None:
    _codes[id(frame.f_code)] = frame.f_code


_failed = set[str]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure, also in a fixture."""
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions that are entered in a test and in its fixtures."""
    _codes.clear()
    threading.settrace(_trace)
    sys.settrace(_trace)
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    sys.settrace(None)
    threading.settrace(None)
    names = {
        f"{code.co_filename.removeprefix(_SOURCE)}:{code.co_firstlineno}"
        for code in _codes.values()
        if code.co_filename.startswith(_SOURCE)
    }
    with _FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, round(seconds, 3), item.nodeid not in _failed, sorted(names)]) + "\n")
