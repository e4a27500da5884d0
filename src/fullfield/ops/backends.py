"""Choosing a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from fullfield._check import InputError, NoRoomError, choice
from fullfield._kernels.missing import Missing

_PACKAGE = str(Path(__file__).parents[1])
_warned: set[tuple[str, str]] = set()


class NoRoom(str):
    """A reason that more memory would take away."""

    __slots__ = ()


def usable(operator: str, name: str, reason: str | None) -> bool:
    """Whether there is no reason against a kernel. Warns once of one that lies in the machine: what follows is slow."""
    if isinstance(reason, Missing) and (operator, name) not in _warned:
        _warned.add((operator, name))
        words = f"{operator}: the {name} kernel is not used ({reason}); a slower backend runs instead"
        warnings.warn(words, stacklevel=_callers_level())
    return reason is None


def _callers_level() -> int:
    """Of the first function that is not ours, for a warning of the caller of this."""
    for level in count(1):
        try:
            if not sys._getframe(level + 1).f_code.co_filename.startswith(_PACKAGE):
                return level + 1
        except ValueError:  # the stack ends
            return level
    raise AssertionError


class Backends:
    """The backends of one operator, by preference.

    A backend is a module with ``supports(*request) -> str | None``: None where it can serve the request, else why it
    cannot, in a few words. It must not import what may be missing. Reasons that lie in the machine are
    :class:`Missing`: an automatic choice that passes over such a backend warns once.

    Args:
        operator: named in warnings.
        modules: what the modules' full names begin with, as ``"fullfield.ops.neighbors."``.
        names: by preference.
    """

    def __init__(self, operator: str, modules: str, names: Sequence[str]) -> None:
        self.operator, self.names = operator, tuple(names)
        self._modules = modules
        self._loaded: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """The backend's module."""
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = import_module(self._modules + name)
        return found

    def considers(self, name: str, *request: Any) -> bool:  # noqa: ARG002 - for those that leave some out
        """Whether an automatic choice may take the backend."""
        return True

    def why_not(self, name: str, *request: Any) -> str | None:
        """None where the backend can serve the request, else its reason."""
        reason: str | None = self.load(name).supports(*request)
        return reason

    def reasons(self, *request: Any) -> list[tuple[str, str | None]]:
        """Every backend's answer to the request."""
        return [(name, self.why_not(name, *request)) for name in self.names]

    def choose(self, backend: str | None, *request: Any) -> str:
        """The name of the backend that serves the request; None takes the best that can.

        Raises:
            InputError: if the one that is named cannot, or none can; the message gives every backend's reason.
                NoRoomError, which is one, if memory is all that the named one lacks.
        """
        if backend is not None:
            choice(backend, "backend", self.names)
            reason = self.why_not(backend, *request)
            if reason is None:
                return backend
            kind = NoRoomError if isinstance(reason, NoRoom) else InputError
            raise kind(f"backend: {backend!r} cannot serve this request ({self._told(*request)})")
        for name in self.names:
            if self.considers(name, *request) and usable(self.operator, name, self.why_not(name, *request)):
                return name
        raise InputError(f"backend: none can serve this request ({self._told(*request)})")

    def _told(self, *request: Any) -> str:
        return "; ".join(f"{name}: {reason or 'can'}" for name, reason in self.reasons(*request))
