"""TV-L1 on the CPU against OpenCV and scikit-image: rate at fixed work, time and error end to end."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench import Case, Cases
from benchmarks.harness import Candidate, CheckFailed, interleaved, spread
from fullfield._check import InputError
from fullfield.metrics import epe
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
from fullfield.ops.tvl1.config import PRESETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Work of the fixed-iterations case: OpenCV's default pyramid and its 30 × 10 iterations a warp, without early stopping.
SCALES, SCALE_FACTOR, WARPS, ITERATIONS = 5, 0.8, 1, 300


@dataclass(frozen=True)
class Pair:
    """Two frames [3, H, W] with the true flow [2, H, W] and where it is known [H, W]."""

    name: str
    frame1: Tensor
    frame2: Tensor
    flow: Tensor
    valid: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """Height, width."""
        return int(self.frame1.shape[1]), int(self.frame1.shape[2])


def load_pair(frame1: Path, frame2: Path, truth: Path) -> Pair:
    """Read a pair from files."""
    from fullfield.io import read_flow, read_frame

    flow = read_flow(truth)
    pair = Pair(frame1.parent.name, read_frame(frame1), read_frame(frame2), flow.flow, flow.valid)
    for path, size in ((frame2, pair.frame2.shape[1:]), (truth, flow.valid.shape)):
        if tuple(size) != pair.size:
            wanted, got = (f"{w}×{h}" for h, w in (pair.size, tuple(size)))
            raise InputError(f"{path}: expected {wanted} pixels like {frame1}, got {got}")
    if not float(flow.flow.norm(dim=0)[flow.valid].mean()) > 0:
        raise InputError(f"{truth}: expected some motion, got none: no flow at all would be perfect")
    return pair


def synthetic_pair(height: int = 436, width: int = 1024) -> Pair:
    """Return the textured scene, for machines without data."""
    from fullfield.testing import sample_textured_scene

    scene = sample_textured_scene(height, width, seed=1)
    return Pair("textured scene", scene.frame1, scene.frame2, scene.flow, scene.valid & ~scene.occluded)


def _grey8(frame: Tensor) -> NDArray[np.uint8]:
    luma = (frame * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0)
    return (luma * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def _error(pair: Pair, flow: Tensor) -> float:
    return float(epe(flow, pair.flow, pair.valid))


def _check(pair: Pair, found: dict[str, float], name: str) -> Callable[[Tensor], str | None]:
    """Check that the flow is finite and clearly better than no flow; note its error."""

    def check(flow: Tensor) -> str | None:
        if not bool(flow.isfinite().all()):
            return "the flow has NaN or infinite values"
        found[name] = _error(pair, flow)
        still = _error(pair, torch.zeros_like(flow))
        return None if found[name] < 0.8 * still else f"end-point error {found[name]:.3f} px, no flow has {still:.3f}"

    return check


def _pixel_iterations(pair: Pair, factor: float, scales: int, warps: int, iterations: int, smallest: int) -> int:
    height, width = pair.size
    total = 0
    for level in range(scales):
        h, w = round(height * factor**level), round(width * factor**level)
        if level and min(h, w) < smallest:
            break
        total += h * w
    return total * warps * iterations


def _ours(pair: Pair, config: TVL1Config, backend: str | None = None) -> Callable[[], Tensor]:
    solver = TVL1Solver(*pair.size, config, backend=backend)
    return lambda: solver(pair.frame1[None], pair.frame2[None])[0]


def _opencv(pair: Pair, **settings: Any) -> Callable[[], Tensor]:
    """Build OpenCV's solver; ``settings`` are the names after its ``set``. It misspells the inner iterations."""
    cv2: Any = importlib.import_module("cv2")
    solver = cv2.optflow.DualTVL1OpticalFlow_create()
    for name, value in settings.items():
        getattr(solver, f"set{name}")(value)
    frames = _grey8(pair.frame1), _grey8(pair.frame2)
    return lambda: torch.from_numpy(solver.calc(*frames, None)).permute(2, 0, 1)


def _skimage(pair: Pair, **settings: Any) -> Callable[[], Tensor]:
    from skimage.registration import optical_flow_tvl1

    frames = [_grey8(f).astype(np.float32) / 255 for f in (pair.frame1, pair.frame2)]

    def call() -> Tensor:
        down, right = optical_flow_tvl1(*frames, dtype=np.float32, **settings)
        return torch.from_numpy(np.stack([right, down]).astype(np.float32))

    return call


