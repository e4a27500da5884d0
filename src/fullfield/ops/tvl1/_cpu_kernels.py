"""numba kernels of the CPU solver. Importing this module needs numba; nothing compiles until asked.

Planes lie in one flat float32 array. Row ``y`` of a plane starts ``(y + 1) * pitch + LEFT`` elements after the plane;
``pitch`` is a multiple of 16 with ``LEFT`` floats of padding before the row and at least 16 behind it, so that
whole vectors can be read and written everywhere. Lanes beyond the width hold finite values nobody uses.
"""

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
    build_pair_sorting_intrinsic,
    compute_reciprocal_above_else_zero,
    create_lane_numbers,
    floor,
    get_ones_where_within,
    load,
    maximum,
    minimum,
    splat,
    sqrt,
    store,
    store_truncated_int32,
    sum_weighted_quarters,
)
from fullfield.ops.tvl1.config import GRADIENT_FLOOR
from fullfield.ops.tvl1.config import __file__ as _config_file

LEFT = 16
# Planes of the state, in units of the plane size.
U, V, P11, P12, P21, P22, GX, GY, RHO, INV, I1, I1X, I1Y = range(13)
PLANES = 13
# And of the guided refinement's, behind the same flow and dual variable.
M11, M12, M22, B1, B2, EDGE = range(6, 12)
# Kinds of an iteration: the solver's, with either border, and the guided refinement's.
CLAMP, ADJOINT, GUIDED = range(3)
# Columns swept at a time: the rows of one step stay in L1, sixteen rows of ten planes in L2.
PANEL = 512
_SKEW = 16
_FLOOR = np.float32(GRADIENT_FLOOR)

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _simd_file, _config_file)
_jit = create_jit_decorator(CACHE)
_helper = create_helper_jit_decorator(CACHE)


@_helper
def _update_flow_row_segment(planes, plane_size, start, stop, row_above_offset, bound, theta):
    """Update u <- v + theta div p on one row segment; v is from the clamped data step."""
    high = splat(bound)
    low = splat(-bound)
    weight = splat(theta)
    for i in range(start, stop, 16):
        u = load(planes, i + U * plane_size)
        v = load(planes, i + V * plane_size)
        gx = load(planes, i + GX * plane_size)
        gy = load(planes, i + GY * plane_size)
        residual = gx * u + gy * v + load(planes, i + RHO * plane_size)
        step = minimum(maximum(residual * load(planes, i + INV * plane_size), low), high)
        p = i + P11 * plane_size
        q = i + P12 * plane_size
        store(
            planes,
            i + U * plane_size,
            u
            - step * gx
            + weight
            * ((load(planes, p) - load(planes, p - 1)) + (load(planes, q) - load(planes, q - row_above_offset))),
        )
        p = i + P21 * plane_size
        q = i + P22 * plane_size
        store(
            planes,
            i + V * plane_size,
            v
            - step * gy
            + weight
            * ((load(planes, p) - load(planes, p - 1)) + (load(planes, q) - load(planes, q - row_above_offset))),
        )


@_helper
def _update_dual_row_segment(planes, plane_size, start, stop, row_below_offset, slope):
    """Update p <- (p + slope grad u) / (1 + slope |grad u|) on one row segment."""
    one = splat(np.float32(1.0))
    k = splat(slope)
    for i in range(start, stop, 16):
        u = load(planes, i + U * plane_size)
        ux = load(planes, i + U * plane_size + 1) - u
        uy = load(planes, i + U * plane_size + row_below_offset) - u
        v = load(planes, i + V * plane_size)
        vx = load(planes, i + V * plane_size + 1) - v
        vy = load(planes, i + V * plane_size + row_below_offset) - v
        nu = one / (one + k * sqrt(ux * ux + uy * uy))
        nv = one / (one + k * sqrt(vx * vx + vy * vy))
        store(planes, i + P11 * plane_size, (load(planes, i + P11 * plane_size) + k * ux) * nu)
        store(planes, i + P12 * plane_size, (load(planes, i + P12 * plane_size) + k * uy) * nu)
        store(planes, i + P21 * plane_size, (load(planes, i + P21 * plane_size) + k * vx) * nv)
        store(planes, i + P22 * plane_size, (load(planes, i + P22 * plane_size) + k * vy) * nv)


