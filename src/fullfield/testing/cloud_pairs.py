"""Random pairs of point clouds with a known pose, and pairs that determine none.

Every kind is a function of a generator of random numbers; the same state gives the same pair. Lengths are metres before
a pair is scaled at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fullfield.testing.cloud_surfaces import (
    Floats,
    RandomGenerator,
    Sampler,
    build_terrain_height_function,
    create_face_sampler,
    create_forest_sampler,
    create_furnished_room_sampler,
    draw_furniture_faces,
    draw_point_count,
    draw_profile_corners,
    draw_room_faces,
    interpolate_profile,
    join_weighted_samplers,
    list_box_faces,
    rotate_and_lift_faces,
    sample_overlapping_windows,
    sample_windows_with_gap,
)

_UNITS = (1.0, 1.0, 1.0, 10.0, 1000.0, 0.1)


class CloudPair(NamedTuple):
    """Two clouds, and the pose that brings the first onto the second."""

    kind: str
    source: Floats  # [N, 3]
    target: Floats  # [M, 3]
    truth: Floats | None  # [4, 4]; None where no pose is determined or the shapes differ
    extent: float  # length of the scene's diagonal, in the clouds' units


def draw_pair_with_unique_pose(seed: int, kind: str | None = None) -> CloudPair:
    """Return a pair with one true pose; ``kind`` is one of :data:`KINDS_WITH_UNIQUE_POSE`, None takes them in turn."""
    return _draw_noisy_posed_pair_in_random_unit(seed, kind, KINDS_WITH_UNIQUE_POSE, has_unique_pose=True)


def draw_pair_without_unique_pose(seed: int, kind: str | None = None) -> CloudPair:
    """Return a pair without a true pose; ``kind``: one of :data:`KINDS_WITHOUT_UNIQUE_POSE`; None: in turn."""
    return _draw_noisy_posed_pair_in_random_unit(seed, kind, KINDS_WITHOUT_UNIQUE_POSE, has_unique_pose=False)


def _draw_noisy_posed_pair_in_random_unit(
    seed: int, kind: str | None, generators: dict[str, Kind], *, has_unique_pose: bool
) -> CloudPair:
    names = list(generators)
    name = names[seed % len(names)] if kind is None else kind
    rng = np.random.default_rng((int(has_unique_pose), names.index(name), seed))
    source, target = generators[name](rng)
    noise = rng.uniform(0.001, 0.004) * np.linalg.norm(np.ptp(target, axis=0))
    source = source + rng.normal(scale=noise * rng.uniform(0.3, 1.0), size=source.shape)
    target = target + rng.normal(scale=noise * rng.uniform(0.3, 1.0), size=target.shape)
    unit, pose = rng.choice(_UNITS), draw_pose(rng)
    inverse = pose.T.copy()
    inverse[:3, 3], inverse[3, :3] = -pose[:3, :3].T @ pose[:3, 3] * unit, 0.0
    transformed = (source @ pose[:3, :3].T + pose[:3, 3]) * unit
    extent = float(np.linalg.norm(np.ptp(target, axis=0))) * unit
    return CloudPair(name, transformed, target * unit, inverse if has_unique_pose else None, extent)


def draw_pose(rng: RandomGenerator, translation_std: float = 5.0) -> Floats:
    """Return a uniformly distributed rotation and a normally distributed translation, [4, 4]."""
    turn, upper = np.linalg.qr(rng.normal(size=(3, 3)))
    turn = turn * np.sign(np.diag(upper))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn * np.linalg.det(turn), rng.normal(size=3) * translation_std
    return pose


# Kinds without a pose


def _draw_interval_and_shifted_copy(
    rng: RandomGenerator, length: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two intervals of ``length``, the second shifted by up to six tenths of it, or not at all."""
    shift = 0.0 if rng.random() < 0.15 else rng.uniform(0.05, 0.6) * length
    return (0.0, length), (shift, shift + length)


def _draw_extruded_profile_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    profile, length = draw_profile_corners(rng), rng.uniform(2.5, 9.0)
    slant = rng.normal(scale=0.3, size=(2, 2)) * (rng.random() < 0.3)
    clouds = []
    for (low, high), tilt in zip(_draw_interval_and_shifted_copy(rng, length), slant, strict=True):
        count = draw_point_count(rng)
        section = interpolate_profile(profile, rng.random(count))
        x = rng.uniform(low, high, count) + section @ tilt
        clouds.append(np.column_stack((x, section)))
    return clouds[0], clouds[1]


