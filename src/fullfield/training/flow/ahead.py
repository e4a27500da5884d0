"""The next batch, made while a step computes."""

from __future__ import annotations

import torch

from fullfield.training.flow.batch import FlowBatch, PairSource, check_batch, tell
from fullfield.training.flow.ranks import Ranks


class Ahead:
    """Batches of a source in their order, on a device; on a GPU each is made on a stream of its own beside the step.

    Args:
        source: of the pairs.
        count: pairs a batch, of this process.
        device: where they are wanted.
        ranks: this process among those that share the source.
    """

    def __init__(self, source: PairSource, count: int, device: torch.device, ranks: Ranks) -> None:
        self._source, self._count, self._device, self._ranks = source, count, device, ranks
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._waiting: tuple[int, FlowBatch] | None = None
        self._told: int | None = None

    def make(self, step: int) -> None:
        """Begin with the batch of a step; what the device has to do for it does not wait for the step before."""
        if self._stream is None:
            self._waiting = step, self._made(step)
            return
        with torch.cuda.stream(self._stream):
            self._waiting = step, self._made(step)

    def take(self, step: int) -> FlowBatch:
        """The batch of a step, ready for the device's current stream."""
        if self._waiting is None or self._waiting[0] != step:
            self.make(step)
        if self._waiting is None:
            raise RuntimeError("no batch was made")
        batch, self._waiting = self._waiting[1], None
        if self._stream is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_stream(self._stream)
            for part in batch:
                part.record_stream(here)
        return batch

    def _made(self, step: int) -> FlowBatch:
        index = step * self._ranks.count + self._ranks.rank
        if self._told != step:
            tell(self._source, index, self._ranks.count, lambda _: self._count)
        self._told = step + 1
        batch = self._source.batch(index, self._count)
        check_batch(batch)
        if batch.frame1.device != self._device:
            batch = batch.to(self._device, non_blocking=True)
        return batch
