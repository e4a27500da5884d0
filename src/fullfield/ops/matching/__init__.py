"""Matching by a softmax over all positions or a window, and attention in linear memory."""

from fullfield.ops.matching.api import (
    explain_backends,
    global_attention,
    global_matching,
    local_attention,
    local_matching,
)

__all__ = ["explain_backends", "global_attention", "global_matching", "local_attention", "local_matching"]
