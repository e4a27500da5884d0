"""Contenders of the correlation benchmark: our backends, RAFT's extension, fused-local-corr, ptlflow's volume."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.correlation.alt_cuda_corr import alt_cuda_corr_extension as alt_cuda_corr_extension
from benchmarks.cases.correlation.blocks import Blocks
from benchmarks.harness import TooLarge, Unsupported
from fullfield.integrations.forms import silence_output_and_warnings
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_pyramid
from fullfield.ops.correlation.protocol import BACKENDS, LOOKUPS, LookupRequest, compute_level_sizes

Lookup = Callable[[Tensor], Tensor]
# PyTorch's average pooling counts elements in 32 bits, so blocks that pool the volume whole take no larger one.
DENSE_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class Problem:
    """Sizes, number of lookups and formats of a case."""

    size: tuple[int, int]
    """Height, width of both maps."""
    updates: int
    channels: int
    batch: int = 1
    levels: int = 4
    radius: int = 4
    dtype: torch.dtype = torch.bfloat16
    out_dtype: torch.dtype = torch.float32
    position_dtype: torch.dtype = torch.float32
    """Everybody's positions are rounded to it."""
    channels_last: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backward: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        """Layout of the results."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of a result."""
        return (self.batch, self.levels * (2 * self.radius + 1) ** 2, *self.size)

    def request(self) -> LookupRequest:
        """Return the request that a backend of ours receives."""
        return LookupRequest(
            batch=self.batch,
            channels=self.channels,
            size1=self.size,
            sizes2=compute_level_sizes(*self.size, self.levels),
            radius=self.radius,
            dtype=self.dtype,
            device=self.device,
            grad=self.backward,
            pooled=True,
            precision=torch.get_float32_matmul_precision(),
        )


@dataclass(frozen=True)
class Contender:
    """One implementation. ``prepare`` takes a problem and both maps, pools and lays out, and returns the lookup."""

    name: str
    prepare: Callable[[Problem, Tensor, Tensor], Lookup]
    admit: Callable[[Problem], None]
    """Raises TooLarge or Unsupported."""
    ours: bool = False
    no_graph: str | None = None
    """Why its work cannot be captured in a CUDA graph."""
    is_cut: bool = False
    """Whether its kernel leaves out its last steps: then its result is not a lookup, and is not compared."""


def our_contenders(names: Sequence[str] = BACKENDS) -> list[Contender]:
    """Return the backends of the correlation lookup."""
    return [Contender(name, _pyramid(name), _admission(name), ours=True) for name in names]


def blocks() -> Contender:
    """Return the algorithm of Briedis et al., section 4.2, in plain PyTorch; forward only."""
    return Contender(
        "blocks", _prepare_blocks, _admit_blocks, ours=True, no_graph="waits for the device (its block mask)"
    )


def _admit_blocks(problem: Problem) -> None:
    if problem.backward:
        raise Unsupported("has no gradient")


