"""Random pairs of point clouds with a known pose, and pairs that determine none.

Every kind is a function of a generator of random numbers; the same state gives the same pair. Lengths are metres before
a pair is scaled at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = np.random.Generator
Sampler = Callable[[Draw, int], Floats]
"""Samples n points [n, 3] of a scene's surfaces."""

_MIN_POINTS, _MAX_POINTS = 5000, 16_000  # of a cloud
_UNITS = (1.0, 1.0, 1.0, 10.0, 1000.0, 0.1)


class CloudPair(NamedTuple):
    """Two clouds, and the pose that brings the first onto the second."""

    kind: str
    source: Floats  # [N, 3]
    target: Floats  # [M, 3]
    truth: Floats | None  # [4, 4]; None where no pose is determined or the shapes differ
    extent: float  # length of the scene's diagonal, in the clouds' units


def determined_pair(seed: int, kind: str | None = None) -> CloudPair:
    """Return a pair with one true pose; ``kind`` is one of :data:`DETERMINED`, None takes them in turn."""
    return _pair(seed, kind, DETERMINED, determined=True)


def undetermined_pair(seed: int, kind: str | None = None) -> CloudPair:
    """Return a pair without a true pose; ``kind`` is one of :data:`UNDETERMINED`, None takes them in turn."""
    return _pair(seed, kind, UNDETERMINED, determined=False)


def _pair(seed: int, kind: str | None, kinds: dict[str, Kind], *, determined: bool) -> CloudPair:
    names = list(kinds)
    name = names[seed % len(names)] if kind is None else kind
    draw = np.random.default_rng((int(determined), names.index(name), seed))
    source, target = kinds[name](draw)
    noise = draw.uniform(0.001, 0.004) * np.linalg.norm(np.ptp(target, axis=0))
    source = source + draw.normal(scale=noise * draw.uniform(0.3, 1.0), size=source.shape)
    target = target + draw.normal(scale=noise * draw.uniform(0.3, 1.0), size=target.shape)
    unit, pose = draw.choice(_UNITS), random_pose(draw)
    inverse = pose.T.copy()
    inverse[:3, 3], inverse[3, :3] = -pose[:3, :3].T @ pose[:3, 3] * unit, 0.0
    transformed = (source @ pose[:3, :3].T + pose[:3, 3]) * unit
    extent = float(np.linalg.norm(np.ptp(target, axis=0))) * unit
    return CloudPair(name, transformed, target * unit, inverse if determined else None, extent)


def random_pose(draw: Draw, shift: float = 5.0) -> Floats:
    """Return a uniformly distributed rotation and a normally distributed translation, [4, 4]."""
    turn, upper = np.linalg.qr(draw.normal(size=(3, 3)))
    turn = turn * np.sign(np.diag(upper))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn * np.linalg.det(turn), draw.normal(size=3) * shift
    return pose


def _count(draw: Draw) -> int:
    return int(np.exp(draw.uniform(np.log(_MIN_POINTS), np.log(_MAX_POINTS))))


# Surfaces


def faces(parallelograms: list[Floats]) -> Sampler:
    """Return the sampler of parallelograms [3, 3]: corner, two edges."""
    stacked = np.stack(parallelograms)
    areas = np.linalg.norm(np.cross(stacked[:, 1], stacked[:, 2]), axis=1)

    def sample(draw: Draw, count: int) -> Floats:
        rows = stacked[draw.choice(len(stacked), count, p=areas / areas.sum())]
        u, v = draw.random((2, count, 1))
        points: Floats = rows[:, 0] + u * rows[:, 1] + v * rows[:, 2]
        return points

    return sample


def _join(*samplers: tuple[float, Sampler]) -> Sampler:
    """Return the sampler of several surfaces, each with its share of the points."""
    shares = np.array([fraction for fraction, _ in samplers])

    def sample(draw: Draw, count: int) -> Floats:
        counts = draw.multinomial(count, shares / shares.sum())
        return np.concatenate([one(draw, points) for (_, one), points in zip(samplers, counts, strict=True)])

    return sample


