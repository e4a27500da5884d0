"""Requests of the correlation lookup, the interface of its backends, and the choice of one.

A backend is a module with

``explain_unsupported(request) -> str | None``
    As :class:`fullfield.ops._backends.Backends` describes.
``prepare_pair(request, fmap1, maps) -> Prepared``
    Bring a pair into the backend's layout. ``maps`` are all levels, or the finest alone if the module sets
    ``POOLS = True`` and ``request.pooled``: then the backend pools.
``restore_pair(request, state) -> Prepared``
    Return the same pair from ``PreparedPair.state``, a flat tuple of tensors: what a compiled graph carries between
    operators.
``allocate_pair_state(request, like) -> tuple[Tensor, ...]``
    Return uninitialised tensors with the shapes, dtypes and strides of that state, made by ``like.new_empty``; only
    arithmetic on sizes, which may be symbolic.

A state shares no memory with the maps it was made from. Autocast may be on around any of these calls. Backends never
import each other. Levels of size zero and empty batches reach them and must give zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import Backends

FEATURES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # dtypes of feature maps
Precision = str  # "highest", "high" or "medium": torch.get_float32_matmul_precision()
MAX_LEVELS = 8
MAX_RADIUS = 8
# By preference. An automatic choice takes the first that can, and "dense" only where its volume is small.
BACKENDS = ("cuda", "cpu", "dense", "reference")
# Without a kernel the volume is faster than the reference on maps of more than 8×8, so an automatic choice depends on
# memory: on CUDA and ROCm this share of the GPU's, elsewhere these bytes. Both are the same for every pair of a shot.
DENSE_MEMORY_FRACTION = 1 / 8
DENSE_BYTES = 1 << 30


@dataclass(frozen=True)
class LookupRequest:
    """Sizes, dtype, device and options of a pair: everything that decides which backend serves it and how."""

    batch: int
    channels: int
    size1: tuple[int, int]
    """H1, W1."""
    sizes2: tuple[tuple[int, int], ...]
    """H2, W2 of every level, finest first; may be zero."""
    radius: int
    dtype: torch.dtype
    """Dtype of the features."""
    device: torch.device
    grad: bool = False
    """Whether a backward may follow."""
    pooled: bool = False
    """Whether the levels are the repeated 2×2 average pooling of the finest."""
    precision: Precision = "highest"

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.sizes2)

    @property
    def side(self) -> int:
        """Number of taps along one side of a window."""
        return 2 * self.radius + 1

    @property
    def out_channels(self) -> int:
        """Number of channels of a result."""
        return self.levels * self.side**2

    @property
    def accumulate_dtype(self) -> torch.dtype:
        """Dtype of products, blends and gradient accumulators."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def volume_bytes(self) -> int:
        """Bytes of the correlation volume of all levels, in the accumulating dtype."""
        targets = sum(height * width for height, width in self.sizes2)
        return self.batch * self.size1[0] * self.size1[1] * targets * self.accumulate_dtype.itemsize


