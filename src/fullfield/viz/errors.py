"""Errors as colours, on a logarithmic scale that does not depend on the data."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import (
    FLOATS,
    check_flow_and_mask_are_on_cpu,
    create_blank_picture,
    draw_text_inplace,
    iterate_row_blocks,
    mark_valid_vectors,
)

DEFAULT_MAX_ERROR = 16.0
_OCTAVES = 8
_UNSCORED = 96  # grey

# Lightness, chroma and hue (degrees) in OKLCh, at equal distances: lightness rises evenly from dark to bright.
_ANCHORS = (
    (0.16, 0.045, 275.0),
    (0.29, 0.130, 285.0),
    (0.42, 0.175, 318.0),
    (0.55, 0.190, 358.0),
    (0.68, 0.165, 38.0),
    (0.82, 0.145, 76.0),
    (0.96, 0.085, 104.0),
)


def draw_error_map(
    pred: Tensor, truth: Tensor, valid: Tensor | None = None, *, max_error: float | None = None
) -> Tensor:
    """Draw the end-point error of every pixel on a logarithmic scale, uint8 ``[3, H, W]``, brighter for larger.

    The scale has eight octaves: from ``max_error``/256 (and less) to ``max_error`` (and more). It
    does not depend on the data, so that pictures compare.

    Args:
        pred: ``[2, H, W]``, (u, v), pixels.
        truth: ``[2, H, W]``, or ``[4, 2, H, W]`` with four true values for a pixel (the nearest counts).
        valid: bool ``[H, W]``. Pixels that are not valid or whose truth is unknown are mid-grey, which is not in
            the scale. A NaN prediction on a scored pixel gets the colour of the largest error.
        max_error: top of the scale, pixels; None means 16, a scale from 1/16 px to 16 px.

    >>> picture = draw_error_map(flow.flow, truth.flow, truth.valid)  # [3, H, W]  # doctest: +SKIP
    """
    check_flow_and_mask_are_on_cpu(pred, valid, "pred")
    height, width = pred.shape[-2:]
    four = isinstance(truth, Tensor) and truth.ndim == 4
    shape = (4, 2, height, width) if four else (2, height, width)
    _check.check_tensor(truth, "truth", shape, dtypes=FLOATS, device=pred.device)
    top = _check_max_error_or_use_default(max_error)
    candidates = truth if four else truth[None]
    table = create_error_colors()
    image = torch.empty(3, height, width, dtype=torch.uint8)
    for rows in iterate_row_blocks(height, width):
        values = candidates[..., rows, :].float()
        scored = mark_valid_vectors(values, None if valid is None else valid[rows]).all(0)
        u, v = pred[:, rows].float()
        error = torch.stack([torch.hypot(tu - u, tv - v) for tu, tv in values]).amin(0)
        level = (1 + (error / top).log2() / _OCTAVES).nan_to_num(nan=1.0, posinf=1.0, neginf=0.0)
        index = (level * (len(table) - 1)).round_().clamp_(0, len(table) - 1).to(torch.int64)
        for channel in range(3):
            image[channel, rows] = table[:, channel][index].masked_fill_(~scored, _UNSCORED)
    return image


def create_error_colors() -> Tensor:
    """Return the 256 colours of :func:`draw_error_map`, small errors first: uint8 ``[256, 3]``, RGB."""
    return _build_color_table().clone()


def draw_error_legend(width: int = 512, *, max_error: float | None = None) -> Tensor:
    """Draw the legend of :func:`draw_error_map`, uint8 ``[3, width/8, width]``: a bar with its errors in pixels."""
    _check.check_number(width, "width", integer=True, low=128)
    top = _check_max_error_or_use_default(max_error)
    height = width // 8
    margin, bar = height // 2, round(height * 0.42)
    image = create_blank_picture(height, width)
    level = torch.linspace(0, 255, width - 2 * margin, dtype=torch.float32).round().to(torch.int64)
    image[:, height // 16 : height // 16 + bar, margin : width - margin] = create_error_colors()[level].T[:, None]
    for octave in range(0, _OCTAVES + 1, 2):
        x = margin + (width - 2 * margin - 1) * octave / _OCTAVES
        image[:, height // 16 + bar : height // 16 + bar + max(2, height // 16), round(x)] = 150
        text = _format_error_after_halvings(top, _OCTAVES - octave) + (" px" if octave == _OCTAVES else "")
        draw_text_inplace(image, text, (x, height * 0.79), height * 0.34, anchor="mm")
    return image


def _format_error_after_halvings(max_error: float, halvings: int) -> str:
    """Format ``max_error`` / 2^halvings as a person writes it: 16, 1/4, 0.75."""
    value = max_error / 2**halvings
    inverse = 1 / value
    return f"1/{inverse:.0f}" if inverse > 1 and inverse == round(inverse) else f"{value:.3g}"


def _check_max_error_or_use_default(max_error: float | None) -> float:
    if max_error is None:
        return DEFAULT_MAX_ERROR
    _check.check_number(max_error, "max_error", above=0)
    return float(max_error)


@lru_cache(maxsize=1)
def _build_color_table() -> Tensor:
    lightness, chroma, hue = torch.tensor(_ANCHORS, dtype=torch.float64).T
    hue = torch.deg2rad(hue)
    lab = torch.stack([lightness, chroma * hue.cos(), chroma * hue.sin()])
    fine = torch.nn.functional.interpolate(lab[None], size=256, mode="linear", align_corners=True)[0]
    return (_oklab_to_srgb(fine) * 255).round().to(torch.uint8).T.contiguous()


def _oklab_to_srgb(lab: Tensor) -> Tensor:
    """Convert Björn Ottosson's OKLab ``[3, N]`` to sRGB in [0, 1], clipped (bottosson.github.io/posts/oklab)."""
    from_lab = torch.tensor(
        [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]],
        dtype=lab.dtype,
    )
    from_lms = torch.tensor(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ],
        dtype=lab.dtype,
    )
    linear = (from_lms @ (from_lab @ lab) ** 3).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
