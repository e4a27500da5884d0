"""Other people's correlation blocks: how they are called, whether they compute what ours does, what takes their place.

A block is recognised by the names of its parameters and then tried on a small pair: nothing is replaced that gives
other numbers, whatever version it comes from. Princeton's networks build one for every pair, in a method.
"""

from __future__ import annotations

import inspect
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.blocks import RAFTBlock, SEARAFTBlock, StoppingBlock, pyramid, stops_here
from fullfield.integrations.methods import Recogniser
from fullfield.ops.correlation import correlation_lookup

_TOLERANCE = 1e-4  # of the largest value; float32
# Output and warning filters belong to the process: were two threads to change them in turns, they would not come back.
_ALONE = threading.RLock()

ALL_PAIRS = "the all-pairs lookup"
_LEVELS = ("num_levels", "corr_levels", "levels")
_RADIUS = ("radius", "corr_radius", "corr_range")
# Chooses between blocks that all compute the same.
_IMPLEMENTATION = ("alternate_corr",)
# Height and width of the maps that blocks are tried on, with 3 levels of radius 2: the second is so small that some
# blocks stop pooling.
_TRIALS = ((24, 20), (8, 9))
Lookup: TypeAlias = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
"""Of fmap1, fmap2, coords, levels and radius."""
# Blocks that need a compiled extension and cannot be tried; they take the place of one that was.
_ALTERNATE = r"^(Alternate|OL)CorrBlock$"


@contextmanager
def quiet() -> Iterator[None]:
    """Drop output and warnings; one thread at a time."""
    said = io.StringIO()
    with _ALONE, warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):
        warnings.simplefilter("ignore")
        yield


def check(what: str, kind: type | None, known: str, trial: Callable[[], tuple[Tensor, Tensor]]) -> None:
    """Raise InputError unless ``what``, which should be ``known``, passes a trial."""
    why = differs(trial)
    if why is not None:
        raise refused(what, kind, known, why)


def differs(trial: Callable[[], tuple[Tensor, Tensor]]) -> str | None:
    """How their result of a trial differs from ours; None where it does not."""
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False), quiet():
        try:
            theirs, ours = trial()
        except Exception as error:  # noqa: BLE001 - foreign code, whatever it raises is the answer
            return f"it raised {type(error).__name__} ({error}) on a trial pair"
    if theirs.shape != ours.shape:
        return f"on a trial pair it returned {list(theirs.shape)}, ours {list(ours.shape)}"
    off = float((theirs - ours).abs().max() / ours.abs().max().clamp(min=1e-6))
    return None if off <= _TOLERANCE else f"on a trial pair its values are off by {off:.2g} of the largest"


def refused(what: str, kind: type | None, known: str, why: str) -> InputError:
    """``what`` is not ``known``, an operator of ours; ``kind`` is its class, where that helps to find it."""
    of = "" if kind is None else f" ({kind.__module__}.{kind.__qualname__})"
    return InputError(f"model: {what}{of} is not {known}: {why}")


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


def try_lookup(theirs: Lookup, levels: int = 3) -> bool | str:
    """As :func:`try_block`, for a function that makes a block and looks up in it."""
    rules = [False, True]
    for size in _TRIALS:
        for rule in tuple(rules):
            why = differs(partial(_trial, theirs, size, levels, rule))
            if why is not None:
                rules.remove(rule)
                if not rules:
                    return why
    return rules == [True]


def check_lookup(
    what: str, kind: type | None, theirs: Lookup, *, may_stop: bool = False, levels: int = 3, known: str = ALL_PAIRS
) -> bool:
    """What :func:`try_lookup` found. Raises InputError for another operator, or one that stops where it may not."""
    stops = try_lookup(theirs, levels)
    if isinstance(stops, str):
        raise refused(what, kind, known, stops)
    if stops and not may_stop:
        raise refused(what, kind, known, "it stops pooling where maps are small")
    return stops


def _trial(theirs: Lookup, size: tuple[int, int], levels: int, stops: bool) -> tuple[Tensor, Tensor]:
    fmap1, fmap2, coords = _pair(size)
    maps = pyramid(fmap2, levels, 2, stops)
    return theirs(fmap1, fmap2, coords, levels, 2), correlation_lookup(fmap1, maps, coords, 2, backend="reference")


def _pair(size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    height, width = size
    generator = torch.Generator().manual_seed(height)
    fmap1, fmap2 = torch.randn(2, 2, 8, height, width, generator=generator, dtype=torch.float32).unbind()
    spread = torch.tensor([width + 4.0, height + 4.0], dtype=torch.float32).view(1, 2, 1, 1)
    coords = torch.rand(2, 2, height, width, generator=generator, dtype=torch.float32) * spread - 2
    return fmap1, fmap2, coords


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
        raise refused(f"the {name} of {where}", None, ALL_PAIRS, form)
    on_demand = re.search(_ALTERNATE, name) is not None
    if accompanied and on_demand:
        return Builder(original, form, False, on_demand, backend)
    stops = try_block(original, form)
    if isinstance(stops, str):
        raise refused(f"the {name} of {where}", None, ALL_PAIRS, stops)
    return Builder(original, form, stops, on_demand, backend)


RECOGNISERS: dict[str, Recogniser] = {
    r"^(?!Alternate|OL).*CorrBlock|^get_corr_block$": _recognise,
    _ALTERNATE: _recognise,
}
"""What to make of the names under which methods reach blocks. Those that can be tried come first."""
