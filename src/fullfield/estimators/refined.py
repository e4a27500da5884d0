"""Any estimator, both directions, made exact by TV-L1's guided refinement."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators.protocol import Estimator, Progress, WrappingEstimator
from fullfield.ops.tvl1 import FlowRefiner, RefinementConfig

# Of the progress of a call: what each of the two directions takes, the rest is the refinement.
_DIRECTION = 0.48


class Directions(NamedTuple):
    """Flow both ways. [B, 2, H, W] each."""

    forward: Tensor
    """From the first frame to the second, refined if that was asked for."""
    backward: Tensor
    """From the second frame to the first, on the second's pixels, as the estimator gave it."""
    seconds: Mapping[str, float]
    """Of every part."""
    log_scale: Tensor | None = None
    """[B, H, W]: the estimator's own logarithm of the error in pixels of its flow forward, where it has one."""


class RefinedEstimator(WrappingEstimator):
    """An estimator whose flow is refined; see :func:`fullfield.ops.tvl1.refine_flow`.

    The estimator is asked twice, for the flow back as well: the refinement stays nearer to the flow where both agree.

    Args:
        estimator: any, such as :class:`NetworkEstimator`.
        config: parameters of the refinement.
        refine: False leaves the flow as it is, for the flow back alone (:meth:`directions`).
    """

    def __init__(self, estimator: Estimator, config: RefinementConfig | None = None, *, refine: bool = True) -> None:
        super().__init__(estimator)
        self.config = RefinementConfig() if config is None else config
        _check.require(isinstance(self.config, RefinementConfig), "config", "a RefinementConfig", self.config)
        self._refine = refine
        self._device = torch.device("cpu")  # where it was last prepared or called
        self._refiner: FlowRefiner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_refiner": None}  # its buffers are made anew where they are needed

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The estimator's, and ``refinement``: the refinement's parameters and backend, or None without one."""
        if not self.refines(self._device):
            return {**self.estimator.parameters, "refinement": None}
        backend = "automatic" if self._refiner is None else self._refiner.backend
        return {**self.estimator.parameters, "refinement": {**self.config.as_dict(), "backend": backend}}

    def refines(self, device: torch.device) -> bool:  # noqa: ARG002 - others decide by it
        """Whether the flow of frames on the device is refined."""
        return self._refine

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **more: Any) -> None:
        """Prepare the estimator, where it can be, and the refinement."""
        super().prepare(device, size, **more)
        self._device = place = _check.device(device)
        if size is not None and self.refines(place):
            self._ready(size, place, torch.float32)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Frames [B, C, H, W] to flow [B, 2, H, W]; see :class:`Estimator`."""
        self._device = frame1.device
        if not self.refines(self._device):
            return self.estimator(frame1, frame2, initial_flow=initial_flow, progress=progress)
        return self.directions(frame1, frame2, initial_flow=initial_flow, progress=progress).forward

    def directions(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Directions:
        """As a call, with the flow back and the time of every part. ``initial_flow`` is for the way forward."""
        seconds: dict[str, float] = {}
        self._device = frame1.device

        def timed(name: str, begin: float) -> None:
            if frame1.device.type == "cuda":
                torch.cuda.synchronize(frame1.device)
            seconds[name] = time.perf_counter() - begin

        begin = time.perf_counter()
        together, log_scale = getattr(self.estimator, "both_ways", None), None
        both = together and together(
            frame1, frame2, initial_flow=initial_flow, progress=_part(progress, 0.0, 2 * _DIRECTION)
        )
        if both is not None:
            flow, backward, log_scale = both.forward, both.backward, both.log_scales and both.log_scales[0]
            timed("both_ways", begin)
        else:
            flow = self.estimator(frame1, frame2, initial_flow=initial_flow, progress=_part(progress, 0.0))
            timed("forward", begin)
            begin = time.perf_counter()
            backward = self.estimator(frame2, frame1, progress=_part(progress, _DIRECTION))
            timed("backward", begin)
        if self.refines(frame1.device):
            begin = time.perf_counter()
            if progress is not None:
                progress(2 * _DIRECTION, "refinement")
            flow = self.refined(frame1, frame2, flow, backward)
            timed("refinement", begin)
        if progress is not None:
            progress(1.0, "refinement")
        return Directions(flow, backward, seconds, log_scale)

    def refined(self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None = None) -> Tensor:
        """The refinement alone, of a flow from wherever; as :class:`fullfield.ops.tvl1.FlowRefiner` is called."""
        return self._ready((frame1.shape[-2], frame1.shape[-1]), frame1.device, flow.dtype)(
            frame1, frame2, flow, backward
        )

    def _ready(self, size: tuple[int, int], device: torch.device, dtype: torch.dtype) -> FlowRefiner:
        kept = self._refiner
        if kept is None or ((kept.height, kept.width), kept.device, kept.dtype) != (size, device, dtype):
            self._refiner = None  # frees the old buffers before the new ones are made
            kept = self._refiner = FlowRefiner(*size, self.config, dtype=dtype, device=device)
        return kept


def refiner_of(estimator: Estimator, device: torch.device, *, refine: bool) -> RefinedEstimator | None:
    """What refines flow on the device: the estimator, or with ``refine`` one around what it asks; None if nothing."""
    if isinstance(estimator, RefinedEstimator) and estimator.refines(device):
        return estimator
    if refine and isinstance(estimator, RefinedEstimator):
        return RefinedEstimator(estimator.estimator, estimator.config)
    return RefinedEstimator(estimator) if refine else None


def _part(progress: Progress | None, begin: float, share: float = _DIRECTION) -> Progress | None:
    if progress is None:
        return None
    return lambda fraction, where: progress(begin + share * fraction, where)
