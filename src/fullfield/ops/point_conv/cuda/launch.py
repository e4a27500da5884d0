"""The launches of the two products."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import MOST_BLOCKS, Device, Kernels, address, structures
from fullfield.ops.point_conv.cuda.config import (
    Channels,
    Multiply,
    Operands,
    Outer,
    OuterHopper,
    channels_of,
    multiply_config,
    operands_of,
    outer_config,
)
from fullfield.ops.point_conv.protocol import Request
from fullfield.ops.point_conv.triplets import Triplets, index_bits

LIBRARIES = Libraries("point convolution kernels")
# Of the shares of the weights' gradient, if there is more than one: where every segment has its own, else.
_SHARE_BYTES, _COMMON_BYTES = 64 << 20, 8 << 20
_DECLARED = structures(*(Path(__file__).with_name(name) for name in ("common.cuh", "multiply.cuh", "outer.cuh")))
_Triplets, _Magnitude, _Pack, _Multiply, _Outer, _Shares = map(
    _DECLARED.__getitem__,
    ("Triplets", "MagnitudeParams", "PackParams", "MultiplyParams", "OuterParams", "SharesParams"),
)


class _MultiplyPlan(NamedTuple):
    """What a forward product's launches take beside addresses."""

    source: Source
    scaled: bool
    groups: int
    padded: int
    vectors: int
    """Of 16 bytes, of all weights in the kernels' order."""
    pack_blocks: int
    pack: tuple[int, ...]
    main: tuple[int, ...]
    """The last numbers of the kernels' parameters."""
    columns: int
    most: int
    """Blocks of a column that fill the device."""
    unit: int
    threads: int
    shared: int


