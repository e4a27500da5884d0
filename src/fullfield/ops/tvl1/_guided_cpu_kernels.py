"""numba kernels of the guided refinement. Planes lie as in ``_cpu_kernels``; nothing compiles until asked."""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import (
    create_helper_jit_decorator,
    create_jit_decorator,
    find_or_create_numba_cache_folder_or_none,
)
from fullfield._kernels.simd import __file__ as _simd_file
from fullfield._kernels.simd import (
    approximate_rsqrt,
    get_ones_where_within,
    is_any_lane_above_zero,
    load,
    maximum,
    splat,
    sqrt,
    store,
)
from fullfield.ops.tvl1._cpu_kernels import (
    B1,
    B2,
    EDGE,
    GUIDED,  # noqa: F401 - of this module, too
    LEFT,
    M11,
    M12,
    M22,
    P11,  # noqa: F401
    P22,  # noqa: F401
    U,
    V,
    _compute_central_differences,
    _locate_targets_and_mark_inside,
    _sample_interleaved_bicubic,
    filter_rows_by_median,  # noqa: F401
    interleave_second_frame_and_gradient,  # noqa: F401
    iterate_seam,  # noqa: F401
    iterate_strip,  # noqa: F401
)
from fullfield.ops.tvl1._cpu_kernels import ENTRY_POINTS as SOLVER
from fullfield.ops.tvl1._cpu_kernels import __file__ as _shared_file
from fullfield.ops.tvl1.config import FILTER_RADIUS as RADIUS
from fullfield.ops.tvl1.config import LEAST_FIT
from fullfield.ops.tvl1.config import __file__ as _config_file

# Planes of the state behind those that `_cpu_kernels` names, in units of the plane size.
AX, AY, AXX, AXY, AYY, COUPLING, FU, FV, FIT = range(12, 21)
PLANES = 21
SPAN = 2 * RADIUS + 1

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _simd_file, _shared_file, _config_file)
_jit = create_jit_decorator(CACHE)
_helper = create_helper_jit_decorator(CACHE)


@_jit
def compute_linear_system_rows(
    planes,
    plane_size,
    pitch,
    height,
    width,
    top,
    bottom,
    interleaved_frame,
    lambda_,
    epsilon,
    inverse_tau,
    fit_residual,
    weights_scratch,
    corners_scratch,
):
    """Compute the 2x2 systems of rows [top, bottom): M = (A + c + 1/tau)^-1 and B = M (r + c f), at the current flow.

    ``interleaved_frame`` is the second frame in the layout of ``_cpu_kernels.interleave_second_frame_and_gradient``,
    whose gradient is used; ``weights_scratch`` (128 float32) and ``corners_scratch`` (32 int32) are scratch.
    """
    stride = (width + 3) * 4
    zero = splat(np.float32(0.0))
    right = splat(np.float32(width - 1))
    low = splat(np.float32(height - 1))
    small = splat(epsilon * epsilon)
    k = splat(inverse_tau)
    one = splat(np.float32(1.0))
    strength = splat(lambda_)
    half_at = splat(fit_residual * fit_residual)
    minimum_fit = splat(np.float32(LEAST_FIT))
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        for x in range(0, width, 16):
            i = row + x
            u = load(planes, i + U * plane_size)
            v = load(planes, i + V * plane_size)
            inside = _locate_targets_and_mark_inside(u, v, x, y, right, low, weights_scratch, corners_scratch)
            for n in range(16):
                _, gx, gy, _ = _sample_interleaved_bicubic(
                    interleaved_frame, stride, weights_scratch, corners_scratch, n
                )
                planes[i + n + B1 * plane_size] = gx
                planes[i + n + B2 * plane_size] = gy
            xx = load(planes, i + AXX * plane_size)
            xy = load(planes, i + AXY * plane_size)
            yy = load(planes, i + AYY * plane_size)
            rx = load(planes, i + B1 * plane_size) - load(planes, i + AX * plane_size)
            ry = load(planes, i + B2 * plane_size) - load(planes, i + AY * plane_size)
            data = inside * strength
            wx = data / sqrt(rx * rx + small)
            wy = data / sqrt(ry * ry + small)
            store(planes, i + FIT * plane_size, inside * half_at / (half_at + (rx * rx + ry * ry)) + minimum_fit)
            cx = xx * u + xy * v - rx
            cy = xy * u + yy * v - ry
            fu = load(planes, i + FU * plane_size)
            fv = load(planes, i + FV * plane_size)
            c = load(planes, i + COUPLING * plane_size)
            a = wx * xx * xx + wy * xy * xy + c + k
            b = wx * xx * xy + wy * xy * yy
            d = wx * xy * xy + wy * yy * yy + c + k
            inverse = one / (a * d - b * b)
            r1 = wx * xx * cx + wy * xy * cy + c * fu
            r2 = wx * xy * cx + wy * yy * cy + c * fv
            store(planes, i + M11 * plane_size, d * inverse)
            store(planes, i + M12 * plane_size, zero - b * inverse)
            store(planes, i + M22 * plane_size, a * inverse)
            store(planes, i + B1 * plane_size, (d * r1 - b * r2) * inverse)
            store(planes, i + B2 * plane_size, (a * r2 - b * r1) * inverse)


