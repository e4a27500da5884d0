"""Synthetic scenes of points, and pairs of partial clouds cut from one cloud, with the places that are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield.registration.descriptors import Floats, Ints, find_nearest
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import CELLS, choose_voxel, select_one_index_per_cell

RandomGenerator = np.random.Generator
Relief = Callable[[Floats, Floats], Floats]  # heights over two coordinates along the surface, metres

_STREETS = 0.3
"""Share of scenes that are out of doors."""


class SampledSurface(NamedTuple):
    """Piece of a scene."""

    area: float  # square metres, roughly
    sample_points: Callable[[Floats, Floats], Floats]  # [n], [n] in 0 to 1 → [n, 3]


def sample_synthetic_scene_points(rng: np.random.Generator, point_count: int = 60_000) -> Floats:
    """Return points [N, 3], metres, on the surfaces of a random room or street, seen from all sides.

    The same state of ``rng`` gives the same scene.
    """
    surfaces = _draw_street_surfaces(rng) if rng.random() < _STREETS else _draw_room_surfaces(rng)
    weights = np.array([surface.area for surface in surfaces]) * rng.uniform(0.7, 1.5, len(surfaces))
    counts = rng.multinomial(point_count, weights / weights.sum())
    points_by_surface = [
        surface.sample_points(*rng.random((2, count))) for surface, count in zip(surfaces, counts, strict=True)
    ]
    return np.concatenate(points_by_surface)


def _draw_room_surfaces(rng: RandomGenerator) -> list[SampledSurface]:
    width, depth, height = rng.uniform((2.5, 2.5, 2.0), (7.0, 7.0, 3.2))
    x, y, z = np.eye(3)
    surfaces = [_build_sheet(rng, np.zeros(3), width * x, depth * y, 0.3)]
    walls = [(np.zeros(3), width * x), (np.zeros(3), depth * y), (depth * y, width * x), (width * x, depth * y)]
    for start, along in walls[: rng.integers(1, 5)]:
        surfaces.append(_build_sheet(rng, start, along, height * z, 0.3))
        for _ in range(rng.integers(0, 4)):  # frames, boards, boxes on the wall
            across = np.cross(z, along / np.linalg.norm(along))
            at = start + rng.uniform(0.1, 0.8) * along + rng.uniform(0.1, 0.7) * height * z
            size = rng.uniform((0.1, 0.02, 0.1), (1.2, 0.3, 1.0))
            surfaces += _build_box(rng, at, np.stack((along / np.linalg.norm(along), across, z)), size)
    things = (
        _draw_crate,
        _draw_table,
        _draw_chair,
        _draw_shelf,
        _draw_column,
        _draw_ball,
        _draw_plant,
        _draw_curved_sheet,
        _draw_stairs,
    )
    for _ in range(rng.integers(6, 22)):
        at = np.array([rng.uniform(0.3, width - 0.3), rng.uniform(0.3, depth - 0.3), 0.0])
        surfaces += things[rng.integers(len(things))](rng, at, rng.uniform(0.6, 1.4))
    for _ in range(rng.integers(3, 14)):  # small things, on whatever may be there
        at = np.array([rng.uniform(0.3, width - 0.3), rng.uniform(0.3, depth - 0.3), rng.choice((0.0, 0.45, 0.75))])
        surfaces += (_draw_crate, _draw_column, _draw_ball)[rng.integers(3)](rng, at, rng.uniform(0.15, 0.4))
    return surfaces


def _draw_street_surfaces(rng: RandomGenerator) -> list[SampledSurface]:
    length, width = rng.uniform((25.0, 10.0), (60.0, 25.0))
    x, y, z = np.eye(3)
    surfaces = [_build_sheet(rng, np.array([-length / 2, -width / 2, 0.0]), length * x, width * y, 1.0)]
    for side in (-1, 1):
        at = -length / 2
        while at < length / 2:
            front, height, deep = rng.uniform((5, 3, 4), (14, 10, 8))
            if rng.random() < 0.75:
                corner = np.array([at, side * width / 2 + (0 if side > 0 else -deep), 0.0])
                surfaces += _build_box(rng, corner, np.eye(3), np.array([front, deep, height]))
                for _ in range(rng.integers(2, 9)):  # windows, doors, balconies
                    position = corner + rng.uniform(0.05, 0.85) * front * x + (0.0 if side > 0 else deep) * y
                    position = position + rng.uniform(0.0, 0.8) * height * z - rng.uniform(0.1, 0.6) * y
                    surfaces += _build_box(rng, position, np.eye(3), rng.uniform((0.5, 0.3, 0.8), (2.5, 1.2, 2.5)))
            at += front + rng.uniform(0.0, 5.0)
    things = (_draw_crate, _draw_column, _draw_plant, _draw_plant, _draw_ball, _draw_stairs)
    for _ in range(rng.integers(10, 30)):
        spot = np.array([rng.uniform(-0.5, 0.5) * length, rng.uniform(-0.45, 0.45) * width, 0.0])
        surfaces += things[rng.integers(len(things))](rng, spot, rng.uniform(1.5, 4.0))
    return surfaces


def _draw_relief_function(rng: RandomGenerator, relief_scale: float) -> Relief:
    """Return a sum of waves; zero for a third of the surfaces."""
    relief_scale = 0.0 if rng.random() < 0.33 else relief_scale
    lengths = np.exp(rng.uniform(np.log(0.15), np.log(1.5), 5)) * max(relief_scale, 0.3)
    angles, phases = rng.uniform(0, 2 * np.pi, (2, 5))
    heights = relief_scale * rng.uniform(0.0, 0.04, 5) * lengths

    def compute_height(u: Floats, v: Floats) -> Floats:
        along = np.cos(angles) * u[:, None] + np.sin(angles) * v[:, None]
        waves: Floats = (heights * np.sin(2 * np.pi * along / lengths + phases)).sum(1)
        return waves

    return compute_height


def _build_sheet(
    rng: RandomGenerator, position: Floats, along: Floats, across: Floats, relief_scale: float
) -> SampledSurface:
    normal = np.cross(along, across)
    area, length, width = (float(np.linalg.norm(v)) for v in (normal, along, across))
    relief, normal = _draw_relief_function(rng, relief_scale), normal / area

    def compute_points(u: Floats, v: Floats) -> Floats:
        points: Floats = (
            position + u[:, None] * along + v[:, None] * across + relief(u * length, v * width)[:, None] * normal
        )
        return points

    return SampledSurface(area, compute_points)


def _draw_upright_axes(rng: RandomGenerator) -> Floats:
    """Return three axes, turned about the vertical."""
    angle = rng.uniform(0, 2 * np.pi)
    return np.array([[np.cos(angle), np.sin(angle), 0.0], [-np.sin(angle), np.cos(angle), 0.0], [0.0, 0.0, 1.0]])


def _draw_random_axes(rng: RandomGenerator) -> Floats:
    """Return three axes of a random rotation."""
    axes, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return axes


def _build_box(rng: RandomGenerator, corner: Floats, axes: Floats, size: Floats) -> list[SampledSurface]:
    edges = axes * size[:, None]
    faces = []
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        faces.append(_build_sheet(rng, corner, edges[i], edges[j], 0.2))
        faces.append(_build_sheet(rng, corner + edges[k], edges[i], edges[j], 0.2))
    return faces


def _build_tube(
    rng: RandomGenerator, base_center: Floats, axis: Floats, radius: float, taper: float = 0.0, turns: float = 1.0
) -> SampledSurface:
    """Return a cylinder, cone or bent wall of ``turns`` of a circle around ``axis``."""
    long = float(np.linalg.norm(axis))
    up = axis / long
    side = np.cross(up, (1.0, 0.0, 0.0) if abs(up[0]) < 0.9 else (0.0, 1.0, 0.0))
    side /= np.linalg.norm(side)
    front, relief, start = np.cross(up, side), _draw_relief_function(rng, 0.3), rng.uniform(0, 2 * np.pi)

    def compute_points(u: Floats, v: Floats) -> Floats:
        angle = start + 2 * np.pi * turns * u
        distance = (radius * (1 - taper * v) + relief(radius * angle, long * v))[:, None]
        points: Floats = (
            base_center
            + v[:, None] * axis
            + distance * (np.cos(angle)[:, None] * side + np.sin(angle)[:, None] * front)
        )
        return points

    return SampledSurface(2 * np.pi * radius * turns * long, compute_points)


def _build_ellipsoid(rng: RandomGenerator, center: Floats, radii: Floats, roughness: float) -> SampledSurface:
    """Return an ellipsoid."""
    axes, relief = _draw_random_axes(rng), _draw_relief_function(rng, roughness)

    def compute_points(u: Floats, v: Floats) -> Floats:
        angle, height = 2 * np.pi * u, 2 * v - 1
        flat = np.sqrt(1 - height**2)
        direction = np.stack((flat * np.cos(angle), flat * np.sin(angle), height), 1)
        size = float(radii.mean())
        scale = 1 + relief(size * (angle + 2 * height), size * 3 * height) / size
        points: Floats = center + (scale[:, None] * direction * radii) @ axes
        return points

    return SampledSurface(4 * np.pi * float((radii**2).mean()), compute_points)


def _draw_crate(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    return _build_box(rng, position, _draw_upright_axes(rng), scale * rng.uniform(0.2, 0.9, 3))


def _draw_table(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    axes, size = _draw_upright_axes(rng), scale * rng.uniform((0.6, 0.5, 0.5), (1.6, 0.9, 0.8))
    thick = scale * 0.06
    surfaces = _build_box(rng, position + size[2] * axes[2], axes, np.array([size[0], size[1], thick]))
    for i, j in ((0.0, 0.0), (0.0, 0.92), (0.92, 0.0), (0.92, 0.92)):
        leg = position + i * size[0] * axes[0] + j * size[1] * axes[1]
        surfaces += _build_box(rng, leg, axes, np.array([thick, thick, size[2]]))
    return surfaces


def _draw_chair(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    surfaces = _draw_table(rng, position, 0.6 * scale)
    axes, size = _draw_upright_axes(rng), scale * rng.uniform((0.35, 0.04, 0.4), (0.5, 0.1, 0.7))
    return surfaces + _build_box(rng, position + 0.4 * scale * axes[2], axes, size)


def _draw_shelf(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    axes, size = _draw_upright_axes(rng), scale * rng.uniform((0.5, 0.2, 0.8), (1.4, 0.5, 1.8))
    surfaces = []
    for level in np.linspace(0, 0.95, rng.integers(2, 6)):
        board = position + level * size[2] * axes[2]
        surfaces += _build_box(rng, board, axes, np.array([size[0], size[1], 0.03 * scale]))
        for _ in range(rng.integers(0, 4)):
            thing = board + rng.uniform(0, 0.8) * size[0] * axes[0] + rng.uniform(0, 0.4) * size[1] * axes[1]
            surfaces += _build_box(rng, thing, axes, scale * rng.uniform(0.05, 0.3, 3))
    return surfaces


def _draw_column(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    axis = np.array([*rng.normal(scale=0.1, size=2), 1.0]) * scale * rng.uniform(0.3, 2.0)
    return [_build_tube(rng, position, axis, scale * rng.uniform(0.04, 0.3), rng.choice((0.0, rng.uniform(-0.5, 0.9))))]


def _draw_ball(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    radii = scale * rng.uniform(0.1, 0.5, 3)
    return [_build_ellipsoid(rng, position + np.array([0.0, 0.0, float(radii.max())]), radii, 0.5)]


def _draw_plant(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    stem = np.array([*rng.normal(scale=0.1, size=2), 1.0]) * scale * rng.uniform(0.3, 1.0)
    surfaces = [_build_tube(rng, position, stem, scale * 0.05)]
    for _ in range(rng.integers(2, 8)):
        middle = position + stem + rng.normal(scale=0.25 * scale, size=3)
        surfaces.append(_build_ellipsoid(rng, middle, scale * rng.uniform(0.08, 0.4, 3), 3.0))
    return surfaces


def _draw_curved_sheet(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    """Return a bent and rough surface: a cloth, a sofa's back."""
    axis = _draw_random_axes(rng)[0] * scale * rng.uniform(0.4, 1.4)
    foot = position + np.array([0.0, 0.0, scale * rng.uniform(0.2, 0.8)])
    return [_build_tube(rng, foot, axis, scale * rng.uniform(0.3, 1.2), 0.0, rng.uniform(0.1, 0.5))]