@_helper
def _update_guided_flow_row_segment(planes, plane_size, start, stop, row_above_offset, inverse_tau):
    """Update u <- M (u / tau + div p) + B on one row segment."""
    k = splat(inverse_tau)
    for i in range(start, stop, 16):
        p = i + P11 * plane_size
        q = i + P12 * plane_size
        ru = k * load(planes, i + U * plane_size) + (
            (load(planes, p) - load(planes, p - 1)) + (load(planes, q) - load(planes, q - row_above_offset))
        )
        p = i + P21 * plane_size
        q = i + P22 * plane_size
        rv = k * load(planes, i + V * plane_size) + (
            (load(planes, p) - load(planes, p - 1)) + (load(planes, q) - load(planes, q - row_above_offset))
        )
        m = load(planes, i + M12 * plane_size)
        store(
            planes,
            i + U * plane_size,
            load(planes, i + M11 * plane_size) * ru + m * rv + load(planes, i + B1 * plane_size),
        )
        store(
            planes,
            i + V * plane_size,
            m * ru + load(planes, i + M22 * plane_size) * rv + load(planes, i + B2 * plane_size),
        )


@_helper
def _update_guided_dual_row_segment(planes, plane_size, start, stop, row_below_offset, sigma):
    """Update p <- p + sigma grad u, projected to |p| <= edge, on one row segment."""
    k = splat(sigma)
    minimum = splat(np.float32(1e-6))
    for i in range(start, stop, 16):
        edge = load(planes, i + EDGE * plane_size)
        u = load(planes, i + U * plane_size)
        a = load(planes, i + P11 * plane_size) + k * (load(planes, i + U * plane_size + 1) - u)
        b = load(planes, i + P12 * plane_size) + k * (load(planes, i + U * plane_size + row_below_offset) - u)
        shrink = edge / maximum(maximum(edge, minimum), sqrt(a * a + b * b))
        store(planes, i + P11 * plane_size, a * shrink)
        store(planes, i + P12 * plane_size, b * shrink)
        u = load(planes, i + V * plane_size)
        a = load(planes, i + P21 * plane_size) + k * (load(planes, i + V * plane_size + 1) - u)
        b = load(planes, i + P22 * plane_size) + k * (load(planes, i + V * plane_size + row_below_offset) - u)
        shrink = edge / maximum(maximum(edge, minimum), sqrt(a * a + b * b))
        store(planes, i + P21 * plane_size, a * shrink)
        store(planes, i + P22 * plane_size, b * shrink)


@_helper
def _compute_panel_columns(panel, columns, iteration):
    """Return the columns [x0, x1) of a panel in iteration k: shifted left by 16 per iteration, see README."""
    x0 = max(0, panel * PANEL - _SKEW * iteration)
    x1 = columns if (panel + 1) * PANEL >= columns else max(0, (panel + 1) * PANEL - _SKEW * iteration)
    return x0, x1


@_helper
def _update_flow_in_panel_row(
    planes, plane_size, pitch, width, columns, panel, iteration, y, iteration_kind, step_constants
):
    x0, x1 = _compute_panel_columns(panel, columns, iteration)
    if x0 < x1:
        row = (y + 1) * pitch + LEFT
        if iteration_kind == GUIDED:
            _update_guided_flow_row_segment(planes, plane_size, row + x0, row + x1, pitch, step_constants[0])
        else:
            _update_flow_row_segment(
                planes,
                plane_size,
                row + x0,
                row + x1,
                pitch if iteration_kind == ADJOINT or y > 0 else 0,
                step_constants[0],
                step_constants[1],
            )
        if x1 == columns:  # the forward difference vanishes at the right border
            planes[row + width + U * plane_size] = planes[row + width - 1 + U * plane_size]
            planes[row + width + V * plane_size] = planes[row + width - 1 + V * plane_size]


@_helper
def _update_dual_in_panel_row(
    planes, plane_size, pitch, height, columns, panel, iteration, y, iteration_kind, step_constants
):
    x0, x1 = _compute_panel_columns(panel, columns, iteration + 1)
    if x0 < x1:
        row = (y + 1) * pitch + LEFT
        down = pitch if y < height - 1 else 0
        if iteration_kind == GUIDED:
            _update_guided_dual_row_segment(planes, plane_size, row + x0, row + x1, down, step_constants[1])
        else:
            _update_dual_row_segment(planes, plane_size, row + x0, row + x1, down, step_constants[2])
        if x0 == 0 and iteration_kind == CLAMP:
            planes[row - 1 + P11 * plane_size] = planes[row + P11 * plane_size]
            planes[row - 1 + P21 * plane_size] = planes[row + P21 * plane_size]


