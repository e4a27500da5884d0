"""Synthetic scenes for optical flow: moving cards and bodies in space before a camera."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield.training.flow.bodies import Ellipsoids, sample_ellipsoids
from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered import MESH, SQUARE, LayeredScenes
from fullfield.training.flow.layered.meshes import MeshTable
from fullfield.training.flow.layered.scene import BIAS, COLOURS, DEPTH_TEXTURE, LIGHT, PAINT, SOFTNESS, TEXTURE
from fullfield.training.flow.mesh_scene import SampledMeshes, sample_meshes
from fullfield.training.flow.scene_draw import (
    BACKDROP,
    BODIES,
    BODY,
    CARDS,
    FIRST_FACE,
    FLAT,
    GROUND,
    LAYERS,
    OBJECTS,
    OPEN,
    PARTS,
    Floats,
    SceneRandom,
    compute_rotation_matrices,
    compute_size_relative_to_reference,
    invert_3x3_matrices,
    multiply_matrix_vector,
)
from fullfield.training.flow.scene_geometry import SceneGeometry
from fullfield.training.flow.weather import add_haze_and_darkness_inplace

_SAMPLING = np.array([0.6180339887, 0.7548776662])  # steps, pixels, that spread an exposure's samples over the pixel
_STILL_INSTANTS = 4  # samples of a pixel without motion blur


def sample_scenes(
    pair_numbers: Sequence[int],
    size: tuple[int, int],
    *,
    seed: int,
    picture_count: int,
    shape_count: int,
    mesh_table: MeshTable | None = None,
    style: SceneStyle | None = None,
) -> LayeredScenes:
    """Draw the scenes of these numbers, on the CPU; a scene depends on its number and the arguments.

    ``size`` is (height, width) in pixels; ``picture_count`` and ``shape_count`` are numbers of the atlas's pictures and
    silhouettes, ``mesh_table`` describes its meshes, which a style with meshes needs.
    """
    style = style or SceneStyle()
    for side in size:
        _check.check_number(side, "size", integer=True, low=8, high=1 << 15)
    _check.check_number(seed, "seed", integer=True, low=0)
    _check.check_number(picture_count, "picture_count", integer=True, low=1)
    _check.check_number(shape_count, "shape_count", integer=True, low=0)
    _check.require(
        style.meshes == 0 or mesh_table is not None, "mesh_table", "a table of meshes for this style", "none"
    )
    solid = style.bodies > 0
    draw = SceneRandom(seed, pair_numbers, solids=solid)
    # Bars and figures have numbers of their own: what else is in a scene stays. (Stream 1: the blocks of JPEG.)
    extra = SceneRandom(seed, pair_numbers, 2, solids=False) if style.thin or style.figures else None
    height, width = size
    unit = compute_size_relative_to_reference(height, width)
    bodies = SceneGeometry(draw, extra, len(pair_numbers), height, width, unit, style)
    cut = SceneRandom(seed, pair_numbers, 7, solids=False) if style.photographs else None
    has_photograph = np.zeros(len(pair_numbers), bool)
    if cut is not None:
        has_photograph = (
            (cut.draw_uniform_per_scene() < style.photographs)
            & ((bodies.kind == OPEN) | (bodies.kind == FLAT))
            & ~bodies.same_look
        )
        bodies.turn_objects_and_backdrop_to_camera_inplace(has_photograph)
    solids = None
    if solid:
        solids = sample_ellipsoids(pair_numbers, size, bodies.focal, seed=seed, relative_size=unit, style=style)
        bodies.fill_visible_ellipsoid_layers_inplace(solids)
    paint, ids = _sample_layer_paint_and_ids(draw, bodies, picture_count, shape_count, unit, style)
    if solid or style.smooth:
        _paint_ellipsoids_and_unsharp_layers_inplace(
            SceneRandom(seed, pair_numbers, 4, solids=solid), bodies, solids, paint, ids, unit, style
        )
    if cut is not None:
        _paint_objects_as_backdrop_inplace(cut, has_photograph, bodies, paint, ids, unit)
    exposures, instants, times = _sample_exposures_counts_and_times(draw, len(pair_numbers), style)
    background = bodies.sample_background_color(draw)
    gamma = np.exp((2 * draw.draw_uniform_per_scene() - 1) * math.log(style.gamma))
    noise = style.noise * draw.draw_uniform_per_scene() ** 3 * (draw.draw_uniform_per_scene() < 0.7)
    seeds = np.floor(draw.draw_uniform_per_scene() * 2**31).astype(np.int32)
    floats = (exposures, background, np.stack([gamma, noise], 1))
    drawn = None
    if style.meshes and mesh_table is not None:
        drawn = sample_meshes(
            pair_numbers, bodies, mesh_table, seed=seed, pictures=picture_count, relative_size=unit, style=style
        )
    if style.haze or style.dark:
        add_haze_and_darkness_inplace(pair_numbers, bodies, paint, background, drawn, seed=seed, style=style)
    return _build_depth_sorted_scenes(bodies, drawn, times, paint, ids, floats, instants, seeds)


def _sample_layer_paint_and_ids(
    rng: SceneRandom, geometry: SceneGeometry, pictures: int, shapes: int, relative_size: float, style: SceneStyle
) -> tuple[Floats, NDArray[np.int64]]:
    """Return paint [B, L, PAINT] and ids [B, L, 2] of all layers, see :class:`LayeredScenes`."""
    batch = len(geometry.kind)
    paint = np.zeros((batch, LAYERS, PAINT))
    ids = np.stack(
        [np.floor(rng.draw_uniform_per_layer() * pictures), np.floor(rng.draw_uniform_per_layer() * max(shapes, 1))], -1
    ).astype(np.int64)
    silhouette = geometry.shape == 0
    ids[..., 1] = np.where(silhouette, ids[..., 1] if shapes else SQUARE, geometry.shape)
    same_look, limbs = geometry.same_look, slice(BODY + 1, OBJECTS)
    ids[same_look, limbs, 0] = ids[same_look, BODY, 0][:, None]
    # Texture: texels per pixel at the card's distance; turned with the card or freely.
    depth = np.linalg.norm(geometry.centre, axis=-1).clip(min=1.0)
    per_pixel = np.exp(rng.draw_normal_per_layer(0.45))
    texels = [
        np.linalg.norm(axis, axis=-1) * geometry.focal[:, None] / depth * per_pixel / min(max(relative_size, 0.5), 2.0)
        for axis in (geometry.along, geometry.across)
    ]
    angle = rng.draw_uniform_per_layer(0, 2 * np.pi)
    angle = np.where(rng.draw_uniform_per_layer() < 0.5, np.round(angle / (np.pi / 2)) * (np.pi / 2), angle)
    cosine, sine = np.cos(angle), np.sin(angle)
    affine = (
        cosine * texels[0],
        -sine * texels[1],
        rng.draw_uniform_per_layer(0, 1024),
        sine * texels[0],
        cosine * texels[1],
    )
    for number, value in enumerate((*affine, rng.draw_uniform_per_layer(0, 1024))):
        paint[..., TEXTURE + number] = value
    # Waves: the slope stays under what would fold the surface.
    bends = rng.draw_uniform_per_layer() < style.waves
    bends[:, FIRST_FACE:GROUND] = False
    bends[:, GROUND:CARDS] &= rng.draw_uniform_per_layer()[:, GROUND:CARDS] < 0.3
    for first in (0, 5):
        length = relative_size * np.exp(rng.draw_uniform_per_layer(math.log(50), math.log(400)))
        heading, phase, aim = (rng.draw_uniform_per_layer(0, 2 * np.pi) for _ in range(3))
        high = np.minimum(relative_size * 6 * rng.draw_uniform_per_layer() ** 2, 0.15 * length / (2 * np.pi)) * bends
        values = (high * np.cos(aim), high * np.sin(aim), np.cos(heading), np.sin(heading))
        for number, value in enumerate(values):
            paint[..., first + number] = value * (2 * np.pi / length if number >= 2 else 1)
        paint[..., first + 4] = phase
    # Out of focus: edges and textures.
    soft = np.where(rng.draw_uniform_per_layer() < 0.12, rng.draw_uniform_per_layer(1, 5) * relative_size, 1.0)
    paint[..., SOFTNESS] = soft
    paint[..., BIAS] = np.log2(soft)
    # Colours: contrast, brightness and tint, and light that changes from frame to frame.
    contrast = np.where(
        rng.draw_uniform_per_layer() < style.plain,
        rng.draw_uniform_per_layer(0.02, 0.4),
        rng.draw_uniform_per_layer(0.6, 1.3),
    )
    middle = rng.draw_uniform_per_layer(0.2, 0.8)
    changes = (rng.draw_uniform_per_scene() < 0.3)[:, None]
    light = 1 + np.clip(rng.draw_normal_per_layer(0.08), -0.3, 0.3) * changes
    tints = np.stack(
        [
            rng.draw_uniform_per_layer(0.8, 1.2),
            rng.draw_uniform_per_layer(0.8, 1.2),
            rng.draw_uniform_per_layer(0.8, 1.2),
        ],
        -1,
    )
    for frame, gain in enumerate((np.ones_like(light), light)):
        factor = (contrast * gain)[..., None] * tints
        offset = (middle * gain)[..., None] * tints - 0.5 * factor
        paint[..., COLOURS + 6 * frame : COLOURS + 6 * frame + 3] = factor
        paint[..., COLOURS + 6 * frame + 3 : COLOURS + 6 * frame + 6] = offset
    paint[same_look, limbs, COLOURS:] = paint[same_look, BODY, None, COLOURS:]
    return paint, ids


def _sample_exposures_counts_and_times(
    rng: SceneRandom, batch: int, style: SceneStyle
) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Return the renderer's exposures [B, 2, E, 3], their number [B], and the times [B, 2, 1 + E] of its matrices."""
    count = style.instants
    shutter = np.where(rng.draw_uniform_per_scene() < style.blur, rng.draw_uniform_per_scene(0.05, 0.9), 0.0)
    offsets = (np.arange(count) + 0.5) / count - 0.5
    times = np.zeros((batch, 2, 1 + count))
    times[:, :, 1:] = shutter[:, None, None] * offsets
    times[:, 1] += 1
    exposures = np.empty((batch, 2, count, 3))
    exposures[..., 0] = 1 - times[:, :, 1:]
    exposures[..., 1:] = (np.arange(count)[:, None] * _SAMPLING + 0.5) % 1 - 0.5
    exposures[..., 0] = np.where(np.abs(exposures[..., 0]) < 1e-9, 0, exposures[..., 0])
    instants = np.where(shutter > 0, count, min(count, _STILL_INSTANTS)).astype(np.int32)
    return exposures, instants, times


