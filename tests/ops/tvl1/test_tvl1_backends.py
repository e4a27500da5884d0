"""Every backend against the loop oracle and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, reference
from tests.oracles.tvl1 import VARIANTS, tvl1_by_loops

PRECISIONS = ("float32", "float16")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def scene(height: int, width: int, shift: float = 1.3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth random texture and its shifted self, 0 ... 1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    frames = [np.zeros((height, width)) for _ in range(2)]
    for _ in range(12):
        fx, fy, phase = rng.uniform(-0.7, 0.7), rng.uniform(-0.7, 0.7), rng.uniform(0, 6)
        frames[0] += np.cos(fx * x + fy * y + phase)
        frames[1] += np.cos(fx * (x - shift) + fy * (y + shift / 2) + phase)
    return tuple(torch.from_numpy(f / 24 + 0.5) for f in frames)  # type: ignore[return-value]


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def solve(backend: str, frames: tuple[torch.Tensor, torch.Tensor], config: TVL1Config) -> torch.Tensor:
    dtype = torch.float64 if backend == "reference64" else torch.float32
    name = "reference" if backend.startswith("reference") else backend
    height, width = frames[0].shape
    solver = TVL1Solver(height, width, config, dtype=dtype, backend=name)
    with threads(1 if name == "reference" else torch.get_num_threads()):
        return solver(*(f.to(dtype)[None, None] for f in frames))[0].double()


@pytest.mark.parametrize("variant", VARIANTS)
def test_tvl1_single_scale_equals_loops(variant: str) -> None:
    config = TVL1Config(scales=1, warps=2, iterations=13, **VARIANTS[variant])
    frames = scene(14, 17)
    truth = tvl1_by_loops(*(f.numpy() * 255 for f in frames), config)
    assert np.abs(truth).max() > 0.3, "the scene must move"
    for backend, budget in (("reference64", 1e-9), ("reference", 3e-4), ("cpu", 3e-4)):
        error = (solve(backend, frames, config) - torch.from_numpy(truth)).abs()
        assert error.max() < budget, backend


SIZES = [(44, 52), (33, 131), (1, 40), (40, 1), (2, 1), (17, 16), (16, 1100)]


@pytest.mark.parametrize(
    ("variant", "size"), [*((next(iter(VARIANTS)), size) for size in SIZES), *((one, (31, 52)) for one in VARIANTS)]
)
def test_tvl1_cpu_equals_reference(variant: str, size: tuple[int, int]) -> None:
    config = TVL1Config(warps=3, iterations=25, scale_factor=0.7, **VARIANTS[variant])
    frames = scene(*size)
    truth = solve("reference64", frames, config)
    error = (solve("cpu", frames, config) - truth).abs()
    eager = (solve("reference", frames, config) - truth).abs()
    assert error.mean() <= 2 * eager.mean() + 1e-5
    assert error.max() < 5e-3


@pytest.mark.parametrize(("number", "size"), [(2, (97, 1300)), (3, (431, 61)), (5, (23, 40))])
def test_tvl1_cpu_is_independent_of_threads(number: int, size: tuple[int, int]) -> None:
    config = TVL1Config(warps=2, iterations=23, scale_factor=0.6, borders="clamp")
    frames = scene(*size)
    with threads(1):
        alone = solve("cpu", frames, config)
    with threads(number):
        together = solve("cpu", frames, config)
    assert torch.equal(alone, together)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(2, 40), st.integers(0, 1000))
def test_tvl1_cpu_matches_float64_for_any_size(height: int, width: int, seed: int) -> None:
    frames = scene(height, width, seed=seed)
    config = TVL1Config(warps=2, iterations=11, scale_factor=0.5)
    flow = solve("cpu", frames, config)
    assert flow.shape == (2, height, width)
    assert (flow - solve("reference64", frames, config)).abs().mean() < 1e-3


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_tvl1_without_motion_returns_zero(backend: str) -> None:
    first, flat, config = scene(50, 64)[0], torch.full((50, 64), 0.4), TVL1Config(warps=2)
    # A constant pair of different brightness has no gradient to follow.
    for pair in ((first, first), (flat, flat), (flat, flat + 0.1)):
        assert not solve(backend, pair, config).any()


def test_tvl1_recovers_translation() -> None:
    first, second = scene(80, 100, shift=2.6)
    flow = solve("cpu", (first, second), TVL1Config())[:, 10:-10, 10:-10]
    assert (flow[0] - 2.6).abs().mean() < 0.05
    assert (flow[1] + 1.3).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("device", "precision"), [("cpu", "float32"), *(pytest.param("cuda", p, marks=on_gpu) for p in PRECISIONS)]
)
def test_tvl1_keeps_precision_at_200_pixels(device: str, precision: str) -> None:
    wide = torch.rand(1, 1, 64, 700, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wide = torch.nn.functional.avg_pool2d(wide, 5, 1, 2).float().to(device)
    start = torch.zeros(1, 2, 64, 500, device=device)
    start[:, 0] = 199.4
    solver = TVL1Solver(64, 500, TVL1Config(scales=1, precision=precision), device=device)
    flow = solver(wide[..., 200:].contiguous(), wide[..., :500].contiguous(), initial_flow=start)[0]
    assert (flow[0, 8:-8, 8:280] - 200).abs().max() < 0.02


def test_tvl1_initial_flow_starts_every_scale() -> None:
    first, second = scene(64, 96, shift=6.0)
    config = TVL1Config(warps=1, iterations=2, scale_factor=0.5)
    start = torch.stack([torch.full((64, 96), 6.0), torch.full((64, 96), -3.0)])[None]
    truth = torch.tensor([6.0, -3.0]).view(2, 1, 1)
    for backend in ("cpu", "reference"):
        solver = TVL1Solver(64, 96, config, backend=backend)
        frames = [f.float()[None, None] for f in (first, second)]
        cold = (solver(*frames)[0] - truth).abs().mean()
        warm = (solver(*frames, initial_flow=start)[0] - truth).abs().mean()
        assert warm < 0.5 * cold


def test_median_filter_returns_median() -> None:
    plane = torch.arange(25.0).reshape(1, 5, 5)
    plane[0, 2, 2] = 1000
    assert reference.median_filter(plane, 3)[0, 2, 2] == 13
    assert reference.median_filter(plane, 5)[0, 2, 2] == 13
