"""Tables of the runs on rendered scenes, and of the supplement's listing in Triton, from stored results."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NONE = "No run is stored yet.\n"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The scripts, on an empty folder of results: ``tables[0].RESULTS``."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import error_tables
    import operator_tables

    for module in (error_tables, operator_tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return error_tables, operator_tables


def run(method: str, scale: str, epe: float, lm_epe: float | None) -> dict[str, Any]:
    scores = {"epe": epe, "px1": 12.34, "lm_epe": lm_epe}
    pairs = {f"fast/{number}": {"epe": epe + number} for number in (1, 2)}
    return {"method": method, "scale": scale, "scores": scores, "runtime": {"median_s": 0.25}, "by_pair": pairs}


def test_errors_by_scale(tables: tuple[ModuleType, ModuleType]) -> None:
    errors, _ = tables
    assert errors.rendered() == errors.rendered_shots() == NONE
    pair = {"motion_px": {"p50": 20.0, "p99": 300.0}, "occluded": 0.05}
    shot = {"settings": {"seed": 3, "thin": 8, "speed": 2.0}, "pairs": {"1": pair, "2": pair}}
    runs = [
        run("a", scale, epe, lm) for scale, epe, lm in zip(errors.SCALES, (4, 3, 2, 1), (9, 8, 7, 7.5), strict=True)
    ]
    runs += [run("b", scale, epe, None) for scale, epe in zip(errors.SCALES, (4, 1, 2, 3), strict=True)]
    runs += [run("c", "1", 0.5, None)]
    stored = {"size": "4096x2160", "pairs": 2, "recipe": {"fast": shot}, "runs": runs, "environment": {"gpu": "H100"}}
    (errors.RESULTS / "rendered_4096_h100.json").write_text(json.dumps(stored))
    assert "| fast | 4096×2160 | 2 | 3 | 8 | 2.0 | 20 px, 300 px | 5.0 % |" in errors.rendered_shots()
    text = errors.rendered()
    cells = ("a", *(f"{epe}.00 px, 12.3 %" for epe in (4, 3, 2, 1)), "7.00 px at 1/2", "0.250 s")
    assert f"| {' | '.join(cells)} |" in text
    assert "| c |  |  |  | 0.500 px, 12.3 % |  | 0.250 s |" in text
    assert "smallest mean error at 4096×2160: at full size for a; at a smaller scale for b at 1/4.\n" in text
    assert (
        "Smallest share above one pixel: at a smaller scale for a at 1/8, b at 1/8.\n" in text
    )  # all equal: the first
    assert text.endswith("| a | 3.50 → 2.50 px |\n| b | 3.50 → 4.50 px |\n")  # c has no half size
    (errors.RESULTS / "rendered_4096_h100.json").write_text(json.dumps({**stored, "environment": {}}))
    assert "0.250 s" not in errors.rendered()


def test_the_listing_in_triton(tables: tuple[ModuleType, ModuleType]) -> None:
    _, operators = tables
    assert operators.triton_listing() == NONE
    names = ("cuda", "the supplement's listing", "the listing in Triton", "gather-GEMM-scatter")
    times = [{"forward": {"median_s": n}, "training": {"median_s": 2 * n}} for n in range(1, 5)]
    facts = {"status": "ok", "training_peak_bytes": 1e6}
    rows = [{"name": name, **facts, **time} for name, time in zip(names, times, strict=True)]
    rows[3] = {"name": names[3], "status": "check failed"}
    case = {"part": "layer", "points": 1000, "triplets": 2e6, "channels": [64, 128], "rows": rows}
    stored = {"cases": [case, {"part": "build"}], "environment": {"gpu": "NVIDIA H100 80GB HBM3"}}
    (operators.RESULTS / "like_points.json").write_text(json.dumps(stored))
    text = operators.triton_listing()
    assert "H100, float32" in text
    cells = ("1,000 points, 2 M triplets, 64→128", *(f"{n}000 / {2 * n}000, 1 MB" for n in (1, 2, 3)), "check failed")
    assert f"| {' | '.join(cells)} |" in text
