"""What every launch needs: the device, its compiled kernels, and the parameters that all kernels of a pair share."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, nvrtc
from fullfield.ops.correlation.cuda.config import Config
from fullfield.ops.correlation.cuda.structs import Params
from fullfield.ops.correlation.protocol import Request

LIBRARIES = Libraries("correlation kernels")


@dataclass(frozen=True)
class Device:
    """What the launches have to know of a device."""

    index: int
    arch: str
    hopper: bool
    shared: int
    """Bytes of shared memory that a block may take."""
    processors: int


@functools.cache
def _device_at(index: int) -> Device:
    about = torch.cuda.get_device_properties(index)
    arch = nvrtc().target((about.major, about.minor))
    shared = about.shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return Device(index, arch, arch == "sm_90a", shared, about.multi_processor_count)


def device_of(request: Request) -> Device:
    index = request.device.index
    return _device_at(torch.cuda.current_device() if index is None else index)


def current_device() -> int:
    index: int = torch._C._cuda_getDevice()  # type: ignore[attr-defined, unused-ignore]
    return index


def offsets(request: Request, config: Config) -> list[int]:
    """Where every level begins, in 16-bit elements."""
    found, offset = [], 0
    for height, width in request.sizes2:
        found.append(offset)
        offset += request.batch * height * width * config.row_length
    return found


def fill(params: Params, request: Request, config: Config, f1: Tensor, f2: Tensor) -> None:
    """Everything that lookups of one pair have in common."""
    params.f1, params.f2 = f1.data_ptr(), f2.data_ptr()
    params.batch, params.levels = request.batch, request.levels
    params.height, params.width = request.size1
    for level, (offset, (height, width)) in enumerate(zip(offsets(request, config), request.sizes2, strict=True)):
        params.level_offset[level], params.level_h[level], params.level_w[level] = offset, height, width
    params.tiles_x, params.tiles_y = -(-params.width // config.block), -(-params.height // config.tile_height)
    params.tiles = params.batch * params.tiles_x * params.tiles_y
