"""What every launch needs: the compiled kernels, and the parameters that all kernels of a pair share."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, capture_id
from fullfield.ops.correlation.cuda.config import Config
from fullfield.ops.correlation.protocol import Request

LIBRARIES = Libraries("correlation kernels")


def captured_by(stream: int) -> int:
    """The graph that ``stream``, the current one, is captured into; 0: none. The default stream, 0, never is."""
    capturing = stream and torch._C._cuda_isCurrentStreamCapturing()  # type: ignore[attr-defined, unused-ignore]
    return capture_id(stream) if capturing else 0


def offsets(request: Request, config: Config) -> list[int]:
    """Where every level begins, in 16-bit elements."""
    found, offset = [], 0
    for height, width in request.sizes2:
        found.append(offset)
        offset += request.batch * height * width * config.row_length
    return found


def fill(params: ctypes.Structure, request: Request, config: Config, f1: Tensor, f2: Tensor) -> None:
    """Everything that lookups of one pair have in common."""
    params.f1, params.f2 = f1.data_ptr(), f2.data_ptr()
    params.batch, params.levels = request.batch, request.levels
    params.height, params.width = request.size1
    for level, (offset, (height, width)) in enumerate(zip(offsets(request, config), request.sizes2, strict=True)):
        params.level_offset[level], params.level_h[level], params.level_w[level] = offset, height, width
    params.tiles_x, params.tiles_y = -(-params.width // config.block), -(-params.height // config.tile_height)
    params.tiles = params.batch * params.tiles_x * params.tiles_y
