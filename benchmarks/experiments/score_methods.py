"""Store mean end-point errors of the methods on every shared pair with true flow; check that `auto` beats TV-L1.

python -m benchmarks.experiments.score_methods             all methods; needs FULLFIELD_DATA
python -m benchmarks.experiments.score_methods auto tvl1   recompute these, keep the stored errors of the others

Writes benchmarks/results/errors_cpu.json; exits with 1 while `auto` loses a pair to TV-L1.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import fullfield
from benchmarks.experiments import build_program_parser
from benchmarks.shared_pairs import data_folder, shared_pairs
from benchmarks.stored import RESULTS, environment
from fullfield.estimators import RefinedEstimator
from fullfield.estimators.estimation import build_estimator
from fullfield.io import read_flow
from fullfield.io.files import write_atomically
from fullfield.metrics import epe
from fullfield.ops.tvl1.config import THREE_PASSES

DATA = data_folder()
RESULT = RESULTS / "errors_cpu.json"
COMMAND = "python -m benchmarks.experiments.score_methods"
SOURCES = [
    "src/fullfield/estimators/network.py",
    "src/fullfield/models/cascade.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/mirroring.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
    "src/fullfield/ops/tvl1/config.py",
]
RAFT = {
    name: {"method": kind, "weights": DATA / "weights" / f"{name}.pth"}
    for name, kind in (("raft-things", "raft"), ("raft-small", "raft-small"), ("raft-sintel", "raft"))
}
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("auto", "fullfield-m", "fullfield-s", "tvl1")},
    "auto, accurate": {"method": "auto", "preset": "accurate"},
    **RAFT,
    **{f"{name}, refined": {**RAFT[name], "refine": True} for name in ("raft-sintel", "raft-small")},
    **{f"{name}, three passes": {**RAFT[name], "passes": 3} for name in ("raft-sintel", "raft-small")},
}


def estimated(first: Path, second: Path, method: str, passes: int | None = None, **how: Any) -> fullfield.Flow:
    """Estimate the flow with the settings of one of :data:`METHODS`."""
    if passes is None:
        return fullfield.estimate(first, second, method, **how)
    refined = RefinedEstimator(build_estimator(method, **how), THREE_PASSES.replace(passes=passes))
    return fullfield.estimate(first, second, refined)


def main(arguments: list[str] | None = None) -> int:
    """Estimate, score, store after every method, and print the verdict."""
    parser = build_program_parser(__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="method [all]")
    wanted: list[str] = parser.parse_args(arguments).methods
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        print(f"expected some of {', '.join(METHODS)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    stored = json.loads(RESULT.read_text("utf-8")) if RESULT.is_file() else {}
    errors: dict[str, dict[str, float]] = stored.get("errors", {})
    made: dict[str, Any] = stored.get("made", {})
    pairs = shared_pairs(DATA)
    stored_pairs = dict.fromkeys(name for by_pair in errors.values() for name in by_pair)
    if absent := [name for name in stored_pairs if name not in pairs]:
        print(f"{DATA}: expected the pairs that have stored errors, {', '.join(absent)} missing", file=sys.stderr)
        return 2
    for method in wanted or METHODS:
        errors[method] = {}
        for name, (first, second, truth) in pairs.items():
            known, begin = read_flow(truth), time.perf_counter()
            found = estimated(first, second, **METHODS[method])
            seconds = time.perf_counter() - begin
            errors[method][name] = round(epe(found.flow, known.flow, known.valid), 4)
            print(f"{method}: {name} {errors[method][name]:.3f} px, {seconds:.1f} s", flush=True)
        versions = {"fullfield": fullfield.__version__, "torch": torch.__version__}
        about = environment()
        made[method] = {"versions": versions, "date": about["date"], "commit": about["commit"]}
        what = "mean end-point error in px, default settings, on the CPU"
        report: dict[str, Any] = {"what": what, "command": COMMAND, "sources": SOURCES, "environment": about}
        order = [name for name in METHODS if name in errors]
        for key, by_method in (("errors", errors), ("made", made)):
            report[key] = {name: by_method[name] for name in order}
        with write_atomically(RESULT) as part:
            part.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if not {"auto", "tvl1"} <= errors.keys():
        return 0
    auto, tvl1 = errors["auto"], errors["tvl1"]
    if auto.keys() != tvl1.keys():
        print("auto and TV-L1 have no errors of the same pairs; score both", file=sys.stderr)
        return 1
    lost = [name for name in auto if auto[name] > tvl1[name]]
    print(f"auto loses to TV-L1: {', '.join(lost)}" if lost else "auto is at least as good as TV-L1 on every pair")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
