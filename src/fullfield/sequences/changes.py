"""Detection of cuts and of duplicate frames.

It uses NumPy in the calling thread: these pictures are too small for PyTorch's threads, which take all cores and wait
for each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_COLUMNS = 48
_MAX_SHIFT = 6  # pixels of the reduced pictures
_BLOCK = 9
_MAX_DIFFERENCE = 0.41  # frames of a shot are below 0.36 on Sintel's fastest scenes, two shots' above 0.42
_SAMPLED_ROWS = 16  # rows that nearly always show a difference
# Part of the picture that both frames of a pan show, its contrast in that of the picture, and their correlation there.
# On 230 pans by 15 to 60 % of a side 94 % have it; of 253 pairs of two shots none exceeds 0.80.
_MIN_OVERLAP, _MIN_OVERLAP_CONTRAST, _MIN_PAN_CORRELATION = 1 / 3, 0.25, 0.95

_MIN_KNOWN = 0.1  # part of the picture that can be compared; less says nothing

GreyPicture = NDArray[np.float64]
"""[h, w]: grey of a frame at a small size; NaN where it is not known."""


def shrink_to_grey(frame: Tensor, valid: Tensor | None = None) -> GreyPicture:  # [C, H, W], bool [H, W] -> [h, w]
    """Return the frame's grey averaged to about 48 columns, for :func:`is_cut`; ``valid`` says where it is known."""
    if valid is None:
        return _average_to_small_grey(frame.numpy())
    valid_mask = valid[None].numpy()
    fraction = _average_to_small_grey(valid_mask)
    grey = _average_to_small_grey(frame.numpy() * valid_mask) / np.maximum(fraction, 0.5)
    grey[fraction < 0.5] = np.nan
    return grey


