"""A network of optical flow, for fullfield flow.

Train a network of optical flow on synthetic pairs, on data sets, or on mixtures of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError, format_did_you_mean_hint
from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.options import add_config_options
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.models.weights import build_random_model, load_weights
from fullfield.training.flow.config import MIXTURE, FlowTraining, SceneStyle

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fullfield.models import RAFT, SEARAFT
    from fullfield.training.flow import FlowValidation
    from fullfield.training.flow.batch import PairSource
    from fullfield.training.flow.layered import PictureAtlas
    from fullfield.training.flow.pictures import PicturePack

_SYNTHETIC = "synthetic"
_AUGMENTATIONS = ("usual", "colour", "none")
_VALIDATION_SEED = 1_000_003  # added to the seed of pairs that validate
_ENDLESS = 10**9  # steps of a run that is limited by minutes alone
_STEPS = 100_000
_GPU_WORKERS = 2  # draw scenes faster than a GPU trains on them
_SOURCE_PATTERN = re.compile(r"(?P<name>[^:=]+)(:(?P<folder>.+?))?(=(?P<weight>[0-9.]+([eE][+-]?[0-9]+)?))?")

EPILOG = """\
examples:
  fullfield train flow -o runs/mine --network fullfield-s --batch 32 --minutes 30 --device cuda
  fullfield train flow -o runs/tuned --network raft --init raft-things --data sintel-final:/data/sintel synthetic=0.3
  fullfield train flow -o runs/limbs --network fullfield-s --init fullfield-s --data synthetic=0.5 synthetic-figures=0.5
  fullfield train flow -o runs/large --network fullfield-s --after runs/mine --size 960x432 --minutes 30 --device cuda
  torchrun --nproc-per-node 4 -m fullfield train flow -o runs/four --network raft-small --batch 64 --device cuda
  fullfield flow a.png b.png -o flow.flo --method fullfield-s --weights runs/mine/weights.safetensors

