"""The passes between convolutions, run on the CPU by ``emulator``, against their reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import emulator
import pytest
import torch

from fullfield.ops.fused import cuda

sys.path.append(str(Path(__file__).parents[1] / "ops" / "fused"))
from test_passes import NAMES, compare

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with emulator.kernels_of(cuda):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    compare(name, dtype, torch.device("cpu"), (7, 9, 64), (17, 40), 64)
