"""Launches of kernels compiled at run time: devices, codes of dtypes, immediate and prepared launches."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fullfield._kernels import Missing, nvrtc
from fullfield._kernels.nvrtc import Kernel, KernelSource, LibraryCache
from fullfield._kernels.structures import CStructures

OLDEST, BFLOAT16 = (7, 5), (8, 0)
"""Compute capability that kernels need; that of tensor cores which multiply bfloat16."""
MAX_BLOCKS = 2**31 - 1
# Sources that kernels of several operators are built behind.
HALVES, VALUES, PRODUCTS, COPIES, BARRIERS, WARPS, SORT_ROWS, BATCHES, CONVEX_CELLS = (
    Path(nvrtc.__file__).with_name(f"{name}.cuh")
    for name in ("halves", "values", "products", "copies", "barriers", "warps", "sort_rows", "batches", "convex_cells")
)
CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""What the kernels' macros call the dtypes of features."""
FRAMES = {**CODES, torch.uint8: 3}
"""Those of frames."""


def explain_unsupported_device(device: torch.device) -> str | None:
    """Return None where kernels run on the device, else the reason that they do not."""
    reason = explain_not_nvidia_gpu(device)
    if reason is not None:
        return reason
    if device.index is None:
        return _explain_unsupported_gpu(torch.cuda.current_device() if torch.cuda.is_available() else -1)
    return _explain_unsupported_gpu(device.index)


# As torch.compiler.assume_constant_result has it, which would import the compiler: traced code asks while it is traced.
explain_unsupported_device.__dict__["_dynamo_marked_constant"] = True


def explain_not_nvidia_gpu(device: torch.device) -> str | None:
    """Return None if the device is an NVIDIA GPU to PyTorch, else the reason, which names the device."""
    if device.type == "cuda" and torch.version.hip is None:
        return None
    # PyTorch for ROCm calls AMD's GPUs "cuda" as well.
    name = f"{_get_rocm_gpu_name(device.index or 0)} (ROCm)" if device.type == "cuda" else device.type
    return f"runs on NVIDIA GPUs, the tensors are on {name}"


@functools.cache
def _get_rocm_gpu_name(device_index: int) -> str:
    return torch.cuda.get_device_name(device_index) if torch.cuda.is_available() else "an AMD GPU"


@functools.cache
def _explain_unsupported_gpu(device_index: int) -> str | None:
    if not torch.cuda.is_available():
        return "no NVIDIA GPU or driver was found"
    return _explain_too_old_gpu(device_index, OLDEST) or nvrtc.explain_missing_nvrtc()


def _explain_too_old_gpu(device_index: int, minimum: tuple[int, int], purpose: str = "") -> Missing | None:
    capability = torch.cuda.get_device_capability(device_index)
    if capability >= minimum:
        return None
    return Missing(f"needs compute capability {minimum[0]}.{minimum[1]}{purpose}, got {capability[0]}.{capability[1]}")


def explain_missing_bfloat16(device: torch.device) -> Missing | None:
    """Return None where the tensor cores of a CUDA device multiply bfloat16, else the reason that they do not."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return _explain_too_old_gpu(index, BFLOAT16, " for bfloat16")


explain_missing_bfloat16.__dict__["_dynamo_marked_constant"] = True


@functools.cache
def read_source(*files: Path) -> str:
    """Return the files' text, one after the other."""
    return "".join(file.read_text("utf-8") for file in files)


# Problems of a launch, numbers that a block sums.
MAX_PROBLEMS, SUMMED = map(CStructures(read_source(BATCHES)).evaluate_integer_sum, ("MAX_PROBLEMS", "SUMMED"))


@dataclass(frozen=True, eq=False)  # told apart as objects: plans are looked up by them in every call
class GpuProperties:
    """Properties of a GPU that launches depend on."""

    index: int
    name: str
    arch: str
    """Architecture to compile for."""
    processors: int
    shared: int
    """Bytes of shared memory that one block may take."""

    @property
    def capability(self) -> int:
        """Compute capability times 10, of the GPU or of the PTX that it runs."""
        return int("".join(filter(str.isdecimal, self.arch)))

    @property
    def is_hopper(self) -> bool:
        """Return whether the device has sm_90's own instructions."""
        return self.arch == "sm_90a"

    @property
    def has_bfloat16_tensor_cores(self) -> bool:
        """Return whether the tensor cores multiply bfloat16; if not, features become float32."""
        return self.capability >= 10 * BFLOAT16[0] + BFLOAT16[1]


@functools.cache
def get_gpu_properties(device_index: int) -> GpuProperties:
    """Return the GPU with this number."""
    about = torch.cuda.get_device_properties(device_index)
    arch = nvrtc.load_nvrtc().choose_compilation_target((about.major, about.minor))
    shared = about.shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return GpuProperties(device_index, about.name, arch, about.multi_processor_count, shared)


def get_device_gpu_properties(device: torch.device) -> GpuProperties:
    """Return the GPU that a CUDA device names."""
    return get_gpu_properties(torch.cuda.current_device() if device.index is None else device.index)


def is_traced(*tensors: Tensor | None) -> bool:
    """Return whether a compiler, a dispatch mode or a tensor subclass watches the call."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not torch.nn.Parameter and tensor is not None:
            return True
    return False


def is_eager(*tensors: Tensor | None) -> bool:
    """Return whether an operator may bypass the dispatcher: nothing is traced or transformed."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return not is_traced(*tensors)


