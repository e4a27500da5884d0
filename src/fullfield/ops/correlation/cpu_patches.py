"""Products that the CPU backend keeps between lookups of one pair: how many, where, and who may touch them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fullfield.ops.correlation._cpu_layout import LANES, TILE
from fullfield.ops.correlation.protocol import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Beside the windows of a tile whose pixels move alike, a slot has room for so many more columns and rows.
_ROOM = 2


def slot_cells(radius: int, level: int) -> int:
    """Cells that a tile's slot has on a level: windows that lie side by side, and room for them to move."""
    window = 2 * radius + 2
    columns = window + -(-(TILE[1] - 1) // 2**level) + _ROOM
    rows = window + -(-(TILE[0] - 1) // 2**level) + _ROOM
    return (columns + 2) // 2 * 2 * rows


def cells_per_tile(request: Request) -> int:
    return sum(slot_cells(request.radius, level) for level in range(request.levels))


class Patches:
    """The patches of one pair; empty at first.

    ``lock`` is held by the lookup that uses them. A second one at the same time does without: its result is the same.
    """

    def __init__(self, request: Request, tiles: int) -> None:
        import numpy as np

        from fullfield.ops.correlation._cpu_patch_kernels import NOTES

        starts = [0]
        for level in range(request.levels):
            starts.append(starts[-1] + slot_cells(request.radius, level))
        sizes = [slot_cells(request.radius, level) for level in range(request.levels)]
        self.slots: NDArray[np.int64] = np.array(list(zip(starts, [*sizes, 0], strict=True)), np.int64)
        self.cells: NDArray[np.float32] = np.empty(tiles * starts[-1] * LANES, np.float32)
        self.notes: NDArray[np.int32] = np.zeros((tiles, request.levels, NOTES), np.int32)
        self.lock = threading.Lock()