def _draw_stairs(rng: RandomGenerator, position: Floats, scale: float) -> list[SampledSurface]:
    axes, size = _draw_upright_axes(rng), scale * rng.uniform((0.2, 0.6, 0.12), (0.35, 1.2, 0.25))
    surfaces = []
    for step in range(rng.integers(2, 6)):
        block = np.array([size[0], size[1], size[2] * (step + 1)])
        surfaces += _build_box(rng, position + step * size[0] * axes[0], axes, block)
    return surfaces


MAX_MATCH_DISTANCE = 1.0
"""Voxels within which mutual nearest points are the same place."""
MIN_MATCHES = 32
"""Places that a pair shares, at least."""
_SHARED = 0.1  # of the smaller side's places, at least
_CROPPED, _CUT_OFF = 0.75, 0.6  # share of the parts that lose what lies beyond a plane, and of their points at the most
_ATTEMPTS = 20
_MAX_POINTS = 40  # a cell
_WAVES = ((0.6, 10.0, 40.0, 3), (0.25, 2.5, 6.0, 6))  # of a bent cloud, voxels: amount, shortest, longest; how many


class PairCloud(NamedTuple):
    """Cloud of a pair, in voxels around its own middle."""

    points: Floats  # [F, 3], one point per half voxel
    described_rows: Ints  # [N], those that are described


