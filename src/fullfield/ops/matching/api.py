"""Public functions of the matching, and its kernels' gradients in eager code."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.ops._backends import Backends
from fullfield.ops._launching import is_eager
from fullfield.ops._operators import compute_gradients_by_recomputation, get_apply_without_functorch, needs_gradient
from fullfield.ops.matching import chunks, cuda, fused
from fullfield.ops.matching.protocol import (
    MatchingRequest,
    flatten_pixels_to_rows,
    get_height_and_width,
    unflatten_rows_to_map,
)
from fullfield.ops.spatial_correlation import spatial_correlation

BACKENDS = ("cuda", "chunks")
"""Backends of :func:`global_matching`, preferred first."""
MATCHERS = Backends("matching", f"{__package__}.", BACKENDS)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class _GlobalMatching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
        matches, query, key, logarithms = _compute_flow_and_saved_tensors(fmap1, fmap2, scale)
        ctx.scale = scale
        ctx.save_for_backward(fmap1, fmap2, query, key, matches, logarithms)
        return matches

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        fmap1, fmap2, query, key, matches, logarithms = ctx.saved_tensors
        requested = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # for second-order gradients
            recompute = partial(chunks.compute_matching_flow, scale=ctx.scale)
            return *compute_gradients_by_recomputation(recompute, (fmap1, fmap2), grad, requested), None
        saved = (query, key, matches.flatten(2), logarithms)
        sizes = get_height_and_width(fmap1), get_height_and_width(fmap2)
        both = cuda.compute_query_and_key_gradients(saved, grad.flatten(2), sizes, ctx.scale)
        return *(
            _convert_padded_gradient_to_map(one, fmap) if is_requested else None
            for one, fmap, is_requested in zip(both, (fmap1, fmap2), requested, strict=True)
        ), None


def _compute_flow_and_saved_tensors(
    fmap1: Tensor, fmap2: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key = cuda.flatten_map_to_rows(fmap1), cuda.flatten_map_to_rows(fmap2, pad_rows=True)
    flow, logarithms = cuda.compute_flow_and_log_sums(
        query, key, (get_height_and_width(fmap1), get_height_and_width(fmap2)), scale
    )
    return torch.unflatten(flow, 2, tuple(fmap1.shape[2:])), query, key, logarithms


def _convert_padded_gradient_to_map(gradient: Tensor, fmap: Tensor) -> Tensor:
    """Return rows, some of which may be padding, as a map [B, C, H, W]."""
    return unflatten_rows_to_map(gradient[:, : fmap.shape[2] * fmap.shape[3]].to(fmap.dtype), fmap)


_apply = get_apply_without_functorch(_GlobalMatching)


def compute_matching_flow(fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
    """Return the flow [B, 2, H1, W1]."""
    if needs_gradient(fmap1, fmap2):
        return _apply(fmap1, fmap2, scale)
    return _compute_flow_and_saved_tensors(fmap1, fmap2, scale)[0]


_MATCHERS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "cuda": compute_matching_flow,
    "chunks": chunks.compute_matching_flow,
}


def _check_maps(fmap1: Tensor, fmap2: Tensor) -> None:
    _check.check_tensor(fmap1, "fmap1", ("B", "C", "H1", "W1"), dtypes=_FLOATS)
    batch, channels = fmap1.shape[:2]
    _check.check_tensor(fmap2, "fmap2", (batch, channels, "H2", "W2"), dtypes=(fmap1.dtype,), device=fmap1.device)
    _check.require(fmap2.shape[2] > 0 and fmap2.shape[3] > 0, "fmap2", "at least one position", fmap2)


def _choose_backend_name_as_traced_constant(
    dtype: torch.dtype, device: torch.device, eager: bool, backend: str | None
) -> str:
    return _choose_backend_name(MatchingRequest(dtype, device, eager), backend)


# As torch.compiler.assume_constant_result does, which would import the compiler: called while code is traced.
_choose_backend_name_as_traced_constant.__dict__["_dynamo_marked_constant"] = True


@functools.lru_cache(256)
def _choose_backend_name(request: MatchingRequest, backend: str | None) -> str:
    return MATCHERS.choose(backend, request)


def explain_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend of :func:`global_matching` that runs here, (name, reason) for others.

    The preferred backend is first.
    """
    return MATCHERS.list_refusals(MatchingRequest(dtype, torch.empty(0, device=device).device))


def global_matching(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2: Tensor,  # [B, C, H2, W2]
    *,
    backend: str | None = None,
) -> Tensor:  # [B, 2, H1, W1] (u, v), cells
    """Return the flow to the mean position under ``softmax(⟨f1, f2⟩ / √C)`` over all positions of ``fmap2``.

    Memory is linear in pixels, forward and backward: only some rows of the matrix of all pairs are in memory at a time,
    2**24 elements or one row, or the whole of a smaller matrix. float32 features are multiplied by PyTorch's setting of
    ``torch.set_float32_matmul_precision``. Products of 16-bit features are summed in float32, and what the forward pass
    computes of them is float32. The result is float32, or float64 for float64. It is differentiable in both maps, and
    deterministic.

    Args:
        fmap1: float32, float16, bfloat16 or float64, any strides.
        fmap2: of the same dtype, any strides.
        backend: "cuda" or "chunks"; the first runs eager calls only. None chooses the best one that can run; a named
            one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.

    Source: Xu et al., GMFlow, 2022, equations 2 to 4.
    """
    _check_maps(fmap1, fmap2)
    scale = max(fmap1.shape[1], 1) ** -0.5
    name = _choose_backend_name_as_traced_constant(fmap1.dtype, fmap1.device, is_eager(fmap1, fmap2), backend)
    if fmap1.numel() == 0:
        return chunks.compute_matching_flow(fmap1, fmap2, scale)
    return _MATCHERS[name](fmap1, fmap2, scale)


