"""Patched models: what was replaced, and how to restore it.

Patching gives the instance a subclass of its class that overrides only the methods which build or hold the correlation
block. The class itself, so other models in any thread, the attributes and the modules do not change.
"""

from __future__ import annotations

import copy
import copyreg
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import Any, Protocol

import torch

from fullfield._check import InputError

_MARK = "_fullfield_original"


@dataclass(frozen=True)
class Replacement:
    """Replaced block or function."""

    where: str
    """Method or attribute that used it."""
    description: str
    """Its name there."""
    by: str
    """Its replacement."""

    def __str__(self) -> str:
        return f"{self.description} in {self.where} by {self.by}"


@dataclass
class Change:
    """Change of one object."""

    target: Any
    overrides: dict[str, Any]
    replaced: list[Replacement]
    preserved: tuple[str, ...] = ()
    """Attributes that our methods assign; restoring brings their values back."""

    @classmethod
    def from_overrides(
        cls,
        location: str,
        target: Any,
        overrides: dict[str, Any],
        replacement_name: str,
        preserved: tuple[str, ...] = (),
    ) -> Change:
        """Return the change of a whole block, found at ``location``."""
        return cls(target, overrides, [Replacement(location, type(target).__qualname__, replacement_name)], preserved)


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

    >>> handle = fullfield.patch(model)  # a Handle  # doctest: +SKIP
    >>> handle.restore()  # doctest: +SKIP
    """

    def __init__(self, model: Any, changes: Sequence[Change], backend: str | None) -> None:
        self.model = model
        self.backend = backend
        self.replaced = tuple(replacement for change in changes for replacement in change.replaced)
        self._undo: list[tuple[Any, type, type, dict[str, Any]]] = []
        created: dict[type, type] = {}
        for change in changes:
            original = type(change.target)
            if original not in created:
                created[original] = _create_subclass(original, change.overrides)
            state = vars(change.target)
            values = {name: state[name] for name in change.preserved if name in state}
            self._undo.append((change.target, original, created[original], values))
        try:
            for target, _, patched, _ in self._undo:
                target.__class__ = patched
        except TypeError as error:
            self.restore()
            raise InputError(f"model: the class of {type(model).__name__} cannot be changed ({error})") from None

    @property
    def is_active(self) -> bool:
        """Return whether this handle patches the model now."""
        return bool(self._undo)

    def restore(self) -> None:
        """Restore the model; a second call does nothing.

        Raises:
            RuntimeError: if a part of the model got another class since (a parametrization, a sharding wrapper); undo
                that first. The other parts are restored.
        """
        preserved = []
        while self._undo:
            target, original, patched, values = self._undo.pop()
            if type(target) is patched:
                target.__class__ = original
                vars(target).update(values)
            elif issubclass(type(target), patched):
                preserved.append((target, original, patched, values))
        self._undo = preserved
        if preserved:
            changed = ", ".join(sorted({type(target).__name__ for target, *_ in preserved}))
            raise RuntimeError(f"the class of {changed} was changed after the patch; undo that, then restore() again")

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        state = "patched" if self.is_active else "restored"
        return f"<{type(self.model).__name__} {state}: {'; '.join(map(str, self.replaced))}>"


def is_patched(target: object) -> bool:
    """Return whether an object is patched."""
    return _MARK in vars(type(target))


def _create_subclass(original: type, overrides: dict[str, Any]) -> type:
    members = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        _MARK: original,
        **overrides,
    }
    if not hasattr(original, "__deepcopy__"):
        members["__deepcopy__"] = _deepcopy_with_patch
    if all(getattr(original, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
        members["__reduce_ex__"] = _reduce_to_unpatched_class
    return type(original)(original.__name__, (original,), members)


def _get_pickled_state(target: Any) -> dict[str, Any]:
    state = target.__getstate__() if hasattr(target, "__getstate__") else target.__dict__
    return dict(state)


def _set_pickled_state_and_return(target: Any, state: dict[str, Any]) -> Any:
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
    else:
        vars(target).update(state)
    return target


def _deepcopy_with_patch(self: Any, memo: dict[int, Any]) -> Any:
    """Return a copy, which is patched as its original is."""
    created = object.__new__(type(self))
    memo[id(self)] = created
    return _set_pickled_state_and_return(created, copy.deepcopy(_get_pickled_state(self), memo))


def _reduce_to_unpatched_class(self: Any, _: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Pickle the model unpatched: its reader may not have fullfield."""
    return copyreg._reconstructor, (vars(type(self))[_MARK], object, None), _get_pickled_state(self)  # type: ignore[attr-defined]


