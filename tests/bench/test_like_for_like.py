"""Tables in equal precision: no row compares two precisions, and every row names its GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import like_for_like, stored

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "gpu": "NVIDIA H100 80GB HBM3", "versions": {"torch": "2.11.0"}, "commit": "abc", "date": "2026-11-26"
}  # fmt: skip


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, on a copy of the stored results without those of networks: ``tables.RESULTS``."""
    results = tmp_path / "results"
    shutil.copytree(ROOT / "benchmarks" / "results", results)
    for name in like_for_like.BOTH:
        (results / name).unlink()
    for module in (like_for_like, stored):
        monkeypatch.setattr(module, "RESULTS", results)
    return like_for_like


def row(name: str, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"name": name, "status": "ok", "median_s": seconds, "peak_bytes": 2 << 30, "first_call_s": 27.0, **facts}


def test_networks_table_compares_equal_precision_only(tables: ModuleType) -> None:
    rows = [
        row("fast", 0.0111),
        row("module", 0.0222),
        row("compiled, half", 0.0333),
        row("ptlflow, dense", 0.0444),
        row("ptlflow, dense, half", 0.0555),
    ]
    case = {"method": "raft", "size": [1080, 1920], "updates": 12, "rows": rows}
    stored = {"bench": "models", "cases": [case], "environment": ENVIRONMENT}
    (tables.RESULTS / "like_raft_hd.json").write_text(json.dumps(stored))
    numbers = ("11.1 ms", "22.2 ms", "33.3 ms", "44.4 ms", "55.5 ms")
    single, half = (line for line in tables.networks_table().splitlines() if "1920×1080" in line)
    _, _, short_single, short_half, *_ = tables.short_table().splitlines()
    for line in (short_single, single):
        assert "float32, H100" in line
        assert [number in line for number in numbers] == [False, True, False, True, False]
    assert "half precision, H100" in half
    assert "the same, half precision" in short_half
    assert [number in half for number in numbers] == [True, False, True, False, True]
    assert [number in short_half for number in numbers] == [True, False, False, False, True]
    assert "GiB, `PreparedFlow` |" in short_half
    assert "its first call takes 27 to 27 s" in tables.networks_table()


def test_short_table_shows_the_fastest_form_of_the_peer(tables: ModuleType) -> None:
    rows = [row("module", 0.0222), row("ptlflow, dense", 0.0444), row("ptlflow, dense, compiled", 0.0333)]
    case = {"method": "raft", "size": [1080, 1920], "updates": 12, "rows": rows}
    stored = {"bench": "models", "cases": [case], "environment": ENVIRONMENT}
    (tables.RESULTS / "like_raft_hd.json").write_text(json.dumps(stored))
    (line,) = (each for each in tables.short_table().splitlines() if "1920×1080" in each)
    assert [number in line for number in ("22.2 ms", "33.3 ms", "44.4 ms")] == [True, True, False]
    (line,) = (each for each in tables.networks_table().splitlines() if "1920×1080" in each)
    assert "ptlflow, dense volume 44.4 ms" in line
    assert "ptlflow, dense volume, `torch.compile` 33.3 ms" in line


def test_networks_table_leaves_out_slower_forms_that_save_no_memory(tables: ModuleType) -> None:
    rows = [
        row("module", 0.0222),
        row("ptlflow, dense", 0.0444),
        row("ptlflow, dense, channels-last", 0.0555, peak_bytes=(2 << 30) - (1 << 20)),
        row("ptlflow, dense, compiled", 0.0333),
        row("ptlflow, localcorr", 0.0777, peak_bytes=1 << 30),
        row("ptlflow, localcorr (Triton)", 0.0666, peak_bytes=1 << 30),
        {"name": "ptlflow, alt_cuda_corr", "status": "out of memory"},
    ]
    case = {"method": "raft", "size": [1080, 1920], "updates": 12, "rows": rows}
    stored = {"bench": "models", "cases": [case], "environment": ENVIRONMENT}
    (tables.RESULTS / "like_raft_hd.json").write_text(json.dumps(stored))
    (line,) = (each for each in tables.networks_table().splitlines() if "1920×1080" in each)
    displayed = [text in line for text in ("44.4 ms", "55.5 ms", "33.3 ms", "77.7 ms", "66.6 ms", "out of memory")]
    assert displayed == [True, False, True, False, True, True]


