"""Kubric-NK (Morimitsu et al., DPFlow, CVPR 2025): generated scenes at 1K, 2K, 4K and 8K."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, existing, files, folder, nonempty, number, subfolders
from fullfield.datasets.sample import Record


class KubricNK(FlowDataset):
    """Kubric-NK as its authors distribute it; 8k is the paper's Kubric-8K (7680 pixels wide).

    ::

        ROOT/
          8k/                           and 1k/, 2k/, 4k/
            000/
              rgba_00000.png rgba_00001.png ...
              forward_flow_00000.png ...    16 bit; red is y, green is x, scaled to the range of
              data_ranges.json              {"forward_flow": {"min": ..., "max": ...}}, or config.json with the same
            001/ ...

    Args:
        root: the folder that holds ``8k``.
        resolution: ``"1k"``, ``"2k"``, ``"4k"`` or ``"8k"``.
    """

    RESOLUTIONS = ("1k", "2k", "4k", "8k")

    def __init__(self, root: str | os.PathLike[str], *, resolution: str = "8k") -> None:
        _check.choice(resolution, "resolution", self.RESOLUTIONS)
        base = folder(Path(root), resolution, what=f"Kubric-NK at {resolution}")
        records = []
        for scene in nonempty(subfolders(base), base, "a folder for each scene"):
            frames = [path for path in files(scene, (".png",)) if path.name.startswith("rgba_")]
            for first, second in consecutive(frames):
                count = first.stem.removeprefix("rgba_")
                flow = existing(scene / f"forward_flow_{count}.png", first)
                name = f"{scene.name}/rgba_{count}"
                records.append(Record(name, first, second, flow, sequence=scene.name, index=number(first)))
        super().__init__(f"kubric-{resolution}", root, records)

    def read_flow(self, path: Path) -> tuple[Tensor, Tensor]:
        """Read a flow from 16-bit colours, scaled by the range in the scene's JSON file."""
        from fullfield.io import read_frame

        low, high = _range(path.parent)
        image = read_frame(path, transfer="srgb")
        if image.shape[0] != 3:
            raise InputError(f"{path}: expected 16-bit red and green, got {image.shape[0]} channel")
        flow = image[[1, 0]].to(torch.float64).mul_(high - low).add_(low).to(torch.float32)
        return flow, torch.ones(flow.shape[1:], dtype=torch.bool)


def _range(scene: Path) -> tuple[float, float]:
    """Return the values that 0 and 65535 stand for."""
    for path in (scene / "data_ranges.json", scene / "config.json"):
        if not path.is_file():
            continue
        try:
            entry = json.loads(path.read_text("utf-8"))["forward_flow"]
            low, high = float(entry["min"]), float(entry["max"])
        except (ValueError, KeyError, TypeError):
            continue
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return low, high
        raise InputError(f"{path}: expected forward_flow with min < max, got {entry!r}")
    raise InputError(f"{scene}: expected data_ranges.json (or config.json) with the range of forward_flow, found none")
