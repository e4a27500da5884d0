"""New figures of matplotlib, and their files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield.io.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DPI = 150


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of ``size`` (width and height in inches) and its axes, row by row."""
    # Not through pyplot, which would look for a display.
    figure: Figure = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def save(figure: Figure, path: Path, description: str = "") -> Path:
    """Write a figure as PNG, with its description as text in the file."""
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Description": description})
    return path
