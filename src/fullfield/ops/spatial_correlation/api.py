"""The public form."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.spatial_correlation.op import run
from fullfield.ops.spatial_correlation.protocol import BACKENDS, FEATURES, SAMPLERS, Pair, Request, Window

__all__ = ["BACKENDS", "backends", "spatial_correlation"]
_FLOATS = (*FEATURES, torch.float64)


def backends(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that runs here, (name, reason) for the others, preferred first.

    The answer is for PWC-Net's windows of 9×9.
    """
    request = Request(Window((9, 9)), (112, 256), dtype, torch.empty(0, device=device).device)
    return SAMPLERS.reasons(request)


def spatial_correlation(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    patch_size: int | Pair = 9,
    *,
    dilation_patch: int | Pair = 1,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    backend: str | None = None,
) -> Tensor:  # [B, PH, PW, OH, OW]; OH = (H + 2·padding − 1) // stride + 1
    """Compute the products of each pixel's features with those of a fixed window around it.

    ``out[b, i, j, h, w] = ⟨fmap1[b, :, y, x], fmap2[b, :, y + i·d − r, x + j·d − r]⟩`` with y = h·stride − padding, x
    likewise, d = ``dilation_patch`` and r = d·(patch_size − 1) // 2. Features outside a map are zero. The sum is not
    normalised: networks divide by C themselves, or not. The values are those of ``spatial_correlation_sampler`` with
    ``kernel_size=1``.

    The result is differentiable in both maps, to any order, and deterministic. Sums are float32 (float64 for float64).
    The extra memory is the result's, and nothing else on a GPU.

    Args:
        fmap1: float32, float16, bfloat16 or float64, any strides. The result has its dtype.
        fmap2: of the same size and dtype, any strides.
        patch_size: size of the window, a number or a pair (vertical, horizontal), as the next arguments.
        dilation_patch: distance between the window's pixels.
        stride: distance between the pixels of ``fmap1``.
        padding: zeros around the maps.
        backend: "cuda", "cpu" or "reference". None chooses the best one that can run; a named one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.

    Source: Dosovitskiy et al., FlowNet, 2015 (the layer); Pinard's Pytorch-Correlation-extension (the form).
    """
    window = _window(patch_size, dilation_patch, stride, padding)
    _check.tensor(fmap1, "fmap1", ("B", "C", "H", "W"), dtypes=_FLOATS)
    _check.tensor(fmap2, "fmap2", tuple(fmap1.shape), dtypes=(fmap1.dtype,), device=fmap1.device)
    return run(fmap1, fmap2, window, backend)


def _window(patch_size: int | Pair, dilation_patch: int | Pair, stride: int | Pair, padding: int | Pair) -> Window:
    """Check the arguments and return the window, which is kept for later calls."""
    given = (patch_size, dilation_patch, stride, padding)
    keeps = not torch.compiler.is_compiling() and all(type(value) is int for value in given)
    return (_kept_window if keeps else _made_window)(*given)


def _made_window(patch_size: object, dilation_patch: object, stride: object, padding: object) -> Window:
    return Window(
        _pair(patch_size, "patch_size", 1),
        _pair(dilation_patch, "dilation_patch", 1),
        _pair(stride, "stride", 1),
        _pair(padding, "padding", 0),
    )


_kept_window: Callable[..., Window] = functools.lru_cache(256)(_made_window)


def _pair(value: object, name: str, low: int) -> Pair:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    _check.require(len(pair) == 2, name, "a number or a pair", value)
    for part in pair:
        _check.number(part, name, integer=True, low=low)
    return int(pair[0]), int(pair[1])
