"""Look-up of colours in the pictures of an atlas, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield.training.flow.layered.scene import PictureAtlas


def sample_pictures_trilinearly(
    atlas: PictureAtlas, picture_indices: Tensor, u: Tensor, v: Tensor, mipmap_level: Tensor
) -> Tensor:
    """Return the colours [..., 3], 0 ... 255, of pictures at texels (u, v), between two levels of the atlas."""
    mipmap_level = mipmap_level.clamp(0, atlas.levels - 1)
    floor = mipmap_level.floor()
    picture_indices = picture_indices.long().remainder(atlas.count)
    first = _sample_pictures_bilinearly(atlas, picture_indices, u, v, floor.long())
    second = _sample_pictures_bilinearly(atlas, picture_indices, u, v, (floor.long() + 1).clamp(max=atlas.levels - 1))
    return torch.lerp(first, second, (mipmap_level - floor)[..., None])


def _sample_pictures_bilinearly(
    atlas: PictureAtlas, picture_indices: Tensor, u: Tensor, v: Tensor, mipmap_level: Tensor
) -> Tensor:
    bases = torch.tensor(atlas.compute_level_offsets(), device=u.device)
    side = atlas.side >> mipmap_level
    scale = torch.exp2(-mipmap_level.float())
    columns: list[Tensor] = []
    rows: list[Tensor] = []
    fractions: list[Tensor] = []
    for values, indices in ((u, columns), (v, rows)):
        at = values * scale - 0.5
        period = 2 * side.float()
        at = at - period * (at / period).floor()
        low = at.floor()
        fractions.append(at - low)
        for step in (0, 1):
            index = (low.long() + step).remainder(2 * side)
            indices.append(torch.where(index < side, index, 2 * side - 1 - index))
    total = torch.zeros((), dtype=torch.float32, device=u.device)
    for down in (0, 1):
        for right in (0, 1):
            index = bases[mipmap_level] + (picture_indices * side + rows[down]) * side + columns[right]
            weight = (fractions[0] if right else 1 - fractions[0]) * (fractions[1] if down else 1 - fractions[1])
            total = total + atlas.texels[index.clamp(max=len(atlas.texels) - 1)][..., :3].float() * weight[..., None]
    return total
