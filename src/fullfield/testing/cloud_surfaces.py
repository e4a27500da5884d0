"""Surfaces and windows from which synthetic pairs of point clouds are sampled. Lengths are metres."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RandomGenerator = np.random.Generator
Sampler = Callable[[RandomGenerator, int], Floats]
"""Samples n points [n, 3] of a scene's surfaces."""

_MIN_POINTS, _MAX_POINTS = 5000, 16_000  # of a cloud


def draw_point_count(rng: RandomGenerator) -> int:
    """Return a random number of points of a cloud."""
    return int(np.exp(rng.uniform(np.log(_MIN_POINTS), np.log(_MAX_POINTS))))


def create_face_sampler(parallelograms: list[Floats]) -> Sampler:
    """Return the sampler of parallelograms [3, 3]: corner, two edges."""
    stacked = np.stack(parallelograms)
    areas = np.linalg.norm(np.cross(stacked[:, 1], stacked[:, 2]), axis=1)

    def sample(rng: RandomGenerator, count: int) -> Floats:
        rows = stacked[rng.choice(len(stacked), count, p=areas / areas.sum())]
        u, v = rng.random((2, count, 1))
        points: Floats = rows[:, 0] + u * rows[:, 1] + v * rows[:, 2]
        return points

    return sample


def join_weighted_samplers(*weighted_samplers: tuple[float, Sampler]) -> Sampler:
    """Return the sampler of several surfaces, each with its share of the points."""
    shares = np.array([fraction for fraction, _ in weighted_samplers])

    def sample(rng: RandomGenerator, count: int) -> Floats:
        counts = rng.multinomial(count, shares / shares.sum())
        return np.concatenate([one(rng, points) for (_, one), points in zip(weighted_samplers, counts, strict=True)])

    return sample


