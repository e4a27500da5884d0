"""The operator against loops, against dense convolution, against itself on other backends."""

from __future__ import annotations

import pytest
import torch
from point_cases import draw, looped, ragged, random_geometry, results
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from fullfield import InputError
from fullfield.ops.point_conv import (
    explain_backends,
    point_conv,
    point_pool,
    radius_geometry,
    reference,
    triplet_geometry,
    triplets,
    voxel_geometry,
)
from fullfield.ops.point_conv.protocol import CONVOLUTIONS, check_feature_rows, is_equal_count

BOTH = ("reference", "cpu")
SHAPES = [(3, 5, 1), (64, 64, 1), (17, 98, 1), (1, 1, 1), (32, 32, 32), (12, 18, 6), (8, 48, 2)]


def case(cin: int, cout: int, groups: int, geometry, dtype=torch.float32):
    return draw(geometry, (cin, cout), groups, dtype)


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(("cin", "cout", "groups"), SHAPES)
def test_point_conv_equals_loops(backend: str, cin: int, cout: int, groups: int) -> None:
    geometry = random_geometry(23, 31, 150)
    features, weight, bias, _ = case(cin, cout, groups, geometry)
    expected = looped(features, weight, geometry, bias, groups)
    got = point_conv(features, weight, geometry, bias, groups, backend=backend)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["mirrored", "transposed"])
def test_point_conv_gradients_equal_loops(kind: str, groups: int) -> None:
    if kind == "mirrored":
        geometry = radius_geometry(ragged((5, 4))[0], 0.3, (3, 1, 3), offsets=torch.tensor([0, 5, 9]), radius=0.8)
        assert geometry.mirrored
    else:
        geometry = random_geometry(4, 6, 15, kernel=2)
    tensors = case(2, 4, groups, geometry, torch.float64)
    inputs = [t.requires_grad_() for t in tensors[:3]]
    expected = torch.autograd.grad(looped(inputs[0], inputs[1], geometry, inputs[2], groups), inputs, tensors[3])
    got = results(tensors, geometry, groups, "reference")[1:]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def run(features, weight, bias):
        return point_conv(features, weight, geometry, bias, groups)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize(("cin", "cout", "groups"), SHAPES)
@pytest.mark.parametrize("kind", ["mirrored", "strided", "kernel 5"])
def test_point_conv_cpu_equals_reference(kind: str, cin: int, cout: int, groups: int) -> None:
    points, offsets = ragged((130, 0, 90))
    if kind == "strided":
        geometry = radius_geometry(
            points, 0.1, 3, points[::3], offsets=offsets, center_offsets=torch.tensor([0, 44, 44, 74])
        )
    else:
        geometry = radius_geometry(points, 0.1, 5 if kind == "kernel 5" else 3, offsets=offsets)
    tensors = case(cin, cout, groups, geometry)
    got, expected = (results(tensors, geometry, groups, name) for name in ("cpu", "reference"))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_point_conv_16_bit_accumulates_in_float32(backend: str, dtype: torch.dtype) -> None:
    geometry = radius_geometry(ragged((80,))[0], 0.15)
    tensors = case(16, 24, 1, geometry, dtype)
    got = results(tensors, geometry, 1, backend)
    exact = results([t.float() for t in tensors], geometry, 1, "reference")
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.float(), b.to(dtype).float(), rtol=torch.finfo(dtype).eps * 1.01, atol=1e-5)


def test_point_conv_long_16_bit_sums_are_exact() -> None:
    """4096 ones are 4096, which sums in bfloat16 never reach."""
    geometry = radius_geometry(torch.zeros(4096, 3)[:, :] + torch.rand(4096, 1) * 1e-3, 1.0, centers=torch.zeros(1, 3))
    ones = torch.ones(4096, 1, dtype=torch.bfloat16)
    for backend in BOTH:
        assert point_conv(ones, ones[:27, None], geometry, backend=backend).item() == 4096


