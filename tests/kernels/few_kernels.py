"""A module of kernels as an operator has one, but compiled in half a second: ``python few_kernels.py`` calls them."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from fullfield._kernels.numba_cache import (
    cache_compiled_code,
    compile_or_load_all_and_mark_warm,
    find_or_create_numba_cache_folder_or_none,
)

CACHE = find_or_create_numba_cache_folder_or_none(__file__)


def _jit(function):
    with cache_compiled_code(CACHE):
        return njit(nogil=True, error_model="numpy", cache=CACHE is not None)(function)


@_jit
def _squared(value):
    return value * value


@_jit
def squares(values, sums):
    for i in range(values.shape[0]):
        sums[i] += _squared(values[i])


@_jit
def halves(values):
    for i in range(values.shape[0]):
        values[i] *= 0.5


_flat = types.float32[::1]
ENTRY_POINTS = {"squares": (squares, (_flat, _flat)), "halves": (halves, (_flat,))}

if __name__ == "__main__":
    compile_or_load_all_and_mark_warm(ENTRY_POINTS, CACHE, "a few kernels")
    found = np.zeros(3, np.float32)
    squares(np.arange(3, dtype=np.float32), found)
    halves(found)
    print(found.tolist())  # noqa: T201
