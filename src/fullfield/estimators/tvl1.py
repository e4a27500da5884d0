"""TV-L1 as an estimator: keeps the solver of the last size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators.protocol import Progress
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, backends


class TVL1Estimator:
    """TV-L1 optical flow of any pair of frames; a new solver is built when the size or device changes.

    Args:
        config: parameters; by default the preset ``default``.
        backend: as for :class:`fullfield.ops.tvl1.TVL1Solver`.
    """

    method = "tvl1"

    def __init__(self, config: TVL1Config | None = None, *, backend: str | None = None) -> None:
        self.config = TVL1Config() if config is None else config
        _check.require(isinstance(self.config, TVL1Config), "config", "a TVL1Config", _check.describe(self.config))
        self._backend = backend
        self._solver: TVL1Solver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_solver": None}  # its buffers are made anew where they are needed

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The configuration's fields."""
        return self.config.as_dict()

    @property
    def asked_backend(self) -> str | None:
        """The backend asked for; None leaves it open."""
        return self._backend

    @property
    def backend(self) -> str:
        """The backend of the last call, or the one asked for."""
        return self._solver.backend if self._solver is not None else self._backend or "automatic"

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None) -> None:
        """Load or compile the kernels now instead of at the first call: on CUDA those of a pair of frames of ``size``,
        whose solver is kept; elsewhere they serve every size."""
        place = _check.device(device)
        able = next((name for name, reason in backends(place, config=self.config) if reason is None), None)
        if size is not None and (self._backend or able) == "cuda":
            blank = torch.zeros(1, 1, *size, device=place, dtype=torch.float32)
            self(blank, blank)
            return
        blank = torch.zeros(1, 1, 16, 16, device=place, dtype=torch.float32)
        TVL1Estimator(self.config, backend=self._backend)(blank, blank)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Frames [B, C, H, W] to flow [B, 2, H, W]; see :class:`Estimator`."""
        _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
        height, width = frame1.shape[-2:]
        dtype = torch.float64 if frame1.dtype == torch.float64 else torch.float32
        solver = self._solver
        wanted = (height, width, frame1.device, dtype)
        if solver is None or (solver.height, solver.width, solver.device, solver.dtype) != wanted:
            self._solver = None  # frees the old buffers before the new ones are made
            solver = TVL1Solver(height, width, self.config, dtype=dtype, device=frame1.device, backend=self._backend)
            self._solver = solver
        return solver(frame1, frame2, initial_flow=initial_flow, progress=progress)
