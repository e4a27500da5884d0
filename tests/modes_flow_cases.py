"""More of ``modes_cases``: training of flow, and shots."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fullfield.datasets import open_dataset
from fullfield.estimators import TVL1Estimator
from fullfield.io import write_flow, write_image
from fullfield.ops.tvl1 import TVL1Config
from fullfield.sequences import Setting, estimate_sequence
from fullfield.training import flow as training
from fullfield.training.flow.pictures import PicturePack

F32 = torch.float32
HEIGHT, WIDTH = 16, 24


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(F32)


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, shape)).to(F32)


class Small(nn.Module):
    """Two predictions of one convolution, its weights from a seed whatever PyTorch's default is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(6, 6, 3, padding=1, dtype=F32)
        with torch.no_grad():
            self.inner.weight.copy_(0.1 * noise(6, 6, 3, 3, seed=4))
            self.inner.bias.zero_()

    def predictions_with_info(self, frame1: Tensor, frame2: Tensor) -> list[tuple[Tensor, Tensor]]:
        found = self.inner(torch.cat((frame1, frame2), 1))
        return [(found[:, :2], found[:, 2:]), (2 * found[:, :2], found[:, 2:])]

    def predictions(self, frame1: Tensor, frame2: Tensor) -> list[Tensor]:
        return [flow for flow, _ in self.predictions_with_info(frame1, frame2)]

    def forward(self, frame1: Tensor, frame2: Tensor) -> Tensor:
        return self.predictions(frame1, frame2)[-1]


def batch(count: int = 2) -> training.FlowBatch:
    known = values(count, HEIGHT, WIDTH, seed=8) < 0.9
    shapes = (count, 3, HEIGHT, WIDTH)
    flow = 2 * noise(count, 2, HEIGHT, WIDTH, seed=7)
    return training.FlowBatch(values(*shapes, seed=5), values(*shapes, seed=6), flow, known, ~known)


class Source:
    """The same pairs at every call."""

    def batch(self, index: int, count: int) -> training.FlowBatch:
        del index
        return batch(count)


def stored(folder: Path) -> Any:
    """A data set of one pair, in a folder."""
    part = batch(1)
    for number, frame in enumerate((part.frame1, part.frame2)):
        write_image(folder / f"{number}.png", frame[0])
    write_flow(folder / "flow.flo", part.flow[0])
    (folder / "pairs.txt").write_text("0.png 1.png flow.flo\n")
    return open_dataset("pairs", folder)


def augmented() -> list[Tensor]:
    change = training.Augmentation(size=(8, 16), scale=(0.8, 1.4), flip=0.5, colour=0.4, gamma=0.2, eraser=1, noise=0.1)
    return [*training.Augmented(Source(), change, seed=3).batch(1, 2)]


def trained() -> list[Tensor]:
    """What needs gradients: outside of inference mode, as any training."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        model = Small()
        stepper = training.Stepper(model, training.FlowTraining(batch=2))
        stepper.step(batch(), 0, rate=1e-3)
        average = training.AveragedWeights(model)
        average.update(1)
        with tempfile.TemporaryDirectory() as folder:
            run = training.train_flow(Path(folder) / "run", Small(), Source(), training.FlowTraining(steps=2, batch=2))
        checked = training.FlowValidation({"made": Source()}, pairs=2)(model)
        return [
            model.inner.weight.detach(),
            average.model.inner.weight,
            run.model.inner.weight,
            torch.tensor(checked, dtype=F32),
        ]


def sources() -> list[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        data = stored(Path(folder))
        part = training.DatasetPairs(data, (8, 16), seed=1).batch(0, 2)
    mixed = training.Mixture([(Source(), 1.0), (Source(), 1.0)]).batch(0, 2)
    return [*part, *mixed]


def made() -> list[Tensor]:
    pictures = (255 * values(2, 16, 16, 3)).to(torch.uint8)
    shapes = (255 * values(1, 8, 8)).to(torch.uint8)
    pack = PicturePack(pictures, shapes, ("a", "b"))
    return [*training.PairGenerator((HEIGHT, WIDTH), pictures=pack, compressed=1.0).batch(0, 2)]


def shot() -> list[Tensor]:
    frames = [values(3, 40, 48, seed=seed) for seed in range(3)]
    estimator = TVL1Estimator(TVL1Config(scales=2, warps=1, iterations=3))
    found = []
    for flows in estimate_sequence(frames, estimator, setting=Setting("both", occlusion=True, confidence=True)):
        for part in (flows.forward, flows.backward):
            found += [] if part is None else [part.flow]
        found += [*flows.occlusion.values(), *flows.confidence.values()]
    return found


def register(case: Callable[..., Any]) -> None:
    """Add these to the cases."""
    case("training.flow.Augmented")(augmented)
    case(*(f"training.flow.{name}" for name in ("Stepper", "AveragedWeights", "train_flow", "FlowValidation")))(trained)
    case("training.flow.DatasetPairs", "training.flow.Mixture")(sources)
    case("training.flow.PairGenerator")(made)
    case("sequences.estimate_sequence")(shot)
