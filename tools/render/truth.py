"""Flow, validity and occlusion computed from Blender's vector pass.

The pass holds, in pixels with y up, the previous minus the current position (X, Y) and the current minus the next
position (Z, W) of a point. Flow to the next frame is (-Z, W), flow to the previous frame (X, -Y). The tests check both
against rigid motion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import write_flow, write_image

SCALE = 2
"""Vectors are rendered at this many times the frame's size."""

_DISAGREE = 1.0  # rendered pixels: forward and backward motion that differ by more belong to two surfaces
_REACH = 0.75  # rendered pixels: largest distance along x and y from a point's end to a pixel that moves back to it
_ROWS = 512


class Vectors(NamedTuple):
    """Motion of one rendered frame, in rendered pixels."""

    forward: Tensor  # [2, 2H, 2W] float32, (u, v)
    backward: Tensor  # [2, 2H, 2W]
    hit: Tensor  # [2H, 2W] bool: True on a surface, False in the sky


def collect_truth(
    shot: str | os.PathLike[str],
    first: int,
    last: int,
    *,
    progress: Callable[[float, str], None] | None = None,
) -> list[Path]:
    """Compute the flow of frames ``first`` to ``last - 1`` from the vectors of ``first`` to ``last``; return its files.

    ::

        SHOT/vectors/vectors_0101.exr        written by Blender at twice the frame's size
        SHOT/flow/flow_0101.flo5             [2H, 2W, 2] float32, in pixels of the frame; NaN where there is no surface
        SHOT/invalid/invalid_0101.png        white where one of a pixel's four values is unknown
        SHOT/occlusions/occlusion_0101.png   white where one of a pixel's four values has no match in the next frame

    A point is occluded if it leaves the picture, or if no rendered pixel next to its end moves back to it within half
    a pixel of the frame. Existing files are kept.

    Raises:
        InputError: a file of vectors is missing or cannot be read.
    """
    folder = Path(shot)
    written: list[Path] = []
    held: tuple[int, Vectors] | None = None
    for number in range(first, last):
        flow_path = folder / "flow" / f"flow_{number:04d}.flo5"
        hidden_path = folder / "occlusions" / f"occlusion_{number:04d}.png"
        unknown_path = folder / "invalid" / f"invalid_{number:04d}.png"
        paths = (flow_path, hidden_path, unknown_path)
        written.append(flow_path)
        if all(path.is_file() for path in paths):
            continue
        if progress is not None:
            progress((number - first) / (last - first), f"flow of frame {number}")
        this = held[1] if held is not None and held[0] == number else read_flow_layers(_vectors(folder, number))
        after = read_flow_layers(_vectors(folder, number + 1))
        held = (number + 1, after)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        lost = occluded(this.forward, after.backward, after.hit)
        write_image(hidden_path, _mask(_any_of_four(lost & this.hit)))
        write_image(unknown_path, _mask(_any_of_four(~this.hit)))
        write_flow(flow_path, this.forward / SCALE, this.hit)
    return written


def average_colors(shot: str | os.PathLike[str], first: int, last: int) -> None:
    """Write the frames of a fast render: the mean of the four samples in each pixel, encoded as sRGB.

    Existing frames are kept.
    """
    for number in range(first, last + 1):
        path = Path(shot) / "frames" / f"frame_{number:04d}.png"
        if path.is_file():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, read_colors(_vectors(Path(shot), number)))


def read_colors(path: Path) -> Tensor:
    """Return the frame of a fast render: uint8 [3, H, W]."""
    planes = []
    for color in _read_channels(path, [f"Combined.{name}" for name in "RGB"]):
        linear = (color[::2, ::2] + color[1::2, ::2] + color[::2, 1::2] + color[1::2, 1::2]) / 4
        value = torch.from_numpy(linear).clamp_(0, 1)
        curved = 1.055 * value.pow(1 / 2.4) - 0.055
        planes.append((torch.where(value <= 0.0031308, 12.92 * value, curved) * 255).round_().to(torch.uint8))
    return torch.stack(planes)


def _vectors(folder: Path, number: int) -> Path:
    return folder / "vectors" / f"vectors_{number:04d}.exr"


