"""The operator ``fullfield::tvl1``: function, schema, fake. Forward only: TV-L1 has no gradient here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.tvl1.api import TVL1Solver
from fullfield.ops.tvl1.config import TVL1Config

# The fields of TVL1Config one by one, since a schema holds plain values only and torch.compile traces plain values.
_SCHEMA = (
    "(Tensor frame1, Tensor frame2, Tensor? initial_flow, str? backend, *, float lambda_, float theta, float tau, "
    "int? scales, float scale_factor, int warps, int iterations, int median, float gradient_blend, str borders, "
    "str dual_reset, float epsilon, str precision) -> Tensor"
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


def tvl1(
    frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    config: TVL1Config | None = None,
    *,
    initial_flow: Tensor | None = None,  # [B, 2, H, W], pixels
    backend: str | None = None,
) -> Tensor:  # [B, 2, H, W]: (u, v), x right, y down, pixels of the first frame
    """Flow from ``frame1`` to ``frame2``: the registered operator ``fullfield::tvl1``, usable under torch.compile.

    Builds a :class:`TVL1Solver` for every call; keep a solver to reuse its buffers or to see progress. float64 frames
    are solved in float64 (reference backend), all others in float32. Errors as the solver's.
    """
    c = TVL1Config() if config is None else config
    if not isinstance(c, TVL1Config):  # worded only here: torch.compile traces this function
        raise _check.InputError(f"config: expected a TVL1Config, got {_check.describe(c)}")
    _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
    _check.tensor(frame2, "frame2", ("B", "C", "H", "W"))
    flow: Tensor = tvl1_op(frame1, frame2, initial_flow, backend, **c.as_dict())
    return flow
