"""Training loop of networks of flow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield.training.checkpoint import (
    POINTER,
    STATE,
    WEIGHTS,
    FiniteStateCheck,
    TrainingFolder,
    copy_state_dict,
    has_checkpoint,
    restore_run_if_any,
    write_safetensors,
)
from fullfield.training.flow.batch import FlowBatch, PairSource, check_batch, prefetch_batches_if_possible
from fullfield.training.flow.config import FlowTraining
from fullfield.training.flow.curves import (
    CURVES,
    FlowRow,
    TensorBoardWriter,
    require_matplotlib_figure_class,
    write_history_plot,
)
from fullfield.training.flow.ranks import Ranks, join_process_group_if_distributed
from fullfield.training.flow.stepping import StepMeans, TrainingStepper, build_divergence_error, raise_if_diverged

Progress = Callable[[float, str], None]
Validation = Callable[[nn.Module], float]
BEST = "best.safetensors"
_ENDED = 3  # steps in a row that are not finite when a checkpoint is due
_SETTLED = 3  # steps after which the pace of a process counts: the first ones compile


class BatchPrefetcher:
    """Batches of a source in order, of ``pair_count`` pairs; on a GPU a second stream makes the next one meanwhile."""

    def __init__(self, source: PairSource, pair_count: int, device: torch.device, ranks: Ranks) -> None:
        self._source, self._pair_count, self._device, self._ranks = source, pair_count, device, ranks
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._waiting: dict[int, FlowBatch] = {}
        self._announced: int | None = None

    def prefetch_batch(self, step: int) -> None:
        """Make the batch of a step; on a GPU, enqueue its work on the second stream."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._waiting = {step: self._fetch_checked_batch_on_device(step)}

    def take_or_fetch_batch(self, step: int) -> FlowBatch:
        """Return the batch of a step, ready for the device's current stream."""
        if step not in self._waiting:
            self.prefetch_batch(step)
        batch = self._waiting.pop(step)
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            for tensor in batch:
                tensor.record_stream(current)
        return batch

    def _fetch_checked_batch_on_device(self, step: int) -> FlowBatch:
        batch_index = step * self._ranks.count + self._ranks.rank
        if self._announced != step:
            prefetch_batches_if_possible(self._source, batch_index, self._ranks.count, lambda _: self._pair_count)
        self._announced = step + 1
        batch = self._source.batch(batch_index, self._pair_count)
        check_batch(batch)
        if batch.frame1.device != self._device:
            batch = batch.to(self._device, non_blocking=True)
        return batch


@dataclass(frozen=True)
class FlowRun:
    """Options of a run that do not change what a step does."""

    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    validate_every: int = 1
    """Checkpoints between validations."""
    read_loss_every: int = 25
    """Steps between looks at the loss, each of which waits for the device."""
    pause_after_s: float | None = None
    """Seconds after which this call leaves the run, with a checkpoint; the next call goes on."""
    should_stop: Callable[[], bool] | None = None
    """Called after each step; on True this call stores a checkpoint, which the next call validates. For one process."""
    on_continue: Callable[[int], None] | None = None
    """Called, in the first process, with the step that a stored run continues from."""
    after: str | os.PathLike[str] | None = None
    """Folder of a run that a new one goes on from, its weights, averages and moments, with its own schedule."""
    curves: bool = False
    """Whether ``curves.png`` is drawn at every checkpoint (matplotlib)."""
    tensorboard: bool = False
    """Whether every checkpoint's row is written for TensorBoard."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """What else is to stand in ``recipe.json``: the network, the data. A run goes on only where it is the same."""

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "validate_every", "read_loss_every"):
            _check.check_number(getattr(self, name), name, integer=True, low=1)
        if self.after is not None:
            _check.convert_path_to_text(self.after, "after")
        if self.pause_after_s is not None:
            _check.check_number(self.pause_after_s, "pause_after_s", above=0.0)


class TrainedFlow(NamedTuple):
    """Result of :func:`train_flow`."""

    model: nn.Module  # a copy of the network with the averaged weights, in evaluation mode
    history: list[FlowRow]
    completed: float  # fraction of the training: 1, unless it was paused
    first_step: int  # steps of earlier calls


def train_flow(
    folder: str | os.PathLike[str],
    model: nn.Module,
    source: PairSource,
    training: FlowTraining | None = None,
    *,
    run: FlowRun | None = None,
    validation: Validation | None = None,
    progress: Progress | None = None,
) -> TrainedFlow:
    """Train a network of flow; a run that was stopped goes on where it was.

    On the CPU the same arguments give the same weights, bit for bit, with any stops, unless ``training`` says
    ``seconds``; where the network draws random numbers, in one process. Under ``torchrun`` the processes share each
    batch, and the first one writes.

    Args:
        folder: see :class:`~fullfield.training.checkpoint.TrainingFolder`. A validation adds ``best.safetensors``,
            the averaged weights with the lowest error in it; ``run`` may add ``curves.png`` and a folder tensorboard.
        model: any module with ``predictions(frame1, frame2)``, the flow [B, 2, H, W] in pixels after each update; or
            with ``predictions_with_mixture``, for the mixture loss. It is trained in place, from the weights it has.
        source: of the pairs.
        training: the configuration.
        run: checkpoints and the like.
        validation: gives an error of a network; called with the averaged one, in the first process.
        progress: called with the done share and a line, in the first process.

    Raises:
        InputError: for what cannot be used, a folder of another run, or losses that are not finite.
    """
    _check.convert_path_to_text(folder, "folder")
    training, run = training or FlowTraining(), run or FlowRun()
    first = next(model.parameters(), None)
    if first is None:
        raise InputError("model: expected parameters to train, got none")
    with (
        join_process_group_if_distributed(first.device) as team,
        _seed_and_benchmark_cudnn(first.device, training.seed + team.rank),
    ):
        if training.batch % team.count:
            raise InputError(f"batch: expected a multiple of {team.count} processes, got {training.batch}")
        model.train()
        if training.freeze_norms:
            freeze_batch_norm_statistics(model)
        stepper = None
        try:
            stepper = TrainingStepper(model, training, team)
            ahead = BatchPrefetcher(source, training.batch // team.count, first.device, team)
            return _TrainingLoop(Path(folder), stepper, ahead, run, validation, progress).train()
        finally:
            model.eval()
            if stepper is not None:
                stepper.unfreeze_biases_and_uncompile()


def freeze_batch_norm_statistics(model: nn.Module) -> None:
    """Let batch norms use and keep their statistics, until ``train()`` is called; their parameters still train."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


