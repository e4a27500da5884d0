"""Tracks of single points through the files of a followed shot, as tables."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import read_flow_layers
from fullfield.io.files import write_atomically
from fullfield.ops.warping import warp_planes_and_mark_inside

_VISIBLE_OCCLUSION = 0.5


class TrackedPoint(NamedTuple):
    """Position of a point in one frame, in pixels; the centre of the top left pixel is (0, 0), y points down."""

    name: str
    frame: int
    x: float
    y: float
    is_visible: bool
    confidence: float


def read_points_csv(path: str | os.PathLike[str]) -> dict[str, tuple[float, float]]:
    """Read points from a CSV with the columns ``x`` and ``y`` in pixels, and perhaps ``name``.

    Raises:
        InputError: for another file, with the row that cannot be read, or for no point.
    """
    points: dict[str, tuple[float, float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            for index, row in enumerate(csv.DictReader(file), 1):
                name = row.get("name") or f"point{index}"
                if not name.isprintable():
                    raise InputError(f"{path}: expected names of one line, got {name!r}")
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


def check_points_inside_frame(points: Mapping[str, tuple[float, float]], height: int, width: int, path: str) -> None:
    """Raise InputError for a point outside the frame of a file."""
    for name, (x, y) in points.items():
        if not (0 <= x <= width - 1 and 0 <= y <= height - 1):
            raise InputError(
                f"points: expected positions in {width}x{height} pixels ({path}), got {name} at {x:g}, {y:g}"
            )


def read_tracks_from_flow_files(
    points: dict[str, tuple[float, float]], frame_numbers: Iterable[int], build_path: Callable[[int], str]
) -> list[TrackedPoint]:
    """Return where points of the reference frame are in each frame, from the files of a followed shot.

    Args:
        points: position (x, y) in pixels of the reference frame, by name.
        frame_numbers: frames, whose files exist.
        build_path: returns the file of a frame.

    Raises:
        InputError: if a point lies outside the frame, or a file has no followed motion.
    """
    positions = torch.tensor(list(points.values()), dtype=torch.float32)
    tracks: list[TrackedPoint] = []
    for number in frame_numbers:
        path = build_path(number)
        layers = read_flow_layers(path)
        if not {"forward", "occlusion.forward", "confidence.forward"} <= layers.keys():
            raise InputError(f"{path}: expected the layers of a followed shot, got {', '.join(layers)}")
        planes = torch.cat(
            (layers["forward"], layers["occlusion.forward"][None], layers["confidence.forward"][None])
        ).nan_to_num()
        height, width = planes.shape[-2:]
        check_points_inside_frame(points, height, width, path)
        for name, (x, y), values in zip(points, positions.tolist(), _sample_planes(planes, positions), strict=True):
            u, v, occlusion, confidence = values
            is_visible = occlusion < _VISIBLE_OCCLUSION
            tracks.append(TrackedPoint(name, number, x + u, y + v, is_visible, confidence))
    return tracks


def _sample_planes(planes: Tensor, positions: Tensor) -> list[list[float]]:
    """Return the values of planes [C, H, W] at positions [N, 2]."""
    height, width = planes.shape[-2:]
    values = []
    for x, y in positions.tolist():
        column, row = min(int(x), max(width - 2, 0)), min(int(y), max(height - 2, 0))
        corner = planes[:, row : row + 2, column : column + 2][None]
        offset = torch.zeros(1, 2, *corner.shape[-2:])
        offset[0, :, 0, 0] = torch.tensor([x - column, y - row])
        values.append(warp_planes_and_mark_inside(corner, offset)[0][0, :, 0, 0].tolist())
    return values


def write_tracks(path: str | os.PathLike[str], tracks: Sequence[TrackedPoint], height: int, reference: int) -> None:
    """Write tracks as a table (``.csv``), a Tracker node of Nuke (``.nk``) or 2D tracks of 3DEqualizer (``.txt``).

    The table has the columns of :class:`TrackedPoint`. The other formats have the frames in which a point is visible;
    x and y count in pixels from the lower left corner of the frame, so the centre of a pixel is at one half.

    Args:
        path: the file.
        tracks: points in order of their frames.
        height: height of the frames in pixels.
        reference: number of the reference frame.
    """
    where = Path(path)
    text = _FORMATS[where.suffix.lower()](tracks, height, reference)
    with write_atomically(where) as temporary_path:
        temporary_path.write_text(text, "utf-8", newline="")


def _format_csv_tracks(tracks: Sequence[TrackedPoint], _height: int, _reference: int) -> str:
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(("name", "frame", "x", "y", "visible", "confidence"))
    for point in tracks:
        row = (point.name, point.frame, f"{point.x:.4f}", f"{point.y:.4f}")
        table.writerow((*row, int(point.is_visible), f"{point.confidence:.4f}"))
    return text.getvalue()


def _group_by_name(tracks: Sequence[TrackedPoint]) -> dict[str, list[TrackedPoint]]:
    by_name: dict[str, list[TrackedPoint]] = {}
    for point in tracks:
        by_name.setdefault(point.name, []).append(point)
    return by_name


def _format_3dequalizer_tracks(tracks: Sequence[TrackedPoint], height: int, _reference: int) -> str:
    """Return the number of points; for each its name, a colour, the number of frames, and ``frame x y``."""
    by_name = _group_by_name(tracks)
    lines = [str(len(by_name))]
    for name, points in by_name.items():
        visible = [point for point in points if point.is_visible]
        lines += [name, "0", str(len(visible))]
        lines += [f"{point.frame} {point.x + 0.5:.4f} {height - point.y - 0.5:.4f}" for point in visible]
    return "\n".join(lines) + "\n"


_TRACKER_COLUMNS = (
    *("enable", "name", "track_x", "track_y", "offset_x", "offset_y", "T", "R", "S", "error", "error_min", "error_max"),
    *(f"{area}_{side}" for area in ("pattern", "search") for side in "xyrt"),
    *("key_track", *(f"{area}_{side}" for area in ("key_search", "key_track") for side in "xyrt")),
    *("key_centre_offset_x", "key_centre_offset_y"),
)
_COLUMN_KINDS = {
    "enable": "5 1 20",
    "name": "3 1 75",
    **dict.fromkeys(("track_x", "track_y"), "2 1 58"),
    **dict.fromkeys(("offset_x", "offset_y"), "2 1 63"),
    **dict.fromkeys("TRS", "4 1 27"),
    "error": "2 0 45",
    **{name: "1 1 0" for name in _TRACKER_COLUMNS if name.startswith(("error_", "pattern_", "search_"))},
    **{name: "2 1 0" for name in _TRACKER_COLUMNS if name.startswith("key_")},
}


def _format_nuke_tracker_node(tracks: Sequence[TrackedPoint], height: int, reference: int) -> str:
    """Return a script with a Tracker node, which Nuke opens or pastes.

    A track is off where its point is hidden; its curves have no keys there.
    """
    columns = [f"{{ {_COLUMN_KINDS[name]} {name} {'e' if name == 'enable' else name} 1 }}" for name in _TRACKER_COLUMNS]
    rows = []
    for name, points in _group_by_name(tracks).items():
        enabled = _format_nuke_animation_curve([(point.frame, f"{int(point.is_visible)}") for point in points])
        visible = [point for point in points if point.is_visible] or points[:1]
        x = _format_nuke_animation_curve([(point.frame, f"{point.x + 0.5:.4f}") for point in visible])
        y = _format_nuke_animation_curve([(point.frame, f"{height - point.y - 0.5:.4f}") for point in visible])
        # Offset, what the track drives (translation), error and its limits, the boxes, and eleven empty keys.
        others = "0 0 1 0 0 0 1 0 -32 -32 32 32 -22 -22 22 22" + " {}" * 11
        rows.append(f"{{ {enabled} {_quote_name_for_tcl(name)} {x} {y} {others} }}")
    return "\n".join(
        (
            "Tracker4 {",
            " inputs 0",
            f" tracks {{ {{ 1 {len(_TRACKER_COLUMNS)} {len(rows)} }} ",
            "{ " + " \n".join(columns) + " } ",
            "{ \n " + " \n ".join(rows) + " \n} \n}",
            f" reference_frame {reference}",
            " name Follow1",
            "}",
            "",
        )
    )


def _format_nuke_animation_curve(keys: Sequence[tuple[int, str]]) -> str:
    """Return an animation curve with a key in each frame; ``x`` names the frame after a gap."""
    words = ["curve"]
    for index, (frame, value) in enumerate(keys):
        if index == 0 or frame != keys[index - 1][0] + 1:
            words.append(f"x{frame}")
        words.append(value)
    return "{" + " ".join(words) + "}"


def _quote_name_for_tcl(name: str) -> str:
    return '"' + re.sub(r'([\\"$\[\]{}])', r"\\\1", name) + '"'


_FORMATS: dict[str, Callable[[Sequence[TrackedPoint], int, int], str]] = {
    ".csv": _format_csv_tracks,
    ".nk": _format_nuke_tracker_node,
    ".txt": _format_3dequalizer_tracks,
}
TRACK_SUFFIXES = tuple(_FORMATS)
"""Suffixes of the formats of :func:`write_tracks`."""
