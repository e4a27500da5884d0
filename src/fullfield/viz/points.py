"""Pictures of how well one point cloud lies on another."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import BACKGROUND, create_blank_picture, draw_text_inplace

_TARGET = (112, 118, 128)
_SCALE = ((43, 92, 255), (0, 190, 255), (190, 245, 150), (255, 190, 40), (255, 38, 38))  # small errors to large ones
_MARGIN = 0.03
_FLOATS = (torch.float32, torch.float64)


def draw_alignment(
    target: Tensor,  # [M, 3]
    source: Tensor,  # [N, 3], where it is to be drawn
    errors: Tensor,  # [N], in the clouds' units
    *,
    max_error: float,
    size: tuple[int, int] = (720, 960),
) -> Tensor:
    """Draw both clouds from the side on which the target is broadest, the source coloured by its errors.

    The target is grey. Every point is drawn, two pixels wide, nearer ones over farther ones. Blue is no error, red is
    ``max_error`` (in the clouds' units) and more. Points that are not finite are left out. The picture is uint8
    ``[3, H, W]`` of ``size`` (height, width).
    """
    for cloud, name in ((target, "target"), (source, "source")):
        _check.check_tensor(cloud, name, ("N", 3), dtypes=_FLOATS, device=torch.device("cpu"))
    _check.check_tensor(errors, "errors", (source.shape[0],), dtypes=_FLOATS)
    _check.check_number(max_error, "max_error", above=0.0)
    height, width = size
    image = torch.tensor(BACKGROUND, dtype=torch.uint8).expand(height, width, 3).clone()
    colors = _convert_levels_to_colors(errors / max_error)
    grey = torch.tensor(_TARGET, dtype=torch.uint8).expand(target.shape[0], 3)
    points = torch.cat([target.double(), source.double()])
    paint = torch.cat([grey, colors])
    finite = torch.isfinite(points).all(1)
    if not bool(finite.any()):
        return image.permute(2, 0, 1).contiguous()
    views = _compute_principal_view_axes(target.double())
    seen = points[finite] @ views.T
    _draw_points_inplace(image, seen - (seen.amin(0) + seen.amax(0)) / 2, paint[finite])
    return image.permute(2, 0, 1).contiguous()


def _compute_principal_view_axes(cloud: Tensor) -> Tensor:
    """Return the directions right, up and towards the viewer, as rows.

    They are the principal axes, widest first, and point along their largest coordinates.
    """
    finite_points = cloud[torch.isfinite(cloud).all(1)]
    if finite_points.shape[0] < 3:
        return torch.eye(3, dtype=torch.float64)
    axes = torch.linalg.eigh(torch.cov((finite_points - finite_points.mean(0)).T))[1].T.flip(0)
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    turned: Tensor = axes * signs
    return turned


def _draw_points_inplace(image: Tensor, points: Tensor, colors: Tensor) -> None:
    """Draw points [N, 3] (right, up, near) into uint8 [H, W, 3]."""
    height, width = image.shape[:2]
    area = (1 - 2 * _MARGIN) * torch.tensor([width, height], dtype=torch.float64)
    spread = (points.amax(0) - points.amin(0))[:2].clamp_min(1e-12)
    scale = (area / spread).min()
    x = (width / 2 + points[:, 0] * scale).floor().long()
    y = (height / 2 - points[:, 1] * scale).floor().long()
    order = torch.argsort(points[:, 2], descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    nearest = torch.full((height * width,), len(order), dtype=torch.int64)
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pixels = (y + dy).clamp_(0, height - 1) * width + (x + dx).clamp_(0, width - 1)
        nearest.scatter_reduce_(0, pixels, rank, "amin")
    drawn = nearest < len(order)
    image.view(-1, 3)[drawn] = colors[order[nearest[drawn]]]


def _convert_levels_to_colors(level: Tensor) -> Tensor:
    """Return uint8 [N, 3] for levels from 0 to 1; above is red, and so is NaN."""
    stops = torch.tensor(_SCALE, dtype=torch.float64)
    position = level.double().nan_to_num(nan=1.0, posinf=1.0).clamp(0, 1) * (len(_SCALE) - 1)
    low = position.floor().long().clamp_max(len(_SCALE) - 2)
    offset = (position - low)[:, None]
    return (stops[low] * (1 - offset) + stops[low + 1] * offset).round().to(torch.uint8)


def draw_alignment_legend(width: int = 384, *, max_error: float) -> Tensor:
    """Draw the legend of :func:`draw_alignment`: a bar from 0 to ``max_error``, uint8 ``[3, width/8, width]``."""
    _check.check_number(width, "width", integer=True, low=128)
    _check.check_number(max_error, "max_error", above=0.0)
    height = width // 8
    margin = height // 2
    image = create_blank_picture(height, width)
    colors = _convert_levels_to_colors(torch.linspace(0, 1, width - 2 * margin, dtype=torch.float32))
    image[:, height // 16 : height // 2, margin : width - margin] = colors.T[:, None]
    for x, text, anchor in (
        (margin, "0", "lm"),
        (width / 2, f"{max_error / 2:.3g}", "mm"),
        (width - margin, f"{max_error:.3g}+", "rm"),
    ):
        draw_text_inplace(image, text, (x, height * 0.77), height * 0.36, anchor=anchor)
    return image
