"""Guided refinement of a given flow to sub-pixel accuracy: contract, validation, choice of backend."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import Backends
from fullfield.ops.consistency import compute_forward_backward_distance
from fullfield.ops.tvl1 import guided_cpu, guided_cuda, guided_reference
from fullfield.ops.tvl1.config import ONLY_PASS, PassPosition, RefinementConfig
from fullfield.ops.tvl1.frames import (
    BRIGHTEST,
    FINITE_FLOW,
    QueuedFlow,
    add_device_index,
    check_and_detach_frame,
    check_finite,
    check_frame_values,
    check_solver_arguments,
    convert_to_grey_255,
)

REFINEMENT_BACKENDS = ("cuda", "cpu", "reference")
"""In order of preference."""
REFINERS = Backends("the refinement", f"{__package__}.guided_", REFINEMENT_BACKENDS)


def explain_refinement_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that can run here, (name, reason) for others; preferred first."""
    return REFINERS.list_refusals(torch.device(device), dtype)


class FlowRefiner:
    """The guided refinement, prepared for frames of one size: buffers are allocated once and reused.

    One call at a time: calls from several threads wait for each other. A refiner can be pickled and copied (with
    new buffers) and used after a fork. The threads inside a call are PyTorch's; the result does not depend
    on their number.

    Args:
        height, width: size of the frames; at least two pixels in all.
        config: parameters, by default those of :class:`RefinementConfig`.
        dtype: float32, or float64 (reference backend only). Frames of another floating type are converted.
        device: where the frames lie.
        backend: ``"cuda"``, ``"cpu"`` or ``"reference"``; None takes the fastest that can run.

    Raises InputError for bad arguments or a backend that cannot run here.
    """

    def __init__(
        self,
        height: int,
        width: int,
        config: RefinementConfig | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        backend: str | None = None,
    ) -> None:
        self.config = RefinementConfig() if config is None else config
        check_solver_arguments(height, width, self.config, RefinementConfig, dtype)
        self.height, self.width = height, width
        self.dtype, self.device = dtype, add_device_index(_check.resolve_available_device(device))
        self.backend = REFINERS.choose(backend, self.device, dtype)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._cpu = guided_cpu.CpuRefiner(height, width, self.config) if self.backend == "cpu" else None
        self._cuda = (
            guided_cuda.CudaRefiner(height, width, self.config, self.device) if self.backend == "cuda" else None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "backend": self.backend}
        return partial(FlowRefiner, **options), (self.height, self.width, self.config)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the refiner keeps between calls on its device; a call adds the result.

        None for the reference, which keeps nothing.
        """
        if self._cuda is not None:
            return guided_cuda.count_buffer_bytes(self.height, self.width, self.config.passes)
        return None if self._cpu is None else self._cpu.memory_bytes

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
        frame2: Tensor,  # [B, C, H, W]
        flow: Tensor,  # [B, 2, H, W], (u, v), pixels of the first frame
        backward: Tensor | None = None,  # [B, 2, H, W], from frame2 to frame1
    ) -> Tensor:  # [B, 2, H, W]
        """Refine ``flow``. Not differentiable.

        With ``backward`` the refinement stays nearer to ``flow`` where both agree. Of the change remains what the first
        round earned by letting the frames' gradients fit better (``least_fall``, ``passes_fall``). Raises InputError
        for tensors of another size, type or device than the refiner's, and for values that are NaN or infinite.
        """
        queued = self.queue(frame1, frame2, flow, backward)
        queued.wait_and_check()
        return queued.flow

    def queue(self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None = None) -> QueuedFlow:
        """Do as a call does, but wait for a GPU and look at its flags only in the result's ``wait_and_check``."""
        first, second = self._check_and_convert_frame(frame1, "frame1"), self._check_and_convert_frame(frame2, "frame2")
        _check.require(frame1.shape == frame2.shape, "frame2", f"shape {list(frame1.shape)} like frame1", frame2)
        prior = self._check_and_convert_flow(flow, "flow", len(first))
        back = None if backward is None else self._check_and_convert_flow(backward, "backward", len(first))
        if self._process != os.getpid():  # forked, perhaps while a thread of the parent held the lock
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if self._cuda is None:
                refined = torch.empty_like(prior)
                for n in range(len(first)):
                    item = slice(n, n + 1)
                    item_backward = None if back is None else back[item]
                    refined[item] = self._run_all_passes_and_blend(
                        first[item], second[item], prior[item], item_backward
                    )
                return QueuedFlow(refined)
            refined, flags = self._cuda(first, second, prior, back)
        return QueuedFlow(refined, lambda: self._raise_error_if_flagged(int(flags)))

    def _run_all_passes_and_blend(
        self, first: Tensor, second: Tensor, initial: Tensor, backward: Tensor | None
    ) -> Tensor:
        """Run all passes over checked tensors of one pair, on the CPU or by the reference."""
        flow, flow_after_first, misfits = initial, initial, list[Tensor]()
        count = self.config.passes if backward is not None else 1
        dual = initial.new_zeros(4, self.height, self.width) if self._cpu is None and count > 1 else None
        for number in range(count):
            position = PassPosition(number, count)
            # Only the forward flow is refined: the backward flow as given tells errors of the forward flow better.
            flow, misfit = self._run_pass_and_get_misfits(
                first,
                second,
                flow,
                backward,
                rounds=self.config.rounds if position.is_last else 1,
                position=position,
                dual_inout=dual,
            )
            misfits.append(misfit)
            first_fraction, later_fraction = (
                fraction.to(initial)
                for fraction in compute_total_and_later_kept_fractions(torch.cat(misfits, 1), self.config)
            )
            if number == 0:
                flow_after_first = flow
            elif not later_fraction.any():  # nothing of the passes that would follow remains
                break
        refined = torch.lerp(flow_after_first, flow, later_fraction) if count > 1 else flow
        return torch.lerp(initial, refined, first_fraction)

    def _run_pass_and_get_misfits(
        self,
        first: Tensor,  # [1, C, H, W]
        second: Tensor,
        prior: Tensor,  # [1, 2, H, W]
        backward: Tensor | None,
        *,
        rounds: int,
        position: PassPosition = ONLY_PASS,
        dual_inout: Tensor | None = None,  # [4, H, W], of the reference; the CPU's kernels keep theirs
    ) -> tuple[Tensor, Tensor]:  # [1, 2, H, W], [1, N]
        """Run one pass over a pair; return flow and misfits."""
        frames = first[0] * 255.0, convert_to_grey_255(first)[0], convert_to_grey_255(second)[0]
        if self._cpu is None:
            config = self.config.replace(rounds=rounds)
            coupling = compute_prior_weights(prior, backward, config)[0]
            pair = guided_reference.RefinementInput(*frames, prior[0], coupling)
            refined, misfits = guided_reference.refine_pair_and_get_misfits(pair, config, position, dual_inout)
        else:
            colours, one, two = (plane.contiguous().numpy() for plane in frames)
            other = None if backward is None else backward[0].numpy()
            threads = torch.get_num_threads()
            flow, misfits = self._cpu((colours, one, two), prior[0].numpy(), other, threads, rounds, position)
            refined = torch.from_numpy(flow)
        check_finite(refined, "flow", FINITE_FLOW)
        return refined[None], misfits[None]

    def _raise_error_if_flagged(self, flags: int) -> None:
        """Raise the error that the kernels noted."""
        if not flags:
            return
        for number, name in enumerate(("frame1", "frame2")):
            expected = f"finite values up to {BRIGHTEST:g} (0 ... 1 is usual)"
            _check.require(not flags & guided_cuda.BAD_FRAMES[number], name, expected, "others")
        for bit, name in ((guided_cuda.BAD_FLOW, "flow"), (guided_cuda.BAD_BACKWARD, "backward")):
            _check.require(not flags & bit, name, "finite values", "NaN or infinity")
        raise _check.InputError(f"flow: expected {FINITE_FLOW}, got NaN or infinity")

    def _check_and_convert_frame(self, frame: Tensor, name: str) -> Tensor:
        """Return the checked frame in the refiner's dtype."""
        frame = check_and_detach_frame(frame, name, self.height, self.width, self.device).to(self.dtype)
        if self._cuda is None:  # whose kernels look themselves
            check_frame_values(frame, name)
        return frame

    def _check_and_convert_flow(self, flow: Tensor, name: str, batch: int) -> Tensor:
        flow = _check.check_tensor(flow, name, (batch, 2, self.height, self.width))
        _check.require(flow.device.type == self.device.type, name, f"device {self.device}", flow)
        _check.require(flow.is_floating_point(), name, "a floating dtype", flow)
        flow = flow.detach().to(self.dtype).contiguous()
        if self._cuda is None:
            check_finite(flow, name)
        return flow


