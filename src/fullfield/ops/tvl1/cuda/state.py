"""The planes of one pyramid level on the GPU, as every kernel of the solver sees them."""

from __future__ import annotations

import torch
from torch import Tensor

ROW = 128
"""Rows of planes are a multiple of so many bytes apart."""
FLOW, DUAL, DATA, ORIGIN = 2, 4, 3, 2  # planes of each kind


def compute_row_pitch_in_elements(width: int, dtype: torch.dtype) -> int:
    """Return the number of elements from one row of a plane to the next."""
    step = ROW // dtype.itemsize
    return -(-width // step) * step


def count_level_planes(dtype: torch.dtype) -> int:
    """Return the number of planes of an item: flow and dual twice, data, and in float16 the origin."""
    return 2 * (FLOW + DUAL) + DATA + (ORIGIN if dtype == torch.float16 else 0)


def count_state_elements(batch: int, height: int, width: int, dtype: torch.dtype) -> int:
    """Return the number of elements of a level."""
    return batch * count_level_planes(dtype) * height * compute_row_pitch_in_elements(width, dtype)


class Level:
    """Flow, dual variable and data term of ``batch`` frames in one allocation [batch, planes, height, pitch].

    Planes of an item, in order: flow and dual of set 0, flow and dual of set 1, data, origin. Iterations read set
    ``front`` and may leave their result in the other, which then is ``front``; launches captured into a graph must
    therefore start from the same ``front`` at every replay. What lies beyond ``width`` in a row is nobody's: kernels
    may write there and must not use what they read there.

    - ``flow`` (2: x, y): in float32 the flow in pixels; in float16 the flow less ``origin``.
    - ``dual`` (4: x and y of component 1, x and y of component 2): theta times the dual variable.
    - ``data`` (3: gradient x, gradient y, residual): the gradient must be zero where it is to count for nothing. The
      data term is ``gradient · flow + residual``: in float32 the residual is I₂(x + u⁰) − I₁ − gradient · u⁰, in
      float16 I₂(x + origin) − I₁.
    - ``origin`` (2, float16 alone): u⁰ rounded to half precision. The warp must sample there, not at u⁰, so that
      origin + flow has more digits than half precision: after a warp's start flow is u⁰ − origin, or zero.
    """

    def __init__(
        self,
        batch: int,
        height: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: Tensor | None = None,
    ) -> None:
        """Allocate the planes, or use ``memory``: at least ``count_state_elements(...)`` long, aligned to 128 bytes."""
        self.batch, self.height, self.width, self.dtype, self.device = batch, height, width, dtype, device
        self.pitch = compute_row_pitch_in_elements(width, dtype)
        size = count_state_elements(batch, height, width, dtype)
        if memory is None:
            memory = torch.empty(size, dtype=dtype, device=device)
        self.memory = memory.view(-1)[:size].view(batch, count_level_planes(dtype), height, self.pitch)
        self.front = 0
        """The set of flow and dual, 0 or 1, that holds the present state."""

    @property
    def plane_step(self) -> int:
        """Elements from one plane of an item to the next."""
        return self.height * self.pitch

    @property
    def item_step(self) -> int:
        """Elements from one item of the batch to the next."""
        return count_level_planes(self.dtype) * self.plane_step

    def get_plane_address(self, plane: int) -> int:
        """Return the address of item 0's plane with this number in ``memory``."""
        return self.memory.data_ptr() + plane * self.plane_step * self.dtype.itemsize

    def get_first_flow_plane(self, buffer_set: int) -> int:
        """Return the number of the first flow plane of set ``buffer_set``."""
        return buffer_set * (FLOW + DUAL)

    def get_first_dual_plane(self, buffer_set: int) -> int:
        """Return the number of the first dual plane of set ``buffer_set``."""
        return buffer_set * (FLOW + DUAL) + FLOW

    @property
    def data_plane(self) -> int:
        """Number of the first data plane: gradient x, gradient y, residual."""
        return 2 * (FLOW + DUAL)

    @property
    def origin_plane(self) -> int:
        """Number of the first origin plane (float16)."""
        return 2 * (FLOW + DUAL) + DATA

    def _view_planes(self, first: int, count: int) -> Tensor:
        return self.memory[:, first : first + count, :, : self.width]

    @property
    def current_flow(self) -> Tensor:
        """View [batch, 2, height, width] of the current flow."""
        return self._view_planes(self.get_first_flow_plane(self.front), FLOW)

    @property
    def current_dual(self) -> Tensor:
        """View [batch, 4, height, width] of the current dual variable times theta."""
        return self._view_planes(self.get_first_dual_plane(self.front), DUAL)

    @property
    def gradient(self) -> Tensor:
        """View [batch, 2, height, width]."""
        return self._view_planes(self.data_plane, 2)

    @property
    def residual(self) -> Tensor:
        """View [batch, height, width]."""
        return self._view_planes(self.data_plane + 2, 1)[:, 0]

    @property
    def origin(self) -> Tensor:
        """View [batch, 2, height, width]; float16 alone."""
        return self._view_planes(self.origin_plane, ORIGIN)
