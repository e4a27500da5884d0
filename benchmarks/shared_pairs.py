"""Shared real pairs with true flow, which are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

FrameFiles = tuple[Path, Path, Path]
"""First frame, second frame and true flow."""


def data_folder() -> Path:
    """Return the folder of the shared data: ``FULLFIELD_DATA``, or ``shared/data`` next to the checkout."""
    return Path(os.environ.get("FULLFIELD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def shared_pairs(data: Path) -> dict[str, FrameFiles]:
    """Return the files of every pair that is present under ``data``, by name; stored results have these names."""
    flow, result = data / "flow", dict[str, FrameFiles]()
    for truth in sorted(flow.glob("middlebury/*/flow10.flo")):
        result[f"middlebury {truth.parent.name}"] = (
            truth.with_name("frame10.png"),
            truth.with_name("frame11.png"),
            truth,
        )
    truth = flow / "sintel" / "truth" / "frame_0002.flo"
    for kind in ("clean", "final") if truth.is_file() else ():
        first, second = (flow / "sintel" / kind / f"frame_000{number}.png" for number in (2, 3))
        result[f"sintel {kind} alley_1"] = first, second, truth
    for truth in sorted(flow.glob("sintel/hard/*/frame_0001.flo")):
        first, second = (truth.with_name(f"frame_000{number}.png") for number in (1, 2))
        result[f"sintel {truth.parent.name}"] = first, second, truth
    for truth in sorted(flow.glob("flyingchairs/*-gt.flo")):
        first, second = (truth.with_name(truth.name.replace("gt.flo", f"img{number}.ppm")) for number in (0, 1))
        result[f"flyingchairs {truth.name.removesuffix('-gt.flo')}"] = first, second, truth
    return result
