"""Stateless form of the lookup, and registered operators for traced code: torch.compile, torch.export, opcheck.

``fullfield::correlation_prepare`` brings a pair into its backend's layout, ``fullfield::correlation_lookup`` reads
from it. Eager code goes through ``prepared``, with the same backends behind it. In traced code every lookup returns its
own gradient of the features and the graph sums them: in float32, for 16-bit features too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._operators import register_operator, wrap_to_forbid_second_derivative
from fullfield.ops.correlation.prepared import (
    NAME,
    PreparedLookups,
    finish_feature_gradients,
    pool_pyramid_levels,
    prepare_pair,
)
from fullfield.ops.correlation.protocol import (
    FEATURES,
    LOOKUPS,
    MAX_LEVELS,
    GradientAccumulators,
    LookupRequest,
    PreparedPair,
    build_lookup_request,
    check_coords,
    check_features,
    check_format_and_is_channels_last,
    check_levels_and_radius,
    check_or_choose_output_dtype,
    compute_level_sizes,
    list_batch_channels_and_map_sizes,
)


def _build_request_and_choose_backend(
    fmap1: Tensor, fmap2_levels: list[Tensor], levels: int, radius: int, backend: str | None, precision: str, grad: bool
) -> tuple[LookupRequest, str]:
    """Return the request and the backend's name."""
    shape = list_batch_channels_and_map_sizes(fmap1, fmap2_levels, levels)
    request = build_lookup_request(shape, len(fmap2_levels) == 1, radius, precision, grad, fmap1.dtype, fmap1.device)
    return request, LOOKUPS.choose(backend, request)


def _prepare_pair_state(fmap1: Tensor, fmap2_levels: list[Tensor], *options: Any) -> list[Tensor]:
    return list(
        prepare_pair(*_build_request_and_choose_backend(fmap1, fmap2_levels, *options), fmap1, fmap2_levels).state
    )


def _prepare_pair_state_fake(fmap1: Tensor, fmap2_levels: list[Tensor], *options: Any) -> list[Tensor]:
    request, name = _build_request_and_choose_backend(fmap1, fmap2_levels, *options)
    return list(LOOKUPS.load(name).allocate_pair_state(request, fmap1))


def _rebuild_prepared_pair(
    coords: Tensor, state: list[Tensor], shape: list[int], pooled: bool, radius: int, backend: str | None,
    precision: str, grad: bool, dtype: torch.dtype,
) -> PreparedPair:  # fmt: skip
    request = build_lookup_request(shape, pooled, radius, precision, grad, dtype, coords.device)
    restored: PreparedPair = LOOKUPS.load(LOOKUPS.choose(backend, request)).restore_pair(request, tuple(state))
    return restored


def _look_up_correlation(_fmap1: Tensor, _maps: list[Tensor], _link: Tensor, coords: Tensor, *options: Any) -> Tensor:
    *pair, out_dtype, channels_last = options
    return _rebuild_prepared_pair(coords, *pair).lookup(coords, out_dtype, channels_last)


def _look_up_correlation_fake(
    _fmap1: Tensor, _maps: list[Tensor], _link: Tensor, coords: Tensor, *options: Any
) -> Tensor:
    _, shape, _, radius, *_, out_dtype, channels_last = options
    channels = (len(shape) - 4) // 2 * (2 * radius + 1) ** 2
    layout = torch.channels_last if channels_last else torch.contiguous_format
    size = (shape[0], channels, shape[2], shape[3])
    return torch.empty(size, dtype=out_dtype, device=coords.device, memory_format=layout)


def _compute_requested_gradients_or_empty(
    grad_out: Tensor, coords: Tensor, state: list[Tensor], *options: Any
) -> list[Tensor]:
    """Return the gradients of fmap1, the maps and coords; empty where not requested."""
    shape, pooled, radius, backend, precision, dtype, (first, second, third) = options
    restored = _rebuild_prepared_pair(coords, state, shape, pooled, radius, backend, precision, True, dtype)
    grads = (
        restored.allocate_accumulators(first, second)
        if first or second
        else GradientAccumulators(None, None, (False, False))
    )
    grad_coords = restored.backward(grad_out, coords, grads, third)
    one, rest = (
        finish_feature_gradients(restored, grads)
        if first or second
        else (None, [None] * _count_fmap2_inputs(shape, pooled))
    )
    empty = coords.new_empty
    return [empty(0) if g is None else g.contiguous() for g in (one, *rest, grad_coords)]


def _compute_requested_gradients_fake(
    _grad_out: Tensor, coords: Tensor, _state: list[Tensor], *options: Any
) -> list[Tensor]:
    shape, pooled, *_, dtype, requested = options
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    sizes = [(shape[4 + 2 * i], shape[5 + 2 * i]) for i in range(_count_fmap2_inputs(shape, pooled))]

    def allocate_if_requested(is_requested: bool, size: tuple[int, int], kind: torch.dtype = exact) -> Tensor:
        return coords.new_empty(
            (shape[0], shape[1], *size) if is_requested else (0,), dtype=kind if is_requested else coords.dtype
        )

    grad_coords = (
        torch.empty_like(coords, memory_format=torch.contiguous_format) if requested[2] else coords.new_empty(0)
    )
    return [
        allocate_if_requested(requested[0], (shape[2], shape[3])),
        *(allocate_if_requested(requested[1], size) for size in sizes),
        grad_coords,
    ]


