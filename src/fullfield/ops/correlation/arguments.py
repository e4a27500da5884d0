"""Checks of what callers pass: every complaint names the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.correlation.protocol import FEATURES, Request
from fullfield.ops.correlation.pyramid import MOST_LEVELS, level_sizes

MOST_RADIUS = 8


def shape_of(fmap1: Tensor, maps: Sequence[Tensor], levels: int) -> list[int]:
    """B, C, H1, W1, then H2, W2 of every level; ``maps`` are all levels, or the finest alone."""
    pooled = len(maps) == 1
    sizes = level_sizes(maps[0].shape[2], maps[0].shape[3], levels) if pooled else [m.shape[-2:] for m in maps]
    return [*fmap1.shape, *(side for size in sizes for side in size)]


def request_of(
    shape: Sequence[int],
    pooled: bool,
    radius: int,
    precision: str,
    grad: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Request:
    """The request for checked features whose sizes are ``shape``, as :func:`shape_of` has them."""
    return Request(
        batch=shape[0],
        channels=shape[1],
        size1=(shape[2], shape[3]),
        sizes2=tuple(zip(shape[4::2], shape[5::2], strict=True)),
        radius=radius,
        dtype=dtype,
        device=device,
        grad=grad,
        pooled=pooled,
        precision=precision,
    )


def _tensor(
    value: Tensor,
    name: str,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """As ``_check.tensor``, which words the complaint; cheap and traceable with symbolic sizes where all is well."""
    if (
        isinstance(value, Tensor)
        and value.ndim == len(shape)
        and all(isinstance(want, str) or have == want for have, want in zip(value.shape, shape, strict=True))
        and value.dtype in dtypes
        and (device is None or value.device == device)
    ):
        return
    _check.tensor(value, name, shape, dtypes=dtypes, device=device)


def check_features(fmap1: Tensor, maps: Sequence[Tensor], names: Sequence[str]) -> None:
    """fmap1 [B, C, H1, W1] and maps [B, C, H, W] of one dtype and device."""
    _tensor(fmap1, "fmap1", ("B", "C", "H1", "W1"), FEATURES)
    _check.require(fmap1.shape[1] > 0, "fmap1", "at least one channel", fmap1)
    for name, fmap2 in zip(names, maps, strict=True):
        _tensor(fmap2, name, (fmap1.shape[0], fmap1.shape[1], "H2", "W2"), (fmap1.dtype,), fmap1.device)


def check_window(levels: int, radius: int) -> None:
    _check.number(levels, "levels", integer=True, low=1, high=MOST_LEVELS)
    _check.number(radius, "radius", integer=True, low=1, high=MOST_RADIUS)


def check_reuse(reuse: bool | None, device: torch.device) -> None:
    """Check ``reuse`` of a pair whose features are on ``device``."""
    _check.require(reuse is None or isinstance(reuse, bool), "reuse", "True, False or None", reuse)
    if reuse and device.type == "cuda":
        _check.require(False, "reuse", "None or False on a GPU, products are kept on the CPU only", f"True on {device}")


def check_coords(coords: Tensor, batch: int, size1: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    """coords [B, 2, H1, W1]: float32 whatever the features are, or float64 with float64 features."""
    allowed = (torch.float32, torch.float64) if dtype == torch.float64 else (torch.float32,)
    _tensor(coords, "coords", (batch, 2, *size1), allowed, device)


def output_dtype(out_dtype: torch.dtype | None, features: torch.dtype) -> torch.dtype:
    """The result's dtype: as asked, else float32 (float64 for float64 features)."""
    if out_dtype is None:
        return torch.float64 if features == torch.float64 else torch.float32
    _check.choice(out_dtype, "out_dtype", FEATURES)
    return out_dtype


def is_channels_last(memory_format: torch.memory_format) -> bool:
    _check.choice(memory_format, "memory_format", (torch.contiguous_format, torch.channels_last))
    return memory_format == torch.channels_last
