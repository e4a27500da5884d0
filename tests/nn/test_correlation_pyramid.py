"""CorrelationPyramid: contract, and what a call costs beside its backend."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation.protocol import LOOKUPS, GradientAccumulators, LookupRequest, PreparedPair


def maps(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 8, 6, 9, dtype=dtype), torch.randn(2, 8, 7, 5, dtype=dtype)


def test_correlation_pyramid_reports_levels_shape_and_dtype() -> None:
    look = CorrelationPyramid(*maps(torch.float16))
    assert (look.levels, look.radius, look.out_channels, look.backend) == (4, 4, 324, "cpu")
    out = look(torch.zeros(2, 2, 6, 9))
    assert out.shape == (2, 324, 6, 9)
    assert out.dtype == torch.float32
    half = CorrelationPyramid(*maps(), 2, 3, out_dtype=torch.float16, memory_format=torch.channels_last)
    out = half(torch.zeros(2, 2, 6, 9))
    assert out.dtype == torch.float16
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "levels: expected an integer >= 1 and <= 8, got int 0"),
        ({"levels": 9}, "levels: expected"),
        ({"radius": -1}, "radius: expected an integer >= 1 and <= 8, got int -1"),
        ({"fmap1": torch.zeros(2, 8, 6)}, "fmap1: expected shape"),
        ({"fmap2": torch.zeros(2, 9, 7, 5)}, r"fmap2: expected shape \[2, 8, H2, W2\]"),
        ({"fmap2": torch.zeros(2, 8, 7, 5, dtype=torch.float16)}, "fmap2: expected dtype float32"),
        ({"backend": "cude"}, "backend: expected one of"),
    ],
    ids=str,
)
def test_correlation_pyramid_refuses_bad_arguments(options: dict[str, object], message: str) -> None:
    fmap1, fmap2 = maps()
    with pytest.raises(InputError, match=message):
        CorrelationPyramid(**{"fmap1": fmap1, "fmap2": fmap2, **options})  # type: ignore[arg-type]


@pytest.mark.unit
def test_correlation_pyramid_refuses_wrong_coordinates() -> None:
    look = CorrelationPyramid(*maps())
    for bad in (torch.zeros(2, 2, 9, 6), torch.zeros(1, 2, 6, 9), torch.zeros(2, 2, 6, 9).half(), None):
        with pytest.raises(InputError, match="coords: expected"):
            look(bad)  # type: ignore[arg-type]


class Null(PreparedPair):
    """Does nothing, at once."""

    result = torch.zeros(2, 324, 6, 9)
    sums = GradientAccumulators(torch.zeros(2, 8, 6, 9), [torch.zeros(2, 8, 7 >> k, 5 >> k) for k in range(4)])

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:  # noqa: ARG002
        return self.result.detach()

    def backward(self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool) -> None:  # noqa: ARG002
        return None

    def allocate_accumulators(self, fmap1: bool, levels: bool) -> GradientAccumulators:  # noqa: ARG002
        return self.sums


def null_module() -> types.ModuleType:
    module = types.ModuleType("null")
    module.explain_unsupported = lambda request: None  # type: ignore[attr-defined]  # noqa: ARG005
    module.prepare_pair = lambda request, fmap1, maps: prepare_pair(request)  # type: ignore[attr-defined]  # noqa: ARG005
    return module


def prepare_pair(request: LookupRequest) -> Null:
    return Null(request, ())


def ratio(call: Callable[[], object], unit: Callable[[], object], calls: int) -> float:
    """Time of this thread for ``call`` over that for ``unit``, least each, in turns: both meet the same load."""
    best = [float("inf"), float("inf")]
    for _ in range(15):
        for index, work in enumerate((call, unit)):
            start = time.thread_time()
            for _ in range(calls):
                work()
            best[index] = min(best[index], time.thread_time() - start)
    return best[0] / best[1]


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> None:  # noqa: ARG004
        return None


@pytest.mark.unit
def test_correlation_pyramid_lookup_calls_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pyramid, the pair, and the question whether somebody traces."""
    monkeypatch.setattr(LOOKUPS, "load", lambda name: null_module())  # noqa: ARG005
    look, coords = CorrelationPyramid(*maps(), backend="reference"), torch.zeros(2, 2, 6, 9)
    called: list[str] = []

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("fullfield."):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        look(coords)
    finally:
        sys.setprofile(before)
    assert called == ["__call__", "lookup", "is_traced"]


@pytest.mark.unit
def test_correlation_pyramid_host_overhead_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup costs about as much as PyTorch's smallest operator, one with gradients two of its autograd functions."""
    monkeypatch.setattr(LOOKUPS, "load", lambda name: null_module())  # noqa: ARG005
    fmap1, fmap2 = maps()
    coords = torch.zeros(2, 2, 6, 9)
    look = CorrelationPyramid(fmap1, fmap2, backend="reference")
    assert ratio(lambda: look(coords), lambda: torch.add(coords, coords), 200) <= 4

    look = CorrelationPyramid(fmap1.requires_grad_(), fmap2.requires_grad_(), backend="reference")
    grad = torch.zeros(2, 324, 6, 9)
    leaf = torch.zeros(2, 324, 6, 9, requires_grad=True)

    def training() -> None:
        torch.autograd.backward([look(coords) for _ in range(32)], [grad] * 32)

    def plain() -> None:
        torch.autograd.backward([Nothing.apply(leaf) for _ in range(32)], [grad] * 32)

    assert ratio(training, plain, 5) <= 4
