"""Networks prepared for pairs of one size."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield._check import InputError
from fullfield.models import framing
from fullfield.models.network import FlowNetwork
from fullfield.models.prepared.shared import LANE, PreparedNetwork, WeightConverter, compute_nan_guard
from fullfield.ops._fused import reference
from fullfield.ops._fused.arguments import CELL_CHANNELS, FramePadding
from fullfield.ops._recording import StreamOrderedCalls

PRECISIONS = ("fast", "bfloat16", "exact")
_DTYPES = {"fast": torch.float16, "bfloat16": torch.bfloat16, "exact": torch.float32}
# Cells whose up-sampling weights are in memory at a time.
_STRIP, _CPU_STRIP = 1 << 16, 1 << 11


class PreparedFlow:
    """RAFT or SEA-RAFT in its fast form, for pairs of one size on one device.

    ::

        fast = PreparedFlow(model, 3432, 8192)     # once: copies the weights, compiles kernels, records CUDA graphs
        flow = fast(frame1, frame2)                # [B, 3, H, W] twice -> [B, 2, H, W] float32

    Activations are float16; coordinates, sums of products and the flow are float32. Norms are folded into convolutions
    or into one pass after them, everything between two convolutions is one pass, and the context's part of RAFT's
    gates is computed once per pair. Encoder and update are one CUDA graph each, recorded by the constructor: calls
    compile nothing and allocate only the result and its strips. Another size needs another object.

    A call runs after the previous one, on any stream; calls from several threads wait for each other. Nothing here
    takes part in autograd, and later changes of the model's parameters have no effect.

    Args:
        model: on the device to use; batch norms work as in eval mode.
        height: rows of the frames, before padding.
        width: columns of the frames, before padding.
        batch: pairs at a time; with 0 the flow is empty.
        precision: ``"fast"`` is float16 on a GPU; on a CPU bfloat16 if it has instructions for it (AVX-512 BF16), else
            float32. ``"bfloat16"`` has less precision and more range, ``"exact"`` is float32 in plain PyTorch.

    Raises:
        InputError: naming the argument that does not fit, or the reason why this device has no fast form.
    """

    def __init__(
        self,
        model: FlowNetwork,
        height: int,
        width: int,
        batch: int = 1,
        precision: str = "fast",
    ) -> None:
        self._allocate_buffers_and_record_graphs(_build_shared_components(model, precision), height, width, batch)

    def _allocate_buffers_and_record_graphs(
        self, shared: _SharedComponents, height: int, width: int, batch: int
    ) -> None:
        for name, value, low in (("height", height, 1), ("width", width, 1), ("batch", batch, 0)):
            _check.check_number(value, name, integer=True, low=low)
        self.model = shared.model
        self.device, self.dtype = shared.converter.device, shared.converter.dtype
        self.size = (int(height), int(width))
        self.batch = int(batch)
        self.padding = framing.choose_padding(*self.size, shared.model.config.padding)
        left, right, top, bottom = self.padding
        self._frame = FramePadding(top, left, self.size[0] + top + bottom, self.size[1] + left + right)
        self._lock = threading.Lock()
        self._in_order = StreamOrderedCalls(self.device)
        self._parameters = shared.converter.weights
        self._passes, self._network = shared.converter.passes, shared.network
        self._fused = self._passes is not reference and self.batch > 0
        self._pool: Any = None
        with _disable_autograd_and_autocast(self.device):
            cells = self.padding.count_feature_rows_and_columns(*self.size)
            self._grid = framing.create_coordinate_grid(self.batch, *cells, self.device).contiguous()
            self._cells = torch.zeros(
                (self.batch, self._frame.height // 2 + 3, self._frame.width // 2 + 3, CELL_CHANNELS),
                dtype=self.dtype,
                device=self.device,
            )
            self._runs = {1: _RecordedSteps(self, 1)}

    def __call__(
        self,
        frame1: Tensor,  # [B, 3, H, W] RGB, uint8 or floating 0 ... 1, display-referred
        frame2: Tensor,  # [B, 3, H, W]
        updates: int | None = None,
        initial_flow: Tensor | None = None,  # [B, 2, h, w], any resolution, in pixels of its own grid
    ) -> Tensor:  # [B, 2, H, W] float32, (u, v) in pixels
        """Estimate the flow as the model's own call does. The result is new memory; frames may have any layout."""
        return self._estimate_flows(frame1, frame2, updates, (initial_flow,))[0]

    def flow_with_mixture(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # [B, 2, H, W], [B, 4, H, W], float32
        """Return the flow with its mixture, as :meth:`SEARAFT.flow_with_mixture`; RAFT has none."""
        (both,) = self._estimate_flows(frame1, frame2, updates, (initial_flow,), with_mixture=True)
        return both[:, :2], both[:, 2:]

    def bidirectional(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None = None,
        initial_flow: Tensor | None = None,
        initial_backward: Tensor | None = None,
        backward_updates: int | None = None,
    ) -> tuple[Tensor, Tensor]:  # [B, 2, H, W] float32 twice
        """Return the forward and the backward flow as the model's method does.

        ``backward_updates`` is the number of updates of the backward flow, by default that of the forward flow. The
        first call prepares, and takes the memory of another pair.
        """
        starts = initial_flow, initial_backward
        forward, backward = self._estimate_flows(frame1, frame2, updates, starts, backward_updates=backward_updates)
        return forward, backward

    def bidirectional_with_mixture(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None = None,
        initial_flow: Tensor | None = None,
        initial_backward: Tensor | None = None,
        backward_updates: int | None = None,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return :meth:`bidirectional`, each flow with its mixture as in :meth:`flow_with_mixture`."""
        starts = initial_flow, initial_backward
        forward, backward = self._estimate_flows(
            frame1, frame2, updates, starts, backward_updates=backward_updates, with_mixture=True
        )
        return (forward[:, :2], forward[:, 2:]), (backward[:, :2], backward[:, 2:])

    def _check_and_resolve_update_range(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, allow_zero_updates: bool
    ) -> tuple[int, int]:
        """Return the lowest and the highest number of updates; InputError names the argument that does not fit."""
        shape = framing.check_frames_and_get_size(frame1, frame2)
        _check.require(
            shape == (self.batch, *self.size), "frame1", f"the prepared size {[self.batch, 3, *self.size]}", frame1
        )
        _check.require(frame1.device == self.device, "frame1", f"device {self.device}", frame1)
        number = self.model.config.updates if updates is None else updates
        _check.check_number(number, "updates", integer=True, low=0 if allow_zero_updates else 1)
        return int(number), int(self.model.get_max_updates(updates))

    def _estimate_flows(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None,
        initial_flows: Sequence[Tensor | None],
        *,
        backward_updates: int | None = None,
        with_mixture: bool = False,
    ) -> list[Tensor]:  # [B, 2, H, W]; with mixture [B, 6, H, W]
        """Return the forward flow, and with two ``initial_flows`` the backward flow."""
        config, count = self.model.config, len(initial_flows)
        allow_zero_updates = config.has_learned_start or (count == 1 and initial_flows[0] is not None)
        number, max_updates = self._check_and_resolve_update_range(frame1, frame2, updates, allow_zero_updates)
        if with_mixture:
            _check.require(config.has_mixture, "flow_with_mixture", "SEA-RAFT, which has a mixture", self.model)
        with self._lock, _disable_autograd_and_autocast(self.device), self._in_order(self._iterate_tensors):
            named = zip(("initial_flow", "initial_backward"), initial_flows, strict=False)
            flows = [
                framing.check_and_resample_flow_to_cells_if_any(flow, frame1, self.padding, name)
                for name, flow in named
            ]
            starts = [None if flow is None else self._grid + flow for flow in flows]
            if self.batch == 0:
                shape = (0, 2 + 4 * with_mixture, *self.size)
                return [torch.empty(shape, device=self.device, dtype=torch.float32) for _ in initial_flows]
            if number == 0 and starts[0] is not None and not config.has_learned_start:
                return [_upsample_flow_bilinearly(starts[0] - self._grid, self.padding, corners_aligned=False)]
            if count not in self._runs:
                self._runs[count] = _RecordedSteps(self, count)
                self._in_order.clear_recorded_streams()  # it knows another set of tensors
            run = self._runs[count]
            first, second = (f.float() if f.dtype == torch.float64 else f for f in (frame1, frame2))
            self._passes.rescale_and_pack_frames_into_2x2_cells(first, second, self._frame, self._cells)
            run.encode()
            for coords, start in zip(run.coords, starts, strict=True):
                if start is not None:
                    coords.copy_(start)
            results = []
            ranges = [(number, max_updates), (number, max_updates)]
            if backward_updates is not None:
                ranges[1] = backward_updates, backward_updates
            for step, pair, coords, (min_updates, max_updates) in zip(
                run.steps, run.pairs, run.coords, ranges[:count], strict=True
            ):
                for _ in range(min_updates - (max_updates > min_updates)):
                    step()
                if max_updates > min_updates:
                    self._update_until_converged(step, pair, coords, max_updates - min_updates + 1)
                results.append(self._upsample_flow(pair, coords, with_mixture=with_mixture))
            return results

    def _update_until_converged(self, step: Callable[[], None], pair: Any, coords: Tensor, max_updates: int) -> None:
        """Update up to ``max_updates`` times while a pair's flow moves; a pair that has converged keeps its state."""
        moving: Tensor | None = None
        for left in range(max_updates - 1, -1, -1):
            flow, state = coords.clone(), pair.state.clone() if self.batch > 1 else pair.state
            step()
            if moving is not None and self.batch > 1:
                coords.copy_(torch.where(moving[:, None, None, None], coords, flow))
                pair.state.copy_(torch.where(moving[:, None, None, None], pair.state, state))
            if left == 0:
                return
            moving = framing.mark_unconverged_pairs(flow, coords)
            if not moving.any():
                return

    @property
    def backend(self) -> str | None:
        """Backend of the correlation lookup; None before the first pair if nothing is recorded."""
        backends = (pair.lookup.backend for run in self._runs.values() for pair in run.pairs)
        return next(backends, None)

    def _upsample_flow(self, pair: Any, coords: Tensor, *, with_mixture: bool = False) -> Tensor:
        mask = self._network.mask
        flow = coords - self._grid + (pair.nan_guard + compute_nan_guard(pair.state))
        if mask is None:
            return _upsample_flow_bilinearly(flow, self.padding, corners_aligned=True)
        if with_mixture:  # divided by what the up-sampling multiplies by
            flow = torch.cat((flow, self._network.flow_head.predict_mixture(pair.state) / framing.STRIDE), 1)
        channels, rows, columns = flow.shape[1:]
        hidden = mask.compute_hidden(pair.state)
        out = torch.empty((self.batch, channels, *self.size), device=self.device, dtype=torch.float32)
        strip_rows = max(1, (_CPU_STRIP if self.device.type == "cpu" else _STRIP) // columns)
        for item in range(self.batch):
            for first in range(0, rows, strip_rows):
                weights = mask.project_hidden(hidden[item, first : first + strip_rows])
                self._passes.write_convex_upsampled_strip(
                    flow[item : item + 1],
                    weights.permute(2, 0, 1)[None],
                    framing.STRIDE,
                    out[item : item + 1],
                    first_row=first,
                    origin=(self.padding.top, self.padding.left),
                    gain=framing.STRIDE,
                )
        return out

    def _iterate_tensors(self) -> Iterator[Tensor]:
        coords = (one for run in self._runs.values() for one in run.coords)
        yield from (self._grid, self._cells, *coords, *self._parameters)


class _RecordedSteps:
    """Steps of a pair in one direction or both, recorded as CUDA graphs if the owner's passes are kernels."""

    def __init__(self, owner: PreparedFlow, direction_count: int) -> None:
        self._network, self._cells, self._grid = owner._network, owner._cells, owner._grid
        self.coords = [owner._grid.clone() for _ in range(direction_count)]
        self.pairs: list[Any] = []
        self.encode: Callable[[], None] = self._encode_pair
        self.steps: list[Callable[[], None]] = [
            partial(self._update_direction, direction) for direction in range(direction_count)
        ]
        if owner._fused:
            functions = self._encode_pair, *self.steps
            (self.encode, *self.steps), owner._pool = _warm_up_and_record_cuda_graphs(
                owner.device, functions, partial(self._run_steps_to_warm_up, owner._upsample_flow), owner._pool
            )

    def _encode_pair(self) -> None:
        self.pairs = []
        features = self._network.encode_features(self._cells) if len(self.coords) > 1 else None
        self.pairs = [
            self._network.encode_pair_and_init_coords(self._cells, coords, self._grid, direction, features)
            for direction, coords in enumerate(self.coords)
        ]

    def _update_direction(self, direction: int) -> None:
        self._network.update_pair_and_coords_(self.pairs[direction], self.coords[direction])

    def _run_steps_to_warm_up(self, upsample: Callable[[Any, Tensor], Tensor]) -> None:
        self._encode_pair()
        for step in self.steps:
            step()
        upsample(self.pairs[0], self.coords[0])
        self.pairs = []


def _warm_up_and_record_cuda_graphs(
    device: torch.device, functions: Sequence[Callable[[], None]], warm_up: Callable[[], None], memory_pool: Any = None
) -> tuple[list[Callable[[], None]], Any]:
    """Record ``functions`` as CUDA graphs in one memory pool after ``warm_up``, which compiles what they need."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            warm_up()
        stream.synchronize()
        torch.cuda.empty_cache()
        graphs = [torch.cuda.CUDAGraph() for _ in functions]
        for graph, function in zip(graphs, functions, strict=True):
            # Relaxed, because other threads may allocate meanwhile.
            with torch.cuda.graph(graph, pool=memory_pool, stream=stream, capture_error_mode="relaxed"):
                function()
            memory_pool = graphs[0].pool() if memory_pool is None else memory_pool
        torch.cuda.current_stream().wait_stream(stream)
    return [graph.replay for graph in graphs], memory_pool


class PreparedFlowCache:
    """Network in its fast form for frames of any size, with a :class:`PreparedFlow` per size, created on first use.

    ::

        fast = PreparedFlowCache(model)
        flow = Cascade(fast)(frame1, frame2)       # every level's size is prepared once

    Args:
        model: as for :class:`PreparedFlow`. The weights are copied once, here.
        precision: as for :class:`PreparedFlow`.
        sizes: number of sizes to keep; the least recently used one is dropped.
    """

    def __init__(self, model: FlowNetwork, precision: str = "fast", sizes: int = 4) -> None:
        _check.check_number(sizes, "sizes", integer=True, low=1)
        self._kit = _build_shared_components(model, precision)
        self.model = model
        self.sizes = int(sizes)
        self._by_size: OrderedDict[tuple[int, int, int], PreparedFlow] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def dtype(self) -> torch.dtype:
        """Type of the activations."""
        return self._kit.converter.dtype

    def get_or_prepare_size(self, height: int, width: int, batch: int = 1) -> PreparedFlow:
        """Return the network for one size."""
        key = (batch, height, width)
        with self._lock:
            prepared = self._by_size.pop(key, None)
            if prepared is None:
                while len(self._by_size) >= self.sizes:
                    self._by_size.popitem(last=False)
                prepared = PreparedFlow.__new__(PreparedFlow)
                prepared._allocate_buffers_and_record_graphs(self._kit, height, width, batch)
            self._by_size[key] = prepared
            return prepared

    def __call__(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> Tensor:
        """Estimate the flow as :meth:`PreparedFlow.__call__` does."""
        batch, height, width = framing.check_frames_and_get_size(frame1, frame2)
        _check.require(
            frame1.device == self._kit.converter.device, "frame1", f"device {self._kit.converter.device}", frame1
        )
        return self.get_or_prepare_size(height, width, batch)(frame1, frame2, updates, initial_flow)


class _SharedComponents(NamedTuple):
    """Parts that all sizes share."""

    model: FlowNetwork
    converter: WeightConverter
    network: PreparedNetwork


def _build_shared_components(model: FlowNetwork, precision: str) -> _SharedComponents:
    _check.require(isinstance(model, FlowNetwork), "model", "a RAFT or SEARAFT", _check.describe_value(model))
    _check.check_choice(precision, "precision", PRECISIONS)
    device = next(model.parameters()).device
    dtype = choose_cpu_dtype() if precision == "fast" and device.type == "cpu" else _DTYPES[precision]
    converter = WeightConverter(device, dtype, _choose_kernel_module(device, dtype, precision))
    with _disable_autograd_and_autocast(device):
        network: PreparedNetwork = model.config.import_class("prepared")(model, converter)
    odd = [count for count in network.channels if count % LANE]
    if odd:
        raise InputError(f"model: expected channels in multiples of {LANE}, got {odd[0]} in {model.config.name}")
    state = network.state_channels
    if converter.passes is not reference and state is not None and state % 64:
        raise InputError(f"model: expected a multiple of 64 channels, got {state}")
    return _SharedComponents(model, converter, network)


def _choose_kernel_module(device: torch.device, dtype: torch.dtype, precision: str) -> Any:
    if dtype == torch.float32 or device.type == "cpu":
        return reference
    from fullfield.ops import _launching

    reason = explain_no_half_precision(device)
    if reason is None and dtype == torch.bfloat16:
        reason = _launching.explain_missing_bfloat16(device)
    if reason is not None:
        raise InputError(f"precision: {precision!r} has no fast form here ({reason}); expected exact")
    from fullfield.ops._fused import cuda

    return cuda


@functools.cache
def choose_cpu_dtype() -> torch.dtype:
    """Return the fast form's dtype on this CPU: bfloat16 if it has instructions for it, else float32."""
    from fullfield._kernels.numba_cache import cpu_has_feature

    return torch.bfloat16 if cpu_has_feature("avx512bf16") else torch.float32


def explain_no_half_precision(device: torch.device) -> str | None:
    """Return why the fast form cannot run in half precision on ``device``; None if it can."""
    from fullfield.ops import _launching

    reason = _launching.explain_unsupported_device(device)
    has_cudnn: bool = torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call, unused-ignore]
    return "cuDNN is missing" if reason is None and not has_cudnn else reason


@contextmanager
def _disable_autograd_and_autocast(device: torch.device) -> Iterator[None]:
    """Disable autograd, inference mode (its tensors could not be written later) and autocast of the caller."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _upsample_flow_bilinearly(flow: Tensor, padding: framing.Padding, *, corners_aligned: bool) -> Tensor:
    """Enlarge a flow in cells bilinearly to the frames' size; ``corners_aligned`` is PyTorch's ``align_corners``."""
    size = (framing.STRIDE * flow.shape[-2], framing.STRIDE * flow.shape[-1])
    fine = functional.interpolate(framing.STRIDE * flow, size, mode="bilinear", align_corners=corners_aligned)
    return padding.crop(fine).contiguous()
