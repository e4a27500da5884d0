"""The branches of the kernels for GPUs before sm_80, run on the CPU by ``emulator``, against their references."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import emulator
import pytest
import test_correlation_on_cpu as correlation
import test_point_conv_on_cpu as points
import test_points_on_cpu as clouds
import test_tvl1_iterations_on_cpu as iterations
import test_tvl1_passes_on_cpu as tvl1
import torch
from correlation_emulated import correlation_on
from emulator import TURING, Emulator

from fullfield.ops.fused import cuda as fused
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import cuda as point_conv
from fullfield.ops.point_conv.cuda import launch
from fullfield.ops.spatial_correlation import cuda as spatial
from fullfield.ops.spatial_correlation import reference
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import engine, passes
from fullfield.testing.correlation import make_case

sys.path += [str(Path(__file__).parents[1] / "ops" / name) for name in ("spatial_correlation", "fused")]
from test_passes import compare
from windows_cases import CASES, allowed, draw, farthest

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(TURING.shared)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.installed(monkeypatch, TURING, launch, neighbors, spatial, passes, fused)
    monkeypatch.setattr(engine, "raw_stream", lambda _: 0)
    for module in (point_conv, neighbors):
        monkeypatch.setattr(module, "supports", lambda _: None)
    machine.launched.clear()
    with machine.used():
        yield


LOOKUPS = {
    # size1, size2, batch, channels, levels, motion
    "levels that pool to nothing": ((9, 17), (10, 27), 2, 64, 6, "smooth"),
    "pixels that no strip holds": ((5, 9), (9, 400), 1, 20, 2, "random"),
    "several blocks of channels": ((6, 10), (7, 11), 1, 256, 2, "smooth"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookup(name: str, dtype: torch.dtype, machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    size1, size2, batch, channels, levels, motion = LOOKUPS[name]
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=3, motion=motion)
    with correlation_on(machine, monkeypatch, TURING):
        correlation.check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("channels", "groups"), [((64, 64), 1), ((17, 130), 1), ((12, 18), 6)], ids=str)
def test_point_convolution(dtype: torch.dtype, channels: tuple[int, int], groups: int) -> None:
    points.check(points.random_geometry(70, 50, 900), channels, groups, dtype)


def test_point_convolution_at_medium_precision_multiplies_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    points.check(points.random_geometry(70, 50, 900), (24, 40), 1, torch.float32, operands=2.0**-11)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_spatial_correlation(number: int) -> None:
    shape, window = CASES[number]
    dtype = DTYPES[(number + number // 3 + 1) % 3]
    tensors = draw(shape, window, dtype)
    found = [spatial.forward(*tensors[:2], window), *spatial.backward(*tensors, window, (True, True))]
    exact = [t.double() for t in tensors]
    truth = [reference.compared(*exact[:2], window), *reference.backward(*exact, window, (True, True))]
    for one, right in zip(found, truth, strict=True):
        assert one.dtype == dtype
        assert farthest(one, right) <= allowed(dtype)


@pytest.mark.parametrize("borders", ["adjoint", "clamp"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_iterations_of_tvl1(dtype: torch.dtype, borders: str) -> None:
    term = iterations.make_term(2, 19, 75, borders)
    iterations.check("register_pipeline", term, dtype, TVL1Config(borders=borders))


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize(("shape", "precision"), [((5, 3, True, 1), "float32"), ((4, 5, False), "float16")], ids=str)
def test_fused_warps_of_tvl1(
    shape: tuple[int | bool, ...], precision: str, schedule: int, machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tvl1.with_shape(monkeypatch, *shape)
    machine.schedule = schedule
    config, frames = TVL1Config(warps=2, iterations=4, scale_factor=0.5, precision=precision), tvl1.scene(33, 52)
    found = tvl1.solved(engine.Engine(1, 33, 52, config, tvl1.CPU), frames)
    error = (found.double() - tvl1.expected(frames, config)).abs()
    assert machine.launched["fused_warp"] >= 2
    assert error.mean() < (1e-4 if precision == "float32" else 1e-2)
    assert error.max() < (5e-3 if precision == "float32" else 0.2)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("name", ["norms", "pack"])
def test_passes_of_the_networks(name: str, dtype: torch.dtype) -> None:
    compare(name, dtype, torch.device("cpu"), (7, 9, 64), (17, 40), 64)


def test_nearest_neighbours() -> None:
    clouds.check_knn(clouds.cloud(300), 5)
