"""Scenes to render, pictures and silhouettes as the renderer reads them, and rendered pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.training.flow.layered.meshes import DEFORMATION, MATERIALS, MESH_COLOURS, MeshPlacement, MeshStore

_SMALLEST = 4  # texels across, of the last level
_TOGETHER = 64  # pictures that are halved at a time

# Shapes besides the silhouettes of an atlas: an unbounded plane, the square from -1 to 1, an ellipsoid, and meshes.
INFINITE, SQUARE, ELLIPSOID, MESH = -1, -2, -3, -4
MAX_LAYERS, MAX_INSTANTS = 63, 64  # of a scene
# Layout of ``LayeredScenes.paint``: where each group of numbers begins, and how many numbers a layer has.
WAVES, TEXTURE, SOFTNESS, BIAS, COLOURS, DEPTH_TEXTURE, LIGHT, PAINT = 0, 10, 16, 17, 18, 30, 32, 38


class PictureAtlas:
    """Square pictures, each with its levels of half the size, and silhouettes.

    Args:
        pictures: [N, S, S, 3] uint8 RGB; S a power of two, at least 8. They are continued by reflection.
        shapes: [M, T, T] uint8 coverage, 0 at the border.
        meshes: meshes for scenes that have some, on the same device.
    """

    def __init__(self, pictures: Tensor, shapes: Tensor, meshes: MeshStore | None = None) -> None:
        _check.check_tensor(pictures, "pictures", ("N", "S", "S", 3), dtypes=(torch.uint8,))
        count, side = pictures.shape[:2]
        _check.require(count > 0 and pictures.shape[2] == side, "pictures", "square ones, at least one", pictures)
        _check.require(side >= 8 and not side & (side - 1), "pictures", "a power of two of at least 8 texels", side)
        _check.check_tensor(shapes, "shapes", ("M", "T", "T"), dtypes=(torch.uint8,), device=pictures.device)
        across = shapes.shape[1]
        _check.require(across == shapes.shape[2] and across >= 2, "shapes", "square ones of 2 texels or more", shapes)
        levels = []
        at = functional.pad(pictures, (0, 1))
        while True:
            levels.append(at.reshape(-1, 4))
            if at.shape[1] <= _SMALLEST:
                break
            at = _average_2x2_texels(at)
        self.texels = torch.cat(levels)  # uint8 [sum of N (S / 2^level)^2, 4]
        self.shapes = shapes.contiguous()
        if meshes is not None:
            meshes.check_fields()
            device = meshes.vertices.device
            _check.require(device == pictures.device, "meshes", f"meshes on {pictures.device}", f"some on {device}")
        self.meshes = meshes
        self.count, self.side, self.levels = count, side, len(levels)

    @property
    def device(self) -> torch.device:
        """Return the device of the texels."""
        return self.texels.device

    def compute_level_offsets(self) -> list[int]:
        """Return the index of the first texel of every level."""
        bases = [0]
        for level in range(self.levels - 1):
            bases.append(bases[-1] + self.count * (self.side >> level) ** 2)
        return bases


def _average_2x2_texels(texels: Tensor) -> Tensor:
    """Return rounded means of 2×2, a few pictures at a time."""
    height, width = (side // 2 for side in texels.shape[1:3])
    sums = [
        texels[first : first + _TOGETHER].reshape(-1, height, 2, width, 2, 4).sum((2, 4), dtype=torch.int16)
        for first in range(0, len(texels), _TOGETHER)
    ]
    return torch.cat([((total + 2) // 4).to(torch.uint8) for total in sums])


class LayeredScenes(NamedTuple):
    """Batch of B scenes of up to L layers, the nearest first; a layer is a planar card, an ellipsoid, or meshes.

    A card has coordinates (a, b). ``to_card`` maps a homogeneous pixel (x, y, 1), centre of the first pixel (0, 0),
    to (a w, b w, w) with w > 0 in front of the camera, where 1 / w is the depth.

    An ellipsoid is the unit sphere |s| = 1 in coordinates of its own. ``to_card`` maps a pixel to the direction u of
    its ray and ``centres`` is v, so that the ray is s = t u - v with the depth t; the nearer hit is visible.

    A layer of the shape ``MESH`` shows the nearest of the triangles that ``meshes`` assign to it. Between the frames
    and before and after them, each vertex moves in a straight line at constant speed.

    The first of a frame's 1 + E matrices describes its own time, the others the instants of its exposure, which the
    picture averages.

    Before it is mapped to a layer, a pixel (x, y) of the first frame moves by the sum of the layer's two waves,
    (ax, ay) sin(kx x + ky y + phase); of an exposure by the share of it that ``exposures`` gives. So the flow of a
    layer has a closed form: to the layer with the waves, and to the second frame without.
    """

    to_card: Tensor  # [B, 2, 1 + E, L, 3, 3] float32: of both frames
    centres: Tensor  # [B, 2, 1 + E, L, 3] float32: v of ellipsoids, any value for cards
    to_frame: Tensor  # [B, L, 3, 4] float32: from (a, b, 1, 0) of a card or (s, 1) of an ellipsoid to the second frame
    paint: Tensor  # [B, L, PAINT] float32: 2 × (ax, ay, kx, ky, phase); layer to texels, 2×3; softness of the edge in
    #   pixels; levels of blur; factors and offsets of the three colours in each frame; texels along the third
    #   coordinate of an ellipsoid, 2; its light in each frame, 2 × 3
    ids: Tensor  # [B, L, 2] int32: picture; silhouette, INFINITE, SQUARE or ELLIPSOID
    counts: Tensor  # [B] int32: layers of each scene
    exposures: Tensor  # [B, 2, E, 3] float32: share of the waves, offset of the sample from the pixel's centre (x, y);
    #   meshes are seen at the time 1 - share, from 0, the first frame, to 1, the second
    instants: Tensor  # [B] int32: exposures that the scene averages, at most E
    background: Tensor  # [B, 3] float32: colour where a pixel shows no layer
    sensor: Tensor  # [B, 2] float32: exponent of the values, standard deviation of the noise that is then added
    noise: Tensor  # [B] int32: seed of the noise
    meshes: MeshPlacement | None = None

    def check_fields(self) -> None:
        """Check that all fields describe the same scenes."""
        _check.check_tensor(self.to_card, "to_card", ("B", 2, "1+E", "L", 3, 3), dtypes=(torch.float32,))
        batch, _, matrices, layers = self.to_card.shape[:4]
        device = self.to_card.device
        exposures = f"1 ... {MAX_INSTANTS} exposures"
        _check.require(2 <= matrices <= 1 + MAX_INSTANTS, "to_card", exposures, matrices - 1)
        _check.require(layers <= MAX_LAYERS, "to_card", f"up to {MAX_LAYERS} layers", layers)
        shapes: dict[str, tuple[int, ...]] = {
            "centres": (batch, 2, matrices, layers, 3),
            "to_frame": (batch, layers, 3, 4),
            "paint": (batch, layers, PAINT),
            "exposures": (batch, 2, matrices - 1, 3),
            "background": (batch, 3),
            "sensor": (batch, 2),
            "ids": (batch, layers, 2),
            "counts": (batch,),
            "instants": (batch,),
            "noise": (batch,),
        }
        for name, shape in shapes.items():
            dtype = torch.int32 if name in ("ids", "counts", "instants", "noise") else torch.float32
            _check.check_tensor(getattr(self, name), name, shape, dtypes=(dtype,), device=device)
        if self.meshes is not None:
            _check_mesh_placement(self.meshes, device)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> LayeredScenes:
        """Return the scenes with every tensor changed."""
        placement = None if self.meshes is None else MeshPlacement(*(function(tensor) for tensor in self.meshes))
        tensors = {name: function(getattr(self, name)) for name in self._fields if name != "meshes"}
        return LayeredScenes(**tensors, meshes=placement)

    def to(self, device: torch.device | str) -> LayeredScenes:
        """Return the scenes on a device."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=True))


