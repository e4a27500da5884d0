"""Training a descriptor of points, and its losses."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.io.pointcloud import check_and_orthonormalize_pose
from fullfield.ops.devices import AUTO, resolve_device
from fullfield.registration import LearnedDescriptor, read_pose
from fullfield.registration.descriptors import Floats
from fullfield.registration.learned import fetch_published_descriptor_file
from fullfield.registration.learned_network import DescriptorNetwork
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import take_finite_points
from fullfield.training.batches import (
    DescriptorExample,
    ExampleExecutor,
    compute_pair_descriptors,
    iterate_batches,
    submit_validation_pairs,
)
from fullfield.training.checkpoint import DivergedError, FiniteStateCheck, TrainingFolder, restore_run_if_any
from fullfield.training.config import DescriptorTraining


def contrastive_loss(
    first: Tensor,  # [A, C], of length 1
    second: Tensor,  # [B, C], of length 1
    matches: Tensor,  # [K, 2] int64: rows that are the same place
    moved_first_points: Tensor,  # [A, 3]: the places of ``first`` in the frame of ``second``
    second_points: Tensor,  # [B, 3]
    *,
    temperature: float = 0.07,
    exclusion_radius: float = 2.0,
) -> Tensor:
    """Return the InfoNCE loss in both directions (van den Oord, Li, Vinyals, 2018), a scalar.

    Each match competes with all points of the other cloud, except those within ``exclusion_radius`` of the true place,
    which are neither right nor wrong.

    Raises:
        InputError: for shapes that do not fit, no match, a temperature or ``exclusion_radius`` that is not above 0.
    """
    _check.check_tensor(first, "first", ("A", "C"))
    _check.check_tensor(second, "second", ("B", first.shape[1]))
    _check.check_tensor(matches, "matches", ("K", 2), dtypes=(torch.int64,))
    _check.require(len(matches) > 0, "matches", "at least one", matches)
    _check.check_tensor(moved_first_points, "moved_first_points", (first.shape[0], 3))
    _check.check_tensor(second_points, "second_points", (second.shape[0], 3))
    _check.check_number(temperature, "temperature", above=0.0)
    _check.check_number(exclusion_radius, "exclusion_radius", above=0.0)
    rows, columns = matches[:, 0], matches[:, 1]
    forth = _compute_one_way_infonce_loss(
        first[rows], second, columns, moved_first_points[rows], second_points, temperature, exclusion_radius
    )
    back = _compute_one_way_infonce_loss(
        second[columns], first, rows, second_points[columns], moved_first_points, temperature, exclusion_radius
    )
    return (forth + back) / 2


def _compute_one_way_infonce_loss(
    anchors: Tensor,
    others: Tensor,
    matching_rows: Tensor,
    anchor_points: Tensor,
    other_points: Tensor,
    temperature: float,
    exclusion_radius: float,
) -> Tensor:
    similarities = anchors @ others.T / temperature
    is_neutral = torch.cdist(anchor_points, other_points) < exclusion_radius
    is_neutral[torch.arange(len(matching_rows), device=matching_rows.device), matching_rows] = False
    return torch.nn.functional.cross_entropy(similarities.masked_fill(is_neutral, -torch.inf), matching_rows)


@torch.no_grad()
def compute_mutual_match_precision(
    first: Tensor, second: Tensor, moved_first_points: Tensor, second_points: Tensor, *, max_distance: float = 2.0
) -> float:
    """Return the share of mutual nearest descriptors within ``max_distance``; shapes as in :func:`contrastive_loss`.

    NaN without any.
    """
    with torch.autocast(first.device.type, enabled=False):
        similarities = first @ second.T
    forth, back = similarities.argmax(1), similarities.argmax(0)
    rows = torch.arange(len(first), device=first.device)
    rows = rows[back[forth] == rows]
    return float(((moved_first_points[rows] - second_points[forth[rows]]).norm(dim=1) <= max_distance).double().mean())


Progress = Callable[[float, str], None]

_VALIDATION_PAIRS = 8  # pairs
_LONGEST = 1.0  # of a step's gradient
_MIN_POINTS = 1000


class DescriptorRow(NamedTuple):
    """Row of the history, written at a checkpoint."""

    step: int
    loss: float  # mean since the row before
    precision: float  # share of mutual matches that are right, on pairs that no step sees
    seconds: float  # of training so far


class TrainedDescriptor(NamedTuple):
    """Result of :func:`train_descriptor`."""

    descriptor: LearnedDescriptor
    history: list[DescriptorRow]


# Whatever mode the caller is in.
@torch.inference_mode(False)
@torch.enable_grad()
@torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def train_descriptor(
    folder: str | os.PathLike[str],
    training: DescriptorTraining | None = None,
    clouds: Sequence[Any] = (),
    posed_pairs: Sequence[tuple[Any, Any, Any]] = (),
    *,
    device: str | torch.device = AUTO,
    workers: int = 1,
    checkpoint_every: int = 500,
    progress: Progress | None = None,
) -> TrainedDescriptor:
    """Train a descriptor on pairs cut from ``clouds`` and from synthetic scenes; a stopped run continues.

    On the CPU the same configuration gives the same weights, bit for bit, with any stops and any number of workers,
    unless it says ``seconds``.

    Args:
        folder: see :class:`~fullfield.training.checkpoint.TrainingFolder`.
        training: the configuration.
        clouds: files, arrays or tensors [N, 3], clouds; of any unit each, at least 1000 finite points.
        posed_pairs: tuples of two clouds of one place and the transform from the first into the second: a 4×4 or its
            file. One part is cut from each cloud.
        device: of the network; ``"auto"`` is the first GPU with kernels, else the CPU. Pairs are cut on the CPU.
        workers: that cut pairs: a thread, or so many processes.
        checkpoint_every: steps between checkpoints.
        progress: called with the done share and a line.

    Raises:
        InputError: for what cannot be used, a folder of another run, or a loss that is not finite.

    >>> trained = train_descriptor("runs/descriptor", clouds=["a.ply", "b.ply"])  # doctest: +SKIP
    >>> trained.descriptor.save("descriptor.safetensors")  # doctest: +SKIP
    """
    _check.convert_path_to_text(folder, "folder")
    training = training or DescriptorTraining()
    target_device = resolve_device(device)
    _check.check_number(workers, "workers", integer=True, low=1, high=1024)
    _check.check_number(checkpoint_every, "checkpoint_every", integer=True, low=1)
    real: list[tuple[Floats, Floats | None]] = [
        (_load_finite_points(value, f"clouds[{number}]"), None) for number, value in enumerate(clouds)
    ]
    for number, (source, target, pose) in enumerate(posed_pairs):
        name = f"posed_pairs[{number}]"
        truth = (
            read_pose(pose)
            if isinstance(pose, (str, os.PathLike))
            else check_and_orthonormalize_pose(pose, f"{name}[2]")
        )
        aligned = apply_transform(truth, _load_finite_points(source, f"{name}[0]"))
        real.append((aligned, _load_finite_points(target, f"{name}[1]")))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(training.seed)
        model = DescriptorNetwork(training.descriptor)
    descriptor = LearnedDescriptor(model)
    descriptor.encode_as_safetensors()  # a network that is too large is refused before it is trained
    settings = training.as_dict()
    del settings["start"]  # the file's checksum counts, not its path
    recipe: dict[str, Any] = {"training": settings}
    if training.start is not None:
        recipe["start"] = _load_initial_weights_and_get_checksum(
            model, fetch_published_descriptor_file() if training.start == "learned" else Path(training.start)
        )
    digests = [[_get_point_count_and_checksum(points) for points in pair if points is not None] for pair in real]
    training_folder = TrainingFolder(folder, {**recipe, "clouds": digests}, DescriptorRow)
    model.to(target_device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    check = FiniteStateCheck({"model": model}, optimizer)
    checkpoint = restore_run_if_any(training_folder.folder, {"model": model}, optimizer, DescriptorRow)
    history: list[DescriptorRow] = [] if checkpoint is None else checkpoint.history
    if history:
        training_folder.write_history(history)  # a stop may have kept it and the weights from being written
        descriptor.save(training_folder.weights_path)
    first = history[-1].step if history else 0
    before = history[-1].seconds if history else 0.0
    step, fraction = first, training.compute_completed_fraction(first, before)
    if fraction >= 1.0:
        model.eval()
        return TrainedDescriptor(descriptor, history)
    started, losses = time.perf_counter(), list[float]()
    with closing(ExampleExecutor(training, real, workers)) as cutter:
        coming = submit_validation_pairs(cutter, _VALIDATION_PAIRS)
        cut = iterate_batches(training, cutter, first, target_device)
        while fraction < 1.0:
            losses.append(_train_step_and_get_loss(model, optimizer, training, step, fraction, next(cut)))
            seconds, step = before + time.perf_counter() - started, step + 1
            fraction = training.compute_completed_fraction(step, seconds)
            if progress is not None:
                progress(fraction, f"step {step}, loss {losses[-1]:.3f}")
            if step % checkpoint_every == 0 or fraction >= 1.0:
                check(step)
                unseen = [pair.result().to(target_device) for pair in coming]
                history.append(
                    DescriptorRow(
                        step,
                        statistics.fmean(losses),
                        _compute_mean_mutual_match_precision(model, unseen, training.reach),
                        seconds,
                    )
                )
                losses.clear()
                training_folder.save_checkpoint_and_remove_older({"model": model}, optimizer, history)
                descriptor.save(training_folder.weights_path)
    model.eval()
    return TrainedDescriptor(descriptor, history)


def _load_initial_weights_and_get_checksum(model: DescriptorNetwork, file: Path) -> str:
    """Load the weights of another descriptor; return the beginning of the file's checksum."""
    start = LearnedDescriptor.load(file)
    mine, other = model.config, start.config
    is_compatible = (mine.channels, mine.layers) == (other.channels, other.layers) and mine.scales >= other.scales
    expected = f"weights of {mine.channels} channels, {mine.layers} layers and at most {mine.scales} scales"
    actual = f"{other.channels} channels, {other.layers} layers, {other.scales} scales in {file}"
    _check.require(is_compatible, "start", expected, actual)
    model.load_state_dict(model.state_dict() | start.model.state_dict())
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _train_step_and_get_loss(
    model: DescriptorNetwork,
    optimizer: torch.optim.Optimizer,
    training: DescriptorTraining,
    step: int,
    completed_fraction: float,
    examples: list[DescriptorExample],
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = training.compute_learning_rate(completed_fraction)
    losses = [
        contrastive_loss(
            *pair,
            seen.matches,
            seen.moved_source_points,
            seen.target_points,
            temperature=training.temperature,
            exclusion_radius=training.reach,
        )
        for seen, pair in zip(examples, compute_pair_descriptors(model, examples), strict=True)
    ]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), _LONGEST)
    optimizer.step()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DivergedError(
            f"learning_rate: the loss is not finite at step {step + 1}; take less than {training.learning_rate}"
        )
    return value


@torch.no_grad()
def _compute_mean_mutual_match_precision(
    model: DescriptorNetwork, validation_examples: Sequence[DescriptorExample], max_distance: float
) -> float:
    """Return the mean share of mutual matches that are right; a pair without any counts as 0."""
    model.eval()
    pairs = [compute_pair_descriptors(model, [pair])[0] for pair in validation_examples]
    model.train()
    precisions = [
        compute_mutual_match_precision(*pair, seen.moved_source_points, seen.target_points, max_distance=max_distance)
        for seen, pair in zip(validation_examples, pairs, strict=True)
    ]
    return statistics.fmean(0.0 if math.isnan(value) else value for value in precisions)


def _load_finite_points(points_or_file: Any, name_in_errors: str) -> Floats:
    return take_finite_points(
        points_or_file,
        os.fspath(points_or_file) if isinstance(points_or_file, (str, os.PathLike)) else name_in_errors,
        _MIN_POINTS,
    )


def _get_point_count_and_checksum(points: Floats) -> dict[str, Any]:
    return {"points": len(points), "sha256": hashlib.sha256(points.tobytes()).hexdigest()[:16]}
