"""Prepared geometries: the triplets of one cloud, built once and read by every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors.api import MAX_NEIGHBORS, run_radius_searches, search_knn_in_validated_clouds
from fullfield.ops.neighbors.ragged import (
    Cloud,
    check_and_build_cloud,
    check_and_build_cloud_pair,
    check_distance,
    check_not_meta_or_fake,
    convert_clouds_to_float32_centering_float64,
)
from fullfield.ops.point_conv import protocol, reference
from fullfield.ops.point_conv.protocol import TranspositionRequest, TripletRequest, check_and_expand_kernel_size
from fullfield.ops.point_conv.triplets import (
    Triplets,
    convert_counts_to_offsets,
    expand_row_offsets,
    unpack_indices_and_cells,
)


@dataclass(frozen=True, eq=False)
class PointGeometry:
    """Which point reaches which centre through which cell of the kernel; made by the functions of this module.

    Immutable: any number of layers and threads may share it.

    >>> geometry = radius_geometry(points, 0.05)  # a PointGeometry  # doctest: +SKIP
    >>> features = point_conv(features, weight, geometry)  # doctest: +SKIP
    """

    forward: Triplets
    """A row per centre."""
    backward: Triplets | None
    """A row per point, for the gradient of the features. None: not prepared, or the same tensors."""
    mirrored: bool
    """Whether the forward rows serve the gradient too: (i, j, k) is a triplet wherever (j, i, K − 1 − k) is."""
    kernel_size: tuple[int, int, int]
    points: int
    """N"""
    offsets: Tensor
    """[B + 1] int64 on the CPU: the points of each cloud."""
    center_offsets: Tensor
    """[B + 1] int64 on the CPU: the centres of each cloud."""

    @property
    def center_count(self) -> int:
        """Number of centres, M."""
        return self.forward.rows.shape[0] - 1

    @property
    def cells(self) -> int:
        """K, the first size of a weight."""
        return self.kernel_size[0] * self.kernel_size[1] * self.kernel_size[2]

    @property
    def device(self) -> torch.device:
        """Device of the triplets."""
        return self.forward.rows.device

    @property
    def nbytes(self) -> int:
        """Return the bytes of all triplets and row offsets."""
        return sum(t.nbytes for triplets in (self.forward, self.backward) if triplets is not None for t in triplets)

    def triplets(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (i, j, k), int64 [T] each, sorted by i, then k, then j."""
        index, cell = unpack_indices_and_cells(self.forward, self.cells)
        return expand_row_offsets(self.forward.rows), index, cell

    def list_triplet_tensors_by_direction(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the triplets of both directions as the registered operators take them."""
        if self.mirrored:
            return list(self.forward), list(self.forward)
        return list(self.forward), [] if self.backward is None else list(self.backward)

    def raise_unless_gradient_is_prepared(self) -> None:
        """Check that the geometry allows the gradient of features.

        Raises:
            InputError: if it was prepared with ``gradient=False`` and needs more triplets.
        """
        prepared = self.mirrored or self.backward is not None
        _check.require(prepared, "geometry", "one prepared with gradient=True", "gradient=False")

    def to(self, device: str | torch.device) -> PointGeometry:
        """Return the geometry on ``device``."""
        target = _check.resolve_available_device(device)
        backward = None if self.backward is None else Triplets(*(t.to(target) for t in self.backward))
        return replace(self, forward=Triplets(*(t.to(target) for t in self.forward)), backward=backward)


def compute_equal_volume_radius(grid: float, kernel_size: int | Sequence[int] = 3) -> float:
    """Return the radius of the ball with the volume of the kernel's box: 1.86, 3.10, 4.34 grid for sides 3, 5, 7."""
    sides = check_and_expand_kernel_size(kernel_size)
    return float(grid * math.pow(3.0 * math.prod(sides) / (4.0 * math.pi), 1.0 / 3.0))


def radius_geometry(
    points: Tensor,  # [N, 3] float32 or float64
    grid: float,
    kernel_size: int | Sequence[int] = 3,
    centers: Tensor | None = None,  # [M, 3]; None: the points
    *,
    radius: float | None = None,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    center_offsets: Tensor | None = None,  # [B + 1]
    gradient: bool = True,
) -> PointGeometry:
    """Return the geometry in which every centre reads the points of its own cloud at most ``radius`` away.

    The kernel cell of point p seen from centre q is ``clamp(round((p − q) / grid) + t // 2, 0, t − 1)`` per axis,
    halves to even, in float32. Float64 coordinates are first taken relative to the middle of their cloud. For a strided
    convolution the centres are a subset of the points, with the grid of the points. For up-sampling the points are the
    coarse ones, with their grid, and the centres the fine ones. No gradient reaches coordinates.

    Args:
        points: coordinates of the points.
        grid: side of a kernel cell, in the unit of the coordinates.
        kernel_size: cells along x, y, z, 1 to 8, or one number for all.
        centers: coordinates of the centres; None is the points.
        radius: by default :func:`compute_equal_volume_radius`.
        offsets: index of the first point of each cloud, and the number of points; None is one cloud.
        center_offsets: the same for the centres.
        gradient: whether the gradient of features will be requested. It takes memory unless the centres are the points
            and the kernel's sides are odd.

    Raises:
        InputError: if coordinates are not finite, grid or radius are not from 1e-18 to 1e18, or offsets do not fit.
    """
    check_distance(grid, "grid")
    sides = check_and_expand_kernel_size(kernel_size)
    search_radius = compute_equal_volume_radius(grid, sides) if radius is None else radius
    check_distance(search_radius, "radius")
    clouds = _check_and_build_point_and_center_clouds(points, offsets, centers, center_offsets)
    (geometry,) = build_radius_geometries([RadiusRequest(*clouds, float(grid), sides, float(search_radius), gradient)])
    return geometry


class RadiusRequest(NamedTuple):
    """A geometry to make of clouds that are checked; ``centers`` is ``points`` where they are the same."""

    points: Cloud
    centers: Cloud
    grid: float
    sides: tuple[int, int, int]
    radius: float
    gradient: bool


def build_radius_geometries(requests: Sequence[RadiusRequest]) -> list[PointGeometry]:
    """Compute :func:`radius_geometry` of each; GPUs wait once for all and make a dozen launches."""
    if not requests:
        return []
    pairs = [convert_clouds_to_float32_centering_float64(r.points, r.centers) for r in requests]
    every = run_radius_searches(
        [(r.points, r.centers, pair, r.radius) for r, pair in zip(requests, pairs, strict=True)]
    )
    assemblies = [
        TripletRequest(neighbors, *pair, r.grid, r.sides)
        for r, pair, neighbors in zip(requests, pairs, every, strict=True)
    ]
    triplets = _build_triplets_overwriting_neighbors(assemblies)
    del every, assemblies  # before the other direction takes its memory
    directions = [
        _GeometrySettings(
            r.points, r.centers, r.sides, r.centers is r.points and _has_only_odd_sides(r.sides), r.gradient
        )
        for r in requests
    ]
    return _build_geometries_and_transpose_if_needed(triplets, directions)


def knn_geometry(
    points: Tensor,  # [N, 3] float32 or float64
    grid: float,
    k: int,
    kernel_size: int | Sequence[int] = 3,
    centers: Tensor | None = None,  # [M, 3]; None: the points
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    center_offsets: Tensor | None = None,  # [B + 1]
    gradient: bool = True,
) -> PointGeometry:
    """Return the geometry in which every centre reads its ``k`` nearest points; else as :func:`radius_geometry`."""
    check_distance(grid, "grid")
    sides = check_and_expand_kernel_size(kernel_size)
    _check.check_number(k, "k", integer=True, low=1, high=MAX_NEIGHBORS)
    clouds = _check_and_build_point_and_center_clouds(points, offsets, centers, center_offsets)
    pair = convert_clouds_to_float32_centering_float64(*clouds)
    neighbors = search_knn_in_validated_clouds(*clouds, pair, int(k))
    triplets = _build_triplets_overwriting_neighbors([TripletRequest(neighbors, *pair, float(grid), sides)])
    return _build_geometries_and_transpose_if_needed(triplets, [_GeometrySettings(*clouds, sides, False, gradient)])[0]


def voxel_geometry(
    points: Tensor,  # [N, 3] float32 or float64
    grid: float,
    kernel_size: int | Sequence[int] = 3,
    centers: Tensor | None = None,  # [M, 3]; None: the points
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    center_offsets: Tensor | None = None,  # [B + 1]
    gradient: bool = True,
) -> PointGeometry:
    """Return the geometry on voxels: points and centres count as their voxels, ``floor(p / grid)`` in float64.

    Every centre reads all points in the t³ voxels around its own. With one point per voxel this is a dense convolution
    on the occupied voxels. Several points of a voxel are read alike and added.

    Raises:
        InputError: as :func:`radius_geometry`, and if voxels are so small that their numbers exceed 62 bits.
    """
    _check.check_number(grid, "grid", above=0.0)
    sides = check_and_expand_kernel_size(kernel_size)
    cloud, center_cloud = _check_and_build_point_and_center_clouds(points, offsets, centers, center_offsets)
    triplets = _build_voxel_triplets(cloud, center_cloud, float(grid), sides)
    return _build_geometries_and_transpose_if_needed(
        [triplets],
        [_GeometrySettings(cloud, center_cloud, sides, centers is None and _has_only_odd_sides(sides), gradient)],
    )[0]


def triplet_geometry(
    i: Tensor,  # [T] centres
    j: Tensor,  # [T] points
    k: Tensor,  # [T] cells
    sizes: tuple[int, int],
    kernel_size: int | Sequence[int] = 3,
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    center_offsets: Tensor | None = None,  # [B + 1]
    gradient: bool = True,
) -> PointGeometry:
    """Return the geometry of triplets in any order, int32 or int64, for ``sizes`` = (centres M, points N).

    Raises:
        InputError: for a number out of range, or a pair (i, j) that comes twice.
    """
    sides = check_and_expand_kernel_size(kernel_size)
    _check.require(len(sizes) == 2, "sizes", "two, of centres and of points", repr(sizes))
    for size in sizes:
        _check.check_number(size, "sizes", integer=True, low=0)
    limits = (*sizes, math.prod(sides))
    columns = []
    for name, column, limit in zip("ijk", (i, j, k), limits, strict=True):
        _check.check_tensor(column, name, (i.shape[0],), dtypes=(torch.int32, torch.int64), device=i.device)
        check_not_meta_or_fake(column, name)
        indices = column.to(torch.int64)
        inside = not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < limit)
        _check.require(inside, name, f"numbers from 0 to {limit - 1}", column)
        columns.append(indices)
    pairs = columns[0] * sizes[1] + columns[1]
    repeated = bool((pairs.sort().values.diff() == 0).any())
    _check.require(not repeated, "j", "every pair (i, j) once", "repeated pairs")
    blank = torch.empty(0, 3, device=i.device, dtype=torch.float32)
    clouds = [
        Cloud(blank.expand(0, 3), _check_or_build_offsets(rows, count, name))
        for rows, count, name in ((offsets, sizes[1], "offsets"), (center_offsets, sizes[0], "center_offsets"))
    ]
    triplets = reference.sort_and_pack_triplets(columns[0], columns[1], columns[2], sizes, limits[2])
    return _build_geometries_and_transpose_if_needed(
        [triplets], [_GeometrySettings(clouds[0], clouds[1], sides, False, gradient)]
    )[0]


