"""Compare flow with the truth.

Compare a flow with the truth: two files, or two folders whose files match by name.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import io, viz
from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import parse_positive_number
from fullfield.cli.options import (
    FOUR_VALUES,
    add_four_vectors_per_pixel_option,
    add_layer_options,
    add_vector_encoding_options,
    count_truth_vectors_per_pixel,
    get_layer_arguments,
    get_vector_encoding_arguments,
    read_truth_and_valid_mask,
)
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.io.names import FLOW_SUFFIXES, IMAGE_WRITE_SUFFIXES, get_separate_mask_file_or_none, has_exr_suffix

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield score flow.flo truth.flo
  fullfield score flow.flo frame_0002.flo --occlusion occlusions_0002.png --invalid invalid_0002.png --json
  fullfield score predictions/ truth/ --averaging pooled --max-epe 0.5
"""

_LINES = (
    ("epe", "end-point error", "px"),
    ("aae", "angular error", "degrees"),
    ("px1", "error above 1 px", "%"),
    ("px3", "error above 3 px", "%"),
    ("px5", "error above 5 px", "%"),
    ("fl_all", "Fl-all", "%"),
    ("wauc", "WAUC", "%"),
    ("lm_epe", "motion above 128 px: EPE", "px"),
    ("lm_px1", "motion above 128 px: error above 1 px", "%"),
    ("s0_10", "motion below 10 px: EPE", "px"),
    ("s10_40", "motion 10 to 40 px: EPE", "px"),
    ("s40_plus", "motion from 40 px: EPE", "px"),
    ("epe_matched", "matched: EPE", "px"),
    ("epe_unmatched", "unmatched: EPE", "px"),
    ("d0_10", "occlusion boundary within 10 px: EPE", "px"),
    ("d10_60", "occlusion boundary 10 to 60 px away: EPE", "px"),
    ("d60_140", "occlusion boundary 60 to 140 px away: EPE", "px"),
)


