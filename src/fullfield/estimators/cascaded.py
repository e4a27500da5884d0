"""Cascaded inference for every estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fullfield import _check
from fullfield.estimators.protocol import Estimator, Progress, WrappingEstimator
from fullfield.models.cascade import THRESHOLD, Cascade, cascade_sizes, resample_flow


class CascadedEstimator(WrappingEstimator):
    """An estimator that starts from its own result at a quarter of the size; see :class:`fullfield.models.Cascade`.

    Networks do the same by their parameter ``cascade``, with a number of updates for either kind of level;
    ``fullfield-s`` and ``auto`` do it by themselves and take ``cascade=False`` to be cascaded here.

    Args:
        estimator: any that does not cascade itself, such as :class:`TVL1Estimator`.
        threshold: frames whose smaller side is larger than this are estimated at a quarter first.

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
        """The estimator's, and ``cascade``."""
        return {**self.estimator.parameters, "cascade": True}

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Frames [B, C, H, W] to flow [B, 2, H, W]; see :class:`Estimator`."""
        _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
        height, width = frame1.shape[-2:]
        pixels = sum(h * w for h, w in cascade_sizes(height, width, self.threshold))
        done = 0.0

        def level(
            first: Tensor, second: Tensor, *, updates: int | None = None, initial_flow: Tensor | None = None
        ) -> Tensor:
            nonlocal done
            del updates  # the estimator's own number
            rows, columns = first.shape[-2:]
            begin, share = done, rows * columns / pixels
            start = None if initial_flow is None else resample_flow(initial_flow, rows, columns)
            told = None if progress is None else lambda part, where: progress(begin + share * part, where)
            flow = self.estimator(first, second, initial_flow=start, progress=told)
            done += share
            return flow

        return Cascade(level, threshold=self.threshold)(frame1, frame2, initial_flow=initial_flow)
