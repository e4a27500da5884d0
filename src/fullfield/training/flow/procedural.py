"""Textures and shapes drawn from a seed, bit for bit the same on every machine.

Only sums, products, quotients, roots and comparisons are used, each of which IEEE 754 rounds in one way: no sine, no
matrix product and no library's random numbers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
Field: TypeAlias = NDArray[np.float64]

SHAPE_SIZE = 128
"""Height and width of a silhouette, texels."""
MARGIN = 3
"""Texels of zero around a silhouette."""

_SUPERSAMPLE = 4
_INNER = SHAPE_SIZE - 2 * MARGIN
_FINE = _INNER * _SUPERSAMPLE


class RandomStream:
    """Random numbers by a counter (SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""

    def __init__(self, *key: int) -> None:
        self._state = np.zeros(1, np.uint64)
        for word in key:
            self._state = _hash_64_bit_words(self._state ^ np.array([word & 0xFFFFFFFFFFFFFFFF], np.uint64))
        self._drawn = 0

    def draw_uniform_numbers(self, *shape: int) -> Field:
        """Return uniform numbers in [0, 1)."""
        count = int(np.prod(shape)) if shape else 1
        index = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64)
        self._drawn += count
        bits = _hash_64_bit_words(self._state + index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
        return (bits.astype(np.float64) * 2.0**-53).reshape(shape or (1,))

    def draw_between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * float(self.draw_uniform_numbers()[0])

    def draw_integer(self, low: int, high: int) -> int:
        """Return an integer of low, …, high."""
        return low + int(float(self.draw_uniform_numbers()[0]) * (high - low + 1))


def _hash_64_bit_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# -- textures ----------------------------------------------------------------------------------------------------------


def create_procedural_textures_and_names(count: int, size: int, seed: int) -> tuple[Pixels, tuple[str, ...]]:
    """Draw ``count`` pictures [N, size, size, 3] and their names; the first do not depend on ``count``."""
    pictures = np.empty((count, size, size, 3), np.uint8)
    names = []
    for index in range(count):
        draw = _TEXTURES[index % len(_TEXTURES)]
        stream = RandomStream(seed, index, 1)
        colour = draw(stream, size)
        grain = stream.draw_between(0.0, 0.06)
        colour = colour + grain * (draw_noise(stream, size, size / 2, 1)[..., None] - 0.5)
        shade = stream.draw_between(0.0, 0.35)
        colour = colour * (1 - shade * draw_noise(stream, size, 2.0, 2)[..., None])
        pictures[index] = np.floor(colour.clip(0, 1) * 255 + 0.5).astype(np.uint8)
        names.append(f"procedural/{draw.__name__.removeprefix('_draw_')} {index}")
    return pictures, tuple(names)


def draw_noise(stream: RandomStream, size: int, cells: float, octaves: int, gain: float = 0.55) -> Field:
    """Return value noise in [0, 1]: ``cells`` cells across in the first octave, twice as many in each next one."""
    total = np.zeros((size, size))
    weight, total_weight = 1.0, 0.0
    for _ in range(octaves):
        total += weight * _draw_lattice_noise(stream, size, min(cells, float(size)))
        total_weight += weight
        weight *= gain
        cells *= 2
        if cells > size:
            break
    return total / total_weight


def _draw_lattice_noise(stream: RandomStream, size: int, cells: float) -> Field:
    """Return random values on a lattice, joined by a smooth step."""
    points = int(cells) + 2
    values = stream.draw_uniform_numbers(points, points)
    position = np.arange(size) * (cells / size) + float(stream.draw_uniform_numbers()[0]) * 0.999 * (points - 1 - cells)
    low = np.minimum(position.astype(np.int64), points - 2)
    fraction = position - low
    fraction = fraction * fraction * (3 - 2 * fraction)
    rows = values[low] * (1 - fraction)[:, None] + values[low + 1] * fraction[:, None]
    columns: Field = rows[:, low] * (1 - fraction) + rows[:, low + 1] * fraction
    return columns


def _draw_palette(stream: RandomStream, color_count: int) -> Field:
    """Return colours [K, 3]: half of the palettes little saturated, as in nature, half saturated."""
    natural = stream.draw_between(0, 1) < 0.5
    base = stream.draw_uniform_numbers(color_count, 3)
    # From dark to light.
    grey = (np.arange(color_count)[:, None] + stream.draw_uniform_numbers(color_count, 1)) / color_count
    if stream.draw_between(0, 1) < 0.5:
        grey = grey[::-1]
    strength = 0.25 if natural else 0.9
    tint = stream.draw_uniform_numbers(1, 3)
    return (grey * (1 - strength) + strength * (0.6 * base + 0.4 * tint)).clip(0.02, 0.98)


def _map_to_palette(field: Field, palette: Field) -> Field:
    """Return a field in [0, 1] as colours of the palette."""
    position = field.clip(0, 1) * (len(palette) - 1)
    low = np.minimum(position.astype(np.int64), len(palette) - 2)
    fraction = (position - low)[..., None]
    colours: Field = palette[low] * (1 - fraction) + palette[low + 1] * fraction
    return colours


def _normalize_to_unit_range(field: Field) -> Field:
    low, high = field.min(), field.max()
    stretched: Field = (field - low) / max(float(high - low), 1e-9)
    return stretched


def _draw_rotated_coordinates(stream: RandomStream, size: int) -> tuple[Field, Field]:
    """Return the coordinates of the pixels in a turned frame, 1 across."""
    c, s = _compute_unit_vectors(np.array([float(stream.draw_uniform_numbers()[0])]))[0]
    y, x = np.mgrid[0:size, 0:size] / size
    return c * x - s * y, s * x + c * y


def _compute_unit_vectors(turn: Field) -> Field:
    """Return unit vectors [..., 2] that go around once while ``turn`` goes from 0 to 1 (not quite evenly)."""
    position = (turn - np.floor(turn)) * 4
    quarter = np.minimum(position.astype(np.int64), 3)
    t = position - quarter
    c, s = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    x = np.choose(quarter, [c, -s, -c, s])
    y = np.choose(quarter, [s, c, -s, -c])
    return np.stack([x, y], axis=-1)


def _compute_smooth_wave(phase: Field) -> Field:
    """Return a smooth wave in [0, 1] of period 1."""
    slope = np.abs(2 * (phase - np.floor(phase)) - 1)
    wave: Field = slope * slope * (3 - 2 * slope)
    return wave


def _draw_clouds(stream: RandomStream, size: int) -> Field:
    field = _normalize_to_unit_range(
        draw_noise(stream, size, stream.draw_between(2, 24), 9, stream.draw_between(0.45, 0.8))
    )
    return _map_to_palette(field, _draw_palette(stream, stream.draw_integer(2, 5)))


def _draw_marble(stream: RandomStream, size: int) -> Field:
    along, _ = _draw_rotated_coordinates(stream, size)
    bent = along * stream.draw_between(3, 20) + stream.draw_between(1, 6) * draw_noise(
        stream, size, stream.draw_between(2, 8), 6
    )
    return _map_to_palette(_compute_smooth_wave(bent), _draw_palette(stream, stream.draw_integer(2, 4)))


def _draw_voronoi_cells(stream: RandomStream, size: int) -> Field:
    """Draw Voronoi cells, each of a colour, with dark or light joints; flecked."""
    cells = stream.draw_integer(5, 28)
    spots = stream.draw_uniform_numbers(cells, cells, 2)
    colours = _draw_palette(stream, 6)[(stream.draw_uniform_numbers(cells, cells) * 6).astype(np.int64)]
    y, x = np.mgrid[0:size, 0:size] * (cells / size)
    row, column = y.astype(np.int64), x.astype(np.int64)
    nearest = np.full((size, size), 9.0)
    second = np.full((size, size), 9.0)
    owner = np.zeros((size, size), np.int64)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            r, c = (row + dy) % cells, (column + dx) % cells
            gap_y = row + dy + spots[r, c, 0] - y
            gap_x = column + dx + spots[r, c, 1] - x
            distance = np.sqrt(gap_y * gap_y + gap_x * gap_x)
            closer = distance < nearest
            second = np.where(closer, nearest, np.minimum(second, distance))
            owner = np.where(closer, r * cells + c, owner)
            nearest = np.minimum(nearest, distance)
    joint = ((second - nearest) * stream.draw_between(4, 30)).clip(0, 1)[..., None]
    flecks = 0.7 + 0.6 * draw_noise(stream, size, size / 16, 3)[..., None]
    mosaic: Field = colours.reshape(-1, 3)[owner] * flecks * joint + _draw_palette(stream, 1)[0] * (1 - joint)
    return mosaic


def _draw_stripes(stream: RandomStream, size: int) -> Field:
    along, across = _draw_rotated_coordinates(stream, size)
    count = stream.draw_between(3, 50)
    sharp = stream.draw_between(0.5, 8)
    wave = ((_compute_smooth_wave(along * count + 0.2 * draw_noise(stream, size, 4.0, 3)) - 0.5) * sharp + 0.5).clip(
        0, 1
    )
    dirt = 0.75 + 0.5 * draw_noise(stream, size, 6.0, 6)
    tone = _compute_smooth_wave(across * stream.draw_between(0, 3)) * stream.draw_between(0, 0.4)
    return _map_to_palette(wave, _draw_palette(stream, 2)) * (dirt - tone)[..., None]


def _draw_checks(stream: RandomStream, size: int) -> Field:
    along, across = _draw_rotated_coordinates(stream, size)
    count = stream.draw_between(3, 32)
    odd = (np.floor(along * count) + np.floor(across * count * stream.draw_between(0.6, 1.6))) % 2
    dirt = 0.7 + 0.6 * draw_noise(stream, size, stream.draw_between(3, 30), 6)
    return _map_to_palette(odd, _draw_palette(stream, 2)) * dirt[..., None]


def _draw_bricks(stream: RandomStream, size: int) -> Field:
    along, across = _draw_rotated_coordinates(stream, size)
    rows = stream.draw_between(5, 22)
    v = across * rows
    row = np.floor(v)
    u = along * rows * stream.draw_between(0.3, 0.8) + (row % 2) * 0.5
    column = np.floor(u)
    colours = _draw_palette(stream, 5)
    tone = stream.draw_uniform_numbers(64, 64)[row.astype(np.int64) % 64, column.astype(np.int64) % 64]
    thick = stream.draw_between(0.04, 0.15)
    joint = ((u - column) < thick * 0.5) | ((v - row) < thick)
    face = _map_to_palette(tone, colours) * (0.6 + 0.8 * draw_noise(stream, size, size / 24, 4))[..., None]
    return np.where(
        joint[..., None],
        _draw_palette(stream, 1)[0] * (0.7 + 0.5 * draw_noise(stream, size, size / 8, 2))[..., None],
        face,
    )


def _draw_speckles(stream: RandomStream, size: int) -> Field:
    """Draw specks of many sizes on a ground, as stars, gravel or seeds."""
    colour = _map_to_palette(draw_noise(stream, size, 3.0, 3), _draw_palette(stream, 2))
    return _draw_discs_inplace(stream, colour, stream.draw_integer(150, 500), 0.003, 0.02)


def _draw_dead_leaves(stream: RandomStream, size: int) -> Field:
    """Draw discs that hide each other, radii by a power law as in natural pictures (Lee, Mumford, Huang, IJCV 2001)."""
    return _draw_discs_inplace(
        stream, np.ones((size, size, 3)) * _draw_palette(stream, 1)[0], stream.draw_integer(250, 500), 0.008, 0.3
    )


def _draw_discs_inplace(
    stream: RandomStream, picture: Field, count: int, min_radius: float, max_radius: float
) -> Field:
    size = len(picture)
    colours = _draw_palette(stream, 12)
    fine = draw_noise(stream, size, size / 12, 3)
    centres, radii = stream.draw_uniform_numbers(count, 2) * size, stream.draw_uniform_numbers(count)
    picks, flecks = (stream.draw_uniform_numbers(count) * 12).astype(np.int64), 0.8 * stream.draw_uniform_numbers(count)
    for number in range(count):
        radius = size / (1 / max_radius + radii[number] * (1 / min_radius - 1 / max_radius))
        y, x = centres[number]
        top, left = max(0, int(y - radius) - 1), max(0, int(x - radius) - 1)
        bottom, right = min(size, int(y + radius) + 2), min(size, int(x + radius) + 2)
        dy = (np.arange(top, bottom) - y)[:, None]
        dx = (np.arange(left, right) - x)[None]
        cover = (radius - np.sqrt(dy * dy + dx * dx) + 0.5).clip(0, 1)[..., None]
        background = picture[top:bottom, left:right]
        ink = colours[picks[number]] * (1 + flecks[number] * (fine[top:bottom, left:right, None] - 0.5))
        picture[top:bottom, left:right] = background * (1 - cover) + ink * cover
    return picture


def _draw_gradient(stream: RandomStream, size: int) -> Field:
    along, across = _draw_rotated_coordinates(stream, size)
    bent = _normalize_to_unit_range(along + stream.draw_between(0, 0.6) * across * across)
    ground = _map_to_palette(bent, _draw_palette(stream, stream.draw_integer(2, 4)))
    return ground * (0.85 + 0.3 * draw_noise(stream, size, stream.draw_between(2, 12), 5))[..., None]


def _draw_low_contrast_picture(stream: RandomStream, size: int) -> Field:
    """Draw a nearly flat picture: a wall, a clear sky."""
    field = draw_noise(stream, size, stream.draw_between(2, 8), 7, 0.6)
    colours: Field = _draw_palette(stream, 1)[0] + stream.draw_between(0.03, 0.12) * (field[..., None] - 0.5) * (
        0.5 + stream.draw_uniform_numbers(3)
    )
    return colours


_TEXTURES = (
    _draw_clouds,
    _draw_dead_leaves,
    _draw_voronoi_cells,
    _draw_marble,
    _draw_bricks,
    _draw_speckles,
    _draw_stripes,
    _draw_gradient,
    _draw_checks,
    _draw_low_contrast_picture,
)


# -- shapes ------------------------------------------------------------------------------------------------------------


def draw_procedural_shape_masks(count: int, seed: int) -> Pixels:
    """Draw coverage masks [count, 128, 128], zero in the margin; the first do not depend on ``count``.

    Polygons, stars, thin bars, discs with holes, frames, fans of hairs, fences and blobs, in turn.
    """
    shapes = np.zeros((count, SHAPE_SIZE, SHAPE_SIZE), np.uint8)
    for index in range(count):
        outlines = _SHAPES[index % len(_SHAPES)](RandomStream(seed, index, 2))
        shapes[index, MARGIN:-MARGIN, MARGIN:-MARGIN] = _scale_and_fill_outlines(outlines)
    return shapes


def _scale_and_fill_outlines(outlines: list[Field]) -> Pixels:
    """Return the coverage [122, 122] of closed outlines [N, 2] (x, y), scaled until the longer side fills it.

    Where an even number of them overlap is outside.
    """
    low = np.min([o.min(axis=0) for o in outlines], axis=0)
    high = np.max([o.max(axis=0) for o in outlines], axis=0)
    scale = _FINE / max(float((high - low).max()), 1e-9)
    shift = (_FINE - (high - low) * scale) / 2
    flips = np.zeros((_FINE, _FINE + 1), np.uint8)  # whether the inside begins or ends before a column
    rows = np.arange(_FINE) + 0.5
    for outline in outlines:
        points = (outline - low) * scale + shift
        for (x1, y1), (x2, y2) in zip(points, np.roll(points, -1, axis=0), strict=True):
            crossing = ((rows < y1) != (rows < y2)).nonzero()[0]
            if len(crossing):
                x = x1 + (rows[crossing] - y1) * ((x2 - x1) / (y2 - y1))
                column = np.ceil(x - 0.5).clip(0, _FINE).astype(np.int64)
                flips[crossing, column] ^= 1  # one crossing a row and edge
    inside = np.bitwise_xor.accumulate(flips, axis=1)[:, :_FINE]
    summed = inside.reshape(_INNER, _SUPERSAMPLE, _FINE).sum(axis=1, dtype=np.uint8)
    sums = summed.reshape(_INNER, _INNER, _SUPERSAMPLE).sum(axis=2, dtype=np.int64)
    coverage: Pixels = (sums * 255 // _SUPERSAMPLE**2).astype(np.uint8)
    return coverage


def _draw_corner_directions(stream: RandomStream, corner_count: int) -> Field:
    """Return directions [corners, 2] around a centre, unevenly spaced."""
    return _compute_unit_vectors(
        (np.arange(corner_count) + 0.7 * stream.draw_uniform_numbers(corner_count)) / corner_count
    )


def _rotate_and_narrow_outline(stream: RandomStream, outline: Field, min_width_fraction: float = 0.4) -> Field:
    """Turn an outline, and make it narrower across."""
    c, s = _compute_unit_vectors(stream.draw_uniform_numbers(1))[0]
    narrow = stream.draw_between(min_width_fraction, 1)
    x, y = outline[:, 0], outline[:, 1] * narrow
    return np.stack([c * x - s * y, s * x + c * y], axis=1)


def _draw_polygon(stream: RandomStream) -> list[Field]:
    corners = stream.draw_integer(3, 9)
    radius = 0.55 + 0.45 * stream.draw_uniform_numbers(corners, 1)
    return [_rotate_and_narrow_outline(stream, _draw_corner_directions(stream, corners) * radius)]


def _draw_star(stream: RandomStream) -> list[Field]:
    tips = stream.draw_integer(4, 14)
    turn = _compute_unit_vectors(np.arange(2 * tips) / (2 * tips))
    radius = np.where(np.arange(2 * tips) % 2, stream.draw_between(0.2, 0.7), 1.0)[:, None]
    return [
        _rotate_and_narrow_outline(
            stream, turn * radius * (0.85 + 0.15 * stream.draw_uniform_numbers(2 * tips, 1)), 0.6
        )
    ]


def _draw_bar(stream: RandomStream) -> list[Field]:
    """Return a thin bar, straight or bent."""
    steps = np.arange(17) / 16
    bend = stream.draw_between(-0.5, 0.5) if stream.draw_between(0, 1) < 0.6 else 0.0
    middle = np.stack([steps, bend * 4 * steps * (1 - steps)], axis=1)
    half = stream.draw_between(0.008, 0.06) * (1 - stream.draw_between(0, 0.9) * steps)
    offset = np.stack([np.zeros(17), half], axis=1)
    return [_rotate_and_narrow_outline(stream, np.concatenate([middle + offset, (middle - offset)[::-1]]), 0.99)]


def _build_disc_outline(radius: float, x: float = 0.0, y: float = 0.0) -> Field:
    outline: Field = _compute_unit_vectors(np.arange(48) / 48) * radius + np.array([x, y])
    return outline


def _draw_disc_with_holes(stream: RandomStream) -> list[Field]:
    """Return a ring, or a disc with several holes."""
    if stream.draw_between(0, 1) < 0.4:
        return [
            _build_disc_outline(1.0),
            _build_disc_outline(
                stream.draw_between(0.4, 0.93), stream.draw_between(-0.05, 0.05), stream.draw_between(-0.05, 0.05)
            ),
        ]
    count = stream.draw_integer(2, 6)
    centres = _compute_unit_vectors((np.arange(count) + stream.draw_between(0, 1)) / count) * 0.58
    return [
        _build_disc_outline(1.0),
        *(_build_disc_outline(stream.draw_between(0.08, 0.9 / count), float(x), float(y)) for x, y in centres),
    ]


def _draw_polygonal_frame(stream: RandomStream) -> list[Field]:
    """Return a frame of three to six corners."""
    corners = stream.draw_integer(3, 6)
    outer = _compute_unit_vectors((np.arange(corners) + 0.5) / corners)
    inner = stream.draw_between(0.6, 0.93)
    narrow = stream.draw_between(0.5, 1)
    c, s = _compute_unit_vectors(stream.draw_uniform_numbers(1))[0]
    turned = []
    for ring in (outer, outer * inner):
        x, y = ring[:, 0], ring[:, 1] * narrow
        turned.append(np.stack([c * x - s * y, s * x + c * y], axis=1))
    return turned


def _draw_hair_fan(stream: RandomStream) -> list[Field]:
    """Return hairs that leave one base, thin at their ends."""
    count = stream.draw_integer(6, 26)
    spread = stream.draw_between(0.15, 0.9)
    start = stream.draw_between(0, 1)
    hairs = []
    for number in range(count):
        heading = _compute_unit_vectors(np.array([start + spread * (number + stream.draw_between(-0.3, 0.3)) / count]))[
            0
        ]
        side = np.array([-heading[1], heading[0]])
        length, bend, half = (
            stream.draw_between(0.5, 1),
            stream.draw_between(-0.25, 0.25),
            stream.draw_between(0.006, 0.02),
        )
        steps = np.arange(9)[:, None] / 8
        middle = heading * (0.12 + length * steps) + side * (bend * steps * steps)
        thick = side * half * (1.05 - steps)
        hairs.append(np.concatenate([middle + thick, (middle - thick)[::-1]]))
    return hairs


def _draw_fence(stream: RandomStream) -> list[Field]:
    """Return parallel bars, crossed by others or not."""
    count = stream.draw_integer(3, 12)
    crossed = stream.draw_integer(0, 1) * stream.draw_integer(2, 10)
    width, height = stream.draw_between(0.08, 0.5) / count, stream.draw_between(0.5, 1)
    c, s = _compute_unit_vectors(stream.draw_uniform_numbers(1))[0]

    def outline_box(left: float, top: float, right: float, bottom: float) -> Field:
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        return np.stack([c * corners[:, 0] - s * corners[:, 1], s * corners[:, 0] + c * corners[:, 1]], axis=1)

    bars = [outline_box((n + 0.5) / count - width, 0, (n + 0.5) / count + width, height) for n in range(count)]
    if not crossed:
        return bars
    # Between the bars only: where two outlines overlap is outside.
    thick = stream.draw_between(0.1, 0.35) * height / crossed
    edges = [0.0, *(x for n in range(count) for x in ((n + 0.5) / count - width, (n + 0.5) / count + width)), 1.0]
    for line in range(crossed):
        y = (line + 0.5) / crossed * height
        bars += [outline_box(edges[k], y - thick, edges[k + 1], y + thick) for k in range(0, len(edges), 2)]
    return bars


def _draw_blob(stream: RandomStream) -> list[Field]:
    """Return a smooth closed outline."""
    corners = 96
    steps = np.arange(corners) / corners
    radius = np.ones(corners)
    for wave in range(1, stream.draw_integer(3, 8)):
        depth = stream.draw_between(0.2, 1.5) / wave
        radius += depth * (_compute_smooth_wave(steps * wave + stream.draw_between(0, 1)) - 0.5)
    return [_rotate_and_narrow_outline(stream, _compute_unit_vectors(steps) * radius[:, None], 0.5)]


_SHAPES = (
    _draw_polygon,
    _draw_star,
    _draw_bar,
    _draw_disc_with_holes,
    _draw_polygonal_frame,
    _draw_hair_fan,
    _draw_fence,
    _draw_blob,
)
