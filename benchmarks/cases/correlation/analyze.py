"""Command ``python -m benchmarks analyze``: the share of the correlation volume that recorded lookups read."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield.cli import paths, report
from fullfield.cli.argtypes import parse_positive_integer
from fullfield.cli.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from benchmarks.cases.correlation.analysis import Share

LAYOUTS = ("row-major", "patch-major")
BLOCKS = (1, 2, 4, 8, 16)
_WIDEST = 128  # of the map that the picture of the matrix is made from
_EXAMPLES = """\
examples:
  python -m benchmarks analyze flow_easy_256x112.npy flow_medium_256x112.npy
  python -m benchmarks analyze lookups.npy --levels 4 --updates 32 --plot sampling.png
"""


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks analyze``."""
    lookups: argparse.ArgumentParser = verbs.add_parser(
        "analyze",
        help="the share of the correlation volume that recorded lookups read",
        description="The share of the all-pairs matrix, source pixels by target pixels, that lies in blocks which are "
        "read in any update: by size and layout of the blocks, and by pyramid level.",
        epilog=_EXAMPLES,
    )
    lookups.add_argument(
        "files", nargs="+", metavar="FILE", help="recorded positions minus pixel grid, one pair each: .npy [U, 2, H, W]"
    )
    lookups.add_argument("--radius", type=parse_positive_integer, default=4, help="of the windows")
    lookups.add_argument("--levels", type=parse_positive_integer, default=1, help="of the pyramid, 1 to 8")
    lookups.add_argument(
        "--blocks",
        nargs="+",
        type=parse_positive_integer,
        default=BLOCKS,
        metavar="B",
        help="sides of the blocks [1 2 4 8 16]",
    )
    lookups.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="of the matrix [both]")
    lookups.add_argument(
        "--updates",
        type=parse_positive_integer,
        help="the first N lookups of 32, interpolated between the recorded 0, 1, 2, 4, 8, 12, 20, 31 "
        "[those in the file, as they are]",
    )
    lookups.add_argument("--plot", metavar="OUT.png", help="draw the matrix and the shares of the first file")
    report.add_report_options(lookups, has_quiet_option=True)
    return lookups


def run(args: argparse.Namespace) -> int:
    """Read the recordings, count the cells they read and print the shares."""
    from fullfield._check import InputError

    if args.levels > 8:
        raise InputError(f"--levels: expected 1 to 8, got {args.levels}")
    paths.check_files_and_remove_temporaries(
        [("FILE", path) for path in args.files], [("--plot", args.plot or None, (".png",))]
    )

    from benchmarks.cases.correlation.analysis import read_shares, recorded_positions, window_statistics
    from benchmarks.cases.correlation.recorded import between, load_recorded
    from fullfield.cli.report import rename_arguments_in_errors

    blocks = sorted(set(args.blocks))
    layouts = [layout for layout in LAYOUTS if layout in args.layouts]
    recordings = [load_recorded(path) for path in args.files]
    with rename_arguments_in_errors(updates="--updates", radius="--radius", blocks="--blocks"):
        if args.updates is not None:
            recordings = [between(recorded, args.updates) for recorded in recordings]
    result: list[list[Share]] = []
    files = []
    with ProgressBar("analyze", quiet=args.quiet) as progress:
        steps = len(recordings) * len(blocks)
        for number, (path, offsets) in enumerate(zip(args.files, recordings, strict=True)):
            coords = recorded_positions(offsets)
            shares: list[Share] = []
            for step, block in enumerate(blocks):
                progress((number * len(blocks) + step) / steps, f"{Path(path).name}, blocks of {block}²")
                shares += read_shares(coords, args.radius, levels=args.levels, blocks=[block], layouts=layouts)
            result.append(shares)
            files.append(
                {
                    "file": path,
                    "size": list(offsets.shape[-2:]),
                    "updates": offsets.shape[0],
                    "shares": [share.as_dict() for share in shares],
                    **window_statistics(coords, args.radius, levels=args.levels).as_dict(),
                }
            )
        if args.plot:
            progress(1.0, "drawing")
            _draw(recordings[0], result[0], args.radius, Path(args.plot))
    if args.json:
        report.print_json({"radius": args.radius, "levels": args.levels, "files": files, "plot": args.plot})
        return 0
    for one in files:
        height, width = one["size"]
        print(f"{report.escape_control_characters(one['file'])}: {width}×{height}, {one['updates']} updates")
        print(
            f"  mean window of 8×8 pixels {one['mean_columns']:.0f} target pixels, "
            f"{100 * one['inside']:.1f} % of the positions in the map"
        )
    print("\n".join(_table(result, layouts)))
    return 0