def build_geometry_from_sorted_triplets(
    points: Tensor,  # [N, 3]
    offsets: Tensor,  # [B + 1] int64, on the CPU
    triplets: Triplets,
    kernel_size: tuple[int, int, int],
    *,
    gradient: bool,
) -> PointGeometry:
    """Return the geometry of triplets whose points are also centres, sorted by centre and cell; unchecked."""
    cloud = Cloud(points, offsets)
    return _build_geometries_and_transpose_if_needed(
        [triplets], [_GeometrySettings(cloud, cloud, kernel_size, False, gradient)]
    )[0]


def _check_or_build_offsets(offsets: Tensor | None, point_count: int, name: str) -> Tensor:
    """Return the offsets on the CPU, checked as those of ``point_count`` points."""
    stand_in = torch.zeros(1, 3, dtype=torch.float32).expand(point_count, 3)
    return check_and_build_cloud(stand_in, offsets, "points", name).offsets


def _has_only_odd_sides(sides: tuple[int, int, int]) -> bool:
    return all(side % 2 == 1 for side in sides)


def _check_and_build_point_and_center_clouds(
    points: Tensor, offsets: Tensor | None, centers: Tensor | None, center_offsets: Tensor | None
) -> tuple[Cloud, Cloud]:
    return check_and_build_cloud_pair(points, centers, offsets, center_offsets, ("centers", "center_offsets"))


