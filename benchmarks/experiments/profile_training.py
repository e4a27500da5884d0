"""Measure where the time of a training step goes on a GPU: compiling, step, scenes, the loop, and the kernels of each.

python -m benchmarks.experiments.profile_training -o profile.json --cases fullfield-m:6 fullfield-m:4-12 fullfield-s:6

Each case is a network and its updates; ``4-12`` draws a number for each step as a training does. Steps are recorded as
CUDA graphs unless --eager is given. The file is written after each case, so that a run that is cut has a result too.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.experiments import build_program_parser
from fullfield.cli.argtypes import parse_update_count_or_range, parse_wxh_as_height_width
from fullfield.models.weights import build_random_model
from fullfield.training.flow import FlowTraining, Mixture, PairGenerator, SceneStyle
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.config import MIXTURE
from fullfield.training.flow.loop import BatchPrefetcher
from fullfield.training.flow.pictures import load_or_create_picture_pack
from fullfield.training.flow.ranks import Ranks
from fullfield.training.flow.stepping import TrainingStepper

_KERNELS = 90  # listed in the result


def wait() -> None:
    """Return when the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(work: Callable[[int], Any], count: int) -> dict[str, float]:
    """Return the milliseconds of ``work(0)`` ... on the device, and those for which each keeps the host."""
    wait()
    start, host = time.perf_counter(), 0.0
    for number in range(count):
        begin = time.perf_counter()
        work(number)
        host += time.perf_counter() - begin
    wait()
    return {"ms": round(1e3 * (time.perf_counter() - start) / count, 2), "host_ms": round(1e3 * host / count, 2)}


def kernels(work: Callable[[int], Any], count: int) -> list[dict[str, Any]]:
    """Return the device's kernels with their milliseconds and launches for each call, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU]) as recorded:
        for number in range(count):
            work(number)
        wait()
    rows = [
        {
            "name": event.key[:110],
            "ms": round(event.self_device_time_total / 1e3 / count, 4),
            "launches": round(event.count / count, 2),
        }
        for event in recorded.key_averages()
    ]
    rows = sorted((row for row in rows if row["ms"] > 0), key=lambda row: -row["ms"])
    total = {
        "name": "total",
        "ms": round(sum(row["ms"] for row in rows), 3),
        "launches": sum(r["launches"] for r in rows),
    }
    return [total, *rows[:_KERNELS]]


def measure(text: str, args: argparse.Namespace, source: Mixture, result: dict[str, Any]) -> None:
    """Measure one network and number of updates; add to ``result``."""
    name, _, given = text.partition(":")
    training = FlowTraining(
        batch=args.batch,
        updates=parse_update_count_or_range(given),
        precision="bfloat16",
        channels_last=True,
        compile=None if args.compile == "none" else args.compile,
        graph=not args.eager,
    )
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    stepper = TrainingStepper(build_random_model(name).to(device).train(), training)
    batch: FlowBatch = source.batch(0, args.batch)
    start = time.perf_counter()
    for number in range(16):
        stepper.train_on_batch(batch, number, learning_rate=1e-4)
    wait()
    result["first_16_steps_s"] = round(time.perf_counter() - start, 1)
    result["reading"] = stepper.wait_read_and_reset_means()._asdict()
    result["step"] = timed(lambda number: stepper.train_on_batch(batch, number, learning_rate=1e-4), args.steps)
    result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    result["step_kernels"] = kernels(lambda number: stepper.train_on_batch(batch, number, learning_rate=1e-4), 9)
    ahead = BatchPrefetcher(source, args.batch, device, Ranks())

    def both(number: int) -> None:
        stepper.train_on_batch(ahead.take_or_fetch_batch(number), number, learning_rate=1e-4)
        ahead.prefetch_batch(number + 1)

    timed(both, 12)  # the processes that draw scenes start
    result["loop"] = timed(lambda number: both(12 + number), args.steps)
    result["loop"]["pairs_per_second"] = round(1e3 * args.batch / result["loop"]["ms"], 1)
    result["reading_of_loop"] = stepper.wait_read_and_reset_means()._asdict()
    result["scenes"] = timed(lambda number: ahead.prefetch_batch(13 + args.steps + number), 30)
    result["scene_kernels"] = kernels(lambda number: ahead.prefetch_batch(43 + args.steps + number), 4)[:30]


def main() -> None:
    """Measure all cases and write the result."""
    parser = build_program_parser(__doc__)
    parser.add_argument("--cases", nargs="+", required=True, metavar="NETWORK:UPDATES")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=parse_wxh_as_height_width, default=(368, 496))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compile", default="default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="do not record the step as a CUDA graph")
    parser.add_argument("--pictures", help="picture pack")
    default = [f"{style}={share:g}" for style, share in MIXTURE.items()]
    parser.add_argument("--mixture", nargs="+", default=default, metavar="STYLE=SHARE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--traceback", action="store_true", help="store where a case failed")
    args = parser.parse_args()
    outcome: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "size": args.size,
        "mixture": args.mixture,
        "cases": [],
    }
    pictures: Any = load_or_create_picture_pack(args.pictures)
    mixture = {style: float(share) for style, _, share in (text.partition("=") for text in args.mixture)}
    for text in args.cases:
        parts = []
        for seed, (style, share) in enumerate(mixture.items()):
            how: dict[str, Any] = {
                "style": SceneStyle.from_preset(style),
                "workers": args.workers,
                "pictures": pictures,
            }
            pairs = PairGenerator(args.size, seed=seed, device=args.device, **how)
            pictures = pairs.atlas
            parts.append((pairs, share))
        result = {"case": text, "batch": args.batch, "eager": args.eager, "compile": args.compile}
        outcome["cases"].append(result)
        try:
            measure(text, args, Mixture(parts), result)
        except Exception as error:  # noqa: BLE001  # the other cases go on
            result["error"] = traceback.format_exc()[-3000:] if args.traceback else f"{type(error).__name__}: {error}"
        short = {key: value for key, value in result.items() if not key.endswith("kernels")}
        print(json.dumps(short), flush=True)
        args.output.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
