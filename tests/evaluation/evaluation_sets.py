"""A made-up data set, cheap estimators, and the totals without any of the machinery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield.datasets import FlowDataset, Pairs
from fullfield.io import write_flow, write_image
from fullfield.metrics import FlowMetrics

H, W = 24, 32


class Counting:
    """A cheap estimator: the flow is told by the frames' means, so that a mix-up is seen."""

    method = "counting"
    backend = "plain"

    def __init__(self, gain: float = 10.0, fail_at: int | None = None) -> None:
        self.gain, self.fail_at, self.calls = gain, fail_at, 0
        self.starts: list[Tensor | None] = []

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"gain": self.gain}

    def __call__(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        progress: Callable[[float, str], None] | None = None,  # noqa: ARG002
    ) -> Tensor:
        self.calls += 1
        self.starts.append(initial_flow)
        if self.fail_at is not None and self.calls > self.fail_at:
            raise KeyboardInterrupt
        batch, _, height, width = frame1.shape
        flow = torch.zeros(batch, 2, height, width)
        flow[:, 0] = self.gain * frame1.mean()
        flow[:, 1] = self.gain * frame2.mean() + torch.linspace(0, 1, width)
        return flow


def sequence(root: Path, shots: Mapping[str, int]) -> FlowDataset:
    generator = torch.Generator().manual_seed(5)
    for shot, count in shots.items():
        for folder in ("frames", "flow", "occlusions"):
            (root / shot / folder).mkdir(parents=True)
        for i in range(count):
            value = torch.rand(1, generator=generator)
            write_image(root / shot / "frames" / f"f_{i:02d}.png", value.expand(3, H, W).contiguous())
            flow = 8 * torch.rand(2, H, W, generator=generator)
            write_flow(root / shot / "flow" / f"f_{i:02d}.flo", flow, torch.rand(H, W, generator=generator) > 0.2)
            hidden = (torch.rand(1, H, W, generator=generator) > 0.9).float().expand(3, H, W).contiguous()
            write_image(root / shot / "occlusions" / f"f_{i:02d}.png", hidden)
    return Pairs(root, name="mine")


def by_hand(dataset: FlowDataset, averaging: str = "pooled", indices: range | None = None) -> dict[str, float]:
    """The totals without any of the machinery."""
    metrics, estimator = FlowMetrics(averaging=averaging), Counting()
    for sample in (dataset[i] for i in indices or range(len(dataset))):
        flow = estimator(sample.frame1[None], sample.frame2[None])[0]
        metrics.update(flow, sample.flow, sample.valid, sample.occluded)
    return metrics.compute()


class Prepared(Counting):
    """Tells its weights only once it is prepared, as a network does."""

    weights: str | None = None

    def prepare(self, device: object, size: tuple[int, int] | None = None) -> None:
        self.prepared = (str(device), size)
        self.weights = "0123"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"gain": self.gain, "weights_sha256": self.weights}