class ImageFiles(NamedTuple):
    """Files of one image: flow, truth and masks; None for an absent mask."""

    pred: str
    truth: str
    occlusion: str | None
    valid: str | None
    invalid: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield score``."""
    parser.add_argument("pred", metavar="PRED", help="estimated flow, or a folder")
    parser.add_argument("truth", metavar="TRUTH", help="true flow, or a folder")
    for prefix in ("pred", "truth"):
        add_layer_options(parser, prefix, prefix.upper())
        add_vector_encoding_options(parser, prefix, prefix.upper())
    masks = parser.add_argument_group(
        "masks (picture, .npy, .npz, FILE:CHANNEL or channel of TRUTH; a folder of them if PRED and TRUTH are folders)"
    )
    masks.add_argument("--occlusion", metavar="MAP", help="not black where a pixel has no match in the second frame")
    masks.add_argument("--valid", "--mask", metavar="MASK", help="score only pixels that are not black here")
    masks.add_argument("--invalid", metavar="MASK", help="score only pixels that are black here (Sintel's maps)")
    parser.add_argument("--skip-missing", action="store_true", help="leave out pixels without a prediction")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument(
        "--truth-scale", type=parse_positive_number, default=1.0, help="multiply the true vectors by X"
    )
    add_four_vectors_per_pixel_option(scoring)
    scoring.add_argument("--averaging", choices=("pooled", "per_image"), help="mean over pixels or images [pooled]")
    scoring.add_argument("--max-epe", type=parse_positive_number, metavar="PX", help="exit with 1 when epe exceeds PX")
    output = parser.add_argument_group("report")
    output.add_argument("--error-map", metavar="FILE", help="write a picture of the end-point error (two files only)")
    output.add_argument(
        "--max-error", type=parse_positive_number, metavar="PX", help="error at the end of its scale [16]"
    )
    report.add_report_options(output)


def run_command(args: argparse.Namespace) -> int:
    """Score, report, and check ``--max-epe``."""
    images = _check_and_pair_files_to_score(args)
    _check_averaging_and_error_map_options(args, has_folders=Path(args.pred).is_dir())

    from fullfield.metrics import FlowMetrics

    metrics = FlowMetrics(averaging=args.averaging or "pooled")
    missing = outside = 0
    values_each = 0
    for files in images:
        pred, truth, valid, occluded, absent = _load_tensors_and_count_unpredicted(files, args)
        missing, outside = missing + absent.missing, outside + absent.outside
        value_count = count_truth_vectors_per_pixel(truth)
        if values_each and value_count != values_each:
            raise InputError(f"{files.truth}: holds {value_count} values a pixel, previous files {values_each}")
        if not values_each and value_count == 4 and not args.four_values:
            report.print_note(f"{files.truth}: {FOUR_VALUES}")
        values_each = value_count
        with rename_arguments_in_errors(pred=files.pred, truth=files.truth, occluded=files.occlusion or ""):
            metrics.update(pred, truth, valid, occluded)
        if args.error_map is not None:
            io.write_image(args.error_map, viz.draw_error_map(pred, truth, valid, max_error=args.max_error))
    values = metrics.compute()
    if not values["pixels"]:
        report.print_note(
            "no pixel is scored: the truth is unknown everywhere, or the masks exclude all pixels", kind="warning"
        )
    properties = {**report.select_attributes(args, "pred", "truth"), "averaging": metrics.averaging, **values}
    properties |= {"missing": missing, "outside": outside}
    properties |= {"truth_values": values_each, "classes": metrics.compute_by_class()}
    report.print_report(args, properties, "\n".join(format_score_lines(values, metrics.averaging, missing, outside)))
    return print_exceeded_max_epe_and_return_code(values["epe"], args.max_epe)


def _check_averaging_and_error_map_options(args: argparse.Namespace, *, has_folders: bool) -> None:
    if args.averaging is not None and not has_folders:
        raise InputError("--averaging: only two folders have a choice; leave it out")
    if args.error_map is None:
        if args.max_error is not None:
            raise InputError("--max-error: applies to --error-map, which is absent")
        return
    if has_folders:
        raise InputError("--error-map: expected two files, got two folders")
    masks = [(option, get_separate_mask_file_or_none(mask)) for option, mask in _list_mask_options_and_values(args)]
    inputs = [("PRED", args.pred), ("TRUTH", args.truth), *masks]
    paths.check_files_and_remove_temporaries(inputs, [("--error-map", args.error_map, IMAGE_WRITE_SUFFIXES)])


def _list_mask_options_and_values(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    return [("--occlusion", args.occlusion), ("--valid", args.valid), ("--invalid", args.invalid)]


def _check_and_pair_files_to_score(args: argparse.Namespace) -> list[ImageFiles]:
    """Return the files to compare, sorted by name."""
    pred, truth = Path(args.pred), Path(args.truth)
    masks = _list_mask_options_and_values(args)
    if not pred.is_dir():
        for argument, path in (("PRED", args.pred), ("TRUTH", args.truth), *masks):
            file = path if argument in ("PRED", "TRUTH") else get_separate_mask_file_or_none(path)
            if file is not None:
                paths.check_input_file(file, argument)
        return [ImageFiles(args.pred, args.truth, args.occlusion, args.valid, args.invalid)]
    if not truth.is_dir():
        raise InputError(f"{args.truth}: expected a folder, as {args.pred} is one; give two files or two folders")
    predicted, true = _find_unique_files_by_stem(pred, FLOW_SUFFIXES), _find_unique_files_by_stem(truth, FLOW_SUFFIXES)
    if not predicted:
        raise InputError(f"{args.pred}: expected files of flow ({', '.join(FLOW_SUFFIXES)}), found none")
    stray = sorted(predicted.keys() ^ true.keys())
    if stray:
        other = truth if stray[0] in predicted else pred
        others = f" (and {len(stray) - 1} more)" if len(stray) > 1 else ""
        path = (predicted | true)[stray[0]]
        raise InputError(f"{path}: has no counterpart in {other}{others}; both folders must hold the same names")
    mask_files = [_find_mask_file_per_stem(option, folder, sorted(predicted)) for option, folder in masks]
    return [
        ImageFiles(str(predicted[stem]), str(true[stem]), *(files.get(stem) for files in mask_files))
        for stem in sorted(predicted)
    ]


def _find_mask_file_per_stem(option: str, folder: str | None, stems: list[str]) -> dict[str, str]:
    if folder is None:
        return {}
    if not Path(folder).is_dir() and get_separate_mask_file_or_none(folder) is None:  # a channel of each true flow
        return dict.fromkeys(stems, folder)
    if not Path(folder).is_dir():
        raise InputError(f"{option} {folder}: expected a folder, as PRED and TRUTH are folders")
    files = _find_unique_files_by_stem(Path(folder), None)
    missing = [stem for stem in stems if stem not in files]
    if missing:
        raise InputError(f"{option} {folder}: has no mask for {missing[0]}")
    return {stem: str(files[stem]) for stem in stems}


def _find_unique_files_by_stem(folder: Path, suffixes: tuple[str, ...] | None) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir() or (suffixes is not None and path.suffix.lower() not in suffixes):
            continue
        if path.stem in files:
            raise InputError(f"{path}: {files[path.stem].name} has the same name; keep one of them")
        files[path.stem] = path
    return files


class _MissingPredictions(NamedTuple):
    """Numbers of pixels with truth and without prediction."""

    missing: int
    outside: int
    """Where the frame was not known: outside its data window, or under a mask."""


def _load_tensors_and_count_unpredicted(
    files: ImageFiles, args: argparse.Namespace
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, _MissingPredictions]:
    """Return prediction, truth, pixels to score, occluded pixels, and numbers of pixels without prediction."""
    choice: dict[str, Any] = {**get_layer_arguments(args, "pred"), **get_vector_encoding_arguments(args, "pred")}
    pred, predicted = io.read_flow(files.pred, **choice)
    outside = _mark_unpredicted_outside_frame(files.pred, predicted, choice)
    choice = {**get_layer_arguments(args, "truth"), **get_vector_encoding_arguments(args, "truth")}
    choice |= {"vector_scale": args.truth_scale, "has_four_vectors_per_pixel": args.four_values}
    truth, valid = read_truth_and_valid_mask(files.truth, pred, files.pred, **choice)
    for option, path, expected in (("--valid", files.valid, True), ("--invalid", files.invalid, False)):
        if path is not None:
            valid = valid & (_read_mask(option, path, pred, files.truth) == expected)
    occluded = None if files.occlusion is None else _read_mask("--occlusion", files.occlusion, pred, files.truth)
    absent = _MissingPredictions(int((valid & ~predicted & ~outside).sum()), int((valid & outside).sum()))
    if absent.missing and not args.skip_missing:
        hint = _format_swapped_arguments_hint(bool(predicted.all()), bool(valid.all()))
        raise InputError(
            f"{files.pred}: has no vector at {absent.missing} of {int(valid.sum())} pixels to score; "
            f"use --skip-missing to leave them out{hint}"
        )
    return pred, truth, valid & predicted, occluded, absent


def _mark_unpredicted_outside_frame(path: str, predicted: Tensor, read_arguments: dict[str, Any]) -> Tensor:
    """Return where a prediction is not known because its frame was not: bool ``[H, W]``."""
    from fullfield.io.flow import read_flow_window, read_flow_with_optional_valid_channel

    outside = predicted.new_zeros(predicted.shape)
    if not has_exr_suffix(path) or bool(predicted.all()):
        return outside
    window = read_flow_window(path, **{name: read_arguments.get(name) for name in ("layer", "part", "channels")})
    left, top = window.data[0] - window.display[0], window.data[1] - window.display[1]
    outside[:] = True
    outside[max(top, 0) : max(top + window.data[3], 0), max(left, 0) : max(left + window.data[2], 0)] = False
    stored = read_flow_with_optional_valid_channel(path, **read_arguments, use_valid_channel=False).valid
    return (outside | (stored & ~predicted)) & ~predicted


def _format_swapped_arguments_hint(all_predicted: bool, all_truth_valid: bool) -> str:
    """Return a hint for the case that only the prediction has unknown vectors, as truth usually has."""
    return "; PRED comes before TRUTH: are they swapped?" if all_truth_valid and not all_predicted else ""


def _read_mask(option: str, mask: str, flow: Tensor, truth: str) -> Tensor:
    """Return where the mask is not black, bool ``[H, W]``; a channel is one of the true flow's file."""
    import torch

    from fullfield.io.masks import read_mask
    from fullfield.io.oiio import open_image_source

    height, width = flow.shape[-2:]
    box = (0, 0, width, height)
    with rename_arguments_in_errors(mask=f"{option} {mask}"):
        if get_separate_mask_file_or_none(mask) is not None or not has_exr_suffix(truth):
            return torch.from_numpy(read_mask(mask, None, box, box))
        with open_image_source(Path(truth)) as source:
            display = source.get_first_part_or_raise().display_window
            return torch.from_numpy(read_mask(mask, source, display, display))


def format_score_lines(values: dict[str, float], averaging: str, missing: int = 0, outside: int = 0) -> list[str]:
    """Return the lines of a text table, without metrics that cover no pixel."""
    lines = [
        f"{key:<14}{values[key]:>10.4f} {unit:<8} {meaning}"
        for key, meaning, unit in _LINES
        if not math.isnan(values[key])
    ]
    images = int(values["images"])
    over = f", {images} images, averaging {averaging}" if images > 1 else ""
    left_out = f", {missing} without prediction left out" if missing else ""
    left_out += f", {outside} outside the frame's data window or mask left out" if outside else ""
    return [*lines, f"{int(values['pixels'])} pixels scored{over}{left_out}"]


def print_exceeded_max_epe_and_return_code(epe: float, max_epe: float | None, kind: str = "score") -> int:
    """Print an error above ``--max-epe``, and return the exit code."""
    if max_epe is None or epe <= max_epe:
        return 0
    report.print_note(f"the error exceeded --max-epe: expected at most {max_epe:g} px, got {epe:.6g} px", kind=kind)
    return 1
