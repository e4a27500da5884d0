"""All-pairs correlation looked up around given positions: exact, in linear memory."""

from fullfield.ops.correlation.api import correlation_lookup, correlation_pyramid, explain_backends

__all__ = ["correlation_lookup", "correlation_pyramid", "explain_backends"]
