"""The operator ``fullfield::tvl1``: schema, implementation, fake. Forward only: TV-L1 has no gradient here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullfield.ops.tvl1.api import TVL1Solver
from fullfield.ops.tvl1.config import TVL1Config

# The fields of TVL1Config one by one, since a schema holds plain values only and torch.compile traces plain values.
_SCHEMA = (
    "(Tensor frame1, Tensor frame2, Tensor? initial_flow, str? backend, *, float lambda_, float theta, float tau, "
    "int? scales, float scale_factor, int warps, int iterations, int median, float gradient_blend, str borders, "
    "str dual_reset, float epsilon, str precision, str schedule) -> Tensor"
)


def _dtype(frame: Tensor) -> torch.dtype:
    return torch.float64 if frame.dtype == torch.float64 else torch.float32


def _solve(
    frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, backend: str | None, **parameters: Any
) -> Tensor:
    height, width = frame1.shape[-2:]
    config = TVL1Config(**parameters)
    solver = TVL1Solver(height, width, config, dtype=_dtype(frame1), device=frame1.device, backend=backend)
    return solver(frame1, frame2, initial_flow=initial_flow)


tvl1_op = torch.library.custom_op("fullfield::tvl1", _solve, mutates_args=(), schema=_SCHEMA)


@tvl1_op.register_fake
def _(frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, backend: str | None, **parameters: Any) -> Tensor:  # noqa: ARG001
    batch, _, height, width = frame1.shape
    return frame1.new_empty(batch, 2, height, width, dtype=_dtype(frame1))