def peers() -> list[str]:
    """Which of the peers are installed here."""
    found = []
    # Only OpenCV's contrib wheels have optflow.
    if importlib.util.find_spec("cv2") is not None and hasattr(importlib.import_module("cv2"), "optflow"):
        found.append("opencv")
    if importlib.util.find_spec("skimage") is not None:
        found.append("scikit-image")
    return found


def fixed_work(pair: Pair, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Pixel-iterations a second, whole runs (pyramid, warps, median), at a fixed number of iterations."""
    found: dict[str, float] = {}
    config = TVL1Config(
        lambda_=0.15, theta=0.3, scales=SCALES, scale_factor=SCALE_FACTOR, warps=WARPS, iterations=ITERATIONS
    )
    work = _pixel_iterations(pair, SCALE_FACTOR, SCALES, WARPS, ITERATIONS, 16)
    candidates = [Candidate("fullfield", _ours(pair, config), _check(pair, found, "fullfield"), {"work": work})]
    if "opencv" in peers():
        settings = {"ScalesNumber": SCALES, "ScaleStep": SCALE_FACTOR, "WarpingsNumber": WARPS, "Epsilon": 0.0}
        call = _opencv(pair, **settings, InnerIterations=ITERATIONS, OuterIterations=1)
        candidates.append(Candidate("opencv", call, _check(pair, found, "opencv"), {"work": work}))
    if "scikit-image" in peers():
        halves = _pixel_iterations(pair, 0.5, 10, WARPS, ITERATIONS, 16)
        call = _skimage(pair, num_warp=WARPS, num_iter=ITERATIONS, tol=0)
        candidates.append(Candidate("scikit-image", call, _check(pair, found, "scikit-image"), {"work": halves}))
    timings = interleaved(candidates, repeats, note)
    rows = [{**t.as_dict(), "epe": found[t.name], "rate": t.facts["work"] / t.median} for t in timings]
    for row in rows:
        row["ours_over_this"] = rows[0]["rate"] / row["rate"]
    return {"case": "fixed work", "pair": pair.name, "size": pair.size, "setting": config.as_dict(), "rows": rows}


def own_defaults(pair: Pair, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Seconds and error of each library with its own defaults, against our presets."""
    found: dict[str, float] = {}
    calls: dict[str, Callable[[], Tensor]] = {f"fullfield {name}": _ours(pair, PRESETS[name]) for name in PRESETS}
    if "opencv" in peers():
        calls["opencv defaults"] = _opencv(pair)
    if "scikit-image" in peers():
        calls["scikit-image defaults"] = _skimage(pair)
    candidates = [Candidate(name, call, _check(pair, found, name)) for name, call in calls.items()]
    rows = [{**t.as_dict(), "epe": found[t.name]} for t in interleaved(candidates, repeats, note)]
    for row in rows:
        rivals = [r for r in rows if r["name"].startswith("fullfield") and r["epe"] <= row["epe"]]
        best = min(rivals, key=lambda r: float(r["median_s"]), default=None)
        if best is not None and best is not row:
            row["beaten_by"], row["times_faster"] = best["name"], row["median_s"] / best["median_s"]
    return {"case": "own defaults", "pair": pair.name, "size": pair.size, "rows": rows}


def presets(pairs: Sequence[Pair], repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Error and seconds of every preset on every pair."""
    rows = []
    for name, config in PRESETS.items():
        for pair in pairs:
            found: dict[str, float] = {}
            (timing,) = interleaved([Candidate(name, _ours(pair, config), _check(pair, found, name))], repeats, note)
            rows.append({"preset": name, "pair": pair.name, "epe": found[name], **spread(timing.seconds)})
    return {"case": "presets", "rows": rows}


def _flow_command(frames: Sequence[Path], preset: str, output: Path) -> dict[str, Any]:
    """Run ``fullfield flow`` in a process of its own; its JSON report. Raises CheckFailed where it fails."""
    command = [sys.executable, "-m", "fullfield", "flow", *map(str, frames), "-o", str(output), "--overwrite"]
    done = subprocess.run(
        [*command, "--method", "tvl1", "--preset", preset, "--json", "-q"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CheckFailed(f"fullfield flow: exit code {done.returncode}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def whole_command(pair: Pair, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of the whole process ``fullfield flow A B -o OUT``, from PNG to .flo, compile cache warm."""
    from fullfield.io import read_flow, write_image

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        frames = [Path(folder) / "a.png", Path(folder) / "b.png"]
        for path, frame in zip(frames, (pair.frame1, pair.frame2), strict=True):
            write_image(path, frame)

        def run(preset: str) -> Tensor:
            output = Path(folder) / f"{preset}.flo"
            _flow_command(frames, preset, output)
            return read_flow(output).flow

        names = ("fast", "default")
        candidates = [Candidate(name, partial(run, name), _check(pair, found, name)) for name in names]
        rows = [{**t.as_dict(), "epe": found[t.name]} for t in interleaved(candidates, repeats, note)]
    return {"case": "whole command", "pair": pair.name, "size": pair.size, "rows": rows}


LARGE = (3432, 8192)


def large(frame1: Path, frame2: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Seconds and peak memory of ``fullfield flow`` on two frames cropped and enlarged to 8192×3432, one run each."""
    from fullfield.io import read_flow, read_frame, write_image
    from fullfield.sequences import warp_image

    height, width = LARGE
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "a.png", Path(folder) / "b.png"]
        frames = []
        for path, source in zip(paths, (frame1, frame2), strict=True):
            frame = read_frame(source)
            rows_kept = min(frame.shape[1], round(frame.shape[2] * height / width))
            top = (frame.shape[1] - rows_kept) // 2
            cropped = frame[None, :, top : top + rows_kept]
            frames.append(torch.nn.functional.interpolate(cropped, LARGE, mode="bicubic")[0].clamp(0, 1))
            write_image(path, frames[-1])
        still = float((frames[1] - frames[0]).abs().mean())
        for preset in ("fast", "default"):
            note(f"{width}×{height}, preset {preset}")
            output = Path(folder) / "flow.flo5"
            told = _flow_command(paths, preset, output)
            moved, inside = warp_image(frames[1], read_flow(output).flow)
            difference = float((moved - frames[0]).abs().mean(0)[inside].mean())
            if not difference < 0.9 * still:
                raise CheckFailed(f"{preset}: the warped frame differs by {difference:.4f}, no flow by {still:.4f}")
            facts = {"difference": difference, "difference_without_flow": still}
            rows.append({"name": preset, **{k: told[k] for k in ("seconds", "peak_memory_bytes")}, **facts})
    size = list(LARGE)
    return {"case": "large", "frames": "cropped and enlarged, 8-bit PNG in, .flo5 out", "size": size, "rows": rows}


def cases(
    pair: Pair,
    scenes: Sequence[Pair],
    large_frames: Sequence[Path],
    repeats: int,
    note: Callable[[str], None],
) -> Cases:
    """All cases: ``scenes`` for the presets, two frames to be enlarged; either may be absent."""
    for name, work in (("fixed work", fixed_work), ("own defaults", own_defaults), ("whole command", whole_command)):
        yield Case(name, partial(work, pair, repeats, note), key="case")
    if scenes:
        yield Case("presets", partial(presets, scenes, repeats, note), key="case")
    if large_frames:
        first, second = large_frames
        yield Case("large", partial(large, first, second, note), key="case")


def report(results: dict[str, Any]) -> list[str]:
    """Return the results as lines of text."""
    lines = []
    for case in results["cases"]:
        size = "{1}×{0}".format(*case["size"]) if "size" in case else ""
        lines.append(f"{case['case']}, {case.get('pair', 'per pair')} {size}".rstrip())
        lines += [f"  {_row(row)}" for row in case["rows"]]
    return lines


def _row(row: dict[str, Any]) -> str:
    if "seconds" in row:
        seconds, memory = row["seconds"], row["peak_memory_bytes"] / 2**30
        return f"{row['name']:<24} {seconds['estimate']:8.1f} s, whole {seconds['total']:.1f} s, peak {memory:.1f} GiB"
    text = f"{row.get('name') or row['preset'] + ' ' + row['pair']:<24} {row['median_s']:8.3f} s"
    if "min" in row:
        text += f" ({row['min']:.3f} … {row['max']:.3f})"
    if "rate" in row:
        text += f"  {row['rate']:.3g} pixel-iterations/s, ours ×{row['ours_over_this']:.1f}"
    if "times_faster" in row:
        text += f"  {row['beaten_by']} is {row['times_faster']:.1f}× faster"
    return f"{text}  EPE {row['epe']:.3f} px"