def list_box_faces(corner: Floats, size: Floats, angle: float = 0.0) -> list[Floats]:
    """Return the six faces of a box, turned about the vertical through its corner."""
    axes = np.array([[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    edges, result = axes * size[:, None], []
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        result.append(np.stack([corner, edges[i], edges[j]]))
        result.append(np.stack([corner + edges[k], edges[i], edges[j]]))
    return result


def rotate_and_lift_faces(
    parallelograms: list[Floats], angle: float, center: Floats, lift: float = 0.0
) -> list[Floats]:
    """Turn faces about the vertical through ``center``, and lift them."""
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    result = []
    for face in parallelograms:
        turned = face @ turn.T
        turned[0] = (face[0] - center) @ turn.T + center + (0, 0, lift)
        result.append(turned)
    return result


def draw_room_faces(
    rng: RandomGenerator, width: float, depth: float, height: float, wall_count: int = 4
) -> list[Floats]:
    """Return a floor, walls and, at times, a ceiling."""
    w, d, h = np.diag([width, depth, height])
    sides = [(0 * w, w, h), (0 * w, d, h), (d, w, h), (w, d, h)]
    result = [np.stack([0 * w, w, d])] + [np.stack(side) for side in sides[:wall_count]]
    return [*result, np.stack([h, w, d])] if rng.random() < 0.3 else result


def draw_furniture_faces(rng: RandomGenerator, count: int, width: float, depth: float) -> list[Floats]:
    """Return the faces of ``count`` random boxes on a floor."""
    result: list[Floats] = []
    for _ in range(count):
        size = rng.uniform((0.25, 0.25, 0.2), (1.1, 0.9, 1.4))
        corner = np.array([rng.uniform(0.2, width - 0.6), rng.uniform(0.2, depth - 0.6), 0.0])
        result += list_box_faces(corner, size, rng.uniform(0, np.pi))
    return result


def create_furnished_room_sampler(rng: RandomGenerator, box_count_range: tuple[int, int] = (6, 15)) -> Sampler:
    """Return a room of a floor, two to four walls and boxes that are turned about the vertical."""
    width, depth, height = rng.uniform((3.5, 3.0, 2.2), (7.0, 5.5, 3.0))
    shell = draw_room_faces(rng, width, depth, height, int(rng.integers(2, 5)))
    return create_face_sampler(shell + draw_furniture_faces(rng, int(rng.integers(*box_count_range)), width, depth))


def sample_room_scan(seed: int, point_count: int = 9000, *, scan_seed: int = 0, noise_m: float = 0.003) -> Floats:
    """Return points [points, 3] in metres on a floor, two walls and twelve boxes that are turned about the vertical.

    Args:
        seed: seed of the room; the same seed gives the same room.
        point_count: number of points.
        scan_seed: seed of the points; another scan samples other points of the same surfaces.
        noise_m: standard deviation of the points' error, in metres.
    """
    layout, rng = np.random.default_rng(seed), np.random.default_rng((seed, scan_seed))
    width, depth, height = layout.uniform((4.5, 3.5, 2.2), (6.5, 5.0, 3.0))
    origin, (x, y, z) = np.zeros(3), np.diag([width, depth, height])
    parallelograms = [np.stack((origin, *edges)) for edges in ((x, y), (x, z), (y, z))]
    for _ in range(12):
        angle, size = layout.uniform(0, np.pi), layout.uniform(0.25, 1.0, 3)
        corner = layout.uniform((0.5, 0.5, 0.0), (width - 0.5, depth - 0.5, 1.2))
        parallelograms += list_box_faces(corner, size, angle)
    cloud = create_face_sampler(parallelograms)(rng, point_count)
    return cloud + rng.normal(scale=noise_m, size=cloud.shape)


def draw_profile_corners(rng: RandomGenerator) -> Floats:
    """Return the corners [K, 2] of the profile of stairs, a kerb, a rail, a moulding, a corridor or a roof."""
    kind = rng.integers(7)
    if kind == 0:
        rise, going, start = rng.uniform(0.14, 0.2), rng.uniform(0.25, 0.35), rng.uniform(0.8, 2.0)
        steps = [(0.0, 0.0), (start, 0.0)]
        for _ in range(rng.integers(3, 9)):
            steps += [(steps[-1][0], steps[-1][1] + rise), (steps[-1][0] + going, steps[-1][1] + rise)]
        return np.array([*steps, (steps[-1][0] + rng.uniform(0.0, 1.5), steps[-1][1])])
    if kind == 1:  # road, kerb, pavement, wall
        kerb = rng.uniform(0.08, 0.25)
        return np.array([(0, 0.05), (3, 0), (3.02, kerb), (4.5, kerb + 0.03), (4.5, kerb + rng.uniform(0.5, 3))])
    if kind == 2:  # rails on a bed
        x, rail = rng.uniform(1.0, 1.5), [(0, 0), (0.04, 0.02), (0.04, 0.13), (0.0, 0.17), (0.07, 0.17)]
        bed = [(-2.5, -0.6), (-1.6, 0.0), (-x / 2, 0.0)]
        left = [(a - x / 2, b) for a, b in rail] + [(0.07 - x / 2, 0.0)]
        return np.array(bed + left + [(a + x / 2, b) for a, b in rail] + [(0.1 + x / 2, 0.0), (1.6, 0.0), (2.5, -0.6)])
    if kind == 3:  # a moulding's curve
        u = np.linspace(0, 1, 40)
        waves = rng.normal(size=(3, 2)) / np.arange(1, 4)[:, None]
        curve = np.stack((u, 0.0 * u), 1) * rng.uniform(0.5, 2.0)
        for n, (a, b) in enumerate(waves, 1):
            curve[:, 1] += 0.15 * (a * np.sin(2 * np.pi * n * u) + b * np.cos(2 * np.pi * n * u))
        return curve
    if kind == 4:  # a corridor
        w, h, skirt = rng.uniform(1.4, 3.0), rng.uniform(2.1, 3.0), rng.uniform(0.05, 0.2)
        wall = [(0, h), (0, skirt), (0.03, skirt), (0.03, 0), (w, 0), (w, h * 0.4), (w + rng.uniform(-0.1, 0.1), h)]
        return np.array([*wall, (0, h)] if rng.random() < 0.5 else wall)
    if kind == 5:  # a random broken line
        corners = np.cumsum(rng.uniform((-0.1, -0.6), (0.8, 0.6), (rng.integers(3, 10), 2)), 0)
        return np.asarray(corners, np.float64)
    width = rng.uniform(2, 5)  # two planes
    return np.array([(0, 0), (width, 0), (width + rng.uniform(-0.5, 2), rng.uniform(0.7, 3))])


def interpolate_profile(profile: Floats, fractions: Floats) -> Floats:
    """Return the points [N, 2] at ``fractions`` [N] of the length of a profile."""
    steps = np.linalg.norm(np.diff(profile, axis=0), axis=1)
    at = np.concatenate([[0.0], np.cumsum(steps)])
    positions = fractions * at[-1]
    return np.stack([np.interp(positions, at, profile[:, k]) for k in range(2)], 1)


def build_terrain_height_function(rng: RandomGenerator, size: float) -> Callable[[Floats], Floats]:
    """Return the heights [N] of random ground over places [N, 2]."""
    count = int(rng.integers(6, 30))
    lengths = np.exp(rng.uniform(np.log(0.08), np.log(0.7), count)) * size
    angles, phases = rng.uniform(0, 2 * np.pi, (2, count))
    heights = rng.uniform(0.01, 0.05) * lengths * rng.uniform(0.3, 1.0, count) * rng.choice((1.0, 2.0))

    def compute_height(positions: Floats) -> Floats:
        along = np.cos(angles) * positions[:, :1] + np.sin(angles) * positions[:, 1:]
        return np.asarray((heights * np.sin(2 * np.pi * along / lengths + phases)).sum(1), np.float64)

    return compute_height


# Windows


def sample_overlapping_windows(
    rng: RandomGenerator, sampler: Sampler, min_overlap: float = 0.3, max_overlap: float = 1.0
) -> tuple[Floats, Floats]:
    """Return two windows of a scene that share ``min_overlap`` to ``max_overlap`` of their points."""
    overlap, (first, second) = rng.uniform(min_overlap, max_overlap), (draw_point_count(rng), draw_point_count(rng))
    keep = 1.0 / (2.0 - overlap)
    source, target = sampler(rng, int(first / keep)), sampler(rng, int(second / keep))
    angle = rng.uniform(0, 2 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle), rng.normal(scale=0.1)])
    a, b = source @ direction, target @ direction
    return source[a <= np.quantile(b, keep)], target[b >= np.quantile(a, 1 - keep)]


def sample_windows_with_gap(rng: RandomGenerator, sampler: Sampler) -> tuple[Floats, Floats]:
    """Return two windows of a scene with a gap between them."""
    source, target = sampler(rng, 2 * draw_point_count(rng)), sampler(rng, 2 * draw_point_count(rng))
    angle = rng.uniform(0, 2 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle), 0.0])
    a, b = source @ direction, target @ direction
    return source[a <= np.quantile(a, 0.47)], target[b >= np.quantile(b, 0.53)]