def read_flow_layers(path: Path) -> Vectors:
    """Read Blender's multilayer EXR, of one part or several."""
    alpha, *values = _read_channels(path, ["Combined.A", *(f"Vector.{axis}" for axis in "XYZW")])
    x, y, z, w = (torch.from_numpy(value) for value in values)
    hit = torch.from_numpy(alpha) > 0.5
    for channel in (x, y, z, w):
        hit &= channel.isfinite()
    return Vectors(torch.stack((-z, w)), torch.stack((x, -y)), hit)


def _read_channels(path: Path, names: Sequence[str]) -> list[NDArray[np.float32]]:
    """Return channels of Blender's vector pass, each [2H, 2W]."""
    import OpenImageIO as oiio

    if not path.is_file():
        raise InputError(f"{path}: expected the vectors that Blender wrote, found nothing")
    source = oiio.ImageInput.open(os.fspath(path))
    if source is None:
        raise InputError(f"{path}: expected an OpenEXR file with vectors ({oiio.geterror().strip()})")
    found: dict[str, NDArray[np.float32]] = {}
    try:
        part = 0
        while source.seek_subimage(part, 0):
            spec = source.spec()
            for index, name in enumerate(spec.channelnames):
                kind = ".".join(name.split(".")[-2:])
                if kind in names and kind not in found:
                    pixels = source.read_image(part, 0, index, index + 1, "float")
                    if pixels is None:
                        raise InputError(f"{path}: cannot be read ({source.geterror().strip()})")
                    found[kind] = np.ascontiguousarray(pixels[..., 0])
            part += 1
    finally:
        source.close()
    missing = sorted(set(names) - found.keys())
    if missing:
        raise InputError(f"{path}: expected the channels of Blender's vector pass, found no {', '.join(missing)}")
    height, width = found[names[0]].shape
    if height % SCALE or width % SCALE:
        raise InputError(f"{path}: expected twice the frame's size, got {width}×{height}")
    return [found[name] for name in names]


def occluded(forward: Tensor, backward: Tensor, hit: Tensor) -> Tensor:
    """Return where a point of this frame has no match in the next: bool [H, W].

    Args:
        forward: [2, H, W], this frame's motion to the next.
        backward: [2, H, W], the next frame's motion to this one.
        hit: [H, W] bool, True where the next frame has a surface.
    """
    height, width = hit.shape
    device = hit.device
    lost = torch.empty(height, width, dtype=torch.bool, device=device)
    flat, surface = backward.reshape(2, -1), hit.reshape(-1)
    for top in range(0, height, _ROWS):
        part = forward[:, top : top + _ROWS]
        rows = part.shape[1]
        x = torch.arange(width, device=device) + part[0]
        y = torch.arange(top, top + rows, device=device)[:, None] + part[1]
        inside = (x > -0.5) & (x < width - 0.5) & (y > -0.5) & (y < height - 0.5)
        seen = torch.zeros(rows, width, dtype=torch.bool, device=device)
        left, upper = torch.where(inside, x, 0.0).floor().long(), torch.where(inside, y, 0.0).floor().long()
        beyond_x, beyond_y = x - left, y - upper
        for right, lower in ((0, 0), (1, 0), (0, 1), (1, 1)):
            near = ((beyond_x - right).abs() < _REACH) & ((beyond_y - lower).abs() < _REACH)
            at = (upper + lower).clamp(0, height - 1) * width + (left + right).clamp(0, width - 1)
            back = flat[:, at.reshape(-1)].view(2, rows, width)
            returns = (part + back).square().sum(0) <= _DISAGREE**2
            seen |= near & surface[at.reshape(-1)].view(rows, width) & returns
        lost[top : top + rows] = ~(inside & seen)
    return lost


def _any_of_four(mask: Tensor) -> Tensor:
    return mask[::2, ::2] | mask[1::2, ::2] | mask[::2, 1::2] | mask[1::2, 1::2]


def _mask(mask: Tensor) -> Tensor:
    """Return a mask as a black-and-white picture, uint8 [3, H, W]."""
    return (mask.to(torch.uint8) * 255).expand(3, -1, -1).contiguous()
