"""TV-L1 solver: contract, validation, choice of backend, and the registered operator ``fullfield::tvl1``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops._backends import Backends
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.frames import QueuedFlow, add_device_index, check_and_detach_frame, check_solver_arguments

BACKENDS = ("cuda", "cpu", "reference")
"""In order of preference."""
SOLVERS = Backends("TV-L1", f"{__package__}.", BACKENDS)


def explain_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, config: TVL1Config | None = None
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that can run here, (name, reason) for others; preferred first."""
    return SOLVERS.list_refusals(torch.device(device), dtype, TVL1Config() if config is None else config)


class TVL1Solver:
    """TV-L1 optical flow, prepared for frames of one size: tables and buffers are allocated once and reused.

    One call at a time: calls from several threads wait for each other; use one solver per thread for parallel work.
    A solver can be pickled and copied (with new buffers) and used after a fork.
    The threads inside a call are PyTorch's (``torch.set_num_threads``); the result does not depend on their number.
    On a GPU a call reads one flag back, to complain of values that are not finite, and so waits for the device, unless
    the caller records a CUDA graph (then call once before); :class:`PersistentSolver` never waits. The backend
    ``cuda`` keeps the buffers of the last batch size and records a CUDA graph at the second call with it.

    Args:
        height, width: size of the frames; at least two pixels in all.
        config: parameters, by default the preset ``default``.
        dtype: float32, or float64 (reference backend only). Frames of another floating type are converted.
        device: where the frames lie.
        backend: ``"cuda"``, ``"cpu"`` or ``"reference"``; None takes the fastest that can run.

    Raises InputError for bad arguments or a backend that cannot run here.
    Source: Zach, Pock, Bischof 2007; numerics as in Pérez, Meinhardt-Llopis, Facciolo, IPOL 2013.
    """

    def __init__(
        self,
        height: int,
        width: int,
        config: TVL1Config | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        backend: str | None = None,
    ) -> None:
        self.config = TVL1Config() if config is None else config
        check_solver_arguments(height, width, self.config, TVL1Config, dtype)
        self.height, self.width = height, width
        self.dtype, self.device = dtype, add_device_index(_check.resolve_available_device(device))
        if backend is None and self.config.cuda_only_feature is not None and self.device.type != "cuda":
            got = f"{self.config.precision!r} on {self.device.type}"
            raise InputError(f"precision: expected 'float32', or an NVIDIA GPU as device, got {got}")
        self.backend = SOLVERS.choose(backend, self.device, dtype, self.config)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._solver = SOLVERS.load(self.backend).create_solver(height, width, self.config, self.device, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "backend": self.backend}
        return partial(TVL1Solver, **options), (self.height, self.width, self.config)

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
        frame2: Tensor,  # [B, C, H, W]
        *,
        initial_flow: Tensor | None = None,  # [B, 2, H, W], pixels
        progress: Callable[[float, str], None] | None = None,
    ) -> Tensor:  # [B, 2, H, W]: (u, v), x right, y down, pixels of the first frame
        """Estimate the flow from ``frame1`` to ``frame2``, converted to grey (Rec. 601 luma). Not differentiable.

        ``progress(fraction, where)`` is called after every warp. Raises InputError for tensors of another size, type
        or device than the solver's, and for frames that hold NaN or infinity.
        """
        queued = self.queue(frame1, frame2, initial_flow=initial_flow, progress=progress)
        queued.wait_and_check()
        return queued.flow

    def queue(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        progress: Callable[[float, str], None] | None = None,
    ) -> QueuedFlow:
        """Do as a call does, but wait for a GPU and look at the flags only in the result's ``wait_and_check``.

        Until ``wait_and_check`` has returned, the flow may be of frames that a call refuses.
        """
        first, second = (
            check_and_detach_frame(frame, name, self.height, self.width, self.device)
            for frame, name in ((frame1, "frame1"), (frame2, "frame2"))
        )
        _check.require(first.shape == second.shape, "frame2", f"shape {list(first.shape)} like frame1", frame2)
        start = None
        if initial_flow is not None:
            shape = (len(first), 2, self.height, self.width)
            _check.check_tensor(initial_flow, "initial_flow", shape, device=first.device)
            start = initial_flow.detach().to(self.dtype)
        if self._process != os.getpid():  # forked, perhaps while a thread of the parent held the lock
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if self.backend == "cuda":
                queued: QueuedFlow = self._solver.queue(first, second, start, progress)
                return queued
            flow: Tensor = self._solver(first, second, start, progress)
        return QueuedFlow(flow)


# The fields of TVL1Config one by one, since a schema holds plain values only and torch.compile traces plain values.
_SCHEMA = (
    "(Tensor frame1, Tensor frame2, Tensor? initial_flow, str? backend, *, float lambda_, float theta, float tau, "
    "int? scales, float scale_factor, int warps, int iterations, int median, float gradient_blend, str borders, "
    "str precision) -> Tensor"
)


def _choose_solver_dtype(frame: Tensor) -> torch.dtype:
    return torch.float64 if frame.dtype == torch.float64 else torch.float32


def _solve_with_new_solver(
    frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, backend: str | None, **parameters: Any
) -> Tensor:
    height, width = frame1.shape[-2:]
    config = TVL1Config(**parameters)
    solver = TVL1Solver(
        height, width, config, dtype=_choose_solver_dtype(frame1), device=frame1.device, backend=backend
    )
    return solver(frame1, frame2, initial_flow=initial_flow)


tvl1_op = torch.library.custom_op("fullfield::tvl1", _solve_with_new_solver, mutates_args=(), schema=_SCHEMA)


@tvl1_op.register_fake
def _solve_with_new_solver_fake(frame1: Tensor, *_: Any, **__: Any) -> Tensor:
    return frame1.new_empty(frame1.shape[0], 2, *frame1.shape[2:], dtype=_choose_solver_dtype(frame1))


def tvl1(
    frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    config: TVL1Config | None = None,
    *,
    initial_flow: Tensor | None = None,  # [B, 2, H, W], pixels
    backend: str | None = None,
) -> Tensor:  # [B, 2, H, W]: (u, v), x right, y down, pixels of the first frame
    """Estimate the flow from ``frame1`` to ``frame2`` by the registered operator, usable under torch.compile.

    Builds a :class:`TVL1Solver` for every call; keep a solver to reuse its buffers or to see progress. float64 frames
    are solved in float64 (reference backend), all others in float32. Errors as the solver's.
    """
    c = TVL1Config() if config is None else config
    if not isinstance(c, TVL1Config):  # worded only here: torch.compile traces this function
        raise _check.InputError(f"config: expected a TVL1Config, got {_check.describe_value(c)}")
    _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
    _check.check_tensor(frame2, "frame2", ("B", "C", "H", "W"))
    flow: Tensor = tvl1_op(frame1, frame2, initial_flow, backend, **c.as_dict())
    return flow
