"""Interface of ``reference`` and ``cuda``. The passes take no part in autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

CELL_CHANNELS = 32
"""Channels of :meth:`Passes.frames_to_cells`: twelve values of each frame, then zeros."""


class Norm(NamedTuple):
    """Normalisation of channels: x scale + shift."""

    scale: Tensor | None
    """[C] or [B, C] float32; None for 1."""
    shift: Tensor
    """[C] or [B, C] float32."""


class Frame(NamedTuple):
    """Padding of a frame, and its size with the padding."""

    top: int
    left: int
    height: int
    width: int


class Target(NamedTuple):
    """Destination of a result."""

    slice: Tensor
    """Tensor [B, h, w, C], possibly channels of a larger one; [B, w, h, C] if ``transposed``."""
    transposed: bool = False


class Passes(Protocol):
    """Passes on activations [B, h, w, C]; one whose name ends in ``_`` overwrites its first argument."""

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,  # [C', C, kh, kw], channels-last
        bias: Tensor | None = None,
        *,
        relu: bool = False,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Convolve; ``relu`` needs a bias."""

    def frames_to_cells(self, frame1: Tensor, frame2: Tensor, frame: Frame, out: Tensor) -> None:
        """Convert frames [B, 3, H, W], 0 … 1 or uint8, to −1 … 1 in cells of 2×2 pixels, padded to ``frame``.

        ``out`` is [B, height / 2 + 3, width / 2 + 3, 32], (row, column, colour) of the first frame's cell, then of the
        second's. The border of a 7×7 convolution of stride 2 is zero: two rows and columns before them and one after.
        """

    def affine_(self, y: Tensor, norm: Norm, x: Tensor | None = None, x_norm: Norm | None = None) -> Tensor:
        """Compute relu(norm(y)), or relu(x_norm(x) + relu(norm(y)))."""

    def moments(self, y: Tensor, epsilon: float) -> Norm:
        """Return the norm that gives every channel of every item mean 0 and variance 1."""

    def pack(
        self,
        source: Tensor,
        bias: Tensor | None,  # float32; None: source as it is
        to: Sequence[Target],  # at most four
        flow: tuple[Tensor, int] | None = None,  # coords [B, 2, h, w], and the first of the two channels that hold it
    ) -> None:
        """Write relu(source + bias) to ``to``, and the flow coords − grid to two of its channels."""

    def flow_patches(self, coords: Tensor, side: int, out: Tensor) -> None:
        """Write windows of the flow, (row, column, x or y) slow to fast; zero outside the map and elsewhere."""

    def gate_reset(self, state: Tensor, zr: Tensor, zr_map: Tensor, to: Target) -> None:
        """Write sigmoid(r + its map) · state; ``zr`` holds the update gate, then the reset gate."""

    def gate_update(
        self, state: Tensor, zr: Tensor, zr_map: Tensor, q: Tensor, q_map: Tensor, to: Sequence[Target]
    ) -> None:
        """Write (1 − z) · state + z · tanh(q + its map), which may replace ``state``; at most four targets."""

    def flow_step_(self, coords: Tensor, taps: Tensor, bias: Tensor) -> None:
        """Add bias and the sum over 3×3 neighbours of the products ``taps``: row, column, x or y slow to fast."""

    def gelu_(self, y: Tensor) -> None:
        """Compute y Φ(y)."""

    def depthwise_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> None:
        """Convolve depthwise 7×7 (``weight`` [49, C], float32), then normalise to mean 0 and variance 1."""

    def convex_strip(
        self,
        field: Tensor,  # [B, C, h, w] float32
        mask: Tensor,  # [B, 9·factor², rows, w], weights before their softmax
        factor: int,
        out: Tensor,  # [B, C, H, W] float32
        *,
        first_row: int = 0,
        origin: tuple[int, int] = (0, 0),
        gain: float = 1.0,
    ) -> None:
        """Up-sample the cells' rows from ``first_row`` on, those of ``mask``, convexly and multiply by ``gain``.

        ``out`` is the fine field from pixel ``origin`` (y, x) on; the pixels of these rows are written.
        """
