"""The spatial correlation: loops, gradients, every backend, tracing, the contract."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from emulator import AMPERE, TURING, Emulator
from torch.utils.flop_counter import FlopCounterMode
from windows_cases import ALIGNED_NOT, CASES, by_loops, compare, draw, named, results

from fullfield import InputError
from fullfield.ops import _launching
from fullfield.ops._launching import GpuProperties
from fullfield.ops.spatial_correlation import cuda, explain_backends, reference, spatial_correlation
from fullfield.ops.spatial_correlation.protocol import DisplacementWindow

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_GPU = _launching.explain_unsupported_device(torch.device("cuda", 0)) if torch.cuda.is_available() else "no GPU"
needs_gpu = pytest.mark.skipif(_GPU is not None, reason=str(_GPU))
LARGE = [
    ((1, 32, 112, 256), DisplacementWindow((9, 9))),
    ((2, 196, 7, 16), DisplacementWindow((9, 9))),
    ((1, 64, 56, 128), DisplacementWindow((7, 7), (2, 2), (2, 2))),
    ((1, 256, 56, 128), DisplacementWindow((21, 21), (2, 2))),
]


@pytest.mark.parametrize(("shape", "window"), [*CASES, ALIGNED_NOT])
def test_spatial_correlation_reference_equals_formula(shape: tuple[int, ...], window: DisplacementWindow) -> None:
    one, two, _ = draw(shape, window, torch.float64)
    found = spatial_correlation(one, two, **named(window), backend="reference")
    torch.testing.assert_close(found, by_loops(one, two, window), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "window"), [*CASES, *LARGE])
def test_spatial_correlation_on_gpu_equals_reference(
    shape: tuple[int, ...], window: DisplacementWindow, dtype: torch.dtype
) -> None:
    tensors = draw(shape, window, dtype, "cuda")
    found, again = results(tensors, window, "cuda"), results(tensors, window, "cuda")
    compare(found, results([t.double() for t in tensors], window, "reference"), dtype)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize(
    ("number", "gpu"),
    [*((number, AMPERE) for number in range(len(CASES))), (0, TURING), (1, TURING)],
    ids=lambda value: getattr(value, "arch", value),
)
def test_spatial_correlation_emulated_equals_reference(
    number: int, gpu: GpuProperties, emulate: Callable[..., Emulator]
) -> None:
    shape, window = CASES[number]
    dtype = DTYPES[(number + number // 3 + (gpu is TURING)) % 3]
    tensors = draw(shape, window, dtype)
    emulate(cuda, gpu=gpu).schedule = 3 * (number % 2) if gpu is AMPERE else 0
    found = [
        cuda.compute_correlation(*tensors[:2], window),
        *cuda.compute_requested_gradients(*tensors, window, (True, True)),
    ]
    exact = [t.double() for t in tensors]
    truth = [
        reference.correlate_with_autograd(*exact[:2], window),
        *reference.compute_requested_gradients(*exact, window, (True, True)),
    ]
    compare(found, truth, dtype)


@pytest.mark.parametrize("window", [DisplacementWindow((3, 3)), DisplacementWindow((3, 2), (2, 3), (1, 1), (1, 0))])
def test_spatial_correlation_second_derivatives_pass_gradgradcheck(window: DisplacementWindow) -> None:
    one, two, _ = (t.requires_grad_() for t in draw((1, 2, 3, 4), window, torch.float64))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return spatial_correlation(a, b, **named(window))

    assert torch.autograd.gradcheck(call, (one, two))
    assert torch.autograd.gradgradcheck(call, (one, two), fast_mode=True)
    a, b = (t.detach().float().requires_grad_() for t in (one, two))
    first = torch.autograd.grad(spatial_correlation(a, b, **named(window)).square().sum(), a, create_graph=True)
    exact = torch.autograd.grad(call(one, two).square().sum(), one, create_graph=True)
    second, truth = torch.autograd.grad(first[0].sum(), b)[0], torch.autograd.grad(exact[0].sum(), two)[0]
    torch.testing.assert_close(second.double(), truth, rtol=1e-4, atol=1e-4)
    with FlopCounterMode(display=False):  # any dispatch mode
        assert torch.autograd.gradgradcheck(call, (one, two), fast_mode=True)


def test_spatial_correlation_passes_opcheck_and_compiles() -> None:
    one, two, _ = draw((1, 4, 6, 7), DisplacementWindow((3, 3)), torch.float32)
    one.requires_grad_()
    numbers = [3, 3, 1, 1, 1, 1, 0, 0]
    torch.library.opcheck(torch.ops.fullfield.spatial_correlation.default, (one, two, numbers, None))
    plain = spatial_correlation(one, two, 3)
    compiled: Any = torch.compile(lambda a, b: spatial_correlation(a, b, 3), backend="aot_eager", fullgraph=True)
    found = compiled(one, two)
    assert torch.equal(found, plain)
    assert torch.equal(*(torch.autograd.grad(out.sum(), one)[0] for out in (found, plain)))
    mapped = torch.vmap(lambda a: spatial_correlation(a, a, 3))(torch.stack([two, one.detach()]))
    torch.testing.assert_close(mapped[0], spatial_correlation(two, two, 3))


def test_spatial_correlation_accepts_strides_and_empty_inputs() -> None:
    one, two, _ = draw((2, 6, 5, 8), DisplacementWindow((3, 3)), torch.float32)
    plain = spatial_correlation(one, two, 3)
    strided = [t.to(memory_format=torch.channels_last) for t in (one, two)]
    assert torch.equal(spatial_correlation(*strided, 3), plain)
    for shape in ((0, 6, 5, 8), (1, 0, 5, 8), (1, 6, 0, 8)):
        maps = [torch.ones(shape, requires_grad=True) for _ in range(2)]
        out = spatial_correlation(maps[0], maps[1], 3)
        assert out.shape == (shape[0], 3, 3, shape[2], 8)
        assert not out.any()
        assert not torch.autograd.grad(out.sum(), maps)[0].any()


def test_spatial_correlation_computes_only_requested_gradients() -> None:
    one, two, _ = draw((1, 4, 5, 8), DisplacementWindow((3, 3)), torch.float32)
    for index in range(2):
        maps = [one.clone(), two.clone()]
        maps[index].requires_grad_()
        spatial_correlation(maps[0], maps[1], 3).sum().backward()
        assert maps[1 - index].grad is None
        assert maps[index].grad is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fmap2": torch.ones(1, 2, 3, 5)}, "fmap2: expected shape"),
        ({"fmap2": torch.ones(1, 2, 3, 4, dtype=torch.float64)}, "fmap2: expected dtype"),
        ({"patch_size": 0}, "patch_size: expected"),
        ({"patch_size": (3, 3, 3)}, "patch_size: expected a number or a pair"),
        ({"padding": -1}, "padding: expected"),
        ({"stride": 2.0}, "stride: expected"),
        ({"backend": "cuda"}, "backend: 'cuda' cannot serve"),
        ({"backend": "fast"}, "backend: expected one of"),
    ],
)
def test_spatial_correlation_refuses_bad_arguments(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"fmap1": torch.ones(1, 2, 3, 4), "fmap2": torch.ones(1, 2, 3, 4), **change}
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        spatial_correlation(**given)


def test_spatial_correlation_backends_explain_refusals() -> None:
    reasons = dict(explain_backends("cpu"))
    assert reasons["reference"] is None
    assert "NVIDIA" in str(reasons["cuda"])


@pytest.mark.parametrize("shared", sorted({64 << 10, 99 << 10, 163 << 10, 227 << 10}))
def test_spatial_correlation_patches_fit_shared_memory(shared: int) -> None:
    for patch in product((1, 2, 10, 11, 32, 33, 100), repeat=2):
        columns = cuda.divide_displacement_row(patch[1])
        assert columns.group * columns.groups * columns.blocks >= patch[1]
        for others in (1, 10_000):
            rows = cuda.choose_displacement_rows_per_block(patch[0], columns, others, shared)
            assert 1 <= rows <= patch[0]
            assert cuda.count_forward_threads_per_block(columns, rows) <= 512
            assert cuda.compute_forward_shared_bytes(columns, rows) <= shared
            half = cuda.choose_half_precision_tiling(patch, others)
            assert half.columns * half.blocks >= patch[1]
            assert 1 <= half.rows <= patch[0]
            assert half.shared_bytes <= shared
            assert (
                cuda.compute_backward_shared_bytes(
                    columns, cuda.choose_channels_per_block_and_thread(columns, others, 256, shared)
                )
                <= shared
            )


def test_window_is_aligned_requires_multiples_of_step() -> None:
    assert DisplacementWindow((3, 3), (4, 4), (2, 1)).has_stride_dividing_dilation
    assert not DisplacementWindow((3, 3), (4, 3), (2, 2)).has_stride_dividing_dilation


# ---- on a GPU


@pytest.mark.gpu
@needs_gpu
def test_spatial_correlation_allocates_result_only() -> None:
    one, two, _ = draw((1, 32, 112, 256), DisplacementWindow((9, 9)), torch.float32, "cuda")
    out = spatial_correlation(one, two, 9, backend="cuda")
    size = out.numel() * 4
    del out
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    spatial_correlation(one, two, 9, backend="cuda")
    assert torch.cuda.max_memory_allocated() - before <= size + (1 << 20)


@pytest.mark.gpu
@needs_gpu
def test_spatial_correlation_in_graph_and_side_stream() -> None:
    one, two, _ = draw((1, 32, 28, 64), DisplacementWindow((9, 9)), torch.float16, "cuda")
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


@pytest.mark.gpu
@needs_gpu
def test_spatial_correlation_accepts_more_than_2_31_elements() -> None:
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
