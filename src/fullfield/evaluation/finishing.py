"""Work after an estimation (check, score, store); on a GPU it runs alongside the next estimation."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets import FlowDataset
from fullfield.datasets.base import TrueFlow
from fullfield.evaluation.loading import iterate_pairs_ahead
from fullfield.evaluation.run import PredictionRun, fingerprint_files_by_mtime
from fullfield.metrics import FlowMetrics


class PairScorer:
    """Scorer of a data set's pairs on a device, which keeps each contribution to the totals in the run's folder."""

    def __init__(self, dataset: FlowDataset, run: PredictionRun, averaging: str, device: torch.device) -> None:
        self.dataset, self.run, self.averaging, self.device = dataset, run, averaging, device

    def compute_pair_metrics(
        self, sample_index: int, pred: Tensor, truth: TrueFlow, has_vector: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the contribution of a pair: ``pred`` [2, H, W] has vectors where ``has_vector``."""
        record = self.dataset.records[sample_index]
        flow, valid = truth.flow.to(self.device), truth.valid.to(self.device)
        if pred.shape[-2:] != flow.shape[-2:]:
            sizes = [f"{field.shape[-1]}×{field.shape[-2]}" for field in (flow, pred)]
            raise InputError(f"{record.flow}: is {sizes[0]}, but the flow of {record.name} is {sizes[1]}")
        if has_vector is not None:
            lost = int((valid & ~has_vector.to(self.device)).sum())
            if lost:
                path = self.run.get_prediction_path(record.name)
                raise InputError(f"{path}: has no vector at {lost} pixels that are scored")
        metrics = FlowMetrics(averaging=self.averaging)
        occluded = None if truth.occluded is None else truth.occluded.to(self.device)
        metrics.update(pred.to(self.device), flow, valid, occluded)
        return metrics.state_dict()

    def store_pair_metrics(self, sample_index: int, state: dict[str, Any]) -> None:
        """Store the contribution of a pair."""
        self.run.store_score(
            self.averaging, self.dataset.records[sample_index].name, self._fingerprint_truth_files(sample_index), state
        )

    def read_pair_metrics_if_current(self, sample_index: int) -> dict[str, Any] | None:
        """Return the contribution of a pair if it was scored against this truth."""
        return self.run.read_score_if_current(
            self.averaging, self.dataset.records[sample_index].name, self._fingerprint_truth_files(sample_index)
        )

    def score_and_store_unscored_predictions(self, indices: Sequence[int]) -> None:
        """Score the stored predictions that have truth and no score yet."""
        left = [
            i
            for i in indices
            if self.dataset.records[i].flow is not None and self.read_pair_metrics_if_current(i) is None
        ]
        for loaded in iterate_pairs_ahead(self.dataset, left, frames=False):
            if loaded.truth is None:
                raise RuntimeError(f"{self.dataset.records[loaded.index].name} was read without its truth")
            pred, has_vector = self.run.read_prediction(self.dataset.records[loaded.index].name)
            self.store_pair_metrics(
                loaded.index, self.compute_pair_metrics(loaded.index, pred, loaded.truth, has_vector)
            )

    def merge_pair_scores_or_raise(self) -> FlowMetrics:
        """Return the totals over all pairs with truth."""
        total = FlowMetrics(averaging=self.averaging)
        for index, record in enumerate(self.dataset.records):
            if record.flow is None:
                continue
            state = self.read_pair_metrics_if_current(index)
            if state is None:
                raise InputError(
                    f"{self.run.folder}: has no score of {record.name}; was another process stopped, or does it see "
                    "another copy of the truth?"
                )
            try:
                total.merge(FlowMetrics.from_state(state))
            except InputError as error:
                raise InputError(
                    f"{self.run.get_score_path(self.averaging, record.name)}: {error}; remove the file"
                ) from error
        return total

    def _fingerprint_truth_files(self, sample_index: int) -> str:
        record = self.dataset.records[sample_index]
        masks = record.flow, record.occlusion, record.invalid
        return fingerprint_files_by_mtime(path for path in masks if path is not None)


_MAX_WORKERS = 8
_LARGE = 1 << 26  # bytes of a flow of which one at a time waits: scoring takes many times as much


