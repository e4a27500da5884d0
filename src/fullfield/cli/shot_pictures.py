"""Pictures of every frame of a shot, for ``fullfield shot --viz``: one file per frame, or a video."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import flow_visualization, paths, report
from fullfield.io.names import IMAGE_WRITE_SUFFIXES, VIDEO_WRITE_SUFFIXES
from fullfield.sequences.names import FrameFiles, FramePattern

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.sequences import ShotJob

KINDS = ("flow", "overlay", "occlusion", "confidence")
"""Pictures of ``--viz``, the default first."""

_MAPS = ("occlusion", "confidence")
_RATE = 24.0  # frames a second of a video where the plates have no rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the pictures."""
    group = parser.add_argument_group("pictures")
    suffixes = " ".join(VIDEO_WRITE_SUFFIXES)
    group.add_argument("--viz", metavar="FILES", help=f"draw every frame: flow.%%04d.png, or a video: {suffixes}")
    group.add_argument(
        "--viz-kind", choices=KINDS, help="occlusion: white where hidden; confidence: white where reliable [flow]"
    )
    flow_visualization.add_max_motion_option(group)


def check_picture_options(
    args: argparse.Namespace, frame_files: FrameFiles, frame_numbers: Sequence[int] | None
) -> None:
    """Check the options of the pictures before the work starts."""
    if args.viz is None:
        for option, value in (("--viz-kind", args.viz_kind), ("--max-motion", args.max_motion)):
            if value is not None:
                raise InputError(f"{option}: applies to the pictures of --viz, which is absent")
        return
    kind = args.viz_kind or KINDS[0]
    if args.max_motion is not None and kind in _MAPS:
        raise InputError(f"--max-motion: is not used by --viz-kind {kind}; leave it out")
    if kind in _MAPS and not getattr(args, kind):
        raise InputError(f"--viz-kind {kind}: expected --{kind}, which stores the map")
    suffix = paths.get_checked_suffix(args.viz, "--viz", (*IMAGE_WRITE_SUFFIXES, *VIDEO_WRITE_SUFFIXES))
    if suffix in VIDEO_WRITE_SUFFIXES:
        inputs = [args.plates, *map(str, frame_files.files.values())]
        paths.check_output_file_and_remove_temporaries(args.viz, "--viz")
        paths.check_outputs_are_distinct([("--viz", args.viz)], inputs)
        files = [args.viz]
    else:
        pattern = paths.parse_pattern_and_remove_temporaries(args.viz, "--viz", suffix)
        outputs = [FramePattern.parse(text) for text in (args.output, args.st_map) if text]
        taken = {os.path.realpath(path) for path in frame_files.files.values()}
        number = next(iter(frame_files.files), 1)
        taken |= {os.path.realpath(output.format_path(number)) for output in outputs}
        files = [pattern.format_path(n) for n in frame_numbers or frame_files.files]
        if taken & {os.path.realpath(path) for path in (*files, pattern.format_path(number))}:
            raise InputError(f"--viz {args.viz}: names the plates or another output; choose another name")
    if not args.overwrite:
        paths.refuse_replacing_unrecorded_files([("--viz", path) for path in files])


def write_shot_pictures_and_summarize(
    args: argparse.Namespace, job: ShotJob, progress: Callable[[float, str], None]
) -> str:
    """Draw the frames that have a file; return the line of the report."""

    def read_flows(number: int) -> list[io.FlowData]:
        return [_read_stored_flow(job, number)]

    kind = args.viz_kind or KINDS[0]
    numbers = [number for number in job.numbers if Path(job.output.get_path(number)).is_file()]
    max_motion = args.max_motion or flow_visualization.measure_max_motion_in_sampled_frames(numbers, read_flows) or None
    plates = job.open_plates() if kind == "overlay" else None
    drawn = 0
    try:
        with _open_picture_writer(args, job) as write:
            for count, number in enumerate(numbers):
                progress(count / len(numbers), f"picture {number}")
                frame = None if plates is None else plates.read(number).frame
                try:
                    write(number, _read_and_draw_stored_flow(job, number, kind, frame, max_motion))
                    drawn += 1
                except InputError as error:
                    report.print_note(str(error), kind="error")
    finally:
        if plates is not None:
            plates.pop_nonfinite_messages()  # of which the run has warned
            plates.close()
    scale = "" if kind in _MAPS or max_motion is None else f", colour scale: 0 to {max_motion:.4g} px"
    return f"{report.escape_control_characters(args.viz)}: {report.format_count(drawn, 'picture')}, {kind}{scale}"


def _read_and_draw_stored_flow(
    job: ShotJob, number: int, kind: str, frame: Tensor | None, max_motion: float | None
) -> Tensor:
    """Return the picture of a stored frame: uint8 [3, H, W]."""
    from fullfield import viz

    path = job.output.get_path(number)
    if kind in _MAPS:
        tensors = io.read_flow_layers(path)
        direction = next(name for name in job.settings.offsets_by_direction if f"{kind}.{name}" in tensors)
        plane = tensors[f"{kind}.{direction}"].clamp(0, 1)
        return viz.frame_to_image(plane[None].expand(3, -1, -1))
    flow, valid = _read_stored_flow(job, number)
    return flow_visualization.FlowVisualization(flow, valid, frame, max_motion=max_motion).draw_picture(kind)


def _read_stored_flow(job: ShotJob, number: int) -> io.FlowData:
    """Return the flow of a stored frame in the direction that is drawn."""
    layer = job.settings.forward_or_only_direction if job.output.suffix == ".exr" else None
    return io.read_flow(job.output.get_path(number), layer=layer)


@contextmanager
def _open_picture_writer(args: argparse.Namespace, job: ShotJob) -> Iterator[Callable[[int, Tensor], None]]:
    """Yield a function that writes the picture of a frame to its file, or adds it to the video."""
    if Path(args.viz).suffix.lower() not in VIDEO_WRITE_SUFFIXES:
        pattern = FramePattern.parse(args.viz)

        def write_file(number: int, picture: Tensor) -> None:
            path = pattern.format_path(number)
            with paths.record_file_written_in_block(path):
                io.write_image(path, picture)

        yield write_file
        return
    rate = _RATE
    if job.frame_files.video is not None:
        from fullfield.sequences.picture_files import read_frame_rate_or_default

        rate = read_frame_rate_or_default(job.frame_files.video)
    writer: io.VideoWriter | None = None
    with paths.record_file_written_in_block(args.viz):
        try:

            def write_picture(number: int, picture: Tensor) -> None:
                nonlocal writer
                if writer is None:
                    writer = io.VideoWriter(args.viz, picture.shape[-1], picture.shape[-2], rate)
                writer.write(picture, (number - job.numbers[0]) / rate)

            yield write_picture
        except BaseException as error:
            if writer is not None:
                writer.__exit__(type(error), error, None)
            raise
        if writer is not None:
            writer.close()
