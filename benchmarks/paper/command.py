"""``python -m benchmarks reproduce RUNS``: the paper's tables and figures beside ours."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.progress import ProgressBar

if TYPE_CHECKING:
    from benchmarks.paper.matching import Runs
    from benchmarks.paper.tables import Table
    from fullfield.datasets import FlowDataset

TABLES = ("1", "2", "3", "6", "7", "8", "9", "11")
PLOTS = ("figure1", "figure11", "figure12")
SHEETS = ("figure6", "figure13", "figure14", "figure15")
RUNS = "runs"

EPILOG = """\
examples:
  python -m benchmarks reproduce
  python -m benchmarks reproduce runs -o report
  python -m benchmarks reproduce runs -o report --only 9 figure1 --stand-in charge-8k=demo
  python -m benchmarks analyze *.npy --json > lookups.json
  python -m benchmarks reproduce --only 3 --lookups lookups.json
"""


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks reproduce``."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "reproduce",
        help="the paper's tables and figures from stored runs",
        description="Print or write the tables and figures of Briedis et al. (CVPR 2026): what the paper reports, and "
        "what runs of 'fullfield evaluate' give here.",
        epilog=EPILOG,
    )
    parser.add_argument("runs", metavar="RUNS", nargs="*", help=f"folders of runs, at any depth [{RUNS}, if it exists]")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="write Markdown, CSV and pictures here [print the tables]"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*TABLES, *PLOTS, *SHEETS),
        metavar="NAME",
        help="tables by number, or figureN [all]",
    )
    parser.add_argument(
        "--lookups", nargs="+", metavar="FILE", help="for table 3: what 'python -m benchmarks analyze --json' printed"
    )
    parser.add_argument(
        "--stand-in",
        nargs="+",
        default=(),
        metavar="SET=NAME",
        help="show the runs of the data set NAME where the paper has SET: charge-8k=demo; the tables say so",
    )
    parser.add_argument(
        "--frames", metavar="NAME:FOLDER", help="data set of the sheets, for a row with frames and true flow"
    )
    report.add_report_options(parser, has_quiet_option=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read the runs, fill the tables, print or write them."""
    requested = tuple(args.only) if args.only else (*TABLES, *PLOTS, *SHEETS)
    figures = [name for name in requested if name in PLOTS or name in SHEETS]
    if args.output is None and args.only and figures:
        raise InputError(f"--only {figures[0]}: is a picture; say where to with --output")
    if args.lookups and "3" not in requested:
        raise InputError("--lookups: is for table 3, which --only leaves out")
    if args.frames is not None and not (args.output and set(requested) & set(SHEETS)):
        raise InputError("--frames: is for the sheets of --output, which are absent")
    folder = None if args.output is None else _folder(args.output)
    lookups = [_lookups(path) for path in args.lookups or ()]

    from benchmarks.paper.matching import Runs, read_runs
    from benchmarks.paper.tables import TABLES as FROM_RUNS
    from benchmarks.paper.tables import sampled_cells

    places = args.runs or ([RUNS] if Path(RUNS).is_dir() else [])
    result = Runs(read_runs(places), _stand_ins(args.stand_in))
    strange = set(result.stand_ins.values()) - {run.dataset for run in result.runs}
    if strange:
        there = ", ".join(sorted({run.dataset for run in result.runs})) or "none"
        raise InputError(f"--stand-in: no run is of {min(strange)}; those found are of {there}")
    tables = [
        sampled_cells(lookups) if name == "3" else FROM_RUNS[name](result) for name in requested if name in TABLES
    ]
    written: list[Path] = []
    absent: list[str] = []
    missing: str | None = None
    if folder is not None:
        written += _write_tables(tables, folder)
        plots = [name for name in figures if name in PLOTS]
        if plots:
            missing = _no_matplotlib()
            figures = figures if missing is None else [name for name in figures if name in SHEETS]
        with ProgressBar("reproduce", quiet=args.quiet) as progress:
            for count, name in enumerate(figures):
                progress(count / len(figures), name)
                path = folder / f"{name}.png"
                made = _plot(name, result, path) if name in PLOTS else _sheet(name, result, path, args.frames)
                if made:
                    written.append(path)
                else:
                    absent.append(name)
    _report(args, result, tables, written, absent)
    if missing is not None:
        raise InputError(f"{', '.join(plots)}: cannot be drawn without matplotlib ({missing}); pip install matplotlib")
    return 0


def _no_matplotlib() -> str | None:
    """Why nothing can be plotted."""
    try:
        import_module("matplotlib.figure")
    except ImportError as error:
        return str(error)
    return None


def _folder(name: str) -> Path:
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; --output takes the name of a folder")
    existing = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    paths.check_folder_writable_and_remove_temporaries(existing, f"--output {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lookups(path: str) -> dict[str, Any]:
    paths.check_input_file(path, "--lookups")
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"--lookups {path}: expected JSON, got something else ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"--lookups {path}: expected what 'python -m benchmarks analyze --json' prints")
    return content


def _stand_ins(words: list[str]) -> dict[str, str]:
    from benchmarks.paper.matching import DATASETS

    result: dict[str, str] = {}
    for word in words:
        name, equals, other = word.partition("=")
        if not (equals and other and name in DATASETS):
            raise InputError(f"--stand-in: expected SET=NAME with SET one of {', '.join(DATASETS)}, got {word!r}")
        result[name] = other
    return result


def _write_tables(tables: list[Table], folder: Path) -> list[Path]:
    from benchmarks.paper.writing import comma_separated, markdown
    from fullfield.io.files import write_atomically

    texts = {f"table{table.key}.csv": comma_separated(table) for table in tables}
    if tables:
        texts["tables.md"] = "\n".join(markdown(table) for table in tables)
    written = []
    for name, text in texts.items():
        with write_atomically(folder / name) as temporary:
            temporary.write_text(text, "utf-8")
        written.append(folder / name)
    return written


def _plot(name: str, runs: Runs, path: Path) -> bool:
    from benchmarks.figures import save
    from benchmarks.paper import figures
    from benchmarks.paper.tables import TABLES as FROM_RUNS

    if name == "figure1":
        figure = figures.accuracy_over_runtime(FROM_RUNS["1"](runs))
    else:
        figure = figures.over_scales(runs, figures.OVER_SCALES[name.removeprefix("figure")])
    save(figure, path)
    return True


def _sheet(name: str, runs: Runs, path: Path, frames: str | None) -> bool:
    from benchmarks.paper.figures import qualitative_sheet
    from fullfield.io import write_image

    made = qualitative_sheet(runs, name.removeprefix("figure"), _dataset(frames))
    if made is None:
        return False
    write_image(path, made[1])
    return True


def _dataset(word: str | None) -> FlowDataset | None:
    if word is None:
        return None
    from fullfield.cli.evaluate import open_dataset_argument

    return open_dataset_argument(word, "--frames")


def _report(args: argparse.Namespace, runs: Runs, tables: list[Table], written: list[Path], absent: list[str]) -> None:
    if args.json:
        report.print_json(
            {
                "runs": [str(run.folder) for run in runs.runs],
                "stand_ins": dict(runs.stand_ins),
                "tables": {
                    table.key: {"title": table.title, "rows": table.records(), "notes": table.notes} for table in tables
                },
                "written": [str(path) for path in written],
                "not_run": absent,
                "versions": report.collect_versions(),
            }
        )
        return
    from benchmarks.paper.writing import markdown

    if args.output is None:
        print("\n".join(markdown(table) for table in tables), end="")
    for path in written:
        print(report.escape_control_characters(path))
    for name in absent:
        print(f"{name}: not run")
