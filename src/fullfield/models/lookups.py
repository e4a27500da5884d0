"""Choice of the correlation lookup for frames of one size: the dense volume if it fits, or the best other backend."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.models.framing import padding_for
from fullfield.models.shape import NetworkShape
from fullfield.ops.correlation.protocol import LOOKUPS, Request, level_sizes

# Share of the free memory. The next caller finds the volume's blocks still reserved, and needs as much again.
_SHARE = 0.4
_CPU_BYTES = 2 << 30


class PairSize(NamedTuple):
    """Number, size and device of pairs of frames."""

    batch: int
    height: int
    width: int
    device: torch.device

    @classmethod
    def of(cls, frame: Tensor) -> PairSize:
        """Return the size of frames [B, C, H, W]."""
        batch, _, height, width = frame.shape
        return cls(batch, height, width, frame.device)

    @property
    def pixels(self) -> int:
        """Number of pixels of one frame."""
        return self.height * self.width


def lookup_request(config: NetworkShape, size: PairSize) -> Request:
    """Return what a network in float32 requests of the correlation lookup for frames of this size."""
    rows, columns = padding_for(size.height, size.width).cells(size.height, size.width)
    return Request(
        batch=size.batch,
        channels=config.matched_channels,
        size1=(rows, columns),
        sizes2=level_sizes(rows, columns, config.levels),
        radius=config.radius,
        dtype=torch.float32,
        device=size.device,
        pooled=True,
        precision=torch.get_float32_matmul_precision(),
    )


def dense_fits(request: Request) -> bool:
    """Return whether the volume takes at most 40 % of the GPU's free memory, or 2 GiB on the CPU."""
    if request.device.type == "cuda":
        reserved = torch.cuda.memory_reserved(request.device) - torch.cuda.memory_allocated(request.device)
        limit = int(_SHARE * (torch.cuda.mem_get_info(request.device)[0] + reserved))
    else:
        limit = _CPU_BYTES
    return request.volume_bytes <= limit and LOOKUPS.why_not("dense", request) is None
