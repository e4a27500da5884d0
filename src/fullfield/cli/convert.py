"""Convert flow to another format, another size or an ST map.

Convert a flow, or those of a shot, between formats, by suffix. What the new format cannot hold is reported on stderr.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.options import (
    add_compression_options,
    add_vector_encoding_options,
    build_flow_read_options,
    get_compression_arguments_fitting_output,
    get_vector_encoding_arguments,
)
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.io.names import FLOW_SUFFIXES, FLOW_WRITE_SUFFIXES, has_exr_suffix
from fullfield.sequences.names import choose_requested_or_all_frame_numbers, find_frame_files, has_number_field

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield convert flow.flo flow.exr --half --compression dwaa
  fullfield convert vectors.1001.exr back.flo --layer backward
  fullfield convert flow.flo st.exr --st-map
  fullfield convert 'proxy.%04d.exr' 'full.%04d.exr' --scale 2
  fullfield convert vector.exr flow.exr --channels mv.x,mv.y --y-axis down
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield convert``."""
    parser.add_argument("input", metavar="IN", help=f"flow: {' '.join(FLOW_SUFFIXES)} (.png: KITTI), or mv.%%04d.exr")
    parser.add_argument("output", metavar="OUT", help=f"flow: {' '.join(FLOW_WRITE_SUFFIXES)}; for a shot a pattern")
    parser.add_argument("--frames", metavar="RANGE", help="of a shot: 1001-1100, 1-10,20 [all that exist]")
    parser.add_argument(
        "--scale",
        type=argtypes.parse_scale_factor,
        metavar="X",
        help="for frames X times as large: resize the flow and its vectors; 1/2, 2, ...",
    )
    parser.add_argument("--st-map", action="store_true", help="write OUT.exr as an ST map instead of flow")
    parser.add_argument("--layer", metavar="NAME", help="EXR layer to read: forward, backward, ... [forward]")
    parser.add_argument("--part", metavar="PART", help="EXR part to read, by name or number [the first with flow]")
    add_vector_encoding_options(parser)
    add_compression_options(parser)
    report.add_report_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Convert one flow, or those of a shot, and report."""
    pairs = _check_options_and_pair_input_output_files(args)
    packing = get_compression_arguments_fitting_output(args)
    if args.st_map and packing:
        raise InputError("--half and --compression: an ST map is always float and ZIP; leave them out")
    converted = [_convert_print_losses_and_summarize(args, source, output, packing) for source, output in pairs]
    if len(converted) == 1 and not has_number_field(args.input):
        content = converted[0]
        width, height = content["size"].values()
        text = (
            f"{report.escape_control_characters(args.output)}: {width}x{height}, "
            f"{report.format_count(content['unknown'], 'unknown vector')}"
        )
        report.print_report(args, {**report.select_attributes(args, "input", "output", "st_map"), **content}, text)
        return 0
    unknown = sum(content["unknown"] for content in converted)
    properties = {
        **report.select_attributes(args, "input", "output", "st_map"),
        "files": len(converted),
        "unknown": unknown,
    }
    report.print_report(
        args,
        properties,
        f"{report.escape_control_characters(args.output)}: {report.format_count(len(converted), 'file')}, "
        f"{report.format_count(unknown, 'unknown vector')}",
    )
    return 0


def _check_options_and_pair_input_output_files(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the files to read, each with the file to write."""
    name, suffixes = ("OUT of --st-map", (".exr",)) if args.st_map else ("OUT", FLOW_WRITE_SUFFIXES)
    if not has_number_field(args.input):
        if args.frames is not None:
            raise InputError("--frames: selects frames of a shot, and IN is one file; leave it out")
        paths.get_checked_suffix(args.input, "IN", FLOW_SUFFIXES)
        paths.check_files_and_remove_temporaries([("IN", args.input)], [(name, args.output, suffixes)])
        return [(args.input, args.output)]
    frame_files = find_frame_files(args.input)
    numbers = [
        number
        for number in choose_requested_or_all_frame_numbers(frame_files, args.frames)
        if number in frame_files.files
    ]
    sources = {number: frame_files.get_path(number) for number in numbers}
    paths.get_checked_suffix(sources[numbers[0]], "IN", FLOW_SUFFIXES)
    pattern = paths.parse_pattern_and_remove_temporaries(args.output, name, suffixes[0])
    paths.get_checked_suffix(args.output, name, suffixes)
    outputs = {number: pattern.format_path(number) for number in numbers}
    taken = {Path(path).resolve() for path in sources.values()}
    for path in outputs.values():
        if Path(path).resolve() in taken:
            raise InputError(f"{name}: {path} is also read; choose another name")
    return [(sources[number], outputs[number]) for number in numbers]


