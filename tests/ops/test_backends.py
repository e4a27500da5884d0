"""One way of choosing a backend, whatever the operator."""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch

from fullfield import InputError
from fullfield._check import NotEnoughMemoryError, SetupError
from fullfield._kernels import Missing, numba_cache
from fullfield.nn import CorrelationPyramid
from fullfield.ops import _backends, correlation, neighbors, point_conv, tvl1
from fullfield.ops._backends import Backends, InsufficientMemory
from fullfield.ops.neighbors import radius_search

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends, "_warned", set())


def made(monkeypatch: pytest.MonkeyPatch, **reasons: str | None) -> Backends:
    for name, reason in reasons.items():
        module = types.ModuleType(name)
        module.explain_unsupported = lambda *request, reason=reason: reason if request == (1, 2) else "not this"  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"somewhere_{name}", module)
    return Backends("smoothing", "somewhere_", tuple(reasons))


def test_choose_returns_best_backend_or_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    three = made(monkeypatch, cuda="no GPU", cpu=None, reference=None)
    assert three.list_refusals(1, 2) == [("cuda", "no GPU"), ("cpu", None), ("reference", None)]
    assert (three.choose(None, 1, 2), three.choose("reference", 1, 2)) == ("cpu", "reference")
    with pytest.raises(InputError, match=r"^backend: expected one of cuda, cpu, reference, got 'gpu'$"):
        three.choose("gpu", 1, 2)
    message = r"cannot serve this request \(cuda: no GPU; cpu: can; reference: can\)$"
    with pytest.raises(InputError, match=f"^backend: 'cuda' {message}"):
        three.choose("cuda", 1, 2)
    with pytest.raises(InputError, match=r"^backend: none can serve this request \(cuda: not this; cpu: not this; "):
        three.choose(None, 3)


def test_choose_raises_own_error_for_insufficient_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    two = made(monkeypatch, cuda=InsufficientMemory("large"), cpu="small")
    with pytest.raises(NotEnoughMemoryError):
        two.choose("cuda", 1, 2)
    with pytest.raises(InputError) as caught:
        two.choose("cpu", 1, 2)
    assert not isinstance(caught.value, NotEnoughMemoryError)


def test_choose_distinguishes_faults_of_machine_and_request(monkeypatch: pytest.MonkeyPatch) -> None:
    two = made(monkeypatch, cuda=Missing("no compiler"), cpu="small")
    with pytest.raises(SetupError):
        two.choose("cuda", 1, 2)
    with pytest.raises(SetupError), pytest.warns(UserWarning, match="a slower backend runs instead"):
        two.choose(None, 1, 2)
    with pytest.raises(InputError) as caught:
        two.choose("cpu", 1, 2)
    assert not isinstance(caught.value, SetupError)


def test_choose_warns_once_of_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    three = made(monkeypatch, cuda="no GPU", cpu=Missing("no compiler"), reference=None)
    words = r"^smoothing: the cpu kernel is not used \(no compiler\); a slower backend runs instead$"
    with pytest.warns(UserWarning, match=words) as seen:
        assert three.choose(None, 1, 2) == "reference"
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert three.choose(None, 1, 2) == "reference"
        assert made(monkeypatch, cuda="no GPU", cpu=None).choose(None, 1, 2) == "cpu"


POINTS, MAPS = torch.rand(9, 3), torch.ones(1, 8, 4, 5)
MISSING = {
    # the module that has the reason, and a call
    "neighbour search": ("ops.neighbors.cpu", lambda name: radius_search(POINTS, 0.5, backend=name)),
    "correlation": ("ops.correlation.cpu", lambda name: CorrelationPyramid(MAPS, MAPS, backend=name)),
    "TV-L1": ("_kernels.numba_cache", lambda name: tvl1.TVL1Solver(40, 56, backend=name)),
    "the refinement": ("_kernels.numba_cache", lambda name: tvl1.FlowRefiner(20, 30, backend=name)),
}


@pytest.mark.parametrize("operator", MISSING)
def test_operators_warn_once_of_missing_numba(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = MISSING[operator]
    monkeypatch.setattr(f"fullfield.{module}.explain_missing_numba", lambda: Missing("numba is not installed"))
    words = rf"{operator}.*: the cpu kernel is not used \(numba is not installed\)"
    with pytest.warns(UserWarning, match=words) as seen:
        made = call(None)
    assert seen[0].filename == __file__
    assert getattr(made, "backend", "reference") == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(None)
        call("reference")
    with pytest.raises(InputError, match=r"backend: 'cpu' cannot serve .*; cpu: numba is not installed; "):
        call("cpu")


def test_backends_of_all_operators_return_equal_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    for operator in (correlation, neighbors, point_conv, tvl1):
        found = operator.explain_backends("cpu")
        assert next(name for name, _ in found) == "cuda"
        assert dict(found)["reference"] is None
        assert dict(found)["cuda"] == "runs on NVIDIA GPUs, the tensors are on cpu"
    monkeypatch.setattr(numba_cache.importlib.util, "find_spec", lambda _: None)
    assert isinstance(numba_cache.explain_missing_numba(), Missing)
