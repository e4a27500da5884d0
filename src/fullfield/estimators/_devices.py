"""Devices: copies through page-locked memory, the guard against forked processes, and float32 convolutions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import SetupError
from fullfield._switch import SharedSwitch
from fullfield.ops.devices import AUTO, resolve_device

_CHUNK = 64 << 20  # bytes of page-locked memory at a time; more would stay locked in PyTorch's cache


def choose_common_device_or_default(frames: Sequence[object]) -> torch.device:
    """Return the device of the tensors among ``frames``; without any the first GPU with kernels, else the CPU."""
    tensors = [frame for frame in frames if isinstance(frame, Tensor) and frame.device.type != "meta"]
    for tensor in tensors:
        is_same = tensor.device == tensors[0].device
        expected = f"a name, as the frames are on {tensors[0].device} and {tensor.device}"
        _check.require(is_same, "device", expected, repr(AUTO))
    return tensors[0].device if tensors else resolve_device(AUTO)


@contextmanager
def limit_torch_threads(thread_count: int | None) -> Iterator[None]:
    """Set the number of PyTorch's CPU threads in this process for the enclosed work; None leaves it."""
    if thread_count is None:
        yield
        return
    _check.check_number(thread_count, "threads", integer=True, low=1)
    before = torch.get_num_threads()
    torch.set_num_threads(int(thread_count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device``; the tensor itself if it is there already.

    From the host to a CUDA device the copy goes through page-locked memory and does not wait for the GPU. Copies to
    the host are complete when this returns.
    """
    if device.type == "cpu":
        return to_host(values)
    if values.device.type == "cpu" and device.type == "cuda" and not values.is_pinned():
        try:
            return _copy_in_page_locked_chunks(values, device)
        except RuntimeError:  # the system has no more page-locked memory
            pass
    return values.to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Return ``values`` on the CPU; the tensor itself if it is there already.

    Values from a CUDA device are in page-locked memory, which PyTorch reuses once the tensor is dropped.
    """
    if values.device.type != "cuda":
        return values.cpu()
    try:
        host_values = _allocate_page_locked(values.shape, values.dtype)
    except RuntimeError:
        return values.cpu()
    host_values.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    return host_values


def _copy_in_page_locked_chunks(values: Tensor, device: torch.device) -> Tensor:
    """Copy to ``device`` in chunks. PyTorch reuses a chunk's memory only after its copy has ended."""
    flat = values.contiguous().flatten()
    device_values = torch.empty(flat.shape, dtype=flat.dtype, device=device)
    step = max(1, _CHUNK // flat.element_size())
    for chunk, target in zip(torch.split(flat, step), torch.split(device_values, step), strict=True):
        target.copy_(_allocate_page_locked(chunk.shape, chunk.dtype).copy_(chunk), non_blocking=True)
    return device_values.view(values.shape)


def _allocate_page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return uninitialised page-locked memory."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


class _ForkState:
    """State of this process: whether it has computed, and whether its parent had when it forked."""

    has_computed = False
    was_forked_after_computing = False


def check_fork_safety_and_record_use(device: torch.device) -> None:
    """Refuse to compute where the parent computed before it forked; otherwise note that this process computes.

    One CPU thread, as in the workers of a ``DataLoader``, is safe on either side of the fork.

    Raises:
        SetupError: one line that names ``spawn`` and ``threads=1``.
    """
    safe = device.type == "cpu" and torch.get_num_threads() == 1
    if _ForkState.was_forked_after_computing and not safe:
        raise SetupError(
            "process: was forked after its parent had computed, so PyTorch's threads would hang; start workers with "
            "multiprocessing.get_context('spawn'), or compute on the CPU with threads=1"
        )
    _ForkState.has_computed = _ForkState.has_computed or not safe


def _record_in_child_if_parent_computed() -> None:
    _ForkState.was_forked_after_computing = _ForkState.has_computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_in_child_if_parent_computed)


def create_context_without_tf32_convolutions(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which cuDNN multiplies float32 as float32; PyTorch's default is TF32, with 10 bits.

    The switch is process-wide: it holds for every thread until the last one has left, and is then restored.
    """
    return _FLOAT32 if device.type == "cuda" else nullcontext()


def _disable_tf32_and_return_restore() -> Callable[[], None]:
    """Switch TF32 off, and return a function that restores it."""
    cudnn: Any = torch.backends.cudnn
    try:
        name, before, owner = "allow_tf32", cudnn.allow_tf32, cudnn
    except RuntimeError:  # the switches of PyTorch 2.9 are in use; the two kinds do not mix
        name, before, owner = "fp32_precision", cudnn.conv.fp32_precision, cudnn.conv
    setattr(owner, name, False if name == "allow_tf32" else "ieee")
    return lambda: setattr(owner, name, before)


_FLOAT32 = SharedSwitch(_disable_tf32_and_return_restore)
