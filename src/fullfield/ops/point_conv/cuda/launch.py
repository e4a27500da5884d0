"""The launches of the two products."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import MAX_BLOCKS, GpuProperties, LoadedKernels, get_address, parse_structures
from fullfield.ops.point_conv.cuda.config import (
    GroupChannels,
    HopperOuterProductVariant,
    MultiplyVariant,
    OuterProductVariant,
    choose_multiply_variant,
    choose_operand_format,
    choose_outer_product_variant,
    join_small_channel_groups,
    replace_bfloat16_by_float32,
)
from fullfield.ops.point_conv.protocol import ConvRequest
from fullfield.ops.point_conv.triplets import Triplets, count_index_bits

LIBRARIES = LibraryCache("point convolution kernels")
# Of the shares of the weights' gradient, if there is more than one: where every segment has its own, else.
_SHARE_BYTES, _COMMON_BYTES = 64 << 20, 8 << 20
_DECLARED = parse_structures(*(Path(__file__).with_name(name) for name in ("common.cuh", "multiply.cuh", "outer.cuh")))
_Triplets, _Magnitude, _Pack, _Multiply, _Outer, _Shares = map(
    _DECLARED.__getitem__,
    ("Triplets", "MagnitudeParams", "PackParams", "MultiplyParams", "OuterParams", "SharesParams"),
)


class _MultiplyPlan(NamedTuple):
    """Arguments of a forward product's launches other than addresses and rows."""

    source: KernelSource
    is_scaled: bool
    groups: int
    padded: int
    weights: int
    """Bytes of all weights in the kernels' order, behind which the queue lies."""
    buffer_bytes: int
    pack_blocks: int
    pack: Any
    main: Any
    """The kernels' parameters."""
    columns: int
    max_blocks: int
    """Blocks of a column that fill the device."""
    rows_at_a_time: int
    threads: int
    shared: int


