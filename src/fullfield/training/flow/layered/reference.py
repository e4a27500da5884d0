"""Reference of the renderer in plain PyTorch; defines what the kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fullfield.ops._positions import create_pixel_grid
from fullfield.training.flow.layered import raster
from fullfield.training.flow.layered.meshes import SceneTriangles
from fullfield.training.flow.layered.sampling import sample_pictures_trilinearly
from fullfield.training.flow.layered.scene import (
    BIAS,
    COLOURS,
    DEPTH_TEXTURE,
    ELLIPSOID,
    INFINITE,
    LIGHT,
    SOFTNESS,
    SQUARE,
    TEXTURE,
    LayeredScenes,
    PictureAtlas,
    RenderedPairs,
)

NEAREST = 1e-9  # of w
GRAZING = 1e-3  # of the cosine at an ellipsoid's outline, where derivatives have no limit
_WORD, _DEVIATION = 0xFFFFFFFF, 147.8005  # the deviation of a sum of four bytes
CLEAR = 0.004  # of what is seen behind: less is not followed


def explain_unsupported(device: torch.device) -> str | None:  # noqa: ARG001 - anywhere
    """Return None: the reference runs on every device."""
    return None


_Vector: TypeAlias = tuple[Tensor, ...]  # of three


class _SurfacePoint(NamedTuple):
    """Points of a layer that pixels show: [B, H, W] each."""

    at: _Vector  # (a, b, 0) of a card, s of an ellipsoid
    w: Tensor  # 1 / depth
    front: Tensor
    right: _Vector  # derivatives of ``at`` by the pixel
    down: _Vector
    inside: Tensor  # distance inside an ellipsoid's outline, pixels


def render_pairs(
    scenes: LayeredScenes, triangles: SceneTriangles | None, atlas: PictureAtlas, size: tuple[int, int]
) -> RenderedPairs:
    """Render as :func:`fullfield.training.flow.layered.render_pairs`; arguments are checked."""
    x, y = create_pixel_grid(size, scenes.to_card.device)
    first, second = (_render_frame(scenes, triangles, atlas, frame, x, y) for frame in (0, 1))
    flow, valid, occluded = _compute_flow_validity_and_occlusion(scenes, triangles, atlas, x, y)
    return RenderedPairs(first, second, flow, valid, occluded)


def _expand_to_pixels(values: Tensor) -> Tensor:
    return values[:, None, None]


def _displace_by_waves(paint: Tensor, x: Tensor, y: Tensor, fraction: Tensor) -> tuple[Tensor, Tensor]:
    """Move pixels [B, H, W] by a card's waves; ``fraction`` [B]."""
    target_x, target_y = x, y
    for wave in (0, 5):
        ax, ay, kx, ky, phase = (_expand_to_pixels(paint[:, wave + value]) for value in range(5))
        sine = torch.sin(kx * x + ky * y + phase) * _expand_to_pixels(fraction)
        target_x, target_y = target_x + ax * sine, target_y + ay * sine
    return target_x, target_y


def _intersect_rays_with_layer(matrix: Tensor, centre: Tensor, shape: Tensor, x: Tensor, y: Tensor) -> _SurfacePoint:
    """Intersect the rays of pixels with a layer: matrix [B, 3, 3], centre [B, 3], shape [B]."""
    card = _intersect_rays_with_card(matrix, x, y)
    if not bool((shape == ELLIPSOID).any()):
        return card
    solid = _intersect_rays_with_ellipsoid(matrix, centre, x, y)
    is_solid = _expand_to_pixels(shape == ELLIPSOID)

    def select_by_shape(one: Any, other: Any) -> Any:
        return torch.where(is_solid, one, other) if isinstance(one, Tensor) else tuple(map(select_by_shape, one, other))

    return _SurfacePoint(*map(select_by_shape, solid, card))


def _intersect_rays_with_card(matrix: Tensor, x: Tensor, y: Tensor) -> _SurfacePoint:
    m = [_expand_to_pixels(matrix[:, row, column]) for row in range(3) for column in range(3)]
    w = m[6] * x + m[7] * y + m[8]
    front = w > NEAREST
    safe = torch.where(front, w, 1.0)
    a = (m[0] * x + m[1] * y + m[2]) / safe
    b = (m[3] * x + m[4] * y + m[5]) / safe
    zero = torch.zeros_like(a)
    right = (m[0] - a * m[6]) / safe, (m[3] - b * m[6]) / safe, zero
    down = (m[1] - a * m[7]) / safe, (m[4] - b * m[7]) / safe, zero
    return _SurfacePoint((a, b, zero), safe, front, right, down, zero)