class OverlappingPair(NamedTuple):
    """Two clouds of one scene."""

    source: PairCloud
    target: PairCloud
    truth: Floats  # [4, 4], source into target
    matches: Ints  # [K, 2] into the two rows: mutual nearest within MAX_MATCH_DISTANCE

    @property
    def source_descriptor_points_in_target(self) -> Floats:
        """Return the described points of the source [N, 3], moved by the true transform."""
        return apply_transform(self.truth, self.source.points[self.source.described_rows])


def synthesize_overlapping_pair_if_possible(
    points: Floats, rng: np.random.Generator, cell_count: int = CELLS, second_scan: Floats | None = None
) -> OverlappingPair | None:
    """Return two overlapping parts of ``points`` [N, 3], each degraded and turned at random.

    With ``second_scan`` [M, 3], a second scan of the same place in the same frame, the second part is of that.

    Each side draws its own points (so that densities differ, also within a side), may lose what its viewpoint does not
    see and what lies beyond a plane, is bent a little, gets noise, and its own rigid motion. Both are in voxels, of an
    edge with which the larger has about ``cell_count`` of them. None where twenty draws found too little in common. The
    same state of ``rng`` gives the same pair.
    """
    middle = (points.min(0) + points.max(0)) / 2
    scans = [_subsample_points(points, rng, _MAX_POINTS * cell_count) - middle]
    scans.append(
        scans[0] if second_scan is None else _subsample_points(second_scan, rng, _MAX_POINTS * cell_count) - middle
    )
    for _ in range(_ATTEMPTS):
        views = [_simulate_partial_view(scan, rng) for scan in scans]
        if min(len(view) for view in views) < MIN_MATCHES:
            continue
        edge = choose_voxel(*views) * float(np.sqrt(CELLS / cell_count) * rng.uniform(0.75, 1.25))
        if edge <= 0.0:
            return None
        noise = rng.choice((0.0, rng.uniform(0.0, 0.3)))
        sides, poses = [], []
        for view in views:
            turn = _draw_rotation(rng)
            cloud = _bend_points_by_waves(view / edge, rng) @ turn.T
            centre = (cloud.min(0) + cloud.max(0)) / 2
            cloud = cloud - centre + rng.normal(scale=noise, size=cloud.shape)
            fine = cloud[select_one_index_per_cell(cloud, 0.5)]
            sides.append(PairCloud(fine, select_one_index_per_cell(fine, 1.0)))
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = turn, -centre
            poses.append(pose)
        truth = poses[1] @ np.linalg.inv(poses[0])
        matches = match_mutual_nearest_points(
            apply_transform(truth, sides[0].points[sides[0].described_rows]), sides[1].points[sides[1].described_rows]
        )
        if len(matches) >= max(MIN_MATCHES, _SHARED * min(len(side.described_rows) for side in sides)):
            return OverlappingPair(sides[0], sides[1], truth, matches)
    return None