def create_forest_sampler(rng: RandomGenerator, width: float = 6.0, depth: float = 5.0) -> Sampler:
    """Return uneven ground with trunks, crowns and bushes of random blobs."""
    height, trees = build_terrain_height_function(rng, width), int(rng.integers(5, 16))
    tree_positions = rng.uniform((0.0, 0.0), (width, depth), (trees, 2))
    trunks, crowns = rng.uniform(0.05, 0.12, trees), rng.uniform(0.3, 1.1, (trees, 3))
    stems = rng.uniform(0.3, 2.5, trees) * rng.choice((0.2, 1.0), trees)
    roughness = rng.uniform(0.02, 0.1)

    def sample_ground(rng: RandomGenerator, count: int) -> Floats:
        positions = rng.random((count, 2)) * (width, depth)
        return np.column_stack((positions, height(positions)))

    def sample_trunks(rng: RandomGenerator, count: int) -> Floats:
        rows, angle = rng.integers(0, trees, count), rng.uniform(0, 2 * np.pi, count)
        circle = np.stack((np.cos(angle), np.sin(angle)), 1) * trunks[rows, None]
        level = height(tree_positions[rows]) + stems[rows] * rng.random(count)
        return np.column_stack((tree_positions[rows] + circle, level))

    def sample_crowns(rng: RandomGenerator, count: int) -> Floats:
        rows, direction = rng.integers(0, trees, count), rng.normal(size=(count, 3))
        direction /= np.linalg.norm(direction, axis=1)[:, None]
        middles = np.column_stack((tree_positions, height(tree_positions) + stems))
        points: Floats = middles[rows] + crowns[rows] * direction + rng.normal(scale=roughness, size=(count, 3))
        return points

    return join_weighted_samplers((0.4, sample_ground), (0.15, sample_trunks), (0.45, sample_crowns))
