"""Reasons that lie in the machine."""

from __future__ import annotations


class Missing(str):
    """Why a kernel cannot run here whatever it is asked: something is not installed, or the GPU is too old."""

    __slots__ = ()