def _paint_ellipsoids_and_unsharp_layers_inplace(
    rng: SceneRandom,
    geometry: SceneGeometry,
    ellipsoids: Ellipsoids | None,
    paint: Floats,
    ids: NDArray[np.int64],
    relative_size: float,
    style: SceneStyle,
) -> None:
    """Paint bodies, and surfaces that are out of focus or faint."""
    objects = slice(0, OBJECTS)
    smooth = rng.draw_uniform_per_layer() < style.smooth
    levels, contrast = rng.draw_uniform_per_layer(1.0, 4.5), rng.draw_uniform_per_layer(0.1, 0.6)
    paint[:, objects, BIAS] += np.where(smooth, levels, 0)[:, objects]
    faint = smooth & (rng.draw_uniform_per_layer() < 0.6)
    strength, light = (
        rng.draw_uniform_per_layer(0.0, 0.7),
        np.stack(
            [
                rng.draw_uniform_per_layer(-1, 1),
                rng.draw_uniform_per_layer(-1.5, 0.5),
                rng.draw_uniform_per_layer(-1, 1),
            ],
            -1,
        ),
    )
    if ellipsoids is not None:
        slots = slice(CARDS, LAYERS)
        core = CARDS + np.repeat(np.arange(BODIES) * PARTS, PARTS)
        paint[:, slots, BIAS] = np.log2(paint[:, slots, SOFTNESS]) + ellipsoids.smooth
        faint[:, slots] = (ellipsoids.smooth > 0) & (rng.draw_uniform_per_layer()[:, slots][:, core - CARDS] < 0.6)
        for values in (paint[..., COLOURS : COLOURS + 12], ids[..., :1]):
            values[:, slots] = np.where(ellipsoids.same_look[..., None], values[:, core], values[:, slots])
        radius = np.linalg.norm(ellipsoids.shape[:, :, 0], axis=(-2, -1)) / math.sqrt(3)
        texels = (
            radius
            * geometry.focal[:, None]
            / geometry.depth[:, slots]
            * np.exp(rng.draw_normal_per_layer(0.45))[:, slots]
        )
        texels /= min(max(relative_size, 0.5), 2.0)
        axes = (
            compute_rotation_matrices(np.stack([rng.draw_normal_per_layer(1.5) for _ in range(3)], -1))[:, slots]
            * texels[..., None, None]
        )
        paint[:, slots, TEXTURE : TEXTURE + 2], paint[:, slots, DEPTH_TEXTURE] = axes[..., 0, :2], axes[..., 0, 2]
        paint[:, slots, TEXTURE + 3 : TEXTURE + 5], paint[:, slots, DEPTH_TEXTURE + 1] = (
            axes[..., 1, :2],
            axes[..., 1, 2],
        )
        towards = light[:, [0]] + 0.3 * light[:, slots]
        for frame in (0, 1):
            lit = multiply_matrix_vector(
                np.swapaxes(ellipsoids.shape[:, :, frame], -1, -2), towards + 0.2 * frame * light[:, [1]]
            )
            lit /= np.maximum(np.linalg.norm(lit, axis=-1, keepdims=True), 1e-9)
            paint[:, slots, LIGHT + 3 * frame : LIGHT + 3 * frame + 3] = lit * strength[:, :1, None]
    # Less contrast around the same mean colour.
    for first in (COLOURS, COLOURS + 6):
        factor, offset = paint[..., first : first + 3], paint[..., first + 3 : first + 6]
        weaker = np.where(faint, contrast, 1.0)[..., None]
        offset += 0.5 * factor * (1 - weaker)
        factor *= weaker


