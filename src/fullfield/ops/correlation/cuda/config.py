"""Compile-time configuration of the kernels: tile shapes, shared memory, macros; touches no device.

The macros are explained at the head of ``common.cuh``. A feature vector is ``kb`` blocks of ``cblk`` 16-bit channels,
padded with zeros; ``split`` vectors have a second part, the rounding error of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fullfield._kernels.nvrtc import KernelSource, generate_wgmma_source
from fullfield.ops._launching import BARRIERS, COPIES, HALVES, PRODUCTS, WARPS, GpuProperties, read_source
from fullfield.ops.correlation.protocol import LookupRequest

_FOLDER = Path(__file__).parent
_SWIZZLED = 0x40000040  # descriptor of pixels whose channels are contiguous, swizzled by 128 bytes
LARGEST_RADIUS = 8
MAX_LEVELS = 8
_HOPPER_BLOCK = 227 << 10  # bytes of shared memory that one block may take on sm_90
# Columns of one chunk of the second map, and the widths it may have; by the width of a warp's pixels.
_COLUMNS = 56
_WIDTHS = {8: (11, 14, 18, 28), 16: (12, 14, 18, 26, 28)}
_MAX_STAGES = 8
# Registers of the threads that multiply and of those that copy, by warpgroups that multiply.
_REGISTERS = {1: (208, 96), 2: (208, 88), 3: (144, 80)}
# Fewer source pixels than the first do not occupy three teams; the features of more than the second leave the L2.
_SMALL_PIXELS = 1 << 14
_LARGE_PIXELS = 1 << 16


@dataclass(frozen=True)
class KernelConfig:
    """Macros of one compilation."""

    radius: int
    block_channels: int
    channel_blocks: int
    split: bool
    bf16: bool
    hopper: bool
    """Whether the lookup uses the tensor copy and wgmma of sm_90."""
    columns: int
    widths: tuple[int, ...]
    groups: int
    """Groups of 64 source pixels in a tile."""
    block: int = 16
    """Width of the 16 source pixels of a warp, 16 or 8; a tile is a column of them."""
    levels: int = 1
    """Levels that a lookup with tensor maps reads."""
    stages: int = 1
    teams: int = 1
    """Tiles that a block of a persistent lookup works on side by side."""
    streamed: bool = False
    """Whether the first map's features are not kept in the L2, so that the second's stay there."""

    @property
    def parts_per_feature(self) -> int:
        """Number of 16-bit parts of a feature: 2 if split."""
        return 2 if self.split else 1

    @property
    def padded_channels(self) -> int:
        """Number of channels of a padded vector."""
        return self.block_channels * self.channel_blocks

    @property
    def elements_per_feature_vector(self) -> int:
        """Number of 16-bit elements of one feature vector."""
        return self.padded_channels * self.parts_per_feature

    @property
    def tile_height(self) -> int:
        """Rows of a tile."""
        return 64 * self.groups // self.block

    @property
    def tensor_map_count(self) -> int:
        """Number of tensor maps passed to the lookup."""
        return self.levels * len(self.widths)

    @property
    def threads_per_block(self) -> int:
        """Number of threads of a block of the lookup."""
        return 128 * (self.groups * self.teams + 1) if self.hopper else 128 * self.groups

    def build_source(self, text: str, *, out: int = 0, channels_last: bool = False, **macros: int) -> KernelSource:
        """Return the source with the macros of every kernel and ``macros``."""
        return KernelSource.with_macros(
            text, RADIUS=self.radius, CBLK=self.block_channels, KB=self.channel_blocks, SPLIT=self.split,
            BF16=self.bf16, NCOL=self.columns, WIDTHS=",".join(map(str, self.widths)), WCOUNT=len(self.widths),
            GROUPS=self.groups, STAGES=self.stages, BLOCK_W=self.block, TEAMS=self.teams, STREAMED=self.streamed,
            OUT=out, CLAST=channels_last, **macros,
        )  # fmt: skip


def _list_allowed_chunk_widths(radius: int, block: int) -> tuple[int, ...]:
    widest = (_COLUMNS,) if radius > 5 else ()
    return tuple(w for w in (*_WIDTHS[block], *widest) if w >= 2 * radius + 2)


def count_pixels_with_rows_padded_to_octets(height: int, width: int) -> int:
    """Return the number of feature vectors of an image in f1's layout: every row in whole octets of pixels."""
    return height * (-(-width // 8) * 8)


def _choose_channel_block_size_and_count(channels: int, max_channels: int) -> tuple[int, int]:
    """Return the channels of a block, a multiple of 64 up to ``max_channels``, and the number of blocks."""
    padded = -(-channels // 64) * 64
    kb = -(-padded // max_channels)
    return -(-padded // (kb * 64)) * 64, kb


def is_split_into_float16_pairs(request: LookupRequest) -> bool:
    """Return whether features are pairs of float16."""
    return request.dtype == torch.float32 and request.precision == "highest"


def is_scaled_to_float16(request: LookupRequest, config: KernelConfig) -> bool:
    """Return whether powers of two bring the features into float16's range."""
    return request.dtype != torch.float16 and not config.bf16


def choose_forward_config(request: LookupRequest, device: GpuProperties) -> KernelConfig:
    """Return how the lookup multiplies: 16-bit features as they are, float32 as its precision says.

    Where tensor cores do not multiply bfloat16, operands are float16, which hold every bfloat16 down to 2⁻²⁸ of the
    map's largest magnitude.
    """
    bf16 = request.dtype == torch.bfloat16 or (request.dtype == torch.float32 and request.precision == "medium")
    cblk, kb = _choose_channel_block_size_and_count(request.channels, 256)
    split = is_split_into_float16_pairs(request)
    return KernelConfig(
        radius=request.radius,
        block_channels=cblk,
        channel_blocks=kb,
        split=split,
        bf16=bf16 and device.has_bfloat16_tensor_cores,
        hopper=device.is_hopper,
        columns=_COLUMNS,
        widths=_list_allowed_chunk_widths(request.radius, 16),
        groups=2 if split or not device.is_hopper else 1,
        block=16,
        levels=request.levels,
    )


def derive_gradient_config(forward: KernelConfig) -> KernelConfig:
    """Return the configuration of the feature gradients: the lookup's features, on tiles of 8×8 pixels."""
    return replace(forward, groups=1, block=8)


def choose_gradient_patch_side(config: KernelConfig, shared_bytes: int) -> int:
    """Return the side of each pixel's patch of sums: a window, and up to two more if they fit in ``shared_bytes``."""
    window = 2 * config.radius + 2
    return next(
        (side for side in (window + 2, window + 1) if compute_collect_kernel_shared_bytes(side) <= shared_bytes), window
    )


def choose_multiply_channels_and_chunks(config: KernelConfig, shared_bytes: int) -> tuple[int, int]:
    """Return the channels that a block of ``multiply_out`` takes, and how many chunks it holds, 2 or 1.

    It fits in ``shared_bytes`` if any form does.
    """
    candidates = [
        (block, chunks) for chunks in (2, 1) for block in (256, 192, 128, 64) if config.padded_channels % block == 0
    ]
    return next(
        (
            candidate
            for candidate in candidates
            if compute_multiply_kernel_shared_bytes(config, *candidate) <= shared_bytes
        ),
        (64, 1),
    )


# ---- shared memory, in bytes


def _compute_stage_bytes(config: KernelConfig) -> int:
    return config.columns * config.block_channels * 2 * config.parts_per_feature


def compute_lookup_shared_bytes(config: KernelConfig, out_code: int, channels_last: bool) -> int:
    """Return the bytes of a block of the lookup that writes the type with code ``out_code``."""
    positions = (2 * config.radius + 2) ** 2
    scatter = config.elements_per_feature_vector // 2 + (positions + 15) // 16 * 16
    warp = 4 * max(config.columns * 20, scatter)
    if channels_last:
        warp += (16 * (2 * config.radius + 1) ** 2 * (4 if out_code == 0 else 2) + 15) // 16 * 16
    if not config.hopper:
        return _compute_stage_bytes(config) * config.stages + 4 * config.groups * (warp + 128) + 1024
    team = (_compute_stage_bytes(config) + 48) * config.stages + 4 * config.groups * (warp + 192)
    return team * config.teams + 64 + 1024


def maximize_pipeline_stages(config: KernelConfig, out_code: int, channels_last: bool) -> KernelConfig:
    """Set as many chunks in flight as a Hopper block's shared memory leaves space for; may be none."""
    free = _HOPPER_BLOCK - compute_lookup_shared_bytes(replace(config, stages=0), out_code, channels_last)
    return replace(config, stages=min(_MAX_STAGES, free // ((_compute_stage_bytes(config) + 48) * config.teams)))


def choose_fitting_lookup_config_or_none(
    config: KernelConfig, out_code: int, channels_last: bool, shared_bytes: int, fmap1_pixels: int = _SMALL_PIXELS
) -> KernelConfig | None:
    """Return the configuration of one kind of result if a block may take ``shared_bytes``; None if it does not fit.

    Square tiles read the least; rows of 16 pixels fill the sectors that 16-bit planes are written in.
    ``fmap1_pixels`` is the number of pixels of the first map.
    """
    if config.hopper:
        block = 8 if not config.split and (channels_last or out_code == 0) else 16
        widths = _list_allowed_chunk_widths(config.radius, block)
        tiled = replace(config, block=block, widths=widths, streamed=fmap1_pixels >= _LARGE_PIXELS)
        teams = ((3, 1), (2, 1), (1, 1))[fmap1_pixels < _SMALL_PIXELS :] if not config.split else ((1, 2), (1, 1))
        for team, groups in teams:
            wider = maximize_pipeline_stages(replace(tiled, teams=team, groups=groups), out_code, channels_last)
            if wider.stages >= 2:
                return wider
        config = replace(config, hopper=False, groups=2)
    for smaller in _yield_config_and_smaller_ones(config):
        if compute_lookup_shared_bytes(smaller, out_code, channels_last) <= shared_bytes:
            return smaller
    return None


def _yield_config_and_smaller_ones(config: KernelConfig) -> Iterator[KernelConfig]:
    """Yield configurations that take less and less shared memory."""
    for cblk in (config.block_channels, 192, 128, 64):
        if cblk <= config.block_channels and config.padded_channels % cblk == 0:
            for groups in (config.groups, 1):
                yield replace(config, groups=groups, block_channels=cblk, channel_blocks=config.padded_channels // cblk)


def compute_collect_kernel_shared_bytes(patch_side: int) -> int:
    """Return the bytes of shared memory of a block of ``collect``."""
    return patch_side * patch_side * 256


def compute_multiply_kernel_shared_bytes(config: KernelConfig, channels_per_block: int, chunk_count: int) -> int:
    """Return the shared bytes of a block of ``multiply_out``: see :func:`choose_multiply_channels_and_chunks`."""
    return (
        chunk_count * (config.parts_per_feature * 64 * channels_per_block * 2 + 64 * 64 * 4)
        + config.parts_per_feature * 64 * 64 * 2
        + 7424
        + 1024
    )


def compute_coords_kernel_shared_bytes(config: KernelConfig) -> int:
    """Return the bytes of shared memory of a block of ``coords_gradient``."""
    positions = (2 * config.radius + 2) ** 2
    return 8 * 4 * (config.elements_per_feature_vector // 2 + (positions + 15) // 16 * 16)


def count_lookup_blocks_per_multiprocessor(config: KernelConfig, out_code: int, channels_last: bool) -> int:
    """Return how many blocks of ``lookup`` a multiprocessor runs at a time."""
    two_fit = compute_lookup_shared_bytes(config, out_code, channels_last) <= 99 << 10
    return 2 if two_fit and not config.hopper and not config.split else 1


# ---- sources


@functools.cache
def _read_shared_and_named_sources(*names: str) -> str:
    """Read the shared sources, then these files."""
    shared = (HALVES, PRODUCTS, COPIES, WARPS, _FOLDER / "common.cuh")
    return read_source(*shared, *(_FOLDER / name for name in names))


@functools.lru_cache(64)
def generate_lookup_source(config: KernelConfig, out_code: int, channels_last: bool) -> KernelSource:
    """Return ``lookup`` that writes the type of ``out_code``, for :func:`choose_fitting_lookup_config_or_none`."""
    shared = _read_shared_and_named_sources("dots.cuh", "sample.cuh")
    build_lookup_source = functools.partial(config.build_source, out=out_code, channels_last=channels_last)
    if not config.hopper:
        return build_lookup_source(
            shared + read_source(_FOLDER / "lookup_ampere.cu"),
            MIN_BLOCKS=count_lookup_blocks_per_multiprocessor(config, out_code, channels_last),
        )
    consumer, producer = _REGISTERS[config.groups * config.teams]
    product = generate_wgmma_source(config.columns, config.bf16, _SWIZZLED)
    text = shared + product + read_source(BARRIERS, _FOLDER / "lookup_hopper.cu")
    return build_lookup_source(
        text, MAPS=config.tensor_map_count, CONSUMER_REGISTERS=consumer, PRODUCER_REGISTERS=producer
    )


@functools.lru_cache(64)
def generate_prepare_source(
    config: KernelConfig, dtype_code: int, is_scaled: bool, is_f1_laid_out_as_f2: bool
) -> KernelSource:
    """Return the kernels that lay out features of type ``dtype_code``; ``is_f1_laid_out_as_f2``: both maps are."""
    built = config.build_source(_read_shared_and_named_sources("prepare.cu"), SRC=dtype_code, SCALED=is_scaled)
    return built._replace(options=(*built.options, "-DF1_PLAIN")) if is_f1_laid_out_as_f2 else built


@functools.lru_cache(64)
def generate_collect_source(config: KernelConfig, grad_code: int, patch_side: int) -> KernelSource:
    """Return ``collect`` for gradients of type ``grad_code``; ``config`` from :func:`derive_gradient_config`."""
    return config.build_source(
        _read_shared_and_named_sources("gradients.cuh", "collect.cu"), GRAD=grad_code, PATCH=patch_side
    )


@functools.lru_cache(64)
def generate_multiply_source(
    config: KernelConfig, patch_side: int, channels_per_block: int, chunk_count: int
) -> KernelSource:
    """Return ``multiply_out`` for :func:`derive_gradient_config` and :func:`choose_multiply_channels_and_chunks`."""
    text = _read_shared_and_named_sources("gradients.cuh", "restart.cuh", "multiply_out.cu")
    return config.build_source(
        text,
        PATCH=patch_side,
        NCH=channels_per_block,
        CHUNKS=chunk_count,
        MIN_BLOCKS=1 if config.split or chunk_count == 1 else 2,
    )


@functools.lru_cache(64)
def generate_coords_gradient_source(config: KernelConfig, grad_code: int) -> KernelSource:
    """Return ``coords_gradient`` for gradients of the type with code ``grad_code``, from the forward's layout."""
    return config.build_source(
        _read_shared_and_named_sources("dots.cuh", "sample.cuh", "coords_gradient.cu"), GRAD=grad_code
    )
