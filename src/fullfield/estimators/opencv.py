"""Optical flow with OpenCV's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield.estimators.estimation import build_or_check_estimator, estimate
from fullfield.estimators.protocol import Estimator, release_estimator_memory_if_supported
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.ops.devices import AUTO

if TYPE_CHECKING:
    from fullfield._config import Config


class OpenCVFlow:
    """Estimator with the interface of OpenCV's ``cv2.DenseOpticalFlow``.

    Args:
        method: as for :func:`fullfield.estimate`; so are ``preset``, ``config``, ``device`` and ``threads``.
        preset: name of a set of parameters.
        config: all parameters of the method, in place of a preset.
        device: device to compute on.
        threads: number of CPU threads of the whole process during a call.
        use_initial_flow: start from the flow that :meth:`calc` receives, as OpenCV's property of that name.

    >>> flow = OpenCVFlow().calc(cv2.imread("a.png"), cv2.imread("b.png"), None)  # doctest: +SKIP
    """

    def __init__(
        self,
        method: str | Estimator = DEFAULT_METHOD,
        *,
        preset: str | None = None,
        config: Config | None = None,
        device: str | torch.device = AUTO,
        threads: int | None = None,
        use_initial_flow: bool = False,
    ) -> None:
        self.estimator = build_or_check_estimator(method, preset=preset, config=config)
        self.device, self.threads = device, threads
        self.use_initial_flow = use_initial_flow

    def calc(
        self,
        prev: NDArray[Any],  # [H, W] or [H, W, 3] in BGR, uint8 or as for estimate
        next: NDArray[Any],
        flow: NDArray[np.float32] | None = None,  # [H, W, 2]
    ) -> NDArray[np.float32]:  # [H, W, 2]
        """Estimate the flow from ``prev`` to ``next``; a given ``flow`` receives the result and is returned."""
        for name, frame in (("prev", prev), ("next", next)):
            _check.require(isinstance(frame, np.ndarray), name, "an array [H, W] or [H, W, 3] in BGR", frame)
        if flow is not None:
            is_valid = isinstance(flow, np.ndarray) and flow.dtype == np.float32 and flow.shape == (*prev.shape[:2], 2)
            _check.require(is_valid, "flow", f"None or a float32 array {[*prev.shape[:2], 2]}", flow)
        result = estimate(
            prev,
            next,
            self.estimator,
            device=self.device,
            threads=self.threads,
            color_order="bgr",
            initial_flow=flow if self.use_initial_flow else None,
        ).numpy()
        if flow is None:
            return result
        flow[...] = result
        return flow

    def collectGarbage(self) -> None:
        """Release the memory that the estimator keeps between calls."""
        release_estimator_memory_if_supported(self.estimator)