class _GeometrySettings(NamedTuple):
    """Settings that the directions of a geometry depend on."""

    points: Cloud
    centers: Cloud
    sides: tuple[int, int, int]
    mirrored: bool
    gradient: bool


def _build_triplets_overwriting_neighbors(requests: Sequence[TripletRequest]) -> list[Triplets]:
    """Return the triplets of several requests; their neighbours may be overwritten."""
    build: Any = protocol.choose_triplet_backend_module(requests[0].points.device)
    if hasattr(build, "build_all_triplets"):
        triplets: list[Triplets] = build.build_all_triplets(requests)
        return triplets
    return [build.build_triplets(*one) for one in requests]


def _build_geometries_and_transpose_if_needed(
    triplets: Sequence[Triplets], settings: Sequence[_GeometrySettings]
) -> list[PointGeometry]:
    """Return the geometry, with the rows of the other side if they are requested."""
    counts = [int(setting.points.offsets[-1]) for setting in settings]
    indices = [n for n, setting in enumerate(settings) if setting.gradient and not setting.mirrored]
    transpositions = [TranspositionRequest(triplets[n], counts[n], math.prod(settings[n].sides)) for n in indices]
    build: Any = protocol.choose_triplet_backend_module(triplets[0].rows.device)
    several = hasattr(build, "transpose_all_triplets") and bool(transpositions)
    transposed = (
        build.transpose_all_triplets(transpositions)
        if several
        else [build.transpose_triplets(*one) for one in transpositions]
    )
    backward = dict(zip(indices, transposed, strict=True))
    return [
        PointGeometry(
            forward,
            backward.get(n),
            setting.mirrored,
            setting.sides,
            counts[n],
            setting.points.offsets,
            setting.centers.offsets,
        )
        for n, (forward, setting) in enumerate(zip(triplets, settings, strict=True))
    ]


