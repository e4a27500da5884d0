"""What launches of kernels compiled at run time share: where a tensor lies, and one structure of parameters."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels import nvrtc
from fullfield._kernels.nvrtc import Libraries, Source, addresses

OLDEST = (8, 0)
MOST_BLOCKS = 2**31 - 1
# What kernels of several operators are built behind.
HALVES, PRODUCTS, SORT_ROWS = (
    Path(nvrtc.__file__).with_name(name) for name in ("halves.cuh", "products.cuh", "sort_rows.cuh")
)


def why_not(device: torch.device) -> str | None:
    """None where kernels run on the device, else the reason that they do not."""
    if device.type != "cuda":
        return f"runs on NVIDIA GPUs, the tensors are on {device.type}"
    if device.index is None:
        return _why_not(torch.cuda.current_device() if torch.cuda.is_available() else -1)
    return _why_not(device.index)


@functools.cache
def _why_not(index: int) -> str | None:
    if not torch.cuda.is_available():
        return "no NVIDIA GPU or driver was found"
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST:
        return f"needs compute capability {OLDEST[0]}.{OLDEST[1]}, got {capability[0]}.{capability[1]}"
    return nvrtc.why_not()


@functools.cache
def read_source(*files: Path) -> str:
    """The files' text, one after the other."""
    return "".join(file.read_text("utf-8") for file in files)


@functools.cache
def arch_of(index: int) -> str:
    """What to compile for."""
    about = torch.cuda.get_device_properties(index)
    return nvrtc.nvrtc().target((about.major, about.minor))


def raw_stream(index: int) -> int:
    """The device's current stream."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # type: ignore[attr-defined, unused-ignore]
    return stream


def launch(
    libraries: Libraries,
    source: Source,
    name: str,
    items: int,  # blocks of ``threads`` threads are made for so many items, ``each`` a block
    each: int,
    params: ctypes.Structure,
    like: Tensor,
    threads: int = 256,
) -> None:
    """On the current stream of the tensor's device."""
    blocks = -(-items // each)
    if blocks <= 0:
        return
    if blocks > MOST_BLOCKS:
        raise ValueError(f"{name}: expected at most {MOST_BLOCKS} blocks, got {blocks}")
    index = like.get_device()
    with torch.cuda.device(index):
        library = libraries.load([source], arch_of(index), index)[0]
        library[name].launch((blocks, 1), threads, 0, index, raw_stream(index), addresses(params))


def structure(name: str, *fields: tuple[str, object]) -> type[ctypes.Structure]:
    """Parameters of a kernel, field by field as its source declares them."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def address(tensor: Tensor | None) -> int | None:
    """For a field of such a structure."""
    return None if tensor is None else tensor.data_ptr()
