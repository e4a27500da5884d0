"""FlyingChairs (Dosovitskiy et al., ICCV 2015)."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import existing, files, number, read_lines
from fullfield.datasets.sample import Record

# First frame, second frame, flow: the official names, and those of a mirror.
_NAMES = (("_img1.ppm", "_img2.ppm", "_flow.flo"), ("-img0.ppm", "-img1.ppm", "-gt.flo"))


class FlyingChairs(FlowDataset):
    """FlyingChairs: 22,872 pairs of 512×384.

    ::

        ROOT/
          data/                         or the files in ROOT itself
            00001_img1.ppm 00001_img2.ppm 00001_flow.flo ...
          FlyingChairs_train_val.txt    a 1 (training) or 2 (validation) a line; needed for a split

    Args:
        root: the folder.
        split: ``"all"``, ``"train"`` or ``"val"``, by the lines of ``FlyingChairs_train_val.txt``.
    """

    SPLITS = ("all", "train", "val")

    def __init__(self, root: str | os.PathLike[str], *, split: str = "all") -> None:
        _check.choice(split, "split", self.SPLITS)
        base = Path(root)
        data = base / "data" if (base / "data").is_dir() else base
        if not data.is_dir():
            raise InputError(f"{data}: expected the folder of FlyingChairs, but it does not exist")
        records = []
        for path in files(data, (".ppm",)):
            for first, second, flow in _NAMES:
                if path.name.endswith(first):
                    stem = path.name.removesuffix(first)
                    frame2, truth = (existing(data / f"{stem}{end}", path) for end in (second, flow))
                    records.append(Record(stem, path, frame2, truth, sequence=stem, index=number(Path(stem))))
        if split != "all":
            records = _of_split(records, base / "FlyingChairs_train_val.txt", split)
        super().__init__("chairs" if split == "all" else f"chairs-{split}", root, records)


def _of_split(records: list[Record], listing: Path, split: str) -> list[Record]:
    if not listing.is_file():
        raise InputError(f"{listing}: does not exist, but the split {split} is written there")
    marks = " ".join(read_lines(listing)).split()
    wanted = {"train": "1", "val": "2"}[split]
    if set(marks) - {"1", "2"}:
        raise InputError(f"{listing}: expected a 1 or 2 a line, got {sorted(set(marks) - {'1', '2'})[0]!r}")
    if any(not 1 <= record.index <= len(marks) for record in records):
        raise InputError(f"{listing}: has {len(marks)} lines, too few for the pairs in its folder")
    return [record for record in records if marks[record.index - 1] == wanted]
