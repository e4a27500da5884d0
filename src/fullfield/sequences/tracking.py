"""Dense position of every pixel of a reference frame in other frames of a shot.

The flow between frames over several distances is chained; for each pixel the chain with the least expected error wins.
A direct match with the reference, which starts from the best chain, finds pixels that were hidden or out of the frame,
and keeps errors from adding up. Related work: multi-flow tracking (Neoral et al., WACV 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from fullfield.estimators._reliability import estimate_occlusion_and_confidence
from fullfield.ops.consistency import compute_forward_backward_distance
from fullfield.ops.warping import warp_planes_and_mark_inside

_KEY_STEPS = 8
_MIN_ERROR_PX = 0.07  # the least that a confidence in float32 can express
_MAX_ERROR_PX = 50.0
_MAX_ROUND_TRIP_PX = 20.0  # from there on a pixel is hidden, whatever error is expected of it
_HIDDEN_ERROR_PX = 100.0  # added to the expected error of a chain that leads over a hidden pixel
_AGREEMENT = 3.0  # expected errors by which a direct match may differ from a chain that is sure
_DIRECT_MAX_ERROR_PX = 3.0
_BORDER_PX = 0.5
_FILL_STRIDE = 8  # pixels of the finest cell from which hidden pixels are filled
_FILL_WEIGHT = 0.01


class ChainSchedule(NamedTuple):
    """Matches that are made for each frame; those in one entry take turns from frame to frame."""

    distances: tuple[tuple[int, ...], ...]
    """Distances in frames over which flow is chained; the first one is 1."""
    starts: tuple[tuple[str, ...], ...]
    """Starts of the direct matches with the reference: ``chain``, which finds details, or ``zero``, which finds what
    the chains have lost."""


SCHEDULE = ChainSchedule(distances=((1,), (4, 16, 32)), starts=(("chain",), ("zero",)))


class FlowField(NamedTuple):
    """Displacement of each pixel to another frame, and what is known about it."""

    flow: Tensor  # [2, H, W], (u, v), pixels
    error: Tensor  # [H, W], expected error in pixels
    occlusion: Tensor  # [H, W], 0 ... 1, probability that the pixel is hidden in the other frame


class FrameMatch(NamedTuple):
    """Motion between two frames in both directions."""

    forward: FlowField
    backward: FlowField


class PairMatcher(Protocol):
    """Estimator of both directions of a pair of frames [1, C, H, W], with optional initial flows [1, 2, H, W]."""

    def __call__(
        self, frame1: Tensor, frame2: Tensor, forward: Tensor | None, backward: Tensor | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Return the forward and the backward flow [1, 2, H, W], and their log scales [1, H, W] if known."""
        ...