The same command continues a run that was stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield train flow``."""
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder of the run")
    parser.add_argument("--network", metavar="NAME", required=True, help="fullfield-s, raft, sea-raft-s ...")
    _add_start_options(parser.add_argument_group("start"))
    _add_data_options(parser.add_argument_group("data"))
    _add_training_options(parser.add_argument_group("training"))
    _add_run_options(parser.add_argument_group("run"))
    report.add_report_options(parser, has_quiet_option=True)


def _add_start_options(group: Any) -> None:
    group.add_argument("--init", metavar="WEIGHTS", help="initial weights: a file or a published name [random]")
    group.add_argument("--after", metavar="FOLDER", help="continue from another run, with a new schedule")
    group.add_argument("--correlation", metavar="BACKEND", help="backend of the correlation lookup [automatic]")


def _add_data_options(group: Any) -> None:
    mixture = [f"{_SYNTHETIC}-{style}={weight:g}" for style, weight in MIXTURE.items()]
    group.add_argument(
        "--data",
        nargs="+",
        default=mixture,
        metavar="NAME[:FOLDER][=WEIGHT]",
        help="synthetic, synthetic-STYLE (usual, small, figures, bodies, meshes), or a data set and its folder, as "
        f"chairs-train:/data/chairs=0.3 [{' '.join(mixture)}]",
    )
    group.add_argument(
        "--size", type=argtypes.parse_wxh_as_height_width, default=(368, 496), help="size of the frames [496x368]"
    )
    group.add_argument("--pictures", metavar="PACK", help="picture pack of the synthetic pairs [procedural pictures]")
    group.add_argument(
        "--augment",
        choices=_AUGMENTATIONS,
        default="usual",
        help="augmentation of data sets; usual: place, scale, colour and eraser",
    )
    group.add_argument(
        "--enlarge",
        type=argtypes.parse_positive_number,
        default=1.0,
        metavar="X",
        help="half of the synthetic pairs are enlarged by up to X and cut; 1: none [1]",
    )
    group.add_argument(
        "--validate",
        nargs="+",
        default=[],
        metavar="NAME[:FOLDER]",
        help="synthetic pairs of another seed, or data sets",
    )
    group.add_argument(
        "--validation-pairs", type=argtypes.parse_positive_integer, default=64, help="highest number of pairs of each"
    )


def _add_training_options(group: Any) -> None:
    group.add_argument(
        "--steps", type=argtypes.parse_positive_integer, help=f"number of steps [{_STEPS}, or as --minutes allow]"
    )
    group.add_argument(
        "--minutes", type=argtypes.parse_positive_number, help="end after that time, with a complete schedule"
    )
    add_config_options(group, FlowTraining)
    group.add_argument(
        "--updates",
        type=argtypes.parse_update_count_or_range,
        metavar="N|LOW-HIGH",
        help="updates, or the range that each step draws from [12 for RAFT, else the network's own]",
    )
    group.add_argument(
        "--precision",
        default="auto",
        metavar="NAME",
        help="float32, bfloat16, float16 [bfloat16 on a GPU, float16 on one older than Ampere, float32 on the CPU]",
    )


def _add_run_options(group: Any) -> None:
    group.add_argument("--every", type=argtypes.parse_positive_integer, default=1000, help="steps between checkpoints")
    group.add_argument(
        "--validate-every", type=argtypes.parse_positive_integer, default=1, help="checkpoints between validations"
    )
    group.add_argument(
        "--pause",
        type=argtypes.parse_positive_number,
        metavar="MINUTES",
        help="leave the run after that time, to continue it later",
    )
    group.add_argument("--curves", action="store_true", help="draw FOLDER/curves.png at every checkpoint")
    group.add_argument("--tensorboard", action="store_true", help="write FOLDER/tensorboard")
    group.add_argument("--device", default="auto", metavar="NAME", help=methods.DEVICE_HELP)
    group.add_argument(
        "--workers",
        type=argtypes.parse_integer,
        metavar="N",
        help=f"processes for each part of --data; 0: this one does their work [{_GPU_WORKERS} on a GPU, else 0]",
    )
    group.add_argument("--threads", type=argtypes.parse_thread_count, help="CPU threads [all]")


def run_command(args: argparse.Namespace) -> int:
    """Check, train, report."""
    paths.check_folder_creatable_and_remove_temporaries(args.output, "--output")
    if args.after is not None and not Path(args.after).is_dir():
        raise InputError(f"--after {args.after}: no such folder")
    if args.init is not None and args.after is not None:
        raise InputError("--init: the weights come from --after; give one of the two")
    if args.pictures is not None:
        paths.check_input_file(args.pictures, "--pictures")
    if args.workers is not None and not 0 <= args.workers <= 1024:
        raise InputError(f"--workers: expected a number from 0 to 1024, got {args.workers}")

    from fullfield.training.flow import FlowRun, train_flow
    from fullfield.training.flow.curves import FlowRow
    from fullfield.training.flow.ranks import choose_rank_device, join_process_group_if_distributed
    from fullfield.training.flow.stepping import choose_training_precision

    methods.limit_cpu_threads_unless_none(args.threads)
    words = report.map_arguments_to_options(args) | {"seconds": "--minutes"}
    watch = report.Stopwatch()
    with rename_arguments_in_errors(**words):
        device = choose_rank_device(args.device)
        precision = choose_training_precision(device) if args.precision == "auto" else args.precision
        updates = 12 if args.updates is None and args.network.startswith("raft") else args.updates
        fields = {field.name for field in dataclasses.fields(FlowTraining)} - {"steps", "precision", "updates"}
        training = FlowTraining(
            steps=args.steps or (_STEPS if args.minutes is None else _ENDLESS),
            seconds=None if args.minutes is None else 60 * args.minutes,
            precision=precision,
            updates=updates,
            **{name: value for name, value in vars(args).items() if name in fields},
        )
    if training.graph and device.type != "cuda" and not args.quiet:
        report.print_note("--graph: nothing is recorded without a CUDA device")
    if args.workers is None:
        args.workers = _GPU_WORKERS if device.type == "cuda" else 0
    generators = _PairGeneratorFactory(args, device)
    model, source = _build_network_with_initial_weights(args, device), _build_pair_source(args, device, generators)
    run = FlowRun(
        checkpoint_every=args.every,
        pause_after_s=None if args.pause is None else 60 * args.pause,
        recipe=_build_training_recipe(args),
        **report.select_attributes(args, "validate_every", "after", "curves", "tensorboard"),
    )
    fixed = None if isinstance(training.updates, tuple) else training.updates
    validation = _build_validation_if_requested(args, generators, fixed)
    validate = None if validation is None else _wrap_validation_with_progress_bar(validation, quiet=args.quiet)

    def report_step(step: int) -> None:
        if not args.quiet:
            report.print_note(f"{args.output}: continues from step {step}")

    with (
        join_process_group_if_distributed(device) as team,
        _defer_first_ctrl_c(is_only_process=team.count == 1) as is_interrupted,
    ):
        with (
            ProgressBar("train", quiet=args.quiet or not team.is_first) as progress,
            rename_arguments_in_errors(**words),
            report.name_resume_step_in_interruption(args.output, FlowRow),
        ):
            run = dataclasses.replace(run, should_stop=is_interrupted, on_continue=report_step)
            trained = train_flow(args.output, model, source, training, run=run, validation=validate, progress=progress)
            if is_interrupted() and trained.completed < 1:
                raise KeyboardInterrupt
        watch.add_lap("train")
        if team.is_first:
            _print_report(args, device, training.as_dict(), trained, validation, watch)
    return 0


@contextlib.contextmanager
def _defer_first_ctrl_c(*, is_only_process: bool) -> Iterator[Callable[[], bool]]:
    """Return a function that reports the first Ctrl-C, which waits for the step; the second one interrupts at once.

    Several processes, which would have to agree on the step, are interrupted at once. A process that ignores Ctrl-C, as
    jobs in the background of a script do, goes on ignoring it.
    """
    interrupted = threading.Event()
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_only_process or not is_main_thread or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield interrupted.is_set
        return

    def note_interruption(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)
        with contextlib.suppress(RuntimeError):  # the signal may have come amid another line
            report.print_note("stores a checkpoint after this step; Ctrl-C again stops without one", kind="interrupted")

    before = signal.signal(signal.SIGINT, note_interruption)
    try:
        yield interrupted.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _wrap_validation_with_progress_bar(validation: FlowValidation, *, quiet: bool) -> Callable[[nn.Module], float]:
    """Return the validation with a progress bar of its own."""

    def validate(network: nn.Module) -> float:
        with ProgressBar("validate", quiet=quiet) as progress:
            return validation(network, progress=progress)

    return validate


def _build_network_with_initial_weights(args: argparse.Namespace, device: torch.device) -> RAFT | SEARAFT:
    """Return the network with the weights that training starts from."""
    import torch

    from fullfield.ops.correlation.protocol import BACKENDS
    from fullfield.training.checkpoint import check_tensors_finite

    with rename_arguments_in_errors(model="--network", backend="--correlation"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        model = build_random_model(args.network)
        if args.correlation is not None:
            _check.check_choice(args.correlation, "backend", BACKENDS)
            model.correlation = args.correlation
    if args.init is not None:
        with rename_arguments_in_errors(weights="--init", source="--init"):
            load_weights(model, args.init)
            check_tensors_finite(model.state_dict(), args.init)
    return model.to(device)


def _parse_data_name_folder_and_weight(
    text: str, option: str, *, can_have_weight: bool
) -> tuple[str, str | None, float]:
    """Read ``NAME[:FOLDER][=WEIGHT]``."""
    match = _SOURCE_PATTERN.fullmatch(text)
    if match is None or (match["weight"] is not None and not can_have_weight):
        pattern = "NAME[:FOLDER][=WEIGHT]" if can_have_weight else "NAME[:FOLDER]"
        raise InputError(f"{option} {text}: expected {pattern}, such as synthetic or chairs:/data/chairs")
    weight = 1.0
    if match["weight"] is not None:
        try:
            weight = argtypes.parse_positive_number(match["weight"])
        except argparse.ArgumentTypeError:
            raise InputError(f"{option} {text}: expected a weight > 0, got {match['weight']}") from None
    if match["folder"] is None and match["name"].partition("-")[0] not in (_SYNTHETIC, "made"):
        raise InputError(f"{option} {text}: a data set needs its folder, NAME:FOLDER")
    return match["name"], match["folder"], weight


def _parse_synthetic_style_name(name: str) -> str:
    """Return STYLE of ``synthetic-STYLE``, and the usual one of ``synthetic``."""
    return name.partition("-")[2] if "-" in name else "usual"


def _get_scene_style(name: str, option: str) -> SceneStyle:
    """Return the style of ``synthetic`` or ``synthetic-STYLE``."""
    with rename_arguments_in_errors(style=f"{option} {name}"):
        return SceneStyle.from_preset(_parse_synthetic_style_name(name))


def _open_dataset_in_folder(name: str, folder: str, option: str) -> Any:
    from fullfield.datasets import DATASETS, open_dataset

    if name not in DATASETS:
        hint = format_did_you_mean_hint(name, [*DATASETS])
        raise InputError(f"{option} {name}:{folder}: expected one of {', '.join(DATASETS)}, got {name!r}{hint}")
    return open_dataset(name, folder)


def _build_pair_source(
    args: argparse.Namespace, device: torch.device, create_generator: _PairGeneratorFactory
) -> PairSource:
    """Return the source of the pairs: one, or several by weight."""
    from fullfield.training.flow import Augmentation, AugmentedPairs, DatasetPairs, Mixture

    height, width = args.size
    usual = Augmentation.as_in_raft((height, width))
    if args.augment == "usual":
        augmentation = usual
        min_scale = augmentation.scale[0] * 2 ** (-augmentation.stretch / 2)
        window = (round(height / min_scale), round(width / min_scale))
    else:
        augmentation = Augmentation(colour=usual.colour, eraser=usual.eraser)
        window = (height, width)
    with rename_arguments_in_errors(scale="--enlarge"):
        enlargement = Augmentation((height, width), (1.0, args.enlarge), scaled=0.5)
    sources: list[tuple[PairSource, float]] = []
    seed = args.seed  # synthetic pairs of every part have their own
    for text in args.data:
        name, folder, weight = _parse_data_name_folder_and_weight(text, "--data", can_have_weight=True)
        source: PairSource
        if folder is None:
            source = create_generator(_get_scene_style(name, "--data"), seed, args.workers)
            if args.enlarge > 1:
                source = AugmentedPairs(source, enlargement, seed)
            seed += 1
        else:
            dataset = _open_dataset_in_folder(name, folder, "--data")
            source = DatasetPairs(
                dataset, window, min_size=args.size, seed=args.seed, device=device, workers=args.workers
            )
            if args.augment != "none":
                source = AugmentedPairs(source, augmentation, args.seed)
        sources.append((source, weight))
    return sources[0][0] if len(sources) == 1 else Mixture(sources)


class _PairGeneratorFactory:
    """Factory of generators of synthetic pairs, all with the same pictures."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self._args, self._device = args, device
        self._pictures: PicturePack | PictureAtlas | None = None

    def __call__(self, style: SceneStyle, seed: int, workers: int = 0) -> PairSource:
        from fullfield.training.flow.pairs import PairGenerator
        from fullfield.training.flow.pictures import load_or_create_picture_pack

        if self._pictures is None:
            if self._args.pictures is None and not self._args.quiet:
                report.print_note(
                    "drawing the pictures of synthetic pairs, which takes seconds; --pictures PACK has some"
                )
            self._pictures = load_or_create_picture_pack(self._args.pictures)
        how: dict[str, Any] = {"pictures": self._pictures, "style": style, "workers": workers}
        pairs = PairGenerator(self._args.size, seed=seed, device=self._device, **how)
        self._pictures = pairs.atlas
        return pairs


