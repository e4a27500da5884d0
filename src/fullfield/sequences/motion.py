"""Pictures along stored flow: warping over many frames, and frames in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops._splatting import fill_holes, splat_flow
from fullfield.ops.warping import warp

ReadFlow = Callable[[int], Tensor]
"""Callback that returns the flow [2, H, W] of a frame; NaN where it is unknown. InputError where there is none."""

_MIN_COVERAGE = 0.3  # of a pixel by the vectors that land on it


def warp_image(
    image: Tensor,  # [C, H, W]
    flow: Tensor,  # [2, H, W]
    valid: Tensor | None = None,  # bool [H, W], where the image is known; None: everywhere
) -> tuple[Tensor, Tensor]:  # [C, H, W], bool [H, W]
    """Warp an image by a flow: ``warped(x) = image(x + flow(x))``, bilinear, on any device.

    Returns:
        The warped image, 0 where ``x + flow(x)`` leaves the image, leads to where it is not known, or is NaN; bool,
        True where it stays between the centres of the outermost pixels and most of what it reads is known.

    Raises:
        InputError: if shapes, dtypes or devices do not fit.
    """
    _check.tensor(image, "image", ("C", "H", "W"))
    _check.tensor(flow, "flow", (2, *image.shape[1:]), device=image.device)
    image, flow = _check.values(image, "image"), _check.values(flow, "flow")
    if valid is not None:
        _check.tensor(valid, "valid", image.shape[1:], dtypes=(torch.bool,), device=image.device)
        image = torch.cat((torch.where(valid, image, 0.0), valid[None].to(image.dtype)))
    warped, inside = warp(image[None], flow[None])
    values, inside = warped[0], inside[0]
    if valid is not None:
        known = values[-1]
        inside = inside & (known > 0.5)
        values = values[:-1] / known.clamp(min=0.5)
    return values.masked_fill_(~inside, 0.0), inside


def add_flows(first: Tensor, second: Tensor) -> Tensor:
    """Return the flow [2, H, W] of two steps, ``first(x) + second(x + first(x))``; NaN where either is unknown."""
    following, inside = warp_image(second, first)
    return (first + following).masked_fill(~inside, float("nan"))


def accumulate_flow(
    reference: int, numbers: Sequence[int], forward: ReadFlow, backward: ReadFlow
) -> Iterator[tuple[int, Tensor | InputError]]:
    """Yield for each frame the displacement [2, H, W] of its pixels to the frame ``reference``.

    Frames after the reference add up the ``backward`` flow of every frame in between, frames before it the ``forward``
    flow. The picture itself is then sampled once. Where a flow is missing, that frame and the following ones get the
    InputError that says so. The reference frame itself is not yielded.
    """
    requested = set(numbers)
    for step, read, last in ((1, backward, max(requested)), (-1, forward, min(requested))):
        total: Tensor | InputError | None = None
        for number in range(reference + step, last + step, step):
            if not isinstance(total, InputError):
                try:
                    flow = read(number)
                    total = flow if total is None else add_flows(flow, total)
                except InputError as error:
                    total = error
            if number in requested and total is not None:
                yield number, total


class Interpolated(NamedTuple):
    """Picture between two frames."""

    picture: Tensor
    visible: Tensor
    """[H, W] bool: where at least one of the two frames shows the scene."""


def interpolate(
    first: Tensor,
    second: Tensor,
    forward: Tensor,
    backward: Tensor,
    time: float,
    valid: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Interpolated:
    """Return the picture [C, H, W] at a time between two frames, on their device.

    Both flows are splatted to that time; where several vectors land, those count most whose forward and backward flow
    agree (so what moves in front wins over what it hides). Each frame is then sampled once along the vectors that
    arrived. Where both frames show the scene, they are mixed by nearness in time; what only one of them shows is taken
    from it.

    Args:
        first: [C, H, W] float, colour multiplied by alpha.
        second: likewise.
        forward: [2, H, W], from the first to the second, on the first's pixels.
        backward: [2, H, W], from the second to the first, on the second's pixels.
        time: 0 is the first, 1 the second.
        valid: bool [H, W] each, where the two are known; None: everywhere. What neither knows is 0.
    """
    _check.number(time, "time", low=0, high=1)
    if time in (0, 1):
        visible = torch.ones(first.shape[-2:], dtype=torch.bool, device=first.device)
        return Interpolated((second if time else first).clone(), visible)
    total, fallback = torch.zeros_like(first), torch.zeros_like(first)
    weights = torch.zeros(first.shape[-2:], dtype=torch.float32, device=first.device)
    fallback_weights = torch.zeros_like(weights)
    sides = ((first, valid[0], forward, backward, time), (second, valid[1], backward, forward, 1 - time))
    for image, known, flow, opposite, distance in sides:
        is_finite = flow.isfinite().all(0)
        finite_flow = torch.where(is_finite, flow, 0.0)
        returned, is_inside = warp_image(opposite.nan_to_num(0.0), finite_flow)
        trust = torch.exp(-(finite_flow + returned).norm(dim=0)) * is_inside * is_finite
        vectors, coverage, mean_trust = splat_flow(finite_flow, distance, trust, is_finite)
        is_covered = coverage > _MIN_COVERAGE
        vectors = fill_holes(vectors, is_covered)
        sampled, inside = warp_image(image, -distance * vectors, known)
        weight = (1 - distance) * inside * is_covered * (mean_trust + 1e-3)
        total += sampled * weight
        weights += weight
        fallback_weight = (1 - distance) * inside
        fallback += sampled * fallback_weight
        fallback_weights += fallback_weight
    visible = weights > 0
    picture = torch.where(visible, total / weights.clamp(min=1e-12), fallback / fallback_weights.clamp(min=1e-12))
    return Interpolated(picture, visible)
