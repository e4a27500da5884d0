"""Lists of pairs of point clouds: their base class, your own lists, and KITTI's odometry sequences."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import layout
from fullfield.datasets.base import PairSequence
from fullfield.datasets.own import LIST
from fullfield.io import PointCloud, read_point_cloud
from fullfield.io.pointcloud import check_and_convert_pose, read_pose

_ROUNDED = 1e-2


class ScanSample(NamedTuple):
    """Pair of clouds and its true pose."""

    name: str  # unique within the data set, made of scene and numbers: "08/000000_000011"
    source: PointCloud
    target: PointCloud
    truth: Tensor  # [4, 4] float64, source into target
    information: Tensor | None  # [6, 6] float64, as 3DMatch's gt.info; None where the data set has none


@dataclass(frozen=True, eq=False)
class ScanRecord:
    """Files and true pose of one pair.

    Attributes:
        name: unique within the data set; usable as a relative path.
        scene: what results are averaged over.
        counted: whether the pair counts for the recall.
    """

    name: str
    source: Path
    target: Path
    truth: Tensor  # [4, 4] float64, source into target
    information: Tensor | None = None  # [6, 6] float64
    scene: str = ""
    counted: bool = True

    @property
    def input_files(self) -> tuple[Path, Path]:
        """Files that an estimate depends on."""
        return self.source, self.target


@dataclass(frozen=True)
class RegistrationCriteria:
    """Limits for a pair that counts as registered and for a match that is an inlier, in metres; None: no limit.

    Attributes:
        max_rre: degrees.
        max_rte, max_rmse: metres.
        inlier_distance: within which the true pose brings the points of a good match.
        inlier_ratio: share of good matches above which a pair's features count as matching.
    """

    max_rre: float | None = None
    max_rte: float | None = None
    max_rmse: float | None = None
    inlier_distance: float = 0.1
    inlier_ratio: float = 0.05


def require_rigid_pose(pose: Tensor, name: str) -> Tensor:
    """Return ``pose`` [4, 4]; InputError if it is no rotation, up to the rounding of lists, and a translation."""
    check_and_convert_pose(pose.numpy(), name, _ROUNDED)
    return pose


class ScanDataset(PairSequence[ScanRecord, ScanSample]):
    """Pairs of point clouds with their true pose, read on access.

    Attributes:
        name: name under which results are stored, with the split.
        root: the folder.
        records: one :class:`ScanRecord` a pair, in a fixed order.
        criteria: the data set's usual ones.
        reach: metres within which points of the two clouds, in the true pose, are the same place.
        coarse: whether the true poses are to be refined before they judge.
        bin_columns: values of a point in the set's ``.bin`` files; None where the numbers themselves show it.
    """

    pair_kind = "clouds"
    criteria = RegistrationCriteria(max_rmse=0.2)
    reach = 0.05
    coarse = False
    bin_columns: int | None = None

    def _read_pair(self, pair_index: int) -> ScanSample:
        record = self.records[pair_index]
        columns = {path: self.bin_columns if path.suffix.lower() == ".bin" else None for path in record.input_files}
        source, target = (read_point_cloud(path, columns=columns[path]) for path in record.input_files)
        return ScanSample(record.name, source, target, record.truth, record.information)


class ScanPairs(ScanDataset):
    """Your own clouds with their true poses.

    ::

        ROOT/
          pairs.txt      a pair a line: SOURCE TARGET POSE, files relative to ROOT; tabs between them where names have
                         spaces; lines that begin with # are skipped

    POSE brings the source onto the target: a text file or ``.npy`` of 4×4 or 3×4 numbers. Lengths are taken for metres:
    the usual limits are 3DMatch's, :class:`RegistrationCriteria` has others.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = layout.require_folder(root, description="your pairs of clouds")
        listing = base / LIST
        if not listing.is_file():
            raise InputError(f"{base}: expected {LIST}, a line SOURCE TARGET POSE for each pair of clouds")
        records = []
        for line, words in layout.iterate_line_labels_and_words(listing):
            if len(words) != 3:
                raise InputError(f"{line} should hold SOURCE TARGET POSE, got {len(words)} words")
            source, target, pose = (layout.require_listed_file(base, word, line) for word in words)
            name = "_".join(map(layout.convert_path_to_relative_pair_name, words[:2]))
            records.append(ScanRecord(name, source, target, torch.from_numpy(read_pose(pose))))
        super().__init__(base.resolve().name or "pairs", base, records)


