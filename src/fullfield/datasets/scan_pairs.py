"""Your own pairs of point clouds, listed in a file."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fullfield._check import InputError
from fullfield.datasets.layout import folder, listed, named, plain
from fullfield.datasets.pairs import LIST
from fullfield.datasets.scans import ScanDataset, ScanRecord
from fullfield.io.pose import read_pose


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
        records = [_record(listing, line, words) for line, words in listed(listing)]
        super().__init__(base.resolve().name or "pairs", base, records)


def _record(listing: Path, line: str, words: list[str]) -> ScanRecord:
    if len(words) != 3:
        raise InputError(f"{line} should hold SOURCE TARGET POSE, got {len(words)} words")
    source, target, pose = (named(listing.parent, word, line) for word in words)
    return ScanRecord("_".join(map(plain, words[:2])), source, target, torch.from_numpy(read_pose(pose)))
