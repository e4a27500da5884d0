"""All-pairs correlation looked up around given positions: exact, in linear memory."""

from fullfield.ops.correlation.api import backends, correlation_lookup, correlation_pyramid

__all__ = ["backends", "correlation_lookup", "correlation_pyramid"]
