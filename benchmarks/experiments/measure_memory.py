"""Store the memory of a worker on the CPU: each method and size in a process of its own, with one thread.

python -m benchmarks.experiments.measure_memory      writes benchmarks/results/worker_memory_cpu.json

A worker keeps one estimator and computes the same pair three times. ``peak_mb`` is the largest resident set of the
process so far, ``kept_mb`` the resident set after the calls. In ``mixed``, frames are small, large and small again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments import build_program_parser
from benchmarks.stored import RESULTS, state_conditions
from fullfield.io.files import write_atomically

METHODS = ("fullfield-s", "auto", "tvl1")
SIZES = ((436, 1024), (1080, 1920))
CALLS = 3
SOURCES = (
    "src/fullfield/estimators/network.py",
    "src/fullfield/estimators/refined.py",
    "src/fullfield/models/cascade.py",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/ops/correlation/_cpu_*.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
)


def read_resident_mb(entry: str) -> float:
    """Return an entry of this process's status, such as ``VmHWM``, in megabytes."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.split(entry + ":")[1].split()[0]) * 1024 / 1e6, 1)


def run_worker(method: str, sizes: list[tuple[int, int]]) -> dict[str, Any]:
    """Estimate a pair of each size in turn, and return what the process took after each."""
    import torch

    from fullfield.estimators.estimation import build_estimator, estimate
    from fullfield.estimators.protocol import prepare_estimator_if_supported
    from fullfield.testing import sample_textured_scene

    estimator = build_estimator(method)
    prepare_estimator_if_supported(estimator, "cpu")
    backend, prepared, rows = "", _read_memory(), []
    for height, width in sizes:
        scene = sample_textured_scene(height, width, seed=3)
        frames = [(frame.clamp(0, 1) * 255).round().to(torch.uint8) for frame in (scene.frame1, scene.frame2)]
        for _ in range(CALLS):
            flow = estimate(frames[0], frames[1], estimator, device="cpu", threads=1)
        assert flow.flow.shape == (2, height, width)
        assert bool(flow.flow.isfinite().all())
        rows.append({"size": [height, width], **_read_memory()})
        backend = flow.backend
    return {"backend": backend, "prepared": prepared, "after": rows}


def _read_memory() -> dict[str, float]:
    return {"peak_mb": read_resident_mb("VmHWM"), "kept_mb": read_resident_mb("VmRSS")}


def measure_in_new_process(method: str, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return :func:`run_worker` of a process that does nothing else."""
    listed = [f"{width}x{height}" for height, width in sizes]
    command = [sys.executable, "-m", "benchmarks.experiments.measure_memory", "--worker", method, *listed]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Measure all methods and sizes, or one as a worker."""
    parser = build_program_parser(__doc__)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    words = parser.parse_args().worker
    if words:
        sizes = [(int(height), int(width)) for width, height in (word.split("x") for word in words[1:])]
        print(json.dumps(run_worker(words[0], sizes)))
        return
    for method in METHODS:  # compile first, which takes memory of its own
        measure_in_new_process(method, SIZES[:1])
    alone = {
        method: {f"{width}x{height}": measure_in_new_process(method, [(height, width)]) for height, width in SIZES}
        for method in METHODS
    }
    mixed = {method: measure_in_new_process(method, [SIZES[0], SIZES[1], SIZES[0]]) for method in METHODS}
    result = {
        "what": f"resident memory of a process with one thread that estimates {CALLS} pairs of a size, in MB of 10^6",
        "threads": 1,
        "command": "python -m benchmarks.experiments.measure_memory",
        **state_conditions(*SOURCES),
        "alone": alone,
        "mixed": mixed,
    }
    with write_atomically(RESULTS / "worker_memory_cpu.json") as path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
