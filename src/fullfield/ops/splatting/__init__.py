"""Vectors carried to where they point: scattered, shared out, and the holes between them filled.

Plain functions on one flow field [2, H, W]; compiled kernels on the CPU, PyTorch elsewhere.
"""

from fullfield.ops.splatting.api import carried as carried
from fullfield.ops.splatting.api import fill_holes as fill_holes
from fullfield.ops.splatting.api import moved_forward as moved_forward