@_helper
def _write_row_flow_jumps(planes, plane_size, pitch, height, width, y, jumps_out, jumps_start):
    """Write to jumps_out[jumps_start + x] the largest forward difference in row ``y``, 0 beyond the frame's sides."""
    zero = splat(np.float32(0.0))
    row = (y + 1) * pitch + LEFT
    down = pitch if y < height - 1 else 0
    for x in range(0, width, 16):
        i = row + x
        largest = zero
        for _ in range(2):
            u = load(planes, i)
            across = load(planes, i + 1) - u
            below = load(planes, i + down) - u
            largest = maximum(largest, maximum(maximum(across, zero - across), maximum(below, zero - below)))
            i += plane_size
        store(jumps_out, jumps_start + x, largest)
    for x in range(jumps_start + width, jumps_start - LEFT + pitch):
        jumps_out[x] = np.float32(0.0)


@_helper
def _mark_columns_near_flow_jumps(jumps, pitch, width, first, last, threshold, active_out):
    """Set active_out[x] to 1 if a jump above ``threshold`` in rows [first, last] is within RADIUS columns, else to 0.

    Row y of the image is row ``y % SPAN`` of ``jumps``; the row after them is scratch.
    """
    zero = splat(np.float32(0.0))
    one = splat(np.float32(1.0))
    low = splat(np.float32(-3e38))
    limit = splat(threshold)
    line = SPAN * pitch + LEFT
    for x in range(0, width, 16):
        largest = zero
        for y in range(first, last + 1):
            largest = maximum(largest, load(jumps, y % SPAN * pitch + LEFT + x))
        store(jumps, line + x, largest)
    for x in range(0, width, 16):
        largest = zero
        for dx in range(-RADIUS, RADIUS + 1):
            largest = maximum(largest, load(jumps, line + x + dx))
        store(active_out, x, one - get_ones_where_within(largest, low, limit))


