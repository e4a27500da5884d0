"""Packages of the extra ``register``, which are imported where they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fullfield._check import SetupError
from fullfield._install import build_install_command

_NAMES = {"small_gicp": "small_gicp", "scipy": "SciPy"}


def check_packages_installed() -> None:
    """Raise SetupError naming a package that is missing; none is imported, for SciPy takes a third of a second."""
    for package in _NAMES:
        if find_spec(package) is None:
            raise _build_missing_package_error(package, "registration needs", f"No module named '{package}'")


def import_module_of_extra(module: str, error_prefix: str = "registration needs") -> Any:
    """Return a module; SetupError, whose text begins with ``error_prefix``, where its package is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise _build_missing_package_error(module.partition(".")[0], error_prefix, str(error)) from None


def _build_missing_package_error(package: str, error_prefix: str, reason: str) -> SetupError:
    return SetupError(f"{error_prefix} {_NAMES[package]} ({reason}); {build_install_command('register')}")
