"""Matching by kernels with its gradients, for eager code."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullfield.ops.matching import chunks, cuda
from fullfield.ops.matching.protocol import map_of, size_of
from fullfield.ops.operators import gradients_again, wants_gradient


class _Matched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
        found, query, key, logarithms = _forward(fmap1, fmap2, scale)
        ctx.scale = scale
        ctx.save_for_backward(fmap1, fmap2, query, key, found, logarithms)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        fmap1, fmap2, query, key, found, logarithms = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # for second-order gradients
            again = partial(chunks.matched, scale=ctx.scale)
            return *gradients_again(again, (fmap1, fmap2), grad, wanted), None
        saved = (query, key, found.flatten(2), logarithms)
        sizes = size_of(fmap1), size_of(fmap2)
        both = cuda.backward(saved, grad.flatten(2), sizes, ctx.scale)
        return *(
            _gradient(one, fmap) if want else None for one, fmap, want in zip(both, (fmap1, fmap2), wanted, strict=True)
        ), None


def _forward(fmap1: Tensor, fmap2: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key = cuda.rows(fmap1), cuda.rows(fmap2, aligned=True)
    flow, logarithms = cuda.forward(query, key, (size_of(fmap1), size_of(fmap2)), scale)
    return torch.unflatten(flow, 2, tuple(fmap1.shape[2:])), query, key, logarithms


def _gradient(found: Tensor, fmap: Tensor) -> Tensor:
    """Return rows, some of which may be padding, as a map [B, C, H, W]."""
    return map_of(found[:, : fmap.shape[2] * fmap.shape[3]].to(fmap.dtype), fmap)


# ``_Matched.apply`` without what it does for functorch's transforms and for ``setup_context``.
_apply: Any = super(torch.autograd.Function, _Matched).apply


def matched(fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
    """Return the flow [B, 2, H1, W1]."""
    if wants_gradient(fmap1, fmap2):
        out: Tensor = _apply(fmap1, fmap2, scale)
        return out
    return _forward(fmap1, fmap2, scale)[0]
