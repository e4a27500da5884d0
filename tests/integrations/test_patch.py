"""The handle, whose model it is, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import foreign_network
import pytest
import torch

import fullfield
from fullfield import InputError
from fullfield._kernels import Missing
from fullfield.integrations import Handle
from fullfield.integrations.forms import (
    build_original_lookup,
    check_backend_runs_and_warn_if_slow,
    detect_if_pooling_stops_or_explain,
    get_backend_or_cuda_on_nvidia,
    parse_signature_or_explain,
)
from fullfield.integrations.handle import is_patched
from fullfield.nn import RAFTCorrBlock
from refusals import refuses


@pytest.fixture
def frames() -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.rand(2, 2, 3, 40, 48, generator=torch.Generator().manual_seed(0))
    return first, second


@pytest.fixture
def model() -> foreign_network.Network:
    torch.manual_seed(0)
    return foreign_network.Network()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The blocks of ours that were built."""
    from fullfield.integrations import forms

    built: list[Any] = []
    original = forms.BlockBuilder.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        built.append(original(self, *args, **kwargs))
        return built[-1]

    monkeypatch.setattr(forms.BlockBuilder, "__call__", noted)
    return built


def close(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-5)


def test_patch_keeps_values_and_gradients_and_restores(model: Any, frames: Any, blocks: list[Any]) -> None:
    names = dict(vars(foreign_network))
    expected = model(*frames)
    expected.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    handle = fullfield.patch(model)
    found = model(*frames)
    found.sum().backward()
    assert close(found, expected)
    assert all(torch.allclose(p.grad, g, rtol=1e-3, atol=1e-4) for p, g in zip(model.parameters(), grads, strict=True))
    assert len(blocks) == 1
    assert dict(vars(foreign_network)) == names
    assert isinstance(model, foreign_network.Network)
    assert list(vars(model)) == list(vars(foreign_network.Network()))

    handle.restore()
    assert torch.equal(model(*frames), expected)
    assert type(model) is foreign_network.Network
    assert len(blocks) == 1
    handle.restore()
    assert not handle.is_active


