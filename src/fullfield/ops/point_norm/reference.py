"""Normalisation in PyTorch for any device, dtype and transform; it defines the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Running(NamedTuple):
    """Running statistics of a batch norm."""

    mean: Tensor  # [C]
    var: Tensor  # [C]
    momentum: float
    update: bool
    """True if the rows are normalised by their own statistics, which update the running ones; else those are used."""


def normalize(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    eps: float,
    sizes: Sequence[int],
    running: Running | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Normalise as :func:`fullfield.ops.point_norm.point_norm` does; arguments are checked by the caller."""
    exact = torch.float64 if features.dtype == torch.float64 else torch.float32
    if kind == "layer":
        out = functional.layer_norm(
            features, features.shape[1:], weight.to(features.dtype), bias.to(features.dtype), eps
        )
    elif kind == "batch":
        if running is None:
            out = functional.batch_norm(features, None, None, weight, bias, True, 0.0, eps)
        else:
            batch = (running.mean, running.var, weight, bias, running.update, running.momentum, eps)
            out = functional.batch_norm(features, *batch)
    else:
        clouds = []
        for cloud in torch.split(features.to(exact), list(sizes)):
            centred = cloud - cloud.mean(0, keepdim=True) if cloud.shape[0] else cloud
            variance = centred.square().mean(0, keepdim=True) if cloud.shape[0] else 1.0
            clouds.append(centred * (variance + eps) ** -0.5)
        out = torch.cat(clouds) * weight + bias
    out = out.to(features.dtype)
    if residual is not None:
        out = out + residual
    return out.relu() if relu else out
