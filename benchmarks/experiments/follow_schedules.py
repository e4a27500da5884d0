"""Compare schedules of following on synthetic shots: which matches are made for each frame.

python -m benchmarks.experiments.follow_schedules -o benchmarks/results/follow_schedules_h200.json --device cuda

Flow of a pair that starts from zero is estimated once and serves all schedules. For each one: matches a frame,
the share of pixels that are found within a pixel after 20 and more hidden frames, the visibility's F1, and errors of
visible pixels, all over the whole shot. ``best_match`` is the share of returned pixels for which any match of the frame
was right: what a perfect choice among them would find.
"""

from __future__ import annotations

import json
import statistics
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments import build_program_parser, follow_shots
from benchmarks.stored import environment
from fullfield._check import resolve_available_device
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.refined import RefinedEstimator
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.sequences.follow import create_pair_matcher
from fullfield.sequences.tracking import ChainSchedule, PairMatcher, Tracker

_BOTH = (("chain",), ("zero",))
SCHEDULES = {
    "1,2,4,8,16": ChainSchedule(((1,), (2,), (4,), (8,), (16,)), _BOTH),
    "1,4,16,32": ChainSchedule(((1,), (4,), (16,), (32,)), _BOTH),
    "1,4,16": ChainSchedule(((1,), (4,), (16,)), _BOTH),
    "1,4,16|32": ChainSchedule(((1,), (4,), (16, 32)), _BOTH),
    "1,4|16|32": ChainSchedule(((1,), (4, 16, 32)), _BOTH),
    "1,4,16|32 zero": ChainSchedule(((1,), (4,), (16, 32)), (("zero",),)),
}
"""By the distances of their chains; ``|`` stands between those that take turns."""

Pair = tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]


class CachingMatcher:
    """Matcher that keeps the flow of pairs that start from zero, and the forward flows of the last frame."""

    def __init__(self, match: PairMatcher, frames: list[Tensor]) -> None:
        self._match = match
        self._indices = {id(frame): index for index, frame in enumerate(frames)}
        self._pairs: dict[tuple[int, int], Pair] = {}
        self.count = 0

    def __call__(self, frame1: Tensor, frame2: Tensor, forward: Tensor | None, backward: Tensor | None) -> Pair:
        self.count += 1
        if forward is not None:
            return self._match(frame1, frame2, forward, backward)
        key = self._indices[id(frame1)], self._indices[id(frame2)]
        if key not in self._pairs:
            self._pairs[key] = self._match(frame1, frame2, None, None)
        return self._pairs[key]


class ObservedTracker(Tracker):
    """Tracker that keeps the forward flow of every match of the last frame."""

    flows: list[Tensor]

    def _match_and_select_best_chain(self, frame: Tensor) -> Any:
        self.flows = []
        return super()._match_and_select_best_chain(frame)

    def _match_frames(self, first: Tensor, second: Tensor, starts: tuple[Tensor, ...] | None = None) -> Any:
        match = super()._match_frames(first, second, starts)
        flow = match.forward.flow
        if first is not self._reference:
            before = next(state.match.forward.flow for state in self._states.values() if state.frame is first)
            steps, inside = warp_planes_and_mark_inside(flow[None], before[None])
            flow = torch.where(inside[0], before + steps[0], torch.inf)
        self.flows.append(flow)
        return match


def score_schedule(
    schedule: ChainSchedule, matcher: CachingMatcher, refine: Any, frames: list[Tensor], truths: Tensor, visible: Tensor
) -> dict[str, Any]:
    """Follow the first frame with a schedule."""
    tracker, matcher.count = ObservedTracker(frames[0], matcher, refine, schedule), 0
    hidden = torch.zeros_like(truths[0, 0])
    sums = dict.fromkeys(("returned", "found", "best", "both", "predicted", "visible"), 0)
    medians, wrong = [], []
    for frame, truth, is_visible in zip(frames[1:], truths[1:], visible[1:], strict=True):
        layers = tracker.track_next_frame(frame)
        distance = torch.linalg.vector_norm(layers["forward"] - truth, dim=0)
        best = torch.stack([torch.linalg.vector_norm(flow - truth, dim=0) for flow in tracker.flows]).amin(0)
        back = is_visible & (hidden >= follow_shots.HIDDEN_FRAMES)
        hidden = torch.where(is_visible, 0.0, hidden + 1)
        predicted = layers["occlusion.forward"] < 0.5
        counts = back, distance[back] < 1, best[back] < 1, predicted & is_visible, predicted, is_visible
        for name, mask in zip(sums, counts, strict=True):
            sums[name] += int(mask.sum())
        medians.append(float(distance[is_visible].median()))
        wrong.append(float((distance[is_visible] > 1).float().mean()))
    return {
        "matches_per_frame": round(matcher.count / (len(frames) - 1), 2),
        "returned_found": round(sums["found"] / max(sums["returned"], 1), 4),
        "best_match": round(sums["best"] / max(sums["returned"], 1), 4),
        "visibility_f1": round(2 * sums["both"] / (sums["predicted"] + sums["visible"]), 4),
        "median_px": round(statistics.mean(medians), 4),
        "share_above_1px": round(statistics.mean(wrong), 4),
    }


def main() -> None:
    """Score the schedules, and store the scores."""
    parser = build_program_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    device = resolve_available_device(args.device)
    report: dict[str, Any] = {"what": "schedules of fullfield follow on the shots of follow_shots", **environment()}
    for seed in args.seeds:
        with get_context("spawn").Pool(args.workers) as pool:
            rendered = pool.map(follow_shots.render, [(seed, index) for index in range(follow_shots.FRAMES)])
        shown, truths, visible = (
            torch.from_numpy(np.stack(column)).to(device) for column in list(zip(*rendered, strict=True))[:3]
        )
        frames = list(shown[:, None])
        estimator = build_estimator(follow_shots.METHOD)
        assert isinstance(estimator, RefinedEstimator)
        matcher = CachingMatcher(create_pair_matcher(estimator.estimator), frames)
        for name in args.schedules:
            scores = score_schedule(SCHEDULES[name], matcher, estimator.refine, frames, truths, visible)
            report.setdefault(f"seed {seed}", {})[name] = scores
            print(seed, name, json.dumps(scores), flush=True)
            args.output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
