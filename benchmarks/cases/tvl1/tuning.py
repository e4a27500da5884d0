"""Shapes of the schedules' kernels: safe defaults, and those measured for a GPU, kept on disk.

Nothing is measured unless :func:`tune` is called. What it finds is kept in the cache folder under the GPU's name, and
used from then on by every benchmark; kernels that have changed since are tuned anew. The solver itself takes the shapes
of ``fullfield.ops.tvl1.cuda.pipeline.SHAPES``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.cases.tvl1.romera import OURS, compile_all, schedule_of
from fullfield._kernels.cache_folder import find_or_create_writable_folder_or_none
from fullfield._kernels.nvrtc import KernelError
from fullfield.ops._launching import GpuProperties, get_gpu_properties
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import pipeline
from fullfield.ops.tvl1.cuda.pipeline import SHAPES, PipelineShape
from fullfield.ops.tvl1.cuda.state import Level

_SIZE, _ITERATIONS, _REPEATS = 2048, 10, 7


F32, F16 = torch.float32, torch.float16
# The first of each is the default: it runs on every GPU since Ampere.
CANDIDATES: dict[tuple[str, torch.dtype], tuple[PipelineShape, ...]] = {
    ("global", F32): (PipelineShape(256), PipelineShape(128), PipelineShape(512)),
    ("global", F16): (PipelineShape(256), PipelineShape(128), PipelineShape(512)),
    ("shared_fusion", F32): (PipelineShape(256, rows=32), PipelineShape(256, rows=16), PipelineShape(512, rows=64)),
    ("shared_fusion", F16): (PipelineShape(256, rows=32), PipelineShape(256, rows=16), PipelineShape(512, rows=64)),
    ("global_pipeline", F32): (
        PipelineShape(256, 5),
        PipelineShape(128, 5, blocks=8),
        PipelineShape(256, 2),
        PipelineShape(512, 5, blocks=2),
    ),
    ("global_pipeline", F16): (
        PipelineShape(256, 5),
        PipelineShape(128, 5, blocks=8),
        PipelineShape(256, 2),
        PipelineShape(512, 5, blocks=2),
    ),
    ("shared_pipeline", F32): (
        PipelineShape(128, 5),
        PipelineShape(256, 5, blocks=2),
        PipelineShape(256, 2),
        PipelineShape(128, 10, blocks=3),
    ),
    ("shared_pipeline", F16): (
        PipelineShape(128, 5),
        PipelineShape(256, 5, blocks=2),
        PipelineShape(256, 2),
        PipelineShape(128, 10, blocks=3),
    ),
    (OURS, F32): (
        SHAPES[F32],
        PipelineShape(128, 10, words=4, blocks=2),
        PipelineShape(128, 10, words=2, blocks=5),
        PipelineShape(160, 10, words=4, blocks=2),
        PipelineShape(64, 5, words=4, blocks=6),
    ),
    (OURS, F16): (
        SHAPES[F16],
        PipelineShape(128, 10, words=4, blocks=2),
        PipelineShape(128, 10, words=2, ahead=3, blocks=4),
        PipelineShape(64, 5, words=4, blocks=4),
    ),
}


def _key(schedule: str, dtype: torch.dtype) -> str:
    return f"{schedule} {str(dtype).removeprefix('torch.')}"


@functools.cache
def _kernels() -> str:
    """Tells the present kernels and candidates from others."""
    folders = (Path(__file__).parent, pipeline.COMMON.parent)
    sources = sorted(path for folder in folders for path in folder.glob("iterate*.cu*"))
    text = "".join(source.read_text("utf-8") for source in sources) + repr(CANDIDATES)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _place(device: GpuProperties) -> Path | None:
    folder = find_or_create_writable_folder_or_none("tvl1")
    return None if folder is None else folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', device.name)}.json"


@functools.cache
def _tuned(device: GpuProperties) -> dict[str, PipelineShape]:
    """Return what is stored for this GPU and these kernels; a file that cannot be used counts as absent."""
    place = _place(device)
    try:
        result = json.loads(place.read_text("utf-8")) if place is not None else {}
        if result.get("kernels") == _kernels():
            shapes = {key: PipelineShape(**values) for key, values in result["shapes"].items()}
            known = {_key(*kind): candidates for kind, candidates in CANDIDATES.items()}
            return {key: shape for key, shape in shapes.items() if shape in known.get(key, ())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    return {}


def shape_for(schedule: str, dtype: torch.dtype, device: GpuProperties) -> PipelineShape:
    """As tuned for this GPU, else the default. Raises ValueError for a schedule that is not known."""
    if (schedule, dtype) not in CANDIDATES:
        raise ValueError(f"expected a schedule of {', '.join(sorted({s for s, _ in CANDIDATES}))}, got {schedule!r}")
    return _tuned(device).get(_key(schedule, dtype), CANDIDATES[schedule, dtype][0])


def tune(index: int = 0) -> dict[str, dict[str, float]]:
    """Measure every candidate of every schedule on GPU ``index`` and keep the fastest on disk for this model.

    Takes some seconds, mostly for compiling. Ten iterations on a frame of 2048×2048. Returns the median milliseconds of
    every candidate that can run, by ``schedule precision``.
    """
    device = get_gpu_properties(index)
    times: dict[str, dict[str, float]] = {}
    best: dict[str, PipelineShape] = {}
    with torch.cuda.device(index):
        levels = {dtype: Level(1, _SIZE, _SIZE, dtype, torch.device("cuda", index)) for dtype in (F32, F16)}
        for level in levels.values():
            level.memory.uniform_(-1, 1)
            level.gradient.mul_(20)
            level.residual.mul_(20)
        runs = {(*kind, shape): levels[kind[1]] for kind, candidates in CANDIDATES.items() for shape in candidates}
        compile_all([(s, level, shape) for (s, _, shape), level in runs.items()], _ITERATIONS, device)
        for (schedule, dtype, shape), level in runs.items():
            with suppress(KernelError):  # more shared memory than this GPU has
                result = times.setdefault(_key(schedule, dtype), {})
                result[repr(shape)] = _time(schedule, level, shape)
                if result[repr(shape)] == min(result.values()):
                    best[_key(schedule, dtype)] = shape
    _keep(device, best)
    return times


def kept_at(index: int = 0) -> Path | None:
    """Return the file that :func:`tune` writes for GPU ``index``; None where there is no cache folder."""
    return _place(get_gpu_properties(index))


def _time(schedule: str, level: Level, shape: PipelineShape) -> float:
    """Milliseconds, the median of some runs."""
    stream, how = torch.cuda.current_stream(), schedule_of(schedule, shape)
    how.prepare_iterations(level, _ITERATIONS)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_REPEATS + 2)]  # type: ignore[no-untyped-call, unused-ignore]
    for mark in marks:
        mark.record(stream)
        how.launch_iterations_and_update_front(level, _ITERATIONS, TVL1Config(), stream.cuda_stream)
    marks[-1].synchronize()
    times: list[float] = sorted(a.elapsed_time(b) for a, b in pairwise(marks[1:]))
    return times[len(times) // 2]


def _keep(device: GpuProperties, best: dict[str, PipelineShape]) -> None:
    """Whole or not at all; where nothing can be written the defaults stay."""
    place = _place(device)
    _tuned.cache_clear()
    if place is None:
        return
    about = {"gpu": device.name, "kernels": _kernels(), "shapes": {key: asdict(shape) for key, shape in best.items()}}
    with suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(about, file, indent=1)
            Path(temporary).replace(place)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
