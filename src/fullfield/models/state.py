"""Reading of weight files without executing their contents, recognition, and loading into a module."""

from __future__ import annotations

import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError

State: TypeAlias = dict[str, Tensor]

# Keys under which training programs store their state dicts, outermost first.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "params")
_MAX_KEYS = 3
_STEM = 32  # channels of fullfield-s' first convolution, where SEA-RAFT (S) has 64
# Other kinds of files, by their first bytes.
_INSTEAD = {
    b"<": "a web page, not the weights: download it again",
    b"version https://git": "a pointer of Git LFS, not the weights: fetch them with git lfs pull",
}
# Errors of torch.load for damaged files, found by damaging some.
_BROKEN = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    struct.error,
)

# torchvision's names of RAFT's weights; "convnormrelu2.1" is the norm after the second convolution, and so on.
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


def read_state_dict_and_name(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[State, str]:
    """Read the tensors of a ``.safetensors`` or PyTorch file, or of a state dict, onto the CPU.

    Prefixes of wrappers (``module.`` of DataParallel, ``_orig_mod.`` of torch.compile) are removed and wrappers such as
    ``{"state_dict": …}`` are opened. Nothing in a file is executed.

    Returns:
        The tensors by name, and the name of the file in messages.

    Raises:
        InputError: if the file holds no named tensors.
        OSError: if it cannot be read.
    """
    if isinstance(source, Mapping):
        return _unwrap_and_check_tensors(source, "state dict"), "state dict"
    path = Path(_check.convert_path_to_text(source, "weights"))
    name = str(path)
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise InputError(f"{name}: the file is empty (0 bytes)")
    size = path.stat().st_size
    if _is_safetensors(head, size):
        return _unwrap_and_check_tensors(read_safetensors(path), name), name
    if head[:2] != b"PK" and head[:1] != b"\x80":
        other = next(
            (words for prefix, words in _INSTEAD.items() if head.lstrip().startswith(prefix)), "something else"
        )
        raise InputError(f"{name}: expected weights (a PyTorch or safetensors file), got {other}")
    from safetensors import SafetensorError  # PyTorch selects its reader by the suffix

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about files that are refused below anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{name}: expected plain weights, got a pickle that also holds code or other objects; it was not opened"
        ) from None
    except (*_BROKEN, SafetensorError) as error:
        first = " ".join(str(error).split()).split(". ")[0][:120]
        raise InputError(f"{name}: expected a PyTorch file of weights, cannot be read ({first})") from None
    return _unwrap_and_check_tensors(content, name), name