def _build_validation_if_requested(
    args: argparse.Namespace, create_generator: _PairGeneratorFactory, updates: int | None
) -> FlowValidation | None:
    """Return the validation; None without ``--validate``."""
    from fullfield.training.flow import FlowValidation

    sets: dict[str, Any] = {}
    for text in args.validate:
        name, folder, _ = _parse_data_name_folder_and_weight(text, "--validate", can_have_weight=False)
        if text in sets:
            raise InputError(f"--validate {text}: is given twice")
        if folder is None:
            sets[text] = create_generator(_get_scene_style(name, "--validate"), args.seed + _VALIDATION_SEED)
        else:
            sets[text] = _open_dataset_in_folder(name, folder, "--validate")
    return FlowValidation(sets, pairs=args.validation_pairs, updates=updates) if sets else None


def _build_training_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the weights besides the training's configuration."""
    data = [_parse_data_name_folder_and_weight(text, "--data", can_have_weight=True) for text in args.data]
    scenes = {_parse_synthetic_style_name(name) for name, folder, _ in data if folder is None}
    recipe: dict[str, Any] = {
        "network": args.network,
        "init": None,
        "data": args.data,
        "scenes": {name: vars(SceneStyle.from_preset(name)) for name in sorted(scenes)},
        "size": list(args.size),
        "pictures": None,
        "augment": args.augment,
        "enlarge": args.enlarge,
        "validate": args.validate,
        "validation_pairs": args.validation_pairs if args.validate else None,
    }
    if args.init is not None:
        recipe["init"] = {"name": args.init, "sha256": _compute_checksum_if_file(args.init)}
    if args.pictures is not None:
        recipe["pictures"] = {"name": Path(args.pictures).name, "sha256": _compute_checksum_if_file(args.pictures)}
    return recipe