def _paint_objects_as_backdrop_inplace(
    rng: SceneRandom,
    scene_mask: NDArray[np.bool_],
    geometry: SceneGeometry,
    paint: Floats,
    ids: NDArray[np.int64],
    relative_size: float,
) -> None:
    """Let most objects of some scenes show the part of the backdrop's picture that they hide; all face the camera."""
    height, width = geometry.size
    cut = rng.draw_uniform_per_layer() < 0.75
    cut[:, OBJECTS:] = False
    cut[:, BACKDROP] = True
    cut &= scene_mask[:, None]
    scale = np.exp(0.35 * rng.draw_normal_per_layer()[:, 0]) / min(max(relative_size, 0.5), 2.0)
    angle = 0.2 * rng.draw_normal_per_layer()[:, 0] + np.pi * (rng.draw_uniform_per_scene() < 0.3)
    cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
    to_texels = np.stack([cosine, -sine, sine, cosine], -1).reshape(-1, 1, 2, 2)
    origin = np.stack([rng.draw_uniform_per_scene(0, 1024), rng.draw_uniform_per_scene(0, 1024)], -1)[:, None]
    depth = np.where(cut, geometry.place[..., 2], 1.0)
    zoom = (geometry.focal[:, None] / depth)[..., None]
    middle = zoom * geometry.place[..., :2] + np.array([(width - 1) / 2, (height - 1) / 2])
    sides = np.stack([geometry.along[..., :2], geometry.across[..., :2]], -1) * zoom[..., None]
    texture = np.concatenate(
        [to_texels @ sides, multiply_matrix_vector(to_texels, middle)[..., None] + origin[..., None]], -1
    )
    texture = texture.reshape(*texture.shape[:2], 6)
    paint[..., TEXTURE : TEXTURE + 6] = np.where(cut[..., None], texture, paint[..., TEXTURE : TEXTURE + 6])
    backdrop = paint[:, BACKDROP, None]
    for columns in (slice(SOFTNESS, BIAS + 1), slice(COLOURS, COLOURS + 12)):
        paint[..., columns] = np.where(cut[..., None], backdrop[..., columns], paint[..., columns])
    ids[..., 0] = np.where(cut, ids[:, BACKDROP, None, 0], ids[..., 0])


