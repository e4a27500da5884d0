"""MPI Sintel (Butler et al., ECCV 2012)."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield import _check
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, files, folder, nonempty, number, optional, subfolders, within
from fullfield.datasets.sample import Record


class Sintel(FlowDataset):
    """MPI Sintel: 23 training and 12 test sequences, 1024×436.

    ::

        ROOT/
          training/
            clean/ final/ albedo/   SCENE/frame_0001.png ...
            flow/                   SCENE/frame_0001.flo ...
            occlusions/             SCENE/frame_0001.png ...    optional; with it matched and unmatched are scored
            invalid/                SCENE/frame_0001.png ...    optional; pixels that are not scored
          test/
            clean/ final/           SCENE/frame_0001.png ...

    Args:
        root: the folder that holds ``training`` and ``test``.
        split: ``"training"`` or ``"test"`` (no truth).
        render: ``"clean"``, ``"final"`` or, in training, ``"albedo"``.

    Pixels of the ``invalid`` maps are left out, as Sintel's own evaluation does; without the folder all are scored.
    """

    SPLITS = ("training", "test")
    RENDERS = ("clean", "final", "albedo")

    def __init__(self, root: str | os.PathLike[str], *, split: str = "training", render: str = "clean") -> None:
        _check.choice(split, "split", self.SPLITS)
        _check.choice(render, "render", self.RENDERS if split == "training" else self.RENDERS[:2])
        base = Path(root)
        frames = folder(base, split, render, what="Sintel's frames")
        flow = folder(base, split, "flow", what="Sintel's true flow") if split == "training" else None
        maps = [None if flow is None else optional(base, split, name) for name in ("occlusions", "invalid")]
        records = []
        for scene in nonempty(subfolders(frames), frames, "a folder for each scene"):
            for first, second in consecutive(files(scene, (".png",))):
                name = f"{scene.name}/{first.stem}"
                truth = within(flow, f"{name}.flo", first)
                hidden, unscored = (within(place, f"{scene.name}/{first.name}", first) for place in maps)
                records.append(Record(name, first, second, truth, hidden, unscored, scene.name, number(first)))
        super().__init__(f"sintel-{render}" if split == "training" else f"sintel-{render}-test", root, records)
