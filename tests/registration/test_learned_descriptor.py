"""Learned descriptors: their inputs, their files, and registration with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulator import FLAGS, Emulator
from numpy.typing import NDArray
from safetensors.torch import save

from fullfield import InputError
from fullfield.models import weights as catalogue
from fullfield.ops.devices import resolve_device
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.neighbors import radius_search
from fullfield.ops.point_conv.cuda import triplets
from fullfield.registration import LearnedDescriptor, cuda, learned, register
from fullfield.registration.descriptors import compute_normals_and_shapes
from fullfield.registration.learned import (
    MAX_BYTES,
    build_network_arguments,
    prepare_input_of_one_resolution,
    prepare_levels_on_device,
    prepare_network_input_per_resolution,
)
from fullfield.registration.learned_network import (
    CELLS,
    INPUTS,
    KERNEL,
    RINGS,
    WIDTH,
    DescriptorConfig,
    DescriptorNetwork,
    find_surroundings,
)
from fullfield.registration.register import load_descriptor_if_learned
from fullfield.registration.scan import select_one_index_per_cell, thin_and_describe_scan
from fullfield.registration.verdict import FPFH_LIMITS, LEARNED_LIMITS, Limits, measure_evidence
from fullfield.testing import sample_room_scan
from refusals import refuses

Floats = NDArray[np.float64]
SMALL = DescriptorConfig(channels=8, layers=1)


def untrained(config: DescriptorConfig = SMALL) -> LearnedDescriptor:
    torch.manual_seed(0)
    return LearnedDescriptor(DescriptorNetwork(config))


def turn() -> Floats:
    matrix, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    return matrix * np.linalg.det(matrix)


@pytest.fixture(scope="module")
def room() -> Floats:
    """In voxels."""
    cloud = sample_room_scan(3) / 0.15
    return cloud - (cloud.min(0) + cloud.max(0)) / 2


def test_describe_surfaces_is_independent_of_pose() -> None:
    draw = np.random.default_rng(1)
    plane, line = draw.uniform(-4, 4, (2, 3000, 3)) * (1, 1, 0), draw.uniform(-4, 4, (3000, 3)) * (1, 0, 0)
    ball = draw.normal(size=(3000, 3))
    for cloud, wanted in ((plane[0], (0, 1, 0, 0)), (line, (0, 0, 1, 0)), (ball, (1, 0, 0, 0))):
        found = compute_normals_and_shapes(cloud, cloud[np.linalg.norm(cloud, axis=1) < 0.3], 3.0, 2.0)[1]
        assert np.abs(np.median(found, axis=0) - wanted).max() < 0.25
        turned = compute_normals_and_shapes(cloud @ turn().T, cloud[:50] @ turn().T, 3.0, 2.0)[1]
        assert np.allclose(turned, compute_normals_and_shapes(cloud, cloud[:50], 3.0, 2.0)[1], atol=1e-6)
        assert (found >= 0).all()
    edge = np.concatenate([plane[0], plane[1][:, [2, 1, 0]]])
    assert compute_normals_and_shapes(edge, np.zeros((1, 3)), 3.0, 2.0)[1][0, 0] > 0.3
    lifted = np.concatenate([plane[0], [[0.0, 0.0, 1.0]]])
    assert compute_normals_and_shapes(lifted, lifted[-1:], 3.0, 2.0)[1][0, 3] == pytest.approx(0.5, abs=0.05)
    assert np.isfinite(compute_normals_and_shapes(np.zeros((3, 3)), np.zeros((3, 3)), 3.0, 2.0)[1]).all()


@pytest.mark.parametrize("scale", [(1, 1, 1), (3, 1, 0.1), (3, 2, 0), (2, 0, 0), (1e-3, 1e-3, 1e-7)])
def test_describe_surfaces_normal_has_least_variance(scale: tuple[float, ...]) -> None:
    cloud = np.random.default_rng(0).normal(size=(400, 3)) * scale @ turn().T
    variances, axes = np.linalg.eigh(np.cov(cloud.T, bias=True))
    normal, shape = (part[0] for part in compute_normals_and_shapes(cloud, cloud[:1], 100.0, 100.0))
    assert normal @ np.cov(cloud.T, bias=True) @ normal == pytest.approx(variances[0], abs=1e-9 * variances[2])
    assert np.linalg.norm(normal) == pytest.approx(1.0)
    least, middle, most = np.sqrt(variances.clip(0))
    wanted = 3 * variances[0] / variances.sum(), (middle - least) / most, (most - middle) / most
    assert shape[:3] == pytest.approx(wanted, abs=1e-6)
    if variances[1] - variances[0] > 1e-9:
        assert abs(normal @ axes[:, 0]) == pytest.approx(1.0)
        assert shape[3] == pytest.approx(abs((cloud.mean(0) - cloud[0]) @ axes[:, 0]) / 100, rel=1e-6)


def pair_cells(points: torch.Tensor, normals: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """Return the kernel cells [T] of the points ``j`` seen from the points ``i``, as the definition has it."""
    away = points[j] - points[i]
    distance = away.norm(dim=1)
    away = away / distance.clamp(min=1e-6)[:, None]
    own, other = normals[i], normals[j]
    height = (own * away).sum(1)
    own = torch.where(height[:, None] < 0, -own, own)
    along = (own * other).sum(1)
    other = torch.where(along[:, None] < 0, -other, other)
    bend = torch.acos(along.abs().clamp(max=1))
    # Where the normals are about perpendicular, the bend's direction is random: it follows their signs.
    bend = torch.where(((other * away).sum(1) >= height.abs()) | (bend > 1.2), bend, -bend)
    edges = [torch.tensor(e) for e in (RINGS[:-1], (0.15, 0.5), (-0.6, 0.0, 0.6, 1.2))]
    ring, elevation, turn = (torch.bucketize(v, e) for v, e in zip((distance, height.abs(), bend), edges, strict=True))
    return (ring * KERNEL[1] + elevation) * KERNEL[2] + turn


def check_cells(points: torch.Tensor, normals: torch.Tensor, offsets: torch.Tensor) -> None:
    around = find_surroundings(points, normals, offsets)
    rows, found_j, found_k = around.geometry.triplets()
    found = radius_search(points, RINGS[-1], offsets=offsets)
    i, j = torch.repeat_interleave(torch.arange(len(points)), found.offsets.diff()), found.indices.long()
    i, j = i[i != j], j[i != j]
    wanted = pair_cells(points, normals, i, j)
    assert torch.equal(rows, i)
    order = torch.argsort(found_j + rows * len(points))
    assert torch.equal(found_j[order], j)
    assert (found_k[order] != wanted).double().mean() < 1e-3  # rounded otherwise, a value may cross an edge
    counts = torch.bincount(rows * CELLS + found_k, minlength=len(points) * CELLS).view(-1, CELLS)
    assert torch.equal(around.neighbors_per_cell, counts.float())


def some_surface(room: Floats, count: int = 1 << 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return points, normals and offsets of two clouds; some points are three times there, some have any normal."""
    points, normals, *_ = prepare_input_of_one_resolution(
        room[select_one_index_per_cell(room, 0.5)],
        select_one_index_per_cell(room[select_one_index_per_cell(room, 0.5)], 1.0),
    )
    points, normals = points[:count], normals[:count]
    some = torch.randn(min(400, count), 3, generator=torch.Generator().manual_seed(0))
    points = torch.cat([points, points[:3], 5 * some])
    normals = torch.cat([normals, -normals[:3], torch.nn.functional.normalize(some.flip(0), dim=1)])
    return points, normals, torch.tensor([0, len(points) // 3, len(points)])


def test_find_surroundings_cells_equal_definition(room: Floats) -> None:
    check_cells(*some_surface(room))


@pytest.fixture
def emulated(emulate: Callable[..., Emulator]) -> Emulator:
    # The emulator's header has no square root in float64.
    return emulate(cuda, neighbors, triplets, serve=True, flags=(*FLAGS, "-Dsqrt=__builtin_sqrt"))


@pytest.mark.parametrize("schedule", [0, 1])
def test_find_surroundings_emulated_cells_equal_definition(room: Floats, emulated: Emulator, schedule: int) -> None:
    given = some_surface(room, 300)
    emulated.schedule = schedule
    check_cells(*given)
    assert emulated.launched["look_at_pairs"] == 1


def test_prepare_network_input_emulated_equals_cpu(room: Floats, emulate: Callable[..., Emulator]) -> None:
    fine = room[select_one_index_per_cell(room, 0.5)]
    fine = fine[np.linalg.norm(fine - fine[100], axis=1) < 15]
    rows = select_one_index_per_cell(fine, 1.0)
    wanted = prepare_network_input_per_resolution(fine, rows, 2, with_surroundings=True)
    model = DescriptorNetwork(SMALL)
    known = [model.concatenate_ring_means_and_root_shares(one.features, one.surroundings) for one in wanted.inputs]
    machine = emulate(cuda, neighbors, triplets, serve=True, flags=(*FLAGS, "-Dsqrt=__builtin_sqrt"))
    machine.schedule = 1
    found = prepare_levels_on_device(torch.from_numpy(fine), torch.from_numpy(rows), 2)
    for one, other, there in zip(found.inputs, wanted.inputs, known, strict=True):
        assert torch.equal(one.points, other.points)
        assert (one.normals * other.normals).sum(1).abs().min() > 0.9999
        apart = (one.features - other.features).abs().amax(1)
        assert apart.median() < 1e-5
        assert (apart > 1e-3).double().mean() < 1e-2  # a value on the edge of two bins
        counts, expected_counts = one.surroundings.neighbors_per_cell, other.surroundings.neighbors_per_cell
        assert (counts - expected_counts).abs().sum() < 1e-3 * expected_counts.sum()
        apart = (model.concatenate_ring_means_and_root_shares(one.features, one.surroundings) - there).abs().amax(1)
        assert apart.median() < 1e-5
        assert (apart > 1e-2).double().mean() < 1e-2
        assert one.surroundings.geometry.backward is None
    for one, other in zip(found.links, wanted.links, strict=True):
        assert torch.equal(one.kept, other.kept)
        assert torch.equal(one.nearest, other.nearest)
        assert torch.allclose(one.weights, other.weights)
    assert machine.launched["known_properties"] == machine.launched["weigh_histograms"] == 2


def test_find_surroundings_cells_encode_distance_height_and_bend() -> None:
    own, level = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([0.0, 0.0, 1.0])
    upright = torch.tensor([1.0, 0.0, 0.0])

    def cell(place: tuple[float, ...], normal: torch.Tensor, sign: float = 1.0) -> tuple[int, int, int]:
        points, normals = torch.tensor([(0.0, 0.0, 0.0), place]), torch.cat([own, sign * normal[None]])
        k = int(find_surroundings(points, normals).geometry.triplets()[2][0])
        return k // (KERNEL[1] * KERNEL[2]), k // KERNEL[2] % KERNEL[1], k % KERNEL[2]

    assert cell((2.0, 0.0, 0.0), level)[:2] == (0, 0)
    assert cell((4.0, 0.0, 0.0), level)[:2] == (1, 0)
    assert cell((7.0, 0.0, 2.0), level)[:2] == (2, 1)
    assert cell((1.0, 0.0, -2.0), level)[:2] == (0, 2)
    wall, slope = cell((2.0, 0.0, 0.5), upright), torch.tensor([0.31, 0.0, 0.95])
    assert wall[2] == 4  # a wall at the end of a floor
    assert cell((2.0, 0.0, 0.5), torch.tensor([-0.6, 0.0, 0.8]))[2] == 0
    assert cell((2.0, 0.0, 0.5), torch.tensor([0.6, 0.0, 0.8]))[2] == 3
    assert cell((2.0, 0.0, 0.5), -slope)[2] == 2
    assert cell((2.0, 0.0, 0.5), torch.tensor([-0.31, 0.0, 0.95]))[2] == 1
    assert cell((2.0, 0.0, 0.1), torch.tensor([-0.8, 0.0, 0.6]))[2] == 0
    for place, normal in (((2.0, 0.0, 0.5), upright), ((1.0, 3.0, -2.0), slope)):
        assert cell(place, normal) == cell(place, normal, -1.0)


def test_prepare_network_input_returns_means_and_fractions(room: Floats) -> None:
    given = prepare_input_of_one_resolution(
        room[select_one_index_per_cell(room, 0.5)],
        select_one_index_per_cell(room[select_one_index_per_cell(room, 0.5)], 1.0),
    )
    points, normals, features = (part[:300] for part in given[:3])
    model = DescriptorNetwork(SMALL)
    offsets = torch.tensor([0, 120, 300])
    around = find_surroundings(points, normals, offsets)
    found = model.concatenate_ring_means_and_root_shares(features, around)
    assert found.shape == (300, WIDTH)
    cloud = (torch.arange(300) >= 120).long()
    apart = torch.cdist(points.double(), points.double())
    for i in (0, 60, 119, 120, 250):
        others = (cloud == cloud[i]) & (torch.arange(300) != i)
        assert torch.equal(found[i, :INPUTS], features[i])
        for ring, (near, far) in enumerate(zip((0.0, *RINGS[:-1]), RINGS, strict=True)):
            there = others & (apart[i] > near) & (apart[i] <= far)
            mean = features[there].mean(0) if there.any() else torch.zeros(INPUTS)
            assert torch.allclose(found[i, INPUTS * (ring + 1) : INPUTS * (ring + 2)], mean, atol=1e-5)
        share = found[i, -CELLS:].square()
        assert share.sum() == pytest.approx(1.0)
        assert around.neighbors_per_cell[i].sum() == (others & (apart[i] <= RINGS[-1])).sum()


def test_descriptor_network_is_independent_of_pose(room: Floats) -> None:
    fine = room[select_one_index_per_cell(room, 0.5)]
    rows = select_one_index_per_cell(fine, 1.0)
    model = DescriptorNetwork(DescriptorConfig())
    with torch.no_grad():
        model.head.weight.mul_(20.0)  # as if it had been trained
    described = LearnedDescriptor(model)
    first, other = described(fine, rows), described(fine @ turn().T, rows)
    assert first.shape == (len(rows), WIDTH)
    assert np.quantile((first * other).sum(1), 0.1) > 0.99
    points, normals, features, _ = prepare_input_of_one_resolution(fine, rows)
    flipped = torch.where(torch.arange(len(rows))[:, None] % 3 == 0, -normals, normals)
    one, two = (model(features, find_surroundings(points, n)) for n in (normals, flipped))
    assert torch.allclose(one, two, atol=1e-5)


def test_descriptor_network_new_scales_start_without_influence(room: Floats) -> None:
    """And they have some once they are trained, in every pose."""
    published = LearnedDescriptor.published()
    assert published.config.scales == 2
    wider = DescriptorNetwork(published.config.replace(scales=3))
    wider.load_state_dict(wider.state_dict() | published.model.state_dict())
    fine = room[select_one_index_per_cell(room, 0.5)]
    rows = select_one_index_per_cell(fine, 1.0)
    described = LearnedDescriptor(wider)
    first = described(fine, rows)
    assert np.array_equal(first, published(fine, rows))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in (wider.up[0].weight, wider.coarser[1].direct.weight):
            weight.normal_(std=0.05)
    trained, turned = described(fine, rows), described(fine @ turn().T, rows)
    assert np.median((first * trained).sum(1)) < 0.97
    # Cells of the coarser clouds lie along the axes: they keep other points in another pose.
    assert np.median((trained * turned).sum(1)) > 0.97
    model = DescriptorNetwork(DescriptorConfig(channels=8, layers=1, scales=3))
    with torch.no_grad():
        for weight in (model.join.out.weight, model.up[0].weight, *(stage.direct.weight for stage in model.coarser)):
            weight.normal_()
    found = model(*build_network_arguments([prepare_network_input_per_resolution(fine, rows, 3)], gradient=True))
    (found * torch.randn_like(found)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_descriptor_network_batch_equals_singles(room: Floats) -> None:
    levels = []
    for cloud in (room, room[::3] @ turn().T, room[:2]):  # the last has fewer points than are interpolated between
        fine = cloud[select_one_index_per_cell(cloud, 0.5)]
        levels.append(prepare_network_input_per_resolution(fine, select_one_index_per_cell(fine, 1.0), 3))
    torch.manual_seed(0)
    model = DescriptorNetwork(DescriptorConfig(channels=8, layers=1, scales=3))
    with torch.no_grad():
        for weight in (model.join.out.weight, model.up[0].weight, *(stage.direct.weight for stage in model.coarser)):
            weight.normal_(std=0.1)
        together = model(*build_network_arguments(levels, gradient=False))
        alone = torch.cat([model(*build_network_arguments([one], gradient=False)) for one in levels])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_learned_descriptor_accepts_few_points(count: int) -> None:
    descriptor = LearnedDescriptor(DescriptorNetwork(DescriptorConfig(channels=4, layers=1, scales=2)))
    found = descriptor(np.zeros((count, 3)) + np.arange(count)[:, None], np.arange(count))
    assert found.shape == (count, WIDTH)
    assert np.isfinite(found).all()


def test_learned_descriptor_save_and_load_round_trip(tmp_path: Path, room: Floats) -> None:
    first = untrained()
    first.save(tmp_path / "w.safetensors")
    second = LearnedDescriptor.load(tmp_path / "w.safetensors")
    assert second.config == SMALL
    described = thin_and_describe_scan(room, first.compute_normals_and_features).features
    assert described.shape == (len(thin_and_describe_scan(room).points), WIDTH)
    assert np.allclose(np.linalg.norm(described, axis=1), 1, atol=1e-5)
    assert np.array_equal(described, thin_and_describe_scan(room, second.compute_normals_and_features).features)
    second.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "w.safetensors").read_bytes()


def test_learned_descriptor_save_limits_file_size(tmp_path: Path) -> None:
    untrained(DescriptorConfig()).save(tmp_path / "w.safetensors")
    assert 1_000_000 < (tmp_path / "w.safetensors").stat().st_size <= MAX_BYTES == 10_000_000
    with pytest.raises(InputError, match="channels: expected weights of at most 10000000 bytes"):
        untrained(DescriptorConfig(channels=256)).save(tmp_path / "large.safetensors")
    assert not (tmp_path / "large.safetensors").exists()


def test_register_with_untrained_descriptor_finds_pose(tmp_path: Path) -> None:
    """Two thirds of a room, turned: what is known of the surroundings is enough."""
    pytest.importorskip("small_gicp")
    first, second = sample_room_scan(3, 4500), sample_room_scan(3, 4500, scan_seed=1)
    first, second = first[first[:, 0] < 3.8], second[second[:, 0] > 1.0] @ turn().T
    untrained().save(tmp_path / "w.safetensors")
    found = register(first, second, voxel=0.09, descriptor=tmp_path / "w.safetensors", device="cpu")
    assert found.success, found.reason
    assert np.abs(found.transform[:3, :3] - turn()).max() < 0.01
    again = register(first, second, voxel=0.09, descriptor=LearnedDescriptor.load(tmp_path / "w.safetensors"))
    assert np.array_equal(found.transform, again.transform)
    assert register(first, second, voxel=0.09).matches != found.matches


def test_load_descriptor_puts_it_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untrained().save(tmp_path / "w.safetensors")
    devices = []

    def load(*arguments: Any) -> LearnedDescriptor:
        devices.append(arguments[-1])
        return untrained()

    monkeypatch.setattr(LearnedDescriptor, "load", load)
    for device in ("auto", "cpu"):
        assert load_descriptor_if_learned(tmp_path / "w.safetensors", device) is not None
    assert devices == [resolve_device("auto"), torch.device("cpu")]
    assert load_descriptor_if_learned("fpfh", "cpu") is load_descriptor_if_learned(None, "auto") is None
    refuses("device: expected auto or cpu, where FPFH is computed, got cuda", load_descriptor_if_learned, None, "cuda")
    refuses("device: expected", load_descriptor_if_learned, tmp_path / "w.safetensors", "cuda:99")


def test_register_with_published_descriptor_finds_pose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("small_gicp")
    published = learned.fetch_published_descriptor_file()
    assert published.stat().st_size <= MAX_BYTES
    first, second = sample_room_scan(3, 4500), sample_room_scan(3, 4500, scan_seed=1)
    first, second = first[first[:, 0] < 3.8], second[second[:, 0] > 1.0] @ turn().T
    judged: list[Limits] = []

    def noted(*given: Any) -> Any:
        judged.append(given[-1])
        return measure_evidence(*given)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["fullfield.registration.search"], "measure_evidence", noted)
        found = register(first, second, voxel=0.09, descriptor="learned", device="cpu")
        assert set(judged) == {LEARNED_LIMITS}
        register(first, second, voxel=0.09, descriptor="fpfh")
        assert judged[-1] == FPFH_LIMITS
    assert found.success, found.reason
    assert np.abs(found.transform[:3, :3] - turn()).max() < 0.01
    again = register(first, second, voxel=0.09, descriptor=LearnedDescriptor.published())
    assert np.array_equal(found.transform, again.transform)
    assert found.matches != register(first, second, voxel=0.09, descriptor=untrained()).matches
    other = tmp_path / "other.safetensors"
    other.write_bytes(published.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(learned, "fetch_weights", lambda *_: other)
    with pytest.raises(InputError, match=r"other\.safetensors: is not the file that was published"):
        register(first, second, descriptor="learned")


def test_fetch_descriptor_downloads_outside_of_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wheel does not hold it: it comes from the repository that the package's metadata name."""
    published = learned.fetch_published_descriptor_file()
    assert "weights" in published.parts
    assert not list(Path(catalogue.__file__).parents[1].rglob("descriptor.safetensors"))
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    installed = tmp_path / "lib" / "site-packages" / "fullfield" / "models" / "weights.py"
    monkeypatch.setattr(catalogue, "__file__", str(installed))
    with pytest.raises(OSError, match=r"copy weights/descriptor\.safetensors from fullfield's source"):
        register(np.zeros((30, 3)), np.zeros((30, 3)), descriptor="learned")
    requests: list[str] = []

    def fake_download(address: str, target: Path, **_: object) -> None:
        requests.append(address)
        target.write_bytes(published.read_bytes())

    about = Message()
    about["Version"], about["Project-URL"] = "0.2.0", "Repository, https://example.org/fullfield"
    monkeypatch.setattr(catalogue, "metadata", lambda _: about)
    monkeypatch.setattr(catalogue, "download_if_missing", fake_download)
    for _ in range(2):  # from the cache, the second time
        assert LearnedDescriptor.published().config.scales == 2
    assert requests == ["https://example.org/fullfield/raw/v0.2.0/weights/descriptor.safetensors"]


def wrong_files(folder: Path) -> dict[str, str]:
    """Files that are no descriptor, and what is said of them."""
    state = untrained().model.state_dict()
    good = json.dumps(SMALL.as_dict())

    def written(name: str, tensors: dict[str, torch.Tensor], told: str | None) -> None:
        (folder / name).write_bytes(save(tensors, None if told is None else {"descriptor": told}))

    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "page.safetensors").write_bytes(b"<html>not found</html>")
    written("plain.safetensors", state, None)
    raft = {"fnet.layer1.0.conv3.weight": torch.zeros(1), "update_block.gru.convz.weight": torch.zeros(1)}
    written("raft.safetensors", raft, None)
    written("words.safetensors", state, "no json")
    written("unknown.safetensors", state, json.dumps({**SMALL.as_dict(), "depth": 3}))
    written("giant.safetensors", state, json.dumps({**SMALL.as_dict(), "channels": 1024, "layers": 16}))
    written("endless.safetensors", state, json.dumps({**SMALL.as_dict(), "layers": 10**9}))
    written("other.safetensors", state, json.dumps({**SMALL.as_dict(), "channels": 12}))
    written("nan.safetensors", {**state, "head.bias": torch.full((WIDTH,), float("nan"))}, good)
    written("missing.safetensors", {k: v for k, v in state.items() if k != "head.bias"}, good)
    renamed = {k.replace("head", "tail"): v for k, v in state.items()}
    written("renamed.safetensors", renamed, good)
    (folder / "half.safetensors").write_bytes((folder / "renamed.safetensors").read_bytes()[:-100])
    return {
        "empty": "the file is empty",
        "page": "a web page, not the weights",
        "plain": "expected a descriptor of points, as fullfield train descriptor writes it, got weights without",
        "raft": "got weights of RAFT-small",
        "words": "expected a descriptor's configuration in its header",
        "unknown": "depth",
        "giant": "numbers for its configuration",
        "endless": "layers: expected an integer >= 0 and <= 16",
        "other": "numbers for its configuration",
        "nan": "expected finite weights",
        "missing": "numbers for its configuration",
        "renamed": r"expected weights of the descriptor that its header describes; missing head\.bias",
        "half": "cannot be read",
    }


def test_learned_descriptor_load_refuses_wrong_files_in_one_line(tmp_path: Path) -> None:
    for name, message in wrong_files(tmp_path).items():
        caught = refuses(message, LearnedDescriptor.load, tmp_path / f"{name}.safetensors")
        assert str(tmp_path / name) in caught, name
    with pytest.raises(FileNotFoundError):
        LearnedDescriptor.load(tmp_path / "absent.safetensors")
    refuses(
        r"page\.safetensors",
        register,
        sample_room_scan(1),
        sample_room_scan(2),
        descriptor=tmp_path / "page.safetensors",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2000}, "channels: expected an integer >= 1 and <= 1024"),
        ({"layers": -1}, "layers: expected an integer >= 0"),
    ],
)
def test_descriptor_config_names_bad_values(change: dict[str, Any], message: str) -> None:
    refuses(message, DescriptorConfig, **{**vars(SMALL), **change})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_published_descriptor_on_gpu_equals_cpu(room: Floats) -> None:
    fine = room[select_one_index_per_cell(room, 0.5)]
    rows = select_one_index_per_cell(fine, 1.0)
    here, there = (LearnedDescriptor.published(device)(fine, rows) for device in ("cpu", "cuda"))
    apart = np.linalg.norm(here - there, axis=1)
    assert np.median(apart) < 1e-3
    assert (apart > 0.05).mean() < 0.01  # a neighbour on the edge of a cell
