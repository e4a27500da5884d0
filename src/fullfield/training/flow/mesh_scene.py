"""Meshes of synthetic scenes: which ones, their places, poses, motion, textures and light."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered.meshes import (
    MATERIALS,
    MESH_COLOURS,
    WAVES,
    MeshPlacement,
    MeshTable,
)
from fullfield.training.flow.scene_draw import (
    Floats,
    compute_motion_lengths_px,
    compute_rotation_matrices,
    multiply_matrix_vector,
)
from fullfield.training.flow.scene_geometry import SceneGeometry

MESHES = 6
"""Largest number of meshes of a scene."""
_STREAM = 6  # of a scene's random numbers
_UNIFORM, _NORMAL = 96, 32
_NEAREST = 0.25  # depth that every vertex must have
_DEFORMED_RADIUS = 1.3  # of a deformed mesh beyond its sphere
_TIMES = np.array([-0.45, 0.0, 1.0, 1.45])  # first and last instants of exposures, and both frames


class SampledMeshes(NamedTuple):
    """Meshes of B scenes, N = MESHES of each, and the layers that show them."""

    is_present: NDArray[np.bool_]  # [B, N]
    group: NDArray[np.int64]  # [B, N]: the mesh whose layer this one is in; they are ordered by depth in a layer
    depth: Floats  # [B, N]: of the layer
    values: dict[str, NDArray[np.generic]]  # fields of MeshPlacement, [B, N, ...]

    def build_placement_if_any(self, layer_indices: NDArray[np.int64]) -> MeshPlacement | None:
        """Return the placement of the meshes that are on, None without any; ``layer_indices`` are [B, N]."""
        if not self.is_present.any():
            return None
        fields = {
            name: torch.from_numpy(np.ascontiguousarray(values[self.is_present]))
            for name, values in self.values.items()
        }
        scene = torch.from_numpy(np.nonzero(self.is_present)[0])
        layer = torch.from_numpy(np.take_along_axis(layer_indices, self.group, 1)[self.is_present].astype(np.int64))
        return MeshPlacement(scene=scene, layer=layer, **fields)


def sample_meshes(
    pair_numbers: Sequence[int],
    geometry: SceneGeometry,
    table: MeshTable,
    *,
    seed: int,
    pictures: int,
    relative_size: float,
    style: SceneStyle,
) -> SampledMeshes:
    """Draw the meshes of scenes; ``relative_size`` is the number of pixels for a pixel of a frame of 496×368."""
    draw = _MeshRandom(seed, pair_numbers)
    height, width = geometry.size
    focal = geometry.focal[:, None]
    on = (draw.draw_uniform_per_scene() < style.meshes) & (
        np.arange(MESHES) < np.floor(1 + MESHES * draw.draw_uniform_per_scene())
    )
    depth = np.exp(draw.draw_uniform_per_mesh(math.log(1.5), math.log(7.0)))
    radius = 0.5 * height * np.exp(draw.draw_uniform_per_mesh(math.log(0.2), math.log(1.8))) * depth / focal
    radius = np.minimum(radius, 0.5 * depth)
    x = draw.draw_uniform_per_mesh(-0.05, 1.05) * width - (width - 1) / 2
    y = draw.draw_uniform_per_mesh(-0.05, 1.05) * height - (height - 1) / 2
    centre = np.stack([x / focal, y / focal, np.ones_like(x)], -1) * depth[..., None]
    pose = _sample_pose_maps(draw, geometry, centre, radius, relative_size, style)
    seen = pose[:, :, [0]] + _TIMES[:, None, None] * (pose[:, :, [1]] - pose[:, :, [0]])  # [B, N, 4, 3, 4]
    extent = _DEFORMED_RADIUS * np.linalg.norm(seen[..., 2, :3], axis=-1)
    on &= (seen[..., 2, 3] - extent > _NEAREST).all(-1)

    which = _draw_mesh_table_entries(draw, table)
    values: dict[str, NDArray[np.generic]] = {"pose": pose.astype(np.float32)}
    for name in ("vertex_counts", "triangle_counts", "first_triangles"):
        values[name] = getattr(table, name)[which]
    values["rows"], values["blend"] = _draw_clip_pose_rows_and_weights(draw, table, which)
    camera = np.stack([geometry.focal, np.full_like(geometry.focal, (width - 1) / 2)], 1)
    camera = np.concatenate([camera, np.full((len(camera), 1), (height - 1) / 2)], 1)
    values["camera"] = np.broadcast_to(camera[:, None], (*on.shape, 3)).astype(np.float32)
    values["deformation"] = _sample_deformations(draw, style)
    texels = (
        radius
        * focal
        / depth
        * np.exp(draw.draw_normal_vectors_per_mesh()[..., 0] * 0.45)
        / min(max(relative_size, 0.5), 2.0)
    )
    turned = compute_rotation_matrices(2 * draw.draw_normal_vectors_per_mesh()) * texels[..., None, None]
    origin = np.stack([draw.draw_uniform_per_mesh(0, 1024) for _ in range(3)], -1)[..., None]
    values["texture"] = np.concatenate([turned, origin], -1).astype(np.float32)
    values["light"] = _sample_lighting(draw)
    values["flat"] = (draw.draw_uniform_per_mesh() < 0.4).astype(np.float32)
    values["pictures"], values["colours"] = _sample_material_pictures_and_colors(draw, pictures, style)
    group, depth = _compute_depth_overlap_groups_and_depths(
        on, np.linalg.norm(centre, axis=-1), _DEFORMED_RADIUS * radius
    )
    return SampledMeshes(on, group, depth, values)


class _MeshRandom:
    """Random numbers of the meshes of a batch of scenes; those of a scene do not depend on the rest of the batch."""

    def __init__(self, seed: int, pair_numbers: Sequence[int]) -> None:
        streams = [np.random.Generator(np.random.SFC64([seed, number, _STREAM])) for number in pair_numbers]
        self._uniform = iter(np.stack([stream.random((_UNIFORM, MESHES)) for stream in streams], 1))
        self._normal = iter(np.stack([stream.standard_normal((_NORMAL, MESHES, 3)) for stream in streams], 1))

    def draw_uniform_per_scene(self) -> Floats:
        """Return a uniform number for each scene [B, 1]."""
        number: Floats = next(self._uniform)[:, :1]
        return number

    def draw_uniform_per_mesh(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """Return a uniform number for each mesh [B, N]."""
        number: Floats = low + (high - low) * next(self._uniform)
        return number

    def draw_normal_vectors_per_mesh(self) -> Floats:
        """Return normal numbers for each mesh [B, N, 3]."""
        return next(self._normal)


def _sample_pose_maps(
    rng: _MeshRandom, geometry: SceneGeometry, centre: Floats, radius: Floats, relative_size: float, style: SceneStyle
) -> Floats:
    """Return the maps [B, N, 2, 3, 4] from the coordinates of meshes to those of both cameras."""
    depth, focal = centre[..., 2], geometry.focal[:, None]
    upright = rng.draw_uniform_per_mesh() < 0.5
    yaw, free = rng.draw_uniform_per_mesh(0, 2 * np.pi), 2 * rng.draw_normal_vectors_per_mesh()
    tilt = 0.2 * rng.draw_normal_vectors_per_mesh()
    axis = np.stack([tilt[..., 0], yaw, tilt[..., 2]], -1)
    down = np.diag([1.0, -1.0, -1.0])  # the y axis of images points down
    first = np.where(upright[..., None, None], down @ compute_rotation_matrices(axis), compute_rotation_matrices(free))
    first = first * (radius[..., None] * np.exp(0.15 * rng.draw_normal_vectors_per_mesh()).clip(0.7, 1.3))[..., None, :]
    moves = rng.draw_uniform_per_mesh() < 0.85
    motion, normal = rng.draw_uniform_per_mesh(), rng.draw_normal_vectors_per_mesh()[..., 0]
    extent = compute_motion_lengths_px(motion, normal, style.object_motion, relative_size, style) * moves
    heading = rng.draw_uniform_per_mesh(0, 2 * np.pi)
    nearer = np.clip(0.08 * rng.draw_normal_vectors_per_mesh()[..., 0], -0.3, 0.3) * moves
    shift = (
        np.stack([extent * np.cos(heading) / focal, extent * np.sin(heading) / focal, nearer], -1) * depth[..., None]
    )
    turn = (
        0.12
        * rng.draw_normal_vectors_per_mesh()
        * np.where(rng.draw_uniform_per_mesh() < 0.2, 3, 1)[..., None]
        * moves[..., None]
    )
    camera = np.swapaxes(compute_rotation_matrices(geometry.camera_turn), -1, -2)[:, None]
    swell = np.exp(0.03 * rng.draw_normal_vectors_per_mesh())[..., None, :]
    second = camera @ compute_rotation_matrices(np.clip(turn, -1.0, 1.0)) @ first * swell
    second_center = multiply_matrix_vector(camera, centre + shift - geometry.camera_shift[:, None])
    maps = [np.concatenate([axes, at[..., None]], -1) for axes, at in ((first, centre), (second, second_center))]
    return np.stack(maps, 2)


def _draw_mesh_table_entries(rng: _MeshRandom, table: MeshTable) -> NDArray[np.int64]:
    """Return entries [B, N] of the table: half of them clips, if it has some."""
    everything = np.arange(len(table.pose_counts))
    clips = everything[table.pose_counts > 1]
    is_clip, position = rng.draw_uniform_per_mesh() < 0.5, rng.draw_uniform_per_mesh()
    entries = np.floor(position * len(everything)).astype(np.int64)
    if len(clips):
        entries = np.where(is_clip, clips[np.floor(position * len(clips)).astype(np.int64)], entries)
    return entries


def _draw_clip_pose_rows_and_weights(
    rng: _MeshRandom, table: MeshTable, table_entries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return first rows [B, N, 2, 2] of the poses around each frame's time, and the weights [B, N, 2] of the second."""
    last = (table.pose_counts[table_entries] - 1).astype(np.float64)
    start = rng.draw_uniform_per_mesh() * last
    step = 0.45 * rng.draw_normal_vectors_per_mesh()[..., 0] * np.where(rng.draw_uniform_per_mesh() < 0.2, 3, 1)
    phase = np.stack([start, np.clip(start + step, 0, last)], -1)
    low: NDArray[np.int64] = np.minimum(np.floor(phase), np.maximum(last - 1, 0)[..., None]).astype(np.int64)
    high = np.minimum(low + 1, last.astype(np.int64)[..., None])
    pose: NDArray[np.int64] = np.stack([low, high], -1)
    rows = pose * table.vertex_counts[table_entries][..., None, None]
    rows += table.first_rows[table_entries][..., None, None]
    return rows, (phase - low).astype(np.float32)


