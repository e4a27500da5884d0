"""The registered operators, for traced code: torch.compile, torch.export, dispatch modes, opcheck.

``fullfield::correlation_prepare`` brings a pair into its backend's layout, ``fullfield::correlation_lookup`` reads
from it. Eager code takes the shorter way through ``prepared``, with the same backends behind it. In traced code every
lookup returns its own gradient of the features and the graph sums them: in float32, for 16-bit features too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.correlation.arguments import request_of, shape_of
from fullfield.ops.correlation.dispatch import LOOKUPS
from fullfield.ops.correlation.prepared import LookupNode, Pair, PrepareNode, add_lookup, feature_gradients, prepare
from fullfield.ops.correlation.protocol import Gradients, Prepared, Request
from fullfield.ops.launching import is_traced
from fullfield.ops.operators import register


def _precision() -> str:
    return torch.get_float32_matmul_precision()


# As torch.compiler.assume_constant_result has it, which would import the compiler: traced code asks while it is traced.
_precision.__dict__["_dynamo_marked_constant"] = True


def _prepare_request(
    fmap1: Tensor, maps: list[Tensor], levels: int, radius: int, backend: str | None, precision: str, grad: bool
) -> tuple[Request, str]:
    """And the backend's name."""
    shape = shape_of(fmap1, maps, levels)
    request = request_of(shape, len(maps) == 1, radius, precision, grad, fmap1.dtype, fmap1.device)
    return request, LOOKUPS.choose(backend, request)


def _prepare(fmap1: Tensor, maps: list[Tensor], *options: Any) -> list[Tensor]:
    return list(prepare(*_prepare_request(fmap1, maps, *options), fmap1, maps).state)


def _prepare_fake(fmap1: Tensor, maps: list[Tensor], *options: Any) -> list[Tensor]:
    request, name = _prepare_request(fmap1, maps, *options)
    return list(LOOKUPS.load(name).empty_state(request, fmap1))


def _restored(
    coords: Tensor, state: list[Tensor], shape: list[int], pooled: bool, radius: int, backend: str | None,
    precision: str, grad: bool, dtype: torch.dtype,
) -> Prepared:  # fmt: skip
    request = request_of(shape, pooled, radius, precision, grad, dtype, coords.device)
    restored: Prepared = LOOKUPS.load(LOOKUPS.choose(backend, request)).restore(request, tuple(state))
    return restored


def _lookup(_fmap1: Tensor, _maps: list[Tensor], coords: Tensor, *options: Any) -> Tensor:
    *pair, out_dtype, channels_last = options
    return _restored(coords, *pair).lookup(coords, out_dtype, channels_last)


def _lookup_fake(_fmap1: Tensor, _maps: list[Tensor], coords: Tensor, *options: Any) -> Tensor:
    _, shape, _, radius, *_, out_dtype, channels_last = options
    channels = (len(shape) - 4) // 2 * (2 * radius + 1) ** 2
    layout = torch.channels_last if channels_last else torch.contiguous_format
    size = (shape[0], channels, shape[2], shape[3])
    return torch.empty(size, dtype=out_dtype, device=coords.device, memory_format=layout)


def _backward(grad_out: Tensor, coords: Tensor, state: list[Tensor], *options: Any) -> list[Tensor]:
    """Gradients of fmap1, the maps and coords; empty where not wanted."""
    shape, pooled, radius, backend, precision, dtype, (first, second, third) = options
    restored = _restored(coords, state, shape, pooled, radius, backend, precision, True, dtype)
    grads = restored.accumulators(first, second) if first or second else Gradients(None, None, (False, False))
    grad_coords = restored.backward(grad_out, coords, grads, third)
    one, rest = feature_gradients(restored, grads) if first or second else (None, [None] * _maps(shape, pooled))
    empty = coords.new_empty
    return [empty(0) if g is None else g.contiguous() for g in (one, *rest, grad_coords)]


def _backward_fake(_grad_out: Tensor, coords: Tensor, _state: list[Tensor], *options: Any) -> list[Tensor]:
    shape, pooled, *_, dtype, wanted = options
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    sizes = [(shape[4 + 2 * i], shape[5 + 2 * i]) for i in range(_maps(shape, pooled))]

    def like(want: bool, size: tuple[int, int], kind: torch.dtype = exact) -> Tensor:
        return coords.new_empty((shape[0], shape[1], *size) if want else (0,), dtype=kind if want else coords.dtype)

    grad_coords = torch.empty_like(coords, memory_format=torch.contiguous_format) if wanted[2] else coords.new_empty(0)
    return [like(wanted[0], (shape[2], shape[3])), *(like(wanted[1], size) for size in sizes), grad_coords]


def _maps(shape: Sequence[int], pooled: bool) -> int:
    return 1 if pooled else (len(shape) - 4) // 2


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    fmap1, maps, coords, state, shape, pooled, radius, backend, precision, _, dtype, _, _ = inputs
    ctx.save_for_backward(coords, *state)
    ctx.options = (shape, pooled, radius, backend, precision, dtype)
    ctx.carriers = [fmap1.dtype, *(m.dtype for m in maps)]


