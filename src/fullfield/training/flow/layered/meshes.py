"""Triangle meshes of scenes: the store that they are drawn from, their placement, and their triangles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield import _check

MATERIALS = 4
"""Materials of a mesh: that of a triangle selects its picture and colours."""
MESH_COLOURS = 13
"""Levels of blur of the texture; factors and offsets of the three colours in the first frame, and in the second."""
WAVES = 2
_WAVE = 7  # amplitude (x, y, z), wave vector (x, y, z), phase
DEFORMATION = WAVES * _WAVE + 1
"""Waves that displace the vertices of a mesh, and its twist about the y axis in radians per unit."""


class MeshTable(NamedTuple):
    """Positions of meshes in a :class:`MeshStore`, on the CPU; a clip of a mesh is an entry of its own."""

    first_rows: NDArray[np.int64]  # [M]: of the first pose in ``vertices``
    vertex_counts: NDArray[np.int64]  # [M]
    pose_counts: NDArray[np.int64]  # [M]: 1 for a mesh without a clip
    first_triangles: NDArray[np.int64]  # [M]
    triangle_counts: NDArray[np.int64]  # [M]


class MeshStore(NamedTuple):
    """Vertices of all meshes in all their poses, and their triangles. A mesh fits into the unit sphere, y is up."""

    vertices: Tensor  # [R, 3] float16: mesh after mesh, pose after pose
    triangles: Tensor  # [T, 3] int32: vertices of a pose
    materials: Tensor  # [T] uint8, below MATERIALS
    table: MeshTable

    def check_fields(self) -> None:
        """Check that the fields describe the same meshes."""
        device = self.vertices.device
        _check.check_tensor(self.vertices, "vertices", ("R", 3), dtypes=(torch.float16,))
        _check.check_tensor(self.triangles, "triangles", ("T", 3), dtypes=(torch.int32,), device=device)
        _check.check_tensor(self.materials, "materials", (len(self.triangles),), dtypes=(torch.uint8,), device=device)
        rows = self.table.first_rows + self.table.vertex_counts * self.table.pose_counts
        ends = self.table.first_triangles + self.table.triangle_counts
        is_valid = len(rows) > 0 and rows.max() <= len(self.vertices) and ends.max() <= len(self.triangles)
        _check.require(bool(is_valid), "table", "meshes inside the store, at least one", f"{len(rows)} meshes")

    def to(self, device: torch.device | str) -> MeshStore:
        """Return the store on a device."""
        return MeshStore(self.vertices.to(device), self.triangles.to(device), self.materials.to(device), self.table)

    def join_stores(self, other: MeshStore) -> MeshStore:
        """Return a store of both, this one's meshes first."""
        rows, triangles = len(self.vertices), len(self.triangles)
        shifted = other.table._replace(
            first_rows=other.table.first_rows + rows, first_triangles=other.table.first_triangles + triangles
        )
        table = MeshTable(*(np.concatenate(columns) for columns in zip(self.table, shifted, strict=True)))
        vertices, faces, materials = (torch.cat(both) for both in zip(self[:3], other[:3], strict=True))
        return MeshStore(vertices, faces, materials, table)


def build_mesh_store_from_clips(
    meshes: list[tuple[list[NDArray[np.float32]], NDArray[np.int64], NDArray[np.uint8]]],
) -> MeshStore:
    """Return a store of meshes, each given as clips [P, V, 3], triangles [T, 3] and materials [T]."""
    vertices, triangles, materials, rows = [], [], [], []
    row = triangle = 0
    for clips, corners, material in meshes:
        for poses in clips:
            rows.append((row, poses.shape[1], len(poses), triangle, len(corners)))
            vertices.append(poses.reshape(-1, 3).astype(np.float16))
            row += len(vertices[-1])
        triangles.append(corners.astype(np.int32))
        materials.append(material.astype(np.uint8))
        triangle += len(corners)
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    points, faces, per_triangle = (
        torch.from_numpy(np.concatenate(arrays)) for arrays in (vertices, triangles, materials)
    )
    return MeshStore(points, faces, per_triangle, MeshTable(*np.ascontiguousarray(columns)))


class MeshPlacement(NamedTuple):
    """Meshes of B scenes in both frames: I instances, in the order of their scenes.

    A vertex lies between two poses of the store, is displaced by waves and turned by the twist, all in the mesh's own
    coordinates, and then mapped to those of each frame's camera.
    """

    scene: Tensor  # [I] int64, ascending
    layer: Tensor  # [I] int64: index of a layer of the shape MESH; the nearest surface of its meshes is visible
    vertex_counts: Tensor  # [I] int64
    triangle_counts: Tensor  # [I] int64
    first_triangles: Tensor  # [I] int64
    rows: Tensor  # [I, 2, 2] int64: first rows of the two poses, in both frames
    blend: Tensor  # [I, 2] float32: weight of the second pose
    pose: Tensor  # [I, 2, 3, 4] float32: to camera coordinates
    camera: Tensor  # [I, 3] float32: focal length and principal point (x, y), pixels
    deformation: Tensor  # [I, 2, DEFORMATION] float32
    texture: Tensor  # [I, 3, 4] float32: to texels
    light: Tensor  # [I, 2, 4] float32: ambient light, and the direction towards the lamp times its strength
    flat: Tensor  # [I] float32: 1 where facets have one normal, 0 where normals are interpolated
    pictures: Tensor  # [I, MATERIALS] int32
    colours: Tensor  # [I, MATERIALS, MESH_COLOURS] float32

    def count_vertices_and_triangles(self) -> tuple[int, int]:
        """Count the vertices and triangles of all instances; on a GPU this waits for the device."""
        return int(self.vertex_counts.sum()), int(self.triangle_counts.sum())


