"""Forms of the kernels for a request: operands, blocks of channels, shared memory. No device is queried here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import torch

from fullfield._kernels.nvrtc import KernelSource, generate_wgmma_source
from fullfield.ops._launching import (
    BARRIERS,
    CODES,
    COPIES,
    HALVES,
    PRODUCTS,
    VALUES,
    WARPS,
    GpuProperties,
    read_source,
)
from fullfield.ops.point_conv.protocol import ConvRequest

_FOLDER = Path(__file__).parent
_SIDE_BY_SIDE = 0x8  # descriptor of weights that lie as 8x8 matrices, those of the same inputs side by side
# Channels of a group that fill the tensor cores; smaller groups are joined, with zeros between them.
_FULL = 16
# A block of `outer` owns so many cells at most; each of its warps lists so many batches of pairs.
_MAX_CELLS, _LISTS = 7, 8
# Weights stay in shared memory where each block has so many units of rows for each of its warps.
_UNITS = 4
# wgmma multiplies where each block has so many bands of rows: twice as many of float32.
_BANDS = 1


@dataclass(frozen=True)
class OperandFormat:
    """Form in which values are multiplied."""

    code: int
    """Of the features' type."""
    bf16: bool
    split: bool
    """As two numbers each."""
    beside: bool
    """Whether the triplets' cells stand beside the words."""

    @property
    def parts_per_value(self) -> int:
        """Number of 16-bit parts of a value."""
        return 1 + self.split

    @property
    def is_scaled(self) -> bool:
        """True if float32 values are scaled into float16's range."""
        return self.code == 0 and not self.bf16

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options of the operands."""
        return KernelSource.with_macros("", IN=self.code, BF16=self.bf16, SPLIT=self.split, BESIDE=self.beside).options


@dataclass(frozen=True)
class GroupChannels:
    """Channels of groups that are multiplied as one."""

    joined: int
    groups: int
    """Of joined ones."""
    inputs: int
    outputs: int

    @property
    def padded_inputs(self) -> int:
        """Input channels, padded to a multiple of eight."""
        return -(-self.inputs // 8) * 8

    @property
    def padded_outputs(self) -> int:
        """Output channels, padded to a multiple of eight."""
        return -(-self.outputs // 8) * 8


def choose_operand_format(request: ConvRequest, has_cells: bool) -> OperandFormat:
    """Return the operands' form for a request."""
    exact = request.dtype == torch.float32
    bf16 = request.dtype == torch.bfloat16 or (exact and request.precision == "medium")
    return OperandFormat(CODES[request.dtype], bf16, exact and request.precision == "highest", has_cells)


def replace_bfloat16_by_float32(request: ConvRequest) -> ConvRequest:
    """Return the request that takes this one's place on a GPU whose tensor cores do not multiply bfloat16.

    Features become float32 and operands float16, which hold every bfloat16 down to 2⁻²⁸ of the largest magnitude.
    """
    if request.dtype == torch.bfloat16 or (request.dtype == torch.float32 and request.precision == "medium"):
        return request._replace(dtype=torch.float32, precision="high")
    return request


