"""Counters of the persistent lookup: which block takes which tile.

A lookup finds its counters at zero and leaves them at zero, so lookups that run one after another can share them, and
those that may run at once must not. Eager lookups of one stream share a slot. A captured graph has slots of its own,
one per captured stream, never used by anything else: replays need nothing from the host and may overlap with other
work. Slots are not given back; when they run out, a lookup takes zeroed memory of its own.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from fullfield.ops.correlation.cuda.structs import captured_by

SLOT = 16  # bytes, of which the kernel uses eight
COUNT = 4096


class Queues:
    """The slots of one device. In every call it must be the current one, and ``stream`` its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._memory: Tensor | None = None
        self._used = 0
        self._slots: dict[tuple[int, int], int] = {}

    def take(self, stream: int) -> tuple[int, Tensor | None]:
        """The address of zeroed counters for a lookup on ``stream``, and what must live until it is launched."""
        key = (stream, captured_by(stream))
        address = self._slots.get(key)
        if address is not None:
            return address, None
        with self._lock:
            if self._memory is None and key[1] == 0:
                self._memory = torch.zeros(COUNT * SLOT, dtype=torch.uint8, device=self._device)
                torch.cuda.current_stream(self._device).synchronize()  # other streams will read it
            if self._memory is not None and self._used < COUNT:
                address = self._slots.setdefault(key, self._memory.data_ptr() + SLOT * self._used)
                self._used += 1
                return address, None
        own = torch.zeros(SLOT, dtype=torch.uint8, device=self._device)
        return own.data_ptr(), own


_devices: dict[int, Queues] = {}
_lock = threading.Lock()


def of_device(device: torch.device, index: int) -> Queues:
    """The device's slots, shared by the whole process."""
    with _lock:
        return _devices.setdefault(index, Queues(device))
