"""KITTI's odometry sequences as pairs of lidar scans."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import layout
from fullfield.datasets.scans import Criteria, ScanDataset, ScanRecord, rigid

SEQUENCES = {"train": range(6), "val": range(6, 8), "test": range(8, 11)}
_APART = 10.0
_WINDOW = 100
# The published lists leave this pair out.
_LEFT_OUT = {("08", 15, 58)}


class KITTIOdometry(ScanDataset):
    """Pairs about 10 m apart, chosen as Choy et al. (FCGF, ICCV 2019) and later papers chose them.

    ::

        ROOT/                        or ROOT/dataset/
          sequences/08/velodyne/000000.bin ...
          sequences/08/calib.txt     its line Tr: takes the lidar into the camera
          poses/08.txt               the camera's pose for every frame, 12 numbers a line

    Each scan is paired with the last one that lies before the first more than 10 m away, among the next hundred. The
    search continues after that pair. A scan without any so far away among the hundred is skipped. With all scans of 08
    to 10 this is the usual test list.

    The poses come from GPS and inertia; evaluation refines them on the scans first (:attr:`coarse`).

    Args:
        split: ``"train"`` (00 to 05), ``"val"`` (06, 07) or ``"test"`` (08 to 10).
    """

    criteria = Criteria(max_rre=5.0, max_rte=2.0, inlier_distance=0.6)
    reach = 0.3
    coarse = True

    def __init__(self, root: str | os.PathLike[str], *, split: str = "test") -> None:
        _check.choice(split, "split", SEQUENCES)
        given = Path(root)
        top = next((place for place in (given, given / "dataset") if (place / "sequences").is_dir()), given)
        layout.folder(top, "sequences", what="KITTI's odometry sequences")
        records = [record for number in SEQUENCES[split] for record in _sequence(top, f"{number:02d}")]
        super().__init__("kitti-odometry" + ("" if split == "test" else f"-{split}"), root, records)


def _sequence(top: Path, name: str) -> Iterator[ScanRecord]:
    home = layout.folder(top, "sequences", name, what=f"sequence {name}")
    clouds = layout.files(layout.folder(home, "velodyne", what="lidar scans"), (".bin",))
    scans = {layout.number(path): path for path in layout.nonempty(clouds, home / "velodyne", "lidar scans")}
    into_camera = _calibration(layout.existing(home / "calib.txt", home))
    file = top / "poses" / f"{name}.txt"
    poses = _poses(layout.existing(file, home))
    if max(scans) >= len(poses):
        raise InputError(f"{file}: has {len(poses)} poses, but there is {scans[max(scans)]}")
    for first, second in _pairs(sorted(scans), poses[:, :3, 3]):
        if (name, first, second) in _LEFT_OUT:
            continue
        between = torch.linalg.inv(poses[second]) @ poses[first]
        truth = torch.linalg.inv(into_camera) @ between @ into_camera
        yield ScanRecord(f"{name}/{first:06d}_{second:06d}", scans[first], scans[second], truth, scene=name)


def _pairs(numbers: list[int], places: Tensor) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(numbers):
        now = numbers[at]
        away = (places[now : now + _WINDOW] - places[now]).norm(dim=1) > _APART
        last = now + int(away.int().argmax()) - 1 if bool(away.any()) else now
        end = bisect_right(numbers, last) - 1  # the scan at hand
        if end > at:
            yield now, numbers[end]
        at = end + 1


def _poses(file: Path) -> Tensor:
    """Read the poses [N, 4, 4]."""
    rows = [line.split() for line in layout.read_lines(file) if line.strip()]
    if not rows:
        raise InputError(f"{file}: expected a pose of 12 numbers a line, found none")
    return torch.stack([_pose(row, f"{file}: line {number}") for number, row in enumerate(rows, 1)])


def _calibration(file: Path) -> Tensor:
    for line in layout.read_lines(file):
        key, colon, values = line.partition(":")
        if colon and key.strip() == "Tr":
            return _pose(values.split(), f"{file}: Tr")
    raise InputError(f"{file}: expected a line Tr: with 12 numbers, found none")


def _pose(words: list[str], where: str) -> Tensor:
    try:
        values = torch.tensor([float(word) for word in words], dtype=torch.float64)
    except ValueError:
        values = torch.empty(0)
    if values.numel() != 12 or not bool(values.isfinite().all()):
        raise InputError(f"{where}: expected 12 numbers, got {' '.join(words)[:60]!r}")
    return rigid(torch.cat([values.view(3, 4), values.new_tensor([[0.0, 0.0, 0.0, 1.0]])]), where)
