"""The kernel of Briedis et al. (CVPR 2026), reimplemented as a contender: blocks of 8×8 pixels, chosen by voting."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases.correlation.blocks import BLOCK, to_patches
from benchmarks.cases.correlation.contenders import Contender, Lookup, Problem
from benchmarks.harness import Unsupported
from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, parse_structures
from fullfield.ops.correlation import correlation_pyramid

NAME = "Briedis et al., reimplemented"
LIBRARIES = LibraryCache("the voting kernel")
_CHUNK, _THREADS = 32, 64
_SHARED = 4 * 64 * 65
"""Bytes of a block's products."""
_SOURCE = Path(__file__).with_suffix(".cu")
_Params = parse_structures(_SOURCE)["VotingParams"]


STEPS = (
    "Preprocessing",
    "Computing Per-Thread Blocks",
    "Next-Block Voting",
    "Matrix-Matrix Multiplication",
    "Sampling Blocks and Writing Outputs",
)
"""Steps as the paper's table 4 calls them. The first is layout, pooling, zeros and launches of empty kernels."""


def source(dtype: torch.dtype, steps: int = len(STEPS) - 1) -> KernelSource:
    """Return the kernel for 16-bit features of ``dtype`` that runs its first ``steps`` steps."""
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _launching.PRODUCTS, _SOURCE)
    return KernelSource.with_macros(text, IN=CODES[dtype], BF16=dtype == torch.bfloat16, STEPS=steps)


def contender() -> Contender:
    """Return the contender: features in blocks once per pair, then one launch per level and lookup."""
    return Contender(NAME, partial(_prepare, len(STEPS) - 1), _admit)


def contenders_by_step() -> list[Contender]:
    """Return the kernel that ends after each of ``STEPS``; only the last one computes a lookup."""
    last = len(STEPS) - 1
    return [
        Contender(f"{NAME}: {name}", partial(_prepare, number), _admit, is_cut=number < last)
        for number, name in enumerate(STEPS)
    ]


def _admit(problem: Problem) -> None:
    reason = _launching.explain_unsupported_device(problem.device)
    if reason is not None:
        raise Unsupported(reason)
    if problem.dtype not in (torch.float16, torch.bfloat16):
        raise Unsupported(f"multiplies float16 and bfloat16, got {str(problem.dtype).removeprefix('torch.')}")
    if problem.backward:
        raise Unsupported("has no gradients")
    if 0 in problem.request().sizes2[-1]:
        raise Unsupported("has no level of size zero")


def in_blocks(fmap: Tensor) -> Tensor:
    """Return [B, C, H, W] as [B, rows, columns, 8, 8, C'], channels padded with zeros to a multiple of 32."""
    missing = -fmap.shape[1] % _CHUNK
    return to_patches(torch.nn.functional.pad(fmap, (0, 0, 0, 0, 0, missing)), BLOCK)


def _prepare(steps: int, problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
    first = in_blocks(fmap1)
    levels = correlation_pyramid(fmap2, problem.levels)
    sizes = [level.shape[2:] for level in levels]
    seconds = [in_blocks(level) for level in levels]
    height, width = fmap1.shape[2:]
    taps = (2 * problem.radius + 1) ** 2
    kernels = _launching.load_kernels(LIBRARIES, source(problem.dtype, steps), fmap1.get_device())

    def lookup(coords: Tensor) -> Tensor:
        coords = coords.contiguous()
        out = torch.zeros((len(coords), problem.levels * taps, height, width), device=coords.device)
        for number, (size, second) in enumerate(zip(sizes, seconds, strict=True)):
            p = _Params()
            p.first, p.second, p.coords = first.data_ptr(), second.data_ptr(), coords.data_ptr()
            p.out, p.out_item = out[:, number * taps :].data_ptr(), out.stride(0)
            p.height, p.width, p.height2, p.width2 = height, width, *size
            p.channels, p.radius = first.shape[-1], problem.radius
            p.shrink, p.scale = 0.5**number, problem.channels**-0.5
            kernels.launch("vote", first.shape[0] * first.shape[1] * first.shape[2], _THREADS, p, _SHARED)
        return out.to(problem.out_dtype).contiguous(memory_format=problem.memory_format)

    return lookup
