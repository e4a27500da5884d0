"""Prepared pairs: their lookups, eager or traced, and their part in autograd.

Preparing is one autograd node, each lookup another that depends on it through an empty tensor. In a backward pass
the lookups add to accumulators that belong to that pass, in place and in float32; the node of the preparation, which
the engine runs after all of them, hands the sums to the feature maps. Passes are told apart by the engine's number,
so that a retained graph, several losses, or a pass that never reaches the features leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops._launching import is_traced, raw_stream
from fullfield.ops._operators import get_apply_without_functorch, wrap_to_forbid_second_derivative
from fullfield.ops.correlation.protocol import (
    LOOKUPS,
    GradientAccumulators,
    LookupRequest,
    PreparedPair,
    build_lookup_request,
    list_batch_channels_and_map_sizes,
)


def pool_pyramid_levels(fmap2: Tensor, levels: int) -> tuple[Tensor, ...]:
    """Return the levels as :func:`fullfield.ops.correlation.correlation_pyramid` does, without its checks."""
    pyramid = [fmap2]
    for _ in range(levels - 1):
        last = pyramid[-1]
        height, width = last.shape[-2] // 2, last.shape[-1] // 2
        if height == 0 or width == 0 or last.numel() == 0:
            pyramid.append(last.new_zeros((*last.shape[:2], height, width)))
        else:
            pyramid.append(functional.avg_pool2d(last, 2))
    return tuple(pyramid)


def add_level_gradients_to_finest_(grads: Sequence[Tensor]) -> Tensor:
    """Return the finest map's gradient, the adjoint of :func:`pool_pyramid_levels`; changes ``grads``."""
    for finer, coarser in zip(reversed(grads[:-1]), reversed(grads[1:]), strict=True):
        height, width = coarser.shape[-2:]
        if height and width:
            cut = finer[..., : 2 * height, : 2 * width]
            inner = torch.unflatten(torch.unflatten(cut, -1, (width, 2)), -3, (height, 2))
            inner.add_(coarser[..., :, None, :, None], alpha=0.25)
    return grads[0]


NAME = "correlation_lookup"
_HALVES = (torch.float16, torch.bfloat16)


def prepare_pair(request: LookupRequest, backend: str, fmap1: Tensor, fmap2_levels: Sequence[Tensor]) -> PreparedPair:
    """Bring ``fmap1`` and the levels (``request.pooled``: the finest alone) into the layout of backend ``backend``."""
    module = LOOKUPS.load(backend)
    with torch.no_grad():
        if request.pooled and not getattr(module, "POOLS", False):
            fmap2_levels = pool_pyramid_levels(fmap2_levels[0].detach(), request.levels)
        prepared: PreparedPair = module.prepare_pair(request, fmap1, fmap2_levels)
    return prepared


