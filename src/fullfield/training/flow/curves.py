"""History of a run of flow: its rows, as a picture, and for TensorBoard."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield._check import InputError, SetupError
from fullfield.io.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = "curves.png"


class FlowRow(NamedTuple):
    """Row of the history: the steps since the row before."""

    step: int
    seconds: float  # of training so far, without stops
    loss: float  # mean
    error: float  # mean end-point error in training, pixels
    norm: float  # mean length of the gradient, before it is clipped
    rate: float  # learning rate
    skipped: int  # steps whose loss or gradient was not finite
    pairs_per_second: float
    validation: float  # mean end-point error of the averaged weights in validation, pixels; NaN: no validation


def require_matplotlib_figure_class() -> type[Figure]:
    """Return matplotlib's class of figures."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SetupError("curves: expected matplotlib, which is not installed; pip install matplotlib") from None
    return Figure


def write_history_plot(path: str | os.PathLike[str], history: Sequence[FlowRow]) -> None:
    """Write the curves of a run as a picture: loss, end-point errors in training and validation, learning rate."""
    make_figure = require_matplotlib_figure_class()
    if not history:
        raise InputError("history: expected one row at least, got none")
    figure = make_figure(figsize=(12, 3.6), layout="constrained")
    titles = {"loss": "loss", "error": "mean end-point error, pixels", "rate": "learning rate"}
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        axes.plot([row.step for row in history], [getattr(row, name) for row in history], label="training")
        if name == "error":
            validated = [row for row in history if not math.isnan(row.validation)]
            if validated:
                axes.plot(
                    [row.step for row in validated], [row.validation for row in validated], "o-", label="validation"
                )
            axes.set_ylim(bottom=0)
            axes.legend()
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=100)


class TensorBoardWriter:
    """Writer of a history's rows for TensorBoard, into the folder ``tensorboard`` of a run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SetupError(
                "tensorboard: expected TensorBoard, which is not installed; pip install tensorboard"
            ) from None
        self._writer: Any = SummaryWriter(os.fspath(folder / "tensorboard"))

    def write_row(self, row: FlowRow) -> None:
        """Write a row."""
        for name, value in row._asdict().items():
            if name not in ("step", "seconds") and not math.isnan(value):
                self._writer.add_scalar(name, value, row.step)
        self._writer.flush()