class Recognizer(Protocol):
    """Function that returns the replacement of an original, or raises InputError."""

    def __call__(
        self, name: str, original: Any, location: str, has_recognized_sibling: bool, backend: str | None
    ) -> Any:
        """Return the replacement.

        ``has_recognized_sibling`` is true if the same method reaches another block that was recognised.
        """


def find_and_check_method_changes(
    model: torch.nn.Module, recognizers: Mapping[str, Recognizer], backend: str | None
) -> list[Change]:
    """Return a change for every part whose methods reach a block by a name that one of the patterns matches.

    Raises:
        InputError: if one of them computes something else.
    """
    changes: list[Change] = []
    recognized: dict[int, Any] = {}
    for module in model.modules():
        overrides, replaced = _override_methods_and_list_replacements(type(module), recognizers, backend, recognized)
        hidden = next((name for name in overrides if name in vars(module)), None)
        if hidden is not None:
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            raise InputError(
                f"model: an attribute {hidden} of the object hides {kind}.{hidden} (was it compiled or wrapped?), so "
                f"that its {replaced[0].description} cannot be replaced; patch first"
            )
        if overrides:
            changes.append(Change(module, overrides, replaced))
    return changes


def _override_methods_and_list_replacements(
    module_class: type, recognizers: Mapping[str, Recognizer], backend: str | None, recognized_by_id_out: dict[int, Any]
) -> tuple[dict[str, FunctionType], list[Replacement]]:
    overrides: dict[str, FunctionType] = {}
    replaced: list[Replacement] = []
    for name, owner, function, hiding in _iterate_methods_with_owner_and_hider(module_class):
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            inner = function
        names = _find_recognized_global_names(inner, recognizers)
        if not names or (hiding is not None and "super" not in hiding.__code__.co_names):
            continue
        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        if inner is not function or hiding is not None:
            how = "decorated" if hiding is None else "called by a subclass's method of that name"
            raise InputError(f"model: {where} is {how}, so that its {names[0]} cannot be replaced")
        stand_ins = _build_or_reuse_replacements(inner, names, where, recognizers, backend, recognized_by_id_out)
        overrides[name] = _copy_function_with_replaced_globals(inner, stand_ins)
        replaced += [Replacement(where, description, str(by)) for description, by in stand_ins.items()]
    return overrides, replaced


def _iterate_methods_with_owner_and_hider(
    module_class: type,
) -> Iterator[tuple[str, type, FunctionType, FunctionType | None]]:
    """Yield (name, class, method, the method of a subclass that hides it) for all methods but PyTorch's."""
    first: dict[str, FunctionType] = {}
    for owner in module_class.__mro__:
        if owner.__module__.partition(".")[0] in ("torch", "lightning", "pytorch_lightning", "builtins"):
            continue
        for name, value in vars(owner).items():
            if name != "__init__" and isinstance(value, FunctionType):
                yield name, owner, value, first.get(name)
                first.setdefault(name, value)


def _find_recognized_global_names(function: FunctionType, recognizers: Mapping[str, Recognizer]) -> list[str]:
    """Return the names in its globals by which the function reaches blocks, in the order of the patterns."""

    def iterate_names(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from iterate_names(constant)

    names = dict.fromkeys(iterate_names(function.__code__))
    recognized = [n for pattern in recognizers for n in names if re.search(pattern, n)]
    return [n for n in dict.fromkeys(recognized) if n in function.__globals__]


def _build_or_reuse_replacements(
    function: FunctionType,
    names: list[str],
    location: str,
    recognizers: Mapping[str, Recognizer],
    backend: str | None,
    recognized_by_id_out: dict[int, Any],
) -> dict[str, Any]:
    stand_ins: dict[str, Any] = {}
    for name in names:
        original = function.__globals__[name]
        if id(original) not in recognized_by_id_out:
            recognize = next(r for pattern, r in recognizers.items() if re.search(pattern, name))
            recognized_by_id_out[id(original)] = recognize(name, original, location, bool(stand_ins), backend)
        stand_ins[name] = recognized_by_id_out[id(original)]
    return stand_ins


def _copy_function_with_replaced_globals(function: FunctionType, replacements: dict[str, Any]) -> FunctionType:
    """Return a copy of the function that reads ``replacements`` instead of its module's values of them."""
    scope = {**function.__globals__, **replacements}
    del scope["__name__"]  # torch.compile would find the module by it, and its values
    created = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    created.__kwdefaults__ = function.__kwdefaults__
    created.__qualname__ = function.__qualname__
    created.__module__ = function.__module__
    created.__doc__ = function.__doc__
    created.__dict__.update(function.__dict__)
    return created
