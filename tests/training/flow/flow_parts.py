"""A network and pairs that are small enough to train in a test; processes that tests start import them too."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fullfield.testing import sample_textured_scene
from fullfield.training.flow.batch import FlowBatch

HEIGHT, WIDTH = 24, 32


class Tiny(nn.Module):
    """Three predictions of a flow, with a batch norm, by a few convolutions."""

    def __init__(self, *, norm: bool = True, dropout: float = 0.0, width: int = 8) -> None:
        super().__init__()
        self.encode = nn.Conv2d(6, width, 5, padding=2)
        self.norm: nn.Module = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.steps = nn.ModuleList(nn.Conv2d(width + 2, 6, 3, padding=1) for _ in range(3))
        self.unused = nn.Parameter(torch.ones(3))

    def predictions_with_mixture(self, frame1: Tensor, frame2: Tensor) -> list[tuple[Tensor, Tensor]]:
        features = self.dropout(torch.relu(self.norm(self.encode(torch.cat((frame1, frame2), 1)))))
        flow = torch.zeros_like(frame1[:, :2])
        found = []
        for step in self.steps:
            out = step(torch.cat((features, flow.detach()), 1)).float()
            flow = flow + out[:, :2]
            found.append((flow, out[:, 2:]))
        return found

    def predictions(self, frame1: Tensor, frame2: Tensor) -> list[Tensor]:
        return [flow for flow, _ in self.predictions_with_mixture(frame1, frame2)]


class Plain(nn.Module):
    """A researcher's network: ``predictions`` and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(6, 2, 5, padding=2)

    def predictions(self, frame1: Tensor, frame2: Tensor) -> list[Tensor]:
        return [self.inner(torch.cat((frame1, frame2), 1))]


def network(kind: type[nn.Module] = Tiny, **more: object) -> nn.Module:
    """The same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return kind(**more)


@functools.cache
def _parts(number: int) -> list[Tensor]:
    scenes = [sample_textured_scene(HEIGHT, WIDTH, seed=seed, max_motion=4.0) for seed in range(number)]
    return [torch.stack([getattr(scene, name) for scene in scenes]) for name in FlowBatch._fields]


class Scenes:
    """Pair k of a batch is scene number index · count + k, so that two processes' batches of one make one of two.

    ``change(index, batch)`` returns what becomes of a batch.
    """

    def __init__(self, number: int = 6, change: Callable[[int, FlowBatch], FlowBatch] = lambda _, batch: batch) -> None:
        self.parts = _parts(number)  # a batch is a copy
        self.asked: list[tuple[int, int]] = []
        self.change = change

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        self.asked.append((batch_index, pair_count))
        chosen = torch.tensor([(batch_index * pair_count + k) % len(self.parts[0]) for k in range(pair_count)])
        return self.change(batch_index, FlowBatch(*(part[chosen] for part in self.parts)))


def until(last: int) -> Scenes:
    """Scenes up to a batch at which the run is stopped."""

    def stop(index: int, batch: FlowBatch) -> FlowBatch:
        if index == last:
            raise KeyboardInterrupt
        return batch

    return Scenes(change=stop)


def spoilt(*numbers: int) -> Scenes:
    """Scenes of which some batches hold a frame that is not finite."""

    def spoil(index: int, batch: FlowBatch) -> FlowBatch:
        if index in numbers:
            batch.frame1[0, 0, 0, 0] = float("nan")
        return batch

    return Scenes(change=spoil)