def _table(found: Sequence[Sequence[Share]], layouts: Sequence[str]) -> list[str]:
    """Return a table with a row per block size and a column per layout and level: mean and deviation over files."""
    from statistics import fmean, pstdev

    values: dict[tuple[int, str, int], list[float]] = {}
    for shares in found:
        for share in shares:
            values.setdefault((share.block, share.layout, share.level), []).append(100 * share.share)
    blocks = sorted({key[0] for key in values})
    levels = sorted({key[2] for key in values})

    def cell(block: int, layout: str, level: int) -> str:
        some = values.get((block, layout, level))
        if some is None:
            return "-"
        return f"{fmean(some):.2f}" + (f" ± {pstdev(some):.2f}" if len(some) > 1 else "")

    def saved(block: int, level: int) -> str:
        pair = [values.get((block, layout, level)) for layout in LAYOUTS]
        if pair[0] is None or pair[1] is None or not fmean(pair[0]):
            return "-"
        return f"{100 * (1 - fmean(pair[1]) / fmean(pair[0])):.0f} %"

    both = len(layouts) == len(LAYOUTS)
    header = ["block", *(f"{layout}, level {level}" for level in levels for layout in layouts)]
    if both:
        header += [f"saved, level {level}" for level in levels]
    table = [header]
    for block in blocks:
        line = [f"{block}²", *(cell(block, layout, level) for level in levels for layout in layouts)]
        table.append(line + ([saved(block, level) for level in levels] if both else []))
    return [
        "Share of the all-pairs cells in blocks that are read, %, union over all updates",
        *report.format_aligned_columns(table),
    ]


def _draw(offsets: Tensor, shares: Sequence[Share], radius: int, path: Path) -> None:
    """Draw the matrix in both layouts and the finest level's shares by block size: figure 3 of Briedis et al."""
    from benchmarks.cases.correlation.analysis import sampling_matrix
    from benchmarks.cases.correlation.recorded import resized
    from fullfield.io.files import write_atomically

    height, width = offsets.shape[-2:]
    small = offsets
    if width > _WIDEST:
        small = resized(offsets, (max(1, round(height * _WIDEST / width)), _WIDEST))
    block = 8
    # Not through pyplot, which would look for a display.
    figure = import_module("matplotlib.figure").Figure(figsize=(13.2, 4.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for one, layout in zip(axes, LAYOUTS, strict=False):
        matrix = sampling_matrix(small, radius, block, layout)
        one.imshow(matrix.sqrt().numpy(), cmap="magma", interpolation="nearest")
        one.set_title(f"{layout}, {100 * float(matrix.mean()):.2f} % of the cells read", fontsize=9)
        one.set_xlabel("target pixels")
        one.set_ylabel(f"source pixels of a {small.shape[3]}×{small.shape[2]} map")
        one.set_xticks([])
        one.set_yticks([])
    for layout in LAYOUTS:
        points = sorted((s.block, 100 * s.share) for s in shares if s.layout == layout and s.level == 0)
        if points:
            axes[2].plot(*zip(*points, strict=True), marker="o", label=layout)
    axes[2].set_xscale("log", base=2)
    sides = sorted({share.block for share in shares})
    axes[2].set_xticks(sides, [str(side) for side in sides])
    axes[2].minorticks_off()
    axes[2].set_xlabel("block, B of B² pixels")
    axes[2].set_ylabel(f"cells in blocks that are read, %, {width}×{height}")
    axes[2].legend(fontsize=8)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