def _autograd(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    coords, *state = ctx.saved_tensors
    first, second, third = ctx.needs_input_grad[:3]
    wanted = [bool(first), any(second), bool(third)]
    backward = torch.ops.fullfield.correlation_lookup_backward
    one, *rest, grad_coords = backward(grad_out, coords, state, *ctx.options, wanted)
    carried = ctx.carriers
    return (
        one.to(carried[0]) if wanted[0] else None,
        [g.to(dtype) if want else None for g, dtype, want in zip(rest, carried[1:], second, strict=True)],
        grad_coords if wanted[2] else None,
        [None] * len(state),
        *(None,) * 9,
    )


register(
    "correlation_prepare(Tensor fmap1, Tensor[] maps, int levels, int radius, str? backend, str precision, bool grad) "
    "-> Tensor[]",
    _prepare, _prepare_fake,
)  # fmt: skip
# fmap1 and maps only carry the gradient: without one they are empty. shape: B, C, H1, W1, then H2, W2 per level.
register(
    "correlation_lookup(Tensor fmap1, Tensor[] maps, Tensor coords, Tensor[] state, SymInt[] shape, bool pooled, "
    "int radius, str? backend, str precision, bool grad, ScalarType dtype, ScalarType out_dtype, bool channels_last) "
    "-> Tensor",
    _lookup, _lookup_fake, _setup, _autograd,
)  # fmt: skip
register(
    "correlation_lookup_backward(Tensor grad_out, Tensor coords, Tensor[] state, SymInt[] shape, bool pooled, "
    "int radius, str? backend, str precision, ScalarType dtype, bool[] wanted) -> Tensor[]",
    _backward, _backward_fake,
)  # fmt: skip


class Lookups:
    """A prepared pair for eager and traced code alike. Arguments are checked by the caller.

    ``maps`` are all levels, or the finest alone, which is then pooled. ``backend`` is the backend's name; in traced
    code None where it was left open. ``reuse`` as for :class:`fullfield.nn.CorrelationPyramid`.
    """

    def __init__(
        self,
        fmap1: Tensor,
        maps: Sequence[Tensor],
        levels: int,
        radius: int,
        backend: str | None,
        reuse: bool | None = False,
    ) -> None:
        wanted = (fmap1.requires_grad, any(m.requires_grad for m in maps))
        grad = torch.is_grad_enabled() and any(wanted)
        self._shape = shape_of(fmap1, maps, levels)
        # A state made at one precision is not to be read at another.
        precision = _precision()
        self._pair: Pair | None = None
        self._preparation: Tensor | None = None
        if is_traced(fmap1, *maps):
            _check.require(not reuse, "reuse", "None or False in traced code, whose lookups share no memory", "True")
            detached = [m.detach() for m in maps]
            self._state = torch.ops.fullfield.correlation_prepare(
                fmap1.detach(), detached, levels, radius, backend, precision, grad
            )
        else:
            pooled = len(maps) == 1
            request = request_of(self._shape, pooled, radius, precision, grad, fmap1.dtype, fmap1.device)
            request = replace(request, reuse=reuse)
            backend = LOOKUPS.choose(backend, request)
            self._pair = Pair(prepare(request, backend, fmap1, maps), wanted)
            self._state = list(self._pair.prepared.state)
            if grad:
                self._preparation = PrepareNode.apply(self._pair, fmap1, *maps)  # type: ignore[no-untyped-call]
        self.backend = backend
        self._options = (len(maps) == 1, radius, backend, precision, grad, fmap1.dtype)
        # What a traced lookup differentiates through; eager lookups do not need it.
        self._carriers = (fmap1, list(maps)) if grad else None

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """A lookup at checked coords; part of the graph where gradients are enabled and wanted."""
        pair = self._pair
        if pair is None or is_traced(coords):
            return self._traced(coords, out_dtype, channels_last)
        if torch.is_grad_enabled() and (self._preparation is not None or coords.requires_grad):
            apply = LookupNode.apply if torch._C._are_functorch_transforms_active() else add_lookup
            return apply(pair, self._preparation, coords, out_dtype, channels_last)  # type: ignore[no-untyped-call,no-any-return]
        return pair.prepared.lookup(coords, out_dtype, channels_last)

    def _traced(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        if self._carriers is None:
            carriers = (coords.new_empty(0), [coords.new_empty(0)])
        elif self._options[5] in (torch.float16, torch.bfloat16):
            carriers = (self._carriers[0].float(), [m.float() for m in self._carriers[1]])
        else:
            carriers = self._carriers
        lookup = torch.ops.fullfield.correlation_lookup
        result: Tensor = lookup(*carriers, coords, self._state, self._shape, *self._options, out_dtype, channels_last)
        return result
