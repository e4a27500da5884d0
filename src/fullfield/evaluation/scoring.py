"""Contribution of one pair to the totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets import FlowDataset, Truth
from fullfield.evaluation.loading import read_ahead
from fullfield.evaluation.run import Run, file_states
from fullfield.metrics import FlowMetrics


class Scorer:
    """Scorer of a data set's pairs, which keeps each contribution to the totals in the run's folder.

    Args:
        averaging: as of :class:`fullfield.metrics.FlowMetrics`.
        device: where to compare.
    """

    def __init__(self, dataset: FlowDataset, run: Run, averaging: str, device: torch.device) -> None:
        self.dataset, self.run, self.averaging, self.device = dataset, run, averaging, device

    def state(self, index: int, pred: Tensor, truth: Truth, known: Tensor | None = None) -> dict[str, Any]:
        """Return the contribution of a pair: ``pred`` [2, H, W] has vectors where ``known``."""
        record = self.dataset.records[index]
        flow, valid = truth.flow.to(self.device), truth.valid.to(self.device)
        if pred.shape[-2:] != flow.shape[-2:]:
            sizes = [f"{field.shape[-1]}×{field.shape[-2]}" for field in (flow, pred)]
            raise InputError(f"{record.flow}: is {sizes[0]}, but the flow of {record.name} is {sizes[1]}")
        if known is not None:
            lost = int((valid & ~known.to(self.device)).sum())
            if lost:
                raise InputError(f"{self.run.path(record.name)}: has no vector at {lost} pixels that are scored")
        metrics = FlowMetrics(averaging=self.averaging)
        occluded = None if truth.occluded is None else truth.occluded.to(self.device)
        metrics.update(pred.to(self.device), flow, valid, occluded)
        return metrics.state_dict()

    def keep(self, index: int, state: dict[str, Any]) -> None:
        """Store the contribution of a pair."""
        self.run.keep_score(self.averaging, self.dataset.records[index].name, self._truth(index), state)

    def stored(self, index: int) -> dict[str, Any] | None:
        """Return the contribution of a pair if it was scored against this truth."""
        return self.run.score(self.averaging, self.dataset.records[index].name, self._truth(index))

    def score_stored(self, indices: Sequence[int]) -> None:
        """Score the stored predictions that have truth and no score yet."""
        left = [i for i in indices if self.dataset.records[i].flow is not None and self.stored(i) is None]
        for loaded in read_ahead(self.dataset, left, frames=False):
            if loaded.truth is None:
                raise RuntimeError(f"{self.dataset.records[loaded.index].name} was read without its truth")
            pred, known = self.run.read(self.dataset.records[loaded.index].name)
            self.keep(loaded.index, self.state(loaded.index, pred, loaded.truth, known))

    def total(self) -> FlowMetrics:
        """Return the totals over all pairs with truth."""
        total = FlowMetrics(averaging=self.averaging)
        for index, record in enumerate(self.dataset.records):
            if record.flow is None:
                continue
            state = self.stored(index)
            if state is None:
                raise InputError(
                    f"{self.run.folder}: has no score of {record.name}; was another process stopped, or does it see "
                    "another copy of the truth?"
                )
            try:
                total.merge(FlowMetrics.from_state(state))
            except InputError as error:
                raise InputError(f"{self.run.scored(self.averaging, record.name)}: {error}; remove the file") from error
        return total

    def _truth(self, index: int) -> str:
        record = self.dataset.records[index]
        masks = record.flow, record.occlusion, record.invalid
        return file_states(path for path in masks if path is not None)