@pytest.mark.unit
def test_patch_handle_lists_replacements(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with fullfield.patch(model) as handle:
        assert isinstance(handle, Handle)
        assert handle.model is model
        assert handle.is_active
        assert [r.description for r in handle.replaced] == ["CorrBlock", "AlternateCorrBlock"]
        assert all(r.where == "foreign_network.Network.block" for r in handle.replaced)
        assert "CorrBlock in foreign_network.Network.block by fullfield's" in repr(handle)
    assert "restored" in repr(handle)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.unit
def test_patch_refuses_patched_model_and_keeps_generator(model: Any) -> None:
    with pytest.raises(KeyError), fullfield.patch(model):
        raise KeyError
    assert not is_patched(model)
    handle = fullfield.patch(model)
    refuses("patched already", fullfield.patch, model)
    refuses("patched already", fullfield.patch, torch.nn.Sequential(model))
    handle.restore()
    fullfield.patch(model).restore()
    before = torch.get_rng_state()
    fullfield.patch(model).restore()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Weak references to the pairs that lookups have prepared; nothing is collected meanwhile."""
    from fullfield.nn import corr_blocks

    pairs: list[Any] = []

    class Noted(corr_blocks.CorrelationPyramid):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pairs.append(weakref.ref(self._lookups))

    monkeypatch.setattr(corr_blocks, "CorrelationPyramid", Noted)
    monkeypatch.setattr("fullfield.integrations.forms.LEAN_BYTES", 1)
    gc.disable()
    yield pairs
    gc.enable()


@pytest.mark.parametrize("how", ["class", "argument"])
def test_patch_on_demand_keeps_nothing_between_lookups(model: Any, frames: Any, prepared: list[Any], how: str) -> None:
    coords = torch.rand(2, 2, 10, 12) * 9
    if how == "argument":
        model = foreign_network.Choosing()
    with torch.no_grad(), fullfield.patch(model):
        fmap1, fmap2 = (model.encoder(f) for f in frames)
        expected = model.block(fmap1, fmap2)(coords)
        assert len(prepared) == 1
        model.alternate = True
        block = model.block(fmap1, fmap2)
        assert len(prepared) == 1
        for _ in range(2):
            assert torch.equal(block(coords), expected)
            assert prepared[-1]() is None
        matrix = torch.einsum("bchw,bcyx->bhwyx", fmap1, fmap2).view(2, 120, 120) / fmap1.shape[1] ** 0.5
        assert close(block.corrMap, matrix), "GMFlowNet reads it"
        assert len(prepared) == 3
        with torch.autocast("cpu", dtype=torch.bfloat16):  # the converted features would have to be kept instead
            block = model.block(fmap1, fmap2)
        assert prepared[-1]() is not None


def test_patch_on_demand_keeps_small_and_captured_pairs(
    model: Any, frames: Any, prepared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model(*frames)
    expected.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.alternate = True
    with fullfield.patch(model):
        found = model(*frames)
        assert len(prepared) == 1
        found.sum().backward()
        assert close(found, expected)
        assert all(
            torch.allclose(p.grad, g, rtol=1e-3, atol=1e-4) for p, g in zip(model.parameters(), grads, strict=True)
        )
        monkeypatch.undo()
        with torch.no_grad():
            small = model.block(*(model.encoder(f) for f in frames))
    assert isinstance(small, RAFTCorrBlock)


def test_patch_leaves_other_instances_of_class_unchanged(model: Any, frames: Any, blocks: list[Any]) -> None:
    other = foreign_network.Network()
    with fullfield.patch(model), ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda m: m(*frames), [model, other] * 4))
    assert len(blocks) == 4


def test_patch_accepts_wrapped_and_nested_models(model: Any, frames: Any, blocks: list[Any]) -> None:
    outer = torch.nn.ModuleDict({"a": model, "b": foreign_network.Network()})
    with fullfield.patch(outer) as handle:
        assert len(handle.replaced) == 4
        outer["a"](*frames)
        outer["b"](*frames)
    assert len(blocks) == 2
    parallel = torch.nn.DataParallel(model)
    with fullfield.patch(parallel):
        parallel(*frames)
    assert len(blocks) == 3


def test_patch_is_kept_by_copies_not_by_pickles(model: Any, frames: Any) -> None:
    with fullfield.patch(model):
        twin = copy.deepcopy(model)
        read = pickle.loads(pickle.dumps(model))
        assert is_patched(twin)
        assert type(read) is foreign_network.Network
        assert close(read(*frames), model(*frames))
    assert torch.equal(twin(*frames), twin(*frames))
    assert twin.encoder is not model.encoder


def test_patch_sea_raft_equals_original(frames: Any) -> None:
    torch.manual_seed(0)
    model = foreign_network.Searaft()
    expected = model(*frames)
    with fullfield.patch(model) as handle:
        assert [r.description for r in handle.replaced if r.where.endswith("forward")] == ["SEARAFTCorrBlock"]
        assert close(model(*frames), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_patch_keeps_dtypes_and_strides(dtype: torch.dtype, model: Any, frames: Any) -> None:
    model.to(dtype)
    first, second = (f.to(dtype) for f in frames)
    fmap1, fmap2 = model.encoder(first), model.encoder(second)
    coords = torch.rand(2, 2, 10, 12, dtype=dtype) * 9
    expected = model.block(fmap1, fmap2)(coords)
    with fullfield.patch(model):
        found = model.block(fmap1, fmap2)(coords)
    assert found.dtype == expected.dtype == dtype
    assert found.stride() == expected.stride()
    assert torch.allclose(found, expected, rtol=0.1, atol=0.2 if dtype == torch.bfloat16 else 1e-5)


def test_patch_under_autocast_matches_original(model: Any, frames: Any) -> None:
    expected = model(*frames)
    with fullfield.patch(model), torch.autocast("cpu", torch.bfloat16):
        found = model(*frames)
        block = model.block(*torch.rand(2, 1, 8, 8, 8))
        assert block(torch.zeros(1, 2, 8, 8)).dtype == torch.float32
    assert not torch.equal(found, expected)
    assert torch.allclose(found.float(), expected, atol=0.05)


def test_patch_keeps_model_compilable(model: Any, frames: Any, blocks: list[Any]) -> None:
    with fullfield.patch(model), torch.no_grad():
        expected = model(*frames)
        found = torch.compile(model, backend="eager", fullgraph=True)(*frames)
    torch.compiler.reset()
    assert close(found, expected)
    assert blocks


def test_patch_uses_requested_backend_without_extension(model: Any, frames: Any) -> None:
    expected = model(*frames)
    with fullfield.patch(model, backend="reference") as handle:
        assert handle.backend == "reference"
        assert close(model(*frames), expected)
    expected = model(*frames)
    model.alternate = True
    with pytest.raises(NotImplementedError):
        model(*frames)
    with fullfield.patch(model):
        assert close(model(*frames), expected)


@pytest.mark.unit
def test_patch_refuses_unsuitable_models(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model: Any, match: str, **options: Any) -> None:
        refuses(match, fullfield.patch, model, **options)
        assert not isinstance(model, torch.nn.Module) or not is_patched(model)

    refused("raft", "model: expected a torch.nn.Module")
    refused(torch.nn.Conv2d(1, 1, 1), "found none in torch.nn")
    refused(model, "backend: expected one of .*, got 'gpu'$", backend="gpu")
    refused(model, "'cuda' cannot serve it on cpu", backend="cuda")
    learned = foreign_network.Network()
    learned.block2 = type("LearnedCorrBlock", (torch.nn.Module,), {})()
    refused(learned, r"its block2 \(LearnedCorrBlock\) is not known")
    refused(foreign_network.Twofold(), "called by a subclass's method")
    monkeypatch.setattr(foreign_network, "CorrBlock", foreign_network.OtherCorrBlock)
    refused(foreign_network.Network(), "CorrBlock of .* is not the all-pairs lookup: .* differ by")


@pytest.mark.unit
def test_patch_failure_leaves_model_unchanged(model: Any) -> None:
    class Fixed(foreign_network.Network):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "__class__":
                raise TypeError("no")
            super().__setattr__(name, value)

    both = torch.nn.Sequential(model, Fixed())
    refuses(r"cannot be changed \(no\)", fullfield.patch, both)
    assert type(model) is foreign_network.Network
    # What torch.compile and others put there would go on running the original.
    model.block = model.block
    refuses(r"an attribute block of the object hides .*Network\.block", fullfield.patch, model)
    del model.block
    model.compile(backend="eager")  # goes through the class
    fullfield.patch(model).restore()


@pytest.mark.unit
def test_patch_restore_keeps_later_class_change(model: Any, frames: Any) -> None:
    expected = model(*frames)
    both = torch.nn.ModuleList([foreign_network.Network(), model])
    handle = fullfield.patch(both)
    patched = type(model)
    model.__class__ = type("Wrapped", (patched,), {})
    with pytest.raises(RuntimeError, match="the class of Wrapped was changed after the patch"):
        handle.restore()
    assert handle.is_active
    assert type(both[0]) is foreign_network.Network
    model.__class__ = patched
    handle.restore()
    assert type(model) is foreign_network.Network
    assert torch.equal(model(*frames), expected)


@pytest.mark.unit
def test_patch_from_threads_keeps_warnings_and_streams() -> None:
    before, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        for handle in pool.map(fullfield.patch, [foreign_network.Network() for _ in range(12)]):
            handle.restore()
    assert (sys.stdout, sys.stderr) == before
    assert warnings.filters == filters


@pytest.mark.unit
def test_patch_on_gpu_requires_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_backend_or_cuda_on_nvidia(torch.device("cuda"), None) == "cuda"
    assert get_backend_or_cuda_on_nvidia(torch.device("cuda"), "dense") == "dense"
    for other in ("mps", "xpu"):
        assert get_backend_or_cuda_on_nvidia(torch.device(other), None) is None
        with pytest.warns(UserWarning, match=f"lookups run in plain PyTorch, as the kernel runs .* are on {other}"):
            check_backend_runs_and_warn_if_slow(torch.device(other), None)
    with monkeypatch.context() as rocm:
        rocm.setattr(torch.version, "hip", "6.4")
        assert get_backend_or_cuda_on_nvidia(torch.device("cuda"), None) is None
        with pytest.warns(UserWarning, match=r"are on an AMD GPU \(ROCm\)"):
            check_backend_runs_and_warn_if_slow(torch.device("cuda"), None)
    from fullfield.ops.correlation import cpu

    monkeypatch.setattr(cpu, "explain_missing_numba", lambda: Missing("numba is not installed"))
    refuses("numba is not installed", fullfield.patch, foreign_network.Network())


@pytest.mark.unit
def test_patch_recognizes_block_signatures() -> None:
    class Guided:
        def __init__(self, fmap1: Any, fmap2: Any, guide: Any, num_levels: int = 4, radius: int = 4) -> None: ...

    assert parse_signature_or_explain(Guided) == "its parameters are (fmap1, fmap2, guide, num_levels, radius)"
    form = parse_signature_or_explain(foreign_network.CorrBlock)
    assert not isinstance(form, str)
    assert detect_if_pooling_stops_or_explain(build_original_lookup(foreign_network.CorrBlock, form)) is False
    assert "raised NotImplementedError" in str(
        detect_if_pooling_stops_or_explain(build_original_lookup(foreign_network.AlternateCorrBlock, form))
    )
    one, two = torch.rand(2, 1, 1, 2, 2)
    assert form.bind_and_check_arguments((one, two, 3), {"radius": 2})[2:] == (3, 2, False)
    for arguments, keywords in (((one,), {}), ((one, two, 1, 2, 3), {}), ((one, two), {"levels": 1})):
        with pytest.raises(TypeError, match="expected the arguments fmap1, fmap2, num_levels, radius"):
            form.bind_and_check_arguments(arguments, keywords)


@pytest.mark.unit
def test_parse_signature_refuses_options_that_change_result() -> None:
    class Normed(foreign_network.CorrBlock):
        def __init__(
            self, fmap1: Any, fmap2: Any, num_levels: int = 4, radius: int = 4, normalise: bool = False
        ) -> None:
            super().__init__(fmap1, fmap2, num_levels, radius)
            self.normalise = normalise

    form = parse_signature_or_explain(Normed)
    assert not isinstance(form, str)
    one, two = torch.rand(2, 1, 1, 2, 2)
    form.bind_and_check_arguments((one, two), {})
    refuses("normalise: expected False", form.bind_and_check_arguments, (one, two), {"normalise": True})


@pytest.mark.gpu
def test_patch_on_gpu_equals_original(model: Any, frames: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    fmap1, fmap2 = (model.encoder(f) for f in frames)
    coords = torch.rand(2, 2, 10, 12) * 9
    expected = model.block(fmap1, fmap2)(coords)
    with fullfield.patch(model.cuda()):
        found = model.block(fmap1.cuda(), fmap2.cuda())(coords.cuda())
    assert close(found.cpu(), expected)


def test_patch_refuses_unsupported_tracers(tmp_path: Path) -> None:
    model = foreign_network.Network().eval()
    frames = tuple(torch.rand(2, 1, 3, 64, 72, generator=torch.Generator().manual_seed(0)).unbind())
    with torch.no_grad():
        expected = model(*frames)
    handle = fullfield.patch(model)
    with torch.no_grad():
        with pytest.raises(InputError, match=r"torch.jit.trace cannot record .*; restore\(\) a patched model first"):
            torch.jit.trace(model, frames)  # type: ignore[no-untyped-call]
        if find_spec("onnxscript") is not None:
            with pytest.raises(
                Exception, match=r"torch.onnx.export cannot record .*; restore\(\) a patched model first"
            ):
                torch.onnx.export(model, frames, tmp_path / "x.onnx", dynamo=True, verbose=False)
        program = torch.export.export(model, frames).module()
        torch.testing.assert_close(program(*frames), expected, atol=1e-4, rtol=1e-4)
        handle.restore()
        traced = torch.jit.trace(model, frames)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(traced(*frames), expected)