class SceneTriangles(NamedTuple):
    """Triangles of B scenes in both frames; ``points`` are (x z, y z, z) with the pixel (x, y) and the depth z."""

    points: Tensor  # [V, 2, 3] float32
    texels: Tensor  # [V, 3] float32: coordinates of the texture, of which a triangle takes the two that it faces least
    corners: Tensor  # [T, 3] int32: rows of ``points``
    light: Tensor  # [T, 3, 2] float32: at each corner in each frame
    owners: Tensor  # [T, 3] int32: scene, layer, row of ``colours``
    pictures: Tensor  # [N] int32
    colours: Tensor  # [N, MESH_COLOURS] float32


def project_and_light_scene_triangles(
    placement: MeshPlacement, store: MeshStore, vertex_and_triangle_counts: tuple[int, int]
) -> SceneTriangles:
    """Return the triangles of placed meshes, on the device of both; the counts are the placement's."""
    device = store.vertices.device
    vertices = _list_instance_of_each_element(placement.vertex_counts, vertex_and_triangle_counts[0])
    first_vertices = _compute_exclusive_cumulative_sum(placement.vertex_counts)
    local = torch.arange(vertex_and_triangle_counts[0], device=device) - first_vertices[vertices]
    low, high = (store.vertices[(placement.rows[vertices, :, end] + local[:, None])].float() for end in (0, 1))
    own = torch.lerp(low, high, placement.blend[vertices][..., None])  # [V, 2, 3]
    shape = _deform_points(own, placement.deformation[vertices])
    pose = placement.pose[vertices]
    seen = _apply_affine_maps(pose, shape)  # camera coordinates
    focal, middle = placement.camera[vertices, None, :1], placement.camera[vertices, None, 1:]
    points = torch.cat((focal * seen[..., :2] + middle * seen[..., 2:], seen[..., 2:]), -1)
    rest = store.vertices[placement.rows[vertices, 0, 0] + local].float()
    texels = _apply_affine_maps(placement.texture[vertices], rest)

    triangles = _list_instance_of_each_element(placement.triangle_counts, vertex_and_triangle_counts[1])
    first_triangles = _compute_exclusive_cumulative_sum(placement.triangle_counts)
    local = torch.arange(vertex_and_triangle_counts[1], device=device) - first_triangles[triangles]
    source = placement.first_triangles[triangles] + local
    corners = store.triangles[source].long() + first_vertices[triangles][:, None]
    light = _compute_two_sided_corner_light(seen, corners, placement.light[triangles], placement.flat[triangles])
    rows = MATERIALS * triangles + store.materials[source]
    owners = torch.stack((placement.scene[triangles], placement.layer[triangles], rows), 1)
    return SceneTriangles(
        points.contiguous(),
        texels.contiguous(),
        corners.int(),
        light.contiguous(),
        owners.int(),
        placement.pictures.reshape(-1),
        placement.colours.reshape(-1, MESH_COLOURS),
    )


def _list_instance_of_each_element(counts: Tensor, total: int) -> Tensor:
    """Return the instance that each of ``total`` elements belongs to."""
    instances = torch.arange(len(counts), device=counts.device)
    return torch.repeat_interleave(instances, counts, output_size=total)


def _compute_exclusive_cumulative_sum(counts: Tensor) -> Tensor:
    """Return the first element of each instance."""
    return counts.cumsum(0) - counts


def _apply_affine_maps(maps: Tensor, points: Tensor) -> Tensor:
    """Map points [..., 3] by maps [..., 3, 4]; without a matrix product, which autocast and TF32 would round."""
    return (maps[..., :3] * points[..., None, :]).sum(-1) + maps[..., 3]


def _deform_points(points: Tensor, waves_and_twist: Tensor) -> Tensor:
    """Displace points [V, 2, 3] by waves and twist them about the y axis; ``waves_and_twist`` [V, 2, DEFORMATION]."""
    displaced = points
    for wave in range(WAVES):
        amplitude, along, phase = torch.split(waves_and_twist[..., _WAVE * wave : _WAVE * (wave + 1)], [3, 3, 1], -1)
        displaced = displaced + amplitude * torch.sin((along * points).sum(-1, keepdim=True) + phase)
    x, y, z = displaced.unbind(-1)
    angle = waves_and_twist[..., -1] * y
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack((cosine * x + sine * z, y, cosine * z - sine * x), -1)


def _compute_two_sided_corner_light(
    camera_points: Tensor, corners: Tensor, ambient_and_lamp: Tensor, is_flat_shaded: Tensor
) -> Tensor:
    """Return the light [T, 3, 2] at the corners of triangles, on the side that the camera sees.

    ``camera_points`` [V, 2, 3] are camera coordinates, ``ambient_and_lamp`` [T, 2, 4], ``is_flat_shaded`` [T].
    """
    first, second, third = (camera_points[corners[:, corner]] for corner in range(3))
    facets = torch.linalg.cross(second - first, third - first)  # [T, 2, 3], of twice the area
    smooth = torch.zeros_like(camera_points)
    for corner in range(3):
        smooth.index_add_(0, corners[:, corner], facets)
    normals = torch.where(is_flat_shaded[:, None, None, None] > 0.5, facets[:, None], smooth[corners])  # [T, 3, 2, 3]
    normals = torch.nn.functional.normalize(normals, dim=-1, eps=1e-12)
    side = torch.where((facets * first).sum(-1) > 0, -1.0, 1.0)  # [T, 2]: the side that is seen has its normal towards
    lit = (normals * ambient_and_lamp[:, None, :, 1:]).sum(-1) * side[:, None]
    return ambient_and_lamp[:, None, :, 0] + lit.clamp(min=0)
