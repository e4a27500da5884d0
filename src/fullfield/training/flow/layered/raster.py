"""Rasteriser of meshes in plain PyTorch; defines what the kernels compute."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.training.flow.layered.meshes import SceneTriangles
from fullfield.training.flow.layered.sampling import sample_pictures_trilinearly
from fullfield.training.flow.layered.scene import PictureAtlas

NEAREST_SURFACE = 1e-2
"""Depth under which no surface is visible."""
DEPTH_TOLERANCE = 1e-3
"""Share of its depth by which a surface must lie before another one to hide it."""
EDGE_TOLERANCE = 2e-2
"""The same where the triangle that is seen there is only known from a pixel beside it."""
_INDEX_BITS, _DEPTH_BITS = 26, 31
LAYER_SHIFT = _INDEX_BITS + _DEPTH_BITS
EMPTY = (1 << 63) - 1
"""Key of a sample that shows no mesh. Keys order by layer (6 bits), depth (31) and triangle of the batch (26)."""
MAX_TRIANGLES = 1 << _INDEX_BITS


class TriangleHits(NamedTuple):
    """Rays of N samples with a triangle each."""

    weights: Tensor  # [N, 3]: of the corners
    right: Tensor  # [N, 3]: derivatives of the weights by the sample's x
    down: Tensor  # [N, 3]
    depth: Tensor  # [N]
    front: Tensor  # [N] bool: the triangle's plane is in front of the camera
    covers: Tensor  # [N] bool: and the ray meets the triangle itself


def intersect_rays_with_triangles(points: Tensor, x: Tensor, y: Tensor) -> TriangleHits:
    """Intersect samples (x, y) [N] with triangles, given as points [N, 3, 3] that are (x z, y z, z)."""
    z = points[..., 2]
    across, below = points[..., 0] - z * x[:, None], points[..., 1] - z * y[:, None]
    after, last = [1, 2, 0], [2, 0, 1]
    edges = across[:, after] * below[:, last] - across[:, last] * below[:, after]
    area = edges.sum(1)
    flat = area == 0
    inverse = 1 / torch.where(flat, 1.0, area)
    weights = edges * inverse[:, None]
    depth = (weights * z).sum(1)
    right = z[:, last] * below[:, after] - z[:, after] * below[:, last]
    down = across[:, last] * z[:, after] - across[:, after] * z[:, last]
    right = (right - weights * right.sum(1, keepdim=True)) * inverse[:, None]
    down = (down - weights * down.sum(1, keepdim=True)) * inverse[:, None]
    front = ~flat & (depth > NEAREST_SURFACE)
    covers = front & ((edges >= 0).all(1) | (edges <= 0).all(1))
    return TriangleHits(weights, right, down, depth, front, covers)


def interpolate_corners_in_time(triangles: SceneTriangles, triangle_indices: Tensor, time: Tensor) -> Tensor:
    """Return the points [N, 3, 3] of the corners of triangles [N] at a time [N] each."""
    first, second = triangles.points[triangles.corners[triangle_indices].long()].unbind(2)
    return first + time[:, None, None] * (second - first)


def rasterize_to_depth_keys(
    triangles: SceneTriangles, size: tuple[int, int], times: Tensor, offset_x: Tensor, offset_y: Tensor
) -> Tensor:
    """Return the keys [B, H, W] of the triangles that samples show at a time of each scene.

    ``times`` and the offsets of the samples from the centres of pixels are [B].
    """
    height, width = size
    device = times.device
    keys = torch.full((len(times) * height * width,), EMPTY, dtype=torch.int64, device=device)
    scene, layer = triangles.owners[:, 0].long(), triangles.owners[:, 1].long()
    everything = torch.arange(len(scene), device=device)
    points = interpolate_corners_in_time(triangles, everything, times[scene])
    z = points[..., 2]
    ahead = (z > NEAREST_SURFACE).all(1)
    bounds = []
    for axis, (offset, side) in enumerate(((offset_x, width), (offset_y, height))):
        at = points[..., axis] / torch.where(ahead[:, None], z, 1.0) - offset[scene][:, None]
        low, high = at.amin(1).ceil().clamp(0, side), (at.amax(1).floor() + 1).clamp(0, side)
        low, high = torch.where(ahead, low, 0.0), torch.where(ahead, high, float(side))
        bounds.append((low.long(), (high - low).long().clamp(min=0)))
    (left, columns), (top, rows) = bounds
    seen = (columns * rows > 0) & (z > NEAREST_SURFACE).any(1)
    which = everything[seen]
    counts = (columns * rows)[seen]
    sample = torch.repeat_interleave(which, counts)
    rank = torch.arange(len(sample), device=device) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    across = columns[sample]
    column, row = left[sample] + rank % across, top[sample] + rank // across
    sample_scene = scene[sample]
    hits = intersect_rays_with_triangles(points[sample], column + offset_x[sample_scene], row + offset_y[sample_scene])
    depth = hits.depth.clamp(min=0).float().view(torch.int32).long()
    key = (layer[sample] << LAYER_SHIFT) | (depth << _INDEX_BITS) | sample
    slot = (sample_scene * height + row) * width + column
    keys.scatter_reduce_(0, slot[hits.covers], key[hits.covers], "amin")
    return keys.view(len(times), height, width)


def unpack_layer_index(keys: Tensor) -> Tensor:
    """Return the layer of each key; one after all others where no mesh is seen."""
    return keys >> LAYER_SHIFT


def unpack_triangle_index(keys: Tensor) -> Tensor:
    """Return the triangle of each key; one without a meaning where no mesh is seen."""
    return keys & (MAX_TRIANGLES - 1)


def shade_samples(
    triangles: SceneTriangles,
    atlas: PictureAtlas,
    triangle_indices: Tensor,
    time: Tensor,
    x: Tensor,
    y: Tensor,
    frame: int,
) -> Tensor:
    """Return the colours [N, 3] that samples (x, y) [N] show of triangles ``triangle_indices`` [N] at ``time`` [N]."""
    hits = intersect_rays_with_triangles(interpolate_corners_in_time(triangles, triangle_indices, time), x, y)
    texels = triangles.texels[triangles.corners[triangle_indices].long()]  # [N, 3, 3]
    facing = torch.linalg.cross(texels[:, 1] - texels[:, 0], texels[:, 2] - texels[:, 0]).abs().argmax(1)
    axes = (facing[:, None] + torch.tensor([1, 2], device=triangle_indices.device)) % 3
    planar = texels.gather(2, axes[:, None].expand(-1, 3, -1))  # [N, 3, 2]
    u, v = (hits.weights[..., None] * planar).sum(1).unbind(1)
    steps = [(weights[..., None] * planar).sum(1).square().sum(1) for weights in (hits.right, hits.down)]
    row = triangles.owners[triangle_indices, 2].long()
    colours = triangles.colours[row]
    level = 0.5 * torch.maximum(*steps).clamp(min=1e-16).log2() + colours[:, 0]
    texture = sample_pictures_trilinearly(atlas, triangles.pictures[row], u, v, level) / 255
    lit = (hits.weights * triangles.light[triangle_indices, :, frame]).sum(1).clamp(min=0)
    factor, offset = colours[:, 1 + 6 * frame : 4 + 6 * frame], colours[:, 4 + 6 * frame : 7 + 6 * frame]
    return (lit[:, None] * (texture * factor + offset)).clamp(0, 1)


def is_hidden_by_meshes(
    triangles: SceneTriangles,
    second_frame_keys: Tensor,
    scene: Tensor,
    x: Tensor,
    y: Tensor,
    layer: Tensor,
    depth: Tensor,
) -> Tensor:
    """Return whether meshes hide surfaces at (x, y) [N] of the second frame, of a layer and depth each.

    ``second_frame_keys`` are [B, H, W], and the points lie in the frame. The triangles of the four pixels around a
    point are intersected with its ray. Where the ray meets none of them, the nearest pixel's decides.
    """
    height, width = second_frame_keys.shape[1:]
    hidden, met = (torch.zeros(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
    left, top = x.floor().long(), y.floor().long()
    nearest_right, nearest_down = (x - left >= 0.5).long(), (y - top >= 0.5).long()
    hidden_nearby = torch.zeros_like(hidden)
    one = torch.ones_like(x)
    for down in (0, 1):
        for right in (0, 1):
            key = second_frame_keys[scene, (top + down).clamp(max=height - 1), (left + right).clamp(max=width - 1)]
            before = (unpack_layer_index(key) <= layer).nonzero()[:, 0]
            hits = intersect_rays_with_triangles(
                interpolate_corners_in_time(triangles, unpack_triangle_index(key[before]), one[before]),
                x[before],
                y[before],
            )
            nearer = unpack_layer_index(key[before]) < layer[before]
            hidden[before] |= hits.covers & (nearer | (hits.depth < depth[before] * (1 - DEPTH_TOLERANCE)))
            met[before] |= hits.covers
            is_nearest = (nearest_right[before] == right) & (nearest_down[before] == down)
            hidden_nearby[before] |= is_nearest & (
                nearer | (hits.front & (hits.depth < depth[before] * (1 - EDGE_TOLERANCE)))
            )
    return hidden | (hidden_nearby & ~met)
