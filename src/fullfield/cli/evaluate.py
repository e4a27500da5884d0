"""Run a method on a data set and score it.

Estimate the flow of every pair of a data set (with MODEL fpfh or learned: the pose of every pair of point clouds),
store the results and score them. Stored results are not estimated again. A run with another configuration is refused.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError, format_did_you_mean_hint
from fullfield.cli import argtypes, evaluate_scans, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.cli.score import format_score_lines, print_exceeded_max_epe_and_return_code
from fullfield.estimators.registry import DEFAULT_PRESET

if TYPE_CHECKING:
    from fullfield.datasets import FlowDataset
    from fullfield.evaluation.run import PredictionRun
    from fullfield.evaluation.sharing import ProcessRank

_FETCH = (0.0, 0.02)
_ESTIMATE = (0.02, 1.0)

EPILOG = """\
examples:
  fullfield evaluate tvl1 sintel-final:/data/sintel
  fullfield evaluate raft pairs:~/mine --weights raft-things --device cuda --max-epe 1.5
  fullfield evaluate sea-raft charge-8k:/data/charge --scale 1/4 --backend dense --device cuda -o runs/dense
  fullfield evaluate fpfh 3dmatch:/data/3dmatch --samples 5000,1000,250
  fullfield evaluate fpfh kitti-odometry:/data/kitti --protocol pointcnnpp
  fullfield evaluate learned 3dmatch:/data/3dmatch --weights runs/descriptor/weights.safetensors
  torchrun --nproc-per-node 4 -m fullfield evaluate ptlflow:dpflow spring:/data/spring --device cuda

A run that was stopped continues with the same command.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield evaluate``."""
    methods.add_method_option_group(parser, is_positional=True, extra_names=evaluate_scans.METHODS)
    parser.add_argument(
        "dataset",
        metavar="NAME:FOLDER",
        help="data set and its folder: sintel-final:/data/sintel; pairs:FOLDER for your own frames; "
        "kitti-odometry:/data/kitti",
    )
    running = parser.add_argument_group("run")
    running.add_argument("-o", "--output", metavar="RUN", help="folder of the run [runs/DATASET/MODEL]")
    running.add_argument("--scale", default="1", metavar="1/N", help="reduce the frames to this fraction first")
    running.add_argument("--warm-start", action="store_true", help="start each pair from the flow of the previous one")
    running.add_argument(
        "--sequential", action="store_true", help="run nothing alongside, to measure undisturbed times"
    )
    running.add_argument("--score-only", action="store_true", help="score the stored run again; estimate nothing")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument(
        "--averaging", choices=("pooled", "per_image"), default="pooled", help="mean over pixels or images"
    )
    scoring.add_argument(
        "--max-epe", type=argtypes.parse_positive_number, metavar="PX", help="exit with 1 when epe exceeds PX"
    )
    scoring.add_argument(
        "--submission", metavar="FOLDER", help="also write the layout of Sintel's, KITTI's or Spring's site"
    )
    evaluate_scans.add_arguments(parser)
    report.add_report_options(parser, has_quiet_option=True)
    methods.add_parameter_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, estimate missing predictions, score and report."""
    methods.limit_cpu_threads_unless_none(args.threads)

    from fullfield.evaluation.sharing import leave_process_group, read_torchrun_process_rank

    process = read_torchrun_process_rank()
    try:
        return _evaluate_and_report_flow_or_scans(args, process)
    finally:
        leave_process_group(process)


