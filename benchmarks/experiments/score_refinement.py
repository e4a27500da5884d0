"""Score the refinement, the occlusion and the confidence on synthetic pairs and on alley_1; store the scores.

python -m benchmarks.experiments.score_refinement      needs FULLFIELD_DATA (weights, alley_1)

Writes benchmarks/results/made_pairs_cpu.json. ``least_fall``, ``passes_fall`` and the bias of the
occlusion were chosen on alley_1 and on the pairs that seed 911 gave on 2026-11-23, before the present scenes; no
constant was chosen on seed 4242.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.experiments import build_program_parser
from benchmarks.experiments.calibrate_confidence import sparsification
from benchmarks.experiments.score_methods import DATA, RAFT, RESULT
from benchmarks.shared_pairs import shared_pairs
from benchmarks.stored import state_conditions
from fullfield.estimators import RefinedEstimator
from fullfield.estimators._frames import read_pairs_and_find_bars
from fullfield.estimators._reliability import estimate_occlusion_and_confidence
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.refined import RefinedDirections
from fullfield.io import read_flow, read_frame
from fullfield.io.files import write_atomically
from fullfield.metrics import epe
from fullfield.ops.consistency import compute_forward_backward_distance
from fullfield.ops.tvl1 import refine_flow
from fullfield.ops.tvl1.config import THREE_PASSES, RefinementConfig
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.pairs import PairGenerator

NETWORKS: dict[str, dict[str, Any]] = {
    **{name: RAFT[name] for name in ("raft-sintel", "raft-small")},
    "fullfield-s": {"method": "fullfield-s"},
}
SIZE = (368, 496)
STYLES = {
    "usual": SceneStyle(),
    "small": SceneStyle(camera_motion=2.5, object_motion=3.0, noise=0.01),
    "large": SceneStyle(camera_motion=25, object_motion=30),
}
COUNTS = {911: (5, 5, 3), 4242: (4, 5, 2)}
"""Pairs of each style, by seed."""
_FEWEST = 50
"""Least number of hidden pixels of a pair that scores the occlusion."""


class Known(NamedTuple):
    """Pair of frames with its true flow and masks."""

    frames: tuple[Tensor, Tensor]  # [1, 3, H, W] each
    flow: Tensor  # [2, H, W]
    valid: Tensor  # [H, W]
    hidden: Tensor  # [H, W]


def known() -> Iterator[tuple[str, str, Known]]:
    """Yield the set, the name and the pair, for all pairs."""
    for name, (first, second, truth) in shared_pairs(DATA).items():
        if "alley_1" in name:
            one, other = read_pairs_and_find_bars(
                [first], [second], ("frame1", "frame2"), "auto", torch.device("cpu")
            ).frames
            mask = read_frame(next((DATA / "flow" / "sintel" / "truth").rglob("occlusions_*.png")), transfer="srgb")
            flow = read_flow(truth)
            yield "alley_1", name, Known((one, other), flow.flow, flow.valid, mask.amax(0) > 0)
    for seed, counts in COUNTS.items():
        for (style, how), count in zip(STYLES.items(), counts, strict=True):
            made = PairGenerator(SIZE, seed=seed, style=how).batch(0, count)
            for n in range(count):
                frames = made.frame1[n : n + 1], made.frame2[n : n + 1]
                yield f"seed {seed}", f"{style} {n}", Known(frames, made.flow[n], made.valid[n], made.occluded[n])


def directions(network: str, group: str, name: str, pair: Known) -> RefinedDirections:  # noqa: ARG001 - for stored flows
    """Estimate the network's forward and backward flow."""
    return RefinedEstimator(build_estimator(**NETWORKS[network]), refine=False).estimate_both_and_refine_forward(
        *pair.frames
    )


def scored(pair: Known, ways: RefinedDirections) -> dict[str, Any]:
    """Score the refinement, the occlusion and the confidence of a pair.

    Errors in px: of the network, of three passes with all of their change and with the kept change, and of one pass.
    Occlusion and confidence of one pass are compared with the forward-backward distance.
    """
    first, second = pair.frames
    three = THREE_PASSES
    flows = [ways.forward] + [
        refine_flow(first, second, ways.forward, ways.backward, config)
        for config in (three.replace(least_fall=0.0, passes_fall=0.0), three, RefinementConfig())
    ]
    errors = [epe(flow[0], pair.flow, pair.valid) for flow in flows]
    told: dict[str, Any] = dict(zip(("network", "everything", "remaining", "one pass"), errors, strict=True))
    flow, back = flows[-1], ways.backward
    occlusion, confidence = (
        plane[0][pair.valid] for plane in estimate_occlusion_and_confidence(first, second, flow, back, ways.log_scale)
    )
    distance = compute_forward_backward_distance(flow, back)[0]
    backward, inside = warp_planes_and_mark_inside(back, flow)
    plain = (flow + backward).square().sum(1) / (0.01 * (flow.square() + backward.square()).sum(1) + 0.5)
    plain = torch.where(inside, plain, torch.inf)[0][pair.valid]
    error = (flow[0] - pair.flow).norm(dim=0)[pair.valid].double()
    told["sparsification"] = sparsification(confidence, error), sparsification(-distance[pair.valid], error)
    hidden = pair.hidden[pair.valid]
    if int(hidden.sum()) >= _FEWEST:
        told["occlusion"] = precision_and_f1(occlusion, hidden, 0.5)
        told["plain"] = precision_and_f1(plain, hidden, 1.0)
    return told


def precision_and_f1(score: Tensor, hidden: Tensor, threshold: float) -> tuple[float, float]:
    """Return the average precision of the order, and F1 of the scores above the threshold."""
    right = hidden[score.argsort(descending=True)].double()
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1)
    above = score > threshold
    both = int((above & hidden).sum())
    return float((precision * right).sum() / right.sum()), 2 * both / (int(above.sum()) + int(hidden.sum()))


def main() -> int:
    """Score every pair with every network, and store the scores."""
    build_program_parser(__doc__).parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {network: {} for network in NETWORKS}
    for group, name, pair in known():
        for network, by_group in found.items():
            told = by_group.setdefault(group, {})[name] = scored(pair, directions(network, group, name, pair))
            line = ", ".join(f"{what} {value:.3f}" for what, value in told.items() if isinstance(value, float))
            print(f"{network}, {group}, {name}: {line}", file=sys.stderr, flush=True)
    stored = {
        "command": "python -m benchmarks.experiments.score_refinement",
        "what": "refinement in three passes (px), occlusion (average precision, F1), confidence (sparsification)",
        **state_conditions(
            "src/fullfield/estimators/_reliability.py",
            "src/fullfield/models/cascade.py",
            "src/fullfield/models/fullfield_s.safetensors",
            "src/fullfield/ops/tvl1/_guided_cpu_kernels.py",
            "src/fullfield/training/flow/pairs.py",
            "src/fullfield/training/flow/scene*.py",
        ),
        "pairs": found,
    }
    with write_atomically(RESULT.with_name("made_pairs_cpu.json")) as part:
        part.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
