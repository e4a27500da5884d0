"""The picture of ``fullfield analyze lookups``: which cells of the all-pairs matrix are read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from fullfield.ops.correlation.analysis import Share

_WIDEST = 128  # of the map that the matrix is made from


def draw_lookups(offsets: Tensor, shares: Sequence[Share], radius: int, path: Path) -> None:
    """The matrix in both layouts, and the finest level's shares over the block's size: figure 3 of Briedis et al."""
    from fullfield.io import atomic_path
    from fullfield.ops.correlation.analysis import LAYOUTS, sampling_matrix
    from fullfield.ops.correlation.recorded import resized

    height, width = offsets.shape[-2:]
    small = offsets
    if width > _WIDEST:
        small = resized(offsets, (max(1, round(height * _WIDEST / width)), _WIDEST))
    block = 8
    # Not through pyplot, which would look for a display.
    figure = import_module("matplotlib.figure").Figure(figsize=(13.2, 4.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for one, layout in zip(axes, LAYOUTS, strict=False):
        matrix = sampling_matrix(small, radius, block, layout)
        one.imshow(matrix.sqrt().numpy(), cmap="magma", interpolation="nearest")
        one.set_title(f"{layout}, {100 * float(matrix.mean()):.2f} % of the cells read", fontsize=9)
        one.set_xlabel("target pixels")
        one.set_ylabel(f"source pixels of a {small.shape[3]}×{small.shape[2]} map")
        one.set_xticks([])
        one.set_yticks([])
    for layout in LAYOUTS:
        points = sorted((s.block, 100 * s.share) for s in shares if s.layout == layout and s.level == 0)
        if points:
            axes[2].plot(*zip(*points, strict=True), marker="o", label=layout)
    axes[2].set_xscale("log", base=2)
    sides = sorted({share.block for share in shares})
    axes[2].set_xticks(sides, [str(side) for side in sides])
    axes[2].minorticks_off()
    axes[2].set_xlabel("block, B of B² pixels")
    axes[2].set_ylabel(f"cells in blocks that are read, %, {width}×{height}")
    axes[2].legend(fontsize=8)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
