"""A backend that pools by itself, as a GPU kernel may, fits in through the protocol alone."""

from __future__ import annotations

import types
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup, reference
from fullfield.ops.correlation.prepared import fold, pool
from fullfield.ops.correlation.protocol import LOOKUPS, Request
from fullfield.testing.correlation import assert_within, make_case


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts the backend in the place of "cuda"; the number of maps that it was given, call by call."""
    counts: list[int] = []

    def prepare(request: Request, fmap1: Tensor, maps: Sequence[Tensor]) -> reference.Reference:
        counts.append(len(maps))
        levels = pool(maps[0], request.levels) if request.pooled else maps
        return reference.prepare(request, fmap1, levels)

    module = types.ModuleType("pooling")
    module.POOLS = True  # type: ignore[attr-defined]
    module.supports = lambda request: None  # type: ignore[attr-defined]  # noqa: ARG005
    module.prepare = prepare  # type: ignore[attr-defined]
    module.restore = reference.restore  # type: ignore[attr-defined]
    module.empty_state = reference.empty_state  # type: ignore[attr-defined]
    load = LOOKUPS.load
    monkeypatch.setattr(LOOKUPS, "load", lambda name: module if name == "cuda" else load(name))
    return counts


def test_a_backend_that_pools(seen: list[int]) -> None:
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


def test_a_backend_that_pools_in_compiled_code(seen: list[int]) -> None:
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


def test_fold_is_the_adjoint_of_pool() -> None:
    fmap2 = torch.randn(1, 2, 13, 6, dtype=torch.float64, requires_grad=True)
    grads = [torch.randn_like(level) for level in pool(fmap2, 5)]
    together = sum((level * grad).sum() for level, grad in zip(pool(fmap2, 5), grads, strict=True))
    (expected,) = torch.autograd.grad(together, fmap2)
    assert_within(fold([g.clone() for g in grads]), expected, 1e-12, "fold")
