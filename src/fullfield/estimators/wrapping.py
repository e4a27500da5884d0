"""What estimators that work through another one have in common."""

from __future__ import annotations

from typing import Any

import torch

from fullfield.estimators.protocol import Estimator, check_estimator


class WrappingEstimator:
    """Called and reported as ``estimator``, which it holds."""

    def __init__(self, estimator: Estimator) -> None:
        check_estimator(estimator)
        self.estimator = estimator

    @property
    def method(self) -> str:
        """The estimator's."""
        return self.estimator.method

    @property
    def asked_backend(self) -> str | None:
        """The estimator's."""
        return getattr(self.estimator, "asked_backend", None)

    @property
    def backend(self) -> str:
        """The estimator's."""
        return self.estimator.backend

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **more: Any) -> None:
        """Prepare the estimator, where it can be."""
        prepare = getattr(self.estimator, "prepare", None)
        if prepare is not None:
            prepare(device, size, **more)
