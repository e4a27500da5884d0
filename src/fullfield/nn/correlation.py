"""Correlation lookup, prepared once per pair of feature maps."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.ops.correlation.prepared import PreparedLookups
from fullfield.ops.correlation.protocol import (
    check_coords,
    check_features,
    check_format_and_is_channels_last,
    check_levels_and_radius,
    check_or_choose_output_dtype,
)


class CorrelationPyramid:
    """Prepared pair of feature maps, looked up once per update: the CorrBlock of RAFT-style networks.

    ::

        corr = CorrelationPyramid(fmap1, fmap2)        # [B, C, H1, W1], [B, C, H2, W2]
        for _ in range(updates):
            features = corr(coords)                    # [B, 2, H1, W1] -> [B, 4·9², H1, W1] float32

    Layout, pooling and the choice of a backend happen here, once. Lookups are part of the autograd graph where
    gradients are enabled; those of one pair add to one set of float32 accumulators per backward pass. The features
    must require their gradient when the pair is prepared. See :func:`fullfield.ops.correlation.correlation_lookup`
    for the operator, its order of channels and its options.

    Args:
        fmap1: [B, C, H1, W1] float32, float16, bfloat16 or float64.
        fmap2: [B, C, H2, W2] of the same dtype, any size.
        levels: 1 to 8; each halves the one before.
        radius: 1 to 8.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self,
        fmap1: Tensor,
        fmap2: Tensor,
        levels: int = 4,
        radius: int = 4,
        *,
        backend: str | None = None,
        out_dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        _refuse_jit_trace_and_onnx_export()
        check_levels_and_radius(levels, radius)
        check_features(fmap1, [fmap2], ["fmap2"])
        self.levels = levels
        self.radius = radius
        self.out_channels = levels * (2 * radius + 1) ** 2
        self._dtype = fmap1.dtype
        self._device = fmap1.device
        self._size = (fmap1.shape[0], 2, fmap1.shape[2], fmap1.shape[3])
        self._out_dtype = check_or_choose_output_dtype(out_dtype, fmap1.dtype)
        self._channels_last = check_format_and_is_channels_last(memory_format)
        self._lookups = PreparedLookups(fmap1, [fmap2], levels, radius, backend)

    @property
    def backend(self) -> str | None:
        """Backend in use; None in compiled code that left it open."""
        return self._lookups.backend

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H1, W1] float32, (x, y)
    ) -> Tensor:  # [B, levels·(2·radius+1)², H1, W1]
        """Look up around ``coords``, in level-0 pixels of the second map."""
        if (
            not isinstance(coords, Tensor)
            or coords.shape != self._size
            or coords.dtype != torch.float32
            or coords.device != self._device
        ):
            check_coords(coords, self._size[0], (self._size[2], self._size[3]), self._dtype, self._device)
        return self._lookups.lookup(coords, self._out_dtype, self._channels_last)


def _refuse_jit_trace_and_onnx_export() -> None:
    """Refuse to be recorded by tracers that would store results as constants or know no node for the lookup."""
    is_traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if not is_traced and not _is_exporting_to_onnx():
        return
    name = "torch.jit.trace" if is_traced else "torch.onnx.export"
    raise InputError(
        f"model: {name} cannot record fullfield's correlation lookup; restore() a patched model first, or use "
        "torch.compile, torch.export or, for RAFT and SEA-RAFT of fullfield.models, fullfield.models.export"
    )


def _is_exporting_to_onnx() -> bool:
    """Return whether torch.onnx.export is at work; its own function returns False in code that Dynamo traces."""
    flags = sys.modules.get("torch.onnx._internal.exporter._flags")
    return bool(getattr(flags, "_is_onnx_exporting", False))