def _convert_print_losses_and_summarize(
    args: argparse.Namespace, input_path: str, output_path: str, write_arguments: dict[str, Any]
) -> dict[str, Any]:
    """Convert one file, compare what was written with what was read, and return the facts about it."""
    import torch

    from fullfield.io.flow import read_flow_window

    choice: dict[str, Any] = {"layer": args.layer, "part": args.part, **get_vector_encoding_arguments(args)}
    if "channels" in choice:
        with rename_arguments_in_errors(channels="--channels"):
            choice["channels"] = io.FlowReadOptions(choice["channels"]).build_read_arguments("forward")["channels"]
    is_exr_twice = has_exr_suffix(input_path) and has_exr_suffix(output_path)
    keeps = is_exr_twice and args.scale is None  # both windows; else only the display window is converted
    names = {name: choice.get(name) for name in ("layer", "part", "channels")}
    window = read_flow_window(input_path, **names) if keeps else None
    window_choice: Any = {"window": "data"} if keeps else {}
    with rename_arguments_in_errors(channels="--channels", layer="--layer"):
        flow, valid = _resize_by_scale_option(args, *io.read_flow(input_path, **choice, **window_choice))
    unknown = int((~valid).sum())
    backward = _read_resized_backward_layer_or_print_loss(args, input_path, output_path)
    with rename_arguments_in_errors(flow=output_path, backward=output_path):
        if args.st_map:
            io.write_st_map(output_path, flow, window=window)
            loss = _ConversionLoss(0.0, 0.0, unknown)
        else:
            io.write_flow(output_path, flow, valid, backward=backward, window=window, **write_arguments)
            directions = [(flow, valid, *io.read_flow(output_path, **window_choice))]
            if backward is not None:
                written = io.read_flow(output_path, layer="backward", **window_choice)
                directions.append((backward, backward.isfinite().all(0), *written))
            loss = _measure_conversion_loss(*(torch.cat(tensors, -1) for tensors in zip(*directions, strict=True)))
    for line in loss.describe_losses(st_map=args.st_map):
        report.print_note(f"{output_path}: {line}")
    return {
        "backward": backward is not None,
        "size": {"width": flow.shape[-1], "height": flow.shape[-2]},
        "unknown": unknown,
        "loss": loss._asdict(),
    }


def _resize_by_scale_option(args: argparse.Namespace, flow: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the flow for frames ``--scale`` times as large."""
    if args.scale is None:
        return flow, valid
    height, width = (max(1, round(side * args.scale)) for side in flow.shape[-2:])
    resized = io.resize_flow(flow, (height, width), valid)
    return resized.flow, resized.valid


class _ConversionLoss(NamedTuple):
    """Information that the new file has lost."""

    largest_px: float
    mean_px: float
    unknown_lost: int

    def describe_losses(self, *, st_map: bool) -> list[str]:
        """Return one sentence for each kind of loss."""
        sentences = []
        if self.largest_px > 0:
            sentences.append(
                f"vectors are rounded by {self.mean_px:.3g} px on average, at most {self.largest_px:.3g} px"
            )
        if self.unknown_lost:
            kind = "an ST map" if st_map else "this format"
            lost = report.format_count(self.unknown_lost, "unknown vector")
            sentences.append(f"{lost} became zero motion, which {kind} cannot tell apart")
        return sentences


def _measure_conversion_loss(flow: Tensor, valid: Tensor, written: Tensor, written_valid: Tensor) -> _ConversionLoss:
    error = (flow - written).square_().sum(0).sqrt_()[valid & written_valid].double()
    largest, mean = (float(error.max()), float(error.mean())) if error.numel() else (0.0, 0.0)
    return _ConversionLoss(largest, mean, int((~valid & written_valid).sum()))


def _read_resized_backward_layer_or_print_loss(args: argparse.Namespace, source: str, output: str) -> Tensor | None:
    """Return the backward layer of an EXR, which another EXR keeps; None if there is none or it is lost."""
    from fullfield.io.vectors import has_backward_flow, read_flow_direction_with_unknown_as_nan

    choice = get_vector_encoding_arguments(args)
    channels = choice.get("channels")
    if args.layer is not None or not has_exr_suffix(source) or (channels is not None and len(channels) == 2):
        return None
    if channels is None and not has_backward_flow(source, args.part):
        return None
    if args.st_map or not has_exr_suffix(output):
        report.print_note(f"{output}: holds only the forward layer; use --layer backward to convert the other")
        return None
    reading = build_flow_read_options(args, part=args.part)
    flow = read_flow_direction_with_unknown_as_nan(
        source, "backward", reading, window="data" if args.scale is None else "display"
    )
    resized, valid = _resize_by_scale_option(args, flow, flow.isfinite().all(0))
    return resized.masked_fill(~valid, float("nan"))
