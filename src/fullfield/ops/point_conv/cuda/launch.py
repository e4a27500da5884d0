"""The launches of the two products."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source, addresses
from fullfield.ops.launching import address, arch_of, raw_stream, structure
from fullfield.ops.point_conv.cuda.config import (
    Channels,
    Device,
    Operands,
    Outer,
    channels_of,
    multiply_config,
    operands_of,
    outer_config,
)
from fullfield.ops.point_conv.protocol import Request
from fullfield.ops.point_conv.triplets import Triplets, index_bits

LIBRARIES = Libraries("point convolution kernels")
# The weights' gradient is summed in so many blocks a multiprocessor at least, in no more bytes of shares.
_WAVES, _SHARE_BYTES = 2, 64 << 20
_ptr, _i64, _i32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int

# Field by field as the CUDA sources declare them.
_Triplets = structure(
    "Triplets", ("rows", _ptr), ("entries", _ptr), ("beside", _ptr), ("count", _i64), ("bits", _i32), ("cells", _i32)
)
_Magnitude = structure("MagnitudeParams", ("values", _ptr), ("magnitude", _ptr), ("count", _i64))
_Pack = structure(
    "PackParams", ("weight", _ptr), ("packed", _ptr), ("magnitude", _ptr), ("cells", _i32), ("groups", _i32),
    ("inputs", _i32), ("outputs", _i32), ("joined", _i32), ("slabs", _i32), ("blocks", _i32),
)  # fmt: skip
_Multiply = structure(
    "MultiplyParams", ("triplets", _Triplets), ("features", _ptr), ("weights", _ptr), ("bias", _ptr), ("out", _ptr),
    ("magnitude", _ptr), ("features_row", _i64), ("out_row", _i64), ("inputs", _i32), ("outputs", _i32),
    ("slabs", _i32), ("blocks", _i32), ("columns", _i32), ("queue", _ptr),
)  # fmt: skip
_Outer = structure(
    "OuterParams", ("triplets", _Triplets), ("features", _ptr), ("grad", _ptr), ("shares", _ptr), ("magnitude", _ptr),
    ("features_row", _i64), ("grad_row", _i64), ("inputs", _i32), ("outputs", _i32), ("input_blocks", _i32),
    ("output_blocks", _i32), ("columns", _i32), ("cell_blocks", _i32), ("segments", _i32),
)  # fmt: skip
_Shares = structure(
    "SharesParams", ("shares", _ptr), ("out", _ptr), ("magnitude", _ptr), ("cells", _i32), ("groups", _i32),
    ("inputs", _i32), ("outputs", _i32), ("joined", _i32), ("input_blocks", _i32), ("output_blocks", _i32),
    ("segments", _i32),
)  # fmt: skip


@functools.cache
def _device_at(index: int) -> Device:
    about = torch.cuda.get_device_properties(index)
    shared = about.shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return Device(index, arch_of(index), shared, about.multi_processor_count)


def device_of(like: Tensor) -> Device:
    return _device_at(like.get_device())


class _Launcher:
    """Launches of one source's kernels on the current stream."""

    def __init__(self, device: Device, source: Source) -> None:
        self._device = device
        self._library = LIBRARIES.load([source], device.arch, device.index)[0]

    def __call__(self, name: str, blocks: int, threads: int, params: ctypes.Structure, shared: int = 0) -> None:
        kernel = self._library[name]
        kernel.allow_shared(self._device.index, shared)
        index = self._device.index
        kernel.launch((blocks, 1), threads, shared, index, raw_stream(index), addresses(params))


