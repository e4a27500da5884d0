"""Reduction of models to few triangles and a few poses of each clip, as packs store them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.layered.meshes import MATERIALS
from tools.meshes.glb import Clip, Floats, Model, UnreadableModelError

POSES_A_SECOND = 8
MAX_POSES = 6
"""Key poses of a clip; longer clips are cut."""
MAX_CLIPS = 3
_STILL = 0.004  # of the model's size: clips with less motion are left out
_SAME = 1e-4  # distance of vertices that are joined, relative to the model's size


class Mesh(NamedTuple):
    """Reduced mesh in the unit sphere."""

    clips: list[NDArray[np.float16]]  # [P, V, 3] each; one of one pose without clips
    triangles: NDArray[np.int64]  # [T, 3]
    materials: NDArray[np.uint8]  # [T]


def reduce_model(model: Model, max_triangles: int) -> Mesh:
    """Return the model's poses with few vertices and triangles.

    Raises:
        UnreadableModelError: nothing of the model has a surface.
    """
    clips = _sample_clips(model)
    poses = np.concatenate(clips)
    low, high = poses[0].min(0), poses[0].max(0)
    poses = poses - (low + high) / 2
    size = float(np.linalg.norm(poses, axis=-1).max())
    if not np.isfinite(size) or size == 0:
        raise UnreadableModelError("has no size")
    poses /= size
    poses, triangles, materials = _join(poses, model.triangles, _rank(model.materials), _SAME)
    cell = 0.01
    while len(triangles) > max_triangles:
        poses, triangles, materials = _join(poses, triangles, materials, cell)
        cell *= 1.15
    if not len(triangles):
        raise UnreadableModelError("has no triangles")
    ends = np.cumsum([len(clip) for clip in clips])
    return Mesh(np.split(poses.astype(np.float16), ends[:-1]), triangles, materials)


def _sample_clips(model: Model) -> list[Floats]:
    """Return key poses [P, V, 3] of the clips with the most motion, or the one pose of a model without any."""
    rest = model.pose()
    size = float(np.ptp(rest, axis=0).max())
    moving = []
    for clip in model.clips:
        count = int(np.clip(round(clip.seconds * POSES_A_SECOND) + 1, 2, MAX_POSES))
        poses = np.stack([model.pose(clip, seconds) for seconds in _moments(clip, count)])
        motion = float(np.linalg.norm(np.diff(poses, axis=0), axis=-1).max(0).mean())
        extent = float(np.abs(poses).max())
        if np.isfinite(poses).all() and motion > _STILL * size and extent < 20 * max(size, 1e-9):
            moving.append((motion, poses))
    moving.sort(key=lambda pair: -pair[0])
    return [poses for _, poses in moving[:MAX_CLIPS]] or [rest[None]]


def _moments(clip: Clip, count: int) -> Floats:
    """Return the times of key poses around the middle of a clip."""
    length = min(clip.seconds, (count - 1) / POSES_A_SECOND)
    return (clip.seconds - length) / 2 + np.linspace(0, length, count)


def _rank(materials: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Renumber materials below MATERIALS, the most frequent one first."""
    values, inverse, counts = np.unique(materials, return_inverse=True, return_counts=True)
    rank = np.empty(len(values), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(values))
    return (rank[inverse.ravel()] % MATERIALS).astype(np.uint8)


def _join(
    poses: Floats, triangles: NDArray[np.int64], materials: NDArray[np.uint8], cell: float
) -> tuple[Floats, NDArray[np.int64], NDArray[np.uint8]]:
    """Join the vertices that share a cell in the first pose and stay near each other in the others.

    A cell keeps its first vertex. Triangles that become an edge or equal another one go.
    """
    keys = np.round(poses[0] / cell)
    if len(poses) > 1:  # a coarser cell: joined vertices may part a little
        keys = np.concatenate([keys, np.round(poses[len(poses) // 2] / (4 * cell))], 1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    corners = inverse.ravel()[triangles]
    is_triangle = (corners[:, 0] != corners[:, 1]) & (corners[:, 1] != corners[:, 2]) & (corners[:, 2] != corners[:, 0])
    corners, materials = corners[is_triangle], materials[is_triangle]
    _, unique = np.unique(np.sort(corners, 1), axis=0, return_index=True)
    unique.sort()
    corners, materials = corners[unique], materials[unique]
    used, compact = np.unique(corners, return_inverse=True)
    return poses[:, first[used]], compact.reshape(-1, 3), materials
