"""The paper's high-level algorithm (Briedis et al., section 4.2), step by step in plain PyTorch.

Both maps are cut into B×B patches, each contiguous in memory. Per lookup and level: (a) scatter the windows into an
explicit mask of pairs of patches, (b) multiply the marked pairs, a sampled block-sparse product, (c) sample the
sparse volume: position → stored block → cell. The mask is quadratic in the number of patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield.ops.correlation.in_pytorch import PreparedInPyTorch
from fullfield.ops.correlation.in_pytorch import supports as supports
from fullfield.ops.correlation.protocol import Gradients, Request

BLOCK = 8
# Pairs of patches multiplied at a time.
CHUNK_BYTES = 64 << 20


def prepare(request: Request, fmap1: Tensor, maps: Sequence[Tensor]) -> Blocks:
    return Blocks(request, tuple(to_patches(f.detach(), BLOCK) for f in (fmap1, *maps)))


def empty_state(request: Request, like: Tensor) -> tuple[Tensor, ...]:
    def shape(size: tuple[int, int]) -> tuple[int, ...]:
        return (request.batch, *grid(size, BLOCK), BLOCK, BLOCK, request.channels)

    return tuple(like.new_empty(shape(s), dtype=request.dtype) for s in (request.size1, *request.sizes2))


def grid(size: tuple[int, int], block: int) -> tuple[int, int]:
    """Rows and columns of patches that cover a map."""
    return -(-size[0] // block), -(-size[1] // block)


def to_patches(
    fmap: Tensor,  # [B, C, H, W]
    block: int,
) -> Tensor:  # [B, rows, columns, block, block, C], padded with zeros
    rows, columns = grid((fmap.shape[2], fmap.shape[3]), block)
    if fmap.numel() == 0:  # PyTorch 2.6 pads nothing that is empty
        return fmap.new_zeros((fmap.shape[0], rows, columns, block, block, fmap.shape[1]))
    padded = torch.nn.functional.pad(fmap, (0, columns * block - fmap.shape[3], 0, rows * block - fmap.shape[2]))
    split = torch.unflatten(torch.unflatten(padded, 3, (columns, block)), 2, (rows, block))
    return split.permute(0, 2, 4, 3, 5, 1).contiguous()


def from_patches(
    patches: Tensor,  # [B, rows, columns, block, block, C]
    size: tuple[int, int],
) -> Tensor:  # [B, C, H, W]
    return patches.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)[..., : size[0], : size[1]]


def place_in_patches(y: Tensor, x: Tensor, size: tuple[int, int], block: int) -> tuple[Tensor, Tensor]:
    """Number of the patch, and of the cell inside it, of positions in a map."""
    columns = grid(size, block)[1]
    return (y // block) * columns + x // block, (y % block) * block + x % block


class Blocks(PreparedInPyTorch):
    """State: fmap1 and every level as [B, rows, columns, 8, 8, C]."""

    def chunk(self) -> int:
        return self.request.size1[0] * self.request.size1[1]  # one image

    def _pairs(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> tuple[int, Tensor, Tensor, Tensor]:
        """Image, marked pairs of patches [m, 2], stored block [n, K, K] and cell in it [n, K, K] of every position."""
        r = self.request
        image = pixels.start // max(1, self.chunk())
        source = torch.arange(self.chunk(), device=x.device)
        patch1, cell1 = place_in_patches(source // r.size1[1], source % r.size1[1], r.size1, BLOCK)
        patch2, cell2 = place_in_patches(y, x, r.sizes2[level], BLOCK)
        counts = [rows * columns for rows, columns in (grid(r.size1, BLOCK), grid(r.sizes2[level], BLOCK))]

        mask = torch.zeros(counts, dtype=torch.bool, device=x.device)
        patch1 = patch1[:, None, None].expand_as(patch2)
        mask[patch1[inside], patch2[inside]] = True

        pairs = mask.nonzero()
        stored = torch.zeros(counts, dtype=torch.long, device=x.device)
        stored[mask] = torch.arange(len(pairs), device=x.device)
        return image, pairs, stored[patch1, patch2], cell1[:, None, None] * BLOCK**2 + cell2

    def _patches(self, index: int, image: int) -> Tensor:
        """Features [patches, B², C] of one image, in the accumulating dtype."""
        patches = self.state[index][image].flatten(0, 1).flatten(1, 2)
        return patches.to(self.request.accumulate_dtype)

    def _steps(self, pairs: Tensor) -> list[Tensor]:
        r = self.request
        step = max(1, CHUNK_BYTES // (BLOCK**2 * (BLOCK**2 + 2 * r.channels) * r.accumulate_dtype.itemsize))
        return list(torch.split(pairs, step))

    def dots(self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor) -> Tensor:
        image, pairs, block, cell = self._pairs(level, pixels, x, y, inside)
        if len(pairs) == 0:
            return inside.new_zeros(inside.shape, dtype=self.request.accumulate_dtype)
        f1 = self._patches(0, image) / self.request.channels**0.5
        f2 = self._patches(1 + level, image).transpose(1, 2)
        volume = torch.cat([torch.bmm(f1[p[:, 0]], f2[p[:, 1]]) for p in self._steps(pairs)])
        return volume.flatten()[block * BLOCK**4 + cell]

    def add_gradient(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor, grad: Tensor, grads: Gradients
    ) -> None:
        image, pairs, block, cell = self._pairs(level, pixels, x, y, inside)
        volume = grad.new_zeros(len(pairs), BLOCK**2, BLOCK**2)
        if len(pairs) == 0:
            return
        volume.view(-1).index_add_(0, (block * BLOCK**4 + cell)[inside], grad[inside])
        scale = self.request.channels**-0.5
        f1, f2 = self._patches(0, image), self._patches(1 + level, image)
        start = 0
        for part in self._steps(pairs):
            some = volume[start : start + len(part)]
            start += len(part)
            if grads.fmap1 is not None:
                pulled = torch.bmm(some, f2[part[:, 1]]) * scale
                grads.fmap1[image].view_as(f1).index_add_(0, part[:, 0], pulled)
            if grads.levels is not None:
                pushed = torch.bmm(some.transpose(1, 2), f1[part[:, 0]]) * scale
                grads.levels[level][image].view_as(f2).index_add_(0, part[:, 1], pushed)

    def gradients(self, grads: Gradients) -> Gradients:
        r = self.request
        return Gradients(
            None if grads.fmap1 is None else from_patches(grads.fmap1, r.size1),
            None if grads.levels is None else [from_patches(g, s) for g, s in zip(grads.levels, r.sizes2, strict=True)],
            grads.wanted,
        )


restore = Blocks
