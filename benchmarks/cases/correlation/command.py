"""Command ``python -m benchmarks correlation``: the lookup compared with RAFT's extension and other libraries."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield._check import InputError
from fullfield.cli import paths
from fullfield.cli.argtypes import parse_positive_integer

if TYPE_CHECKING:
    import torch

    from benchmarks.cases.correlation.contenders import Contender
    from benchmarks.cases.correlation.measure import Plan
    from benchmarks.cases.correlation.positions import Scene

BACKENDS = ("cuda", "cpu", "dense", "blocks", "reference")
DTYPES = ("float32", "float16", "bfloat16")
PEERS = ("volume", "voting", "fused-local-corr", "ptlflow", "localcorr-triton")
DESCRIPTION = """\
Time the lookups of one pair, pooling and layout included: as a CUDA graph's replay and eagerly from Python, with the
host's share and the peak memory on a GPU. Every result is compared with the float64 reference at random pixels before
its time counts; all take turns. Without a GPU the CPU backends are measured on small maps.
"""
EPILOG = """\
examples:
  python -m benchmarks correlation --lookups flow_easy_512x224.npy -o results.json
  python -m benchmarks correlation --sweep size --alt-cuda-corr RAFT/alt_cuda_corr --plots figures -o sizes.json
  python -m benchmarks correlation --steps --sizes 256x112 512x224 --lookups flow_medium_512x224.npy -o steps.json
  python -m benchmarks correlation --sizes 62x46 --batch 8 --updates 12 --backward --backends cuda dense
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is looked up")
    what.add_argument("--sweep", choices=("size", "updates", "channels"), help="vary one of these as the paper does")
    add_sizes_option(what, "feature maps [512x224 on a GPU, else 128x56]")
    what.add_argument(
        "--updates", nargs="+", type=parse_positive_integer, metavar="N", help="lookups of a pair [32 on a GPU, else 2]"
    )
    what.add_argument("--channels", nargs="+", type=parse_positive_integer, metavar="N", help="of the features [256]")
    what.add_argument(
        "--batch", type=parse_positive_integer, default=1, metavar="N", help="pairs at a time [%(default)s]"
    )
    what.add_argument("--levels", type=parse_positive_integer, default=4, metavar="N", help="1 to 8 [%(default)s]")
    what.add_argument("--radius", type=parse_positive_integer, default=4, metavar="N", help="1 to 8 [%(default)s]")
    what.add_argument(
        "--lookups",
        nargs="+",
        default=(),
        metavar="FILE",
        help="recorded positions minus grid, .npy [U, 2, H, W]: of all updates, or of 0, 1, 2, 4, 8, 12, 20 and 31",
    )
    what.add_argument(
        "--positions",
        choices=("smooth", "random"),
        help="synthetic lookups: a smooth flow that converges, or uniformly random [smooth, without --lookups]",
    )
    form = parser.add_argument_group("formats")
    form.add_argument("--dtype", choices=DTYPES, help="of the features [bfloat16 on a GPU, else float32]")
    form.add_argument("--out-dtype", choices=DTYPES, default="float32", help="of the results [%(default)s]")
    form.add_argument(
        "--position-dtype",
        choices=DTYPES[:2],
        default="float32",
        help="round everybody's positions to it: localcorr's kernel in half precision takes no others [%(default)s]",
    )
    form.add_argument(
        "--layout", choices=("nchw", "channels-last"), default="nchw", help="of the results [%(default)s]"
    )
    form.add_argument(
        "--precision",
        choices=("highest", "high", "medium"),
        default="highest",
        help="of products of float32 features [%(default)s]",
    )
    form.add_argument("--backward", action="store_true", help="also the gradients of both maps")
    who = parser.add_argument_group("who takes part")
    who.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="ours [all that can run]")
    who.add_argument(
        "--peers", nargs="+", choices=PEERS, default=PEERS, help="others that need no option of their own [all]"
    )
    who.add_argument(
        "--steps",
        action="store_true",
        help="only our kernel (of sm_90) and that of Briedis et al., cut off after each step as in their table 4",
    )
    who.add_argument(
        "--alt-cuda-corr",
        metavar="DIR",
        help="folder with correlation.cpp and correlation_kernel.cu of RAFT; compiled here (nvcc, ninja)",
    )
    who.add_argument(
        "--localcorr",
        metavar="PATH",
        help="its wheel, or a folder with it: its kernel is compiled here (nvcc); or the compiled library (.so)",
    )
    parser.add_argument(
        "--compare", nargs="+", default=(), metavar="FILE", help="results of other machines, drawn together with these"
    )


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.correlation import measure
    from benchmarks.cases.correlation.alt_cuda_corr import hash_alt_cuda_corr
    from benchmarks.harness import timing_device

    _compared(args)  # a mistake is told before the work
    plan = _plan(args, timing_device(args.device), note)
    facts = {"sweep": args.sweep}
    if args.alt_cuda_corr:
        facts["alt_cuda_corr_sha256"] = hash_alt_cuda_corr(args.alt_cuda_corr)
    return Session(measure.cases(plan, note), facts)


def _report(results: Result) -> list[str]:
    from benchmarks.cases.correlation.report import report

    return report(results)


def _draw(results: Result, folder: Path, args: argparse.Namespace) -> list[Path]:
    from benchmarks.cases.correlation.plots import draw

    return draw(results, folder, _compared(args))