def compute_level_sizes(height: int, width: int, levels: int) -> tuple[tuple[int, int], ...]:
    """Return the height and width of every level."""
    return tuple((height // 2**level, width // 2**level) for level in range(levels))


def list_batch_channels_and_map_sizes(fmap1: Tensor, fmap2_levels: Sequence[Tensor], levels: int) -> list[int]:
    """Return B, C, H1, W1, then H2, W2 of every level; ``fmap2_levels`` are all levels, or the finest alone."""
    pooled = len(fmap2_levels) == 1
    sizes = (
        compute_level_sizes(fmap2_levels[0].shape[2], fmap2_levels[0].shape[3], levels)
        if pooled
        else [m.shape[-2:] for m in fmap2_levels]
    )
    return [*fmap1.shape, *(side for size in sizes for side in size)]


def build_lookup_request(
    shape: Sequence[int],
    pooled: bool,
    radius: int,
    precision: str,
    grad: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> LookupRequest:
    """Return the request for checked features; ``shape``: see :func:`list_batch_channels_and_map_sizes`."""
    return LookupRequest(
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


# ---- checks of callers' arguments


def _check_tensor(
    value: Tensor,
    name: str,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Check as ``_check.check_tensor`` does; a tensor that fits costs little, and is traceable with symbolic sizes."""
    if (
        isinstance(value, Tensor)
        and value.ndim == len(shape)
        and all(
            isinstance(expected, str) or have == expected for have, expected in zip(value.shape, shape, strict=True)
        )
        and value.dtype in dtypes
        and (device is None or value.device == device)
    ):
        return
    _check.check_tensor(value, name, shape, dtypes=dtypes, device=device)


def check_features(fmap1: Tensor, fmap2_levels: Sequence[Tensor], names: Sequence[str]) -> None:
    """Check fmap1 [B, C, H1, W1] and maps [B, C, H, W] of one dtype and device."""
    _check_tensor(fmap1, "fmap1", ("B", "C", "H1", "W1"), FEATURES)
    _check.require(fmap1.shape[1] > 0, "fmap1", "at least one channel", fmap1)
    for name, fmap2 in zip(names, fmap2_levels, strict=True):
        _check_tensor(fmap2, name, (fmap1.shape[0], fmap1.shape[1], "H2", "W2"), (fmap1.dtype,), fmap1.device)


def check_levels_and_radius(levels: int, radius: int) -> None:
    """Check the number of levels and the radius."""
    _check.check_number(levels, "levels", integer=True, low=1, high=MAX_LEVELS)
    _check.check_number(radius, "radius", integer=True, low=1, high=MAX_RADIUS)


def check_coords(coords: Tensor, batch: int, size1: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    """Check coords [B, 2, H1, W1]: float32 whatever the features are, or float64 with float64 features."""
    allowed = (torch.float32, torch.float64) if dtype == torch.float64 else (torch.float32,)
    _check_tensor(coords, "coords", (batch, 2, *size1), allowed, device)


def check_or_choose_output_dtype(out_dtype: torch.dtype | None, features: torch.dtype) -> torch.dtype:
    """Return the result's dtype: as requested, else float32 (float64 for float64 features)."""
    if out_dtype is None:
        return torch.float64 if features == torch.float64 else torch.float32
    _check.check_choice(out_dtype, "out_dtype", FEATURES)
    return out_dtype


def check_format_and_is_channels_last(memory_format: torch.memory_format) -> bool:
    """Return whether a result is channels-last."""
    _check.check_choice(memory_format, "memory_format", (torch.contiguous_format, torch.channels_last))
    return memory_format == torch.channels_last


# ---- interface of backends


@dataclass
class GradientAccumulators:
    """Accumulators of one backward pass, in any layout of their backend; None where there is nothing."""

    fmap1: Tensor | None
    levels: list[Tensor] | None
    requested: tuple[bool, bool] = (True, True)
    """Whether fmap1's and fmap2's gradients are requested."""


class PreparedPair(ABC):
    """Pair of feature maps in a backend's layout.

    Any number of lookups may share it, also at the same time, and none changes what another returns.
    """

    def __init__(self, request: LookupRequest, state: tuple[Tensor, ...]) -> None:
        self.request = request
        self.state = state

    @abstractmethod
    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Return [B, L·(2r+1)², H1, W1] of ``out_dtype`` for checked coords [B, 2, H1, W1]; never part of a graph."""

    @abstractmethod
    def backward(
        self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool
    ) -> Tensor | None:
        """Add one lookup's share to ``grads`` in place; return the gradient of ``coords`` if it is requested.

        ``grad_out`` has the shape and dtype of the lookup, any strides.
        """

    def allocate_accumulators(self, needs_fmap1: bool, needs_levels: bool) -> GradientAccumulators:
        """Return zeroed accumulators, by default in the layout of a state that holds fmap1, then maps."""

        def allocate_zeros(like: Tensor) -> Tensor:
            return torch.zeros_like(like, dtype=self.request.accumulate_dtype)

        return GradientAccumulators(
            allocate_zeros(self.state[0]) if needs_fmap1 else None,
            [allocate_zeros(level) for level in self.state[1:]] if needs_levels else None,
            (needs_fmap1, needs_levels),
        )

    def finish_gradients(self, grads: GradientAccumulators) -> GradientAccumulators:
        """Return the sums as [B, C, H, W] tensors of the accumulating dtype: fmap1, and every level.

        The caller does so once, at the end of a pass; the result may reuse the accumulators' memory.
        """
        return grads


def allocate_lookup_output(request: LookupRequest, like: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Return an uninitialised lookup result in the requested layout."""
    shape = (request.batch, request.out_channels, *request.size1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=layout)


def convert_lookup_output(out: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Return ``out`` in the requested dtype and layout, copied only where it differs."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return out.to(dtype).contiguous(memory_format=layout)


def disable_autocast_and_grad(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products keep their operands' dtypes: no autocast, and no graph."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    if torch.amp.autocast_mode.is_autocast_available(device.type):
        stack.enter_context(torch.autocast(device.type, enabled=False))
    return stack


# ---- choice


class _LookupBackends(Backends):
    def may_choose_automatically(self, name: str, *request: LookupRequest) -> bool:
        if name != "dense":
            return True
        return request[0].device.type != "cpu" and not _is_dense_too_large(request[0])


LOOKUPS = _LookupBackends("correlation_lookup", f"{__package__}.", BACKENDS)


def _is_dense_too_large(request: LookupRequest) -> bool:
    limit = float(DENSE_BYTES)
    if request.device.type == "cuda" and torch.cuda.is_available():
        limit = torch.cuda.get_device_properties(request.device).total_memory * DENSE_MEMORY_FRACTION
    return request.volume_bytes * (1 + request.grad) > limit
