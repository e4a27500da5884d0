"""Compilation, caches, launches and threads of kernels."""

from __future__ import annotations


class Missing(str):
    """Reason why a kernel cannot run on this machine for any request: a missing package, or a GPU that is too old."""

    __slots__ = ()
