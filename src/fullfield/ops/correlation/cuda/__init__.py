"""Kernels for NVIDIA GPUs from Turing on, compiled on the user's machine by NVRTC: linear memory, forward and backward.

Lookups and all gradients have the same bits in every run. A backward pass sums the gradients of its lookups per source
pixel and multiplies them with the features where a window has moved away, and at the end: see README.md.

float16 and bfloat16 features are multiplied as they are; float32 features as pairs of float16 at precision "highest"
(22 bits), as float16 at "high" (11 bits, as TF32) and as bfloat16 at "medium". GPUs before compute capability 8.0 take
float16 scaled by a power of two for bfloat16. Products are summed in float32. In the features' gradients the gradients
are rounded to the same types, float16 after scaling by a power of two.
"""

from __future__ import annotations

from fullfield.ops.correlation.cuda.launch import allocate_pair_state as allocate_pair_state
from fullfield.ops.correlation.cuda.launch import explain_unsupported as explain_unsupported
from fullfield.ops.correlation.cuda.launch import prepare_pair as prepare_pair
from fullfield.ops.correlation.cuda.launch import restore_pair as restore_pair

POOLS = True
