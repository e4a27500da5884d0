"""Protocol of flow estimators, and the base of those that wrap another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators._still import StillAreas
from fullfield.ops.tvl1.frames import QueuedFlow

Progress: TypeAlias = Callable[[float, str], None]
"""Callback that receives the fraction done and the current step."""


class BidirectionalFlow(NamedTuple):
    """Forward and backward flow of a pair of frames."""

    forward: Tensor  # [B, 2, H, W], from the first frame to the second
    backward: Tensor  # [B, 2, H, W], from the second frame to the first, on the second's pixels
    log_scales: tuple[Tensor, Tensor] | None = None
    """Twice [B, H, W]: the network's own logarithm of the error of either flow, in pixels, if it has one."""


class FlowWithRoughBackward(NamedTuple):
    """Flow of a pair of frames, with a backward flow that is only as good as its refinement needs."""

    flow: Tensor  # [B, 2, H, W], from the first frame to the second
    backward: Tensor  # [B, 2, H, W], from the second frame to the first, on the second's pixels
    still: StillAreas | None  # areas of the frames that agree, if there are any
    log_scale: Tensor | None = None  # [B, H, W], the network's own logarithm of the flow's error in pixels


@runtime_checkable
class Estimator(Protocol):
    """Estimator of optical flow for frames of any size.

    An estimator that computes both directions faster than two calls also has a method ``bidirectional`` with the same
    arguments, which returns a :class:`BidirectionalFlow`. One that has a still faster backward flow for refinements has
    ``estimate_with_rough_backward_or_none``. One whose backend can be requested has ``requested_backend``.

    One that keeps nothing of a call and computes a flow of any values has ``accepts_unchecked_frames``: on a GPU,
    :func:`estimate` reads its check of the frames' values after the flow. One that can leave a flow to the GPU without
    waiting has ``queue``, which returns a :class:`fullfield.ops.tvl1.frames.QueuedFlow`.
    """

    @property
    def method(self) -> str:
        """Name of the method."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Plain values that are stored with results."""
        ...

    @property
    def backend(self) -> str:
        """Name of what computed the last flow."""
        ...

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W] float32, C = 1 or 3, display-referred, nominally 0 ... 1
        frame2: Tensor,  # [B, C, H, W]
        *,
        initial_flow: Tensor | None = None,  # [B, 2, H, W]
        progress: Progress | None = None,
    ) -> Tensor:  # [B, 2, H, W] float32, (u, v), pixels of the first frame
        """Estimate the flow from ``frame1`` to ``frame2`` in new memory, which later calls do not change."""
        ...


def check_estimator(value: object, name: str = "estimator", expected: str = "an Estimator") -> None:
    """Check that ``value`` follows :class:`Estimator`; a class is refused."""
    _check.require(isinstance(value, Estimator) and not isinstance(value, type), name, expected, value)


def find_bidirectional_method(estimator: Estimator) -> Callable[..., BidirectionalFlow | None] | None:
    """Return the estimator's method for both directions at once; None if it has none.

    The method returns None for settings with which it needs two calls.
    """
    method: Callable[..., BidirectionalFlow | None] | None = getattr(estimator, "bidirectional", None)
    return method


def find_method_with_rough_backward(estimator: Estimator) -> Callable[..., FlowWithRoughBackward | None] | None:
    """Return the estimator's method for a flow with a guide; None if it has none.

    The method returns None for settings that have no faster backward flow.
    """
    method: Callable[..., FlowWithRoughBackward | None] | None = getattr(
        estimator, "estimate_with_rough_backward_or_none", None
    )
    return method


def may_receive_unchecked_frames(estimator: Estimator) -> bool:
    """Return whether the estimator may run on frames whose values are checked at the end."""
    return bool(getattr(estimator, "accepts_unchecked_frames", False))


def find_queue_method(estimator: Estimator) -> Callable[..., QueuedFlow] | None:
    """Return the estimator's method that does not wait for the GPU; None if it has none or overrides its call alone."""
    definer = next(kind for kind in type(estimator).__mro__ if "__call__" in vars(kind))
    method: Callable[..., QueuedFlow] | None = getattr(estimator, "queue", None) if "queue" in vars(definer) else None
    return method


def get_requested_backend(estimator: Estimator) -> str | None:
    """Return the backend that was requested of the estimator; None if it chooses or cannot be requested."""
    backend: str | None = getattr(estimator, "requested_backend", None)
    return backend


def prepare_estimator_if_supported(
    estimator: Estimator, device: str | torch.device, size: tuple[int, int] | None = None, **prepare_options: Any
) -> None:
    """Load and compile what the estimator runs on, if it has a method ``prepare``.

    Without a size the method receives the device alone.
    """
    prepare = getattr(estimator, "prepare", None)
    if prepare is not None:
        prepare(device, *(() if size is None else (size,)), **prepare_options)


def release_estimator_memory_if_supported(estimator: Estimator) -> None:
    """Release what the estimator prepared, if it has a method ``release_memory``."""
    release_memory = getattr(estimator, "release_memory", None)
    if release_memory is not None:
        release_memory()


class BackendRequest:
    """Base of estimators whose backend can be requested."""

    _requested: str | None

    @property
    def requested_backend(self) -> str | None:
        """Backend that was requested; None if it is chosen."""
        return self._requested


class LoadingEstimator(BackendRequest):
    """Base of estimators that load a network at the first call and keep it; copies and pickles load their own."""

    method: str
    config: Any

    @property
    def accepts_unchecked_frames(self) -> bool:
        """True if the network is loaded, so that bad frames cause no download."""
        return bool(self._origin)

    def _reset_to_unloaded(self) -> None:
        """Set the attributes that copies do not share to those of an estimator that has not loaded its network."""
        self._lock = threading.RLock()
        self._origin: dict[str, Any] = {}

    def release_memory(self) -> None:
        """Release the network with everything prepared for it; the next call loads it again."""
        with self._lock:
            lock = self._lock
            self._reset_to_unloaded()
            self._lock = lock

    def __getstate__(self) -> dict[str, Any]:
        return {"method": self.method, "config": self.config, "_requested": self._requested}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_to_unloaded()


class WrappingEstimator(BackendRequest):
    """Base of estimators that wrap ``estimator`` and report its names as their own."""

    def __init__(self, estimator: Estimator) -> None:
        check_estimator(estimator)
        self.estimator = estimator

    @property
    def method(self) -> str:
        """Method of the wrapped estimator."""
        return self.estimator.method

    @property
    def accepts_unchecked_frames(self) -> bool:
        """True if the wrapped estimator has it."""
        return may_receive_unchecked_frames(self.estimator)

    @property
    def requested_backend(self) -> str | None:
        """Backend that was requested of the wrapped estimator; None if it chooses."""
        return get_requested_backend(self.estimator)

    @property
    def backend(self) -> str:
        """Backend of the wrapped estimator."""
        return self.estimator.backend

    def prepare(
        self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **prepare_options: Any
    ) -> None:
        """Prepare the wrapped estimator, if it can be prepared."""
        prepare_estimator_if_supported(self.estimator, device, size, **prepare_options)

    def release_memory(self) -> None:
        """Release what the wrapped estimator prepared, if it can."""
        release_estimator_memory_if_supported(self.estimator)
