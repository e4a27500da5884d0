"""Synthetic scenes for optical flow: moving cards and bodies in space before a camera."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield.training.flow.bodies import draw_bodies
from fullfield.training.flow.layered import LayeredScenes
from fullfield.training.flow.scene_draw import CARDS, LAYERS, Floats, SceneDraw, inverted
from fullfield.training.flow.scene_geometry import SceneGeometry
from fullfield.training.flow.scene_paint import exposed, filmed, painted
from fullfield.training.flow.scene_style import PRESETS as PRESETS
from fullfield.training.flow.scene_style import SceneStyle as SceneStyle


def draw_scenes(
    numbers: Sequence[int],
    size: tuple[int, int],
    *,
    seed: int,
    pictures: int,
    shapes: int,
    style: SceneStyle | None = None,
) -> LayeredScenes:
    """Draw the scenes of these numbers, on the CPU; a scene depends on its number and the arguments.

    Args:
        numbers: of the scenes, at least 0.
        size: (height, width) of the frames, pixels.
        seed: at least 0.
        pictures: number of the atlas's pictures.
        shapes: number of its silhouettes.
        style: by default ``SceneStyle()``.

    Raises:
        InputError: naming the argument that does not fit.
    """
    style = style or SceneStyle()
    for side in size:
        _check.number(side, "size", integer=True, low=8, high=1 << 15)
    _check.number(seed, "seed", integer=True, low=0)
    _check.number(pictures, "pictures", integer=True, low=1)
    _check.number(shapes, "shapes", integer=True, low=0)
    solid = style.bodies > 0
    draw = SceneDraw(seed, numbers, solids=solid)
    # Bars and figures have numbers of their own: what else is in a scene stays. (Stream 1: the blocks of JPEG.)
    extra = SceneDraw(seed, numbers, 2, solids=False) if style.thin or style.figures else None
    height, width = size
    unit = math.sqrt(height * width / (368 * 496))
    bodies = SceneGeometry(draw, extra, len(numbers), height, width, unit, style)
    solids = None
    if solid:
        solids = draw_bodies(numbers, size, bodies.focal, seed=seed, unit=unit, style=style)
        bodies.add(solids)
    paint, ids = painted(draw, bodies, pictures, shapes, unit, style)
    filming = solid or style.smooth or style.sheets or style.exposure
    further = SceneDraw(seed, numbers, 4, solids=solid) if filming else None
    gain = np.ones(len(numbers))
    if further is not None:
        gain = filmed(further, bodies, solids, paint, ids, unit, style)
    exposures, times = exposed(draw, len(numbers), style)
    fog = bodies.fog(draw, style)
    gamma = np.exp((2 * draw.scene() - 1) * math.log(style.gamma))
    noise = style.noise * draw.scene() ** 3 * (draw.scene() < 0.7)
    seeds = np.floor(draw.scene() * 2**31).astype(np.int32)
    floats = (exposures, fog, np.stack([gain, gamma, noise], 1))
    return _ordered(bodies, times, paint, ids, floats, seeds)


def _ordered(
    bodies: SceneGeometry,
    times: Floats,  # [B, 2, 1 + E]
    paint: Floats,
    ids: NDArray[np.int64],
    of_scenes: Sequence[Floats],
    seeds: NDArray[np.int32],
) -> LayeredScenes:
    """Return the layers that are on, nearest first."""
    first, second = np.moveaxis(bodies.matrices(), 1, 0)  # [B, L, 3, 3]
    # Between the frames cards go straight on, which is all that motion blur asks for.
    cards = slice(0, CARDS)
    onto = first[:, None, None, cards] + times[..., None, None, None] * (second - first)[:, None, None, cards]
    to_card = np.zeros((*times.shape, LAYERS, 3, 3))
    centres = np.zeros((*times.shape, LAYERS, 3))
    to_frame = np.zeros((len(times), LAYERS, 3, 4))
    to_card[..., cards, :, :], to_frame[:, cards, :, :3] = inverted(onto), second[:, cards]
    if bodies.solids is not None:
        part = slice(CARDS, LAYERS)
        to_card[..., part, :, :], centres[..., part, :], to_frame[:, part] = bodies.ellipsoids(bodies.solids, times)
    counts = bodies.on.sum(1)
    order = np.argsort(np.where(bodies.on, bodies.depth, np.inf), axis=1, kind="stable")[:, : counts.max()]
    scenes = np.arange(len(order))[:, None]
    chosen = (np.moveaxis(values, 3, 1)[scenes, order] for values in (to_card, centres))  # [B, L, 2, 1 + E, ...]
    floats = (
        *(np.moveaxis(values, 1, 3) for values in chosen),
        to_frame[scenes, order],
        paint[scenes, order],
        *of_scenes,
    )
    cards_, middles, frames, colours, exposures, fog, sensor = (
        torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)) for value in floats
    )
    which, there = (torch.from_numpy(value.astype(np.int32)) for value in (ids[scenes, order], counts))
    return LayeredScenes(
        cards_, middles, frames, colours, which, there, exposures, fog, sensor, torch.from_numpy(seeds)
    )
