"""Choice of a backend by its name, or of the best one that can serve the request."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from fullfield._check import InputError, NotEnoughMemoryError, SetupError, check_choice
from fullfield._kernels import Missing

_PACKAGE = str(Path(__file__).parents[1])
_warned: set[tuple[str, str]] = set()


class InsufficientMemory(str):
    """Reason that more free memory would remove."""

    __slots__ = ()


def is_usable_or_warn_missing(operator: str, backend: str, refusal: str | None) -> bool:
    """Return True if ``refusal`` is None; warn once if the machine misses something, because a slower backend runs."""
    if isinstance(refusal, Missing) and (operator, backend) not in _warned:
        _warned.add((operator, backend))
        words = f"{operator}: the {backend} kernel is not used ({refusal}); a slower backend runs instead"
        warnings.warn(words, stacklevel=_find_stack_level_outside_package())
    return refusal is None


def _find_stack_level_outside_package() -> int:
    """Return the stack level of the first function outside fullfield, for a warning of the caller of this function."""
    for level in count(1):
        try:
            if not sys._getframe(level + 1).f_code.co_filename.startswith(_PACKAGE):
                return level + 1
        except ValueError:  # the stack ends
            return level
    raise AssertionError


class Backends:
    """Backends of one operator, by preference.

    A backend is a module with ``explain_unsupported(*request) -> str | None``: None if the backend can serve the
    request, else the reason in a few words. The module must not import packages that may be missing. A reason that
    the machine misses something is a :class:`Missing`: an automatic choice that skips such a backend warns once.

    Args:
        operator: name of the operator in warnings.
        modules: prefix of the modules' full names, such as ``"fullfield.ops.neighbors."``.
        names: names of the backends, the preferred one first.
    """

    def __init__(self, operator: str, modules: str, names: Sequence[str]) -> None:
        self.operator, self.names = operator, tuple(names)
        self._modules = modules
        self._loaded: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """Return the backend's module."""
        module = self._loaded.get(name)
        if module is None:
            module = self._loaded[name] = import_module(self._modules + name)
        return module

    def may_choose_automatically(self, name: str, *request: Any) -> bool:  # noqa: ARG002 - subclasses decide by it
        """Return whether an automatic choice may take the backend."""
        return True

    def explain_refusal(self, name: str, *request: Any) -> str | None:
        """Return None if the backend can serve the request, else the reason."""
        reason: str | None = self.load(name).explain_unsupported(*request)
        return reason

    def list_refusals(self, *request: Any) -> list[tuple[str, str | None]]:
        """Return every backend with its reason against the request, or None."""
        return [(name, self.explain_refusal(name, *request)) for name in self.names]

    def choose(self, backend: str | None, *request: Any) -> str:
        """Return the name of the backend that serves the request; with ``backend`` None the best one that can.

        Raises:
            InputError: if the named backend cannot serve it, or none can; the message gives every backend's reason.
                It is a SetupError if the machine misses something, a NotEnoughMemoryError if it only misses memory.
        """
        if backend is not None:
            check_choice(backend, "backend", self.names)
            reason = self.explain_refusal(backend, *request)
            if reason is None:
                return backend
            error = f"backend: {backend!r} cannot serve this request ({self._format_refusals(*request)})"
            if isinstance(reason, InsufficientMemory):
                raise NotEnoughMemoryError(error)
            raise SetupError(error) if isinstance(reason, Missing) else InputError(error)
        for name in self.names:
            if self.may_choose_automatically(name, *request) and is_usable_or_warn_missing(
                self.operator, name, self.explain_refusal(name, *request)
            ):
                return name
        error = f"backend: none can serve this request ({self._format_refusals(*request)})"
        misses_something = any(isinstance(reason, Missing) for _, reason in self.list_refusals(*request))
        raise SetupError(error) if misses_something else InputError(error)

    def _format_refusals(self, *request: Any) -> str:
        return "; ".join(f"{name}: {reason or 'can'}" for name, reason in self.list_refusals(*request))