def _evaluate_and_report_flow_or_scans(args: argparse.Namespace, process: ProcessRank) -> int:
    if args.method in evaluate_scans.METHODS:
        weights = methods.get_parameter_option_value_if_used(args, "--weights") if args.method == "learned" else None
        others = (option for option in _list_used_flow_only_options(args) if weights is None or option != "--weights")
        evaluate_scans.refuse_options_if_any(others, f"MODEL {args.method} registers point clouds")
        return evaluate_scans.run_command(args, process, weights)
    evaluate_scans.refuse_options_if_any(
        evaluate_scans.list_used_scan_options(args), f"MODEL {args.method} estimates flow"
    )
    from fullfield.estimators.cascaded import ReducedSizeEstimator, parse_scale, scale_size
    from fullfield.evaluation import EvaluationSettings, evaluate, score, write_submission
    from fullfield.evaluation.predict import get_submission_layout_or_raise, record_failure_if_memory_runs_out
    from fullfield.evaluation.run import PredictionRun
    from fullfield.evaluation.sharing import wait_for_all_processes

    dataset = open_dataset_argument(args.dataset, "NAME:FOLDER")
    choice = methods.choose_method(args)
    with rename_arguments_in_errors(scale="--scale"):
        scale = parse_scale(args.scale)
    if args.max_epe is not None and all(record.flow is None for record in dataset.records):
        raise InputError(f"--max-epe: {dataset.name} has no truth")
    if args.submission is not None:
        get_submission_layout_or_raise(dataset)
        paths.check_folder_creatable_and_remove_temporaries(args.submission, "--submission")
    folder = Path(args.output or format_default_run_folder(dataset, args.method, scale))
    paths.check_folder_creatable_and_remove_temporaries(os.fspath(folder), "--output")
    if not args.score_only:
        PredictionRun.check_folder_is_new_or_run(folder)  # before weights are downloaded and kernels compiled

    first = process.rank == 0
    quiet = args.quiet or not first
    words = {**methods.map_arguments_to_options(args.method), "initial_flow": "--warm-start"}
    with ProgressBar("evaluate", quiet=quiet) as progress, rename_arguments_in_errors(**words):
        device = _set_and_return_local_rank_device(args.device, choice.device)
        settings = EvaluationSettings(
            device=device, warm_start=args.warm_start, sequential=args.sequential, process=process
        )
        if args.score_only:
            result = score(
                dataset,
                _check_options_and_load_run_to_score(args, folder, scale),
                averaging=args.averaging,
                settings=settings,
            )
        else:
            choice = replace(choice, device=settings.device)
            if not first:
                wait_for_all_processes(process)  # the first process downloads the weights and compiles for all
            estimator = choice.estimator if scale == 1 else ReducedSizeEstimator(choice.estimator, scale)
            height, width = dataset.read_frame(dataset.records[0].frame1).shape[-2:]
            with record_failure_if_memory_runs_out(estimator, dataset, folder, settings):
                choice.load_weights_and_kernels(
                    scale_size((height, width), scale), progress.start_span_and_build_callback(*_FETCH), quiet=quiet
                )
            if first:
                wait_for_all_processes(process)
            settings = replace(settings, progress=progress.start_span_and_build_callback(*_ESTIMATE))
            result = evaluate(estimator, dataset, folder, settings, averaging=args.averaging)
    if not first:
        return 0
    run = PredictionRun.load(folder)
    files = [] if args.submission is None else write_submission(dataset, run, args.submission)
    _print_report(args, folder, result, len(files), title=choice.title)
    return (
        0
        if result["scores"] is None
        else print_exceeded_max_epe_and_return_code(result["scores"]["epe"], args.max_epe, "evaluate")
    )


def _list_used_flow_only_options(args: argparse.Namespace) -> list[str]:
    """Return the options on the command line that only flow has."""
    usual = {"preset": DEFAULT_PRESET, "backend": None, "scale": "1", "warm_start": False, "sequential": False}
    usual |= {"averaging": "pooled", "max_epe": None, "submission": None}
    names = report.map_arguments_to_options(args)
    return [
        *methods.list_used_parameter_options(args),
        *(names[name] for name, value in usual.items() if getattr(args, name) != value),
    ]


def open_dataset_argument(text: str, option: str) -> FlowDataset:
    """Open the data set ``NAME:FOLDER``."""
    from fullfield.datasets import DATASETS, SCANS, open_dataset

    name, colon, folder = text.partition(":")
    if name in SCANS and name not in DATASETS:
        models = " or ".join(evaluate_scans.METHODS)
        raise InputError(
            f"{option}: {name} has pairs of point clouds, which 'fullfield evaluate' takes with MODEL {models}"
        )
    if not (colon and folder and name in DATASETS):
        hint = format_did_you_mean_hint(name, [*DATASETS])
        raise InputError(f"{option}: expected NAME:FOLDER with NAME one of {', '.join(DATASETS)}, got {text!r}{hint}")
    return open_dataset(name, Path(folder).expanduser())


def format_default_run_folder(dataset: FlowDataset, method: str, scale: Any) -> str:
    """Return the default folder of a run, by data set, method and scale."""
    tail = "" if scale == 1 else f"-{scale.numerator}of{scale.denominator}"
    return f"runs/{dataset.name}/{method.replace(':', '-')}{tail}"


