"""Estimator of TV-L1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators.devices import check_fork
from fullfield.estimators.protocol import BackendRequest, Progress
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, backends

if TYPE_CHECKING:
    from fullfield.ops.tvl1 import PersistentSolver


class TVL1Estimator(BackendRequest):
    """Estimator of TV-L1 flow that keeps the solver of the last size and device.

    Args:
        config: parameters; by default the preset ``default``.
        backend: backend, as for :class:`fullfield.ops.tvl1.TVL1Solver`.
    """

    method = "tvl1"

    def __init__(self, config: TVL1Config | None = None, *, backend: str | None = None) -> None:
        self.config = TVL1Config() if config is None else config
        _check.require(isinstance(self.config, TVL1Config), "config", "a TVL1Config", _check.describe(self.config))
        self._requested = backend
        self._solver: TVL1Solver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_solver": None}  # its buffers are allocated again when needed

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Fields of the configuration."""
        return self.config.as_dict()

    @property
    def backend(self) -> str:
        """Backend of the last call, or before it the requested one."""
        return self._solver.backend if self._solver is not None else self._requested or "automatic"

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None) -> None:
        """Load or compile the kernels now instead of at the first call.

        On CUDA they are those of frames of ``size``, whose solver is kept; elsewhere they serve every size.
        """
        place = _check.device(device)
        able = next((name for name, reason in backends(place, config=self.config) if reason is None), None)
        if size is not None and (self._requested or able) == "cuda":
            blank = torch.zeros(1, 1, *size, device=place, dtype=torch.float32)
            self(blank, blank)
            return
        blank = torch.zeros(1, 1, 16, 16, device=place, dtype=torch.float32)
        TVL1Estimator(self.config, backend=self._requested)(blank, blank)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
        check_fork(frame1.device)
        height, width = frame1.shape[-2:]
        dtype = torch.float64 if frame1.dtype == torch.float64 else torch.float32
        solver = self._solver
        wanted = (height, width, frame1.device, dtype)
        if solver is None or (solver.height, solver.width, solver.device, solver.dtype) != wanted:
            self._solver = None  # frees the old buffers first
            solver = TVL1Solver(height, width, self.config, dtype=dtype, device=frame1.device, backend=self._requested)
            self._solver = solver
        return solver(frame1, frame2, initial_flow=initial_flow, progress=progress)

    def persistent_solver(self, size: tuple[int, int], device: torch.device) -> PersistentSolver | None:
        """Return a solver for video that keeps frames and flow on the GPU; None if one cannot run with this setting."""
        if self._requested not in (None, "cuda"):
            return None
        if dict(backends(device, config=self.config))["cuda"] is not None:
            return None
        from fullfield.ops.tvl1 import PersistentSolver

        return PersistentSolver((1, 1, *size), self.config, device=device)