def _sample_deformations(rng: _MeshRandom, style: SceneStyle) -> NDArray[np.float32]:
    """Return waves and twists [B, N, 2, DEFORMATION] of some meshes; they change between the frames."""
    bends = (rng.draw_uniform_per_mesh() < style.waves)[..., None]
    frames = []
    waves = []
    for _ in range(WAVES):
        along = rng.draw_normal_vectors_per_mesh() * 1.5
        length = np.maximum(np.linalg.norm(along, axis=-1, keepdims=True), 1e-3)
        high = np.minimum(0.08 * np.abs(rng.draw_uniform_per_mesh())[..., None], 0.25 / length) * bends
        high = rng.draw_normal_vectors_per_mesh().clip(-2, 2) * high
        waves.append((high, along, rng.draw_uniform_per_mesh(0, 2 * np.pi), rng.draw_uniform_per_mesh(-1.2, 1.2)))
    twist = rng.draw_normal_vectors_per_mesh() * np.array([0.4, 0.2, 0]) * bends
    for frame in (0, 1):
        numbers = [
            np.concatenate([amplitude, along, (phase + frame * change)[..., None]], -1)
            for amplitude, along, phase, change in waves
        ]
        frames.append(np.concatenate([*numbers, (twist[..., 0] + frame * twist[..., 1])[..., None]], -1))
    return np.stack(frames, 2).astype(np.float32)