def _set_and_return_local_rank_device(requested: str, resolved: str) -> str:
    """Return the device ``resolved``; without an index in the request each of several processes takes its own GPU."""
    local = os.environ.get("LOCAL_RANK")
    if requested not in ("auto", "cuda") or not resolved.startswith("cuda") or local is None:
        return resolved
    import torch

    from fullfield import _check

    device = f"cuda:{local}"
    torch.cuda.set_device(_check.resolve_available_device(device))
    return device


def _check_options_and_load_run_to_score(args: argparse.Namespace, folder: Path, scale: Any) -> PredictionRun:
    """Return the stored run to score; InputError if it is of another method or an option of estimation is given."""
    from fullfield._ledger.notes import check_entry_kinds
    from fullfield.evaluation.run import CONFIG, PredictionRun

    estimation = [("--backend", args.backend), ("--warm-start", args.warm_start), ("--sequential", args.sequential)]
    options = [*methods.list_used_parameter_options(args), *(option for option, value in estimation if value)]
    if options:
        raise InputError(f"{options[0]}: nothing is estimated with --score-only; leave it out")
    if not folder.is_dir():
        raise InputError(f"--score-only: {folder} holds no run; name its folder with --output")
    run = PredictionRun.load(folder)
    check_entry_kinds(run.folder / CONFIG, run.config, method="text", parameters="object", dataset="object")
    stored = (run.config["method"], str(run.config["parameters"].get("scale", 1)))
    if stored != (args.method, str(scale)):
        raise InputError(f"{folder}: holds {stored[0]} at scale {stored[1]}, not {args.method} at {scale}")
    return run


def _format_network_lines_if_has_weights(parameters: dict[str, Any]) -> list[str]:
    """Return a line with weights, updates and precision of a run's network; none for a method without weights."""
    weights = parameters.get("weights")
    if weights is None:
        return []
    text = f"weights {report.escape_control_characters(str(weights))}"
    checksum, updates = parameters.get("weights_sha256"), parameters.get("updates")
    if checksum is not None:
        text += f" (sha256 {report.escape_control_characters(str(checksum))}...)"
    if updates is not None:
        max_updates = parameters.get("max_updates")
        count = updates if max_updates is None else f"{updates} to {max_updates}"
        text += f", {count} {'update' if count == 1 else 'updates'} a pair"
    if "precision" in parameters:
        text += f", precision {report.escape_control_characters(str(parameters['precision']))}"
    return [text]


def _print_report(args: argparse.Namespace, folder: Path, result: dict[str, Any], files: int, *, title: str) -> None:
    stored = result["config"]["dataset"]
    name, backends = report.escape_control_characters(stored["name"]), ", ".join(result["backends"])
    pair_count = report.format_count(stored["pairs"], "pair")
    lines = [f"{report.escape_control_characters(folder)}: {title} on {name}, {pair_count} ({backends})"]
    lines += _format_network_lines_if_has_weights(result["config"]["parameters"])
    if result["scores"] is not None:
        lines += format_score_lines(result["scores"], result["averaging"])
    runtime = result["runtime"]
    lines.append(
        f"{'runtime':<14}{runtime['median_s']:>10.4f} {'s':<8} a pair, median; {runtime['min_s']:.4f} to "
        f"{runtime['max_s']:.4f}"
    )
    if result["peak_bytes"] is not None:
        lines.append(f"{'peak memory':<14}{result['peak_bytes'] / 2**30:>10.3f} {'GiB':<8} of the GPU")
    work = result.get("this_call")
    if work is not None and work["reused"]:
        pairs = "pair has its" if work["reused"] == 1 else "pairs have their"
        lines.append(
            f"{work['reused']} {pairs} stored flow from an earlier call; give another folder with -o to estimate again"
        )
    if work is not None and work["estimated"]:
        lines.append(f"{'utilisation':<14}{100 * work['utilisation']:>10.1f} {'%':<8} of the time spent estimating")
    if files:
        lines.append(
            f"{report.escape_control_characters(args.submission)}: {report.format_count(files, 'file')} to submit"
        )
    properties = {"run": str(folder), "dataset": args.dataset, **result, "submission": args.submission, "files": files}
    report.print_report(args, properties, "\n".join(lines))