@functools.lru_cache(4096)
def _multiply_plan(device: Device, request: Request, beside: bool) -> _MultiplyPlan:
    operands, channels = operands_of(request, beside), channels_of(request)
    config = multiply_config(request, operands, device)
    blocks = -(-channels.outputs // config.columns)
    columns = blocks * channels.groups
    vectors = columns * config.vectors(request.cells, operands.parts)
    own = (channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined)
    most = max(1, device.processors * config.blocks // columns)
    if isinstance(config, Multiply) and config.sharing > 1:  # no rows are handed out: a block has its own
        most = MOST_BLOCKS
    return _MultiplyPlan(
        config.source(operands), operands.scaled, channels.groups, channels.padded_inputs, vectors,
        -(-vectors // operands.parts // 256), (request.cells, request.groups, *own, config.slabs, blocks),
        (channels.padded_inputs, channels.outputs, config.slabs, blocks, columns), columns,
        most, config.unit, config.threads,
        config.shared(request.cells, operands.parts),
    )  # fmt: skip


@functools.lru_cache(4096)
def _outer_plan(
    device: Device, request: Request, beside: bool
) -> tuple[Operands, Channels, Source, Outer | OuterHopper]:
    operands = operands_of(request, beside)
    config = outer_config(request, operands, device)
    return operands, channels_of(request), config.source(operands), config


def _alike(request: Request) -> Request:
    """The same for all requests of about as many rows, in steps of an eighth or less."""
    device, dtype, channels, groups, cells, rows, _, _, precision = request
    step = max(0, rows.bit_length() - 4)
    return Request(device, dtype, channels, groups, cells, rows >> step << step, 0, 0, precision)


def _magnitudes(kernels: Kernels, device: Device, values: tuple[Tensor, ...]) -> Tensor:
    """The largest finite magnitude of each, float32 as int32."""
    found = torch.zeros(len(values), dtype=torch.int32, device=values[0].device)
    for number, tensor in enumerate(values):
        if tensor.numel():
            params = _Magnitude(tensor.data_ptr(), found.data_ptr() + 4 * number, tensor.numel())
            kernels.launch("magnitude", min(-(-tensor.numel() // 2048), 8 * device.processors), 256, params)
    return found


def _triplets(triplets: Triplets, cells: int) -> Any:
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


def multiply(
    request: Request, features: Tensor, weight: Tensor, bias: Tensor | None, triplets: Triplets, transposed: int = 0
) -> Tensor:
    out = features.new_empty((request.rows, request.channels[1]))
    if not out.numel():
        return out
    if not request.channels[0] or not request.entries:
        return out.copy_(bias) if bias is not None else out.zero_()
    device = launching.device_at(features.get_device())
    plan = _multiply_plan(device, _alike(request), triplets.cells.numel() > 0)
    kernels = launching.kernels(LIBRARIES, plan.source, device.index)
    magnitude = _magnitudes(kernels, device, (features, weight)) if plan.scaled else None
    of_weight = None if magnitude is None else magnitude.data_ptr() + 4
    room = torch.empty(16 * plan.vectors + 4 * plan.columns, dtype=torch.uint8, device=features.device)
    packed = room.data_ptr()
    queue = packed + 16 * plan.vectors
    params = _Pack(weight.data_ptr(), packed, of_weight, *plan.pack, transposed, queue)
    kernels.launch("pack", plan.pack_blocks, 256, params)
    given = _aligned(features, plan.groups, plan.padded)
    main = _Multiply(
        _triplets(triplets, request.cells), given.data_ptr(), packed, address(bias), out.data_ptr(),
        address(magnitude), given.shape[1], request.channels[1], *plan.main, queue,
    )  # fmt: skip
    each = min(plan.most, -(-request.rows // plan.unit))
    kernels.launch("multiply", plan.columns * each, plan.threads, main, plan.shared)
    return out


def outer(request: Request, features: Tensor, grad: Tensor, triplets: Triplets) -> Tensor:
    out = features.new_empty((request.cells, request.channels[0] // request.groups, request.channels[1]))
    if not out.numel():
        return out
    if not request.entries:
        return out.zero_()
    device = launching.device_at(features.get_device())
    operands, channels, source, config = _outer_plan(device, _alike(request), triplets.cells.numel() > 0)
    kernels = launching.kernels(LIBRARIES, source, device.index)
    magnitude = _magnitudes(kernels, device, (features, grad)) if operands.scaled else None
    input_blocks = -(-channels.inputs // (config.inputs * config.halves)) * config.halves
    output_blocks = -(-channels.outputs // config.outputs)
    columns = channels.groups * input_blocks * output_blocks
    cell_blocks = -(-request.cells // config.cells)
    segments, slots, share = _segments(request, columns, cell_blocks, config, device)
    shares = torch.empty((slots, share), dtype=torch.float32, device=features.device)
    turns = None
    if segments > slots:
        turns = torch.zeros(12 * slots * columns * cell_blocks + 1, dtype=torch.int32, device=features.device)
    given, wanted = _both_aligned(features, grad, channels)
    main = _Outer(
        _triplets(triplets, request.cells), given.data_ptr(), wanted.data_ptr(), shares.data_ptr(), address(turns),
        address(magnitude), given.shape[1], wanted.shape[1], channels.padded_inputs, channels.padded_outputs,
        input_blocks, output_blocks, columns, cell_blocks, segments, slots,
    )  # fmt: skip
    blocks = segments * (columns // config.halves) * cell_blocks
    kernels.launch("outer", blocks, 32 * config.warps, main, config.shared(operands.parts))
    params = _Shares(
        shares.data_ptr(), out.data_ptr(), address(magnitude), request.cells, request.groups,
        channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined, input_blocks,
        output_blocks, slots,
    )  # fmt: skip
    kernels.launch("add_shares", -(-out.numel() // 256), 256, params)
    return out


def _both_aligned(features: Tensor, grad: Tensor, channels: Channels) -> tuple[Tensor, Tensor]:
    return (
        _aligned(features, channels.groups, channels.padded_inputs),
        _aligned(grad, channels.groups, channels.padded_outputs),
    )


def _segments(
    request: Request, columns: int, cell_blocks: int, config: Outer | OuterHopper, device: Device
) -> tuple[int, int, int]:
    """Segments of rows, shares that they write, and floats of a share."""
    share = columns * request.cells * config.inputs * config.outputs
    wanted = max(1, config.waves * device.processors // (columns // config.halves * cell_blocks))
    segments = max(1, min(wanted, -(-request.rows // 32)))
    if isinstance(config, Outer):
        segments = max(1, min(segments, _SHARE_BYTES // (4 * share)))
        return segments, segments, share
    return segments, max(1, min(segments, _COMMON_BYTES // (4 * share))), share
