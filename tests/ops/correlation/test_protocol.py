"""The oracle and the budgets, the choice of backends and their protocol."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield._check import NotEnoughMemoryError
from fullfield.nn import CorrelationPyramid
from fullfield.ops import _backends as backends_of
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid, reference
from fullfield.ops.correlation.prepared import add_level_gradients_to_finest_, pool_pyramid_levels
from fullfield.ops.correlation.protocol import LOOKUPS, GradientAccumulators, LookupRequest
from tests.oracles.correlation import (
    assert_within,
    make_case,
)


def test_assert_within_fails_on_wrong_data() -> None:
    exact = torch.linspace(-1, 1, 20, dtype=torch.float64).view(1, 4, 5)
    assert_within(exact.float(), exact, 1e-6, "same")
    wrong = exact.clone()
    wrong[0, 2, 3] += 2e-3
    with pytest.raises(AssertionError, match=r"thing: off by 0.002, allowed 0.001"):
        assert_within(wrong, exact, 1e-3, "thing")
    for bad in (float("nan"), float("inf")):
        wrong[0, 2, 3] = bad
        with pytest.raises(AssertionError, match="off by inf"):
            assert_within(wrong, exact, 1e3, "thing")
    with pytest.raises(AssertionError, match="shape"):
        assert_within(exact[:, :3], exact, 1.0, "thing")
    with pytest.raises(AssertionError, match="off by"):
        assert_within(exact.flip(1), exact, float("nan"), "thing")


def test_lookup_emulated_accepts_offsets_beyond_31_bits() -> None:
    """The features moved behind 2**31 elements of memory that is reserved but never touched."""
    case = make_case((5, 9), channels=20, levels=2, radius=2)
    look = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cpu")
    expected = look(case.coords)
    prepared = look._lookups._pair.prepared  # type: ignore[union-attr]
    grad = torch.randn(expected.shape)
    sums = prepared.allocate_accumulators(True, True)
    prepared.backward(grad, case.coords, sums, False)

    shift = 2**31 + 64
    source, target = prepared.state
    try:
        far, far_sums = (torch.from_numpy(np.zeros(shift + target.numel(), np.float32)) for _ in range(2))
    except MemoryError:
        pytest.skip("18 GB of address space cannot be reserved")
    far[shift:] = target
    prepared.state = (source, far)
    prepared._levels[:, 0] += shift  # type: ignore[attr-defined]
    assert torch.equal(look(case.coords), expected)
    moved = GradientAccumulators(torch.zeros_like(source), [far_sums])
    prepared.backward(grad, case.coords, moved, False)
    assert torch.equal(moved.fmap1, sums.fmap1)  # type: ignore[arg-type]
    assert torch.equal(far_sums[shift:], sums.levels[0])  # type: ignore[index]


REQUEST = LookupRequest(1, 8, (4, 4), ((4, 4),), 4, torch.float32, torch.device("cuda", 0))


@pytest.mark.parametrize("held", [0, 600])
def test_choose_refuses_volume_beyond_memory(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (500, 1 << 40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held + 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    assert REQUEST.volume_bytes == 1024
    if held:  # what PyTorch keeps of the pair before serves the next one
        assert LOOKUPS.choose("dense", REQUEST) == "dense"
        return
    with pytest.raises(NotEnoughMemoryError, match="'dense' cannot serve"):
        LOOKUPS.choose("dense", REQUEST)
    whole = replace(REQUEST, dtype=torch.int32)
    with pytest.raises(InputError, match="'dense' cannot serve") as caught:
        LOOKUPS.choose("dense", whole)
    assert not isinstance(caught.value, NotEnoughMemoryError)


def stub(why: str | None) -> types.ModuleType:
    module = types.ModuleType("stub")
    module.explain_unsupported = lambda request: why  # type: ignore[attr-defined]  # noqa: ARG005
    return module


def stubs(**reasons: str | None) -> Callable[[str], types.ModuleType]:
    """Backends of these reasons; the others are elsewhere."""
    return lambda name: stub(reasons.get(name, "elsewhere"))


def test_choose_without_missing_package_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOOKUPS, "load", stubs(cuda="needs 16-bit features", dense=None, reference=None))
    monkeypatch.setattr(backends_of, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LOOKUPS.choose(None, REQUEST) == "dense"
        large = replace(REQUEST, size1=(400, 400), sizes2=((400, 400),))
        assert LOOKUPS.choose(None, large) == "reference"


def test_choose_limits_volume_to_eighth_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOOKUPS, "load", stubs(dense=None, reference=None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    properties = types.SimpleNamespace(total_memory=16 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)  # noqa: ARG005

    def chosen(gib: float, device: str = "cuda:0", grad: bool = False) -> str:
        side = round((gib * 2**28) ** 0.25)
        size = (side, side)
        request = replace(REQUEST, size1=size, sizes2=(size,), grad=grad, device=torch.device(device))
        return LOOKUPS.choose(None, request)

    assert [chosen(1.9), chosen(2.1)] == ["dense", "reference"]
    assert [chosen(0.9, grad=True), chosen(1.1, grad=True)] == ["dense", "reference"]
    assert [chosen(0.9, "mps"), chosen(1.1, "mps")] == ["dense", "reference"]


def test_correlation_pyramid_refuses_bad_arguments() -> None:
    with pytest.raises(InputError, match="levels: expected an integer >= 1 and <= 8, got int 0"):
        correlation_pyramid(torch.zeros(1, 2, 3, 4), 0)
    with pytest.raises(InputError, match="fmap2: expected dtype"):
        correlation_pyramid(torch.zeros(1, 2, 3, 4, dtype=torch.int32), 2)


# ---- a backend that pools by itself fits in through the protocol alone


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts the backend in the place of "cuda"; the number of maps that it was given, call by call."""
    counts: list[int] = []

    def prepare_pair(request: LookupRequest, fmap1: Tensor, maps: Sequence[Tensor]) -> reference.ReferencePair:
        counts.append(len(maps))
        levels = pool_pyramid_levels(maps[0], request.levels) if request.pooled else maps
        return reference.prepare_pair(request, fmap1, levels)

    module = types.ModuleType("pooling")
    module.POOLS = True  # type: ignore[attr-defined]
    module.explain_unsupported = lambda request: None  # type: ignore[attr-defined]  # noqa: ARG005
    module.prepare_pair = prepare_pair  # type: ignore[attr-defined]
    module.restore_pair = reference.restore_pair  # type: ignore[attr-defined]
    module.allocate_pair_state = reference.allocate_pair_state  # type: ignore[attr-defined]
    load = LOOKUPS.load
    monkeypatch.setattr(LOOKUPS, "load", lambda name: module if name == "cuda" else load(name))
    return counts


