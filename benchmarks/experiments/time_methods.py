"""Store processor seconds of the methods on the CPU: a Sintel pair of 1024x436, one thread, in turns.

python -m benchmarks.experiments.time_methods      needs FULLFIELD_DATA; writes benchmarks/results/auto_cpu.json

Processor time is counted, not the clock, so that other programs on the machine disturb less.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import torch

import fullfield
from benchmarks.shared_pairs import data_folder, shared_pairs
from benchmarks.stored import RESULTS, state_conditions
from fullfield.io import read_frame
from fullfield.io.files import write_atomically

PAIR = "sintel clean alley_1"
FORMS: dict[str, dict[str, Any]] = {
    "auto": {"method": "auto"},
    "auto, exact": {"method": "auto", "precision": "exact"},
    "fullfield-s": {"method": "fullfield-s", "precision": "exact"},
    "tvl1": {"method": "tvl1"},
}
ROUNDS = 3
SOURCES = (
    "src/fullfield/estimators/network.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/ops/correlation/_cpu_*.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
)


def main() -> None:
    """Time every form in turns and store the seconds; a call before each, for one form displaces another's network."""
    torch.set_num_threads(1)
    first, second = (read_frame(path) for path in shared_pairs(data_folder())[PAIR][:2])
    calls = {
        name: partial(fullfield.estimate, first, second, device="cpu", threads=1, **form)
        for name, form in FORMS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start = time.process_time()
            call()
            seconds[name].append(round(time.process_time() - start, 3))
    result = {
        "what": "processor seconds of one pair, in turns, on one thread",
        "frames": PAIR,
        "size": list(first.shape[-2:]),
        "threads": 1,
        "command": "python -m benchmarks.experiments.time_methods",
        **state_conditions(*SOURCES),
        "seconds": seconds,
    }
    with write_atomically(RESULTS / "auto_cpu.json") as path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
