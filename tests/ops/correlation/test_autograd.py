"""How lookups of one pair share accumulators, and how they live in graphs, modes and compilers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lookup_cases import ON_CPU, Backend, without_gpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.ops.correlation.prepared import PairWithAccumulators
from fullfield.ops.correlation.protocol import GradientAccumulators
from tests.oracles.correlation import assert_within, make_case

LEVELS, RADIUS = 3, 2
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, without_gpu])


def leaves(seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    case = make_case((6, 9), (7, 8), channels=17, seed=seed)
    return (
        case.fmap1.to(device, dtype).requires_grad_(),
        case.fmap2.to(device, dtype).requires_grad_(),
        case.coords.clone().to(device).requires_grad_(),
    )


def weight(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like.device)


def stateless(fmap1: Tensor, fmap2: Tensor, coords: Tensor, backend: str) -> Tensor:
    """One lookup with gradients of its own, by another way: every one prepares its pair again."""
    return correlation_lookup(fmap1, correlation_pyramid(fmap2, LEVELS), coords, RADIUS, backend=backend)


def close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert_within(a, b, 1e-5 * max(1.0, float(b.abs().max())), f"gradient {index}")


def losses(look: Callable[[Tensor], Tensor], coords: Tensor, count: int) -> list[Tensor]:
    outs = [look(coords + 0.37 * index) for index in range(count)]
    return [(out * weight(out, index)).sum() for index, out in enumerate(outs)]


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
def test_lookup_gradients_of_many_lookups_add_up(backend: Backend) -> None:
    fmap1, fmap2, coords = leaves(device=backend.device)
    expected = torch.autograd.grad(
        sum(losses(lambda xy: stateless(fmap1, fmap2, xy, backend.name), coords, 4)), (fmap1, fmap2, coords)
    )
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend=backend.name)
    close(torch.autograd.grad(sum(losses(prepared, coords, 4)), (fmap1, fmap2, coords)), expected)


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
def test_lookup_retained_graph_gradients_equal_separate_losses(backend: Backend) -> None:
    fmap1, fmap2, coords = leaves(device=backend.device)
    inputs = (fmap1, fmap2, coords)
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend=backend.name)
    first, second = losses(prepared, coords, 2)
    both = torch.autograd.grad(first + second, inputs, retain_graph=True)
    again = torch.autograd.grad(first + second, inputs, retain_graph=True)
    close(again, both)
    one = torch.autograd.grad(first, inputs, retain_graph=True)
    two = torch.autograd.grad(second, inputs)
    close(tuple(a + b for a, b in zip(one, two, strict=True)), both)


def test_lookup_partial_backward_leaves_no_gradient() -> None:
    fmap1, fmap2, coords = leaves()
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    pair = prepared._lookups._pair
    assert pair is not None
    (loss,) = losses(prepared, coords, 1)
    expected = torch.autograd.grad(loss, (fmap1, fmap2), retain_graph=True)
    torch.autograd.grad(loss, coords, retain_graph=True)
    assert not pair._open
    close(torch.autograd.grad(loss, (fmap1, fmap2)), expected)
    assert not pair._open


def test_lookup_failed_backward_keeps_next_gradient() -> None:
    fmap1, fmap2, coords = leaves()
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    (loss,) = losses(prepared, coords, 1)
    expected = torch.autograd.grad(loss, (fmap1, fmap2), retain_graph=True)
    middle = coords * 1.0

    def fail(_: Tensor) -> None:
        raise RuntimeError("on purpose")

    middle.register_hook(fail)
    (bad,) = losses(prepared, middle, 1)
    with pytest.raises(RuntimeError, match="on purpose"):
        torch.autograd.grad(bad, (fmap1, coords))
    close(torch.autograd.grad(loss, (fmap1, fmap2)), expected)


def test_lookup_gradient_ignores_unused_lookups() -> None:
    fmap1, fmap2, coords = leaves()
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    prepared(coords + 3)
    first, _, third = losses(prepared, coords, 3)
    expected = losses(lambda xy: stateless(fmap1, fmap2, xy, "cpu"), coords, 3)
    close(
        torch.autograd.grad(first + third, (fmap1, fmap2)),
        torch.autograd.grad(expected[0] + expected[2], (fmap1, fmap2)),
    )


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_lookup_gradient_of_one_map_equals_both(backend: Backend, wanted: tuple[bool, bool]) -> None:
    fmap1, fmap2, coords = leaves(device=backend.device)

    def loss(look: Callable[[Tensor], Tensor]) -> Tensor:
        near, far = (losses(look, at.detach(), 1)[0] for at in (coords, coords + 40))
        return near + far

    expected = torch.autograd.grad(loss(lambda xy: stateless(fmap1, fmap2, xy, backend.name)), (fmap1, fmap2))
    maps = [m.detach().requires_grad_(w) for m, w in zip((fmap1, fmap2), wanted, strict=True)]
    prepared = CorrelationPyramid(*maps, LEVELS, RADIUS, backend=backend.name)
    trainable_maps = [m for m in maps if m.requires_grad]
    got = torch.autograd.grad(loss(prepared), trainable_maps)
    close(got, tuple(g for g, w in zip(expected, wanted, strict=True) if w))


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
def test_lookup_gradient_of_coordinates_alone_equals_reference(backend: Backend) -> None:
    fmap1, fmap2, coords = leaves(device=backend.device)
    expected = torch.autograd.grad(losses(lambda xy: stateless(fmap1, fmap2, xy, backend.name), coords, 1)[0], coords)
    prepared = CorrelationPyramid(fmap1.detach(), fmap2.detach(), LEVELS, RADIUS, backend=backend.name)
    close(torch.autograd.grad(losses(prepared, coords, 1)[0], coords), expected)


def test_lookup_builds_no_graph_without_gradients() -> None:
    fmap1, fmap2, coords = leaves()
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    assert prepared(coords.detach()).requires_grad
    with torch.no_grad():
        assert not prepared(coords).requires_grad
        frozen = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    assert not frozen(coords.detach()).requires_grad
    assert frozen(coords).requires_grad  # in coords alone
    with torch.inference_mode():
        assert not CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)(coords).requires_grad


class Watched(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [nullcontext, Watched])
@pytest.mark.parametrize("power", [1, 2])
def test_lookup_refuses_second_derivatives(mode: type[Any], power: int) -> None:
    """Also with ``allow_unused``, which returns None for an input that no path leads to."""
    inputs = leaves()
    other = torch.ones(1, requires_grad=True)
    with mode():
        loss = sum(losses(CorrelationPyramid(*inputs[:2], LEVELS, RADIUS), inputs[2] * other, 2)) ** power
        for grad in torch.autograd.grad(loss, inputs, create_graph=True):
            for wanted in (*inputs, other):
                with pytest.raises(RuntimeError, match="differentiable only once"):
                    torch.autograd.grad(grad.sum(), wanted, retain_graph=True, allow_unused=True)
            with pytest.raises(RuntimeError, match="differentiable only once"):
                grad.sum().backward(retain_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lookup_graph_keeps_no_features(dtype: torch.dtype) -> None:
    fmap1, fmap2, coords = leaves(dtype=dtype)
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend="reference")
    kept: list[Tensor] = []
    with Watched(), torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda x: x):
        looked_up = [prepared(coords.detach()) for _ in range(4)]
    assert all(one.requires_grad for one in looked_up)
    state = {part.data_ptr() for part in prepared._lookups._state}
    sizes = {fmap1.numel(), fmap2.numel()}
    assert kept
    assert not [one for one in kept if one.numel() in sizes and one.data_ptr() not in state]


def test_lookup_refuses_second_derivatives_after_other_backward() -> None:
    fmap1, fmap2, coords = leaves()
    first, second = losses(CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS), coords, 2)
    first.backward()
    (grad,) = torch.autograd.grad(second, fmap1, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable only once"):
        torch.autograd.grad(grad.sum(), fmap2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_lookup_gradients_with_checkpointing_equal_plain(reentrant: bool) -> None:
    fmap1, fmap2, coords = leaves()

    def update(look: CorrelationPyramid, xy: Tensor) -> Tensor:
        return xy + 0.1 * look(xy)[:, :2].tanh()

    def loss(wrapped: bool) -> Tensor:
        look = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
        xy = coords
        for _ in range(3):
            xy = checkpoint(update, look, xy, use_reentrant=reentrant) if wrapped else update(look, xy)
        return xy.square().sum()  # type: ignore[no-any-return]

    def grads(wrapped: bool) -> tuple[Tensor, ...]:
        for leaf in (fmap1, fmap2, coords):
            leaf.grad = None
        loss(wrapped).backward()
        return tuple(leaf.grad for leaf in (fmap1, fmap2, coords))  # type: ignore[misc]

    close(grads(True), grads(False))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_lookup_16_bit_gradients_accumulate_in_float32(dtype: torch.dtype) -> None:
    fmap1, fmap2, coords = leaves(dtype=dtype)
    exact = [m.detach().double().requires_grad_() for m in (fmap1, fmap2)]
    look = CorrelationPyramid(fmap1, fmap2, 1, RADIUS)
    true = CorrelationPyramid(*exact, 1, RADIUS)
    got = torch.autograd.grad(sum(losses(look, coords.detach(), 24)), (fmap1, fmap2))
    expected = torch.autograd.grad(sum(losses(true, coords.detach(), 24)), exact)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype
        # One rounding at the end, not 24.
        assert bool(((a.double() - b).abs() <= 0.51 * torch.finfo(dtype).eps * b.abs() + 1e-5).all())


def test_lookup_refuses_function_transforms() -> None:
    fmap1, fmap2, coords = (t.detach() for t in leaves())
    pair = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda xy: pair(xy).sum())(coords)


def test_get_accumulators_waits_for_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default stream too, whose handle is 0."""

    class Stream:
        def wait_stream(self, other: str) -> None:
            waited.append(other)

    class Features:
        request = SimpleNamespace(device=torch.device("cuda", 0))

        def allocate_accumulators(self, *_: bool) -> GradientAccumulators:
            return GradientAccumulators(None, None)

    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: "the default stream")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, _: f"stream {handle}")
    pair = PairWithAccumulators(Features(), (True, True))  # type: ignore[arg-type]
    streams = iter((0, 0, 5, 0))
    monkeypatch.setattr(pair, "_get_current_stream_handle", lambda: next(streams))
    for _ in range(4):
        pair.get_or_allocate_accumulators()
    assert waited == ["the default stream", "stream 5"]


