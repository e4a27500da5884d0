"""Appearance of a synthetic scene's layers: textures, colours, light, fog, exposure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.bodies import Bodies
from fullfield.training.flow.layered import INFINITE, SQUARE
from fullfield.training.flow.layered.scene import (
    BIAS,
    COLOURS,
    DEPTH_TEXTURE,
    FOG_SHEET,
    GHOST,
    LIGHT,
    OPACITY,
    PAINT,
    SOFTNESS,
    TEXTURE,
)
from fullfield.training.flow.scene_draw import (
    BODIES,
    BODY,
    CARDS,
    FIRST_FACE,
    FIRST_GHOST,
    GHOSTS,
    GROUND,
    LAYERS,
    OBJECTS,
    PARTS,
    Floats,
    SceneDraw,
    multiplied,
    rotation,
)
from fullfield.training.flow.scene_geometry import SceneGeometry
from fullfield.training.flow.scene_style import SceneStyle

_SAMPLES = np.array([(-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375)])


def painted(
    draw: SceneDraw, bodies: SceneGeometry, pictures: int, shapes: int, unit: float, style: SceneStyle
) -> tuple[Floats, NDArray[np.int64]]:
    """Return paint [B, L, PAINT] and ids [B, L, 2] of all layers, see :class:`LayeredScenes`."""
    batch = len(bodies.kind)
    paint = np.zeros((batch, LAYERS, PAINT))
    ids = np.stack([np.floor(draw.layer() * pictures), np.floor(draw.layer() * max(shapes, 1))], -1).astype(np.int64)
    silhouette = bodies.shape == 0
    ids[..., 1] = np.where(silhouette, ids[..., 1] if shapes else SQUARE, bodies.shape)
    alike, limbs = bodies.alike, slice(BODY + 1, OBJECTS)
    ids[alike, limbs, 0] = ids[alike, BODY, 0][:, None]
    # Texture: so many texels for a pixel where the card is looked at, turned as the card or as it likes.
    depth = np.linalg.norm(bodies.centre, axis=-1).clip(min=1.0)
    per_pixel = np.exp(draw.normal(0.45))
    texels = [
        np.linalg.norm(axis, axis=-1) * bodies.focal[:, None] / depth * per_pixel / min(max(unit, 0.5), 2.0)
        for axis in (bodies.along, bodies.across)
    ]
    angle = draw.layer(0, 2 * np.pi)
    angle = np.where(draw.layer() < 0.5, np.round(angle / (np.pi / 2)) * (np.pi / 2), angle)
    cosine, sine = np.cos(angle), np.sin(angle)
    affine = (cosine * texels[0], -sine * texels[1], draw.layer(0, 1024), sine * texels[0], cosine * texels[1])
    for number, value in enumerate((*affine, draw.layer(0, 1024))):
        paint[..., TEXTURE + number] = value
    # Waves: the slope stays under what would fold the surface.
    bends = draw.layer() < style.waves
    bends[:, FIRST_FACE:GROUND] = False
    bends[:, GROUND:FIRST_GHOST] &= draw.layer()[:, GROUND:FIRST_GHOST] < 0.3
    for first in (0, 5):
        length = unit * np.exp(draw.layer(math.log(50), math.log(400)))
        heading, phase, aim = (draw.layer(0, 2 * np.pi) for _ in range(3))
        high = np.minimum(unit * 6 * draw.layer() ** 2, 0.15 * length / (2 * np.pi)) * bends
        values = (high * np.cos(aim), high * np.sin(aim), np.cos(heading), np.sin(heading))
        for number, value in enumerate(values):
            paint[..., first + number] = value * (2 * np.pi / length if number >= 2 else 1)
        paint[..., first + 4] = phase
    # Out of focus: edges and textures.
    soft = np.where(draw.layer() < 0.12, draw.layer(1, 5) * unit, 1.0)
    paint[..., SOFTNESS] = soft
    paint[..., BIAS] = np.log2(soft)
    paint[..., OPACITY] = 1
    # Colours: contrast, brightness and tint, and light that changes from frame to frame.
    contrast = np.where(draw.layer() < style.plain, draw.layer(0.02, 0.4), draw.layer(0.6, 1.3))
    middle = draw.layer(0.2, 0.8)
    changes = (draw.scene() < 0.3)[:, None]
    light = 1 + np.clip(draw.normal(0.08), -0.3, 0.3) * changes
    tints = np.stack([draw.layer(0.8, 1.2), draw.layer(0.8, 1.2), draw.layer(0.8, 1.2)], -1)
    ghost = slice(FIRST_GHOST, CARDS)
    paint[:, ghost, GHOST] = 1
    paint[:, ghost, OPACITY] = draw.layer(0.1, 0.6)[:, ghost]
    paint[:, ghost, SOFTNESS] = 30 * unit
    dark = draw.layer()[:, ghost] < 0.6
    contrast[:, ghost] = np.where(dark, 0, contrast[:, ghost])
    middle[:, ghost] = np.where(dark, 0, middle[:, ghost])
    for frame, gain in enumerate((np.ones_like(light), light)):
        factor = (contrast * gain)[..., None] * tints
        offset = (middle * gain)[..., None] * tints - 0.5 * factor
        paint[..., COLOURS + 6 * frame : COLOURS + 6 * frame + 3] = factor
        paint[..., COLOURS + 6 * frame + 3 : COLOURS + 6 * frame + 6] = offset
    paint[alike, limbs, COLOURS:] = paint[alike, BODY, None, COLOURS:]
    return paint, ids


def exposed(draw: SceneDraw, batch: int, style: SceneStyle) -> tuple[Floats, Floats]:
    """Return the renderer's exposures [B, 2, E, 3], and the times [B, 2, 1 + E] of its matrices."""
    count = style.instants
    samples = (
        _SAMPLES
        if count == 4
        else np.stack(
            [(np.arange(count) * 0.6180339887 + 0.5) % 1 - 0.5, (np.arange(count) * 0.7548776662 + 0.5) % 1 - 0.5], -1
        )
    )
    shutter = np.where(draw.scene() < style.blur, draw.scene(0.05, 0.9), 0.0)
    offsets = (np.arange(count) + 0.5) / count - 0.5
    times = np.zeros((batch, 2, 1 + count))
    times[:, :, 1:] = shutter[:, None, None] * offsets
    times[:, 1] += 1
    exposures = np.empty((batch, 2, count, 3))
    exposures[..., 0] = 1 - times[:, :, 1:]
    exposures[..., 1:] = samples
    exposures[..., 0] = np.where(np.abs(exposures[..., 0]) < 1e-9, 0, exposures[..., 0])
    return exposures, times


