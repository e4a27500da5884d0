"""Pair of feature maps in the kernels' layout, and the launches that read it."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, Launch, current_device, raw_stream
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.cuda.config import KernelConfig
from fullfield.ops.correlation.cuda.launch_backward import (
    FeatureGradients,
    GradientSums,
    compute_coords_gradient,
    generate_collect_and_multiply_sources,
)
from fullfield.ops.correlation.cuda.structs import (
    LIBRARIES,
    MapSource,
    Params,
    PrepareParams,
    compute_level_offsets,
    encode_tensor_maps_and_get_address,
    fill_lookup_params,
    fill_work_item_params,
    get_lookup_counters,
)
from fullfield.ops.correlation.prepared import pool_pyramid_levels
from fullfield.ops.correlation.protocol import GradientAccumulators, LookupRequest, PreparedPair, convert_lookup_output

# Levels that the kernel pools; all are pooled in float32.
MAX_POOLED_LEVELS = 4
# Below this many tiles every level is a separate item, above only the finest.
SMALL_TILE_COUNT = 1200
# In a persistent lookup every level of the last tiles, this many for four teams, is a separate item.
SMALL_ITEMS = 9


def explain_unsupported(request: LookupRequest) -> str | None:
    """Return why the kernels cannot serve the request; None if they can."""
    reason = _launching.explain_unsupported_device(request.device)
    if reason is not None:
        return reason
    if request.dtype not in _launching.CODES:
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    if request.radius > shapes.LARGEST_RADIUS or request.levels > shapes.MAX_LEVELS:
        return (
            f"needs radius <= {shapes.LARGEST_RADIUS} and levels <= {shapes.MAX_LEVELS}, "
            f"got {request.radius} and {request.levels}"
        )
    return _explain_too_large(request)


def _explain_too_large(request: LookupRequest) -> str | None:
    pixels = request.size1[0] * request.size1[1]
    max_pixels = (1 << 32) // (4 * request.side) - 1  # distances between taps are 32-bit
    if pixels > max_pixels:
        return f"needs a first map of at most {max_pixels} pixels, got {pixels}"
    device = _launching.get_device_gpu_properties(request.device)
    config, shared = shapes.choose_forward_config(request, device), device.shared
    own, less = shapes.derive_gradient_config(config), f"more shared memory than the {shared >> 10} KiB of a block here"
    if shapes.compute_collect_kernel_shared_bytes(shapes.choose_gradient_patch_side(own, shared)) > shared:
        return f"a radius of {request.radius} needs {less}"
    used_bytes = max(
        shapes.compute_coords_kernel_shared_bytes(config),
        shapes.compute_multiply_kernel_shared_bytes(own, *shapes.choose_multiply_channels_and_chunks(own, shared)),
    )
    if used_bytes > shared or shapes.choose_fitting_lookup_config_or_none(config, 0, False, shared) is None:
        return f"{request.channels} channels need {less}"
    return None


def choose_config(request: LookupRequest) -> KernelConfig:
    """Return the configuration of the lookup; its gradients read the features in the same form."""
    return shapes.choose_forward_config(request, _launching.get_device_gpu_properties(request.device))


def count_fmap1_pixels(request: LookupRequest) -> int:
    """Return the number of source pixels."""
    return request.batch * request.size1[0] * request.size1[1]


def allocate_pair_state(request: LookupRequest, like: Tensor) -> tuple[Tensor, ...]:
    """Return an empty state.

    It holds f1 as the products' operands of 8 pixels each, f2's levels one after the other, the factors of products,
    of fmap1's gradients and of fmap2's; with grad also f1 in f2's layout.
    """
    config = choose_config(request)
    pixels = count_fmap1_pixels(request)
    padded = request.batch * shapes.count_pixels_with_rows_padded_to_octets(*request.size1)
    targets = request.batch * sum(height * width for height, width in request.sizes2)

    def allocate(vectors: int) -> Tensor:
        return like.new_empty((vectors * config.elements_per_feature_vector,), dtype=torch.int16)

    state = (allocate(padded), allocate(targets), like.new_empty((3,), dtype=torch.float32))
    return (*state, allocate(pixels)) if request.grad else state


# ---- preparing


def _write_features_in_kernel_layout(
    request: LookupRequest,
    fmap1: Tensor,
    fmap2_levels: Sequence[Tensor],
    f1_out: Tensor,
    f2_out: Tensor | None,
    scale_out: Tensor,
) -> None:
    """Write f1_out, all levels of f2_out (pooled if one is given, more than four in PyTorch) and the products' factor.

    Without f2_out: only f1_out, in f2_out's layout.
    """
    config = choose_config(request)
    scaled = shapes.is_scaled_to_float16(request, config)
    if f2_out is not None and len(fmap2_levels) < request.levels and request.levels > MAX_POOLED_LEVELS:
        fmap1, fmap2_levels = fmap1.float(), pool_pyramid_levels(fmap2_levels[0].float(), request.levels)
    source = shapes.generate_prepare_source(config, CODES[fmap1.dtype], scaled, f2_out is None)
    kernels = _launching.load_kernels(LIBRARIES, source, _launching.get_device_gpu_properties(request.device).index)
    factor = torch.zeros(2, dtype=torch.int32, device=f1_out.device) if scaled else None
    launches = [
        _build_prepare_params(request, config, fmap1 if i == 0 else None, fmap2_levels, i, f1_out, f2_out, scale_out)
        for i in range(len(fmap2_levels))
    ]
    if factor is not None:
        for params in launches:
            params.magnitude = factor.data_ptr()
            kernels.launch("magnitude", 1024, 256, params)
    for params in launches:
        blocks = (
            request.batch * (config.padded_channels // 32) * sum(params.tiles_x[i] * params.tiles_y[i] for i in (0, 1))
        )
        kernels.launch("prepare", blocks, 256, params)


def _build_prepare_params(
    request: LookupRequest,
    config: KernelConfig,
    fmap1: Tensor | None,
    fmap2_levels: Sequence[Tensor],
    index: int,
    f1: Tensor,
    f2: Tensor | None,
    scale: Tensor,
) -> Any:
    params, begins = PrepareParams(), compute_level_offsets(request, config)
    levels = request.levels if len(fmap2_levels) == 1 else 1
    for level in range(levels):
        params.level_offset[level] = begins[level]
        params.level_h[level], params.level_w[level] = request.sizes2[index + level]
    for i, fmap in enumerate((fmap1, fmap2_levels[index] if f2 is not None else None)):
        if fmap is not None and fmap.numel():
            height, width = fmap.shape[-2:]
            params.source[i] = MapSource(fmap.data_ptr(), *fmap.stride(), height, width)
            params.tiles_x[i], params.tiles_y[i] = -(-width // 32), -(-height // 8)
    params.f1, params.scale = f1.data_ptr(), scale.data_ptr()
    if f2 is not None:
        params.f2 = f2.data_ptr() + 2 * begins[index]
    params.batch, params.channels, params.levels = request.batch, request.channels, levels
    params.inverse_root = 1 / math.sqrt(request.channels)
    return params


def list_common_sources(request: LookupRequest) -> list[KernelSource]:
    """Return the sources that nearly every pair needs, to be compiled together."""
    device, config = _launching.get_device_gpu_properties(request.device), choose_config(request)
    dtype, scaled = CODES[request.dtype], shapes.is_scaled_to_float16(request, config)
    pooled = 0 if request.pooled and request.levels > MAX_POOLED_LEVELS else dtype
    sources = [shapes.generate_prepare_source(config, pooled, scaled, False)]
    usual = shapes.choose_fitting_lookup_config_or_none(config, 0, False, device.shared, count_fmap1_pixels(request))
    if usual is not None:
        sources.append(shapes.generate_lookup_source(usual, 0, False))
    if request.grad:
        sources += [
            shapes.generate_prepare_source(config, dtype, scaled, True),
            *generate_collect_and_multiply_sources(config, 0, device.shared),
        ]
    return sources


def prepare_pair(request: LookupRequest, fmap1: Tensor, fmap2_levels: Sequence[Tensor]) -> CudaPair:
    """Lay out a pair, after compiling its kernels where needed."""
    device = _launching.get_device_gpu_properties(request.device)
    with torch.cuda.device(device.index):
        _launching.load_several_kernels(LIBRARIES, list_common_sources(request), device.index)
        state = allocate_pair_state(request, fmap1)
        f1, f2, scale, *rest = state
        _write_features_in_kernel_layout(request, fmap1, fmap2_levels, f1, f2, scale)
        if rest:
            _write_features_in_kernel_layout(request, fmap1, fmap2_levels[:1], rest[0], None, torch.empty_like(scale))
        return CudaPair(request, state)


# ---- lookups


class _LookupLaunch:
    """Prepared launch of one kind of result; its parameters are shared, hence the lock."""

    def __init__(
        self, request: LookupRequest, config: KernelConfig, out: int, channels_last: bool, state: Sequence[Tensor]
    ) -> None:
        device = _launching.get_device_gpu_properties(request.device)
        source = shapes.generate_lookup_source(config, out, channels_last)
        self.params = Params()
        fill_lookup_params(self.params, request, config, state[0], state[1])
        self.params.scale = state[2].data_ptr()
        tiles, teams = self.params.tiles, device.processors * config.teams
        if config.hopper:
            fill_work_item_params(self.params, request.levels, 4, max(0, tiles - SMALL_ITEMS * teams // 4))
        else:
            fill_work_item_params(self.params, request.levels, 4 if tiles < SMALL_TILE_COUNT else 2)
        self.maps: ctypes.Array[ctypes.c_char] | None = None
        self.persistent = config.hopper
        blocks: int = self.params.items
        extra: list[int] = []
        if config.hopper:
            key = (request.sizes2, request.batch, config.elements_per_feature_vector, config.columns, config.widths)
            self.maps, *extra = encode_tensor_maps_and_get_address(state[1].data_ptr(), *key)
            blocks = min(-(-blocks // config.teams), device.processors)
            self.params.active_teams = blocks * config.teams
        kernels = _launching.load_kernels(LIBRARIES, source, device.index)
        shared = shapes.compute_lookup_shared_bytes(config, out, channels_last)
        self.launch = Launch(kernels, "lookup", blocks, config.threads_per_block, self.params, shared, *extra)
        self.shape = (request.batch, request.out_channels, *request.size1)
        self.lock = threading.Lock()


class CudaPair(PreparedPair):
    """Pair in the kernels' layout: :func:`allocate_pair_state` describes its state, :class:`GradientSums` its sums."""

    def __init__(self, request: LookupRequest, state: tuple[Tensor, ...]) -> None:
        super().__init__(request, state)
        self._device = _launching.get_device_gpu_properties(request.device)
        self._config = choose_config(request)
        self._launches: dict[tuple[torch.dtype, bool], _LookupLaunch | None] = {}
        self._counters = get_lookup_counters(request.device, self._device.index)
        stream = raw_stream(self._device.index)
        self._streams = {stream}
        self._features: FeatureGradients | None = None

    def _record_new_stream_on_state(self, stream: int) -> None:
        """Keep the state's memory from being given away while ``stream`` still reads it."""
        if stream not in self._streams:
            current = torch.cuda.current_stream(self._device.index)
            for tensor in self.state:
                tensor.record_stream(current)
            self._streams.add(stream)

    # ---- forward

    def _create_and_cache_lookup_launch_or_none(self, dtype: torch.dtype, channels_last: bool) -> _LookupLaunch | None:
        launch = None
        if dtype in CODES:
            code = CODES[dtype]
            pixels = count_fmap1_pixels(self.request)
            config = shapes.choose_fitting_lookup_config_or_none(
                self._config, code, channels_last, self._device.shared, pixels
            )
            if config is not None:
                launch = _LookupLaunch(self.request, config, code, channels_last, self.state)
        self._launches[dtype, channels_last] = launch
        return launch

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Launch one lookup on the current stream."""
        index = self._device.index
        if current_device() != index:
            with torch.cuda.device(index):
                return self.lookup(coords, out_dtype, channels_last)
        kind = (out_dtype, channels_last)
        call = self._launches[kind] if kind in self._launches else self._create_and_cache_lookup_launch_or_none(*kind)
        if call is None:  # no kernel writes this kind
            return convert_lookup_output(self.lookup(coords, torch.float32, False), out_dtype, channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(call.shape, dtype=out_dtype, device=coords.device, memory_format=layout)
        if call.launch.blocks == 0:
            return out
        stream = raw_stream(index)
        if stream not in self._streams:
            self._record_new_stream_on_state(stream)
        counters, own = (
            self._counters.get_zeroed_counters_address_and_memory(stream) if call.persistent else (None, None)
        )
        params = call.params
        with call.lock:
            params.coords, params.out, params.queue = coords.data_ptr(), out.data_ptr(), counters
            params.coord_b, params.coord_c, params.coord_y, params.coord_x = coords.stride()
            call.launch(stream)
        del own
        return out

    # ---- backward

    def _get_or_create_feature_gradients(self) -> FeatureGradients:
        if self._features is None:
            self._features = FeatureGradients(self.request, self._config, self._device, self.state)
        return self._features

    def allocate_accumulators(self, needs_fmap1: bool, needs_levels: bool) -> GradientAccumulators:
        """Return the sums of a new pass."""
        with torch.cuda.device(self._device.index):
            return self._get_or_create_feature_gradients().allocate_sums(needs_fmap1, needs_levels)

    def finish_gradients(self, grads: GradientAccumulators) -> GradientAccumulators:
        """Multiply out what a pass has left."""
        if not isinstance(grads, GradientSums):
            raise TypeError("these accumulators were not made by the cuda backend")
        with torch.cuda.device(self._device.index):
            self._record_new_stream_on_state(raw_stream(self._device.index))
            return self._get_or_create_feature_gradients().finish_gradients(grads)

    def backward(
        self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool
    ) -> Tensor | None:
        """Add one lookup's share to ``grads``; return the gradient of ``coords`` if it is requested."""
        index = self._device.index
        if current_device() != index:
            with torch.cuda.device(index):
                return self.backward(grad_out, coords, grads, needs_coords_grad)
        if grad_out.dtype not in CODES:
            grad_out = grad_out.to(torch.float32)
        stream = raw_stream(index)
        if stream not in self._streams:
            self._record_new_stream_on_state(stream)
        if grads.requested[0] or grads.requested[1]:
            if not isinstance(grads, GradientSums):
                raise TypeError("these accumulators were not made by the cuda backend")
            self._get_or_create_feature_gradients().add_lookup_gradient(grad_out, coords, grads, stream)
        if not needs_coords_grad:
            return None
        return compute_coords_gradient(self.request, self._config, self._device, self.state, grad_out, coords)


restore_pair = CudaPair
