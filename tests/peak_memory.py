"""Measurement of the memory that a block of code takes, in tests and in the scripts that they start."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """Growth of the process inside of a block at its peak, in MiB; None without /proc.

    getrusage would include the peak of the process that forked.
    """

    growth_mib: float | None = None

    def __enter__(self) -> PeakMemory:
        # Free memory of malloc would be reused or returned inside of the block and hide what the block takes.
        with suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current size
        self.before = self._read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            self.growth_mib = (self._read("VmHWM") or 0) - self.before

    @staticmethod
    def _read(name: str) -> float | None:
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return None
        return int(status.split(name + ":")[1].split()[0]) / 1024
