"""Fixtures of the operators' tests, which import one another's cases."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "kernels"), *(str(folder) for folder in HERE.iterdir() if folder.is_dir())]

from emulator import emulate  # noqa: E402, F401
