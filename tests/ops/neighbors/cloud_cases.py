"""Clouds for the search, and the backends that have to give the reference's results, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from emulator import Emulator
from torch import Tensor

from benchmarks.cases.points import listing
from fullfield.ops.neighbors import cuda, explain_backends
from fullfield.ops.neighbors.ragged import Neighbors
from fullfield.ops.point_conv.cuda import pooling, triplets

REASON = dict(explain_backends("cuda"))["cuda"] if torch.cuda.is_available() else "no GPU that PyTorch can use"
without_gpu = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def cloud(count: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return (torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) - 0.5) * 2 * spread


def surface(count: int, seed: int = 0) -> Tensor:
    """Dense in some places, thin in others."""
    points = cloud(count, seed)
    points[:, 2] = (3 * points[:, 0]).sin() / 4
    return points * torch.rand(count, 1, generator=torch.Generator().manual_seed(seed + 1)).square()


SURVEY = torch.tensor([500_000.0, 5_200_000.0, 300.0], dtype=torch.float64)


def places(count: int) -> dict[str, Tensor]:
    return {
        "volume": cloud(count),
        "surface": surface(count),
        "lattice": (cloud(count, 3) * 2).round() / 4,  # duplicates, and distances that equal each other and the radius
        "plane": cloud(count, 5) * torch.tensor([1.0, 1.0, 0.0]),
        "line": cloud(100, 6) * torch.tensor([0.0, 1.0, 0.0]),
        "one place": torch.ones(70, 3),
        "one point": torch.zeros(1, 3),
        "two points": cloud(2, 3),
        "few points": cloud(13, 3),
        "nothing": torch.zeros(0, 3),
        "far apart": torch.cat([cloud(60) * 0.1, cloud(60) * 0.1 + 1e6, cloud(60) * 1e30]),
        "surveyed": cloud(count // 2).double() + SURVEY,
        "strays": torch.cat([torch.zeros(99, 3), cloud(count // 2).double() + SURVEY]),
    }


PLACES = list(places(2))


class Backend(NamedTuple):
    """A backend, the device of its tensors, and how many points its clouds have."""

    name: str
    device: str
    count: int


BACKENDS = {"cpu": Backend("cpu", "cpu", 500), "emulated": Backend("cuda", "cpu", 500)}
BACKENDS["cuda"] = Backend("cuda", "cuda", 3000)


def rows(found: Neighbors) -> list[list[int]]:
    edges = found.offsets.tolist()
    return [found.indices[a:b].tolist() for a, b in pairwise(edges)]


def same(found: Neighbors, right: Neighbors) -> bool:
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, right, strict=True))


@pytest.fixture
def machine(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The CUDA kernels of points for tensors of the CPU, in memory that is poisoned and watched."""
    monkeypatch.setattr(cuda, "explain_unsupported", lambda _: None)
    return emulate(cuda, triplets, pooling, listing)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "emulated":
        request.getfixturevalue("machine")
    elif request.param == "cpu" and (reason := dict(explain_backends())["cpu"]) is not None:
        pytest.skip(reason)
    return BACKENDS[request.param]