def finish_feature_gradients(
    prepared: PreparedPair, grads: GradientAccumulators
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradients of fmap1 and of the given maps from finished accumulators."""
    request = prepared.request
    sums = prepared.finish_gradients(grads)
    if sums.levels is None:
        return sums.fmap1, [None] * (1 if request.pooled else request.levels)
    return sums.fmap1, [add_level_gradients_to_finest_(sums.levels)] if request.pooled else list(sums.levels)


class PairWithAccumulators:
    """Features of a pair and the accumulators of the running backward passes.

    Its autograd nodes hold it, so it must not hold any of them: a cycle through a graph is never freed. ``requested``
    tells whether fmap1's and fmap2's gradients are requested.
    """

    def __init__(self, prepared: PreparedPair, requested: tuple[bool, bool]) -> None:
        self.prepared = prepared
        self._requested = requested
        device = prepared.request.device
        self._device = device if device.type == "cuda" else None
        self._index = device.index
        # By the engine's number of the pass: the sums, and the stream that last added to them.
        self._open: dict[int, tuple[GradientAccumulators, int]] = {}

    def get_or_allocate_accumulators(self) -> GradientAccumulators:
        """Return the accumulators of the present backward pass."""
        task = torch._C._current_graph_task_id()
        stream = self._get_current_stream_handle()
        entry = self._open.get(task)
        if entry is None:
            grads = self.prepared.allocate_accumulators(*self._requested)
            if task >= 0:  # if this pass stops before the features, nobody else takes them
                torch.autograd.Variable._execution_engine.queue_callback(partial(self._discard_accumulators, task))
        else:
            grads, last = entry
            if last == stream:
                return grads
            self._make_current_stream_wait_for(last)  # lookups of one pair on several streams add to the same memory
        self._open[task] = (grads, stream)
        return grads

    def _discard_accumulators(self, task_id: int) -> None:
        self._open.pop(task_id, None)

    def pop_accumulators_or_none(self) -> GradientAccumulators | None:
        """Take what the present pass accumulated, if anything."""
        grads, last = self._open.pop(torch._C._current_graph_task_id(), (None, 0))
        if grads is not None and last != self._get_current_stream_handle():
            self._make_current_stream_wait_for(last)
        return grads

    def _get_current_stream_handle(self) -> int:
        """Return the current stream's handle, 0 on devices other than CUDA."""
        return 0 if self._device is None else raw_stream(self._index)

    def _make_current_stream_wait_for(self, stream: int) -> None:
        """Make the current stream wait for the work that ``stream`` has received so far."""
        # The default stream's handle is 0, of which ExternalStream makes a new stream.
        other = (
            torch.cuda.ExternalStream(stream, self._device)  # type: ignore[no-untyped-call]
            if stream
            else torch.cuda.default_stream(self._device)
        )
        torch.cuda.current_stream(self._device).wait_stream(other)


class PrepareNode(torch.autograd.Function):
    """Node of a preparation; its backward returns the sums of all lookups."""

    @staticmethod
    def forward(ctx: Any, pair: PairWithAccumulators, fmap1: Tensor, *maps: Tensor) -> Tensor:
        """Return an empty tensor that lookups depend on."""
        ctx.pair = pair
        ctx.set_materialize_grads(False)
        ctx.dtypes = [fmap1.dtype, *(m.dtype for m in maps)]
        return fmap1.new_empty(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of both maps."""
        grads = ctx.pair.pop_accumulators_or_none()
        if grads is None:
            return (None,) * (1 + len(ctx.dtypes))
        with torch.no_grad():
            first, rest = finish_feature_gradients(ctx.pair.prepared, grads)
            both = zip((first, *rest), ctx.dtypes, strict=True)
            gradients = [None if grad is None else grad.to(dtype) for grad, dtype in both]
        return None, *wrap_to_forbid_second_derivative(NAME, gradients, (inputs,))


class LookupNode(torch.autograd.Function):
    """Node of one lookup; its backward adds to the pair's accumulators."""

    @staticmethod
    def forward(
        ctx: Any,
        pair: PairWithAccumulators,
        preparation: Tensor | None,
        coords: Tensor,
        out_dtype: torch.dtype,
        channels_last: bool,
    ) -> Tensor:
        """Look up."""
        ctx.pair = pair
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(coords, preparation)
        return pair.prepared.lookup(coords, out_dtype, channels_last)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Add to the accumulators; return the gradient of the coordinates."""
        if grad is None:
            return None, None, None, None, None
        coords, preparation = ctx.saved_tensors
        grads = (
            ctx.pair.get_or_allocate_accumulators()
            if ctx.needs_input_grad[1]
            else GradientAccumulators(None, None, (False, False))
        )
        if not torch.is_grad_enabled():
            return None, None, ctx.pair.prepared.backward(grad, coords, grads, ctx.needs_input_grad[2]), None, None
        with torch.no_grad():
            grad_coords = ctx.pair.prepared.backward(grad, coords, grads, ctx.needs_input_grad[2])
        # The preparation's own gradient is empty: it leads from the features' gradients to this lookup's inputs.
        to_features = preparation.detach() if ctx.needs_input_grad[1] else None
        return (
            None,
            *wrap_to_forbid_second_derivative(NAME, (to_features, grad_coords), (grad, coords, preparation)),
            None,
            None,
        )


add_lookup = get_apply_without_functorch(LookupNode)


def _get_matmul_precision() -> str:
    return torch.get_float32_matmul_precision()


# Marked as torch.compiler.assume_constant_result does, which would import the compiler.
_get_matmul_precision.__dict__["_dynamo_marked_constant"] = True


class PreparedLookups:
    """Prepared pair for eager and traced code. The caller checks the arguments.

    ``maps`` are all levels, or the finest alone, which is then pooled. ``backend`` is the backend's name; in traced
    code None where it was left open.
    """

    def __init__(
        self,
        fmap1: Tensor,
        fmap2_levels: Sequence[Tensor],
        levels: int,
        radius: int,
        backend: str | None,
    ) -> None:
        requested = (fmap1.requires_grad, any(m.requires_grad for m in fmap2_levels))
        grad = torch.is_grad_enabled() and any(requested)
        self._shape = list_batch_channels_and_map_sizes(fmap1, fmap2_levels, levels)
        # A state made at one precision is not to be read at another.
        precision = _get_matmul_precision()
        carriers = fmap1, list(fmap2_levels)
        self._pair: PairWithAccumulators | None = None
        self._preparation: Tensor | None = None
        if is_traced(fmap1, *fmap2_levels):
            detached = [m.detach() for m in fmap2_levels]
            self._state = torch.ops.fullfield.correlation_prepare(
                fmap1.detach(), detached, levels, radius, backend, precision, grad
            )
            if fmap1.dtype in _HALVES:  # once for all lookups
                carriers = fmap1.float(), [m.float() for m in fmap2_levels]
        else:
            pooled = len(fmap2_levels) == 1
            request = build_lookup_request(self._shape, pooled, radius, precision, grad, fmap1.dtype, fmap1.device)
            backend = LOOKUPS.choose(backend, request)
            self._pair = PairWithAccumulators(prepare_pair(request, backend, fmap1, fmap2_levels), requested)
            self._state = list(self._pair.prepared.state)
            if grad:
                self._preparation = PrepareNode.apply(self._pair, fmap1, *fmap2_levels)  # type: ignore[no-untyped-call]
        self.backend = backend
        self._options = (len(fmap2_levels) == 1, radius, backend, precision, grad, fmap1.dtype)
        # What a traced lookup differentiates through; eager lookups do not need it.
        self._carriers = carriers if grad else None

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Look up at checked coords, as part of the graph if gradients are enabled and requested."""
        pair = self._pair
        if pair is None or is_traced(coords):
            return self._look_up_in_traced_code(coords, out_dtype, channels_last)
        if torch.is_grad_enabled() and (self._preparation is not None or coords.requires_grad):
            apply = LookupNode.apply if torch._C._are_functorch_transforms_active() else add_lookup
            return apply(pair, self._preparation, coords, out_dtype, channels_last)
        return pair.prepared.lookup(coords, out_dtype, channels_last)

    def _look_up_in_traced_code(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        if self._carriers is None:
            carriers = (coords.new_empty(0), [coords.new_empty(0)])
        elif self._options[5] in _HALVES:
            carriers = (self._carriers[0].float(), [m.float() for m in self._carriers[1]])
        else:
            carriers = self._carriers
        link = torch.cat([carrier.flatten()[:0] for carrier in (carriers[0], *carriers[1])])
        lookup = torch.ops.fullfield.correlation_lookup
        options = (*self._options, out_dtype, channels_last)
        result: Tensor = lookup(*carriers, link, coords, self._state, self._shape, *options)
        return result
