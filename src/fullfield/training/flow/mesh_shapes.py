"""Procedural meshes: superquadrics, tori, bent tubes, lumps, spiky balls and boxes, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.layered.meshes import MATERIALS, MeshStore, build_mesh_store
from fullfield.training.flow.procedural import RandomStream
from fullfield.training.flow.scene_draw import Floats

_ALONG, _AROUND = 28, 20  # cells of a surface, which has two triangles a cell


def create_procedural_meshes(count: int = 48, seed: int = 0) -> MeshStore:
    """Return ``count`` closed meshes of about a thousand triangles, without clips; the first do not depend on it."""
    meshes = []
    for index in range(count):
        stream = RandomStream(seed, index, 2)
        points, faces = _SHAPES[index % len(_SHAPES)](stream)
        points = points - (points.max(0) + points.min(0)) / 2
        points = points / np.linalg.norm(points, axis=1).max()
        materials = np.floor(np.arange(len(faces)) * MATERIALS / len(faces)).astype(np.uint8)
        if stream.draw_between(0, 1) < 0.6:
            materials[:] = 0
        meshes.append(([points[None].astype(np.float32)], faces, materials))
    return build_mesh_store(meshes)


def _build_parameter_grid(along_closed: bool) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return two parameters in 0 ... 1 of a surface's vertices, and its triangles; it is closed around."""
    rows = _ALONG if along_closed else _ALONG + 1
    u = np.repeat(np.arange(rows) / _ALONG, _AROUND)
    v = np.tile(np.arange(_AROUND) / _AROUND, rows)
    row, column = (index.ravel() for index in np.meshgrid(np.arange(_ALONG), np.arange(_AROUND), indexing="ij"))
    below, next_column = (row + 1) % rows, (column + 1) % _AROUND
    corners = [
        at * _AROUND + to for at, to in ((row, column), (below, column), (below, next_column), (row, next_column))
    ]
    faces = np.concatenate([np.stack([corners[k] for k in side], 1) for side in ((0, 1, 2), (0, 2, 3))])
    return u, v, faces


def _signed_power(value: Floats, exponent: float) -> Floats:
    result: Floats = np.sign(value) * np.abs(value) ** exponent
    return result


def _draw_superquadric(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid(along_closed=False)
    first, second = stream.draw_between(0.15, 1.8), stream.draw_between(0.15, 1.8)
    latitude, longitude = np.pi * (u - 0.5), 2 * np.pi * v
    ring = _signed_power(np.cos(latitude), first)
    points = [ring * _signed_power(np.cos(longitude), second), _signed_power(np.sin(latitude), first)]
    points.append(ring * _signed_power(np.sin(longitude), second))
    return np.stack(points, 1) * [stream.draw_between(0.35, 1) for _ in range(3)], faces


def _draw_torus(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid(along_closed=True)
    thickness, wave = stream.draw_between(0.12, 0.45), stream.draw_between(0, 0.4)
    turns = stream.draw_integer(2, 5)
    around, across = 2 * np.pi * u, 2 * np.pi * v
    radius = 1 + thickness * np.cos(across)
    height = thickness * np.sin(across) + wave * np.sin(turns * around)
    return np.stack([radius * np.cos(around), height, radius * np.sin(around)], 1), faces


def _draw_tube(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    """Return a tube along a random curve, thicker and thinner, closed at its ends."""
    u, v, faces = _build_parameter_grid(along_closed=False)
    between = stream.draw_between
    waves = [(between(0.2, 0.7), between(0.5, 2.5), between(0, 6.28)) for _ in range(2)]
    x, z = (high * np.sin(np.pi * count * u + phase) for high, count, phase in waves)
    ends = np.minimum(1, 12 * np.minimum(u, 1 - u)) ** 0.5
    thickness = stream.draw_between(0.1, 0.3) * ends * (1 + stream.draw_between(0, 0.6) * np.sin(9 * u + waves[0][2]))
    angle = 2 * np.pi * v
    return np.stack([x + thickness * np.cos(angle), 2 * u - 1, z + thickness * np.sin(angle)], 1), faces


def _build_sphere(stream: RandomStream, radius: Callable[[Floats], Floats]) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid(along_closed=False)
    latitude, longitude = np.pi * (u - 0.5), 2 * np.pi * v
    ring = np.cos(latitude)
    points = np.stack([ring * np.cos(longitude), np.sin(latitude), ring * np.sin(longitude)], 1)
    return points * radius(points)[:, None] * [stream.draw_between(0.4, 1) for _ in range(3)], faces


def _draw_lump(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    between = stream.draw_between
    waves = [(stream.draw_uniform_numbers(3) * 8 - 4, between(0, 6.28), between(0.03, 0.2)) for _ in range(5)]

    def compute_radius(points: Floats) -> Floats:
        heights = [high * np.sin(points @ along + phase) for along, phase, high in waves]
        total: Floats = 1 + np.sum(heights, axis=0)
        return total

    return _build_sphere(stream, compute_radius)


def _draw_spiky_sphere(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    spikes = stream.draw_uniform_numbers(stream.draw_integer(4, 12), 3) - 0.5
    spikes = spikes / np.linalg.norm(spikes, axis=1, keepdims=True)
    sharpness, height = stream.draw_between(8, 60), stream.draw_between(0.3, 1.5)
    return _build_sphere(stream, lambda at: 1 + height * np.exp(sharpness * ((at @ spikes.T).max(1) - 1)))


_SHAPES = (_draw_superquadric, _draw_tube, _draw_torus, _draw_lump, _draw_spiky_sphere)
