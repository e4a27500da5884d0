"""TV-L1 on NVIDIA GPUs: every pass a kernel, compiled by NVRTC on the user's machine."""

from __future__ import annotations

from typing import Any

import torch

from fullfield.ops import launching
from fullfield.ops.tvl1.config import TVL1Config


def supports(device: torch.device, dtype: torch.dtype, config: TVL1Config) -> str | None:  # noqa: ARG001 - all backends'
    """None where this backend can run, else the reason it cannot."""
    reason = launching.why_not(device)
    if reason is None and dtype != torch.float32:
        reason = f"takes and returns float32, got {str(dtype).removeprefix('torch.')}"
    return reason


def make_solver(height: int, width: int, config: TVL1Config, device: torch.device, dtype: torch.dtype) -> Any:  # noqa: ARG001
    """Takes checked frames [B, C, H, W], a start [B, 2, H, W] or None, and a progress; makes the flow [B, 2, H, W]."""
    from fullfield.ops.tvl1.cuda.solver import Solver

    return Solver(height, width, config, device)