def global_attention(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2: Tensor,  # [B, C, H2, W2]
    values: Tensor,  # [B, V, H2, W2]
) -> Tensor:  # [B, V, H1, W1]
    """Return the mean of ``values`` under ``softmax(⟨f1, f2⟩ / √C)`` over all positions, in linear memory.

    The function is :func:`global_matching` with ``values`` in place of the coordinates, for instance features, or flow
    that is propagated to similar pixels. The result has the values' dtype.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022, equation 5 (propagation).
    """
    _check_maps(fmap1, fmap2)
    value_shape = (fmap2.shape[0], "V", *fmap2.shape[2:])
    _check.check_tensor(values, "values", value_shape, dtypes=_FLOATS, device=fmap1.device)
    query, key, value = flatten_pixels_to_rows(fmap1), flatten_pixels_to_rows(fmap2), flatten_pixels_to_rows(values)
    return unflatten_rows_to_map(compute_attention(query, key, value), fmap1).to(values.dtype)


def compute_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax(query · key / √C) times value, [B, N, V] of [B, N, C], [B, M, C], [B, M, V], in linear memory."""
    scale = max(query.shape[-1], 1) ** -0.5
    request = MatchingRequest(query.dtype, query.device, channels=max(query.shape[-1], value.shape[-1]))
    serves = query.numel() > 0 and fused.explain_unsupported(request) is None
    return (
        fused.compute_attention(query, key, value, scale)
        if serves
        else chunks.compute_attention(query, key, value, scale)
    )


def local_matching(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    radius: int,
) -> Tensor:  # [B, 2, H, W] (u, v), cells
    """Return the flow to the mean position under the softmax over the window of ±``radius`` around each pixel.

    Positions outside the map are excluded. The result is float32, or float64 for float64, and differentiable in both
    maps.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022 (the matching of its refinement).
    """
    _check.check_number(radius, "radius", integer=True, low=0)
    scores = _compute_window_scores(fmap1, fmap2, radius)
    height, width = fmap1.shape[2:]
    offsets = torch.arange(-radius, radius + 1, device=fmap1.device)
    rows, columns = (
        torch.arange(n, device=fmap1.device) + offsets[:, None] for n in (height, width)
    )  # [2r+1, H], [2r+1, W]
    inside = [(at >= 0) & (at < n) for at, n in ((rows, height), (columns, width))]
    exists = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    weights = scores.masked_fill(~exists, -torch.inf).flatten(1, 2).softmax(1)
    shares = torch.unflatten(weights, 1, (2 * radius + 1, 2 * radius + 1))
    steps = offsets.to(scores.dtype)
    u = (shares.sum(1) * steps[:, None, None]).sum(1)
    v = (shares.sum(2) * steps[:, None, None]).sum(1)
    return torch.stack((u, v), 1)


def local_attention(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    values: Tensor,  # [B, V, H, W]
    radius: int,
) -> Tensor:  # [B, V, H, W]
    """Return the mean of ``values`` under the softmax over the window of ±``radius`` around each pixel.

    Outside the map features and values are zero and included, as in GMFlow's propagation. The result has the values'
    dtype.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022 (the propagation of its refinement).
    """
    _check.check_number(radius, "radius", integer=True, low=0)
    scores = _compute_window_scores(fmap1, fmap2, radius)
    value_shape = (fmap1.shape[0], "V", *fmap1.shape[2:])
    _check.check_tensor(values, "values", value_shape, dtypes=_FLOATS, device=fmap1.device)
    shares = scores.flatten(1, 2).softmax(1)
    around = functional.pad(values.to(scores.dtype), (radius,) * 4)
    side, (height, width) = 2 * radius + 1, fmap1.shape[2:]
    total = torch.zeros_like(values, dtype=scores.dtype)
    for at in range(side * side):
        y, x = divmod(at, side)
        total = total + shares[:, at : at + 1] * around[:, :, y : y + height, x : x + width]
    return total.to(values.dtype)


def _compute_window_scores(fmap1: Tensor, fmap2: Tensor, radius: int) -> Tensor:
    """Return the scores [B, 2r+1, 2r+1, H, W], float32 or float64."""
    scores = spatial_correlation(fmap1, fmap2, 2 * radius + 1)
    exact = torch.float64 if fmap1.dtype == torch.float64 else torch.float32
    return scores.to(exact) / math.sqrt(max(fmap1.shape[1], 1))
