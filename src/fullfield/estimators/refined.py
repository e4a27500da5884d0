"""Estimators refined to sub-pixel accuracy by TV-L1, with the backward flow as a guide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators._progress import map_progress_to_range_if_any
from fullfield.estimators._solver_pool import SolverPool, SolverSize
from fullfield.estimators._still import find_still_areas
from fullfield.estimators.protocol import (
    Estimator,
    Progress,
    WrappingEstimator,
    find_bidirectional_method,
    find_method_with_rough_backward,
)
from fullfield.ops.tvl1 import FlowRefiner
from fullfield.ops.tvl1.config import RefinementConfig
from fullfield.ops.tvl1.frames import QueuedFlow

# Share of each direction in the progress of a call; the rest is the refinement.
_DIRECTION = 0.48


class _StageClock:
    """Clock of consecutive stages. On a GPU it counts between events, so that the next stage is queued meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: list[str] = []
        self._marks = [self._record_time_or_event()]

    def end_stage(self, name: str) -> None:
        """Count the time since the previous stage as that of stage ``name``."""
        self._stages.append(name)
        self._marks.append(self._record_time_or_event())

    def wait_and_read_seconds(self) -> dict[str, float]:
        """Return the seconds of every stage; waits for the end of the last one."""
        if self._device.type == "cuda":
            self._marks[-1].synchronize()
            seconds = [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._marks)]
        else:
            seconds = [end - start for start, end in pairwise(self._marks)]
        return dict(zip(self._stages, seconds, strict=True))

    def _record_time_or_event(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class RefinedDirections(NamedTuple):
    """Forward and backward flow of a pair, [B, 2, H, W] each, and how long they took."""

    forward: Tensor
    """Flow from the first frame to the second, refined if the estimator refines."""
    backward: Tensor
    """Flow from the second frame to the first, on the second's pixels, not refined; of some networks, a guide."""
    seconds: Mapping[str, float]
    """Seconds of each step."""
    log_scale: Tensor | None = None
    """[B, H, W]: the estimator's own logarithm of the error of the forward flow, in pixels, if it has one."""


class QueuedDirections:
    """Both directions of a pair, of which a GPU may still be computing the refinement."""

    def __init__(self, directions: RefinedDirections, check_flow: Callable[[], None], clock: _StageClock) -> None:
        self._directions, self._check_flow, self._clock = directions, check_flow, clock

    @property
    def directions(self) -> RefinedDirections:
        """The directions, with the seconds of their stages after :meth:`wait_and_check`."""
        return self._directions

    def wait_and_check(self) -> None:
        """Wait for the refinement; InputError as :class:`fullfield.ops.tvl1.FlowRefiner` raises it."""
        self._check_flow()
        self._directions = self._directions._replace(seconds=self._clock.wait_and_read_seconds())


class RefinedEstimator(WrappingEstimator):
    """Estimator whose flow is refined; see :func:`fullfield.ops.tvl1.refine_flow`.

    The wrapped estimator computes both directions: the refinement stays nearer to the flow where they agree.

    Args:
        estimator: any estimator, such as :class:`NetworkEstimator`.
        config: parameters of the refinement.
        refine: False leaves the flow as it is; :meth:`estimate_both_and_refine_forward` then adds the backward
            flow alone.
        refiners: pool of refiners with this ``config`` to share; None creates one.

    >>> flow = estimate("a.png", "b.png", RefinedEstimator(NetworkEstimator("sea-raft-m")))  # doctest: +SKIP
    """

    def __init__(
        self,
        estimator: Estimator,
        config: RefinementConfig | None = None,
        *,
        refine: bool = True,
        refiners: SolverPool[FlowRefiner] | None = None,
    ) -> None:
        super().__init__(estimator)
        self.config = RefinementConfig() if config is None else config
        _check.require(isinstance(self.config, RefinementConfig), "config", "a RefinementConfig", self.config)
        self._refine = refine
        self._device = torch.device("cpu")  # of the last preparation or call
        self._refiner_backend = "automatic"
        self._refiners = self._create_refiner_pool() if refiners is None else refiners

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_refiners"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._refiners = self._create_refiner_pool()

    def _create_refiner_pool(self) -> SolverPool[FlowRefiner]:
        return SolverPool(partial(_create_refiner, self.config))

    def release_memory(self) -> None:
        """Release the refinement's buffers, and what the wrapped estimator prepared."""
        self._refiners.release_idle_solvers()
        super().release_memory()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the estimator, and ``refinement``: those of the refinement with its backend, or None."""
        if not self.should_refine(self._device):
            return {**self.estimator.parameters, "refinement": None}
        refinement = {**self.config.as_dict(), "backend": self._refiner_backend}
        return {**self.estimator.parameters, "refinement": refinement}

    def should_refine(self, device: torch.device) -> bool:  # noqa: ARG002 - subclasses decide by it
        """Return whether the flow of frames on the device is refined."""
        return self._refine

    def prepare(
        self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **prepare_options: Any
    ) -> None:
        """Prepare the estimator, if it can be prepared, and the refinement."""
        super().prepare(device, size, **prepare_options)
        self._device = target = _check.resolve_available_device(device)
        if size is not None and self.should_refine(target) and not self._is_compiling(target):
            with self._refiners.borrow_solver(
                SolverSize(*size, torch.empty(0, device=target).device, torch.float32)
            ) as refiner:
                self._refiner_backend = refiner.backend

    def start_compiling_process_if_cold(self, device: str | torch.device) -> None:
        """Compile what the refinement runs on in a second process, on a CPU with a cold cache and several threads.

        The refinement waits for it. Only for programs whose main module can be imported again.
        """
        target = _check.resolve_available_device(device)
        if target.type == "cpu" and self.should_refine(target) and torch.get_num_threads() > 1:
            from fullfield.ops.tvl1.guided_cpu import explain_unsupported, kernels

            if explain_unsupported(target, torch.float32) is None:
                kernels.start_compiling_process_if_cold()

    def _is_compiling(self, device: torch.device) -> bool:
        if device.type != "cpu":
            return False
        from fullfield.ops.tvl1.guided_cpu import kernels

        return kernels.is_compiling

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        self._device = frame1.device
        if not self.should_refine(self._device):
            return self.estimator(frame1, frame2, initial_flow=initial_flow, progress=progress)
        return self.estimate_both_and_refine_forward(
            frame1, frame2, initial_flow=initial_flow, log_scale=False, progress=progress
        ).forward

    def estimate_both_and_refine_forward(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        log_scale: bool = True,
        progress: Progress | None = None,
    ) -> RefinedDirections:
        """Estimate both directions and time each step. ``initial_flow`` starts the forward flow.

        The backward flow serves the refinement and the reliability. A network with uncertainty may compute it in less
        time than the forward flow, at a lower quality (``estimate_with_rough_backward_or_none``). Without ``log_scale``
        there may be none.
        """
        queued = self.estimate_both_and_queue_refinement(
            frame1, frame2, initial_flow=initial_flow, log_scale=log_scale, progress=progress
        )
        queued.wait_and_check()
        return queued.directions

    def estimate_both_and_queue_refinement(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        log_scale: bool = True,
        progress: Progress | None = None,
    ) -> QueuedDirections:
        """Do as :meth:`estimate_both_and_refine_forward` does; on a GPU only ``wait_and_check`` waits."""
        self._device = frame1.device
        clock, scale, still = _StageClock(frame1.device), None, None
        both_progress = map_progress_to_range_if_any(progress, 0.0, 2 * _DIRECTION)
        rough_backward = find_method_with_rough_backward(self.estimator)
        bidirectional = find_bidirectional_method(self.estimator)
        options: dict[str, Any] = {"initial_flow": initial_flow, "progress": both_progress}
        guided = rough_backward and rough_backward(frame1, frame2, log_scale=log_scale, **options)
        both = None if guided or bidirectional is None else bidirectional(frame1, frame2, **options)
        if guided is not None:
            flow, backward, still, scale = guided
            clock.end_stage("bidirectional")
        elif both is not None:
            flow, backward, scale = both.forward, both.backward, both.log_scales and both.log_scales[0]
            clock.end_stage("bidirectional")
        else:
            forward_progress = map_progress_to_range_if_any(progress, 0.0, _DIRECTION)
            flow = self.estimator(frame1, frame2, initial_flow=initial_flow, progress=forward_progress)
            clock.end_stage("forward")
            backward_progress = map_progress_to_range_if_any(progress, _DIRECTION, _DIRECTION)
            backward = self.estimator(frame2, frame1, progress=backward_progress)
            clock.end_stage("backward")
        queued = QueuedFlow(flow)
        if self.should_refine(frame1.device):
            if progress is not None:
                progress(2 * _DIRECTION, "refinement")
            queued = self._queue_refinement_without_zeroing_still_areas(frame1, frame2, flow, backward)
            still = find_still_areas(frame1, frame2) if guided is None else still
            if still is not None:
                queued = queued._replace(flow=still.zero_still_flow(queued.flow))
            clock.end_stage("refinement")
        if progress is not None:
            progress(1.0, "refinement")
        return QueuedDirections(RefinedDirections(queued.flow, backward, {}, scale), queued.wait_and_check, clock)

    def refine(self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None = None) -> Tensor:
        """Refine a given flow; arguments as for :class:`fullfield.ops.tvl1.FlowRefiner`."""
        queued = self._queue_refinement_without_zeroing_still_areas(frame1, frame2, flow, backward)
        still = find_still_areas(frame1, frame2)
        queued.wait_and_check()
        return queued.flow if still is None else still.zero_still_flow(queued.flow)

    def _queue_refinement_without_zeroing_still_areas(
        self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None
    ) -> QueuedFlow:
        """Refine a given flow, also in areas that agree."""
        size = SolverSize(frame1.shape[-2], frame1.shape[-1], frame1.device, flow.dtype)
        with self._refiners.borrow_solver(size) as refiner:
            self._refiner_backend = refiner.backend
            return refiner.queue(frame1, frame2, flow, backward)


def _create_refiner(config: RefinementConfig, size: SolverSize) -> FlowRefiner:
    return FlowRefiner(size.height, size.width, config, dtype=size.dtype, device=size.device)


SHARED_REFINERS = SolverPool(partial(_create_refiner, RefinementConfig()))
"""Refiners of :func:`choose_refined_estimator_or_none`, which any estimators share."""


def choose_refined_estimator_or_none(
    estimator: Estimator, device: torch.device, *, refine: bool, needs_backward: bool = False
) -> RefinedEstimator | None:
    """Return the estimator that refines on ``device``; None if none does.

    ``refine`` wraps one that does not. ``needs_backward`` wraps it too, without a refinement, for its backward flow.
    """
    if isinstance(estimator, RefinedEstimator):
        if estimator.should_refine(device) or (needs_backward and not refine):
            return estimator
        if refine:
            return RefinedEstimator(estimator.estimator, estimator.config, refiners=estimator._refiners)
        return None
    if refine:
        return RefinedEstimator(estimator, refiners=SHARED_REFINERS)
    return RefinedEstimator(estimator, refine=False) if needs_backward else None