def _count_fmap2_inputs(shape: Sequence[int], pooled: bool) -> int:
    return 1 if pooled else (len(shape) - 4) // 2


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    fmap1, maps, link, coords, state, shape, pooled, radius, backend, precision, _, dtype, _, _ = inputs
    ctx.save_for_backward(coords, link, *state)
    ctx.options = (shape, pooled, radius, backend, precision, dtype)
    ctx.carriers = [fmap1.dtype, *(m.dtype for m in maps)]


def _backpropagate(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    coords, link, *state = ctx.saved_tensors
    first, second, _, third = ctx.needs_input_grad[:4]
    requested = [bool(first), any(second), bool(third)]
    backward = torch.ops.fullfield.correlation_lookup_backward
    with torch.no_grad():
        *grads, grad_coords = backward(grad_out, coords, state, *ctx.options, requested)
        each = zip(grads, ctx.carriers, (first, *second), strict=True)
        gradients = [grad.to(dtype) if is_requested else None for grad, dtype, is_requested in each]
        gradients.append(grad_coords if third else None)
    one, *grad_maps, grad_coords = wrap_to_forbid_second_derivative(NAME, gradients, (grad_out, coords, link))
    return one, grad_maps, None, grad_coords, [None] * len(state), *(None,) * 9


register_operator(
    "correlation_prepare(Tensor fmap1, Tensor[] maps, int levels, int radius, str? backend, str precision, bool grad) "
    "-> Tensor[]",
    _prepare_pair_state, _prepare_pair_state_fake,
)  # fmt: skip
# fmap1 and maps only carry the gradient: without one they are empty. link is empty and computed from them. It is saved
# in their place and leads from a gradient to them, so that a second derivative is refused. shape: B, C, H1, W1, then
# H2, W2 of each level.
register_operator(
    "correlation_lookup(Tensor fmap1, Tensor[] maps, Tensor link, Tensor coords, Tensor[] state, SymInt[] shape, "
    "bool pooled, int radius, str? backend, str precision, bool grad, ScalarType dtype, ScalarType out_dtype, "
    "bool channels_last) -> Tensor",
    _look_up_correlation, _look_up_correlation_fake, _save_for_backward, _backpropagate,
)  # fmt: skip
register_operator(
    "correlation_lookup_backward(Tensor grad_out, Tensor coords, Tensor[] state, SymInt[] shape, bool pooled, "
    "int radius, str? backend, str precision, ScalarType dtype, bool[] requested) -> Tensor[]",
    _compute_requested_gradients_or_empty, _compute_requested_gradients_fake,
)  # fmt: skip


def explain_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that can serve RAFT's lookups here, (name, reason) for the others.

    The preferred one comes first. The request is a 1024×436 frame at 1/8, 256 channels, 4 levels, radius 4.
    """
    request = LookupRequest(
        batch=1,
        channels=256,
        size1=(55, 128),
        sizes2=compute_level_sizes(55, 128, 4),
        radius=4,
        dtype=dtype,
        device=torch.empty(0, device=device).device,
        grad=True,
        pooled=True,
        precision=torch.get_float32_matmul_precision(),
    )
    return LOOKUPS.list_refusals(request)


def correlation_pyramid(
    fmap2: Tensor,  # [B, C, H2, W2]
    levels: int,
) -> tuple[Tensor, ...]:  # levels × [B, C, H2 // 2**l, W2 // 2**l], finest first; the first is fmap2 itself
    """Return the levels that :func:`correlation_lookup` reads: 2×2 averages, odd last rows and columns dropped.

    A level may have height or width zero. Differentiable.

    Raises:
        InputError: naming ``fmap2`` or ``levels``.
    """
    _check.check_tensor(fmap2, "fmap2", ("B", "C", "H2", "W2"), dtypes=FEATURES)
    _check.check_number(levels, "levels", integer=True, low=1, high=MAX_LEVELS)
    return pool_pyramid_levels(fmap2, levels)


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
    check_levels_and_radius(len(fmap2_levels), radius)
    check_features(fmap1, fmap2_levels, [f"fmap2_levels[{level}]" for level in range(len(fmap2_levels))])
    check_coords(coords, fmap1.shape[0], (fmap1.shape[2], fmap1.shape[3]), fmap1.dtype, fmap1.device)
    dtype = check_or_choose_output_dtype(out_dtype, fmap1.dtype)
    channels_last = check_format_and_is_channels_last(memory_format)
    lookups = PreparedLookups(fmap1, list(fmap2_levels), len(fmap2_levels), radius, backend)
    return lookups.lookup(coords, dtype, channels_last)