def _compute_checksum_if_file(path: str) -> str | None:
    """Return the checksum of a file; None for the name of published weights."""
    from fullfield.models.downloads import compute_sha256

    return compute_sha256(Path(path)) if Path(path).is_file() else None


def _print_report(
    args: argparse.Namespace,
    device: torch.device,
    training: dict[str, Any],
    trained: Any,
    validation: FlowValidation | None,
    stopwatch: Any,
) -> None:
    last = trained.history[-1]
    weights = f"{args.output.rstrip('/')}/weights.safetensors"
    properties = {
        "output": args.output,
        "weights": weights,
        "recipe": {**_build_training_recipe(args), "training": training},
        "done": trained.completed,
        "history": [row._asdict() for row in trained.history],
        "validation": None if validation is None else validation.errors,
        "device": str(device),
        "seconds": stopwatch.get_stage_seconds(),
    }
    judged = "" if last.validation != last.validation else f", {last.validation:.3f} px in validation"
    left = "" if trained.completed >= 1 else f"; {1 - trained.completed:.0%} of the training is left"
    summary = "finished before, nothing was trained: " if trained.first_step == last.step else ""
    summary += (
        f"{last.step} steps in {last.seconds:.0f} s on {device}, loss {last.loss:.3f}, mean end-point error "
        f"{last.error:.3f} px in training{judged}{left}"
    )
    text = f"{report.escape_control_characters(weights)}: {summary}"
    if trained.completed >= 1:
        method = ("--method", args.network, "--weights", weights)
        text += report.format_next_command_unless_quiet(
            args, "fullfield", "flow", "a.png", "b.png", "-o", "flow.flo", *method
        )
    report.print_report(args, properties, text, has_peak_memory=True)
