"""A shot of EXR plates to EXR vectors as ``fullfield shot`` makes them, beside the estimation of its pairs alone.

The estimation alone takes as many pairs (of a long shot some of them, and their time is scaled), from frames that lie
on the device, as the engine asks for them: both ways in one call where the estimator has that, each refined with the
other where it refines. What the whole takes longer is reading, sending, fetching and writing that estimation did not
hide; what each stage took, in all threads, is told beside. Of several devices the start of the processes is told apart:
between the first file and the last the devices are at work.

Before times count, a short shot warms up and is checked; the timed ones are checked too.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.harness import Candidate, CheckFailed, Timing, interleaved
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.protocol import Estimator, prepare_estimator_if_supported
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import get_method, resolve_method_name
from fullfield.io import read_flow_layers
from fullfield.io.oiio import Header, one_thread_a_file, write_and_verify_picture
from fullfield.sequences import Outcome, Output, ShotJob, ShotSettings, write_shot_flow, write_shot_flow_on_devices
from fullfield.sequences.names import find_frame_files
from fullfield.sequences.results import StageTime
from fullfield.testing import sample_textured_scene

ALONE, SHOT = "estimation alone", "files to files"
_KEPT = 9  # plates that the estimation alone goes round in
_STEP = 3  # pixels that the picture moves by from plate to plate
_DISTINCT = 2 * (_KEPT - 1)  # plates before the first one returns
_GRAIN = 0.01  # what a camera adds, without which plates would pack too well
CONTENT = (
    f"synthetic textured scene that shifts by {_STEP} px a frame, there and back; "
    f"grain of standard deviation {_GRAIN} of the display range, other grain in each distinct plate; linear RGB"
)
_TELLS = 4  # words on the way through a shot
_WARM = 24  # frames of the shot that is checked before times count
_ALLOWED = 0.02  # pixels that a stored vector may be off


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    method: str
    presets: Sequence[str]
    sizes: Sequence[tuple[int, int]]
    """Height, width of the plates."""
    frames: int
    device: torch.device
    plates: Sequence[str] = ("zip",)
    """Compressions of the plates."""
    max_pairs: int = 64
    direction: str = "both"
    devices: Sequence[str] = ()
    dtype: str | None = None
    compression: str | None = None
    folder: str | None = None
    repeats: int = 2

    @property
    def pairs(self) -> int:
        """Of the estimation alone."""
        return min(self.frames - 1, self.max_pairs)


def cases(plan: Plan, note: Note) -> Cases:
    """All cases of a plan."""
    for size, compression in itertools.product(plan.sizes, plan.plates):
        with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
            note(f"making {plan.frames} plates of {size[1]}×{size[0]}, {compression}")
            make_plates(Path(folder), size, plan.frames, compression)
            for preset in plan.presets:
                label = f"{plan.method} {preset}, {plan.frames} frames of {size[1]}×{size[0]}, {plan.direction}"
                label += "" if compression == "zip" else f", plates {compression}"
                yield Case(label, partial(_case, plan, Path(folder), preset, size, compression, note))


def make_plates(folder: Path, size: tuple[int, int], count: int, compression: str = "zip") -> None:
    """``plate.0001.exr`` and so on: a texture that goes by, with grain, in linear half floats.

    There and back, so that the texture need not be as long as the shot; what comes again is the same file.
    """
    height, width = size
    texture = _draw_texture(height, width + _STEP * (_KEPT - 1))

    def path(number: int) -> Path:
        return folder / f"plate.{number:04d}.exr"

    def write(number: int) -> None:
        way = number % _DISTINCT
        left = _STEP * min(way, _DISTINCT - way)
        # NumPy, which computes in the thread that calls it: PyTorch would start its threads for each of ours.
        frame = np.random.default_rng(number).standard_normal((height, width, 3), np.float32)
        frame *= _GRAIN
        frame += texture[:, left : left + width]
        linear = (np.clip(frame, 0, 1, out=frame) ** np.float32(2.2)).astype(np.float16)
        write_and_verify_picture(path(number), "openexr", linear, ("R", "G", "B"), Header({"compression": compression}))

    with one_thread_a_file, ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(write, range(1, min(count, _DISTINCT) + 1)):
            pass
    for number in range(_DISTINCT + 1, count + 1):
        os.link(path((number - 1) % _DISTINCT + 1), path(number))


@lru_cache(maxsize=1)
def _draw_texture(height: int, width: int) -> NDArray[np.float32]:
    """Return a picture [H, W, 3]; the plates of all compressions show the same."""
    return sample_textured_scene(height, width, seed=4).frame1.permute(1, 2, 0).contiguous().numpy()


def _case(plan: Plan, folder: Path, preset: str, size: tuple[int, int], compression: str, note: Note) -> Result:
    method = resolve_method_name(plan.method)
    frame_files = find_frame_files(str(folder / "plate.%04d.exr"))
    job = ShotJob(
        frame_files,
        tuple(frame_files.files),
        Output(str(folder / "mv.%04d.exr"), plan.dtype, plan.compression),
        ShotSettings(plan.direction, device=str(plan.device)),
        method,
        get_method(method).load_presets()[preset],
    )
    estimator = build_estimator(job.method, config=job.config, backend=job.backend)
    note(f"preparing {method} {preset}")
    prepare_estimator_if_supported(estimator, torch.device(job.settings.device), size)
    plates = job.open_plates()
    job, _ = job.write_settings_and_get_job_and_plan(estimator, plates)
    retained = [plates.read(number).frame[None].to(plan.device) for number in plates.numbers[:_KEPT]]
    runs: list[Outcome] = []
    spans: list[tuple[float, float]] = []
    warm = [*plates.numbers[:_WARM]]

    def numbers(seen: Sequence[object]) -> list[int]:
        return plates.numbers if seen else warm

    def good(outcome: Outcome, asked: Sequence[int]) -> Outcome:
        if (problem := _unfinished(outcome, asked)) is not None:
            raise CheckFailed(f"{problem}; no time is reported")
        return outcome

    def shot() -> Outcome:
        asked, written = numbers(runs), itertools.count(1)

        def tell(_: int) -> None:
            number = next(written)
            if number * _TELLS // len(asked) > (number - 1) * _TELLS // len(asked):
                note(f"{number} of {len(asked)} frames")

        requested = replace(job, numbers=tuple(asked))
        outcome = write_shot_flow(requested, asked, estimator, requested.open_plates(), report=tell)
        runs.append(good(outcome, asked))
        return runs[-1]

    def spread_out() -> Outcome:
        asked, start, told = numbers(spans), time.perf_counter(), list[float]()
        requested = replace(job, numbers=tuple(asked))
        outcome = write_shot_flow_on_devices(
            requested, asked, plan.devices, report=lambda _: told.append(time.perf_counter() - start)
        )
        spans.append((told[0], told[-1]) if told else (0.0, 0.0))
        return good(outcome, asked)

    right = partial(_wrong, job, estimator, retained)
    candidates = [
        Candidate(ALONE, partial(_alone, plan, estimator, retained), lambda _: None),
        Candidate(SHOT, shot, right),
    ]
    if plan.devices:
        candidates.append(Candidate(f"on {len(plan.devices)} devices", spread_out, right))
    measured, *others = interleaved(candidates, plan.repeats, note)
    full = (plan.frames - 1) / plan.pairs
    alone = Timing(ALONE, tuple(second * full for second in measured.seconds), measured.facts)
    rows = [{**_row(alone), "pairs_timed": plan.pairs, "frames_per_s": plan.frames / alone.median}]
    rows.append(_of_shot(plan, others[0], alone, runs[1:]))  # the first run of each was the check
    if plan.devices:
        rows.append(_of_devices(plan, others[1], alone, others[0], spans[1:]))
    return {
        "method": method,
        "preset": preset,
        "size": list(size),
        "frames": plan.frames,
        "direction": plan.direction,
        "vectors": {"dtype": plan.dtype or "float", "compression": plan.compression or "default"},
        "plates": {
            "dtype": "half",
            "compression": compression,
            "content": CONTENT,
            "distinct": min(plan.frames, _DISTINCT),
        },
        "folder": str(folder.parent),
        "plate_bytes": (folder / "plate.0002.exr").stat().st_size,
        "vector_bytes": (folder / "mv.0002.exr").stat().st_size,
        "threads": torch.get_num_threads(),
        "device": str(plan.device),
        "rows": rows,
    }


def _alone(plan: Plan, estimator: Estimator, kept: Sequence[Tensor]) -> None:
    """Return the pairs that are timed."""
    ways = ShotSettings(plan.direction).offsets_by_direction
    for number in range(plan.pairs):
        at = number % (len(kept) - 1)
        one_pair(estimator, kept[at], kept[at + 1], ways)
    if plan.device.type == "cuda":
        torch.cuda.synchronize(plan.device)


def one_pair(estimator: Estimator, first: Tensor, second: Tensor, ways: Iterable[str]) -> dict[str, Tensor]:
    """Return the flows of a pair as the engine requests them: ``forward`` and ``backward``."""
    refiner = estimator if isinstance(estimator, RefinedEstimator) and estimator.should_refine(first.device) else None
    plain = estimator if refiner is None else refiner.estimator
    requested = set(ways)
    both = refiner is not None or len(requested) == 2
    frames = {"forward": (first, second), "backward": (second, first)}
    together = getattr(plain, "bidirectional", None) if both else None
    result = None if together is None else together(first, second)
    if result is None:
        flows = {name: plain(*frames[name]) for name in (frames if both else requested)}
    else:
        flows = {"forward": result.forward, "backward": result.backward}
    if refiner is None:
        return flows
    back = {"forward": "backward", "backward": "forward"}
    return {name: refiner.refine(*frames[name], flows[name], flows[back[name]]) for name in requested}


def _unfinished(outcome: Outcome, numbers: Sequence[int]) -> str | None:
    if outcome.is_complete and outcome.written == list(numbers):
        return None
    told = "; ".join(map(str, outcome.problems)) or outcome.stopped or "no reason"
    return f"{len(outcome.written)} of {len(numbers)} files were written ({told})"


def _wrong(job: ShotJob, estimator: Estimator, kept: Sequence[Tensor], outcome: Outcome) -> str | None:
    """Return what is wrong with a run: vectors in its second file that are not those of the pairs alone."""
    for direction, way in job.settings.offsets_by_direction.items():
        at = min(1, 1 + way)
        flow = one_pair(estimator, kept[at], kept[at + 1], job.settings.offsets_by_direction)[direction][0].cpu()
        off = (read_flow_layers(job.output.get_path(outcome.written[1]))[direction] - flow).abs()
        limit = _ALLOWED + (flow.abs() / 1024 if job.output.dtype == "half" else 0)
        if not bool((off <= limit).all()):
            return f"{direction} vectors are off by {float(off.max()):.3g} px"
    return None


# ---- what is told


def _row(timing: Timing) -> dict[str, Any]:
    return {"ours": True, "status": "ok", **timing.as_dict(), "seconds": list(timing.seconds)}


def _of_shot(plan: Plan, timing: Timing, alone: Timing, runs: Sequence[Outcome]) -> dict[str, Any]:
    return {
        **_row(timing),
        "frames_per_s": plan.frames / timing.median,
        "times_alone": timing.median / alone.median,
        "device_share": alone.median / timing.median,
        "estimating_share": statistics.median(outcome.busy_s / outcome.wall_s for outcome in runs),
        "stages_ms": {name: _stage_ms(name, runs, plan.frames) for name in runs[-1].stages},
    }


def _stage_ms(name: str, runs: Sequence[Outcome], frames: int) -> dict[str, Any]:
    """Return a stage's milliseconds a frame in all threads: medians over the runs, and the elapsed ones of each."""
    stages = [outcome.stages.get(name, StageTime()) for outcome in runs]
    wall = [1000 * spent.wall_s / frames for spent in stages]
    cpu = [1000 * spent.cpu_s / frames for spent in stages]
    return {"wall": statistics.median(wall), "cpu": statistics.median(cpu), "wall_of_runs": wall}