SEQUENCES = {"train": range(6), "val": range(6, 8), "test": range(8, 11)}
_DISTANCE_M = 10.0
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

    The poses come from GPS and inertia; evaluation refines them on the scans first (:attr:`coarse`). ``split`` is
    ``"train"`` (00 to 05), ``"val"`` (06, 07) or ``"test"`` (08 to 10).
    """

    criteria = RegistrationCriteria(max_rre=5.0, max_rte=2.0, inlier_distance=0.6)
    reach = 0.3
    coarse = True
    bin_columns = 4

    def __init__(self, root: str | os.PathLike[str], *, split: str = "test") -> None:
        _check.check_choice(split, "split", SEQUENCES)
        base = Path(_check.convert_path_to_text(root, "root"))
        top = next((candidate for candidate in (base, base / "dataset") if (candidate / "sequences").is_dir()), base)
        layout.require_folder(top, "sequences", description="KITTI's odometry sequences")
        records = [
            record for number in SEQUENCES[split] for record in _iterate_sequence_scan_records(top, f"{number:02d}")
        ]
        super().__init__("kitti-odometry" + ("" if split == "test" else f"-{split}"), root, records)


def _iterate_sequence_scan_records(top: Path, name: str) -> Iterator[ScanRecord]:
    home = layout.require_folder(top, "sequences", name, description=f"sequence {name}")
    clouds = layout.list_files_with_suffix(
        layout.require_folder(home, "velodyne", description="lidar scans"), (".bin",)
    )
    scans = {
        layout.parse_last_number_or_minus_one(path): path
        for path in layout.require_nonempty(clouds, home / "velodyne", "lidar scans")
    }
    into_camera = _read_lidar_calibration(layout.require_companion_file(home / "calib.txt", home))
    file = top / "poses" / f"{name}.txt"
    poses = _read_pose_matrices(layout.require_companion_file(file, home))
    if max(scans) >= len(poses):
        raise InputError(f"{file}: has {len(poses)} poses, but there is {scans[max(scans)]}")
    for first, second in _iterate_pairs_at_10_m_distance(sorted(scans), poses[:, :3, 3]):
        if (name, first, second) in _LEFT_OUT:
            continue
        between = torch.linalg.inv(poses[second]) @ poses[first]
        truth = torch.linalg.inv(into_camera) @ between @ into_camera
        yield ScanRecord(f"{name}/{first:06d}_{second:06d}", scans[first], scans[second], truth, scene=name)


def _iterate_pairs_at_10_m_distance(scan_numbers: list[int], positions: Tensor) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(scan_numbers):
        now = scan_numbers[at]
        is_distant = (positions[now : now + _WINDOW] - positions[now]).norm(dim=1) > _DISTANCE_M
        last = now + int(is_distant.int().argmax()) - 1 if bool(is_distant.any()) else now
        end = bisect_right(scan_numbers, last) - 1  # the scan at hand
        if end > at:
            yield now, scan_numbers[end]
        at = end + 1


def _read_pose_matrices(file: Path) -> Tensor:
    """Read the poses [N, 4, 4]."""
    rows = [line.split() for line in layout.read_text_lines(file) if line.strip()]
    if not rows:
        raise InputError(f"{file}: expected a pose of 12 numbers a line, found none")
    return torch.stack([_parse_pose(row, f"{file}: line {number}") for number, row in enumerate(rows, 1)])


def _read_lidar_calibration(file: Path) -> Tensor:
    for line in layout.read_text_lines(file):
        key, colon, values = line.partition(":")
        if colon and key.strip() == "Tr":
            return _parse_pose(values.split(), f"{file}: Tr")
    raise InputError(f"{file}: expected a line Tr: with 12 numbers, found none")


def _parse_pose(words: list[str], location: str) -> Tensor:
    try:
        values = torch.tensor([float(word) for word in words], dtype=torch.float64)
    except ValueError:
        values = torch.empty(0)
    if values.numel() != 12 or not bool(values.isfinite().all()):
        raise InputError(f"{location}: expected 12 numbers, got {' '.join(words)[:60]!r}")
    return require_rigid_pose(torch.cat([values.view(3, 4), values.new_tensor([[0.0, 0.0, 0.0, 1.0]])]), location)
