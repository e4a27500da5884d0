"""What every list of pairs of point clouds offers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import PointCloud, read_point_cloud

_ROUNDED = 1e-2


class ScanSample(NamedTuple):
    """A pair of clouds and its true pose."""

    name: str  # unique within the data set, made of scene and numbers: "08/000000_000011"
    source: PointCloud
    target: PointCloud
    truth: Tensor  # [4, 4] float64, source into target
    information: Tensor | None  # [6, 6] float64, as 3DMatch's gt.info; None where the data set has none


@dataclass(frozen=True, eq=False)
class ScanRecord:
    """Where one pair is.

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
        """What an estimate depends on."""
        return self.source, self.target


@dataclass(frozen=True)
class Criteria:
    """When a pair counts as registered, and a match as an inlier. Lengths in metres; None: not asked.

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
    """``pose`` [4, 4]; InputError naming ``where`` if it is not a rotation, as lists round it, and a translation."""
    turn = pose[:3, :3]
    near = torch.allclose(turn @ turn.T, torch.eye(3, dtype=pose.dtype), atol=_ROUNDED) and bool(torch.det(turn) > 0)
    if not near or pose[3].tolist() != [0.0, 0.0, 0.0, 1.0]:
        raise InputError(f"{where}: expected a rotation and a translation, the last row 0 0 0 1")
    return pose


class ScanDataset(Sequence[ScanSample]):
    """Pairs of point clouds with their true pose, read when they are asked for.

    Attributes:
        name: what results are stored under; tells the split.
        root: the folder.
        records: one :class:`ScanRecord` a pair, in a fixed order.
        criteria: the data set's usual ones.
        reach: metres within which points of the two clouds, in the true pose, are the same place.
        coarse: whether the true poses are to be refined before they judge.
    """

    criteria = Criteria(max_rmse=0.2)
    reach = 0.05
    coarse = False

    def __init__(self, name: str, root: str | os.PathLike[str], records: Sequence[ScanRecord]) -> None:
        self.name = name
        self.root = Path(root)
        if not records:
            raise InputError(f"{root}: expected pairs of clouds of {name}, found none")
        self.records = tuple(records)
        seen: set[str] = set()
        for record in self.records:
            if record.name in seen:
                raise InputError(f"{record.source}: {name} has two pairs called {record.name}")
            seen.add(record.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r}): {self.name}, {len(self)} pairs"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ScanSample]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> ScanSample: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ScanSample]: ...

    def __getitem__(self, index: int | slice) -> ScanSample | Sequence[ScanSample]:
        """Read one pair. Raises InputError naming the file for what cannot be used, OSError for a missing one."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        record = self.records[index]
        source, target = (read_point_cloud(path) for path in record.inputs)
        return ScanSample(record.name, source, target, record.truth, record.information)
