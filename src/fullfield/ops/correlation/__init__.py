"""All-pairs correlation, looked up around given positions: exact, and linear in memory."""

from fullfield.ops.correlation.api import backends, correlation_lookup
from fullfield.ops.correlation.dispatch import BACKENDS
from fullfield.ops.correlation.pyramid import correlation_pyramid

__all__ = ["BACKENDS", "backends", "correlation_lookup", "correlation_pyramid"]
