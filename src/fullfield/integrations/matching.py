"""Replacement of GMFlow's matching by softmax, attention over windows and propagation, each tried before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.forms import autocast_features_and_get_result_dtype, check_results_close
from fullfield.integrations.handle import Change, Recognizer, Replacement
from fullfield.nn import FlowPropagation
from fullfield.ops.matching import global_matching, local_matching
from fullfield.ops.matching.api import compute_attention

_OPERATOR = "GMFlow's"


class _DescribedReplacement:
    """Function of ours with a readable name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __str__(self) -> str:
        return "fullfield's matching in linear memory"


def _build_recognizer(
    replacement: Callable[..., Any], compute_original_and_own_result: Callable[[Any], tuple[Tensor, Tensor]]
) -> Recognizer:
    def recognize(name: str, original: Any, location: str, has_recognized_sibling: bool, backend: str | None) -> Any:  # noqa: ARG001
        check_results_close(
            f"the {name} of {location}", None, _OPERATOR, lambda: compute_original_and_own_result(original)
        )
        return _DescribedReplacement(replacement)

    return recognize


def _draw_seeded_normal_tensor(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float32)


# ---- matching


def _cast_flow_like_unless_autocast(flow: Tensor, feature: Tensor) -> Tensor:
    """Convert a flow to the features' dtype; under autocast it stays float32."""
    return flow if torch.is_autocast_enabled(feature.device.type) else flow.to(feature.dtype)


def _match_globally_to_flow_and_none(
    feature0: Tensor, feature1: Tensor, pred_bidir_flow: bool = False
) -> tuple[Tensor, None]:
    if pred_bidir_flow:
        feature0, feature1 = torch.cat((feature0, feature1)), torch.cat((feature1, feature0))
    first, second, _ = autocast_features_and_get_result_dtype(feature0, feature1)
    return _cast_flow_like_unless_autocast(global_matching(first, second), feature0), None


def _match_locally_to_flow_and_none(
    feature0: Tensor, feature1: Tensor, local_radius: int, padding_mode: str = "zeros"
) -> tuple[Tensor, None]:
    if padding_mode != "zeros":
        raise InputError(f"local_correlation_softmax: expected padding_mode 'zeros', got {padding_mode!r}")
    first, second, _ = autocast_features_and_get_result_dtype(feature0, feature1)
    return _cast_flow_like_unless_autocast(local_matching(first, second, local_radius), feature0), None


def _match_globally_with_original_and_ours(original: Any) -> tuple[Tensor, Tensor]:
    one, two = _draw_seeded_normal_tensor(2, 2, 8, 5, 7).unbind()
    return original(one, two, True)[0], _match_globally_to_flow_and_none(one, two, True)[0]


def _match_locally_with_original_and_ours(original: Any) -> tuple[Tensor, Tensor]:
    one, two = _draw_seeded_normal_tensor(2, 2, 8, 5, 7).unbind()
    return original(one, two, 2)[0], _match_locally_to_flow_and_none(one, two, 2)[0]


def verify_and_build_matcher_change(name: str, block: Any, backend: str | None) -> Change:  # noqa: ARG001 - it has no choice
    """Return the change of NeuFlow's matching, an attribute of its model."""
    kind = type(block)

    def compute_original_and_own_result() -> tuple[Tensor, Tensor]:
        one, two = _draw_seeded_normal_tensor(2, 1, 8, 5, 7).unbind()
        original_result = kind()
        if hasattr(original_result, "init_bhwd"):
            original_result.init_bhwd(1, 5, 7, one.device, False)
        else:
            original_result.init_grid(1, 5, 7, one.dtype, one.device)
        return original_result.global_correlation_softmax(one, two), _match_globally_to_flow_and_none(one, two)[0]

    check_results_close(name, kind, _OPERATOR, compute_original_and_own_result)

    def global_correlation_softmax(self: Any, feature0: Tensor, feature1: Tensor) -> Tensor:  # noqa: ARG001
        return _match_globally_to_flow_and_none(feature0, feature1)[0]

    replacement = Replacement(name, "global_correlation_softmax", "fullfield's global_matching")
    return Change(block, {"global_correlation_softmax": global_correlation_softmax}, [replacement])


# ---- attention over windows


def _attend_fully_with_original_and_ours(original: Any) -> tuple[Tensor, Tensor]:
    query, key, value = _draw_seeded_normal_tensor(3, 2, 9, 8).unbind()
    return original(query, key, value), compute_attention(query, key, value)


def _return_empty_mask(*_: Any, device: torch.device, **__: Any) -> Tensor:
    """Return nothing in place of the mask [K², L, L]: windows that it separates are attended to separately."""
    return torch.empty(0, device=device)


def _attend_in_windows(
    q: Tensor,  # [B, H·W, C]
    k: Tensor,
    v: Tensor,
    num_splits: int = 1,
    with_shift: bool = False,
    h: int | None = None,
    w: int | None = None,
    attn_mask: Tensor | None = None,  # noqa: ARG001 - implied by with_shift
) -> Tensor:
    """Attend inside each of ``num_splits``² windows, with a shift inside windows half a window further.

    The original rolls the map and masks pixels that are no neighbours. Here a shifted window is cut at the map's edge.
    """
    if h is None or w is None:
        raise InputError("single_head_split_window_attention: expected h and w, got None")
    maps = [torch.unflatten(t, 1, (h, w)) for t in (q, k, v)]
    bands = [_list_window_starts_counts_and_lengths(n, num_splits, with_shift) for n in (h, w)]
    strips = []
    for top, rows, height in bands[0]:
        blocks = []
        for left, columns, width in bands[1]:
            cut = [t[:, top : top + rows * height, left : left + columns * width] for t in maps]
            blocks.append(_attend_in_window_grid(cut, rows, columns))
        strips.append(torch.cat(blocks, 2))
    return torch.cat(strips, 1).flatten(1, 2)


