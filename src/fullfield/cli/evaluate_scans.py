"""Part of ``fullfield evaluate`` that registers pairs of point clouds."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError, format_did_you_mean_hint
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors

if TYPE_CHECKING:
    from fullfield.datasets.scans import RegistrationCriteria, ScanDataset
    from fullfield.evaluation.run import ScanRun
    from fullfield.evaluation.sharing import ProcessRank

METHODS = ("fpfh", "learned")
PROTOCOLS = ("pointcnnpp",)
_DEST = "scans "
_SAMPLES = 5000
_SETTINGS = {"samples": "samples", "voxel": "voxel", "seed": "seed", "ransac": "iterations"}  # option: argument
_CRITERIA = ("max_rre", "max_rte", "max_rmse", "inlier_distance", "inlier_ratio")


def _parse_sample_counts(text: str) -> tuple[int, ...]:
    counts = tuple(argtypes.parse_positive_integer(word) for word in text.split(","))
    if min(counts) < 3:
        raise argparse.ArgumentTypeError(f"expected numbers of at least 3, got {text!r}")
    if len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"expected different numbers, got {text!r}")
    return counts


_OPTIONS: tuple[tuple[str, Any, str, str], ...] = (
    ("--samples", _parse_sample_counts, "N,...", f"largest number of matches; one run for each number [{_SAMPLES}]"),
    ("--voxel", argtypes.parse_positive_number, "X", "edge of a voxel, in the clouds' units [auto]"),
    ("--seed", argtypes.parse_nonnegative_integer, "N", "seed of the random draws [0]"),
    ("--ransac", argtypes.parse_positive_integer, "N", "number of triples that RANSAC draws [50000]"),
    ("--max-rre", argtypes.parse_positive_number, "DEG", "rotation error limit of a registered pair [KITTI: 5]"),
    ("--max-rte", argtypes.parse_positive_number, "M", "translation error limit of a registered pair [KITTI: 2]"),
    ("--max-rmse", argtypes.parse_positive_number, "M", "RMSE limit of a registered pair [3DMatch: 0.2]"),
    (
        "--inlier-distance",
        argtypes.parse_positive_number,
        "M",
        "largest error of a good match [3DMatch 0.1, KITTI 0.6]",
    ),
    (
        "--inlier-ratio",
        argtypes.parse_positive_number,
        "X",
        "share of good matches above which the features of a pair match [0.05]",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of registration; without one on the command line its name is not in the result."""
    search = parser.add_argument_group(f"registration of point clouds (MODEL {', '.join(METHODS)})")
    for option, kind, metavar, words in _OPTIONS:
        dest = _DEST + option[2:].replace("-", "_")
        search.add_argument(option, dest=dest, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=words)
    words = "a paper's numbers of matches and limits, for RANSAC alone and the whole pipeline"
    search.add_argument("--protocol", dest=f"{_DEST}protocol", choices=PROTOCOLS, default=argparse.SUPPRESS, help=words)


def list_used_scan_options(args: argparse.Namespace) -> list[str]:
    """Return the options of registration on the command line."""
    return ["--" + dest.removeprefix(_DEST).replace("_", "-") for dest in vars(args) if dest.startswith(_DEST)]


def refuse_options_if_any(options: Iterable[str], reason: str) -> None:
    """Raise InputError for the first of ``options``."""
    for option in options:
        raise InputError(f"{option}: {reason}; leave it out")


