"""The normalisation's kernels compile for every GPU from Turing on, within registers."""

from __future__ import annotations

import pytest
import torch
from test_nvrtc import ARCHS, DTYPES, needs_nvrtc, resources

from fullfield.ops.point_norm import cuda


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_resources(arch: str, dtype: torch.dtype) -> None:
    for channels, wide, most in ((64, True, 128), (1000, True, 255), (37, False, 128)):
        found = resources(cuda.source(dtype, dtype, channels, wide), arch)
        assert len(found) == 8
        for registers, spilled in found.values():
            assert registers <= most
            assert spilled <= 64
