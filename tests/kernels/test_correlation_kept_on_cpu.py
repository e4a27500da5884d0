"""Products that CUDA lookups keep for the next ones, run on the CPU by ``emulator``: the same bits whatever was looked up before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import emulator
import pytest
import torch
from emulator import AMPERE, Emulator
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import cuda
from fullfield.ops.correlation.cuda import launch, launch_backward
from fullfield.testing.correlation import Case, assert_within, make_case, rounded

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(AMPERE.shared)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.installed(monkeypatch, AMPERE, launch, launch_backward)
    for module in (launch, launch_backward):
        monkeypatch.setattr(module, "raw_stream", lambda _: 0)
    monkeypatch.setattr(launch, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "supports", lambda _: None)
    with machine.used():
        yield


def journey(case: Case) -> list[Tensor]:
    """Positions as a network's, then as none would have them: small steps, jumps, borders, and what is no number."""
    start = case.coords
    height, width = case.fmap2.shape[-2:]
    generator = torch.Generator().manual_seed(3)
    found = [start, start.clone()]
    for step in range(3):  # every pixel by itself, in all directions
        found.append(found[-1] + torch.randn(start.shape, generator=generator) * (0.4 + 0.6 * step))
    found += [start + torch.tensor([d, -d]).view(1, 2, 1, 1) for d in (0.6, 1.7, -3.9)]
    found.append(torch.rand(start.shape, generator=generator) * torch.tensor([width, height]).view(1, 2, 1, 1))
    found.append(found[-1] + 1.3)  # windows far apart that move, too
    found.append(found[-1] - torch.tensor([2.1, 0.4]).view(1, 2, 1, 1))
    found.append(start * 0 + torch.tensor([-2.5, height + 1.5]).view(1, 2, 1, 1))  # partly outside
    broken = start.clone()
    broken[..., ::2] = torch.nan
    far = torch.where(torch.rand(start.shape, generator=generator) < 0.5, start, -1e9)
    return [*found, broken, start, far, start + 0.25, start]


def look(case: Case, **options: Any) -> CorrelationPyramid:
    return CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cuda", **options)


SHAPES = [
    # size1, size2, batch, channels, levels, radius
    ((9, 21), (11, 30), 2, 20, 3, 3),
    ((17, 18), (60, 40), 1, 70, 2, 2),
    ((3, 5), (6, 3), 1, 8, 4, 1),  # levels that pool to nothing
]


@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_what_was_looked_up(
    dtype: torch.dtype, out: torch.dtype, shape: tuple[Any, ...], machine: Emulator
) -> None:
    size1, size2, batch, channels, levels, radius = shape
    case = rounded(make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius), dtype)
    case = replace(case, fmap1=case.fmap1.to(dtype), fmap2=case.fmap2.to(dtype))
    there = journey(case)
    expected = [look(case, out_dtype=out)(at) for at in there]  # of a first lookup, which finds nothing
    plain = [look(case, out_dtype=out, reuse=False)(at) for at in there]
    for got, want in zip(expected, plain, strict=True):
        eps = max(2.0**-15, torch.finfo(out).eps * 2) if dtype != torch.float32 else 2.0**-19
        assert_within(got, want, eps * float(want.abs().max()), "rounded products")
    machine.launched.clear()
    for reuse in (True, None):
        for order in (1, -1):
            pair = look(case, out_dtype=out, reuse=reuse)
            for number, (at, want) in enumerate(list(zip(there, expected, strict=True))[::order]):
                assert torch.equal(pair(at), want), f"lookup {number}, order {order}"
    assert machine.launched["sample_kept"] == machine.launched["check_kept"] == 4 * len(there) - 2
