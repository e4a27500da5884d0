"""The spatial correlation on the CPU: loops, gradients, every backend, tracing, the contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from windows_cases import ALIGNED_NOT, CASES, allowed, by_loops, draw, farthest, named, results

from fullfield import InputError
from fullfield.ops.spatial_correlation import backends, spatial_correlation
from fullfield.ops.spatial_correlation.protocol import Window

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(("shape", "window"), [*CASES, ALIGNED_NOT])
def test_the_reference_is_the_formula(shape: tuple[int, ...], window: Window) -> None:
    one, two, _ = draw(shape, window, torch.float64)
    found = spatial_correlation(one, two, **named(window), backend="reference")
    torch.testing.assert_close(found, by_loops(one, two, window), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "window"), CASES)
def test_the_kernels_are_the_reference(shape: tuple[int, ...], window: Window, dtype: torch.dtype) -> None:
    tensors = draw(shape, window, dtype)
    truth = results([t.double() for t in tensors], window, "reference")
    for found, right in zip(results(tensors, window, "cpu"), truth, strict=True):
        assert found.dtype == dtype
        assert farthest(found, right) <= allowed(dtype)


def test_a_wrong_value_is_found() -> None:
    truth = torch.tensor([1.0, 2.0])
    assert farthest(truth, truth) == 0
    assert farthest(torch.tensor([1.0, 2.01]), truth) > allowed(torch.float32)
    assert farthest(torch.tensor([1.0, float("nan")]), truth) > 1


def test_results_do_not_depend_on_threads() -> None:
    tensors, before = draw((1, 8, 20, 33), Window((5, 5)), torch.float32), torch.get_num_threads()
    found = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        found.append(results(tensors, Window((5, 5)), "cpu"))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("window", [Window((3, 3)), Window((3, 2), (2, 3), (1, 1), (1, 0))])
def test_gradients_of_gradients(window: Window) -> None:
    one, two, _ = (t.requires_grad_() for t in draw((1, 2, 3, 4), window, torch.float64))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return spatial_correlation(a, b, **named(window))

    assert torch.autograd.gradcheck(call, (one, two))
    assert torch.autograd.gradgradcheck(call, (one, two))
    a, b = (t.detach().float().requires_grad_() for t in (one, two))
    first = torch.autograd.grad(
        spatial_correlation(a, b, **named(window), backend="cpu").square().sum(), a, create_graph=True
    )
    exact = torch.autograd.grad(call(one, two).square().sum(), one, create_graph=True)
    second, truth = torch.autograd.grad(first[0].sum(), b)[0], torch.autograd.grad(exact[0].sum(), two)[0]
    torch.testing.assert_close(second.double(), truth, rtol=1e-4, atol=1e-4)
    with FlopCounterMode(display=False):  # any dispatch mode
        assert torch.autograd.gradgradcheck(call, (one, two))


def test_traced_code() -> None:
    one, two, _ = draw((1, 4, 6, 7), Window((3, 3)), torch.float32)
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


def test_strides_and_empty_inputs() -> None:
    one, two, _ = draw((2, 6, 5, 8), Window((3, 3)), torch.float32)
    plain = spatial_correlation(one, two, 3)
    strided = [t.to(memory_format=torch.channels_last) for t in (one, two)]
    assert torch.equal(spatial_correlation(*strided, 3), plain)
    for shape in ((0, 6, 5, 8), (1, 0, 5, 8), (1, 6, 0, 8)):
        maps = [torch.ones(shape, requires_grad=True) for _ in range(2)]
        for backend in ("cpu", "reference"):
            out = spatial_correlation(maps[0], maps[1], 3, backend=backend)
            assert out.shape == (shape[0], 3, 3, shape[2], 8)
            assert not out.any()
            assert not torch.autograd.grad(out.sum(), maps)[0].any()


def test_only_what_is_wanted() -> None:
    one, two, _ = draw((1, 4, 5, 8), Window((3, 3)), torch.float32)
    for index in range(2):
        maps = [one.clone(), two.clone()]
        maps[index].requires_grad_()
        spatial_correlation(maps[0], maps[1], 3).sum().backward()
        assert maps[1 - index].grad is None
        assert maps[index].grad is not None


@pytest.mark.parametrize(
    ("change", "said"),
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
def test_mistakes_are_named(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"fmap1": torch.ones(1, 2, 3, 4), "fmap2": torch.ones(1, 2, 3, 4), **change}
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        spatial_correlation(**given)


def test_backends_say_why() -> None:
    told = dict(backends("cpu"))
    assert told["reference"] is None
    assert "NVIDIA" in str(told["cuda"])
    with pytest.raises(InputError, match="stride that divides"):
        spatial_correlation(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), 3, stride=2, backend="cpu")