def compute_prior_weights(
    flow: Tensor,  # [B, 2, H, W]
    backward: Tensor | None,  # [B, 2, H, W]
    config: RefinementConfig,
) -> Tensor:  # [B, H, W]
    """Return the weight of the squared distance to ``flow`` in the energy."""
    if backward is None:
        return flow.new_full((len(flow), *flow.shape[2:]), config.coupling)
    distance = compute_forward_backward_distance(flow, backward) / config.consistent_distance
    return config.coupling + config.consistent_coupling / (1 + distance * distance)


def compute_total_and_later_kept_fractions(
    misfits: Tensor,  # [B, N], before each round that was judged
    config: RefinementConfig,
) -> tuple[Tensor, Tensor]:  # [B, 1, 1, 1] each, 0 ... 1
    """Return the shares of the flow's change, and of the change of later passes, that are kept.

    They depend on the relative decrease of the misfit in the first round. Without a second misfit everything is kept.
    """
    ones = misfits.new_ones(len(misfits), 1, 1, 1)
    if misfits.shape[1] < 2:
        return ones, ones
    fall = ones - (misfits[:, 1] / misfits[:, 0].clamp_min(1e-12)).view_as(ones)
    first = fall / config.least_fall if config.least_fall else ones
    later = 4 * fall / config.passes_fall - 3 if config.passes_fall else ones
    return first.clamp(0, 1), later.clamp(0, 1)


def refine_flow(
    frame1: Tensor,  # [B, C, H, W], C = 1 or 3, floating, display-referred, nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    flow: Tensor,  # [B, 2, H, W], (u, v), pixels of the first frame
    backward: Tensor | None = None,  # [B, 2, H, W], from frame2 to frame1
    config: RefinementConfig | None = None,
    *,
    backend: str | None = None,
) -> Tensor:  # [B, 2, H, W]
    """Refine ``flow`` to sub-pixel accuracy on the pair of frames; the README in this folder has the energy.

    Builds a :class:`FlowRefiner` for every call; keep one to reuse its buffers. float64 frames are refined in float64
    (reference backend), all others in float32. Errors as the refiner's.
    """
    _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
    height, width = frame1.shape[-2:]
    dtype = torch.float64 if frame1.dtype == torch.float64 else torch.float32
    refiner = FlowRefiner(height, width, config, dtype=dtype, device=frame1.device, backend=backend)
    return refiner(frame1, frame2, flow, backward)
