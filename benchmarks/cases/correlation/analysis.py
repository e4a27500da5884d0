"""Cells of the all-pairs matrix that a network's lookups read, by layout and size of blocks.

The matrix has a row per source pixel and a column per target pixel. A cell counts as read if it is among the
(2r+2)² integer positions around a lookup, in any update; a block of B² × B² cells if any of its cells is. In row-major
layout a block is B² consecutive pixels of the flattened images; in patch-major layout it is a B×B patch of either.
After Briedis et al., section 3.2 and supplement 8.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.cases.correlation.blocks import grid, place_in_patches
from fullfield import _check
from fullfield.ops._positions import create_pixel_grid
from fullfield.ops.correlation.in_pytorch import list_clamped_positions_and_mark_inside, locate_pixel_windows

BLOCKS = (1, 2, 4, 8, 16)
LAYOUTS = ("row-major", "patch-major")
# Size of the part of the mask, and of the list of positions, that are held at a time.
_MASK_CELLS = 1 << 26
_POSITIONS = 1 << 22


@dataclass(frozen=True)
class Share:
    """Share of the all-pairs matrix in blocks that are read, 0 ... 1."""

    level: int
    block: int
    layout: str
    share: float

    def as_dict(self) -> dict[str, object]:
        """Return field names and values."""
        return asdict(self)


def recorded_positions(
    offsets: Tensor,  # [U, 2, H, W]: positions minus pixel grid, (x, y)
) -> Tensor:  # [U, 2, H, W] float32 positions, as a lookup takes them
    """Return lookup positions from recorded flow."""
    _check.check_tensor(offsets, "offsets", ("U", 2, "H", "W"))
    return offsets.float() + create_pixel_grid(offsets.shape[-2:], offsets.device)


def read_shares(
    coords: Tensor,  # [U, 2, H1, W1]: the positions of all updates of one pair, level-0 pixels
    radius: int = 4,
    *,
    size2: tuple[int, int] | None = None,
    levels: int = 1,
    blocks: Sequence[int] = BLOCKS,
    layouts: Sequence[str] = LAYOUTS,
) -> list[Share]:
    """Return the share of cells read, as the union over all updates, per level, block size and layout.

    ``size2`` is the second map's height and width, by default the first's. Blocks at the border are cut to the
    matrix. A level of size zero has no cells and is left out.
    """
    _check.check_tensor(coords, "coords", ("U", 2, "H1", "W1"))
    _check.check_number(radius, "radius", integer=True, low=1)
    _check.check_number(levels, "levels", integer=True, low=1, high=8)
    for block in blocks:
        _check.check_number(block, "blocks", integer=True, low=1)
    for layout in layouts:
        _check.check_choice(layout, "layouts", LAYOUTS)
    size1 = (coords.shape[2], coords.shape[3])
    shares = []
    for level in range(levels):
        height, width = size2 or size1
        target = (height // 2**level, width // 2**level)
        if target[0] and target[1]:
            for block in blocks:
                for layout in layouts if block > 1 else layouts[:1]:
                    share = _share(coords, radius, level, target, block, layout)
                    shares.append(Share(level, block, layout, share))
    return shares


def _block_of(size: tuple[int, int], block: int, layout: str) -> Tensor:
    """Return the block number of every pixel of a map, [H·W]."""
    pixel = torch.arange(size[0] * size[1])
    if layout == "row-major":
        return pixel // block**2
    return place_in_patches(pixel // size[1], pixel % size[1], size, block)[0]


def _steps(radius: int, block: int, layout: str) -> tuple[Tensor, Tensor]:
    """Return positions in a window, along x and y, that together meet every block the window meets."""
    last = 2 * radius + 1

    def every(stride: int) -> Tensor:
        return torch.tensor(sorted({*range(0, last, stride), last}))

    if layout == "patch-major":
        return every(block), every(block)
    return every(block**2), every(1)


def _share(coords: Tensor, radius: int, level: int, target: tuple[int, int], block: int, layout: str) -> float:
    source = _block_of((coords.shape[2], coords.shape[3]), block, layout)
    columns = _block_of(target, block, layout)
    heights = source.bincount()
    widths = columns.bincount()
    order = source.argsort(stable=True)
    flat = coords.detach().cpu().float().flatten(2).permute(2, 0, 1)[order]  # [pixels by block, U, 2]
    rows = source[order]
    ends = heights.cumsum(0)
    across, down = _steps(radius, block, layout)
    per_pixel = flat.shape[1] * len(across) * len(down)
    step = max(1, min(_MASK_CELLS // len(widths), _POSITIONS // (per_pixel * int(heights.max()))))
    read = 0
    for first in range(0, len(heights), step):
        last = min(first + step, len(heights))
        start = int(ends[first] - heights[first])
        stop = int(ends[last - 1])
        window = locate_pixel_windows(flat[start:stop].flatten(0, 1), level, target, radius)
        reach = 2 * radius + 2
        x, y = window.x, window.y
        seen = (x < target[1]) & (x + reach > 0) & (y < target[0]) & (y + reach > 0)
        # Clamping into the map stays inside the window, for the two meet.
        x = (x[seen, None] + across).clamp(0, target[1] - 1)[:, None, :]
        y = (y[seen, None] + down).clamp(0, target[0] - 1)[:, :, None]
        column = columns[y * target[1] + x]
        row = (rows[start:stop] - first).repeat_interleave(flat.shape[1])[seen, None, None]
        mask = torch.zeros(last - first, len(widths), dtype=torch.bool)
        mask[row.expand_as(column), column] = True
        read += int(((mask * widths).sum(1) * heights[first:last]).sum())
    return read / (len(source) * len(columns))


@dataclass(frozen=True)
class WindowStatistics:
    """Coherence of lookups, reported with every time that is measured with them."""

    mean_columns: float
    """Target pixels in the union of the windows of one source tile, mean over tiles, updates and levels."""
    inside: float
    """Share of the (2r+2)² positions that lie inside their map."""

    def as_dict(self) -> dict[str, object]:
        """Return field names and values."""
        return asdict(self)


def window_statistics(
    coords: Tensor,  # [U, 2, H1, W1]
    radius: int = 4,
    *,
    size2: tuple[int, int] | None = None,
    levels: int = 4,
    tile: int = 8,
) -> WindowStatistics:
    """Return the mean union window of tile × tile source pixels, cut to the map, and the share of positions inside."""
    _check.check_tensor(coords, "coords", ("U", 2, "H1", "W1"))
    height, width = size2 or (coords.shape[2], coords.shape[3])
    rows, columns = grid((coords.shape[2], coords.shape[3]), tile)
    reach = 2 * radius + 2
    unions: list[Tensor] = []
    inside = total = 0.0
    for level in range(levels):
        target = (height // 2**level, width // 2**level)
        if not target[0] or not target[1]:
            continue
        window = locate_pixel_windows(coords.permute(0, 2, 3, 1).reshape(-1, 2).float(), level, target, radius)
        spans = []
        seen_x = (window.x.clamp(0, target[1]), (window.x + reach).clamp(0, target[1]))
        seen_y = (window.y.clamp(0, target[0]), (window.y + reach).clamp(0, target[0]))
        cells_seen = (seen_x[1] - seen_x[0]) * (seen_y[1] - seen_y[0])
        inside += float(cells_seen.sum())
        total += float(cells_seen.numel() * reach**2)
        for start, stop in (seen_x, seen_y):
            nothing = cells_seen == 0
            low = torch.where(nothing, 1 << 30, start).view(-1, 1, coords.shape[2], coords.shape[3]).double()
            high = torch.where(nothing, 0, stop).view_as(low).double()
            pad = (0, columns * tile - low.shape[3], 0, rows * tile - low.shape[2])
            lowest = -torch.nn.functional.max_pool2d(torch.nn.functional.pad(-low, pad, value=-(1 << 30)), tile)
            highest = torch.nn.functional.max_pool2d(torch.nn.functional.pad(high, pad), tile)
            spans.append((highest - lowest).clamp(min=0))
        unions.append((spans[0] * spans[1]).flatten())
    mean = float(torch.cat(unions).mean()) if unions else 0.0
    return WindowStatistics(mean, inside / total if total else 0.0)


def sampling_matrix(
    offsets: Tensor,  # [U, 2, H, W]: positions minus grid
    radius: int,
    block: int,
    layout: str,
    pixels: int = 448,
) -> Tensor:  # [pixels, pixels] float32: share of cells read, union over updates; rows are source pixels
    """Return the finest level's all-pairs matrix, averaged to a picture, pixels in the order of the layout."""
    size = (offsets.shape[2], offsets.shape[3])
    count = size[0] * size[1]
    pixels = min(pixels, count)
    order = torch.arange(count)
    if layout == "patch-major":
        patch, cell = place_in_patches(order // size[1], order % size[1], size, block)
        order = (patch * block**2 + cell).argsort(stable=True)
    bins = torch.arange(count) * pixels // count
    coords = recorded_positions(offsets).flatten(2)[:, :, order]  # [U, 2, n]
    picture = torch.zeros(pixels, pixels)
    for start in range(0, count, 1024):
        some = coords[:, :, start : start + 1024]
        mask = torch.zeros(some.shape[2], count, dtype=torch.bool)
        for update in some:
            window = locate_pixel_windows(update.T, 0, size, radius)
            x, y, inside = list_clamped_positions_and_mark_inside(window, size, radius)
            row = torch.arange(len(x))[:, None, None].expand_as(x)
            mask[row[inside], (y * size[1] + x)[inside]] = True
        columns = torch.zeros(some.shape[2], pixels).index_add_(1, bins, mask[:, order].float())
        picture.index_add_(0, bins[start : start + 1024], columns)
    weights = bins.bincount().float()
    return picture / weights[:, None] / weights
