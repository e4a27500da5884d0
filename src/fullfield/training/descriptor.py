"""Training a descriptor of points."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield._check import InputError
from fullfield.io import as_point_cloud
from fullfield.registration import LearnedDescriptor
from fullfield.registration.learned import DescriptorNetwork
from fullfield.training.batches import Example, batches, described, held_out
from fullfield.training.checkpoint import Row, TrainingFolder
from fullfield.training.config import DescriptorTraining
from fullfield.training.loss import contrastive_loss, matching_ratio

Progress = Callable[[float, str], None]

_HELD_OUT = 8  # pairs
_LONGEST = 1.0  # of a step's gradient
_FEWEST = 1000


class Trained(NamedTuple):
    """What :func:`train_descriptor` returns."""

    descriptor: LearnedDescriptor
    history: list[Row]


def train_descriptor(
    folder: str | os.PathLike[str],
    training: DescriptorTraining | None = None,
    clouds: Sequence[Any] = (),
    *,
    device: str | torch.device = "cpu",
    workers: int = 1,
    every: int = 500,
    progress: Progress | None = None,
) -> Trained:
    """Train a descriptor on pairs cut from ``clouds`` and from made-up scenes; a run that was stopped goes on.

    On the CPU the same configuration gives the same weights, bit for bit, with any stops and any number of workers.

    Args:
        folder: see :class:`~fullfield.training.checkpoint.TrainingFolder`.
        training: the configuration.
        clouds: files, arrays or tensors [N, 3], clouds; of any unit each, at least 1000 finite points.
        device: of the network. Pairs are cut on the CPU.
        workers: threads that cut pairs.
        every: steps between checkpoints.
        progress: called with the done share and a line.

    Raises:
        InputError: for what cannot be used, a folder of another run, or a loss that is not finite.
    """
    training = training or DescriptorTraining()
    place = _check.device(device)
    _check.number(workers, "workers", integer=True, low=1, high=1024)
    _check.number(every, "every", integer=True, low=1)
    real = [_finite(value, f"clouds[{number}]") for number, value in enumerate(clouds)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(training.seed)
        model = DescriptorNetwork(training.descriptor)
    descriptor = LearnedDescriptor(model)
    descriptor.encoded()  # a network that is too large is refused before it is trained
    kept = TrainingFolder(folder, {"training": training.as_dict(), "clouds": [_told(points) for points in real]})
    model.to(place).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    history = kept.restore(model, optimizer)
    first = history[-1].step if history else 0
    if first < training.steps:
        unseen = [pair.to(place) for pair in held_out(training, _HELD_OUT)]
    begin, before = time.perf_counter(), history[-1].seconds if history else 0.0
    losses: list[float] = []
    for step, cut in enumerate(batches(training, real, first, workers), first):
        losses.append(_step(model, optimizer, training, step, [pair.to(place) for pair in cut]))
        if progress is not None:
            progress((step + 1) / training.steps, f"loss {losses[-1]:.3f}")
        if (step + 1) % every == 0 or step + 1 == training.steps:
            seconds = before + time.perf_counter() - begin
            history.append(Row(step + 1, statistics.fmean(losses), _ratio(model, unseen, training.reach), seconds))
            losses.clear()
            descriptor.save(kept.weights)
            kept.save(model, optimizer, history)
    model.eval()
    return Trained(descriptor, history)


def _step(
    model: DescriptorNetwork,
    optimizer: torch.optim.Optimizer,
    training: DescriptorTraining,
    step: int,
    cut: list[Example],
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = training.rate(step)
    losses = [
        contrastive_loss(
            *pair, seen.matches, seen.moved, seen.places, temperature=training.temperature, reach=training.reach
        )
        for seen, pair in zip(cut, described(model, cut), strict=True)
    ]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), _LONGEST)
    optimizer.step()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise InputError(
            f"learning_rate: the loss is not finite at step {step + 1}; take less than {training.learning_rate}"
        )
    return value


@torch.no_grad()
def _ratio(model: DescriptorNetwork, unseen: Sequence[Example], reach: float) -> float:
    """The mean share of mutual matches that are right; a pair without any counts as 0."""
    model.eval()
    pairs = [described(model, [pair])[0] for pair in unseen]
    model.train()
    ratios = [
        matching_ratio(*pair, seen.moved, seen.places, reach=reach) for seen, pair in zip(unseen, pairs, strict=True)
    ]
    return statistics.fmean(0.0 if math.isnan(ratio) else ratio for ratio in ratios)


def _finite(value: Any, name: str) -> NDArray[np.float64]:
    name = os.fspath(value) if isinstance(value, (str, os.PathLike)) else name
    points = as_point_cloud(value, name).points.astype(np.float64)
    finite: NDArray[np.float64] = points[np.isfinite(points).all(1)]
    _check.require(len(finite) >= _FEWEST, name, f"at least {_FEWEST} finite points", f"{len(finite)}")
    return finite


def _told(points: NDArray[np.float64]) -> dict[str, Any]:
    return {"points": len(points), "sha256": hashlib.sha256(points.tobytes()).hexdigest()[:16]}
