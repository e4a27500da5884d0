"""Plain PyTorch: any floating dtype and device. Defines what the other backends must compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fullfield.ops.tvl1.config import GRADIENT_FLOOR, TVL1Config
from fullfield.ops.tvl1.frames import (
    TapTable,
    check_and_solve_each_pair_in_grey_255,
    compute_gaussian_tap_table,
    compute_level_sizes,
    compute_linear_tap_table,
    compute_progress_and_level_text,
)

if TYPE_CHECKING:
    from fullfield.ops.tvl1.frames import Progress


def explain_unsupported(device: torch.device, dtype: torch.dtype, config: TVL1Config) -> str | None:  # noqa: ARG001 - all backends'
    """Return None if the reference can compute with these settings, else the reason."""
    if dtype not in (torch.float32, torch.float64):
        return f"computes in float32 or float64, got {str(dtype).removeprefix('torch.')}"
    return None if config.cuda_only_feature is None else f"has no {config.cuda_only_feature}"


def create_solver(height: int, width: int, config: TVL1Config, device: torch.device, dtype: torch.dtype) -> Any:  # noqa: ARG001
    """Return a function of checked frames, a start and a progress to the flow."""
    return partial(check_and_solve_each_pair_in_grey_255, partial(solve_grey_pair, config=config), dtype)


def solve_grey_pair(
    frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, progress: Progress | None, config: TVL1Config
) -> Tensor:
    """Return the flow [2, H, W] of grey frames [H, W] of 0 ... 255, from an initial flow [2, H, W] or None."""
    height, width = frame1.shape
    sizes = compute_level_sizes(height, width, config.scales, config.scale_factor)
    pyramid = [(frame1, frame2)]
    for size in sizes[1:]:
        first, second = pyramid[-1]
        pyramid.append(
            (
                resample_plane(first, size, compute_gaussian_tap_table),
                resample_plane(second, size, compute_gaussian_tap_table),
            )
        )
    last = len(sizes) - 1
    flow = initial_flow
    for number in range(last, -1, -1):
        first, second = pyramid[number]
        kind = compute_linear_tap_table if number < last else compute_gaussian_tap_table
        flow = _resize_flow_or_create_zeros(flow, first, kind)
        dual = first.new_zeros(4, *sizes[number])
        for warp in range(config.warps):
            flow, dual = _linearise_iterate_and_filter(first, second, flow, dual, config)
            if progress is not None:
                progress(*compute_progress_and_level_text(sizes, number, (warp + 1) / config.warps))
    assert flow is not None  # there is at least one level
    return flow


def _resample_vertically(plane: Tensor, table: TapTable) -> Tensor:
    """Resample rows [H, W] to [H', W] tap by tap: a matrix product would sum in an order that depends on threads."""
    index, weight = (torch.from_numpy(array).to(plane.device) for array in table)
    weight = weight.to(plane.dtype)
    out = plane.new_zeros(len(weight), plane.shape[1])
    for tap in range(weight.shape[1]):
        out += weight[:, tap, None] * plane[index[:, tap].long()]
    return out


def resample_plane(plane: Tensor, size: tuple[int, int], compute_tap_table: Callable[[int, int], TapTable]) -> Tensor:
    """Resample [H, W] to [H', W'] along both axes with the tables of ``compute_tap_table``."""
    height, width = plane.shape
    rows = _resample_vertically(plane, compute_tap_table(height, size[0]))
    return _resample_vertically(rows.T, compute_tap_table(width, size[1])).T.contiguous()


def _resize_flow_or_create_zeros(
    flow: Tensor | None, like: Tensor, compute_tap_table: Callable[[int, int], TapTable]
) -> Tensor:
    height, width = like.shape
    if flow is None:
        return like.new_zeros(2, height, width)
    ratios = (width / flow.shape[2], height / flow.shape[1])
    return torch.stack(
        [resample_plane(c, (height, width), compute_tap_table) * r for c, r in zip(flow, ratios, strict=True)]
    )


def compute_central_gradient(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return central differences of [H, W], borders replicated."""
    p = pad(image[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
    return (p[1:-1, 2:] - p[1:-1, :-2]) / 2, (p[2:, 1:-1] - p[:-2, 1:-1]) / 2


def _compute_cubic_weights(t: Tensor) -> Tensor:
    """Return Keys' cubic convolution weights, a = -1/2, of the taps at -1, 0, 1, 2 for fractions t: [4, ...]."""
    return 0.5 * torch.stack(
        [t * (t * (2 - t) - 1), t * t * (3 * t - 5) + 2, t * (t * (4 - 3 * t) + 1), t * t * (t - 1)]
    )


def warp_bicubic_and_mark_inside(planes: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Sample planes [N, H, W] at x + flow; also return the mask [H, W] of targets in the frame; borders replicated."""
    _, height, width = planes.shape
    x = torch.arange(width, device=flow.device, dtype=flow.dtype) + flow[0]
    y = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None] + flow[1]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    x, y = torch.where(inside, x, 0), torch.where(inside, y, 0)
    column, row = x.floor(), y.floor()
    weights_x, weights_y = _compute_cubic_weights(x - column), _compute_cubic_weights(y - row)
    column, row = column.long(), row.long()
    out = torch.zeros_like(planes)
    for j in range(4):
        source_row = (row + j - 1).clamp(0, height - 1) * width
        for i in range(4):
            index = source_row + (column + i - 1).clamp(0, width - 1)
            out += weights_y[j] * weights_x[i] * planes.flatten(1)[:, index]
    return out, inside


def _linearise_iterate_and_filter(
    first: Tensor, second: Tensor, flow: Tensor, dual: Tensor, config: TVL1Config
) -> tuple[Tensor, Tensor]:
    (value, gx, gy), inside = warp_bicubic_and_mark_inside(
        torch.stack([second, *compute_central_gradient(second)]), flow
    )
    ax, ay = compute_central_gradient(first)
    gx = torch.where(inside, gx + config.gradient_blend * (ax - gx), 0)
    gy = torch.where(inside, gy + config.gradient_blend * (ay - gy), 0)
    constant = torch.where(inside, value - first - (gx * flow[0] + gy * flow[1]), 0)
    squared = gx * gx + gy * gy
    inverse = torch.where(squared > GRADIENT_FLOOR, 1 / torch.where(squared > GRADIENT_FLOOR, squared, 1), 0)
    for _ in range(config.iterations):
        flow, dual = update_flow_and_dual(flow, dual, (gx, gy, constant, inverse), config)
    if config.median:
        flow = median_filter(flow, config.median)
    return flow, dual


def compute_divergence(across: Tensor, down: Tensor, borders: str) -> Tensor:
    """Return backward differences of (across, down) [H, W]; 0 (adjoint) or its own value precedes the first pixel."""
    mode = "constant" if borders == "adjoint" else "replicate"
    a = pad(across[None, None], (1, 0, 0, 0), mode=mode)[0, 0]
    d = pad(down[None, None], (0, 0, 1, 0), mode=mode)[0, 0]
    return (a[:, 1:] - a[:, :-1]) + (d[1:] - d[:-1])


def compute_forward_gradient(plane: Tensor) -> tuple[Tensor, Tensor]:
    """Return forward differences of [H, W], zero at the far border."""
    p = pad(plane[None, None], (0, 1, 0, 1), mode="replicate")[0, 0]
    return p[:-1, 1:] - plane, p[1:, :-1] - plane


def update_flow_and_dual(
    flow: Tensor, dual: Tensor, linearised_residual: tuple[Tensor, Tensor, Tensor, Tensor], config: TVL1Config
) -> tuple[Tensor, Tensor]:
    """Run one iteration on flow [2, H, W], dual [4, H, W]; data: gradient x, y, residual constant, 1/|gradient|²."""
    gx, gy, constant, inverse = linearised_residual
    bound, slope = config.lambda_ * config.theta, config.tau / config.theta
    step = ((gx * flow[0] + gy * flow[1] + constant) * inverse).clamp(-bound, bound)
    new_flow, new_dual = [], []
    for component, g in enumerate((gx, gy)):
        across, down = dual[2 * component], dual[2 * component + 1]
        u = flow[component] - step * g + config.theta * compute_divergence(across, down, config.borders)
        ux, uy = compute_forward_gradient(u)
        shrink = 1 / (1 + slope * torch.sqrt(ux * ux + uy * uy))
        new_flow.append(u)
        new_dual += [(across + slope * ux) * shrink, (down + slope * uy) * shrink]
    return torch.stack(new_flow), torch.stack(new_dual)


def median_filter(flow: Tensor, window_side: int) -> Tensor:
    """Return the median over ``window_side``² pixels of each plane of [N, H, W], borders replicated."""
    margin = window_side // 2
    padded = pad(flow[None], (margin, margin, margin, margin), mode="replicate")[0]
    windows = padded.unfold(1, window_side, 1).unfold(2, window_side, 1)
    return windows.flatten(-2).median(dim=-1).values