def _subsample_points(points: Floats, rng: RandomGenerator, max_points: int) -> Floats:
    return points if len(points) <= max_points else points[rng.choice(len(points), max_points, replace=False)]


def match_mutual_nearest_points(
    source_in_target: Floats, target: Floats, max_distance: float = MAX_MATCH_DISTANCE
) -> Ints:
    """Return the rows [K, 2] of both clouds whose points are mutual nearest, within ``max_distance``."""
    if not len(source_in_target) or not len(target):
        return np.empty((0, 2), np.int64)
    distances, forth = (column[:, 0] for column in find_nearest(target, source_in_target))
    back = find_nearest(source_in_target, target)[1][:, 0]
    rows = np.flatnonzero((back[forth] == np.arange(len(source_in_target))) & (distances <= max_distance))
    return np.stack((rows, forth[rows]), 1)


def _draw_rotation(rng: RandomGenerator) -> Floats:
    """Return a uniformly distributed rotation."""
    turn, upper = np.linalg.qr(rng.normal(size=(3, 3)))
    turn = turn * np.sign(np.diag(upper))
    turned: Floats = turn * np.linalg.det(turn)
    return turned


def _simulate_partial_view(points: Floats, rng: RandomGenerator) -> Floats:
    cloud = points[rng.random(len(points)) < _draw_keep_probabilities(points, rng)]
    if len(cloud) and rng.random() < 0.25:
        low, high = cloud.min(0), cloud.max(0)  # the eye is in the box around the points, or a little outside
        cloud = cloud[_is_visible_from(cloud, (low + high) / 2 + rng.uniform(-0.65, 0.65, 3) * (high - low))]
    if len(cloud) and rng.random() < _CROPPED:
        direction = rng.normal(size=3)
        along = cloud @ direction
        cloud = cloud[along >= np.quantile(along, rng.uniform(0.0, _CUT_OFF))]
    return cloud


