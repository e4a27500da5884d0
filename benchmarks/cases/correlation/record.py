"""Command ``python -m benchmarks record``: the positions that a network looks up on given frames, as ``.npy`` files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import parse_positive_integer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fullfield.ops.correlation.prepared import PreparedLookups

_EXAMPLES = """\
examples:
  python -m benchmarks record raft --pair a_0001.png a_0002.png --pair b_0001.png b_0002.png -o lookups
  python -m benchmarks record ptlflow:sea_raft_m --weights sintel --pair a_0001.png a_0002.png -o lookups
  python -m benchmarks analyze lookups/*.npy --levels 4
"""


@dataclass
class Recording:
    """Positions of all lookups of one pair of feature maps.

    Attributes:
        radius: of the windows.
        positions: one tensor [B, 2, H, W] per lookup, (x, y), in pixels of the finest level.
    """

    radius: int
    positions: list[Tensor] = field(default_factory=list)

    def offsets(self, item: int = 0) -> Tensor:
        """Return positions minus pixel grid of one item of the batch, float32 [U, 2, H, W] on the CPU."""
        import torch

        from benchmarks.cases.correlation.analysis import recorded_positions

        result = torch.stack([each[item] for each in self.positions]).float().cpu()
        return result - recorded_positions(torch.zeros_like(result[:1]))


@contextmanager
def recording() -> Iterator[list[Recording]]:
    """Inside, record every eager lookup of the process: of our networks in plain form and of any patched network.

    The list holds one entry per pair of feature maps, in the order of their first lookups. Prepared forms replay
    CUDA graphs, which record nothing; traced code records nothing either.
    """
    from fullfield.ops.correlation.prepared import PreparedLookups

    original = PreparedLookups.lookup
    result: list[Recording] = []
    by_pair: dict[int, tuple[PreparedLookups, Recording]] = {}  # holds the pair, so that no other gets its number

    def lookup(self: PreparedLookups, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        if id(self) not in by_pair:
            by_pair[id(self)] = self, Recording(self._options[1])
            result.append(by_pair[id(self)][1])
        by_pair[id(self)][1].positions.append(coords.detach().clone())
        return original(self, coords, out_dtype, channels_last)

    PreparedLookups.lookup = lookup  # type: ignore[method-assign]
    try:
        yield result
    finally:
        PreparedLookups.lookup = original  # type: ignore[method-assign]


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks record``."""
    record: argparse.ArgumentParser = verbs.add_parser(
        "record",
        help="the positions that a network looks up on given frames",
        description="Write the positions of all lookups of a network, minus the pixel grid, one file per pair of "
        "frames: .npy [U, 2, H, W], for `analyze` and for `correlation --lookups`.",
        epilog=_EXAMPLES,
    )
    record.add_argument("method", metavar="METHOD", help="raft, sea-raft, fullfield-s, ptlflow:NAME, ...")
    record.add_argument(
        "--pair", nargs=2, action="append", required=True, metavar=("A", "B"), help="frames; repeatable"
    )
    record.add_argument("-o", "--output", required=True, metavar="DIR", help="existing folder for the files")
    record.add_argument("--weights", metavar="FILE", help="weights: a file or a published name [the method's own]")
    record.add_argument(
        "--updates", type=parse_positive_integer, metavar="N", help="of the flow [the network's own number]"
    )
    record.add_argument("--device", default="cpu", metavar="NAME", help="where to compute [%(default)s]")
    report.add_report_options(record, has_quiet_option=False)
    return record


def _labels(paths: list[str]) -> list[str]:
    """Return a name for each first frame: its stem, with the folder's name or a number before it if stems repeat."""
    stems = [Path(path).stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    named = [f"{Path(path).absolute().parent.name}_{stem}" for path, stem in zip(paths, stems, strict=True)]
    if len(set(named)) == len(named):
        return named
    return [f"{number}_{name}" for number, name in enumerate(named, 1)]


def run(args: argparse.Namespace) -> int:
    """Estimate the flow of every pair, record the lookups and write them."""
    import numpy as np
    import torch

    from fullfield import estimate
    from fullfield.io.files import write_atomically

    folder = Path(args.output)
    if not folder.is_dir():
        raise InputError(f"--output {args.output}: expected an existing folder")
    for path in (path for pair in args.pair for path in pair):
        paths.check_input_file(path, "--pair")
    given = {"weights": args.weights, "updates": args.updates}
    parameters = {name: value for name, value in given.items() if value is not None}
    if not args.method.startswith("ptlflow:"):
        parameters["precision"] = "exact"  # prepared forms record nothing
    files: list[dict[str, Any]] = []
    small = torch.zeros(3, 128, 128)
    estimate(small, small, args.method, device=args.device, **parameters)  # patching tries lookups of its own
    for label, (first, second) in zip(_labels([first for first, _ in args.pair]), args.pair, strict=True):
        with recording() as result:
            estimate(first, second, args.method, device=args.device, **parameters)
        if not result:
            raise InputError(
                f"METHOD: expected a network that looks up correlations, got {args.method}, which does not"
            )
        for number, each in enumerate(result):
            name = label + (f"_{number + 1}" if len(result) > 1 else "") + ".npy"
            offsets = each.offsets()
            with write_atomically(folder / name) as temporary, temporary.open("wb") as file:
                np.save(file, offsets.numpy())
            files.append({"file": str(folder / name), "radius": each.radius, "shape": list(offsets.shape)})
    if args.json:
        report.print_json({"method": args.method, "files": files})
        return 0
    for one in files:
        updates, _, height, width = one["shape"]
        print(
            f"{report.escape_control_characters(one['file'])}: {width}×{height}, "
            f"{updates} lookups, radius {one['radius']}"
        )
    return 0
