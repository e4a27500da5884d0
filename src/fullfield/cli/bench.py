"""``fullfield bench``: measure here, beside the peers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report

if TYPE_CHECKING:
    from fullfield.bench.tvl1 import Pair

EPILOG = """\
examples:
  fullfield bench tvl1
  fullfield bench tvl1 --pair frame_0002.png frame_0003.png truth.flo -o results.json
  fullfield bench tvl1 --presets middlebury/Grove2 middlebury/Venus

Peers are measured where they are installed: pip install 'fullfield[bench]'.
"""


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return int(text)


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``fullfield bench``."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "bench",
        help="measure on this machine, beside OpenCV and scikit-image",
        description="Time TV-L1 on the CPU: the rate at a fixed number of iterations, and each library end to end "
        "with its own defaults. Every result is checked before its time counts; all candidates take turns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("what", choices=("tvl1",), help="what to measure")
    parser.add_argument(
        "--pair", nargs=3, metavar=("A", "B", "TRUTH"), help="frames and their true flow [a textured scene, 1024×436]"
    )
    parser.add_argument(
        "--presets", nargs="+", default=(), metavar="DIR", help="Middlebury folders: error and time of every preset"
    )
    parser.add_argument("--repeats", type=_count, default=3, metavar="N", help="rounds [%(default)s]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, measure, print."""
    if args.output:
        paths.check_suffix(args.output, "results", (".json",))
        paths.check_output(args.output, "results")
    for path in args.pair or ():
        paths.check_input(path, "pair")
    for folder in args.presets:
        paths.check_folder(Path(folder), "presets")

    from fullfield.bench import tvl1
    from fullfield.bench.run import CheckFailed, environment, write_results

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    scenes = [_middlebury(Path(folder)) for folder in args.presets]
    pair = tvl1.load_pair(*map(Path, args.pair)) if args.pair else tvl1.synthetic_pair()
    missing = {"opencv", "scikit-image"} - set(tvl1.peers())
    if missing:
        note(f"not installed here, so not measured: {', '.join(sorted(missing))} (pip install 'fullfield[bench]')")
    try:
        cases = [tvl1.fixed_work(pair, args.repeats, note), tvl1.own_defaults(pair, args.repeats, note)]
        if scenes:
            cases.append(tvl1.presets(scenes, note))
    except CheckFailed as failure:
        report.note(str(failure), kind="check failed")
        return 1
    results = {"bench": args.what, "cases": cases}
    if args.output:
        write_results(args.output, results)
    if args.json:
        report.print_json({**results, "environment": environment()})
    else:
        print("\n".join(tvl1.report(results)))
    return 0


def _middlebury(folder: Path) -> Pair:
    from fullfield.bench.tvl1 import load_pair

    names = ("frame10.png", "frame11.png", "flow10.flo")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError(f"--presets: expected {', '.join(names)} in {folder}, {absent[0]} is missing")
    return load_pair(*(folder / name for name in names))
