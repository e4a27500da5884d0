"""Score the network that comes with fullfield on the shared pairs with true flow, and store the mean errors.

python scripts/score_network.py          writes benchmarks/results/fullfield_s_cpu.json; needs FULLFIELD_DATA
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import fullfield
from fullfield.io import read_flow
from fullfield.metrics import epe

ROOT = Path(__file__).resolve().parent.parent
FLOW = Path(os.environ.get("FULLFIELD_DATA", ROOT.parent / "shared" / "data")) / "flow"
METHODS = ("auto", "fullfield-s", "tvl1")
MIDDLEBURY = ("Dimetrodon", "Grove2", "Grove3", "RubberWhale", "Urban2", "Venus")


def pairs() -> dict[str, tuple[Path, Path, Path]]:
    """First frame, second frame and true flow of every pair, by name."""
    found = {}
    for name in MIDDLEBURY:
        folder = FLOW / "middlebury" / name
        found[f"middlebury {name}"] = (folder / "frame10.png", folder / "frame11.png", folder / "flow10.flo")
    truth = next((FLOW / "sintel" / "truth").rglob("*.flo"))
    for kind in ("clean", "final"):
        first, second = (next((FLOW / "sintel" / kind).rglob(f"frame_000{number}.png")) for number in (2, 3))
        found[f"sintel {kind} alley_1"] = (first, second, truth)
    for name in ("market_5", "sequence_2"):
        folder = FLOW / "sintel" / "hard" / name
        found[f"sintel {name}"] = (folder / "frame_0001.png", folder / "frame_0002.png", folder / "frame_0001.flo")
    return found


def main() -> int:
    """Estimate and score; the files stay where they are."""
    errors: dict[str, dict[str, float]] = {method: {} for method in METHODS}
    for name, (first, second, truth) in pairs().items():
        known = read_flow(truth)
        for method in METHODS:
            estimated = fullfield.estimate(first, second, method)
            errors[method][name] = round(epe(estimated.flow, known.flow, known.valid), 4)
        print(name, *(f"{method} {errors[method][name]:.3f} px" for method in METHODS), flush=True)
    stored = {
        "what": "mean end-point error in px, default settings, on the CPU",
        "errors": errors,
        "environment": {
            "versions": {"fullfield": fullfield.__version__, "torch": torch.__version__},
            "date": time.strftime("%Y-%m-%d"),
        },
    }
    target = ROOT / "benchmarks" / "results" / "fullfield_s_cpu.json"
    part = target.with_name(f"{target.name}.part")
    part.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