def _prepare_blocks(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
    prepared = Blocks.of(problem.request(), fmap1, correlation_pyramid(fmap2, problem.levels))
    return lambda coords: prepared.lookup(coords, problem.out_dtype, problem.channels_last)


def _pyramid(backend: str) -> Callable[[Problem, Tensor, Tensor], Lookup]:
    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        return CorrelationPyramid(
            fmap1,
            fmap2,
            problem.levels,
            problem.radius,
            backend=backend,
            out_dtype=problem.out_dtype,
            memory_format=problem.memory_format,
        )

    return prepare


def _admission(backend: str) -> Callable[[Problem], None]:
    def admit(problem: Problem) -> None:
        request = problem.request()
        if backend == "dense":
            admit_volume(problem)
        reason = LOOKUPS.explain_refusal(backend, request)
        if reason is not None and reason.endswith("are free"):
            raise TooLarge(reason)
        if reason is not None:
            raise Unsupported(reason)

    return admit


def admit_volume(problem: Problem) -> None:
    """Raise TooLarge where the volume of all levels does not fit in memory: twice on a CPU, once on a GPU."""
    needed, device = problem.request().volume_bytes, problem.device
    if device.type == "cpu":
        needed, free = 2 * needed, _free_memory()
    else:
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + held
    if needed > free:
        raise TooLarge(f"the volume takes {problem.request().volume_bytes / 2**30:.3g} GiB")


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def scale_levels(
    problem: Problem, fmap1: Tensor, fmap2: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, list[Tensor]]:
    """Return channels-last fmap1 / √C and levels in ``dtype``, as peers take them."""
    source = (fmap1.to(dtype) / problem.channels**0.5).permute(0, 2, 3, 1).contiguous()
    levels = [level.permute(0, 2, 3, 1).contiguous() for level in correlation_pyramid(fmap2.to(dtype), problem.levels)]
    return source, levels


def deliver(problem: Problem, out: Tensor) -> Tensor:
    """Return a result in the format that the problem asks for."""
    return out.to(problem.out_dtype).contiguous(memory_format=problem.memory_format)


def alt_cuda_corr(folder: str | os.PathLike[str], note: Callable[[str], None]) -> Contender:
    """Return RAFT's CUDA extension, laid out once per pair, where RAFT's own block does it in every lookup."""
    extension = alt_cuda_corr_extension(folder, note)
    return Contender(
        "alt_cuda_corr", _alt_prepare(extension), _alt_admit, no_graph="launches on the legacy default stream"
    )


def _alt_admit(problem: Problem) -> None:
    if problem.device.type != "cuda":
        raise Unsupported(f"runs on CUDA, the features are on {problem.device}")
    if problem.channels % 32:
        raise Unsupported(f"needs a multiple of 32 channels, got {problem.channels}")
    if 0 in problem.request().sizes2[-1]:
        raise Unsupported("has no level of size zero")


def _alt_prepare(extension: Any) -> Callable[[Problem, Tensor, Tensor], Lookup]:
    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        source, levels = scale_levels(problem, fmap1, fmap2)

        def lookup(coords: Tensor) -> Tensor:
            at = coords.permute(0, 2, 3, 1)[:, None].contiguous()
            parts = [
                _AltLookup.apply(extension, source, level, at / 2**i, problem.radius)  # type: ignore[no-untyped-call]
                for i, level in enumerate(levels)
            ]
            return deliver(problem, torch.cat(parts, 1))

        return lookup

    return prepare


class _AltLookup(torch.autograd.Function):
    """Lookup of one level: [B, (2r+1)², H, W]."""

    @staticmethod
    def forward(ctx: Any, extension: Any, source: Tensor, level: Tensor, at: Tensor, radius: int) -> Tensor:
        """Look up."""
        ctx.extension, ctx.radius = extension, radius
        ctx.save_for_backward(source, level, at)
        result: Tensor = extension.forward(source, level, at, radius)[0]
        return result[:, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of both maps."""
        first, second, _ = ctx.extension.backward(*ctx.saved_tensors, grad[:, None].contiguous(), ctx.radius)
        return None, first, second, None, None


def fused_local_corr() -> Contender | None:
    """Return the package fused-local-corr (module ``local_corr``); None if it is not installed or does not load."""
    if importlib.util.find_spec("local_corr") is None:
        return None
    try:
        module: Any = importlib.import_module("local_corr")
    except (ImportError, OSError, RuntimeError):
        return None
    return Contender(
        "fused-local-corr", _fused_prepare(module), _fused_admit, no_graph="launches on the legacy default stream"
    )


def _fused_admit(problem: Problem) -> None:
    if problem.backward:
        raise Unsupported("has no gradient for the second map")
    if problem.channels % 4:
        raise Unsupported(f"needs a multiple of 4 channels, got {problem.channels}")
    if 0 in problem.request().sizes2[-1]:
        raise Unsupported("has no level of size zero")


def _fused_prepare(module: Any) -> Callable[[Problem, Tensor, Tensor], Lookup]:
    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        source, levels = scale_levels(problem, fmap1, fmap2)
        rows = source.flatten(1, 2)
        span = torch.arange(-problem.radius, problem.radius + 1, device=fmap1.device, dtype=torch.float32)
        dx, dy = torch.meshgrid(span, span, indexing="ij")
        window = torch.stack((dx, dy), -1).flatten(0, 1) + 0.5  # it counts from the corner of a pixel

        def lookup(coords: Tensor) -> Tensor:
            at = coords.permute(0, 2, 3, 1).flatten(1, 2)[:, :, None]
            parts = [
                module.local_corr(rows, level, (at / 2**i + window).contiguous(), mode="bilinear")
                for i, level in enumerate(levels)
            ]
            out = torch.unflatten(torch.cat(parts, 2), 1, problem.size)
            return deliver(problem, out.permute(0, 3, 1, 2))

        return lookup

    return prepare


def ptlflow_volume() -> Contender | None:
    """Return RAFT's default block in ptlflow, the pooled volume; None if ptlflow cannot be imported."""
    if importlib.util.find_spec("ptlflow") is None:
        return None
    try:
        with silence_output_and_warnings():
            module: Any = importlib.import_module("ptlflow.models.raft.corr")
    except (ImportError, OSError, RuntimeError):
        return None
    return Contender("ptlflow volume", _ptlflow_prepare(module), _ptlflow_admit)


def _ptlflow_admit(problem: Problem) -> None:
    elements = problem.batch * (problem.size[0] * problem.size[1]) ** 2
    if elements > DENSE_ELEMENTS:
        raise Unsupported(f"pools at most 2^31 elements at a time; the volume has {elements:.2g}")
    admit_volume(problem)
    if min(problem.request().sizes2[-1]) < 2:
        raise Unsupported("gives NaN on a level of side one")


def _ptlflow_prepare(module: Any) -> Callable[[Problem, Tensor, Tensor], Lookup]:
    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        first, second = (fmap.float().contiguous() for fmap in (fmap1, fmap2))
        block = module.CorrBlock(first, second, num_levels=problem.levels, radius=problem.radius)
        return lambda coords: deliver(problem, block(coords))

    return prepare
