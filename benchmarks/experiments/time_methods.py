"""Store the seconds of the methods on the CPU: a Sintel pair of 1024x436, in turns, on one thread and on every core.

python -m benchmarks.experiments.time_methods      needs FULLFIELD_DATA; writes benchmarks/results/auto_cpu.json

On one thread processor time is counted, which other programs on the machine disturb less; on every core the time that
passes, for which nothing else may run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
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


def time_in_turns(clock: Callable[[], float], threads: int) -> dict[str, list[float]]:
    """Time every form in turns by ``clock``; a call before each, for one form displaces another's network."""
    torch.set_num_threads(threads)
    first, second = (read_frame(path) for path in shared_pairs(data_folder())[PAIR][:2])
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    for _ in range(ROUNDS):
        for name, form in FORMS.items():
            call = partial(fullfield.estimate, first, second, device="cpu", threads=threads, **form)
            call()
            start = clock()
            call()
            seconds[name].append(round(clock() - start, 3))
    return seconds


def main() -> None:
    """Time every form and store the seconds."""
    cores = os.cpu_count() or 1
    seconds, elapsed = time_in_turns(time.process_time, 1), time_in_turns(time.perf_counter, cores)
    result = {
        "what": "processor seconds of one pair on one thread; seconds that pass with a thread a core",
        "frames": PAIR,
        "size": [436, 1024],
        "threads": 1,
        "command": "python -m benchmarks.experiments.time_methods",
        **state_conditions(*SOURCES),
        "seconds": seconds,
        "threads_of_elapsed_seconds": cores,
        "elapsed_seconds": elapsed,
    }
    with write_atomically(RESULTS / "auto_cpu.json") as path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"seconds": seconds, "elapsed_seconds": elapsed}))


if __name__ == "__main__":
    main()