@_jit
def iterate_strip(planes, plane_size, pitch, height, width, top, bottom, iterations, iteration_kind, step_constants):
    """Run ``iterations`` on rows [top, bottom) in one pass, as far as the strip's own rows allow.

    Inner borders recede by a row per iteration; ``iterate_seam`` fills what is left. In place and free of
    redundant work: every value a seam needs is still there when all strips are done. ``step_constants`` are (bound,
    theta, slope), of the kind GUIDED (inverse_tau, sigma, 0).
    """
    columns = (width + 15) // 16 * 16
    panels = (columns + PANEL - 1) // PANEL
    first = top == 0
    final = bottom == height
    for panel in range(panels):
        for step in range(top, bottom + iterations):
            for k in range(iterations):
                y = step - k
                low = top if first else top + k
                if y < low:
                    break
                if y < (bottom if final else bottom - k):
                    _update_flow_in_panel_row(
                        planes, plane_size, pitch, width, columns, panel, k, y, iteration_kind, step_constants
                    )
                if low <= y - 1 < (bottom if final else bottom - 1 - k):
                    _update_dual_in_panel_row(
                        planes, plane_size, pitch, height, columns, panel, k, y - 1, iteration_kind, step_constants
                    )


@_jit
def iterate_seam(planes, plane_size, pitch, height, width, seam, iterations, iteration_kind, step_constants):
    """Update the rows around ``seam``, the first row of the lower strip, after both strips have finished."""
    columns = (width + 15) // 16 * 16
    panels = (columns + PANEL - 1) // PANEL
    for panel in range(panels):
        for k in range(iterations):
            for y in range(seam - k, seam + k):
                _update_flow_in_panel_row(
                    planes, plane_size, pitch, width, columns, panel, k, y, iteration_kind, step_constants
                )
            for y in range(seam - k - 1, seam + k):
                _update_dual_in_panel_row(
                    planes, plane_size, pitch, height, columns, panel, k, y, iteration_kind, step_constants
                )


@_helper
def _compute_central_differences(image, height, width, y, x):
    """Return central differences, borders replicated."""
    half = np.float32(0.5)
    return (
        half * (image[y, min(x + 1, width - 1)] - image[y, max(x - 1, 0)]),
        half * (image[min(y + 1, height - 1), x] - image[max(y - 1, 0), x]),
    )


@_jit
def write_first_frame_and_gradient(planes, plane_size, pitch, height, width, top, bottom, image):
    """Write the first frame and its gradient to planes I1, I1X, I1Y."""
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        for x in range(width):
            planes[row + x + I1 * plane_size] = image[y, x]
            planes[row + x + I1X * plane_size], planes[row + x + I1Y * plane_size] = _compute_central_differences(
                image, height, width, y, x
            )


@_jit
def interleave_second_frame_and_gradient(image, interleaved_out, height, width, top, bottom):
    """Interleave (I, dI/dx, dI/dy, 0) of the second frame, with one replicated pixel before and two behind.

    ``image`` is [height, width]; ``interleaved_out`` is flat, [height + 3, width + 3, 4]; rows [top, bottom) of it
    are written.
    """
    for row in range(top, bottom):
        y = min(max(row - 1, 0), height - 1)
        out = row * (width + 3) * 4
        for column in range(width + 3):
            x = min(max(column - 1, 0), width - 1)
            interleaved_out[out] = image[y, x]
            interleaved_out[out + 1], interleaved_out[out + 2] = _compute_central_differences(
                image, height, width, y, x
            )
            interleaved_out[out + 3] = np.float32(0.0)
            out += 4


@_helper
def _store_cubic_weights(weights_out, first, fractions):
    """Store Keys' cubic convolution weights, a = -1/2, of the taps at -1, 0, 1, 2 for 16 fractions t."""
    half = splat(np.float32(0.5))
    one = splat(np.float32(1.0))
    two = splat(np.float32(2.0))
    three = splat(np.float32(3.0))
    four = splat(np.float32(4.0))
    five = splat(np.float32(5.0))
    store(weights_out, first, half * fractions * (fractions * (two - fractions) - one))
    store(weights_out, first + 16, half * (fractions * fractions * (three * fractions - five) + two))
    store(weights_out, first + 32, half * fractions * (fractions * (four - three * fractions) + one))
    store(weights_out, first + 48, half * fractions * fractions * (fractions - one))


