"""Sets that ``python -m tools render`` writes: Charge-8K, and scenes of our own."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import (
    consecutive,
    existing,
    files,
    folder,
    nonempty,
    number,
    optional,
    subfolders,
    within,
)
from fullfield.datasets.sample import Record
from fullfield.io.names import FRAME_SUFFIXES

CHARGE_SHOTS = {"010_0050": (101, 196), "040_0040": (101, 264), "060_0130": (101, 175)}
"""First and last frame of the shots of Blender's *Charge* that make Charge-8K (Briedis et al. 2026, table 5)."""


class Rendered(FlowDataset):
    """Frames and truth rendered with Blender.

    ::

        ROOT/
          SHOT/
            frames/        frame_0101.png ...            or .exr
            flow/          flow_0101.flo5 ...            twice the frame's size, vectors in pixels of the frame
            invalid/       invalid_0101.png ...          optional: pixels that are not scored; once or twice the size
            occlusions/    occlusion_0101.png ...        optional: not black where the next frame hides the pixel

    Args:
        root: the folder that holds the shots.
        name: what the set is called in results.

    A frame without truth (the last of a shot) ends a pair, and begins none.
    """

    doubled = True

    def __init__(self, root: str | os.PathLike[str], *, name: str = "rendered") -> None:
        base = folder(Path(root), what="the rendered shots")
        if (base / "frames").is_dir():
            raise InputError(f"{base}: is a shot, with frames in it; expected the folder that holds the shots")
        records = []
        for shot in nonempty(subfolders(base), base, "a folder for each shot"):
            frames = folder(shot, "frames", what="rendered frames")
            flow = folder(shot, "flow", what="rendered flow")
            hidden, unscored = optional(shot, "occlusions"), optional(shot, "invalid")
            for first, second in consecutive(files(frames, FRAME_SUFFIXES)):
                count = first.stem.rsplit("_", 1)[-1]
                pair, truth = f"{shot.name}/frame_{count}", existing(flow / f"flow_{count}.flo5", first)
                masks = within(hidden, f"occlusion_{count}.png", first), within(unscored, f"invalid_{count}.png", first)
                records.append(Record(pair, first, second, truth, *masks, sequence=shot.name, index=number(first)))
        super().__init__(name, root, records)


class Charge8K(Rendered):
    """The three shots of *Charge* at 8192×3432 (Briedis et al. 2026, section 6.1).

    ``python -m tools render`` renders them. The layout is that of :class:`Rendered`.
    Absent shots are left out.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root, name="charge-8k")
