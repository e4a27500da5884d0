"""Fixtures shared by the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DATA = Path(os.environ.get("FULLFIELD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real frames and true flow; a test that needs it skips where it is absent."""
    if not _DATA.is_dir():
        pytest.skip(f"no real data: {_DATA} is absent (set FULLFIELD_DATA)")
    return _DATA