def _check(args: argparse.Namespace) -> list[str]:
    for name in ("backward", "alt_cuda_corr", "localcorr", "plots"):
        if args.steps and getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')}: is not for --steps")
    for name, limit in (("levels", 8), ("radius", 8)):
        if getattr(args, name) > limit:
            raise InputError(f"--{name}: expected 1 to {limit}, got {getattr(args, name)}")
    for name, variable in (("updates", "updates"), ("channels", "channels")):
        given = getattr(args, name)
        if given is not None and len(given) > 1 and args.sweep != variable:
            raise InputError(f"--{name}: takes one number without --sweep {variable}, got {len(given)}")
    if args.sizes is not None and len(args.sizes) > 1 and args.sweep not in (None, "size"):
        raise InputError(f"--sizes: takes one size with --sweep {args.sweep}, got {len(args.sizes)}")
    if args.compare and not args.plots:
        raise InputError("--compare: is for the pictures; say where to with --plots DIR")
    for path in args.lookups:
        paths.check_input_file(path, "--lookups")
    for path in args.compare:
        paths.check_input_file(path, "--compare")
    if args.alt_cuda_corr and not Path(args.alt_cuda_corr).is_dir():
        raise InputError(f"--alt-cuda-corr {args.alt_cuda_corr}: no such folder")
    if args.localcorr and not Path(args.localcorr).exists():
        raise InputError(f"--localcorr {args.localcorr}: no such file or folder")
    return [*args.lookups, *args.compare, *([args.localcorr] if args.localcorr else ())]


def _compared(args: argparse.Namespace) -> list[Result]:
    """Read the results of other machines."""
    from benchmarks.stored import read_results

    return [read_results(Path(path), "correlation", "--compare") for path in args.compare]


def _plan(args: argparse.Namespace, device: torch.device, note: Note) -> Plan:
    import torch

    from benchmarks.cases.correlation.contenders import Problem
    from benchmarks.cases.correlation.measure import Plan, default_values

    values = default_values(device, args.sweep)
    dtype = args.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    problem = Problem(
        size=(1, 1),
        updates=1,
        channels=1,
        batch=args.batch,
        levels=args.levels,
        radius=args.radius,
        dtype=getattr(torch, dtype),
        out_dtype=getattr(torch, args.out_dtype),
        position_dtype=getattr(torch, args.position_dtype),
        channels_last=args.layout == "channels-last",
        device=device,
        backward=args.backward,
    )
    return Plan(
        problem,
        _scenes(args, max(args.updates or values["updates"])),
        _contenders(args, device, note),
        sizes=args.sizes or values["sizes"],
        updates=args.updates or values["updates"],
        channels=args.channels or values["channels"],
        sweep=args.sweep,
        precision=args.precision,
        repeats=args.repeats,
    )


def _scenes(args: argparse.Namespace, updates: int) -> list[Scene]:
    from benchmarks.cases.correlation.positions import Scene
    from benchmarks.cases.correlation.recorded import RECORDED, load_recorded

    scenes = []
    for path in args.lookups:
        recorded = load_recorded(path)
        if recorded.shape[0] < updates and recorded.shape[0] != len(RECORDED):
            listed = ", ".join(map(str, RECORDED))
            raise InputError(f"{path}: expected the 8 updates {listed}, or all {updates}, got {recorded.shape[0]}")
        scenes.append(Scene(Path(path).stem, recorded))
    if args.positions or not scenes:
        scenes.append(Scene(args.positions or "smooth"))
    return scenes


def _contenders(args: argparse.Namespace, device: torch.device, note: Note) -> list[Contender]:
    from benchmarks.cases.correlation import contenders, localcorr, volume, voting
    from fullfield.ops.correlation import explain_backends

    if args.steps:
        from benchmarks.cases.correlation.steps import contenders_by_step

        return contenders_by_step()
    told = dict(explain_backends(device))
    absent = {name for name in args.backends if told.get(name) is not None and args.backends == BACKENDS}
    for name in sorted(absent - {"dense"}):
        note(f"{name} does not run here: {told[name]}")
    selected = [name for name in BACKENDS if name in args.backends and (name not in absent or name == "dense")]
    result = contenders.our_contenders([name for name in selected if name != "blocks"])
    if "blocks" in selected:
        result.append(contenders.blocks())
    if "volume" in args.peers:
        result.append(volume.contender())
    if "voting" in args.peers and device.type == "cuda":
        result.append(voting.contender())
    if args.alt_cuda_corr:
        result.append(contenders.alt_cuda_corr(args.alt_cuda_corr, note))
    if args.localcorr:
        result.append(localcorr.contender(localcorr.compile_kernel(args.localcorr, note)))
    installed = {
        "fused-local-corr": contenders.fused_local_corr,
        "ptlflow": contenders.ptlflow_volume,
        "localcorr-triton": localcorr.triton_contender,
    }
    for name, find_peer in installed.items():
        if name not in args.peers:
            continue
        peer = find_peer()
        if peer is None:
            note(f"{name} is not installed, or does not import, so it is not measured")
        else:
            result.append(peer)
    return result


CORRELATION = Bench(
    "correlation",
    "the correlation lookup, compared with alt_cuda_corr, fused-local-corr and ptlflow's volume",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    draw=_draw,
    showing=("compare",),
)
