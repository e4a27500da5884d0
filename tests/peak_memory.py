"""How much memory a block of code takes, in tests and in the scripts they start."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """How many MiB the process grew at its peak inside of the block; None where there is no /proc.

    getrusage would do elsewhere, but starts from the peak of the process that forked.
    """

    grown: float | None = None

    def __enter__(self) -> PeakMemory:
        # What malloc holds free would be used inside of the block, or given back there, and hide what the block takes.
        with suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
        self.before = self._read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            self.grown = (self._read("VmHWM") or 0) - self.before

    @staticmethod
    def _read(name: str) -> float | None:
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return None
        return int(status.split(name + ":")[1].split()[0]) / 1024
