"""Draw the charts of docs/measured.md from the stored results: time and memory of the lookup by size of the frames.

python scripts/docs/charts.py [FOLDER]     docs/images by default
python scripts/docs/charts.py --check      exit with 1 when the chart in docs/images shows other values
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.figures import new_figure, save  # noqa: E402
from benchmarks.like_for_like import EASY, KERNEL, SIZES, VOLUMES, lookup_row  # noqa: E402
from benchmarks.network_forms import SINGLE  # noqa: E402

NAME = "lookup_by_size.png"
LINES: tuple[tuple[str, tuple[str, ...], str | None, str], ...] = (
    ("fullfield, bfloat16", ("cuda",), "bfloat16", "tab:blue"),
    ("fullfield, float32", ("cuda",), SINGLE, "tab:cyan"),
    (f"{KERNEL}, bfloat16", (KERNEL,), "bfloat16", "tab:green"),
    ("RAFT's volume, float32", VOLUMES, None, "tab:red"),
    ("alt_cuda_corr, float32", ("alt_cuda_corr",), None, "tab:orange"),
)


def measured(size: list[int], names: tuple[str, ...], dtype: str | None) -> dict[str, Any] | None:
    """Return the row of a contender at this size; None where it was not measured."""
    rows = (lookup_row(size, name, EASY, dtype) for name in names)
    return next((row[0] for row in rows if row is not None), None)


def chart_values() -> dict[str, dict[str, Any]]:
    """Return what each line shows: widths, milliseconds, gigabytes, and the first width that does not fit."""
    values = {}
    for label, names, dtype, _ in LINES:
        points = [(8 * size[1], row) for size in SIZES if (row := measured(size, names, dtype)) is not None]
        solved = [(width, row) for width, row in points if row["status"] == "ok"]
        timings = [row["graph"] if isinstance(row.get("graph"), dict) else row["eager"] for _, row in solved]
        too_large = (width for width, row in points if row["status"] == "out of memory")
        values[label] = {
            "width": [width for width, _ in solved],
            "ms": [1e3 * timing["median_s"] for timing in timings],
            "gb": [row["peak_with_inputs_bytes"] / 1e9 for _, row in solved],
            "too_large": next(too_large, None),
        }
    return values


def is_current(path: Path) -> bool:
    """Return whether a drawn chart shows the stored results."""
    with Image.open(path) as image:
        return str(image.info.get("Description")) == json.dumps(chart_values())


def draw(folder: Path) -> Path:
    """Draw both charts side by side and return the file."""
    figure, ((times, memory),) = new_figure(1, 2, (11, 4.2))
    values = chart_values()
    for label, _, _, color in LINES:
        line = values[label]
        times.plot(line["width"], line["ms"], "o-", color=color, label=label)
        memory.plot(line["width"], line["gb"], "o-", color=color, label=label)
        if line["too_large"] is not None:
            width = line["too_large"]
            memory.axvline(width, color=color, linestyle=":")
            inside = memory.get_xaxis_transform()  # the height as a share of the axes
            words = f" {label}:\n does not fit from here on"
            memory.text(width, 0.97, words, color=color, fontsize=7, va="top", transform=inside)
    for axes, title in ((times, "time of a pair's 32 lookups, ms"), (memory, "peak memory, GB")):
        axes.set(xscale="log", yscale="log", xlabel="frames", title=title)
        frames = [(8 * width, 8 * height) for height, width in SIZES]
        axes.set_xticks([width for width, _ in frames], [f"{width}×{height}" for width, height in frames], fontsize=8)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    times.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.15), ncols=2, frameon=False)
    return save(figure, folder / NAME, json.dumps(values))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if is_current(ROOT / "docs" / "images" / NAME) else "run scripts/docs/charts.py")
    print(draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"))
