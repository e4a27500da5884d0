"""Test synthetic pairs: continue trained weights on them, and score real pairs before and after.

python -m benchmarks.experiments.judge_pairs --network raft-small -o result.json
python -m benchmarks.experiments.judge_pairs --network raft-things --mixture bodies:blur~0=0.5 usual=0.5 ...
python -m benchmarks.experiments.judge_pairs --network fullfield-s --updates 4-12 --scored-updates 4 12 --flips ...

A good mixture leaves the errors on real pairs as they were; a bad one raises them within minutes. Needs FULLFIELD_DATA
(weights and pairs), and a GPU to end in minutes: 29,000 pairs of 768x432 with 12 updates. RAFT starts from its official
weights and keeps the statistics of its batch norms; fullfield-s starts from the weights in the package.

The learning rate rises in the first 5 % of the run and falls in a line to nothing at its end. Real pairs are scored
before the run, at the shares --score-at of it, and at its end. The JSON file is written after each score, so that a run
that is cut has a result too. Each score is of the weights as they are and of their moving average. One score of a hard
pair says little: with --flips it is the mean over the frames and their three mirror images.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.experiments import build_program_parser
from benchmarks.shared_pairs import FrameFiles, data_folder, shared_pairs
from fullfield import InputError
from fullfield.cli.argtypes import (
    parse_positive_integer,
    parse_positive_number,
    parse_update_count_or_range,
    parse_wxh_as_height_width,
)
from fullfield.io import read_flow
from fullfield.io.files import write_atomically
from fullfield.models import RAFT, SEARAFT, RAFTConfig, load_weights
from fullfield.training.flow import Augmentation, AugmentedPairs, FlowTraining, Mixture, PairGenerator, SceneStyle
from fullfield.training.flow.batch import PairSource
from fullfield.training.flow.config import COMPILED, LOSSES, MIXTURE, PRECISIONS
from fullfield.training.flow.loop import BatchPrefetcher
from fullfield.training.flow.pictures import load_or_create_picture_pack
from fullfield.training.flow.ranks import Ranks
from fullfield.training.flow.stepping import TrainingStepper, choose_training_precision, raise_if_diverged

DATA = data_folder()
RAFTS: dict[str, Callable[[], RAFTConfig]] = {"raft-small": RAFTConfig.small, "raft-things": RAFTConfig}
OURS = "fullfield-s"
_UNSEEN = 8  # batches of synthetic pairs that are scored
_READ = 25  # steps between looks at the loss and the clock
HARD = ("sequence1_3", "ambush_2", "market_5", "sequence_2")
MIXED = [f"{style}={share:g}" for style, share in MIXTURE.items()]


def real_pairs() -> dict[str, FrameFiles]:
    """Return frames and true flow of the shared real pairs that are present, by the last words of their names."""

    def short(name: str) -> str:
        return name.replace("flyingchairs", "chairs").removeprefix("middlebury ").removeprefix("sintel ")

    return {short(name): files for name, files in shared_pairs(DATA).items()}


def read_frame(path: Path) -> Tensor:
    """Read an 8-bit frame as [1, 3, H, W] uint8."""
    return torch.from_numpy(np.asarray(Image.open(path).convert("RGB")).copy()).permute(2, 0, 1)[None]


@torch.no_grad()
def score(network: torch.nn.Module, device: torch.device, updates: int, flips: bool) -> dict[str, list[float]]:
    """Return the mean end-point errors of a network in evaluation mode on every real pair, px.

    Each pair has one; with ``flips`` the hard pairs have four: as it is, mirrored left to right, top to bottom, both.
    """
    errors = {}
    for name, (first, second, truth) in real_pairs().items():
        frames = [read_frame(path).to(device) for path in (first, second)]
        flow = read_flow(truth)
        result = []
        for axes in ((), (3,), (2,), (2, 3)) if flips and name in HARD else ((),):
            mirrored = network(*(torch.flip(frame, axes) for frame in frames), updates=updates)
            signs = torch.tensor([-1.0 if 3 in axes else 1.0, -1.0 if 2 in axes else 1.0])[:, None, None]
            back = torch.flip(mirrored, axes)[0].cpu() * signs
            result.append(float((back - flow.flow).norm(dim=0)[flow.valid].mean()))
        errors[name] = result
    return errors


def means(errors: dict[str, list[float]]) -> dict[str, float]:
    """Return each pair's mean error over the frames as they are and their mirror images."""
    return {name: sum(result) / len(result) for name, result in errors.items()}


@torch.no_grad()
def error_on(source: PairSource, network: torch.nn.Module, batch: int, updates: int) -> float:
    """Return the mean end-point error on the visible pixels of synthetic pairs that training does not show, px."""
    errors = []
    for index in range(1_000_000, 1_000_000 + _UNSEEN):
        pairs = source.batch(index, batch)
        result = network(pairs.frame1, pairs.frame2, updates=updates)
        errors.append(float((result - pairs.flow).norm(dim=1)[pairs.valid & ~pairs.occluded].mean()))
    return sum(errors) / len(errors)