@_helper
def _locate_targets_and_mark_inside(u, v, x, y, right, low, weights_out, corners_out):
    """Return the targets of pixels (x, y) ... (x + 15, y): corners, cubic weights; 1 inside the frame, 0 outside."""
    zero = splat(np.float32(0.0))
    px = splat(np.float32(x)) + create_lane_numbers() + u
    py = splat(np.float32(y)) + v
    inside = get_ones_where_within(px, zero, right) * get_ones_where_within(py, zero, low)
    px = minimum(maximum(px, zero), right)
    py = minimum(maximum(py, zero), low)
    ix = floor(px)
    iy = floor(py)
    _store_cubic_weights(weights_out, 0, px - ix)
    _store_cubic_weights(weights_out, 64, py - iy)
    store_truncated_int32(corners_out, 0, ix)
    store_truncated_int32(corners_out, 16, iy)
    return inside


@_helper
def _sample_interleaved_bicubic(interleaved_frame, stride, weights, corners, lane):
    """Return (I, dI/dx, dI/dy, 0) of the packed frame where ``_locate_targets_and_mark_inside`` put lane ``lane``."""
    at = np.intp(corners[16 + lane]) * stride + np.intp(corners[lane]) * 4
    taps = splat(weights[64 + lane]) * load(interleaved_frame, at) + splat(weights[80 + lane]) * load(
        interleaved_frame, at + stride
    )
    taps = taps + (
        splat(weights[96 + lane]) * load(interleaved_frame, at + 2 * stride)
        + splat(weights[112 + lane]) * load(interleaved_frame, at + 3 * stride)
    )
    return sum_weighted_quarters(taps, weights[lane], weights[16 + lane], weights[32 + lane], weights[48 + lane])


@_jit
def linearise_residual_rows(
    planes, plane_size, pitch, height, width, top, bottom, interleaved_frame, blend, weights_scratch, corners_scratch
):
    """Write the data term, linearised around the present flow.

    Samples the second frame and its gradient at x + u (bicubic), mixes in the first frame's gradient by ``blend``,
    then writes per pixel the gradient, the constant of the residual and 1/|gradient|^2. A pixel whose target lies
    outside the frame gets a zero gradient: no data term. ``weights_scratch`` holds 128 float32,
    ``corners_scratch`` 32 int32.
    """
    stride = (width + 3) * 4
    right = splat(np.float32(width - 1))
    low = splat(np.float32(height - 1))
    blend_weight = splat(blend)
    floor_ = splat(_FLOOR)
    for y in range(top, bottom):
        row = (y + 1) * pitch + LEFT
        for x in range(0, width, 16):
            i = row + x
            u = load(planes, i + U * plane_size)
            v = load(planes, i + V * plane_size)
            inside = _locate_targets_and_mark_inside(u, v, x, y, right, low, weights_scratch, corners_scratch)
            for k in range(16):
                value, gx, gy, _ = _sample_interleaved_bicubic(
                    interleaved_frame, stride, weights_scratch, corners_scratch, k
                )
                planes[i + k + RHO * plane_size] = value
                planes[i + k + GX * plane_size] = gx
                planes[i + k + GY * plane_size] = gy
            gx16 = load(planes, i + GX * plane_size)
            gy16 = load(planes, i + GY * plane_size)
            gx16 = inside * (gx16 + blend_weight * (load(planes, i + I1X * plane_size) - gx16))
            gy16 = inside * (gy16 + blend_weight * (load(planes, i + I1Y * plane_size) - gy16))
            difference = load(planes, i + RHO * plane_size) - load(planes, i + I1 * plane_size)
            store(planes, i + GX * plane_size, gx16)
            store(planes, i + GY * plane_size, gy16)
            store(planes, i + RHO * plane_size, inside * (difference - (gx16 * u + gy16 * v)))
            store(planes, i + INV * plane_size, compute_reciprocal_above_else_zero(gx16 * gx16 + gy16 * gy16, floor_))


