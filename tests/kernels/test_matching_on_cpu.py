"""The kernels of matching by a softmax, run on the CPU by ``emulator``, against the whole matrix in float64."""

from __future__ import annotations

from collections.abc import Iterator

import emulator
import pytest
import torch
from test_nvrtc import ARCHS, needs_nvrtc, resources
from torch import Tensor

from fullfield.ops.matching import cuda, global_matching, protocol

# Of cells, of gradients' largest.
ALLOWED = {torch.float32: (2e-4, 2e-5), torch.float16: (2e-4, 2e-3), torch.bfloat16: (2e-4, 2e-2)}


@pytest.fixture
def _emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(protocol, "ELEMENTS", 4000)  # several parts
    with emulator.kernels_of(cuda):
        yield


def maps(dtype: torch.dtype, channels: int, *sizes: tuple[int, int], sharp: float = 2.0) -> list[Tensor]:
    """The second shows pixels of the first, mixed up and with noise."""
    generator = torch.Generator().manual_seed(channels)
    made = [torch.randn(2, channels, h * w, generator=generator) for h, w in sizes]
    common = min(m.shape[2] for m in made)
    made[1][:, :, :common] += sharp * made[0][:, :, torch.randperm(made[0].shape[2], generator=generator)[:common]]
    return [m.unflatten(2, size).to(dtype) for m, size in zip(made, sizes, strict=True)]


def whole(one: Tensor, two: Tensor) -> Tensor:
    """GMFlow's own form in float64."""
    scores = one.flatten(2).transpose(1, 2) @ two.flatten(2) / one.shape[1] ** 0.5
    own, searched = (protocol.positions_of(m) for m in (one, two))
    return (scores.softmax(-1) @ searched.flatten(1).T).transpose(1, 2).unflatten(2, one.shape[2:]) - own


def graded(call: object, maps: list[Tensor], grad: Tensor) -> list[Tensor]:
    inputs = [m.detach().clone().requires_grad_() for m in maps]
    out = call(*inputs)  # type: ignore[operator]
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("channels", "one", "two"), [(12, (5, 9), (3, 701)), (16, (6, 8), (6, 8)), (5, (1, 3), (1, 2))], ids=str
)
def test_flow_and_gradients(
    dtype: torch.dtype, channels: int, one: tuple[int, int], two: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = maps(dtype, channels, one, two)
    weights = torch.linspace(-1, 1, 4 * one[0] * one[1], dtype=torch.float64).view(2, 2, *one)
    # So small that float16 has no such numbers.
    grad = 2.0**-30 * weights if dtype == torch.float32 else 2.0**-12 * weights
    found = graded(lambda a, b: global_matching(a, b, backend="cuda"), pair, grad)
    truth = graded(whole, [m.double() for m in pair], grad)
    cells, relative = ALLOWED[dtype]
    assert found[0].dtype == torch.float32
    assert [g.dtype for g in found[1:]] == [dtype, dtype]
    assert float((found[0] - truth[0]).abs().max()) < cells
    for ours, exact in zip(found[1:], truth[1:], strict=True):
        assert float((ours.double() - exact).abs().max()) < relative * float(exact.abs().max())
    monkeypatch.setattr(protocol, "ELEMENTS", 1 << 24)
    again = graded(lambda a, b: global_matching(a, b, backend="cuda"), pair, grad)
    assert float((again[0] - found[0]).abs().max()) < cells  # all rows at once


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
@pytest.mark.usefixtures("_emulated")
def test_gradients_that_float16_cannot_hold() -> None:
    """Of the products; those of the features are as large as its numbers are."""
    one, two = maps(torch.float16, 16, (4, 6), (4, 6), sharp=0.2)
    grad = torch.full((2, 2, 4, 6), 2.0**-18, dtype=torch.float64)
    query, key = cuda.rows(one), cuda.rows(two, aligned=True)
    sizes = ((4, 6), (4, 6))
    flow, logarithms = cuda.forward(query, key, sizes, 0.25)
    found = cuda.backward((query, key, flow, logarithms), grad.float().flatten(2), sizes, 0.25)
    truth = graded(whole, [one.double(), two.double()], grad)[1:]
    for ours, exact in zip(found, truth, strict=True):
        exact = exact.flatten(2).transpose(1, 2)
        assert float((ours.double() - exact).abs().max()) < 2e-3 * float(exact.abs().max())


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
@pytest.mark.usefixtures("_emulated")
def test_what_is_not_finite_spoils_its_own_pixels() -> None:
    one, two = maps(torch.float32, 8, (3, 4), (3, 4))
    clean = global_matching(one, two, backend="cuda")
    one[0, 2, 1, 1], one[1, 0, 2, 3] = torch.nan, torch.inf
    found = global_matching(one, two, backend="cuda")
    assert torch.equal(found.isfinite(), torch.isfinite(whole(one.double(), two.double())))
    spoiled = torch.zeros(2, 1, 3, 4, dtype=torch.bool)
    spoiled[0, 0, 1, 1] = spoiled[1, 0, 2, 3] = True
    assert torch.equal(torch.where(spoiled, 0, found), torch.where(spoiled, 0, clean))


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
@pytest.mark.usefixtures("_emulated")
def test_gradients_of_gradients() -> None:
    one, two = (m.double().float().requires_grad_() for m in maps(torch.float32, 4, (2, 3), (2, 3), sharp=0.5))
    exact = [m.detach().double().requires_grad_() for m in (one, two)]
    seconds = []
    for call, pair in ((lambda a, b: global_matching(a, b, backend="cuda"), (one, two)), (whole, exact)):
        first = torch.autograd.grad(call(*pair).square().sum(), pair[0], create_graph=True)[0]  # type: ignore[operator]
        seconds.append(torch.autograd.grad(first.square().sum(), pair[1])[0].double())
    assert float((seconds[0] - seconds[1]).abs().max()) < 1e-4 * float(seconds[1].abs().max())


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_resources(arch: str, dtype: torch.dtype) -> None:
    found = resources(cuda.source(dtype), arch)
    assert found.keys() == {"positions", "gradient"}
    for registers, spilled in found.values():
        assert registers <= 64  # all threads that a multiprocessor holds, or half of them
        assert spilled == 0
