"""Scenes that several tests use, rendered once per process: rendering one takes 20 to 40 ms."""

from __future__ import annotations

import functools

from fullfield.testing import sample_textured_scene
from fullfield.testing.scenes import Scene


@functools.cache
def known_scene(height: int, width: int, seed: int = 0, max_motion: float | None = None) -> Scene:
    """Return a cached :func:`fullfield.testing.sample_textured_scene`; tests must not write into its shared tensors."""
    return sample_textured_scene(height, width, seed=seed, max_motion=max_motion)
