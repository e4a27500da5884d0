"""Products that the CPU backend keeps between lookups of one pair: how many, where, and who may touch them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fullfield.ops.correlation._cpu_layout import LANES, LARGEST_UNION, TILE
from fullfield.ops.correlation.protocol import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Beside the windows of a tile whose pixels move alike, a coarser level's slot has room for so many columns and rows.
_ROOM = 3


def slot_cells(radius: int, level: int) -> int:
    """Cells that a tile's slot has on a level."""
    window = 2 * radius + 2
    if level == 0:  # where windows differ most: any rectangle around them that is one product
        return int(LARGEST_UNION * window**2)
    columns = window + -(-(TILE[1] - 1) // (1 << level)) + _ROOM
    rows = window + -(-(TILE[0] - 1) // (1 << level)) + _ROOM
    return (columns + 2) // 2 * 2 * rows


class Patches:
    """The patches of one pair; empty at first.

    ``lock`` is held by the lookup that uses them. A second one at the same time does without: its result is the same.
    """

    def __init__(self, request: Request, tiles: int) -> None:
        import numpy as np

        from fullfield.ops.correlation._cpu_patch_kernels import NOTES

        sizes = [slot_cells(request.radius, level) for level in range(request.levels)]
        starts = [sum(sizes[:level]) for level in range(request.levels + 1)]
        self.slots: NDArray[np.int64] = np.array(list(zip(starts, [*sizes, 0], strict=True)), np.int64)
        self.cells: NDArray[np.float32] = np.empty(tiles * sum(sizes) * LANES, np.float32)
        self.notes: NDArray[np.int32] = np.zeros((tiles, request.levels, NOTES), np.int32)
        self.lock = threading.Lock()
