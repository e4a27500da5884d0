"""Gradients of the features, summed over the lookups of a pass, and of the coordinates."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, GpuProperties, Launch, raw_stream
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.cuda.config import MAX_LEVELS, KernelConfig
from fullfield.ops.correlation.cuda.structs import LIBRARIES, CoordsParams, GradientParams, Params, fill_lookup_params
from fullfield.ops.correlation.protocol import GradientAccumulators, LookupRequest

# ``mode`` of gradients.cuh.
FIRST_LOOKUP, ADD, END = range(3)
MAX_SPLITS = 64
MIN_SPLITS = 4  # splits of everything where there is little to do, as in multiply_out.cu
WORK = 5 + MAX_LEVELS  # integers of ``Work``


def generate_collect_and_multiply_sources(
    config: KernelConfig, grad_code: int, shared_bytes: int
) -> tuple[KernelSource, KernelSource]:
    """Return ``collect`` and ``multiply_out`` for lookups of ``config`` on a device with ``shared_bytes`` per block."""
    own = shapes.derive_gradient_config(config)
    side, blocks = (
        shapes.choose_gradient_patch_side(own, shared_bytes),
        shapes.choose_multiply_channels_and_chunks(own, shared_bytes),
    )
    return shapes.generate_collect_source(own, grad_code, side), shapes.generate_multiply_source(own, side, *blocks)


@dataclass
class GradientSums(GradientAccumulators):
    """Sums of one pass.

    What is already multiplied with the features is padded, flat float32 in the layout of f2 (``levels`` is a list of
    one); the rest is in patches of window gradients.
    """

    params: ctypes.Structure = field(default_factory=GradientParams)
    pair: ctypes.Structure = field(default_factory=Params)
    """``params.p`` itself."""
    layout: tuple[torch.dtype | None, tuple[int, ...], tuple[int, ...]] = (None, (), ())
    """Type and strides of the last incoming gradient and strides of the coordinates, as in ``params``."""
    collect: Launch | None = None
    """Launch for gradients of that type."""
    multiply: Launch | None = None
    memory: tuple[Tensor, ...] = ()
    stream: int = 0
    """Stream on which the memory was allocated."""
    empty: bool = True


class FeatureGradients:
    """Launches of one pair; whatever changes between passes is in their :class:`GradientSums`."""

    def __init__(
        self, request: LookupRequest, config: KernelConfig, device: GpuProperties, state: tuple[Tensor, ...]
    ) -> None:
        if len(state) < 4:
            raise TypeError("the pair was prepared without gradients")
        self.request, self.device = request, device
        self._config, self._forward = shapes.derive_gradient_config(config), config
        self._state = state
        side, multiply_blocks = (
            shapes.choose_gradient_patch_side(self._config, device.shared),
            shapes.choose_multiply_channels_and_chunks(self._config, device.shared),
        )
        self._collect_shared = shapes.compute_collect_kernel_shared_bytes(side)
        self._multiply_shared = shapes.compute_multiply_kernel_shared_bytes(self._config, *multiply_blocks)
        self._side = side
        pair = GradientParams()
        fill_lookup_params(pair.p, request, self._config, state[3], state[1])
        pair.p.scale = state[2].data_ptr()
        self._blocks = self._config.padded_channels // multiply_blocks[0]
        self._collected = pair.p.tiles * request.levels
        self._fill_target_offsets_and_splits_and_set_tile_count(pair)
        self._pair = pair
        source = generate_collect_and_multiply_sources(config, 0, device.shared)[1]
        self._kernels = _launching.load_kernels(LIBRARIES, source, device.index)
        # Two blocks share a multiprocessor if they fit.
        each = 2 if 2 * (self._multiply_shared + 1024) <= device.shared + 1024 and not config.split else 1
        splits = sum(
            max(MIN_SPLITS, pair.splits[level]) * -(-height // 8) * -(-width // 8)
            for level, (height, width) in enumerate(request.sizes2)
        )
        max_blocks = self._blocks * (MIN_SPLITS * pair.p.tiles + request.batch * splits)
        self._multiply_blocks = max(1, min(each * device.processors, max_blocks))

    def _fill_target_offsets_and_splits_and_set_tile_count(self, pair: ctypes.Structure) -> None:
        request = self.request
        tiles = pair.p.tiles_x * pair.p.tiles_y
        counts = [-(-height // 8) * -(-width // 8) for height, width in request.sizes2]
        for level, count in enumerate(counts):
            pair.target_begin[level] = request.batch * sum(counts[:level])
            # As many pixels for an item of a coarse level as for one of level 1.
            pair.splits[level] = max(1, min(MAX_SPLITS, round(tiles / (4 * max(count, 1)))))
        self.target_tiles = request.batch * sum(counts)

    def allocate_sums(self, needs_fmap1: bool, needs_levels: bool) -> GradientSums:
        """Return the sums of a new pass for the requested gradients."""
        r, channels, pair = self.request, self._config.padded_channels, self._pair
        new, count = self._state[0].new_zeros, self._collected
        pixels, targets = r.batch * r.size1[0] * r.size1[1], r.batch * sum(h * w for h, w in r.sizes2)
        first = new((pixels * channels if needs_fmap1 else 0,), dtype=torch.float32)
        second = new((targets * channels if needs_levels else 0,), dtype=torch.float32)
        patches = first.new_empty((count * 64 * self._side**2,))
        notes = first.new_empty((count * (4 * 64 + 4 + 2) + pair.p.tiles,), dtype=torch.int32)
        tiles, spots = pair.p.tiles, self.target_tiles
        marks = new((WORK + tiles + spots * 4 + (tiles + spots) * self._blocks,), dtype=torch.int32)
        params = GradientParams.from_buffer_copy(pair)
        params.want_first, params.want_second = needs_fmap1, needs_levels
        params.g1, params.g2, params.patches = first.data_ptr(), second.data_ptr(), patches.data_ptr()
        at, zeroed = notes.data_ptr(), marks.data_ptr()
        params.covered, at = at, at + 16 * 64 * count
        params.bounds, at = at, at + 16 * count
        params.largest, at = at, at + 4 * count
        params.full_levels, params.full_tiles = at, at + 4 * count
        params.bands, zeroed = zeroed, zeroed + 8 * spots
        params.target_largest, zeroed = zeroed, zeroed + 4 * spots
        params.full_targets, zeroed = zeroed, zeroed + 4 * spots
        params.turn, zeroed = zeroed, zeroed + 4 * (tiles + spots) * self._blocks
        params.full, params.work = zeroed, zeroed + 4 * tiles
        memory = (first, second, patches, notes, marks)
        return GradientSums(
            first,
            [second],
            (needs_fmap1, needs_levels),
            params,
            params.p,
            multiply=Launch(self._kernels, "multiply_out", self._multiply_blocks, 256, params, self._multiply_shared),
            memory=memory,
            stream=raw_stream(self.device.index),
        )

    def add_lookup_gradient(self, grad_out: Tensor, coords: Tensor, sums: GradientSums, stream: int) -> None:
        """Add one lookup's gradient."""
        if self._collected == 0:
            return
        self._record_use_on_stream(stream, sums)
        params, layout = sums.params, (grad_out.dtype, grad_out.stride(), coords.stride())
        if layout != sums.layout:
            params.grad_type = CODES[layout[0]]
            _copy_strides_into_params(params, *layout[1:])
            if sums.collect is None or layout[0] != sums.layout[0]:
                sums.collect = self._build_collect_launch(layout[0], params)
            sums.layout = layout
        sums.pair.coords, params.grad = coords.data_ptr(), grad_out.data_ptr()
        if sums.empty:
            self._launch_collect_then_multiply_pending(sums, FIRST_LOOKUP, stream)
            sums.empty = False
        else:
            self._launch_collect_then_multiply_pending(sums, ADD, stream)

    def finish_gradients(self, sums: GradientSums) -> GradientAccumulators:
        """Multiply out what is left; return the gradients as views [B, C, H, W]."""
        r = self.request
        stream = raw_stream(self.device.index)
        self._record_use_on_stream(stream, sums)
        if not sums.empty:
            self._launch_collect_then_multiply_pending(sums, END, stream)
        if sums.fmap1 is None or sums.levels is None:
            raise TypeError("these accumulators were not made by the cuda backend")
        first = self._view_unpadded(sums.fmap1, r.size1) if sums.requested[0] else None
        if not sums.requested[1]:
            return GradientAccumulators(first, None, sums.requested)
        rest, start = [], 0
        for size in r.sizes2:
            count = r.batch * size[0] * size[1] * self._config.padded_channels
            rest.append(self._view_unpadded(sums.levels[0][start : start + count], size))
            start += count
        return GradientAccumulators(first, rest, sums.requested)

    def _view_unpadded(self, flat: Tensor, size: tuple[int, int]) -> Tensor:
        """Return a view [B, C, H, W] of [B, H, W, padded channels]."""
        padded = flat.view(self.request.batch, *size, self._config.padded_channels)
        return padded[..., : self.request.channels].permute(0, 3, 1, 2)

    def _record_use_on_stream(self, stream: int, sums: GradientSums) -> None:
        if stream != sums.stream:
            current = torch.cuda.current_stream(self.device.index)
            for tensor in sums.memory:
                tensor.record_stream(current)

    def _build_collect_launch(self, dtype: torch.dtype, params: ctypes.Structure) -> Launch:
        """Return the launch for incoming gradients of ``dtype``."""
        source = generate_collect_and_multiply_sources(self._forward, CODES[dtype], self.device.shared)[0]
        kernels = _launching.load_kernels(LIBRARIES, source, self.device.index)
        return Launch(kernels, "collect", self._collected, 128, params, self._collect_shared)

    @staticmethod
    def _launch_collect_then_multiply_pending(sums: GradientSums, mode: int, stream: int) -> None:
        if sums.collect is None or sums.multiply is None:
            raise TypeError("these accumulators were not made by the cuda backend")
        sums.params.mode = mode
        sums.collect(stream)
        if mode != FIRST_LOOKUP:
            sums.multiply(stream)