Refine = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Refinement of a flow: first frame, second frame, flow, backward flow -> flow; all [1, ., H, W]."""


class _TrackedFrame(NamedTuple):
    frame: Tensor  # [1, C, H, W]
    match: FrameMatch  # of the reference and the frame


def list_chain_source_steps(step: int, schedule: ChainSchedule = SCHEDULE) -> list[int]:
    """Return the steps of the frames from which the motion to the frame of ``step`` is chained; 0 is the reference.

    Sources over long distances lie on multiples of ``_KEY_STEPS``, so that few frames have to be stored.
    """
    sources = []
    for distances in schedule.distances:
        distance = distances[step % len(distances)]
        source = step - distance
        if distance > _KEY_STEPS:
            source = -(-source // _KEY_STEPS) * _KEY_STEPS
        if source >= 0:
            sources.append(source)
    return list(dict.fromkeys(sources))


def list_needed_source_steps(step: int, schedule: ChainSchedule = SCHEDULE) -> set[int]:
    """Return the steps before ``step`` from which the motion to its frame and to later ones is chained."""
    later = range(step, step + max(map(max, schedule.distances)))
    return {source for target in later for source in list_chain_source_steps(target, schedule) if source < step}


class Tracker:
    """Tracker of all pixels of one reference frame; frames are added in order, away from the reference.

    A frame's motion depends only on the reference, the frames of :func:`list_chain_source_steps`, and the values that
    :meth:`track_next_frame` returned for them. So a tracker that is restored from stored values continues with the same
    results.

    Args:
        reference: [1, C, H, W], the reference frame.
        match: estimator of a pair in both directions.
        refine: refinement of the final flow against the reference; None leaves it out.
        schedule: matches that are made for each frame.
        valid: bool [H, W], where the reference is known; None: everywhere.

    Attributes:
        step: number of the next frame, counted from the reference.
    """

    def __init__(
        self,
        reference: Tensor,
        match: PairMatcher,
        refine: Refine | None,
        schedule: ChainSchedule = SCHEDULE,
        *,
        valid: Tensor | None = None,
    ) -> None:
        self._reference, self._match, self._refine, self._valid = reference, match, refine, valid
        self._schedule = schedule
        flow = reference.new_zeros(2, *reference.shape[-2:])
        still = FlowField(flow, torch.zeros_like(flow[0]), torch.zeros_like(flow[0]))
        self._states = {0: _TrackedFrame(reference, FrameMatch(still, still))}
        self.step = 1

    def track_next_frame(
        self, frame: Tensor, *, valid: Tensor | None = None, rounds_to_half: bool = False
    ) -> dict[str, Tensor]:
        """Return the motion between the reference and the next frame [1, C, H, W], by the names of stored layers.

        ``forward`` [2, H, W] leads from the reference to the frame, on the reference's pixels; ``backward`` from the
        frame to the reference. ``occlusion.forward`` [H, W] is the probability that a pixel of the reference is hidden
        in the frame, ``confidence.forward`` that its error is under a pixel; those of ``backward`` belong to pixels of
        the frame. Pixels that are not ``valid``, and those that lead to such pixels, are hidden, with no confidence.
        With ``rounds_to_half`` the values are rounded to half precision.
        """
        match = self._match_and_select_best_chain(frame)
        for starts in self._schedule.starts:
            is_chain = starts[self.step % len(starts)] == "chain"
            flows = tuple(_fill_hidden_vectors(field) for field in match) if is_chain else None
            direct = self._match_frames(self._reference, frame, flows)
            match = FrameMatch(
                *(_select_direct_match_where_trusted(chain, other) for chain, other in zip(match, direct, strict=True))
            )
        if self._refine is not None:
            forward, backward = match.forward.flow[None], match.backward.flow[None]
            match = FrameMatch(
                match.forward._replace(flow=self._refine(self._reference, frame, forward, backward)[0]),
                match.backward._replace(flow=self._refine(frame, self._reference, backward, forward)[0]),
            )
        match = _mark_inconsistent_pixels_occluded(match)
        match = FrameMatch(
            _mark_unknown_pixels_occluded(match.forward, self._valid, valid),
            _mark_unknown_pixels_occluded(match.backward, valid, self._valid),
        )
        layers = _convert_match_to_layers(match)
        if rounds_to_half:
            layers = {name: plane.half().float() for name, plane in layers.items()}
        self.restore_frame(frame, layers)
        return layers

    def restore_frame(self, frame: Tensor, layers: Mapping[str, Tensor]) -> None:
        """Add the next frame with the layers that :meth:`track_next_frame` returned for it."""
        self._states[self.step] = _TrackedFrame(frame, _convert_layers_to_match(layers))
        self.skip_frame_and_drop_unneeded()

    def skip_frame_and_drop_unneeded(self) -> None:
        """Count the next frame; its motion must not be a source of frames that are added later."""
        self.step += 1
        needed = list_needed_source_steps(self.step, self._schedule)
        self._states = {step: state for step, state in self._states.items() if step in needed}

    def _match_and_select_best_chain(self, frame: Tensor) -> FrameMatch:
        best: FrameMatch | None = None
        for source in list_chain_source_steps(self.step, self._schedule):
            state = self._states[source]
            chain = _chain_matches(state.match, self._match_frames(state.frame, frame))
            best = chain if best is None else _select_better_match_per_pixel(best, chain)
        assert best is not None
        return best

    def _match_frames(self, first: Tensor, second: Tensor, starts: tuple[Tensor, ...] | None = None) -> FrameMatch:
        forward, backward, scales = self._match(first, second, *((None, None) if starts is None else starts))
        flows = _clamp_targets_just_outside(torch.cat((forward, backward)))
        log_scale = None if scales is None else torch.cat(scales)
        occlusion, confidence = estimate_occlusion_and_confidence(
            torch.cat((first, second)), torch.cat((second, first)), flows, flows.flip(0), log_scale
        )
        error = compute_expected_error_px(confidence)
        return FrameMatch(FlowField(forward[0], error[0], occlusion[0]), FlowField(backward[0], error[1], occlusion[1]))


def _clamp_targets_just_outside(flow: Tensor) -> Tensor:
    """Return the flow [B, 2, H, W] with targets up to half a pixel outside of the frame on its outermost pixels.

    These are within the area of the outermost pixels, so what they show is seen.
    """
    height, width = flow.shape[-2:]
    rows, columns = (torch.arange(size, dtype=flow.dtype, device=flow.device) for size in (height, width))
    starts = torch.stack(torch.meshgrid(columns, rows, indexing="xy"))
    targets = starts + flow
    limits = flow.new_tensor([width - 1, height - 1]).view(2, 1, 1)
    clamped = targets.clamp(min=torch.zeros_like(limits), max=limits)
    return torch.where((targets - clamped).abs() <= _BORDER_PX, clamped - starts, flow)


def compute_expected_error_px(confidence: Tensor) -> Tensor:
    """Return the expected error in pixels of flow whose error is under a pixel with probability ``confidence``.

    Errors are taken to be distributed exponentially.
    """
    return (-1.0 / torch.log1p(-confidence.clamp(1e-6, 1 - 1e-6))).clamp(_MIN_ERROR_PX, _MAX_ERROR_PX)


def compute_confidence(error_px: Tensor) -> Tensor:
    """Return the probability of an error under one pixel; the inverse of :func:`compute_expected_error_px`."""
    return -torch.expm1(-1.0 / error_px.clamp(_MIN_ERROR_PX))


def _convert_match_to_layers(match: FrameMatch) -> dict[str, Tensor]:
    layers: dict[str, Tensor] = {}
    for name, field in zip(FrameMatch._fields, match, strict=True):
        layers[name] = field.flow
        layers[f"occlusion.{name}"] = field.occlusion
        layers[f"confidence.{name}"] = compute_confidence(field.error)
    return layers


def _convert_layers_to_match(layers: Mapping[str, Tensor]) -> FrameMatch:
    return FrameMatch(
        *(
            FlowField(
                layers[name], compute_expected_error_px(layers[f"confidence.{name}"]), layers[f"occlusion.{name}"]
            )
            for name in FrameMatch._fields
        )
    )


def _chain_matches(match: FrameMatch, next_match: FrameMatch) -> FrameMatch:
    """Chain the motion from the reference to a frame with that from this frame to the next one."""
    return FrameMatch(
        _chain_fields(match.forward, next_match.forward), _chain_fields(next_match.backward, match.backward)
    )


def _chain_fields(first: FlowField, second: FlowField) -> FlowField:
    """Return the field that follows ``first`` and then ``second``."""
    planes = torch.cat((second.flow, second.error[None], second.occlusion[None]))[None]
    sampled, inside = warp_planes_and_mark_inside(planes, _clamp_targets_just_outside(first.flow[None]))
    flow, error, occlusion = sampled[0, :2], sampled[0, 2], sampled[0, 3]
    hidden = torch.maximum(first.occlusion, torch.where(inside[0], occlusion, 1.0))
    return FlowField(first.flow + flow, first.error + error, hidden)


def _compute_error_with_occlusion_penalty(field: FlowField) -> Tensor:
    return field.error + _HIDDEN_ERROR_PX * (field.occlusion > 0.5)


def _select_better_match_per_pixel(first: FrameMatch, second: FrameMatch) -> FrameMatch:
    return FrameMatch(
        *(
            _select_by_mask(_compute_error_with_occlusion_penalty(b) < _compute_error_with_occlusion_penalty(a), b, a)
            for a, b in zip(first, second, strict=True)
        )
    )


def _select_by_mask(mask: Tensor, selected: FlowField, other: FlowField) -> FlowField:
    return FlowField(*(torch.where(mask, a, b) for a, b in zip(selected, other, strict=True)))


def _select_direct_match_where_trusted(chain: FlowField, direct: FlowField) -> FlowField:
    """Take the direct match where it is trusted and does not contradict a chain that is sure.

    A match that seems hidden may still have the right position: it replaces a chain that leads over a hidden pixel.
    """
    distance = torch.linalg.vector_norm(chain.flow - direct.flow, dim=0)
    limit = _AGREEMENT * (chain.error + direct.error) + 0.5
    contradicts = (chain.occlusion < 0.5) & (distance > limit) & (chain.error < direct.error)
    trusted = (direct.error < _DIRECT_MAX_ERROR_PX) & ~contradicts
    better = trusted & (_compute_error_with_occlusion_penalty(direct) < _compute_error_with_occlusion_penalty(chain))
    return _select_by_mask(better, direct, chain)


def _fill_hidden_vectors(field: FlowField) -> Tensor:
    """Return the flow [1, 2, H, W] with hidden pixels filled from those around them."""
    weight = (field.occlusion < 0.5).float() / (0.1 + field.error)
    planes = torch.cat((field.flow * weight, weight[None]))[None]
    levels = [avg_pool2d(planes, _FILL_STRIDE, ceil_mode=True)]
    while max(levels[-1].shape[-2:]) > 1:
        levels.append(avg_pool2d(levels[-1], 2, ceil_mode=True))
    filled = levels[-1][:, :2] / levels[-1][:, 2:].clamp(min=1e-6)
    for level in levels[-2::-1]:
        coarse = interpolate(filled, size=level.shape[-2:], mode="bilinear", align_corners=False)
        filled = (level[:, :2] + _FILL_WEIGHT * coarse) / (level[:, 2:] + _FILL_WEIGHT)
    filled = interpolate(filled, size=field.flow.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(field.occlusion < 0.5, field.flow, filled)


def _mark_inconsistent_pixels_occluded(match: FrameMatch) -> FrameMatch:
    """Count pixels as hidden whose way to the other frame and back does not end where it began."""
    fields = []
    for own, other in (match, match[::-1]):
        distance = compute_forward_backward_distance(
            _clamp_targets_just_outside(own.flow[None]), _clamp_targets_just_outside(other.flow[None])
        )[0]
        limit = (2.0 + own.error).clamp(max=_MAX_ROUND_TRIP_PX - 2.0)
        hidden = torch.sigmoid(2.0 * (distance.clamp(max=_MAX_ROUND_TRIP_PX) - limit))
        fields.append(own._replace(occlusion=torch.maximum(own.occlusion, hidden)))
    return FrameMatch(*fields)


def _mark_unknown_pixels_occluded(field: FlowField, own_valid: Tensor | None, other_valid: Tensor | None) -> FlowField:
    """Hide pixels that are unknown in their own frame, and those that lead to unknown pixels of the other one."""
    unknown = torch.zeros_like(field.occlusion, dtype=torch.bool) if own_valid is None else ~own_valid
    if other_valid is not None:
        unknown = unknown | (
            warp_planes_and_mark_inside(other_valid[None, None].float(), _clamp_targets_just_outside(field.flow[None]))[
                0
            ][0, 0]
            < 0.5
        )
    return field._replace(
        error=torch.where(unknown, _MAX_ERROR_PX, field.error), occlusion=torch.where(unknown, 1.0, field.occlusion)
    )
