"""The benchmark of fixed windows and matching: all are timed, and no wrong result gets a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.cases.windows import contenders
from benchmarks.harness import Unsupported
from benchmarks.runner import main
from fullfield.ops.spatial_correlation import spatial_correlation

SMALL = ["windows", "--sizes", "64x64", "--dtype", "float32", "--repeats", "1", "--device", "cpu", "--quiet"]


def run(tmp_path: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    path = tmp_path / "results.json"
    code = main([*SMALL, *more, "-o", str(path)])
    return code, json.loads(path.read_text("utf-8"))["cases"]


@pytest.mark.usefixtures("ptlflow")
def test_all_are_timed_and_peers_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, cases = run(tmp_path, "--parts", "liteflownet", "matching")
    assert code == 0
    assert [case["part"] for case in cases] == ["liteflownet", "matching"] * 2
    names = {row["name"]: row for case in cases for row in case["rows"]}
    assert {"ours", "ptlflow's sampler", "whole matrix"} <= set(names)
    assert all(row["median_s"] > 0 for row in names.values())
    assert "× ours" in capsys.readouterr().out


def test_a_wrong_result_gets_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = contenders.ours

    def wrong(*args: Any) -> Any:
        found = right(*args)
        return found * 1.001 if args[-1] != "reference" else found

    monkeypatch.setattr(contenders, "ours", wrong)
    monkeypatch.setattr(contenders, "peers", lambda _: ({}, {}))
    code, cases = run(tmp_path, "--parts", "liteflownet")
    assert code == 1
    assert cases[0]["rows"][0]["status"] == "check failed"
    assert "median_s" not in cases[0]["rows"][0]


def test_the_compiled_sampler_takes_part_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spatial_correlation_sampler"

    def sample(one: Tensor, two: Tensor, patch_size: int, dilation_patch: int, stride: int) -> Tensor:
        return spatial_correlation(one, two, patch_size, dilation_patch=dilation_patch, stride=stride)

    monkeypatch.setitem(sys.modules, name, SimpleNamespace(spatial_correlation_sample=sample))
    found, _ = contenders.peers(None)
    one, two = torch.rand(2, 1, 3, 8, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found[name](one, two, (5, 2, 2)), contenders.ours(one, two, (5, 2, 2)))
    with pytest.raises(Unsupported, match="16-bit"):
        found[name](one.half(), two.half(), (5, 2, 2))
    monkeypatch.setitem(sys.modules, name, None)
    found, absent = contenders.peers(None)
    assert name not in found
    assert name in absent[name]
