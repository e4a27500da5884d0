"""Several processes on one data set, started by ``torchrun``: each takes its share, the files are common."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from fullfield import _check
from fullfield.datasets import FlowDataset


@dataclass(frozen=True)
class Share:
    """Share of one process: its number, and how many there are."""

    rank: int = 0
    count: int = 1

    def of(self, dataset: Sized) -> list[int]:
        """Return the indices of this process: every ``count``-th pair."""
        return list(range(self.rank, len(dataset), self.count))

    def of_sequences(self, dataset: FlowDataset) -> list[int]:
        """Return the indices of this process: every ``count``-th sequence."""
        order: dict[str, int] = {}
        for record in dataset.records:
            order.setdefault(record.sequence, len(order))
        return [i for i, r in enumerate(dataset.records) if order[r.sequence] % self.count == self.rank]


def this_share() -> Share:
    """Return the share of this process among those that ``torchrun`` has started."""
    return Share(*_check.torchrun())


def wait_for_all(share: Share) -> None:
    """Wait until every process has called this."""
    if share.count == 1:
        return
    from datetime import timedelta

    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=timedelta(days=2))
    distributed.barrier()


def leave(share: Share) -> None:
    """Leave the group of processes."""
    if share.count > 1:
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()
