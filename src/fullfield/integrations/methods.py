"""Methods of one object with our block in their globals.

A method looks a block's name up in its globals. So a patched object gets copies of those methods, with separate globals
in which the names refer to ours. Their module, its ``corr.py`` and other objects of the class do not change.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from fullfield._check import InputError
from fullfield.integrations.handle import Change, Replacement


class Recogniser(Protocol):
    """Function that returns the replacement of an original, or raises InputError."""

    def __call__(self, name: str, original: Any, where: str, accompanied: bool, backend: str | None) -> Any:
        """Return the replacement; ``accompanied`` if the same method reaches another block that was recognised."""


def find(model: torch.nn.Module, recognisers: Mapping[str, Recogniser], backend: str | None) -> list[Change]:
    """Return a change for every part whose methods reach a block by a name that one of the patterns matches.

    Raises:
        InputError: if one of them computes something else.
    """
    found: list[Change] = []
    known: dict[int, Any] = {}
    for part in model.modules():
        overrides, replaced = _methods(type(part), recognisers, backend, known)
        hidden = next((name for name in overrides if name in vars(part)), None)
        if hidden is not None:
            kind = f"{type(part).__module__}.{type(part).__qualname__}"
            raise InputError(
                f"model: an attribute {hidden} of the object hides {kind}.{hidden} (was it compiled or wrapped?), so "
                f"that its {replaced[0].what} cannot be replaced; patch first"
            )
        if overrides:
            found.append(Change(part, overrides, replaced))
    return found


def _methods(
    kind: type, recognisers: Mapping[str, Recogniser], backend: str | None, known: dict[int, Any]
) -> tuple[dict[str, FunctionType], list[Replacement]]:
    overrides: dict[str, FunctionType] = {}
    replaced: list[Replacement] = []
    for name, owner, function, hiding in _functions(kind):
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            inner = function
        names = _names(inner, recognisers)
        if not names or (hiding is not None and "super" not in hiding.__code__.co_names):
            continue
        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        if inner is not function or hiding is not None:
            how = "decorated" if hiding is None else "called by a subclass's method of that name"
            raise InputError(f"model: {where} is {how}, so that its {names[0]} cannot be replaced")
        ours = _stand_ins(inner, names, where, recognisers, backend, known)
        overrides[name] = _with_globals(inner, ours)
        replaced += [Replacement(where, what, str(by)) for what, by in ours.items()]
    return overrides, replaced


def _functions(kind: type) -> Iterator[tuple[str, type, FunctionType, FunctionType | None]]:
    """Yield (name, class, method, the method of a subclass that hides it) for all methods but PyTorch's."""
    first: dict[str, FunctionType] = {}
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] in ("torch", "lightning", "pytorch_lightning", "builtins"):
            continue
        for name, value in vars(owner).items():
            if name != "__init__" and isinstance(value, FunctionType):
                yield name, owner, value, first.get(name)
                first.setdefault(name, value)


def _names(function: FunctionType, recognisers: Mapping[str, Recogniser]) -> list[str]:
    """Return the names in its globals by which the function reaches blocks, in the order of the patterns."""

    def used(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from used(constant)

    names = dict.fromkeys(used(function.__code__))
    known = [n for pattern in recognisers for n in names if re.search(pattern, n)]
    return [n for n in dict.fromkeys(known) if n in function.__globals__]


def _stand_ins(
    function: FunctionType,
    names: list[str],
    where: str,
    recognisers: Mapping[str, Recogniser],
    backend: str | None,
    known: dict[int, Any],
) -> dict[str, Any]:
    ours: dict[str, Any] = {}
    for name in names:
        original = function.__globals__[name]
        if id(original) not in known:
            recognise = next(r for pattern, r in recognisers.items() if re.search(pattern, name))
            known[id(original)] = recognise(name, original, where, bool(ours), backend)
        ours[name] = known[id(original)]
    return ours


def _with_globals(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return a copy of the function that reads ``names`` instead of its module's values of them."""
    scope = {**function.__globals__, **names}
    del scope["__name__"]  # torch.compile would find the module by it, and its values
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__doc__ = function.__doc__
    made.__dict__.update(function.__dict__)
    return made
