"""A pair of feature maps in the kernels' layout, and the launches that read it."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Kernel, Libraries, Source, addresses, nvrtc
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.cuda import queues
from fullfield.ops.correlation.cuda.config import CODES, Config
from fullfield.ops.correlation.cuda.structs import (
    BackwardParams,
    CoordsParams,
    MapSource,
    Params,
    PrepareParams,
    split_levels,
    tensor_maps,
)
from fullfield.ops.correlation.protocol import Gradients, Prepared, Request, laid_out

LIBRARIES = Libraries("correlation kernels")
# Below this many tiles every level is an item of its own, above only the finest is apart.
FEW_TILES = 1200


@dataclass(frozen=True)
class Device:
    """What the launches have to know of a device."""

    index: int
    arch: str
    hopper: bool
    shared: int
    """Bytes of shared memory that a block may take."""
    processors: int


@functools.cache
def _device_at(index: int) -> Device:
    about = torch.cuda.get_device_properties(index)
    arch = nvrtc().target((about.major, about.minor))
    shared = about.shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return Device(index, arch, arch == "sm_90a", shared, about.multi_processor_count)


def device_of(request: Request) -> Device:
    index = request.device.index
    return _device_at(torch.cuda.current_device() if index is None else index)


def _raw_stream(index: int) -> int:
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # type: ignore[attr-defined, unused-ignore]
    return stream


def _current_device() -> int:
    index: int = torch._C._cuda_getDevice()  # type: ignore[attr-defined, unused-ignore]
    return index


def configs(request: Request) -> tuple[Config, Config]:
    """Of the lookup and of its backward."""
    device = device_of(request)
    return shapes.forward_config(request, device.hopper), shapes.backward_config(request, device.shared)


def shares_second_map(forward: Config, backward: Config) -> bool:
    """Whether both read the second map in the same form."""
    return forward.bf16 and not forward.split and forward.row_length == backward.row_length


def empty_state(request: Request, like: Tensor) -> tuple[Tensor, ...]:
    """f1 as the products' operands of 16 pixels each, f2's levels one after the other, the products' factor; with
    grad f1 as f2, and the levels again unless :func:`shares_second_map`."""
    forward, backward = configs(request)
    pixels = request.batch * request.size1[0] * request.size1[1]
    blocks = request.batch * forward.blocks(*request.size1)
    targets = request.batch * sum(height * width for height, width in request.sizes2)

    def new(vectors: int, config: Config) -> Tensor:
        return like.new_empty((vectors * config.row_length,), dtype=torch.int16)

    state = [new(blocks * 16, forward), new(targets, forward), like.new_empty((1,), dtype=torch.float32)]
    if request.grad:
        state.append(new(pixels, backward))
        if not shares_second_map(forward, backward):
            state.append(new(targets, backward))
    return tuple(state)


def _offsets(request: Request, config: Config) -> list[int]:
    """Where every level begins, in 16-bit elements."""
    found, offset = [], 0
    for height, width in request.sizes2:
        found.append(offset)
        offset += request.batch * height * width * config.row_length
    return found


def _fill(params: Params, request: Request, config: Config, f1: Tensor, f2: Tensor) -> None:
    """Everything that lookups of one pair have in common."""
    params.f1, params.f2 = f1.data_ptr(), f2.data_ptr()
    params.batch, params.levels = request.batch, request.levels
    params.height, params.width = request.size1
    for level, (offset, (height, width)) in enumerate(zip(_offsets(request, config), request.sizes2, strict=True)):
        params.level_offset[level], params.level_h[level], params.level_w[level] = offset, height, width
    params.tiles_x, params.tiles_y = -(-params.width // config.block), -(-params.height // config.tile_height)
    params.tiles = params.batch * params.tiles_x * params.tiles_y


# ---- preparing


class Layout:
    """Brings feature maps into the layout of one configuration."""

    def __init__(self, request: Request, config: Config, scaled: bool, plain: bool) -> None:
        self.request = request
        self.config = config
        self.scaled = scaled
        self.source = shapes.prepare_source(config, CODES[request.dtype], scaled, plain)

    def run(self, fmap1: Tensor, maps: Sequence[Tensor], f1: Tensor, f2: Tensor | None, scale: Tensor) -> None:
        """Write f1, all levels of f2 (pooled here if ``maps`` is one) and the products' factor."""
        r = self.request
        device = device_of(r)
        library = LIBRARIES.load([self.source], device.arch, device.index)[0]
        stream = _raw_stream(device.index)
        factor = torch.zeros(2, dtype=torch.int32, device=f1.device) if self.scaled else None
        launches = [self._params(fmap1 if i == 0 else None, maps, i, f1, f2, scale) for i in range(len(maps))]
        if factor is not None:
            for params in launches:
                params.magnitude = factor.data_ptr()
                self._launch(library["magnitude"], 1024, device, stream, params)
        groups = r.batch * (self.config.channels // 32)
        for params in launches:
            blocks = groups * sum(params.tiles_x[i] * params.tiles_y[i] for i in (0, 1))
            deep = self._deep(params, f1)
            if blocks:
                self._launch(library["prepare"], blocks, device, stream, params)
            octets = sum(h * w for h, w in r.sizes2[4:]) * r.batch * self.config.channels // 8
            if deep is not None and octets:
                self._launch(library["prepare_deep"], -(-octets // 256), device, stream, params)

    @staticmethod
    def _launch(kernel: Kernel, blocks: int, device: Device, stream: int, params: PrepareParams) -> None:
        kernel.launch((blocks, 1), 256, 0, device.index, stream, addresses(params))

    def _params(
        self, fmap1: Tensor | None, maps: Sequence[Tensor], index: int, f1: Tensor, f2: Tensor | None, scale: Tensor
    ) -> PrepareParams:
        r, params = self.request, PrepareParams()
        offsets = _offsets(r, self.config)
        levels = r.levels if len(maps) == 1 else 1
        for level in range(levels):
            params.level_offset[level] = offsets[level]
            params.level_h[level], params.level_w[level] = r.sizes2[index + level]
        for i, fmap in enumerate((fmap1, maps[index] if f2 is not None else None)):
            if fmap is not None and fmap.numel():
                height, width = fmap.shape[-2:]
                params.source[i] = MapSource(fmap.data_ptr(), *fmap.stride(), height, width)
                params.tiles_x[i], params.tiles_y[i] = -(-width // 32), -(-height // 8)
        params.f1, params.scale = f1.data_ptr(), scale.data_ptr()
        if f2 is not None:
            params.f2 = f2.data_ptr() + 2 * offsets[index]
        params.batch, params.channels, params.levels = r.batch, r.channels, levels
        params.inverse_root = 1 / math.sqrt(r.channels)
        return params

    def _deep(self, params: PrepareParams, like: Tensor) -> Tensor | None:
        """Room for level 3 in float32, from which the further levels are pooled."""
        if params.levels <= 4 or not params.f2:
            return None
        count = self.request.batch * params.level_h[3] * params.level_w[3] * self.config.channels
        if count == 0:
            return None
        deep = like.new_empty((count,), dtype=torch.float32)
        params.deep = deep.data_ptr()
        return deep


def first_sources(request: Request) -> list[Source]:
    """What a pair needs in any case or almost, so that it is compiled together."""
    forward, backward = configs(request)
    dtype, scaled = CODES[request.dtype], shapes.is_scaled(request)
    sources = [shapes.prepare_source(forward, dtype, scaled, False)]
    usual = shapes.lookup_config(forward, 0, False, device_of(request).shared)
    if usual is not None:
        sources.append(shapes.lookup_source(usual, 0, False))
    if request.grad:
        sources += [shapes.prepare_source(backward, dtype, False, True), shapes.backward_source(backward, 0)]
    return sources


def prepare(request: Request, fmap1: Tensor, maps: Sequence[Tensor]) -> Cuda:
    device = device_of(request)
    with torch.cuda.device(device.index):
        LIBRARIES.load(first_sources(request), device.arch, device.index)
        state = empty_state(request, fmap1)
        f1, f2, scale, *rest = state
        forward, backward = configs(request)
        Layout(request, forward, shapes.is_scaled(request), False).run(fmap1, maps, f1, f2, scale)
        if rest:
            spare = torch.empty_like(scale)
            again = rest[1] if len(rest) > 1 else None
            Layout(request, backward, False, True).run(fmap1, maps, rest[0], again, spare)
        return Cuda(request, state)


# ---- lookups


class _Lookup:
    """The launch of one kind of result; its parameters are shared, hence the lock."""

    __slots__ = ("arguments", "grid", "kernel", "lock", "maps", "params", "persistent", "shape", "shared", "threads")

    def __init__(
        self, request: Request, config: Config, out: int, channels_last: bool, state: Sequence[Tensor]
    ) -> None:
        device = device_of(request)
        source = shapes.lookup_source(config, out, channels_last)
        self.kernel = LIBRARIES.load([source], device.arch, device.index)[0]["lookup"]
        self.shared = shapes.lookup_shared(config, out, channels_last)
        self.kernel.allow_shared(device.index, self.shared)
        self.params = Params()
        _fill(self.params, request, config, state[0], state[1])
        self.params.scale = state[2].data_ptr()
        split_levels(self.params, request.levels, 4 if self.params.tiles < FEW_TILES else 2, config.deals)
        self.maps: ctypes.Array[ctypes.c_char] | None = None
        self.persistent = config.hopper
        blocks = self.params.items
        if config.hopper:
            key = (request.sizes2, request.batch, config.row_length, config.columns, config.widths)
            self.maps, address = tensor_maps(state[1].data_ptr(), *key)
            self.arguments = addresses(self.params, address)
            blocks = min(blocks, device.processors * config.blocks_each)
        else:
            self.arguments = addresses(self.params)
        self.grid = (blocks, 1)
        self.shape = (request.batch, request.out_channels, *request.size1)
        self.threads = config.threads
        self.lock = threading.Lock()


@dataclass
class Sums(Gradients):
    """Accumulators in the layout of f2, padded, flat float32; ``levels`` is a list of one."""

    stream: int = 0
    """On which their memory was taken."""


class _Backward:
    """The launch for one dtype of incoming gradients; its parameters are shared, hence the lock."""

    __slots__ = ("arguments", "grid", "kernel", "lock", "params", "shared", "threads")

    def __init__(self, request: Request, config: Config, grad: int, state: Sequence[Tensor]) -> None:
        if len(state) < 4:
            raise TypeError("the pair was prepared without gradients")
        device = device_of(request)
        source = shapes.backward_source(config, grad)
        self.kernel = LIBRARIES.load([source], device.arch, device.index)[0]["backward"]
        self.shared = shapes.backward_shared(config)
        self.kernel.allow_shared(device.index, self.shared)
        self.params = BackwardParams()
        _fill(self.params.p, request, config, state[3], state[4] if len(state) > 4 else state[1])
        split_levels(self.params.p, request.levels, 1, 1)
        self.params.scale = 1 / math.sqrt(request.channels)
        self.arguments = addresses(self.params)
        self.grid = (self.params.p.items, config.kb)
        self.threads = 256 * config.groups
        self.lock = threading.Lock()


class Cuda(Prepared):
    """State: see :func:`empty_state`. Accumulators: :class:`Sums`."""

    def __init__(self, request: Request, state: tuple[Tensor, ...]) -> None:
        super().__init__(request, state)
        self._device = device_of(request)
        self._forward, self._backward = configs(request)
        self._lookups: dict[tuple[torch.dtype, bool], _Lookup | None] = {}
        self._queues = queues.of_device(request.device, self._device.index)
        self._streams = {_raw_stream(self._device.index)}
        self._backwards: dict[torch.dtype, _Backward] = {}

    def _use_on(self, stream: int) -> None:
        """Keep the state's memory from being given away while ``stream`` still reads it."""
        if stream not in self._streams:
            current = torch.cuda.current_stream(self._device.index)
            for tensor in self.state:
                tensor.record_stream(current)
            self._streams.add(stream)

    # ---- forward

    def _make_lookup(self, dtype: torch.dtype, channels_last: bool) -> _Lookup | None:
        made = None
        if dtype in CODES:
            code = CODES[dtype]
            config = shapes.lookup_config(self._forward, code, channels_last, self._device.shared)
            if config is not None:
                made = _Lookup(self.request, config, code, channels_last, self.state)
        self._lookups[dtype, channels_last] = made
        return made

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        index = self._device.index
        if _current_device() != index:
            with torch.cuda.device(index):
                return self.lookup(coords, out_dtype, channels_last)
        kind = (out_dtype, channels_last)
        call = self._lookups[kind] if kind in self._lookups else self._make_lookup(*kind)
        if call is None:  # no kernel writes this kind
            return laid_out(self.lookup(coords, torch.float32, False), out_dtype, channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(call.shape, dtype=out_dtype, device=coords.device, memory_format=layout)
        if call.grid[0] == 0:
            return out
        stream = _raw_stream(index)
        if stream not in self._streams:
            self._use_on(stream)
        counters, own = self._queues.take(stream) if call.persistent else (None, None)
        params = call.params
        with call.lock:
            params.coords, params.out, params.queue = coords.data_ptr(), out.data_ptr(), counters
            params.coord_b, params.coord_c, params.coord_y, params.coord_x = coords.stride()
            call.kernel.launch(call.grid, call.threads, call.shared, index, stream, call.arguments)
        del own
        return out

    # ---- backward

    def accumulators(self, fmap1: bool, levels: bool) -> Gradients:
        r, channels = self.request, self._backward.channels
        new = self.state[0].new_zeros
        pixels, targets = r.size1[0] * r.size1[1], sum(height * width for height, width in r.sizes2)
        first = new((r.batch * pixels * channels,), dtype=torch.float32)
        second = new((r.batch * targets * channels,), dtype=torch.float32)
        return Sums(first, [second], (fmap1, levels), _raw_stream(self._device.index))

    def gradients(self, grads: Gradients) -> Gradients:
        r = self.request
        if grads.fmap1 is None or grads.levels is None:
            raise TypeError("these accumulators were not made by the cuda backend")
        first = self._unpadded(grads.fmap1, r.size1) if grads.wanted[0] else None
        if not grads.wanted[1]:
            return Gradients(first, None, grads.wanted)
        rest, start = [], 0
        for size in r.sizes2:
            count = r.batch * size[0] * size[1] * self._backward.channels
            rest.append(self._unpadded(grads.levels[0][start : start + count], size))
            start += count
        return Gradients(first, rest, grads.wanted)

    def _unpadded(self, flat: Tensor, size: tuple[int, int]) -> Tensor:
        """A view [B, C, H, W] of [B, H, W, padded channels]."""
        whole = flat.view(self.request.batch, *size, self._backward.channels)
        return whole[..., : self.request.channels].permute(0, 3, 1, 2)

    def backward(self, grad_out: Tensor, coords: Tensor, grads: Gradients, coords_grad: bool) -> Tensor | None:
        index = self._device.index
        if _current_device() != index:
            with torch.cuda.device(index):
                return self.backward(grad_out, coords, grads, coords_grad)
        if grad_out.dtype not in CODES:
            grad_out = grad_out.to(torch.float32)
        stream = _raw_stream(index)
        if stream not in self._streams:
            self._use_on(stream)
        if grads.wanted[0] or grads.wanted[1]:
            self._accumulate(grad_out, coords, grads)
        return self._coords_gradient(grad_out, coords) if coords_grad else None

    def _accumulate(self, grad_out: Tensor, coords: Tensor, grads: Gradients) -> None:
        if not isinstance(grads, Sums) or grads.fmap1 is None or grads.levels is None:
            raise TypeError("these accumulators were not made by the cuda backend")
        if grads.wanted[1]:
            _tell_order()
        call = self._backwards.get(grad_out.dtype)
        if call is None:
            call = _Backward(self.request, self._backward, CODES[grad_out.dtype], self.state)
            self._backwards[grad_out.dtype] = call
        if call.grid[0] == 0:
            return
        stream = _raw_stream(self._device.index)
        if stream != grads.stream:
            for sums in (grads.fmap1, grads.levels[0]):
                sums.record_stream(torch.cuda.current_stream(self._device.index))
        params = call.params
        with call.lock:
            _point(params, grad_out, coords)
            params.g1, params.g2 = grads.fmap1.data_ptr(), grads.levels[0].data_ptr()
            call.kernel.launch(call.grid, call.threads, call.shared, self._device.index, stream, call.arguments)

    def _coords_gradient(self, grad_out: Tensor, coords: Tensor) -> Tensor:
        config, r = self._forward, self.request
        moved = torch.empty(coords.shape, dtype=torch.float32, device=coords.device)
        blocks = r.batch * r.size1[0] * -(-r.size1[1] // 8)
        if blocks == 0:
            return moved
        source = shapes.coords_source(config, CODES[grad_out.dtype])
        kernel = LIBRARIES.load([source], self._device.arch, self._device.index)[0]["coords_gradient"]
        shared = shapes.coords_shared(config)
        kernel.allow_shared(self._device.index, shared)
        params = CoordsParams()
        _fill(params.p, r, config, self.state[0], self.state[1])
        params.p.scale = self.state[2].data_ptr()
        _point(params, grad_out, coords)
        params.moved = moved.data_ptr()
        kernel.launch((blocks, 1), 256, shared, self._device.index, _raw_stream(self._device.index), addresses(params))
        return moved


def _point(params: BackwardParams | CoordsParams, grad_out: Tensor, coords: Tensor) -> None:
    pair = params.p
    pair.coords, params.grad = coords.data_ptr(), grad_out.data_ptr()
    pair.coord_b, pair.coord_c, pair.coord_y, pair.coord_x = coords.stride()
    params.grad_b, params.grad_c, params.grad_y, params.grad_x = grad_out.stride()


def _tell_order() -> None:
    """As PyTorch's own operators whose sums have no fixed order."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = (
        "correlation_lookup: the cuda backend sums the gradient of fmap2 in no fixed order, and "
        "torch.use_deterministic_algorithms(True) is set; backend='dense' and 'reference' are deterministic then"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=2)