@pytest.mark.parametrize("kernel", [3, (3, 1, 5)])
def test_point_conv_voxels_equal_dense_convolution(kernel) -> None:
    sides = (kernel,) * 3 if isinstance(kernel, int) else kernel
    generator = torch.Generator().manual_seed(0)
    cells = torch.randperm(6 * 7 * 8, generator=generator)[:120]
    x, y, z = cells // 56, cells // 8 % 7, cells % 8
    points = (torch.stack([x, y, z], 1) + 0.2 + 0.6 * torch.rand(120, 3, generator=generator)) * 0.05
    geometry = voxel_geometry(points, 0.05, kernel)
    features, weight, bias, _ = case(6, 10, 2, geometry, torch.float64)
    volume = torch.zeros(1, 6, 6, 7, 8, dtype=torch.float64)
    volume[0, :, x, y, z] = features.T
    dense = weight.view(*sides, 3, 10).permute(4, 3, 0, 1, 2)
    padding = tuple(side // 2 for side in sides)
    expected = torch.nn.functional.conv3d(volume, dense, bias, padding=padding, groups=2)[0, :, x, y, z].T
    torch.testing.assert_close(point_conv(features, weight, geometry, bias, 2), expected)
    got = point_conv(features.float(), weight.float(), geometry, bias.float(), 2, backend="cpu")
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-5)


def test_point_conv_with_cells_across_bit_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clouds of more points than a word can number get."""
    points, _ = ragged((150,))
    tensors = None
    sets = []
    for packed in (True, False):
        if not packed:
            for module in (triplets, CONVOLUTIONS.load("cpu")):
                monkeypatch.setattr(module, "can_pack_index_and_cell", lambda columns, cells: False)  # noqa: ARG005
        geometry = radius_geometry(points, 0.08, 7, points[::2])
        assert (geometry.forward.cells.numel() == 0) == packed
        tensors = tensors or case(5, 20, 1, geometry)
        sets.append([results(tensors, geometry, 1, backend) for backend in BOTH])
    for one, two in zip(*sets, strict=True):
        for a, b in zip(one, two, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BOTH)
def test_point_conv_is_independent_of_threads(backend: str) -> None:
    """The kernels give the same bits; PyTorch's products, cut as BLAS likes, what the rounding of their sums allows."""
    geometry = random_geometry(5000, 700, 30000)
    tensors = case(20, 33, 1, geometry)
    single = case(1, 1, 1, geometry)
    before = torch.get_num_threads()
    sets = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sets.append(results(tensors, geometry, 1, backend) + results(single, geometry, 1, backend))
    finally:
        torch.set_num_threads(before)
    if backend == "cpu":
        for other in sets[1:]:
            for a, b in zip(sets[0], other, strict=True):
                assert torch.equal(a, b)
        return
    exact = [
        value for inputs in (tensors, single) for value in results([t.double() for t in inputs], geometry, 1, backend)
    ]
    for found in sets:
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("sizes", [(0, 0), (4, 0), (0, 5), (4, 5)])
def test_point_conv_without_triplets_is_zero(backend: str, sizes: tuple[int, int]) -> None:
    geometry = random_geometry(*sizes, 0)
    tensors = case(3, 4, 1, geometry)
    out, one, two, three = results(tensors, geometry, 1, backend)
    assert torch.equal(out, tensors[2].expand(sizes[0], 4))
    assert not one.any()
    assert one.shape == tensors[0].shape
    assert not two.any()
    torch.testing.assert_close(three, tensors[3].sum(0))
    assert not point_conv(tensors[0], tensors[1], geometry, backend=backend).any()


