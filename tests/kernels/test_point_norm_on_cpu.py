"""The normalisation's kernels, run on the CPU by ``emulator``, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import emulator
import pytest
import torch
from emulator import AMPERE, Emulator
from torch import Tensor

from fullfield import InputError
from fullfield.ops import launching
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import point_conv, protocol, radius_geometry, reference
from fullfield.ops.point_conv.api import point_conv_norm
from fullfield.ops.point_norm import Running, api, cuda, point_norm
from fullfield.ops.point_norm.reference import normalised

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
SIZES = (37, 0, 1, 82)
# Of what rounding to the type may cost.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(163 << 10)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels for tensors of the CPU, in memory that is poisoned and watched."""
    machine.installed(monkeypatch, AMPERE, cuda)
    monkeypatch.setattr(launching, "why_not", lambda _: None)
    monkeypatch.setattr(protocol, "builder", lambda _: reference)
    monkeypatch.setattr(neighbors, "supports", lambda _: "not here")
    machine.schedule = 0
    with machine.used():
        yield


def draw(rows: int, channels: int, dtype: torch.dtype, learned: torch.dtype) -> list[Tensor]:
    """Features far from zero, weight, bias, residual, gradient."""
    generator = torch.Generator().manual_seed(rows + channels)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    features = normal(rows, channels) * 2 + normal(channels) + 3
    rest = (normal(rows, channels).to(dtype), normal(rows, channels).to(dtype))
    return [features.to(dtype), (1 + normal(channels) / 4).to(learned), normal(channels).to(learned), *rest]


def results(
    tensors: list[Tensor], kind: str, running: Running | None, extra: tuple[bool, bool], fast: bool
) -> list[Tensor]:
    """The result and all gradients."""
    features, weight, bias, residual, grad = (t.detach().clone() for t in tensors)
    inputs = [t.requires_grad_() for t in (features, weight, bias, residual)][: 3 + extra[0]]
    more, sizes = (residual if extra[0] else None), SIZES if kind == "instance" else ()
    if fast:
        out = point_norm(features, weight, bias, kind, sizes=sizes, running=running, residual=more, relu=extra[1])
        assert type(out.grad_fn).__name__ == "_NormBackward"
    else:
        out = normalised(features, weight, bias, kind, 1e-5, sizes, running, more, extra[1])
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def check(tensors: list[Tensor], kind: str, extra: tuple[bool, bool], update: bool | None = None) -> list[Tensor]:
    channels = tensors[0].shape[1]
    running = exact_running = None
    if update is not None:
        stats = (torch.linspace(-1, 4, channels), torch.linspace(0.5, 5, channels))
        running = Running(*(s.to(tensors[1].dtype) for s in stats), 0.1, update)
        exact_running = Running(running.mean.double(), running.var.double(), 0.1, update)
    got = results(tensors, kind, running, extra, True)
    exact = [t.double() for t in tensors]
    right = results(exact, kind, exact_running, extra, False)
    allowed = TOLERANCE[tensors[0].dtype]
    for one, two in zip(got, right, strict=True):
        error = (one.double() - two).norm() / two.norm().clamp(min=1e-9)
        assert error <= allowed * (4 if one.ndim == 1 else 1), (float(error), tuple(one.shape))
    if running is not None and exact_running is not None:
        for one, two in zip(running[:2], exact_running[:2], strict=True):
            torch.testing.assert_close(one.double(), two, rtol=2 * allowed, atol=2 * allowed)
    return got


@pytest.mark.parametrize("kind", api.KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [5, 16, 64, 520])
def test_against_float64(kind: str, dtype: torch.dtype, channels: int) -> None:
    for learned, residual, relu in itertools.product({dtype, torch.float32}, (False, True), (False, True)):
        tensors = draw(sum(SIZES), channels, dtype, learned)
        check(tensors, kind, (residual, relu), update=True if kind == "batch" and residual else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_running_statistics_in_use(dtype: torch.dtype) -> None:
    check(draw(90, 24, dtype, dtype), "batch", (True, True), update=False)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_a_convolution_and_its_norm_are_the_two(residual: bool, relu: bool) -> None:
    """One step of the graph gives the bits of two; gradients of gradients come from the plain form."""
    generator = torch.Generator().manual_seed(1)
    geometry = radius_geometry(torch.rand(60, 3, generator=generator), 0.2)
    shapes = ((60, 4), (27, 4, 16), (16,), (16,), (60, 16))
    tensors = [torch.randn(shape, generator=generator) for shape in shapes[: 4 + residual]]
    grad = torch.randn(60, 16, generator=generator)

    def one(features: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, more: Tensor | None = None) -> Tensor:
        return point_conv_norm(features, weight, geometry, scale, shift, residual=more, relu=relu, backend="cpu")

    def two(features: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, more: Tensor | None = None) -> Tensor:
        moved = point_conv(features, weight, geometry, backend="cpu")
        return point_norm(moved, scale, shift, residual=more, relu=relu)

    found = []
    for call in (one, two):
        inputs = [t.clone().requires_grad_() for t in tensors]
        out = call(*inputs)
        first = torch.autograd.grad(out, inputs, grad, retain_graph=True)
        again = torch.autograd.grad(out, inputs, grad, create_graph=True)
        second = torch.autograd.grad(sum((g.square().sum() for g in again[:4]), torch.zeros(())), inputs[:3])
        found.append((type(out.grad_fn).__name__, [out.detach(), *first], second))
    assert [names for names, _, _ in found] == ["_ConvNormBackward", "_NormBackward"]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-3, atol=1e-3)


def test_gradients_of_gradients_where_the_scale_was_made_of_the_features() -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def gradient(create_graph: bool) -> Tensor:
        out = point_norm(features, features.mean(0), features.amax(0))
        return torch.autograd.grad(out.square().sum(), features, create_graph=create_graph)[0].detach()

    torch.testing.assert_close(gradient(True), gradient(False))


def test_a_residual_of_another_type_is_named() -> None:
    geometry = radius_geometry(torch.rand(20, 3, generator=torch.Generator().manual_seed(1)), 0.2)
    features, weight = torch.ones(20, 4, dtype=torch.float16), torch.ones(27, 4, 16, dtype=torch.float16)
    learned = (torch.ones(16, requires_grad=True), torch.zeros(16))
    with pytest.raises(InputError, match="residual: expected dtype float16"):
        point_conv_norm(features, weight, geometry, *learned, residual=torch.ones(20, 16), backend="cpu")
