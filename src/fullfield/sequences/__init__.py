"""Shots: motion vectors of whole sequences, and pictures made along them.

- ``names``: frame ranges and file names (without PyTorch)
- ``plates``: frames with their windows and metadata, from files, lists and videos
- ``changes``: cuts and held frames
- ``engine``: reads ahead and estimates each pair once; ``estimation``: the same as an iterator
- ``outputs``: the files of a shot; ``records``: what made each of them; ``run``: estimates and writes, in one process
- ``pool``: several devices of one machine; ``cluster``: many machines, through Ray
- ``motion``: pictures pulled along stored flow, and frames in between

Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import lazy

if TYPE_CHECKING:
    from fullfield.sequences.engine import Problem as Problem
    from fullfield.sequences.engine import Setting as Setting
    from fullfield.sequences.estimation import FrameFlows as FrameFlows
    from fullfield.sequences.estimation import estimate_sequence as estimate_sequence
    from fullfield.sequences.names import format_frames as format_frames
    from fullfield.sequences.names import parse_frames as parse_frames
    from fullfield.sequences.outputs import Output as Output
    from fullfield.sequences.plates import Plate as Plate
    from fullfield.sequences.plates import Plates as Plates
    from fullfield.sequences.plates import open_plates as open_plates
    from fullfield.sequences.pool import run_on_devices as run_on_devices
    from fullfield.sequences.run import Outcome as Outcome
    from fullfield.sequences.run import Work as Work

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "engine": "Problem Setting",
        "estimation": "FrameFlows estimate_sequence",
        "outputs": "Output",
        "names": "format_frames parse_frames",
        "plates": "Plate Plates open_plates",
        "pool": "run_on_devices",
        "run": "Outcome Work",
    },
)
