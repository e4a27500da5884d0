"""SEA-RAFT's weight files: princeton's (.pth and Hugging Face's safetensors) and ptlflow's, mapped to our names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.models.state import State, fit, read_state

if TYPE_CHECKING:
    from fullfield.models.sea_raft.model import SEARAFT

_WORDS = {"resnet18": "SEA-RAFT (S)", "resnet34": "SEA-RAFT (L or M)"}


def load_state(model: SEARAFT, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> None:
    """Fit a file or state dict of any of these origins to ``model``.

    Raises:
        InputError: one line; the model is then left as it was.
        OSError: if the file cannot be read.
    """
    state, name = read_state(source)
    fit(model, _without_aliases(state, name), name, _WORDS[model.config.backbone])


def _without_aliases(state: State, name: str) -> State:
    """Theirs name the norm of a shortcut twice, ``bn3`` and ``downsample.1``; safetensors keep one of the two."""
    kept: State = {}
    for key, value in state.items():
        renamed = key.replace(".bn3.", ".downsample.1.")
        twin = kept.get(renamed)
        if twin is not None and not torch.equal(twin, value):
            raise InputError(f"{name}: expected {key} and {renamed} to be the same norm, they differ")
        kept[renamed] = value
    return kept
