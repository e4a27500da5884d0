"""Is `auto` rightly the default? Mean errors of TV-L1, fullfield-s and auto on every shared pair with true flow.

python scripts/compare_methods.py [NAME ...]     needs FULLFIELD_DATA; exits with 1 while auto loses a pair to TV-L1
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from score_network import FLOW, pairs

import fullfield
from fullfield.io import read_flow
from fullfield.metrics import epe

METHODS = ("tvl1", "fullfield-s", "auto")


def every_pair() -> dict[str, tuple[Path, Path, Path]]:
    """With FlyingChairs' three."""
    found = pairs()
    for number in ("0000000", "0000003", "0000006"):
        folder = FLOW / "flyingchairs"
        found[f"flyingchairs {number}"] = (
            folder / f"{number}-img0.ppm", folder / f"{number}-img1.ppm", folder / f"{number}-gt.flo",
        )  # fmt: skip
    return found


def main(wanted: list[str]) -> int:
    """Print a row a pair, and the verdict."""
    sums, lost, count = dict.fromkeys(METHODS, 0.0), [], 0
    print(f"{'pair':<26}" + "".join(f"{method:>13}" for method in METHODS) + "   seconds", flush=True)
    for name, (first, second, truth) in every_pair().items():
        if wanted and not any(word in name for word in wanted):
            continue
        known, errors, seconds = read_flow(truth), {}, []
        for method in METHODS:
            begin = time.perf_counter()
            estimated = fullfield.estimate(first, second, method)
            seconds.append(time.perf_counter() - begin)
            errors[method] = epe(estimated.flow, known.flow, known.valid)
            sums[method] += errors[method]
        count += 1
        times = ", ".join(f"{one:.1f}" for one in seconds)
        print(f"{name:<26}" + "".join(f"{errors[method]:>13.3f}" for method in METHODS) + f"   {times}", flush=True)
        if errors["auto"] > errors["tvl1"]:
            lost.append(name)
    print(f"{'average':<26}" + "".join(f"{sums[method] / max(count, 1):>13.3f}" for method in METHODS))
    print(f"auto loses to TV-L1: {', '.join(lost)}" if lost else "auto is at least as good as TV-L1 on every pair")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
