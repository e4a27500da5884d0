"""The benchmark of packing: every way without loss, and what is not read as it was written gets no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases.packing import command
from fullfield.io import write_flow

pytest.importorskip("OpenImageIO")


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "noise.npy"
    write_flow(path, torch.randn(2, 40, 50, generator=torch.Generator().manual_seed(1)))
    return path


def test_packing_measures_sizes_and_times_of_both_types(cli: Callable[..., Any], flow: Path, tmp_path: Path) -> None:
    ran = cli("packing", "--flows", flow, "--repeats", "2", "-o", "r.json")
    assert ran.code == 0, ran.err
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert [(case["flow"], case["type"], case["size"]) for case in cases] == [
        ("noise", "float", [40, 50]),
        ("noise", "half", [40, 50]),
    ]
    sizes = [{row["name"]: row["bytes"] for row in case["rows"]} for case in cases]
    assert list(sizes[0]) == list(command.PACKINGS)
    assert sizes[0]["none"] > 8 * 40 * 50 > sizes[1]["none"] > 4 * 40 * 50
    assert sizes[0]["zip:1"] < sizes[0]["none"]
    assert all(len(row[part]["seconds"]) == 2 for row in cases[0]["rows"] for part in ("writing", "reading"))
    assert "noise, half" in cli("packing", "--stored", "r.json").out
    assert "--flows: expected files of flow" in cli("packing").err
