"""Public names of packages, loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def create_lazy_all_getattr_and_dir(
    package: str, names_by_module: Mapping[str, str], *own_names: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package that also imports the names for type checkers.

    Args:
        package: its ``__name__``.
        names_by_module: module inside the package to the public names taken from there, separated by spaces.
        own_names: public names that the package defines itself.
    """
    home = {name: f"{package}.{module}" for module, names in names_by_module.items() for name in names.split()}
    public = sorted({*home, *own_names})

    def load_name(name: str) -> object:
        if name not in home:
            from fullfield._check import format_did_you_mean_hint

            suggestion = "" if name.startswith("__") else format_did_you_mean_hint(name, public)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{suggestion}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return public, load_name, lambda: public
