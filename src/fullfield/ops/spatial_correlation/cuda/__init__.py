"""The spatial correlation on NVIDIA GPUs, by kernels compiled on the user's machine. Never waits for the device."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, parse_structures
from fullfield.ops.spatial_correlation.protocol import FEATURES, DisplacementWindow, WindowRequest

LIBRARIES = LibraryCache("spatial correlation kernels")
_FOLDER = Path(__file__).parent
# As common.cuh has them: rows and columns of a tile, columns of a thread.
_TILE, _XR, _PITCH = (4, 32), 8, 36
_XG = _TILE[1] // _XR
_CHANNELS = 8  # of a chunk of the forward kernel
_MAX_THREADS = 384
# Blocks that fill a large GPU twice; below it, rows of displacements are spread over more blocks.
_MIN_BLOCKS = 264
# Channels of a block of the backward kernel, of a thread; the second where there are few blocks.
SPREADS = ((32, 4), (16, 2))

_COMMON = _FOLDER / "common.cuh"
_Forward, _Backward = (
    parse_structures(_COMMON, _FOLDER / f"{name}.cu")[f"{name.title()}Params"] for name in ("forward", "backward")
)


def explain_unsupported(request: WindowRequest) -> str | None:
    """Return None if the kernels can serve the request, else the reason."""
    if request.dtype not in FEATURES:
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    if not request.window.has_stride_dividing_dilation:
        return f"needs a stride that divides dilation_patch, got {request.window.stride}"
    if max(request.size) >= 1 << 24 or max(request.window.patch) >= 1 << 12:
        return f"needs maps below 2**24 and patches below 4096, got {request.size}, {request.window.patch}"
    return _launching.explain_unsupported_device(request.device)


class RowDivision(NamedTuple):
    """Division of a row's displacements."""

    group: int
    groups: int
    blocks: int


