"""Middlebury optical flow (Baker et al., IJCV 2011)."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import existing, folder, subfolders
from fullfield.datasets.sample import Record

_FRAMES = (
    "other-color-allframes",
    "other-color-twoframes",
    "other-data",
    "other-gray-allframes",
    "other-gray-twoframes",
)


class Middlebury(FlowDataset):
    """Middlebury's training scenes ("other"), with truth; unknown vectors are marked in the files.

    ::

        ROOT/
          other-color-allframes/other-data/    or other-color-twoframes/..., other-data/, other-gray-...
            Dimetrodon/    frame10.png frame11.png
          other-gt-flow/
            Dimetrodon/    flow10.flo

    or everything of a scene in one folder::

        ROOT/
          Dimetrodon/      frame10.png frame11.png flow10.flo

    Args:
        root: the folder. Scenes without truth are left out.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = folder(Path(root), what="Middlebury's scenes")
        truth = base / "other-gt-flow"
        frames = base
        if truth.is_dir():
            frames = next((base / name for name in _FRAMES if (base / name).is_dir()), base / _FRAMES[0])
            frames = folder(frames, what="Middlebury's frames")
            if (frames / "other-data").is_dir():
                frames = frames / "other-data"
        else:
            truth = base
        records = []
        for scene in subfolders(frames):
            first, flow = scene / "frame10.png", truth / scene.name / "flow10.flo"
            if first.is_file() and flow.is_file():
                second = existing(scene / "frame11.png", first)
                records.append(Record(scene.name, first, second, flow, sequence=scene.name))
        super().__init__("middlebury", root, records)
