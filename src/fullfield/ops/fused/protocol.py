"""What ``reference`` and ``cuda`` have in common. Nothing here is part of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

CELL_CHANNELS = 32
"""Of :meth:`Passes.frames_to_cells`: twelve values of each frame, then zeros."""


class Norm(NamedTuple):
    """What brings channels where a norm wants them: x scale + shift."""

    scale: Tensor | None
    """[C] or [B, C] float32; None for 1."""
    shift: Tensor
    """[C] or [B, C] float32."""


class Frame(NamedTuple):
    """Pixels put around a frame and its full size with them."""

    top: int
    left: int
    height: int
    width: int


class Target(NamedTuple):
    """Where a result goes."""

    slice: Tensor
    """[B, h, w, C], channels of a larger tensor perhaps; [B, w, h, C] if ``transposed``."""
    transposed: bool = False


class Passes(Protocol):
    """The passes. Activations are [B, h, w, C]; ``_`` behind a name: the first argument is overwritten."""

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
        """A convolution; ``relu`` needs a bias."""

    def frames_to_cells(self, frame1: Tensor, frame2: Tensor, frame: Frame, out: Tensor) -> None:
        """Frames [B, 3, H, W], 0 … 1 or uint8, to −1 … 1 in cells of 2×2 pixels, the border repeated up to ``frame``.

        ``out`` is [B, height / 2 + 3, width / 2 + 3, 32], (row, column, colour) of the first frame's cell, then of the
        second's; two rows and columns of zeros before them and one behind: the border of a 7×7 convolution of stride 2.
        """

    def affine_(self, y: Tensor, norm: Norm, x: Tensor | None = None, x_norm: Norm | None = None) -> Tensor:
        """relu(norm(y)), or relu(x_norm(x) + relu(norm(y)))."""

    def moments(self, y: Tensor, epsilon: float) -> Norm:
        """What brings every channel of every item to mean 0 and variance 1."""

    def pack(
        self,
        source: Tensor,
        bias: Tensor | None,  # float32; None: source as it is
        to: Sequence[Target],  # at most four
        flow: tuple[Tensor, int] | None = None,  # coords [B, 2, h, w], and the first of the two channels that hold it
    ) -> None:
        """relu(source + bias) into ``to``, the flow coords − grid into two of its channels."""

    def flow_patches(self, coords: Tensor, side: int, out: Tensor) -> None:
        """Windows of the flow, (row, column, x or y) slow to fast, outside the map zero, further channels zero."""

    def gate_reset(self, state: Tensor, zr: Tensor, zr_map: Tensor, to: Target) -> None:
        """sigmoid(r + its map) · state; ``zr`` holds the update gate, then the reset gate."""

    def gate_update(
        self, state: Tensor, zr: Tensor, zr_map: Tensor, q: Tensor, q_map: Tensor, to: Sequence[Target]
    ) -> None:
        """(1 − z) · state + z · tanh(q + its map), which may replace ``state`` itself; at most four targets."""

    def flow_step_(self, coords: Tensor, taps: Tensor, bias: Tensor) -> None:
        """Add bias and the sum over 3×3 neighbours of the products ``taps``: row, column, x or y slow to fast."""

    def gelu_(self, y: Tensor) -> None:
        """y Φ(y)."""

    def depthwise_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> None:
        """A depthwise 7×7 convolution (``weight`` [49, C], float32), then mean 0 and variance 1 over the channels."""

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
        """Convex up-sampling times ``gain`` of the cells' rows ``first_row`` and following, as many as ``mask`` has.

        ``out`` is the fine field from pixel ``origin`` (y, x) on, and is written where these rows lie.
        """
