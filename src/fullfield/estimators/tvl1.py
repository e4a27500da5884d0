"""Estimator of TV-L1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators._devices import check_fork_safety_and_record_use
from fullfield.estimators._solver_pool import SolverPool, SolverSize
from fullfield.estimators.protocol import BackendRequest, Progress
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, explain_backends
from fullfield.ops.tvl1.frames import QueuedFlow

if TYPE_CHECKING:
    from fullfield.ops.tvl1 import PersistentSolver


class TVL1Estimator(BackendRequest):
    """Estimator of TV-L1 flow that keeps the solvers of the last sizes; :meth:`release_memory` releases them.

    Args:
        config: parameters; by default the preset ``default``.
        backend: backend, as for :class:`fullfield.ops.tvl1.TVL1Solver`.
    """

    method = "tvl1"
    accepts_unchecked_frames = True

    def __init__(self, config: TVL1Config | None = None, *, backend: str | None = None) -> None:
        self.config = TVL1Config() if config is None else config
        _check.require(
            isinstance(self.config, TVL1Config), "config", "a TVL1Config", _check.describe_value(self.config)
        )
        self._requested = backend
        self._used: str | None = None
        self._solvers = SolverPool(self._create_solver)

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "_requested": self._requested, "_used": self._used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._solvers = SolverPool(self._create_solver)

    def _create_solver(self, size: SolverSize) -> TVL1Solver:
        return TVL1Solver(
            size.height, size.width, self.config, dtype=size.dtype, device=size.device, backend=self._requested
        )

    def release_memory(self) -> None:
        """Release the solvers and their buffers."""
        self._solvers.release_idle_solvers()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Fields of the configuration."""
        return self.config.as_dict()

    @property
    def backend(self) -> str:
        """Backend of the last call, or before it the requested one."""
        return self._used or self._requested or "automatic"

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None) -> None:
        """Load or compile the kernels now instead of at the first call.

        On CUDA they are those of frames of ``size``, whose solver is kept; elsewhere they serve every size.
        """
        target = _check.resolve_available_device(device)
        able = next((name for name, reason in explain_backends(target, config=self.config) if reason is None), None)
        if size is not None and (self._requested or able) == "cuda":
            blank = torch.zeros(1, 1, *size, device=target, dtype=torch.float32)
            self(blank, blank)
            return
        blank = torch.zeros(1, 1, 16, 16, device=target, dtype=torch.float32)
        TVL1Estimator(self.config, backend=self._requested)(blank, blank)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        queued = self.queue(frame1, frame2, initial_flow=initial_flow, progress=progress)
        queued.wait_and_check()
        return queued.flow

    def queue(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> QueuedFlow:
        """Queue the flow on a GPU without waiting for it; see :class:`Estimator`."""
        _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
        check_fork_safety_and_record_use(frame1.device)
        dtype = torch.float64 if frame1.dtype == torch.float64 else torch.float32
        size = SolverSize(frame1.shape[-2], frame1.shape[-1], frame1.device, dtype)
        with self._solvers.borrow_solver(size) as solver:
            self._used = solver.backend
            return solver.queue(frame1, frame2, initial_flow=initial_flow, progress=progress)

    def create_video_solver_if_supported(self, size: tuple[int, int], device: torch.device) -> PersistentSolver | None:
        """Return a solver for video that keeps frames and flow on the GPU; None if one cannot run with this setting."""
        if self._requested not in (None, "cuda"):
            return None
        if dict(explain_backends(device, config=self.config))["cuda"] is not None:
            return None
        from fullfield.ops.tvl1 import PersistentSolver

        return PersistentSolver((1, 1, *size), self.config, device=device)
