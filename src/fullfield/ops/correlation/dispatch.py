"""Choice of a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import torch

from fullfield.ops.backends import Backends
from fullfield.ops.correlation.protocol import Request

# By preference. An automatic choice takes the first that can, and "dense" only where its volume is small.
BACKENDS = ("cuda", "cpu", "dense", "reference")
# Without a kernel the volume is faster than the reference wherever it fits, so what an automatic choice keeps is a
# question of memory: this share of a GPU's, elsewhere so many bytes. Both the same for every pair of a sequence.
DENSE_SHARE = 1 / 8
DENSE_BYTES = 1 << 30


class _Lookups(Backends):
    def considers(self, name: str, *request: Request) -> bool:
        if name == "dense":
            return request[0].device.type != "cpu" and not _too_large(request[0])
        return True

    def why_not(self, name: str, *request: Request) -> str | None:
        reason = super().why_not(name, *request)
        if reason is None and request[0].reuse and not getattr(self.load(name), "REUSES", False):
            return "keeps no products between lookups (reuse=True)"
        return reason


LOOKUPS = _Lookups("correlation_lookup", f"{__package__}.", BACKENDS)


def _too_large(request: Request) -> bool:
    from fullfield.ops.correlation.dense import volume_bytes

    limit = float(DENSE_BYTES)
    if request.device.type == "cuda" and torch.cuda.is_available():
        limit = torch.cuda.get_device_properties(request.device).total_memory * DENSE_SHARE
    return volume_bytes(request) * (1 + request.grad) > limit
