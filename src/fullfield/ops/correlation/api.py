"""Stateless form of the lookup."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.correlation.prepared import Lookups
from fullfield.ops.correlation.protocol import (
    LOOKUPS,
    Request,
    check_coords,
    check_features,
    check_window,
    is_channels_last,
    level_sizes,
    output_dtype,
)


def backends(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that can serve RAFT's lookups here, (name, reason) for the others.

    The preferred one comes first. The request is a 1024×436 frame at 1/8, 256 channels, 4 levels, radius 4.
    """
    request = Request(
        batch=1,
        channels=256,
        size1=(55, 128),
        sizes2=level_sizes(55, 128, 4),
        radius=4,
        dtype=dtype,
        device=torch.empty(0, device=device).device,
        grad=True,
        pooled=True,
        precision=torch.get_float32_matmul_precision(),
    )
    return LOOKUPS.reasons(request)


def correlation_lookup(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2_levels: Sequence[Tensor],  # L × [B, C, H2_l, W2_l], finest first
    coords: Tensor,  # [B, 2, H1, W1] float32, (x, y), level-0 pixels, centre of pixel 0 is 0.0
    radius: int,
    *,
    backend: str | None = None,
    out_dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:  # [B, L·(2r+1)², H1, W1]; order: level, dx (slow), dy (fast)
    """Correlate every pixel with a window around where ``coords`` sends it, on every level.

    Each value is ⟨f1, f2⟩ / √C, bilinear between pixel centres; corners outside a map count as zero, and so does a
    level of size zero. A pixel whose coordinates are not finite gets zeros, and zero gradients. The levels are usually
    :func:`correlation_pyramid` of fmap2: level l is read at coords / 2**l.

    Differentiable in fmap1, fmap2_levels and coords (once). For many lookups of one pair, prepare it once with
    :class:`fullfield.nn.CorrelationPyramid`: this function does so for a single lookup.

    Args:
        fmap1: float32, float16, bfloat16 or float64 features, any strides.
        fmap2_levels: 1 to 8 maps of the same dtype; their sizes are free.
        coords: float32 whatever the features are (float64 only with float64 features).
        radius: 1 to 8.
        backend: "cuda", "cpu", "dense" or "reference". None takes the best that can; a named one never
            falls back.
        out_dtype: default float32, float64 for float64 features.
        memory_format: layout of the result, ``torch.contiguous_format`` or ``torch.channels_last``.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.

    Source: Teed and Deng, RAFT, 2020 (the operator); Briedis et al., 2025 (on-demand, block by block).
    """
    _check.require(
        isinstance(fmap2_levels, Sequence) and len(fmap2_levels) > 0,
        "fmap2_levels",
        "a sequence of 1 to 8 tensors",
        f"{type(fmap2_levels).__name__} of length {len(fmap2_levels) if isinstance(fmap2_levels, Sequence) else '?'}",
    )
    check_window(len(fmap2_levels), radius)
    check_features(fmap1, fmap2_levels, [f"fmap2_levels[{level}]" for level in range(len(fmap2_levels))])
    check_coords(coords, fmap1.shape[0], (fmap1.shape[2], fmap1.shape[3]), fmap1.dtype, fmap1.device)
    dtype = output_dtype(out_dtype, fmap1.dtype)
    channels_last = is_channels_last(memory_format)
    lookups = Lookups(fmap1, list(fmap2_levels), len(fmap2_levels), radius, backend)
    return lookups.lookup(coords, dtype, channels_last)
