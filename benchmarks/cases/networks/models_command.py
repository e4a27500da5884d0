"""``python -m benchmarks models``: networks end to end, compared with ptlflow's."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.cases.networks import options
from benchmarks.cases.networks.forms import (
    DEFAULT_FORMS,
    DEFAULT_PEER_FORMS,
    EXTENSION_FORMS,
    FORMS,
    PEER_FORMS,
)
from benchmarks.options import add_sizes_option
from fullfield._check import InputError
from fullfield.cli import paths
from fullfield.cli.argtypes import parse_positive_integer, parse_positive_number

if TYPE_CHECKING:
    import torch

    from benchmarks.cases.networks.models import Plan
    from fullfield.models.state import State

METHODS = ("fullfield-s", "raft", "raft-small", "sea-raft-s", "sea-raft-m", "sea-raft-l")
DESCRIPTION = """\
Time networks end to end on a pair that is already on the device: our forms and, where it is installed, ptlflow's model
with the same weights in float32 and in half precision (autocast), with its dense volume, compiled, with localcorr's
lookups and with RAFT's compiled extension. Every flow is compared with that of our module in float32 before its time
counts; all take turns. The results hold peak memory and the positions that were looked up.
"""
EPILOG = """\
examples:
  python -m benchmarks models --weights raft=raft-sintel.pth --pair frame_0002.png frame_0003.png -o results.json
  python -m benchmarks models --methods raft-small fullfield-s --updates 12 4 --sizes 1024x436
  python -m benchmarks models --methods sea-raft-m --sizes 8192x3432 --cascade --alt-cuda-corr RAFT/alt_cuda_corr
  python -m benchmarks models --sizes 1920x1080 --updates 12 4 --forms fast module module-half compiled
  python -m benchmarks models --methods raft --sizes 1920x1080 --updates 12 --peer-forms dense compiled compiled-half
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is estimated")
    what.add_argument("--methods", nargs="+", choices=METHODS, default=["raft", "sea-raft-m"], help="networks")
    add_sizes_option(what, "frames [2048x864 and 8192x3432 on a GPU, else 256x128]")
    what.add_argument(
        "--updates",
        nargs="+",
        type=parse_positive_integer,
        metavar="N",
        help="of each method [the network's own number]",
    )
    what.add_argument("--cascade", action="store_true", help="also cascaded")
    what.add_argument(
        "--weights", nargs="+", default=(), metavar="METHOD=FILE", help="weights [random, with settled batch norms]"
    )
    what.add_argument(
        "--pair",
        nargs=2,
        metavar=("A", "B"),
        help="frames, resized [a texture that moves smoothly]; the results hold the content of a pair.json beside A, "
        "which benchmarks.experiments.render_pair writes",
    )
    what.add_argument("--truth", metavar="FLOW", help="true flow of the pair: errors stand beside the times")
    who = parser.add_argument_group("who takes part")
    who.add_argument(
        "--forms",
        nargs="+",
        choices=FORMS,
        default=list(DEFAULT_FORMS),
        help="ours: prepared in half precision; the plain module in float32, in half precision, and both through "
        "torch.compile with CUDA graphs (module-compiled, compiled), which compiles for half a minute; the module with "
        "folded norms and reordered weights, as estimators run it on a CPU (optimized) [fast module]",
    )
    who.add_argument(
        "--peer-forms",
        nargs="+",
        choices=PEER_FORMS,
        default=list(DEFAULT_PEER_FORMS),
        help="ptlflow's: eager, in channels-last, and through torch.compile with CUDA graphs, each also under autocast "
        "(-half; compiled-half is in channels-last); with localcorr's lookups in float32 [dense dense-half]",
    )
    who.add_argument(
        "--compile-seconds",
        type=parse_positive_number,
        default=120.0,
        metavar="S",
        help="give up a compiled form whose first call takes longer [%(default)s]",
    )
    who.add_argument("--no-peers", action="store_true", help="ours alone")
    options.add_extension_option(who)
    who.add_argument(
        "--extension-forms",
        nargs="+",
        choices=EXTENSION_FORMS,
        default=list(EXTENSION_FORMS),
        help="precisions of ptlflow with --alt-cuda-corr [float32 half]",
    )
    parser.add_argument("--seconds", type=parse_positive_number, metavar="S", help="begin no case after this time")


