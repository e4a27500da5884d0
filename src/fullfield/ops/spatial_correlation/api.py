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
    """(name, None) for every backend that can serve PWC-Net's windows of 9×9 here, (name, reason) for the others.

    Preferred first.
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
    """Products of each pixel's features with those of a fixed window around it.

    ``out[b, i, j, h, w] = ⟨fmap1[b, :, y, x], fmap2[b, :, y + i·d − r, x + j·d − r]⟩`` with y = h·stride − padding,
    x likewise, d = ``dilation_patch`` and r = d·(patch_size − 1) // 2; what lies outside a map counts as zero. No mean,
    no root: networks divide by C themselves, or not. The values of ``spatial_correlation_sampler``
    with ``kernel_size=1``.

    Differentiable in both maps, to any order; sums are float32 (float64 for float64). Deterministic. Extra memory is
    the result's, and nothing else on a GPU.

    Args:
        fmap1, fmap2: float32, float16, bfloat16 or float64, of one size and dtype, any strides. The result has that
            dtype.
        patch_size, dilation_patch, stride, padding: numbers, or pairs (vertical, horizontal).
        backend: "cuda", "cpu" or "reference". None takes the best that can; a named one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.

    Source: Dosovitskiy et al., FlowNet, 2015 (the layer); Pinard's Pytorch-Correlation-extension (the form).
    """
    window = _window(patch_size, dilation_patch, stride, padding)
    _check.tensor(fmap1, "fmap1", ("B", "C", "H", "W"), dtypes=_FLOATS)
    _check.tensor(fmap2, "fmap2", tuple(fmap1.shape), dtypes=(fmap1.dtype,), device=fmap1.device)
    return run(fmap1, fmap2, window, backend)


def _window(patch_size: int | Pair, dilation_patch: int | Pair, stride: int | Pair, padding: int | Pair) -> Window:
    """Checked, and kept for the calls that follow."""
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
