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
from fullfield.cli.argtypes import positive
from fullfield.cli.options import FOUR_VALUES, add_flow_choice, add_four_values, flow_choice, read_truth, truth_values
from fullfield.cli.report import naming, size
from fullfield.io.names import FLOW_SUFFIXES, IMAGE_WRITE_SUFFIXES

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield score``."""
    parser.add_argument("pred", metavar="PRED", help="estimated flow, or a folder")
    parser.add_argument("truth", metavar="TRUTH", help="true flow, or a folder")
    for prefix in ("pred", "truth"):
        add_flow_choice(parser, prefix, prefix.upper())
    masks = parser.add_argument_group("masks (files, or folders if PRED and TRUTH are folders)")
    masks.add_argument("--occlusion", metavar="MAP", help="not black where a pixel has no match in the second frame")
    masks.add_argument("--valid", metavar="MASK", help="score only pixels that are not black here")
    masks.add_argument("--invalid", metavar="MASK", help="score only pixels that are black here (Sintel's maps)")
    parser.add_argument("--skip-missing", action="store_true", help="leave out pixels without a prediction")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument("--truth-scale", type=positive, default=1.0, help="multiply the true vectors by X")
    add_four_values(scoring)
    scoring.add_argument("--averaging", choices=("pooled", "per_image"), help="mean over pixels or images [pooled]")
    scoring.add_argument("--max-epe", type=positive, metavar="PX", help="exit with 1 when epe exceeds PX")
    output = parser.add_argument_group("report")
    output.add_argument("--error-map", metavar="FILE", help="write a picture of the end-point error (two files only)")
    output.add_argument("--max-error", type=positive, metavar="PX", help="error at the end of its scale [16]")
    report.add_report_options(output)


def run(args: argparse.Namespace) -> int:
    """Score, report, and check ``--max-epe``."""
    images = _images(args)
    _check_options(args, folders=Path(args.pred).is_dir())

    from fullfield.metrics import FlowMetrics

    metrics = FlowMetrics(averaging=args.averaging or "pooled")
    missing = 0
    values_each = 0
    for files in images:
        pred, truth, valid, occluded, absent = _load(files, args)
        missing += absent
        if values_each and truth_values(truth) != values_each:
            raise InputError(f"{files.truth}: holds {truth_values(truth)} values a pixel, previous files {values_each}")
        if not values_each and truth_values(truth) == 4 and not args.four_values:
            report.note(f"{files.truth}: {FOUR_VALUES}")
        values_each = truth_values(truth)
        with naming(pred=files.pred, truth=files.truth, occluded=files.occlusion or ""):
            metrics.update(pred, truth, valid, occluded)
        if args.error_map is not None:
            io.write_image(args.error_map, viz.error_map(pred, truth, valid, max_error=args.max_error))
    values = metrics.compute()
    if not values["pixels"]:
        report.note(
            "no pixel is scored: the truth is unknown everywhere, or the masks exclude all pixels", kind="warning"
        )
    facts = {**report.picked(args, "pred", "truth"), "averaging": metrics.averaging, **values, "missing": missing}
    facts |= {"truth_values": values_each, "classes": metrics.breakdown()}
    report.tell(args, facts, "\n".join(table(values, metrics.averaging, missing)))
    return gate(values["epe"], args.max_epe)


def _check_options(args: argparse.Namespace, *, folders: bool) -> None:
    if args.averaging is not None and not folders:
        raise InputError("--averaging: only two folders have a choice; leave it out")
    if args.error_map is None:
        if args.max_error is not None:
            raise InputError("--max-error: applies to --error-map, which is absent")
        return
    if folders:
        raise InputError("--error-map: expected two files, got two folders")
    inputs = [("PRED", args.pred), ("TRUTH", args.truth), *_masks(args)]
    paths.check_files(inputs, [("--error-map", args.error_map, IMAGE_WRITE_SUFFIXES)])


def _masks(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    return [("--occlusion", args.occlusion), ("--valid", args.valid), ("--invalid", args.invalid)]


def _images(args: argparse.Namespace) -> list[ImageFiles]:
    """Return the files to compare, sorted by name."""
    pred, truth = Path(args.pred), Path(args.truth)
    masks = _masks(args)
    if not pred.is_dir():
        for what, path in (("PRED", args.pred), ("TRUTH", args.truth), *masks):
            if path is not None:
                paths.check_input(path, what)
        return [ImageFiles(args.pred, args.truth, args.occlusion, args.valid, args.invalid)]
    if not truth.is_dir():
        raise InputError(f"{args.truth}: expected a folder, as {args.pred} is one; give two files or two folders")
    predicted, true = _by_stem(pred, FLOW_SUFFIXES), _by_stem(truth, FLOW_SUFFIXES)
    if not predicted:
        raise InputError(f"{args.pred}: expected files of flow ({', '.join(FLOW_SUFFIXES)}), found none")
    stray = sorted(predicted.keys() ^ true.keys())
    if stray:
        other = truth if stray[0] in predicted else pred
        more = f" (and {len(stray) - 1} more)" if len(stray) > 1 else ""
        path = (predicted | true)[stray[0]]
        raise InputError(f"{path}: has no counterpart in {other}{more}; both folders must hold the same names")
    found = [_mask_files(option, folder, sorted(predicted)) for option, folder in masks]
    return [
        ImageFiles(str(predicted[stem]), str(true[stem]), *(files.get(stem) for files in found))
        for stem in sorted(predicted)
    ]


def _mask_files(option: str, folder: str | None, stems: list[str]) -> dict[str, str]:
    if folder is None:
        return {}
    if not Path(folder).is_dir():
        raise InputError(f"{option} {folder}: expected a folder, as PRED and TRUTH are folders")
    files = _by_stem(Path(folder), None)
    missing = [stem for stem in stems if stem not in files]
    if missing:
        raise InputError(f"{option} {folder}: has no mask for {missing[0]}")
    return {stem: str(files[stem]) for stem in stems}


def _by_stem(folder: Path, suffixes: tuple[str, ...] | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir() or (suffixes is not None and path.suffix.lower() not in suffixes):
            continue
        if path.stem in found:
            raise InputError(f"{path}: {found[path.stem].name} has the same name; keep one of them")
        found[path.stem] = path
    return found


def _load(files: ImageFiles, args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
    """Return prediction, truth, pixels to score, occluded pixels, and the number of known pixels without prediction."""
    choice: dict[str, Any] = flow_choice(args, "pred")
    pred, predicted = io.read_flow(files.pred, **choice)
    choice = {"scale": args.truth_scale, "four": args.four_values, **flow_choice(args, "truth")}
    truth, known = read_truth(files.truth, pred, files.pred, **choice)
    for option, path, wanted in (("--valid", files.valid, True), ("--invalid", files.invalid, False)):
        if path is not None:
            known = known & (_read_mask(option, path, pred) == wanted)
    occluded = None if files.occlusion is None else _read_mask("--occlusion", files.occlusion, pred)
    absent = int((known & ~predicted).sum())
    if absent and not args.skip_missing:
        raise InputError(
            f"{files.pred}: has no vector at {absent} of {int(known.sum())} pixels to score; "
            f"use --skip-missing to leave them out{_swapped(bool(predicted.all()), bool(known.all()))}"
        )
    return pred, truth, known & predicted, occluded, absent


def _swapped(predicted: bool, known: bool) -> str:
    """Return a hint for the case that only the prediction has unknown vectors, as truth usually has."""
    return "; PRED comes before TRUTH: are they swapped?" if known and not predicted else ""


def _read_mask(option: str, path: str, flow: Tensor) -> Tensor:
    """Return where the picture is not black, bool ``[H, W]``."""
    mask = io.read_frame(path, transfer="srgb")
    if mask.shape[-2:] != flow.shape[-2:]:
        raise InputError(f"{option} {path}: is {size(mask)}, but the flow is {size(flow)}")
    return (mask > 0).any(0)


def table(values: dict[str, float], averaging: str, missing: int = 0) -> list[str]:
    """Return the lines of a text table, without metrics that cover no pixel."""
    lines = [
        f"{key:<14}{values[key]:>10.4f} {unit:<8} {meaning}"
        for key, meaning, unit in _LINES
        if not math.isnan(values[key])
    ]
    images = int(values["images"])
    over = f", {images} images, averaging {averaging}" if images > 1 else ""
    left_out = f", {missing} without prediction left out" if missing else ""
    return [*lines, f"{int(values['pixels'])} pixels scored{over}{left_out}"]


def gate(epe: float, limit: float | None, kind: str = "score") -> int:
    """Return the exit code for ``--max-epe``; print an error that exceeds it."""
    if limit is None or epe <= limit:
        return 0
    report.note(f"the error exceeded --max-epe: expected at most {limit:g} px, got {epe:.6g} px", kind=kind)
    return 1
