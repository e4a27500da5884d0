"""What a convolution and its gradients are at a sample of centres, points and weights, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.cases.points.contenders import Problem
from fullfield.ops.point_conv.api import transpose_weight
from fullfield.ops.point_conv.triplets import Triplets, expand_row_offsets, unpack_indices_and_cells

CHECKED = 100
"""Centres, and points."""
PEER_SLACK = 10.0
"""Peers sum in other orders and formats than ours."""
_ALLOWED = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest value; tensor cores sum in float32, results are rounded once."""
_AT_A_TIME = 1024  # triplets
_MOST_TRIPLETS = 1 << 28  # of a check of weight gradients


@dataclass(frozen=True)
class Truth:
    """Exact results at some places."""

    centers: Tensor
    points: Tensor
    pairs: tuple[tuple[int, int], ...]
    """Channels in and out."""
    out: Tensor
    grad_features: Tensor
    grad_weight: Tensor | None
    """[pairs, K]; None where there are too many triplets."""
    allowed: float

    @classmethod
    def of(cls, problem: Problem, features: Tensor, weight: Tensor, grad: Tensor) -> Truth:
        """Of inputs as they are, rounded to the problem's dtype already."""
        g = problem.geometry
        generator = torch.Generator().manual_seed(1)
        centers, points = (
            torch.randperm(n, generator=generator)[:CHECKED].to(g.device) for n in (g.center_count, g.points)
        )
        turned = transpose_weight(weight, 1, g.mirrored)
        back = g.forward if g.backward is None else g.backward
        sums = None
        pairs = ((0, 0), (problem.channels[0] - 1, problem.channels[1] // 2))
        if g.forward.entries.numel() <= _MOST_TRIPLETS:
            sums = _weights(g.forward, features, grad, g.cells, pairs)
        return cls(
            centers,
            points,
            pairs,
            _rows(g.forward, centers, features, weight),
            _rows(back, points, grad, turned),
            sums,
            _ALLOWED[problem.dtype],
        )

    def of_forward(self, out: Tensor, slack: float) -> tuple[str | None, float]:
        """Return what is wrong with a result, and its error as a share of the largest value."""
        return _compared("the result", out, out[self.centers], self.out, slack * self.allowed)

    def of_gradients(self, grads: Sequence[Tensor], slack: float) -> tuple[str | None, float]:
        """Return the same for gradients of (features, weight)."""
        features, weight = grads
        wrong, error = _compared(
            "the features' gradient", features, features[self.points], self.grad_features, slack * self.allowed
        )
        if wrong is not None or self.grad_weight is None:
            return wrong, error
        some = torch.stack([weight[:, a, b] for a, b in self.pairs])
        wrong, other = _compared("the weights' gradient", weight, some, self.grad_weight, slack * self.allowed)
        return wrong, max(error, other)


def _compared(what: str, whole: Tensor, got: Tensor, right: Tensor, allowed: float) -> tuple[str | None, float]:
    if not bool(whole.isfinite().all()):
        return f"{what} has NaN or infinite values", float("inf")
    scale = float(right.abs().max()) if right.numel() else 0.0
    error = float((got.double() - right).abs().max()) / max(scale, 1e-30) if right.numel() else 0.0
    wrong = f"{what} is off by {error:.2g} of its largest value, allowed {allowed:.2g}" if error > allowed else None
    return wrong, error


def _rows(triplets: Triplets, rows: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    """[n, Cout] float64 of some rows."""
    starts, ends = triplets.rows[rows], triplets.rows[rows + 1]
    bounds = torch.cat([starts.new_zeros(1), (ends - starts).cumsum(0)])
    row = expand_row_offsets(bounds)
    at = torch.arange(row.numel(), device=row.device) - bounds[row] + starts[row]
    some = Triplets(bounds, triplets.entries[at], triplets.cells[at] if triplets.cells.numel() else triplets.cells)
    index, cell = unpack_indices_and_cells(some, weight.shape[0])
    out = torch.zeros(len(rows), weight.shape[2], dtype=torch.float64, device=rows.device)
    for part in torch.split(torch.arange(row.numel(), device=row.device), _AT_A_TIME):
        products = torch.bmm(features[index[part]].double()[:, None], weight[cell[part]].double())
        out.index_add_(0, row[part], products[:, 0])
    return out


def _weights(
    triplets: Triplets, features: Tensor, grad: Tensor, cells: int, pairs: Sequence[tuple[int, int]]
) -> Tensor:
    index, cell = unpack_indices_and_cells(triplets, cells)
    row = expand_row_offsets(triplets.rows)
    sums = []
    for a, b in pairs:
        products = features[:, a].double()[index] * grad[:, b].double()[row]
        sums.append(torch.bincount(cell, weights=products, minlength=cells))
    return torch.stack(sums)
