"""All-pairs correlation looked up around given positions: exact, in linear memory."""

from fullfield.ops.correlation.api import backends, correlation_lookup, correlation_pyramid
from fullfield.ops.correlation.protocol import BACKENDS

__all__ = ["BACKENDS", "backends", "correlation_lookup", "correlation_pyramid"]