def test_prepared_pair_is_freed_with_last_user() -> None:
    gc.disable()
    try:
        fmap1, fmap2, coords = leaves()
        prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
        watch = weakref.ref(prepared._lookups._pair)  # type: ignore[arg-type]
        out = prepared(coords)
        del prepared
        assert watch() is not None  # the graph needs it
        out.sum().backward()
        del out
        assert watch() is None
    finally:
        gc.enable()


def test_lookup_backward_from_threads_equals_serial() -> None:
    fmap1, fmap2, coords = leaves()
    prepared = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    parts = losses(prepared, coords, 4)
    expected = [torch.autograd.grad(part, (fmap1, fmap2), retain_graph=True) for part in parts]
    got: list[tuple[Tensor, ...] | None] = [None] * 4

    def work(index: int) -> None:
        got[index] = torch.autograd.grad(parts[index], (fmap1, fmap2), retain_graph=True)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(got, expected, strict=True):
        assert a is not None
        close(a, b)


# ---- traced code


def model(fmap1: Tensor, fmap2: Tensor, coords: Tensor, backend: str | None) -> Tensor:
    look = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend=backend)
    return look(coords) + 2 * look(coords + 0.4)


@pytest.mark.parametrize(
    ("backend", "dtype"), [(None, torch.float32), ("dense", torch.float32), (None, torch.bfloat16)], ids=str
)
def test_correlation_lookup_compiles_without_graph_breaks(backend: str | None, dtype: torch.dtype) -> None:
    inputs = leaves(dtype=dtype)
    expected = model(*inputs, backend)
    w = weight(expected, 3)
    grads = torch.autograd.grad((expected * w).sum(), inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = compiled(*inputs, backend)
    assert_within(got, expected, 1e-5, "compiled")
    compiled_grads = torch.autograd.grad((got * w).sum(), inputs)
    if dtype == torch.float32:
        close(compiled_grads, grads)
    for a, b in zip(compiled_grads, grads, strict=True):  # those of 16 bits are summed in float32
        assert a.dtype == b.dtype
        assert_within(a, b, 4 * torch.finfo(a.dtype).eps * float(b.abs().max()), "compiled")


def test_correlation_lookup_compiles_with_symbolic_sizes() -> None:
    def plain(fmap1: Tensor, fmap2: Tensor, coords: Tensor) -> Tensor:
        return correlation_lookup(fmap1, correlation_pyramid(fmap2, LEVELS), coords, RADIUS)

    compiled = torch.compile(plain, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in ((6, 9), (8, 12)):
        case = make_case(size, (9, 14), channels=17)
        maps = (case.fmap1.requires_grad_(), case.fmap2.requires_grad_())
        got, expected = compiled(*maps, case.coords), plain(*maps, case.coords)
        assert_within(got, expected, 1e-5, "compiled")
        close(torch.autograd.grad(got.sum(), maps), torch.autograd.grad(expected.sum(), maps))


def test_prepared_pair_works_in_compiled_updates() -> None:
    fmap1, fmap2, coords = leaves()
    look = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def update(xy: Tensor) -> Tensor:
        return 2 * look(xy)

    expected = torch.autograd.grad((2 * look(coords)).sum(), (fmap1, fmap2, coords))
    close(torch.autograd.grad(update(coords).sum(), (fmap1, fmap2, coords)), expected)
    with torch.no_grad():
        assert torch.equal(update(coords), 2 * look(coords))


def test_correlation_lookup_exports() -> None:
    class Model(torch.nn.Module):
        def forward(self, fmap1: Tensor, fmap2: Tensor, coords: Tensor) -> Tensor:
            return model(fmap1, fmap2, coords, None)

    inputs = tuple(t.detach() for t in leaves())
    program = torch.export.export(Model(), inputs)
    assert torch.equal(program.module()(*inputs), model(*inputs, None))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck of PyTorch 2.15
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("grad", [True, False])
def test_correlation_operators_pass_opcheck(backend: str, grad: bool) -> None:
    fmap1, fmap2, coords = (t if grad else t.detach() for t in leaves())
    ops = torch.ops.fullfield
    # The operators are the same for all of them: one is traced, too.
    more = ("test_aot_dispatch_dynamic",) if backend == "cpu" else ()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", *more)
    given = (fmap1.detach(), [fmap2.detach()], LEVELS, RADIUS, backend, "highest", grad)
    state = ops.correlation_prepare(*given)
    torch.library.opcheck(ops.correlation_prepare, given, test_utils=checks)
    shape = [2, 17, 6, 9, 7, 8, 3, 4, 1, 2]
    options = (torch.float32, torch.float16, True)
    link = fmap1.flatten()[:0]
    given = (fmap1, [fmap2], link, coords, state, shape, True, RADIUS, backend, "highest", grad, *options)
    torch.library.opcheck(ops.correlation_lookup, given, test_utils=checks)
    if grad:
        out = torch.randn(2, LEVELS * 25, 6, 9)
        for wanted in ([True, True, True], [False, True, False]):
            torch.library.opcheck(
                ops.correlation_lookup_backward,
                (out, coords.detach(), state, shape, True, RADIUS, backend, "highest", torch.float32, wanted),
                test_utils=checks,
            )
