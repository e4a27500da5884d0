"""Fixtures of the kernels' tests."""

from __future__ import annotations

from emulator import emulate  # noqa: F401
