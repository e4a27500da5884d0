"""Registered operators for traced code: torch.compile, torch.export, dispatch modes, opcheck.

``fullfield::correlation_prepare`` brings a pair into its backend's layout, ``fullfield::correlation_lookup`` reads
from it. Eager code goes through ``prepared``, with the same backends behind it. In traced code every lookup returns its
own gradient of the features and the graph sums them: in float32, for 16-bit features too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield.ops.correlation.prepared import NAME, feature_gradients, prepare
from fullfield.ops.correlation.protocol import LOOKUPS, Gradients, Prepared, Request, request_of, shape_of
from fullfield.ops.operators import once_only, register


def _prepare_request(
    fmap1: Tensor, maps: list[Tensor], levels: int, radius: int, backend: str | None, precision: str, grad: bool
) -> tuple[Request, str]:
    """Return the request and the backend's name."""
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


def _lookup(_fmap1: Tensor, _maps: list[Tensor], _link: Tensor, coords: Tensor, *options: Any) -> Tensor:
    *pair, out_dtype, channels_last = options
    return _restored(coords, *pair).lookup(coords, out_dtype, channels_last)


def _lookup_fake(_fmap1: Tensor, _maps: list[Tensor], _link: Tensor, coords: Tensor, *options: Any) -> Tensor:
    _, shape, _, radius, *_, out_dtype, channels_last = options
    channels = (len(shape) - 4) // 2 * (2 * radius + 1) ** 2
    layout = torch.channels_last if channels_last else torch.contiguous_format
    size = (shape[0], channels, shape[2], shape[3])
    return torch.empty(size, dtype=out_dtype, device=coords.device, memory_format=layout)


def _backward(grad_out: Tensor, coords: Tensor, state: list[Tensor], *options: Any) -> list[Tensor]:
    """Return the gradients of fmap1, the maps and coords; empty where not requested."""
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
    fmap1, maps, link, coords, state, shape, pooled, radius, backend, precision, _, dtype, _, _ = inputs
    ctx.save_for_backward(coords, link, *state)
    ctx.options = (shape, pooled, radius, backend, precision, dtype)
    ctx.carriers = [fmap1.dtype, *(m.dtype for m in maps)]


def _autograd(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    coords, link, *state = ctx.saved_tensors
    first, second, _, third = ctx.needs_input_grad[:4]
    wanted = [bool(first), any(second), bool(third)]
    backward = torch.ops.fullfield.correlation_lookup_backward
    with torch.no_grad():
        *grads, grad_coords = backward(grad_out, coords, state, *ctx.options, wanted)
        each = zip(grads, ctx.carriers, (first, *second), strict=True)
        found = [grad.to(dtype) if want else None for grad, dtype, want in each]
        found.append(grad_coords if third else None)
    one, *of_maps, grad_coords = once_only(NAME, found, (grad_out, coords, link))
    return one, of_maps, None, grad_coords, [None] * len(state), *(None,) * 9


register(
    "correlation_prepare(Tensor fmap1, Tensor[] maps, int levels, int radius, str? backend, str precision, bool grad) "
    "-> Tensor[]",
    _prepare, _prepare_fake,
)  # fmt: skip
# fmap1 and maps only carry the gradient: without one they are empty. link is empty and computed from them. It is saved
# in their place and leads from a gradient to them, so that a second derivative is refused. shape: B, C, H1, W1, then
# H2, W2 of each level.
register(
    "correlation_lookup(Tensor fmap1, Tensor[] maps, Tensor link, Tensor coords, Tensor[] state, SymInt[] shape, "
    "bool pooled, int radius, str? backend, str precision, bool grad, ScalarType dtype, ScalarType out_dtype, "
    "bool channels_last) -> Tensor",
    _lookup, _lookup_fake, _setup, _autograd,
)  # fmt: skip
register(
    "correlation_lookup_backward(Tensor grad_out, Tensor coords, Tensor[] state, SymInt[] shape, bool pooled, "
    "int radius, str? backend, str precision, ScalarType dtype, bool[] wanted) -> Tensor[]",
    _backward, _backward_fake,
)  # fmt: skip
