"""Kernels for NVIDIA GPUs from Turing on, compiled on the user's machine by NVRTC.

float16 and bfloat16 features are multiplied as they are; float32 features as pairs of float16 at precision "highest"
(22 bits), as float16 at "high" (11 bits, as TF32) and as bfloat16 at "medium". GPUs before compute capability 8.0
multiply bfloat16 features as float32 ones at "high". Products are summed in float32. The same
bits in every run on one kind of GPU.
"""

from __future__ import annotations

import torch

from fullfield.ops import _launching
from fullfield.ops.point_conv.cuda.launch import convolve_triplets as convolve_triplets
from fullfield.ops.point_conv.cuda.launch import sum_outer_products as sum_outer_products
from fullfield.ops.point_conv.cuda.triplets import build_all_triplets as build_all_triplets
from fullfield.ops.point_conv.cuda.triplets import build_triplets as build_triplets
from fullfield.ops.point_conv.cuda.triplets import explain_triplets_unsupported as explain_triplets_unsupported
from fullfield.ops.point_conv.cuda.triplets import transpose_all_triplets as transpose_all_triplets
from fullfield.ops.point_conv.cuda.triplets import transpose_triplets as transpose_triplets
from fullfield.ops.point_conv.protocol import ConvRequest

TRANSPOSES = True


def explain_unsupported(request: ConvRequest) -> str | None:
    """Return None if the kernels can serve the request, else the reason."""
    if request.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    return _launching.explain_unsupported_device(request.device)
