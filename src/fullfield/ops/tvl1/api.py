"""Public functions: contract, validation, choice of backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.backends import Backends
from fullfield.ops.tvl1 import cpu, reference
from fullfield.ops.tvl1.config import TVL1Config

if TYPE_CHECKING:
    from typing import TypeAlias

    Progress: TypeAlias = Callable[[float, str], None]

BACKENDS = ("cuda", "cpu", "reference")
"""In order of preference."""
SOLVERS = Backends("TV-L1", f"{__package__}.", BACKENDS)
_LUMA = (0.299, 0.587, 0.114)  # Rec. 601, as cameras' and film's sRGB frames are commonly made grey
_BRIGHTEST = 1e6
# float32 holds every pixel position below.
LONGEST_SIDE = 2**24 - 1


def backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, config: TVL1Config | None = None
) -> list[tuple[str, str | None]]:
    """(name, None) for every backend that can run here, (name, reason) for the others; preferred first."""
    return SOLVERS.reasons(torch.device(device), dtype, TVL1Config() if config is None else config)


def check_size(height: int, width: int) -> None:
    """InputError for a frame that no backend can match."""
    for name, side in (("height", height), ("width", width)):
        _check.number(side, name, integer=True, low=1, high=LONGEST_SIDE)
    _check.require(height * width >= 2, "frames", "at least 2 pixels", f"{width}×{height}")


class TVL1Solver:
    """TV-L1 optical flow, prepared for frames of one size: tables and buffers are made once and reused.

    One call at a time: calls from several threads wait for each other; use one solver per thread for parallel work.
    A solver can be pickled and copied (its buffers are made anew) and used after a fork.
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
        check_size(height, width)
        _check.choice(dtype, "dtype", (torch.float32, torch.float64))
        self.height, self.width = height, width
        self.config = TVL1Config() if config is None else config
        _check.require(isinstance(self.config, TVL1Config), "config", "a TVL1Config", _check.describe(self.config))
        self.dtype, self.device = dtype, _check.device(device)
        self.backend = SOLVERS.choose(backend, self.device, dtype, self.config)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._cpu = cpu.Solver(height, width, self.config) if self.backend == "cpu" else None
        self._cuda = None
        if self.backend == "cuda":
            index = self.device.index
            self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
            self._cuda = _on_cuda(height, width, self.config, self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        size = (self.height, self.width, self.config)
        return _rebuilt, (*size, {"dtype": self.dtype, "device": self.device, "backend": self.backend})

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
        frame2: Tensor,  # [B, C, H, W]
        *,
        initial_flow: Tensor | None = None,  # [B, 2, H, W], pixels
        progress: Callable[[float, str], None] | None = None,
    ) -> Tensor:  # [B, 2, H, W]: (u, v), x right, y down, pixels of the first frame
        """Flow from ``frame1`` to ``frame2``. Colour is made grey (Rec. 601 luma). Not differentiable.

        ``progress(fraction, where)`` is called after every warp. Raises InputError for tensors of another size, type
        or device than the solver's, and for frames that hold NaN or infinity.
        """
        first, second = self._checked(frame1, "frame1"), self._checked(frame2, "frame2")
        _check.require(frame1.shape == frame2.shape, "frame2", f"shape {list(frame1.shape)} like frame1", frame2)
        start = None
        if initial_flow is not None:
            shape = (len(first), 2, self.height, self.width)
            _check.tensor(initial_flow, "initial_flow", shape, device=frame1.device)
            start = initial_flow.detach().to(self.dtype)
        if self._process != os.getpid():  # forked, perhaps while a thread of the parent held the lock
            self._lock, self._process = threading.Lock(), os.getpid()
        if self._cuda is not None:
            return self._call_cuda(first, second, start, progress)
        for name, frame in (("frame1", first), ("frame2", second)):
            _check_values(frame, name)
        if start is not None:
            _finite(start, "initial_flow")
        grey1, grey2 = _grey(first), _grey(second)
        flow = first.new_empty(len(first), 2, self.height, self.width)
        with self._lock:
            for item in range(len(first)):
                report = None if progress is None else _share(progress, item, len(first))
                flow[item] = self._solve(grey1[item], grey2[item], None if start is None else start[item], report)
        _finite(flow, "flow", _FINITE_FLOW)
        return flow

    def _checked(self, frame: Tensor, name: str) -> Tensor:
        """In the solver's dtype."""
        frame = _check.tensor(frame, name, ("B", "C", self.height, self.width))
        here = frame.device.type == self.device.type if self._cuda is None else frame.device == self.device
        _check.require(here, name, f"device {self.device}", frame)
        _check.require(frame.shape[1] in (1, 3), name, "1 or 3 channels", frame)
        _check.require(frame.is_floating_point(), name, "a floating dtype (divide integers by their maximum)", frame)
        narrow = self._cuda is not None and frame.dtype in (torch.float16, torch.bfloat16)  # its kernels widen
        return frame.detach() if narrow else frame.detach().to(self.dtype)

    def _call_cuda(self, first: Tensor, second: Tensor, start: Tensor | None, progress: Progress | None) -> Tensor:
        assert self._cuda is not None
        if len(first) == 0:
            return first.new_empty(0, 2, self.height, self.width, dtype=self.dtype)
        if self.config.epsilon > 0 and len(first) > 1:  # every pair stops by itself
            flows = []
            for item in range(len(first)):
                part = slice(item, item + 1)
                report = None if progress is None else _share(progress, item, len(first))
                pair = first[part], second[part], None if start is None else start[part]
                flows.append(self._call_cuda(*pair, report))
            return torch.cat(flows)
        if first.dtype != second.dtype:
            first, second = first.float(), second.float()
        flow: Tensor
        with self._lock:
            flow, complaints = self._cuda(first, second, start, progress)
        if not torch.cuda.is_current_stream_capturing() and int(complaints):
            for name, frame in (("frame1", first), ("frame2", second)):
                _check_values(frame, name)
            if start is not None:
                _finite(start, "initial_flow")
            _finite(flow, "flow", _FINITE_FLOW)
        return flow

    def _solve(self, first: Tensor, second: Tensor, start: Tensor | None, progress: Progress | None) -> Tensor:
        if self._cpu is None:
            return reference.solve(first, second, self.config, start, progress)
        arrays = (first.numpy(), second.numpy(), None if start is None else start.numpy())
        return torch.from_numpy(self._cpu(*arrays, torch.get_num_threads(), progress))


