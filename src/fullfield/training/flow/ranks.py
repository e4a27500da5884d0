"""Processes that train one network together, started by ``torchrun``."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count as count_up
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops.devices import AUTO, resolve_device

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_PATIENCE = timedelta(minutes=30)  # the first process may compile, save and validate while the others wait


@dataclass(frozen=True)
class Ranks:
    """Rank of this process and the number of processes; a single one by default."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Return whether this process writes and prints."""
        return self.rank == 0

    def sum_tensor_inplace(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def average_tensors_inplace(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes; one message for all of them."""
        if self.count == 1:
            return
        joined = torch.cat([value.reshape(-1) for value in tensors])
        distributed.all_reduce(joined)
        joined /= self.count
        pieces = torch.split(joined, [value.numel() for value in tensors])
        torch._foreach_copy_(list(tensors), [p.view_as(v) for p, v in zip(pieces, tensors, strict=True)])

    def broadcast_from_first_inplace(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the first process's."""
        if self.count > 1:
            for value in tensors:
                distributed.broadcast(value, 0)

    def broadcast_number_from_first(self, value: float, device: torch.device) -> float:
        """Return the first process's number; waits for it."""
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        distributed.broadcast(shared, 0)
        return float(shared)

    def wait_for_all_processes(self) -> None:
        """Return when every process has come here."""
        if self.count > 1:
            distributed.barrier()


def choose_rank_device(device_name: str) -> torch.device:
    """Return the device of this process; under ``torchrun``, ``auto`` and ``cuda`` are the GPU of its local rank.

    Elsewhere ``auto`` is the first GPU with kernels, else the CPU.
    """
    is_auto = device_name == AUTO
    device = resolve_device(device_name) if is_auto else _check.resolve_available_device(device_name)
    is_chosen = device.index is not None and not (is_auto and "LOCAL_RANK" in os.environ)
    if device.type != "cuda" or is_chosen:
        return device
    local = os.environ.get("LOCAL_RANK", "0")
    if not local.isdecimal():
        raise InputError(f"LOCAL_RANK: expected a number as torchrun sets it, got {local!r}")
    return _check.resolve_available_device(f"cuda:{local}")


_failed = False  # whether a group of GPUs was left open after an error


@functools.cache
def _get_rendezvous_store_and_group_numbers(_address: str | None, _port: str | None) -> tuple[Store, Iterator[int]]:
    """Return the store where the processes find each other, and the numbers of its groups.

    It stays open to the end: if it were closed and opened again, a process that is early would reach the old store and
    wait there for ever. Groups that follow each other have keys of their own, so that none reads what another left.
    """
    from torch.distributed.rendezvous import rendezvous

    store: Store = next(rendezvous("env://", timeout=_PATIENCE))[0]
    return store, count_up()


@contextmanager
def join_process_group_if_distributed(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` has started, by NCCL on GPUs and by gloo elsewhere.

    A process group that is there already is used and left as it is. After an error on a GPU the group is not closed,
    because NCCL would wait for the other processes, which may wait for this one; the process has to end then.
    """
    global _failed
    if _failed:
        raise InputError("torchrun: expected a new process, an earlier training of this one failed")
    if distributed.is_available() and distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
        return
    rank, count = _check.read_torchrun_rank_and_world_size()
    if count == 1:
        yield Ranks()
        return
    from torch.distributed.distributed_c10d import PrefixStore

    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    store, numbers = _get_rendezvous_store_and_group_numbers(
        os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    )
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=_PATIENCE,
        store=PrefixStore(f"fullfield/{next(numbers)}", store),
        rank=rank,
        world_size=count,
        device_id=device if on_gpu else None,
    )
    try:
        yield Ranks(rank, count)
    except BaseException:
        _failed = on_gpu
        raise
    finally:
        if not _failed:
            distributed.destroy_process_group()