def run_command(args: argparse.Namespace, process: ProcessRank, weights: str | None = None) -> int:
    """Register what is missing, score and report.

    ``weights`` is the file of MODEL learned; None for the published one.
    """
    from fullfield.evaluation import EvaluationSettings, Registrar, evaluate_scans, score_scans
    from fullfield.evaluation.scans import PROTOCOLS as KNOWN_PROTOCOLS

    dataset = _open_scans_argument(args.dataset)
    if args.device not in ("auto", "cpu"):
        raise InputError(f"--device: expected cpu, where point clouds are registered, got {args.device!r}")
    options = {dest.removeprefix(_DEST): value for dest, value in vars(args).items() if dest.startswith(_DEST)}
    if args.score_only:
        refuse_options_if_any(
            (f"--{name}" for name in ("voxel", "seed", "ransac") if name in options), "--score-only registers nothing"
        )
    if options.get("inlier_ratio", 0.0) >= 1.0:
        raise InputError(f"--inlier-ratio: expected a share below 1, got {options['inlier_ratio']:g}")
    learned = args.method == "learned"
    if learned and args.score_only:
        refuse_options_if_any(["--weights"] if weights is not None else [], "--score-only registers nothing")
    elif learned and weights is None:
        from fullfield.registration.learned import fetch_published_descriptor_file

        weights = os.fspath(fetch_published_descriptor_file())
    elif weights is not None:
        paths.check_input_file(weights, "--weights")
    protocol = options.get("protocol")
    usual = dataset.criteria if protocol is None else KNOWN_PROTOCOLS[protocol].choose_criteria(dataset)
    criteria = _override_criteria_and_reset_other_limits(usual, options)
    folder = Path(args.output or f"runs/{dataset.name}/{args.method}")
    paths.check_folder_creatable_and_remove_temporaries(os.fspath(folder), "--output")
    arguments = {name: options[option] for option, name in _SETTINGS.items() if option in options}
    results = {}
    with (
        ProgressBar("evaluate", quiet=args.quiet or process.rank > 0) as progress,
        rename_arguments_in_errors(iterations="--ransac", voxel="--voxel", seed="--seed", weights="--weights"),
    ):
        if protocol is None:
            counts = arguments.pop("samples", (_SAMPLES,))
            registrars = [Registrar(samples=samples, weights=weights, **arguments) for samples in counts]
        else:
            counts = arguments.pop("samples", None)
            registrars = KNOWN_PROTOCOLS[protocol].build_ransac_and_full_registrars(
                sample_counts=counts, weights=weights, **arguments
            )
        for at, method in enumerate(registrars):
            settings = EvaluationSettings(
                process=process,
                progress=progress.start_span_and_build_callback(at / len(registrars), (at + 1) / len(registrars)),
            )
            run_folder = folder / method.run_name
            if args.score_only:
                stored = _load_run_and_check_method(run_folder, args.method)
                results[run_folder] = score_scans(dataset, stored, criteria=criteria, settings=settings)
            else:
                results[run_folder] = evaluate_scans(method, dataset, run_folder, settings, criteria=criteria)
    if process.rank == 0:
        _print_results(args, folder, results)
    return 0


def _load_run_and_check_method(folder: Path, method: str) -> ScanRun:
    """Load the run to score again, which must be of this method."""
    from fullfield.evaluation.run import ScanRun

    if not folder.is_dir():
        raise InputError(
            f"--score-only: there is no run in {folder}; name its parent with --output, its number with --samples"
        )
    run = ScanRun.load(folder)
    if run.config.get("method") != method:
        raise InputError(f"{folder}: holds {run.config.get('method')}, not {method}")
    return run


def _open_scans_argument(text: str) -> ScanDataset:
    from fullfield.datasets import SCANS, open_scans

    name, colon, folder = text.partition(":")
    if not (colon and folder and name in SCANS):
        hint = format_did_you_mean_hint(name, [*SCANS])
        raise InputError(
            f"NAME:FOLDER: expected NAME one of {', '.join(SCANS)}, which are pairs of point clouds, got {text!r}{hint}"
        )
    return open_scans(name, Path(folder).expanduser())


def _override_criteria_and_reset_other_limits(
    default_criteria: RegistrationCriteria, options: dict[str, Any]
) -> RegistrationCriteria:
    """Return the usual criteria, changed: a limit on the command line replaces all limits, the rest one value each."""
    changes = {name: options[name] for name in _CRITERIA if name in options}
    if any(name.startswith("max_") for name in changes):
        changes = {**dict.fromkeys(("max_rre", "max_rte", "max_rmse")), **changes}
    return dataclasses.replace(default_criteria, **changes)


_COLUMNS = (
    ("rr", "RR %", 100.0, ".1f"),
    ("rr_pairs", "of pairs", 100.0, ".1f"),
    ("fmr", "FMR %", 100.0, ".1f"),
    ("ir", "IR %", 100.0, ".1f"),
    ("rre", "RRE °", 1.0, ".3f"),
    ("rte", "RTE m", 1.0, ".3f"),
    ("accepted", "accepted %", 100.0, ".1f"),
    ("wrong", "wrong %", 100.0, ".1f"),
)


def _print_results(args: argparse.Namespace, folder: Path, results: dict[Path, dict[str, Any]]) -> None:
    runs = [
        {"run": str(path), **{key: value for key, value in result.items() if key != "pairs"}}
        for path, result in results.items()
    ]
    scores = runs[0]["scores"]
    pair_counts = f"{report.format_count(scores['pairs'], 'pair')}, {scores['counted']} of them count for RR, RRE, RTE"
    lines = [
        f"{report.escape_control_characters(folder)}: {args.method}, {pair_counts}",
        f"{'#samples':<12}" + "".join(f"{title:>11}" for _, title, _, _ in _COLUMNS) + f"{'s a pair':>11}",
    ]
    for result in runs:
        cells = (f"{times * result['scores'][key]:>11{spec}}" for key, _, times, spec in _COLUMNS)
        parameters = result["config"]["parameters"]
        label = f"{parameters['samples']}{' RANSAC' if parameters.get('ransac_only') else ''}"
        lines.append(f"{label:<12}" + "".join(cells) + f"{result['runtime']['median_s']:>11.2f}")
    limits = ", ".join(f"{name} {limit:g}" for name, limit in runs[0]["criteria"].items() if limit is not None)
    lines.append(f"counts as registered, or as a match: {limits}")
    report.print_report(args, {"dataset": args.dataset, "runs": runs}, "\n".join(lines))
