"""torchvision's names of RAFT's weights, mapped to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from fullfield.models.state import State

# Part by part; "convnormrelu2.1" is the norm behind the second convolution, and so on.
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
