"""Folder of a training run, and how a run continues after a stop; for networks of flow and for descriptors."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn

from fullfield._check import InputError
from fullfield._ledger.notes import read_json_object, write_json_file_atomically
from fullfield._ledger.settings import SettingsFile
from fullfield.io.files import write_atomically
from fullfield.models.state import load_state_into, read_safetensors

RECIPE, WEIGHTS, HISTORY, STATE = "recipe.json", "weights.safetensors", "history.csv", "state"
POINTER = "state.json"  # in the folder STATE
_MOMENTS = ("exp_avg", "exp_avg_sq")
_CHANGEABLE_WITH_AFTER = ("training.steps ", "training.seconds ", "scenes.")


class DivergedError(InputError):
    """Training whose losses or weights are no longer finite. Its last checkpoint, if any, holds finite weights."""

    exit_code = 1


class RestoredRun(NamedTuple):
    """State of a run at its last checkpoint."""

    history: list[Any]  # rows
    resume_state: dict[str, Any]  # what else was saved, numbers and texts


class TrainingFolder:
    """Folder of a run.

    ::

        FOLDER/
          recipe.json           frozen: another recipe is refused
          weights.safetensors   the weights to use
          history.csv           a row for each checkpoint
          state/                what a run continues from
            state.json          the step whose files count, and the history
            STEP.model.safetensors    weights; .exp_avg and .exp_avg_sq, the optimizer's moments, and for flow .average
                                      likewise: one file of at most four bytes a parameter each

    Every file is written atomically, ``state.json`` after the other files of the state: a run killed at any moment
    continues from the checkpoint before. The weights and the history are written after it, and again when a run
    continues. ``recipe`` is everything that decides the result; ``row_type`` is the type of the history's rows, whose
    first field is the step. InputError if the folder belongs to another recipe, or has weights without the state of a
    run.
    """

    def __init__(
        self, folder: str | os.PathLike[str], recipe: Mapping[str, Any], row_type: type[tuple[Any, ...]]
    ) -> None:
        self.folder = Path(folder)
        self._fields = tuple(get_type_hints(row_type))
        (self.folder / STATE).mkdir(parents=True, exist_ok=True)
        begun, weights = ((self.folder / file).exists() for file in (f"{STATE}/{POINTER}", WEIGHTS))
        write_or_check_recipe(self.folder / RECIPE, recipe, has_started=begun or weights)
        if weights and not begun:
            start = " (weights to begin with: --init)" if "after" in recipe else ""  # a network of flow
            raise InputError(
                f"{self.folder}: holds {WEIGHTS} without the {STATE} to continue from; use another folder{start}"
            )

    @property
    def weights_path(self) -> Path:
        """Return the path of the weights to use."""
        return self.folder / WEIGHTS

    def save_checkpoint_and_remove_older(
        self,
        modules: Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer,
        history: Sequence[tuple[Any, ...]],
        resume_state: Mapping[str, Any] | None = None,
    ) -> None:
        """Store everything that the next step depends on.

        The parameters of the optimizer, AdamW, are those of ``modules["model"]``. ``history`` has one row at least,
        and ``resume_state`` has further values for :class:`RestoredRun`, as JSON can hold them.
        """
        state, step = self.folder / STATE, int(history[-1][0])
        states: dict[str, dict[str, Tensor]] = {name: copy_state_dict(module) for name, module in modules.items()}
        states |= _collect_adam_moments(modules["model"], optimizer)
        for name, state_dict in states.items():
            write_safetensors(state / f"{step}.{name}.safetensors", state_dict)
        self.save_history_and_resume_state(history, resume_state)
        current = {f"{step}.{name}.safetensors" for name in states} | {POINTER}
        for path in state.iterdir():
            if path.name not in current:
                path.unlink(missing_ok=True)

    def save_history_and_resume_state(
        self, history: Sequence[tuple[Any, ...]], resume_state: Mapping[str, Any] | None = None
    ) -> None:
        """Store the history and further values of the last row's step, whose tensors are already stored."""
        rows = [[None if value != value else value for value in row] for row in history]
        write_json_file_atomically(
            self.folder / STATE / POINTER, {"step": int(history[-1][0]), **(resume_state or {}), "history": rows}
        )
        self.write_history(history)

    def write_history(self, history: Sequence[tuple[Any, ...]]) -> None:
        """Write ``history.csv``, whose first column holds whole numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._fields)
        writer.writerows([row[0], *(f"{value:.6g}" for value in row[1:])] for row in history)
        with write_atomically(self.folder / HISTORY) as temporary:
            temporary.write_text(text.getvalue(), "utf-8")


class FiniteStateCheck:
    """Check that everything a run stores is finite.

    Buffers that hold NaN or infinity before a run, such as masks, may hold them at any time. Arguments are as of
    :meth:`TrainingFolder.save_checkpoint_and_remove_older`, with the values from before the run; ``buffers`` are
    checked too by default.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, *, buffers: bool = True
    ) -> None:
        self._modules, self._optimizer = modules, optimizer
        self._left_out = {
            name: list_non_finite_buffer_names(module) if buffers else list(_collect_buffers_by_every_name(module))
            for name, module in modules.items()
        }

    def __call__(self, step: int) -> None:
        """Raise DivergedError, after ``step`` steps, naming the first tensor that holds NaN or infinity."""
        states = [_exclude_tensors(module.state_dict(), self._left_out[part]) for part, module in self._modules.items()]
        for state in (*states, *_collect_adam_moments(self._modules["model"], self._optimizer).values()):
            for name in list_non_finite_tensor_names(state)[:1]:
                raise DivergedError(f"learning_rate: {name} is not finite after step {step}; use a lower one")


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder has the state of a run to continue from."""
    return (folder / STATE / POINTER).is_file()


def restore_run_if_any(
    folder: Path, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, row_type: type[tuple[Any, ...]]
) -> RestoredRun | None:
    """Load what :meth:`TrainingFolder.save_checkpoint_and_remove_older` stored for a run; None for a new run.

    Raises:
        InputError: if a file is damaged, belongs to another network, or holds NaN or infinity.
    """
    if not has_checkpoint(folder):
        return None
    state = folder / STATE
    step, history, resume_state = _read_step_history_and_state(folder, row_type)
    stored: dict[str, Mapping[str, Tensor]] = {}
    left_out = {name: list_non_finite_buffer_names(module) for name, module in modules.items()}
    files = {name: state / f"{step}.{name}.safetensors" for name in (*modules, *_MOMENTS)}
    for name, path in files.items():
        if not path.is_file():
            raise InputError(f"{path}: is named by {POINTER}, but is not there")
        stored[name] = read_safetensors(path)
        check_tensors_finite(_exclude_tensors(stored[name], left_out.get(name, ())), str(path))
    for name, module in modules.items():
        load_state_into(module, stored[name], str(files[name]), "this run")
    _check_and_restore_adam_moments(modules["model"], optimizer, stored, files)
    return RestoredRun(history, resume_state)


def read_history_or_empty(folder: Path, row_type: type[tuple[Any, ...]]) -> list[Any]:
    """Return the rows of the last checkpoint, none for a new run; InputError if they are damaged."""
    return _read_step_history_and_state(folder, row_type)[1] if has_checkpoint(folder) else []


def _read_step_history_and_state(
    folder: Path, row_type: type[tuple[Any, ...]]
) -> tuple[int, list[Any], dict[str, Any]]:
    """Return the step, the history and the further values of the last checkpoint."""
    pointer = folder / STATE / POINTER
    try:
        resume_state = read_json_object(pointer, "the state of a run")
        step = int(resume_state.pop("step"))
        history = [_parse_history_row(values, row_type) for values in resume_state.pop("history")]
    except (ValueError, KeyError, TypeError, OverflowError):
        step, history = 0, []
    if not history:
        raise InputError(f"{pointer}: expected the state of a run, cannot be read")
    return step, history, resume_state


def _parse_history_row(values: Sequence[Any], row_type: Any) -> tuple[Any, ...]:
    """Return a row of the history as it was; missing values were NaN."""
    numbers = (math.nan if value is None else float(value) for value in values)
    kinds = get_type_hints(row_type).values()
    return row_type(*(int(n) if kind is int else n for n, kind in zip(numbers, kinds, strict=True)))  # type: ignore[no-any-return]


def write_or_check_recipe(path: Path, recipe: Mapping[str, Any], *, has_started: bool) -> None:
    """Write the recipe of a run, or check that it is that of the run that has begun in the folder."""
    file, advice = SettingsFile(path, "the configuration of a training run"), "use another folder"
    stored = file.read_if_exists() if has_started else None
    changes = [] if stored is None else file.list_changes(stored, recipe)
    if "after" in recipe and changes and all(change.startswith(_CHANGEABLE_WITH_AFTER) for change in changes):
        advice += f", and --after {path.parent} (FlowRun(after=...)) to train these weights further"
    file.write_or_check_and_return_previous(recipe, has_results=lambda: has_started, advice=advice)


def write_safetensors(path: Path, named_tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    from safetensors.torch import save

    own = {key: value.detach().cpu().contiguous() for key, value in named_tensors.items()}
    content = save(own)
    with write_atomically(path) as temporary:
        temporary.write_bytes(content)


def copy_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a state dict whose tensors share no memory."""
    return {key: value.detach().clone() for key, value in module.state_dict().items()}


