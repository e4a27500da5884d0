"""What the kernels are compiled for: tile shapes, shared memory, macros. Only arithmetic; no device is touched.

The macros are explained at the head of ``common.cuh``. A feature vector is ``kb`` blocks of ``cblk`` 16-bit channels,
padded with zeros; ``split`` vectors have a second part, of what rounding the first left over.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fullfield._kernels.nvrtc import Source
from fullfield.ops.correlation.protocol import Request

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
LARGEST_RADIUS = 8
MOST_LEVELS = 8
_HOPPER_BLOCK = 227 << 10  # bytes of shared memory that one block may take on sm_90
_HOPPER_HALF = 113 << 10
# Columns of one chunk of the second map, and the widths it may have.
_WIDTHS = {56: (11, 14, 18, 28), 64: (12, 16, 21, 32)}
_MOST_STAGES = 8
# Registers of the threads that multiply and of those that copy, by pixel groups.
_REGISTERS = {1: (160, 96), 2: (200, 96), 3: (144, 80)}


@dataclass(frozen=True)
class Config:
    """The macros of one compilation."""

    radius: int
    cblk: int
    kb: int
    split: bool
    bf16: bool
    hopper: bool
    """Whether the lookup uses the tensor copy and wgmma of sm_90."""
    columns: int
    widths: tuple[int, ...]
    groups: int
    """Groups of 64 source pixels in a tile."""
    block: int = 16
    """Width of the 16 source pixels of a warp, 16 or 8; a tile is a column of them. Part of f1's layout."""
    maps: int = 0
    """Tensor maps passed to the lookup."""
    stages: int = 1
    deals: int = 1
    planners: int = 1

    @property
    def parts(self) -> int:
        return 2 if self.split else 1

    @property
    def channels(self) -> int:
        """Of a padded vector."""
        return self.cblk * self.kb

    @property
    def row_length(self) -> int:
        """16-bit elements of one feature vector."""
        return self.channels * self.parts

    @property
    def tile_height(self) -> int:
        return 64 * self.groups // self.block

    def blocks(self, height: int, width: int) -> int:
        """Blocks of 16 pixels that cover an image."""
        rows = 16 // self.block
        return ((height + rows - 1) // rows) * ((width + self.block - 1) // self.block)

    @property
    def threads(self) -> int:
        """Of a block of the lookup."""
        return 128 * (self.groups + 1) if self.hopper else 128 * self.groups

    @property
    def blocks_each(self) -> int:
        """Blocks of the persistent lookup on each multiprocessor."""
        return 2 if self.groups == 1 else 1

    def defines(self) -> tuple[str, ...]:
        values = {
            "RADIUS": self.radius,
            "CBLK": self.cblk,
            "KB": self.kb,
            "SPLIT": int(self.split),
            "BF16": int(self.bf16),
            "NCOL": self.columns,
            "WIDTHS": ",".join(map(str, self.widths)),
            "WCOUNT": len(self.widths),
            "GROUPS": self.groups,
            "STAGES": self.stages,
            "DEALS": self.deals,
            "BLOCK_W": self.block,
            "PLANNERS": self.planners,
        }
        return tuple(f"-D{name}={value}" for name, value in values.items())


def _widths(radius: int, columns: int) -> tuple[int, ...]:
    widest = (columns,) if radius > 5 else ()
    return tuple(w for w in (*_WIDTHS[columns], *widest) if w >= 2 * radius + 2)


def _blocks(channels: int, most: int) -> tuple[int, int]:
    """Channels of a block, a multiple of 64 up to ``most``, and the number of blocks."""
    padded = -(-channels // 64) * 64
    kb = -(-padded // most)
    return -(-padded // (kb * 64)) * 64, kb


def is_split(request: Request) -> bool:
    return request.dtype == torch.float32 and request.precision == "highest"


def is_scaled(request: Request) -> bool:
    """Whether features are brought into float16's range by powers of two."""
    return request.dtype == torch.float32 and request.precision != "medium"


def forward_config(request: Request, hopper: bool) -> Config:
    """Products of float16 or bfloat16 features as they are; of float32 as precision asks."""
    bf16 = request.dtype == torch.bfloat16 or (request.dtype == torch.float32 and request.precision == "medium")
    cblk, kb = _blocks(request.channels, 256)
    widths = _widths(request.radius, 56)
    split = is_split(request)
    return Config(
        radius=request.radius,
        cblk=cblk,
        kb=kb,
        split=split,
        bf16=bf16,
        hopper=hopper,
        columns=56,
        widths=widths,
        groups=2 if split or not hopper else 1,
        block=16 if split or not hopper else 8,
        maps=request.levels * len(widths) if hopper else 0,
    )


def backward_config(request: Request, shared: int) -> Config:
    """bfloat16 operands, two parts each for float32 and float16 features, in at most ``shared`` bytes a block."""
    split = request.dtype == torch.float16 or (request.dtype == torch.float32 and request.precision != "medium")
    widths = _widths(request.radius, 64)

    def with_block(most: int) -> Config:
        cblk, kb = _blocks(request.channels, most)
        return Config(request.radius, cblk, kb, split, True, False, 64, widths, groups=1 if split else 2)

    fitting = (with_block(most) for most in (256, 192, 128))
    return next((config for config in fitting if backward_shared(config) <= shared), with_block(64))


# ---- shared memory, in bytes


def _stage(config: Config) -> int:
    return config.columns * config.cblk * 2 * config.parts


def lookup_shared(config: Config, out: int, channels_last: bool) -> int:
    """Of a block of the lookup that writes the type with code ``out``."""
    warps = 4 * config.groups
    positions = (2 * config.radius + 2) ** 2
    scatter = config.row_length // 2 + (positions + 15) // 16 * 16
    staging = warps * 4 * max(config.columns * 20, scatter)
    taps = 16 * (2 * config.radius + 1) ** 2 * (4 if out == 0 else 2)
    buffer = warps * ((taps + 15) // 16 * 16) if channels_last else 0
    messages = config.stages * 48 + 48 if config.hopper else 0
    return _stage(config) * config.stages + staging + buffer + 512 * config.groups + messages + 1024


def with_stages(config: Config, out: int, channels_last: bool) -> Config:
    """As many chunks in flight as fit beside the rest of a Hopper block's shared memory; may be none."""
    limit = _HOPPER_HALF if config.blocks_each == 2 else _HOPPER_BLOCK
    free = limit - lookup_shared(replace(config, stages=0), out, channels_last)
    return replace(config, stages=min(_MOST_STAGES, free // (_stage(config) + 48)))


def lookup_config(config: Config, out: int, channels_last: bool, shared: int) -> Config | None:
    """The configuration of one kind of result where a block may take ``shared`` bytes, or None if it does not fit."""
    if config.hopper:
        for groups in (config.groups, 2):
            wider = with_stages(replace(config, groups=groups), out, channels_last)
            if wider.stages >= 2:
                return wider
        config = replace(config, hopper=False, groups=2, maps=0)
    for groups in (config.groups, 1):
        smaller = replace(config, groups=groups)
        if lookup_shared(smaller, out, channels_last) <= shared:
            return smaller
    return None


def backward_shared(config: Config) -> int:
    pixels = 64 * config.groups
    size = config.columns * config.cblk * 2 + pixels * config.cblk * 2 + pixels * (config.columns + 8) * 2
    taps = 8 * config.groups * (2 * config.radius + 2) ** 2 * 4
    return config.parts * size + pixels * 8 + taps + 1024


def coords_shared(config: Config) -> int:
    """Bytes of shared memory of a block of ``coords_gradient``."""
    positions = (2 * config.radius + 2) ** 2
    return 8 * 4 * (config.row_length // 2 + (positions + 15) // 16 * 16)


# ---- sources


@functools.cache
def _read(*names: str) -> str:
    return "".join((Path(__file__).parent / name).read_text("utf-8") for name in names)


def _wgmma(columns: int, bf16: bool) -> str:
    """wgmma m64nNk16 with A in registers and B (channels contiguous, 128-byte swizzle) in shared memory."""
    n = columns // 2
    kind = "bf16" if bf16 else "f16"
    d = ", ".join(f"%{i}" for i in range(n))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(n))
    return "\n".join(
        (
            "static __device__ __forceinline__ void",
            f"wgmma_rs(float (&d)[{n}], u32 a0, u32 a1, u32 a2, u32 a3, u32 b, int add) {{",
            r'    asm volatile("{\n.reg .pred p;\n.reg .b64 at;\n"',
            rf'        "setp.ne.b32 p, %{n + 5}, 0;\nmov.b64 at, {{%{n + 4}, 0x40000040}};\n"',
            f'        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{d}}}, "',
            rf'        "{{%{n}, %{n + 1}, %{n + 2}, %{n + 3}}}, at, p, 1, 1, 0;\n}}"',
            f'        : {operands} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(add));',
            "}\n",
        )
    )


@functools.lru_cache(64)
def lookup_source(config: Config, out: int, channels_last: bool) -> Source:
    """The kernel ``lookup`` that writes the type with code ``out``; ``config`` from :func:`lookup_config`."""
    two_fit = lookup_shared(config, out, channels_last) <= 99 << 10 and not config.split
    blocks = config.blocks_each if config.hopper else 1 + two_fit
    options = (*config.defines(), f"-DOUT={out}", f"-DCLAST={int(channels_last)}", f"-DMIN_BLOCKS={blocks}")
    if not config.hopper:
        return Source(_read("common.cuh", "sample.cuh", "lookup_ampere.cu"), options)
    consumer, producer = _REGISTERS[config.groups]
    text = _read("common.cuh", "sample.cuh") + _wgmma(config.columns, config.bf16) + _read("lookup_hopper.cu")
    registers = (f"-DCONSUMER_REGISTERS={consumer}", f"-DPRODUCER_REGISTERS={producer}")
    return Source(text, (*options, f"-DMAPS={config.maps}", *registers))


@functools.lru_cache(64)
def prepare_source(config: Config, source: int, scaled: bool, plain: bool) -> Source:
    """``prepare``, ``prepare_deep``, ``magnitude`` for features of type ``source``; plain: both maps in f2's layout."""
    options = (*config.defines(), "-DOUT=0", "-DCLAST=0", f"-DSRC={source}", f"-DSCALED={int(scaled)}")
    return Source(_read("common.cuh", "prepare.cu"), (*options, "-DF1_PLAIN") if plain else options)


@functools.lru_cache(64)
def backward_source(config: Config, grad: int) -> Source:
    """``backward`` for incoming gradients of the type with code ``grad``."""
    options = (*config.defines(), "-DOUT=0", "-DCLAST=0", f"-DGRAD={grad}", "-DSHARED_COORDS")
    return Source(_read("common.cuh", "backward.cu"), options)


@functools.lru_cache(64)
def coords_source(config: Config, grad: int) -> Source:
    """``coords_gradient`` for incoming gradients of the type with code ``grad``, from the forward's layout."""
    options = (*config.defines(), "-DOUT=0", "-DCLAST=0", f"-DGRAD={grad}")
    return Source(_read("common.cuh", "sample.cuh", "coords_gradient.cu"), options)
