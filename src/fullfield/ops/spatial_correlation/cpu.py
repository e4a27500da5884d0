"""The spatial correlation on the CPU: compiled kernels, linear memory, all cores (``torch.set_num_threads``).

Products and sums are float32. Where displacements are further apart than a pixel, the maps fall apart into lattices on
which the window is dense (README.md); each is brought into rows with zeros around them. Results do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.numba_cache import Kernels, why_not
from fullfield._kernels.threads import run_parts
from fullfield.ops.spatial_correlation.protocol import FEATURES, Pair, Request, Window

_LANES = 16


def supports(request: Request) -> str | None:
    """Return None if the CPU kernels can serve the request, else the reason."""
    if request.device.type != "cpu":
        return f"runs on the CPU, the maps are on {request.device}"
    if request.dtype not in FEATURES:
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    if not request.window.is_aligned:
        return f"needs a stride that divides dilation_patch, got {request.window.stride}"
    return why_not()


_kernels = Kernels(f"{__package__}._cpu_kernels", "spatial correlation kernels")


class _Lattice(NamedTuple):
    """Along one axis: outputs ``first::classes``, and where they read."""

    first: int
    classes: int
    length: int
    one: int
    """The pixel of fmap1 that the first output reads."""
    two: int
    """The first pixel of its window."""
    step: int


def _lattices(window: Window, out_size: Pair) -> Iterator[tuple[_Lattice, _Lattice]]:
    axes = []
    for axis in range(2):
        step, stride = window.dilation_patch[axis], window.stride[axis]
        classes, found = step // stride, []
        for first in range(min(classes, out_size[axis])):
            count = -(-(out_size[axis] - first) // classes)
            one = stride * first - window.padding[axis]
            found.append(_Lattice(first, classes, count, one, one - window.radius[axis], step))
        axes.append(found)
    yield from product(*axes)


def _inside(start: int, step: int, count: int, size: int) -> tuple[slice, slice]:
    """Return the slices of ``count`` places from ``start`` that lie in a map: among the places and in the map."""
    low = min(max(-(start // step), 0), count)
    high = max(min(-(-(size - start) // step), count), low)
    begin = start + low * step
    return slice(low, high), slice(begin, max(begin + (high - low - 1) * step + 1, begin), step)


def _rows(fmap: Tensor, y: tuple[int, int, int], x: tuple[int, int, int], channels: int, pitch: int) -> Tensor:
    """Return flat [B·rows][channels][pitch] of the pixels ``(start, step, count)``.

    Missing pixels are zero, and so is the space after the last row, where its last product may read.
    """
    shape = (fmap.shape[0], y[2], channels, pitch)
    flat = torch.zeros(math.prod(shape) + 4 * _LANES, dtype=torch.float32)
    out = flat[: -4 * _LANES].view(shape)
    (to_y, from_y), (to_x, from_x) = _inside(*y, fmap.shape[2]), _inside(*x, fmap.shape[3])
    if to_y.stop > to_y.start and to_x.stop > to_x.start:
        out[:, to_y, : fmap.shape[1], to_x] = fmap.detach()[:, :, from_y, from_x].transpose(1, 2)
    return flat


def _pitch(columns: int) -> int:
    return -(-columns // (2 * _LANES)) * 2 * _LANES


def forward(fmap1: Tensor, fmap2: Tensor, window: Window) -> Tensor:
    """Compute the products of a window; see :func:`fullfield.ops.spatial_correlation.spatial_correlation`."""
    batch, channels, height, width = fmap1.shape
    out_size, (rows, columns) = window.out_size((height, width)), window.patch
    out = torch.empty(batch, rows, columns, *out_size, dtype=torch.float32)
    if not out.numel():
        return out.to(fmap1.dtype)
    kernel = _kernels().forward_rows
    for y, x in _lattices(window, out_size):
        pitch1 = _pitch(x.length)
        pitch2 = pitch1 + -(-columns // 16) * 16
        one = _rows(fmap1, (y.one, y.step, y.length), (x.one, x.step, x.length), channels, pitch1)
        more = (y.length + rows - 1, x.length + columns - 1)
        two = _rows(fmap2, (y.two, y.step, more[0]), (x.two, x.step, more[1]), channels, pitch2)
        arrays = (one.numpy(), two.numpy(), channels, pitch1, pitch2)
        result = out[:, :, :, y.first :: y.classes, x.first :: x.classes].numpy()
        run_parts(batch * y.length, 1, torch.get_num_threads(), partial(kernel, *arrays, result))
    return out.to(fmap1.dtype)


def backward(fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: Window, wanted: tuple[bool, bool]) -> list[Tensor]:
    """Return the requested gradients of the two maps."""
    grad = grad.float()
    found = []
    for second, want in zip((False, True), wanted, strict=True):
        if want:
            found.append(_gradient(fmap1 if second else fmap2, grad, window, second).to(fmap1.dtype))
    return found


def _gradient(features: Tensor, grad: Tensor, window: Window, second: bool) -> Tensor:
    """Return the gradient of fmap2 if ``second``, else of fmap1; ``features`` are the other map's."""
    out = torch.zeros(features.shape, dtype=torch.float32)
    if not grad.numel() or not out.numel():
        return out
    (batch, channels, height, width), (rows, columns) = features.shape, window.patch
    kernel, padded = _kernels().backward_rows, -(-channels // 4) * 4
    for y, x in _lattices(window, (grad.shape[3], grad.shape[4])):
        high, wide = y.length + (rows - 1) * second, x.length + (columns - 1) * second
        start_y = y.one - (rows - 1) * y.step if second else y.two
        start_x = x.one - (columns - 1) * x.step if second else x.two
        pitch = _pitch(wide)
        pitch_in = pitch + -(-columns // 16) * 16
        sizes = (y.step, high + rows - 1), (x.step, wide + columns - 1)
        given = _rows(features, (start_y, *sizes[0]), (start_x, *sizes[1]), padded, pitch_in)
        made = torch.empty(batch, high, padded, pitch, dtype=torch.float32)
        part = grad.detach()[:, :, :, y.first :: y.classes, x.first :: x.classes].numpy()
        before = (given.numpy(), padded, pitch_in, part, second, wide, made.view(-1).numpy(), pitch)
        run_parts(batch * high, 1, torch.get_num_threads(), partial(kernel, *before))
        from_y, to_y = _inside(y.two if second else y.one, y.step, high, height)
        from_x, to_x = _inside(x.two if second else x.one, x.step, wide, width)
        if from_y.stop > from_y.start and from_x.stop > from_x.start:
            out[:, :, to_y, to_x] = made[:, from_y, :channels, from_x].transpose(1, 2)
    return out