class _TrainingClock:
    """Clock of a training: read at intervals and extrapolated in between, so that all processes agree."""

    def __init__(self, previous_seconds: float, step: int, ranks: Ranks, device: torch.device) -> None:
        self._before, self._start = previous_seconds, time.perf_counter()
        self._team, self._device = ranks, device
        self._mark = step, previous_seconds
        self.pace = 0.0  # seconds a step; 0 until it is known
        self._settled = step + _SETTLED

    @property
    def process_seconds(self) -> float:
        """Seconds of training in this process up to the last reading."""
        return self._mark[1] - self._before

    def extrapolate_seconds(self, step: int) -> float:
        """Return the seconds of training at a step."""
        return self._mark[1] + self.pace * (step - self._mark[0])

    def read_shared_seconds_and_update_pace(self, step: int, *, should_update_pace: bool = True) -> float:
        """Return the seconds of training, the same in all processes.

        Update the pace if requested; then only steps may have run since the last reading.
        """
        seconds = self._team.broadcast_number_from_first(self._before + time.perf_counter() - self._start, self._device)
        if should_update_pace and self._mark[0] >= self._settled and step > self._mark[0]:
            self.pace = (seconds - self._mark[1]) / (step - self._mark[0])
        self._mark = step, seconds
        return seconds


class _ResumeState(NamedTuple):
    """Values of a checkpoint that a run continues with, besides tensors and history."""

    batches: int  # of the runs that this run continues from: they have shown as many pairs
    pairs: int  # shown so far, by those runs too
    best: float  # lowest validation error; infinite without one
    scaling: Tensor  # [2], see TrainingStepper
    rng: Tensor  # PyTorch's random state on the CPU
    validation_due: bool  # of the last row: a run killed while it validates does so when it continues

    def as_json_values(self) -> dict[str, Any]:
        """Return the values as JSON can hold them."""
        return {
            **self._asdict(),
            "best": self.best if self.best < math.inf else None,
            "scaling": self.scaling.tolist(),
            "rng": self.rng.numpy().tobytes().hex(),
        }

    @staticmethod
    def from_json_values(values: Mapping[str, Any], folder: Path) -> _ResumeState:
        """Read the result of :meth:`as_json_values`; InputError if it is damaged."""
        try:
            scaling = torch.tensor(values["scaling"], dtype=torch.float32)
            rng = torch.frombuffer(bytearray.fromhex(values["rng"]), dtype=torch.uint8)
            best = math.inf if values["best"] is None else float(values["best"])
            torch.Generator().set_state(rng)  # of the right length, and valid
            if scaling.shape == (2,) and bool(scaling.isfinite().all()):
                due = bool(values.get("validation_due", False))  # missing in checkpoints of earlier versions
                return _ResumeState(int(values["batches"]), int(values["pairs"]), best, scaling, rng, due)
        except (ValueError, KeyError, TypeError, OverflowError, RuntimeError):
            pass
        raise InputError(f"{folder / STATE / POINTER}: expected the state of a run of flow, cannot be read")