def _sample_lighting(rng: _MeshRandom) -> NDArray[np.float32]:
    """Return the light [B, N, 2, 4] in both frames, mostly from above and from the camera's side."""
    strength = rng.draw_uniform_per_mesh(0.0, 1.1)
    lamp = np.array([0.0, -0.6, -0.7]) + 0.6 * rng.draw_normal_vectors_per_mesh()
    frames = []
    for change in (0.0, 0.05):
        towards = lamp + change * rng.draw_normal_vectors_per_mesh()
        towards = towards / np.maximum(np.linalg.norm(towards, axis=-1, keepdims=True), 1e-6)
        frames.append(np.concatenate([(1 - 0.65 * strength)[..., None].clip(0.15), towards * strength[..., None]], -1))
    return np.stack(frames, 2).astype(np.float32)


def _sample_material_pictures_and_colors(
    rng: _MeshRandom, pictures: int, style: SceneStyle
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return pictures [B, N, MATERIALS] and colours [B, N, MATERIALS, MESH_COLOURS]."""
    first = rng.draw_uniform_per_mesh(0, pictures)
    picture_ids = np.repeat(first[..., None], MATERIALS, -1)
    colours = np.zeros((*first.shape, MATERIALS, MESH_COLOURS))
    smooth = np.where(rng.draw_uniform_per_mesh() < style.smooth, rng.draw_uniform_per_mesh(1.0, 4.5), 0.0)
    contrast = np.where(
        rng.draw_uniform_per_mesh() < style.plain,
        rng.draw_uniform_per_mesh(0.02, 0.4),
        rng.draw_uniform_per_mesh(0.6, 1.3),
    )
    middle = rng.draw_uniform_per_mesh(0.2, 0.8)
    gain = 1 + np.clip(0.08 * rng.draw_normal_vectors_per_mesh()[..., 0], -0.3, 0.3) * (
        rng.draw_uniform_per_scene() < 0.3
    )
    same_look = rng.draw_uniform_per_mesh() < 0.4
    tint = np.ones((*first.shape, 3))
    for material in range(MATERIALS):
        other = rng.draw_uniform_per_mesh(0, pictures)
        own = ~same_look if material else np.zeros_like(same_look)
        picture_ids[..., material] = np.where(
            own & (rng.draw_uniform_per_mesh() < 0.6), other, picture_ids[..., material]
        )
        drawn = np.stack([rng.draw_uniform_per_mesh(0.75, 1.25) for _ in range(3)], -1)
        shade = rng.draw_uniform_per_mesh(0.6, 1.4)[..., None]
        tint = np.where(own[..., None], drawn * shade, tint) if material else drawn
        factor = contrast[..., None] * tint
        offset = middle[..., None] * tint - 0.5 * factor
        for frame, light in enumerate((np.ones_like(gain), gain)):
            colours[..., material, 1 + 6 * frame : 4 + 6 * frame] = factor * light[..., None]
            colours[..., material, 4 + 6 * frame : 7 + 6 * frame] = offset * light[..., None]
        colours[..., material, 0] = smooth
    _replace_textures_by_colors_inplace(rng, colours, gain, style)
    return np.floor(picture_ids).astype(np.int32), colours.astype(np.float32)


def _replace_textures_by_colors_inplace(rng: _MeshRandom, colours: Floats, gain: Floats, style: SceneStyle) -> None:
    """Give some meshes one colour for each material, in place; all that shows their form is the light."""
    plain = rng.draw_uniform_per_mesh() < style.plain_meshes
    for material in range(MATERIALS):
        shade = rng.draw_uniform_per_mesh(0.02, 0.95)
        colour = np.stack([shade * rng.draw_uniform_per_mesh(0.6, 1.4) for _ in range(3)], -1)
        for first, light in ((1, np.ones_like(gain)), (7, gain)):
            flat = np.concatenate([np.zeros_like(colour), colour * light[..., None]], -1)
            values = colours[..., material, first : first + 6]
            values[plain] = flat[plain]


def _compute_depth_overlap_groups_and_depths(
    is_present: NDArray[np.bool_], depth: Floats, radius: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Return groups of meshes whose ranges of depth overlap, each named by its nearest mesh, and the groups' depths."""
    order = np.argsort(np.where(is_present, depth - radius, np.inf), axis=1, kind="stable")
    group = np.tile(np.arange(is_present.shape[1]), (len(is_present), 1))
    scenes = np.arange(len(is_present))
    current, end = order[:, 0], (depth + radius)[scenes, order[:, 0]]
    for rank in range(1, is_present.shape[1]):
        slot = order[:, rank]
        front, back = (depth - radius)[scenes, slot], (depth + radius)[scenes, slot]
        joins = front < end
        current, end = np.where(joins, current, slot), np.where(joins, np.maximum(end, back), back)
        group[scenes, slot] = current
    return group, np.take_along_axis(depth, group, 1)
