"""The check that every test of a refusal makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fullfield import InputError


def refuses(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Check that a call raises an InputError of one line in which ``message``, an expression, is found; return it."""
    with pytest.raises(InputError, match=message) as caught:
        call(*arguments, **options)
    said = str(caught.value)
    assert "\n" not in said
    return said
