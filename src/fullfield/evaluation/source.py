"""What tells two versions of a method apart whose ``parameters`` say nothing."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from fullfield.estimators.protocol import WrappingEstimator

_DIGITS = 16


def source_of(method: Any) -> dict[str, str]:
    """The entry ``source`` of a run's configuration; nothing for a method that has parameters.

    The beginning of a checksum of the file in which the method's class is written. A class that was typed into an
    interpreter or a notebook has no file: the checksum is that of its functions.
    """
    while isinstance(method, WrappingEstimator):
        method = method.estimator
    if method.parameters:
        return {}
    kind = type(method)
    try:
        content = Path(inspect.getfile(kind)).read_bytes()
    except (TypeError, OSError):
        content = "\n".join(part for base in kind.__mro__ if base is not object for part in _functions(base)).encode()
    return {"source": hashlib.sha256(content).hexdigest()[:_DIGITS]}


def _functions(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        code = getattr(getattr(value, "fget", getattr(value, "__func__", value)), "__code__", None)
        if isinstance(code, CodeType):
            yield f"{name} {_instructions(code)}"


def _instructions(code: CodeType) -> str:
    """Bytes, names and constants; not where the code stands."""
    constants = [_constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(one: object) -> str:
    if isinstance(one, CodeType):
        return _instructions(one)
    return repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)  # sets have no order of their own