def _is_safetensors(head: bytes, size: int) -> bool:
    """Return whether a file begins with the length of a header that fits into it, and the header."""
    return len(head) >= 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def read_safetensors(path: Path) -> State:
    """Read the tensors of a safetensors file onto the CPU; InputError if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except SafetensorError as error:
        raise InputError(f"{path}: expected a safetensors file, cannot be read ({str(error)[:120]})") from None


def _unwrap_and_check_tensors(content: object, name: str) -> State:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{name}: expected named tensors, got {_check.describe_value(content)}")
    state: State = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise InputError(f"{name}: expected named tensors, got {_check.describe_value(value)} at {key!r}")
        odd = _explain_unusable_tensor(value)
        if odd is not None:
            raise InputError(f"{name}: expected plain tensors of real numbers, got {odd} at {key!r}")
        state[key] = value
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _explain_unusable_tensor(value: Tensor) -> str | None:
    """Describe a tensor that cannot hold weights; None for a plain one."""
    if value.is_nested:
        return "a nested tensor"
    if value.is_meta:
        return "a tensor without data (on the device meta)"
    if value.is_quantized:
        return "a quantised tensor"
    if value.layout != torch.strided:
        return f"a {str(value.layout).removeprefix('torch.')} tensor"
    if value.is_complex():
        return f"a {str(value.dtype).removeprefix('torch.')} tensor"
    return None


def recognize_network_if_possible(state: Mapping[str, Tensor]) -> str | None:
    """Return the name of the network of a state dict, by its names and one or two shapes; None if it is unknown."""
    if "feature_encoder.convnormrelu.0.weight" in state:
        small = "mask_predictor.conv.weight" not in state
        return f"torchvision's raft_{'small' if small else 'large'}"
    if "upsample_weight.0.weight" in state and "cnet.conv1.weight" in state:
        deep = "cnet.layer1.2.conv1.weight" in state
        has_wide_layer = "update_block.refine.2.dwconv.weight" in state
        if has_wide_layer:
            return "SEA-RAFT"
        if deep:
            return "SEA-RAFT (L or M)"
        return "fullfield-s" if len(state["cnet.conv1.weight"]) == _STEM else "SEA-RAFT (S)"
    if "update_block.gru.convz.weight" in state and "fnet.layer1.0.conv3.weight" in state:
        return "RAFT-small"
    if any(key.startswith("att.") for key in state) and "update_block.aggregator.gamma" in state:
        return "GMA"
    if "update_block.gru.convz1.weight" in state and "update_block.mask.0.weight" in state:
        return "RAFT"
    return None


def rename_shortcut_norms_to_downsample(state: Mapping[str, Tensor], name: str, norm: str) -> State:
    """Return the state with one name for the norm of a shortcut, ``downsample.1``.

    Princeton's blocks also number it after their last convolution: ``norm3``, or ``norm4`` after a bottleneck.
    Safetensors keep one of the two names.

    Args:
        state: tensors by name.
        name: name of the file in messages.
        norm: prefix of the network's norms, ``norm`` or ``bn``.
    """
    renamed_state: State = {}
    names: dict[str, str] = {}
    for key, value in state.items():
        block = key.rpartition(".")[0].rpartition(".")[0]
        alias = f"{norm}{4 if f'{block}.conv3.weight' in state else 3}"
        renamed = key.replace(f".{alias}.", ".downsample.1.")
        if renamed in renamed_state and not torch.equal(renamed_state[renamed], value):
            raise InputError(f"{name}: expected {key} and {names[renamed]} to be the same norm, they differ")
        renamed_state[renamed], names[renamed] = value, key
    return renamed_state


def load_state_into(
    module: nn.Module, state: Mapping[str, Tensor], name: str, expected: str, recognised: str | None = None
) -> None:
    """Load ``state`` into ``module`` if every name, shape and type fits.

    Args:
        module: module to fill; it stays as it was if the state does not fit.
        state: tensors by name.
        name: name of the file in messages.
        expected: name of the module in messages.
        recognised: name of the network that the state was recognised as; by default
            :func:`recognize_network_if_possible` decides.

    Raises:
        InputError: naming what does not fit.
    """
    own = module.state_dict()
    missing = sorted(own.keys() - state.keys())
    unexpected = sorted(state.keys() - own.keys())
    wrong = [key for key in own if key in state and own[key].shape != state[key].shape]
    if missing or unexpected or wrong:
        recognised = recognize_network_if_possible(state) if recognised is None else recognised
        other = recognised not in (None, expected)
        reasons = [f"it looks like {recognised}"] if other else []
        max_keys = 1 if other else _MAX_KEYS
        reasons += [
            f"{word} {_join_first_keys(keys, max_keys)}"
            for word, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        ]
        if wrong:
            key = wrong[0]
            extra = f" and {len(wrong) - 1} more of another shape" if len(wrong) > 1 else ""
            reasons.append(f"{key} is {list(state[key].shape)} instead of {list(own[key].shape)}{extra}")
        raise InputError(f"{name}: expected weights of {expected}; {'; '.join(reasons)}")
    rounded = [key for key in own if own[key].is_floating_point() and not state[key].is_floating_point()]
    if rounded:
        dtype = str(state[rounded[0]].dtype).removeprefix("torch.")
        extra = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        raise InputError(f"{name}: expected floating weights of {expected}, got {dtype} at {rounded[0]!r}{extra}")
    module.load_state_dict(dict(state))


def _join_first_keys(keys: list[str], max_keys: int) -> str:
    extra = f" and {len(keys) - max_keys} more" if len(keys) > max_keys else ""
    return ", ".join(keys[:max_keys]) + extra


def convert_torchvision_keys(state: Mapping[str, Tensor]) -> State:
    """Return weights of torchvision's RAFT under our names; other names stay."""
    one_gru = "update_block.recurrent_block.convgru2.convz.weight" not in state
    return {_convert_torchvision_key(key, one_gru): value for key, value in state.items()}


def _convert_torchvision_key(key: str, one_gru: bool) -> str:
    stem, _, field = key.rpartition(".")
    first, _, rest = stem.partition(".")
    if first in _ENCODERS:
        return f"{_ENCODERS[first]}.{_convert_torchvision_encoder_name(rest)}.{field}"
    if stem in _MASK:
        return f"update_block.{_MASK[stem]}.{field}"
    if first == "update_block" and rest in _UPDATE:
        return f"update_block.{_UPDATE[rest]}.{field}"
    gru = re.fullmatch(r"recurrent_block\.convgru([12])\.(conv[zrq])", rest)
    if first == "update_block" and gru:
        return f"update_block.gru.{gru[2]}{'' if one_gru else gru[1]}.{field}"
    return key


def _convert_torchvision_encoder_name(encoder_key: str) -> str:
    if encoder_key == "conv":
        return "conv2"
    block = _BLOCK.fullmatch(encoder_key)
    if block is None:
        return encoder_key
    return f"{block['place']}{'norm' if block['part'] == '1' else 'conv'}{block['number'] or '1'}"
