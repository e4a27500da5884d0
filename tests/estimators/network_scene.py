"""Pair of frames for networks as estimators."""

from __future__ import annotations

from collections.abc import Callable

from fullfield.estimators import NetworkEstimator
from fullfield.testing import sample_textured_scene

SCENE = sample_textured_scene(48, 64, seed=3)
PAIR = (SCENE.frame1[None], SCENE.frame2[None])
Made = Callable[..., NetworkEstimator]