def _dot_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def _compute_ray_directions(matrix: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the directions u of pixels' rays in the coordinates of an ellipsoid."""
    m = [[_expand_to_pixels(matrix[:, row, column]) for column in range(3)] for row in range(3)]
    return [row[0] * x + row[1] * y + row[2] for row in m]


def _intersect_rays_with_ellipsoid(matrix: Tensor, centre: Tensor, x: Tensor, y: Tensor) -> _SurfacePoint:
    across, below = ([_expand_to_pixels(matrix[:, row, column]) for row in range(3)] for column in (0, 1))
    v = [_expand_to_pixels(centre[:, row]) for row in range(3)]
    u = _compute_ray_directions(matrix, x, y)
    uu, uv, outside = _dot_product(u, u), _dot_product(u, v), _dot_product(v, v) - 1
    discriminant = uv * uv - uu * outside
    slope_x = 2 * (uv * _dot_product(across, v) - outside * _dot_product(across, u))
    slope_y = 2 * (uv * _dot_product(below, v) - outside * _dot_product(below, u))
    inside = discriminant / (slope_x.square() + slope_y.square()).sqrt().clamp(min=1e-20)
    depth = (uv - discriminant.clamp(min=0).sqrt()) / uu
    front = (outside > 0) & (uv > 0) & (depth > 0)
    depth = torch.where(front, depth, 1.0)
    s = tuple(depth * ui - vi for ui, vi in zip(u, v, strict=True))
    towards = torch.minimum(_dot_product(s, u), -GRAZING * uu.sqrt())

    def differentiate(column: list[Tensor]) -> _Vector:
        slope = _dot_product(s, column) / towards
        return tuple(depth * (mi - ui * slope) for mi, ui in zip(column, u, strict=True))

    return _SurfacePoint(s, 1 / depth, front, differentiate(across), differentiate(below), inside)


def _sample_coverage(point: _SurfacePoint, paint: Tensor, shape: Tensor, atlas: PictureAtlas) -> Tensor:
    """Return the coverage [B, H, W], 0 ... 1; ``shape`` [B]."""
    (a, b, _), front = point.at, point.front
    (ax, bx, _), (ay, by, _) = point.right, point.down
    softness = _expand_to_pixels(paint[:, SOFTNESS])
    along, across = (ax * ax + ay * ay).sqrt(), (bx * bx + by * by).sqrt()
    inside = torch.minimum((1 - a.abs()) / along, (1 - b.abs()) / across)
    square = (inside / softness + 0.5).clamp(0, 1)
    texels = atlas.shapes.shape[1]
    if len(atlas.shapes) and bool((shape >= 0).any()):
        which = _expand_to_pixels(shape).clamp(min=0).remainder(len(atlas.shapes)).long()
        at = [(value + 1) * (texels / 2) - 0.5 for value in (a, b)]
        low = [value.clamp(-4, texels + 4).floor() for value in at]
        remainder = [value - floor for value, floor in zip(at, low, strict=True)]
        texture_value = torch.zeros_like(a)
        for down in (0, 1):
            for right in (0, 1):
                column, row = low[0].long() + right, low[1].long() + down
                in_silhouette = (column >= 0) & (column < texels) & (row >= 0) & (row < texels)
                value = atlas.shapes[which, row.clamp(0, texels - 1), column.clamp(0, texels - 1)].float()
                weight = (remainder[0] if right else 1 - remainder[0]) * (remainder[1] if down else 1 - remainder[1])
                texture_value = texture_value + torch.where(in_silhouette, value * weight, 0.0)
        sharper = (1 / (texels / 2 * torch.maximum(along, across) * softness)).clamp(min=1)
        silhouette = ((texture_value / 255 - 0.5) * sharper + 0.5).clamp(0, 1)
        silhouette = torch.where((a.abs() < 1) & (b.abs() < 1), silhouette, 0.0)
    else:
        silhouette = square
    kind = _expand_to_pixels(shape)
    covered = torch.where(kind == INFINITE, 1.0, torch.where(kind == SQUARE, square, silhouette))
    covered = torch.where(kind == ELLIPSOID, (point.inside / softness + 0.5).clamp(0, 1), covered)
    return torch.where(front, covered, 0.0)


def _sample_texture(point: _SurfacePoint, paint: Tensor, picture: Tensor, atlas: PictureAtlas) -> Tensor:
    """Return the colours [B, H, W, 3], 0 ... 255."""
    t = [_expand_to_pixels(paint[:, TEXTURE + component]) for component in range(6)]
    d = [_expand_to_pixels(paint[:, DEPTH_TEXTURE + component]) for component in range(2)]

    def apply_texture_matrix(point: _Vector) -> tuple[Tensor, Tensor]:
        a, b, c = point
        return t[0] * a + t[1] * b + d[0] * c, t[3] * a + t[4] * b + d[1] * c

    u, v = (component + offset for component, offset in zip(apply_texture_matrix(point.at), (t[2], t[5]), strict=True))
    steps = [x.square() + y.square() for x, y in (apply_texture_matrix(point.right), apply_texture_matrix(point.down))]
    texels = torch.maximum(*steps).clamp(min=1e-16)
    level = 0.5 * texels.log2() + _expand_to_pixels(paint[:, BIAS])
    return sample_pictures_trilinearly(atlas, _expand_to_pixels(picture), u, v, level)


def _intersect_rays_with_layer_at_instant(
    scenes: LayeredScenes, frame_instant_layer: tuple[int, int, int], x: Tensor, y: Tensor
) -> _SurfacePoint:
    """Intersect the rays of pixels with a layer of each scene at an instant of a frame."""
    frame, instant, layer = frame_instant_layer
    centre = scenes.centres[:, frame, instant, layer]
    return _intersect_rays_with_layer(scenes.to_card[:, frame, instant, layer], centre, scenes.ids[:, layer, 1], x, y)


def _is_layer_active(scenes: LayeredScenes, layer: int) -> Tensor:
    return _expand_to_pixels(layer < scenes.counts)


class _MeshSamples(NamedTuple):
    """Meshes at one moment: the layer that each sample shows [B, H, W], and colours of the samples that show one."""

    layer: Tensor
    seen: Tensor  # [B, H, W] bool
    colours: Tensor  # [N, 3]

    @classmethod
    def rasterize_and_shade(
        cls, triangles: SceneTriangles, atlas: PictureAtlas, frame: int, x: Tensor, y: Tensor, exposure: Tensor
    ) -> _MeshSamples:
        """Rasterise and shade meshes for the pixels (x, y) [H, W] in an exposure [B, 3] of a frame."""
        fraction, right, down = exposure.unbind(1)
        keys = raster.rasterize_to_depth_keys(triangles, (x.shape[0], x.shape[1]), 1 - fraction, right, down)
        layer = raster.unpack_layer_index(keys)
        seen = keys != raster.EMPTY
        at = seen.nonzero()[:, 0]
        at_x, at_y = ((pixel + _expand_to_pixels(offset))[seen] for pixel, offset in ((x, right), (y, down)))
        index = raster.unpack_triangle_index(keys[seen])
        return cls(layer, seen, raster.shade_samples(triangles, atlas, index, (1 - fraction)[at], at_x, at_y, frame))

    def accumulate_layer_inplace(self, layer: int, transmittance: Tensor, color_sum: Tensor) -> None:
        """Add what samples show of a layer to ``color_sum`` [B, H, W, 3]; nothing is visible behind it."""
        is_mesh = self.layer == layer
        color_sum[is_mesh] += transmittance[is_mesh][:, None] * self.colours[is_mesh[self.seen]]
        transmittance[is_mesh] = 0


def _render_frame(
    scenes: LayeredScenes, triangles: SceneTriangles | None, atlas: PictureAtlas, frame: int, x: Tensor, y: Tensor
) -> Tensor:
    """Return a frame [B, 3, H, W]."""
    exposures = scenes.exposures.shape[2]
    total = torch.zeros((), dtype=torch.float32, device=x.device)
    background = scenes.background[:, None, None]
    for exposure in range(exposures):
        fraction, right, down = scenes.exposures[:, frame, exposure].unbind(1)
        at_x, at_y = x + _expand_to_pixels(right), y + _expand_to_pixels(down)
        clear = torch.ones((len(scenes.counts), *x.shape), dtype=torch.float32, device=x.device)
        seen = torch.zeros((*clear.shape, 3), dtype=torch.float32, device=x.device)
        meshes = None
        if triangles is not None:
            meshes = _MeshSamples.rasterize_and_shade(
                triangles, atlas, frame, x, y, scenes.exposures[:, frame, exposure]
            )
        for layer in range(scenes.to_card.shape[3]):
            paint, ids = scenes.paint[:, layer], scenes.ids[:, layer]
            if meshes is not None:
                meshes.accumulate_layer_inplace(layer, clear, seen)
            frame_instant_layer = frame, 1 + exposure, layer
            point = _intersect_rays_with_layer_at_instant(
                scenes, frame_instant_layer, *_displace_by_waves(paint, at_x, at_y, fraction)
            )
            alpha = _sample_coverage(point, paint, ids[:, 1], atlas)
            alpha = torch.where(_is_layer_active(scenes, layer) & (clear > CLEAR), alpha, 0.0)
            if not bool((alpha > 0).any()):
                continue
            window = _find_covered_window(alpha)
            point, alpha = _crop_points_for_shading(point, window), alpha[window]
            first = COLOURS + 6 * frame
            factor, offset = (paint[:, None, None, at : at + 3] for at in (first, first + 3))
            texture = _sample_texture(point, paint, ids[:, 0], atlas) / 255
            light = [_expand_to_pixels(paint[:, LIGHT + 3 * frame + component]) for component in range(3)]
            lit = (1 + _dot_product(light, point.at)).clamp(min=0)[..., None]
            colour = (lit * (texture * factor + offset)).clamp(0, 1)
            seen[window] += (clear[window] * alpha)[..., None] * colour
            clear[window] *= 1 - alpha
        seen = seen + torch.where(clear > CLEAR, clear, 0.0)[..., None] * background
        total = total + torch.where(_expand_to_pixels(exposure < scenes.instants)[..., None], seen, 0.0)
    return _apply_gamma_and_noise(
        (total / _expand_to_pixels(scenes.instants)[..., None]).permute(0, 3, 1, 2).contiguous(), scenes, frame
    )


def _find_covered_window(alpha: Tensor) -> tuple[slice, slice, slice]:
    """Return the smallest rectangle [B, h, w] with everything that a layer covers; textures take most of the time."""
    covered = (alpha > 0).any(0)
    sides = (covered.any(axis).nonzero() for axis in (1, 0))
    rows, columns = (slice(int(side[0]), int(side[-1]) + 1) for side in sides)
    return slice(None), rows, columns


def _crop_points_for_shading(point: _SurfacePoint, window: tuple[slice, slice, slice]) -> _SurfacePoint:
    """Return the points of a rectangle, as far as textures and light need them."""
    at, right, down = (
        tuple(component[window] for component in vector) for vector in (point.at, point.right, point.down)
    )
    return point._replace(at=at, right=right, down=down)


def _apply_gamma_and_noise(values: Tensor, scenes: LayeredScenes, frame: int) -> Tensor:
    """Apply gamma and noise to [B, 3, H, W]; four bytes of a hash sum to a nearly normal number."""
    exponent, strength = (setting[:, None, None, None] for setting in scenes.sensor.unbind(1))
    height, width = values.shape[2:]
    index = torch.arange(6 * height * width, device=values.device).view(2, 3, height, width)[frame]
    drawn = _hash_32_bit_words(index ^ _hash_32_bit_words(scenes.noise.long() & _WORD)[:, None, None, None])
    total = (drawn & 255) + ((drawn >> 8) & 255) + ((drawn >> 16) & 255) + (drawn >> 24)
    noise = (total - 510).float() * (1 / _DEVIATION)
    return (values.clamp(1e-4, 1).pow(exponent) + strength * noise).clamp(0, 1)


def _hash_32_bit_words(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit words held as int64 (MurmurHash3's last step)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 16)


def _compute_flow_validity_and_occlusion(
    scenes: LayeredScenes, triangles: SceneTriangles | None, atlas: PictureAtlas, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return flow, validity and occlusion."""
    batch, layers = len(scenes.counts), scenes.to_card.shape[3]
    shape = (batch, *x.shape)
    owner = torch.full(shape, layers, device=x.device)
    target_x, target_y = (torch.zeros(shape, dtype=torch.float32, device=x.device) for _ in range(2))
    valid, turned = (torch.zeros(shape, dtype=torch.bool, device=x.device) for _ in range(2))
    ones = torch.ones(batch, dtype=torch.float32, device=x.device)
    surface_depth = torch.zeros(shape, dtype=torch.float32, device=x.device)
    keys = (
        None
        if triangles is None
        else raster.rasterize_to_depth_keys(triangles, (x.shape[0], x.shape[1]), *([0 * ones] * 3))
    )
    for layer in range(layers):
        paint = scenes.paint[:, layer]
        point = _intersect_rays_with_layer_at_instant(scenes, (0, 0, layer), *_displace_by_waves(paint, x, y, ones))
        covers = (_sample_coverage(point, paint, scenes.ids[:, layer, 1], atlas) >= 0.5) & _is_layer_active(
            scenes, layer
        )
        covers &= owner == layers
        is_solid = _expand_to_pixels(scenes.ids[:, layer, 1] == ELLIPSOID)
        a, b, c = point.at
        own = a, b, torch.where(is_solid, c, 1.0), is_solid.float()
        rows = [[_expand_to_pixels(scenes.to_frame[:, layer, row, column]) for column in range(4)] for row in range(3)]
        to_x, to_y, depth = (r[0] * own[0] + r[1] * own[1] + r[2] * own[2] + r[3] * own[3] for r in rows)
        if triangles is not None and keys is not None:
            is_mesh = (raster.unpack_layer_index(keys) == layer) & (owner == layers)
            covers |= is_mesh
            second = _project_to_second_frame(triangles, keys[is_mesh], *_get_masked_coordinates(is_mesh, x, y))
            to_x[is_mesh], to_y[is_mesh], depth[is_mesh] = second
        is_visible = covers & (depth > NEAREST)
        surface_depth = torch.where(is_visible, depth, surface_depth)
        depth = torch.where(is_visible, depth, 1.0)
        target_x, target_y = (
            torch.where(is_visible, to_x / depth, target_x),
            torch.where(is_visible, to_y / depth, target_y),
        )
        u = _compute_ray_directions(scenes.to_card[:, 1, 0, layer], target_x, target_y)
        turned |= is_visible & is_solid & (_dot_product([a, b, c], u) >= 0)
        valid |= is_visible
        owner = torch.where(covers, layer, owner)
    height, width = x.shape
    inside = (target_x >= 0) & (target_x <= width - 1) & (target_y >= 0) & (target_y <= height - 1)
    occluded = ~(valid & inside) | turned
    for layer in range(layers):
        paint = scenes.paint[:, layer]
        point = _intersect_rays_with_layer_at_instant(scenes, (1, 0, layer), target_x, target_y)
        covers = (_sample_coverage(point, paint, scenes.ids[:, layer, 1], atlas) >= 0.5) & _is_layer_active(
            scenes, layer
        )
        occluded |= covers & (owner > layer)
    if triangles is not None:
        keys = raster.rasterize_to_depth_keys(triangles, (height, width), ones, 0 * ones, 0 * ones)
        seen = valid & inside
        scene = seen.nonzero()[:, 0]
        surfaces = (values[seen] for values in (target_x, target_y, owner, surface_depth))
        occluded[seen] |= raster.is_hidden_by_meshes(triangles, keys, scene, *surfaces)
    flow = torch.stack((target_x - x, target_y - y), 1)
    return torch.where(valid[:, None], flow, 0.0), valid, occluded


def _get_masked_coordinates(mask: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates [N] of the pixels of a mask [B, H, W]."""
    return x.expand(mask.shape)[mask], y.expand(mask.shape)[mask]


def _project_to_second_frame(triangles: SceneTriangles, keys: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return (x z, y z, z) in the second frame of what samples [N] show of meshes in the first."""
    index = raster.unpack_triangle_index(keys)
    first, second = (
        raster.interpolate_corners_in_time(triangles, index, torch.full_like(x, time)) for time in (0.0, 1.0)
    )
    weights = raster.intersect_rays_with_triangles(first, x, y).weights
    return (weights[..., None] * second).sum(1).unbind(1)
