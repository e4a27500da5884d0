"""The guided refinement in plain PyTorch: any floating dtype and device. Defines what other backends must compute."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from fullfield.ops.tvl1.config import FILTER_RADIUS, JUDGED, LEAST_FIT, ONLY_PASS, PassPosition, RefinementConfig
from fullfield.ops.tvl1.reference import (
    compute_central_gradient,
    compute_divergence,
    compute_forward_gradient,
    median_filter,
    warp_bicubic_and_mark_inside,
)


def explain_unsupported(device: torch.device, dtype: torch.dtype) -> str | None:  # noqa: ARG001 - all backends'
    """Return None if the reference can compute in this dtype, else the reason."""
    if dtype not in (torch.float32, torch.float64):
        return f"computes in float32 or float64, got {str(dtype).removeprefix('torch.')}"
    return None


class RefinementInput(NamedTuple):
    """Frames and flow to refine."""

    colours: Tensor  # [C, H, W], first frame, 0 ... 255
    first: Tensor  # [H, W] grey, 0 ... 255
    second: Tensor  # [H, W]
    prior: Tensor  # [2, H, W]
    coupling: Tensor  # [H, W]


def refine_pair_and_get_misfits(
    refinement_input: RefinementInput,
    config: RefinementConfig,
    position: PassPosition = ONLY_PASS,
    dual_inout: Tensor | None = None,  # [4, H, W]
) -> tuple[Tensor, Tensor]:
    """Refine one pair; return the flow [2, H, W], and the misfits before its first two rounds or the only one.

    The iterations continue with the dual variable, by default 0, of the pass before, and leave theirs there.
    """
    colours, first, second, prior, coupling = refinement_input
    edge = compute_edge_weights(colours, config.edges)
    first, second = apply_gaussian_blur(first, config.blur), apply_gaussian_blur(second, config.blur)
    one, two = torch.stack(compute_central_gradient(first)), torch.stack(compute_central_gradient(second))
    xx, xy = compute_central_gradient(one[0])
    yy = compute_central_gradient(one[1])[1]
    flow, dual = prior, torch.zeros_like(prior).repeat(2, 1, 1) if dual_inout is None else dual_inout.clone()
    warps, round_maps = position.count_warps(config), []
    for turn in range(config.rounds):
        for warp in range(warps):
            *system, fit = compute_linear_systems_and_fit(one, two, (xx, xy, yy), flow, prior, coupling, config)
            if warp == 0 and turn < JUDGED:
                round_maps.append(fit - LEAST_FIT)
            for _ in range(config.iterations):
                flow, dual = update_flow_and_dual(flow, dual, tuple(system), edge, config)
            if warp < warps - 1:
                flow = median_filter(flow, 5)
        flow = filter_motion_boundaries_by_weighted_median(flow, colours, fit, config, position)
    if dual_inout is not None:
        dual_inout.copy_(dual)
    return damp_large_flow_changes(prior, flow, config.trust), compute_mean_misfits(torch.stack(round_maps))


def compute_mean_misfits(gradient_agreements: Tensor) -> Tensor:
    """Return float64 [N], 0 ... 1: how badly gradients agree over targets in the frame, of maps [N, H, W].

    Those are 0 where the target lies outside.
    """
    # Row by row: no number of threads changes the order, and nothing of the planes' size is made.
    total, seen = (
        rows.double().sum(1)
        for rows in (gradient_agreements.sum(2), torch.linalg.vector_norm(gradient_agreements, 0, 2))
    )
    return 1 - total / seen.clamp_min(1)


def compute_gaussian_kernel(sigma: float) -> list[float]:
    """Return the weights at -r ... r, r = ceil(3 sigma); they sum to 1."""
    radius = math.ceil(3 * sigma)
    weights = [math.exp(-0.5 * (i / sigma) ** 2) if sigma else 1.0 for i in range(-radius, radius + 1)]
    return [w / sum(weights) for w in weights]


def apply_gaussian_blur(image: Tensor, sigma: float) -> Tensor:
    """Blur [H, W], borders replicated."""
    kernel = compute_gaussian_kernel(sigma)
    margin = len(kernel) // 2
    height, width = image.shape
    padded = pad(image[None, None], (0, 0, margin, margin), mode="replicate")[0, 0]
    image = sum(w * padded[i : i + height] for i, w in enumerate(kernel))  # type: ignore[assignment]
    padded = pad(image[None, None], (margin, margin, 0, 0), mode="replicate")[0, 0]
    return sum(w * padded[:, i : i + width] for i, w in enumerate(kernel))  # type: ignore[return-value]


def compute_edge_weights(colours: Tensor, sensitivity: float) -> Tensor:
    """Return [H, W]: 1 where the first frame [C, H, W] is flat; at least 0.05."""
    squared = torch.zeros_like(colours[0])
    for plane in colours:
        across, down = compute_forward_gradient(plane)
        squared = squared + across * across + down * down
    return torch.exp(-sensitivity * torch.sqrt(squared / len(colours))).clamp_min(0.05)


def compute_linear_systems_and_fit(
    first_gradient: Tensor,
    second_gradient: Tensor,
    second_derivatives: tuple[Tensor, Tensor, Tensor],
    flow: Tensor,
    prior: Tensor,
    coupling: Tensor,
    config: RefinementConfig,
) -> tuple[Tensor, ...]:
    """Return (M11, M12, M22, B1, B2, fit): M = (A + c + 1/step)^-1, B = M (r + c prior), with the data term's A u - r.

    ``fit``: how well the gradients say that the flow is right, for the weighted median.
    """
    (sampled_x, sampled_y), inside = warp_bicubic_and_mark_inside(second_gradient, flow)
    xx, xy, yy = second_derivatives
    rx, ry = sampled_x - first_gradient[0], sampled_y - first_gradient[1]
    data = inside.to(flow.dtype) * config.lambda_
    wx = data / torch.sqrt(rx * rx + config.epsilon**2)
    wy = data / torch.sqrt(ry * ry + config.epsilon**2)
    cx, cy = xx * flow[0] + xy * flow[1] - rx, xy * flow[0] + yy * flow[1] - ry
    a = wx * xx * xx + wy * xy * xy + coupling + 1 / config.step
    b = wx * xx * xy + wy * xy * yy
    d = wx * xy * xy + wy * yy * yy + coupling + 1 / config.step
    inverse = 1 / (a * d - b * b)
    r1 = wx * xx * cx + wy * xy * cy + coupling * prior[0]
    r2 = wx * xy * cx + wy * yy * cy + coupling * prior[1]
    fit = LEAST_FIT + inside.to(flow.dtype) / (1 + (rx * rx + ry * ry) / config.filter_residual**2)
    return d * inverse, -b * inverse, a * inverse, (d * r1 - b * r2) * inverse, (a * r2 - b * r1) * inverse, fit


def update_flow_and_dual(
    flow: Tensor,
    dual: Tensor,
    linear_system: tuple[Tensor, ...],
    edge_weights: Tensor,
    config: RefinementConfig,
) -> tuple[Tensor, Tensor]:
    """Run one iteration on flow [2, H, W] and dual [4, H, W]."""
    m11, m12, m22, b1, b2, *_ = linear_system
    ru, rv = (flow[n] / config.step + compute_divergence(dual[2 * n], dual[2 * n + 1], "adjoint") for n in range(2))
    flow = torch.stack([m11 * ru + m12 * rv + b1, m12 * ru + m22 * rv + b2])
    sigma = 0.25 / config.step
    new_dual = []
    for n in range(2):
        across, down = compute_forward_gradient(flow[n])
        a, b = dual[2 * n] + sigma * across, dual[2 * n + 1] + sigma * down
        shrink = edge_weights / torch.maximum(edge_weights, torch.sqrt(a * a + b * b))
        new_dual += [a * shrink, b * shrink]
    return flow, torch.stack(new_dual)


def filter_motion_boundaries_by_weighted_median(
    flow: Tensor,
    colours: Tensor,
    fit: Tensor,
    config: RefinementConfig,
    position: PassPosition = ONLY_PASS,
) -> Tensor:
    """Filter near motion boundaries: find the least weighted distance to the flows around, by Weiszfeld's steps.

    The last two of ``FILTER_STEPS`` read the neighbours on the squares of one colour of a chessboard each, the last one
    those of the pixel's own. Each of the steps before reads half of such squares.
    """
    radius = FILTER_RADIUS
    _, height, width = flow.shape
    jump = torch.stack([abs(d) for component in flow for d in compute_forward_gradient(component)]).amax(0)
    span = 2 * radius + 1
    active = max_pool2d(jump[None, None], span, 1, radius)[0, 0] > config.filter_threshold
    weights, flows, offsets = [], [], list[tuple[int, int]]()
    padded_flow = pad(flow, (radius,) * 4)
    guide = pad(colours, (radius,) * 4)
    fit = pad(fit, (radius,) * 4)
    for dy in range(span):
        for dx in range(span):
            nearness = 1 - ((dy - radius) ** 2 + (dx - radius) ** 2) / config.filter_reach**2
            if nearness <= 0:
                continue
            rows, columns = slice(dy, dy + height), slice(dx, dx + width)
            squared = ((guide[:, rows, columns] - colours) ** 2).sum(0)
            similarity = (1 - squared / (config.filter_colour**2 * len(colours))).clamp_min(0)
            weights.append(nearness * similarity * similarity * fit[rows, columns])
            flows.append(padded_flow[:, rows, columns])
            offsets.append((dy % 2, dx % 2))
    present = flow
    for soft, *starts in position.filter_steps:
        total, mean = torch.full_like(flow[0], 1e-12), torch.zeros_like(flow)
        for weight, other, (row, column) in zip(weights, flows, offsets, strict=True):
            if starts[row] != column:
                continue
            w = weight / torch.sqrt(((other - present) ** 2).sum(0) + soft**2)
            total, mean = total + w, mean + w * other
        present = mean / total
    return torch.where(active, present, flow)


def damp_large_flow_changes(prior: Tensor, flow: Tensor, damping_length_px: float) -> Tensor:
    """Apply the change of the flow, and less of it where it is large."""
    if damping_length_px == 0:
        return flow
    change = flow - prior
    return prior + torch.exp(-(change * change).sum(0) / damping_length_px**2) * change
