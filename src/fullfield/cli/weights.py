"""List, download or locate published weights of networks.

List and download published weights of networks. Files are kept in the folder 'weights' of fullfield's cache; files that
you put there by hand are used too.
"""

from __future__ import annotations

import argparse
import dataclasses

from fullfield._check import InputError
from fullfield.cli import report
from fullfield.cli.methods import build_download_callback
from fullfield.cli.progress import ProgressBar
from fullfield.models.weights import DEFAULTS, WEIGHTS, WeightsEntry, fetch_weights, find_local_weights

EPILOG = """\
examples:
  fullfield weights list
  fullfield weights fetch raft-sintel raft-small
  fullfield flow a.png b.png -o flow.flo --method raft --weights "$(fullfield weights path raft-things)"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield weights``."""
    tasks = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, run, summary in (
        (
            "list",
            _print_weights_list,
            "list names, methods and training of all published weights, and which are on this machine",
        ),
        ("fetch", _fetch_weights_and_print_paths, "download weights, check them and keep them in the cache"),
        ("path", _print_weights_path, "print the path of an entry's file"),
    ):
        task = tasks.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name == "fetch":
            task.add_argument("names", nargs="+", metavar="NAME", help="entries of the list")
        elif name == "path":
            task.add_argument("name", metavar="NAME", help="entry of the list")
        report.add_report_options(task, has_quiet_option=name == "fetch")
        task.set_defaults(run=run)


def _print_weights_list(args: argparse.Namespace) -> int:
    paths = {entry.name: find_local_weights(entry) for entry in WEIGHTS.values()}
    if args.json:
        entries = [
            {
                **{field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)},
                "metrics": dict(entry.metrics),
                "path": None if paths[entry.name] is None else str(paths[entry.name]),
            }
            for entry in WEIGHTS.values()
        ]
        report.print_json({"weights": entries, "defaults": dict(DEFAULTS)})
        return 0
    rows = []
    for entry in WEIGHTS.values():
        default = "*" if entry.name in DEFAULTS.values() else " "
        location = "here" if paths[entry.name] is not None else "" if entry.url is not None else "by hand"
        rows.append((f"{default} {entry.name}", location, ", ".join(entry.models), entry.training))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1, 2)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, (*widths, 0), strict=True)))
    print(
        "* default of a method; by hand: 'fetch' only prints the address. Sources, checksums, licences and metrics: "
        "--json"
    )
    return 0


def _fetch_weights_and_print_paths(args: argparse.Namespace) -> int:
    entries = [_get_weights_entry_or_raise(name) for name in args.names]
    paths = {}
    with ProgressBar("weights", quiet=args.quiet) as progress:
        for index, entry in enumerate(entries):
            entry_progress = progress.start_span_and_build_callback(index / len(entries), (index + 1) / len(entries))
            path = fetch_weights(entry, build_download_callback(entry_progress, entry.name))
            paths[entry.name] = str(path)
            if not args.json:
                print(report.escape_control_characters(path))
    if args.json:
        report.print_json({"paths": paths})
    return 0


def _print_weights_path(args: argparse.Namespace) -> int:
    entry = _get_weights_entry_or_raise(args.name)
    path = find_local_weights(entry)
    if path is None:
        raise InputError(f"{entry.name}: is not on this machine; run 'fullfield weights fetch {entry.name}'")
    if args.json:
        report.print_json({"name": entry.name, "path": str(path)})
    else:
        print(report.escape_control_characters(path))
    return 0


def _get_weights_entry_or_raise(name: str) -> WeightsEntry:
    if name not in WEIGHTS:
        raise InputError(f"{name}: no such entry; see fullfield weights list")
    return WEIGHTS[name]