@_jit
def filter_by_weighted_median_rows(
    planes,
    plane_size,
    pitch,
    height,
    width,
    top,
    bottom,
    colours,
    channels,
    flow_out,
    colour_range,
    nearness,
    threshold,
    steps,
    lines_scratch,
    weights_scratch,
):
    """Filter the flow near motion boundaries by a weighted median into ``flow_out``, two planes of the same layout.

    ``colours``: planes in the state's layout, 1e4 beyond the frame's sides; ``nearness``: the neighbours' weights by
    distance, row after row; ``steps``: rows of ``config.FILTER_STEPS``; ``lines_scratch`` ((SPAN + 2) pitches) and
    ``weights_scratch`` (SPAN^2 * 16) are scratch.
    """
    one = splat(np.float32(1.0))
    zero = splat(np.float32(0.0))
    scale = splat(np.float32(1.0) / (colour_range * colour_range * np.float32(channels)))
    jumps = lines_scratch[: (SPAN + 1) * pitch]
    active = lines_scratch[(SPAN + 1) * pitch :]
    for x in range((SPAN + 2) * pitch):
        lines_scratch[x] = np.float32(0.0)
    for plane in range(2):
        for y in range(max(0, top - RADIUS), min(height, bottom + RADIUS)):
            i = (y + 1) * pitch + LEFT + width + plane * plane_size
            planes[i] = planes[i - 1]
    for y in range(max(0, top - RADIUS), min(height, top + RADIUS)):
        _write_row_flow_jumps(planes, plane_size, pitch, height, width, y, jumps, y % SPAN * pitch + LEFT)
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        first = max(0, y - RADIUS)
        last = min(height - 1, y + RADIUS)
        if last == y + RADIUS:
            _write_row_flow_jumps(planes, plane_size, pitch, height, width, last, jumps, last % SPAN * pitch + LEFT)
        _mark_columns_near_flow_jumps(jumps, pitch, width, first, last, threshold, active)
        for x in range(0, width, 16):
            i = row + x
            is_active = load(active, x)
            u = load(planes, i)
            v = load(planes, i + plane_size)
            if not is_any_lane_above_zero(is_active):
                store(flow_out, i, u)
                store(flow_out, i + plane_size, v)
                continue
            red = load(colours, i)
            k = 0
            for yy in range(first, last + 1):
                j = (yy + 1) * pitch + LEFT + x - RADIUS
                row_start = (yy - y + RADIUS) * SPAN
                for dx in range(SPAN):
                    e = load(colours, j + dx) - red
                    d = e * e
                    for c in range(1, channels):
                        e = load(colours, j + dx + c * plane_size) - load(colours, i + c * plane_size)
                        d = d + e * e
                    w = maximum(one - d * scale, zero)
                    store(
                        weights_scratch,
                        k,
                        splat(nearness[row_start + dx]) * w * w * load(planes, j + dx + FIT * plane_size),
                    )
                    k += 16
            cu = u
            cv = v
            for step in range(len(steps)):
                soft = steps[step, 0]
                e2 = splat(soft * soft)
                su = zero
                sv = zero
                sw = splat(np.float32(1e-12))
                for yy in range(first, last + 1):
                    j = (yy + 1) * pitch + LEFT + x - RADIUS
                    column = int(steps[step, 1 + (yy - y + RADIUS) % 2])
                    if column < 0:
                        continue
                    q = ((yy - first) * SPAN + column) * 16
                    for dx in range(j + column, j + SPAN, 2):
                        a = load(planes, dx)
                        b = load(planes, dx + plane_size)
                        du = a - cu
                        dv = b - cv
                        w = load(weights_scratch, q) * approximate_rsqrt(du * du + (dv * dv + e2))
                        su = su + w * a
                        sv = sv + w * b
                        sw = sw + w
                        q += 32
                cu = su / sw
                cv = sv / sw
            store(flow_out, i, u + is_active * (cu - u))
            store(flow_out, i + plane_size, v + is_active * (cv - v))


@_jit
def blur_rows(source, blurred_out, height, width, top, bottom, kernel, line_scratch):
    """Blur rows [top, bottom) with a Gaussian, borders replicated; ``line_scratch`` holds a row."""
    margin = len(kernel) // 2
    for y in range(top, bottom):
        for x in range(width):
            line_scratch[x] = np.float32(0.0)
        for t in range(len(kernel)):
            yy = min(max(y + t - margin, 0), height - 1)
            for x in range(width):
                line_scratch[x] += kernel[t] * source[yy, x]
        for x in range(width):
            value = np.float32(0.0)
            for t in range(len(kernel)):
                value += kernel[t] * line_scratch[min(max(x + t - margin, 0), width - 1)]
            blurred_out[y, x] = value


@_jit
def write_second_derivatives_and_flow(planes, plane_size, pitch, height, width, top, bottom, first_frame, prior):
    """Write the derivatives of the first frame, and the given flow."""
    half = np.float32(0.5)
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        up = max(y - 1, 0)
        down = min(y + 1, height - 1)
        for x in range(width):
            left = max(x - 1, 0)
            right = min(x + 1, width - 1)
            planes[row + x + AX * plane_size], planes[row + x + AY * plane_size] = _compute_central_differences(
                first_frame, height, width, y, x
            )
            rx, ry = _compute_central_differences(first_frame, height, width, y, right)
            lx, ly = _compute_central_differences(first_frame, height, width, y, left)
            _, by = _compute_central_differences(first_frame, height, width, down, x)
            _, ay = _compute_central_differences(first_frame, height, width, up, x)
            planes[row + x + AXX * plane_size] = half * (rx - lx)
            planes[row + x + AXY * plane_size] = half * (ry - ly)
            planes[row + x + AYY * plane_size] = half * (by - ay)
            planes[row + x + FU * plane_size] = prior[0, y, x]
            planes[row + x + FV * plane_size] = prior[1, y, x]