def _bend_points_by_waves(points: Floats, rng: RandomGenerator) -> Floats:
    """Move voxels by waves: long ones, as reconstructions drift, and short ones, as noisy surfaces have."""
    bent = points.copy()
    for max_amount, shortest, longest, waves in _WAVES:
        amount = rng.uniform(0.0, max_amount) / np.sqrt(waves)
        for _ in range(waves):
            along = rng.normal(size=3)
            along *= 2 * np.pi / rng.uniform(shortest, longest) / np.linalg.norm(along)
            phase, direction = rng.uniform(0, 2 * np.pi), rng.normal(size=3)
            bent += amount * np.sin(points @ along + phase)[:, None] * direction
    return bent


def _draw_keep_probabilities(points: Floats, rng: RandomGenerator) -> Floats:
    """Return the keep probability [N]: uniform, or falling along one direction."""
    highest = rng.uniform(0.35, 0.95)
    if rng.random() < 0.5:
        return np.full(len(points), highest)
    direction = rng.normal(size=3)
    along = points @ (direction / np.linalg.norm(direction))
    thinned: Floats = highest * np.exp(-rng.uniform(0.0, 2.0) * (along - along.min()) / max(float(np.ptp(along)), 1e-9))
    return thinned


def _is_visible_from(points: Floats, eye: Floats) -> NDArray[np.bool_]:
    """Return which points [N] are about as near as the nearest in their direction, of about five points."""
    offsets = points - eye
    depth = np.maximum(np.linalg.norm(offsets, axis=1), 1e-9)
    across = max(8, round(np.sqrt(len(points) / 5 / 2)))
    row = np.arccos(np.clip(offsets[:, 2] / depth, -1, 1)) / np.pi * across
    column = (np.arctan2(offsets[:, 1], offsets[:, 0]) / (2 * np.pi) + 0.5) * 2 * across
    cell = row.astype(np.int64).clip(0, across - 1) * 2 * across + column.astype(np.int64).clip(0, 2 * across - 1)
    first = np.full(2 * across * across, np.inf)
    np.minimum.at(first, cell, depth)
    visible: NDArray[np.bool_] = depth <= 1.1 * first[cell] + 0.02 * float(np.median(depth))
    return visible
