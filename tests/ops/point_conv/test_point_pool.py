"""Pooling over a geometry; the memory of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from point_cases import ragged, random_geometry

from fullfield import InputError
from fullfield.ops.point_conv import point_pool, pooling, radius_geometry


def looped(features: torch.Tensor, geometry, mode: str) -> torch.Tensor:
    i, j, _ = geometry.triplets()
    rows = []
    for center in range(geometry.center_count):
        own = features[j[i == center]]
        reduced = own.new_zeros(features.shape[1]) if not len(own) else own.mean(0) if mode == "mean" else own.amax(0)
        rows.append(reduced)
    return torch.stack(rows)


@pytest.mark.parametrize("mode", ["max", "mean"])
@pytest.mark.parametrize("chunk", [None, 3000])
def test_point_pool_equals_loops(mode: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk:
        monkeypatch.setattr(pooling, "CHUNK_BYTES", chunk)
    points, offsets = ragged((9, 7))
    for geometry in (random_geometry(9, 14, 40), radius_geometry(points, 0.3, offsets=offsets)):
        features = torch.randn(geometry.points, 3, dtype=torch.float64, requires_grad=True)
        expected, got = looped(features, geometry, mode), point_pool(features, geometry, mode)
        torch.testing.assert_close(got, expected)
        grad = torch.randn_like(expected)
        torch.testing.assert_close(*(torch.autograd.grad(out, features, grad)[0] for out in (got, expected)))
        assert torch.autograd.gradcheck(lambda f, g=geometry: point_pool(f, g, mode), features)
        assert torch.autograd.gradgradcheck(lambda f, g=geometry: point_pool(f, g, mode), features, fast_mode=True)


def test_point_pool_equal_maxima_send_gradient_once() -> None:
    geometry = random_geometry(5, 8, 30)
    features = torch.ones(8, 3, requires_grad=True)
    out = point_pool(features, geometry)
    assert torch.autograd.grad(out.sum(), features)[0].sum() == out.sum() == 15


def test_point_pool_keeps_nan_and_minus_infinity() -> None:
    geometry = random_geometry(3, 4, 12)
    features = torch.zeros(4, 2)
    features[1, 0], features[:, 1] = torch.nan, -torch.inf
    out = point_pool(features.requires_grad_(), geometry)
    assert out[:, 0].isnan().all()
    assert (out[:, 1] == -torch.inf).all()
    assert torch.autograd.grad(out.sum(), features)[0].tolist() == [[0, 3], [3, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_point_pool_16_bit_accumulates_in_float32(dtype: torch.dtype) -> None:
    geometry = random_geometry(6, 900, 5000)
    features = torch.full((900, 1), 200.0, dtype=dtype)
    for mode in ("max", "mean"):
        out = point_pool(features, geometry, mode)
        assert out.dtype == dtype
        assert (out == 200).all()


def test_point_pool_passes_opcheck_and_compiles() -> None:
    geometry = random_geometry(6, 9, 30)
    features = torch.randn(9, 4, requires_grad=True)
    ways = (*geometry.list_triplet_tensors_by_direction(), geometry.cells)
    torch.library.opcheck(torch.ops.fullfield.point_sum.default, (features, *ways))
    torch.library.opcheck(torch.ops.fullfield.point_max.default, (features, *ways))
    out, winners = torch.ops.fullfield.point_max(features, *ways)
    collected = (out.detach().requires_grad_(), winners, *ways[1:])
    torch.library.opcheck(torch.ops.fullfield.point_max_backward.default, collected)
    for mode in ("max", "mean"):
        run = torch.compile(point_pool, fullgraph=True, backend="aot_eager")
        got, expected = run(features, geometry, mode), point_pool(features, geometry, mode)
        assert torch.equal(got, expected)
        assert torch.equal(*(torch.autograd.grad(o.square().sum(), features)[0] for o in (got, expected)))


def test_point_pool_refuses_bad_arguments() -> None:
    geometry = random_geometry(6, 9, 30)
    with pytest.raises(InputError, match=r"^mode: "):
        point_pool(torch.zeros(9, 4), geometry, "median")
    with pytest.raises(InputError, match=r"^features: "):
        point_pool(torch.zeros(8, 4), geometry)


# ---- memory

SCRIPT = """
import torch
from fullfield.ops.point_conv import point_conv, point_pool, triplet_geometry
from peak_memory import PeakMemory

torch.set_num_threads(1)
points, each, channels = 6_000, 100, 64
i = torch.arange(points).repeat_interleave(each)
j = (i + torch.arange(points * each) % each) % points
geometry = triplet_geometry(i, j, (i + j) % 27, (points, points))
del i, j

def step(channels):
    inputs = (torch.ones(points, channels, requires_grad=True), torch.ones(27, channels, channels, requires_grad=True))
    for backend in ("cpu", "reference"):
        torch.autograd.grad(point_conv(*inputs, geometry, backend=backend).sum(), inputs)
    torch.autograd.grad(point_pool(inputs[0], geometry).sum(), inputs[0])

step(1)
with PeakMemory() as memory:
    step(channels)
print(memory.growth_mib, points * each * channels * 4 / 2**20)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_point_conv_and_pool_peak_memory_is_bounded(run_measured_script: Callable[..., str]) -> None:
    """Of both backends and of pooling, with gradients."""
    grown, triplets = (float(word) for word in run_measured_script(SCRIPT).split())
    # features, result and gradients are 1.5 MB each, a chunk 16 MB
    assert grown < triplets / 3, f"{grown} MiB, triplets times channels are {triplets}"
