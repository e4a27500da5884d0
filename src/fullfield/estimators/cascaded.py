"""Cascaded inference for any estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fullfield import _check
from fullfield.estimators.protocol import Estimator, Progress, WrappingEstimator
from fullfield.models.cascade import THRESHOLD, Cascade, cascade_sizes, resample_flow


class CascadedEstimator(WrappingEstimator):
    """Estimator that starts from its own result at a quarter of the size; see :class:`fullfield.models.Cascade`.

    Networks cascade themselves with the parameter ``cascade``, which also sets the updates of either kind of level.
    ``fullfield-s`` and ``auto`` cascade by default; pass ``cascade=False`` to cascade them here.

    Args:
        estimator: any estimator that does not cascade itself, such as :class:`TVL1Estimator`.
        threshold: largest smaller side, in pixels, of frames that are not reduced to a quarter first.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(self, estimator: Estimator, *, threshold: int = THRESHOLD) -> None:
        super().__init__(estimator)
        cascades = bool(estimator.parameters.get("cascade"))
        _check.require(not cascades, "estimator", "one that does not cascade itself (cascade=False)", estimator.method)
        _check.number(threshold, "threshold", integer=True, low=1)
        self.threshold = threshold

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the estimator, and ``cascade``."""
        return {**self.estimator.parameters, "cascade": True}

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
        height, width = frame1.shape[-2:]
        pixels = sum(h * w for h, w in cascade_sizes(height, width, self.threshold))
        done = 0.0

        def level(
            first: Tensor, second: Tensor, *, updates: int | None = None, initial_flow: Tensor | None = None
        ) -> Tensor:
            nonlocal done
            del updates  # the estimator has its own number
            rows, columns = first.shape[-2:]
            begin, share = done, rows * columns / pixels
            start = None if initial_flow is None else resample_flow(initial_flow, rows, columns)
            part_of = None if progress is None else lambda part, where: progress(begin + share * part, where)
            flow = self.estimator(first, second, initial_flow=start, progress=part_of)
            done += share
            return flow

        return Cascade(level, threshold=self.threshold)(frame1, frame2, initial_flow=initial_flow)
