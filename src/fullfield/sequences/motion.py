"""Pictures along stored flow: warping over many frames, and frames in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops._filling import interpolate_unknown_pixels
from fullfield.ops._positions import create_pixel_grid
from fullfield.ops._splatting import fill_unknown_vectors, splat_scaled_flow_with_cover_and_confidence
from fullfield.ops.warping import warp_planes_and_mark_inside

ReadFlow = Callable[[int], Tensor]
"""Callback that returns the flow [2, H, W] of a frame; NaN where it is unknown. InputError where there is none."""

_MIN_COVERAGE = 0.3  # of a pixel by the vectors that land on it
_DISAGREEMENT = 3.0  # 1/px: how fast a sample loses weight as its flow differs from the vector that leads to it
_MIN_SUPPORT = math.exp(-_DISAGREEMENT)  # of a pixel by its best sample, which is then off by 1 px


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

    >>> picture, known = warp_image(next_frame, flow.flow)  # doctest: +SKIP
    """
    _check.check_tensor(image, "image", ("C", "H", "W"))
    _check.check_tensor(flow, "flow", (2, *image.shape[1:]), device=image.device)
    image, flow = _check.check_not_meta(image, "image"), _check.check_not_meta(flow, "flow")
    if valid is not None:
        _check.check_tensor(valid, "valid", image.shape[1:], dtypes=(torch.bool,), device=image.device)
        image = torch.cat((torch.where(valid, image, 0.0), valid[None].to(image.dtype)))
    warped, inside = warp_planes_and_mark_inside(image[None], flow[None])
    values, inside = warped[0], inside[0]
    if valid is not None:
        valid_mask = values[-1]
        inside = inside & (valid_mask > 0.5)
        values = values[:-1] / valid_mask.clamp(min=0.5)
    return values.masked_fill_(~inside, 0.0), inside


def chain_flows(first: Tensor, second: Tensor) -> Tensor:
    """Return the flow [2, H, W] of two steps, ``first(x) + second(x + first(x))``; NaN where either is unknown."""
    following, inside = warp_image(second, first)
    return (first + following).masked_fill(~inside, float("nan"))


def iterate_accumulated_flow_to_reference(
    reference: int, numbers: Sequence[int], read_forward: ReadFlow, read_backward: ReadFlow
) -> Iterator[tuple[int, Tensor | InputError]]:
    """Yield for each frame the displacement [2, H, W] of its pixels to the frame ``reference``.

    Frames after the reference add up the ``backward`` flow of every frame in between, frames before it the ``forward``
    flow. The picture itself is then sampled once. Where a flow is missing, that frame and the following ones get the
    InputError that says so. The reference frame itself is not yielded.
    """
    requested = set(numbers)
    for step, read, last in ((1, read_backward, max(requested)), (-1, read_forward, min(requested))):
        total: Tensor | InputError | None = None
        for number in range(reference + step, last + step, step):
            if not isinstance(total, InputError):
                try:
                    flow = read(number)
                    total = flow if total is None else chain_flows(flow, total)
                except InputError as error:
                    total = error
            if number in requested and total is not None:
                yield number, total


class InterpolatedPicture(NamedTuple):
    """Picture between two frames."""

    picture: Tensor
    visible: Tensor
    """[H, W] bool: where at least one of the two frames shows the scene."""


class _SampledColors(NamedTuple):
    """Colours of one frame along vectors of the picture in between."""

    colors: Tensor  # [C, H, W]
    weight: Tensor  # [H, W]: nearness in time; 0 outside the frame and where it is not known
    agreement: Tensor  # [H, W], 0 to 1: of the vectors with the frame's own flow