def _box(corner: Floats, size: Floats, angle: float = 0.0) -> list[Floats]:
    axes = np.array([[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    edges, result = axes * size[:, None], []
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        result.append(np.stack([corner, edges[i], edges[j]]))
        result.append(np.stack([corner + edges[k], edges[i], edges[j]]))
    return result


def _turn_faces(parallelograms: list[Floats], angle: float, center: Floats, lift: float = 0.0) -> list[Floats]:
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    result = []
    for face in parallelograms:
        turned = face @ turn.T
        turned[0] = (face[0] - center) @ turn.T + center + (0, 0, lift)
        result.append(turned)
    return result


def _shell(draw: Draw, width: float, depth: float, height: float, walls: int = 4) -> list[Floats]:
    w, d, h = np.diag([width, depth, height])
    sides = [(0 * w, w, h), (0 * w, d, h), (d, w, h), (w, d, h)]
    result = [np.stack([0 * w, w, d])] + [np.stack(side) for side in sides[:walls]]
    return [*result, np.stack([h, w, d])] if draw.random() < 0.3 else result


def _furniture(draw: Draw, count: int, width: float, depth: float) -> list[Floats]:
    result: list[Floats] = []
    for _ in range(count):
        size = draw.uniform((0.25, 0.25, 0.2), (1.1, 0.9, 1.4))
        corner = np.array([draw.uniform(0.2, width - 0.6), draw.uniform(0.2, depth - 0.6), 0.0])
        result += _box(corner, size, draw.uniform(0, np.pi))
    return result


def furnished_room(draw: Draw, boxes: tuple[int, int] = (6, 15)) -> Sampler:
    """Return a room of a floor, two to four walls and boxes that are turned about the vertical."""
    width, depth, height = draw.uniform((3.5, 3.0, 2.2), (7.0, 5.5, 3.0))
    shell = _shell(draw, width, depth, height, int(draw.integers(2, 5)))
    return faces(shell + _furniture(draw, int(draw.integers(*boxes)), width, depth))


def _profile(draw: Draw) -> Floats:
    """Return the corners [K, 2] of the profile of stairs, a kerb, a rail, a moulding, a corridor or a roof."""
    kind = draw.integers(7)
    if kind == 0:
        rise, going, start = draw.uniform(0.14, 0.2), draw.uniform(0.25, 0.35), draw.uniform(0.8, 2.0)
        steps = [(0.0, 0.0), (start, 0.0)]
        for _ in range(draw.integers(3, 9)):
            steps += [(steps[-1][0], steps[-1][1] + rise), (steps[-1][0] + going, steps[-1][1] + rise)]
        return np.array([*steps, (steps[-1][0] + draw.uniform(0.0, 1.5), steps[-1][1])])
    if kind == 1:  # road, kerb, pavement, wall
        kerb = draw.uniform(0.08, 0.25)
        return np.array([(0, 0.05), (3, 0), (3.02, kerb), (4.5, kerb + 0.03), (4.5, kerb + draw.uniform(0.5, 3))])
    if kind == 2:  # rails on a bed
        x, rail = draw.uniform(1.0, 1.5), [(0, 0), (0.04, 0.02), (0.04, 0.13), (0.0, 0.17), (0.07, 0.17)]
        bed = [(-2.5, -0.6), (-1.6, 0.0), (-x / 2, 0.0)]
        left = [(a - x / 2, b) for a, b in rail] + [(0.07 - x / 2, 0.0)]
        return np.array(bed + left + [(a + x / 2, b) for a, b in rail] + [(0.1 + x / 2, 0.0), (1.6, 0.0), (2.5, -0.6)])
    if kind == 3:  # a moulding's curve
        u = np.linspace(0, 1, 40)
        waves = draw.normal(size=(3, 2)) / np.arange(1, 4)[:, None]
        curve = np.stack((u, 0.0 * u), 1) * draw.uniform(0.5, 2.0)
        for n, (a, b) in enumerate(waves, 1):
            curve[:, 1] += 0.15 * (a * np.sin(2 * np.pi * n * u) + b * np.cos(2 * np.pi * n * u))
        return curve
    if kind == 4:  # a corridor
        w, h, skirt = draw.uniform(1.4, 3.0), draw.uniform(2.1, 3.0), draw.uniform(0.05, 0.2)
        wall = [(0, h), (0, skirt), (0.03, skirt), (0.03, 0), (w, 0), (w, h * 0.4), (w + draw.uniform(-0.1, 0.1), h)]
        return np.array([*wall, (0, h)] if draw.random() < 0.5 else wall)
    if kind == 5:  # a random broken line
        corners = np.cumsum(draw.uniform((-0.1, -0.6), (0.8, 0.6), (draw.integers(3, 10), 2)), 0)
        return np.asarray(corners, np.float64)
    width = draw.uniform(2, 5)  # two planes
    return np.array([(0, 0), (width, 0), (width + draw.uniform(-0.5, 2), draw.uniform(0.7, 3))])


def _along_profile(profile: Floats, fractions: Floats) -> Floats:
    steps = np.linalg.norm(np.diff(profile, axis=0), axis=1)
    at = np.concatenate([[0.0], np.cumsum(steps)])
    positions = fractions * at[-1]
    return np.stack([np.interp(positions, at, profile[:, k]) for k in range(2)], 1)


def _terrain(draw: Draw, size: float) -> Callable[[Floats], Floats]:
    """Return the heights [N] of random ground over places [N, 2]."""
    count = int(draw.integers(6, 30))
    lengths = np.exp(draw.uniform(np.log(0.08), np.log(0.7), count)) * size
    angles, phases = draw.uniform(0, 2 * np.pi, (2, count))
    heights = draw.uniform(0.01, 0.05) * lengths * draw.uniform(0.3, 1.0, count) * draw.choice((1.0, 2.0))

    def height(positions: Floats) -> Floats:
        along = np.cos(angles) * positions[:, :1] + np.sin(angles) * positions[:, 1:]
        return np.asarray((heights * np.sin(2 * np.pi * along / lengths + phases)).sum(1), np.float64)

    return height


# Windows


def _overlapping(draw: Draw, sampler: Sampler, low: float = 0.3, high: float = 1.0) -> tuple[Floats, Floats]:
    """Return two windows of a scene that share ``low`` to ``high`` of their points."""
    overlap, (first, second) = draw.uniform(low, high), (_count(draw), _count(draw))
    keep = 1.0 / (2.0 - overlap)
    source, target = sampler(draw, int(first / keep)), sampler(draw, int(second / keep))
    angle = draw.uniform(0, 2 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle), draw.normal(scale=0.1)])
    a, b = source @ direction, target @ direction
    return source[a <= np.quantile(b, keep)], target[b >= np.quantile(a, 1 - keep)]


def _cut_with_gap(draw: Draw, sampler: Sampler) -> tuple[Floats, Floats]:
    """Return two windows of a scene with a gap between them."""
    source, target = sampler(draw, 2 * _count(draw)), sampler(draw, 2 * _count(draw))
    angle = draw.uniform(0, 2 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle), 0.0])
    a, b = source @ direction, target @ direction
    return source[a <= np.quantile(a, 0.47)], target[b >= np.quantile(b, 0.53)]


