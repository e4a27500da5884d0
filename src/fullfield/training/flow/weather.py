"""Haze and darkness of synthetic pairs, which do not change the flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered.scene import COLOURS, LIGHT
from fullfield.training.flow.mesh_scene import SampledMeshes
from fullfield.training.flow.scene_draw import Floats
from fullfield.training.flow.scene_geometry import SceneGeometry

_HAZE_STREAM = 8  # of a scene's random numbers
_HAZE_NUMBERS = 9


def add_haze_and_darkness_inplace(
    pair_numbers: Sequence[int],
    geometry: SceneGeometry,
    paint: Floats,  # [B, L, PAINT]
    background: Floats,  # [B, 3]
    meshes: SampledMeshes | None,
    *,
    seed: int,
    style: SceneStyle,
) -> None:
    """Fade the surfaces of some scenes to one colour with their distance, and darken some scenes, in place."""
    streams = [np.random.Generator(np.random.SFC64([seed, number, _HAZE_STREAM])) for number in pair_numbers]
    uniform = np.stack([stream.random(_HAZE_NUMBERS) for stream in streams], 1)
    chance, thickness, start, brightness, *tint, dark_chance, darkness = uniform
    is_hazy = chance < style.haze
    attenuation = is_hazy * np.exp(math.log(0.3) + math.log(12.0) * thickness) / geometry.view_depth
    haze = (1.3 - 1.2 * brightness**1.5)[:, None] * (0.94 + 0.12 * np.stack(tint, -1))  # mostly bright, often white
    exposure = np.where(dark_chance < style.dark, 0.6 - 0.35 * darkness, 1.0)

    def compute_transmission(distance: Floats) -> Floats:
        transmission: Floats = np.exp(-attenuation[:, None] * (distance - 3 * start[:, None]).clip(min=0))[..., None]
        return transmission

    def fade_and_darken_inplace(color_terms: Floats, transmission: Floats) -> None:
        """Fade factors and offsets [..., 12] of the colours in both frames."""
        per_scene = [1] * (color_terms.ndim - 2)
        color_terms *= transmission
        for first in (3, 9):
            color_terms[..., first : first + 3] += (1 - transmission) * haze.reshape(-1, *per_scene, 3)
        color_terms *= exposure.reshape(-1, *per_scene, 1)

    transmission = compute_transmission(np.linalg.norm(geometry.centre, axis=-1))
    fade_and_darken_inplace(paint[..., COLOURS : COLOURS + 12], transmission)
    paint[..., LIGHT : LIGHT + 6] *= transmission
    background[is_hazy] = haze[is_hazy].clip(0, 1)
    background *= exposure[:, None]
    if meshes is not None:
        values: dict[str, Any] = meshes.values
        pose, colours, light = (values[name] for name in ("pose", "colours", "light"))
        transmission = compute_transmission(np.linalg.norm(pose[:, :, 0, :, 3], axis=-1))[..., None]
        fade_and_darken_inplace(colours[..., 1:], transmission)
        light *= transmission
        light[..., 0] += (1 - transmission)[..., 0]