def _build_depth_sorted_scenes(
    geometry: SceneGeometry,
    meshes: SampledMeshes | None,
    times: Floats,  # [B, 2, 1 + E]
    paint: Floats,
    ids: NDArray[np.int64],
    scene_values: Sequence[Floats],
    instants: NDArray[np.int32],
    seeds: NDArray[np.int32],
) -> LayeredScenes:
    """Return the layers that are on, nearest first."""
    first, second = np.moveaxis(geometry.compute_card_to_frame_matrices(), 1, 0)  # [B, L, 3, 3]
    # Between the frames cards go straight on, which is all that motion blur asks for.
    cards = slice(0, CARDS)
    onto = first[:, None, None, cards] + times[..., None, None, None] * (second - first)[:, None, None, cards]
    to_card = np.zeros((*times.shape, LAYERS, 3, 3))
    centres = np.zeros((*times.shape, LAYERS, 3))
    to_frame = np.zeros((len(times), LAYERS, 3, 4))
    to_card[..., cards, :, :], to_frame[:, cards, :, :3] = invert_3x3_matrices(onto), second[:, cards]
    if geometry.solids is not None:
        slots = slice(CARDS, LAYERS)
        to_card[..., slots, :, :], centres[..., slots, :], to_frame[:, slots] = (
            geometry.compute_ellipsoid_transforms_and_centres(geometry.solids, times)
        )
    on, depth = geometry.is_present, geometry.depth
    values: list[NDArray[Any]] = [
        np.moveaxis(to_card, 3, 1),
        np.moveaxis(centres, 3, 1),
        to_frame,
        paint,
        ids,
    ]  # [B, L, ...] each
    if meshes is not None:
        mesh_count = meshes.is_present.shape[1]
        on = np.concatenate([on, meshes.is_present & (meshes.group == np.arange(mesh_count))], 1)
        depth = np.concatenate([depth, meshes.depth], 1)
        values = [
            np.concatenate([array, np.zeros((len(array), mesh_count, *array.shape[2:]), array.dtype)], 1)
            for array in values
        ]
        values[-1][:, LAYERS:, 1] = MESH
    counts = on.sum(1)
    order = np.argsort(np.where(on, depth, np.inf), axis=1, kind="stable")
    placement = None if meshes is None else meshes.build_placement_if_any(np.argsort(order, axis=1)[:, LAYERS:])
    order = order[:, : counts.max()]
    scenes = np.arange(len(order))[:, None]
    to_card, centres, to_frame, paint, ordered_ids = (array[scenes, order] for array in values)
    floats = (np.moveaxis(to_card, 1, 3), np.moveaxis(centres, 1, 3), to_frame, paint, *scene_values)
    matrices, middles, projections, colours, exposures, background, sensor = (
        torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)) for value in floats
    )
    layer_ids, layer_counts = (torch.from_numpy(value.astype(np.int32)) for value in (ordered_ids, counts))
    return LayeredScenes(
        to_card=matrices,
        centres=middles,
        to_frame=projections,
        paint=colours,
        ids=layer_ids,
        counts=layer_counts,
        exposures=exposures,
        instants=torch.from_numpy(instants),
        background=background,
        sensor=sensor,
        noise=torch.from_numpy(seeds),
        meshes=placement,
    )
