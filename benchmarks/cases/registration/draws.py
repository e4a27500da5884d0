"""Register random pairs that determine a pose, and pairs that do not, and store each outcome.

python -m benchmarks.cases.registration.draws --draws 400 --seed 1000 --workers 64 --json runs/draws.json

A pair that determines none must be refused; of the others, the pose must be right where one is accepted. Kinds take
turns. Every worker uses one thread; seconds are its processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.cases.registration.calibration import reliability
from benchmarks.stored import state_conditions
from fullfield.io.files import write_atomically
from fullfield.registration import register
from fullfield.registration.verdict import list_confidence_features
from fullfield.testing.cloud_pairs import (
    KINDS_WITH_UNIQUE_POSE,
    KINDS_WITHOUT_UNIQUE_POSE,
    CloudPair,
    draw_pair_with_unique_pose,
    draw_pair_without_unique_pose,
)

# All but the learned descriptor, which the default does not use.
_SOURCES = ("src/fullfield/registration/[!cl]*.py", "src/fullfield/registration/contacts.py")
_SETS = {False: "without_pose", True: "with_pose"}
_HIGH = 0.9  # confidence
_RIGHT = 0.02  # of the scene's diagonal: RMSE below which a pose is right
_GENERATORS = {
    False: (draw_pair_without_unique_pose, KINDS_WITHOUT_UNIQUE_POSE),
    True: (draw_pair_with_unique_pose, KINDS_WITH_UNIQUE_POSE),
}


class Draw(NamedTuple):
    """Pair to register."""

    seed: int
    kind: str
    determined: bool


def pose_error(pair: CloudPair, transform: np.ndarray[Any, np.dtype[np.float64]] | None) -> float:
    """Return the RMSE of a pose over the source's points, as a fraction of the scene's diagonal; NaN without poses."""
    if transform is None or pair.truth is None:
        return math.nan
    difference = transform - pair.truth
    distances = pair.source @ difference[:3, :3].T + difference[:3, 3]
    return float(np.sqrt((distances**2).sum(1).mean())) / pair.extent


@contextmanager
def recorded_signs() -> Iterator[list[tuple[float, list[float]]]]:
    """Record the estimated confidences, and the signs from which they are computed."""
    search = sys.modules["fullfield.registration.search"]
    records, estimate = list[tuple[float, list[float]]](), search.estimate_confidence

    def record(*measurements: Any) -> float:
        confidence = float(estimate(*measurements))
        records.append((confidence, list_confidence_features(*measurements).tolist()))
        return confidence

    search.estimate_confidence = record  # type: ignore[attr-defined]
    try:
        yield records
    finally:
        search.estimate_confidence = estimate  # type: ignore[attr-defined]


def measure(draw: Draw) -> dict[str, Any]:
    """Register one pair."""
    torch.set_num_threads(1)
    pair = _GENERATORS[draw.determined][0](draw.seed, draw.kind)
    begin = time.process_time()
    with recorded_signs() as records:
        result = register(pair.source, pair.target)
    seconds = time.process_time() - begin
    error = pose_error(pair, result.transform if result.success else result.candidate)
    _, signs = (records[-1] if result.success else max(records)) if records else (0.0, [])
    return {
        **draw._asdict(),
        "accepted": result.success,
        "right": bool(error < _RIGHT),
        "confidence": result.confidence,
        "reason": result.reason,
        "seconds": seconds,
        "signs": signs,
        "certain": not result.success and not result.untried,
    }


def list_draws(count: int, seed: int, kinds: list[str] | None, sets: tuple[bool, ...]) -> list[Draw]:
    """Return ``count`` draws of each set of kinds, which take turns."""
    draws = []
    for determined in sets:
        names = [name for name in _GENERATORS[determined][1] if kinds is None or name in kinds]
        draws += [Draw(seed + n, names[n % len(names)], determined) for n in range(count if names else 0)]
    return draws


def measure_all(draws: list[Draw], workers: int) -> Iterator[dict[str, Any]]:
    """Register the pairs, on ``workers`` processes of one thread each."""
    if workers == 1:
        yield from map(measure, draws)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(measure, draws)


def count_outcomes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of each set of kinds and of each kind, and how far the confidences can be trusted."""
    counts: dict[str, Any] = {}
    for determined, name in _SETS.items():
        own = [row for row in rows if row["determined"] == determined]
        kinds = {kind: _count([row for row in own if row["kind"] == kind]) for kind in {row["kind"]: 0 for row in own}}
        counts[name] = {**_count(own), "kinds": kinds}
    is_right = np.array([row["right"] for row in rows], np.float64)
    counts["reliability"] = reliability(np.array([row["confidence"] for row in rows]), is_right)
    return counts