def hard_mean(errors: dict[str, float]) -> float | None:
    """Return the geometric mean of the errors on the four hard pairs; None where one is missing."""
    if any(name not in errors for name in HARD):
        return None
    return math.exp(sum(math.log(errors[name]) for name in HARD) / len(HARD))


def style_of(text: str) -> tuple[SceneStyle, float]:
    """Read ``NAME[:field~value,...]=SHARE``: a preset with some fields replaced, and its share of the mixture."""
    spec, _, share = text.rpartition("=")
    name, _, fields = spec.partition(":")
    items = [item.partition("~") for item in fields.split(",") if item]
    try:
        changes: dict[str, Any] = {key: int(value) if key == "instants" else float(value) for key, _, value in items}
        return replace(SceneStyle.from_preset(name), **changes), float(share)
    except ValueError as error:  # no such style or field, or no number
        raise InputError(f"mixture {text}: expected STYLE[:field~value,...]=SHARE ({error})") from error


def parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    made = build_program_parser(__doc__)
    made.add_argument("--network", choices=[*RAFTS, OURS], default="raft-small")
    made.add_argument("--init", type=Path, metavar="WEIGHTS", help="start from this file of weights instead")
    made.add_argument("--mixture", nargs="+", default=MIXED, metavar="STYLE=SHARE")
    made.add_argument("--pictures", type=Path, metavar="PACK", help="picture pack of the scenes [procedural pictures]")
    made.add_argument("--compressed", type=float, default=0.25, help="share of pairs with the blocks of JPEG [0.25]")
    made.add_argument("--pairs", type=parse_positive_integer, default=29_000, help="pairs shown [29,000]")
    made.add_argument(
        "--seconds", type=parse_positive_number, help="end after that many seconds of training, or with --pairs"
    )
    made.add_argument(
        "--size", type=parse_wxh_as_height_width, default=(432, 768), metavar="WxH", help="of the pairs [768x432]"
    )
    made.add_argument(
        "--cut", type=parse_wxh_as_height_width, metavar="WxH", help="augment pairs as RAFT does; cut to that size"
    )
    made.add_argument("--batch", type=parse_positive_integer, default=8)
    made.add_argument(
        "--updates", type=parse_update_count_or_range, default=12, metavar="N|LOW-HIGH", help="in training [12]"
    )
    made.add_argument(
        "--scored-updates", type=parse_positive_integer, nargs="+", default=[20], help="the first one counts [20]"
    )
    made.add_argument("--flips", action="store_true", help="score hard pairs with their mirror images")
    made.add_argument("--compile", choices=COMPILED, help="mode of torch.compile [not compiled, recorded as a graph]")
    made.add_argument("--score-at", type=float, nargs="*", default=[0.25, 0.5], metavar="SHARE", help="[0.25 0.5]")
    made.add_argument("--learning-rate", type=float, default=1.5e-4, help="highest; falls to nothing [1.5e-4]")
    made.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of training [bfloat16 on a GPU, float16 on one older than Ampere, float32 on the CPU]",
    )
    made.add_argument("--loss", choices=LOSSES, default="auto", help="[mixture for fullfield-s, sequence for RAFT]")
    made.add_argument("--visible", type=float, default=0.0, help="share of the run without hidden pixels [0]")
    made.add_argument("--average", type=float, default=0.99, help="of the moving average: what a step keeps [0.99]")
    made.add_argument("--seed", type=int, default=3)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("-o", "--output", type=Path, help="JSON")
    made.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="weights and average at the end: FILE.weights.safetensors, FILE.average.safetensors",
    )
    return made


