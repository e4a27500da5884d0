"""The normalisation of points' features: definitions, running statistics, gradients, mistakes; its CUDA kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulator import Emulator
from torch import Tensor, nn

from fullfield import InputError
from fullfield.nn import PointNorm
from fullfield.ops import _launching
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import point_conv, protocol, radius_geometry, reference
from fullfield.ops.point_conv.api import point_conv_layer_norm
from fullfield.ops.point_norm import KINDS, Running, cuda, point_norm
from fullfield.ops.point_norm.reference import normalize

SIZES = (37, 0, 1, 82)


def draw(
    rows: int,
    channels: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    learned: torch.dtype | None = None,
) -> list[Tensor]:
    """Features far from zero, weight, bias (``learned``: their type), residual, gradient."""
    generator = torch.Generator().manual_seed(rows + channels)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    features = normal(rows, channels) * 2 + normal(channels) + 3
    rest = (1 + normal(channels) / 4, normal(channels), normal(rows, channels), normal(rows, channels))
    kinds = (dtype, learned or dtype, learned or dtype, dtype, dtype)
    return [t.to(device, kind) for t, kind in zip((features, *rest), kinds, strict=True)]


def defined(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    running: Running | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """In float64, as the definition reads."""
    x, w, b = features.double(), weight.double(), bias.double()

    def whitened(part: Tensor, axis: int) -> Tensor:
        away = part - part.mean(axis, keepdim=True)
        return away / (away.square().mean(axis, keepdim=True) + 1e-5).sqrt()

    if kind == "layer":
        out = whitened(x, 1)
    elif kind == "instance":
        out = torch.cat([whitened(part, 0) if len(part) else part for part in x.split(SIZES)])
    elif running is not None and not running.update:
        out = (x - running.mean.double()) / (running.var.double() + 1e-5).sqrt()
    else:
        out = whitened(x, 0)
    out = out * w + b
    out = out if residual is None else out + residual.double()
    return out.relu() if relu else out


def gradients(call: Any, tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    inputs = [t.detach().clone().requires_grad_() for t in tensors]
    out = call(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "running"])
def test_point_norm_and_gradients_equal_definition(kind: str, relu: bool) -> None:
    tensors = draw(sum(SIZES), 6, torch.float64)
    own = kind != "running"
    running = (
        None if own else Running(torch.linspace(-1, 4, 6).double(), torch.linspace(0.5, 5, 6).double(), 0.1, False)
    )
    name = kind if own else "batch"
    for residual in ([], [tensors[3]]):

        def call(features: Tensor, weight: Tensor, bias: Tensor, *more: Tensor) -> Tensor:
            rest = {"sizes": SIZES, "running": running, "residual": more[0] if more else None, "relu": relu}
            return point_norm(features, weight, bias, name, **rest)  # type: ignore[arg-type]

        def right(features: Tensor, weight: Tensor, bias: Tensor, *more: Tensor) -> Tensor:
            return defined(features, weight, bias, name, running, more[0] if more else None, relu)

        given = [*tensors[:3], *residual]
        for one, two in zip(gradients(call, given, tensors[4]), gradients(right, given, tensors[4]), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_running_statistics_equal_torch(momentum: float | None) -> None:
    features = draw(90, 5)[0]
    ours, theirs = PointNorm(5, "batch"), nn.BatchNorm1d(5, momentum=momentum)
    ours.norm.momentum = momentum  # type: ignore[union-attr, assignment]
    for part in features.split(30):
        torch.testing.assert_close(ours(part, (30,)), theirs(part))
    torch.testing.assert_close(dict(ours.norm.state_dict()), dict(theirs.state_dict()))  # type: ignore[union-attr]
    assert int(ours.norm.num_batches_tracked) == 3  # type: ignore[union-attr, arg-type]
    torch.testing.assert_close(ours.eval()(features, (90,)), theirs.eval()(features))


def test_point_norm_keeps_dtype_under_autocast() -> None:
    features, weight, bias, residual, _ = draw(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = point_norm(features.bfloat16(), weight, bias, residual=residual.bfloat16())
    assert out.dtype == torch.bfloat16


def test_point_norm_refuses_bad_arguments() -> None:
    x, w, b, r, _ = draw(6, 4)
    for call, message in (
        (lambda: point_norm(x[0], w, b), "features: expected shape"),
        (lambda: point_norm(x, w[:3], b), "weight: expected shape"),
        (lambda: point_norm(x, w, b[:3]), "bias: expected shape"),
        (lambda: point_norm(x, w.to("meta"), b), "weight: expected device cpu"),
        (lambda: point_norm(x, w, b, residual=r.to("meta")), "residual: expected device cpu"),
        (lambda: point_norm(x, w, b, residual=r[:5]), "residual: expected shape"),
        (lambda: point_norm(x, w, b, residual=r.half()), "residual: expected dtype float32"),
        (lambda: point_norm(x, w, b, "group"), "kind: expected"),
        (lambda: point_norm(x.int(), w, b), "features: expected dtype"),
        (lambda: point_norm(x, w, b, "instance", sizes=(2, 3)), "sizes: expected 6 points in all, got 5"),
        (lambda: point_norm(x[:1], w, b, "batch"), "features: expected at least two points"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            call()
    assert point_norm(x[:2], w, b, "batch").isfinite().all()


# ---- the CUDA kernels, emulated

# Of what rounding to the type may cost.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture
def _emulated(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for tensors of the CPU, in memory that is poisoned and watched."""
    emulate(cuda, serve=True)
    monkeypatch.setattr(protocol, "choose_triplet_backend_module", lambda _: reference)
    monkeypatch.setattr(neighbors, "explain_unsupported", lambda _: "not here")