class _TrainingLoop:
    def __init__(
        self,
        folder: Path,
        stepper: TrainingStepper,
        prefetcher: BatchPrefetcher,
        run: FlowRun,
        validation: Validation | None,
        progress: Progress | None,
    ) -> None:
        self.stepper, self.ahead, self.run = stepper, prefetcher, run
        self.training, self.team = stepper.training, stepper.ranks
        self.validation, self.progress = validation, progress
        recipe = {
            **run.recipe,
            "training": self.training.as_dict(),
            "loss": stepper.loss_name,
            "after": None if run.after is None else Path(run.after).name,
        }
        after = None if run.after is None else Path(run.after)
        if after is not None and not (has_checkpoint(folder) or has_checkpoint(after)):
            raise InputError(f"after: expected the folder of a run with a checkpoint, got {os.fspath(after)}")
        self.run_folder = TrainingFolder(folder, recipe, FlowRow) if self.team.is_first else None
        self.team.wait_for_all_processes()
        self.history, self.batches, self.best = list[FlowRow](), 0, math.inf
        self.validation_due = False
        # Every process raises for weights, which all of them share; buffers are each process's own, and the first's
        # are stored.
        self.check = FiniteStateCheck(self._get_checkpointed_modules(), stepper.optimizer, buffers=self.team.is_first)
        restored = self._restore_state_if_any(folder)
        if restored is not None:
            self.history, state = restored
            self.batches, self.best, self.validation_due = state.batches, state.best, state.validation_due
            stepper.scaling = state.scaling.to(stepper.device)
            if self.team.is_first:
                torch.set_rng_state(state.rng)
        elif after is not None and (before := self._restore_state_if_any(after)) is not None:
            self.batches = -(-before[1].pairs // self.training.batch)
        # Seconds of training when the last row was written.
        self.checkpoint_seconds = self.history[-1].seconds if self.history else 0.0
        if run.curves:
            require_matplotlib_figure_class()
        self.board = TensorBoardWriter(folder) if run.tensorboard and self.team.is_first else None
        self.readings: list[StepMeans] = []
        self.rows = 0
        if self.run_folder is not None and self.history:  # files may be missing, or the curves are requested only now
            self.run_folder.write_history(self.history)
            self._write_averaged_weights(self.run_folder.folder)
            self._write_curves_if_requested(self.run_folder.folder)

    def _restore_state_if_any(self, folder: Path) -> tuple[list[FlowRow], _ResumeState] | None:
        """Load the state of a run into the stepper, all but the loss's scale."""
        restored = restore_run_if_any(folder, self._get_checkpointed_modules(), self.stepper.optimizer, FlowRow)
        if restored is None:
            return None
        self.stepper.fold_biases_into_norms()
        return restored.history, _ResumeState.from_json_values(restored.resume_state, folder)

    def _get_checkpointed_modules(self) -> dict[str, nn.Module]:
        return {"model": self.stepper.model, "average": self.stepper.average.model}

    def _write_averaged_weights(self, folder: Path) -> None:
        write_safetensors(folder / WEIGHTS, copy_state_dict(self.stepper.average.model))

    def _write_curves_if_requested(self, folder: Path) -> None:
        """Draw the curves on request."""
        if self.run.curves:
            write_history_plot(folder / CURVES, self.history)

    def train(self) -> TrainedFlow:
        training, run = self.training, self.run
        if self.run_folder is not None and self.validation_due:
            self._validate_and_save_best_if_due(self.run_folder)
            self._write_curves_if_requested(self.run_folder.folder)
        first_step = step = self.history[-1].step if self.history else 0
        clock = _TrainingClock(self.history[-1].seconds if self.history else 0.0, step, self.team, self.stepper.device)
        completed, paused = training.compute_completed_fraction(step, clock.extrapolate_seconds(step)), False
        if run.on_continue is not None and self.team.is_first and first_step > 0 and completed < 1.0:
            run.on_continue(first_step)
        while completed < 1.0 and not paused:
            learning_rate = training.compute_learning_rate(completed)
            batch = self.ahead.take_or_fetch_batch(self.batches + step)
            self.stepper.train_on_batch(
                batch, self.batches + step, learning_rate=learning_rate, include_occluded=completed >= training.visible
            )
            step += 1
            completed = training.compute_completed_fraction(step, clock.extrapolate_seconds(step))
            must_stop = run.should_stop is not None and run.should_stop()
            if completed < 1.0 and not must_stop:
                self.ahead.prefetch_batch(self.batches + step)
            is_due = step % run.checkpoint_every == 0 or completed >= 1.0 or must_stop
            if not (is_due or step % run.read_loss_every == 0 or step == first_step + _SETTLED):
                continue
            reading = self.stepper.wait_read_and_reset_means()
            self.readings.append(reading)
            raise_if_diverged(reading, step, training)
            seconds = clock.read_shared_seconds_and_update_pace(step)
            completed = training.compute_completed_fraction(step, seconds)
            paused = must_stop or (run.pause_after_s is not None and clock.process_seconds >= run.pause_after_s)
            # Steps in float16 may overflow until the loss's scale has settled.
            is_due = is_due or paused or completed >= 1.0
            if is_due and training.precision != "float16":
                if all(r.skipped == r.steps for r in self.readings):
                    raise build_divergence_error("every step since the last checkpoint", step, training)
                if reading.skipped == reading.steps and reading.consecutive_skipped >= _ENDED:
                    raise build_divergence_error(f"the last {reading.consecutive_skipped} steps", step, training)
            self._report_progress_if_requested(completed, step, reading, clock)
            if is_due:
                training_stops, validates_later = paused or completed >= 1.0, must_stop and completed < 1.0
                self._add_row_write_checkpoint_and_validate(
                    step, seconds, learning_rate, is_stopping=training_stops, should_validate_later=validates_later
                )
                self.checkpoint_seconds = clock.read_shared_seconds_and_update_pace(step, should_update_pace=False)
                completed = training.compute_completed_fraction(step, self.checkpoint_seconds)
        return TrainedFlow(self.stepper.average.model, self.history, completed, first_step)

    def _add_row_write_checkpoint_and_validate(
        self, step: int, seconds: float, learning_rate: float, *, is_stopping: bool, should_validate_later: bool
    ) -> None:
        """Check the state, add a row to the history and write a checkpoint."""
        self.check(step)
        before = self.history[-1] if self.history else None
        steps = step - (before.step if before else 0)
        took = seconds - self.checkpoint_seconds
        good = [(r.steps - r.skipped, r) for r in self.readings if r.steps > r.skipped]
        total = sum(count for count, _ in good)
        loss, seen, norm = (
            sum(count * getattr(r, name) for count, r in good) / total if total else math.nan
            for name in ("loss", "error", "norm")
        )
        skipped = sum(r.skipped for r in self.readings)
        self.readings.clear()
        self.rows += 1
        speed = steps * self.training.batch / took if took > 0 else math.nan
        self.history.append(FlowRow(step, seconds, loss, seen, norm, learning_rate, skipped, speed, math.nan))
        if self.run_folder is None:
            return
        is_validation_step = is_stopping or self.rows % self.run.validate_every == 0
        self.validation_due = self.validation is not None and is_validation_step
        self.run_folder.save_checkpoint_and_remove_older(
            self._get_checkpointed_modules(), self.stepper.optimizer, self.history, self._collect_resume_state()
        )
        self._write_averaged_weights(self.run_folder.folder)
        if not should_validate_later:
            self._validate_and_save_best_if_due(self.run_folder)
        self._write_curves_if_requested(self.run_folder.folder)
        if self.board is not None:
            self.board.write_row(self.history[-1])

    def _collect_resume_state(self) -> dict[str, Any]:
        """Return what else a checkpoint at the last row stores."""
        pairs = (self.batches + self.history[-1].step) * self.training.batch
        rng = torch.get_rng_state()
        scaling = self.stepper.scaling
        return _ResumeState(self.batches, pairs, self.best, scaling, rng, self.validation_due).as_json_values()

    def _validate_and_save_best_if_due(self, run_folder: TrainingFolder) -> None:
        """Validate the averaged weights; add the error to the last row, whose checkpoint is already stored."""
        if self.validation is None or not self.validation_due:
            return
        error = float(self.validation(self.stepper.average.model))
        self.history[-1] = self.history[-1]._replace(validation=error)
        self.validation_due = False
        if error < self.best:
            self.best = error
            write_safetensors(run_folder.folder / BEST, copy_state_dict(self.stepper.average.model))
        run_folder.save_history_and_resume_state(self.history, self._collect_resume_state())

    def _report_progress_if_requested(
        self, completed: float, step: int, reading: StepMeans, clock: _TrainingClock
    ) -> None:
        if self.progress is None or not self.team.is_first:
            return
        text = f"step {step}, loss {reading.loss:.3f}, error {reading.error:.2f} px"
        if clock.pace > 0:
            text += f", {self.training.batch / clock.pace:.0f} pairs/s"
        if reading.skipped:
            text += f", {reading.skipped} of {reading.steps} steps skipped"
        self.progress(completed, text)


@contextmanager
def _seed_and_benchmark_cudnn(device: torch.device, seed: int) -> Iterator[None]:
    """Seed random numbers and let cuDNN try its algorithms inside; restore both afterwards."""
    benchmark = torch.backends.cudnn.benchmark
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = True
        try:
            with torch.cuda.device(device) if on_gpu else nullcontext():
                yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