def _magnitudes(launch: Callable[..., None], operands: Operands, device: Device, values: tuple[Tensor, ...]) -> Tensor:
    """The largest finite magnitude of each, float32 as int32; nobody reads them where nothing is scaled."""
    if not operands.scaled:
        return torch.empty(0, dtype=torch.int32, device=values[0].device)
    found = torch.zeros(len(values), dtype=torch.int32, device=values[0].device)
    for number, tensor in enumerate(values):
        if tensor.numel():
            params = _Magnitude(tensor.data_ptr(), found.data_ptr() + 4 * number, tensor.numel())
            launch("magnitude", min(-(-tensor.numel() // 2048), 8 * device.processors), 256, params)
    return found


def _triplets(triplets: Triplets, cells: int) -> ctypes.Structure:
    rows, entries, beside = triplets
    bits = index_bits(cells)
    return _Triplets(rows.data_ptr(), entries.data_ptr(), beside.data_ptr(), rows.numel() - 1, bits, cells)


def _aligned(values: Tensor, groups: int, padded: int) -> Tensor:
    """Rows of groups of ``padded`` channels at multiples of 16 bytes: a copy where they are not."""
    own = values.shape[1] // groups
    if own != padded:
        wide = values.new_zeros(values.shape[0], groups, padded)
        wide[:, :, :own] = values.view(values.shape[0], groups, own)
        return wide.view(values.shape[0], groups * padded)
    return values if values.data_ptr() % 16 == 0 else values.clone()


def multiply(request: Request, features: Tensor, weight: Tensor, bias: Tensor | None, triplets: Triplets) -> Tensor:
    out = features.new_empty((request.rows, request.channels[1]))
    if not out.numel():
        return out
    channels = channels_of(request)
    if not channels.inputs or not request.entries:
        return out.copy_(bias) if bias is not None else out.zero_()
    device = device_of(features)
    operands = operands_of(request, bool(triplets.cells.numel()))
    config = multiply_config(request, operands, device)
    source = config.source(operands)
    with torch.cuda.device(device.index):
        launch = _Launcher(device, source)
        magnitude = _magnitudes(launch, operands, device, (features, weight))
        blocks = -(-channels.outputs // config.columns)
        columns = blocks * channels.groups
        vectors = columns * config.vectors(request.cells, operands.parts)
        packed = torch.empty((vectors, 8), dtype=torch.int16, device=features.device)
        params = _Pack(
            weight.data_ptr(), packed.data_ptr(), magnitude.data_ptr() + 4 * operands.scaled, request.cells,
            request.groups, channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined,
            config.slabs, blocks,
        )  # fmt: skip
        launch("pack", -(-vectors // operands.parts // 256), 256, params)
        given = _aligned(features, channels.groups, channels.padded_inputs)
        queue = torch.zeros(columns, dtype=torch.int32, device=features.device)
        each = max(1, min(device.processors * config.blocks // columns, -(-request.rows // config.unit)))
        main = _Multiply(
            _triplets(triplets, request.cells), given.data_ptr(), packed.data_ptr(), address(bias), out.data_ptr(),
            magnitude.data_ptr(), given.shape[1], out.shape[1], channels.padded_inputs, channels.outputs,
            config.slabs, blocks, columns, queue.data_ptr(),
        )  # fmt: skip
        shared = config.shared(request.cells, operands.parts)
        launch("multiply", columns * each, config.threads, main, shared)
    return out


def outer(request: Request, features: Tensor, grad: Tensor, triplets: Triplets) -> Tensor:
    channels = channels_of(request)
    each = request.channels[0] // request.groups
    out = features.new_empty((request.cells, each, request.channels[1]))
    if not out.numel():
        return out
    if not request.entries:
        return out.zero_()
    device = device_of(features)
    operands = operands_of(request, bool(triplets.cells.numel()))
    config = outer_config(request, operands, device)
    with torch.cuda.device(device.index):
        launch = _Launcher(device, config.source(operands))
        magnitude = _magnitudes(launch, operands, device, (features, grad))
        input_blocks = -(-channels.inputs // (config.inputs * config.halves)) * config.halves
        output_blocks = -(-channels.outputs // config.outputs)
        columns = channels.groups * input_blocks * output_blocks
        cell_blocks = -(-request.cells // config.cells)
        segments, share = _segments(request, columns, cell_blocks, config, device)
        shares = torch.empty((segments, share), dtype=torch.float32, device=features.device)
        given, wanted = _both_aligned(features, grad, channels)
        main = _Outer(
            _triplets(triplets, request.cells), given.data_ptr(), wanted.data_ptr(), shares.data_ptr(),
            magnitude.data_ptr(), given.shape[1], wanted.shape[1], channels.padded_inputs, channels.padded_outputs,
            input_blocks, output_blocks, columns, cell_blocks, segments,
        )  # fmt: skip
        blocks = segments * (columns // config.halves) * cell_blocks
        launch("outer", blocks, 32 * config.warps, main, config.shared(operands.parts))
        params = _Shares(
            shares.data_ptr(), out.data_ptr(), magnitude.data_ptr(), request.cells, request.groups,
            channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined, input_blocks,
            output_blocks, segments,
        )  # fmt: skip
        launch("add_shares", -(-out.numel() // 256), 256, params)
    return out


def _both_aligned(features: Tensor, grad: Tensor, channels: Channels) -> tuple[Tensor, Tensor]:
    return (
        _aligned(features, channels.groups, channels.padded_inputs),
        _aligned(grad, channels.groups, channels.padded_outputs),
    )


def _segments(request: Request, columns: int, cell_blocks: int, config: Outer, device: Device) -> tuple[int, int]:
    """Segments of rows, and floats of a segment's shares."""
    share = columns * request.cells * config.inputs * config.outputs
    wanted = max(1, _WAVES * device.processors // (columns // config.halves * cell_blocks))
    return max(1, min(wanted, _SHARE_BYTES // (4 * share), -(-request.rows // 32))), share
