"""Progress of an estimate at several sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from fullfield.estimators.protocol import Progress

if TYPE_CHECKING:
    from fullfield.estimators.network import PairSize


def map_progress_to_range_if_any(progress: Progress | None, start: float, extent: float) -> Progress | None:
    """Return a callback that reports a part of the work, which begins at ``start``, as that of the whole."""
    if progress is None:
        return None
    return lambda fraction, where: progress(start + extent * fraction, where)


class ProgressReporter:
    """Reports every level to ``progress``, and every update of the eager network."""

    def __init__(self, progress: Progress | None, total_pixel_updates: int) -> None:
        self._progress = progress
        self._work = max(total_pixel_updates, 1)
        self._completed = 0

    @property
    def completed_fraction(self) -> float:
        """Fraction of the work that is done."""
        return self._completed / self._work

    @contextmanager
    def report_updates_of_block(self, update_block: nn.Module, size: PairSize, updates: int) -> Iterator[None]:
        """Enclose the work at one size; every run of ``update_block`` is an update."""
        if self._progress is None:
            yield
            return
        progress, where = self._progress, f"{size.width}x{size.height}"
        progress(self.completed_fraction, where)

        end = self._completed + updates * size.pixels_per_frame

        def report_update(*_: object) -> None:  # the network may take more updates than were planned
            self._completed = min(self._completed + size.pixels_per_frame, end)
            progress(self.completed_fraction, where)

        hook = update_block.register_forward_hook(report_update)
        try:
            yield
        finally:
            hook.remove()
        self._completed = end
        progress(self.completed_fraction, where)
