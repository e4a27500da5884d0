"""What the operators' dispatches share: finding the module of a backend."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType


@cache
def backend_module(operator: str, name: str) -> ModuleType | None:
    """The module ``name`` of the package ``operator``, or None where this version has none.

    An import that fails inside the backend is not taken for its absence.
    """
    path = f"{operator}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name == path:
            return None
        raise
