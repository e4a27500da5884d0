"""Errors that name files and options of the command line instead of arguments of functions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fullfield._check import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@contextmanager
def naming(**words: str) -> Iterator[None]:
    """Turn an InputError ``argument: ...`` inside into ``word: ...``, for every ``argument=word``."""
    try:
        yield
    except InputError as error:
        argument, colon, rest = str(error).partition(":")
        word = words.get(argument)
        if not word:
            raise
        raise type(error)(f"{word}{colon}{rest}") from error


def size(image: Tensor) -> str:
    """Return the size of ``[..., H, W]`` as text, width x height."""
    return f"{image.shape[-1]}x{image.shape[-2]}"


def same_size(first: Tensor, first_path: str, second: Tensor, second_path: str) -> None:
    """Check that both ``[..., H, W]`` have one size; the InputError names both files."""
    if first.shape[-2:] != second.shape[-2:]:
        raise InputError(
            f"{second_path}: is {size(second)}, but {first_path} is {size(first)}; they must have the same size"
        )
