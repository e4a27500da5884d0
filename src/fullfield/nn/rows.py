"""Correlation along rows: RAFT-Stereo's block to paste."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.nn.correlation import CorrelationPyramid
from fullfield.ops.correlation.arguments import check_features, check_window


class StereoCorrBlock:
    """RAFT-Stereo's ``CorrBlock1D``, ``PytorchAlternateCorrBlock1D`` and ``CorrBlockFast1D``, in linear memory.

    A pixel is compared with its own row of the second map, whatever coords[:, 1] says, and the levels are pooled along
    x only. They lie side by side in one map, with columns of zeros behind each. While a row's products with that map
    take no more memory than two float32 feature vectors per pixel (W2 up to about C), they are kept: nothing is faster.
    Wider maps are looked up by :class:`fullfield.nn.CorrelationPyramid`, of whose two-dimensional windows the middle
    row is kept: on CUDA those of whole images, elsewhere every row is an image of its own, without other rows. There
    positions on the coarser levels are rounded as float32 numbers of twice their size: by 6e-5 pixels at W2 = 1000.

    Args:
        fmap1: [B, C, H, W1].
        fmap2: [B, C, H, W2] of the same dtype.
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`; a named one is used for narrow maps, too.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4, *, backend: str | None = None
    ) -> None:
        check_window(num_levels, radius)
        check_features(fmap1, [fmap2], ["fmap2"])
        _check.require(fmap1.shape[2] == fmap2.shape[2], "fmap2", f"{fmap1.shape[2]} rows, as fmap1 has", fmap2)
        self.num_levels = num_levels
        self.radius = radius
        self._size = (fmap1.shape[0], fmap1.shape[2], fmap1.shape[3])
        self._products: Tensor | None = None
        with torch.autocast(fmap1.device.type, enabled=False):
            wide, self._levels = _side_by_side(fmap2, num_levels, 2 * radius + 2)
            if backend is None and wide.shape[3] <= 2 * fmap1.shape[1]:
                self._by_row = True
                self._starts = torch.tensor([[start] for start, _ in self._levels], device=fmap1.device)
                self._products = _products(self._rows(fmap1), self._rows(wide))
                return
        self._by_row = not fmap1.is_cuda or fmap1.dtype == torch.float64
        self._pyramid = CorrelationPyramid(
            self._rows(fmap1), self._rows(wide), 1, radius, backend=backend, out_dtype=torch.float32
        )

    def _rows(self, maps: Tensor) -> Tensor:
        """[B·H, C, 1, W] where every row is an image of its own."""
        if not self._by_row:
            return maps
        return maps.transpose(1, 2).flatten(0, 1)[:, :, None]

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H, W1] (or [B, 1, H, W1]), x first
    ) -> Tensor:  # [B, num_levels·(2·radius+1), H, W1] float32: level, dx
        """Look up around column coords[:, 0]."""
        batch, height, width = self._size
        _check.tensor(coords, "coords", (batch, "2", height, width))
        x = coords[:, :1].float()
        # Beyond these bounds all taps are outside, and so they are at them.
        places = [
            (x / 2**level).clamp(-self.radius - 1, columns + self.radius)
            for level, (_, columns) in enumerate(self._levels)
        ]
        if self._products is not None:
            return self._blended(self._products, torch.cat(places, 1))
        y = x.new_zeros(1) if self._by_row else torch.arange(height, device=x.device, dtype=x.dtype)[:, None]
        found = []
        for place, (start, _) in zip(places, self._levels, strict=True):
            found.append(self._taps(torch.cat((place + start, y.expand_as(x)), 1)))
        return torch.cat(found, 1)

    def _taps(self, at: Tensor) -> Tensor:
        """The middle row of the windows: [B, 2r+1, H, W1]."""
        out = self._pyramid(self._rows(at))
        side = 2 * self.radius + 1
        taps = torch.unflatten(out, 1, (side, side))[:, :, self.radius]
        if not self._by_row:
            return taps
        return torch.unflatten(taps[:, :, 0], 0, self._size[:2]).transpose(1, 2)

    def _blended(self, products: Tensor, x: Tensor) -> Tensor:
        """From neighbouring products; x: [B, L, H, W1] columns of each level."""
        x = x.permute(0, 2, 3, 1).flatten(0, 1)[..., None]  # [B·H, W1, L, 1]
        x = torch.where(x.isnan(), -self.radius - 1.0, x)
        left = x.detach().floor()
        columns = left.long() + torch.arange(-self.radius, self.radius + 2, device=x.device)
        zero = products.shape[2] - 1
        columns = torch.where(columns < 0, zero, columns + self._starts)
        found = torch.unflatten(products.gather(2, columns.flatten(2)), 2, columns.shape[2:])
        right = x - left
        taps = (1 - right) * found[..., :-1] + right * found[..., 1:]
        return torch.unflatten(taps.flatten(2), 0, self._size[:2]).permute(0, 3, 1, 2).contiguous().float()


def _side_by_side(fmap2: Tensor, levels: int, gap: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """All levels in one map, ``gap`` columns of zeros behind each; the first column and the width of each."""
    zeros = fmap2.new_zeros((*fmap2.shape[:3], gap))
    parts: list[Tensor] = []
    places: list[tuple[int, int]] = []
    start = 0
    for _ in range(levels):
        width = fmap2.shape[3]
        places.append((start, width))
        parts += (fmap2, zeros)
        start += width + gap
        fmap2 = functional.avg_pool2d(fmap2, (1, 2)) if width > 1 and fmap2.numel() else fmap2[..., : width // 2]
    return torch.cat(parts, 3), places


def _products(rows1: Tensor, rows2: Tensor) -> Tensor:
    """[n, W1, W2] of the rows [n, C, 1, W], divided by √C, at least in float32."""
    dtype = torch.float64 if rows1.dtype == torch.float64 else torch.float32
    first, second = (rows[:, :, 0].to(dtype) for rows in (rows1, rows2))
    return torch.bmm(first.transpose(1, 2) / rows1.shape[1] ** 0.5, second)