def filmed(
    draw: SceneDraw,
    bodies: SceneGeometry,
    solids: Bodies | None,
    paint: Floats,
    ids: NDArray[np.int64],
    unit: float,
    style: SceneStyle,
) -> Floats:
    """Paint bodies, smooth surfaces and sheets of fog; return the gain of every scene's exposure."""
    objects = slice(0, OBJECTS)
    smooth = draw.layer() < style.smooth
    levels, contrast = draw.layer(1.0, 4.5), draw.layer(0.1, 0.6)
    paint[:, objects, BIAS] += np.where(smooth, levels, 0)[:, objects]
    faint = smooth & (draw.layer() < 0.6)
    strength, light = draw.layer(0.0, 0.7), np.stack([draw.layer(-1, 1), draw.layer(-1.5, 0.5), draw.layer(-1, 1)], -1)
    if solids is not None:
        part = slice(CARDS, LAYERS)
        core = CARDS + np.repeat(np.arange(BODIES) * PARTS, PARTS)
        paint[:, part, BIAS] = np.log2(paint[:, part, SOFTNESS]) + solids.smooth
        faint[:, part] = (solids.smooth > 0) & (draw.layer()[:, part][:, core - CARDS] < 0.6)
        for chosen in (paint[..., COLOURS : COLOURS + 12], ids[..., :1]):
            chosen[:, part] = np.where(solids.alike[..., None], chosen[:, core], chosen[:, part])
        radius = np.linalg.norm(solids.shape[:, :, 0], axis=(-2, -1)) / math.sqrt(3)
        texels = radius * bodies.focal[:, None] / bodies.depth[:, part] * np.exp(draw.normal(0.45))[:, part]
        texels /= min(max(unit, 0.5), 2.0)
        axes = rotation(np.stack([draw.normal(1.5) for _ in range(3)], -1))[:, part] * texels[..., None, None]
        paint[:, part, TEXTURE : TEXTURE + 2], paint[:, part, DEPTH_TEXTURE] = axes[..., 0, :2], axes[..., 0, 2]
        paint[:, part, TEXTURE + 3 : TEXTURE + 5], paint[:, part, DEPTH_TEXTURE + 1] = axes[..., 1, :2], axes[..., 1, 2]
        towards = light[:, [0]] + 0.3 * light[:, part]
        for frame in (0, 1):
            lit = multiplied(np.swapaxes(solids.shape[:, :, frame], -1, -2), towards + 0.2 * frame * light[:, [1]])
            lit /= np.maximum(np.linalg.norm(lit, axis=-1, keepdims=True), 1e-9)
            paint[:, part, LIGHT + 3 * frame : LIGHT + 3 * frame + 3] = lit * strength[:, :1, None]
    # Less contrast around the same mean colour.
    for first in (COLOURS, COLOURS + 6):
        factor, offset = paint[..., first : first + 3], paint[..., first + 3 : first + 6]
        weaker = np.where(faint, contrast, 1.0)[..., None]
        offset += 0.5 * factor * (1 - weaker)
        factor *= weaker
    _add_sheets(draw, bodies, paint, ids, unit, style)
    gain = np.exp(draw.scene(math.log(0.2), math.log(2.2)))
    return np.where(draw.scene() < style.exposure, gain, 1.0)


