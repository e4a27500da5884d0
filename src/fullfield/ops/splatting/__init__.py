"""Forward warping (splatting) of a flow field [2, H, W], and the filling of holes.

The functions use compiled kernels on the CPU and PyTorch elsewhere.
"""

from fullfield.ops.splatting.api import carried as carried
from fullfield.ops.splatting.api import fill_holes as fill_holes
from fullfield.ops.splatting.api import moved_forward as moved_forward