def _average_to_small_grey(planes: NDArray[Any]) -> GreyPicture:
    height, width = planes.shape[-2:]
    rows = max(1, min(height, round(_COLUMNS * height / width), 4 * _COLUMNS))
    columns = min(_COLUMNS, width)
    lines = [planes[:, i * height // rows : -(-(i + 1) * height // rows)].mean((0, 1)) for i in range(rows)]
    first = np.arange(columns) * width // columns
    end = -(-np.arange(1, columns + 1) * width // columns)
    summed = np.zeros((rows, width + 1))
    np.cumsum(lines, axis=1, out=summed[:, 1:])
    means: GreyPicture = (summed[:, end] - summed[:, first]) / (end - first)
    return means


def is_cut(first: GreyPicture, second: GreyPicture) -> bool:
    """Return whether two reduced pictures show different shots.

    Every block of the first is compared with the blocks of the second within an eighth of the width. Both pictures are
    first normalised to the same mean and contrast, so that a change of exposure is no cut. Only what is known of both
    counts; where that is too little, there is no cut. Nor is there one in a fast pan, whose frames agree where they
    overlap.
    """
    if first.shape != second.shape:
        return True
    valid_mask = np.isfinite(first) & np.isfinite(second)
    is_known = bool(valid_mask.all())
    compared = valid_mask if is_known else np.isfinite(first) & _erode_mask(np.isfinite(second), _MAX_SHIFT)
    if compared.mean() < _MIN_KNOWN:
        return False
    common = [first, second] if is_known else [first[valid_mask], second[valid_mask]]
    contrasts = [float(picture.std()) for picture in common]
    if min(contrasts) < 2e-3:
        return max(contrasts) > 2e-2 or float(np.abs(common[0] - common[1]).mean()) > 0.2
    means = [picture.mean() for picture in common]
    first, second = ((p - m) / c for p, m, c in zip((first, second), means, contrasts, strict=True))
    height, width = first.shape
    padded = np.pad(second, _MAX_SHIFT, mode="edge")
    best = np.full_like(first, np.inf)
    shifts = [(dy, dx) for dy in range(-_MAX_SHIFT, _MAX_SHIFT + 1) for dx in range(-_MAX_SHIFT, _MAX_SHIFT + 1)]
    for dy, dx in sorted(shifts, key=lambda shift: shift[0] ** 2 + shift[1] ** 2):
        shifted = padded[dy + _MAX_SHIFT : dy + _MAX_SHIFT + height, dx + _MAX_SHIFT : dx + _MAX_SHIFT + width]
        difference = np.abs(first - shifted)
        np.minimum(
            best,
            _compute_sliding_means(difference) if is_known else _compute_sliding_means_ignoring_nan(difference),
            out=best,
        )
        if (best if is_known else best[compared]).mean() <= _MAX_DIFFERENCE:
            return False
    return _compute_best_overlap_correlation(first, second) < _MIN_PAN_CORRELATION


def _compute_best_overlap_correlation(first: GreyPicture, second: GreyPicture) -> float:
    """Return the best correlation of two normalised pictures over all displacements; -1 where too little overlaps.

    Source: masked normalised cross-correlation, Padfield, CVPR 2010.
    """
    shape = [2 * size for size in first.shape]
    (valid1, values1, squares1), (valid2, values2, squares2) = (
        [np.fft.rfft2(plane, shape) for plane in (np.isfinite(p), np.nan_to_num(p), np.nan_to_num(p) ** 2)]
        for p in (first, second)
    )

    def correlate(spectrum1: NDArray[Any], spectrum2: NDArray[Any]) -> GreyPicture:
        return np.fft.irfft2(spectrum1 * spectrum2.conj(), shape)

    overlap = correlate(valid1, valid2)
    count = np.maximum(overlap, 1.0)
    mean1, mean2 = correlate(values1, valid2) / count, correlate(valid1, values2) / count
    variance1 = correlate(squares1, valid2) / count - mean1**2
    variance2 = correlate(valid1, squares2) / count - mean2**2
    is_compared = overlap >= _MIN_OVERLAP * first.size
    is_compared &= np.minimum(variance1, variance2) >= _MIN_OVERLAP_CONTRAST**2
    if not is_compared.any():
        return -1.0
    covariance = correlate(values1, values2) / count - mean1 * mean2
    return float((covariance[is_compared] / np.sqrt((variance1 * variance2)[is_compared])).max())


def _erode_mask(mask: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """Return where the mask is set within ``radius`` pixels, in both axes; it goes on at the borders."""
    padded = np.pad(mask, radius, mode="edge")
    views = np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1, 2 * radius + 1))
    return np.asarray(views.all((2, 3)))


def _compute_sliding_means_ignoring_nan(values: GreyPicture) -> GreyPicture:
    """Return :func:`_compute_sliding_means` of the values that are known; infinity for blocks without any."""
    valid_mask = np.isfinite(values)
    counts = _compute_sliding_means(valid_mask.astype(np.float64))
    sums = _compute_sliding_means(np.where(valid_mask, values, 0.0))
    return np.where(counts > 1e-6, sums / np.maximum(counts, 1e-6), np.inf)


def _compute_sliding_means(values: GreyPicture) -> GreyPicture:
    """Return the mean of the block around every pixel, cut at the borders."""
    for axis in (0, 1):
        index = np.arange(values.shape[axis])
        low, high = np.maximum(index - _BLOCK // 2, 0), np.minimum(index + _BLOCK // 2 + 1, len(index))
        summed = np.insert(np.cumsum(values, axis=axis), 0, 0.0, axis=axis)
        values = (summed.take(high, axis) - summed.take(low, axis)) / np.expand_dims(high - low, 1 - axis)
    return values


def is_duplicate(first: Tensor, second: Tensor, *, allow_compression_noise: bool) -> bool:
    """Return whether two frames are the same picture; with compression noise they may differ by two codes of 255."""
    if first.shape != second.shape:
        return False
    for rows in (max(1, first.shape[-2] // _SAMPLED_ROWS), 1):
        pixels1, pixels2 = first.numpy()[:, ::rows], second.numpy()[:, ::rows]
        is_same = (
            float(np.abs(pixels1 - pixels2).max()) <= 2.01 / 255
            if allow_compression_noise
            else np.array_equal(pixels1, pixels2)
        )
        if not is_same:
            return False
    return True
