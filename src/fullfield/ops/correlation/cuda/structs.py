"""Parameters of the launches as the CUDA sources declare them, tensor maps, and counters of persistent lookups."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import LibraryCache, get_graph_capture_id_or_zero, write_tensor_map_to_address
from fullfield.ops._launching import parse_structures
from fullfield.ops.correlation.cuda.config import KernelConfig
from fullfield.ops.correlation.protocol import LookupRequest

LIBRARIES = LibraryCache("correlation kernels")
_FOLDER = Path(__file__).parent
_DECLARED = parse_structures(
    *(_FOLDER / name for name in ("common.cuh", "gradients.cuh", "coords_gradient.cu", "prepare.cu")),
)
Params, GradientParams, CoordsParams, MapSource, PrepareParams = map(
    _DECLARED.__getitem__, ("Params", "GradientParams", "CoordsParams", "Source", "PrepareParams")
)


def find_graph_capture_id_or_zero(stream: int) -> int:
    """Return the graph that captures ``stream``, the current one; 0 if none does, as for the default stream."""
    capturing = stream and torch._C._cuda_isCurrentStreamCapturing()  # type: ignore[attr-defined, unused-ignore]
    return get_graph_capture_id_or_zero(stream) if capturing else 0


def compute_level_offsets(request: LookupRequest, config: KernelConfig) -> list[int]:
    """Return the first 16-bit element of every level."""
    starts, offset = [], 0
    for height, width in request.sizes2:
        starts.append(offset)
        offset += request.batch * height * width * config.elements_per_feature_vector
    return starts


def fill_lookup_params(
    params: ctypes.Structure, request: LookupRequest, config: KernelConfig, f1: Tensor, f2: Tensor
) -> None:
    """Fill in the parameters that lookups of one pair have in common."""
    params.f1, params.f2 = f1.data_ptr(), f2.data_ptr()
    params.batch, params.levels = request.batch, request.levels
    params.height, params.width = request.size1
    for level, (offset, (height, width)) in enumerate(
        zip(compute_level_offsets(request, config), request.sizes2, strict=True)
    ):
        params.level_offset[level], params.level_h[level], params.level_w[level] = offset, height, width
    params.tiles_x, params.tiles_y = -(-params.width // config.block), -(-params.height // config.tile_height)
    params.tiles = params.batch * params.tiles_x * params.tiles_y


def fill_work_item_params(
    params: ctypes.Structure, level_count: int, item_count: int, single_item_tiles: int = 0
) -> None:
    """Divide every tile's levels into ``item_count`` items (1 to 4): the finest levels apart, the others together.

    The first ``single_item_tiles`` tiles are one item each.
    """
    ends = sorted({min(end, level_count) for end in (*range(1, item_count), level_count)})
    for index, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        params.part_begin[index], params.part_end[index] = start, end
    params.whole = single_item_tiles
    params.items = single_item_tiles + (params.tiles - single_item_tiles) * len(ends)


@functools.lru_cache(maxsize=256)
def encode_tensor_maps_and_get_address(
    data_address: int,
    sizes: tuple[tuple[int, int], ...],
    batch: int,
    elements_per_feature_vector: int,
    columns: int,
    chunk_widths: tuple[int, ...],
) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Return a buffer with a tensor map for every level and chunk width, and their aligned address in it."""
    buffer = ctypes.create_string_buffer(128 * len(sizes) * len(chunk_widths) + 64)
    address = (ctypes.addressof(buffer) + 63) // 64 * 64
    offset = 0
    for level, (height, width) in enumerate(sizes):
        if height and width and batch:
            for index, chunk in enumerate(chunk_widths):
                position = address + 128 * (level * len(chunk_widths) + index)
                shape = (elements_per_feature_vector, width, height, batch)
                write_tensor_map_to_address(
                    position, data_address + 2 * offset, shape, (64, chunk, columns // chunk, 1)
                )
        offset += batch * height * width * elements_per_feature_vector
    return buffer, address


# ---- counters of the persistent lookup
#
# A lookup finds its counters, which tell which block takes which tile, at zero and leaves them at zero. So lookups that
# run one after another can share them, and those that may run at the same time must not. Eager lookups of one stream
# share a slot. A captured graph has separate slots, one per captured stream, that nothing else uses: replays need
# nothing from the host and may overlap with other work. Slots are not returned; when they run out, a lookup allocates
# zeroed memory.

SLOT = 16  # bytes, of which the kernel uses eight
COUNT = 4096


class LookupCounters:
    """Counters of one device, which must be current in every call, as must be ``stream`` there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._memory: Tensor | None = None
        self._used = 0
        self._slots: dict[tuple[int, int], int] = {}

    def get_zeroed_counters_address_and_memory(self, stream: int) -> tuple[int, Tensor | None]:
        """Return the address of zeroed counters for a lookup on ``stream``, and memory to hold until it is launched."""
        key = (stream, find_graph_capture_id_or_zero(stream))
        address = self._slots.get(key)
        if address is not None:
            return address, None
        with self._lock:
            if self._memory is None and key[1] == 0:
                self._memory = torch.zeros(COUNT * SLOT, dtype=torch.uint8, device=self._device)
                torch.cuda.current_stream(self._device).synchronize()  # other streams will read it
            if self._memory is not None and self._used < COUNT:
                address = self._slots.setdefault(key, self._memory.data_ptr() + SLOT * self._used)
                self._used += 1
                return address, None
        own = torch.zeros(SLOT, dtype=torch.uint8, device=self._device)
        return own.data_ptr(), own


_devices: dict[int, LookupCounters] = {}
_lock = threading.Lock()


def get_lookup_counters(device: torch.device, device_index: int) -> LookupCounters:
    """Return the device's counters, shared by the whole process."""
    with _lock:
        return _devices.setdefault(device_index, LookupCounters(device))
