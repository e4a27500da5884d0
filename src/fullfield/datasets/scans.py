"""Base class of the lists of pairs of point clouds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets.listed import Listed
from fullfield.io import PointCloud, read_point_cloud

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
    def inputs(self) -> tuple[Path, Path]:
        """Files that an estimate depends on."""
        return self.source, self.target


@dataclass(frozen=True)
class Criteria:
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


def rigid(pose: Tensor, where: str) -> Tensor:
    """Return ``pose`` [4, 4].

    InputError names ``where`` if it is not a rotation, up to the rounding of lists, and a translation.
    """
    turn = pose[:3, :3]
    near = torch.allclose(turn @ turn.T, torch.eye(3, dtype=pose.dtype), atol=_ROUNDED) and bool(torch.det(turn) > 0)
    if not near or pose[3].tolist() != [0.0, 0.0, 0.0, 1.0]:
        raise InputError(f"{where}: expected a rotation and a translation, the last row 0 0 0 1")
    return pose


class ScanDataset(Listed[ScanRecord, ScanSample]):
    """Pairs of point clouds with their true pose, read on access.

    Attributes:
        name: name under which results are stored, with the split.
        root: the folder.
        records: one :class:`ScanRecord` a pair, in a fixed order.
        criteria: the data set's usual ones.
        reach: metres within which points of the two clouds, in the true pose, are the same place.
        coarse: whether the true poses are to be refined before they judge.
    """

    of = "clouds"
    criteria = Criteria(max_rmse=0.2)
    reach = 0.05
    coarse = False

    def _sample(self, index: int) -> ScanSample:
        record = self.records[index]
        source, target = (read_point_cloud(path) for path in record.inputs)
        return ScanSample(record.name, source, target, record.truth, record.information)
