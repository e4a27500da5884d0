"""KITTI's and HD1K's 16-bit PNG: R = 64 u + 2¹⁵, G = 64 v + 2¹⁵, B is not 0 where the flow is valid."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fullfield._check import InputError
from fullfield.io.flow_formats import FlowRangeError, Mask, Planes
from fullfield.io.oiio import opened, write_picture

_WHAT = "flow in a 16-bit RGB PNG (KITTI)"
_LOWEST, _HIGHEST = -512.0, 65535 / 64 - 512


def read(path: Path) -> tuple[Planes, Mask]:
    """Read flow and its valid pixels from a KITTI .png file."""
    with opened(path, "png", _WHAT) as source:
        part = source.first_part()
        spec = part.spec
        form = str(spec.format)
        if form != "uint16" or spec.nchannels != 3:
            raise InputError(f"{path}: expected {_WHAT}, got {form} × {spec.nchannels}")
        flow = np.empty((2, spec.height, spec.width), np.float32)
        valid = np.empty((spec.height, spec.width), np.bool_)
        for start, band in source.bands(part, [0, 1, 2], (spec.y, spec.y + spec.height), form):
            rows = slice(start - spec.y, start - spec.y + len(band))
            flow[:, rows] = (band[..., :2].astype(np.float32) / 64 - 512).transpose(2, 0, 1)
            valid[rows] = band[..., 2] > 0
    return flow, valid


def write(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a KITTI .png file."""
    values = np.where(valid, flow, np.float32(0))
    low, high = float(values.min()), float(values.max())
    codes = np.rint((values.astype(np.float64) + 512) * 64)
    if low < _LOWEST - 1 / 128 or codes.max() > 65535:
        raise FlowRangeError(
            f"flow: the KITTI PNG format holds {_LOWEST:g} to {_HIGHEST:g} px, got {low:g} to {high:g}; "
            "choose .flo, .flo5 or .exr"
        )
    pixels = np.zeros((*valid.shape, 3), np.uint16)
    pixels[..., :2] = np.where(valid, codes.clip(0), 0).transpose(1, 2, 0)
    pixels[..., 2] = valid
    write_picture(path, "png", pixels)
