"""A network by somebody else: RAFT's structure, two convolutions, blocks of its own."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional


class CorrBlock:
    """The all-pairs lookup by a volume."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4) -> None:
        self.radius = radius
        volume = torch.einsum("bchw,bcyx->bhwyx", fmap1, fmap2) / fmap1.shape[1] ** 0.5
        self.shape = volume.shape[:3]
        self.pyramid = [volume.flatten(0, 2)[:, None]]
        for _ in range(num_levels - 1):
            self.pyramid.append(functional.avg_pool2d(self.pyramid[-1], 2))

    def __call__(self, coords: Tensor, dilation: Tensor | None = None) -> Tensor:
        steps = torch.arange(-self.radius, self.radius + 1.0, dtype=coords.dtype)
        window = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1)
        if dilation is not None:
            window = window * dilation.reshape(-1, 1, 1, 1)
        found = []
        for level, volume in enumerate(self.pyramid):
            at = coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2**level + window
            size = torch.tensor([volume.shape[3] - 1, volume.shape[2] - 1], dtype=at.dtype)
            taps = functional.grid_sample(volume, 2 * at / size - 1, align_corners=True)
            found.append(taps.view(*self.shape, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2).contiguous()


class AlternateCorrBlock:
    """The same, by an extension that nobody has compiled."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4) -> None:
        raise NotImplementedError


class SEARAFTCorrBlock(CorrBlock):
    def __init__(self, fmap1: Tensor, fmap2: Tensor, args: SimpleNamespace) -> None:
        super().__init__(fmap1, fmap2, args.corr_levels, args.corr_radius)


class OtherCorrBlock(CorrBlock):
    """Not scaled."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4) -> None:
        super().__init__(fmap1 * fmap1.shape[1] ** 0.5, fmap2, num_levels, radius)


class Network(nn.Module):
    """[B, 3, H, W] twice to a flow at 1/4."""

    alternate = False

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 16, 4, 4)
        self.update = nn.Conv2d(2 * 25, 2, 3, padding=1)

    def block(self, fmap1: Tensor, fmap2: Tensor) -> CorrBlock | AlternateCorrBlock:
        if self.alternate:
            return AlternateCorrBlock(fmap1, fmap2, radius=2, num_levels=2)
        return CorrBlock(fmap1, fmap2, radius=2, num_levels=2)

    def forward(self, image1: Tensor, image2: Tensor) -> Tensor:
        fmap1, fmap2 = self.encoder(image1), self.encoder(image2)
        corr = self.block(fmap1, fmap2)
        height, width = fmap1.shape[-2:]
        grid = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")).to(fmap1.dtype)
        coords = grid + torch.zeros(fmap1.shape[0], 1, 1, 1)
        for _ in range(2):
            coords = coords.detach()
            coords = coords + self.update(corr(coords))
        return coords - grid


def get_corr_block(
    fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4, alternate_corr: bool = False
) -> CorrBlock | AlternateCorrBlock:
    return (AlternateCorrBlock if alternate_corr else CorrBlock)(fmap1, fmap2, num_levels, radius)


class Choosing(Network):
    """Leaves the choice to a function."""

    def block(self, fmap1: Tensor, fmap2: Tensor) -> CorrBlock | AlternateCorrBlock:
        return get_corr_block(fmap1, fmap2, radius=2, num_levels=2, alternate_corr=self.alternate)


class Searaft(Network):
    """Builds its block from arguments and passes a dilation."""

    args = SimpleNamespace(corr_levels=2, corr_radius=2)

    def forward(self, image1: Tensor, image2: Tensor) -> Tensor:
        fmap1, fmap2 = self.encoder(image1), self.encoder(image2)
        corr = SEARAFTCorrBlock(fmap1, fmap2, self.args)
        coords = torch.full((fmap1.shape[0], 2, *fmap1.shape[-2:]), 3.3)
        return self.update(corr(coords, dilation=torch.ones_like(coords[:, :1])))


class Twofold(Network):
    """Hides a method that builds a block, and calls it."""

    def block(self, fmap1: Tensor, fmap2: Tensor) -> CorrBlock | AlternateCorrBlock:
        return super().block(fmap1, fmap2)
