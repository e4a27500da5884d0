"""The public functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.ops.matching import chunks, fused
from fullfield.ops.spatial_correlation import spatial_correlation

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _check_maps(fmap1: Tensor, fmap2: Tensor) -> None:
    _check.tensor(fmap1, "fmap1", ("B", "C", "H1", "W1"), dtypes=_FLOATS)
    batch, channels = fmap1.shape[:2]
    _check.tensor(fmap2, "fmap2", (batch, channels, "H2", "W2"), dtypes=(fmap1.dtype,), device=fmap1.device)
    _check.require(fmap2.shape[2] > 0 and fmap2.shape[3] > 0, "fmap2", "at least one position", fmap2)


def _rows(fmap: Tensor) -> Tensor:
    """[B, H·W, C]."""
    return fmap.flatten(2).transpose(1, 2)


def _map(rows: Tensor, like: Tensor) -> Tensor:
    return torch.unflatten(rows.transpose(1, 2), 2, (like.shape[2], like.shape[3]))


def _grid(height: int, width: int, like: Tensor) -> Tensor:
    """[2, H, W], (x, y), float32 or float64."""
    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    y = torch.arange(height, device=like.device, dtype=exact).view(-1, 1).expand(-1, width)
    x = torch.arange(width, device=like.device, dtype=exact).expand(height, -1)
    return torch.stack((x, y))


def global_matching(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2: Tensor,  # [B, C, H2, W2]
) -> Tensor:  # [B, 2, H1, W1] (u, v), cells
    """Flow from every pixel to the mean position under ``softmax(⟨f1, f2⟩ / √C)`` over all positions of ``fmap2``.

    Memory is linear in pixels, forward and backward: the matrix of all pairs is never there. On NVIDIA GPUs up to 256
    channels run on PyTorch's fused attention; elsewhere, and for float64, some rows at a time (there memory is also
    bounded, by 64 MiB of the matrix). float32 features are compared in float32; 16-bit ones are multiplied as they
    are and summed in float32, and positions are then exact to about a hundredth of a cell for matches that are sharp.
    The result is float32, float64 for float64. Differentiable in both maps.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022, equations 2 to 4.
    """
    _check_maps(fmap1, fmap2)
    scale = max(fmap1.shape[1], 1) ** -0.5
    query, key = _rows(fmap1), _rows(fmap2)
    size = (int(fmap2.shape[2]), int(fmap2.shape[3]))
    if fused.serves(query):
        found = fused.expected_positions(query, key, size, scale)
    else:
        value = _grid(*size, fmap1).flatten(1).transpose(0, 1)
        found = chunks.attend(query, key, value.expand(query.shape[0], -1, -1), scale)
    return _map(found, fmap1) - _grid(fmap1.shape[2], fmap1.shape[3], fmap1)


def global_attention(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2: Tensor,  # [B, C, H2, W2]
    values: Tensor,  # [B, V, H2, W2]
) -> Tensor:  # [B, V, H1, W1]
    """The mean of ``values`` under ``softmax(⟨f1, f2⟩ / √C)`` over all positions, in linear memory.

    As :func:`global_matching`, with anything in the coordinates' place: flow that is propagated to pixels that look
    alike, or features. The result has the values' dtype; in half precision it is rounded like them.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022, equation 5 (propagation).
    """
    _check_maps(fmap1, fmap2)
    place = (fmap2.shape[0], "V", *fmap2.shape[2:])
    _check.tensor(values, "values", place, dtypes=_FLOATS, device=fmap1.device)
    query, key, value = _rows(fmap1), _rows(fmap2), _rows(values)
    return _map(attend(query, key, value), fmap1).to(values.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, N, V] of [B, N, C], [B, M, C], [B, M, V]: softmax(query · key / √C) times value, in linear memory."""
    scale = max(query.shape[-1], 1) ** -0.5
    serve = fused.attend if fused.serves(query) and value.shape[-1] <= 256 else chunks.attend
    return serve(query, key, value, scale)


def local_matching(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    radius: int,
) -> Tensor:  # [B, 2, H, W] (u, v), cells
    """Flow from every pixel to the mean position under the softmax over the window of ±``radius`` around it.

    Positions outside the map take no part. The result is float32, float64 for float64. Differentiable in both maps.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022 (the matching of its refinement).
    """
    _check.number(radius, "radius", integer=True, low=0)
    scores = _scores(fmap1, fmap2, radius)
    height, width = fmap1.shape[2:]
    offsets = torch.arange(-radius, radius + 1, device=fmap1.device)
    rows, columns = (
        torch.arange(n, device=fmap1.device) + offsets[:, None] for n in (height, width)
    )  # [2r+1, H], [2r+1, W]
    inside = [(at >= 0) & (at < n) for at, n in ((rows, height), (columns, width))]
    exists = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    whole = scores.masked_fill(~exists, -torch.inf).flatten(1, 2).softmax(1)
    shares = torch.unflatten(whole, 1, (2 * radius + 1, 2 * radius + 1))
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
    """The mean of ``values`` under the softmax over the window of ±``radius`` around each pixel.

    Outside the map features and values are zero and take part, as in GMFlow's propagation. The result has the values'
    dtype.

    Raises:
        InputError: naming the argument that does not fit.

    Source: Xu et al., GMFlow, 2022 (the propagation of its refinement).
    """
    _check.number(radius, "radius", integer=True, low=0)
    scores = _scores(fmap1, fmap2, radius)
    place = (fmap1.shape[0], "V", *fmap1.shape[2:])
    _check.tensor(values, "values", place, dtypes=_FLOATS, device=fmap1.device)
    shares = scores.flatten(1, 2).softmax(1)
    around = functional.pad(values.to(scores.dtype), (radius,) * 4)
    side, (height, width) = 2 * radius + 1, fmap1.shape[2:]
    total = torch.zeros_like(values, dtype=scores.dtype)
    for at in range(side * side):
        y, x = divmod(at, side)
        total = total + shares[:, at : at + 1] * around[:, :, y : y + height, x : x + width]
    return total.to(values.dtype)


def _scores(fmap1: Tensor, fmap2: Tensor, radius: int) -> Tensor:
    """[B, 2r+1, 2r+1, H, W], float32 or float64."""
    found = spatial_correlation(fmap1, fmap2, 2 * radius + 1)
    exact = torch.float64 if fmap1.dtype == torch.float64 else torch.float32
    return found.to(exact) / math.sqrt(max(fmap1.shape[1], 1))
