"""Kernels emulated on the CPU, for the tests of models that use them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernels"))

from emulator import emulate  # noqa: F401
