"""Arguments of the passes, for every backend."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

CELL_CHANNELS = 32
"""Channels that ``rescale_and_pack_frames_into_2x2_cells`` writes: twelve values of each frame, then zeros."""


class ScaleAndShift(NamedTuple):
    """Normalisation of channels: x scale + shift."""

    scale: Tensor | None
    """[C] or [B, C] float32; None for 1."""
    shift: Tensor
    """[C] or [B, C] float32."""


class FramePadding(NamedTuple):
    """Padding of a frame, and its size with the padding."""

    top: int
    left: int
    height: int
    width: int


class TargetSlice(NamedTuple):
    """Destination of a result."""

    slice: Tensor
    """Tensor [B, h, w, C], possibly channels of a larger one; [B, w, h, C] if ``transposed``."""
    transposed: bool = False