def test_point_conv_in_chunks_equals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = random_geometry(40, 30, 500)
    tensors = case(4, 6, 1, geometry, torch.float64)
    whole = results(tensors, geometry, 1, "reference")
    monkeypatch.setattr(reference, "CHUNK_BYTES", 2000)
    for a, b in zip(results(tensors, geometry, 1, "reference"), whole, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", BOTH)
def test_point_conv_is_independent_of_strides(backend: str) -> None:
    geometry = random_geometry(9, 12, 50)
    features, weight, bias, grad = case(6, 8, 1, geometry)
    turned = (
        features.T.contiguous().T,
        weight.transpose(1, 2).contiguous().transpose(1, 2),
        bias,
        grad.T.contiguous().T,
    )
    for a, b in zip(*(results(t, geometry, 1, backend) for t in ((features, weight, bias, grad), turned)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BOTH)
def test_point_conv_operators_pass_opcheck(backend: str) -> None:
    geometry = random_geometry(9, 12, 50)
    features, weight, bias, grad = (t.requires_grad_() for t in case(4, 6, 2, geometry))
    ways = geometry.list_triplet_tensors_by_direction()
    ops = torch.ops.fullfield
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    tests += ("test_aot_dispatch_dynamic",) if backend == "reference" else ()
    torch.library.opcheck(ops.point_conv.default, (features, weight, bias, *ways, False, 2, backend), test_utils=tests)
    torch.library.opcheck(
        ops.point_conv_weight.default, (features, grad, *ways, False, 27, 2, backend), test_utils=tests
    )
    inputs = features, weight, bias
    together = torch.autograd.grad(ops.point_conv(*inputs, *ways, False, 2, backend), inputs, grad)
    for number, expected in enumerate(together):
        alone = [t.detach().requires_grad_(at == number) for at, t in enumerate(inputs)]
        found = torch.autograd.grad(ops.point_conv(*alone, *ways, False, 2, backend), alone[number], grad)
        torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("kind", ["mirrored", "transposed"])
def test_point_conv_eager_equals_registered_operator(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Past the dispatcher where nobody listens, through it under modes and for second gradients."""
    mirrored = kind == "mirrored"
    geometry = radius_geometry(ragged((12,))[0], 0.3) if mirrored else random_geometry(9, 12, 50)
    *given, grad = case(4, 6, 2, geometry, torch.float64)
    inputs = [t.requires_grad_() for t in given]
    registered = torch.ops.fullfield.point_conv
    rest = (*geometry.list_triplet_tensors_by_direction(), geometry.mirrored, 2, "reference")
    ways = (lambda f, w, b: point_conv(f, w, geometry, b, 2, backend="reference"), lambda *t: registered(*t, *rest))
    found = []
    for run in ways:
        out = run(*inputs)
        once = torch.autograd.grad(out, inputs, grad, create_graph=True)
        again = torch.autograd.grad(sum(g.square().sum() for g in once), inputs[:2])
        found.append((out, *once, *again))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    some = torch.autograd.grad(ways[0](inputs[0], inputs[1].detach(), None), inputs[0], grad)
    assert torch.equal(some[0], found[0][1])

    def on_fakes() -> torch.Size:
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return ways[0](*(mode.from_tensor(t) for t in inputs)).shape

    assert on_fakes() == found[0][0].shape

    def refused(*_: object) -> None:
        raise AssertionError("through the dispatcher")

    monkeypatch.setattr(torch.ops.fullfield, "point_conv", refused)
    monkeypatch.setattr(torch.ops.fullfield, "point_conv_weight", refused)
    torch.autograd.grad(ways[0](*inputs), inputs, grad)
    with torch.no_grad():
        ways[0](*inputs)
    with pytest.raises(AssertionError, match="dispatcher"):
        on_fakes()


@pytest.mark.parametrize("dynamic", [False, True])
def test_point_conv_compiles_without_graph_break(dynamic: bool) -> None:
    geometry = radius_geometry(ragged((60,))[0], 0.2)
    tensors = case(4, 6, 1, geometry)
    run = torch.compile(point_conv, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    inputs = [t.requires_grad_() for t in tensors[:3]]
    got, expected = (f(inputs[0], inputs[1], geometry, inputs[2]) for f in (run, point_conv))
    assert torch.equal(got, expected)
    for a, b in zip(*(torch.autograd.grad(o, inputs, tensors[3]) for o in (got, expected)), strict=True):
        assert torch.equal(a, b)


def test_point_conv_keeps_point_count_symbolic() -> None:
    """Inductor loses a size that a traced equation has turned into a sum with another number."""
    env = ShapeEnv()
    rows, points = (
        env.create_symintnode(env.create_symbol(n, ConstantSource(f"n{n}"), DimDynamic.DYNAMIC), hint=n) for n in (8, 7)
    )
    with FakeTensorMode(shape_env=env):
        features = torch.empty(rows - 1, 4)
        check_feature_rows(features, points, features.device)
        assert is_equal_count(rows - 1, points)
        assert not env.replacements
        with pytest.raises(InputError, match=r"^features: expected shape"):
            check_feature_rows(features, points + 1, features.device)


def test_point_conv_ignores_autocast() -> None:
    geometry = random_geometry(9, 12, 50)
    features, weight, bias, _ = case(4, 6, 1, geometry)
    with torch.autocast("cpu", torch.bfloat16):
        got = point_conv(features, weight, geometry, bias)
    assert torch.equal(got, point_conv(features.bfloat16(), weight.bfloat16(), geometry, bias.bfloat16()))


def test_point_conv_backends_are_chosen_by_dtype() -> None:
    assert [name for name, why in explain_backends() if why is None] == ["cpu", "reference"]
    assert (
        dict(explain_backends(dtype=torch.float64))["cpu"]
        == "needs float32, float16 or bfloat16 features, got torch.float64"
    )
    geometry = random_geometry(9, 12, 50)
    features, weight, bias, _ = case(4, 6, 1, geometry)
    assert torch.equal(point_conv(features, weight, geometry), point_conv(features, weight, geometry, backend="cpu"))
    with pytest.raises(InputError, match=r"cpu: needs float32.*reference: can"):
        point_conv(features.double(), weight.double(), geometry, bias.double(), backend="cpu")
    with pytest.raises(InputError, match=r"^backend: expected one of"):
        point_conv(features, weight, geometry, backend="metal")


def test_point_conv_accepts_backend_of_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = random_geometry(9, 12, 50)
    tensors = case(4, 6, 1, geometry)
    load = CONVOLUTIONS.load
    monkeypatch.setattr(CONVOLUTIONS, "load", lambda name: reference if name == "cuda" else load(name))
    for a, b in zip(*(results(tensors, geometry, 1, name) for name in ("cuda", "reference")), strict=True):
        assert torch.equal(a, b)


def test_point_conv_refuses_bad_arguments() -> None:
    geometry = random_geometry(9, 12, 50)
    features, weight, bias, _ = case(4, 6, 1, geometry)
    for call, word in (
        (lambda: point_conv(features[1:], weight, geometry), "features"),
        (lambda: point_conv(features.int(), weight, geometry), "features"),
        (lambda: point_conv(features, weight[1:], geometry), "weight"),
        (lambda: point_conv(features, weight.double(), geometry), "weight"),
        (lambda: point_conv(features, weight, geometry, bias[1:]), "bias"),
        (lambda: point_conv(features, weight, geometry, groups=3), "groups"),
        (lambda: point_conv(features, weight[:, :1], geometry, groups=4), "groups"),
        (lambda: point_conv(features, weight, None), "geometry"),
    ):
        with pytest.raises(InputError, match=f"^{word}: "):
            call()


def test_point_conv_refuses_gradients_without_backward_geometry() -> None:
    points, _ = ragged((30,))
    geometry = radius_geometry(points, 0.2, 3, points[:7], gradient=False)
    features, weight, _, _ = case(4, 6, 1, geometry)
    with pytest.raises(InputError, match=r"^geometry: expected one prepared with gradient=True"):
        point_conv(features.requires_grad_(), weight, geometry)
    out = point_conv(features.detach(), weight.requires_grad_(), geometry)  # the weights' needs no other direction
    assert torch.autograd.grad(out.sum(), weight)[0].any()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["mirrored", "transposed"])
def test_point_conv_gradients_through_torch_func_equal_autograd(kind: str, groups: int) -> None:
    """First and second ones, and of a call inside an ordinary graph."""
    points = ragged((30,))[0]
    geometry = radius_geometry(points, 0.2, centers=None if kind == "mirrored" else points[::3].contiguous())
    features, weight, bias, _ = case(4, 6, groups, geometry, torch.float64)

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        return point_conv(inputs[0], inputs[1], geometry, inputs[2], groups).sin().sum()

    def lengths(gradients: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return sum((g.square().sum() for g in gradients), torch.zeros(()))

    inputs = [t.clone().requires_grad_() for t in (features, weight, bias)]
    expected = torch.autograd.grad(loss(*inputs), inputs, create_graph=True)
    torch.testing.assert_close(torch.func.grad(loss, (0, 1, 2))(features, weight, bias), expected)
    again = torch.func.grad(lambda *given: lengths(torch.func.grad(loss, (0, 1, 2))(*given)), (0, 1, 2))
    torch.testing.assert_close(again(features, weight, bias), torch.autograd.grad(lengths(expected), inputs))
    _, pull = torch.func.vjp(loss, features, weight, bias)
    torch.testing.assert_close(pull(torch.ones((), dtype=torch.float64)), expected)
    torch.testing.assert_close(torch.func.jacrev(loss, (0, 1, 2), chunk_size=1)(features, weight, bias), expected)
    with pytest.raises(RuntimeError, match="vmap over point_conv"):
        torch.vmap(loss, (0, None, None))(features[None], weight, bias)


@pytest.mark.parametrize("mode", ["max", "mean"])
def test_point_pool_gradients_through_torch_func_equal_autograd(mode: str) -> None:
    points = ragged((30,))[0]
    geometry = radius_geometry(points, 0.2, centers=points[::3].contiguous())
    features = case(4, 4, 1, geometry, torch.float64)[0]

    def loss(given: torch.Tensor) -> torch.Tensor:
        return point_pool(given, geometry, mode).pow(3).sum()

    leaf = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    torch.testing.assert_close(torch.func.grad(loss)(features), expected)
    again = torch.func.grad(lambda given: torch.func.grad(loss)(given).square().sum())(features)
    torch.testing.assert_close(again, torch.autograd.grad(expected.square().sum(), leaf)[0])
    third = torch.func.grad(lambda given: torch.func.grad(lambda g: torch.func.grad(loss)(g).sum())(given).sum())
    assert third(features).any()


@pytest.mark.parametrize("call", ["convolution", "max", "mean"])
@pytest.mark.parametrize("way", ["jvp", "dual", "dual with a graph"])
def test_point_operators_refuse_forward_mode(call: str, way: str) -> None:
    geometry = radius_geometry(ragged((30,))[0], 0.2)
    features, weight, _, _ = case(4, 6, 1, geometry)

    def run(given: torch.Tensor) -> torch.Tensor:
        return point_conv(given, weight, geometry) if call == "convolution" else point_pool(given, geometry, call)

    def push() -> None:
        if way == "jvp":
            torch.func.jvp(run, (features,), (features,))
            return
        with forward_ad.dual_level():
            run(forward_ad.make_dual(features.clone().requires_grad_(way != "dual"), features))

    with pytest.raises(NotImplementedError, match=r"^features: has a forward-mode tangent"):
        push()
    with forward_ad.dual_level():  # what has none goes through
        assert torch.equal(run(features), run(features))


def test_point_conv_refuses_meta_tensors() -> None:
    points = torch.rand(9, 3)
    geometry = radius_geometry(points, 0.3)
    features, weight = torch.rand(9, 2), torch.rand(27, 2, 4)
    with pytest.raises(
        InputError, match=r"^points: expected a tensor that holds values, got float32 tensor \[9, 3\] on meta$"
    ):
        radius_geometry(points.to("meta"), 0.3)
    with pytest.raises(InputError, match=r"^i: expected a tensor that holds values"):
        triplet_geometry(*torch.zeros(3, 4, dtype=torch.int64, device="meta"), (2, 2))
    with pytest.raises(InputError, match=r"^features: expected device cpu, got float32 tensor \[9, 2\] on meta$"):
        point_conv(features.to("meta"), weight, geometry)
    with pytest.raises(InputError, match=r"^weight: expected device cpu, got float32 tensor"):
        point_conv(features, weight.to("meta"), geometry)
