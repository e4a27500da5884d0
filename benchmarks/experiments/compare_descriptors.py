"""Compare a learned descriptor with FPFH on the shared pairs of clouds, unchanged and degraded.

python -m benchmarks.experiments.compare_descriptors runs/descriptor/weights.safetensors --seen kitchen demo

--seen names pairs whose clouds it was trained on; they are printed but do not count. The exit code is 1 unless it beats
FPFH on the others: at least as many pairs found, none wrongly accepted, at least the same feature matching recall, a
higher mean inlier ratio. Seconds are CPU time.

--ransac-only measures the descriptors alone: RANSAC on the matches, as the protocol of the supplement of PointCNN++ has
it (fullfield.evaluation.scans.POINTCNNPP); its inlier distance and limits are the pairs', and no pair of different
scenes is tried. --dense also times the description of these clouds, one point per 2 cm each, by the clock;
with --ransac-only and --pairs without names nothing else is measured.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.experiments import build_program_parser
from benchmarks.shared_pairs import data_folder
from benchmarks.stored import state_conditions
from fullfield.io import read_point_cloud
from fullfield.io.files import write_atomically
from fullfield.metrics import inlier_ratio, registration_rmse, relative_rotation_error, relative_translation_error
from fullfield.registration import LearnedDescriptor, Registration, read_pose, register, register_by_ransac
from fullfield.registration.scan import thin_and_describe_scan

Floats = NDArray[np.float64]
DATA = data_folder() / "pointclouds"
# Folder, source, target, truth; metres within which a match is right; a centimetre there, a decimetre on the street.
PAIRS = {
    "kitchen": ("3dmatch/7-scenes-redkitchen", "source.npy", "target.npy", "gt.npy", 0.1, 0.01),
    "hotel": ("3dmatch/sun3d-hotel_umd-maryland_hotel3", "source.npy", "target.npy", "gt.npy", 0.1, 0.01),
    "demo": ("3dmatch_demo", "src.npy", "ref.npy", "gt.npy", 0.1, 0.01),
    "street": ("kitti_pair", "source.ply", "target.ply", "T_target_source.txt", 0.6, 0.1),
}
DENSE = 0.02  # metres
REPEATS = 5
UNLIKE = (("kitchen", "hotel"), ("hotel", "demo"), ("street", "kitchen"), ("hotel", "street"), ("demo", "hotel"))


class Shared(NamedTuple):
    """One of the pairs."""

    source: Floats
    target: Floats
    truth: Floats
    near: float
    unit: float


def whole(pair: Shared, _: np.random.Generator) -> Floats:
    """Return the source as it is."""
    return pair.source


def thinned(pair: Shared, draw: np.random.Generator) -> Floats:
    """Return a random tenth of the source."""
    kept: Floats = pair.source[draw.random(len(pair.source)) < 0.1]
    return kept


def noisy(pair: Shared, draw: np.random.Generator) -> Floats:
    """Return the source with noise of one unit."""
    return pair.source + draw.normal(scale=pair.unit, size=pair.source.shape)


def cropped(pair: Shared, draw: np.random.Generator, share: float = 0.6) -> Floats:
    """Return the part of the source on one side of a random plane."""
    along = pair.source @ draw.normal(size=3)
    kept: Floats = pair.source[along > np.quantile(along, 1 - share)]
    return kept


def hard(pair: Shared, draw: np.random.Generator) -> Floats:
    """Return a smaller part of the source, with noise."""
    return noisy(pair._replace(source=cropped(pair, draw, 0.4)), draw)


Change = Callable[[Shared, np.random.Generator], Floats]
CHANGES: dict[str, Change] = {
    "as it is": whole,
    "10 % of it": thinned,
    "noise": noisy,
    "60 % of it": cropped,
    "40 %, noise": hard,
}


def shared(name: str) -> Shared:
    """Read a shared pair."""
    folder, source, target, truth, near, unit = PAIRS[name]
    moved, fixed = (read_point_cloud(DATA / folder / file).points.astype(np.float64) for file in (source, target))
    return Shared(moved, fixed, read_pose(DATA / folder / truth), near, unit)


def turned(points: Floats, draw: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the points in a random pose, and that pose."""
    turn, _ = np.linalg.qr(draw.normal(size=(3, 3)))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn * np.linalg.det(turn), draw.normal(size=3)
    return points @ pose[:3, :3].T + pose[:3, 3], pose