def _of_devices(
    plan: Plan, timing: Timing, alone: Timing, one: Timing, spans: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    steady = statistics.median((plan.frames - 1) / max(last - first, 1e-9) for first, last in spans)
    return {
        **_row(timing),
        "devices": list(plan.devices),
        "first_file_s": statistics.median(first for first, _ in spans),
        "frames_per_s": steady,
        "times_one": steady * one.median / plan.frames,
        "times_one_with_start": one.median / timing.median,
        "times_alone": len(plan.devices) * plan.frames / alone.median / steady,
    }


def report(results: dict[str, Any]) -> list[str]:
    """Every case and its rows in words."""
    lines: list[str] = []
    for case in results["cases"]:
        vectors = f"{case['vectors']['dtype']}, {case['vectors']['compression']}"
        sizes = f"{case['plate_bytes'] / 1e6:.1f} and {case['vector_bytes'] / 1e6:.1f} MB"
        lines.append(f"{case['label']}, on {case['device']}; plates and vectors ({vectors}) of {sizes}")
        for row in case["rows"]:
            lines.append(f"  {row['name']:<20}{_words(row)}")
            for name, spent in row.get("stages_ms", {}).items():
                lines.append(
                    f"    {name:<18}{spent['wall']:8.2f} ms a frame, {spent['cpu']:.2f} of them of a processor"
                )
        lines.append("")
    return lines


def _words(row: dict[str, Any]) -> str:
    parts = [f"{row['median_s']:.3f} s ({row['min']:.3f} ... {row['max']:.3f})", f"{row['frames_per_s']:.1f} frames/s"]
    if "device_share" in row:
        busy = f"the device estimates {100 * row['estimating_share']:.0f} % of the time"
        parts.append(f"{row['times_alone']:.2f} × alone, {busy}")
    if "first_file_s" in row:
        parts.append(f"first file after {row['first_file_s']:.1f} s, then {row['times_alone']:.2f} × alone")
        parts.append(f"{row['times_one']:.2f} × as fast as one, with the start {row['times_one_with_start']:.2f}")
    return ", ".join(parts)
