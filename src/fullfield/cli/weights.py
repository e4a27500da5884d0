"""``fullfield weights``: the published weights of networks, and bringing them here."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from fullfield._check import InputError
from fullfield.cli import report
from fullfield.cli.methods import fetching
from fullfield.cli.progress import Progress

if TYPE_CHECKING:
    from fullfield.models import WeightsEntry

HELP = "list, fetch or locate published weights of networks"
DESCRIPTION = (
    "The published weights of networks. Files lie in the folder 'weights' of fullfield's cache, where "
    "they may also be put by hand."
)
EPILOG = """\
examples:
  fullfield weights list
  fullfield weights fetch raft-sintel raft-small
  fullfield flow a.png b.png -o flow.flo --method raft --weights "$(fullfield weights path raft-things)"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield weights``."""
    tasks = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, run, told in (
        ("list", _list, "names, methods and training of all published weights, and which of them are here"),
        ("fetch", _fetch, "download weights, check them and keep them in the cache"),
        ("path", _path, "print where the file of an entry is"),
    ):
        task = tasks.add_parser(name, help=told, description=told.capitalize() + ".")
        if name == "fetch":
            task.add_argument("names", nargs="+", metavar="NAME", help="entries of the list")
        elif name == "path":
            task.add_argument("name", metavar="NAME", help="an entry of the list")
        report.add_report_options(task, progress=name == "fetch")
        task.set_defaults(run=run)


def _list(args: argparse.Namespace) -> int:
    from fullfield.models.weights import DEFAULTS, WEIGHTS, cached_weights

    here = {entry.name: cached_weights(entry) for entry in WEIGHTS.values()}
    if args.json:
        entries = [
            {
                **{field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)},
                "metrics": dict(entry.metrics),
                "path": None if here[entry.name] is None else str(here[entry.name]),
            }
            for entry in WEIGHTS.values()
        ]
        report.print_json({"weights": entries, "defaults": dict(DEFAULTS)})
        return 0
    names = max(map(len, WEIGHTS))
    methods = max(len(_methods(entry)) for entry in WEIGHTS.values())
    for entry in WEIGHTS.values():
        default = "*" if entry.name in DEFAULTS.values() else " "
        place = "here" if here[entry.name] is not None else "" if entry.url is not None else "by hand"
        print(f"{default} {entry.name:<{names}}  {place:<7}  {_methods(entry):<{methods}}  {entry.training}")
    print(
        "* what a method takes unless --weights says otherwise; by hand: 'fetch' only says from where. Sources, "
        "checksums, licences and metrics: --json"
    )
    return 0


def _methods(entry: WeightsEntry) -> str:
    return ", ".join(entry.models)


def _fetch(args: argparse.Namespace) -> int:
    from fullfield.models.weights import fetch_weights

    entries = [_entry(name) for name in args.names]
    found = {}
    with Progress("weights", quiet=args.quiet) as progress:
        for index, entry in enumerate(entries):
            part = progress.part(index / len(entries), (index + 1) / len(entries))
            path = fetch_weights(entry, fetching(part, entry.name))
            found[entry.name] = str(path)
            if not args.json:
                print(report.printable(path))
    if args.json:
        report.print_json({"paths": found})
    return 0


def _path(args: argparse.Namespace) -> int:
    from fullfield.models.weights import cached_weights

    entry = _entry(args.name)
    path = cached_weights(entry)
    if path is None:
        raise InputError(f"{entry.name}: is not here; 'fullfield weights fetch {entry.name}' brings it")
    if args.json:
        report.print_json({"name": entry.name, "path": str(path)})
    else:
        print(report.printable(path))
    return 0


def _entry(name: str) -> WeightsEntry:
    from fullfield.models.weights import WEIGHTS

    if name not in WEIGHTS:
        raise InputError(f"{name}: no such entry; see fullfield weights list")
    return WEIGHTS[name]