def interpolate_picture_and_visibility(
    first: Tensor,
    second: Tensor,
    forward: Tensor,
    backward: Tensor,
    time: float,
    valid: tuple[Tensor | None, Tensor | None] = (None, None),
) -> InterpolatedPicture:
    """Return the picture [C, H, W] at a time between two frames, on their device.

    Both flows are splatted to that time; where several vectors land, those count most whose forward and backward flow
    agree (so what moves in front wins over what it hides). Along both vectors of a pixel, both frames are sampled. A
    sample counts as far as the frame's own flow there agrees with the vector: a frame in which the point is hidden has
    another flow there. As far as no sample of a pixel agrees, all are mixed by nearness in time; where none agrees to
    1 px, the pixel is the median of its neighbourhood, so that it does not stand out.

    Args:
        first: [C, H, W] float, colour multiplied by alpha.
        second: likewise.
        forward: [2, H, W], from the first to the second, on the first's pixels.
        backward: [2, H, W], from the second to the first, on the second's pixels.
        time: 0 is the first, 1 the second.
        valid: bool [H, W] each, where the two are known; None: everywhere. What neither knows is filled from its
            surroundings. It stays 0 where both frames are 0, as outside their data windows.
    """
    _check.check_number(time, "time", low=0, high=1)
    if time in (0, 1):
        visible = torch.ones(first.shape[-2:], dtype=torch.bool, device=first.device)
        return InterpolatedPicture((second if time else first).clone(), visible)
    flow1, flow2 = (fill_unknown_vectors(flow, flow.isfinite().all(0)) for flow in (forward, backward))
    motions = (  # from the first frame to the second, at the pixels of the picture in between
        _splat_flow_to_time_and_fill_holes(time, flow1, flow2, forward.isfinite().all(0)),
        -_splat_flow_to_time_and_fill_holes(1 - time, flow2, flow1, backward.isfinite().all(0)),
    )
    looks = []
    for motion in motions:
        looks.append(_sample_colors_and_weights_along_motion(first, flow1, motion, time, valid[0]))
        looks.append(_sample_colors_and_weights_along_motion(second, flow2, -motion, 1 - time, valid[1]))
    support = torch.stack([look.agreement * (look.weight > 0) for look in looks]).amax(0)
    total = torch.zeros_like(first)
    weights = torch.zeros(first.shape[-2:], dtype=torch.float32, device=first.device)
    for look in looks:
        weight = look.weight * (look.agreement + (1 - support))
        total += look.colors * weight
        weights += weight
    visible = weights > 0
    picture = total / weights.clamp(min=1e-12)
    if not bool(visible.all()):
        is_empty = ~(first.any(0) | second.any(0) | visible)
        picture = interpolate_unknown_pixels(picture, visible).masked_fill_(is_empty, 0.0)
    _replace_by_local_median_inplace(picture, visible & (support < _MIN_SUPPORT))
    return InterpolatedPicture(picture, visible)


def _replace_by_local_median_inplace(picture: Tensor, selected: Tensor) -> None:
    """Replace the selected pixels [H, W] by the medians of the 3 x 3 pixels around them, in place."""
    height, width = selected.shape
    rows, columns = selected.nonzero(as_tuple=True)
    steps = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    indices = torch.stack(
        [(rows + dy).clamp(0, height - 1) * width + (columns + dx).clamp(0, width - 1) for dy, dx in steps]
    )
    for plane in picture:
        plane[rows, columns] = plane.flatten()[indices].median(0).values


def _splat_flow_to_time_and_fill_holes(time: float, flow: Tensor, opposite_flow: Tensor, is_known: Tensor) -> Tensor:
    """Return the vectors [2, H, W] of a flow at the pixels that they reach at a time."""
    returned, is_inside = warp_image(opposite_flow, flow)
    trust = torch.exp(-(flow + returned).norm(dim=0)) * is_inside * is_known
    vectors, coverage, _ = splat_scaled_flow_with_cover_and_confidence(flow, time, trust, is_known)
    return fill_unknown_vectors(vectors, coverage > _MIN_COVERAGE)


def _sample_colors_and_weights_along_motion(
    image: Tensor, flow: Tensor, motion: Tensor, distance: float, valid: Tensor | None
) -> _SampledColors:
    """Sample a frame ``distance`` before the picture in between, whose pixels have that motion after the frame."""
    height, width = image.shape[-2:]
    valid_mask = torch.ones_like(flow[:1]) if valid is None else valid[None].to(flow.dtype)
    path = -distance * motion
    sampled = warp_planes_and_mark_inside(torch.cat((image * valid_mask, flow, valid_mask))[None], path[None])[0][0]
    colors, own_motion, coverage = sampled[:-3], sampled[-3:-1], sampled[-1]
    columns, rows = create_pixel_grid((height, width), flow.device, flow.dtype)
    x, y = columns + path[0], rows + path[1]
    # A pixel reaches half its width beyond its centre.
    is_inside = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    weight = (1 - distance) * (is_inside & (coverage > 0.5))
    agreement = torch.exp(-_DISAGREEMENT * (own_motion - motion).norm(dim=0))
    return _SampledColors(colors / coverage.clamp(min=0.5), weight, agreement)
