"""A prepared pair and how its lookups take part in autograd.

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

from fullfield.ops.correlation.dispatch import LOOKUPS
from fullfield.ops.correlation.protocol import Gradients, Prepared, Request
from fullfield.ops.correlation.pyramid import fold, pool
from fullfield.ops.launching import raw_stream
from fullfield.ops.operators import once_only

NAME = "correlation_lookup"


def prepare(request: Request, name: str, fmap1: Tensor, maps: Sequence[Tensor]) -> Prepared:
    """``fmap1`` and the levels (or the finest alone, if ``request.pooled``) in the layout of backend ``name``."""
    module = LOOKUPS.load(name)
    with torch.no_grad():
        if request.pooled and not getattr(module, "POOLS", False):
            maps = pool(maps[0].detach(), request.levels)
        prepared: Prepared = module.prepare(request, fmap1, maps)
    return prepared


def feature_gradients(prepared: Prepared, grads: Gradients) -> tuple[Tensor | None, list[Tensor | None]]:
    """Gradients of fmap1 and of the maps that were given, from finished accumulators."""
    request = prepared.request
    done = prepared.gradients(grads)
    if done.levels is None:
        return done.fmap1, [None] * (1 if request.pooled else request.levels)
    return done.fmap1, [fold(done.levels)] if request.pooled else list(done.levels)


class Pair:
    """A pair's features and the accumulators of the backward passes that are under way.

    Its autograd nodes hold it, so it must not hold any of them: a ring through a graph is never freed. ``wanted`` says
    whether fmap1's and fmap2's gradients are.
    """

    def __init__(self, prepared: Prepared, wanted: tuple[bool, bool]) -> None:
        self.prepared = prepared
        self._wanted = wanted
        device = prepared.request.device
        self._device = device if device.type == "cuda" else None
        self._index = device.index
        # By the engine's number of the pass: the sums, and the stream that last added to them.
        self._open: dict[int, tuple[Gradients, int]] = {}

    def accumulators(self) -> Gradients:
        """Those of the present backward pass."""
        task = torch._C._current_graph_task_id()
        stream = self._stream()
        found = self._open.get(task)
        if found is None:
            grads = self.prepared.accumulators(*self._wanted)
            if task >= 0:  # if this pass stops before the features, nobody else takes them
                torch.autograd.Variable._execution_engine.queue_callback(partial(self._forget, task))
        else:
            grads, last = found
            if last == stream:
                return grads
            self._wait(last)  # lookups of one pair on several streams add to the same memory
        self._open[task] = (grads, stream)
        return grads

    def _forget(self, task: int) -> None:
        self._open.pop(task, None)

    def finish(self) -> Gradients | None:
        """Take what the present pass accumulated, if anything."""
        grads, last = self._open.pop(torch._C._current_graph_task_id(), (None, 0))
        if grads is not None and last != self._stream():
            self._wait(last)
        return grads

    def _stream(self) -> int:
        """The current stream's handle; one number on devices other than CUDA."""
        return 0 if self._device is None else raw_stream(self._index)

    def _wait(self, stream: int) -> None:
        """Let the current stream wait for what ``stream`` has been given so far."""
        # The default stream's handle is 0, of which ExternalStream makes a new stream.
        other = (
            torch.cuda.ExternalStream(stream, self._device)  # type: ignore[no-untyped-call]
            if stream
            else torch.cuda.default_stream(self._device)
        )
        torch.cuda.current_stream(self._device).wait_stream(other)


class PrepareNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Pair, fmap1: Tensor, *maps: Tensor) -> Tensor:
        ctx.pair = pair
        ctx.set_materialize_grads(False)
        ctx.dtypes = [fmap1.dtype, *(m.dtype for m in maps)]
        return fmap1.new_empty(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = ctx.pair.finish()
        if grads is None:
            return (None,) * (1 + len(ctx.dtypes))
        with torch.no_grad():
            first, rest = feature_gradients(ctx.pair.prepared, grads)
            both = zip((first, *rest), ctx.dtypes, strict=True)
            found = [None if grad is None else grad.to(dtype) for grad, dtype in both]
        return None, *once_only(NAME, found, (inputs,))


class LookupNode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pair: Pair,
        preparation: Tensor | None,
        coords: Tensor,
        out_dtype: torch.dtype,
        channels_last: bool,
    ) -> Tensor:
        ctx.pair = pair
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(coords, preparation)
        return pair.prepared.lookup(coords, out_dtype, channels_last)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None
        coords, preparation = ctx.saved_tensors
        grads = ctx.pair.accumulators() if ctx.needs_input_grad[1] else Gradients(None, None, (False, False))
        with torch.no_grad():
            grad_coords = ctx.pair.prepared.backward(grad, coords, grads, ctx.needs_input_grad[2])
        # The preparation's own gradient is empty: it leads from the features' gradients to this lookup's inputs.
        to_features = preparation.detach() if torch.is_grad_enabled() and ctx.needs_input_grad[1] else None
        return None, *once_only(NAME, (to_features, grad_coords), (grad, coords, preparation)), None, None


# ``LookupNode.apply`` without what it does for functorch's transforms and for ``setup_context``: 3 µs a lookup less.
add_lookup = super(torch.autograd.Function, LookupNode).apply
