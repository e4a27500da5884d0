"""Progress bar on stderr: redrawn on a terminal, a line at each tenth elsewhere, nothing for short work."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from collections.abc import Callable

from fullfield.cli.report import escape_control_characters, print_to_stderr_ignoring_errors

_SILENT_SECONDS = 1.0
_REDRAW_SECONDS = 0.1
_BAR = 24
_ENOUGH = 0.02  # fraction of the work after which the speed is known


class ProgressBar:
    """Context manager and ``progress(fraction, text)`` callback; clears the terminal's line at the end."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._stream = None if quiet else sys.stderr
        self._live = self._stream is not None and self._stream.isatty()
        self._start = self._last = time.monotonic()
        self._origin = (self._start, 0.0)  # time and fraction from which the speed is measured
        self._tenth = 0
        self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._draw_line("")

    def __call__(self, fraction: float, text: str = "") -> None:
        """Show the ``fraction`` of the work that is done, and what it does now."""
        now = time.monotonic()
        wait = _REDRAW_SECONDS if self._live else _SILENT_SECONDS
        if self._stream is None or now - self._start < _SILENT_SECONDS or now - self._last < wait:
            return
        tenth = int(fraction * 10)
        if self._live:
            bar = "#" * round(fraction * _BAR)
            self._draw_line(f"{self._label} [{bar:<{_BAR}}] {self._format_progress_line(now, fraction, text)}")
        elif tenth > self._tenth:
            print_to_stderr_ignoring_errors(
                f"fullfield: {self._label} {self._format_progress_line(now, fraction, text)}"
            )
        else:
            return
        self._tenth, self._last = tenth, now

    def start_span_and_build_callback(self, start: float, end: float) -> Callable[[float, str], None]:
        """Return a callback whose 0 to 1 is ``start`` to ``end`` of the whole work."""
        self._origin = (time.monotonic(), start)
        return lambda fraction, text: self(start + fraction * (end - start), text)

    def build_frame_callback(
        self, frame_count: int, report_fraction: Callable[[float], None] | None = None
    ) -> Callable[[int], None]:
        """Return a callback for the number of each of ``frame_count`` finished frames, from any thread.

        ``report_fraction`` receives the finished fraction.
        """
        lock, finished = threading.Lock(), itertools.count(1)

        def count_frame(number: int) -> None:
            with lock:
                position = next(finished)
                self(position / frame_count, f"frame {number}, {position} of {frame_count}")
                if report_fraction is not None:
                    report_fraction(position / frame_count)

        return count_frame

    def _format_progress_line(self, now: float, fraction: float, text: str) -> str:
        since, before = self._origin
        left = ""
        if before + _ENOUGH < fraction < 1:
            left = f", {_format_duration((now - since) * (1 - fraction) / (fraction - before))} left"
        return f"{fraction:4.0%}  {_format_duration(now - self._start)}{left}  {escape_control_characters(text)}"

    def _draw_line(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        print_to_stderr_ignoring_errors(f"\r{line[:width]:<{width}}\r", end="")
        self._drawn = True


def _format_duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