def compute_coords_gradient(
    request: LookupRequest,
    config: KernelConfig,
    device: GpuProperties,
    state: tuple[Tensor, ...],
    grad_out: Tensor,
    coords: Tensor,
) -> Tensor:
    """Return the gradient [B, 2, H, W] float32 of one lookup's coordinates."""
    grad_coords = torch.empty(coords.shape, dtype=torch.float32, device=coords.device)
    blocks = request.batch * request.size1[0] * -(-request.size1[1] // 8)
    if blocks == 0:
        return grad_coords
    source = shapes.generate_coords_gradient_source(config, CODES[grad_out.dtype])
    params = CoordsParams()
    fill_lookup_params(params.p, request, config, state[0], state[1])
    params.p.scale = state[2].data_ptr()
    _copy_strides_into_params(params, grad_out.stride(), coords.stride())
    params.p.coords, params.grad = coords.data_ptr(), grad_out.data_ptr()
    params.grad_coords = grad_coords.data_ptr()
    kernels = _launching.load_kernels(LIBRARIES, source, device.index)
    kernels.launch("coords_gradient", blocks, 256, params, shapes.compute_coords_kernel_shared_bytes(config))
    return grad_coords


def _copy_strides_into_params(
    params: ctypes.Structure, grad_strides: tuple[int, ...], coords_strides: tuple[int, ...]
) -> None:
    pair = params.p
    pair.coord_b, pair.coord_c, pair.coord_y, pair.coord_x = coords_strides
    params.grad_b, params.grad_c, params.grad_y, params.grad_x = grad_strides
