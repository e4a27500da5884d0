"""Patched models: what was replaced, and how to restore it.

Patching gives the instance a subclass of its class that overrides only the methods which build or hold the correlation
block. The class itself, so other models in any thread, the attributes and the modules do not change.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fullfield._check import InputError

_MARK = "_fullfield_original"


@dataclass(frozen=True)
class Replacement:
    """Replaced block or function."""

    where: str
    """Method or attribute that used it."""
    what: str
    """Its name there."""
    by: str
    """Its replacement."""

    def __str__(self) -> str:
        return f"{self.what} in {self.where} by {self.by}"


@dataclass
class Change:
    """Change of one object."""

    target: Any
    overrides: dict[str, Any]
    replaced: list[Replacement]
    kept: tuple[str, ...] = ()
    """Attributes that our methods assign; restoring brings their values back."""

    @classmethod
    def of(cls, where: str, target: Any, overrides: dict[str, Any], by: str, kept: tuple[str, ...] = ()) -> Change:
        """Return the change of a whole block, found at ``where``."""
        return cls(target, overrides, [Replacement(where, type(target).__qualname__, by)], kept)


class Handle:
    """Handle that restores a patched model; also a context manager that restores on leaving.

    ::

        with fullfield.patch(model) as handle:
            flow = model(inputs)      # handle.replaced lists what runs on our operators
        # the model is restored

    Attributes:
        model: the model.
        replaced: one :class:`Replacement` for every replaced block or function.
        backend: as given to :func:`fullfield.patch`.
    """

    def __init__(self, model: Any, changes: Sequence[Change], backend: str | None) -> None:
        self.model = model
        self.backend = backend
        self.replaced = tuple(replacement for change in changes for replacement in change.replaced)
        self._undo: list[tuple[Any, type, type, dict[str, Any]]] = []
        made: dict[type, type] = {}
        for change in changes:
            original = type(change.target)
            if original not in made:
                made[original] = _subclass(original, change.overrides)
            state = vars(change.target)
            values = {name: state[name] for name in change.kept if name in state}
            self._undo.append((change.target, original, made[original], values))
        try:
            for target, _, patched, _ in self._undo:
                target.__class__ = patched
        except TypeError as error:
            self.restore()
            raise InputError(f"model: the class of {type(model).__name__} cannot be changed ({error})") from None

    @property
    def active(self) -> bool:
        """Return whether this handle patches the model now."""
        return bool(self._undo)

    def restore(self) -> None:
        """Restore the model; a second call does nothing.

        Raises:
            RuntimeError: if a part of the model got another class since (a parametrization, a sharding wrapper); undo
                that first. The other parts are restored.
        """
        kept = []
        while self._undo:
            target, original, patched, values = self._undo.pop()
            if type(target) is patched:
                target.__class__ = original
                vars(target).update(values)
            elif issubclass(type(target), patched):
                kept.append((target, original, patched, values))
        self._undo = kept
        if kept:
            changed = ", ".join(sorted({type(target).__name__ for target, *_ in kept}))
            raise RuntimeError(f"the class of {changed} was changed after the patch; undo that, then restore() again")

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        state = "patched" if self.active else "restored"
        return f"<{type(self.model).__name__} {state}: {'; '.join(map(str, self.replaced))}>"


def is_patched(target: object) -> bool:
    """Return whether an object is patched."""
    return _MARK in vars(type(target))


def _subclass(original: type, overrides: dict[str, Any]) -> type:
    members = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        _MARK: original,
        **overrides,
    }
    if not hasattr(original, "__deepcopy__"):
        members["__deepcopy__"] = _deepcopy
    if all(getattr(original, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
        members["__reduce_ex__"] = _reduce
    return type(original)(original.__name__, (original,), members)


def _state(target: Any) -> dict[str, Any]:
    state = target.__getstate__() if hasattr(target, "__getstate__") else target.__dict__
    return dict(state)


def _fill(target: Any, state: dict[str, Any]) -> Any:
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
    else:
        vars(target).update(state)
    return target


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """Return a copy, which is patched as its original is."""
    made = object.__new__(type(self))
    memo[id(self)] = made
    return _fill(made, copy.deepcopy(_state(self), memo))


def _reduce(self: Any, _: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Pickle the model unpatched: its reader may not have fullfield."""
    return copyreg._reconstructor, (vars(type(self))[_MARK], object, None), _state(self)  # type: ignore[attr-defined]
