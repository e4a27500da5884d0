"""Frames as the solver and the refinement take them: what is asked of them, grey, one pair after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield import _check

if TYPE_CHECKING:
    from typing import TypeAlias

    Progress: TypeAlias = Callable[[float, str], None]
    PairSolver: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Progress | None], Tensor]

# float32 holds every pixel position below.
LONGEST_SIDE = 2**24 - 1
BRIGHTEST = 1e6
FINITE_FLOW = "a finite flow; the frames or parameters are too extreme"
_LUMA = (0.299, 0.587, 0.114)  # Rec. 601, as cameras' and film's sRGB frames are commonly made grey


def check_size(height: int, width: int) -> None:
    """InputError for a frame that no backend can match."""
    for name, side in (("height", height), ("width", width)):
        _check.number(side, name, integer=True, low=1, high=LONGEST_SIDE)
    _check.require(height * width >= 2, "frames", "at least 2 pixels", f"{width}×{height}")


def check_arguments(height: int, width: int, config: object, kind: type, dtype: torch.dtype) -> None:
    """InputError for arguments that no prepared object is made of; ``kind``: of the configuration."""
    check_size(height, width)
    _check.choice(dtype, "dtype", (torch.float32, torch.float64))
    _check.require(isinstance(config, kind), "config", f"a {kind.__name__}", _check.describe(config))


def placed(device: torch.device) -> torch.device:
    """Return the device, with its number if it is a GPU."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def check_frame(frame: Tensor, name: str, height: int, width: int, device: torch.device) -> Tensor:
    """Check that a frame is floating [B, C, H, W] with C = 1 or 3 on the device, and return it; else InputError."""
    frame = _check.tensor(frame, name, ("B", "C", height, width))
    index = None if device.type == "cpu" else device.index
    here = frame.device.type == device.type and index in (None, frame.device.index)
    _check.require(here, name, f"device {device}", frame)
    _check.require(frame.shape[1] in (1, 3), name, "1 or 3 channels", frame)
    _check.require(frame.is_floating_point(), name, "a floating dtype (divide integers by their maximum)", frame)
    return frame.detach()


def check_values(frame: Tensor, name: str) -> None:
    """InputError for a frame with values that are not finite or far from 0 ... 1."""
    check_finite(frame, name)
    bright = max(abs(float(v)) for v in torch.aminmax(frame)) if frame.numel() else 0.0
    _check.require(bright <= BRIGHTEST, name, f"values up to {BRIGHTEST:g} (0 ... 1 is usual)", f"{bright:g}")


def check_finite(tensor: Tensor, name: str, expected: str = "finite values") -> None:
    """InputError for NaN or infinity."""
    # min and max propagate NaN and need no mask of the tensor's size.
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise _check.InputError(f"{name}: expected {expected}, got NaN or infinity")


def grey(frame: Tensor) -> Tensor:
    """[B, C, H, W] of 0 ... 1 -> [B, H, W] of 0 ... 255."""
    if frame.shape[1] == 1:
        return frame[:, 0] * 255.0
    luma: Tensor = frame[:, 0] * (255.0 * _LUMA[0])
    for channel in (1, 2):
        luma.add_(frame[:, channel], alpha=255.0 * _LUMA[channel])
    return luma


def pair_by_pair(
    solve: PairSolver,
    dtype: torch.dtype,
    frame1: Tensor,  # [B, C, H, W], as check_frame lets pass
    frame2: Tensor,  # [B, C, H, W]
    start: Tensor | None,  # [B, 2, H, W]
    progress: Progress | None,
) -> Tensor:  # [B, 2, H, W]
    """Run ``solve`` on every pair of grey frames [H, W] of 0 ... 255 and its start [2, H, W], and return the flows.

    Raises:
        InputError: if values of frames, start or flow are out of range.
    """
    frame1, frame2 = frame1.to(dtype), frame2.to(dtype)
    check_values(frame1, "frame1")
    check_values(frame2, "frame2")
    if start is not None:
        check_finite(start, "initial_flow")
    grey1, grey2 = grey(frame1), grey(frame2)
    flow = frame1.new_empty(len(frame1), 2, *frame1.shape[2:])
    for item in range(len(frame1)):
        part = None if start is None else start[item]
        flow[item] = solve(grey1[item], grey2[item], part, share(progress, item, len(frame1)))
    check_finite(flow, "flow", FINITE_FLOW)
    return flow


def share(progress: Progress | None, item: int, items: int) -> Progress | None:
    """Return the progress callback of one pair of a batch."""
    if progress is None:
        return None

    def report(fraction: float, where: str) -> None:
        progress((item + fraction) / items, where if items == 1 else f"pair {item + 1} of {items}, {where}")

    return report
