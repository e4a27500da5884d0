"""Guard against computing in a forked process, where the threads of PyTorch hang and CUDA cannot be used."""

from __future__ import annotations

import os

import torch

from fullfield._check import InputError


class _State:
    """State of this process: whether it has computed, and whether its parent had when it forked."""

    has_computed = False
    is_broken = False


def check_fork(device: torch.device) -> None:
    """Refuse to compute where the parent computed before it forked; otherwise note that this process computes.

    One CPU thread, as in the workers of a ``DataLoader``, is safe on either side of the fork.

    Raises:
        InputError: one line that names ``spawn``.
    """
    safe = device.type == "cpu" and torch.get_num_threads() == 1
    if _State.is_broken and not safe:
        raise InputError(
            "process: was forked after its parent had computed, so PyTorch's threads would hang; start workers with "
            "multiprocessing.get_context('spawn')"
        )
    _State.has_computed = _State.has_computed or not safe


def _after_fork() -> None:
    _State.is_broken = _State.has_computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
