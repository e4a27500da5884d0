"""The command ``python -m benchmarks``: reads options, goes through the cases of a benchmark, shows the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.bench import Bench, Note, Result, failed, measure
from benchmarks.cases.correlation import analyze, record
from benchmarks.cases.correlation.command import CORRELATION
from benchmarks.cases.front_door.command import FRONT_DOOR
from benchmarks.cases.networks.models_command import MODELS
from benchmarks.cases.networks.patched_command import PATCHED
from benchmarks.cases.networks.refine_command import REFINE
from benchmarks.cases.packing.command import PACKING
from benchmarks.cases.points.command import POINTS
from benchmarks.cases.sequences.command import SEQUENCE
from benchmarks.cases.training.command import TRAINING
from benchmarks.cases.tvl1.command import TVL1
from benchmarks.cases.windows.command import WINDOWS
from benchmarks.harness import CheckFailed
from benchmarks.paper import command as reproduce
from benchmarks.stored import environment, read_results, write_results
from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import parse_positive_integer
from fullfield.cli.main import Parser
from fullfield.cli.main import main as run_command

BENCHES = (TVL1, CORRELATION, WINDOWS, POINTS, MODELS, PATCHED, TRAINING, REFINE, SEQUENCE, PACKING, FRONT_DOOR)
_SHOWING = ("stored", "plots", "tables", "json", "quiet")
_BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


def build_parser() -> Parser:
    """Return the parser of all benchmarks; imports nothing heavy."""
    parser = Parser(
        prog="python -m benchmarks",
        description="Time an operator or a network beside its peers. Every result is checked before its time counts; "
        "most candidates take turns.",
    )
    targets = parser.add_subparsers(dest="verb", metavar="WHAT", required=True)
    for bench in BENCHES:
        one: argparse.ArgumentParser = targets.add_parser(
            bench.name,
            help=bench.help,
            description=bench.description,
            epilog=bench.examples,
        )
        bench.add_options(one)
        _add_common_options(one, bench)
        one.set_defaults(run=partial(_run, bench, one))
    analyze.add_parser(targets).set_defaults(run=analyze.run)
    record.add_parser(targets).set_defaults(run=record.run)
    reproduce.add_parser(targets).set_defaults(run=reproduce.run)
    return parser


def _add_common_options(parser: argparse.ArgumentParser, bench: Bench) -> None:
    device = bench.device or "cuda where there is one"
    parser.add_argument("--device", metavar="NAME", default=bench.device, help=f"cpu, cuda, cuda:1, ... [{device}]")
    parser.add_argument("--repeats", type=parse_positive_integer, metavar="N", help=f"rounds [{bench.repeats}]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    if bench.resumes:
        parser.add_argument("--resume", action="store_true", help="keep what --output holds and measure the rest")
    parser.add_argument("--stored", metavar="FILE", help="show results that --output wrote: measures nothing")
    if bench.draw is not None:
        parser.add_argument("--plots", metavar="DIR", help="also draw the figures into this folder (matplotlib)")
    if bench.tables is not None:
        parser.add_argument(
            "--tables", "--markdown", metavar="FILE", help="also write tables, with published values (.md)"
        )
    report.add_report_options(parser, has_quiet_option=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 fine, 1 a check failed, 2 a mistake of the user."""
    return run_command(argv, build_parser)


def _run(bench: Bench, parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.stored is not None:
        return _show_stored(bench, parser, args)
    inputs = bench.check(args)
    if args.output is not None:
        paths.get_checked_suffix(args.output, "results", (".json",))
        paths.check_output_file_and_remove_temporaries(args.output, "results")
        paths.check_outputs_are_distinct([("--output", args.output)], inputs)
    if getattr(args, "resume", False) and args.output is None:
        raise InputError("--resume: goes on with what --output FILE holds, and --output is absent")
    _check_shown(args)
    code = bench.instead(args)
    return _measure(bench, args) if code is None else code


def _measure(bench: Bench, args: argparse.Namespace) -> int:
    note = noting(args)
    args.repeats = args.repeats or bench.repeats
    session = bench.open(args, note)

    def results_of(cases: list[Result]) -> Result:
        return {"bench": bench.name, **session.header, "cases": cases, **session.summary(cases)}

    def keep(cases: list[Result]) -> None:
        if args.output is not None:
            write_results(args.output, results_of(cases))

    try:
        cases = measure(
            session.cases, note, keep, session.known,
            order=session.order, seconds=session.seconds, device=session.device,
        )  # fmt: skip
    except CheckFailed as failure:
        report.print_note(str(failure), kind="check failed")
        return 1
    _show(bench, args, {**results_of(cases), "environment": environment()})
    wrong = failed(cases)
    for line in wrong:
        report.print_note(line, kind="check failed")
    return 1 if wrong else 0


def noting(args: argparse.Namespace) -> Note:
    """Says what is being done, unless the user wants quiet."""

    def note(text: str) -> None:
        if not args.quiet:
            report.print_note(text, kind="bench")

    return note


def _check_shown(args: argparse.Namespace) -> None:
    if getattr(args, "plots", None) is not None:
        paths.check_folder_writable_and_remove_temporaries(Path(args.plots), "--plots")
        import_module("matplotlib")  # now, not when everything has been measured
    if getattr(args, "tables", None) is not None:
        paths.get_checked_suffix(args.tables, "--tables", (".md",))
        paths.check_output_file_and_remove_temporaries(args.tables, "--tables")


def _show(bench: Bench, args: argparse.Namespace, results: Result) -> None:
    """Figures, tables, and the results on stdout."""
    from fullfield.io.files import write_atomically

    lines = bench.report(results)
    page = None if bench.tables is None or args.tables is None else bench.tables(results)
    if bench.draw is not None and args.plots is not None:
        for path in bench.draw(results, Path(args.plots), args):
            noting(args)(f"{path} is drawn")
    if page is not None:
        with write_atomically(args.tables) as temporary:
            temporary.write_text(page, "utf-8")
    if args.json:
        report.print_json(results)
    else:
        print("\n".join(lines))


def _show_stored(bench: Bench, parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    displayed = {*_SHOWING, *bench.showing, "verb", "run"}
    for name, value in vars(args).items():
        if name not in displayed and value not in (None, [], parser.get_default(name)):
            raise InputError(f"--{name.replace('_', '-')}: --stored measures nothing; leave it out")
    paths.check_input_file(args.stored, "--stored")
    _check_shown(args)
    results = read_results(Path(args.stored), bench.name, "--stored")
    try:
        _show(bench, args, results)
    except InputError:
        raise
    except _BROKEN as error:
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"--stored {args.stored}: the results lack what is to be shown ({said})") from error
    return 0
