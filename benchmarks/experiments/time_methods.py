"""Store the time of the methods, in turns, on a CPU or a GPU. Needs FULLFIELD_DATA.

python -m benchmarks.experiments.time_methods                    writes benchmarks/results/auto_cpu.json
python -m benchmarks.experiments.time_methods --device cuda -o benchmarks/results/auto_h200.json

CPU: seconds of a Sintel pair of 1024x436 on one thread and on every core. On one thread processor time is counted,
which other programs on the machine disturb less; on every core the time that passes, for which nothing else may run.

GPU: milliseconds between two events of a hard Sintel pair, enlarged, with frames on the GPU. One form is measured after
the other, since each keeps a network that is prepared for the size.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate

import fullfield
from benchmarks.experiments import build_program_parser
from benchmarks.harness import event_clock
from benchmarks.shared_pairs import data_folder, shared_pairs
from benchmarks.stored import RESULTS, state_conditions
from fullfield.estimators import release_memory
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
HARD_PAIR = "sintel market_5"
GPU_FORMS: dict[str, dict[str, Any]] = {
    "fullfield-s": {"method": "fullfield-s"},
    "fullfield-m": {"method": "fullfield-m"},
    "auto": {"method": "auto"},
    "auto, accurate": {"method": "auto", "preset": "accurate"},
    "tvl1": {"method": "tvl1"},
}
GPU_SIZES = ((436, 1024), (1080, 1920), (2160, 3840), (3432, 8192))
GPU_CALLS = 10
SOURCES = (
    "src/fullfield/estimators/network.py",
    "src/fullfield/models/cascade.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/models/raft/[!p]*.py",
    "src/fullfield/models/sea_raft/*.py",
    "src/fullfield/ops/_fused/reference.py",
    "src/fullfield/ops/correlation/_cpu_*.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
)
GPU_SOURCES = (
    "src/fullfield/models/cascade.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/raft/[!p]*.py",
    "src/fullfield/models/sea_raft/*.py",
    "src/fullfield/ops/_fused/*.cu*",
    "src/fullfield/ops/_fused/cuda.py",
    "src/fullfield/ops/correlation/cuda/*.cu*",
    "src/fullfield/ops/correlation/cuda/*.py",
    "src/fullfield/ops/tvl1/cuda/*.cu*",
    "src/fullfield/ops/tvl1/config.py",
    "src/fullfield/ops/tvl1/guided_cuda.py",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/estimators/[!b]*.py",
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


def time_on_gpu() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the times of every form at every size; two calls before prepare it."""
    first, second = (read_frame(path).cuda()[None] for path in shared_pairs(data_folder())[HARD_PAIR][:2])
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for height, width in GPU_SIZES:
        frames = [interpolate(frame, (height, width), mode="bicubic")[0].clamp(0, 1) for frame in (first, second)]
        for name, form in GPU_FORMS.items():
            call = partial(fullfield.estimate, frames[0], frames[1], **form)
            call(), call()
            milliseconds = [round(1e3 * event_clock(call), 3) for _ in range(GPU_CALLS)]
            quartiles = statistics.quantiles(milliseconds, n=4)
            times.setdefault(f"{width}x{height}", {})[name] = {
                "median_ms": quartiles[1],
                "quartiles_ms": [quartiles[0], quartiles[2]],
                "repeats": GPU_CALLS,
            }
            print(f"{width}x{height} {name}: {quartiles[1]:.2f} ms", flush=True)
            release_memory()
    return times


def main() -> None:
    """Time every form and store the times."""
    parser = build_program_parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("-o", "--output", type=Path, help="[benchmarks/results/auto_DEVICE.json]")
    arguments = parser.parse_args()
    result = measure_on_gpu() if arguments.device == "cuda" else measure_on_cpu()
    output = arguments.output or RESULTS / f"auto_{arguments.device}.json"
    with write_atomically(output) as path:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if "seconds" in name or name == "times"}))


def measure_on_gpu() -> dict[str, Any]:
    """Return the times on a GPU, as they are stored."""
    return {
        "what": "ms of one call of estimate() with frames on the GPU, and of its result",
        "frames": HARD_PAIR,
        "command": "python -m benchmarks.experiments.time_methods --device cuda",
        **state_conditions(*GPU_SOURCES),
        "times": time_on_gpu(),
    }


def measure_on_cpu() -> dict[str, Any]:
    """Return the seconds on the CPU, as they are stored."""
    cores = os.cpu_count() or 1
    seconds, elapsed = time_in_turns(time.process_time, 1), time_in_turns(time.perf_counter, cores)
    return {
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


if __name__ == "__main__":
    main()
