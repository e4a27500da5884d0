"""What the benchmarks of networks have in common: options, peers, results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import count

if TYPE_CHECKING:
    import torch

Cases: TypeAlias = list[dict[str, Any]]


class Bench(Protocol):
    """A module of benchmarks of networks."""

    def measure(self, plan: Any, note: Callable[[str], None], on_case: Callable[[Cases], None]) -> Cases:
        """All cases of a plan; ``on_case`` gets those that are done after every one."""

    def report(self, results: dict[str, Any]) -> list[str]:
        """The cases in words."""

    def failed(self, cases: Sequence[dict[str, Any]]) -> list[str]:
        """What of ours did not pass its check."""


def add_extension_option(parser: argparse._ActionsContainer, use: str = "") -> None:
    """``--alt-cuda-corr DIR``; ``use`` says what for."""
    parser.add_argument(
        "--alt-cuda-corr",
        metavar="DIR",
        help=f"{use}folder with correlation.cpp and correlation_kernel.cu of RAFT; compiled here (nvcc, ninja)",
    )


def add_device_option(parser: argparse._ActionsContainer) -> None:
    """``--device NAME``."""
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... [cuda where there is one]")


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """``--repeats``, ``--output`` and what every verb has."""
    parser.add_argument("--repeats", type=count, default=5, metavar="N", help="rounds [%(default)s]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)


def check_results(args: argparse.Namespace, inputs: Sequence[str] = ()) -> None:
    """Of these options what can be wrong without loading a library; ``inputs`` must not be overwritten."""
    if args.output:
        paths.check_suffix(args.output, "results", (".json",))
        paths.check_output(args.output, "results")
        paths.check_distinct([("--output", args.output)], inputs)
    if args.alt_cuda_corr and not Path(args.alt_cuda_corr).is_dir():
        raise InputError(f"--alt-cuda-corr {args.alt_cuda_corr}: no such folder")


def set_up(args: argparse.Namespace) -> tuple[torch.device, Any]:
    """The device, made the current one, and RAFT's compiled extension where it is asked for."""
    import torch

    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not args.alt_cuda_corr:
        return device, None
    from benchmarks.cases.correlation.contenders import alt_cuda_corr_extension

    extension = alt_cuda_corr_extension(args.alt_cuda_corr, noting(args))
    sys.modules["alt_cuda_corr"] = extension  # where ptlflow looks for it when it is imported
    return device, extension


def noting(args: argparse.Namespace) -> Callable[[str], None]:
    """Says what is being done, unless the user wants quiet."""

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    return note


def measure(args: argparse.Namespace, name: str, bench: Bench, plan: Any) -> int:
    """Measure, keep what is done, print; 1 if a check failed."""
    from benchmarks.harness import environment, write_results

    def keep(cases: Cases) -> None:
        if args.output:
            write_results(args.output, {"bench": name, "cases": cases})

    cases = bench.measure(plan, noting(args), keep)
    if args.json:
        report.print_json({"bench": name, "cases": cases, "environment": environment()})
    else:
        print("\n".join(bench.report({"cases": cases})))
    problems = bench.failed(cases)
    for problem in problems:
        report.note(problem, kind="check failed")
    return 1 if problems else 0
