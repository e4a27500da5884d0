"""The kernels of the spatial correlation, run on the CPU by ``emulator``, against float64; and what they compile to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import emulator
import pytest
import torch
from emulator import AMPERE, Emulator
from test_nvrtc import ARCHS, SHARED, needs_nvrtc, resources

from fullfield.ops.spatial_correlation import cuda, reference
from fullfield.ops.spatial_correlation.protocol import Window

sys.path.insert(0, str(Path(__file__).parents[1] / "ops" / "spatial_correlation"))
from windows_cases import CASES, allowed, draw, farthest

emulated = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(163 << 10)


@pytest.fixture
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels for tensors of the CPU, in memory that is poisoned and watched."""
    machine.installed(monkeypatch, AMPERE, cuda)
    with machine.used():
        yield


@emulated
@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_kernels_are_the_reference(number: int, machine: Emulator) -> None:
    shape, window = CASES[number]
    dtype = DTYPES[(number + number // 3) % 3]
    tensors = draw(shape, window, dtype)
    machine.schedule = 3 * (number % 2)
    found = [cuda.forward(*tensors[:2], window), *cuda.backward(*tensors, window, (True, True))]
    exact = [t.double() for t in tensors]
    truth = [reference.compared(*exact[:2], window), *reference.backward(*exact, window, (True, True))]
    for one, right in zip(found, truth, strict=True):
        assert one.dtype == dtype
        assert farthest(one, right) <= allowed(dtype)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_resources(arch: str) -> None:
    half_dtype = torch.float16 if arch == "sm_75" else torch.bfloat16
    for dtype, patch in ((torch.float32, 9), (half_dtype, 9), (half_dtype, 21)):
        columns = cuda.columns_of(patch)
        rows = cuda.rows_of(patch, columns, 1000, SHARED[arch])
        if dtype == torch.float32:
            registers, spilled = resources(cuda.forward_source(True, columns, rows), arch)["spatial_forward"]
            assert registers * cuda.forward_threads(columns, rows) <= 65536
        else:
            half = cuda.half_of((patch, patch), 1000)
            registers, spilled = resources(cuda.half_source(dtype, True, half), arch)["spatial_forward_half"]
            assert registers <= (255 if arch == "sm_75" else 128)  # one block, or two
        assert spilled <= 128
        for spread in cuda.SPREADS:
            registers, spilled = resources(cuda.backward_source(dtype, True, columns, spread), arch)["spatial_backward"]
            assert registers <= 168
            assert spilled <= 64


@pytest.mark.parametrize("shared", sorted(set(SHARED.values())))
def test_every_patch_fits_into_a_block(shared: int) -> None:
    for patch in product((1, 2, 10, 11, 32, 33, 100), repeat=2):
        columns = cuda.columns_of(patch[1])
        assert columns.group * columns.groups * columns.blocks >= patch[1]
        for others in (1, 10_000):
            rows = cuda.rows_of(patch[0], columns, others, shared)
            assert 1 <= rows <= patch[0]
            assert cuda.forward_threads(columns, rows) <= 512
            assert cuda.forward_shared(columns, rows) <= shared
            half = cuda.half_of(patch, others)
            assert half.columns * half.blocks >= patch[1]
            assert 1 <= half.rows <= patch[0]
            assert half.shared <= shared
            assert cuda.backward_shared(columns, cuda.spread_of(columns, others, 256, shared)) <= shared


def test_windows_of_odd_kinds_are_refused_or_dense() -> None:
    assert Window((3, 3), (4, 4), (2, 1)).is_aligned
    assert not Window((3, 3), (4, 3), (2, 2)).is_aligned