def _count(rows: list[dict[str, Any]]) -> dict[str, Any]:
    accepted = [row for row in rows if row["accepted"]]
    return {
        "draws": len(rows),
        "accepted": len(accepted),
        "accepted_above_0.9": sum(row["confidence"] > _HIGH for row in accepted),
        "right": sum(row["right"] for row in accepted),
        "cpu_seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines with the counts of each kind."""
    lines = [f"{'kind':<18}{'draws':>6}{'accepted':>9}{'right':>6}{'wrong':>6}{'max conf.':>10}{'seconds':>8}"]
    kinds = Counter((row["determined"], row["kind"]) for row in rows)
    for determined, kind in sorted(kinds):
        own = [row for row in rows if row["kind"] == kind and row["determined"] == determined]
        lines.append(_summarize(kind, own))
    for determined, name in ((False, "WITHOUT A POSE"), (True, "WITH A POSE")):
        own = [row for row in rows if row["determined"] == determined]
        if own:
            lines.append(_summarize(name, own))
    return lines


def _summarize(name: str, rows: list[dict[str, Any]]) -> str:
    accepted = [row for row in rows if row["accepted"]]
    right = sum(row["right"] for row in accepted)
    top = max((row["confidence"] for row in rows), default=0.0)
    seconds = float(np.median([row["seconds"] for row in rows]))
    counts = f"{len(rows):>6}{len(accepted):>9}{right:>6}{len(accepted) - right:>6}"
    return f"{name:<18}{counts}{top:>10.3f}{seconds:>8.2f}"


def main() -> None:
    """Register the pairs of the draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=42, metavar="N", help="of each set of kinds [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first draw [%(default)s]")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes [%(default)s]")
    parser.add_argument(
        "--kinds", nargs="+", choices=[*KINDS_WITHOUT_UNIQUE_POSE, *KINDS_WITH_UNIQUE_POSE], help="[all]"
    )
    parser.add_argument("--only", choices=("undetermined", "determined"), help="one set of kinds [both]")
    parser.add_argument("--json", metavar="FILE", help="write every outcome")
    parser.add_argument("--verbose", action="store_true", help="print each outcome")
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # for the workers, which import anew
    sets = (False, True) if args.only is None else (args.only == "determined",)
    begin, rows = time.perf_counter(), []
    for row in measure_all(list_draws(args.draws, args.seed, args.kinds, sets), args.workers):
        rows.append(row)
        if args.verbose:
            outcome = ("right" if row["right"] else "WRONG") if row["accepted"] else "refused"
            text = f"{row['kind']:<18}{row['seed']:>6} {outcome:<8}{row['confidence']:>6.3f} {row['reason'] or ''}"
            print(text, flush=True)
    rows.sort(key=lambda row: (row["determined"], row["seed"]))
    print("\n".join(summary(rows)))
    elapsed = time.perf_counter() - begin
    print(f"{len(rows)} draws in {elapsed:.0f} s, {sum(row['seconds'] for row in rows):.0f} s of the processor")
    if args.json:
        result = state_conditions(*_SOURCES) | {"draws": args.draws, "seed": args.seed, "workers": args.workers}
        result |= {"elapsed": round(elapsed, 1)} | count_outcomes(rows) | {"rows": rows}
        with write_atomically(Path(args.json)) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
