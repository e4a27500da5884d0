"""Networks in the style of princeton's RAFT and SEA-RAFT: a method builds a block for every pair."""

from __future__ import annotations

import inspect
import re
from typing import Any

from fullfield._check import InputError
from fullfield.integrations.blocks import RAFTBlock, SEARAFTBlock, StoppingBlock, stops_here
from fullfield.integrations.forms import Form, form_of, try_block
from fullfield.integrations.methods import Recogniser

# Blocks that need a compiled extension and cannot be tried; they take the place of one that was.
_ALTERNATE = r"^(Alternate|OL)CorrBlock$"


def recognisers() -> dict[str, Recogniser]:
    """What to make of the names under which methods reach blocks. Those that can be tried come first."""
    return {r"^(?!Alternate|OL).*CorrBlock|^get_corr_block$": _recognise, _ALTERNATE: _recognise}


class Builder:
    """Called as the original class or function is; returns our block."""

    def __init__(self, original: Any, form: Form, stops: bool, on_demand: bool, backend: str | None) -> None:
        self._form = form
        self._stops = stops
        self._on_demand = on_demand
        self._backend = backend
        call = getattr(original, "__call__", None) if isinstance(original, type) else None  # noqa: B004 - its parameters
        self._dilated = "dilation" in inspect.signature(call).parameters if call is not None else False

    def __call__(self, *args: Any, **kwargs: Any) -> RAFTBlock | SEARAFTBlock | StoppingBlock:
        fmap1, fmap2, levels, radius, on_demand = self._form.bind(args, kwargs)
        if self._stops and stops_here(fmap2, levels, radius):
            return StoppingBlock(fmap1, fmap2, levels, radius, self._backend)
        if self._dilated:
            return SEARAFTBlock(fmap1, fmap2, levels, radius, self._backend)
        return RAFTBlock(fmap1, fmap2, levels, radius, self._backend, lean=self._on_demand or on_demand)

    def __str__(self) -> str:
        return "fullfield's " + (SEARAFTBlock if self._dilated else RAFTBlock).__name__


def _recognise(name: str, original: Any, where: str, accompanied: bool, backend: str | None) -> Builder:
    form = form_of(original)
    if isinstance(form, str):
        raise InputError(f"model: the {name} of {where} is not the all-pairs lookup: {form}")
    on_demand = re.search(_ALTERNATE, name) is not None
    if accompanied and on_demand:
        return Builder(original, form, False, on_demand, backend)
    stops = try_block(original, form)
    if isinstance(stops, str):
        raise InputError(f"model: the {name} of {where} is not the all-pairs lookup: {stops}")
    return Builder(original, form, stops, on_demand, backend)
