"""Nothing of the size of triplets times channels is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
import torch
from fullfield.ops.point_conv import point_conv, point_pool, triplet_geometry

def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)

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
before = peak()
step(channels)
print(peak() - before, points * each * channels * 4 // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_peak_memory(forked: Callable[..., str]) -> None:
    """Of both backends and of pooling, with gradients."""
    grown, triplets = (int(word) for word in forked(SCRIPT).split())
    # features, result and gradients are 1.5 MB each, a chunk 16 MB
    assert grown < triplets / 3, f"{grown} KiB, triplets times channels are {triplets}"
