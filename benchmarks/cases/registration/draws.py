"""Register random pairs that determine a pose, and pairs that do not, and store each outcome.

python -m benchmarks.cases.registration.draws --seeds 0 140 --json runs/draws.json

A pair that determines none must be refused; of the others, the pose must be right where one is accepted. Seconds are
processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullfield.io.files import atomic_path
from fullfield.registration import register
from fullfield.registration.verdict import list_signs
from fullfield.testing.cloud_pairs import DETERMINED, UNDETERMINED, CloudPair, determined_pair, undetermined_pair

_RIGHT = 0.02  # of the scene's diagonal: RMSE below which a pose is right


def pose_error(pair: CloudPair, transform: np.ndarray[Any, np.dtype[np.float64]] | None) -> float:
    """Return the RMSE of a pose over the source's points, as a fraction of the scene's diagonal; NaN without poses."""
    if transform is None or pair.truth is None:
        return math.nan
    difference = transform - pair.truth
    away = pair.source @ difference[:3, :3].T + difference[:3, 3]
    return float(np.sqrt((away**2).sum(1).mean())) / pair.extent


@contextmanager
def recorded_signs() -> Iterator[list[Any]]:
    """Record the signs from which the confidences are computed."""
    search = sys.modules["fullfield.registration.search"]
    signs, estimate = list[Any](), search.estimate_confidence

    def record(evidence: Any, contradiction: float) -> float:
        signs.append(list_signs(evidence, contradiction))
        return float(estimate(evidence, contradiction))

    search.estimate_confidence = record  # type: ignore[attr-defined]
    try:
        yield signs
    finally:
        search.estimate_confidence = estimate  # type: ignore[attr-defined]


def measure(pair: CloudPair, seed: int, *, determined: bool) -> dict[str, Any]:
    """Register one pair."""
    begin = time.process_time()
    with recorded_signs() as signs:
        result = register(pair.source, pair.target)
    seconds = time.process_time() - begin
    error = pose_error(pair, result.transform if result.success else result.candidate)
    return {
        "kind": pair.kind,
        "seed": seed,
        "determined": determined,
        "accepted": result.success,
        "right": bool(error < _RIGHT),
        "confidence": result.confidence,
        "reason": result.reason,
        "seconds": seconds,
        "signs": signs[-1].tolist() if signs else [],
        "certain": not result.success and not result.untried,
    }


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines with the counts of each kind."""
    lines = [f"{'kind':<18}{'draws':>6}{'accepted':>9}{'right':>6}{'wrong':>6}{'max conf.':>10}{'seconds':>8}"]
    kinds = Counter((row["determined"], row["kind"]) for row in rows)
    for determined, kind in sorted(kinds):
        own = [row for row in rows if row["kind"] == kind and row["determined"] == determined]
        accepted = [row for row in own if row["accepted"]]
        right = sum(row["right"] for row in accepted)
        top = max((row["confidence"] for row in own), default=0.0)
        seconds = float(np.median([row["seconds"] for row in own]))
        counts = f"{len(own):>6}{len(accepted):>9}{right:>6}{len(accepted) - right:>6}"
        lines.append(f"{kind:<18}{counts}{top:>10.3f}{seconds:>8.2f}")
    return lines


def main() -> None:
    """Register the pairs of a range of seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 42), metavar=("FIRST", "END"))
    parser.add_argument("--kinds", nargs="+", choices=[*UNDETERMINED, *DETERMINED], help="[all]")
    parser.add_argument("--json", metavar="FILE", help="write every outcome")
    parser.add_argument("--verbose", action="store_true", help="print each outcome")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kinds, generate, determined in ((UNDETERMINED, undetermined_pair, False), (DETERMINED, determined_pair, True)):
        names = [name for name in kinds if args.kinds is None or name in args.kinds]
        for seed in range(*args.seeds) if names else ():
            row = measure(generate(seed, names[seed % len(names)]), seed, determined=determined)
            rows.append(row)
            if args.verbose:
                outcome = ("right" if row["right"] else "WRONG") if row["accepted"] else "refused"
                print(
                    f"{row['kind']:<18}{seed:>5} {outcome:<8}{row['confidence']:>6.3f} {row['reason'] or ''}",
                    flush=True,
                )
    print("\n".join(summary(rows)))
    if args.json:
        with atomic_path(Path(args.json)) as temporary:
            temporary.write_text(json.dumps({"rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
