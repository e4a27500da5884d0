"""The blocks to paste on a GPU: the same numbers, and what a CUDA graph may hold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import (
    DroidCorrBlock,
    RAFTCorrBlock,
    SEARAFTCorrBlock,
    StereoCorrBlock,
    TorchvisionCorrBlock,
    local_correlation_with_flow,
)
from fullfield.testing.correlation import assert_within, make_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ARGUMENTS = SimpleNamespace(corr_levels=4, corr_radius=4)


def torchvision_block(fmap1: Tensor, fmap2: Tensor, coords: Tensor) -> Tensor:
    block = TorchvisionCorrBlock(num_levels=3, radius=3)
    block.build_pyramid(fmap1, fmap2)
    return block.index_pyramid(coords)


BLOCKS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "raft": lambda a, b, xy: RAFTCorrBlock(a, b)(xy),
    "sea-raft": lambda a, b, xy: SEARAFTCorrBlock(a, b, ARGUMENTS)(xy, torch.ones_like(xy[:, :1])),
    "dilated": lambda a, b, xy: SEARAFTCorrBlock(a, b, ARGUMENTS)(xy, torch.full_like(xy[:, :1], 1.5)),
    "torchvision": torchvision_block,
    "droid": lambda a, b, xy: DroidCorrBlock(a[None], b[None])(xy.permute(0, 2, 3, 1)[None])[0],
    "unimatch": lambda a, b, xy: local_correlation_with_flow(a, b, xy % 5, 4),
    "stereo": lambda a, b, xy: StereoCorrBlock(a, b)(xy),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_same_as_on_the_cpu(name: str) -> None:
    case = make_case((23, 37), batch=2, channels=48)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.to(device).requires_grad_() for t in (case.fmap1, case.fmap2)]
        out = BLOCKS[name](leaves[0], leaves[1], case.coords.to(device))
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(device)
        results.append([out, *torch.autograd.grad(out, leaves, weight)])
    for what, expected, got in zip(("result", "fmap1", "fmap2"), *results, strict=True):
        assert_within(got, expected, 1e-4 * float(expected.detach().abs().max()), what)


def test_a_dilation_cannot_be_read_while_a_graph_is_captured() -> None:
    case = make_case((8, 12), batch=1, channels=32)
    block = SEARAFTCorrBlock(case.fmap1.cuda(), case.fmap2.cuda(), ARGUMENTS)
    coords = case.coords.cuda()
    ones, seen = (torch.ones(1, 1, 8, 12, device="cuda") for _ in range(2))
    expected = block(coords, seen)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [block(coords), block(coords, seen)]
        with pytest.raises(InputError, match="dilation: expected None while a CUDA graph is captured"):
            block(coords, ones)
    for out in outs:
        out.fill_(float("nan"))
    graph.replay()
    for out in outs:
        assert torch.equal(out, expected)
