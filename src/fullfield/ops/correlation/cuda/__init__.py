"""Kernels for NVIDIA GPUs from Turing on, compiled on the user's machine by NVRTC: linear memory, forward and backward.

Lookups and all gradients have the same bits in every run. A backward pass adds the gradients of its lookups up per
source pixel and multiplies them with the features where a window has moved away, and at the end: see README.md.

float16 and bfloat16 features are multiplied as they are; float32 features as pairs of float16 at precision "highest"
(22 bits), as float16 at "high" (11 bits, as TF32) and as bfloat16 at "medium". Products are summed in float32. In
the features' gradients the gradients are rounded to the same types, float16 after scaling by a power of two.
"""

from __future__ import annotations

from fullfield.ops import launching
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.cuda.launch import empty_state as empty_state
from fullfield.ops.correlation.cuda.launch import prepare as prepare
from fullfield.ops.correlation.cuda.launch import restore as restore
from fullfield.ops.correlation.protocol import Request

POOLS = True


def supports(request: Request) -> str | None:
    reason = launching.why_not(request.device)
    if reason is not None:
        return reason
    if request.dtype not in launching.CODES:
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    if request.radius > shapes.LARGEST_RADIUS or request.levels > shapes.MOST_LEVELS:
        return (
            f"needs radius <= {shapes.LARGEST_RADIUS} and levels <= {shapes.MOST_LEVELS}, "
            f"got {request.radius} and {request.levels}"
        )
    return _too_large(request)


def _too_large(request: Request) -> str | None:
    pixels = request.size1[0] * request.size1[1]
    most = (1 << 32) // (4 * request.side) - 1  # distances between taps are 32-bit
    if pixels > most:
        return f"needs a first map of at most {most} pixels, got {pixels}"
    device = launching.device_of(request.device)
    config, shared = shapes.forward_config(request, device), device.shared
    own, less = shapes.gradient_config(config), f"more shared memory than the {shared >> 10} KiB of a block here"
    if shapes.collect_shared(shapes.patch_side(own, shared)) > shared:
        return f"a radius of {request.radius} needs {less}"
    most_used = max(shapes.coords_shared(config), shapes.multiply_shared(own, *shapes.multiply_form(own, shared)))
    if most_used > shared or shapes.lookup_config(config, 0, False, shared) is None:
        return f"{request.channels} channels need {less}"
    return None
