"""Compact copies of training runs, to carry a run to another machine or to keep it.

A run's state takes 16 bytes per parameter: weights, their average, and both moments of the optimizer. A packed run
takes 3.7, split into files of limited size. Vectors and single numbers stay exact; all other tensors are rounded:

- weights to float16, which changes them less than a step of training does;
- the average, as its difference from these weights, to 4 bits and a scale for every 64 values;
- the first moment likewise;
- the logarithm of the second moment to 4 bits, between the lowest and highest of every 64 values.

A run that continues from such a copy has the loss of one that never stopped, within the noise between batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield._check import InputError
from fullfield._ledger.notes import read_json_object, write_json_file_atomically
from fullfield.io.files import write_atomically
from fullfield.models.state import read_safetensors
from fullfield.training.checkpoint import HISTORY, POINTER, RECIPE, STATE, WEIGHTS, has_checkpoint, write_safetensors

INDEX = "packed.json"
_FILE = "packed-{}.safetensors"
_BLOCK = 64
_TOP = 7  # codes of signed values are -7 ... 7
_STEPS = 15  # codes of logarithms are 0 ... 15
_LOGARITHMS = 20.0  # values under 2^-20 of their block's highest are raised to it
_MODEL, _AVERAGE, _FIRST, _SECOND = "model", "average", "exp_avg", "exp_avg_sq"
_STATES = (_MODEL, _AVERAGE, _FIRST, _SECOND)


def pack_run_lossily(
    run_folder: str | os.PathLike[str], packed_folder: str | os.PathLike[str], *, max_file_bytes: int = 15 << 20
) -> list[Path]:
    """Write a compact copy of a run's state to the folder ``packed_folder``; return its files.

    Args:
        run_folder: folder of a run with a checkpoint, see :class:`~fullfield.training.checkpoint.TrainingFolder`.
        packed_folder: new or empty folder, or one with an earlier copy, which is replaced.
        max_file_bytes: size limit of a file. A tensor is never divided.

    Raises:
        InputError: if the folder has no checkpoint or ``packed_folder`` holds other files.
    """
    run_folder, packed_folder = Path(run_folder), Path(packed_folder)
    _check.check_number(max_file_bytes, "max_file_bytes", integer=True, low=1 << 16)
    if not has_checkpoint(run_folder):
        raise InputError(f"{run_folder}: expected the folder of a run with a checkpoint, got none")
    packed_folder.mkdir(parents=True, exist_ok=True)
    earlier = [packed_folder / INDEX, *packed_folder.glob(_FILE.format("*"))]
    foreign = sorted({path.name for path in packed_folder.iterdir()} - {path.name for path in earlier})
    if foreign:
        raise InputError(f"{packed_folder}: expected an empty folder or a packed run, got {foreign[0]}")
    pointer = read_json_object(run_folder / STATE / POINTER)
    files: list[dict[str, Tensor]] = [{}]
    free_bytes = max_file_bytes
    for key, tensor in _iterate_packed_tensors(run_folder / STATE, pointer["step"]):
        size = tensor.numel() * tensor.element_size() + len(key) + 200  # and its entry in the header
        if size > free_bytes and files[-1]:
            files.append({})
            free_bytes = max_file_bytes
        files[-1][key] = tensor
        free_bytes -= size
    for path in earlier:
        path.unlink(missing_ok=True)
    names = [_FILE.format(number) for number in range(len(files))]
    for name, content in zip(names, files, strict=True):
        write_safetensors(packed_folder / name, content)
    history = run_folder / HISTORY
    index = {
        "files": names,
        "recipe": read_json_object(run_folder / RECIPE),
        "state": {**pointer, "best": None} if "best" in pointer else pointer,  # the best weights are not packed
        "history": history.read_text("utf-8") if history.is_file() else "",
    }
    write_json_file_atomically(packed_folder / INDEX, index)
    return [packed_folder / INDEX, *(packed_folder / name for name in names)]


def unpack_run(packed_folder: str | os.PathLike[str], run_folder: str | os.PathLike[str]) -> Path:
    """Write the folder of a run from its compact copy; return it.

    Args:
        packed_folder: folder that :func:`pack_run_lossily` wrote.
        run_folder: new or empty folder.

    Raises:
        InputError: if the copy is incomplete or damaged, or the folder is not empty.
    """
    packed_folder, run_folder = Path(packed_folder), Path(run_folder)
    if not (packed_folder / INDEX).is_file():
        raise InputError(f"{packed_folder}: expected a packed run, got a folder without {INDEX}")
    if run_folder.exists() and any(run_folder.iterdir()):
        raise InputError(f"{run_folder}: expected a new or empty folder")
    index = read_json_object(packed_folder / INDEX)
    unreadable = f"{packed_folder / INDEX}: expected a packed run, cannot be read"
    try:
        step, files = int(index["state"]["step"]), [packed_folder / str(name) for name in index["files"]]
        recipe, pointer, history = index["recipe"], index["state"], str(index["history"])
    except (KeyError, TypeError, ValueError):
        raise InputError(unreadable) from None
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: is named by {INDEX}, but is missing")
    content = {key: value for path in files for key, value in read_safetensors(path).items()}
    try:
        states = _dequantize_packed_tensors(content)
    except (KeyError, RuntimeError):
        raise InputError(unreadable) from None
    (run_folder / STATE).mkdir(parents=True, exist_ok=True)
    for kind, tensors in states.items():
        write_safetensors(run_folder / STATE / f"{step}.{kind}.safetensors", tensors)
    write_safetensors(run_folder / WEIGHTS, states.get(_AVERAGE, states[_MODEL]))
    write_json_file_atomically(run_folder / RECIPE, recipe)
    with write_atomically(run_folder / HISTORY) as temporary:
        temporary.write_text(history, "utf-8")
    write_json_file_atomically(run_folder / STATE / POINTER, pointer)
    return run_folder


def _iterate_packed_tensors(state_folder: Path, step: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a packed run, by state, name and form."""
    files = {state: state_folder / f"{step}.{state}.safetensors" for state in _STATES}
    states = {state: read_safetensors(path) for state, path in files.items() if path.is_file()}
    rounded: dict[str, Tensor] = {}
    for state, tensors in states.items():
        for name, value in tensors.items():
            key = f"{state}/{name}"
            is_rounded = value.ndim >= 2 and value.is_floating_point() and bool(value.half().isfinite().all())
            if not is_rounded or (state == _AVERAGE and name not in rounded):
                yield f"{key}/exact", value
            elif state == _MODEL:
                rounded[name] = value.half()
                yield f"{key}/half", rounded[name]
            elif state == _SECOND:
                for kind_name, packed in zip(("codes", "lowest", "span"), _quantize_logarithms(value), strict=True):
                    yield f"{key}/{kind_name}", packed
                yield f"{key}/shape", torch.tensor(value.shape)
            else:
                change = value - rounded[name].to(value.dtype) if state == _AVERAGE else value
                for kind_name, packed in zip(("codes", "scale"), _quantize_signed(change), strict=True):
                    yield f"{key}/{kind_name}", packed
                yield f"{key}/shape", torch.tensor(value.shape)