# Kinds without a pose


def _window(draw: Draw, length: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two intervals of ``length``, the second shifted by up to six tenths of it, or not at all."""
    shift = 0.0 if draw.random() < 0.15 else draw.uniform(0.05, 0.6) * length
    return (0.0, length), (shift, shift + length)


def _extruded(draw: Draw) -> tuple[Floats, Floats]:
    profile, length = _profile(draw), draw.uniform(2.5, 9.0)
    slant = draw.normal(scale=0.3, size=(2, 2)) * (draw.random() < 0.3)
    clouds = []
    for (low, high), tilt in zip(_window(draw, length), slant, strict=True):
        count = _count(draw)
        section = _along_profile(profile, draw.random(count))
        x = draw.uniform(low, high, count) + section @ tilt
        clouds.append(np.column_stack((x, section)))
    return clouds[0], clouds[1]


def _bend(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of a profile that follows an arc."""
    profile, radius = _profile(draw), draw.uniform(3.0, 12.0)
    profile = profile - profile.mean(0)
    clouds = []
    for low, high in _window(draw, draw.uniform(0.5, 2.0)):
        count = _count(draw)
        section, angle = _along_profile(profile, draw.random(count)), draw.uniform(low, high, count)
        distance = radius + section[:, 0]
        clouds.append(np.column_stack((distance * np.cos(angle), distance * np.sin(angle), section[:, 1])))
    return clouds[0], clouds[1]


def _revolved(draw: Draw) -> tuple[Floats, Floats]:
    """Return a vase, dome, cone or round room, whole or its half."""
    u = np.linspace(0, 1, 30)
    radius = draw.uniform(0.5, 1.2) + sum(draw.normal(scale=0.2 / n) * np.sin(n * np.pi * u) for n in range(1, 5))
    profile = np.stack((np.maximum(radius, 0.1), draw.uniform(1.0, 3.0) * u), 1)
    turn = 2 * np.pi if draw.random() < 0.5 else draw.uniform(2.0, 5.0)
    clouds = []
    for start in (0.0, draw.uniform(0, 1.5)):
        count = _count(draw)
        section, angle = _along_profile(profile, draw.random(count)), start + turn * draw.random(count)
        distance = section[:, 0]
        clouds.append(np.column_stack((distance * np.cos(angle), distance * np.sin(angle), section[:, 1])))
    if draw.random() < 0.5:  # a floor
        clouds = [
            np.vstack((c, np.column_stack((_disc(draw, len(c) // 3, 1.5), np.zeros(len(c) // 3))))) for c in clouds
        ]
    return clouds[0], clouds[1]


def _disc(draw: Draw, count: int, radius: float) -> Floats:
    angle, distance = draw.uniform(0, 2 * np.pi, count), radius * np.sqrt(draw.random(count))
    return np.stack((distance * np.cos(angle), distance * np.sin(angle)), 1)


def _plain(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of a plane, a cylinder, a sphere or two parallel planes."""
    kind, clouds = draw.integers(4), []
    for shift in (0.0, draw.uniform(0, 0.5)):
        count = _count(draw)
        u, v = draw.random((2, count))
        if kind == 0:
            clouds.append(np.stack((4 * u + shift, 3 * v, 0 * u), 1))
        elif kind == 1:
            clouds.append(np.stack((np.cos(4 * u), np.sin(4 * u), 3 * v + shift), 1))
        elif kind == 2:
            direction = draw.normal(size=(count, 3))
            direction /= np.linalg.norm(direction, axis=1)[:, None]
            clouds.append(direction[direction[:, 2] > -0.5])
        else:
            clouds.append(np.stack((4 * u + shift, 3 * v, 2.4 * draw.integers(0, 2, count)), 1))
    return clouds[0], clouds[1]


def _spiral(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of spiral stairs or of a screw's thread."""
    step, rise = draw.uniform(0.25, 0.6), draw.uniform(0.12, 0.2)
    tread = np.array([[0.3, -0.05, 0.0], [1.1, 0.0, 0.0], [0.0, 1.2 * step, 0.0]])
    riser = np.array([[0.3, -0.05, -rise], [1.1, 0.0, 0.0], [0.0, 0.0, rise]])
    count, clouds = int(draw.integers(7, 14)), []
    for start in (0, int(draw.integers(0, 4))):
        steps = [_turn_faces([tread, riser], step * n, np.zeros(3), rise * n) for n in range(start, start + count)]
        clouds.append(faces([face for step_faces in steps for face in step_faces])(draw, _count(draw)))
    return clouds[0], clouds[1]


def _symmetric(draw: Draw) -> tuple[Floats, Floats]:
    """Return scans of a room that is the same after a half, third, quarter or sixth of a turn."""
    fold = int(draw.choice((2, 2, 3, 4, 4, 6)))
    radius, height, angle = draw.uniform(2.0, 4.0), draw.uniform(2.2, 3.0), 2 * np.pi / fold
    scene: list[Floats] = []
    if fold == 2:
        width, depth = draw.uniform((3.5, 2.5), (7.0, 5.0))
        center = np.array([width / 2, depth / 2, 0.0])
        scene += _shell(draw, width, depth, height)
    else:
        center = np.zeros(3)
        side = 2 * radius * np.tan(np.pi / fold)
        wall = np.array([[radius, -side / 2, 0.0], [0.0, side, 0.0], [0.0, 0.0, height]])
        scene += [face for n in range(fold) for face in _turn_faces([wall], angle * n, center)]
        scene.append(np.array([[-radius, -radius, 0.0], [2 * radius, 0.0, 0.0], [0.0, 2 * radius, 0.0]]))
        if fold in (3, 6):
            scene.pop()  # a square floor has another symmetry
    pieces: list[Floats] = []
    for _ in range(draw.integers(1, 5)):
        size = draw.uniform((0.2, 0.2, 0.3), (0.9, 0.7, height))
        turn = draw.uniform(0, np.pi) if draw.random() < 0.5 else 0.0
        distance, around = draw.uniform(0.5, 0.75 * min(radius, 2.5)), draw.uniform(0, 2 * np.pi)
        corner = center + np.array([distance * np.cos(around), distance * np.sin(around), 0.0])
        pieces += _box(corner, size, turn)
    scene += [face for n in range(fold) for face in _turn_faces(pieces, angle * n, center)]
    sampler = faces(scene)
    return sampler(draw, _count(draw)), sampler(draw, _count(draw))


def _repeated(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of shelves, columns, windows or desks that repeat along one or two directions."""
    pitch, bays = draw.uniform(0.7, 2.0), int(draw.integers(4, 9))
    bay: list[Floats] = []
    for _ in range(draw.integers(2, 6)):
        size = draw.uniform((0.1, 0.1, 0.1), (0.7 * pitch, 0.6, 1.2))
        bay += _box(np.array([draw.uniform(0, 0.3) * pitch, draw.uniform(0, 0.4), draw.uniform(0, 1.4)]), size)
    wall = [np.array([[0.0, 0.0, 0.0], [pitch, 0.0, 0.0], [0.0, 0.0, 2.2]])]
    wall.append(np.array([[0.0, 0.0, 0.0], [pitch, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    clouds = []
    for start in (0, int(draw.integers(0, 3))):
        scene = [
            f + np.array([[pitch * n, 0, 0], [0, 0, 0], [0, 0, 0]])
            for n in range(start, start + bays)
            for f in bay + wall
        ]
        clouds.append(faces(scene)(draw, _count(draw)))
    return clouds[0], clouds[1]


def _ground_pair(
    draw: Draw, first: Callable[[Floats], Floats], second: Callable[[Floats], Floats], shift: float
) -> tuple[Floats, Floats]:
    clouds = []
    for height, start in ((first, 0.0), (second, shift)):
        positions = draw.random((_count(draw), 2)) * (6.0, 5.0) + (start, 0.0)
        clouds.append(np.column_stack((positions, height(positions))))
    return clouds[0], clouds[1]


def _wavy_ground(draw: Draw) -> tuple[Floats, Floats]:
    first, second = _terrain(draw, 6.0), _terrain(draw, 6.0)
    if draw.random() < 0.5:
        return _ground_pair(draw, first, first, 6.5)  # of one ground, apart
    return _ground_pair(draw, first, second, 0.0)


def _scaled(draw: Draw) -> tuple[Floats, Floats]:
    source, target = _overlapping(draw, furnished_room(draw), 0.5)
    factor = draw.uniform(1.03, 1.3)
    return source * (factor if draw.random() < 0.5 else 1 / factor), target


def _sheared(draw: Draw) -> tuple[Floats, Floats]:
    source, target = _overlapping(draw, furnished_room(draw), 0.5)
    change = np.eye(3)
    i, j = draw.permutation(3)[:2]
    if draw.random() < 0.6:
        change[i, j] = draw.uniform(0.06, 0.3) * draw.choice((-1, 1))
    else:
        change[i, i] = draw.choice((draw.uniform(0.75, 0.95), draw.uniform(1.05, 1.3)))
    return source @ change.T, target


def _mirrored(draw: Draw) -> tuple[Floats, Floats]:
    source, target = _overlapping(draw, furnished_room(draw), 0.7)
    return source * (-1.0, 1.0, 1.0), target


def _refurnished(draw: Draw) -> tuple[Floats, Floats]:
    """Return two rooms with the same walls and other furniture."""
    width, depth, height = draw.uniform((3.5, 3.0, 2.2), (7.0, 5.5, 3.0))
    shell = _shell(draw, width, depth, height)
    rooms = [faces(shell + _furniture(draw, int(draw.integers(4, 12)), width, depth)) for _ in range(2)]
    return rooms[0](draw, _count(draw)), rooms[1](draw, _count(draw))


def _strangers(draw: Draw) -> tuple[Floats, Floats]:
    return furnished_room(draw)(draw, _count(draw)), furnished_room(draw)(draw, _count(draw))


def _draw_pieces(draw: Draw) -> tuple[Floats, Floats]:
    return _cut_with_gap(draw, furnished_room(draw, (10, 20)))


# Kinds with one pose


def _draw_indoor(draw: Draw) -> tuple[Floats, Floats]:
    return _overlapping(draw, furnished_room(draw))


def _draw_sparse_indoor(draw: Draw) -> tuple[Floats, Floats]:
    return _overlapping(draw, furnished_room(draw, (3, 6)), 0.5)


def _ground(draw: Draw) -> tuple[Floats, Floats]:
    height = _terrain(draw, 6.0)
    return _ground_pair(draw, height, height, draw.uniform(0.0, 0.6) * 6.0)


def _broken_symmetry(draw: Draw) -> tuple[Floats, Floats]:
    """Return scans of a symmetric room in which three boxes have no image."""
    width, depth, height = draw.uniform((3.5, 2.5, 2.2), (7.0, 5.0, 3.0))
    center, pieces = np.array([width / 2, depth / 2, 0.0]), _furniture(draw, 2, width, depth)
    scene = _shell(draw, width, depth, height) + pieces + _turn_faces(pieces, np.pi, center)
    sampler = faces(scene + _furniture(draw, 3, width, depth))
    return sampler(draw, _count(draw)), sampler(draw, _count(draw))


def _closed_stairs(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of an extruded profile with boxes and an end wall that hold it."""
    profile, length = _profile(draw), draw.uniform(3.0, 6.0)
    low, high = profile.min(0), profile.max(0)
    wall = np.array([[length, *low], [0.0, high[0] - low[0], 0.0], [0.0, 0.0, max(high[1] - low[1], 1.0)]])
    boxes: list[Floats] = []
    for _ in range(draw.integers(4, 9)):
        corner = np.array(
            [draw.uniform(0, length - 0.5), draw.uniform(*np.sort([low[0], high[0] - 0.1])), high[1] - 0.3]
        )
        boxes += _box(corner, draw.uniform(0.2, 0.8, 3), draw.uniform(0, np.pi))

    def swept(draw: Draw, count: int) -> Floats:
        return np.column_stack((draw.uniform(0, length, count), _along_profile(profile, draw.random(count))))

    return _overlapping(draw, _join((0.6, swept), (0.1, faces([wall])), (0.3, faces(boxes))), 0.6)


def _filled_shelves(draw: Draw) -> tuple[Floats, Floats]:
    """Return windows of shelves whose bays hold different boxes."""
    pitch, bays, scene = draw.uniform(0.8, 1.6), int(draw.integers(4, 7)), list[Floats]()
    for n in range(bays):
        corner = np.array([pitch * n, 0.0, 0.0])
        scene += _box(corner, np.array([0.05, 0.5, 2.0])) + _box(
            corner + np.array([0.0, 0.0, 1.0]), np.array([pitch, 0.5, 0.04])
        )
        for _ in range(draw.integers(2, 6)):
            at = corner + np.array([draw.uniform(0, 0.7) * pitch, draw.uniform(0, 0.4), draw.choice((0.0, 1.04))])
            scene += _box(at, draw.uniform(0.1, 0.6, 3), draw.uniform(0, np.pi))
    scene.append(np.array([[0.0, 0.0, 0.0], [pitch * bays, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    return _overlapping(draw, faces(scene), 0.5)


def _rounds(draw: Draw) -> tuple[Floats, Floats]:
    """Return scans of balls and pipes on a floor."""
    samplers: list[tuple[float, Sampler]] = [(12.0, faces([np.array([[0, 0, 0], [4, 0, 0], [0, 3, 0]], np.float64)]))]
    for _ in range(draw.integers(6, 14)):
        middle, radius = draw.uniform((0.3, 0.3, 0.1), (3.7, 2.7, 1.0)), draw.uniform(0.15, 0.5)
        axis = draw.normal(size=3) * draw.choice((0.0, 0.8))

        def sample(
            draw: Draw, count: int, middle: Floats = middle, radius: float = radius, axis: Floats = axis
        ) -> Floats:
            direction = draw.normal(size=(count, 3))
            if axis.any():
                direction -= np.outer(direction @ axis, axis) / (axis @ axis)
            direction /= np.linalg.norm(direction, axis=1)[:, None]
            points: Floats = middle + radius * direction + draw.random((count, 1)) * axis
            return points

        samplers.append((6 * radius * (radius + float(np.linalg.norm(axis))), sample))
    return _overlapping(draw, _join(*samplers), 0.4)


Kind = Callable[[Draw], tuple[Floats, Floats]]
UNDETERMINED: dict[str, Kind] = {
    "extruded": _extruded,
    "symmetric": _symmetric,
    "wavy ground": _wavy_ground,
    "scaled": _scaled,
    "repeated": _repeated,
    "sheared": _sheared,
    "bend": _bend,
    "revolved": _revolved,
    "plain": _plain,
    "spiral": _spiral,
    "mirrored": _mirrored,
    "refurnished": _refurnished,
    "strangers": _strangers,
    "parts": _draw_pieces,
}
DETERMINED: dict[str, Kind] = {
    "room": _draw_indoor,
    "sparse room": _draw_sparse_indoor,
    "ground": _ground,
    "broken symmetry": _broken_symmetry,
    "closed stairs": _closed_stairs,
    "filled shelves": _filled_shelves,
    "rounds": _rounds,
}
