"""Check that a call refuses its arguments with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fullfield import InputError


def refuses(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Check that a call raises an InputError of one line that matches the expression ``message``; return the line."""
    with pytest.raises(InputError, match=message) as caught:
        call(*arguments, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line
