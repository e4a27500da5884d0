"""Frames and pyramids that every backend uses: checks, grey, pairs of a batch, sizes of levels, resampling tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Progress: TypeAlias = Callable[[float, str], None]
    PairSolver: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Progress | None], Tensor]

# float32 holds every pixel position below.
LONGEST_SIDE = 2**24 - 1
BRIGHTEST = 1e6
FINITE_FLOW = "a finite flow; the frames or parameters are too extreme"
_LUMA = (0.299, 0.587, 0.114)  # Rec. 601, as cameras' and film's sRGB frames are commonly made grey


class QueuedFlow(NamedTuple):
    """Flow that a GPU may still be computing, and the check that waits for it."""

    flow: Tensor  # [B, 2, H, W]
    wait_and_check: Callable[[], None] = lambda: None
    """Wait for the flow; InputError if values of the frames or the flow are out of range."""


def check_frame_size(height: int, width: int) -> None:
    """Raise InputError for a frame that no backend can match."""
    for name, side in (("height", height), ("width", width)):
        _check.check_number(side, name, integer=True, low=1, high=LONGEST_SIDE)
    _check.require(height * width >= 2, "frames", "at least 2 pixels", f"{width}×{height}")


def check_solver_arguments(height: int, width: int, config: object, config_class: type, dtype: torch.dtype) -> None:
    """Raise InputError for arguments of no prepared object; ``config_class`` is the configuration's class."""
    check_frame_size(height, width)
    _check.check_choice(dtype, "dtype", (torch.float32, torch.float64))
    _check.require(
        isinstance(config, config_class), "config", f"a {config_class.__name__}", _check.describe_value(config)
    )


def add_device_index(device: torch.device) -> torch.device:
    """Return the device, with its number if it is a GPU."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def check_and_detach_frame(frame: Tensor, name: str, height: int, width: int, device: torch.device) -> Tensor:
    """Check that a frame is floating [B, C, H, W] with C = 1 or 3 on the device, and return it; else InputError."""
    frame = _check.check_tensor(frame, name, ("B", "C", height, width))
    index = None if device.type == "cpu" else device.index
    is_on_device = frame.device.type == device.type and index in (None, frame.device.index)
    _check.require(is_on_device, name, f"device {device}", frame)
    _check.require(frame.shape[1] in (1, 3), name, "1 or 3 channels", frame)
    _check.require(frame.is_floating_point(), name, "a floating dtype (divide integers by their maximum)", frame)
    return frame.detach()


def check_frame_values(frame: Tensor, name: str) -> None:
    """Raise InputError for a frame with values that are not finite or far from 0 ... 1."""
    check_finite(frame, name)
    bright = max(abs(float(v)) for v in torch.aminmax(frame)) if frame.numel() else 0.0
    _check.require(bright <= BRIGHTEST, name, f"values up to {BRIGHTEST:g} (0 ... 1 is usual)", f"{bright:g}")


def check_finite(tensor: Tensor, name: str, expected: str = "finite values") -> None:
    """Raise InputError for NaN or infinity."""
    # min and max propagate NaN and need no mask of the tensor's size.
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise _check.InputError(f"{name}: expected {expected}, got NaN or infinity")


def convert_to_grey_255(frame: Tensor) -> Tensor:
    """Convert [B, C, H, W] of 0 ... 1 to [B, H, W] of 0 ... 255."""
    if frame.shape[1] == 1:
        return frame[:, 0] * 255.0
    luma: Tensor = frame[:, 0] * (255.0 * _LUMA[0])
    for channel in (1, 2):
        luma.add_(frame[:, channel], alpha=255.0 * _LUMA[channel])
    return luma


def check_and_solve_each_pair_in_grey_255(
    solve_pair: PairSolver,
    dtype: torch.dtype,
    frame1: Tensor,  # [B, C, H, W], as check_and_detach_frame lets pass
    frame2: Tensor,  # [B, C, H, W]
    initial_flow: Tensor | None,  # [B, 2, H, W]
    progress: Progress | None,
) -> Tensor:  # [B, 2, H, W]
    """Run ``solve_pair`` on every pair of grey frames [H, W] of 0 ... 255 and its initial flow; return the flows.

    Raises:
        InputError: if values of frames, start or flow are out of range.
    """
    frame1, frame2 = frame1.to(dtype), frame2.to(dtype)
    check_frame_values(frame1, "frame1")
    check_frame_values(frame2, "frame2")
    if initial_flow is not None:
        check_finite(initial_flow, "initial_flow")
    grey1, grey2 = convert_to_grey_255(frame1), convert_to_grey_255(frame2)
    flow = frame1.new_empty(len(frame1), 2, *frame1.shape[2:])
    for item in range(len(frame1)):
        item_start = None if initial_flow is None else initial_flow[item]
        flow[item] = solve_pair(
            grey1[item], grey2[item], item_start, create_batch_item_progress_or_none(progress, item, len(frame1))
        )
    check_finite(flow, "flow", FINITE_FLOW)
    return flow


def create_batch_item_progress_or_none(progress: Progress | None, item: int, items: int) -> Progress | None:
    """Return the progress callback of one pair of a batch."""
    if progress is None:
        return None

    def report(fraction: float, level_text: str) -> None:
        progress((item + fraction) / items, level_text if items == 1 else f"pair {item + 1} of {items}, {level_text}")

    return report


SMALLEST_SIDE = 16
# (index, weight), both [size_out, taps]: output = sum of weight * input[index]
TapTable = tuple["NDArray[np.int32]", "NDArray[np.float64]"]
# (index of the first tap [size_out], weight [size_out, taps]); indices may lie outside
FirstTapsAndWeights = tuple["NDArray[np.int64]", "NDArray[np.float64]"]
Float32TapTable = tuple["NDArray[np.int32]", "NDArray[np.float32]"]


def compute_level_sizes(height: int, width: int, scales: int | None, factor: float) -> list[tuple[int, int]]:
    """Return (height, width) of every level, finest first: rounded, and at least 16 except for level 0."""
    sizes = [(height, width)]
    while scales is None or len(sizes) < scales:
        shrink = factor ** len(sizes)
        size = (round(height * shrink), round(width * shrink))
        if min(size) < SMALLEST_SIDE or size == sizes[-1]:
            break
        sizes.append(size)
    return sizes


def compute_progress_and_level_text(
    sizes: list[tuple[int, int]], level_index: int, level_progress: float
) -> tuple[float, str]:
    """Return the finished share of all pixels' work, and where; of level ``level_index`` ``level_progress`` is done."""
    pixels = [h * w for h, w in sizes]
    finished_pixels = sum(pixels[level_index + 1 :]) + pixels[level_index] * level_progress
    height, width = sizes[level_index]
    return finished_pixels / sum(pixels), f"level {len(sizes) - level_index} of {len(sizes)}, {width}×{height}"


