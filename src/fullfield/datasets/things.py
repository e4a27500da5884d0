"""FlyingThings3D (Mayer et al., CVPR 2016)."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield import _check
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, existing, files, folder, nonempty, number, subfolders
from fullfield.datasets.sample import Record


class FlyingThings3D(FlowDataset):
    """FlyingThings3D: 2,247 sequences of ten frames, 960×540.

    ::

        ROOT/
          frames_cleanpass/TRAIN/A/0000/left/0006.png ...           and frames_finalpass/; TEST; B, C; right
          optical_flow/TRAIN/A/0000/into_future/left/OpticalFlowIntoFuture_0006_L.pfm ...
                                    into_past/left/OpticalFlowIntoPast_0006_L.pfm ...

    Args:
        root: the folder that holds ``frames_cleanpass`` and ``optical_flow``.
        split: ``"TRAIN"`` or ``"TEST"``; both have truth.
        render: ``"clean"`` or ``"final"``.
        camera: ``"left"`` or ``"right"``.
        direction: ``"future"``, to the next frame, or ``"past"``, to the one before.
    """

    SPLITS = ("TRAIN", "TEST")
    RENDERS = ("clean", "final")
    CAMERAS = ("left", "right")
    DIRECTIONS = ("future", "past")

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: str = "TRAIN",
        render: str = "clean",
        camera: str = "left",
        direction: str = "future",
    ) -> None:
        _check.choice(split, "split", self.SPLITS)
        _check.choice(render, "render", self.RENDERS)
        _check.choice(camera, "camera", self.CAMERAS)
        _check.choice(direction, "direction", self.DIRECTIONS)
        passes = folder(Path(root), f"frames_{render}pass", split, what="FlyingThings3D's frames")
        flows = folder(Path(root), "optical_flow", split, what="FlyingThings3D's true flow")
        records = []
        for letter in nonempty(subfolders(passes), passes, "the folders A, B, C"):
            for scene in subfolders(letter):
                frames = folder(scene, camera, what="FlyingThings3D's frames")
                parts = letter.name, scene.name, f"into_{direction}", camera
                flow = folder(flows, *parts, what="FlyingThings3D's true flow")
                sequence = f"{letter.name}/{scene.name}/{camera}_{direction}"
                for first, second in consecutive(files(frames, (".png", ".webp")), backward=direction == "past"):
                    file = f"OpticalFlowInto{direction.capitalize()}_{first.stem}_{camera[0].upper()}.pfm"
                    name, truth = f"{sequence}_{first.stem}", existing(flow / file, first)
                    index = number(first) if direction == "future" else -number(first)
                    records.append(Record(name, first, second, truth, None, None, sequence, index))
        words = [("-test", split == "TEST"), ("-right", camera == "right"), ("-past", direction == "past")]
        super().__init__(f"things-{render}" + "".join(word for word, said in words if said), root, records)
