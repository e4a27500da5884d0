"""Makers of files for the io tests, on purpose not through the code under test."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from numpy.typing import NDArray

from fullfield import InputError
from fullfield.io import read_point_cloud
from peak_memory import PeakMemory


class ExrPart(NamedTuple):
    pixels: NDArray[np.generic]  # [H, W, C]
    channels: tuple[str, ...]
    name: str = ""
    origin: tuple[int, int] = (0, 0)
    display: tuple[int, int, int, int] | None = None  # x, y, width, height
    tile: int = 0
    attributes: dict[str, object] = {}  # noqa: RUF012


FORMS = {"uint8": "uint8", "uint16": "uint16", "uint32": "uint", "float16": "half", "float32": "float"}


def exr_spec(part: ExrPart) -> oiio.ImageSpec:
    height, width, count = part.pixels.shape
    spec = oiio.ImageSpec(width, height, count, FORMS[part.pixels.dtype.name])
    spec.channelnames = part.channels
    spec.x, spec.y = part.origin
    spec.full_x, spec.full_y, spec.full_width, spec.full_height = part.display or (*part.origin, width, height)
    spec.tile_width = spec.tile_height = part.tile
    if part.name:
        spec.attribute("oiio:subimagename", part.name)
    for name, value in part.attributes.items():
        spec.attribute(name, value)
    return spec


def save(path: Path, *parts: ExrPart) -> Path:
    output = oiio.ImageOutput.create(str(path))
    specs = [exr_spec(part) for part in parts]
    opened = output.open(str(path), specs) if len(parts) > 1 else output.open(str(path), specs[0])
    assert opened, output.geterror()
    for index, part in enumerate(parts):
        if index:
            assert output.open(str(path), specs[index], "AppendSubimage"), output.geterror()
        pixels = np.ascontiguousarray(part.pixels)
        if part.tile:
            height, width, _ = pixels.shape
            assert output.write_tiles(part.origin[0], part.origin[0] + width, part.origin[1],
                                      part.origin[1] + height, 0, 1, pixels), output.geterror()  # fmt: skip
        else:
            assert output.write_image(pixels), output.geterror()
    assert output.close(), output.geterror()
    return path


def srgb(linear: NDArray[np.floating]) -> NDArray[np.float64]:
    """The sRGB curve, written out for the tests."""
    light = np.maximum(np.asarray(linear, np.float64), 0)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def complaint(error: pytest.ExceptionInfo[Exception]) -> str:
    """The message, after checking that it is one line."""
    text = str(error.value)
    assert text, "no message"
    assert text == " ".join(text.split()), text
    return text


def samples(shape: Sequence[int], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(shape, np.float32)


MIB = 64


def refused(path: Path, data: bytes, match: str, read: Callable[[Path], Any] = read_point_cloud) -> None:
    """``data`` is refused in one line that names the file, within a second and ``MIB``."""
    path.write_bytes(data)
    begin = time.process_time()
    with PeakMemory() as memory, pytest.raises(InputError, match=match) as error:
        read(path)
    assert complaint(error).startswith(str(path))
    assert time.process_time() - begin < 1
    assert (memory.growth_mib or 0) < MIB


def pixels_8(height: int = 13, width: int = 17, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, channels)).astype(np.uint8)


def planes(pixels: np.ndarray, full: float) -> torch.Tensor:
    return torch.from_numpy((pixels.astype(np.float64) / full).astype(np.float32).transpose(2, 0, 1).copy())
