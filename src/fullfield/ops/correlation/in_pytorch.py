"""Backends in PyTorch's own operators: windows, blending and its adjoint, levels, and chunks of pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.ops.correlation.protocol import (
    FEATURES,
    GradientAccumulators,
    LookupRequest,
    PreparedPair,
    convert_lookup_output,
    disable_autocast_and_grad,
)


class PixelWindows(NamedTuple):
    """Integer windows of n pixels on one level; K = 2r + 2 positions a side."""

    x: Tensor  # [n] int64, first column; far outside the map for a pixel that sees nothing
    y: Tensor  # [n] int64, first row
    fx: Tensor  # [n] fraction, differentiable
    fy: Tensor


def locate_pixel_windows(
    coords: Tensor,  # [n, 2] (x, y), level-0 pixels
    level: int,
    size: tuple[int, int],  # H2, W2 of the level
    radius: int,
) -> PixelWindows:
    """Return the windows; coordinates that are not finite, or far outside, see nothing and have fraction 0."""
    margin = 2 * radius + 4
    scaled = coords / 2**level
    low = scaled > -margin
    high = torch.stack((scaled[:, 0] < size[1] + margin, scaled[:, 1] < size[0] + margin), 1)
    sees_map = (low & high).all(1, keepdim=True)  # False for NaN, too
    scaled = torch.where(sees_map, scaled, -float(margin))
    base = scaled.detach().floor()
    fraction = scaled - base
    first = base.long() - radius
    return PixelWindows(first[:, 0], first[:, 1], fraction[:, 0], fraction[:, 1])


def list_clamped_positions_and_mark_inside(
    window: PixelWindows, size: tuple[int, int], radius: int
) -> tuple[Tensor, Tensor, Tensor]:  # x, y, inside: each [n, K, K], rows slow
    """Return the positions of all cells, clamped into the map, and whether they were inside."""
    steps = torch.arange(2 * radius + 2, device=window.x.device)
    x = (window.x[:, None] + steps)[:, None, :]
    y = (window.y[:, None] + steps)[:, :, None]
    inside = (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])
    return (
        x.clamp(0, max(size[1] - 1, 0)).expand_as(inside),
        y.clamp(0, max(size[0] - 1, 0)).expand_as(inside),
        inside,
    )


def blend_products_bilinearly(
    dots: Tensor,  # [n, K, K], rows slow
    window: PixelWindows,
) -> Tensor:  # [n, (2r+1)²]: dx slow, dy fast
    """Blend products at integer positions into bilinear taps."""
    fx = window.fx.to(dots.dtype)[:, None, None]
    fy = window.fy.to(dots.dtype)[:, None, None]
    rows = (1 - fx) * dots[:, :, :-1] + fx * dots[:, :, 1:]
    taps = (1 - fy) * rows[:, :-1] + fy * rows[:, 1:]
    return taps.transpose(1, 2).flatten(1)


def backpropagate_bilinear_blend(
    grad: Tensor,  # [n, (2r+1)²]
    window: PixelWindows,
    window_side: int,
) -> Tensor:  # [n, K, K]
    """Return the gradient of :func:`blend_products_bilinearly` in its first argument."""
    fx = window.fx.to(grad.dtype)[:, None, None]
    fy = window.fy.to(grad.dtype)[:, None, None]
    taps = torch.unflatten(grad, 1, (window_side, window_side)).transpose(1, 2)
    pad = torch.nn.functional.pad
    rows = pad((1 - fy) * taps, (0, 0, 0, 1)) + pad(fy * taps, (0, 0, 1, 0))
    return pad((1 - fx) * rows, (0, 1)) + pad(fx * rows, (1, 0))


def compute_fraction_gradients(
    grad: Tensor,  # [n, (2r+1)²]
    dots: Tensor,  # [n, K, K]
    window: PixelWindows,
    window_side: int,
) -> Tensor:  # [n, 2]
    """Return the gradient of :func:`blend_products_bilinearly` in the fractions (x, y)."""
    fx = window.fx.to(dots.dtype)[:, None, None]
    fy = window.fy.to(dots.dtype)[:, None, None]
    taps = torch.unflatten(grad, 1, (window_side, window_side)).transpose(1, 2)
    across = dots[:, :, 1:] - dots[:, :, :-1]
    down = dots[:, 1:] - dots[:, :-1]
    d_x = (1 - fy) * across[:, :-1] + fy * across[:, 1:]
    d_y = (1 - fx) * down[:, :, :-1] + fx * down[:, :, 1:]
    return torch.stack(((taps * d_x).sum((1, 2)), (taps * d_y).sum((1, 2))), 1)


def explain_unsupported(request: LookupRequest) -> str | None:
    """Return why PyTorch cannot serve the request; None if it can."""
    return None if request.dtype in FEATURES else f"needs floating point features, got {request.dtype}"


class PreparedPairInPyTorch(PreparedPair):
    """Pair whose backend only defines how dot products are found and how their gradient is added."""

    @abstractmethod
    def compute_unmasked_scaled_dot_products(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> Tensor:
        """Return the dot products / √C [n, K, K] of the pixels with positions x, y; free where not ``inside``."""

    @abstractmethod
    def add_feature_gradients(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor, grad: Tensor, grads: GradientAccumulators
    ) -> None:
        """Add the features' gradient for ``grad``, that of the dot products, zero where not ``inside``."""

    def count_pixels_per_chunk(self) -> int:
        """Return the number of source pixels at a time."""
        return self.pixel_count

    @property
    def pixel_count(self) -> int:
        """Number of source pixels of the whole batch."""
        return self.request.batch * self.request.size1[0] * self.request.size1[1]

    def _iterate_level_chunks_with_windows(
        self, coords: Tensor
    ) -> Iterator[tuple[int, slice, PixelWindows, Tensor, Tensor, Tensor]]:
        r = self.request
        flat = coords.detach().permute(0, 2, 3, 1).reshape(-1, 2)
        step = max(1, self.count_pixels_per_chunk())
        for level, size in enumerate(r.sizes2):
            if size[0] == 0 or size[1] == 0:
                continue
            for start in range(0, self.pixel_count, step):
                pixels = slice(start, min(start + step, self.pixel_count))
                window = locate_pixel_windows(flat[pixels], level, size, r.radius)
                yield level, pixels, window, *list_clamped_positions_and_mark_inside(window, size, r.radius)

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Look up, a chunk of pixels at a time."""
        r = self.request
        taps = r.side**2
        out = coords.new_zeros((self.pixel_count, r.out_channels), dtype=out_dtype)
        with disable_autocast_and_grad(coords.device):
            for level, pixels, window, x, y, inside in self._iterate_level_chunks_with_windows(coords):
                dots = torch.where(inside, self.compute_unmasked_scaled_dot_products(level, pixels, x, y, inside), 0.0)
                out[pixels, level * taps : (level + 1) * taps] = blend_products_bilinearly(dots, window).to(out_dtype)
            result = out.view(r.batch, *r.size1, r.out_channels).permute(0, 3, 1, 2)
            return convert_lookup_output(result, out_dtype, channels_last)

    def backward(
        self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool
    ) -> Tensor | None:
        """Add one lookup's share to ``grads``; return the gradient of ``coords`` if it is requested."""
        with disable_autocast_and_grad(coords.device):
            return self._add_feature_and_get_coords_gradients(grad_out, coords, grads, needs_coords_grad)

    def _add_feature_and_get_coords_gradients(
        self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool
    ) -> Tensor | None:
        r = self.request
        taps = r.side**2
        flat = grad_out.permute(0, 2, 3, 1).reshape(self.pixel_count, r.out_channels)
        grad_coords = coords.new_zeros((self.pixel_count, 2)) if needs_coords_grad else None
        for level, pixels, window, x, y, inside in self._iterate_level_chunks_with_windows(coords):
            grad = flat[pixels, level * taps : (level + 1) * taps].to(r.accumulate_dtype)
            grad = torch.where(inside.flatten(1).any(1, keepdim=True), grad, 0.0)
            if any(grads.requested):
                dot_gradients = torch.where(inside, backpropagate_bilinear_blend(grad, window, r.side), 0.0)
                self.add_feature_gradients(level, pixels, x, y, inside, dot_gradients, grads)
            if grad_coords is not None:
                dots = torch.where(inside, self.compute_unmasked_scaled_dot_products(level, pixels, x, y, inside), 0.0)
                grad_coords[pixels] += (
                    compute_fraction_gradients(grad, dots, window, r.side).to(grad_coords.dtype) / 2**level
                )
        if grad_coords is None:
            return None
        return grad_coords.view(r.batch, *r.size1, 2).permute(0, 3, 1, 2).contiguous()