def mixture(args: argparse.Namespace, device: torch.device) -> PairSource:
    """Return the synthetic pairs of the command, augmented with --cut; all styles share their pictures."""
    if args.cut is not None and any(cut > side for cut, side in zip(args.cut, args.size, strict=True)):
        full, cut = (f"{width}x{height}" for height, width in (args.size, args.cut))
        raise InputError(f"--cut: expected at most {full}, the --size, got {cut}")
    pictures: Any = None if args.pictures is None else load_or_create_picture_pack(args.pictures)
    workers = max(1, (os.cpu_count() or 2) // 8) if device.type == "cuda" else 0
    parts = []
    for style, share in map(style_of, args.mixture):
        generator = PairGenerator(
            args.size,
            seed=args.seed,
            device=device,
            style=style,
            pictures=pictures,
            compressed=args.compressed,
            workers=workers,
        )
        pictures = generator.atlas
        parts.append((generator, share))
    source = Mixture(parts)
    return source if args.cut is None else AugmentedPairs(source, Augmentation.as_in_raft(args.cut), args.seed)


def training_of(args: argparse.Namespace, device: torch.device) -> FlowTraining:
    """Return how the network is trained."""
    on_gpu = device.type == "cuda"
    return FlowTraining(
        steps=-(-args.pairs // args.batch),
        seconds=args.seconds,
        batch=args.batch,
        learning_rate=args.learning_rate,
        updates=args.updates,
        precision=args.precision or choose_training_precision(device),
        graph=on_gpu and args.compile is None and isinstance(args.updates, int),
        compile=args.compile,
        channels_last=args.compile is not None,
        freeze_norms=args.network != OURS,
        visible=args.visible,
        loss=args.loss,
        average=args.average,
        seed=args.seed,
    )


class Scores:
    """Scores of a run, stored after each."""

    def __init__(self, args: argparse.Namespace, device: torch.device, source: PairSource) -> None:
        self._args, self._device, self._source = args, device, source
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        self.result: dict[str, Any] = {"settings": settings, "gpu": gpu, "torch": torch.__version__, "scores": []}

    def add(self, step: int, seconds: float, rate: float, stepper: TrainingStepper) -> None:
        """Score the weights and their average after ``step`` steps."""
        (updates, *others), batch = self._args.scored_updates, self._args.batch
        networks = {"weights": copy.deepcopy(stepper.model).eval(), "average": stepper.average.model}
        row: dict[str, Any] = {"pairs": step * batch, "seconds": seconds, "learning_rate": rate}
        for name, network in networks.items():
            scored = score(network, self._device, updates, self._args.flips)
            errors = means(scored)
            synthetic = error_on(self._source, network, batch, updates)
            row[name] = {"errors": errors, "hard": hard_mean(errors), "synthetic": synthetic}
            row[name]["orientations"] = {pair: result for pair, result in scored.items() if len(result) > 1}
            for further in others:
                row[name][f"errors, {further} updates"] = means(score(network, self._device, further, self._args.flips))
        self.result["scores"].append(row)
        self.show()
        if self._args.output is not None:
            with write_atomically(self._args.output) as path:
                path.write_text(json.dumps(self.result, indent=1) + "\n")

    def show(self) -> None:
        """Print the last score, and its ratio to the first."""
        first, last = (table(self.result["scores"][place]["weights"]) for place in (0, -1))
        average = table(self.result["scores"][-1]["average"])
        row = self.result["scores"][-1]
        print(f"{self._args.network} {' '.join(self._args.mixture)}: {row['pairs']} pairs, {row['seconds']:.0f} s")
        for name, old in first.items():
            ratios = f"{last[name] / old:.2f}, average {average[name]:.3f}  {average[name] / old:.2f}"
            print(f"  {name:16} {old:8.3f} -> {last[name]:8.3f}  {ratios}", flush=True)


def table(score: dict[str, Any]) -> dict[str, float]:
    """Return the errors of a score by name, the means last."""
    extra = {"hard, geometric": score["hard"], "synthetic": score["synthetic"]}
    return {**score["errors"], **{name: value for name, value in extra.items() if value is not None}}


def started(args: argparse.Namespace) -> RAFT | SEARAFT:
    """Return the network with the weights from which the test continues."""
    if args.network == OURS:
        return load_weights(OURS, args.init)
    network = RAFT(RAFTS[args.network]())
    network.load_checkpoint(args.init or DATA / "weights" / f"{args.network}.pth")
    network.freeze_batch_norm()
    return network


def main(arguments: list[str] | None = None) -> None:
    """Run the test; print and store errors before, within and after it."""
    args = parser().parse_args(arguments)
    device = torch.device(args.device)
    network = started(args).to(device).train()
    source, training = mixture(args, device), training_of(args, device)
    stepper = TrainingStepper(network, training)
    scores = Scores(args, device, source)
    scores.add(0, 0.0, 0.0, stepper)
    due = sorted(share for share in args.score_at if 0 < share < 1)
    pairs = BatchPrefetcher(source, args.batch, device, Ranks())
    step, done, seconds = 0, 0.0, 0.0
    start = time.perf_counter()
    while done < 1.0:
        rate = training.compute_learning_rate(done)
        stepper.train_on_batch(
            pairs.take_or_fetch_batch(step), step, learning_rate=rate, include_occluded=done >= training.visible
        )
        step += 1
        pairs.prefetch_batch(step)
        share = training.compute_completed_fraction(step, seconds)
        scored = share >= (due[0] if due else 1.0)
        if scored or step % _READ == 0:
            reading = stepper.wait_read_and_reset_means()  # waits for the device, so that the clock is right
            raise_if_diverged(reading, step, training)
            seconds = time.perf_counter() - start
            if step % (4 * _READ) == 0:
                print(f"step {step} of {training.steps}, {seconds:.0f} s, {reading}", file=sys.stderr, flush=True)
        done = training.compute_completed_fraction(step, seconds)
        if scored or done >= 1.0:
            due = [share for share in due if share > done]
            scores.add(step, seconds, rate, stepper)
            start = time.perf_counter() - seconds
    if args.keep is not None:
        for name, retained in (("weights", stepper.model), ("average", stepper.average.model)):
            with write_atomically(args.keep.with_suffix(f".{name}.safetensors")) as path:
                save_file({key: part.contiguous() for key, part in retained.state_dict().items()}, path)


if __name__ == "__main__":
    main()
