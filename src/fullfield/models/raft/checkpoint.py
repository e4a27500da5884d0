"""RAFT's weight files: the names of princeton, ptlflow and torchvision, mapped to ours."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.models.state import State, fit, read_state, recognise

if TYPE_CHECKING:
    from fullfield.models.raft.model import RAFT

# torchvision's names, part by part; "convnormrelu2.1" is the norm behind the second convolution, and so on.
_ENCODERS = {"feature_encoder": "fnet", "context_encoder": "cnet"}
_UPDATE = {
    "motion_encoder.convcorr1.0": "encoder.convc1",
    "motion_encoder.convcorr2.0": "encoder.convc2",
    "motion_encoder.convflow1.0": "encoder.convf1",
    "motion_encoder.convflow2.0": "encoder.convf2",
    "motion_encoder.conv.0": "encoder.conv",
    "flow_head.conv1": "flow_head.conv1",
    "flow_head.conv2": "flow_head.conv2",
}
_MASK = {"mask_predictor.convrelu.0": "mask.0", "mask_predictor.conv": "mask.2"}
_BLOCK = re.compile(r"(?P<place>(?:layer\d\.\d\.)?)convnormrelu(?P<number>\d?)\.(?P<part>[01])")


def load_state(model: RAFT, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> None:
    """Fit a file or state dict of any of the four origins to ``model``.

    Raises:
        InputError: one line; the model is then left as it was.
        OSError: if the file cannot be read.
    """
    state, name = read_state(source)
    looks = recognise(state)
    if looks is not None and looks.startswith("torchvision"):
        state = from_torchvision(state)
    wanted = "RAFT-small" if model.config.bottleneck else "RAFT"
    fit(model, _without_aliases(state, name), name, wanted, looks)


def _without_aliases(state: State, name: str) -> State:
    """Princeton's name the norm of a shortcut twice, ``norm3`` (behind a bottleneck ``norm4``) and ``downsample.1``.

    Safetensors keep one of the two.
    """
    kept: State = {}
    for key, value in state.items():
        block = key.rpartition(".")[0].rpartition(".")[0]
        twin = "norm4" if f"{block}.conv3.weight" in state else "norm3"
        renamed = key.replace(f".{twin}.", ".downsample.1.")
        if renamed in kept and not torch.equal(kept[renamed], value):
            raise InputError(f"{name}: expected {key} and {renamed} to be the same norm, they differ")
        kept[renamed] = value
    return kept


def from_torchvision(state: Mapping[str, Tensor]) -> State:
    """The same tensors under our names; names that are not torchvision's stay."""
    one_gru = "update_block.recurrent_block.convgru2.convz.weight" not in state
    return {_renamed(key, one_gru): value for key, value in state.items()}


def _renamed(key: str, one_gru: bool) -> str:
    stem, _, field = key.rpartition(".")
    first, _, rest = stem.partition(".")
    if first in _ENCODERS:
        return f"{_ENCODERS[first]}.{_encoder_part(rest)}.{field}"
    if stem in _MASK:
        return f"update_block.{_MASK[stem]}.{field}"
    if first == "update_block" and rest in _UPDATE:
        return f"update_block.{_UPDATE[rest]}.{field}"
    gru = re.fullmatch(r"recurrent_block\.convgru([12])\.(conv[zrq])", rest)
    if first == "update_block" and gru:
        return f"update_block.gru.{gru[2]}{'' if one_gru else gru[1]}.{field}"
    return key


def _encoder_part(rest: str) -> str:
    if rest == "conv":
        return "conv2"
    block = _BLOCK.fullmatch(rest)
    if block is None:
        return rest
    return f"{block['place']}{'norm' if block['part'] == '1' else 'conv'}{block['number'] or '1'}"
