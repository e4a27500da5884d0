"""Attention in chunks of rows: any device and dtype, linear memory, differentiable to any order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fullfield.ops._launching import is_eager
from fullfield.ops._operators import compute_gradients_by_recomputation, get_apply_without_functorch
from fullfield.ops.matching.protocol import (
    MatchingRequest,
    convert_matched_positions_to_flow,
    count_rows_per_chunk,
    create_pixel_grid_like,
    flatten_pixels_to_rows,
)


def explain_unsupported(_request: MatchingRequest) -> None:
    """Return None: this backend always runs."""


def _compute_attention_of_given_rows(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute all columns of some rows, in float32 at least."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(exact) * scale) @ key.to(exact).transpose(-2, -1)
        return torch.softmax(scores, -1) @ value.to(exact)


def _compute_checkpointed_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute with PyTorch's own gradients and recompute what they need."""
    chunks = [
        checkpoint(
            _compute_attention_of_given_rows, rows, key, value, scale, use_reentrant=False, preserve_rng_state=False
        )
        for rows in torch.split(query, count_rows_per_chunk(key), -2)
    ]
    return torch.cat(chunks, -2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        chunks = torch.split(query, count_rows_per_chunk(key), -2)
        out = torch.cat([_compute_attention_of_given_rows(rows, key, value, scale) for rows in chunks], -2)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, out = ctx.saved_tensors
        requested = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # for second-order gradients
            recompute = partial(_compute_checkpointed_attention, scale=ctx.scale)
            return *compute_gradients_by_recomputation(recompute, (query, key, value), grad, requested), None
        with torch.autocast(query.device.type, enabled=False):
            gradients = _compute_attention_gradients(query, key, value, out, grad, ctx.scale)
        return *(
            one.to(t.dtype) if is_requested else None
            for one, t, is_requested in zip(gradients, (query, key, value), requested, strict=True)
        ), None


def _compute_attention_gradients(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = key.to(out.dtype), value.to(out.dtype)
    grad_query, grad_key, grad_value = (torch.zeros_like(t, dtype=out.dtype) for t in (query, key, value))
    each = count_rows_per_chunk(key)
    for start in range(0, query.shape[-2], each):
        at = slice(start, start + each)
        rows, grad_rows = query[..., at, :].to(out.dtype) * scale, grad[..., at, :]
        shares = torch.softmax(rows @ keys.transpose(-2, -1), -1)
        grad_value += shares.transpose(-2, -1) @ grad_rows
        inner = (grad_rows * out[..., at, :]).sum(-1, keepdim=True)
        shares *= grad_rows @ values.transpose(-2, -1) - inner  # from here on the gradient of the products
        grad_query[..., at, :] = shares @ keys * scale
        grad_key += shares.transpose(-2, -1) @ rows
    return grad_query, grad_key, grad_value


_apply = get_apply_without_functorch(_Attention)


def compute_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return [..., N, V] of [..., N, C], [..., M, C], [..., M, V], float32, or float64 for float64."""
    if not is_eager(query, key, value):
        return _compute_checkpointed_attention(query, key, value, scale)
    return _apply(query, key, value, scale)


def compute_matching_flow(fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
    """Return the flow [B, 2, H1, W1]."""
    value = create_pixel_grid_like(fmap2).flatten(1).transpose(0, 1)
    query, key = flatten_pixels_to_rows(fmap1), flatten_pixels_to_rows(fmap2)
    return convert_matched_positions_to_flow(
        compute_attention(query, key, value.expand(query.shape[0], -1, -1), scale), fmap1
    )
