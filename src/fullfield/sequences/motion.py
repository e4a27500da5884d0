"""Pictures along stored flow: warping over many frames, and frames in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops._splatting import carried, fill_holes
from fullfield.viz import warp

Field = Callable[[int], Tensor]
"""The flow [2, H, W] of a frame; NaN where it is not known. InputError where there is none."""


def follow_back(step: Tensor, rest: Tensor) -> Tensor:
    """Return the sum of flows, ``out(x) = step(x) + rest(x + step(x))``, [2, H, W]; NaN where either is unknown."""
    further, inside = warp(rest, step)
    return (step + further).masked_fill(~inside, float("nan"))


def accumulated(
    reference: int, numbers: Sequence[int], forward: Field, backward: Field
) -> Iterator[tuple[int, Tensor | InputError]]:
    """Yield for each frame the displacement [2, H, W] of its pixels to the frame ``reference``.

    Frames after the reference go back over the ``backward`` flow of every frame on the way, frames before it over the
    ``forward`` flow. The picture itself is then sampled once, however far it is. Where a flow is missing, that frame
    and those behind it get the InputError that says so. Nothing is told of the reference frame itself.
    """
    wanted = set(numbers)
    for way, field, end in ((1, backward, max(wanted)), (-1, forward, min(wanted))):
        total: Tensor | InputError | None = None
        for number in range(reference + way, end + way, way):
            if not isinstance(total, InputError):
                try:
                    step = field(number)
                    total = step if total is None else follow_back(step, total)
                except InputError as error:
                    total = error
            if number in wanted and total is not None:
                yield number, total


class Mixed(NamedTuple):
    """Picture between two frames."""

    picture: Tensor
    seen: Tensor
    """[H, W] bool: where at least one of the two frames shows what is there."""


def between(first: Tensor, second: Tensor, forward: Tensor, backward: Tensor, at: float) -> Mixed:
    """Return the picture [C, H, W] at a time between two frames.

    Both flows are carried to that time, each pixel with its vector; where several land, the one counts most whose way
    there and back agree (so what moves in front wins over what it hides). Each frame is then sampled once along the
    vectors that arrived. Where both frames show a place, they are mixed by nearness in time; what only one of them
    shows is taken from it alone.

    Args:
        first: [C, H, W] float, colour multiplied by alpha.
        second: likewise.
        forward: [2, H, W], from the first to the second, on the first's pixels.
        backward: [2, H, W], from the second to the first, on the second's pixels.
        at: 0 is the first, 1 the second.
    """
    _check.number(at, "at", low=0, high=1)
    if at in (0, 1):
        return Mixed((second if at else first).clone(), torch.ones(first.shape[-2:], dtype=torch.bool))
    total = torch.zeros_like(first)
    weights = torch.zeros(first.shape[-2:], dtype=torch.float32)
    spare, spare_weights = torch.zeros_like(first), torch.zeros_like(weights)
    for image, flow, back, part in ((first, forward, backward, at), (second, backward, forward, 1 - at)):
        known = flow.isfinite().all(0)
        sound = torch.where(known, flow, 0.0)
        returned, there_and_back = warp(back.nan_to_num(0.0), sound)
        trust = torch.exp(-(sound + returned).norm(dim=0)) * there_and_back * known
        vectors, cover, sure = carried(sound, part, trust, known)
        there = cover > 0.3
        vectors = fill_holes(vectors, there)
        sampled, inside = warp(image, -part * vectors)
        weight = (1 - part) * inside * there * (sure + 1e-3)
        total += sampled * weight
        weights += weight
        loose = (1 - part) * inside
        spare += sampled * loose
        spare_weights += loose
    seen = weights > 0
    total = torch.where(seen, total / weights.clamp(min=1e-12), spare / spare_weights.clamp(min=1e-12))
    return Mixed(total, seen)
