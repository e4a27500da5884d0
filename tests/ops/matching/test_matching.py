"""Matching by softmax: against the whole matrix in float64, on the CPU and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulator import Emulator
from torch import Tensor

from fullfield import InputError
from fullfield.ops.matching import (
    cuda,
    explain_backends,
    fused,
    global_attention,
    global_matching,
    local_attention,
    local_matching,
    protocol,
)

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def maps(*size: int, dtype: torch.dtype = torch.float32, device: str = "cpu", sharp: float = 2.0) -> list[Tensor]:
    """Two maps of which the second is the first, mixed up and with noise; and two channels of values."""
    generator = torch.Generator().manual_seed(sum(size))
    one = torch.randn(size, generator=generator) * sharp
    order = torch.randperm(size[2] * size[3], generator=generator)
    two = one.flatten(2)[:, :, order].view(size) + 0.3 * torch.randn(size, generator=generator)
    values = 20 * torch.randn(size[0], 2, *size[2:], generator=generator)
    return [one.to(device, dtype), two.to(device, dtype), values.to(device, dtype)]


def grid(like: Tensor) -> Tensor:
    y, x = torch.meshgrid(*(torch.arange(n, device=like.device).double() for n in like.shape[2:]), indexing="ij")
    return torch.stack((x, y))[None].expand(like.shape[0], -1, -1, -1)


def dense(one: Tensor, two: Tensor, values: Tensor) -> Tensor:
    """With the whole matrix, in float64."""
    scores = one.double().flatten(2).transpose(1, 2) @ two.double().flatten(2) / one.shape[1] ** 0.5
    return (values.double().flatten(2) @ scores.softmax(-1).transpose(1, 2)).unflatten(2, one.shape[2:])


def graded(call: Any, *leaves: Tensor, grad: Tensor | None = None) -> list[Tensor]:
    kept = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = call(*kept)
    if grad is None:
        grad = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, kept, grad.to(out.dtype))]


def off(found: Tensor, truth: Tensor) -> float:
    assert found.shape == truth.shape
    return float((found.double() - truth.double()).abs().max() / truth.abs().max().clamp(min=1e-9))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("channels", [16, 13])
def test_global_matching_equals_matrix(device: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ELEMENTS", 999)  # several parts
    one, two, values = maps(2, channels, 9, 13, device=device)
    exact = [t.double() for t in (one, two, values)]
    found = graded(global_matching, one, two)
    truth = graded(lambda a, b: dense(a, b, grid(b)) - grid(a), *exact[:2])
    assert found[0].dtype == torch.float32
    assert all(off(a, b) < 2e-5 for a, b in zip(found, truth, strict=True))
    found, truth = graded(global_attention, one, two, values), graded(dense, *exact)
    assert all(off(a, b) < 2e-5 for a, b in zip(found, truth, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_global_matching_half_precision_keeps_positions(device: str, dtype: torch.dtype) -> None:
    """On a map whose coordinates half precision could not hold to a cell's tenth."""
    one, two, _ = maps(1, 64, 3, 700, dtype=dtype, device=device)
    found = graded(global_matching, one, two)
    truth = graded(lambda a, b: dense(a, b, grid(b)) - grid(a), one.double(), two.double())
    assert found[0].dtype == torch.float32
    assert found[1].dtype == dtype
    error = (found[0] - truth[0]).abs()
    assert float(error.mean()) < 0.02
    assert float(error.max()) < 0.3
    assert all(off(a, b) < 0.05 for a, b in zip(found[1:], truth[1:], strict=True))


def test_global_matching_explicit_backend_never_falls_back() -> None:
    found = dict(explain_backends("cpu"))
    assert list(found) == ["cuda", "chunks"]
    assert found["chunks"] is None
    assert "runs on NVIDIA GPUs" in str(found["cuda"])
    assert "float32, float16 or bfloat16" in str(dict(explain_backends("cpu", torch.float64))["cuda"])
    one, two, _ = maps(1, 4, 3, 5)
    assert torch.equal(global_matching(one, two, backend="chunks"), global_matching(one, two))
    with pytest.raises(InputError, match=r"cuda: runs on NVIDIA GPUs, the tensors are on cpu.*chunks: can"):
        global_matching(one, two, backend="cuda")
    with pytest.raises(InputError, match="backend: expected"):
        global_matching(one, two, backend="whole")


