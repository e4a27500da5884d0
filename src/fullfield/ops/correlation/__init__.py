"""All-pairs correlation looked up around given positions: exact, in linear memory."""

from fullfield.ops.correlation import op as op  # registers the operators
from fullfield.ops.correlation.api import backends, correlation_lookup
from fullfield.ops.correlation.protocol import BACKENDS
from fullfield.ops.correlation.pyramid import correlation_pyramid

__all__ = ["BACKENDS", "backends", "correlation_lookup", "correlation_pyramid"]
