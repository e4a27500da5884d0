"""Tracks of single points through the files of a followed shot, as tables."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import read_vectors
from fullfield.io.files import atomic_path
from fullfield.ops.warping import warp

TRACK_SUFFIXES = (".csv", ".txt")
_VISIBLE_OCCLUSION = 0.5


class TrackedPoint(NamedTuple):
    """Position of a point in one frame, in pixels; the centre of the top left pixel is (0, 0), y points down."""

    name: str
    frame: int
    x: float
    y: float
    is_visible: bool
    confidence: float


def read_points(path: str | os.PathLike[str]) -> dict[str, tuple[float, float]]:
    """Read points from a CSV with the columns ``x`` and ``y`` in pixels, and perhaps ``name``.

    Raises:
        InputError: naming the line that cannot be read.
    """
    points: dict[str, tuple[float, float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for index, row in enumerate(csv.DictReader(file), 1):
                name = row.get("name") or f"point{index}"
                if name in points:
                    raise InputError(f"{path}: expected names that differ, got {name} twice")
                try:
                    points[name] = (float(row["x"]), float(row["y"]))
                except (KeyError, TypeError, ValueError):
                    raise InputError(f"{path}: expected the columns x and y with numbers, got {row}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: expected a text file of points, cannot be read") from None
    if not points:
        raise InputError(f"{path}: expected a line x,y and a point in each further line, got none")
    return points


def track_points(
    points: dict[str, tuple[float, float]], numbers: Iterable[int], path_of: Callable[[int], str]
) -> list[TrackedPoint]:
    """Return where points of the reference frame are in each frame, from the files of a followed shot.

    Args:
        points: position (x, y) in pixels of the reference frame, by name.
        numbers: frames, whose files exist.
        path_of: returns the file of a frame.

    Raises:
        InputError: if a point lies outside the frame, or a file has no followed motion.
    """
    positions = torch.tensor(list(points.values()), dtype=torch.float32)
    tracks: list[TrackedPoint] = []
    for number in numbers:
        path = path_of(number)
        layers = read_vectors(path)
        if not {"forward", "occlusion.forward", "confidence.forward"} <= layers.keys():
            raise InputError(f"{path}: expected the layers of a followed shot, got {', '.join(layers)}")
        planes = torch.cat(
            (layers["forward"], layers["occlusion.forward"][None], layers["confidence.forward"][None])
        ).nan_to_num()
        for name, (x, y), values in zip(
            points, positions.tolist(), _sample(planes, positions, points, path), strict=True
        ):
            u, v, occlusion, confidence = values
            is_visible = occlusion < _VISIBLE_OCCLUSION
            tracks.append(TrackedPoint(name, number, x + u, y + v, is_visible, confidence))
    return tracks


def _sample(planes: Tensor, positions: Tensor, names: Iterable[str], path: str) -> list[list[float]]:
    """Return the values of planes [C, H, W] at positions [N, 2]."""
    height, width = planes.shape[-2:]
    for name, (x, y) in zip(names, positions.tolist(), strict=True):
        if not (0 <= x <= width - 1 and 0 <= y <= height - 1):
            raise InputError(
                f"points: expected positions in {width}x{height} pixels ({path}), got {name} at {x:g}, {y:g}"
            )
    values = []
    for x, y in positions.tolist():
        column, row = min(int(x), max(width - 2, 0)), min(int(y), max(height - 2, 0))
        corner = planes[:, row : row + 2, column : column + 2][None]
        offset = torch.zeros(1, 2, *corner.shape[-2:])
        offset[0, :, 0, 0] = torch.tensor([x - column, y - row])
        values.append(warp(corner, offset)[0][0, :, 0, 0].tolist())
    return values


def write_tracks(path: str | os.PathLike[str], tracks: Sequence[TrackedPoint], height: int) -> None:
    """Write tracks as a table (``.csv``) or in the text format for 2D tracks of 3DEqualizer (``.txt``).

    The table has the columns of :class:`TrackedPoint`. The text format has the number of points, and for each point its
    name, a colour, the number of frames, and ``frame x y`` of the frames in which it is visible. There, x and y count
    in pixels from the lower left corner of the frame, so the centre of a pixel is at one half.
    """
    where = Path(path)
    with atomic_path(where) as part, part.open("w", newline="", encoding="utf-8") as file:
        if where.suffix.lower() == ".csv":
            table = csv.writer(file)
            table.writerow(("name", "frame", "x", "y", "visible", "confidence"))
            for point in tracks:
                row = (point.name, point.frame, f"{point.x:.4f}", f"{point.y:.4f}")
                table.writerow((*row, int(point.is_visible), f"{point.confidence:.4f}"))
            return
        names = list(dict.fromkeys(point.name for point in tracks))
        file.write(f"{len(names)}\n")
        for name in names:
            visible = [point for point in tracks if point.name == name and point.is_visible]
            file.write(f"{name}\n0\n{len(visible)}\n")
            for point in visible:
                file.write(f"{point.frame} {point.x + 0.5:.4f} {height - point.y - 0.5:.4f}\n")