def can_score_on_other_threads(device: torch.device) -> bool:
    """Return whether scoring runs alongside the next estimation; on a CPU it would take its cores."""
    return device.type == "cuda"


class PredictionFinisher:
    """Queue of a few finished flows; an error in the background is raised by a later call or at the end.

    Without a ``scorer`` nothing is scored. ``method`` is its name in errors. On a GPU, scoring runs alongside the next
    estimation; on a CPU it would take its cores.
    """

    def __init__(self, run: PredictionRun, scorer: PairScorer | None, device: torch.device, method: str) -> None:
        self._run, self._scorer, self._device, self._method = run, scorer, device, method
        self._overlaps = can_score_on_other_threads(device)
        self._workers = max(2, min(_MAX_WORKERS, (os.cpu_count() or 1) // 2))
        self._pool = ThreadPoolExecutor(self._workers if self._overlaps else 1, thread_name_prefix="fullfield-finish")
        self._waiting: deque[Future[None]] = deque()
        self._mine = threading.local()

    def __enter__(self) -> PredictionFinisher:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait_until_stored()
        finally:
            self._pool.shutdown()

    def __call__(
        self, sample_index: int, name: str, flow: Tensor, truth: TrueFlow | None, summary: dict[str, Any]
    ) -> None:
        """Finish the flow [2, H, W] of a pair; the work on ``device`` that computes it must have ended.

        Raises InputError naming the pair whose flow is not finite, and any error of an earlier pair.
        """
        self.wait_until_stored(0 if flow.nbytes > _LARGE else self._workers - 1)
        if self._overlaps:
            self._waiting.append(
                self._pool.submit(self._check_finite_score_and_store, sample_index, name, flow, truth, summary)
            )
        else:
            state = self._check_finite_and_score_if_truth(sample_index, name, flow, truth)
            self._waiting.append(
                self._pool.submit(self._store_prediction_and_score, sample_index, name, flow, summary, state)
            )

    def wait_until_stored(self, max_waiting: int = 0) -> None:
        """Wait until at most ``max_waiting`` flows are not stored yet."""
        while len(self._waiting) > max_waiting:
            self._waiting.popleft().result()

    def _check_finite_score_and_store(
        self, sample_index: int, name: str, flow: Tensor, truth: TrueFlow | None, summary: dict[str, Any]
    ) -> None:
        if self._device.type != "cuda":
            self._store_prediction_and_score(
                sample_index,
                name,
                flow,
                summary,
                self._check_finite_and_score_if_truth(sample_index, name, flow, truth),
            )
            return
        stream = self._get_or_create_thread_stream()
        with torch.cuda.stream(stream):
            state = self._check_finite_and_score_if_truth(sample_index, name, flow, truth)
            host = torch.empty(flow.shape, dtype=flow.dtype, pin_memory=True)
            host.copy_(flow, non_blocking=True)
            stream.synchronize()  # until here the flow's memory must not be given to others
        self._store_prediction_and_score(sample_index, name, host, summary, state)

    def _get_or_create_thread_stream(self) -> torch.cuda.Stream:
        """Return the calling thread's stream: PyTorch keeps freed memory per stream, so one per flow would hoard it."""
        if not hasattr(self._mine, "stream"):
            self._mine.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._mine.stream
        return stream

    def _check_finite_and_score_if_truth(
        self, sample_index: int, name: str, flow: Tensor, truth: TrueFlow | None
    ) -> dict[str, Any] | None:
        """Return the pair's contribution to the totals."""
        if not bool(flow.isfinite().all()):
            raise InputError(f"{name}: {self._method} gives a flow that is not finite")
        return (
            None
            if self._scorer is None or truth is None
            else self._scorer.compute_pair_metrics(sample_index, flow, truth)
        )

    def _store_prediction_and_score(
        self, sample_index: int, name: str, flow: Tensor, summary: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        """Store the prediction before its score, so that no score is without one."""
        self._run.save_prediction_unless_complete(name, flow, summary)
        if self._scorer is not None and state is not None:
            self._scorer.store_pair_metrics(sample_index, state)