@_jit
def resample_rows(
    source,
    source_pitch,
    width_in,
    target_out,
    target_pitch,
    width_out,
    tables_y,
    tables_x,
    scale,
    line_scratch,
    top,
    bottom,
):
    """Resample rows [top, bottom): target[y, x] = scale * sum of weight_y * weight_x * source.

    ``source`` and ``target_out`` are flat and begin at their pixel (0, 0); ``line_scratch`` holds one source row.
    """
    index_y, weight_y = tables_y
    index_x, weight_x = tables_x
    for y in range(top, bottom):
        for x in range(width_in):
            line_scratch[x] = np.float32(0.0)
        for t in range(index_y.shape[1]):
            w = weight_y[y, t] * scale
            row = index_y[y, t] * source_pitch
            for x in range(width_in):
                line_scratch[x] += w * source[row + x]
        out = y * target_pitch
        for x in range(width_out):
            value = np.float32(0.0)
            for t in range(index_x.shape[1]):
                value += weight_x[x, t] * line_scratch[index_x[x, t]]
            target_out[out + x] = value


_sort3 = build_pair_sorting_intrinsic((0, 1), (1, 2), (0, 1), returned_positions=(0, 1, 2))
_sort5 = build_pair_sorting_intrinsic(
    (0, 1), (3, 4), (2, 4), (2, 3), (0, 3), (0, 2), (1, 4), (1, 3), (1, 2), returned_positions=(0, 1, 2, 3, 4)
)
# Of so many values all but the smallest and the largest.
_inner8 = build_pair_sorting_intrinsic(
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (0, 2),
    (4, 6),
    (0, 4),
    (1, 3),
    (5, 7),
    (3, 7),
    returned_positions=(2, 1, 4, 3, 6, 5),
)
_inner7 = build_pair_sorting_intrinsic(
    (0, 1), (2, 3), (4, 5), (0, 2), (0, 4), (0, 6), (1, 3), (3, 5), (5, 6), returned_positions=(2, 1, 4, 3, 5)
)
_inner6 = build_pair_sorting_intrinsic(
    (0, 1), (2, 3), (4, 5), (0, 2), (0, 4), (1, 3), (3, 5), returned_positions=(2, 1, 4, 3)
)
_inner5 = build_pair_sorting_intrinsic((0, 1), (2, 3), (0, 2), (0, 4), (1, 3), (3, 4), returned_positions=(2, 1, 3))
_inner4 = build_pair_sorting_intrinsic((0, 1), (2, 3), (0, 2), (1, 3), returned_positions=(2, 1))


@_helper
def _compute_median3(a, b, c):
    return maximum(minimum(a, b), minimum(maximum(a, b), c))


@_helper
def _replicate_row_borders_inplace(planes, row, width, margin):
    for d in range(1, margin + 1):
        planes[row - d] = planes[row]
        planes[row + width - 1 + d] = planes[row + width - 1]


@_helper
def _filter_rows_by_median3x3(planes, target, plane, pitch, height, width, top, bottom, line_scratch):
    """Write the 3x3 median of the plane at offset ``plane``, borders replicated, to the same places of ``target``."""
    for y in range(top, bottom):
        row = plane + (y + 1) * pitch + LEFT
        above = row - pitch if y > 0 else row
        below = row + pitch if y < height - 1 else row
        n = pitch
        for x in range(0, width, 16):
            a, b, c = _sort3((load(planes, above + x), load(planes, row + x), load(planes, below + x)))
            store(line_scratch, LEFT + x, a)
            store(line_scratch, LEFT + x + n, b)
            store(line_scratch, LEFT + x + 2 * n, c)
        for rank in range(3):
            _replicate_row_borders_inplace(line_scratch, LEFT + rank * n, width, 1)
        for x in range(0, width, 16):
            i = LEFT + x
            low = maximum(maximum(load(line_scratch, i - 1), load(line_scratch, i)), load(line_scratch, i + 1))
            i += n
            middle = _compute_median3(load(line_scratch, i - 1), load(line_scratch, i), load(line_scratch, i + 1))
            i += n
            high = minimum(minimum(load(line_scratch, i - 1), load(line_scratch, i)), load(line_scratch, i + 1))
            store(target, row + x, _compute_median3(low, middle, high))


@_helper
def _load_five_horizontal_neighbors_sorted(line_scratch, i):
    return _sort5(
        (
            load(line_scratch, i - 2),
            load(line_scratch, i - 1),
            load(line_scratch, i),
            load(line_scratch, i + 1),
            load(line_scratch, i + 2),
        )
    )


