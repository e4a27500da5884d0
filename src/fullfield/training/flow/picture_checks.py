"""What makes a useful texture or silhouette: flat pictures, maps of normals, masks and near-duplicates are none."""

from __future__ import annotations

import re
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]

SHAPE_SIZE = 128
MARGIN = 3
"""Texels of zero around a silhouette."""

SMALLEST = 128
"""The shorter side of a picture, px."""

SMALLEST_SHAPE = 64
"""The longer side of a silhouette before it is scaled, px."""

_DARK = 150
_MOST_GAIN = 3.0

_MAP_NAMES = re.compile(
    r"[_.\-](nm|nrm|norm|normals?|n|s|spec|specular|gloss|glossy|glow|g|add|local|lum|l|masks?|colou?rmask|alpha|bump|height|"
    r"h|disp|ao|metal(ness)?|rough(ness)?|i|blend|bm|shadow|lightmap|envmap|emit|emission|sss|pbr|data|gray)\d?$|^masks?$|normal$|gloss$",
    re.IGNORECASE,
)


def named_as_map(stem: str) -> bool:
    """Whether a file's name says that it holds normals, gloss, glow, heights or a mask."""
    return _MAP_NAMES.search(stem) is not None


def brightened(rgb: Pixels) -> tuple[Pixels, bool]:
    """A dark picture with a gain that makes its light parts light, at most 3; whether it was one."""
    top = float(np.percentile(rgb[::4, ::4].max(axis=2), 98))
    if not 0 < top < _DARK:
        return rgb, False
    gain = min(_MOST_GAIN, 215 / top)
    return (rgb.astype(np.float32) * gain + 0.5).clip(0, 255).astype(np.uint8), True


def contrast(rgb: Pixels) -> float:
    """Standard deviation of the grey values."""
    return float((rgb[::2, ::2].astype(np.int32) @ np.array([77, 150, 29]) >> 8).std())


def why_not_texture(rgb: Pixels, alpha: Pixels | None) -> str | None:
    """Why a picture [H, W, 3] is no useful texture; None if it is one."""
    height, width = rgb.shape[:2]
    if min(height, width) < SMALLEST:
        return "small"
    if max(height, width) > 4 * min(height, width):
        return "long and thin"
    if alpha is not None and (alpha < 128).mean() > 0.2:
        return "cut-out"
    step = max(1, min(height, width) // 256)
    values = rgb[::step, ::step].reshape(-1, 3).astype(np.int32)
    grey = values @ np.array([77, 150, 29]) >> 8
    if grey.std() < 7:
        return "flat"
    coarse = values >> 3
    _, counts = np.unique((coarse[:, 0] << 10) | (coarse[:, 1] << 5) | coarse[:, 2], return_counts=True)
    if len(counts) < 24:
        return "few colours"
    if counts.max() > 0.45 * len(values):
        return "mostly one colour"
    red, green, blue = values[:, 0], values[:, 1], values[:, 2]
    facing = (blue > 150) & (abs(red - 128) < 70) & (abs(green - 128) < 70) & (blue >= np.maximum(red, green))
    if facing.mean() > 0.8 and abs(red.mean() - 128) < 20 and abs(green.mean() - 128) < 20:
        return "normals"
    return None


def fingerprint(rgb: Pixels) -> NDArray[np.float32]:
    """Numbers that near-duplicates have in common: a grey thumbnail without mean and contrast, and the mean colour."""
    thumb = _shrunk(rgb, 16).astype(np.float32)
    grey = thumb.mean(axis=2).ravel()
    grey = (grey - grey.mean()) / max(float(grey.std()), 1e-3) / 16  # of length 1
    return np.concatenate([grey, thumb.mean(axis=(0, 1)) / 255]).astype(np.float32)


def is_duplicate(one: NDArray[np.float32], others: NDArray[np.float32]) -> bool:
    """Whether a fingerprint is near one of ``others`` [N, D]."""
    if not len(others):
        return False
    alike = others[:, :-3] @ one[:-3] > 0.97
    return bool((alike & (np.abs(others[:, -3:] - one[-3:]).max(axis=1) < 0.12)).any())


def silhouette(alpha: Pixels) -> Pixels | None:
    """The coverage mask [128, 128] of an alpha channel [H, W], its longer side filling the tile but for the margin.

    None where it is small, a rectangle, nearly empty, or no outline at all (half-transparent).
    """
    from PIL import Image

    rows, columns = (np.flatnonzero((alpha > 32).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    part = alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = part.shape
    if max(height, width) < SMALLEST_SHAPE or max(height, width) > 12 * min(height, width):
        return None
    covered = float((part > 127).mean())
    if not 0.06 < covered < 0.88 or float(((part > 48) & (part < 208)).mean()) > 0.12:
        return None
    scale = (SHAPE_SIZE - 2 * MARGIN) / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    how = Image.Resampling.BOX if scale <= 1 else Image.Resampling.BICUBIC
    small = np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize(size, how))
    if scale > 1:  # the outline stays about one texel wide
        small = ((small.astype(np.float32) - 127.5) * scale + 127.5).clip(0, 255).astype(np.uint8)
    tile = np.zeros((SHAPE_SIZE, SHAPE_SIZE), np.uint8)
    top, left = (SHAPE_SIZE - size[1]) // 2, (SHAPE_SIZE - size[0]) // 2
    tile[top : top + size[1], left : left + size[0]] = small
    return tile


def shape_fingerprint(mask: Pixels) -> NDArray[np.float32]:
    """A thumbnail of a silhouette."""
    thumb: NDArray[np.float32] = (mask.reshape(16, 8, 16, 8).mean(axis=(1, 3)) / 255).astype(np.float32).ravel()
    return thumb


def is_same_shape(one: NDArray[np.float32], others: NDArray[np.float32]) -> bool:
    """Whether a silhouette's thumbnail, mirrored or not, is within 2 % of the tile's area of one of ``others``."""
    if not len(others):
        return False
    mirrored = one.reshape(16, 16)[:, ::-1].ravel()
    near = (np.abs(others - one).mean(axis=1) < 0.02) | (np.abs(others - mirrored).mean(axis=1) < 0.02)
    return bool(near.any())


def _shrunk(rgb: Pixels, size: int) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(rgb).resize((size, size), Image.Resampling.BOX))
