"""Networks that compare a fixed window: their samplers, found wherever a part holds one, and FlowNetC's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.blocks import backend_for
from fullfield.integrations.handle import Change, Replacement
from fullfield.integrations.methods import Recogniser
from fullfield.integrations.quiet import quiet
from fullfield.ops.spatial_correlation import BACKENDS, spatial_correlation

BY = "fullfield's spatial_correlation"
_TOLERANCE = 1e-4  # of the largest value; float32
_FLOWNET = {"patch_size": 21, "dilation_patch": 2}


def find(model: torch.nn.Module, backend: str | None) -> list[Change]:
    """Every sampler of the model.

    Raises:
        InputError: if one of them computes something else, or the backend cannot.
    """
    found = []
    for path, part in model.named_modules():
        if type(part).__name__.endswith("SpatialCorrelationSampler") and "Translated" not in type(part).__name__:
            found.append(_sampler(path, part, backend))
        function = vars(part).get("corr")
        if getattr(function, "__name__", "") == "correlate":
            found.append(_flownet(path, part, function, backend))
    return found


def _place(device: torch.device, backend: str | None) -> str | None:
    place = backend_for(device, backend)
    if place is not None and place not in BACKENDS:
        raise InputError(f"backend: its windows run on {', '.join(BACKENDS)}, got {place!r}")
    return place


def _compared(fmap1: Tensor, fmap2: Tensor, backend: str | None, **window: Any) -> Tensor:
    """In the dtype that the original's product has: both maps' together."""
    dtype = torch.promote_types(fmap1.dtype, fmap2.dtype)
    place = _place(fmap1.device, backend)
    return spatial_correlation(fmap1.to(dtype), fmap2.to(dtype), **window, backend=place)


def _window(sampler: Any) -> dict[str, Any]:
    return {part: getattr(sampler, part) for part in ("patch_size", "dilation_patch", "stride", "padding")}


def _sampler(name: str, sampler: Any, backend: str | None) -> Change:
    kind = type(sampler)
    for part in ("kernel_size", "dilation"):
        if getattr(sampler, part) not in (1, (1, 1)):
            raise _refuse(name, kind, f"its {part} is {getattr(sampler, part)}")
    _place(torch.device("cpu"), backend)
    _try(name, kind, lambda one, two: kind.forward(sampler, one, two), _window(sampler))

    def forward(self: Any, input1: Tensor, input2: Tensor) -> Tensor:
        return _compared(input1, input2, backend, **_window(self))

    return Change(sampler, {"forward": forward}, [Replacement(name, kind.__qualname__, BY)])


def _flownet(name: str, part: Any, function: Callable[[Tensor, Tensor], Tensor], backend: str | None) -> Change:
    _place(torch.device("cpu"), backend)

    def theirs(one: Tensor, two: Tensor) -> Tensor:
        return torch.unflatten(function(one, two), 1, (21, 21)) * one.shape[1]

    _try(name, type(part), theirs, _FLOWNET)

    def correlate(input1: Tensor, input2: Tensor) -> Tensor:
        return _compared(input1, input2, backend, **_FLOWNET).flatten(1, 2) / input1.shape[1]

    # The function is an attribute of the object: a property of its class stands before that.
    made = Replacement(f"{name}.corr".lstrip("."), "correlate", BY)
    return Change(part, {"corr": property(lambda _: correlate)}, [made])


def recognisers() -> dict[str, Recogniser]:
    """What to make of the name under which IRR-PWC's method reaches its function."""
    return {"^compute_cost_volume$": _cost_volume}


def _cost_volume(name: str, original: Any, where: str, accompanied: bool, backend: str | None) -> Any:  # noqa: ARG001
    _place(torch.device("cpu"), backend)

    def theirs(one: Tensor, two: Tensor) -> Tensor:
        found: Tensor = original(one, two, {"max_disp": 2}) * one.shape[1]
        return torch.unflatten(found, 1, (5, 5))

    _try(f"the {name} of {where}", type(original), theirs, {"patch_size": 5})

    def compute_cost_volume(feat1: Tensor, feat2: Tensor, param_dict: dict[str, int]) -> Tensor:
        side = 2 * param_dict["max_disp"] + 1
        return _compared(feat1, feat2, backend, patch_size=side).flatten(1, 2) / feat1.shape[1]

    return compute_cost_volume


def _try(name: str, kind: type, theirs: Callable[[Tensor, Tensor], Tensor], window: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, 1, 4, 9, 11, generator=generator, dtype=torch.float32).unbind()
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False), quiet():
        ours = spatial_correlation(one, two, **window, backend="reference")
        try:
            found = theirs(one, two)
        except Exception as error:  # noqa: BLE001 - foreign code, whatever it raises is the answer
            raise _refuse(name, kind, f"it raised {type(error).__name__} ({error}) on a trial pair") from None
    if found.shape != ours.shape:
        raise _refuse(name, kind, f"on a trial pair it returned {list(found.shape)}, the window {list(ours.shape)}")
    off = float((found - ours).abs().max() / ours.abs().max())
    if not off <= _TOLERANCE:
        raise _refuse(name, kind, f"on a trial pair its values are off by {off:.2g} of the largest")


def _refuse(name: str, kind: type, differs: str) -> InputError:
    return InputError(f"model: {name} ({kind.__module__}.{kind.__qualname__}) is not the fixed window: {differs}")