def test_matching_bfloat16_on_turing_computes_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's fused kernels would do so before compute capability 8.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    requests = [protocol.MatchingRequest(dtype, torch.device("cuda", 0)) for dtype in (torch.bfloat16, torch.float16)]
    assert fused.explain_unsupported(requests[0]) == "needs compute capability 8.0 for bfloat16, got 7.5"
    assert fused.explain_unsupported(requests[1]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_matching_kernels_on_gpu_equal_reference(dtype: torch.dtype) -> None:
    one, two, _ = maps(2, 64, 30, 47, dtype=dtype, device="cuda")
    found = graded(lambda a, b: global_matching(a, b, backend="cuda"), one, two)
    truth = graded(lambda a, b: dense(a, b, grid(b)) - grid(a), one.double(), two.double())
    assert float((found[0] - truth[0]).abs().max()) < 1e-3
    assert all(
        off(a, b) < (1e-4 if dtype == torch.float32 else 0.05) for a, b in zip(found[1:], truth[1:], strict=True)
    )


def test_global_matching_compiles_without_graph_break() -> None:
    one, two, _ = maps(1, 8, 4, 6)
    compiled = torch.compile(global_matching, fullgraph=True, backend="eager", dynamic=True)
    assert torch.allclose(compiled(one, two), global_matching(one, two), atol=1e-5)


def test_global_attention_request_uses_larger_channel_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def no(request: protocol.MatchingRequest) -> str:
        calls.append(request.channels)
        return "asked"

    monkeypatch.setattr(fused, "explain_unsupported", no)
    for channels, wide in ((4, 2), (3, 7)):
        one, two, _ = maps(1, channels, 3, 5)
        global_attention(one, two, torch.zeros(1, wide, 3, 5))
    assert calls == [4, 7]


def test_matching_gradients_pass_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ELEMENTS", 30)
    one, two, values = (t.double().requires_grad_() for t in maps(1, 3, 3, 4, sharp=0.5))
    assert torch.autograd.gradcheck(global_matching, (one, two))
    assert torch.autograd.gradcheck(global_attention, (one, two, values), fast_mode=True)
    assert torch.autograd.gradgradcheck(global_matching, (one, two), fast_mode=True)
    assert torch.autograd.gradcheck(lambda a, b: local_matching(a, b, 1), (one, two))
    assert torch.autograd.gradcheck(lambda a, b, c: local_attention(a, b, c, 1), (one, two, values))


def test_local_matching_equals_formula() -> None:
    one, two, values = (t.double() for t in maps(1, 5, 4, 6))
    flow, spread = local_matching(one, two, 2), local_attention(one, two, values, 1)
    for h in range(4):
        for w in range(6):
            cells = [(y, x) for y in range(h - 2, h + 3) for x in range(w - 2, w + 3) if 0 <= y < 4 and 0 <= x < 6]
            shares = torch.stack([one[0, :, h, w] @ two[0, :, y, x] for y, x in cells]).div(5**0.5).softmax(0)
            mean = sum(s * torch.tensor([x - w, y - h]) for s, (y, x) in zip(shares, cells, strict=True))
            torch.testing.assert_close(flow[0, :, h, w], mean)
            padded, around = (torch.nn.functional.pad(t, (1,) * 4)[0, :, h : h + 3, w : w + 3] for t in (two, values))
            shares = (one[0, :, h, w] @ padded.flatten(1)).div(5**0.5).softmax(0)
            torch.testing.assert_close(spread[0, :, h, w], around.flatten(1) @ shares)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_global_matching_memory_is_linear(dtype: torch.dtype) -> None:
    one, two, _ = maps(1, 128, 108, 256, dtype=dtype, device="cuda")
    one.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    global_matching(one, two).sum().backward()
    matrix = 4 * (108 * 256) ** 2
    assert torch.cuda.max_memory_allocated() - before < matrix / 16


# ---- the CUDA kernels, emulated

# Of cells, of gradients' largest.
ALLOWED = {torch.float32: (2e-4, 2e-5), torch.float16: (2e-4, 2e-3), torch.bfloat16: (2e-4, 2e-2)}


@pytest.fixture
def _emulated(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ELEMENTS", 4000)  # several parts
    emulate(cuda, serve=True)


def unequal(dtype: torch.dtype, channels: int, *sizes: tuple[int, int], sharp: float = 2.0) -> list[Tensor]:
    """The second shows pixels of the first, mixed up and with noise."""
    generator = torch.Generator().manual_seed(channels)
    made = [torch.randn(2, channels, h * w, generator=generator) for h, w in sizes]
    common = min(m.shape[2] for m in made)
    made[1][:, :, :common] += sharp * made[0][:, :, torch.randperm(made[0].shape[2], generator=generator)[:common]]
    return [m.unflatten(2, size).to(dtype) for m, size in zip(made, sizes, strict=True)]


def whole(one: Tensor, two: Tensor) -> Tensor:
    return dense(one, two, grid(two)) - grid(one)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(
    ("dtype", "channels", "one", "two"),
    [
        (torch.float32, 12, (5, 9), (3, 701)),
        (torch.float16, 12, (5, 9), (3, 701)),
        (torch.bfloat16, 16, (6, 8), (6, 8)),
        (torch.float32, 5, (1, 3), (1, 2)),
    ],
    ids=str,
)
def test_global_matching_emulated_equals_reference(
    dtype: torch.dtype, channels: int, one: tuple[int, int], two: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = unequal(dtype, channels, one, two)
    weights = torch.linspace(-1, 1, 4 * one[0] * one[1], dtype=torch.float64).view(2, 2, *one)
    # So small that float16 has no such numbers.
    grad = 2.0**-30 * weights if dtype == torch.float32 else 2.0**-12 * weights
    found = graded(lambda a, b: global_matching(a, b, backend="cuda"), *pair, grad=grad)
    truth = graded(whole, *(m.double() for m in pair), grad=grad)
    cells, relative = ALLOWED[dtype]
    assert found[0].dtype == torch.float32
    assert [g.dtype for g in found[1:]] == [dtype, dtype]
    assert float((found[0] - truth[0]).abs().max()) < cells
    for ours, exact in zip(found[1:], truth[1:], strict=True):
        assert float((ours.double() - exact).abs().max()) < relative * float(exact.abs().max())
    monkeypatch.setattr(protocol, "ELEMENTS", 1 << 24)
    again = graded(lambda a, b: global_matching(a, b, backend="cuda"), *pair, grad=grad)
    assert float((again[0] - found[0]).abs().max()) < cells  # all rows at once


@pytest.mark.usefixtures("_emulated")
def test_global_matching_scales_float16_gradients() -> None:
    """Of the products; those of the features are as large as its numbers are."""
    one, two = unequal(torch.float16, 16, (4, 6), (4, 6), sharp=0.2)
    grad = torch.full((2, 2, 4, 6), 2.0**-18, dtype=torch.float64)
    query, key = cuda.flatten_map_to_rows(one), cuda.flatten_map_to_rows(two, pad_rows=True)
    sizes = ((4, 6), (4, 6))
    flow, logarithms = cuda.compute_flow_and_log_sums(query, key, sizes, 0.25)
    found = cuda.compute_query_and_key_gradients((query, key, flow, logarithms), grad.float().flatten(2), sizes, 0.25)
    truth = graded(whole, one.double(), two.double(), grad=grad)[1:]
    for ours, exact in zip(found, truth, strict=True):
        exact = exact.flatten(2).transpose(1, 2)
        assert float((ours.double() - exact).abs().max()) < 2e-3 * float(exact.abs().max())


@pytest.mark.usefixtures("_emulated")
def test_global_matching_nonfinite_features_stay_local() -> None:
    one, two = unequal(torch.float32, 8, (3, 4), (3, 4))
    clean = global_matching(one, two, backend="cuda")
    one[0, 2, 1, 1], one[1, 0, 2, 3] = torch.nan, torch.inf
    found = global_matching(one, two, backend="cuda")
    assert torch.equal(found.isfinite(), torch.isfinite(whole(one.double(), two.double())))
    spoiled = torch.zeros(2, 1, 3, 4, dtype=torch.bool)
    spoiled[0, 0, 1, 1] = spoiled[1, 0, 2, 3] = True
    assert torch.equal(torch.where(spoiled, 0, found), torch.where(spoiled, 0, clean))


@pytest.mark.usefixtures("_emulated")
def test_global_matching_emulated_second_derivatives_equal_reference() -> None:
    one, two = (m.double().float().requires_grad_() for m in unequal(torch.float32, 4, (2, 3), (2, 3), sharp=0.5))
    exact = [m.detach().double().requires_grad_() for m in (one, two)]
    seconds = []
    for call, pair in ((lambda a, b: global_matching(a, b, backend="cuda"), (one, two)), (whole, exact)):
        first = torch.autograd.grad(call(*pair).square().sum(), pair[0], create_graph=True)[0]  # type: ignore[operator]
        seconds.append(torch.autograd.grad(first.square().sum(), pair[1])[0].double())
    assert float((seconds[0] - seconds[1]).abs().max()) < 1e-4 * float(seconds[1].abs().max())


def test_matching_refuses_bad_arguments() -> None:
    one, two, values = maps(1, 4, 3, 5)
    with pytest.raises(InputError, match="fmap2: expected shape"):
        global_matching(one, two[:, :3])
    with pytest.raises(InputError, match="fmap2: expected at least one position"):
        global_matching(one, two[:, :, :0])
    with pytest.raises(InputError, match="values: expected shape"):
        global_attention(one, two, values[:, :, 1:])
    with pytest.raises(InputError, match="radius: expected"):
        local_matching(one, two, -1)
