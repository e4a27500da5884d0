"""High-level algorithm of Briedis et al., section 4.2, step by step in plain PyTorch; forward only.

Both maps are cut into B×B patches, each contiguous in memory. Per lookup and level: (a) scatter the windows into an
explicit mask of pairs of patches, (b) multiply the marked pairs, a sampled block-sparse product, (c) sample the
sparse volume: position → stored block → cell. The mask is quadratic in the number of patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield.ops.correlation.in_pytorch import PreparedPairInPyTorch
from fullfield.ops.correlation.protocol import LookupRequest

BLOCK = 8
# Pairs of patches multiplied at a time.
CHUNK_BYTES = 64 << 20


def grid(size: tuple[int, int], block: int) -> tuple[int, int]:
    """Return the rows and columns of patches that cover a map."""
    return -(-size[0] // block), -(-size[1] // block)


def to_patches(
    fmap: Tensor,  # [B, C, H, W]
    block: int,
) -> Tensor:  # [B, rows, columns, block, block, C], padded with zeros
    """Cut a feature map into patches, each contiguous in memory."""
    rows, columns = grid((fmap.shape[2], fmap.shape[3]), block)
    if fmap.numel() == 0:  # PyTorch 2.6 pads nothing that is empty
        return fmap.new_zeros((fmap.shape[0], rows, columns, block, block, fmap.shape[1]))
    padded = torch.nn.functional.pad(fmap, (0, columns * block - fmap.shape[3], 0, rows * block - fmap.shape[2]))
    split = torch.unflatten(torch.unflatten(padded, 3, (columns, block)), 2, (rows, block))
    return split.permute(0, 2, 4, 3, 5, 1).contiguous()


def place_in_patches(y: Tensor, x: Tensor, size: tuple[int, int], block: int) -> tuple[Tensor, Tensor]:
    """Return the patch number and the cell number inside the patch of positions in a map."""
    columns = grid(size, block)[1]
    return (y // block) * columns + x // block, (y % block) * block + x % block


class Blocks(PreparedPairInPyTorch):
    """Pair of feature maps in patches; its state is fmap1 and every level as [B, rows, columns, 8, 8, C]."""

    @classmethod
    def of(cls, request: LookupRequest, fmap1: Tensor, maps: Sequence[Tensor]) -> Blocks:
        """Cut a pair's feature maps, all levels, into patches."""
        return cls(request, tuple(to_patches(f.detach(), BLOCK) for f in (fmap1, *maps)))

    def count_pixels_per_chunk(self) -> int:
        """Return the pixels of one image."""
        return self.request.size1[0] * self.request.size1[1]

    def _pairs(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> tuple[int, Tensor, Tensor, Tensor]:
        """Return the image, marked pairs of patches [m, 2], stored block and cell in it [n, K, K] of every position."""
        r = self.request
        image = pixels.start // max(1, self.count_pixels_per_chunk())
        source = torch.arange(self.count_pixels_per_chunk(), device=x.device)
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
        """Return the features [patches, B², C] of one image, in the accumulating dtype."""
        patches = self.state[index][image].flatten(0, 1).flatten(1, 2)
        return patches.to(self.request.accumulate_dtype)

    def _steps(self, pairs: Tensor) -> list[Tensor]:
        r = self.request
        step = max(1, CHUNK_BYTES // (BLOCK**2 * (BLOCK**2 + 2 * r.channels) * r.accumulate_dtype.itemsize))
        return list(torch.split(pairs, step))

    def compute_unmasked_scaled_dot_products(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> Tensor:
        """Return the dot products [n, K, K] from the products of all marked pairs of patches."""
        image, pairs, block, cell = self._pairs(level, pixels, x, y, inside)
        if len(pairs) == 0:
            return inside.new_zeros(inside.shape, dtype=self.request.accumulate_dtype)
        f1 = self._patches(0, image) / self.request.channels**0.5
        f2 = self._patches(1 + level, image).transpose(1, 2)
        volume = torch.cat([torch.bmm(f1[p[:, 0]], f2[p[:, 1]]) for p in self._steps(pairs)])
        return volume.flatten()[block * BLOCK**4 + cell]

    def add_feature_gradients(self, *arguments: object) -> None:
        """Refuse: forward only."""
        raise NotImplementedError("blocks is forward only")
