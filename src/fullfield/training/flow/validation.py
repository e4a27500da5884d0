"""Validation on pairs that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield._read_ahead import ReadAhead
from fullfield.datasets import FlowDataset, FlowSample
from fullfield.metrics import FlowMetrics
from fullfield.training.flow.batch import PairSource

_READERS = 4
_TOGETHER = 4


class FlowValidation:
    """Mean end-point error of a network, for :func:`train_flow`: of each set over its pairs, then over the sets.

    Args:
        sets: by name, data sets, whose pairs are evaluated at full size one by one; or sources of synthetic pairs, of
            another seed than those that are trained on.
        pairs: highest number of pairs of a set, spread evenly over it.
        updates: of the network, where it takes any; None leaves it to the network.

    Attributes:
        errors: the last network's error on each set, pixels.
    """

    def __init__(
        self, sets: Mapping[str, FlowDataset | PairSource], *, pairs: int = 64, updates: int | None = None
    ) -> None:
        _check.require(len(sets) > 0, "sets", "one at least", "none")
        _check.check_number(pairs, "pairs", integer=True, low=1)
        self._sets, self._pairs = dict(sets), pairs
        self._updates = {} if updates is None else {"updates": updates}
        self.errors: dict[str, float] = {}
        for name, data in self._sets.items():
            if isinstance(data, FlowDataset) and not _list_indices_of_pairs_with_flow(data):
                raise InputError(f"{name}: has no true flow to validate with")

    @torch.no_grad()
    def __call__(self, model: nn.Module, *, progress: Callable[[float, str], None] | None = None) -> float:
        """Return the error of a network in evaluation mode, pixels.

        ``progress`` is called with the finished fraction and a line.
        """
        device = next(model.parameters()).device
        finished, total = 0, sum(self._count_pairs(data) for data in self._sets.values())
        for name, data in self._sets.items():
            metrics = FlowMetrics(averaging="per_image")
            pairs = (
                self._iterate_dataset_pairs(data)
                if isinstance(data, FlowDataset)
                else self._iterate_generated_pairs(data)
            )
            for frame1, frame2, flow, valid in pairs:
                predictions = model.predictions(frame1.to(device), frame2.to(device), **self._updates)[-1]  # type: ignore[operator]
                for predicted, truth, valid_pixels in zip(predictions.float(), flow, valid, strict=True):
                    metrics.update(predicted, truth.to(device), valid_pixels.to(device))
                finished += len(flow)
                if progress is not None:
                    progress(finished / total, f"{finished} of {total} pairs")
            self.errors[name] = metrics.compute()["epe"]
        return sum(self.errors.values()) / len(self.errors)

    def _count_pairs(self, data: FlowDataset | PairSource) -> int:
        return (
            min(self._pairs, len(_list_indices_of_pairs_with_flow(data)))
            if isinstance(data, FlowDataset)
            else self._pairs
        )

    def _iterate_dataset_pairs(self, data: FlowDataset) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        scored = _list_indices_of_pairs_with_flow(data)
        number = self._count_pairs(data)
        selected = [scored[index * len(scored) // number] for index in range(number)]
        with ReadAhead(data.__getitem__, _count_sample_bytes, threads=_READERS, max_items=_READERS) as reader:
            reader.enqueue_keys_and_start_reads(selected)
            for index in selected:
                sample = reader.wait_and_take_item(index)
                if sample.flow is None or sample.valid is None:
                    raise InputError(f"{sample.name}: has no true flow to validate with")
                yield sample.frame1[None], sample.frame2[None], sample.flow[None], sample.valid[None]

    def _iterate_generated_pairs(self, source: PairSource) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        batches = self._pairs // _TOGETHER
        requests = [(batch_index, _TOGETHER) for batch_index in range(batches)]
        requests += [(number, 1) for number in range(batches * _TOGETHER, self._pairs)]
        for batch_index, pair_count in requests:
            batch = source.batch(batch_index, pair_count)
            yield batch.frame1, batch.frame2, batch.flow, batch.valid


def _list_indices_of_pairs_with_flow(data: FlowDataset) -> list[int]:
    return [index for index, record in enumerate(data.records) if record.flow is not None]


def _count_sample_bytes(sample: FlowSample) -> int:
    """Return the memory of the frames and the flow of a pair."""
    return sum(tensor.nbytes for tensor in (sample.frame1, sample.frame2, sample.flow) if tensor is not None)
