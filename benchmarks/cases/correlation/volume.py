"""RAFT's default block as a contender, reimplemented: the volume of all pairs in float32, pooled, sampled bilinearly.

The volume is one batched matrix product. PyTorch's average pooling takes at most 2³¹ elements, so larger volumes are
multiplied and pooled in slices of source pixels; the result is the same.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cases.correlation.contenders import Contender, Lookup, Problem, admit_volume
from benchmarks.harness import Unsupported

NAME = "RAFT's volume"
# Elements of the volume that are multiplied and pooled at a time where it has more than 2³¹.
SLICE = 1 << 28


def contender() -> Contender:
    """Return the contender: the volume and its levels once per pair, then one bilinear sampling per level."""
    return Contender(NAME, _prepare, _admit)


def _admit(problem: Problem) -> None:
    admit_volume(problem)
    if 0 in problem.request().sizes2[-1]:
        raise Unsupported("has no level of size zero")


def pyramid(fmap1: Tensor, fmap2: Tensor, levels: int, limit: int = 1 << 31) -> list[Tensor]:
    """Return the volume of every level, [B·H·W, 1, H2, W2] each; more than ``limit`` elements are made in slices."""
    batch, channels, height, width = fmap1.shape
    source = fmap1.flatten(2).transpose(1, 2) / channels**0.5  # [B, H·W, C]
    pixels, size = height * width, fmap2.shape[2:]
    if batch * pixels * size.numel() <= limit:
        result = [torch.bmm(source, fmap2.flatten(2)).view(batch * pixels, 1, *size)]
        for _ in range(levels - 1):
            result.append(functional.avg_pool2d(result[-1], 2))
        return result
    sizes = [(size[0] >> level, size[1] >> level) for level in range(levels)]
    result = [fmap1.new_empty(batch, pixels, *each) for each in sizes]
    step = max(1, SLICE // size.numel())
    for item in range(batch):
        for start in range(0, pixels, step):
            part = slice(start, start + step)
            torch.mm(source[item, part], fmap2[item].flatten(1), out=result[0][item, part].flatten(1))
            for finer, coarser in pairwise(result):
                coarser[item, part] = functional.avg_pool2d(finer[item, part], 2)
    return [level.view(batch * pixels, 1, *level.shape[2:]) for level in result]


def _prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
    volumes = pyramid(fmap1.float(), fmap2.float(), problem.levels)
    radius = problem.radius
    span = torch.arange(-radius, radius + 1, device=fmap1.device, dtype=torch.float32)
    window = torch.stack(torch.meshgrid(span, span, indexing="ij"), -1)  # x slow, y fast

    def lookup(coords: Tensor) -> Tensor:
        batch, _, height, width = coords.shape
        centres = coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
        parts = []
        for level, volume in enumerate(volumes):
            at = centres / 2**level + window
            sides = reversed(volume.shape[2:])  # numbers, so that a CUDA graph can hold the work
            grid = torch.stack([(2 * x + 1) / side - 1 for x, side in zip(at.unbind(-1), sides, strict=True)], -1)
            result = functional.grid_sample(volume, grid, align_corners=False)
            parts.append(result.view(batch, height, width, -1))
        out = torch.cat(parts, -1).permute(0, 3, 1, 2)
        return out.to(problem.out_dtype).contiguous(memory_format=problem.memory_format)

    return lookup
