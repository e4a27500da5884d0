"""Shots: whole sequences of frames to motion vectors, and what one does with them.

- ``ranges``, ``names``: which frames, and what their files are called (light: no PyTorch)
- ``plates``: reading a frame with its windows and metadata; files, lists and videos
- ``changes``: cuts and held frames
- ``engine``: reads ahead and estimates each pair once; ``estimation``: the same as an iterator
- ``outputs``: the files, how they were made, which are done; ``run``: estimates and writes behind, in one process
- ``pool``: several devices of one machine; ``cluster``: those of many, through Ray
- ``motion``: pictures pulled along stored flow, frames in between

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fullfield.sequences.ranges import format_frames, parse_frames

if TYPE_CHECKING:
    from fullfield.sequences.engine import Problem as Problem
    from fullfield.sequences.engine import Setting as Setting
    from fullfield.sequences.estimation import FrameFlows as FrameFlows
    from fullfield.sequences.estimation import estimate_sequence as estimate_sequence
    from fullfield.sequences.outputs import Output as Output
    from fullfield.sequences.plates import Plate as Plate
    from fullfield.sequences.plates import Plates as Plates
    from fullfield.sequences.plates import open_plates as open_plates
    from fullfield.sequences.pool import run_on_devices as run_on_devices
    from fullfield.sequences.run import Outcome as Outcome
    from fullfield.sequences.run import Work as Work

_HOME = {
    "FrameFlows": "estimation",
    "Outcome": "run",
    "Output": "outputs",
    "Plate": "plates",
    "Plates": "plates",
    "Problem": "engine",
    "Setting": "engine",
    "Work": "run",
    "estimate_sequence": "estimation",
    "open_plates": "plates",
    "run_on_devices": "pool",
}

__all__ = [
    "FrameFlows",
    "Outcome",
    "Output",
    "Plate",
    "Plates",
    "Problem",
    "Setting",
    "Work",
    "estimate_sequence",
    "format_frames",
    "open_plates",
    "parse_frames",
    "run_on_devices",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"fullfield.sequences.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.sequences' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