def test_pooling_backend_receives_finest_level(seen: list[int]) -> None:
    case = make_case(levels=4)
    inputs = (case.fmap1.requires_grad_(), case.fmap2.requires_grad_())
    got = CorrelationPyramid(*inputs, case.levels, case.radius, backend="cuda")(case.coords)
    expected = CorrelationPyramid(*inputs, case.levels, case.radius, backend="reference")(case.coords)
    assert torch.equal(got, expected)
    grads, wanted = (torch.autograd.grad(out.square().sum(), inputs) for out in (got, expected))
    for a, b in zip(grads, wanted, strict=True):
        assert torch.equal(a, b)
    levels = [level.detach() for level in case.pyramid()]
    correlation_lookup(case.fmap1, levels, case.coords, case.radius, backend="cuda")
    assert seen == [1, 4]


def test_pooling_backend_works_in_compiled_code(seen: list[int]) -> None:
    case = make_case(levels=4)
    inputs = (case.fmap1.requires_grad_(), case.fmap2.requires_grad_())

    def model(fmap1: Tensor, fmap2: Tensor) -> Tensor:
        return CorrelationPyramid(fmap1, fmap2, case.levels, case.radius)(case.coords)

    got = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs)
    assert seen
    assert set(seen) == {1}
    for a, b in zip(
        torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(model(*inputs).sum(), inputs), strict=True
    ):
        assert_within(a, b, 1e-4, "gradient")


def test_fold_level_gradients_is_adjoint_of_pool_levels() -> None:
    fmap2 = torch.randn(1, 2, 13, 6, dtype=torch.float64, requires_grad=True)
    grads = [torch.randn_like(level) for level in pool_pyramid_levels(fmap2, 5)]
    together = sum((level * grad).sum() for level, grad in zip(pool_pyramid_levels(fmap2, 5), grads, strict=True))
    (expected,) = torch.autograd.grad(together, fmap2)
    assert_within(add_level_gradients_to_finest_([g.clone() for g in grads]), expected, 1e-12, "fold")
