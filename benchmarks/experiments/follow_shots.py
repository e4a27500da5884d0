"""Score following on synthetic shots with truth between any two frames, and on a video played forward and backward.

python -m benchmarks.experiments.follow_shots -o benchmarks/results/follow_h200.json --device cuda
python -m benchmarks.experiments.follow_shots ... --frames video.npz    frames [N, H, W, 3] uint8 under the key frames

For each shot: errors of the last frame and of frames on the way, compared with flow chained from frame to frame; the
share of pixels that are found within a pixel after 20 and more hidden frames; the visibility's F1 over all frames. For
a video, whose frames are followed to its end and back: errors where the truth is no motion. Times are medians, with
quartiles. The file is written after each part, so that a run that is cut has a result too.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments import build_program_parser
from benchmarks.stored import state_conditions
from fullfield._check import resolve_available_device
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.refined import RefinedEstimator
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.sequences import follow_frames
from fullfield.testing.shots import SyntheticShot

HEIGHT, WIDTH, FRAMES = 270, 480, 100
HIDDEN_FRAMES = 20
SHOWN = (10, 30, 50, 70, 99)
METHOD = "auto"


def render(task: tuple[int, int]) -> tuple[Any, ...]:
    """Return a frame of a shot, and the truth from the first frame to it and back."""
    seed, index = task
    torch.set_num_threads(1)
    shot = SyntheticShot(HEIGHT, WIDTH, FRAMES, seed=seed)
    forward, backward = shot.compute_flow_and_visibility(0, index), shot.compute_flow_and_visibility(index, 0)
    return tuple(t.numpy() for t in (shot.render_frame(index), *forward, *backward))


def errors(flow: Tensor, truth: Tensor, visible: Tensor) -> dict[str, float]:
    """Return median and mean error of visible pixels, and the share above a pixel."""
    distance = torch.linalg.vector_norm(flow - truth, dim=0)[visible]
    return {
        "median_px": round(float(distance.median()), 4),
        "mean_px": round(float(distance.mean()), 4),
        "share_above_1px": round(float((distance > 1).float().mean()), 4),
    }


def chain_flow(frames: Tensor, estimator: RefinedEstimator) -> Iterator[Tensor]:
    """Yield the motion from the first frame to each other one, added up from frame to frame."""
    total: Tensor | None = None
    for first, second in pairwise(frames):
        step = estimator(first[None], second[None])
        total = step if total is None else total + warp_planes_and_mark_inside(step, total)[0]
        yield total[0]


def score_shot(seed: int, device: torch.device, workers: int) -> dict[str, Any]:
    """Follow the first frame of a synthetic shot."""
    with get_context("spawn").Pool(workers) as pool:
        rendered = pool.map(render, [(seed, index) for index in range(FRAMES)])
    frames, flow, visible, back_flow, back_visible = (
        torch.from_numpy(np.stack(column)).to(device) for column in zip(*rendered, strict=True)
    )
    estimator = build_estimator(METHOD)
    assert isinstance(estimator, RefinedEstimator)
    chained = dict(enumerate(chain_flow(frames, estimator), 1))
    hidden = torch.zeros_like(flow[0, 0])
    returned = found = both = predicted_count = visible_count = 0
    by_frame: dict[str, Any] = {}
    seconds: list[float] = []
    start = time.perf_counter()
    for result in follow_frames(list(frames.cpu()), 1, estimator, device=device):
        index = result.number - 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
        assert result.forward is not None
        assert result.backward is not None
        distance = torch.linalg.vector_norm(result.forward - flow[index], dim=0)
        back = visible[index] & (hidden >= HIDDEN_FRAMES)
        returned, found = returned + int(back.sum()), found + int((distance[back] < 1).sum())
        hidden = torch.where(visible[index], 0.0, hidden + 1)
        predicted = result.occlusion["forward"] < 0.5
        both += int((predicted & visible[index]).sum())
        predicted_count, visible_count = (
            predicted_count + int(predicted.sum()),
            visible_count + int(visible[index].sum()),
        )
        if index in SHOWN:
            by_frame[str(index)] = {
                "forward": errors(result.forward, flow[index], visible[index]),
                "backward": errors(result.backward, back_flow[index], back_visible[index]),
                "chained": errors(chained[index], flow[index], visible[index]),
            }
        start = time.perf_counter()
    return {
        "seed": seed,
        "after": by_frame,
        "returned_pixels": returned,
        "returned_found": round(found / max(returned, 1), 4),
        "visibility_f1": round(2 * both / (predicted_count + visible_count), 4),
        "median_seconds_per_frame": round(statistics.median(seconds[FRAMES // 2 :]), 4),
    }


def score_palindrome(path: Path, device: torch.device) -> dict[str, Any]:
    """Follow the first frame of a video to its end and back to itself."""
    stored = torch.from_numpy(np.load(path)["frames"]).permute(0, 3, 1, 2).to(device).float() / 255
    frames = torch.cat((stored, stored.flip(0)[1:]))
    estimator = build_estimator(METHOD)
    assert isinstance(estimator, RefinedEstimator)
    *_, chained = chain_flow(frames, estimator)
    *_, last = follow_frames(list(frames.cpu()), 1, estimator, device=device)
    assert last.forward is not None
    visible = last.occlusion["forward"] < 0.5
    still = torch.zeros_like(last.forward)
    return {
        "frames": len(frames),
        "size": f"{frames.shape[-1]}x{frames.shape[-2]}",
        "visible": round(float(visible.float().mean()), 4),
        "followed": errors(last.forward, still, torch.ones_like(visible)),
        "chained": errors(chained, still, torch.ones_like(visible)),
    }


def list_outer_quartiles_ms(seconds: list[float]) -> list[float]:
    """Return the first and the third quartile in milliseconds."""
    quartiles = statistics.quantiles(seconds, n=4)
    return [round(1e3 * quartiles[0], 2), round(1e3 * quartiles[2], 2)]


def measure_size(height: int, width: int, device: torch.device, count: int = 48) -> dict[str, Any]:
    """Measure the time and memory of a frame at a size, with a moving texture; and a pair's time of the method."""
    generator = torch.Generator().manual_seed(1)
    size, texture = (height, width + 8 * count), torch.zeros(1, 3, height, width + 8 * count)
    for scale in (8, 64, 256):  # coarse structure too, or the reduced pictures would look like a cut
        noise = torch.rand(1, 3, height // scale + 1, width // scale + 2, generator=generator)
        texture += torch.nn.functional.interpolate(noise, size=size, mode="bicubic", align_corners=False) / 3
    texture = texture.clamp(0, 1)
    frames = [texture[0, :, :, 8 * i : 8 * i + width].contiguous() for i in range(count)]
    estimator = build_estimator(METHOD)
    pair_s: list[float] = []
    for first, second in pairwise(frames[:17]):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        estimator(first[None].to(device), second[None].to(device))
        torch.cuda.synchronize(device)
        pair_s.append(time.perf_counter() - start)
    del estimator
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    seconds: list[float] = []
    start = time.perf_counter()
    for result in follow_frames(frames, 1, METHOD, device=device):
        assert not result.is_cut_off
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    pairs, steady = pair_s[4:], seconds[36:]
    pair, frame = statistics.median(pairs), statistics.median(steady)
    return {
        "size": f"{width}x{height}",
        "pair_s": round(pair, 4),
        "pair_quartiles_ms": list_outer_quartiles_ms(pairs),
        "pair_repeats": len(pairs),
        "frame_s": round(frame, 4),
        "quartiles_ms": list_outer_quartiles_ms(steady),
        "repeats": len(steady),
        "pairs_per_frame": round(frame / pair, 2),
        "peak_gib": round((torch.cuda.max_memory_allocated(device) - before) / 2**30, 3),
    }


def main() -> None:
    """Score the shots, and store the scores."""
    parser = build_program_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--frames", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", nargs="*", default=[], help="1920x1080 3840x2160: time and memory")
    args = parser.parse_args()
    device = resolve_available_device(args.device)
    report: dict[str, Any] = {
        "what": f"fullfield follow, method {METHOD}; chained: its flow from frame to frame, added up; visible "
        f"pixels, synthetic shots of {WIDTH}x{HEIGHT} and {FRAMES} frames",
        **state_conditions("src/fullfield/sequences/follow.py", "src/fullfield/sequences/tracking.py"),
        "shots": [],
    }

    def store(measured: dict[str, Any]) -> None:
        print(json.dumps(measured), flush=True)
        args.output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")

    for text in args.sizes:
        width, height = map(int, text.split("x"))
        report.setdefault("sizes", []).append(measure_size(height, width, device))
        store(report["sizes"][-1])
    if args.frames is not None:
        report["palindrome"] = score_palindrome(args.frames, device)
        store(report["palindrome"])
    for seed in args.seeds:
        report["shots"].append(score_shot(seed, device, args.workers))
        store(report["shots"][-1])


if __name__ == "__main__":
    main()