def _build_clamped_tap_table(first: NDArray[np.int64], weight: NDArray[np.float64], size: int) -> TapTable:
    index = first[:, None] + np.arange(weight.shape[1])
    return np.clip(index, 0, size - 1).astype(np.int32), weight


def _compute_source_centers(size_in: int, size_out: int) -> NDArray[np.float64]:
    return (np.arange(size_out, dtype=np.float64) + 0.5) * (size_in / size_out) - 0.5


def compute_gaussian_first_taps_and_weights(size_in: int, size_out: int) -> FirstTapsAndWeights:
    """Return a Gaussian low-pass with decimation by r: sigma = 0.6 sqrt(r^2 - 1) input pixels (IPOL 2013).

    Returns (index of the first tap [size_out], weight [size_out, taps]); taps beyond the border count for the pixel at
    the border, weights sum to 1.
    """
    ratio = size_in / size_out
    sigma = max(0.6 * math.sqrt(max(ratio * ratio - 1.0, 0.0)), 0.3)
    radius = math.ceil(3.0 * sigma)
    centre = _compute_source_centers(size_in, size_out)
    first = np.floor(centre).astype(np.int64) - radius + 1
    distance = first[:, None] + np.arange(2 * radius) - centre[:, None]
    weight = np.exp(-0.5 * (distance / sigma) ** 2)
    return first, weight / weight.sum(axis=1, keepdims=True)


def compute_linear_first_taps_and_weights(size_in: int, size_out: int) -> FirstTapsAndWeights:
    """Return bilinear taps, two an output, in the form of ``compute_gaussian_first_taps_and_weights``.

    Pixel centres are aligned by area, borders clamped.
    """
    centre = np.clip(_compute_source_centers(size_in, size_out), 0.0, size_in - 1.0)
    first = np.floor(centre).astype(np.int64)
    t = centre - first
    return first, np.stack([1.0 - t, t], axis=1)


def compute_gaussian_tap_table(size_in: int, size_out: int) -> TapTable:
    """Return the Gaussian taps as (index, weight), both [size_out, taps]; indices are clamped to the border."""
    return _build_clamped_tap_table(*compute_gaussian_first_taps_and_weights(size_in, size_out), size_in)


def compute_linear_tap_table(size_in: int, size_out: int) -> TapTable:
    """Return the bilinear taps as (index, weight), both [size_out, 2]; indices are clamped to the border."""
    return _build_clamped_tap_table(*compute_linear_first_taps_and_weights(size_in, size_out), size_in)
