"""Index arrays of changing length in memory of fixed size, as recorded work needs them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fullfield.ops.backends import usable
from fullfield.ops.point_conv.cuda import padding as kernels


class PaddedArrays:
    """Arrays of fixed length that are filled from shorter ones.

    Args:
        rooms: 1-D tensors of one, four or eight bytes a number, all on one device.
    """

    def __init__(self, rooms: Sequence[Tensor]) -> None:
        self.rooms = list(rooms)
        on_gpu = bool(rooms) and usable("point_padding", "cuda", kernels.supports(rooms[0].device))
        self._launches = kernels.Padding(rooms) if on_gpu else None

    def fill(self, arrays: Sequence[Tensor]) -> None:
        """Copy each contiguous array into its room and repeat its last number behind it.

        An empty array changes nothing. Row offsets that are filled so describe further rows, all empty.
        """
        if self._launches is not None:
            self._launches(arrays)
            return
        for room, array in zip(self.rooms, arrays, strict=True):
            if array.numel():
                room[: array.numel()] = array
                room[array.numel() :] = array[-1]
