"""Fit the confidence on the shared pairs with true flow, and store its calibration and sparsification.

python -m benchmarks.experiments.calibrate_confidence      fullfield-s, refined; needs FULLFIELD_DATA

Each pair is scored with constants fitted on all other scenes, and with the forward-backward distance alone. Writes
benchmarks/results/confidence_cpu.json. When the weights change, run it again and replace the constants in
src/fullfield/estimators/_reliability.py.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks.experiments import build_program_parser
from benchmarks.experiments.score_methods import DATA, RESULT
from benchmarks.shared_pairs import shared_pairs
from benchmarks.stored import state_conditions
from fullfield.estimators import RefinedEstimator
from fullfield.estimators._frames import read_pairs_and_find_bars
from fullfield.estimators._reliability import compute_reliability_evidence
from fullfield.estimators.estimation import build_estimator
from fullfield.io import read_flow
from fullfield.io.files import write_atomically

RIGHT = 1.0
"""Largest error of a correct flow, px."""
_SAMPLES = 20_000
_NAMES = ("bias", "log distance", "log residual", "log contrast", "own log scale")


def samples() -> dict[str, tuple[Tensor, Tensor]]:
    """Return evidence [N, 6], whose last column is the plain distance, and errors [N] of the pixels of every pair."""
    estimator, found = RefinedEstimator(build_estimator("fullfield-s")), {}
    for name, (first, second, truth) in shared_pairs(DATA).items():
        frames = read_pairs_and_find_bars([first], [second], ("frame1", "frame2"), "auto", torch.device("cpu")).frames
        known = read_flow(truth)
        ways = estimator.estimate_both_and_refine_forward(*frames)
        signs = compute_reliability_evidence(*frames, ways.forward, ways.backward)
        own = torch.zeros_like(signs.distance) if ways.log_scale is None else ways.log_scale
        logs = signs.log_distance, signs.log_residual, signs.log_contrast
        columns = torch.stack([torch.ones_like(own), *logs, own, signs.distance.clamp(max=1e6)], 1)[0]
        error = (ways.forward[0] - known.flow).norm(dim=0)[known.valid]
        rows = columns.movedim(0, -1)[known.valid]
        chosen = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))[:_SAMPLES]
        found[name] = rows[chosen].double(), error[chosen].double()
        print(f"{name}: {float((error < RIGHT).double().mean()):.3f} right", file=sys.stderr, flush=True)
    return found


def fitted(parts: list[tuple[Tensor, Tensor]], columns: list[int]) -> Tensor:
    """Fit a logistic regression by Newton's method, with the same weight for every pair."""
    x = torch.cat([rows[:, columns] for rows, _ in parts])
    y = torch.cat([(error < RIGHT).double() for _, error in parts])
    weight = torch.cat([torch.full((len(error),), 1 / len(error), dtype=torch.float64) for _, error in parts])
    w = x.new_zeros(x.shape[1])
    for _ in range(30):
        p = torch.sigmoid(x @ w)
        curvature = (x * (weight * p * (1 - p))[:, None]).T @ x + 1e-6 * torch.eye(len(w), dtype=x.dtype)
        w = w + torch.linalg.solve(curvature, x.T @ (weight * (y - p)) - 1e-6 * w)
    return w


def judged(found: dict[str, tuple[Tensor, Tensor]], columns: list[int]) -> dict[str, Tensor]:
    """Return the confidence of every pair's pixels, with constants fitted on the other scenes."""
    confidence = {}
    for name, (rows, _) in found.items():
        others = [part for other, part in found.items() if other.split()[-1] != name.split()[-1]]
        confidence[name] = torch.sigmoid(rows[:, columns] @ fitted(others, columns))
    return confidence


def sparsification(confidence: Tensor, error: Tensor) -> float:
    """Return the area between two sparsification curves, divided by the mean error.

    The curves are the mean error after removing the least confident pixels, and after removing the largest errors.
    """
    kept = torch.arange(1, len(error) + 1)
    sure, best = (error[order].cumsum(0) / kept for order in (confidence.argsort(descending=True), error.argsort()))
    return float((sure - best).mean() / error.mean())


def reliability(confidence: Tensor, error: Tensor) -> dict[str, Any]:
    """Return the errors at each level of confidence, and how well the confidence is calibrated."""
    edges = (0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
    parts: list[dict[str, Any]] = []
    gap = 0.0
    right = (error < RIGHT).double()
    for low, high in pairwise(edges):
        inside = (confidence >= low) & ((confidence < high) | (high == 1.0))
        if not bool(inside.any()):
            continue
        part: dict[str, Any] = {
            "between": [low, high],
            "share": float(inside.double().mean()),
            "confidence": float(confidence[inside].mean()),
            "right": float(right[inside].mean()),
            "median": float(error[inside].median()),
            "mean": float(error[inside].mean()),
        }
        gap += part["share"] * abs(part["right"] - part["confidence"])
        parts.append(part)
    order = confidence.argsort()
    ranks = torch.empty_like(confidence)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=confidence.dtype)
    ones = right.sum()
    area = float((ranks[right > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(right) - ones)))
    return {"gap": gap, "brier": float(((confidence - right) ** 2).mean()), "area": area, "parts": parts}


def main() -> int:
    """Print the constants and store the tables."""
    build_program_parser(__doc__).parse_args()
    found = samples()
    stored: dict[str, Any] = {
        "what": "fullfield-s, refined: confidence against a true error under 1 px, each scene judged by the others",
        **state_conditions(
            "src/fullfield/models/cascade.py",
            "src/fullfield/models/fullfield_s.safetensors",
            "src/fullfield/estimators/_reliability.py",
        ),
    }
    errors = {name: error for name, (_, error) in found.items()}
    distance = {name: sparsification(-rows[:, -1], errors[name]) for name, (rows, _) in found.items()}
    stored["distance"] = {"sparsification": distance}
    for name, columns in (("without", [0, 1, 2, 3]), ("own", [0, 1, 2, 3, 4])):
        constants = fitted(list(found.values()), columns)
        named = zip((_NAMES[c] for c in columns), constants.tolist(), strict=True)
        print(", ".join(f"{what} {value:.3f}" for what, value in named))
        stored[name] = {"constants": [round(value, 4) for value in constants.tolist()]}
        confidence = judged(found, columns)
        stored[name] |= reliability(torch.cat(list(confidence.values())), torch.cat(list(errors.values())))
        stored[name]["sparsification"] = {pair: sparsification(confidence[pair], errors[pair]) for pair in errors}
    with write_atomically(RESULT.with_name("confidence_cpu.json")) as part:
        part.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
