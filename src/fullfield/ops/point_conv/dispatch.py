"""Which backend convolves, and which makes triplets."""

from __future__ import annotations

from typing import Any

import torch

from fullfield.ops.backends import Backends

# By preference.
BACKENDS = ("cuda", "cpu", "reference")


class _Builders(Backends):
    def why_not(self, name: str, *request: torch.device) -> str | None:
        reason: str | None = self.load(name).builds(*request)
        return reason


CONVOLUTIONS = Backends("point_conv", f"{__package__}.", BACKENDS)
_BUILDERS = _Builders("point_conv", f"{__package__}.", BACKENDS)


def builder(device: torch.device) -> Any:
    """Return the backend that builds triplets on ``device``; the reference can on any."""
    return _BUILDERS.load(_BUILDERS.choose(None, device))