def results(tensors: list[Tensor], extra: tuple[bool, bool], fast: bool) -> list[Tensor]:
    """The result and all gradients."""
    features, weight, bias, residual, grad = (t.detach().clone() for t in tensors)
    inputs = [t.requires_grad_() for t in (features, weight, bias, residual)][: 3 + extra[0]]
    more = residual if extra[0] else None
    if fast:
        out = point_norm(features, weight, bias, residual=more, relu=extra[1])
        assert type(out.grad_fn).__name__ == "_NormBackward"
    else:
        out = normalize(features, weight, bias, "layer", 1e-5, (), None, more, extra[1])
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(
    ("dtype", "channels"),
    [
        *((torch.float32, channels) for channels in (5, 520)),
        *((torch.float16, channels) for channels in (5, 64)),
        *((torch.bfloat16, channels) for channels in (16, 520)),
    ],
    ids=str,
)
def test_point_norm_kernels_match_float64(dtype: torch.dtype, channels: int) -> None:
    allowed = TOLERANCE[dtype]
    for learned, *extra in itertools.product({dtype, torch.float32}, (False, True), (False, True)):
        tensors = draw(sum(SIZES), channels, dtype, learned=learned)
        right = results([t.double() for t in tensors], (extra[0], extra[1]), False)
        for one, two in zip(results(tensors, (extra[0], extra[1]), True), right, strict=True):
            error = (one.double() - two).norm() / two.norm().clamp(min=1e-9)
            assert error <= allowed * (4 if one.ndim == 1 else 1), (float(error), tuple(one.shape))


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_norm_convolve_equals_convolution_then_norm(residual: bool, relu: bool) -> None:
    """One step of the graph gives the bits of two; gradients of gradients come from the plain form."""
    generator = torch.Generator().manual_seed(1)
    geometry = radius_geometry(torch.rand(60, 3, generator=generator), 0.2)
    shapes = ((60, 4), (27, 4, 16), (16,), (16,), (60, 16))
    tensors = [torch.randn(shape, generator=generator) for shape in shapes[: 4 + residual]]
    grad = torch.randn(60, 16, generator=generator)

    def one(features: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, more: Tensor | None = None) -> Tensor:
        return point_conv_layer_norm(features, weight, geometry, scale, shift, residual=more, relu=relu, backend="cpu")

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


