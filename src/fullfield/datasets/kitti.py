"""KITTI flow 2012 (Geiger et al., CVPR 2012) and 2015 (Menze and Geiger, CVPR 2015)."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from fullfield import _check
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import existing, files, folder, number, optional, within
from fullfield.datasets.sample import Record


class _KITTI(FlowDataset):
    SPLITS = ("training", "testing")
    year: str
    frame_folders: tuple[str, ...]

    def __init__(self, root: str | os.PathLike[str], *, split: str = "training") -> None:
        _check.choice(split, "split", self.SPLITS)
        base = Path(root)
        found = next((name for name in self.frame_folders if (base / split / name).is_dir()), self.frame_folders[0])
        frames = folder(base, split, found, what=f"KITTI {self.year}'s frames")
        truth = folder(base, split, "flow_occ", what="KITTI's true flow") if split == "training" else None
        visible = None if truth is None else optional(base, split, "flow_noc")
        records = []
        for first in files(frames, (".png",)):
            if not first.stem.endswith("_10"):
                continue
            second = existing(frames / first.name.replace("_10.", "_11."), first)
            flow, seen = (within(place, first.name, first) for place in (truth, visible))
            records.append(Record(first.stem, first, second, flow, seen, sequence=first.stem, index=number(first)))
        name = f"kitti-{self.year}"
        super().__init__(name if split == "training" else f"{name}-test", root, records)

    def read_occlusion(self, record: Record, valid: Tensor) -> Tensor | None:
        if record.occlusion is None:
            return None
        _, visible = self.read_flow(record.occlusion)
        return valid & ~visible


class KITTI2015(_KITTI):
    """KITTI flow 2015: 200 training and 200 test pairs, about 1242×375, sparse truth.

    ::

        ROOT/
          training/
            image_2/    000000_10.png 000000_11.png ...
            flow_occ/   000000_10.png ...    all pixels
            flow_noc/   000000_10.png ...    optional: those that stay in sight; gives matched and unmatched
          testing/
            image_2/    ...

    Args:
        root: the folder that holds ``training`` and ``testing``.
        split: ``"training"`` or ``"testing"`` (no truth).
    """

    year = "2015"
    frame_folders = ("image_2",)


class KITTI2012(_KITTI):
    """KITTI flow 2012: 194 training and 195 test pairs, about 1226×370, sparse truth.

    ::

        ROOT/
          training/
            colored_0/  000000_10.png 000000_11.png ...    or image_0/, grey
            flow_occ/   000000_10.png ...
            flow_noc/   000000_10.png ...    optional
          testing/
            colored_0/  ...

    Args:
        root: the folder that holds ``training`` and ``testing``.
        split: ``"training"`` or ``"testing"`` (no truth).
    """

    year = "2012"
    frame_folders = ("colored_0", "image_0")