def _rebuilt(height: int, width: int, config: TVL1Config, options: dict[str, Any]) -> TVL1Solver:
    return TVL1Solver(height, width, config, **options)


def _on_cuda(height: int, width: int, config: TVL1Config, device: torch.device) -> Any:
    from fullfield.ops.tvl1.cuda.solver import Solver

    return Solver(height, width, config, device)


_FINITE_FLOW = "a finite flow; the frames or parameters are too extreme"


def _check_values(frame: Tensor, name: str) -> None:
    _finite(frame, name)
    bright = max(abs(float(v)) for v in torch.aminmax(frame)) if frame.numel() else 0.0
    _check.require(bright <= _BRIGHTEST, name, f"values up to {_BRIGHTEST:g} (0 ... 1 is usual)", f"{bright:g}")


def _grey(frame: Tensor) -> Tensor:
    """[B, C, H, W] of 0 ... 1 -> [B, H, W] of 0 ... 255."""
    if frame.shape[1] == 1:
        return frame[:, 0] * 255.0
    grey: Tensor = frame[:, 0] * (255.0 * _LUMA[0])
    for channel in (1, 2):
        grey.add_(frame[:, channel], alpha=255.0 * _LUMA[channel])
    return grey


def _finite(tensor: Tensor, name: str, expected: str = "finite values") -> None:
    # min and max propagate NaN and need no mask of the tensor's size.
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise _check.InputError(f"{name}: expected {expected}, got NaN or infinity")


def _share(progress: Progress, item: int, items: int) -> Progress:
    def report(fraction: float, where: str) -> None:
        progress((item + fraction) / items, where if items == 1 else f"pair {item + 1} of {items}, {where}")

    return report


def tvl1(
    frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    config: TVL1Config | None = None,
    *,
    initial_flow: Tensor | None = None,  # [B, 2, H, W], pixels
    backend: str | None = None,
) -> Tensor:  # [B, 2, H, W]: (u, v), x right, y down, pixels of the first frame
    """Flow from ``frame1`` to ``frame2``: the registered operator ``fullfield::tvl1``, usable under torch.compile.

    Builds a :class:`TVL1Solver` for every call; keep a solver to reuse its buffers or to see progress. float64 frames
    are solved in float64 (reference backend), all others in float32. Errors as the solver's.
    """
    from fullfield.ops.tvl1.op import tvl1_op

    c = TVL1Config() if config is None else config
    if not isinstance(c, TVL1Config):  # worded only here: torch.compile traces this function
        raise _check.InputError(f"config: expected a TVL1Config, got {_check.describe(c)}")
    _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
    _check.tensor(frame2, "frame2", ("B", "C", "H", "W"))
    flow: Tensor = tvl1_op(
        frame1,
        frame2,
        initial_flow,
        backend,
        lambda_=c.lambda_,
        theta=c.theta,
        tau=c.tau,
        scales=c.scales,
        scale_factor=c.scale_factor,
        warps=c.warps,
        iterations=c.iterations,
        median=c.median,
        gradient_blend=c.gradient_blend,
        borders=c.borders,
        dual_reset=c.dual_reset,
        epsilon=c.epsilon,
        precision=c.precision,
        schedule=c.schedule,
    )
    return flow