def _draw_profile_along_arc_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a profile that follows an arc."""
    profile, radius = draw_profile_corners(rng), rng.uniform(3.0, 12.0)
    profile = profile - profile.mean(0)
    clouds = []
    for low, high in _draw_interval_and_shifted_copy(rng, rng.uniform(0.5, 2.0)):
        count = draw_point_count(rng)
        section, angle = interpolate_profile(profile, rng.random(count)), rng.uniform(low, high, count)
        distance = radius + section[:, 0]
        clouds.append(np.column_stack((distance * np.cos(angle), distance * np.sin(angle), section[:, 1])))
    return clouds[0], clouds[1]


def _draw_revolution_surface_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return a vase, dome, cone or round room, whole or its half."""
    u = np.linspace(0, 1, 30)
    radius = rng.uniform(0.5, 1.2) + sum(rng.normal(scale=0.2 / n) * np.sin(n * np.pi * u) for n in range(1, 5))
    profile = np.stack((np.maximum(radius, 0.1), rng.uniform(1.0, 3.0) * u), 1)
    turn = 2 * np.pi if rng.random() < 0.5 else rng.uniform(2.0, 5.0)
    clouds = []
    for start in (0.0, rng.uniform(0, 1.5)):
        count = draw_point_count(rng)
        section, angle = interpolate_profile(profile, rng.random(count)), start + turn * rng.random(count)
        distance = section[:, 0]
        clouds.append(np.column_stack((distance * np.cos(angle), distance * np.sin(angle), section[:, 1])))
    if rng.random() < 0.5:  # a floor
        clouds = [
            np.vstack((c, np.column_stack((_draw_disc_points(rng, len(c) // 3, 1.5), np.zeros(len(c) // 3)))))
            for c in clouds
        ]
    return clouds[0], clouds[1]


def _draw_disc_points(rng: RandomGenerator, count: int, radius: float) -> Floats:
    angle, distance = rng.uniform(0, 2 * np.pi, count), radius * np.sqrt(rng.random(count))
    return np.stack((distance * np.cos(angle), distance * np.sin(angle)), 1)


def _draw_primitive_shape_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a plane, a cylinder, a sphere or two parallel planes."""
    kind, clouds = rng.integers(4), []
    for shift in (0.0, rng.uniform(0, 0.5)):
        count = draw_point_count(rng)
        u, v = rng.random((2, count))
        if kind == 0:
            clouds.append(np.stack((4 * u + shift, 3 * v, 0 * u), 1))
        elif kind == 1:
            clouds.append(np.stack((np.cos(4 * u), np.sin(4 * u), 3 * v + shift), 1))
        elif kind == 2:
            direction = rng.normal(size=(count, 3))
            direction /= np.linalg.norm(direction, axis=1)[:, None]
            clouds.append(direction[direction[:, 2] > -0.5])
        else:
            clouds.append(np.stack((4 * u + shift, 3 * v, 2.4 * rng.integers(0, 2, count)), 1))
    return clouds[0], clouds[1]


def _draw_spiral_stairs_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of spiral stairs or of a screw's thread."""
    step, rise = rng.uniform(0.25, 0.6), rng.uniform(0.12, 0.2)
    tread = np.array([[0.3, -0.05, 0.0], [1.1, 0.0, 0.0], [0.0, 1.2 * step, 0.0]])
    riser = np.array([[0.3, -0.05, -rise], [1.1, 0.0, 0.0], [0.0, 0.0, rise]])
    count, clouds = int(rng.integers(7, 14)), []
    for start in (0, int(rng.integers(0, 4))):
        steps = [
            rotate_and_lift_faces([tread, riser], step * n, np.zeros(3), rise * n) for n in range(start, start + count)
        ]
        clouds.append(
            create_face_sampler([face for step_faces in steps for face in step_faces])(rng, draw_point_count(rng))
        )
    return clouds[0], clouds[1]


def _draw_symmetric_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return scans of a room that is the same after a half, third, quarter or sixth of a turn."""
    fold = int(rng.choice((2, 2, 3, 4, 4, 6)))
    radius, height, angle = rng.uniform(2.0, 4.0), rng.uniform(2.2, 3.0), 2 * np.pi / fold
    scene: list[Floats] = []
    if fold == 2:
        width, depth = rng.uniform((3.5, 2.5), (7.0, 5.0))
        center = np.array([width / 2, depth / 2, 0.0])
        scene += draw_room_faces(rng, width, depth, height)
    else:
        center = np.zeros(3)
        side = 2 * radius * np.tan(np.pi / fold)
        wall = np.array([[radius, -side / 2, 0.0], [0.0, side, 0.0], [0.0, 0.0, height]])
        scene += [face for n in range(fold) for face in rotate_and_lift_faces([wall], angle * n, center)]
        scene.append(np.array([[-radius, -radius, 0.0], [2 * radius, 0.0, 0.0], [0.0, 2 * radius, 0.0]]))
        if fold in (3, 6):
            scene.pop()  # a square floor has another symmetry
    pieces: list[Floats] = []
    for _ in range(rng.integers(1, 5)):
        size = rng.uniform((0.2, 0.2, 0.3), (0.9, 0.7, height))
        turn = rng.uniform(0, np.pi) if rng.random() < 0.5 else 0.0
        distance, around = rng.uniform(0.5, 0.75 * min(radius, 2.5)), rng.uniform(0, 2 * np.pi)
        corner = center + np.array([distance * np.cos(around), distance * np.sin(around), 0.0])
        pieces += list_box_faces(corner, size, turn)
    scene += [face for n in range(fold) for face in rotate_and_lift_faces(pieces, angle * n, center)]
    sampler = create_face_sampler(scene)
    return sampler(rng, draw_point_count(rng)), sampler(rng, draw_point_count(rng))


def _draw_repeating_shelves_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of shelves, columns, windows or desks that repeat along one or two directions."""
    pitch, bays = rng.uniform(0.7, 2.0), int(rng.integers(4, 9))
    bay: list[Floats] = []
    for _ in range(rng.integers(2, 6)):
        size = rng.uniform((0.1, 0.1, 0.1), (0.7 * pitch, 0.6, 1.2))
        bay += list_box_faces(np.array([rng.uniform(0, 0.3) * pitch, rng.uniform(0, 0.4), rng.uniform(0, 1.4)]), size)
    wall = [np.array([[0.0, 0.0, 0.0], [pitch, 0.0, 0.0], [0.0, 0.0, 2.2]])]
    wall.append(np.array([[0.0, 0.0, 0.0], [pitch, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    clouds = []
    for start in (0, int(rng.integers(0, 3))):
        scene = [
            f + np.array([[pitch * n, 0, 0], [0, 0, 0], [0, 0, 0]])
            for n in range(start, start + bays)
            for f in bay + wall
        ]
        clouds.append(create_face_sampler(scene)(rng, draw_point_count(rng)))
    return clouds[0], clouds[1]


def _draw_terrain_windows_pair(
    rng: RandomGenerator,
    first_height: Callable[[Floats], Floats],
    second_height: Callable[[Floats], Floats],
    second_start: float,
) -> tuple[Floats, Floats]:
    clouds = []
    for height, start in ((first_height, 0.0), (second_height, second_start)):
        positions = rng.random((draw_point_count(rng), 2)) * (6.0, 5.0) + (start, 0.0)
        clouds.append(np.column_stack((positions, height(positions))))
    return clouds[0], clouds[1]


def _draw_unrelated_or_disjoint_terrain_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    first, second = build_terrain_height_function(rng, 6.0), build_terrain_height_function(rng, 6.0)
    if rng.random() < 0.5:
        return _draw_terrain_windows_pair(rng, first, first, 6.5)  # of one ground, apart
    return _draw_terrain_windows_pair(rng, first, second, 0.0)


def _scale_up_or_down(rng: RandomGenerator, points: Floats, factor: float) -> Floats:
    """Multiply or divide the points by the factor, each with a probability of one half."""
    return points * (factor if rng.random() < 0.5 else 1 / factor)


def _draw_scaled_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.5)
    return _scale_up_or_down(rng, source, rng.uniform(1.03, 1.3)), target


def _draw_sheared_or_stretched_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.5)
    change = np.eye(3)
    i, j = rng.permutation(3)[:2]
    if rng.random() < 0.6:
        change[i, j] = rng.uniform(0.06, 0.3) * rng.choice((-1, 1))
    else:
        change[i, i] = rng.choice((rng.uniform(0.75, 0.95), rng.uniform(1.05, 1.3)))
    return source @ change.T, target


def _draw_mirrored_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.7)
    return source * (-1.0, 1.0, 1.0), target


def _draw_refurnished_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return two rooms with the same walls and other furniture."""
    width, depth, height = rng.uniform((3.5, 3.0, 2.2), (7.0, 5.5, 3.0))
    shell = draw_room_faces(rng, width, depth, height)
    rooms = [
        create_face_sampler(shell + draw_furniture_faces(rng, int(rng.integers(4, 12)), width, depth)) for _ in range(2)
    ]
    return rooms[0](rng, draw_point_count(rng)), rooms[1](rng, draw_point_count(rng))


def _draw_unrelated_interiors_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    return create_furnished_room_sampler(rng)(rng, draw_point_count(rng)), create_furnished_room_sampler(rng)(
        rng, draw_point_count(rng)
    )


def _draw_non_overlapping_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    return sample_windows_with_gap(rng, create_furnished_room_sampler(rng, (10, 20)))


def _draw_helical_profile_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a profile that winds about an axis: a ramp, a bolt, a spring."""
    profile = draw_profile_corners(rng) * rng.uniform(0.3, 1.0)
    profile = profile - profile.min(0) + (rng.uniform(0.3, 2.5), 0.0)
    rise, turn, clouds = rng.uniform(0.05, 0.6) * rng.choice((-1, 1)), rng.uniform(2.0, 14.0), []
    for low, high in _draw_interval_and_shifted_copy(rng, turn):
        count = draw_point_count(rng)
        section, angle = interpolate_profile(profile, rng.random(count)), rng.uniform(low, high, count)
        x, y = section[:, 0] * np.cos(angle), section[:, 0] * np.sin(angle)
        clouds.append(np.column_stack((x, y, section[:, 1] + rise * angle)))
    return clouds[0], clouds[1]


def _draw_twisted_storeys_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of storeys, each turned against the one below: a stairwell, a tower, a twisted column."""
    angle = float(rng.choice((np.pi, np.pi / 2, 2 * np.pi / 3, rng.uniform(0.3, 2.8))))
    lift, motif = rng.uniform(0.5, 2.8), list[Floats]()
    for _ in range(rng.integers(3, 8)):
        size = rng.uniform((0.3, 0.2, 0.1), (1.5, 1.0, 0.5 * lift))
        corner = rng.uniform((-1.5, -1.5, 0.0), (1.0, 1.0, 0.6 * lift))
        motif += list_box_faces(corner, size, rng.uniform(0, np.pi))
    count, clouds = int(rng.integers(4, 9)), []
    for start in (0, int(rng.integers(0, 3))):
        storeys = [rotate_and_lift_faces(motif, angle * n, np.zeros(3), lift * n) for n in range(start, start + count)]
        clouds.append(create_face_sampler([face for storey in storeys for face in storey])(rng, draw_point_count(rng)))
    return clouds[0], clouds[1]


def _draw_tiled_pattern_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a pattern that repeats along two directions, with turns or glides in it or without."""
    first = np.array([rng.uniform(0.6, 1.4), 0.0, 0.0])
    second = np.array([rng.choice((0.0, 0.5, rng.random())) * first[0], rng.uniform(0.6, 1.4), 0.0])
    motif = list[Floats]()
    for _ in range(rng.integers(1, 4)):
        corner = rng.uniform((0.0, 0.0, 0.0), (0.5 * first[0], 0.5 * second[1], 0.0))
        motif += list_box_faces(corner, rng.uniform((0.1, 0.1, 0.05), (0.4, 0.4, 0.6)), rng.uniform(0, np.pi))
    if rng.random() < 0.5:
        motif += rotate_and_lift_faces(motif, float(rng.choice((np.pi / 2, np.pi))), (first + second) / 2)
    columns, rows = rng.integers(4, 9), rng.integers(3, 7)
    clouds = []
    for a, b in ((0, 0), rng.integers(0, 3, 2)):
        corner = a * first + b * second
        scene = [np.stack((corner, columns * first, rows * second))]
        for i in range(columns):
            for j in range(rows):
                shift = corner + i * first + j * second
                scene += [face + np.stack((shift, 0 * shift, 0 * shift)) for face in motif]
        clouds.append(create_face_sampler(scene)(rng, draw_point_count(rng)))
    return clouds[0], clouds[1]


def _draw_deformed_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return a room and the same bent, twisted or tapered by 4 to 15 % of its size."""
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.6)
    i, j, k = rng.permutation(3)
    middle = np.median(source, axis=0)
    size, amount = np.linalg.norm(np.ptp(source, axis=0)), rng.uniform(0.04, 0.15) * rng.choice((-1, 1))
    arm, kind = (source - middle) / (0.5 * size), rng.integers(3)
    changed = arm.copy()
    if kind == 0:
        changed[:, i] += 2 * amount * arm[:, j] ** 2
    elif kind == 1:
        angle = 4 * amount * arm[:, i]
        changed[:, j] = np.cos(angle) * arm[:, j] - np.sin(angle) * arm[:, k]
        changed[:, k] = np.sin(angle) * arm[:, j] + np.cos(angle) * arm[:, k]
    else:
        changed[:, (j, k)] *= (1 + 2 * amount * arm[:, i])[:, None]
    return middle + 0.5 * size * changed, target


def _draw_slightly_scaled_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.6)
    return _scale_up_or_down(rng, source, rng.uniform(1.03, 1.06)), target


def _draw_other_length_unit_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    source, target = sample_overlapping_windows(rng, create_furnished_room_sampler(rng), 0.5)
    return _scale_up_or_down(
        rng, source, float(rng.choice((1000.0, 100.0, 10.0, 25.4, 39.37, 3.28084, 12.0, 2.54)))
    ), target


def _draw_symmetry_broken_below_noise_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return scans of a symmetric square room in which a flat mark below the noise alone tells the sides apart."""
    side, height, scene = rng.uniform(3.0, 5.0), rng.uniform(2.2, 3.0), list[Floats]()
    center, fold = np.array([side / 2, side / 2, 0.0]), int(rng.choice((2, 4)))
    pieces = list[Floats]()
    for _ in range(rng.integers(1, 4)):
        size = rng.uniform((0.2, 0.2, 0.3), (0.8, 0.6, 1.8))
        pieces += list_box_faces(rng.uniform((0.1, 0.1, 0.0), (0.4 * side, 0.4 * side, 0.0)), size)
    for n in range(fold):
        scene += rotate_and_lift_faces(pieces, 2 * np.pi / fold * n, center)
    scene += draw_room_faces(rng, side, side, height)
    mark = list_box_faces(np.array([0.2 * side, 0.45 * side, 0.0]), np.array([0.3, 0.3, 0.002]))
    sampler = create_face_sampler(scene + mark)
    return sampler(rng, draw_point_count(rng)), sampler(rng, draw_point_count(rng))


def _draw_same_plan_storeys_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return two storeys of a house: the same inner walls, other furniture."""
    width, depth, height = rng.uniform((6.0, 5.0, 2.3), (10.0, 8.0, 2.8))
    walls, doors = draw_room_faces(rng, width, depth, height), rng.uniform(0.2, 0.6, 4)
    for n, start in enumerate(doors):
        at, along = rng.uniform(0.3, 0.7), np.eye(3)[n % 2] * (width, depth, 0)
        across = np.eye(3)[1 - n % 2] * (width, depth, 0)
        corner = at * across + start * along * (n > 1)
        walls.append(np.stack((corner, 0.4 * along, np.array([0, 0, height]))))
    rooms = [
        create_face_sampler(walls + draw_furniture_faces(rng, int(rng.integers(6, 16)), width, depth)) for _ in range(2)
    ]
    return rooms[0](rng, draw_point_count(rng)), rooms[1](rng, draw_point_count(rng))


def _draw_unrelated_or_disjoint_forest_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return two pieces of woods that share nothing."""
    if rng.random() < 0.5:
        return sample_windows_with_gap(rng, create_forest_sampler(rng))
    return create_forest_sampler(rng)(rng, draw_point_count(rng)), create_forest_sampler(rng)(
        rng, draw_point_count(rng)
    )


def _draw_symmetric_hall_windows_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a hall that is the same after half a turn; they coincide in the right pose or the other one."""
    width, depth, height = rng.uniform((6.0, 3.0, 2.5), (12.0, 5.0, 4.0))
    center, pieces = np.array([width / 2, depth / 2, 0.0]), list[Floats]()
    for _ in range(rng.integers(3, 7)):
        corner = rng.uniform((0.0, 0.0, 0.0), (width - 1.0, depth - 1.0, 0.0))
        pieces += list_box_faces(corner, rng.uniform((0.2, 0.2, 0.2), (1.0, 0.8, 1.6)), rng.uniform(0, np.pi))
    scene = draw_room_faces(rng, width, depth, height) + pieces + rotate_and_lift_faces(pieces, np.pi, center)
    sampler, ends = create_face_sampler(scene), rng.uniform(0.75, 1.0, 2) * width
    source, target = sampler(rng, draw_point_count(rng)), sampler(rng, draw_point_count(rng))
    along = target[:, 0] if rng.random() < 0.5 else width - target[:, 0]
    return source[source[:, 0] <= ends[0]], target[along <= ends[1]]


def _draw_tunnel_rings_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of a tunnel with a floor, in which rings stand out at equal distances."""
    radius, pitch, count = rng.uniform(1.2, 3.0), rng.uniform(0.6, 2.5), int(rng.integers(4, 9))
    depth, share, floor = rng.uniform(0.06, 0.3), rng.uniform(0.1, 0.4), -rng.uniform(0.3, 0.8) * radius
    length, clouds = count * pitch, list[Floats]()
    for start in (0.0, rng.choice((0.0, rng.uniform(0.0, 0.5) * length))):
        points = draw_point_count(rng)
        x, angle = start + length * rng.random(points), rng.uniform(0, 2 * np.pi, points)
        distance = radius - depth * (x % pitch < share * pitch)
        wall = np.column_stack((x, distance * np.cos(angle), distance * np.sin(angle)))
        half = np.sqrt(radius**2 - floor**2)
        y = rng.uniform(-half, half, points // 4)
        clouds.append(np.vstack((wall, np.column_stack((x[: points // 4], y, np.full(points // 4, floor))))))
    return clouds[0], clouds[1]


# Kinds with one pose


def _draw_overlapping_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    return sample_overlapping_windows(rng, create_furnished_room_sampler(rng))


def _draw_sparsely_furnished_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    return sample_overlapping_windows(rng, create_furnished_room_sampler(rng, (3, 6)), 0.5)


def _draw_overlapping_terrain_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    height = build_terrain_height_function(rng, 6.0)
    return _draw_terrain_windows_pair(rng, height, height, rng.uniform(0.0, 0.6) * 6.0)


def _draw_broken_symmetry_interior_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return scans of a symmetric room in which three boxes have no image."""
    width, depth, height = rng.uniform((3.5, 2.5, 2.2), (7.0, 5.0, 3.0))
    center, pieces = np.array([width / 2, depth / 2, 0.0]), draw_furniture_faces(rng, 2, width, depth)
    scene = draw_room_faces(rng, width, depth, height) + pieces + rotate_and_lift_faces(pieces, np.pi, center)
    sampler = create_face_sampler(scene + draw_furniture_faces(rng, 3, width, depth))
    return sampler(rng, draw_point_count(rng)), sampler(rng, draw_point_count(rng))


def _draw_profile_with_boxes_and_end_wall_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of an extruded profile with boxes and an end wall that hold it."""
    profile, length = draw_profile_corners(rng), rng.uniform(3.0, 6.0)
    low, high = profile.min(0), profile.max(0)
    wall = np.array([[length, *low], [0.0, high[0] - low[0], 0.0], [0.0, 0.0, max(high[1] - low[1], 1.0)]])
    boxes: list[Floats] = []
    for _ in range(rng.integers(4, 9)):
        corner = np.array([rng.uniform(0, length - 0.5), rng.uniform(*np.sort([low[0], high[0] - 0.1])), high[1] - 0.3])
        boxes += list_box_faces(corner, rng.uniform(0.2, 0.8, 3), rng.uniform(0, np.pi))

    def sample_sweep(rng: RandomGenerator, count: int) -> Floats:
        return np.column_stack((rng.uniform(0, length, count), interpolate_profile(profile, rng.random(count))))

    return sample_overlapping_windows(
        rng,
        join_weighted_samplers(
            (0.6, sample_sweep), (0.1, create_face_sampler([wall])), (0.3, create_face_sampler(boxes))
        ),
        0.6,
    )


def _draw_filled_shelves_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return windows of shelves whose bays hold different boxes."""
    pitch, bays, scene = rng.uniform(0.8, 1.6), int(rng.integers(4, 7)), list[Floats]()
    for n in range(bays):
        corner = np.array([pitch * n, 0.0, 0.0])
        scene += list_box_faces(corner, np.array([0.05, 0.5, 2.0])) + list_box_faces(
            corner + np.array([0.0, 0.0, 1.0]), np.array([pitch, 0.5, 0.04])
        )
        for _ in range(rng.integers(2, 6)):
            at = corner + np.array([rng.uniform(0, 0.7) * pitch, rng.uniform(0, 0.4), rng.choice((0.0, 1.04))])
            scene += list_box_faces(at, rng.uniform(0.1, 0.6, 3), rng.uniform(0, np.pi))
    scene.append(np.array([[0.0, 0.0, 0.0], [pitch * bays, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    return sample_overlapping_windows(rng, create_face_sampler(scene), 0.5)


def _draw_balls_and_pipes_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    """Return scans of balls and pipes on a floor."""
    samplers: list[tuple[float, Sampler]] = [
        (12.0, create_face_sampler([np.array([[0, 0, 0], [4, 0, 0], [0, 3, 0]], np.float64)]))
    ]
    for _ in range(rng.integers(6, 14)):
        middle, radius = rng.uniform((0.3, 0.3, 0.1), (3.7, 2.7, 1.0)), rng.uniform(0.15, 0.5)
        axis = rng.normal(size=3) * rng.choice((0.0, 0.8))

        def sample(
            rng: RandomGenerator, count: int, middle: Floats = middle, radius: float = radius, axis: Floats = axis
        ) -> Floats:
            direction = rng.normal(size=(count, 3))
            if axis.any():
                direction -= np.outer(direction @ axis, axis) / (axis @ axis)
            direction /= np.linalg.norm(direction, axis=1)[:, None]
            points: Floats = middle + radius * direction + rng.random((count, 1)) * axis
            return points

        samplers.append((6 * radius * (radius + float(np.linalg.norm(axis))), sample))
    return sample_overlapping_windows(rng, join_weighted_samplers(*samplers), 0.4)


def _draw_overlapping_forest_pair(rng: RandomGenerator) -> tuple[Floats, Floats]:
    return sample_overlapping_windows(rng, create_forest_sampler(rng), 0.5)


Kind = Callable[[RandomGenerator], tuple[Floats, Floats]]
KINDS_WITHOUT_UNIQUE_POSE: dict[str, Kind] = {
    "extruded": _draw_extruded_profile_pair,
    "symmetric": _draw_symmetric_interior_pair,
    "wavy ground": _draw_unrelated_or_disjoint_terrain_pair,
    "scaled": _draw_scaled_interior_pair,
    "repeated": _draw_repeating_shelves_pair,
    "sheared": _draw_sheared_or_stretched_interior_pair,
    "bend": _draw_profile_along_arc_pair,
    "revolved": _draw_revolution_surface_pair,
    "plain": _draw_primitive_shape_pair,
    "spiral": _draw_spiral_stairs_pair,
    "mirrored": _draw_mirrored_interior_pair,
    "refurnished": _draw_refurnished_interior_pair,
    "strangers": _draw_unrelated_interiors_pair,
    "parts": _draw_non_overlapping_interior_pair,
    "helical": _draw_helical_profile_pair,
    "stepped": _draw_twisted_storeys_pair,
    "tiled": _draw_tiled_pattern_pair,
    "bent": _draw_deformed_interior_pair,
    "slightly scaled": _draw_slightly_scaled_interior_pair,
    "other unit": _draw_other_length_unit_pair,
    "weak mark": _draw_symmetry_broken_below_noise_pair,
    "same plan": _draw_same_plan_storeys_pair,
    "other forest": _draw_unrelated_or_disjoint_forest_pair,
    "symmetric hall": _draw_symmetric_hall_windows_pair,
    "tunnel": _draw_tunnel_rings_pair,
}
KINDS_WITH_UNIQUE_POSE: dict[str, Kind] = {
    "room": _draw_overlapping_interior_pair,
    "sparse room": _draw_sparsely_furnished_interior_pair,
    "ground": _draw_overlapping_terrain_pair,
    "broken symmetry": _draw_broken_symmetry_interior_pair,
    "closed stairs": _draw_profile_with_boxes_and_end_wall_pair,
    "filled shelves": _draw_filled_shelves_pair,
    "rounds": _draw_balls_and_pipes_pair,
    "forest": _draw_overlapping_forest_pair,
}