def divide_displacement_row(displacements_per_row: int) -> RowDivision:
    """Return the division of a row of ``displacements_per_row`` displacements."""
    if displacements_per_row <= 10:
        return RowDivision(displacements_per_row, 1, 1)
    groups = min(-(-displacements_per_row // 8), 4)
    return RowDivision(8, groups, -(-displacements_per_row // (8 * groups)))


def _count_shared_row_floats(row_division: RowDivision) -> int:
    """Return the floats of a row of features in shared memory, as RW of common.cuh."""
    span = (_XR + row_division.group - 1 + 3) // 4 * 4
    read = (_XG - 1) * _XR + (row_division.groups - 1) * row_division.group + span
    return read // 8 * 8 + (12 if read % 8 > 4 else 4)


def _generate_source(
    file_name: str, dtype: torch.dtype, reads_vectors: bool, row_division: RowDivision, **macros: int
) -> KernelSource:
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _launching.COPIES, _COMMON, _FOLDER / file_name)
    common = {"IN": CODES[dtype], "VEC": 4 if reads_vectors else 1, "JG": row_division.group, "JN": row_division.groups}
    return KernelSource.with_macros(text, **common, **macros)


@functools.cache
def generate_forward_source(reads_vectors: bool, row_division: RowDivision, rows: int) -> KernelSource:
    """Return the source of the forward kernel of float32 features, with ``rows`` of displacements per block."""
    macros = {"PI": rows, "CC": _CHANNELS, "THREADS": count_forward_threads_per_block(row_division, rows)}
    return _generate_source("forward.cu", torch.float32, reads_vectors, row_division, **macros)


@functools.cache
def generate_backward_source(
    dtype: torch.dtype, reads_vectors: bool, row_division: RowDivision, channels_per_block_and_thread: tuple[int, int]
) -> KernelSource:
    """Return the source of the backward kernel; ``channels_per_block_and_thread``: channels of a block, of a thread."""
    macros = {
        "CB": channels_per_block_and_thread[0],
        "CR": channels_per_block_and_thread[1],
        "THREADS": count_backward_threads_per_block(channels_per_block_and_thread),
    }
    return _generate_source("backward.cu", dtype, reads_vectors, row_division, **macros)


class HalfPrecisionTiling(NamedTuple):
    """Division of displacements by the kernel on tensor cores."""

    rows: int
    columns: int
    blocks: int
    """Of columns."""

    @property
    def column_octet_count(self) -> int:
        """Octets of columns of fmap2 that 16 outputs are multiplied with."""
        return (15 + self.columns + 7) // 8

    @property
    def shared_bytes(self) -> int:
        """Bytes of a block."""
        rows, width = _TILE[0] + self.rows - 1, 16 + 8 * self.column_octet_count
        stride = rows * width + (0 if rows * width // 8 % 2 else 8)
        return max(2 * 2 * 32 * (stride + _TILE[0] * _TILE[1] + 8), 4 * 8 * self.columns * 20)


def choose_half_precision_tiling(patch: tuple[int, int], blocks_in_other_dimensions: int) -> HalfPrecisionTiling:
    """Return the division of a patch if the other dimensions make ``blocks_in_other_dimensions`` blocks."""
    columns = patch[1] if patch[1] <= 21 else 16
    blocks = -(-patch[1] // columns)
    max_sums = max(60 // (4 * ((15 + columns + 7) // 8)), 1)  # sums that a thread keeps
    block_count = -(-patch[0] // max_sums)
    if block_count * blocks_in_other_dimensions * blocks < _MIN_BLOCKS:
        block_count = min(3 * block_count, patch[0])
    return HalfPrecisionTiling(-(-patch[0] // block_count), columns, blocks)


@functools.cache
def generate_half_precision_forward_source(
    dtype: torch.dtype, reads_vectors: bool, tiling: HalfPrecisionTiling
) -> KernelSource:
    """Return the source of the forward kernel of 16-bit features."""
    shared = (_launching.HALVES, _launching.VALUES, _launching.PRODUCTS, _launching.COPIES)
    text = _launching.read_source(*shared, _COMMON, _FOLDER / "forward_half.cu")
    return KernelSource.with_macros(
        text, IN=CODES[dtype], BF16=dtype == torch.bfloat16, VEC=4 if reads_vectors else 1, JG=1, JN=1,
        CC=32, PI=tiling.rows, PJ=tiling.columns, NT=tiling.column_octet_count, THREADS=256,
    )  # fmt: skip


def count_forward_threads_per_block(row_division: RowDivision, rows: int) -> int:
    """Return the threads of a block."""
    return -(-_XG * rows * row_division.groups * _TILE[0] // 32) * 32


def compute_forward_shared_bytes(row_division: RowDivision, rows: int) -> int:
    """Return the bytes of shared memory of a block."""
    chunk = _CHANNELS * ((_TILE[0] + rows - 1) * _count_shared_row_floats(row_division) + _TILE[0] * _TILE[1])
    stage = count_forward_threads_per_block(row_division, rows) // 32 * (32 // _XG * _PITCH)
    return 4 * max(2 * chunk, stage)


def compute_backward_shared_bytes(row_division: RowDivision, channels_per_block_and_thread: tuple[int, int]) -> int:
    """Return the bytes of shared memory of a block."""
    weights = row_division.groups * row_division.group * _TILE[0] * _PITCH
    ring = channels_per_block_and_thread[0] * (_TILE[0] + 1) * _count_shared_row_floats(row_division)
    return 4 * max(
        2 * weights + ring, count_backward_threads_per_block(channels_per_block_and_thread) // 32 * (32 // _XG * _PITCH)
    )


def count_backward_threads_per_block(channels_per_block_and_thread: tuple[int, int]) -> int:
    """Return the threads of a block."""
    return _XG * _TILE[0] * channels_per_block_and_thread[0] // channels_per_block_and_thread[1]


def choose_displacement_rows_per_block(
    patch_rows: int, row_division: RowDivision, blocks_in_other_dimensions: int, shared_bytes: int
) -> int:
    """Return how many of the ``patch_rows`` of displacements a block of at most ``shared_bytes`` takes.

    ``blocks_in_other_dimensions`` is the number of blocks that the other dimensions make.
    """
    block_count = -(-patch_rows // max(_MAX_THREADS // (_XG * row_division.groups * _TILE[0]), 1))
    if block_count * blocks_in_other_dimensions < _MIN_BLOCKS:
        block_count = min(3 * block_count, patch_rows)
    rows = -(-patch_rows // block_count)
    while compute_forward_shared_bytes(row_division, rows) > shared_bytes:
        rows -= 1
    return rows


def choose_channels_per_block_and_thread(
    row_division: RowDivision, blocks_in_other_dimensions: int, channels: int, shared_bytes: int
) -> tuple[int, int]:
    """Return the channels of a block and of a thread; arguments as in :func:`choose_displacement_rows_per_block`."""
    is_large = blocks_in_other_dimensions * -(-channels // SPREADS[0][0]) >= _MIN_BLOCKS
    return (
        SPREADS[0]
        if is_large and compute_backward_shared_bytes(row_division, SPREADS[0]) <= shared_bytes
        else SPREADS[1]
    )


def _fill_axes_and_count_tiles(
    p: Any, window: DisplacementWindow, size: tuple[int, int], out: tuple[int, int], is_second_map: bool = False
) -> int:
    """Fill in both axes; return the total number of tiles."""
    total = 1
    for index, axis in enumerate((p.y, p.x)):
        axis.step, axis.stride = window.dilation_patch[index], window.stride[index]
        axis.classes = axis.step // axis.stride
        axis.padding, axis.radius = window.padding[index], window.radius[index]
        axis.patch, axis.in_, axis.out = window.patch[index], size[index], out[index]
        longest = -(-size[index] // axis.step) if is_second_map else -(-out[index] // axis.classes)
        axis.tiles = -(-longest // _TILE[index])
        total *= axis.tiles * axis.classes
    return total


def _can_read_feature_vectors(
    window: DisplacementWindow, width: int, starts: tuple[int, ...], *tensors: Tensor
) -> bool:
    """Return whether four features in a row can be read at once."""
    if window.dilation_patch[1] != 1 or width % 4 or any(start % 4 for start in starts):
        return False
    return not any(tensor.data_ptr() % (4 * tensor.itemsize) for tensor in tensors)


def compute_correlation(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
    """Compute the products of a window; see :func:`fullfield.ops.spatial_correlation.spatial_correlation`."""
    batch, channels, height, width = fmap1.shape
    out_size = window.compute_output_size((height, width))
    out = fmap1.new_empty((batch, *window.patch, *out_size))
    if not out.numel() or not channels:
        return out.zero_()
    device = _launching.get_gpu_properties(fmap1.get_device())
    if fmap1.dtype == torch.bfloat16 and not device.has_bfloat16_tensor_cores:
        return out.copy_(compute_correlation(fmap1.float(), fmap2.float(), window))
    p = _Forward()
    p.fmap1, p.fmap2, p.out, p.channels = fmap1.data_ptr(), fmap2.data_ptr(), out.data_ptr(), channels
    tiles = _fill_axes_and_count_tiles(p, window, (height, width), out_size) * batch
    vectors = _can_read_feature_vectors(window, width, (window.padding[1], window.radius[1]), fmap1, fmap2)
    if fmap1.dtype != torch.float32:
        half = choose_half_precision_tiling(window.patch, tiles)
        p.row_blocks, p.column_blocks = -(-window.patch[0] // half.rows), half.blocks
        source, name, threads, shared = (
            generate_half_precision_forward_source(fmap1.dtype, vectors, half),
            "spatial_forward_half",
            256,
            half.shared_bytes,
        )
    else:
        columns = divide_displacement_row(window.patch[1])
        rows = choose_displacement_rows_per_block(window.patch[0], columns, tiles * columns.blocks, device.shared)
        p.row_blocks, p.column_blocks = -(-window.patch[0] // rows), columns.blocks
        source, name = generate_forward_source(vectors, columns, rows), "spatial_forward"
        threads, shared = count_forward_threads_per_block(columns, rows), compute_forward_shared_bytes(columns, rows)
    kernels = _launching.load_kernels(LIBRARIES, source, device.index)
    kernels.launch(name, tiles * p.row_blocks * p.column_blocks, threads, p, shared)
    return out


def compute_requested_gradients(
    fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: DisplacementWindow, requested: tuple[bool, bool]
) -> list[Tensor]:
    """Return the requested gradients of the two maps."""
    return [
        _compute_map_gradient(fmap1 if second else fmap2, grad, window, second)
        for second, is_requested in zip((False, True), requested, strict=True)
        if is_requested
    ]


def _compute_map_gradient(other_map: Tensor, grad: Tensor, window: DisplacementWindow, is_second_map: bool) -> Tensor:
    """Return the gradient of fmap2 if ``is_second_map``, else of fmap1; ``other_map`` is the other of the two."""
    batch, channels, height, width = other_map.shape
    covers_all = window.stride == (1, 1)  # else there are pixels that nothing was compared with
    out = torch.empty_like(other_map) if covers_all and grad.numel() else torch.zeros_like(other_map)
    if not grad.numel() or not channels:
        return out
    p = _Backward()
    p.features, p.grad, p.out = other_map.data_ptr(), grad.data_ptr(), out.data_ptr()
    p.channels, p.second = channels, is_second_map
    columns = divide_displacement_row(window.patch[1])
    tiles = (
        _fill_axes_and_count_tiles(
            p, window, (height, width), window.compute_output_size((height, width)), is_second_map
        )
        * batch
    )
    device = _launching.get_gpu_properties(other_map.get_device())
    spread = choose_channels_per_block_and_thread(columns, tiles, channels, device.shared)
    p.channel_blocks, p.column_blocks = -(-channels // spread[0]), columns.blocks
    radius = window.radius[1]
    start = radius - (window.patch[1] - 1) if is_second_map else window.padding[1] + radius
    vectors = _can_read_feature_vectors(window, width, (start,), other_map)
    kernels = _launching.load_kernels(
        LIBRARIES, generate_backward_source(other_map.dtype, vectors, columns, spread), device.index
    )
    threads, shared = count_backward_threads_per_block(spread), compute_backward_shared_bytes(columns, spread)
    kernels.launch("spatial_backward", tiles * p.channel_blocks, threads, p, shared)
    return out
