"""``fullfield bench tvl1``: TV-L1 on the CPU beside OpenCV and scikit-image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import count

if TYPE_CHECKING:
    from fullfield.bench.tvl1 import Pair

EPILOG = """\
examples:
  fullfield bench tvl1
  fullfield bench tvl1 --pair frame_0002.png frame_0003.png truth.flo -o results.json
  fullfield bench tvl1 --presets middlebury/Grove2 middlebury/Venus --large 4k_01.png 4k_02.png

Peers are measured where they are installed: pip install 'fullfield[bench]'.
"""


def add_parser(targets: Any) -> argparse.ArgumentParser:
    """Add ``fullfield bench tvl1``."""
    parser: argparse.ArgumentParser = targets.add_parser(
        "tvl1",
        help="TV-L1, beside OpenCV and scikit-image",
        description="Time TV-L1 on the CPU: the rate at a fixed number of iterations, each library end to end with "
        "its own defaults, and the whole command. Results are checked before their times count; candidates take turns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--pair", nargs=3, metavar=("A", "B", "TRUTH"), help="frames and their true flow [a textured scene, 1024×436]"
    )
    parser.add_argument(
        "--presets", nargs="+", default=(), metavar="DIR", help="Middlebury folders: error and time of every preset"
    )
    parser.add_argument(
        "--large", nargs=2, metavar=("A", "B"), help="frames to crop and enlarge to 8192×3432: time and peak memory"
    )
    parser.add_argument("--repeats", type=count, default=3, metavar="N", help="rounds [%(default)s]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, measure, print."""
    if args.output:
        paths.check_suffix(args.output, "results", (".json",))
        paths.check_output(args.output, "results")
    for name in ("pair", "large"):
        for path in getattr(args, name) or ():
            paths.check_input(path, name)
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
        work = (tvl1.fixed_work, tvl1.own_defaults, tvl1.whole_command)
        cases = [measure(pair, args.repeats, note) for measure in work]
        if scenes:
            cases.append(tvl1.presets(scenes, note))
        if args.large:
            cases.append(tvl1.large(Path(args.large[0]), Path(args.large[1]), note))
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
