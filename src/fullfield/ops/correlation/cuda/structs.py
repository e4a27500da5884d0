"""The kernels' parameters, as the CUDA sources declare them, and the tensor maps of sm_90."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from fullfield._kernels.nvrtc import encode_tensor_map
from fullfield.ops.launching import structures

_FOLDER = Path(__file__).parent
_DECLARED = structures(
    *(_FOLDER / name for name in ("common.cuh", "gradients.cuh", "coords_gradient.cu", "prepare.cu")),
)
Params, GradientParams, CoordsParams, MapSource, PrepareParams = map(
    _DECLARED.__getitem__, ("Params", "GradientParams", "CoordsParams", "Source", "PrepareParams")
)

CLASSES = _DECLARED.number("CLASSES")


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
