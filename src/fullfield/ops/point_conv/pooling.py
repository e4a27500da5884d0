"""Maximum or mean of the points that a centre sees: kernels on GPUs, elsewhere PyTorch, a chunk of rows at a time.

Deterministic: nothing is added to from two sides. The gradient of the maximum goes to the first point that has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import is_usable_or_warn_missing
from fullfield.ops._launching import is_eager, refuse_forward_mode
from fullfield.ops._operators import register_and_return_torch_func_operator
from fullfield.ops.point_conv.cuda import pooling as kernels
from fullfield.ops.point_conv.geometry import PointGeometry
from fullfield.ops.point_conv.protocol import check_feature_rows
from fullfield.ops.point_conv.triplets import (
    Triplets,
    expand_row_offsets,
    list_row_and_entry_chunk_bounds,
    unpack_indices_and_cells,
)

# Gathered features worked on at a time.
CHUNK_BYTES = 16 << 20


def point_pool(
    features: Tensor,  # [N, C]
    geometry: PointGeometry,  # of N points and M centres
    mode: str = "max",
) -> Tensor:  # [M, C]
    """Return the maximum or mean over the points of each centre, in any cell; 0 for a centre without points.

    Sums are float32 (float64 for float64 features). The result is differentiable in features; nothing of the size of
    triplets times channels is stored.

    Args:
        features: features of the points.
        geometry: triplets of points and centres.
        mode: "max" or "mean".

    Raises:
        InputError: naming the argument that does not fit.
        NotImplementedError: for forward-mode tangents.
    """
    _check.require(isinstance(geometry, PointGeometry), "geometry", "a PointGeometry", geometry)
    _check.check_choice(mode, "mode", ("max", "mean"))
    check_feature_rows(features, geometry.points, geometry.device)
    refuse_forward_mode(features=features)
    if torch.is_grad_enabled() and features.requires_grad:
        geometry.raise_unless_gradient_is_prepared()
    directions = (*geometry.list_triplet_tensors_by_direction(), geometry.cells)
    out: Tensor
    if mode == "max":
        if is_eager(features):
            if not (torch.is_grad_enabled() and features.requires_grad):
                return _compute_maxima_and_winners_per_center(features, *directions)[0]
            pooled: Tensor = _MaxPooling.apply(features, *directions)  # type: ignore[no-untyped-call]
            return pooled
        out = _MAX(features, *directions)[0]
        return out
    counts = geometry.forward.rows.diff().clamp(min=1)[:, None]
    exact = torch.float64 if features.dtype == torch.float64 else torch.float32
    # divided before rounding: a sum of many may not fit 16 bits
    out = _SUM(features.to(exact), *directions)
    return (out / counts).to(features.dtype)


def _count_entries_per_chunk(features: Tensor) -> int:
    return CHUNK_BYTES // max(1, features.shape[1] * 4 * features.itemsize)


def _sum_features_per_center(
    features: Tensor,
    forward_triplets: list[Tensor],
    backward_triplets: list[Tensor],  # noqa: ARG001
    cell_count: int,
) -> Tensor:
    triplets = Triplets(*forward_triplets)
    if is_usable_or_warn_missing("point_pool", "cuda", kernels.explain_unsupported(features)):
        return kernels.sum_features_per_row(features, triplets, cell_count)
    out = features.new_empty(triplets.rows.numel() - 1, features.shape[1])
    for first, last, start, end in list_row_and_entry_chunk_bounds(triplets.rows, _count_entries_per_chunk(features)):
        index, _ = unpack_indices_and_cells(triplets, cell_count, start, end)
        bounds = triplets.rows[first : last + 1] - start
        gathered = features.index_select(0, index)
        out[first:last] = torch.segment_reduce(gathered, "sum", offsets=bounds, initial=0, unsafe=True)
    return out


def _sum_features_per_center_fake(features: Tensor, forward_triplets: list[Tensor], *_: Any) -> Tensor:
    return features.new_empty(forward_triplets[0].shape[0] - 1, features.shape[1])


def _compute_maxima_and_winners_per_center(
    features: Tensor,
    forward_triplets: list[Tensor],
    backward_triplets: list[Tensor],  # noqa: ARG001
    cell_count: int,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and the points that they come from, int32, −1 for none."""
    triplets = Triplets(*forward_triplets)
    if is_usable_or_warn_missing("point_pool", "cuda", kernels.explain_unsupported(features)):
        return kernels.compute_row_maxima_and_winners(features, triplets, cell_count)
    shape = (triplets.rows.numel() - 1, features.shape[1])
    out, winners = features.new_zeros(shape), features.new_full(shape, -1, dtype=torch.int32)
    nowhere = 2**31 - 1
    for first, last, start, end in list_row_and_entry_chunk_bounds(triplets.rows, _count_entries_per_chunk(features)):
        if start == end:
            continue
        index, _ = unpack_indices_and_cells(triplets, cell_count, start, end)
        row = expand_row_offsets(triplets.rows[first : last + 1] - start)[:, None].expand(-1, shape[1])
        gathered = features.index_select(0, index)
        best = out[first:last].fill_(-torch.inf).scatter_reduce_(0, row, gathered, "amax")
        winner_rows = best.gather(0, row)
        hits = (gathered == winner_rows) | gathered.isnan()
        at = torch.where(hits, index[:, None], nowhere).to(torch.int32)
        winners[first:last].fill_(nowhere).scatter_reduce_(0, row, at, "amin")
    none = (triplets.rows.diff() == 0)[:, None]
    return out.masked_fill_(none, 0), winners.masked_fill_(none, -1)