@pytest.mark.usefixtures("_emulated")
def test_point_norm_second_derivatives_equal_reference() -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def gradient(create_graph: bool) -> Tensor:
        out = point_norm(features, features.mean(0), features.amax(0))
        return torch.autograd.grad(out.square().sum(), features, create_graph=create_graph)[0].detach()

    torch.testing.assert_close(gradient(True), gradient(False))


@pytest.mark.usefixtures("_emulated")
def test_point_norm_refuses_residual_of_other_dtype() -> None:
    geometry = radius_geometry(torch.rand(20, 3, generator=torch.Generator().manual_seed(1)), 0.2)
    features, weight = torch.ones(20, 4, dtype=torch.float16), torch.ones(27, 4, 16, dtype=torch.float16)
    learned = (torch.ones(16, requires_grad=True), torch.zeros(16))
    with pytest.raises(InputError, match="residual: expected dtype float16"):
        point_conv_layer_norm(features, weight, geometry, *learned, residual=torch.ones(20, 16), backend="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or _launching.explain_unsupported_device(torch.device("cuda")) is not None,
    reason="no GPU that the kernels run on",
)
class TestOnTheGpu:
    """Kernels against float64, at sizes that take many blocks."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(("rows", "channels"), [(36_410, 64), (2_782, 128), (777, 1000), (1_001, 37)])
    def test_point_norm_gradients_match_float64(self, kind: str, dtype: torch.dtype, rows: int, channels: int) -> None:
        tensors = draw(rows, channels, dtype, "cuda")
        sizes = (rows // 2, 0, rows - rows // 2)
        allowed = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
        for residual, relu in itertools.product((False, True), (False, True)):

            def call(features: Tensor, weight: Tensor, bias: Tensor, *more: Tensor, cut: bool = relu) -> Tensor:
                rest = more[0] if more else None
                return point_norm(features, weight, bias, kind, sizes=sizes, residual=rest, relu=cut)

            given = tensors[: 3 + residual]
            exact = [t.double() for t in given]
            # where rounding may decide on which side of 0 a value lies, nothing is asked for
            grad = tensors[4] * (call(*exact, cut=False).abs() > 0.02)
            found, right = gradients(call, given, grad), gradients(call, exact, grad)
            for one, again, two in zip(found, gradients(call, given, grad), right, strict=True):
                assert torch.equal(one, again)
                assert float((one.double() - two).norm() / two.norm()) <= allowed

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    def test_point_norm_running_statistics_match_float64(self, dtype: torch.dtype) -> None:
        norm, exact = PointNorm(48, "batch").to("cuda", dtype), PointNorm(48, "batch").to("cuda", torch.float64)
        features = draw(5_000, 48, dtype, "cuda")[0]
        allowed = {torch.float32: 1e-5, torch.float16: 4e-3}[dtype]
        for training in (True, True, False):
            norm.train(training), exact.train(training)
            with torch.no_grad():
                one, two = norm(features, (5_000,), relu=True), exact(features.double(), (5_000,), relu=True)
            assert float((one.double() - two).norm() / two.norm()) <= allowed
        for name, value in exact.norm.state_dict().items():  # type: ignore[union-attr]
            got = norm.norm.state_dict()[name]  # type: ignore[union-attr]
            torch.testing.assert_close(got.double(), value.double(), rtol=2 * allowed, atol=allowed)

    def test_point_norm_second_derivatives_and_vmap_equal_reference(self) -> None:
        tensors = draw(200, 16, torch.float32, "cuda")
        inputs = [t.requires_grad_() for t in tensors[:4]]
        exact = [t.detach().double().requires_grad_() for t in tensors[:4]]
        found = []
        for given in (inputs, exact):
            out = point_norm(*given[:3], residual=given[3], relu=True)  # type: ignore[misc]
            first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
            found.append(torch.autograd.grad(sum(g.square().sum() for g in first), given))
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-3)
        plain = point_norm(*tensors[:3])  # type: ignore[misc]
        compiled = torch.compile(lambda *given: point_norm(*given), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*tensors[:3]), plain)
        many = torch.func.vmap(lambda more: point_norm(*tensors[:3], residual=more))(tensors[3][None])  # type: ignore[misc]
        torch.testing.assert_close(many[0], plain + tensors[3])
