"""Convert flow to another format or to an ST map.

Convert flow between formats, by suffix. What the new format cannot hold is reported on stderr.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.options import add_packing_options, packing_arguments
from fullfield.cli.report import naming, size
from fullfield.io.names import FLOW_SUFFIXES, FLOW_WRITE_SUFFIXES, is_exr

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield convert flow.flo flow.exr --half --compression dwaa
  fullfield convert vectors.1001.exr back.flo --layer backward
  fullfield convert flow.flo st.exr --st-map
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield convert``."""
    parser.add_argument("input", metavar="IN", help=f"flow: {' '.join(FLOW_SUFFIXES)} (.png: KITTI)")
    parser.add_argument("output", metavar="OUT", help=f"flow: {' '.join(FLOW_WRITE_SUFFIXES)}")
    parser.add_argument("--st-map", action="store_true", help="write OUT.exr as an ST map instead of flow")
    parser.add_argument("--layer", metavar="NAME", help="EXR layer to read: forward, backward, ... [forward]")
    parser.add_argument("--part", metavar="PART", help="EXR part to read, by name or number [the first with flow]")
    add_packing_options(parser)
    report.add_report_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read the flow, write it, and compare the written file with the flow."""
    paths.check_suffix(args.input, "IN", FLOW_SUFFIXES)
    out = ("OUT of --st-map", args.output, (".exr",)) if args.st_map else ("OUT", args.output, FLOW_WRITE_SUFFIXES)
    paths.check_files([("IN", args.input)], [out])
    packing = packing_arguments(args)
    if args.st_map and packing:
        raise InputError("--half and --compression: an ST map is always float and ZIP; leave them out")

    keeps = is_exr(args.input) and is_exr(args.output)  # both windows; else only the display window is converted
    window = io.flow_window(args.input, layer=args.layer, part=args.part) if keeps else None
    shown: Any = {"window": "data"} if keeps else {}
    flow, valid = io.read_flow(args.input, layer=args.layer, part=args.part, **shown)
    unknown = int((~valid).sum())
    backward = _backward(args)
    with naming(flow=args.output, backward=args.output):
        if args.st_map:
            io.write_st_map(args.output, flow, window=window)
            loss = _Loss(0.0, 0.0, unknown)
        else:
            io.write_flow(args.output, flow, valid, backward=backward, window=window, **packing)
            loss = _compare(flow, valid, *io.read_flow(args.output, **shown))
    for line in loss.lines(st_map=args.st_map):
        report.note(f"{args.output}: {line}")
    facts = {
        **report.picked(args, "input", "output", "st_map"),
        "backward": backward is not None,
        "size": {"width": flow.shape[-1], "height": flow.shape[-2]},
        "unknown": unknown,
        "loss": loss._asdict(),
    }
    report.tell(args, facts, f"{report.printable(args.output)}: {size(flow)}, {unknown} unknown vectors")
    return 0


class _Loss(NamedTuple):
    """Information that the new file has lost."""

    largest_px: float
    mean_px: float
    unknown_lost: int

    def lines(self, *, st_map: bool) -> list[str]:
        """Return one sentence for each kind of loss."""
        found = []
        if self.largest_px > 0:
            found.append(f"vectors are rounded by {self.mean_px:.3g} px on average, at most {self.largest_px:.3g} px")
        if self.unknown_lost:
            kind = "an ST map" if st_map else "this format"
            found.append(f"{self.unknown_lost} unknown vectors became zero motion, which {kind} cannot tell apart")
        return found


def _compare(flow: Tensor, valid: Tensor, written: Tensor, marked: Tensor) -> _Loss:
    error = (flow - written).square_().sum(0).sqrt_()[valid & marked].double()
    largest, mean = (float(error.max()), float(error.mean())) if error.numel() else (0.0, 0.0)
    return _Loss(largest, mean, int((~valid & marked).sum()))


def _backward(args: argparse.Namespace) -> Tensor | None:
    """Return the backward layer of an EXR, which another EXR keeps; None if there is none or it is lost."""
    from fullfield.io.oiio import layers, opened

    if args.layer is not None or not is_exr(args.input):
        return None
    with opened(Path(args.input)) as source:
        parts = [source.part(args.part)] if args.part is not None else list(source.parts())
        found = any({"u", "v"} <= layers(part.channels).get("backward", {}).keys() for part in parts)
    if not found:
        return None
    if args.st_map or not is_exr(args.output):
        report.note(f"{args.output}: holds only the forward layer; use --layer backward to convert the other")
        return None
    flow, valid = io.read_flow(args.input, layer="backward", part=args.part, window="data")
    return flow.masked_fill(~valid, float("nan"))
