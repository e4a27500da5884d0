"""Several processes on one data set, started by ``torchrun``: each takes some pairs, the files are common."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from fullfield import _check
from fullfield.datasets import FlowDataset


@dataclass(frozen=True)
class ProcessRank:
    """Number of one process, and how many there are."""

    rank: int = 0
    count: int = 1

    def list_pair_indices(self, dataset: Sized) -> list[int]:
        """Return the indices of this process: every ``count``-th pair."""
        return list(range(self.rank, len(dataset), self.count))

    def list_pair_indices_of_own_sequences(self, dataset: FlowDataset) -> list[int]:
        """Return the indices of this process: every ``count``-th sequence."""
        order: dict[str, int] = {}
        for record in dataset.records:
            order.setdefault(record.sequence, len(order))
        return [i for i, r in enumerate(dataset.records) if order[r.sequence] % self.count == self.rank]


def read_torchrun_process_rank() -> ProcessRank:
    """Return the rank of this process among those that ``torchrun`` has started."""
    return ProcessRank(*_check.read_torchrun_rank_and_world_size())


def wait_for_all_processes(process: ProcessRank) -> None:
    """Wait until every process has called this."""
    if process.count == 1:
        return
    from datetime import timedelta

    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=timedelta(days=2))
    distributed.barrier()


def leave_process_group(process: ProcessRank) -> None:
    """Leave the group of processes that :func:`wait_for_all_processes` joined."""
    if process.count > 1:
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()
