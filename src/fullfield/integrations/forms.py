"""Other people's correlation blocks: how they are called, and whether they compute what ours does.

A block is recognised by the names of its parameters and then tried on a small pair: nothing is replaced that does not
give the lookup's numbers, whatever version it comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.quiet import quiet
from fullfield.ops.correlation import correlation_lookup

_LEVELS = ("num_levels", "corr_levels", "levels")
_RADIUS = ("radius", "corr_radius", "corr_range")
# Chooses between blocks that all compute the same.
_IMPLEMENTATION = ("alternate_corr",)
# Height and width of the maps that blocks are tried on, with 3 levels of radius 2: the second is so small that some
# blocks stop pooling.
_TRIALS = ((24, 20), (8, 9))
_TOLERANCE = 1e-4  # of the largest value; float32


class Pair(NamedTuple):
    """What a block is asked for."""

    fmap1: Tensor
    fmap2: Tensor
    levels: int
    radius: int
    on_demand: bool
    """Whether by an argument that chooses the implementation without a volume."""


@dataclass(frozen=True)
class Form:
    """The parameters of a block's constructor, or of a function that returns one."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    levels: str | None
    radius: str | None
    arguments: str | None
    """Holds ``corr_levels`` and ``corr_radius`` (SEA-RAFT's ``args``) where the two are no parameters."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        """What a call asks for."""
        given = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        if (
            len(args) > len(self.names)
            or len(given) != len(self.names)
            or any(name not in given for name in self.names)
        ):
            raise TypeError(f"expected the arguments {', '.join(self.names)}, got {len(args)} and {sorted(kwargs)}")
        for name, default in self.defaults.items():
            if name not in (self.levels, self.radius, *_IMPLEMENTATION) and given[name] != default:
                raise InputError(f"{name}: expected {default!r}, which is what the patch computes, got {given[name]!r}")
        fmap1, fmap2 = given[self.names[0]], given[self.names[1]]
        on_demand = any(bool(given.get(name)) for name in _IMPLEMENTATION)
        if self.arguments is not None:
            holder = given[self.arguments]
            return Pair(fmap1, fmap2, holder.corr_levels, holder.corr_radius, on_demand)
        return Pair(fmap1, fmap2, given[self.levels or ""], given[self.radius or ""], on_demand)


def form_of(block: Callable[..., Any]) -> Form | str:
    """The form, or why it is none we know."""
    parameters = list(inspect.signature(block).parameters.values())
    names = tuple(p.name for p in parameters)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    listed = f"its parameters are ({', '.join(names)})"
    if len(names) < 3 or any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return listed
    levels = next((n for n in names if n in _LEVELS), None)
    radius = next((n for n in names if n in _RADIUS), None)
    arguments = "args" if "args" in names and levels is None and radius is None else None
    if arguments is None and (levels is None or radius is None):
        return listed
    rest = [n for n in names[2:] if n not in (levels, radius, arguments) and n not in defaults]
    return listed if rest else Form(names, defaults, levels, radius, arguments)


def try_block(block: Callable[..., Any], form: Form) -> bool | str:
    """Whether the block stops pooling once a map's shorter side is at most the window's; or how it differs."""

    def theirs(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        given: dict[str, Any] = {form.names[0]: fmap1, form.names[1]: fmap2}
        if form.arguments is not None:
            given[form.arguments] = SimpleNamespace(corr_levels=levels, corr_radius=radius)
        else:
            given.update({form.levels or "": levels, form.radius or "": radius})
        found: Tensor = block(**given)(coords)
        return found

    return try_lookup(theirs)


def try_lookup(theirs: Callable[[Tensor, Tensor, Tensor, int, int], Tensor], levels: int = 3) -> bool | str:
    """As :func:`try_block`, for a function of (fmap1, fmap2, coords, levels, radius)."""
    rules = {False, True}
    worst = ""
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False), quiet():
        for size in _TRIALS:
            fmap1, fmap2, coords = _pair(size)
            try:
                found = theirs(fmap1, fmap2, coords, levels, 2)
            except Exception as error:  # noqa: BLE001 - foreign code, whatever it raises is the answer
                return f"it raised {type(error).__name__} ({error}) on a trial pair"
            for rule in tuple(rules):
                maps = pyramid(fmap2, levels, 2, rule)
                ours = correlation_lookup(fmap1, maps, coords, 2, backend="reference")
                if found.shape != ours.shape:
                    return f"on a trial pair it returned {list(found.shape)}, the lookup {list(ours.shape)}"
                off = float((found - ours).abs().max() / ours.abs().max())
                if not off <= _TOLERANCE:
                    rules.discard(rule)
                    worst = f"on a trial pair its values are off by {off:.2g} of the largest"
            if not rules:
                return worst
    return rules == {True}


def pyramid(fmap2: Tensor, levels: int, radius: int, stops: bool) -> list[Tensor]:
    """``fmap2`` and its halvings; with ``stops``, a map whose shorter side is at most the window's stays as it is."""
    maps = [fmap2]
    for _ in range(levels - 1):
        last = maps[-1]
        keep = stops and min(last.shape[-2:]) <= 2 * radius + 1
        maps.append(last if keep else torch.nn.functional.avg_pool2d(last, 2))
    return maps


def _pair(size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    height, width = size
    generator = torch.Generator().manual_seed(height)
    fmap1, fmap2 = torch.randn(2, 2, 8, height, width, generator=generator, dtype=torch.float32).unbind()
    spread = torch.tensor([width + 4.0, height + 4.0], dtype=torch.float32).view(1, 2, 1, 1)
    coords = torch.rand(2, 2, height, width, generator=generator, dtype=torch.float32) * spread - 2
    return fmap1, fmap2, coords
