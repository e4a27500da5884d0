"""Spring (Mehl et al., CVPR 2023)."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from fullfield import _check
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, files, folder, nonempty, number, optional, subfolders, within
from fullfield.datasets.sample import Record


class Spring(FlowDataset):
    """Spring: 37 training and 10 test sequences, 1920×1080, truth at twice the size (four values for a pixel).

    ::

        ROOT/
          train/0001/
            frame_left/     frame_left_0001.png ...           and frame_right/
            flow_FW_left/   flow_FW_left_0001.flo5 ...        and flow_BW_left/, flow_FW_right/, flow_BW_right/
            maps/matchmap_flow_FW_left/   matchmap_flow_FW_left_0001.png ...    optional: unmatched where red or green
          test/0003/
            frame_left/ ...

    Args:
        root: the folder that holds ``train`` and ``test``.
        split: ``"train"`` or ``"test"`` (no truth).
        camera: ``"left"`` or ``"right"``.
        direction: ``"FW"``, to the next frame, or ``"BW"``, to the one before.

    Vectors are in pixels of the frame. Of a match map blue says nothing, as in Spring's own evaluation; in a map of
    twice the frame's size one of four values makes a pixel unmatched.
    """

    doubled = True
    SPLITS = ("train", "test")
    CAMERAS = ("left", "right")
    DIRECTIONS = ("FW", "BW")

    def __init__(
        self, root: str | os.PathLike[str], *, split: str = "train", camera: str = "left", direction: str = "FW"
    ) -> None:
        _check.choice(split, "split", self.SPLITS)
        _check.choice(camera, "camera", self.CAMERAS)
        _check.choice(direction, "direction", self.DIRECTIONS)
        scenes = folder(Path(root), split, what="Spring's sequences")
        stem = f"flow_{direction}_{camera}"
        records = []
        for scene in nonempty(subfolders(scenes), scenes, "a folder for each sequence"):
            frames = folder(scene, f"frame_{camera}", what="Spring's frames")
            flow = folder(scene, stem, what="Spring's true flow") if split == "train" else None
            matches = None if flow is None else optional(scene, "maps", f"matchmap_{stem}")
            sequence = f"{scene.name}/{stem}"
            for first, second in consecutive(files(frames, (".png",)), backward=direction == "BW"):
                name = f"{stem}_{number(first):04d}"
                truth, match = within(flow, f"{name}.flo5", first), within(matches, f"matchmap_{name}.png", first)
                index = number(first) if direction == "FW" else -number(first)
                records.append(Record(f"{scene.name}/{name}", first, second, truth, match, None, sequence, index))
        tail = "".join(f"-{word}" for word, usual in ((camera, "left"), (direction.lower(), "fw")) if word != usual)
        super().__init__(f"spring{tail}" if split == "train" else f"spring{tail}-test", root, records)

    def read_occlusion(self, record: Record, valid: Tensor) -> Tensor | None:
        """Read where a pixel has no match, from the match maps of the data set."""
        return None if record.occlusion is None else self._mask(record.occlusion, valid, slice(2))
