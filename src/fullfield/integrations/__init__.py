"""Other projects' networks on our operators."""

from fullfield.integrations.handle import Handle

__all__ = ["Handle"]