def _weights(args: argparse.Namespace) -> dict[str, str]:
    """Return the weights by method."""
    weights = {}
    for given in args.weights:
        method, _, path = given.partition("=")
        if method not in METHODS or not path:
            raise InputError(f"--weights: expected METHOD=FILE with one of {', '.join(METHODS)}, got {given}")
        paths.check_input_file(path, "--weights")
        weights[method] = path
    return weights


def _check(args: argparse.Namespace) -> list[str]:
    if args.truth and not args.pair:
        raise InputError("--truth: is of the frames of --pair, which is missing")
    inputs = [*_weights(args).values(), *(args.pair or ()), *([args.truth] if args.truth else ())]
    for option, given in (("--pair", args.pair or ()), ("--truth", [args.truth] if args.truth else ())):
        for path in given:
            paths.check_input_file(path, option)
    options.check_extension(args)
    if args.updates and len(args.updates) not in (1, len(args.methods)):
        raise InputError(f"--updates: expected one number or one for each of {len(args.methods)} methods")
    if args.alt_cuda_corr and args.no_peers:
        raise InputError("--alt-cuda-corr: is for ptlflow's models, which --no-peers leaves out")
    return inputs


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.networks import models
    from fullfield.models.state import read_state_dict_and_name

    weights = {method: read_state_dict_and_name(path)[0] for method, path in _weights(args).items()}
    plan = _plan(args, weights, note)
    facts = {**_read_pair_facts(args.pair), **_describe_rounded_weights(weights)}
    return Session(models.cases(plan, note), facts, seconds=args.seconds or math.inf, device=plan.device)


def _read_pair_facts(pair: list[str] | None) -> dict[str, Any]:
    """Return the content of ``pair.json`` beside the first frame, as ``pair``; nothing where there is none."""
    path = None if pair is None else Path(pair[0]).with_name("pair.json")
    if path is None or not path.is_file():
        return {}
    try:
        return {"pair": json.loads(path.read_text("utf-8"))}
    except ValueError as error:
        raise InputError(f"--pair: {path} is not JSON ({error})") from error


def _describe_rounded_weights(weights: dict[str, State]) -> dict[str, str]:
    """Return which weights are stored in float16, as ``weights``; nothing where none are."""
    import torch

    rounded = [
        method for method, state in weights.items() if any(tensor.dtype == torch.float16 for tensor in state.values())
    ]
    return {"weights": f"rounded to float16 ({', '.join(rounded)})"} if rounded else {}


def _report(results: Result) -> list[str]:
    from benchmarks.cases.networks.models import report

    return report(results)


def _plan(args: argparse.Namespace, weights: dict[str, State], note: Note) -> Plan:
    from benchmarks.cases.networks.models import Plan

    device, extension = options.set_up(args, note)
    pair = _pair(args.pair)
    usual = [(864, 2048), (3432, 8192)] if device.type == "cuda" else [(128, 256)]
    return Plan(
        args.methods,
        args.sizes or usual,
        device,
        updates=args.updates and args.updates * (len(args.methods) if len(args.updates) == 1 else 1),
        forms=args.forms,
        cascade=args.cascade,
        peers=not args.no_peers,
        peer_forms=args.peer_forms,
        compile_seconds=args.compile_seconds,
        extension=extension,
        extension_forms=args.extension_forms,
        weights=weights,
        pair=pair,
        true_flow=_true_flow(args.truth, pair),
        repeats=args.repeats,
    )


def _pair(given: list[str] | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    if given is None:
        return None
    from fullfield.io import read_frame

    first, second = (read_frame(path) for path in given)
    if first.shape != second.shape:
        raise InputError(f"--pair: expected two frames of one size, got {list(first.shape)} and {list(second.shape)}")
    return first.expand(3, -1, -1), second.expand(3, -1, -1)


def _true_flow(path: str | None, pair: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor | None:
    """Return the true flow of a pair, NaN where it is unknown; the mean of four values where they are stored."""
    if path is None or pair is None:
        return None
    from fullfield.io import read_flow
    from fullfield.metrics.pixels import split_four_values

    truth = read_flow(path)
    height, width = pair[0].shape[1:]
    if truth.flow.shape[1:] == (2 * height, 2 * width):
        return split_four_values(truth.flow, truth.valid).mean(0)
    if truth.flow.shape[1:] != (height, width):
        raise InputError(f"--truth: expected a flow of the pair's size or twice that, got {list(truth.flow.shape)}")
    return truth.flow.where(truth.valid, float("nan"))


MODELS = Bench(
    "models",
    "RAFT and SEA-RAFT end to end, beside ptlflow's",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
)
