"""Triplets: which, in what order, in how many bytes."""

from __future__ import annotations

import pytest
import torch
from point_cases import expected_triplets, ragged, random_geometry

from fullfield import InputError
from fullfield.ops.neighbors import grid_downsample, radius_search
from fullfield.ops.point_conv import (
    cpu,
    knn_geometry,
    radius_geometry,
    reference,
    triplet_geometry,
    triplets,
    voxel_geometry,
)
from fullfield.ops.point_conv.geometry import compute_equal_volume_radius


def found(geometry) -> set[tuple[int, int, int]]:
    return set(zip(*(t.tolist() for t in geometry.triplets()), strict=True))


@pytest.mark.parametrize(("side", "radius"), [(3, 1.86), (5, 3.10), (7, 4.34)])
def test_kernel_radius_equals_published_values(side: int, radius: float) -> None:
    assert compute_equal_volume_radius(1.0, side) == pytest.approx(radius, abs=5e-3)
    assert compute_equal_volume_radius(0.1, (1, 8, 1)) == pytest.approx(compute_equal_volume_radius(0.1, 2))


@pytest.mark.parametrize("kernel", [1, 3, 5, (3, 1, 5), (2, 4, 3)])
def test_radius_geometry_equals_definition(kernel) -> None:
    points, _ = ragged((120,))
    sides = (kernel,) * 3 if isinstance(kernel, int) else kernel
    geometry = radius_geometry(points, 0.11, kernel)
    assert geometry.kernel_size == sides
    assert found(geometry) == expected_triplets(points, points, 0.11, sides, compute_equal_volume_radius(0.11, kernel))
    assert geometry.mirrored == all(side % 2 for side in sides)
    assert (0, 0, (sides[0] // 2 * sides[1] + sides[1] // 2) * sides[2] + sides[2] // 2) in found(geometry)


def test_radius_geometry_numbers_cells_x_slowest() -> None:
    """x slowest: a neighbour one step along x is 9 cells on, along z one."""
    points = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    cells = {(i, j): k for i, j, k in found(radius_geometry(points, 1.0))}
    assert [cells[0, j] for j in range(4)] == [13, 22, 16, 14]


def test_radius_geometry_rounds_halves_to_even() -> None:
    points = torch.tensor([[0.0, 0, 0], [0.5, 0, 0], [1.5, 0, 0], [2.5, 0, 0], [40.0, 0, 0], [-0.5, 0, 0]])
    for near in (None, points[:1]):
        geometry = radius_geometry(points, 1.0, 5, near, radius=100.0)
        cells = {(i, j): k // 25 for i, j, k in found(geometry)}
        assert [cells[0, j] for j in range(6)] == [2, 2, 4, 4, 4, 2]


def test_radius_geometry_sorts_and_packs_rows() -> None:
    points, offsets = ragged((70, 0, 130))
    geometry = radius_geometry(points, 0.12, offsets=offsets)
    i, j, k = geometry.triplets()
    key = (i * 27 + k) * len(points) + j
    assert (key.diff() > 0).all()
    assert geometry.forward.rows.tolist() == [0, *torch.bincount(i, minlength=200).cumsum(0).tolist()]
    assert geometry.forward.rows.dtype == torch.int64
    assert geometry.forward.cells.numel() == 0
    assert geometry.forward.entries.nbytes == 4 * len(i)
    assert geometry.nbytes == 4 * len(i) + 8 * 201  # one direction serves both
    cloud = torch.bucketize(torch.arange(200), offsets[1:], right=True)
    assert torch.equal(cloud[i], cloud[j])


def test_radius_geometry_keeps_precision_far_from_origin() -> None:
    points, offsets = ragged((90, 60), dtype=torch.float64)
    far = points + torch.tensor([[431_234.5, 5_412_345.25, 312.0]], dtype=torch.float64)
    near = points - points.mean(0)
    assert found(radius_geometry(far, 0.1, offsets=offsets)) == found(radius_geometry(near, 0.1, offsets=offsets))


def test_radius_geometry_transposed_equals_upsampling() -> None:
    points, offsets = ragged((150, 90), seed=3)
    kept = grid_downsample(points, 0.2, offsets=offsets)
    coarse = points[kept.indices]
    down = radius_geometry(points, 0.1, 3, coarse, offsets=offsets, center_offsets=kept.offsets)
    up = radius_geometry(coarse, 0.2, 3, points, offsets=kept.offsets, center_offsets=offsets)
    assert (down.center_count, down.points, up.center_count, up.points) == (len(coarse), 240, 240, len(coarse))
    one = expected_triplets(points[:150], coarse[: kept.offsets[1]], 0.1, (3, 3, 3), compute_equal_volume_radius(0.1))
    assert {t for t in found(down) if t[0] < kept.offsets[1]} == one
    assert not down.mirrored
    assert set(up.backward.rows.diff().tolist()) != {0}
    # the fine points see themselves where they were kept
    assert all((int(kept.indices[j]), j, 13) in found(up) for j in range(len(coarse)))


def test_knn_geometry_equals_definition() -> None:
    points, offsets = ragged((40, 3), seed=1)
    geometry = knn_geometry(points, 0.1, 6, offsets=offsets)
    assert geometry.forward.rows.diff().tolist() == [6] * 40 + [3] * 3
    assert not geometry.mirrored


@pytest.mark.parametrize("kernel", [3, 7])
@pytest.mark.parametrize("way", ["packed", "beside"])
def test_geometry_backends_return_equal_triplets(monkeypatch: pytest.MonkeyPatch, kernel: int, way: str) -> None:
    if way == "beside":
        for module in (triplets, cpu):
            monkeypatch.setattr(module, "can_pack_index_and_cell", lambda columns, cells: False)  # noqa: ARG005
    points, _ = ragged((300,), seed=5)
    rows, index = radius_search(points, 0.21, points[:111])
    args = ((rows, index), points, points[:111].contiguous(), 0.05, (kernel,) * 3)
    one, two = reference.build_triplets(*args), cpu.build_triplets(*args)
    assert (one.cells.numel() > 0) == (way == "beside")
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)
    turned = [backend.transpose_triplets(one, 300, kernel**3) for backend in (reference, cpu)]
    for a, b in zip(*turned, strict=True):
        assert torch.equal(a, b)
    i, (j, k) = triplets.expand_row_offsets(one.rows), triplets.unpack_indices_and_cells(one, kernel**3)
    jj, (ii, kk) = triplets.expand_row_offsets(turned[0].rows), triplets.unpack_indices_and_cells(turned[0], kernel**3)
    assert {*zip(i.tolist(), j.tolist(), k.tolist(), strict=True)} == {
        *zip(ii.tolist(), jj.tolist(), kk.tolist(), strict=True)
    }
    assert (k.max() > 256) == (kernel == 7)  # a ninth bit


def test_mirrored_geometry_equals_transposed_triplets() -> None:
    points, offsets = ragged((150, 100), seed=2)
    for geometry in (radius_geometry(points, 0.09, 5, offsets=offsets), voxel_geometry(points, 0.1, offsets=offsets)):
        i, j, k = geometry.triplets()
        assert geometry.mirrored
        assert geometry.backward is None
        assert {*zip(j.tolist(), i.tolist(), (geometry.cells - 1 - k).tolist(), strict=True)} == found(geometry)


def test_voxel_geometry_equals_definition() -> None:
    points, offsets = ragged((60, 80), seed=4)
    points = points - 0.5  # voxels on both sides of zero
    geometry = voxel_geometry(points, 0.15, (3, 5, 1), offsets=offsets)
    cell = (points.double() / 0.15).floor().long()
    cloud = torch.bucketize(torch.arange(140), offsets[1:], right=True)
    expected = set()
    for i in range(140):
        for j in range(140):
            step = cell[j] - cell[i] + torch.tensor([1, 2, 0])
            if cloud[i] == cloud[j] and (step >= 0).all() and (step < torch.tensor([3, 5, 1])).all():
                expected.add((i, j, int((step[0] * 5 + step[1]) * 1 + step[2])))
    assert found(geometry) == expected


def test_point_geometry_from_triplets_sorts_them() -> None:
    geometry = random_geometry(7, 9, 40)
    i, j, k = geometry.triplets()
    mixed = torch.randperm(40)
    again = triplet_geometry(i[mixed].int(), j[mixed], k[mixed], (7, 9))
    for a, b in zip(geometry.forward + geometry.backward, again.forward + again.backward, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("cells", "bits"), [(1, 31), (27, 27), (125, 25), (343, 23), (512, 23)])
def test_count_index_bits_leaves_room_for_cells(cells: int, bits: int) -> None:
    assert triplets.count_index_bits(cells) == bits
    largest = 2**31 - 1
    for columns in (min(1 << bits, largest), min((1 << bits) + 1, largest), largest):
        index = torch.tensor([0, columns - 1, 5, columns - 1])
        cell = torch.tensor([0, 0, cells - 1, cells - 1])
        packed = triplets.pack_triplets(torch.tensor([0, 4]), index, cell, columns, cells)
        assert packed.entries.dtype == torch.int32
        assert bool(packed.cells.numel()) == (columns > 1 << bits)
        for got, expected in zip(triplets.unpack_indices_and_cells(packed, cells), (index, cell), strict=True):
            assert torch.equal(got, expected)


def test_point_geometry_to_moves_all_tensors() -> None:
    for geometry in (random_geometry(7, 9, 40), radius_geometry(ragged((9,))[0], 0.2)):
        moved = geometry.to("cpu")
        assert moved.nbytes == geometry.nbytes
        assert moved.device == torch.device("cpu")
        assert found(moved) == found(geometry)
        assert (moved.backward is None) == geometry.mirrored
    with pytest.raises(InputError, match=r"^device: "):
        geometry.to("nowhere")


@pytest.mark.parametrize("sizes", [(0,), (0, 0), (1,), (0, 5)])
def test_geometries_accept_empty_clouds(sizes: tuple[int, ...]) -> None:
    points, offsets = ragged(sizes)
    for geometry in (
        radius_geometry(points, 0.1, offsets=offsets),
        knn_geometry(points, 0.1, 3, offsets=offsets),
        voxel_geometry(points, 0.1, offsets=offsets),
        radius_geometry(points, 0.1, 3, points[:0], offsets=offsets, center_offsets=torch.zeros(len(sizes) + 1).int()),
    ):
        assert geometry.points == sum(sizes)
        assert geometry.forward.rows[0] == 0
        assert len(geometry.triplets()[0]) == geometry.forward.rows[-1]


def test_geometries_refuse_bad_arguments() -> None:
    points, offsets = ragged((10,))
    bad = points.clone()
    bad[3, 1] = torch.nan
    for call, word in (
        (lambda: radius_geometry(bad, 0.1), "points"),
        (lambda: radius_geometry(points, -0.1), "grid"),
        (lambda: radius_geometry(points, 1e-50, radius=0.1), "grid"),  # 0 in float32
        (lambda: radius_geometry(points, 0.1, radius=1e30), "radius"),
        (lambda: knn_geometry(points, 1e-50, 3), "grid"),
        (lambda: radius_geometry(points, 0.1, 9), "kernel_size"),
        (lambda: radius_geometry(points, 0.1, (3, 3)), "kernel_size"),
        (lambda: radius_geometry(points, 0.1, radius=0.0), "radius"),
        (lambda: radius_geometry(points, 0.1, centers=points.double()), "queries|centers"),
        (lambda: radius_geometry(points, 0.1, offsets=offsets + 1), "offsets"),
        (lambda: knn_geometry(points, 0.1, 0), "k"),
        (lambda: voxel_geometry(points * 1e6, 1e-3), "grid"),
        (lambda: triplet_geometry(*torch.tensor([[0, 0], [1, 1], [4, 5]]), (2, 2)), "j"),
        (lambda: triplet_geometry(*torch.tensor([[0], [1], [4]]), (2,)), "sizes"),
        (lambda: triplet_geometry(*torch.tensor([[0], [1], [4]]), (2.5, 2)), "sizes"),
        (lambda: triplet_geometry(*torch.tensor([[0, 0], [1, 2], [4, 5]]), (2, 2)), "j"),
    ):
        with pytest.raises(InputError, match=f"^({word}): "):
            call()
    with pytest.raises(InputError, match=r"^grid: expected a number >= 1e-18 and <= 1e\+18, got str 'a'$"):
        radius_geometry(points, "a")
