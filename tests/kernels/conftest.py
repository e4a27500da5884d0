"""Fixtures of the kernels' tests."""

from __future__ import annotations

import logging

import pytest
from emulator import emulate  # noqa: F401


@pytest.fixture(autouse=True)
def _without_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages go to stderr, as where nobody has configured logging; pytest's handlers are above our logger."""
    monkeypatch.setattr(logging.getLogger("fullfield"), "hasHandlers", lambda: False)
