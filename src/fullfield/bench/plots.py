"""Pictures of the correlation benchmark in the form of the paper's figures 5, 8, 9 and 10, and of figure 3."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield.bench.correlation_report import VARIABLES, by_value, memory, milliseconds, names, rows_of
from fullfield.bench.lookups import resized
from fullfield.io import atomic_path
from fullfield.ops.correlation.analysis import LAYOUTS, Share, recorded_positions
from fullfield.ops.correlation.blocks import place_in_patches
from fullfield.ops.correlation.window import place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = {"size": "figure5_size.png", "updates": "figure8_updates.png", "channels": "figure9_channels.png"}
HARDWARE = "figure10_hardware.png"
# The same colours in every picture.
_COLOURS = {
    name: f"C{i}"
    for i, name in enumerate(
        ("cuda", "dense", "alt_cuda_corr", "reference", "blocks", "cpu", "fused-local-corr", "ptlflow volume")
    )
}
# Figure 3: pixels along a side of a matrix, and the widest map it is made from.
_MATRIX, _WIDEST = 448, 128
Case = dict[str, Any]


def _figure(columns: int, width: float = 5.5) -> tuple[Figure, list[Axes]]:
    # Not through pyplot, which would look for a display.
    figure: Figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(width * columns, 4.4), layout="constrained"
    )
    axes = figure.subplots(1, columns, squeeze=False)
    return figure, list(axes[0])


def _save(figure: Figure, path: Path) -> Path:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    return path


def draw(results: dict[str, Any], folder: Path, others: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """Runtime and memory over the swept variable; with results of other machines, runtime by machine too."""
    cases = results["cases"]
    variable = cases[0]["variable"]
    written = [_save(_sweep(results, variable), folder / FILES[variable])]
    machines = [r for r in (results, *others) if r["cases"] and r["cases"][0]["variable"] == "size"]
    if others and machines:
        written.append(_save(_hardware(machines), folder / HARDWARE))
    return written


def _lines(axes: Axes, cases: Sequence[Case], quantity: str) -> None:
    values = by_value(cases)
    for name in names(cases):
        points = []
        for value, group in values.items():
            rows = rows_of(group, name)
            if quantity == "time":
                found = milliseconds(rows)
                points += [(value, *found)] if found else []
            else:
                peak = memory(rows)
                points += [(value, peak, 0.0)] if peak else []
        if not points:
            continue
        x, middle, spread = zip(*sorted(points), strict=True)
        (line,) = axes.plot(x, middle, marker="o", markersize=3, label=name, color=_COLOURS.get(name, "black"))
        low = [max(m - s, m / 10) for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def _logarithmic(axes: Axes, cases: Sequence[Case], label: str) -> None:
    ticks = list(by_value(cases))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel(VARIABLES[cases[0]["variable"]])
    axes.set_ylabel(label)
    axes.grid(True, which="major", alpha=0.3)


def _conditions(case: Case) -> str:
    height, width = case["size"]
    held = {
        "size": f"{case['updates']} lookups, {case['channels']} channels",
        "updates": f"{width}×{height}, {case['channels']} channels",
        "channels": f"{width}×{height}, {case['updates']} lookups",
    }[case["variable"]]
    return f"{held}, {case['dtype']} to {case['out_dtype']}, {case['pass']}"


def _sweep(results: dict[str, Any], variable: str) -> Figure:
    cases = results["cases"]
    environment = results.get("environment", {})
    counted = any("peak_bytes" in row for case in cases for row in case["rows"])
    figure, (time, *rest) = _figure(2 if counted else 1)
    _lines(time, cases, "time")
    _logarithmic(time, cases, "runtime, ms")
    time.legend(fontsize=8)
    figure.suptitle(f"{environment.get('gpu') or environment.get('cpu', '')}: {_conditions(cases[0])}", fontsize=9)
    if not counted:
        return figure
    space = rest[0]
    _lines(space, cases, "memory")
    _logarithmic(space, cases, "peak memory with inputs, MB")
    capacity = environment.get("gpu_memory_bytes")
    if capacity and variable == "size":
        for amount, text in ((24e9, "24 GB"), (80e9, "80 GB"), (capacity, environment.get("gpu", "this GPU"))):
            space.axhline(amount / 1e6, linestyle=":", color="grey", linewidth=1)
            space.annotate(text, (cases[0]["value"], amount / 1e6), fontsize=7, va="bottom")
    return figure


def _hardware(machines: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = _figure(len(machines), 4.2)
    for one, results in zip(axes, machines, strict=True):
        environment = results.get("environment", {})
        _lines(one, results["cases"], "time")
        _logarithmic(one, results["cases"], "runtime, ms")
        one.set_title(environment.get("gpu") or environment.get("cpu", "?"), fontsize=9)
    top = max(one.get_ylim()[1] for one in axes)
    bottom = min(one.get_ylim()[0] for one in axes)
    for one in axes:
        one.set_ylim(bottom, top)
    axes[0].legend(fontsize=8)
    return figure


def sampling_matrix(
    offsets: Tensor,  # [U, 2, H, W]: positions minus grid
    radius: int,
    block: int,
    layout: str,
    pixels: int = _MATRIX,
) -> Tensor:  # [pixels, pixels] float32: share of cells read, union over updates; rows are source pixels
    """The all-pairs matrix of the finest level, averaged to a picture, pixels in the order of the layout."""
    size = (offsets.shape[2], offsets.shape[3])
    count = size[0] * size[1]
    pixels = min(pixels, count)
    order = torch.arange(count)
    if layout == "patch-major":
        patch, cell = place_in_patches(order // size[1], order % size[1], size, block)
        order = (patch * block**2 + cell).argsort(stable=True)
    bins = torch.arange(count) * pixels // count
    coords = recorded_positions(offsets).flatten(2)[:, :, order]  # [U, 2, n]
    steps = torch.arange(2 * radius + 2)
    picture = torch.zeros(pixels, pixels)
    for start in range(0, count, 1024):
        some = coords[:, :, start : start + 1024]
        mask = torch.zeros(some.shape[2], count, dtype=torch.bool)
        for positions in some:
            window = place(positions.T, 0, size, radius)
            x = (window.x[:, None] + steps)[:, None, :].expand(-1, len(steps), -1)
            y = (window.y[:, None] + steps)[:, :, None].expand(-1, -1, len(steps))
            inside = (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])
            row = torch.arange(len(x))[:, None, None].expand_as(x)
            mask[row[inside], (y * size[1] + x)[inside]] = True
        columns = torch.zeros(some.shape[2], pixels).index_add_(1, bins, mask[:, order].float())
        picture.index_add_(0, bins[start : start + 1024], columns)
    weights = bins.bincount().float()
    return picture / weights[:, None] / weights


def draw_lookups(offsets: Tensor, shares: Sequence[Share], radius: int, path: Path) -> None:
    """Figure 3, the matrix in both layouts, and table 3's shares of the finest level over the block's size."""
    height, width = offsets.shape[-2:]
    small = offsets
    if width > _WIDEST:
        small = resized(offsets, (max(1, round(height * _WIDEST / width)), _WIDEST))
    block = 8
    figure, axes = _figure(3, 4.4)
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
    _save(figure, path)
