"""The flow of the pair before as a start: every vector moves to where its pixel went."""

from fullfield.ops.splatting import carried as carried
from fullfield.ops.splatting import fill_holes as fill_holes
from fullfield.ops.splatting import moved_forward as moved_forward