def _list_window_starts_counts_and_lengths(length: int, splits: int, is_shifted: bool) -> list[tuple[int, int, int]]:
    """Return (first, windows, length of each) of the windows along an axis."""
    size = length // splits
    shift = size // 2 if is_shifted else 0
    if not shift:
        return [(0, splits, size)]
    middle = [(shift, splits - 1, size)] if splits > 1 else []
    return [(0, 1, shift), *middle, (length - (size - shift), 1, size - shift)]


def _attend_in_window_grid(query_key_value: list[Tensor], window_rows: int, window_columns: int) -> Tensor:
    batch, height, width, _ = query_key_value[0].shape
    windows = [
        torch.unflatten(torch.unflatten(t, 2, (window_columns, -1)), 1, (window_rows, -1)).transpose(2, 3)
        for t in query_key_value
    ]
    result = compute_attention(*(t.flatten(0, 2).flatten(1, 2) for t in windows))
    inner = torch.unflatten(result, 1, (height // window_rows, width // window_columns))
    joined = torch.unflatten(inner, 0, (batch, window_rows, window_columns))
    return joined.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _build_shift_mask(height: int, width: int, splits: int) -> Tensor:
    """Return the original's mask: -100 between positions of a rolled window that are no neighbours."""
    marks = []
    for length in (height, width):
        size = length // splits
        at = torch.arange(length)
        marks.append((at >= length - size).long() + (at >= length - size // 2).long())
    region = (3 * marks[0][:, None] + marks[1]).view(splits, height // splits, splits, width // splits)
    rows = region.transpose(1, 2).reshape(splits * splits, -1)
    return -100.0 * (rows[:, None] != rows[:, :, None]).to(torch.float32)


def _build_mask_with_original_and_ours(original: Any) -> tuple[Tensor, Tensor]:
    original_result = original(
        input_resolution=(8, 12), window_size_h=4, window_size_w=6, shift_size_h=2, shift_size_w=3,
        device=torch.device("cpu"),
    )  # fmt: skip
    return original_result, _build_shift_mask(8, 12, 2)


def _attend_in_windows_with_original_and_ours(original: Any) -> tuple[Tensor, Tensor]:
    result: tuple[list[Tensor], list[Tensor]] = ([], [])
    for splits, shift in ((2, False), (2, True), (3, True)):
        height, width = 4 * splits, 6 * splits
        query, key, value = _draw_seeded_normal_tensor(3, 2, height * width, 8).unbind()
        mask = _build_shift_mask(height, width, splits) if shift else None
        options: dict[str, Any] = {"num_splits": splits, "with_shift": shift, "h": height, "w": width}
        result[0].append(original(query, key, value, attn_mask=mask, **options))
        result[1].append(_attend_in_windows(query, key, value, **options))
    original_result, own = (torch.cat(outputs, 1) for outputs in result)
    return original_result, own


# ---- propagation


def _propagate_flow(self: Any, feature0: Tensor, flow: Tensor, radius: int | None) -> Tensor:
    return FlowPropagation.forward(self, feature0, flow, radius)  # which reads the weights by their names


def verify_and_build_propagation_change(name: str, module: Any, backend: str | None) -> Change:  # noqa: ARG001 - it has no choice
    """Return the change of a part that propagates flow."""
    kind = type(module)

    def compute_original_and_own_result() -> tuple[Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]):
            original_result = kind(in_channels=8)
        feature, flow = _draw_seeded_normal_tensor(2, 8, 5, 7), _draw_seeded_normal_tensor(2, 2, 5, 7)
        calls: list[dict[str, Any]] = [{}, {"local_window_attn": True, "local_window_radius": 1}]
        result = [original_result(feature, flow, **call) for call in calls]
        own = [_propagate_flow(original_result, feature, flow, radius) for radius in (None, 1)]
        return torch.cat(result), torch.cat(own)

    check_results_close(name, kind, _OPERATOR, compute_original_and_own_result)

    def forward(
        self: Any,
        feature0: Tensor,
        flow: Tensor,
        local_window_attn: bool = False,
        local_window_radius: int = 1,
        **_: Any,
    ) -> Tensor:
        return _propagate_flow(self, feature0, flow, local_window_radius if local_window_attn else None)

    return Change.from_overrides(name, module, {"forward": forward}, "fullfield's attention in linear memory")


RECOGNIZERS = {
    "^global_correlation_softmax$": _build_recognizer(
        _match_globally_to_flow_and_none, _match_globally_with_original_and_ours
    ),
    "^local_correlation_softmax$": _build_recognizer(
        _match_locally_to_flow_and_none, _match_locally_with_original_and_ours
    ),
    "^single_head_full_attention$": _build_recognizer(compute_attention, _attend_fully_with_original_and_ours),
    "^single_head_split_window_attention$": _build_recognizer(
        _attend_in_windows, _attend_in_windows_with_original_and_ours
    ),
    "^generate_shift_window_attn_mask$": _build_recognizer(_return_empty_mask, _build_mask_with_original_and_ours),
}
"""Recognisers by the names under which methods reach the functions."""
