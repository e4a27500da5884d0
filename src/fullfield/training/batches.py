"""Pairs as tensors: which pair a step sees depends on the seed and its number alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.registration.learned import DescriptorNetwork, NetworkInput, network_input
from fullfield.training.config import DescriptorTraining
from fullfield.training.pairs import cut_pair
from fullfield.training.scenes import synthetic_scene

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Clouds = Sequence[NDArray[np.float64]]

_ATTEMPTS = 20
_MADE_UP = 12  # points a cell
_TRAINED, _HELD_OUT = 0, 1  # what a random stream is for


class Example(NamedTuple):
    """A pair as the network and the loss take it."""

    source: NetworkInput
    target: NetworkInput
    moved: Tensor  # [A, 3] float32: the source's described points where the truth brings them
    places: Tensor  # [B, 3] float32: the target's
    matches: Tensor  # [K, 2] int64

    def to(self, device: torch.device) -> Example:
        """The same on a device."""
        source, target = (NetworkInput(*(part.to(device) for part in side)) for side in (self.source, self.target))
        return Example(source, target, self.moved.to(device), self.places.to(device), self.matches.to(device))


def example(training: DescriptorTraining, clouds: Clouds, stream: tuple[int, ...]) -> Example:
    """The pair that the numbers ``stream`` stand for.

    Raises InputError where no pair can be cut from the clouds.
    """
    draw = np.random.default_rng((training.seed, *stream))
    for _ in range(_ATTEMPTS):
        if not clouds or draw.random() < training.synthetic:
            pair = cut_pair(synthetic_scene(draw, _MADE_UP * training.cells), draw, training.cells)
        else:
            pair = cut_pair(clouds[int(draw.integers(len(clouds)))], draw, training.cells)
        if pair is None:
            continue
        matches = pair.matches
        if len(matches) > training.anchors:
            matches = matches[np.sort(draw.choice(len(matches), training.anchors, replace=False))]
        source, target = (
            network_input(training.descriptor, side.fine, side.rows) for side in (pair.source, pair.target)
        )
        places = pair.target.fine[pair.target.rows]
        moved, there = (torch.from_numpy(part.astype(np.float32)) for part in (pair.moved, places))
        return Example(source, target, moved, there, torch.from_numpy(matches))
    raise InputError(f"clouds: expected some from which overlapping parts can be cut, got none in {_ATTEMPTS} attempts")


def batches(training: DescriptorTraining, clouds: Clouds, first: int, workers: int) -> Iterator[list[Example]]:
    """Those of the steps from ``first`` on, cut by threads meanwhile."""
    pending: deque[list[Future[Example]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="fullfield-cut") as pool:
        try:
            ahead = 1 + -(-workers // training.pairs)
            for step in range(first, training.steps + ahead):
                if step < training.steps:
                    streams = [(_TRAINED, step, number) for number in range(training.pairs)]
                    pending.append([pool.submit(example, training, clouds, stream) for stream in streams])
                if step >= first + ahead and pending:
                    yield [future.result() for future in pending.popleft()]
        finally:
            for future in (future for futures in pending for future in futures):
                future.cancel()


def held_out(training: DescriptorTraining, count: int) -> list[Example]:
    """Pairs of made-up scenes that no step sees."""
    return [example(training, (), (_HELD_OUT, number)) for number in range(count)]


def described(model: DescriptorNetwork, examples: Sequence[Example]) -> list[tuple[Tensor, Tensor]]:
    """The two descriptors [A, C], [B, C] of each pair; all clouds as one batch."""
    sides = [side for pair in examples for side in (pair.source, pair.target)]
    sizes = [len(side.points) for side in sides]
    points, features = (torch.cat([side[part] for side in sides]) for part in (0, 1))
    offsets = torch.tensor([0, *sizes], device=points.device).cumsum(0)
    pyramid = model.prepare(points, offsets, gradient=torch.is_grad_enabled())
    clouds = torch.split(model(features, pyramid), sizes)
    found = [cloud.index_select(0, side.rows) for cloud, side in zip(clouds, sides, strict=True)]
    return list(zip(found[::2], found[1::2], strict=True))
