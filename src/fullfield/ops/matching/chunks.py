"""Attention in chunks of rows: any device and dtype, linear memory, differentiable to any order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fullfield.ops._launching import is_eager
from fullfield.ops._operators import direct_apply, gradients_again
from fullfield.ops.matching.protocol import Request, flow_of, positions_of, rows_at_a_time, rows_of


def supports(_request: Request) -> None:
    """Return None: this backend always runs."""


def _rows(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute all columns of some rows, in float32 at least."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(exact) * scale) @ key.to(exact).transpose(-2, -1)
        return torch.softmax(scores, -1) @ value.to(exact)


def _differentiable(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute with PyTorch's own gradients and recompute what they need."""
    found = [
        checkpoint(_rows, part, key, value, scale, use_reentrant=False, preserve_rng_state=False)
        for part in torch.split(query, rows_at_a_time(key), -2)
    ]
    return torch.cat(found, -2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        parts = torch.split(query, rows_at_a_time(key), -2)
        out = torch.cat([_rows(part, key, value, scale) for part in parts], -2)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, out = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # for second-order gradients
            again = partial(_differentiable, scale=ctx.scale)
            return *gradients_again(again, (query, key, value), grad, wanted), None
        with torch.autocast(query.device.type, enabled=False):
            found = _gradients(query, key, value, out, grad, ctx.scale)
        return *(
            one.to(t.dtype) if want else None for one, t, want in zip(found, (query, key, value), wanted, strict=True)
        ), None


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = key.to(out.dtype), value.to(out.dtype)
    of_query, of_key, of_value = (torch.zeros_like(t, dtype=out.dtype) for t in (query, key, value))
    each = rows_at_a_time(key)
    for begin in range(0, query.shape[-2], each):
        at = slice(begin, begin + each)
        rows, part = query[..., at, :].to(out.dtype) * scale, grad[..., at, :]
        shares = torch.softmax(rows @ keys.transpose(-2, -1), -1)
        of_value += shares.transpose(-2, -1) @ part
        inner = (part * out[..., at, :]).sum(-1, keepdim=True)
        shares *= part @ values.transpose(-2, -1) - inner  # from here on the gradient of the products
        of_query[..., at, :] = shares @ keys * scale
        of_key += shares.transpose(-2, -1) @ rows
    return of_query, of_key, of_value


_apply = direct_apply(_Attention)


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return [..., N, V] of [..., N, C], [..., M, C], [..., M, V], float32, or float64 for float64."""
    if not is_eager(query, key, value):
        return _differentiable(query, key, value, scale)
    return _apply(query, key, value, scale)


def matched(fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
    """Return the flow [B, 2, H1, W1]."""
    value = positions_of(fmap2).flatten(1).transpose(0, 1)
    query, key = rows_of(fmap1), rows_of(fmap2)
    return flow_of(attend(query, key, value.expand(query.shape[0], -1, -1), scale), fmap1)
