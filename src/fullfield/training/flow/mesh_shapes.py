"""Procedural meshes, drawn from a seed: superquadrics, tori, bent tubes, lumps, spiky balls, and objects of thin bars.

The bars are legs, rungs, posts and branches that move with the body that they are fixed to, as in furniture and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.layered.meshes import MATERIALS, MeshStore, build_mesh_store_from_clips
from fullfield.training.flow.procedural import RandomStream
from fullfield.training.flow.scene_draw import Floats

_ALONG, _AROUND = 28, 20  # cells of a surface, which has two triangles a cell


def create_procedural_meshes(count: int = 48, barred_count: int = 0, seed: int = 0) -> MeshStore:
    """Return closed meshes without clips; each depends on the seed and its own number alone.

    Args:
        count: meshes of about a thousand triangles, smooth ones.
        barred_count: meshes of bars and boards, some hundred triangles, after them.
        seed: of everything.
    """
    meshes = []
    for index in range(count + barred_count):
        shapes, number, purpose = (_SHAPES, index, 2) if index < count else (_BARRED_SHAPES, index - count, 3)
        stream = RandomStream(seed, number, purpose)
        points, faces = shapes[number % len(shapes)](stream)
        points = points - (points.max(0) + points.min(0)) / 2
        points = points / np.linalg.norm(points, axis=1).max()
        materials = np.floor(np.arange(len(faces)) * MATERIALS / len(faces)).astype(np.uint8)
        if stream.draw_between(0, 1) < 0.6:
            materials[:] = 0
        meshes.append(([points[None].astype(np.float32)], faces, materials))
    return build_mesh_store_from_clips(meshes)


def _build_parameter_grid_and_faces(is_closed_along: bool) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return two parameters in 0 ... 1 of a surface's vertices, and its triangles; it is closed around."""
    rows = _ALONG if is_closed_along else _ALONG + 1
    u = np.repeat(np.arange(rows) / _ALONG, _AROUND)
    v = np.tile(np.arange(_AROUND) / _AROUND, rows)
    row, column = (index.ravel() for index in np.meshgrid(np.arange(_ALONG), np.arange(_AROUND), indexing="ij"))
    below, next_column = (row + 1) % rows, (column + 1) % _AROUND
    corners = [
        at * _AROUND + to for at, to in ((row, column), (below, column), (below, next_column), (row, next_column))
    ]
    faces = np.concatenate([np.stack([corners[k] for k in side], 1) for side in ((0, 1, 2), (0, 2, 3))])
    return u, v, faces


def _raise_to_signed_power(value: Floats, exponent: float) -> Floats:
    result: Floats = np.sign(value) * np.abs(value) ** exponent
    return result


