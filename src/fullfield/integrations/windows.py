"""Replacement of fixed windows: samplers, wherever a part holds one, and FlowNetC's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.forms import check_results_close, create_unrecognized_error, get_backend_or_cuda_on_nvidia
from fullfield.integrations.handle import Change, Recognizer, Replacement
from fullfield.ops.spatial_correlation import spatial_correlation
from fullfield.ops.spatial_correlation.protocol import BACKENDS

BY = "fullfield's spatial_correlation"
_OPERATOR = "the fixed window"
Compared: TypeAlias = Callable[[Tensor, Tensor], Tensor]
_FLOWNET = {"patch_size": 21, "dilation_patch": 2}


def find_and_check_window_changes(model: torch.nn.Module, backend: str | None) -> list[Change]:
    """Return a change for every sampler found in the model.

    Raises:
        InputError: if one of them computes something else, or the backend cannot.
    """
    changes = []
    for path, module in model.named_modules():
        if type(module).__name__.endswith("SpatialCorrelationSampler") and "Translated" not in type(module).__name__:
            changes.append(_verify_and_build_sampler_change(path, module, backend))
        function = vars(module).get("corr")
        if getattr(function, "__name__", "") == "correlate":
            changes.append(_verify_and_build_flownet_change(path, module, function, backend))
    return changes


def _choose_and_check_window_backend(device: torch.device, backend: str | None) -> str | None:
    resolved = get_backend_or_cuda_on_nvidia(device, backend)
    if resolved is not None and resolved not in BACKENDS:
        raise InputError(f"backend: its windows run on {', '.join(BACKENDS)}, got {resolved!r}")
    return resolved


def _correlate_windows_in_promoted_dtype(fmap1: Tensor, fmap2: Tensor, backend: str | None, **window: Any) -> Tensor:
    """Correlate in the dtype of the original's product: both maps' promoted."""
    dtype = torch.promote_types(fmap1.dtype, fmap2.dtype)
    resolved = _choose_and_check_window_backend(fmap1.device, backend)
    return spatial_correlation(fmap1.to(dtype), fmap2.to(dtype), **window, backend=resolved)


def _get_window_arguments(sampler: Any) -> dict[str, Any]:
    return {
        attribute: getattr(sampler, attribute) for attribute in ("patch_size", "dilation_patch", "stride", "padding")
    }


def _verify_and_build_sampler_change(name: str, sampler: Any, backend: str | None) -> Change:
    kind = type(sampler)
    for attribute in ("kernel_size", "dilation"):
        if getattr(sampler, attribute) not in (1, (1, 1)):
            raise create_unrecognized_error(name, kind, _OPERATOR, f"its {attribute} is {getattr(sampler, attribute)}")
    _check_correlations_close(
        name, kind, lambda one, two: kind.forward(sampler, one, two), _get_window_arguments(sampler), backend
    )

    def forward(self: Any, input1: Tensor, input2: Tensor) -> Tensor:
        return _correlate_windows_in_promoted_dtype(input1, input2, backend, **_get_window_arguments(self))

    return Change.from_overrides(name, sampler, {"forward": forward}, BY)


def _verify_and_build_flownet_change(name: str, module: Any, function: Compared, backend: str | None) -> Change:
    def run_original(one: Tensor, two: Tensor) -> Tensor:
        return torch.unflatten(function(one, two), 1, (21, 21)) * one.shape[1]

    _check_correlations_close(name, type(module), run_original, _FLOWNET, backend)

    def correlate(input1: Tensor, input2: Tensor) -> Tensor:
        return _correlate_windows_in_promoted_dtype(input1, input2, backend, **_FLOWNET).flatten(1, 2) / input1.shape[1]

    # The function is an attribute of the object: a property of its class stands before that.
    replacement = Replacement(f"{name}.corr".lstrip("."), "correlate", BY)
    return Change(module, {"corr": property(lambda _: correlate)}, [replacement])


def _verify_and_build_cost_volume_function(
    name: str,
    original: Any,
    location: str,
    has_recognized_sibling: bool,  # noqa: ARG001
    backend: str | None,
) -> Any:
    def run_original(one: Tensor, two: Tensor) -> Tensor:
        products: Tensor = original(one, two, {"max_disp": 2}) * one.shape[1]
        return torch.unflatten(products, 1, (5, 5))

    _check_correlations_close(f"the {name} of {location}", None, run_original, {"patch_size": 5}, backend)

    def compute_cost_volume(feat1: Tensor, feat2: Tensor, param_dict: dict[str, int]) -> Tensor:
        side = 2 * param_dict["max_disp"] + 1
        return (
            _correlate_windows_in_promoted_dtype(feat1, feat2, backend, patch_size=side).flatten(1, 2) / feat1.shape[1]
        )

    return compute_cost_volume


def _check_correlations_close(
    subject: str,
    original_class: type | None,
    original_correlation: Compared,
    window: dict[str, Any],
    backend: str | None,
) -> None:
    _choose_and_check_window_backend(torch.device("cpu"), backend)

    def compute_original_and_own_result() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        one, two = torch.randn(2, 1, 4, 9, 11, generator=generator, dtype=torch.float32).unbind()
        return original_correlation(one, two), spatial_correlation(one, two, **window, backend="reference")

    check_results_close(subject, original_class, _OPERATOR, compute_original_and_own_result)


RECOGNIZERS: dict[str, Recognizer] = {"^compute_cost_volume$": _verify_and_build_cost_volume_function}
"""Recognizer of the name under which IRR-PWC's method reaches its function."""
