"""Base of the backends in PyTorch's own operators: levels, chunks of pixels, blending and its adjoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from fullfield.ops.correlation.protocol import FEATURES, Gradients, Prepared, Request, as_written, laid_out
from fullfield.ops.correlation.window import Window, blend, blend_adjoint, cells, place, slopes


def supports(request: Request) -> str | None:
    """Return why PyTorch cannot serve the request; None if it can."""
    return None if request.dtype in FEATURES else f"needs floating point features, got {request.dtype}"


class PreparedInPyTorch(Prepared):
    """Pair whose backend only defines how dot products are found and how their gradient is added."""

    @abstractmethod
    def dots(self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor) -> Tensor:
        """Return the dot products / √C [n, K, K] of the pixels with positions x, y; free where not ``inside``."""

    @abstractmethod
    def add_gradient(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor, grad: Tensor, grads: Gradients
    ) -> None:
        """Add the features' gradient for the gradient of :meth:`dots`, which is zero where not ``inside``."""

    def chunk(self) -> int:
        """Return the number of source pixels at a time."""
        return self.pixels

    @property
    def pixels(self) -> int:
        """Number of source pixels of the whole batch."""
        return self.request.batch * self.request.size1[0] * self.request.size1[1]

    def _parts(self, coords: Tensor) -> Iterator[tuple[int, slice, Window, Tensor, Tensor, Tensor]]:
        r = self.request
        flat = coords.detach().permute(0, 2, 3, 1).reshape(-1, 2)
        step = max(1, self.chunk())
        for level, size in enumerate(r.sizes2):
            if size[0] == 0 or size[1] == 0:
                continue
            for start in range(0, self.pixels, step):
                pixels = slice(start, min(start + step, self.pixels))
                window = place(flat[pixels], level, size, r.radius)
                yield level, pixels, window, *cells(window, size, r.radius)

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Look up, a chunk of pixels at a time."""
        r = self.request
        taps = r.side**2
        out = coords.new_zeros((self.pixels, r.out_channels), dtype=out_dtype)
        with as_written(coords.device):
            for level, pixels, window, x, y, inside in self._parts(coords):
                dots = torch.where(inside, self.dots(level, pixels, x, y, inside), 0.0)
                out[pixels, level * taps : (level + 1) * taps] = blend(dots, window).to(out_dtype)
            whole = out.view(r.batch, *r.size1, r.out_channels).permute(0, 3, 1, 2)
            return laid_out(whole, out_dtype, channels_last)

    def backward(self, grad_out: Tensor, coords: Tensor, grads: Gradients, coords_grad: bool) -> Tensor | None:
        """Add one lookup's share to ``grads``; return the gradient of ``coords`` if it is requested."""
        with as_written(coords.device):
            return self._backward(grad_out, coords, grads, coords_grad)

    def _backward(self, grad_out: Tensor, coords: Tensor, grads: Gradients, coords_grad: bool) -> Tensor | None:
        r = self.request
        taps = r.side**2
        flat = grad_out.permute(0, 2, 3, 1).reshape(self.pixels, r.out_channels)
        grad_coords = coords.new_zeros((self.pixels, 2)) if coords_grad else None
        for level, pixels, window, x, y, inside in self._parts(coords):
            grad = flat[pixels, level * taps : (level + 1) * taps].to(r.accumulate_dtype)
            grad = torch.where(inside.flatten(1).any(1, keepdim=True), grad, 0.0)
            if any(grads.wanted):
                wanted = torch.where(inside, blend_adjoint(grad, window, r.side), 0.0)
                self.add_gradient(level, pixels, x, y, inside, wanted, grads)
            if grad_coords is not None:
                dots = torch.where(inside, self.dots(level, pixels, x, y, inside), 0.0)
                grad_coords[pixels] += slopes(grad, dots, window, r.side).to(grad_coords.dtype) / 2**level
        if grad_coords is None:
            return None
        return grad_coords.view(r.batch, *r.size1, 2).permute(0, 3, 1, 2).contiguous()
