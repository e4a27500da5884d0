"""The kernels of the spatial correlation on a GPU."""

from __future__ import annotations

import pytest
import torch
from windows_cases import CASES, allowed, draw, farthest, results

from fullfield.ops import launching
from fullfield.ops.spatial_correlation import spatial_correlation
from fullfield.ops.spatial_correlation.protocol import Window

_GPU = launching.why_not(torch.device("cuda", 0)) if torch.cuda.is_available() else "no GPU"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_GPU is not None, reason=str(_GPU))]
LARGE = [
    ((1, 32, 112, 256), Window((9, 9))),
    ((2, 196, 7, 16), Window((9, 9))),
    ((1, 64, 56, 128), Window((7, 7), (2, 2), (2, 2))),
    ((1, 256, 56, 128), Window((21, 21), (2, 2))),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "window"), [*CASES, *LARGE])
def test_the_kernels_are_the_reference(shape: tuple[int, ...], window: Window, dtype: torch.dtype) -> None:
    tensors = draw(shape, window, dtype, "cuda")
    truth = results([t.double() for t in tensors], window, "reference")
    found, again = results(tensors, window, "cuda"), results(tensors, window, "cuda")
    for one, other, right in zip(found, again, truth, strict=True):
        assert one.dtype == dtype
        assert farthest(one, right) <= allowed(dtype)
        assert torch.equal(one, other)


def test_memory_is_the_results() -> None:
    one, two, _ = draw((1, 32, 112, 256), Window((9, 9)), torch.float32, "cuda")
    out = spatial_correlation(one, two, 9, backend="cuda")
    size = out.numel() * 4
    del out
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    spatial_correlation(one, two, 9, backend="cuda")
    assert torch.cuda.max_memory_allocated() - before <= size + (1 << 20)


def test_a_graph_and_another_stream() -> None:
    one, two, _ = draw((1, 32, 28, 64), Window((9, 9)), torch.float16, "cuda")
    plain = spatial_correlation(one, two, 9, backend="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = spatial_correlation(one, two, 9, backend="cuda")
    torch.cuda.synchronize()
    assert torch.equal(aside, plain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = spatial_correlation(one, two, 9, backend="cuda")
    one.copy_(two)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(kept, spatial_correlation(two, two, 9, backend="cuda"))


def test_more_than_two_thousand_million_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 30 << 30:
        pytest.skip("needs 30 GiB of free GPU memory")
    torch.manual_seed(0)
    one, two = torch.randn(2, 1, 4, 2600, 2600, device="cuda", dtype=torch.float16).unbind()
    out = spatial_correlation(one, two, 19, backend="cuda")
    assert out.numel() > 1 << 31
    right = (one[0, :, 2000:, 2000:].double() * two[0, :, 2009 - 9 :, 2009 - 9 :].double()).sum(0)
    torch.testing.assert_close(out[0, 9, 9, 2000:, 2000:].double(), right, rtol=2e-3, atol=2e-3)
    corner = (one[0, :, 2000:-9, 2000:-9].double() * two[0, :, 2009:, 2009:].double()).sum(0)
    torch.testing.assert_close(out[0, 18, 18, 2000:-9, 2000:-9].double(), corner, rtol=2e-3, atol=2e-3)