def join_small_channel_groups(request: ConvRequest) -> GroupChannels:
    """Return the channels of the kernels' groups, which may join several of the request's."""
    inputs, outputs = (count // request.groups for count in request.channels)
    joined = 1
    while joined < request.groups and (joined * min(inputs, outputs) < _FULL or request.groups % joined):
        joined += 1
    return GroupChannels(joined, request.groups // joined, joined * inputs, joined * outputs)


def _choose_block_channels(channels: int) -> int:
    return 16 if channels <= 16 else 32 if channels <= 32 else 64


class _Variant:
    """Form of a product, as plain values."""

    @functools.lru_cache(256)  # noqa: B019 - a few small values
    def build_source(self, operands: OperandFormat) -> KernelSource:
        text, flags = self._get_text_and_macros(operands.bf16)
        return KernelSource.with_macros(text, *operands.options, **flags)

    def _get_text_and_macros(self, bf16: bool) -> tuple[str, dict[str, int]]:
        """Return text and macros."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Forward(_Variant):
    columns: int
    """Outputs of a block."""
    slabs: int
    """Of 32 inputs; with wgmma padded to whole stages."""

    def count_weight_vectors(self, cells: int, parts: int) -> int:
        """Return the number of 16-byte vectors of a block's weights."""
        return cells * self.slabs * parts * (self.columns // 8) * 32


@dataclass(frozen=True)
class MultiplyVariant(_Forward):
    """The forward product with mma.sync."""

    tiles: int
    """16-row tiles of a warp."""
    resident: bool
    """Whether blocks keep their weights in shared memory."""
    threads: int
    blocks: int
    """A multiprocessor."""
    slab_parts: int = 1
    cell_parts: int = 1
    """Where warps of a block share rows, parts of the work that each takes one of."""

    @property
    def rows_at_a_time(self) -> int:
        """Rows that a warp takes at a time, or a block whose warps share them."""
        return 16 * self.tiles

    @property
    def warps_sharing_rows(self) -> int:
        """Warps that share rows."""
        return self.slab_parts * self.cell_parts

    def compute_shared_bytes(self, cells: int, parts: int) -> int:
        """Return the bytes of shared memory of a block."""
        sums = self.warps_sharing_rows * self.rows_at_a_time * self.columns * 4 if self.warps_sharing_rows > 1 else 0
        return 16 * self.count_weight_vectors(cells, parts) if self.resident else sums

    def _get_text_and_macros(self, bf16: bool) -> tuple[str, dict[str, int]]:  # noqa: ARG002 - as others have it
        flags = {"WGMMA": 0, "KEEPS": 0, "DEPTH": 1, "COLUMNS": self.columns, "TILES": self.tiles}
        flags |= {"RESIDENT": int(self.resident), "THREADS": self.threads, "BLOCKS": self.blocks}
        flags |= {"SLAB_PARTS": self.slab_parts, "CELL_PARTS": self.cell_parts}
        return _read_headers_and_sources("multiply.cuh", "multiply.cu"), flags


@dataclass(frozen=True)
class HopperMultiplyVariant(_Forward):
    """The forward product with wgmma."""

    depth: int
    """Slabs of a stage."""
    groups: int
    """Warpgroups that multiply."""
    stages: int
    registers: int
    """Of the threads that multiply."""
    whole: bool
    """Whether the inputs fill all slabs."""
    listing: int = 64
    """Registers of the threads that list passes."""
    slots: int = 8
    """Passes listed ahead, a group."""
    blocks: int = 1
    """A multiprocessor."""

    @property
    def rows_at_a_time(self) -> int:
        """Rows that a block takes at a time."""
        return 64 * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.groups + 128

    def compute_shared_bytes(self, cells: int, parts: int) -> int:  # noqa: ARG002 - as others have it
        """Return the bytes of shared memory of a block."""
        ring = self.stages * 16 * self.count_weight_vectors(1, parts) * self.depth // self.slabs
        return ring + 16 * self.stages + 280 * self.groups * self.slots

    def _get_text_and_macros(self, bf16: bool) -> tuple[str, dict[str, int]]:
        product = generate_wgmma_source(self.columns, bf16, _SIDE_BY_SIDE)
        flags = {"WGMMA": 1, "KEEPS": int(self.whole), "COLUMNS": self.columns, "DEPTH": self.depth}
        flags |= {"CHUNKED": int(self.slabs > self.depth), "GROUPS": self.groups, "STAGES": self.stages}
        flags |= {"REGISTERS": self.registers, "LISTING": self.listing, "SLOTS": self.slots}
        return _read_headers_and_sources("multiply.cuh") + product + read_source(
            BARRIERS, _FOLDER / "multiply_hopper.cu"
        ), flags


def _read_headers_and_sources(*names: str) -> str:
    shared = (HALVES, VALUES, PRODUCTS, COPIES, WARPS, _FOLDER / "common.cuh")
    return read_source(*shared, *(_FOLDER / name for name in names))


def _count_row_units_per_multiprocessor(request: ConvRequest, device: GpuProperties) -> int:
    """Return the units of 32 rows and a block of outputs per multiprocessor."""
    channels = join_small_channel_groups(request)
    blocks = channels.groups * -(-channels.outputs // _choose_block_channels(channels.outputs))
    return request.rows * blocks // (32 * device.processors)


def choose_hopper_multiply_if_faster(
    request: ConvRequest, operands: OperandFormat, device: GpuProperties
) -> HopperMultiplyVariant | None:
    """Return the form with wgmma; None if it cannot be used or is slower: float32 in one part, few rows."""
    if not device.is_hopper or not (operands.code or operands.split):
        return None
    channels = join_small_channel_groups(request)
    columns, slabs = _choose_block_channels(channels.outputs), -(-channels.inputs // 32)
    depth = 1 if slabs == 1 or not operands.code else 2
    slabs = -(-slabs // depth) * depth
    groups, stages, registers = 4, 6, 104
    if operands.code and channels.outputs > 64:
        columns, groups, stages, registers = 128, 3, 4, 144
    shape = HopperMultiplyVariant(columns, slabs, depth, groups, stages, registers, channels.inputs == 32 * slabs)
    blocks = channels.groups * -(-channels.outputs // columns)
    is_large = request.rows * blocks >= _BANDS * operands.parts_per_value * shape.rows_at_a_time * device.processors
    return (
        shape
        if is_large and shape.compute_shared_bytes(request.cells, operands.parts_per_value) <= device.shared
        else None
    )


def choose_multiply_variant(
    request: ConvRequest, operands: OperandFormat, device: GpuProperties
) -> MultiplyVariant | HopperMultiplyVariant:
    """Return the kernel of the multiplication for a request on a device."""
    hopper = choose_hopper_multiply_if_faster(request, operands, device)
    if hopper is not None:
        return hopper
    channels, units = join_small_channel_groups(request), _count_row_units_per_multiprocessor(request, device)
    columns, slabs = _choose_block_channels(channels.outputs), -(-channels.inputs // 32)
    tiles = 2 if operands.code and units >= 3 * _UNITS else 1
    needs_registers = operands.split and device.capability < 80  # products take two instructions, and more registers
    config = MultiplyVariant(columns, slabs, tiles, True, 384 if tiles == 2 else 256 if needs_registers else 512, 1)
    if units >= 12 * _UNITS and config.compute_shared_bytes(request.cells, operands.parts_per_value) <= device.shared:
        return config
    slab_parts, cell_parts = _choose_slab_and_cell_divisors(request, operands, slabs, device)
    sharing = slab_parts * cell_parts
    if sharing == 1:
        return MultiplyVariant(columns, slabs, tiles, False, 128, 2 if needs_registers else 3)
    blocks = max(1, (16 if operands.code else 12) // sharing)
    return MultiplyVariant(columns, slabs, 1, False, 32 * sharing, blocks, slab_parts, cell_parts)


def _choose_slab_and_cell_divisors(
    request: ConvRequest, operands: OperandFormat, slabs: int, device: GpuProperties
) -> tuple[int, int]:
    """Return the parts of the slabs and of the cells; warps share 16 rows if these are too few to fill the device."""
    channels = join_small_channel_groups(request)
    tiles = -(-request.rows // 16) * channels.groups * -(-channels.outputs // _choose_block_channels(channels.outputs))
    max_parts, sharing = 16 if operands.code else 8, 1
    while sharing < max_parts and sharing * tiles < 16 * device.processors:
        sharing *= 2
    slab_parts = min(sharing, 1 << slabs.bit_length() - 1)
    return slab_parts, min(sharing // slab_parts, 1 << request.cells.bit_length() - 1)


@dataclass(frozen=True)
class OuterProductVariant(_Variant):
    """The weights' gradient."""

    cells: int
    """Of a block."""
    halves: int
    """Warps that share a cell's inputs."""
    tile: int
    """Rows looked at together."""
    inputs: int
    outputs: int
    """Channels of a warp."""
    buffers: int
    """Of features, a warp."""
    waves: int = 2
    """Blocks a multiprocessor."""

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.cells * self.halves

    def compute_shared_bytes(self, parts: int) -> int:
        """Return the bytes of shared memory of a block."""
        features = self.warps * self.buffers * parts * 32 * self.inputs * 2
        gradients = parts * (self.tile + 1) * self.outputs * 2
        index_bytes = self.tile * (8 + 4 * (self.cells + 1))
        return features + gradients + index_bytes + self.warps * _LISTS * 32 * 6

    def _get_text_and_macros(self, bf16: bool) -> tuple[str, dict[str, int]]:  # noqa: ARG002 - as others have it
        flags = {"CELLS": self.cells, "HALVES": self.halves, "THREADS": 32 * self.warps, "TILE": self.tile}
        flags |= {"WGMMA": 0, "INPUTS": self.inputs, "OUTPUTS": self.outputs, "BUFFERS": self.buffers}
        return _read_headers_and_sources("outer.cuh", "outer.cu"), flags


@dataclass(frozen=True)
class HopperOuterProductVariant(_Variant):
    """The weights' gradient with wgmma."""

    cells: int = 9
    """Of a block."""
    halves: int = 1
    inputs: int = 64
    outputs: int = 64
    warps: int = 12
    waves: int = 1
    """Blocks a multiprocessor."""

    def compute_shared_bytes(self, _parts: int) -> int:
        """Return the bytes of shared memory of a block."""
        stages = 2 * (self.cells + 1) * 48 * 128
        return 1024 + stages + 48 * (4 * 36 + 12 + 8) * 4

    def _get_text_and_macros(self, bf16: bool) -> tuple[str, dict[str, int]]:
        text = (
            _read_headers_and_sources("outer.cuh")
            + _generate_shared_operand_wgmma_source(bf16)
            + read_source(_FOLDER / "outer_hopper.cu")
        )
        return text, {"WGMMA": 1, "INPUTS": self.inputs, "OUTPUTS": self.outputs}


def _generate_shared_operand_wgmma_source(bf16: bool) -> str:
    """Return wgmma m64n192k16 with both operands in shared memory: 16 rows of 64 channels, swizzled by 128 bytes."""
    kind = "bf16" if bf16 else "f16"
    d = ", ".join(f"%{i}" for i in range(96))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(96))
    return "\n".join(
        (
            "static __device__ __forceinline__ void wgmma_ss(float (&d)[96], u32 a, u32 b) {",
            r'    asm volatile("{\n.reg .b64 x, y;\n"',
            r'        "mov.b64 x, {%96, 0x40000040};\nmov.b64 y, {%97, 0x40000040};\n"',
            f'        "wgmma.mma_async.sync.aligned.m64n192k16.f32.{kind}.{kind} {{{d}}}, "',
            r'        "x, y, 1, 1, 1, 1, 1;\n}"',
            f'        : {operands} : "r"(a), "r"(b));',
            "}\n",
        )
    )


def choose_hopper_outer_product_if_faster(
    request: ConvRequest, operands: OperandFormat, device: GpuProperties
) -> HopperOuterProductVariant | None:
    """Return the form with wgmma; None if it cannot be used, or has too few rows or channels to fill the device."""
    if not device.is_hopper or not operands.code:
        return None
    channels, outer = join_small_channel_groups(request), HopperOuterProductVariant()
    if min(channels.inputs, channels.outputs) <= 32:
        return None
    blocks = channels.groups * -(-channels.inputs // 64) * -(-channels.outputs // 64) * -(-request.cells // outer.cells)
    return outer if request.rows * blocks >= 1024 * _BANDS * device.processors else None


def choose_outer_product_variant(
    request: ConvRequest, operands: OperandFormat, device: GpuProperties
) -> OuterProductVariant | HopperOuterProductVariant:
    """Return the kernel of the outer products for a request on a device."""
    hopper = choose_hopper_outer_product_if_faster(request, operands, device)
    if hopper is not None:
        return hopper
    channels = join_small_channel_groups(request)
    inputs, outputs = _choose_block_channels(channels.inputs), _choose_block_channels(channels.outputs)
    halves = 2 if inputs == 64 else 1
    buffers = 3 if operands.code else 1
    for max_cells in range(_MAX_CELLS, 0, -1):
        cells = -(-request.cells // -(-request.cells // max_cells))  # as equal as can be
        for tile in (512, 256, 128):
            config = OuterProductVariant(cells, halves, tile, inputs // halves, outputs, buffers)
            if config.compute_shared_bytes(operands.parts_per_value) <= device.shared:
                return config
    raise ValueError(f"no block of the weights' gradient fits {device.shared} bytes of shared memory")