def _add_sheets(
    draw: SceneDraw, bodies: SceneGeometry, paint: Floats, ids: NDArray[np.int64], unit: float, style: SceneStyle
) -> None:
    """Turn the transparent layers of some scenes into sheets of fog across the frame, which drift by themselves."""
    part = slice(FIRST_GHOST, CARDS)
    foggy = np.repeat((draw.scene() < style.sheets)[:, None], GHOSTS, 1) & (draw.layer()[:, part] < 0.7)
    grey = draw.scene(0.4, 1.0)[:, None, None] + 0.1 * np.stack([draw.scene(-1, 1) for _ in range(3)], -1)[:, None]
    depth = np.exp(draw.layer(math.log(1.2), math.log(6.0)))[:, part]
    drift = np.stack([draw.normal(0.1), draw.normal(0.1), 0 * draw.normal()], -1)[:, part] * depth[..., None]
    wide = (depth / bodies.focal[:, None])[..., None]  # a pixel, there
    bodies.on[:, part] |= foggy
    for store, values in (
        (bodies.depth, depth),
        (bodies.place, np.stack([0 * depth, 0 * depth, depth], -1)),
        (bodies.centre, np.stack([0 * depth, 0 * depth, depth], -1)),
        (bodies.along, wide * (1, 0, 0)),
        (bodies.across, wide * (0, 1, 0)),
        (bodies.shift, drift),
        (bodies.turn, np.zeros_like(drift)),
    ):
        chosen = foggy if values.ndim == 2 else foggy[..., None]
        store[:, part] = np.where(chosen, values, store[:, part])
    ids[:, part, 1] = np.where(foggy, INFINITE, ids[:, part, 1])
    angle, scale = draw.layer(0, 2 * np.pi)[:, part], np.exp(draw.normal(0.4))[:, part] / unit
    values = {
        GHOST: FOG_SHEET + 0 * depth,
        BIAS: draw.layer(2.0, 5.5)[:, part],
        OPACITY: draw.layer(0.25, 1.0)[:, part],
        TEXTURE: np.cos(angle) * scale,
        TEXTURE + 1: -np.sin(angle) * scale,
        TEXTURE + 3: np.sin(angle) * scale,
        TEXTURE + 4: np.cos(angle) * scale,
    }
    for number, value in values.items():
        paint[:, part, number] = np.where(foggy, value, paint[:, part, number])
    for first in (COLOURS, COLOURS + 6):
        colour = np.concatenate([0 * grey, grey.clip(0, 1)], -1)
        paint[:, part, first : first + 6] = np.where(foggy[..., None], colour, paint[:, part, first : first + 6])