@_jit
def write_coupling_weight_rows(
    planes, plane_size, pitch, height, width, top, bottom, prior, backward, base, consistent, distance
):
    """Write the coupling from the forward-backward distance of ``ops.consistency``.

    The coupling is ``base`` if ``backward`` has no rows.
    """
    one = np.float32(1.0)
    scale = one / (distance * distance)
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        for x in range(width):
            weight = base
            px = np.float32(x) + prior[0, y, x]
            py = np.float32(y) + prior[1, y, x]
            if len(backward[0]) > 0 and 0 <= px <= width - 1 and 0 <= py <= height - 1:
                left = min(int(px), max(width - 2, 0))
                above = min(int(py), max(height - 2, 0))
                right = min(left + 1, width - 1)
                below = min(above + 1, height - 1)
                tx = px - np.float32(left)
                ty = py - np.float32(above)
                squared = np.float32(0.0)
                for n in range(2):
                    upper = backward[n, above, left] * (one - tx) + backward[n, above, right] * tx
                    lower = backward[n, below, left] * (one - tx) + backward[n, below, right] * tx
                    residual = upper * (one - ty) + lower * ty + prior[n, y, x]
                    squared += residual * residual
                weight += consistent / (one + squared * scale)
            planes[row + x + COUPLING * plane_size] = weight


@_jit
def write_edge_weight_rows(planes, plane_size, pitch, height, width, top, bottom, colours, sensitivity, guide_out):
    """Write the weight of the smoothness, and the colours into the planes of ``guide_out``."""
    channels = colours.shape[0]
    channel_weight = np.float32(1.0) / np.float32(channels)
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        down = min(y + 1, height - 1)
        for x in range(width):
            right = min(x + 1, width - 1)
            total = np.float32(0.0)
            for c in range(channels):
                value = colours[c, y, x]
                guide_out[row + x + c * plane_size] = value
                across = colours[c, y, right] - value
                below = colours[c, down, x] - value
                total += across * across + below * below
            planes[row + x + EDGE * plane_size] = max(
                np.exp(-sensitivity * np.sqrt(total * channel_weight)), np.float32(0.05)
            )


@_jit
def damp_large_flow_changes_in_rows(planes, plane_size, pitch, width, top, bottom, damping_length_px, flow_out):
    """Apply the change of the flow, and less of it where it is large; with ``damping_length_px`` 0 all of it."""
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        for x in range(width):
            i = row + x
            du = planes[i + U * plane_size] - planes[i + FU * plane_size]
            dv = planes[i + V * plane_size] - planes[i + FV * plane_size]
            remaining = (
                np.exp(-(du * du + dv * dv) / (damping_length_px * damping_length_px))
                if damping_length_px > 0
                else np.float32(1.0)
            )
            flow_out[0, y, x] = planes[i + FU * plane_size] + remaining * du
            flow_out[1, y, x] = planes[i + FV * plane_size] + remaining * dv


_f = types.float32
_i = types.intp
_flat = types.float32[::1]
_image = types.float32[:, ::1]
_stack = types.float32[:, :, ::1]

ENTRY_POINTS = {
    **{
        name: SOLVER[name]
        for name in (
            "interleave_second_frame_and_gradient",
            "filter_rows_by_median",
            "iterate_strip",
            "iterate_seam",
        )
    },
    "compute_linear_system_rows": (
        compute_linear_system_rows,
        (_flat, *[_i] * 6, _flat, *[_f] * 4, _flat, types.int32[::1]),
    ),
    "blur_rows": (blur_rows, (_image, _image, *[_i] * 4, _flat, _flat)),
    "write_second_derivatives_and_flow": (write_second_derivatives_and_flow, (_flat, *[_i] * 6, _image, _stack)),
    "write_coupling_weight_rows": (write_coupling_weight_rows, (_flat, *[_i] * 6, _stack, _stack, _f, _f, _f)),
    "write_edge_weight_rows": (write_edge_weight_rows, (_flat, *[_i] * 6, _stack, _f, _flat)),
    "damp_large_flow_changes_in_rows": (damp_large_flow_changes_in_rows, (_flat, *[_i] * 5, _f, _stack)),
    "filter_by_weighted_median_rows": (
        filter_by_weighted_median_rows,
        (_flat, *[_i] * 6, _flat, _i, _flat, _f, _flat, _f, _image, _flat, _flat),
    ),
}
