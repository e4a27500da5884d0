"""Which backend looks up the correlation at one size; "mixed" keeps the dense volume up to the largest that fits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.models.framing import padding_for
from fullfield.models.raft.config import RAFTConfig
from fullfield.models.sea_raft.config import SEARAFTConfig
from fullfield.ops.correlation.dense import volume_bytes
from fullfield.ops.correlation.dispatch import LOOKUPS
from fullfield.ops.correlation.protocol import Request
from fullfield.ops.correlation.pyramid import level_sizes

# Of the free memory. Whoever comes next finds the volume's blocks still reserved, and needs as much again.
_SHARE = 0.4
_CPU_BYTES = 2 << 30


class PairSize(NamedTuple):
    """How many pairs of which size, and where."""

    batch: int
    height: int
    width: int
    device: torch.device

    @classmethod
    def of(cls, frame: Tensor) -> PairSize:
        """Of frames [B, C, H, W]."""
        batch, _, height, width = frame.shape
        return cls(batch, height, width, frame.device)

    @property
    def pixels(self) -> int:
        """Of one frame."""
        return self.height * self.width


def lookup_request(config: RAFTConfig | SEARAFTConfig, size: PairSize) -> Request:
    """What a network in float32 asks of the correlation lookup for frames of this size."""
    rows, columns = padding_for(size.height, size.width).cells(size.height, size.width)
    return Request(
        batch=size.batch,
        channels=config.feature_channels if isinstance(config, RAFTConfig) else 2 * config.channels,
        size1=(rows, columns),
        sizes2=level_sizes(rows, columns, config.levels),
        radius=config.radius,
        dtype=torch.float32,
        device=size.device,
        pooled=True,
        precision=torch.get_float32_matmul_precision(),
    )


def dense_fits(request: Request) -> bool:
    """Whether the volume takes at most 40 % of the GPU's free memory; elsewhere, 2 GiB."""
    if request.device.type == "cuda":
        reserved = torch.cuda.memory_reserved(request.device) - torch.cuda.memory_allocated(request.device)
        room = int(_SHARE * (torch.cuda.mem_get_info(request.device)[0] + reserved))
    else:
        room = _CPU_BYTES
    return volume_bytes(request) <= room and LOOKUPS.why_not("dense", request) is None
