"""The folder of a run that trains a network of flow, and how the run goes on after a stop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fullfield._check import InputError
from fullfield.models.state import fit, read_safetensors
from fullfield.training.checkpoint import (
    MOMENTS,
    check_finite,
    freeze_config,
    moments,
    restore_moments,
    write_history,
    write_json,
    write_tensors,
)
from fullfield.training.flow.stepping import Stepper

RECIPE, WEIGHTS, BEST, HISTORY = "recipe.json", "weights.safetensors", "best.safetensors", "history.csv"
CURVES = "curves.png"
STATE = "state"
_POINTER = "state.json"
_PARTS = ("model", "average", *MOMENTS[1:])


class FlowRow(NamedTuple):
    """What is noted at a checkpoint, of the steps since the row before."""

    step: int
    seconds: float  # of training so far, without stops
    loss: float  # mean
    error: float  # mean end-point error in training, pixels
    norm: float  # mean length of the gradient, before it is clipped
    rate: float  # learning rate
    skipped: int  # steps whose loss or gradient was not finite
    pairs_per_second: float
    validation: float  # mean end-point error of the averaged weights on what validates, pixels; NaN: not asked


class Restored(NamedTuple):
    """Where a run was."""

    history: list[FlowRow]
    batches: int  # that this run's first step comes after: those it went on from have shown as many pairs
    pairs: int  # shown so far, by those it went on from too
    best: float  # lowest validation error; infinite without one
    rng: Tensor | None  # PyTorch's random state on the CPU


class FlowFolder:
    """A run's folder.

    ::

        FOLDER/
          recipe.json           frozen: another recipe is refused
          weights.safetensors   the averaged weights, to be used
          best.safetensors      those with the lowest error in validation
          history.csv           a :class:`FlowRow` a line
          curves.png            the history drawn, on request; and a folder tensorboard
          state/                to go on from
            state.json          the step whose files count, and the history
            STEP.model.safetensors    weights; .average, .exp_avg and .exp_avg_sq likewise: one file of at most four
                                      bytes a parameter each

    Every file is written in one piece, ``state.json`` after all that lies beside it: a run killed at any moment goes on
    from the checkpoint before. The weights and the history are written after it, and anew when a run goes on.

    Raises:
        InputError: where the folder belongs to another recipe, or has weights of a run without its state.
    """

    def __init__(self, folder: str | os.PathLike[str], recipe: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        (self.folder / STATE).mkdir(parents=True, exist_ok=True)
        begun, weights = ((self.folder / file).exists() for file in (f"{STATE}/{_POINTER}", WEIGHTS))
        freeze_config(self.folder / RECIPE, recipe, begun=begun or weights)
        if weights and not begun:
            raise InputError(
                f"{self.folder}: holds {WEIGHTS} without the {STATE} to go on from; use another folder (weights to "
                "begin with: --init)"
            )

    def save(self, stepper: Stepper, history: list[FlowRow], *, batches: int, pairs: int, best: float) -> None:
        """Keep everything that the next step depends on; the numbers are those of :class:`Restored`."""
        state, step = self.folder / STATE, history[-1].step
        named = {"model": _tensors(stepper.model), "average": _tensors(stepper.average.model)}
        for part, name, value in moments(stepper.model, stepper.optimizer):
            # The counts of steps are one number each; they lie with the first moments.
            where, key = ("exp_avg", f"step.{name}") if part == "step" else (part, f"{part}.{name}")
            named.setdefault(where, {})[key] = value
        for part in _PARTS:
            write_tensors(state / f"{step}.{part}.safetensors", named.get(part, {}))
        pointer = {
            "step": step,
            "batches": batches,
            "pairs": pairs,
            "best": best if best < float("inf") else None,
            "scaling": stepper.scaling.tolist(),
            "rng": torch.get_rng_state().numpy().tobytes().hex(),
            "history": [[None if value != value else value for value in row] for row in history],
        }
        write_json(state / _POINTER, pointer)
        self.publish(stepper, history)
        current = {f"{step}.{part}.safetensors" for part in _PARTS} | {_POINTER}
        for path in state.iterdir():
            if path.name not in current:
                path.unlink(missing_ok=True)

    def publish(self, stepper: Stepper, history: list[FlowRow]) -> None:
        """Write what a run gives: the averaged weights and the history."""
        write_tensors(self.folder / WEIGHTS, _tensors(stepper.average.model))
        write_history(self.folder / HISTORY, FlowRow._fields, history)

    def keep_best(self, model: nn.Module) -> None:
        """Keep these weights as the best so far."""
        write_tensors(self.folder / BEST, _tensors(model))


def restore(folder: Path, stepper: Stepper) -> Restored | None:
    """Put back what :meth:`FlowFolder.save` kept in the folder of any run of this network; None for a new run.

    Raises InputError where a file is damaged or of another network.
    """
    state = folder / STATE
    if not (state / _POINTER).is_file():
        return None
    try:
        pointer = json.loads((state / _POINTER).read_text("utf-8"))
        step, history = int(pointer["step"]), [_row(values) for values in pointer["history"]]
        scaling = torch.tensor(pointer["scaling"], dtype=torch.float32)
        rng = torch.frombuffer(bytearray.fromhex(pointer["rng"]), dtype=torch.uint8)
        batches, pairs, best = int(pointer["batches"]), int(pointer["pairs"]), pointer["best"]
        whole = bool(history) and scaling.shape == (2,) and bool(scaling.isfinite().all())
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise InputError(f"{state / _POINTER}: expected the state of a run, cannot be read")
    held: dict[str, tuple[dict[str, Tensor], str]] = {}
    for part in _PARTS:
        path = state / f"{step}.{part}.safetensors"
        if not path.is_file():
            raise InputError(f"{path}: is named by {_POINTER}, but is not there")
        held[part] = read_safetensors(path), str(path)
        check_finite(held[part][0], str(path))
    fit(stepper.model, *held["model"], "this run")
    fit(stepper.average.model, *held["average"], "this run")
    both = held["exp_avg"][0] | held["exp_avg_sq"][0]
    restore_moments(stepper.model, stepper.optimizer, both, held["exp_avg"][1], partly=True)
    stepper.scaling = scaling.to(stepper.device)
    return Restored(history, batches, pairs, float("inf") if best is None else float(best), rng)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """A state dict whose tensors share no memory."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def _row(values: list[Any]) -> FlowRow:
    full = [float("nan") if value is None else float(value) for value in values]
    row = dict(zip(FlowRow._fields, full, strict=True))
    return FlowRow(**{**row, "step": int(row["step"]), "skipped": int(row["skipped"])})  # type: ignore[arg-type]  # the two whole numbers