def test_networks_table_names_equal_error_once(tables: ModuleType) -> None:
    rows = [row("module", 0.0222, epe_px=0.1559), row("ptlflow, dense", 0.0444, epe_px=0.1561)]
    case = {"method": "raft", "size": [1080, 1920], "updates": 12, "rows": rows}
    path = tables.RESULTS / "like_raft_hd.json"
    for theirs, count in ((0.1561, 1), (0.1571, 2)):
        rows[1]["epe_px"] = theirs
        path.write_text(json.dumps({"bench": "models", "cases": [case], "environment": ENVIRONMENT}))
        (line,) = (each for each in tables.networks_table().splitlines() if "1920×1080" in each)
        assert line.count("px off") == count
        assert ("H100; each 0.156 px off" in line) == (count == 1)


def test_networks_table_ignores_errors_of_random_weights(tables: ModuleType) -> None:
    rows = [row("module", 0.0222, epe_px=22.0), row("ptlflow, dense", 0.0444, epe_px=22.0)]
    case = {"method": "sea-raft-m", "size": [1080, 1920], "updates": 4, "rows": rows, "diverged": "22 px off"}
    path = tables.RESULTS / "like_sea_raft_hd.json"
    for weights, is_shown in (("random", True), ("given", False)):
        case["weights"] = weights
        path.write_text(json.dumps({"bench": "models", "cases": [case], "environment": ENVIRONMENT}))
        lines = [each for each in tables.networks_table().splitlines() if "1920×1080" in each]
        assert bool(lines) == is_shown
        assert not any("px off" in line for line in lines)


def test_networks_table_adds_peer_of_older_run_with_its_date(tables: ModuleType) -> None:
    failed = {"name": "ptlflow, dense", "status": "out of memory", "reason": "the volume has 1.9e+11 elements"}
    for name, ours, others in (
        ("like_sea_raft_8k.json", 0.0222, [failed]),
        (tables.OLDER, 0.0333, [failed, row("ptlflow, alt_cuda_corr", 0.0444)]),
    ):
        case = {"method": "sea-raft-m", "size": [3432, 8192], "updates": 4, "rows": [row("module", ours), *others]}
        stored = {"bench": "models", "cases": [case], "environment": ENVIRONMENT}
        (tables.RESULTS / name).write_text(json.dumps(stored))
    (line,) = (each for each in tables.networks_table().splitlines() if "8192×3432, float32" in each)
    assert "| 22.2 ms, 2.0 GiB |" in line
    assert f"does not fit; ptlflow, alt_cuda_corr 44.4 ms, 2.0 GiB ({ENVIRONMENT['date']})" in line


def test_networks_table_shows_cascade_of_diverged_network(tables: ModuleType) -> None:
    rows = [
        row("fast", 0.0111, epe_px=31.0),
        row("fast, cascaded", 0.0222, epe_px=1.25),
        row("ptlflow, alt_cuda_corr, half", 0.0555, epe_px=30.5),
    ]
    case = {"method": "raft", "size": [3432, 8192], "updates": 12, "rows": rows, "diverged": "31 px off"}
    case["true_flow_px"] = 24.0
    path = tables.RESULTS / "like_raft_8k.json"
    path.write_text(json.dumps({"bench": "models", "cases": [case], "environment": ENVIRONMENT}))
    (line,) = (each for each in tables.networks_table().splitlines() if "RAFT, 12 updates, 8192×3432" in each)
    assert "ours in a cascade" in line
    assert [text in line for text in ("22.2 ms", "1.25 px off", "30.5 px off", "11.1 ms")] == [True, True, True, False]
    assert "diverges without a cascade, whatever the lookup: 31 px off" in tables.networks_table()
    for errors in ({"epe_px": 13.0}, {}):
        rows[1] = row("fast, cascaded", 0.0222, **errors)
        path.write_text(json.dumps({"bench": "models", "cases": [case], "environment": ENVIRONMENT}))
        assert "RAFT, 12 updates, 8192×3432" not in tables.networks_table()
        assert "is not shown, because it diverges: 31 px off" in tables.networks_table()


