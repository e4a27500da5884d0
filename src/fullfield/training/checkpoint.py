"""Where a training run is kept, and how it goes on after a stop."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fullfield._check import InputError, differences
from fullfield.io import atomic_path
from fullfield.models.state import fit, read_state

CONFIG, WEIGHTS, STATE, HISTORY = "config.json", "weights.safetensors", "state.safetensors", "history.csv"
_LIMITS = ("training.steps ", "training.seconds ")
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Row(NamedTuple):
    """What is noted at a checkpoint."""

    step: int
    loss: float  # mean since the row before
    ratio: float  # of mutual matches that are right, on pairs that no step sees
    seconds: float  # of training so far


class TrainingFolder:
    """A run's folder.

    ::

        FOLDER/
          config.json           frozen: another configuration is refused
          weights.safetensors   the descriptor, for fullfield register --weights
          state.safetensors     weights, the optimizer's moments and the history, to go on from
          history.csv           step, loss, ratio, seconds

    Raises InputError where the folder belongs to another configuration.
    """

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = any((self.folder / name).exists() for name in (WEIGHTS, STATE))
        freeze_config(self.folder / CONFIG, config, begun=begun)

    @property
    def weights(self) -> Path:
        """The file of the descriptor."""
        return self.folder / WEIGHTS

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[Row]) -> None:
        """Keep everything that the next step depends on."""
        if name := not_finite(model.state_dict()):
            raise DivergedError(f"learning_rate: {name} is not finite after step {history[-1].step}; take less")
        state = {f"model.{key}": value for key, value in model.state_dict().items()}
        state |= {f"{part}.{name}": value for part, name, value in moments(model, optimizer)}
        state["history"] = torch.tensor([list(row) for row in history], dtype=torch.float64)
        write_tensors(self.folder / STATE, state)
        write_history(self.folder / HISTORY, Row._fields, history)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Row]:
        """Put back what :meth:`save` kept; returns the history, empty for a new run."""
        path = self.folder / STATE
        if not path.is_file():
            return []
        held, name = read_state(path)
        check_finite(held, name)
        own = {key.removeprefix("model."): value for key, value in held.items() if key.startswith("model.")}
        fit(model, own, name, "this run")
        restore_moments(model, optimizer, held, name)
        rows = held.get("history", torch.empty(0))
        if rows.ndim != 2 or rows.shape[1] != len(Row._fields) or not len(rows):
            raise InputError(f"{name}: expected the history of a run, found {list(rows.shape)}")
        return [Row(int(row[0]), *row[1:]) for row in rows.tolist()]


class DivergedError(InputError):
    """Training whose losses are no longer finite. Its last checkpoint, if there is one, holds finite weights."""

    exit_code = 1


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity; None where all are finite."""
    named = {name: value for name, value in tensors.items() if value.is_floating_point()}
    if not named:
        return None
    finite = torch.stack([value.detach().isfinite().all() for value in named.values()]).tolist()  # waits once
    return next((name for name, whole in zip(named, finite, strict=True) if not whole), None)


def check_finite(tensors: Mapping[str, Tensor], file: str) -> None:
    """Raise InputError naming ``file`` and the first of its tensors that holds NaN or infinity."""
    if name := not_finite(tensors):
        found = "NaN" if bool(tensors[name].isnan().any()) else "infinity"
        raise InputError(f"{file}: expected finite numbers, got {found} in {name}")


def freeze_config(path: Path, config: Mapping[str, Any], *, begun: bool) -> None:
    """Write the configuration of a run, or check that it is the one of the run that has begun there.

    Raises InputError where the folder belongs to another configuration.
    """
    content = json.loads(json.dumps(config))
    if begun and path.is_file():
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError):  # the second: nested too deeply
            raise InputError(f"{path}: expected a training run's configuration, cannot be read") from None
        if changed := differences(stored, content):
            advice = "use another folder"
            if "after" in content and all(text.startswith(_LIMITS) for text in changed):
                advice += f", and --after {path.parent} (FlowRun(after=...)) to train these weights further"
            raise InputError(f"{path}: is of another run ({'; '.join(changed)}); {advice}")
        return
    if begun:
        raise InputError(f"{path.parent}: holds a run without {path.name}; use another folder")
    write_json(path, content)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one piece."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in one piece."""
    from safetensors.torch import save

    own = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    content = save(own, metadata)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_history(path: Path, fields: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    """Write a CSV file in one piece; the first column holds whole numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([row[0], *(f"{value:.6g}" for value in row[1:])] for row in rows)
    with atomic_path(path) as temporary:
        temporary.write_text(text.getvalue(), "utf-8")


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, Tensor]]:
    """What Adam keeps of every parameter that has had a gradient: part, parameter's name, value."""
    for name, parameter in model.named_parameters():
        held = optimizer.state.get(parameter, {})
        yield from ((part, name, held[part]) for part in MOMENTS if part in held)


def restore_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, held: Mapping[str, Tensor], name: str, *, partly: bool = False
) -> None:
    """Put back :func:`moments`, from tensors called ``PART.PARAMETER``. ``partly``: a parameter may have none.

    Raises InputError where they do not fit; ``name`` is the file.
    """
    for key, parameter in model.named_parameters():
        own = {part: held[f"{part}.{key}"] for part in MOMENTS if f"{part}.{key}" in held}
        sizes = {part: value.numel() for part, value in own.items()}
        if partly and not own:
            continue
        if sizes != {"step": 1, "exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}:
            raise InputError(f"{name}: expected the optimizer's moments of {key}, found others or none")
        place = parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
        optimizer.state[parameter] = {
            # The fused optimizer takes memory in its order: the moments' strides have to be the parameter's.
            part: value.to(place).reshape(()) if part == "step" else torch.empty_like(parameter.detach()).copy_(value)
            for part, value in own.items()
        }
