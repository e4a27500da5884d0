"""Batches of pairs as tensors; which pairs a step gets depends only on the seed and its number."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.registration.descriptors import Floats
from fullfield.registration.learned import Levels, build_network_arguments, prepare_network_input_per_resolution
from fullfield.registration.learned_network import DescriptorNetwork
from fullfield.training.config import DescriptorTraining
from fullfield.training.pairs import sample_synthetic_scene_points, synthesize_overlapping_pair_if_possible
from fullfield.training.workers import create_worker_context_and_start_fork_server, ignore_sigint_and_exit_with_parent

Scenes = Sequence[tuple[Floats, Floats | None]]  # a cloud each, or two scans in one frame

_ATTEMPTS = 20
_SYNTHETIC_POINTS = 16  # a cell
_TRAINED, _VALIDATION, _ORDER = 0, 1, 2  # what a random stream is for, its first number


class DescriptorExample(NamedTuple):
    """Pair in the form that the network and the loss take."""

    source: Levels
    target: Levels
    moved_source_points: Tensor  # [A, 3] float32: the source's described points where the truth brings them
    target_points: Tensor  # [B, 3] float32: the target's
    matches: Tensor  # [K, 2] int64

    def to(self, device: torch.device) -> DescriptorExample:
        """Return the pair on a device."""
        source, target = self.source.to(device), self.target.to(device)
        return DescriptorExample(
            source, target, self.moved_source_points.to(device), self.target_points.to(device), self.matches.to(device)
        )


def generate_example(training: DescriptorTraining, scenes: Scenes, random_stream: tuple[int, ...]) -> DescriptorExample:
    """Return the pair of the random numbers ``random_stream``.

    Raises InputError where no pair can be cut from the clouds.
    """
    draw = np.random.default_rng((training.seed, *random_stream))
    synthetic = not scenes or random_stream[0] == _VALIDATION
    for _ in range(_ATTEMPTS):
        if synthetic or draw.random() < training.synthetic:
            pair = synthesize_overlapping_pair_if_possible(
                sample_synthetic_scene_points(draw, _SYNTHETIC_POINTS * training.cells), draw, training.cells
            )
        else:
            points, other = scenes[int(draw.integers(len(scenes)))]
            pair = synthesize_overlapping_pair_if_possible(points, draw, training.cells, other)
        if pair is None:
            continue
        matches = pair.matches
        if len(matches) > training.anchors:
            matches = matches[np.sort(draw.choice(len(matches), training.anchors, replace=False))]
        scales = training.descriptor.scales
        source, target = (
            prepare_network_input_per_resolution(side.points, side.described_rows, scales)
            for side in (pair.source, pair.target)
        )
        positions = pair.target.points[pair.target.described_rows]
        source_points, target_points = (
            torch.from_numpy(side_points.astype(np.float32))
            for side_points in (pair.source_descriptor_points_in_target, positions)
        )
        return DescriptorExample(source, target, source_points, target_points, torch.from_numpy(matches))
    raise InputError(f"clouds: expected some from which overlapping parts can be cut, got none in {_ATTEMPTS} attempts")


class ExampleExecutor:
    """Executor that cuts pairs: one thread or, for more than one worker, processes. To be closed."""

    def __init__(self, training: DescriptorTraining, scenes: Scenes, workers: int) -> None:
        self._pool: Executor
        if workers == 1:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="fullfield-cut")
            self._cut: Callable[[tuple[int, ...]], DescriptorExample] = partial(generate_example, training, scenes)
            return
        self._pool = ProcessPoolExecutor(
            workers,
            create_worker_context_and_start_fork_server(__name__),
            initializer=_initialize_worker_and_watch_parent,
            initargs=(training, scenes, multiprocessing.util.get_temp_dir()),
        )
        self._cut = _generate_example_in_worker

    def __call__(self, *stream: int) -> Future[DescriptorExample]:
        """Return a future of the pair of these random numbers."""
        return self._pool.submit(self._cut, stream)

    def close(self) -> None:
        """Stop; drop what has not begun."""
        self._pool.shutdown(cancel_futures=True)


_arguments: tuple[DescriptorTraining, Scenes]  # of a process that cuts pairs


def _initialize_worker_and_watch_parent(training: DescriptorTraining, scenes: Scenes, temporary_folder: str) -> None:
    global _arguments
    ignore_sigint_and_exit_with_parent(temporary_folder)
    _arguments = training, scenes
    torch.set_num_threads(1)


def _generate_example_in_worker(random_stream: tuple[int, ...]) -> DescriptorExample:
    return generate_example(*_arguments, random_stream)


def iterate_batches(
    training: DescriptorTraining, executor: ExampleExecutor, first_step: int, device: torch.device
) -> Generator[list[DescriptorExample], None, None]:
    """Yield the pairs of each step from ``first_step`` on, on ``device``.

    A block of pairs is shown ``reuse`` times, each time in another order, while the next block is cut.
    """
    size = training.block
    steps = size // training.pairs  # that show a block once
    cutting: deque[list[Future[DescriptorExample]]] = deque()

    def submit_block(block: int) -> None:
        cutting.append([executor(_TRAINED, number) for number in range(block * size, (block + 1) * size)])

    block, into = divmod(first_step, steps * training.reuse)
    submit_block(block)
    while block * steps * training.reuse < training.steps:
        submit_block(block + 1)
        futures = cutting.popleft()
        ready: dict[int, DescriptorExample] = {}
        for step in range(into, steps * training.reuse):
            order = np.arange(size)
            if step >= steps:
                draw = np.random.default_rng((training.seed, _ORDER, block, step // steps))
                order = draw.permutation(size)
            at = step % steps * training.pairs
            selected = order[at : at + training.pairs].tolist()
            for number in selected:
                if number not in ready:
                    ready[number] = futures[number].result().to(device)
            yield [ready[number] for number in selected]
        block, into = block + 1, 0


def submit_validation_pairs(executor: ExampleExecutor, count: int) -> list[Future[DescriptorExample]]:
    """Return futures of pairs of synthetic scenes that no step sees."""
    return [executor(_VALIDATION, number) for number in range(count)]


def compute_pair_descriptors(
    model: DescriptorNetwork, examples: Sequence[DescriptorExample]
) -> list[tuple[Tensor, Tensor]]:
    """Return the two descriptors [A, C], [B, C] of each pair; all clouds are one batch."""
    sides = [side for pair in examples for side in (pair.source, pair.target)]
    descriptors = model(*build_network_arguments(sides, gradient=torch.is_grad_enabled()))
    clouds = torch.split(descriptors, [len(side.inputs[0].points) for side in sides])
    return list(zip(clouds[::2], clouds[1::2], strict=True))
