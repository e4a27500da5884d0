"""Peak memory of the linear backends, counted in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

# How much the process's peak grows by two lookups, without and with gradients.
SCRIPT = """
import sys
import torch
from fullfield.nn import CorrelationPyramid
from peak_memory import PeakMemory

backend, height, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
channels = 32
torch.manual_seed(0)

def work(height, width, grad):
    maps = [torch.randn(1, channels, height, width, requires_grad=grad) for _ in range(2)]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    coords = torch.stack((x, y))[None].float() + torch.rand(1, 2, height, width)
    look = CorrelationPyramid(*maps, 4, 4, backend=backend)
    outs = [look(coords + i) for i in range(2)]
    if grad:
        sum(out.sum() for out in outs).backward()

work(16, 24, True)  # whatever is loaded and compiled once
for grad in (False, True):
    with PeakMemory() as memory:
        work(height, width, grad)
    print(memory.growth_mib * 2**20)
"""


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

Peaks = Callable[..., list[float]]


@pytest.fixture(scope="module")
def peaks(run_measured_script: Callable[..., str]) -> Peaks:
    """``peaks(backend, size)``: without and with gradients."""
    known: dict[object, list[float]] = {}

    def asked(backend: str, size: tuple[int, int]) -> list[float]:
        if (backend, size) not in known:
            lines = run_measured_script(SCRIPT, backend, *size).splitlines()
            known[backend, size] = [float(line) for line in lines[-2:]]
        return known[backend, size]

    return asked


def linear_bytes(size: tuple[int, int], grad: bool) -> int:
    """Features and their state, two results, and with gradients those of results and features, and accumulators."""
    pixels = size[0] * size[1]
    features = 2 * 32 * 4 * pixels
    results = 2 * 324 * 4 * pixels
    return features * 6 + results * 2 if grad else features * 3 + results


# Chunks, notes of 128 tiles, and what the allocator keeps.
WORKING = 112 << 20


# The volumes of these maps would take 10 GB and 0.2 GB.
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_lookup_peak_memory_is_linear(backend: str, peaks: Peaks) -> None:
    size = (48, 128) if backend == "reference" else (192, 224)
    for found, grad in zip(peaks(backend, size), (False, True), strict=True):
        assert found < linear_bytes(size, grad) + WORKING


def test_peak_memory_measure_detects_volume(peaks: Peaks) -> None:
    size = (80, 96)
    assert peaks("dense", size)[0] > linear_bytes(size, False) + WORKING