def _check_mesh_placement(placement: MeshPlacement, device: torch.device) -> None:
    """Check shapes, dtypes and device of placed meshes."""
    count = len(placement.scene)
    shapes: dict[str, tuple[int, ...]] = {
        "rows": (count, 2, 2),
        "blend": (count, 2),
        "pose": (count, 2, 3, 4),
        "camera": (count, 3),
        "deformation": (count, 2, DEFORMATION),
        "texture": (count, 3, 4),
        "light": (count, 2, 4),
        "pictures": (count, MATERIALS),
        "colours": (count, MATERIALS, MESH_COLOURS),
    }
    integers = ("scene", "layer", "vertex_counts", "triangle_counts", "first_triangles", "rows")
    for name in placement._fields:
        dtype = torch.int64 if name in integers else torch.int32 if name == "pictures" else torch.float32
        shape = shapes.get(name, (count,))
        _check.check_tensor(getattr(placement, name), f"meshes: {name}", shape, dtypes=(dtype,), device=device)


class RenderedPairs(NamedTuple):
    """Frames with their true flow, its validity and occlusion."""

    frame1: Tensor  # [B, 3, H, W] float32, RGB, 0 ... 1
    frame2: Tensor  # [B, 3, H, W] float32
    flow: Tensor  # [B, 2, H, W] float32: (x, y) pixels, from the first frame to the second; 0 where not valid
    valid: Tensor  # [B, H, W] bool: what is seen there is in front of the second camera too
    occluded: Tensor  # [B, H, W] bool: it is hidden in the second frame, or outside of it
