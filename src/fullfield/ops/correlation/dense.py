"""Whole correlation volume, as RAFT stores it by default: quadratic in the number of pixels.

For comparison, and for small maps. The volume of a level is the product with that level's features, which equals
pooling the volume of the finest level. On CUDA, products of float32 features follow PyTorch's matmul precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield.ops._backends import InsufficientMemory
from fullfield.ops.correlation import in_pytorch
from fullfield.ops.correlation.protocol import GradientAccumulators, LookupRequest, disable_autocast_and_grad


def explain_unsupported(request: LookupRequest) -> str | None:
    """Return why the volume cannot serve the request; None if it can."""
    return in_pytorch.explain_unsupported(request) or explain_missing_memory(request)


def explain_missing_memory(request: LookupRequest) -> str | None:
    """Return why the GPU's memory is too small for the volume; None if it is not, and on other devices."""
    if request.device.type != "cuda":
        return None
    # PyTorch's cached blocks are free, too.
    cached_bytes = torch.cuda.memory_reserved(request.device) - torch.cuda.memory_allocated(request.device)
    free = torch.cuda.mem_get_info(request.device)[0] + cached_bytes
    if request.volume_bytes <= free:
        return None
    return InsufficientMemory(f"the volume takes {request.volume_bytes / 2**30:.1f} GiB, {free / 2**30:.1f} are free")


def prepare_pair(request: LookupRequest, fmap1: Tensor, fmap2_levels: Sequence[Tensor]) -> DensePair:
    """Compute the volumes of a pair."""
    dtype = request.accumulate_dtype
    source = fmap1.detach().flatten(2)
    scaled = (source.to(dtype) / request.channels**0.5).transpose(1, 2)
    # Volumes first, then the features, which only the gradient needs.
    with disable_autocast_and_grad(fmap1.device):
        volumes = [torch.bmm(scaled, level.detach().flatten(2).to(dtype)) for level in fmap2_levels]
    features = [f.detach().flatten(2).clone() for f in (fmap1, *fmap2_levels)] if request.grad else []
    return DensePair(request, (*volumes, *features))


def allocate_pair_state(request: LookupRequest, like: Tensor) -> tuple[Tensor, ...]:
    """Return empty tensors for the volumes, and with grad for the features."""
    r = request
    counts = [height * width for height, width in (r.size1, *r.sizes2)]
    volumes = [like.new_empty((r.batch, counts[0], n), dtype=r.accumulate_dtype) for n in counts[1:]]
    features = [like.new_empty((r.batch, r.channels, n), dtype=r.dtype) for n in counts] if r.grad else []
    return (*volumes, *features)


class DensePair(in_pytorch.PreparedPairInPyTorch):
    """Pair as volumes [B, H1·W1, H2·W2] of all levels; with grad also fmap1 and all levels as [B, C, H·W]."""

    def count_pixels_per_chunk(self) -> int:
        """Return the number of pixels at a time."""
        return 1 << 16

    def _compute_volume_index(self, level: int, x: Tensor, y: Tensor) -> Tensor:
        return (y * self.request.sizes2[level][1] + x).flatten(1)

    def compute_unmasked_scaled_dot_products(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor
    ) -> Tensor:
        """Read the dot products [n, K, K] from the volume."""
        volume = self.state[level]
        table = volume.view(-1, volume.shape[-1])[pixels]
        return table.gather(1, self._compute_volume_index(level, x, y)).view(inside.shape)

    def add_feature_gradients(
        self, level: int, pixels: slice, x: Tensor, y: Tensor, inside: Tensor, grad: Tensor, grads: GradientAccumulators
    ) -> None:
        """Add to the gradient of the volume."""
        del inside  # the gradient is zero elsewhere
        volume = self._check_and_get_volume_gradients(grads)[level]
        volume.view(-1, volume.shape[-1])[pixels].scatter_add_(
            1, self._compute_volume_index(level, x, y), grad.flatten(1)
        )

    @staticmethod
    def _check_and_get_volume_gradients(grads: GradientAccumulators) -> list[Tensor]:
        if grads.levels is None:
            raise TypeError("these accumulators were not made by the dense backend")
        return grads.levels

    def allocate_accumulators(self, needs_fmap1: bool, needs_levels: bool) -> GradientAccumulators:
        """Return accumulators whose ``needs_levels`` are the gradient of the volumes."""
        volumes = [torch.zeros_like(v) for v in self.state[: self.request.levels]]
        return GradientAccumulators(None, volumes, (needs_fmap1, needs_levels))

    def finish_gradients(self, grads: GradientAccumulators) -> GradientAccumulators:
        """Multiply the volumes' gradients with the features."""
        with disable_autocast_and_grad(self.request.device):
            return self._convert_volume_to_feature_gradients(grads)

    def _convert_volume_to_feature_gradients(self, volume_grads: GradientAccumulators) -> GradientAccumulators:
        r = self.request
        volumes = self._check_and_get_volume_gradients(volume_grads)
        source, *targets = (f.to(r.accumulate_dtype) / r.channels**0.25 for f in self.state[r.levels :])
        first, rest = None, None
        if volume_grads.requested[0]:
            sums = sum(torch.bmm(t, v.transpose(1, 2)) for t, v in zip(targets, volumes, strict=True))
            first = torch.as_tensor(sums).view(r.batch, r.channels, *r.size1) / r.channels**0.25
        if volume_grads.requested[1]:
            rest = [
                (torch.bmm(source, v) / r.channels**0.25).view(r.batch, r.channels, *size)
                for v, size in zip(volumes, r.sizes2, strict=True)
            ]
        return GradientAccumulators(first, rest, volume_grads.requested)


restore_pair = DensePair
