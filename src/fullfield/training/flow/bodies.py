"""Bodies of synthetic scenes: chains of ellipsoids that move, turn, bend at their joints and stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.scene_draw import (
    BODIES,
    PARTS,
    ROOTS,
    Floats,
    compute_motion_lengths_px,
    compute_rotation_matrices,
    multiply_matrix_vector,
)

_STREAM = 3  # of a scene's random numbers: 1 is for compression, 2 for bars and figures
_UNIFORM, _NORMAL = 24, 20


class Ellipsoids(NamedTuple):
    """Ellipsoids of B scenes: the unit sphere s maps to shape · s + centre in the first camera's coordinates."""

    is_present: NDArray[np.bool_]  # [B, N]
    shape: Floats  # [B, N, 2, 3, 3]: in both frames
    centre: Floats  # [B, N, 2, 3]
    smooth: Floats  # [B, N]: levels of blur of the texture
    same_look: NDArray[np.bool_]  # [B, N]: whether a part looks like its core


def sample_ellipsoids(
    pair_numbers: Sequence[int],
    size: tuple[int, int],
    focal: Floats,
    *,
    seed: int,
    relative_size: float,
    style: SceneStyle,
) -> Ellipsoids:
    """Draw the bodies of scenes; ``relative_size`` is the number of pixels for a pixel of a frame of 496×368."""
    streams = [np.random.Generator(np.random.SFC64([seed, number, _STREAM])) for number in pair_numbers]
    uniform = iter(np.moveaxis(np.stack([stream.random((BODIES, _UNIFORM, PARTS)) for stream in streams]), 2, 0))
    normal = iter(
        np.moveaxis(np.stack([stream.standard_normal((BODIES, _NORMAL, PARTS, 3)) for stream in streams]), 2, 0)
    )
    height, width = size
    focal = focal[:, None]

    def draw_one_per_body(low: float, high: float) -> Floats:
        """Return a uniform number for each body [B, BODIES]."""
        return _scale_to_range(next(uniform)[..., 0], low, high)

    def draw_lengths(normal_number: Floats, chance: Floats) -> Floats:
        return compute_motion_lengths_px(chance, normal_number, style.object_motion, relative_size, style)

    present = draw_one_per_body(0, 1) < style.bodies
    present[:, 1:] &= draw_one_per_body(0, 1)[:, 1:] < 0.5
    depth = np.exp(draw_one_per_body(math.log(1.5), math.log(7.0)))
    radius = 0.5 * height * np.exp(draw_one_per_body(math.log(0.12), math.log(1.2))) * depth / focal
    x, y = (
        draw_one_per_body(-0.1, 1.1) * width - (width - 1) / 2,
        draw_one_per_body(-0.1, 1.1) * height - (height - 1) / 2,
    )
    core = np.stack([x / focal, y / focal, np.ones_like(x)], -1) * depth[..., None]

    shape = np.empty((*depth.shape, PARTS, 2, 3, 3))
    centre = np.empty((*depth.shape, PARTS, 2, 3))
    stretch = np.exp(0.3 * next(normal)[..., 0, :])
    shape[..., 0, 0, :, :] = (
        compute_rotation_matrices(next(normal)[..., 0, :]) * (radius[..., None] * stretch)[..., None, :]
    )
    centre[..., 0, 0, :] = core
    moves = draw_one_per_body(0, 1) < 0.85
    motion = draw_lengths(next(normal)[..., 0, 0], draw_one_per_body(0, 1)) * depth / focal * moves
    heading = draw_one_per_body(0, 2 * np.pi)
    nearer = np.clip(0.08 * next(normal)[..., 0, 0], -0.3, 0.3) * depth * moves
    shift = np.stack([motion * np.cos(heading), motion * np.sin(heading), nearer], -1)
    turns = (
        np.clip(0.12 * next(normal)[..., 0, :], -0.8, 0.8) * np.where(draw_one_per_body(0, 1) < 0.15, 3, 1)[..., None]
    )
    bulge = np.exp(0.05 * next(normal)[..., 0, :])
    shape[..., 0, 1, :, :] = (
        compute_rotation_matrices(turns * moves[..., None]) @ shape[..., 0, 0, :, :] * bulge[..., None, :]
    )
    centre[..., 0, 1, :] = core + shift

    limb_directions = _normalize_vectors(next(normal))  # [B, BODIES, PARTS, 3]
    bend = next(normal)
    length = radius[..., None] * np.exp(_scale_to_range(next(uniform), math.log(0.5), math.log(1.5)))
    thick = length * np.exp(_scale_to_range(next(uniform), math.log(0.12), math.log(0.55)))
    axis = _normalize_vectors(next(normal))
    swing = draw_lengths(next(normal)[..., 0], next(uniform)) * depth[..., None] / (2 * length * focal[..., None])
    swing = np.clip(swing, 0, 0.9) * (next(uniform) < 0.8)
    limbs = next(uniform) < 0.75
    for section in range(1, PARTS):
        bone = 0 if section <= ROOTS else section - ROOTS
        before, after = shape[..., bone, 0, :, :], shape[..., bone, 1, :, :]
        if bone == 0:
            point = 0.8 * limb_directions[..., section, :]
            ahead = _normalize_vectors(
                multiply_matrix_vector(before, point) + 0.4 * radius[..., None] * bend[..., section, :]
            )
        else:
            point = np.broadcast_to(np.array([0.95, 0.0, 0.0]), limb_directions[..., section, :].shape)
            ahead = _normalize_vectors(_normalize_vectors(before[..., :, 0]) + 0.5 * bend[..., section, :])
            limbs[..., section] &= limbs[..., bone]
        joint = centre[..., bone, 0, :] + multiply_matrix_vector(before, point)
        half, across = length[..., section] / 2, thick[..., section] / 2
        frame = _build_orthonormal_axes(ahead, limb_directions[..., section - 1, :])
        own = frame * np.stack([half, across, across], -1)[..., None, :]
        joint_motion = (
            compute_rotation_matrices(axis[..., section, :] * swing[..., section, None]) @ after @ np.linalg.inv(before)
        )
        shape[..., section, 0, :, :], shape[..., section, 1, :, :] = own, joint_motion @ own
        out = ahead * (0.9 * half)[..., None]
        centre[..., section, 0, :] = joint + out
        centre[..., section, 1, :] = (
            centre[..., bone, 1, :] + multiply_matrix_vector(after, point) + multiply_matrix_vector(joint_motion, out)
        )
    limbs[..., 0] = True
    on = present[..., None] & limbs
    levels = np.where(draw_one_per_body(0, 1) < style.smooth, draw_one_per_body(1.0, 4.5), 0.0)
    same_look = np.repeat((draw_one_per_body(0, 1) < 0.7)[..., None], PARTS, -1)
    smooth = np.repeat(levels[..., None], PARTS, -1)

    def flatten(values: NDArray[np.generic]) -> NDArray[np.generic]:
        return values.reshape(len(pair_numbers), BODIES * PARTS, *values.shape[3:])

    return Ellipsoids(*(flatten(values) for values in (on, shape, centre, smooth, same_look)))  # type: ignore[arg-type]


def _scale_to_range(uniform: Floats, low: float, high: float) -> Floats:
    return low + (high - low) * uniform


def _normalize_vectors(vector: Floats) -> Floats:
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    unit: Floats = vector / np.maximum(length, 1e-12)
    return unit


def _build_orthonormal_axes(first: Floats, other: Floats) -> Floats:
    """Return orthonormal axes in columns [..., 3, 3], the first as given."""
    second = _normalize_vectors(np.cross(first, other))
    return np.stack([first, second, np.cross(first, second)], -1)
