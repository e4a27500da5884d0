"""What every launch needs: the compiled kernels, their parameters as the CUDA sources declare them, tensor maps."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, capture_id, encode_tensor_map
from fullfield.ops.correlation.cuda.config import Config
from fullfield.ops.correlation.protocol import Request
from fullfield.ops.launching import structures

LIBRARIES = Libraries("correlation kernels")
_FOLDER = Path(__file__).parent
_DECLARED = structures(
    *(_FOLDER / name for name in ("common.cuh", "gradients.cuh", "coords_gradient.cu", "prepare.cu")),
)
Params, GradientParams, CoordsParams, MapSource, PrepareParams = map(
    _DECLARED.__getitem__, ("Params", "GradientParams", "CoordsParams", "Source", "PrepareParams")
)


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


def split_levels(params: ctypes.Structure, levels: int, parts: int, whole: int = 0) -> None:
    """Make every tile's levels ``parts`` items (1 to 4), the finest ones apart, the others together; of the first
    ``whole`` tiles one item each."""
    ends = sorted({min(end, levels) for end in (*range(1, parts), levels)})
    params.parts = len(ends)
    for index, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        params.part_begin[index], params.part_end[index] = begin, end
    params.whole = whole
    params.items = whole + (params.tiles - whole) * params.parts


@functools.lru_cache(maxsize=256)
def tensor_maps(
    data: int,
    sizes: tuple[tuple[int, int], ...],
    batch: int,
    row_length: int,
    columns: int,
    widths: tuple[int, ...],
) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """A tensor map for every level and chunk width, and their aligned address in the buffer that holds them."""
    buffer = ctypes.create_string_buffer(128 * len(sizes) * len(widths) + 64)
    address = (ctypes.addressof(buffer) + 63) // 64 * 64
    offset = 0
    for level, (height, width) in enumerate(sizes):
        if height and width and batch:
            for index, chunk in enumerate(widths):
                place = address + 128 * (level * len(widths) + index)
                shape = (row_length, width, height, batch)
                encode_tensor_map(place, data + 2 * offset, shape, (64, chunk, columns // chunk, 1))
        offset += batch * height * width * row_length
    return buffer, address
