"""Other projects' networks on our operators."""

from fullfield.integrations.handle import Handle, Replacement
from fullfield.integrations.patching import patch

__all__ = ["Handle", "Replacement", "patch"]
