"""Mirrored frames: a network's errors on them are partly others, so the mean of their flows has less error."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

MIRRORED_AXES = ((-2, -1), (-1,))
"""Axes along which frames are mirrored for further estimates: both, which is half a turn, and x."""


def mirror_flow(flow: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the flow [B, 2, H, W] of frames that are mirrored along ``axes``, -1 for x and -2 for y."""
    mirrored = flow.flip(tuple(axes))
    for axis in axes:
        mirrored.select(1, -1 - axis).neg_()
    return mirrored