def refuse_forward_mode(**tensors: Tensor | None) -> None:
    """Refuse forward-mode tangents, which registered operators would drop without a word.

    Raises:
        NotImplementedError: if a tensor has a tangent; the message names its argument.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            raise NotImplementedError(f"{name}: has a forward-mode tangent; only reverse mode is there (grad, vjp)")


# Of a device its current stream, and the current device; without CUDA nobody asks.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
_SHARED_BY_DEFAULT = 48 << 10
_ONE_ARGUMENT = ctypes.c_void_p * 1


class LoadedKernels:
    """One source's kernels on one device."""

    __slots__ = ("_library", "index")

    def __init__(self, library: Any, index: int) -> None:
        self._library, self.index = library, index

    def get_kernel(self, name: str, shared_bytes: int = 0) -> Kernel:
        """Return the kernel, allowed ``shared_bytes`` bytes of shared memory."""
        kernel: Kernel = self._library[name]
        if shared_bytes > _SHARED_BY_DEFAULT:
            kernel.raise_shared_memory_limit(self.index, shared_bytes)
        return kernel

    def launch(
        self, name: str, blocks: int, threads: int, params: ctypes.Structure, shared_bytes: int = 0, grid_rows: int = 1
    ) -> None:
        """Launch ``grid_rows`` of ``blocks`` on the device's current stream; without blocks, do nothing."""
        if blocks <= 0 or grid_rows <= 0:
            return
        if blocks > MAX_BLOCKS:
            raise ValueError(f"{name}: expected at most {MAX_BLOCKS} blocks, got {blocks}")
        index, kernel = self.index, self._library[name]
        if shared_bytes > _SHARED_BY_DEFAULT:
            kernel.raise_shared_memory_limit(index, shared_bytes)
        pointer = _ONE_ARGUMENT(ctypes.addressof(params))
        if current_device() == index:  # a context takes the host as long as a launch
            kernel.launch((blocks, grid_rows), threads, shared_bytes, index, raw_stream(index), pointer)
            return
        with torch.cuda.device(index):
            kernel.launch((blocks, grid_rows), threads, shared_bytes, index, raw_stream(index), pointer)

    def launch_batch(self, name: str, params: Any, blocks: Sequence[int]) -> None:
        """Launch a :func:`build_batch_structure` of problems once; ``blocks`` holds the number of blocks of each."""
        total = sum(blocks)
        if total <= MAX_BLOCKS:
            params.begin[:] = [*accumulate(blocks, initial=0), *[total] * (MAX_PROBLEMS - len(blocks))]
        self.launch(name, total, 256, params)


class Launch:
    """A kernel and its parameters, for any number of launches.

    The parameters may change between them; what they point to is the caller's to keep.
    """

    __slots__ = ("_arguments", "_grid", "_index", "_kernel", "_shared", "_threads", "blocks", "early", "params")

    def __init__(
        self,
        kernels: LoadedKernels,
        name: str,
        blocks: int,
        threads: int,
        params: ctypes.Structure,
        shared_bytes: int = 0,
        *extra_addresses: int,  # addresses of further arguments
        early: bool = False,  # begins before the kernel ahead ends, and waits for its results itself
    ) -> None:
        self.blocks, self.params = blocks, params
        self._kernel, self._index = kernels.get_kernel(name, shared_bytes), kernels.index
        self._grid, self._threads, self._shared, self.early = (blocks, 1), threads, shared_bytes, early
        self._arguments = (ctypes.c_void_p * (1 + len(extra_addresses)))(ctypes.addressof(params), *extra_addresses)

    def __call__(self, stream: int) -> None:
        """Launch on a stream of the kernels' device, which is current."""
        self._kernel.launch(self._grid, self._threads, self._shared, self._index, stream, self._arguments, self.early)


# By the libraries, the source and the device, for `LibraryCache.load` takes the host longer than a launch.
_KERNELS: dict[tuple[Any, KernelSource, int], LoadedKernels] = {}


def load_kernels(libraries: LibraryCache, source: KernelSource, device_index: int) -> LoadedKernels:
    """Return a source's kernels, compiled and loaded at the first call."""
    loaded = _KERNELS.get((libraries, source, device_index))
    return load_several_kernels(libraries, [source], device_index)[0] if loaded is None else loaded


def load_several_kernels(
    libraries: LibraryCache, sources: Sequence[KernelSource], device_index: int
) -> list[LoadedKernels]:
    """Return :func:`load_kernels` of each source; compile together what is not compiled yet."""
    with nullcontext() if current_device() == device_index else torch.cuda.device(device_index):
        loaded = libraries.load(sources, get_gpu_properties(device_index).arch, device_index)
    for source, library in zip(sources, loaded, strict=True):
        _KERNELS.setdefault((libraries, source, device_index), LoadedKernels(library, device_index))
    return [_KERNELS[libraries, source, device_index] for source in sources]


def build_batch_structure(params_type: type[ctypes.Structure]) -> Any:
    """Return the structure that batches.cuh calls a batch."""
    return CStructures(read_source(BATCHES), Params=params_type)["Batch"]


def parse_structures(*files: Path) -> CStructures:
    """Return the structures that these sources declare."""
    return CStructures(read_source(*files))


def get_address(tensor: Tensor | None) -> int | None:
    """Return a tensor's address for a field of such a structure."""
    return None if tensor is None else tensor.data_ptr()