@functools.lru_cache(4096)
def _plan_multiply_launches(device: GpuProperties, request: ConvRequest, has_cells: bool) -> _MultiplyPlan:
    operands, channels = choose_operand_format(request, has_cells), join_small_channel_groups(request)
    config = choose_multiply_variant(request, operands, device)
    blocks = -(-channels.outputs // config.columns)
    columns = blocks * channels.groups
    vectors = columns * config.count_weight_vectors(request.cells, operands.parts_per_value)
    own = (channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined)
    max_blocks = max(1, device.processors * config.blocks // columns)
    if (
        isinstance(config, MultiplyVariant) and config.warps_sharing_rows > 1
    ):  # no rows are handed out: a block has its own
        max_blocks = MAX_BLOCKS
    pack = _Pack(None, None, None, request.cells, request.groups, *own, config.slabs, blocks)
    row = channels.groups * channels.padded_inputs
    last = (row, request.channels[1], channels.padded_inputs, channels.outputs, config.slabs, blocks, columns)
    triplets = _Triplets(None, None, None, 0, count_index_bits(request.cells), request.cells)
    return _MultiplyPlan(
        config.build_source(operands), operands.is_scaled, channels.groups, channels.padded_inputs,
        16 * vectors, 16 * vectors + 4 * columns, -(-vectors // operands.parts_per_value // 256), pack,
        _Multiply(triplets, None, None, None, None, None, *last), columns, max_blocks, config.rows_at_a_time,
        config.threads, config.compute_shared_bytes(request.cells, operands.parts_per_value),
    )  # fmt: skip


class _OuterPlan(NamedTuple):
    """The same of the weights' gradient."""

    source: KernelSource
    is_scaled: bool
    channels: GroupChannels
    config: OuterProductVariant | HopperOuterProductVariant
    columns: int
    cell_blocks: int
    main: Any
    shares: Any
    threads: int
    shared: int


@functools.lru_cache(4096)
def _plan_outer_product_launches(device: GpuProperties, request: ConvRequest, has_cells: bool) -> _OuterPlan:
    operands, channels = choose_operand_format(request, has_cells), join_small_channel_groups(request)
    config = choose_outer_product_variant(request, operands, device)
    input_blocks = -(-channels.inputs // (config.inputs * config.halves)) * config.halves
    output_blocks = -(-channels.outputs // config.outputs)
    columns, cell_blocks = channels.groups * input_blocks * output_blocks, -(-request.cells // config.cells)
    rows = (channels.groups * channels.padded_inputs, channels.groups * channels.padded_outputs)
    triplets = _Triplets(None, None, None, 0, count_index_bits(request.cells), request.cells)
    main = _Outer(
        triplets, None, None, None, None, None, *rows, channels.padded_inputs, channels.padded_outputs, input_blocks,
        output_blocks, columns, cell_blocks,
    )  # fmt: skip
    own = (channels.inputs // channels.joined, channels.outputs // channels.joined, channels.joined)
    shares = _Shares(None, None, None, request.cells, request.groups, *own, input_blocks, output_blocks)
    return _OuterPlan(
        config.build_source(operands), operands.is_scaled, channels, config, columns, cell_blocks, main, shares,
        32 * config.warps, config.compute_shared_bytes(operands.parts_per_value),
    )  # fmt: skip


def _round_request_for_plan_cache(request: ConvRequest) -> ConvRequest:
    """Return one request for all requests with about as many rows, in steps of an eighth or less."""
    device, dtype, channels, groups, cells, rows, _, _, precision = request
    step = max(0, rows.bit_length() - 4)
    return ConvRequest(device, dtype, channels, groups, cells, rows >> step << step, 0, 0, precision)


def _compute_max_magnitude_bits_per_tensor(
    kernels: LoadedKernels, device: GpuProperties, tensors: tuple[Tensor, ...]
) -> Tensor:
    """Return the largest finite magnitude of each tensor, float32 as int32."""
    largest = torch.zeros(len(tensors), dtype=torch.int32, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            params = _Magnitude(tensor.data_ptr(), largest.data_ptr() + 4 * number, tensor.numel())
            kernels.launch("magnitude", min(-(-tensor.numel() // 2048), 8 * device.processors), 256, params)
    return largest


def _pad_and_align_groups_if_needed(values: Tensor, groups: int, padded: int) -> Tensor:
    """Return rows of groups of ``padded`` channels at multiples of 16 bytes, copied if they are not."""
    rows, channels = values.shape
    if channels == groups * padded:
        return values.clone() if values.data_ptr() % 16 else values
    own = channels // groups
    padded_values = values.new_zeros(rows, groups, padded)
    padded_values[:, :, :own] = values.view(rows, groups, own)
    return padded_values.view(rows, groups * padded)


def convolve_triplets(
    request: ConvRequest, features: Tensor, weight: Tensor, bias: Tensor | None, triplets: Triplets, transposed: int = 0
) -> Tensor:
    """Multiply and add over the triplets of each row; the result is [rows, outputs]."""
    out = features.new_empty((request.rows, request.channels[1]))
    if not out.numel():
        return out
    if not request.channels[0] or not request.entries:
        return out.copy_(bias) if bias is not None else out.zero_()
    device = _launching.get_gpu_properties(features.get_device())
    if not device.has_bfloat16_tensor_cores and request != (widened := replace_bfloat16_by_float32(request)):
        widened_bias = None if bias is None else bias.float()
        return out.copy_(
            convolve_triplets(widened, features.float(), weight.float(), widened_bias, triplets, transposed)
        )
    rows, entries, cells = triplets
    plan = _plan_multiply_launches(device, _round_request_for_plan_cache(request), cells.numel() > 0)
    kernels = _launching.load_kernels(LIBRARIES, plan.source, device.index)
    magnitude = _compute_max_magnitude_bits_per_tensor(kernels, device, (features, weight)) if plan.is_scaled else None
    buffer = features.new_empty((plan.buffer_bytes,), dtype=torch.uint8)
    packed = buffer.data_ptr()
    p = _Pack.from_buffer_copy(plan.pack)
    p.weight, p.packed, p.transposed, p.queue = weight.data_ptr(), packed, transposed, packed + plan.weights
    if magnitude is not None:
        p.magnitude = magnitude.data_ptr() + 4
    kernels.launch("pack", plan.pack_blocks, 256, p)
    aligned = _pad_and_align_groups_if_needed(features, plan.groups, plan.padded)
    main = _Multiply.from_buffer_copy(plan.main)
    t = main.triplets
    t.rows, t.entries, t.beside, t.count = rows.data_ptr(), entries.data_ptr(), cells.data_ptr(), request.rows
    main.features, main.weights, main.bias, main.out = aligned.data_ptr(), packed, get_address(bias), out.data_ptr()
    main.magnitude, main.queue = get_address(magnitude), packed + plan.weights
    each = min(plan.max_blocks, -(-request.rows // plan.rows_at_a_time))
    kernels.launch("multiply", plan.columns * each, plan.threads, main, plan.shared)
    return out


def sum_outer_products(request: ConvRequest, features: Tensor, grad: Tensor, triplets: Triplets) -> Tensor:
    """Sum the outer products of features and gradients per cell: the gradient of the weight."""
    out = features.new_empty((request.cells, request.channels[0] // request.groups, request.channels[1]))
    if not out.numel():
        return out
    if not request.entries:
        return out.zero_()
    device = _launching.get_gpu_properties(features.get_device())
    if not device.has_bfloat16_tensor_cores and request != (widened := replace_bfloat16_by_float32(request)):
        return out.copy_(sum_outer_products(widened, features.float(), grad.float(), triplets))
    rows, entries, cells = triplets
    plan = _plan_outer_product_launches(device, _round_request_for_plan_cache(request), cells.numel() > 0)
    kernels = _launching.load_kernels(LIBRARIES, plan.source, device.index)
    magnitude = _compute_max_magnitude_bits_per_tensor(kernels, device, (features, grad)) if plan.is_scaled else None
    config, columns, cell_blocks = plan.config, plan.columns, plan.cell_blocks
    segments, slots, floats_per_slot = _choose_segments_slots_and_floats_per_slot(
        request, columns, cell_blocks, config, device
    )
    shares = features.new_empty((slots * floats_per_slot,), dtype=torch.float32)
    turns = None
    if segments > slots:
        turns = features.new_zeros((12 * slots * columns * cell_blocks + 1,), dtype=torch.int32)
    groups, inputs, outputs = plan.channels.groups, plan.channels.padded_inputs, plan.channels.padded_outputs
    aligned, aligned_grad = (
        _pad_and_align_groups_if_needed(features, groups, inputs),
        _pad_and_align_groups_if_needed(grad, groups, outputs),
    )
    main = _Outer.from_buffer_copy(plan.main)
    t = main.triplets
    t.rows, t.entries, t.beside, t.count = rows.data_ptr(), entries.data_ptr(), cells.data_ptr(), request.rows
    main.features, main.grad, main.shares = aligned.data_ptr(), aligned_grad.data_ptr(), shares.data_ptr()
    main.turns, main.magnitude = get_address(turns), get_address(magnitude)
    main.segments, main.slots = segments, slots
    blocks = segments * (columns // config.halves) * cell_blocks
    kernels.launch("outer", blocks, plan.threads, main, plan.shared)
    p = _Shares.from_buffer_copy(plan.shares)
    p.shares, p.out, p.magnitude, p.segments = shares.data_ptr(), out.data_ptr(), get_address(magnitude), slots
    kernels.launch("add_shares", -(-out.numel() // 256), 256, p)
    return out


def _choose_segments_slots_and_floats_per_slot(
    request: ConvRequest,
    columns: int,
    cell_blocks: int,
    config: OuterProductVariant | HopperOuterProductVariant,
    device: GpuProperties,
) -> tuple[int, int, int]:
    """Return the segments of rows, the slots of shares that they write, and the floats of a slot."""
    floats_per_slot = columns * request.cells * config.inputs * config.outputs
    min_blocks = max(1, config.waves * device.processors // (columns // config.halves * cell_blocks))
    segments = max(1, min(min_blocks, -(-request.rows // 32)))
    if isinstance(config, OuterProductVariant):
        segments = max(1, min(segments, _SHARE_BYTES // (4 * floats_per_slot)))
        return segments, segments, floats_per_slot
    return segments, max(1, min(segments, _COMMON_BYTES // (4 * floats_per_slot))), floats_per_slot