def _draw_superquadric(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid_and_faces(is_closed_along=False)
    first, second = stream.draw_between(0.15, 1.8), stream.draw_between(0.15, 1.8)
    latitude, longitude = np.pi * (u - 0.5), 2 * np.pi * v
    ring = _raise_to_signed_power(np.cos(latitude), first)
    points = [ring * _raise_to_signed_power(np.cos(longitude), second), _raise_to_signed_power(np.sin(latitude), first)]
    points.append(ring * _raise_to_signed_power(np.sin(longitude), second))
    return np.stack(points, 1) * [stream.draw_between(0.35, 1) for _ in range(3)], faces


def _draw_torus(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid_and_faces(is_closed_along=True)
    thickness, wave = stream.draw_between(0.12, 0.45), stream.draw_between(0, 0.4)
    turns = stream.draw_integer(2, 5)
    around, across = 2 * np.pi * u, 2 * np.pi * v
    radius = 1 + thickness * np.cos(across)
    height = thickness * np.sin(across) + wave * np.sin(turns * around)
    return np.stack([radius * np.cos(around), height, radius * np.sin(around)], 1), faces


def _draw_tube(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    """Return a tube along a random curve, thicker and thinner, closed at its ends."""
    u, v, faces = _build_parameter_grid_and_faces(is_closed_along=False)
    between = stream.draw_between
    waves = [(between(0.2, 0.7), between(0.5, 2.5), between(0, 6.28)) for _ in range(2)]
    x, z = (high * np.sin(np.pi * count * u + phase) for high, count, phase in waves)
    ends = np.minimum(1, 12 * np.minimum(u, 1 - u)) ** 0.5
    thickness = stream.draw_between(0.1, 0.3) * ends * (1 + stream.draw_between(0, 0.6) * np.sin(9 * u + waves[0][2]))
    angle = 2 * np.pi * v
    return np.stack([x + thickness * np.cos(angle), 2 * u - 1, z + thickness * np.sin(angle)], 1), faces


def _build_squashed_sphere(
    stream: RandomStream, compute_radius: Callable[[Floats], Floats]
) -> tuple[Floats, NDArray[np.int64]]:
    u, v, faces = _build_parameter_grid_and_faces(is_closed_along=False)
    latitude, longitude = np.pi * (u - 0.5), 2 * np.pi * v
    ring = np.cos(latitude)
    points = np.stack([ring * np.cos(longitude), np.sin(latitude), ring * np.sin(longitude)], 1)
    return points * compute_radius(points)[:, None] * [stream.draw_between(0.4, 1) for _ in range(3)], faces


def _draw_lump(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    between = stream.draw_between
    waves = [(stream.draw_uniform_numbers(3) * 8 - 4, between(0, 6.28), between(0.03, 0.2)) for _ in range(5)]

    def compute_radius(points: Floats) -> Floats:
        heights = [high * np.sin(points @ along + phase) for along, phase, high in waves]
        total: Floats = 1 + np.sum(heights, axis=0)
        return total

    return _build_squashed_sphere(stream, compute_radius)


def _draw_spiky_sphere(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    spikes = stream.draw_uniform_numbers(stream.draw_integer(4, 12), 3) - 0.5
    spikes = spikes / np.linalg.norm(spikes, axis=1, keepdims=True)
    sharpness, height = stream.draw_between(8, 60), stream.draw_between(0.3, 1.5)
    return _build_squashed_sphere(stream, lambda at: 1 + height * np.exp(sharpness * ((at @ spikes.T).max(1) - 1)))


Bar = tuple[Floats, float, float]
"""Both ends [2, 3] of a bar, and half its sides: across in the horizontal plane, and along the third direction."""


_CUBOID_SIDES = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])


def _build_bar_mesh(bars: Sequence[Bar]) -> tuple[Floats, NDArray[np.int64]]:
    """Return vertices and triangles of bars of a rectangular section."""
    cuboid = np.concatenate([_CUBOID_SIDES[:, [0, 1, 2]], _CUBOID_SIDES[:, [0, 2, 3]]])
    points = []
    for ends, half_width, half_height in bars:
        along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
        is_upright = abs(along[1]) > 0.9
        width = np.cross([1.0, 0.0, 0.0] if is_upright else [0.0, 1.0, 0.0], along)
        width /= np.linalg.norm(width)
        height = np.cross(along, width)
        sides = [sign * half_width * width + other * half_height * height for sign in (-1, 1) for other in (-1, 1)]
        points += [end + side for end in ends for side in sides]
    faces = np.concatenate([cuboid + 8 * index for index in range(len(bars))])
    return np.array(points), faces


def _build_bar_between(
    start: Sequence[float] | Floats, end: Sequence[float] | Floats, width: float, height: float = 0
) -> Bar:
    """Return the bar between two points, square unless a ``height`` is given."""
    return np.array([start, end], np.float64), width, height or width


def _draw_furniture(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    """Return a chair, bench, stool or table: a board on legs, some with rungs, a back of posts and slats, and arms."""
    between = stream.draw_between
    width, depth, leg, board = between(0.3, 1.2), between(0.3, 0.7), between(0.5, 1.4), between(0.015, 0.1)
    thickness, splay, rung = between(0.012, 0.06), between(0.85, 1.35), between(0.2, 0.8)
    bars = [_build_bar_between([-width, 0, 0], [width, 0, 0], depth, board)]
    corners = [(side * width * 0.93, back * depth * 0.93) for side, back in ((-1, -1), (-1, 1), (1, 1), (1, -1))]
    feet = [np.array([x * splay, -leg, z * splay]) for x, z in corners]
    for (x, z), foot in zip(corners, feet, strict=True):
        bars.append(_build_bar_between([x, 0, z], foot, thickness))
    if between(0, 1) < 0.6:
        joints = [np.array([x, 0, z]) * rung + foot * (1 - rung) for (x, z), foot in zip(corners, feet, strict=True)]
        sides = [pair for pair in pairwise([*joints, joints[0]]) if between(0, 1) < 0.7]
        bars += [_build_bar_between(start, end, 0.7 * thickness) for start, end in sides]
    if between(0, 1) < 0.65:
        high, tilt = between(0.5, 1.3), between(-0.1, 0.35)
        posts = [np.array([side * width * 0.93, 0, -depth]) for side in (-1, 1)]
        tops = [post + np.array([0, high, -tilt]) for post in posts]
        bars += [_build_bar_between(post, top, thickness) for post, top in zip(posts, tops, strict=True)]
        slats, are_upright, slat = stream.draw_integer(1, 5), between(0, 1) < 0.4, between(0.02, 0.12)
        for position in (np.arange(slats) + 1) / (slats + 0.5):
            if are_upright:
                low = posts[0] + (posts[1] - posts[0]) * min(position, 0.95)
                bars.append(_build_bar_between(low, low + tops[0] - posts[0], slat, thickness / 2))
            else:
                ends = [post + (top - post) * min(position, 1.0) for post, top in zip(posts, tops, strict=True)]
                bars.append(_build_bar_between(ends[0], ends[1], thickness / 2, 1.5 * slat))
        if between(0, 1) < 0.3:
            for side in (-1, 1):
                elbow = np.array([side * width, 0.4 * high, 0.8 * depth])
                bars.append(_build_bar_between([side * width, 0.4 * high, -depth], elbow, thickness))
                bars.append(_build_bar_between(elbow, elbow * [1, 0, 1], thickness))
    return _build_bar_mesh(bars)


def _draw_lattice(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    """Return a ladder, fence, shelf or scaffold: rails and the rungs between them, some in two storeys or depths."""
    between = stream.draw_between
    half_gap, rungs, thickness = between(0.12, 0.9), stream.draw_integer(2, 9), between(0.012, 0.05)
    rung, board = thickness * between(0.5, 1.2), between(0, 1) < 0.25
    rows = [0.0] if between(0, 1) < 0.6 else [-between(0.15, 0.6), between(0.15, 0.6)]
    bars = []
    for row in rows:
        bars += [
            _build_bar_between([side * half_gap, -1, row], [side * half_gap, 1, row], thickness) for side in (-1, 1)
        ]
    for height in np.linspace(-0.93, 0.93, rungs):
        if board:
            depth = (rows[-1] - rows[0]) / 2 + thickness
            middle = (rows[-1] + rows[0]) / 2
            bars.append(_build_bar_between([-half_gap, height, middle], [half_gap, height, middle], depth, rung))
        else:
            bars += [_build_bar_between([-half_gap, height, row], [half_gap, height, row], rung) for row in rows]
            sides = (-half_gap, half_gap) if len(rows) > 1 else ()
            bars += [_build_bar_between([side, height, rows[0]], [side, height, rows[1]], rung) for side in sides]
    return _build_bar_mesh(bars)


def _draw_box_with_limbs(stream: RandomStream) -> tuple[Floats, NDArray[np.int64]]:
    """Return a rod with a head, or a body with limbs: a box, and jointed bars that leave it in random directions."""
    between = stream.draw_between
    box = np.array([between(0.02, 0.4) for _ in range(3)])
    bars = [_build_bar_between([-box[0], 0, 0], [box[0], 0, 0], box[2], box[1])]
    for _ in range(stream.draw_integer(1, 7)):
        start, thickness = (2 * stream.draw_uniform_numbers(3) - 1) * box * 0.8, between(0.01, 0.06)
        for length in (between(0.3, 1.2), between(0.1, 0.7))[: stream.draw_integer(1, 2)]:
            heading = 2 * stream.draw_uniform_numbers(3) - 1
            end = start + length * heading / max(float(np.linalg.norm(heading)), 1e-3)
            bars.append(_build_bar_between(start, end, thickness))
            start, thickness = end, 0.8 * thickness
    return _build_bar_mesh(bars)


_SHAPES = (_draw_superquadric, _draw_tube, _draw_torus, _draw_lump, _draw_spiky_sphere)
_BARRED_SHAPES = (_draw_furniture, _draw_lattice, _draw_furniture, _draw_box_with_limbs)
