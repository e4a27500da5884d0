"""What every estimator of flow offers, and what those that work through another one have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from fullfield import _check

Progress: TypeAlias = Callable[[float, str], None]
"""Called with the fraction done and what is being worked on."""


@runtime_checkable
class Estimator(Protocol):
    """An estimator of optical flow, ready to be called on frames of any size.

    ``parameters`` are plain values (they are stored beside results); ``backend`` names what computed the last flow.
    """

    @property
    def method(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def backend(self) -> str: ...

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W] float32, C = 1 or 3, display-referred, nominally 0 ... 1
        frame2: Tensor,  # [B, C, H, W]
        *,
        initial_flow: Tensor | None = None,  # [B, 2, H, W]
        progress: Progress | None = None,
    ) -> Tensor: ...  # [B, 2, H, W] float32, (u, v), pixels of the first frame


def check_estimator(value: object, name: str = "estimator", expected: str = "an Estimator") -> None:
    """InputError for anything but an object that follows :class:`Estimator`; its class is none."""
    _check.require(isinstance(value, Estimator) and not isinstance(value, type), name, expected, value)


def prepare_estimator(
    estimator: Estimator, device: str | torch.device, size: tuple[int, int] | None = None, **more: Any
) -> None:
    """Load or compile what the estimator runs on, where it can be prepared.

    Without a size it gets the device alone: a ``prepare(device)`` is enough for :func:`fullfield.evaluation.evaluate`.
    """
    prepare = getattr(estimator, "prepare", None)
    if prepare is not None:
        prepare(device, *(() if size is None else (size,)), **more)


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
        prepare_estimator(self.estimator, device, size, **more)
