"""One's own pairs of point clouds, listed in a file."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets.layout import folder
from fullfield.datasets.pairs import LIST
from fullfield.datasets.scans import ScanDataset, ScanRecord

_MOST_BYTES = 1 << 20


class ScanPairs(ScanDataset):
    """Your own clouds with their true poses.

    ::

        ROOT/
          pairs.txt      a pair a line: SOURCE TARGET POSE, files relative to ROOT; tabs between them where names have
                         spaces; lines that begin with # are skipped

    POSE brings the source onto the target: a text file or ``.npy`` of 4×4 or 3×4 numbers. Lengths are taken for metres:
    the usual limits are 3DMatch's, :class:`Criteria` has others.

    Args:
        root: the folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = folder(Path(root), what="your pairs of clouds")
        listing = base / LIST
        if not listing.is_file():
            raise InputError(f"{base}: expected {LIST}, a line SOURCE TARGET POSE for each pair of clouds")
        super().__init__(base.resolve().name or "pairs", base, _listed(listing))


def _listed(listing: Path) -> list[ScanRecord]:
    try:
        lines = listing.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{listing}: expected text in UTF-8") from None
    records = []
    for count, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = [word.strip() for word in (line.split("\t") if "\t" in line else line.split())]
        if len(words) != 3:
            raise InputError(f"{listing}: line {count} should hold SOURCE TARGET POSE, got {len(words)} words")
        source, target, pose = (listing.parent / word for word in words)
        for path in (source, target, pose):
            if not path.is_file():
                raise InputError(f"{listing}: line {count} names {path}, which does not exist")
        name = "_".join(Path(word).with_suffix("").as_posix().replace("..", "_").lstrip("/") for word in words[:2])
        records.append(ScanRecord(name, source, target, _pose(pose)))
    return records


def _pose(path: Path) -> Tensor:
    """[4, 4] float64."""
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: expected a pose, 12 or 16 numbers, got a file of {path.stat().st_size} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no numbers at all
            values = np.load(path) if path.suffix.lower() == ".npy" else np.loadtxt(path, np.float64, ndmin=2)
        rows = {12: 3, 16: 4}[values.size]
        pose = np.eye(4)
        pose[:rows] = values.reshape(rows, 4)
    except (KeyError, ValueError, TypeError, EOFError, OSError):
        raise InputError(f"{path}: expected a pose, 4x4 or 3x4 numbers") from None
    turn = pose[:3, :3]
    fits = np.isfinite(pose).all() and np.allclose(pose[3], (0, 0, 0, 1), atol=1e-6)
    if not (fits and np.allclose(turn @ turn.T, np.eye(3), atol=1e-3) and np.linalg.det(turn) > 0):
        raise InputError(f"{path}: expected a rotation and a translation, the last row 0 0 0 1")
    return torch.from_numpy(pose)
