"""What launches of kernels compiled at run time share: where a tensor lies, and one structure of parameters."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fullfield._kernels import nvrtc
from fullfield._kernels.missing import Missing
from fullfield._kernels.nvrtc import Libraries, Source

OLDEST = (8, 0)
MOST_BLOCKS = 2**31 - 1
# What kernels of several operators are built behind.
HALVES, VALUES, PRODUCTS, SORT_ROWS, BATCHES = (
    Path(nvrtc.__file__).with_name(f"{name}.cuh") for name in ("halves", "values", "products", "sort_rows", "batches")
)
# As batches.cuh has them: problems of a launch, numbers that a block sums.
MOST_PROBLEMS, SUMMED = 16, 2048


def why_not(device: torch.device) -> str | None:
    """None where kernels run on the device, else the reason that they do not."""
    if device.type != "cuda" or torch.version.hip is not None:
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
        return Missing(f"needs compute capability {OLDEST[0]}.{OLDEST[1]}, got {capability[0]}.{capability[1]}")
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


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether an operator may go past the dispatcher: nothing is traced or transformed, nobody overrides anything."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not torch.nn.Parameter and tensor is not None:
            return False
    return True


def refuse_forward_mode(**tensors: Tensor | None) -> None:
    """For operators that have no such derivative: registered ones would drop tangents without a word.

    Raises:
        NotImplementedError: for a tensor with a tangent, by the name of its argument.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            raise NotImplementedError(f"{name}: has a forward-mode tangent; only reverse mode is there (vjp, jacrev)")


def raw_stream(index: int) -> int:
    """The device's current stream."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # type: ignore[attr-defined, unused-ignore]
    return stream


class Kernels:
    """One source's kernels on one device."""

    __slots__ = ("_index", "_library")

    def __init__(self, library: Any, index: int) -> None:
        self._library, self._index = library, index

    def launch(
        self, name: str, blocks: int, threads: int, params: ctypes.Structure, shared: int = 0, rows: int = 1
    ) -> None:
        """``rows`` of ``blocks`` on the current stream of the device; without blocks, nothing."""
        if blocks <= 0 or rows <= 0:
            return
        if blocks > MOST_BLOCKS:
            raise ValueError(f"{name}: expected at most {MOST_BLOCKS} blocks, got {blocks}")
        index, kernel = self._index, self._library[name]
        if shared > _SHARED_BY_DEFAULT:
            kernel.allow_shared(index, shared)
        pointer = _ONE_ARGUMENT(ctypes.addressof(params))
        if _is_current(index):  # a context takes the host as long as a launch
            kernel.launch((blocks, rows), threads, shared, index, raw_stream(index), pointer)
            return
        with torch.cuda.device(index):
            kernel.launch((blocks, rows), threads, shared, index, raw_stream(index), pointer)


# By the libraries, the source and the device, for `Libraries.load` takes the host longer than a launch.
_KERNELS: dict[tuple[Any, Source, int], Kernels] = {}
_SHARED_BY_DEFAULT = 48 << 10
_ONE_ARGUMENT = ctypes.c_void_p * 1
_current_device: Callable[[], int] | None = getattr(torch._C, "_cuda_getDevice", None)


def _is_current(index: int) -> bool:
    return _current_device is None or _current_device() == index


def kernels(libraries: Libraries, source: Source, index: int) -> Kernels:
    """Compiled and loaded where this is the first call."""
    key = (libraries, source, index)
    found = _KERNELS.get(key)
    if found is None:
        with nullcontext() if _is_current(index) else torch.cuda.device(index):
            found = _KERNELS[key] = Kernels(libraries.load([source], arch_of(index), index)[0], index)
    return found


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
    if items > 0:
        kernels(libraries, source, like.get_device()).launch(name, -(-items // each), threads, params)


def batch(each: type[ctypes.Structure]) -> Any:
    """Structure of what batches.cuh calls a batch."""
    return structure("Batch", ("each", each * MOST_PROBLEMS), ("begin", ctypes.c_int * (MOST_PROBLEMS + 1)))


def launch_batch(kernels: Kernels, name: str, params: Any, blocks: Sequence[int], threads: int = 256) -> None:
    """One launch of a batch of problems that take so many blocks each."""
    total = sum(blocks)
    if total <= MOST_BLOCKS:
        params.begin[:] = [*accumulate(blocks, initial=0), *[total] * (MOST_PROBLEMS - len(blocks))]
    kernels.launch(name, total, threads, params)


def structure(name: str, *fields: tuple[str, object]) -> type[ctypes.Structure]:
    """Parameters of a kernel, field by field as its source declares them."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def address(tensor: Tensor | None) -> int | None:
    """For a field of such a structure."""
    return None if tensor is None else tensor.data_ptr()