def list_non_finite_tensor_names(named_tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinity."""
    floating = {name: value.detach() for name, value in named_tensors.items() if value.is_floating_point()}
    devices: dict[torch.device, dict[str, Tensor]] = {}
    for name, value in floating.items():  # Adam counts its steps on the CPU
        devices.setdefault(value.device, {})[name] = value.isfinite().all()
    damaged = set()
    for tensors_ in devices.values():
        finite = torch.stack(list(tensors_.values())).tolist()  # waits once
        damaged |= {name for name, is_finite in zip(tensors_, finite, strict=True) if not is_finite}
    return [name for name in floating if name in damaged]


def list_non_finite_buffer_names(module: nn.Module) -> list[str]:
    """Return the names of the buffers that hold NaN or infinity."""
    return list_non_finite_tensor_names(_collect_buffers_by_every_name(module))


def _collect_buffers_by_every_name(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers by every name that a state dict has for them."""
    return dict(module.named_buffers(remove_duplicate=False))


def _exclude_tensors(named_tensors: Mapping[str, Tensor], excluded_names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors but those named in ``excluded_names``."""
    return {name: value for name, value in named_tensors.items() if name not in excluded_names}


def check_tensors_finite(named_tensors: Mapping[str, Tensor], file: str) -> None:
    """Raise InputError naming ``file`` and its first tensor that holds NaN or infinity."""
    for name in list_non_finite_tensor_names(named_tensors)[:1]:
        kind = "NaN" if bool(named_tensors[name].isnan().any()) else "infinity"
        raise InputError(f"{file}: expected finite numbers, got {kind} in {name}")


def _collect_adam_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return Adam's moments by part; the counts of steps, one number each, are with the first moments."""
    moments: dict[str, dict[str, Tensor]] = {kind: {} for kind in _MOMENTS}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for kind in ("step", *_MOMENTS):
            if kind in state:
                moments["exp_avg" if kind == "step" else kind][f"{kind}.{name}"] = state[kind]
    return moments


def _check_and_restore_adam_moments(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stored: Mapping[str, Mapping[str, Tensor]],
    files: Mapping[str, Path],
) -> None:
    """Load the moments that :func:`_collect_adam_moments` returned; a parameter that never had a gradient has none."""
    moments = stored["exp_avg"] | stored["exp_avg_sq"]  # type: ignore[operator]  # dictionaries
    for key, parameter in model.named_parameters():
        own = {kind: moments[f"{kind}.{key}"] for kind in ("step", *_MOMENTS) if f"{kind}.{key}" in moments}
        if not own:
            continue
        sizes = {kind: value.numel() for kind, value in own.items()}
        if sizes != {"step": 1, "exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}:
            raise InputError(f"{files['exp_avg']}: expected the optimizer's moments of {key}, found others or none")
        device = parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
        optimizer.state[parameter] = {
            # The fused optimizer takes memory in its order: the moments' strides have to be the parameter's.
            kind: value.to(device).reshape(()) if kind == "step" else torch.empty_like(parameter.detach()).copy_(value)
            for kind, value in own.items()
        }
