"""Plain PyTorch for any floating dtype and device, which defines the truth.

It gathers the features that a chunk of pixels reads, and multiplies. Beyond features and result it takes the memory of
a chunk. Features of 16 bits are multiplied exactly and summed in float32. float32 is never rounded to TF32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield.ops.correlation.in_pytorch import PreparedPairInPyTorch
from fullfield.ops.correlation.in_pytorch import explain_unsupported as explain_unsupported
from fullfield.ops.correlation.protocol import GradientAccumulators, LookupRequest

# Gathered features worked on at a time.
CHUNK_BYTES = 32 << 20


def prepare_pair(request: LookupRequest, fmap1: Tensor, fmap2_levels: Sequence[Tensor]) -> ReferencePair:
    """Lay both maps out channels-last."""
    return ReferencePair(request, tuple(_copy_channels_last(f) for f in (fmap1, *fmap2_levels)))


def _copy_channels_last(fmap: Tensor) -> Tensor:
    return fmap.detach().permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)


def allocate_pair_state(request: LookupRequest, like: Tensor) -> tuple[Tensor, ...]:
    """Return empty tensors for both maps, channels-last."""
    sizes = (request.size1, *request.sizes2)
    return tuple(like.new_empty((request.batch, *s, request.channels), dtype=request.dtype) for s in sizes)


class ReferencePair(PreparedPairInPyTorch):
    """Pair whose state is fmap1 and every level as [B, H, W, C]."""

    def count_pixels_per_chunk(self) -> int:
        """Return the number of pixels whose gathered features fit in ``CHUNK_BYTES``."""
        r = self.request
        per_pixel = (2 * r.radius + 2) ** 2 * max(r.channels, 1) * r.accumulate_dtype.itemsize
        return int(CHUNK_BYTES // per_pixel)

    def _compute_row_index(self, level: int, pixels: slice, x: Tensor, y: Tensor) -> Tensor:
        """Return the index [n·K·K] of each position among all rows of the level's state."""
        height, width = self.request.sizes2[level]
        per_image = self.request.size1[0] * self.request.size1[1]
        image = torch.arange(pixels.start, pixels.stop, device=x.device) // per_image
        return ((image[:, None, None] * height + y) * width + x).flatten()

    def _get_scaled_source_rows(self, pixels: slice) -> Tensor:
        r = self.request
        table = self.state[0].view(-1, r.channels)
        return table[pixels].to(r.accumulate_dtype).div(r.channels**0.5)

    def _gather_target_rows(self, level: int, rows: Tensor, shape: torch.Size) -> Tensor:
        r = self.request
        table = self.state[1 + level].view(-1, r.channels)
        return table.index_select(0, rows).to(r.accumulate_dtype).view(shape[0], -1, r.channels)

    def compute_unmasked_scaled_dot_products(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> Tensor:
        """Gather features and multiply: [n, K, K]."""
        target = self._gather_target_rows(level, self._compute_row_index(level, pixels, x, y), inside.shape)
        if target.is_cuda:  # a batched product may use TF32 there
            return (target * self._get_scaled_source_rows(pixels)[:, None, :]).sum(-1).view(inside.shape)
        return torch.bmm(target, self._get_scaled_source_rows(pixels)[:, :, None]).view(inside.shape)

    def add_feature_gradients(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor, grad: Tensor, grads: GradientAccumulators
    ) -> None:
        """Add to the gradients of both maps."""
        r = self.request
        rows = self._compute_row_index(level, pixels, x, y)
        if grads.fmap1 is not None:
            target = self._gather_target_rows(level, rows, inside.shape).masked_fill_(
                ~inside.flatten(1)[..., None], 0.0
            )
            pulled = (target * grad.flatten(1)[..., None]).sum(1) / r.channels**0.5
            grads.fmap1.view(-1, r.channels)[pixels] += pulled
        if grads.levels is not None:
            pushed = grad.flatten(1)[..., None] * self._get_scaled_source_rows(pixels)[:, None, :]
            grads.levels[level].view(-1, r.channels).index_add_(0, rows, pushed.view(-1, r.channels))

    def finish_gradients(self, grads: GradientAccumulators) -> GradientAccumulators:
        """Return the sums as [B, C, H, W]."""
        return GradientAccumulators(
            None if grads.fmap1 is None else grads.fmap1.permute(0, 3, 1, 2),
            None if grads.levels is None else [g.permute(0, 3, 1, 2) for g in grads.levels],
        )


restore_pair = ReferencePair
