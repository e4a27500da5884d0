"""What the tests of the lookup share: backends, weights, and the comparison with float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from emulator import AMPERE, TURING, Emulator
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.ops._launching import GpuProperties
from fullfield.ops.correlation import correlation_lookup, cuda
from fullfield.ops.correlation.cuda import launch, launch_backward
from tests.oracles.correlation import Case, assert_within, budget, make_case, rounded

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# Rounding of the window gradients before they are multiplied with the features, relative to the largest value.
PRODUCT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


class Backend(NamedTuple):
    """A backend of the lookup, and the device of its tensors."""

    name: str
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def is_cuda(self) -> bool:
        """Whether the CUDA kernels run, on a GPU or on the emulator."""
        return self.name == "cuda"

    def make(self, *arguments: Any, **options: Any) -> Case:
        """Make a case on the backend's device."""
        return self.there(make_case(*arguments, **options))

    def there(self, case: Case) -> Case:
        moved = (t.to(self.device) for t in (case.fmap1, case.fmap2, case.coords))
        return Case(*moved, case.levels, case.radius)

    def pair(self, case: Case, **options: Any) -> CorrelationPyramid:
        return CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend=self.name, **options)


BACKENDS = {
    "reference": Backend("reference"),
    "dense": Backend("dense"),
    "cpu": Backend("cpu"),
    "emulated": Backend("cuda"),
    "turing": Backend("cuda"),
    "cuda": Backend("cuda", "cuda"),
}
EMULATED = {"emulated": AMPERE, "turing": TURING}
ON_CPU = ("reference", "dense", "cpu")


def emulate_lookups(
    emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch, gpu: GpuProperties = AMPERE
) -> Emulator:
    """Run the CUDA kernels on the CPU until the end of the test."""
    monkeypatch.setattr(cuda, "explain_unsupported", lambda _: None)
    return emulate(launch, launch_backward, gpu=gpu)


def weights_of(case: Case, count: int = 1) -> list[Tensor]:
    """Return weights of ``count`` results, on the case's device."""
    generator = torch.Generator().manual_seed(5)
    channels = case.levels * (2 * case.radius + 1) ** 2
    shape = (case.coords.shape[0], channels, *case.coords.shape[2:])
    return [torch.randn(shape, generator=generator).to(case.coords.device) for _ in range(count)]


def weights(case: Case) -> Tensor:
    return weights_of(case)[0]


def check(backend: Backend, case: Case, dtype: torch.dtype, *, pooled: bool = True) -> None:
    """Compare values and all gradients with the same numbers in float64.

    ``pooled``: the backend makes the levels. Plain PyTorch rounds them in 16 bits; without, the lookup alone is
    compared, on levels that are given.
    """
    case = backend.there(rounded(case, dtype))
    weight, radius = weights(case), case.radius
    maps_of_case = [case.fmap2] if pooled else [level.to(dtype) for level in case.pyramid()]

    def results(kind: torch.dtype, name: str) -> tuple[Tensor, ...]:
        fmap1, *maps = (t.to(kind).detach().clone().requires_grad_() for t in (case.fmap1, *maps_of_case))
        coords = case.coords.to(torch.float64 if kind == torch.float64 else torch.float32).requires_grad_()
        if pooled:
            out = CorrelationPyramid(fmap1, maps[0], case.levels, radius, backend=name)(coords)
        else:
            out = correlation_lookup(fmap1, maps, coords, radius, backend=name)
        return (out.detach(), *torch.autograd.grad(out, (coords, fmap1, *maps), weight.to(out)))

    exact, eager = results(torch.float64, "reference"), results(dtype, "reference")
    for number, (got, true, plain) in enumerate(zip(results(dtype, backend.name), exact, eager, strict=True)):
        kind = torch.float32 if number < 2 else dtype  # results and gradients of coordinates are float32
        assert got.dtype == kind
        scale = float(true.abs().max()) if true.numel() else 0.0
        allowed = budget(plain, true, kind)
        if kind == torch.float32 or backend.is_cuda:  # sums of another order than eager's
            allowed += 8 * torch.finfo(torch.float32).eps * scale * case.fmap1.shape[1] ** 0.5
        if number >= 2 and backend.is_cuda:
            allowed += PRODUCT[dtype] * scale
        assert_within(got, true, allowed, f"result {number}")


SHIFTS = {"still": [0.0, 0.2, 0.4], "drifting": [0.0, 0.7, 1.6, 2.4, 3.1], "jumping": [0.0, 25.0, -11.3, 300.0, 0.1]}


def gradients(backend: Backend, case: Case, shifts: list[float], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the gradients of both maps, from lookups of one pair at positions that are shifted as given."""
    case = backend.there(case)
    maps = [m.to(dtype).detach().clone().requires_grad_() for m in (case.fmap1, case.fmap2)]
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend.name)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    outs = [pair(case.coords.to(exact) + shift) for shift in shifts]
    grads = weights_of(case, len(shifts))
    return torch.autograd.grad(outs, maps, [g.to(out) for g, out in zip(grads, outs, strict=True)])


def check_moving(backend: Backend, case: Case, shifts: list[float], dtype: torch.dtype) -> None:
    """Compare the sums of gradients over lookups that move: within the patch of each pixel, beyond it, and far."""
    case = rounded(case, dtype)
    plain = backend._replace(name="reference")
    exact = gradients(plain, case, shifts, torch.float64)
    # In 16 bits plain PyTorch pools with rounding, the kernels without: float32's error and the result's rounding.
    eager = gradients(plain, case, shifts, torch.float32)
    for value, true, other in zip(gradients(backend, case, shifts, dtype), exact, eager, strict=True):
        rounds = 6 if dtype != torch.float32 else 2  # levels are rounded once more
        allowed = budget(other, true, dtype) + rounds * (PRODUCT[dtype] or 2.0**-22) * float(true.abs().max())
        assert_within(value, true, allowed, "gradient")


def single_level(case: Case) -> Case:
    return replace(case, levels=1)