def write_rendered(tables: ModuleType, rows: list[dict[str, Any]], **facts: Any) -> None:
    case = {"method": "raft", "size": [3432, 8192], "updates": 12, "rows": rows, "true_flow_px": 24.0, **facts}
    case["lookups"] = {"inside": 0.9, "mean_window": 150.0}
    stored = {"bench": "models", "pair": {"seed": 7}, "cases": [case], "environment": ENVIRONMENT}
    (tables.RESULTS / tables.RENDERED[0]).write_text(json.dumps(stored))


def test_networks_table_shows_rendered_pair_with_errors_and_differences(tables: ModuleType) -> None:
    rows = [
        row("fast", 0.0111, epe_px=0.31, from_module_px=0.021),
        row("module", 0.0777, epe_px=0.30, from_module_px=0.0),
        row("fast, cascaded", 0.0222, epe_px=0.41, from_module_px=0.52, from_cascaded_module_px=0.043),
        row("module, cascaded", 0.0888, epe_px=0.40, from_module_px=0.51, from_cascaded_module_px=0.0),
        row("ptlflow, alt_cuda_corr", 0.0999, epe_px=0.32, from_module_px=0.011),
        row("ptlflow, alt_cuda_corr, half", 0.0666, epe_px=0.33, from_module_px=0.022),
    ]
    write_rendered(tables, rows)
    table = tables.networks_table()
    single, half = (line for line in table.splitlines() if "8192×3432" in line and "rendered pair" in line)
    assert "77.7 ms, 2.0 GiB, 0.3 px off" in single
    assert "ptlflow, alt_cuda_corr 99.9 ms, 2.0 GiB, 0.32 px off" in single
    assert "11.1 ms, 2.0 GiB, 0.31 px off" in half
    assert "Rendered pair (seed 7), 12 updates: its motion is 24 px in the mean." in table
    assert "prepared in half precision 0.021 px, the same in a cascade 0.52 px, in a cascade 0.51 px" in table
    assert "of the two cascades from each other 0.043 px" in table
    assert "Flows differ from our module's by 0.52" not in table
    write_rendered(tables, rows, diverged="58 px off")
    assert "Rendered pair (seed 7)" not in tables.networks_table()


def test_sweeps_table_has_column_of_extension_from_its_own_runs(tables: ModuleType) -> None:
    for name in ("like_updates_alt.json", "like_channels_alt.json"):
        (tables.RESULTS / name).unlink()
    before = tables.sweeps_table()
    cost = {"eager": {"median_s": 0.0337}, "peak_with_inputs_bytes": 809e6, "status": "ok"}
    for variable, value, name in (("updates", 8, "like_updates_alt.json"), ("channels", 64, "like_channels_alt.json")):
        case = {
            "size": [224, 512], "scene": tables.FAST, "dtype": "float32", "precision": "highest",
            "updates": 32, "channels": 256, "rows": [{"name": "alt_cuda_corr", **cost}], variable: value,
        }  # fmt: skip
        stored = {"bench": "correlation", "cases": [case], "environment": {**ENVIRONMENT, "gpu": "NVIDIA H200"}}
        (tables.RESULTS / name).write_text(json.dumps(stored))
    changed = [line for line in tables.sweeps_table().splitlines() if line not in before.splitlines()]
    cells = [line.split("|") for line in changed if line.startswith("| ")]
    assert [cell[1].strip() for cell in cells] == ["lookups at 512×224, 8", "channels at 512×224, 64"]
    assert all(cell[6].strip() == "33.7 ms, 809 MB" for cell in cells)
