"""Matching by a softmax over all positions or a window, and attention in linear memory."""

from fullfield.ops.matching.api import (
    global_attention,
    global_matching,
    list_backends,
    local_attention,
    local_matching,
)

__all__ = ["global_attention", "global_matching", "list_backends", "local_attention", "local_matching"]
