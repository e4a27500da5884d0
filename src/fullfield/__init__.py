"""Dense correspondence at full resolution.

Names are loaded on first use, so that ``import fullfield`` (and ``fullfield --help``) stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fullfield._check import InputError as InputError
    from fullfield.estimators import Flow as Flow
    from fullfield.estimators import estimate as estimate
    from fullfield.integrations import patch as patch
    from fullfield.sequences import estimate_sequence as estimate_sequence

_HOME = {
    "Flow": "fullfield.estimators",
    "InputError": "fullfield._check",
    "estimate": "fullfield.estimators",
    "estimate_sequence": "fullfield.sequences",
    "patch": "fullfield.integrations",
}

__all__ = ["Flow", "InputError", "__version__", "estimate", "estimate_sequence", "patch"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
