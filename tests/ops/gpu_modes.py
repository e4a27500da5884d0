"""Modes of a GPU that several operators are tested in."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, whatever waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype: an error would leave it on
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
