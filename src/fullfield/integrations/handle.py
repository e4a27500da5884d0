"""What a patch has replaced, and the way back.

An object is patched by giving it a class of its own: a subclass of its class in which the methods that build or hold
the correlation block are ours. Nothing else changes: not its class, so that other models are left alone, in this thread
and others; not its attributes; not the modules it comes from.
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
    """One thing that a patch has replaced."""

    where: str
    """The method or attribute that used it."""
    what: str
    """Its name there."""
    by: str
    """What stands there now."""

    def __str__(self) -> str:
        return f"{self.what} in {self.where} by {self.by}"


@dataclass
class Change:
    """What is to become of one object."""

    target: Any
    overrides: dict[str, Any]
    replaced: list[Replacement]
    kept: tuple[str, ...] = ()
    """Attributes that our methods assign; their values come back with the original class."""

    @classmethod
    def of(cls, where: str, target: Any, overrides: dict[str, Any], by: str, kept: tuple[str, ...] = ()) -> Change:
        """Of a whole block, which stands at ``where``."""
        return cls(target, overrides, [Replacement(where, type(target).__qualname__, by)], kept)


class Handle:
    """A patched model's way back; also a context manager that restores on leaving.

    ::

        with fullfield.patch(model) as handle:
            flow = model(inputs)      # handle.replaced says what runs differently
        # model is as it was

    Attributes:
        model: the model.
        replaced: one :class:`Replacement` for every thing that was replaced.
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
        """Whether the model is patched by this handle now."""
        return bool(self._undo)

    def restore(self) -> None:
        """Give the model back as it was; a second call does nothing.

        Raises:
            RuntimeError: if something has given a part of the model another class since (a parametrization, a sharding
                wrapper); that is to be undone first. The other parts are given back.
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
    """A copy is patched as its original is."""
    made = object.__new__(type(self))
    memo[id(self)] = made
    return _fill(made, copy.deepcopy(_state(self), memo))


def _reduce(self: Any, _: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A pickle holds the model unpatched: what reads it may not have fullfield."""
    return copyreg._reconstructor, (vars(type(self))[_MARK], object, None), _state(self)  # type: ignore[attr-defined]
