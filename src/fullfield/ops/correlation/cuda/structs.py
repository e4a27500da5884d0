"""The kernels' parameters, field by field as the CUDA sources declare them, and the tensor maps of sm_90."""

from __future__ import annotations

import ctypes
import functools

from fullfield._kernels.nvrtc import encode_tensor_map
from fullfield.ops.correlation.cuda.config import MOST_LEVELS

_i64, _i32, _f32, _ptr = ctypes.c_longlong, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


class Params(ctypes.Structure):
    """``Params`` of common.cuh."""

    _fields_ = [
        ("f1", _ptr), ("f2", _ptr), ("coords", _ptr), ("out", _ptr), ("scale", _ptr), ("queue", _ptr),
        ("coord_b", _i64), ("coord_c", _i64), ("coord_y", _i64), ("coord_x", _i64),
        ("level_offset", _i64 * MOST_LEVELS), ("level_h", _i32 * MOST_LEVELS), ("level_w", _i32 * MOST_LEVELS),
        ("batch", _i32), ("height", _i32), ("width", _i32), ("levels", _i32),
        ("tiles_x", _i32), ("tiles_y", _i32), ("tiles", _i32), ("items", _i32), ("parts", _i32),
        ("part_begin", _i32 * 8), ("part_end", _i32 * 8), ("whole", _i32),
    ]  # fmt: skip


class GradientParams(ctypes.Structure):
    """``GradientParams`` of gradients.cuh."""

    _fields_ = [
        ("p", Params), ("grad", _ptr), ("grad_b", _i64), ("grad_c", _i64), ("grad_y", _i64), ("grad_x", _i64),
        ("g1", _ptr), ("g2", _ptr), ("patches", _ptr), ("covered", _ptr), ("bounds", _ptr), ("largest", _ptr),
        ("full", _ptr), ("full_levels", _ptr), ("full_tiles", _ptr), ("bands", _ptr), ("full_targets", _ptr),
        ("target_largest", _ptr), ("turn", _ptr), ("work", _ptr),
        ("mode", _i32), ("grad_type", _i32), ("want_first", _i32), ("want_second", _i32), ("target_tiles", _i32),
        ("target_begin", _i32 * MOST_LEVELS), ("splits", _i32 * MOST_LEVELS),
    ]  # fmt: skip


class CoordsParams(ctypes.Structure):
    """``CoordsParams`` of coords_gradient.cu."""

    _fields_ = [
        ("p", Params), ("grad", _ptr), ("grad_b", _i64), ("grad_c", _i64), ("grad_y", _i64), ("grad_x", _i64),
        ("grad_coords", _ptr),
    ]  # fmt: skip


class MapSource(ctypes.Structure):
    """``Source`` of prepare.cu: one feature map."""

    _fields_ = [
        ("data", _ptr), ("b", _i64), ("c", _i64), ("y", _i64), ("x", _i64), ("height", _i32), ("width", _i32),
    ]  # fmt: skip


class PrepareParams(ctypes.Structure):
    """``PrepareParams`` of prepare.cu."""

    _fields_ = [
        ("source", MapSource * 2), ("f1", _ptr), ("f2", _ptr), ("scale", _ptr), ("magnitude", _ptr), ("deep", _ptr),
        ("level_offset", _i64 * MOST_LEVELS), ("level_h", _i32 * MOST_LEVELS), ("level_w", _i32 * MOST_LEVELS),
        ("batch", _i32), ("channels", _i32), ("levels", _i32), ("tiles_x", _i32 * 2), ("tiles_y", _i32 * 2),
        ("inverse_root", _f32),
    ]  # fmt: skip


def split_levels(params: Params, levels: int, parts: int, whole: int = 0) -> None:
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