def _build_voxel_triplets(cloud: Cloud, center_cloud: Cloud, grid: float, sides: tuple[int, int, int]) -> Triplets:
    device = cloud.points.device
    # A tensor, for CUDA would multiply by the reciprocal of a number.
    side = torch.tensor(grid, dtype=torch.float64, device=device)
    spots, center_cells = ((c.points.to(torch.float64) / side).floor() for c in (cloud, center_cloud))
    both = torch.cat([spots, center_cells])
    if not spots.shape[0] or not center_cells.shape[0]:
        none = torch.empty(0, dtype=torch.int64, device=device)
        return reference.sort_and_pack_triplets(
            none, none, none, (center_cells.shape[0], spots.shape[0]), math.prod(sides)
        )
    # A margin on either side, so that a step out of the grid meets no voxel of the next line.
    low = both.amin(0) - max(sides)
    shape = (both.amax(0) + max(sides) + 1 - low).tolist()
    is_exact = math.prod([*shape, float(cloud.batches)]) < 2.0**62
    _check.require(is_exact, "grid", "voxels whose numbers fit 62 bits", f"{grid:g} for these coordinates")
    y, z = int(shape[1]), int(shape[2])

    def compute_cell_keys(corner: Tensor, batch: Tensor) -> Tensor:
        c = (corner - low).to(torch.int64)
        return ((batch * int(shape[0]) + c[:, 0]) * y + c[:, 1]) * z + c[:, 2]

    stock, order = torch.sort(compute_cell_keys(spots, cloud.compute_batch_index()), stable=True)
    center_keys = compute_cell_keys(center_cells, center_cloud.compute_batch_index())
    row, index, cell = [], [], []
    every = torch.arange(center_cells.shape[0], device=device)
    for k in range(math.prod(sides)):
        kx, ky, kz = k // (sides[1] * sides[2]), k // sides[2] % sides[1], k % sides[2]
        step = ((kx - sides[0] // 2) * y + ky - sides[1] // 2) * z + kz - sides[2] // 2
        first = torch.searchsorted(stock, center_keys + step)
        counts = torch.searchsorted(stock, center_keys + step, right=True) - first
        row.append(torch.repeat_interleave(every, counts))
        within = torch.arange(row[-1].numel(), device=device) - convert_counts_to_offsets(counts)[:-1][row[-1]]
        index.append(order[first[row[-1]] + within])
        cell.append(torch.full_like(row[-1], k))
    size = (center_cells.shape[0], spots.shape[0])
    return reference.sort_and_pack_triplets(torch.cat(row), torch.cat(index), torch.cat(cell), size, math.prod(sides))
