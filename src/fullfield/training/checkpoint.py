"""Where a training run is kept, and how it goes on after a stop."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fullfield._check import InputError
from fullfield.io import atomic_path
from fullfield.models.state import fit, read_state

CONFIG, WEIGHTS, STATE, HISTORY = "config.json", "weights.safetensors", "state.safetensors", "history.csv"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


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
        path, content = self.folder / CONFIG, json.loads(json.dumps(config))
        begun = any((self.folder / name).exists() for name in (WEIGHTS, STATE))
        if begun and path.is_file():
            try:
                stored = json.loads(path.read_text("utf-8"))
            except ValueError:
                raise InputError(f"{path}: expected a training run's configuration, cannot be read") from None
            if stored != content:
                raise InputError(f"{path}: is of another run: {_difference(stored, content)}; use another folder")
            return
        if begun:
            raise InputError(f"{self.folder}: holds a run without {CONFIG}; use another folder")
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", "utf-8")

    @property
    def weights(self) -> Path:
        """The file of the descriptor."""
        return self.folder / WEIGHTS

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[Row]) -> None:
        """Keep everything that the next step depends on."""
        from safetensors.torch import save

        state = {f"model.{key}": value for key, value in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            held = optimizer.state[parameter]
            state |= {f"{part}.{name}": held[part] for part in _MOMENTS}
        state["history"] = torch.tensor([list(row) for row in history], dtype=torch.float64)
        content = save({key: value.detach().cpu().contiguous() for key, value in state.items()})
        with atomic_path(self.folder / STATE) as temporary:
            temporary.write_bytes(content)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([row.step, *(f"{value:.6g}" for value in row[1:])] for row in history)
        with atomic_path(self.folder / HISTORY) as temporary:
            temporary.write_text(text.getvalue(), "utf-8")

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Row]:
        """Put back what :meth:`save` kept; returns the history, empty for a new run."""
        path = self.folder / STATE
        if not path.is_file():
            return []
        held, name = read_state(path)
        own = {key.removeprefix("model."): value for key, value in held.items() if key.startswith("model.")}
        fit(model, own, name, "this run")
        for key, parameter in model.named_parameters():
            moments = {part: held[f"{part}.{key}"] for part in _MOMENTS if f"{part}.{key}" in held}
            sizes = {part: value.numel() for part, value in moments.items()}
            if sizes != {"step": 1, "exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}:
                raise InputError(f"{name}: expected the optimizer's moments of {key}, found others or none")
            optimizer.state[parameter] = {
                part: value if part == "step" else value.to(parameter) for part, value in moments.items()
            }
        rows = held.get("history", torch.empty(0))
        if rows.ndim != 2 or rows.shape[1] != len(Row._fields) or not len(rows):
            raise InputError(f"{name}: expected the history of a run, found {list(rows.shape)}")
        return [Row(int(row[0]), *row[1:]) for row in rows.tolist()]


def _difference(stored: Any, content: Mapping[str, Any]) -> str:
    """The first value that differs, in words."""
    if not isinstance(stored, dict):
        return "it is no configuration"
    for key in content:
        if stored.get(key) != content[key]:
            if isinstance(content[key], dict) and isinstance(stored.get(key), dict):
                return f"{key}: {_difference(stored[key], content[key])}"
            return f"{key} was {str(stored.get(key))[:60]}, is {str(content[key])[:60]}"
    return "it has more settings"
