"""Shots: motion vectors of whole sequences, and pictures made along them.

- ``names``: frame ranges and file names (without PyTorch)
- ``plates``: frames with their windows and metadata, from files, lists and videos
- ``settings``, ``job``: what a run does, settled before it starts; ``results``: what it reports
- ``changes``: cuts and duplicate frames
- ``engine``: reads ahead and estimates each pair once; ``estimation``: the same as an iterator
- ``tracking``: one reference frame in all others; ``follow``: the same for a shot; ``follow_job``: with its files
- ``outputs``: the files of a shot
- ``run``: estimates and writes, in one process; ``writing``: its threads that write
- ``pool``, ``follow_pool``: several devices of one machine; ``cluster``: many machines, through Ray
- ``warping``, ``retiming``: of a shot along its ``stored_flow``; ``pictures``: their run; ``motion``: the computation

Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.sequences.follow import follow_frames as follow_frames
    from fullfield.sequences.follow_job import FollowJob as FollowJob
    from fullfield.sequences.follow_job import write_reference_flow as write_reference_flow
    from fullfield.sequences.job import ShotJob as ShotJob
    from fullfield.sequences.motion import warp_image as warp_image
    from fullfield.sequences.names import format_frames as format_frames
    from fullfield.sequences.names import parse_frames as parse_frames
    from fullfield.sequences.outputs import Output as Output
    from fullfield.sequences.plates import open_plates as open_plates
    from fullfield.sequences.pool import write_shot_flow_on_devices as write_shot_flow_on_devices
    from fullfield.sequences.results import Outcome as Outcome
    from fullfield.sequences.retiming import RetimeSettings as RetimeSettings
    from fullfield.sequences.retiming import retime_shot as retime_shot
    from fullfield.sequences.run import write_shot_flow as write_shot_flow
    from fullfield.sequences.settings import ShotSettings as ShotSettings
    from fullfield.sequences.warping import WarpSettings as WarpSettings
    from fullfield.sequences.warping import warp_shot as warp_shot

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "follow": "follow_frames",
        "follow_job": "FollowJob write_reference_flow",
        "job": "ShotJob",
        "motion": "warp_image",
        "names": "format_frames parse_frames",
        "outputs": "Output",
        "plates": "open_plates",
        "pool": "write_shot_flow_on_devices",
        "results": "Outcome",
        "retiming": "RetimeSettings retime_shot",
        "run": "write_shot_flow",
        "settings": "ShotSettings",
        "warping": "WarpSettings warp_shot",
    },
)
