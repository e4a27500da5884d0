"""What is compiled for a request: operands, blocks of channels, shared memory. No device is asked here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import torch

from fullfield._kernels.nvrtc import Source
from fullfield.ops.launching import HALVES, PRODUCTS, read_source
from fullfield.ops.point_conv.protocol import Request

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_FOLDER = Path(__file__).parent
# Channels of a group that fill the tensor cores; smaller groups are joined, with zeros between them.
_FULL = 16
# A block of `outer` owns so many cells at most; each of its warps lists so many batches of pairs.
_MOST_CELLS, _LISTS = 7, 8
# Weights stay in shared memory where each block has so many units of rows for each of its warps.
_UNITS = 4


@dataclass(frozen=True)
class Operands:
    """How values are multiplied."""

    code: int
    """Of the features' type."""
    bf16: bool
    split: bool
    """As two numbers each."""
    beside: bool
    """Whether the triplets' cells stand beside the words."""

    @property
    def parts(self) -> int:
        return 1 + self.split

    @property
    def scaled(self) -> bool:
        return self.code == 0 and not self.bf16

    @property
    def options(self) -> tuple[str, ...]:
        flags = {"IN": self.code, "BF16": int(self.bf16), "SPLIT": int(self.split), "BESIDE": int(self.beside)}
        return tuple(f"-D{name}={value}" for name, value in flags.items())


@dataclass(frozen=True)
class Channels:
    """Of groups that are multiplied as one."""

    joined: int
    groups: int
    """Of joined ones."""
    inputs: int
    outputs: int

    @property
    def padded_inputs(self) -> int:
        return -(-self.inputs // 8) * 8

    @property
    def padded_outputs(self) -> int:
        return -(-self.outputs // 8) * 8


@dataclass(frozen=True)
class Device:
    """What the launches have to know of a device."""

    index: int
    arch: str
    shared: int
    """Bytes of shared memory that a block may take."""
    processors: int


def operands_of(request: Request, beside: bool) -> Operands:
    exact = request.dtype == torch.float32
    bf16 = request.dtype == torch.bfloat16 or (exact and request.precision == "medium")
    return Operands(CODES[request.dtype], bf16, exact and request.precision == "highest", beside)


def channels_of(request: Request) -> Channels:
    inputs, outputs = (count // request.groups for count in request.channels)
    joined = 1
    while joined < request.groups and (joined * min(inputs, outputs) < _FULL or request.groups % joined):
        joined += 1
    return Channels(joined, request.groups // joined, joined * inputs, joined * outputs)


def _block(channels: int) -> int:
    return 16 if channels <= 16 else 32 if channels <= 32 else 64


@dataclass(frozen=True)
class Multiply:
    """The forward product."""

    columns: int
    """Outputs of a block."""
    slabs: int
    """Of 32 inputs."""
    tiles: int
    """16-row tiles of a warp."""
    resident: bool
    """Whether blocks keep their weights in shared memory."""
    threads: int
    blocks: int
    """A multiprocessor."""

    @property
    def unit(self) -> int:
        """Rows that a warp takes at a time."""
        return 16 * self.tiles

    def vectors(self, cells: int, parts: int) -> int:
        """16-byte vectors of a block's weights."""
        return cells * self.slabs * parts * (self.columns // 8) * 32

    def shared(self, cells: int, parts: int) -> int:
        return 16 * self.vectors(cells, parts) if self.resident else 0

    @functools.lru_cache(64)  # noqa: B019 - of plain values
    def source(self, operands: Operands) -> Source:
        flags = {"COLUMNS": self.columns, "TILES": self.tiles, "RESIDENT": int(self.resident)}
        flags |= {"THREADS": self.threads, "BLOCKS": self.blocks}
        text = _read("multiply.cuh", "multiply.cu")
        return Source(text, (*operands.options, *(f"-D{name}={value}" for name, value in flags.items())))


def _read(*names: str) -> str:
    return read_source(HALVES, PRODUCTS, *(_FOLDER / name for name in ("common.cuh", *names)))


def _units(request: Request, device: Device) -> int:
    """Of 32 rows and a block of outputs, a multiprocessor."""
    channels = channels_of(request)
    blocks = channels.groups * -(-channels.outputs // _block(channels.outputs))
    return request.rows * blocks // (32 * device.processors)


def multiply_config(request: Request, operands: Operands, device: Device) -> Multiply:
    channels, units = channels_of(request), _units(request, device)
    columns, slabs = _block(channels.outputs), -(-channels.inputs // 32)
    tiles = 2 if operands.code and units >= 3 * _UNITS else 1
    kept = Multiply(columns, slabs, tiles, True, 384 if tiles == 2 else 512, 1)
    if units >= 12 * _UNITS and kept.shared(request.cells, operands.parts) <= device.shared:
        return kept
    return Multiply(columns, slabs, tiles, False, 128, 3)


@dataclass(frozen=True)
class Outer:
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

    @property
    def warps(self) -> int:
        return self.cells * self.halves

    def shared(self, parts: int) -> int:
        features = self.warps * self.buffers * parts * 32 * self.inputs * 2
        gradients = parts * (self.tile + 1) * self.outputs * 2
        places = self.tile * (8 + 4 * (self.cells + 1))
        return features + gradients + places + self.warps * _LISTS * 32 * 6

    @functools.lru_cache(64)  # noqa: B019 - of plain values
    def source(self, operands: Operands) -> Source:
        flags = {"CELLS": self.cells, "HALVES": self.halves, "THREADS": 32 * self.warps, "TILE": self.tile}
        flags |= {"INPUTS": self.inputs, "OUTPUTS": self.outputs, "BUFFERS": self.buffers}
        options = tuple(f"-D{name}={value}" for name, value in flags.items())
        return Source(_read("outer.cu"), (*operands.options, *options))


def outer_config(request: Request, operands: Operands, device: Device) -> Outer:
    channels = channels_of(request)
    inputs, outputs = _block(channels.inputs), _block(channels.outputs)
    halves = 2 if inputs == 64 else 1
    buffers = 3 if operands.code else 1
    for most in range(_MOST_CELLS, 0, -1):
        cells = -(-request.cells // -(-request.cells // most))  # as equal as can be
        for tile in (512, 256, 128):
            config = Outer(cells, halves, tile, inputs // halves, outputs, buffers)
            if config.shared(operands.parts) <= device.shared:
                return config
    raise ValueError(f"no block of the weights' gradient fits {device.shared} bytes of shared memory")
