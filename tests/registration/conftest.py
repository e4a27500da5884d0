"""Fixtures of the tests of registration."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernels"))

from emulator import emulate  # noqa: F401
