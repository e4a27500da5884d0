"""Fit the model of the confidence to random pairs, and store its reliability.

python -m benchmarks.cases.registration.calibration fit runs/draws.json           prints the weights
python -m benchmarks.cases.registration.calibration check runs/other.json -o runs/reliability.json

Both files come from ``draws --json``, with different seeds. Only poses without an objection
other than too little evidence are fitted: the others are refused whatever the confidence.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield.io.files import write_atomically

Floats = NDArray[np.float64]
_EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 1.0001)
_RIDGE = 1.0
_STEPS = 50


def fit_logistic(signs: Floats, is_right: Floats) -> Floats:
    """Return the weights of a logistic model, by Newton's method with a weak ridge."""
    weights = np.zeros(signs.shape[1])
    for _ in range(_STEPS):
        probability = 1 / (1 + np.exp(-signs @ weights))
        gradient = signs.T @ (is_right - probability) - _RIDGE * weights
        curvature = signs.T @ (signs * (probability * (1 - probability))[:, None]) + _RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def reliability(confidence: Floats, is_right: Floats) -> dict[str, Any]:
    """Return the expected calibration error, and by bin the pairs, mean confidence and share of right poses."""
    bins, error = [], 0.0
    for low, high in pairwise(_EDGES):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            mean, right = float(confidence[inside].mean()), float(is_right[inside].mean())
            bins.append(
                {"from": low, "to": min(high, 1.0), "pairs": int(inside.sum()), "confidence": mean, "right": right}
            )
            error += inside.mean() * abs(mean - right)
    return {"pairs": len(confidence), "expected_calibration_error": error, "bins": bins}


def main() -> None:
    """Fit or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=("fit", "check"))
    parser.add_argument("files", nargs="+", help="outcomes of draws")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the reliability as JSON")
    args = parser.parse_args()
    rows = [row for file in args.files for row in json.loads(Path(file).read_text("utf-8"))["rows"]]
    is_right = np.array([row["right"] for row in rows], np.float64)
    if args.task == "fit":
        usable = np.array([bool(row["signs"]) and not row["certain"] for row in rows])
        signs = np.array([row["signs"] for row, use in zip(rows, usable, strict=True) if use])
        weights = fit_logistic(signs, is_right[usable])
        print("weights:", ", ".join(f"{weight:.2f}" for weight in weights), f"of {len(signs)} poses")
        confidence = np.clip(1 / (1 + np.exp(-signs @ weights)), 0.0, 0.99)
        result = reliability(confidence, is_right[usable])
    else:
        result = reliability(np.array([row["confidence"] for row in rows]), is_right)
        accepted = [row for row in rows if row["accepted"]]
        result["accepted"] = {"pairs": len(accepted), "right": sum(row["right"] for row in accepted)}
    print(json.dumps(result, indent=1))
    if args.output:
        with write_atomically(args.output) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