def _dequantize_packed_tensors(packed_tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a run by state and name."""
    forms: dict[tuple[str, str], dict[str, Tensor]] = {}
    for key, value in packed_tensors.items():
        state, _, rest = key.partition("/")
        name, _, kind_name = rest.rpartition("/")
        forms.setdefault((state, name), {})[kind_name] = value
    states: dict[str, dict[str, Tensor]] = {}
    for state in _STATES:  # the average needs the weights
        for (own_state, name), packed in forms.items():
            if own_state != state:
                continue
            if "exact" in packed:
                value = packed["exact"]
            elif "half" in packed:
                value = packed["half"].float()
            elif "span" in packed:
                value = _dequantize_logarithms(
                    packed["codes"], packed["lowest"], packed["span"], packed["shape"].tolist()
                )
            else:
                value = _dequantize_signed(packed["codes"], packed["scale"], packed["shape"].tolist())
                if state == _AVERAGE:
                    value = value + states[_MODEL][name]
            states.setdefault(state, {})[name] = value
    return states


def _split_into_blocks(values: Tensor) -> Tensor:
    """Return the values as rows of a block each; the last value fills the last row."""
    flat = values.detach().float().reshape(1, -1)
    return functional.pad(flat, (0, -flat.shape[1] % _BLOCK), mode="replicate").view(-1, _BLOCK)


def _pack_4bit_codes(codes: Tensor) -> Tensor:
    """Return two codes of 4 bits in each byte."""
    pairs = codes.to(torch.uint8).view(-1, 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def _unpack_4bit_codes(codes: Tensor) -> Tensor:
    """Return the codes of :func:`_pack_4bit_codes` as rows of a block each."""
    return torch.stack((codes & 15, codes >> 4), 1).view(-1, _BLOCK).float()


def _join_blocks(blocks: Tensor, shape: list[int]) -> Tensor:
    count = torch.Size(shape).numel()
    return blocks.reshape(-1)[:count].reshape(shape)


def _quantize_signed(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and the highest magnitude of each block."""
    blocks = _split_into_blocks(values)
    scale = blocks.abs().amax(1).bfloat16()
    unit = torch.where(scale > 0, scale.float(), 1.0)[:, None] / _TOP
    return _pack_4bit_codes((blocks / unit).round().clamp(-_TOP, _TOP) + _TOP), scale


def _dequantize_signed(codes: Tensor, scale: Tensor, shape: list[int]) -> Tensor:
    return _join_blocks((_unpack_4bit_codes(codes) - _TOP) * (scale.float()[:, None] / _TOP), shape)


def _quantize_logarithms(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, and the lowest logarithm to base 2 and the span of each block; the lowest is -inf for zeros."""
    blocks = _split_into_blocks(values)
    highest = blocks.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    logarithms = torch.log2(torch.maximum(blocks, highest * 2.0**-_LOGARITHMS))
    lowest = logarithms.amin(1).half()
    span = (logarithms.amax(1) - lowest.float()).clamp(min=0.0).half()
    unit = torch.where(span > 0, span.float(), 1.0)[:, None] / _STEPS
    codes = ((logarithms - lowest.float()[:, None]) / unit).round().clamp(0, _STEPS)
    zero = blocks.amax(1) == 0
    return _pack_4bit_codes(codes), torch.where(zero, -torch.inf, lowest.float()).half(), torch.where(zero, 0.0, span)


def _dequantize_logarithms(codes: Tensor, lowest: Tensor, span: Tensor, shape: list[int]) -> Tensor:
    return _join_blocks(
        torch.exp2(lowest.float()[:, None] + _unpack_4bit_codes(codes) * (span.float()[:, None] / _STEPS)), shape
    )