def _compute_maxima_and_winners_per_center_fake(
    features: Tensor, forward_triplets: list[Tensor], *_: Any
) -> tuple[Tensor, Tensor]:
    out = _sum_features_per_center_fake(features, forward_triplets)
    return out, torch.empty_like(out, dtype=torch.int32)


def _backpropagate_max(grad: Tensor, winners: Tensor, backward_triplets: list[Tensor], cell_count: int) -> Tensor:
    """Collect for every point from the centres that chose it, in the accumulating dtype."""
    exact = torch.float64 if grad.dtype == torch.float64 else torch.float32
    triplets = Triplets(*backward_triplets)
    if is_usable_or_warn_missing("point_pool", "cuda", kernels.explain_unsupported(grad)):
        return kernels.backpropagate_max(grad, winners, triplets, cell_count)
    out = grad.new_empty(triplets.rows.numel() - 1, grad.shape[1])
    for first, last, start, end in list_row_and_entry_chunk_bounds(triplets.rows, _count_entries_per_chunk(grad)):
        index, _ = unpack_indices_and_cells(triplets, cell_count, start, end)
        rows = triplets.rows[first : last + 1] - start
        point = expand_row_offsets(rows)[:, None] + first
        contribution = torch.where(winners[index] == point, grad[index], 0).to(exact)
        out[first:last] = torch.segment_reduce(contribution, "sum", offsets=rows, initial=0, unsafe=True)
    return out


def _backpropagate_max_fake(grad: Tensor, winners: Tensor, backward_triplets: list[Tensor], cell_count: int) -> Tensor:  # noqa: ARG001
    return grad.new_empty(backward_triplets[0].shape[0] - 1, grad.shape[1])


def _save_triplets_and_any_winners(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, forward, backward, cell_count = inputs
    winners = [output[1]] if isinstance(output, tuple) else []
    ctx.save_for_backward(*forward, *backward, *winners)
    ctx.count, ctx.cells = (len(forward), len(backward)), cell_count


def _compute_sum_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    forward, backward = saved[: ctx.count[0]], saved[ctx.count[0] :]
    grads = _SUM(grad.contiguous(), backward, forward, ctx.cells)
    return grads, [None] * ctx.count[0], [None] * ctx.count[1], None


def _compute_max_gradient(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    backward, winners = saved[ctx.count[0] : -1], saved[-1]
    grads = _COLLECT(grad, winners, backward, ctx.cells)
    return grads, [None] * ctx.count[0], [None] * ctx.count[1], None


def _save_winners_for_double_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1])
    ctx.count = len(inputs[2])


def _differentiate_max_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Differentiate the backward pass, which is linear in its gradient: gather at the points of the maxima."""
    (winners,) = ctx.saved_tensors
    taken = grad.gather(0, winners.clamp(min=0).to(torch.int64)) if grad.shape[0] else grad.new_zeros(winners.shape)
    return taken.masked_fill(winners < 0, 0), None, [None] * ctx.count, None


_SUM = register_and_return_torch_func_operator(
    "point_sum(Tensor features, Tensor[] forward, Tensor[] backward, int cells) -> Tensor",
    _sum_features_per_center, _sum_features_per_center_fake, _save_triplets_and_any_winners, _compute_sum_gradient,
)  # fmt: skip
_MAX = register_and_return_torch_func_operator(
    "point_max(Tensor features, Tensor[] forward, Tensor[] backward, int cells) -> (Tensor out, Tensor winners)",
    _compute_maxima_and_winners_per_center, _compute_maxima_and_winners_per_center_fake,
    _save_triplets_and_any_winners, _compute_max_gradient,
)  # fmt: skip
_COLLECT = register_and_return_torch_func_operator(
    "point_max_backward(Tensor grad, Tensor winners, Tensor[] backward, int cells) -> Tensor",
    _backpropagate_max, _backpropagate_max_fake, _save_winners_for_double_backward, _differentiate_max_gradient,
)  # fmt: skip


class _MaxPooling(torch.autograd.Function):
    """The maximum without the dispatcher, whose way through a registered operator takes the host long."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, forward_triplets: list[Tensor], backward_triplets: list[Tensor], cell_count: int
    ) -> Tensor:
        out, winners = _compute_maxima_and_winners_per_center(features, forward_triplets, backward_triplets, cell_count)
        ctx.save_for_backward(winners)
        ctx.backward_rows, ctx.cells = backward_triplets, cell_count
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (winners,) = ctx.saved_tensors
        is_recomputed = torch.is_grad_enabled()  # for gradients of the gradient
        collect = _COLLECT if is_recomputed else _backpropagate_max
        return collect(grad, winners, ctx.backward_rows, ctx.cells), None, None, None