def measured(
    pair: Shared,
    change: Change,
    seed: int,
    descriptor: LearnedDescriptor | None,
    run: Callable[..., Registration] = register,
) -> dict[str, Any]:
    """Register a pair whose source is changed and turned at random; return errors and counts."""
    draw = np.random.default_rng(seed)
    source, pose = turned(change(pair, draw), draw)
    truth = torch.from_numpy(pair.truth @ np.linalg.inv(pose))
    begin = time.process_time()
    found = run(source, pair.target, descriptor=descriptor)
    seconds = time.process_time() - begin
    ends = torch.from_numpy(np.empty((0, 2, 3)) if found.matched is None else found.matched)
    ratio = inlier_ratio(ends[:, 0].contiguous(), ends[:, 1].contiguous(), truth, threshold=pair.near)
    row = {"ir": 0.0 if math.isnan(ratio) else ratio, "matches": found.matches, "seconds": seconds}
    errors = {"rre": math.nan, "rte": math.nan, "rmse": math.nan}
    if found.transform is not None:
        pred = torch.from_numpy(found.transform)
        errors = {
            "rre": float(relative_rotation_error(pred, truth)),
            "rte": float(relative_translation_error(pred, truth)),
            "rmse": float(registration_rmse(pred, truth, torch.from_numpy(source))),
        }
    right = errors["rmse"] < 2 * pair.near
    return {**row, **errors, "found": right, "wrong": found.success and not right}


