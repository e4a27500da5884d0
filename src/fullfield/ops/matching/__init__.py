"""Matching by a softmax over all positions or a window, and attention in linear memory."""

from fullfield.ops.matching.api import (
    BACKENDS,
    backends,
    global_attention,
    global_matching,
    local_attention,
    local_matching,
)

__all__ = ["BACKENDS", "backends", "global_attention", "global_matching", "local_attention", "local_matching"]
