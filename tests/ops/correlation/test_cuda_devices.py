"""The GPU kernels on two devices."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.testing.correlation import assert_within, make_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
DEVICES = ("cuda:0", "cuda:1")


def tensors(device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    case = make_case((48, 100), batch=1, channels=64)
    return case.fmap1.to(device, dtype), case.fmap2.to(device, dtype), case.coords.to(device)


def pair_of(fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
    return CorrelationPyramid(fmap1, fmap2, 4, 4, backend="cuda")


def step(device: str) -> list[Tensor]:
    """Two lookups and the gradients of features and positions."""
    leaves = [t.requires_grad_() for t in tensors(device)]
    pair = pair_of(leaves[0], leaves[1])
    outs = [pair(leaves[2]), pair(leaves[2] + 1)]
    return [*outs, *torch.autograd.grad(sum(out.square().sum() for out in outs), leaves)]


def same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert_within(a, b, 1e-5 * float(b.detach().abs().max()), f"on {a.device}")


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_either_device_while_either_is_current(current: int, dtype: torch.dtype) -> None:
    results = []
    with torch.cuda.device(current):
        for device in (*DEVICES, *reversed(DEVICES)):
            fmap1, fmap2, coords = tensors(device, dtype)
            out = pair_of(fmap1, fmap2)(coords)
            assert out.device == coords.device
            assert torch.cuda.current_device() == current
            results.append(out.cpu())
    assert all(torch.equal(out, results[0]) for out in results)


def test_training_on_both_from_two_threads() -> None:
    expected = step(DEVICES[0])
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(step, DEVICES * 4):
            same(results, expected)


def test_the_sum_of_losses_on_both() -> None:
    expected = step(DEVICES[0])
    leaves = [[t.requires_grad_() for t in tensors(device)] for device in DEVICES]
    losses = [
        sum(out.square().sum() for out in (pair(leaf[2]), pair(leaf[2] + 1)))
        for leaf, pair in ((leaf, pair_of(leaf[0], leaf[1])) for leaf in leaves)
    ]
    grads = torch.autograd.grad(losses[0] + losses[1].to(DEVICES[0]), [t for leaf in leaves for t in leaf])
    same(grads[:3], expected[2:])
    same(grads[3:], expected[2:])


def test_streams_and_graphs_of_the_second_device() -> None:
    fmap1, fmap2, coords = tensors(DEVICES[1], torch.bfloat16)
    pair = pair_of(fmap1, fmap2)
    expected = pair(coords)
    with torch.cuda.device(DEVICES[1]):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            got = pair(coords)
        side.synchronize()
        assert torch.equal(got, expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = pair(coords)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


def test_traced_on_the_second_device() -> None:
    fmap1, fmap2, coords = tensors(DEVICES[1])

    def look(a: Tensor, b: Tensor, xy: Tensor) -> Tensor:
        return pair_of(a, b)(xy)

    got = torch.compile(look, fullgraph=True, backend="aot_eager")(fmap1, fmap2, coords)
    assert torch.equal(got, look(fmap1, fmap2, coords))
