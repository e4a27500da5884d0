"""Test synthetic pairs: continue official RAFT weights on them, and score real pairs before and after.

python scripts/judge_pairs.py --network raft-small --mixture usual=0.4 large=0.3 -o result.json

A good mixture leaves the errors on real pairs as they were; a bad one raises them within minutes. Needs FULLFIELD_DATA
(weights and pairs), and a GPU to end in minutes: 29,000 pairs of 768x432 with 12 updates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fullfield.cli.argtypes import count, size
from fullfield.io import atomic_path, read_flow
from fullfield.models import RAFT, RAFTConfig
from fullfield.training.flow import FlowTraining, Mixture, PairMaker, SceneStyle
from fullfield.training.flow.stepping import Stepper, check_finite

DATA = Path(os.environ.get("FULLFIELD_DATA", "../shared/data"))
NETWORKS = {"raft-small": RAFTConfig.small, "raft-things": RAFTConfig}
HARD = ("sequence1_3", "ambush_2", "market_5", "sequence_2")


def real_pairs() -> dict[str, tuple[Path, Path, Path]]:
    """Return frames and true flow of the shared real pairs that are present, by name."""
    flow = DATA / "flow"
    found = {}
    for name in HARD:
        folder = flow / "sintel" / "hard" / name
        found[name] = (folder / "frame_0001.png", folder / "frame_0002.png", folder / "frame_0001.flo")
    for folder in sorted((flow / "middlebury").glob("*")):
        found[folder.name] = (folder / "frame10.png", folder / "frame11.png", folder / "flow10.flo")
    for path in sorted((flow / "flyingchairs").glob("*-gt.flo")):
        number = path.name.removesuffix("-gt.flo")
        found[f"chairs {number}"] = (path.with_name(f"{number}-img0.ppm"), path.with_name(f"{number}-img1.ppm"), path)
    return {name: paths for name, paths in found.items() if paths[2].exists()}


def read_frame(path: Path) -> Tensor:
    """Read an 8-bit frame as [1, 3, H, W] uint8."""
    return torch.from_numpy(np.asarray(Image.open(path).convert("RGB")).copy()).permute(2, 0, 1)[None]


@torch.no_grad()
def score(network: torch.nn.Module, device: torch.device, updates: int) -> dict[str, float]:
    """Return the mean end-point error of every real pair, px."""
    network.eval()
    errors = {}
    for name, (first, second, truth) in real_pairs().items():
        frames = [read_frame(path).to(device) for path in (first, second)]
        flow = read_flow(truth)
        found = network(*frames, updates=updates)[0].cpu()
        error = (found - flow.flow).norm(dim=0)[flow.valid]
        errors[name] = float(error.mean())
    network.train()
    return errors


@torch.no_grad()
def error_on(source: Mixture, network: torch.nn.Module, batch: int, updates: int) -> float:
    """Return the mean end-point error on the visible pixels of synthetic pairs that training does not show, px."""
    network.eval()
    errors = []
    for index in range(1_000_000, 1_000_008):
        pairs = source.batch(index, batch)
        found = network(pairs.frame1, pairs.frame2, updates=updates)
        errors.append(float((found - pairs.flow).norm(dim=1)[pairs.valid & ~pairs.occluded].mean()))
    network.train()
    return sum(errors) / len(errors)


def hard_mean(errors: dict[str, float]) -> float:
    """Return the geometric mean of the errors on the four hard pairs."""
    return math.exp(sum(math.log(errors[name]) for name in HARD) / len(HARD))


def style_of(text: str) -> tuple[SceneStyle, float]:
    """Read ``NAME[:field~value,...]=SHARE``: a preset with some fields replaced, and its share of the mixture."""
    spec, _, share = text.rpartition("=")
    name, _, fields = spec.partition(":")
    items = (item.partition("~") for item in fields.split(",") if item)
    changes = {key: int(value) if key == "instants" else float(value) for key, _, value in items}
    return SceneStyle(**{**vars(SceneStyle.preset(name)), **changes}), float(share)


def parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--network", choices=NETWORKS, default="raft-small")
    made.add_argument("--mixture", nargs="+", default=["usual=0.4", "large=0.3", "figures=0.3"], metavar="STYLE=SHARE")
    made.add_argument("--pairs", type=count, default=29_000, help="pairs shown [29,000]")
    made.add_argument("--size", type=size, default=(432, 768), metavar="WxH", help="of the pairs [768x432]")
    made.add_argument("--batch", type=count, default=8)
    made.add_argument("--updates", type=count, default=12, help="in training [12]")
    made.add_argument("--scored-updates", type=count, default=20)
    made.add_argument("--learning-rate", type=float, default=1.5e-4)
    made.add_argument("--seed", type=int, default=3)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("-o", "--output", type=Path, help="JSON")
    return made


def main() -> None:
    """Run the test and print errors before and after."""
    args = parser().parse_args()
    device = torch.device(args.device)
    network = RAFT(NETWORKS[args.network]())
    network.load_checkpoint(DATA / "weights" / f"{args.network}.pth")
    network = network.to(device)
    before = score(network, device, args.scored_updates)

    workers = max(1, (os.cpu_count() or 2) // 8)
    parts = []
    for text in args.mixture:
        style, share = style_of(text)
        atlas = parts[0][0].atlas if parts else None
        maker = PairMaker(args.size, seed=args.seed, device=device, style=style, pictures=atlas, workers=workers)
        parts.append((maker, share))
    source = Mixture(parts)
    steps = -(-args.pairs // args.batch)
    training = FlowTraining(
        steps=steps,
        batch=args.batch,
        learning_rate=args.learning_rate,
        updates=args.updates,
        precision="bfloat16" if device.type == "cuda" else "float32",
        graph=device.type == "cuda",
        freeze_norms=True,
        visible=0.0,
        average=0.99,
        seed=args.seed,
    )
    own = [error_on(source, network, args.batch, args.scored_updates)]
    network.train()
    network.freeze_batch_norm()
    stepper = Stepper(network, training)
    source.ahead(0, 1, lambda _: args.batch)
    start = time.perf_counter()
    for step in range(steps):
        batch = source.batch(step, args.batch)
        stepper.step(batch, step, rate=training.rate(step / steps))
        if step % 100 == 99:
            reading = stepper.read()
            check_finite(reading, step, training)
            print(f"step {step + 1}/{steps} {time.perf_counter() - start:.0f} s {reading}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    after = score(network, device, args.scored_updates)
    own.append(error_on(source, network, args.batch, args.scored_updates))
    result: dict[str, Any] = {
        "synthetic": own,
        "network": args.network,
        "mixture": args.mixture,
        "pairs": steps * args.batch,
        "seconds": seconds,
        "before": before,
        "after": after,
        "hard": [hard_mean(before), hard_mean(after)],
    }
    if args.output is not None:
        with atomic_path(args.output) as path:
            path.write_text(json.dumps(result, indent=1) + "\n")
    shown = f"{result['pairs']} pairs, {seconds:.0f} s; synthetic {own[0]:.2f} -> {own[1]:.2f}"
    print(f"{args.network} {' '.join(args.mixture)}: {shown}")
    for name in before:
        print(f"  {name:16} {before[name]:8.3f} -> {after[name]:8.3f}  {after[name] / before[name]:.2f}")
    start, end = result["hard"]
    print(f"  hard, geometric  {start:8.3f} -> {end:8.3f}  {end / start:.2f}")


if __name__ == "__main__":
    main()
