"""TV-L1 on NVIDIA GPUs: every pass a kernel, compiled by NVRTC on the user's machine."""

from __future__ import annotations

from typing import Any

import torch

from fullfield.ops import _launching
from fullfield.ops.tvl1.config import TVL1Config


def explain_unsupported(device: torch.device, dtype: torch.dtype, config: TVL1Config) -> str | None:  # noqa: ARG001 - all backends'
    """Return None if the kernels can compute with these settings, else the reason."""
    reason = _launching.explain_unsupported_device(device)
    if reason is None and dtype != torch.float32:
        reason = f"takes and returns float32, got {str(dtype).removeprefix('torch.')}"
    return reason


def create_solver(height: int, width: int, config: TVL1Config, device: torch.device, dtype: torch.dtype) -> Any:  # noqa: ARG001
    """Return the solver for one size of frames."""
    from fullfield.ops.tvl1.cuda.solver import CudaSolver

    return CudaSolver(height, width, config, device)
