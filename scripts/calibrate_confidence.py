"""How sure is the confidence? Fits it anew on the shared pairs with true flow, and prints how often it is right.

python scripts/calibrate_confidence.py [METHOD [WEIGHTS]]      fullfield-s by default, refined; needs FULLFIELD_DATA

Every pair is judged by constants fitted on all others. To be run again, and the constants in
src/fullfield/estimators/reliability.py replaced, when the weights change.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
from compare_methods import every_pair
from torch import Tensor

from fullfield.estimators import RefinedEstimator
from fullfield.estimators.estimation import build
from fullfield.estimators.frames import as_frames
from fullfield.estimators.reliability import evidence
from fullfield.io import read_flow

RIGHT = 1.0
"""Pixels: a flow is right if it is less off."""
_SAMPLES = 20_000
_NAMES = ("bias", "log distance", "log residual", "own log scale")


def samples(method: str, weights: str | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Evidence [N, 4] and the error [N] of pixels of every pair."""
    estimator, found = RefinedEstimator(build(method, weights=weights)), {}
    for name, (first, second, truth) in every_pair().items():
        frames = [frame[None] for frame in as_frames((first, second), ("frame1", "frame2"), "auto")]
        known = read_flow(truth)
        ways = estimator.directions(*frames)
        signs = evidence(*frames, ways.forward, ways.backward)
        own = torch.zeros_like(signs.distance) if ways.log_scale is None else ways.log_scale
        columns = torch.stack([torch.ones_like(own), signs.log_distance, signs.log_residual, own], 1)[0]
        error = (ways.forward[0] - known.flow).norm(dim=0)[known.valid]
        rows = columns.movedim(0, -1)[known.valid]
        chosen = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))[:_SAMPLES]
        found[name] = rows[chosen].double(), error[chosen].double()
        print(f"{name}: {float((error < RIGHT).double().mean()):.3f} right", file=sys.stderr, flush=True)
    return found


def fitted(parts: list[tuple[Tensor, Tensor]], columns: list[int]) -> Tensor:
    """Logistic regression, every pair with the same weight; Newton's method."""
    x = torch.cat([rows[:, columns] for rows, _ in parts])
    y = torch.cat([(error < RIGHT).double() for _, error in parts])
    weight = torch.cat([torch.full((len(error),), 1 / len(error), dtype=torch.float64) for _, error in parts])
    w = x.new_zeros(x.shape[1])
    for _ in range(30):
        p = torch.sigmoid(x @ w)
        curvature = (x * (weight * p * (1 - p))[:, None]).T @ x + 1e-6 * torch.eye(len(w), dtype=x.dtype)
        w = w + torch.linalg.solve(curvature, x.T @ (weight * (y - p)) - 1e-6 * w)
    return w


def judged(found: dict[str, tuple[Tensor, Tensor]], columns: list[int]) -> tuple[Tensor, Tensor]:
    """Confidence and error of all pixels, each pair's by the others."""
    confidence = []
    for name, (rows, _) in found.items():
        others = [part for other, part in found.items() if other.split()[-1] != name.split()[-1]]
        confidence.append(torch.sigmoid(rows[:, columns] @ fitted(others, columns)))
    return torch.cat(confidence), torch.cat([error for _, error in found.values()])


def table(confidence: Tensor, error: Tensor) -> None:
    """How large the error is at each confidence."""
    edges = [0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0001]
    print("| confidence | share of pixels | mean confidence | under 1 px | median error, px | mean error, px |")
    print("|---|---|---|---|---|---|")
    gap = 0.0
    for low, high in pairwise(edges):
        inside = (confidence >= low) & (confidence < high)
        if not bool(inside.any()):
            continue
        share, mean = float(inside.double().mean()), float(confidence[inside].mean())
        right = float((error[inside] < RIGHT).double().mean())
        gap += share * abs(right - mean)
        numbers = f"{share:.3f} | {mean:.3f} | {right:.3f}"
        errors = f"{float(error[inside].median()):.2f} | {float(error[inside].mean()):.2f}"
        print(f"| {low:g} to {min(high, 1):g} | {numbers} | {errors} |")
    right = (error < RIGHT).double()
    brier = float(((confidence - right) ** 2).mean())
    order = confidence.argsort()
    ranks = torch.empty_like(confidence)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=confidence.dtype)
    ones = right.sum()
    area = float((ranks[right > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(right) - ones)))
    print(f"calibration error {gap:.4f}, Brier score {brier:.4f}, area under the ROC curve {area:.4f}\n")


def main(method: str = "fullfield-s", weights: str | None = None) -> int:
    """Print constants and tables."""
    found = samples(method, weights)
    for columns in ([0, 1, 2], [0, 1, 2, 3]):
        constants = fitted(list(found.values()), columns)
        pairs = zip((_NAMES[c] for c in columns), constants.tolist(), strict=True)
        print(", ".join(f"{name} {value:.3f}" for name, value in pairs))
        table(*judged(found, columns))
    from fullfield.estimators.reliability import CONFIDENCE, CONFIDENCE_WITH_OWN

    for constants in (CONFIDENCE, CONFIDENCE_WITH_OWN):
        print("as it is now:", constants)
        all_ = torch.cat([rows for rows, _ in found.values()])[:, : len(constants)]
        confidence = torch.sigmoid(all_ @ torch.tensor(constants, dtype=torch.float64))
        table(confidence, torch.cat([error for _, error in found.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
