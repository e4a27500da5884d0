"""Store the cost of ``reliability=True`` for a worker on the CPU with one thread. Needs FULLFIELD_DATA.

python -m benchmarks.experiments.time_reliability      writes benchmarks/results/reliability_cpu.json

Processor seconds of a Sintel pair of 1024x436 in a process that keeps one estimator, with and without, in turns.
"""

from __future__ import annotations

import json
import time
from functools import partial

import torch

from benchmarks.experiments import build_program_parser
from benchmarks.shared_pairs import data_folder, shared_pairs
from benchmarks.stored import RESULTS, state_conditions
from fullfield.estimators.estimation import build_estimator, estimate
from fullfield.io import read_frame
from fullfield.io.files import write_atomically

PAIR = "sintel clean alley_1"
METHODS = ("fullfield-s", "auto", "tvl1")
ROUNDS = 5
SOURCES = (
    "src/fullfield/estimators/_reliability.py",
    "src/fullfield/models/cascade.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/ops/correlation/_cpu_*.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
)


def time_method(method: str) -> dict[str, list[float]]:
    """Return the processor seconds of each call by name of its form."""
    first, second = (read_frame(path) for path in shared_pairs(data_folder())[PAIR][:2])
    call = partial(estimate, first, second, build_estimator(method), device="cpu", threads=1)
    seconds: dict[str, list[float]] = {"flow": [], "reliability": []}
    for number in range(1 + ROUNDS):
        for name in seconds:
            start = time.process_time()
            call(reliability=name != "flow")
            if number:  # the first call compiles
                seconds[name].append(round(time.process_time() - start, 3))
    return seconds


def main() -> None:
    """Time all methods and store the times."""
    build_program_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    result = {
        "what": "processor seconds of estimate() for one pair on one thread, without and with reliability=True",
        "frames": PAIR,
        "size": [436, 1024],
        "threads": 1,
        "command": "python -m benchmarks.experiments.time_reliability",
        **state_conditions(*SOURCES),
        "seconds": {method: time_method(method) for method in METHODS},
    }
    with write_atomically(RESULTS / "reliability_cpu.json") as path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["seconds"]))


if __name__ == "__main__":
    main()