def dense_times(files: list[str], descriptor: LearnedDescriptor | None, threads: int) -> dict[str, Any]:
    """Return the seconds, by the clock and of the CPU, in which clouds are thinned and described at 2 cm.

    Each is a list of REPEATS runs, after one that compiles.
    """
    if not files:
        return {}
    clouds = [read_point_cloud(file).points.astype(np.float64) for file in files]
    clouds = [(cloud - (cloud.min(0) + cloud.max(0)) / 2) / DENSE for cloud in clouds]
    describe = None if descriptor is None else descriptor.compute_normals_and_features
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    elapsed_seconds, cpu_seconds, described = list[float](), list[float](), 0
    for _ in range(REPEATS + 1):
        begin, used = time.perf_counter(), time.process_time()
        described = sum(len(thin_and_describe_scan(cloud, describe).points) for cloud in clouds)
        elapsed_seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - used)
    torch.set_num_threads(before)
    row: dict[str, Any] = {"points": sum(map(len, clouds)), "described": described, "threads": threads}
    row |= {"seconds": elapsed_seconds[1:], "cpu_seconds": cpu_seconds[1:]}
    middles = (statistics.median(row[name]) for name in ("seconds", "cpu_seconds"))
    print(
        "described {} points in {:.2f} s, {:.2f} s of the CPU, {} threads".format(described, *middles, threads),
        flush=True,
    )
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts, means and medians over runs."""
    errors = [row for row in rows if row["found"]]
    middles = {
        name: statistics.median(row[name] for row in errors) if errors else math.nan for name in ("rre", "rte", "rmse")
    }
    return {
        "runs": len(rows),
        "found": sum(row["found"] for row in rows),
        "wrong": sum(row["wrong"] for row in rows),
        "ir": statistics.fmean(row["ir"] for row in rows),
        "fmr": statistics.fmean(row["ir"] > 0.05 for row in rows),
        **middles,
        "seconds": statistics.median(row["seconds"] for row in rows),
    }


def line(name: str, method: str, row: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    return (
        f"{name:<22}{method:<9}{row['found']:>4} of {row['runs']:<3}{row['wrong']:>6}{100 * row['ir']:>8.1f}"
        f"{100 * row['fmr']:>7.0f}{row['rre']:>8.2f}{row['rte']:>8.3f}{row['seconds']:>8.2f}"
    )


def main() -> int:
    """Register all pairs with both descriptors, print and store the results."""
    parser = build_program_parser(__doc__)
    parser.add_argument("weights", metavar="WEIGHTS")
    parser.add_argument("--pairs", nargs="*", choices=PAIRS, default=list(PAIRS), help="[all]")
    parser.add_argument("--seen", nargs="*", choices=PAIRS, default=[], help="pairs that it was trained on")
    parser.add_argument("--poses", type=int, default=3, metavar="N", help="random poses of each [3]")
    parser.add_argument("--ransac-only", action="store_true", help="stop after RANSAC")
    parser.add_argument("--dense", nargs="+", default=[], metavar="FILE", help="clouds whose description is timed")
    parser.add_argument("--threads", type=int, help="for --dense [1]")
    parser.add_argument("--json", metavar="FILE", help="write every number")
    args = parser.parse_args()
    if args.threads is not None and not args.dense:
        parser.error("--threads: is for --dense")
    learned = LearnedDescriptor.load(args.weights)
    methods = {"FPFH": None, "learned": learned}
    times = {name: dense_times(args.dense, descriptor, args.threads or 1) for name, descriptor in methods.items()}
    run = register_by_ransac if args.ransac_only else register
    pairs = {name: shared(name) for name in PAIRS}
    for descriptor in methods.values():
        measured(pairs["demo"], CHANGES["10 % of it"], 0, descriptor)  # compiles
    rows: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    print(f"{'pair':<22}{'':<9}{'found':>10}{'wrong':>6}{'IR %':>8}{'FMR %':>7}{'RRE °':>8}{'RTE m':>8}{'s':>8}")
    for name in args.pairs:
        rows[name] = {}
        for what, change in CHANGES.items():
            rows[name][what] = {
                method: [measured(pairs[name], change, seed, descriptor, run) for seed in range(args.poses)]
                for method, descriptor in methods.items()
            }
            for method, runs in rows[name][what].items():
                print(line(f"{name}, {what}", method, summary(runs)), flush=True)
    unseen = [name for name in args.pairs if name not in args.seen]
    totals = {}
    for method in methods:
        runs = [row for name in unseen for part in rows[name].values() for row in part[method]]
        if runs:
            totals[method] = summary(runs)
            print(line("unseen, all", method, totals[method]))
    accepted = {}
    if not args.ransac_only:
        for method, one in methods.items():
            found = (register(pairs[a].source, pairs[b].target, descriptor=one) for a, b in UNLIKE)
            accepted[method] = sum(each.success for each in found)
        print(f"of {len(UNLIKE)} pairs of different scenes accepted: {accepted}")
    if args.json:
        content = {"rows": rows, "unseen": totals, "config": learned.config.as_dict()}
        content |= {"unlike": accepted} if accepted else {}
        content |= {"ransac_only": args.ransac_only, "dense": times}
        content |= state_conditions("src/fullfield/registration/*.safetensors", "src/fullfield/registration/*.py")
        with write_atomically(args.json) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    if not totals:
        return 1
    ours, theirs = totals["learned"], totals["FPFH"]
    wins = all(ours[name] >= theirs[name] for name in ("found", "fmr")) and ours["ir"] > theirs["ir"]
    wins = wins and (args.ransac_only or (ours["wrong"] == 0 and accepted["learned"] == 0))
    print(f"beats FPFH where it was not trained: {'yes' if wins else 'no'}")
    return 0 if wins else 1


if __name__ == "__main__":
    sys.exit(main())