@_helper
def _filter_rows_by_median5x5(planes, target, plane, pitch, height, width, top, bottom, line_scratch):
    """Write the 5x5 median of the plane at offset ``plane``, borders replicated, to the same places of ``target``.

    Columns are sorted once and shared by five windows, then each rank is sorted along the row. Of the 25 values of a
    doubly sorted window, six are too small and six too large to be the median; 13 are left.
    """
    n = pitch
    for y in range(top, bottom):
        row = plane + (y + 1) * pitch + LEFT
        up2 = plane + (max(y - 2, 0) + 1) * pitch + LEFT
        up1 = plane + (max(y - 1, 0) + 1) * pitch + LEFT
        down1 = plane + (min(y + 1, height - 1) + 1) * pitch + LEFT
        down2 = plane + (min(y + 2, height - 1) + 1) * pitch + LEFT
        for x in range(0, width, 16):
            a, b, c, d, e = _sort5(
                (
                    load(planes, up2 + x),
                    load(planes, up1 + x),
                    load(planes, row + x),
                    load(planes, down1 + x),
                    load(planes, down2 + x),
                )
            )
            store(line_scratch, LEFT + x, a)
            store(line_scratch, LEFT + x + n, b)
            store(line_scratch, LEFT + x + 2 * n, c)
            store(line_scratch, LEFT + x + 3 * n, d)
            store(line_scratch, LEFT + x + 4 * n, e)
        for rank in range(5):
            _replicate_row_borders_inplace(line_scratch, LEFT + rank * n, width, 2)
        for x in range(0, width, 16):
            i = LEFT + x
            _, _, _, a3, a4 = _load_five_horizontal_neighbors_sorted(line_scratch, i)
            _, _, b2, b3, b4 = _load_five_horizontal_neighbors_sorted(line_scratch, i + n)
            _, c1, c2, c3, _ = _load_five_horizontal_neighbors_sorted(line_scratch, i + 2 * n)
            d0, d1, d2, _, _ = _load_five_horizontal_neighbors_sorted(line_scratch, i + 3 * n)
            e0, e1, _, _, _ = _load_five_horizontal_neighbors_sorted(line_scratch, i + 4 * n)
            p, q, r, t, w, z = _inner8((a3, a4, b2, b4, c2, d0, d2, e0))
            p, q, r, t, w = _inner7((p, q, r, t, w, z, b3))
            p, q, r, t = _inner6((p, q, r, t, w, c1))
            p, q, r = _inner5((p, q, r, t, c3))
            p, q = _inner4((p, q, r, d1))
            store(target, row + x, _compute_median3(p, q, e1))


@_jit
def filter_rows_by_median(planes, plane_size, pitch, height, width, top, bottom, target, window_side, line_scratch):
    """Write the median of each flow component over ``window_side``² pixels, side 3 or 5, to ``target``."""
    for plane in range(2):
        if window_side == 3:
            _filter_rows_by_median3x3(
                planes, target, plane * plane_size, pitch, height, width, top, bottom, line_scratch
            )
        else:
            _filter_rows_by_median5x5(
                planes, target, plane * plane_size, pitch, height, width, top, bottom, line_scratch
            )


_f = types.float32
_i = types.intp
_flat = types.float32[::1]
_image = types.float32[:, ::1]
_table = types.Tuple((types.int32[:, ::1], types.float32[:, ::1]))

ENTRY_POINTS = {
    "iterate_strip": (iterate_strip, (_flat, *[_i] * 8, types.UniTuple(_f, 3))),
    "iterate_seam": (iterate_seam, (_flat, *[_i] * 7, types.UniTuple(_f, 3))),
    "write_first_frame_and_gradient": (write_first_frame_and_gradient, (_flat, *[_i] * 6, _image)),
    "interleave_second_frame_and_gradient": (interleave_second_frame_and_gradient, (_image, _flat, *[_i] * 4)),
    "linearise_residual_rows": (linearise_residual_rows, (_flat, *[_i] * 6, _flat, _f, _flat, types.int32[::1])),
    "resample_rows": (resample_rows, (_flat, _i, _i, _flat, _i, _i, _table, _table, _f, _flat, _i, _i)),
    "filter_rows_by_median": (filter_rows_by_median, (_flat, *[_i] * 6, _flat, _i, _flat)),
}
