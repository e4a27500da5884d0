"""Warm starts: the previous pair's flow, each vector moved to where its pixel went."""

from fullfield.ops.splatting import carried as carried
from fullfield.ops.splatting import fill_holes as fill_holes
from fullfield.ops.splatting import moved_forward as moved_forward
