"""Benchmark of the public calls: every part runs, and a wrong flow gets no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.cases.front_door import command, measure
from fullfield.io import write_flow
from fullfield.models.cascade import THRESHOLD, list_quartered_sizes
from fullfield.testing import sample_textured_scene

SMALL = ("--sizes", "96x64", "--auto-size", "96x64", "--file-size", "96x64", "--batch", "2", "--batch-size", "64x48")


def shared(folder: Path) -> Path:
    """Write small pairs under the names of the shared data and return their folder."""
    made = sample_textured_scene(64, 96, seed=3)
    names = {
        "middlebury/Venus": ("frame10.png", "frame11.png", "flow10.flo"),
        "flyingchairs": ("0000003-img0.ppm", "0000003-img1.ppm", "0000003-gt.flo"),
        "sintel/clean": ("frame_0002.png", "frame_0003.png", "../truth/frame_0002.flo"),
        "sintel/final": ("frame_0002.png", "frame_0003.png", "../truth/frame_0002.flo"),
        "sintel/hard/market_5": ("frame_0001.png", "frame_0002.png", "frame_0001.flo"),
    }
    for place, files in names.items():
        home = folder / "flow" / place
        for file, values in zip(files, (made.frame1, made.frame2, made.flow), strict=True):
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            if file.endswith(".flo"):
                write_flow(home / file, values)
            else:
                frame = (values.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
                Image.fromarray(frame).save(home / file)
    return folder


@pytest.mark.usefixtures("scene")
def test_front_door_runs_every_part(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with what only a GPU does: waiting for the device, and a page-locked buffer."""
    waits: list[object] = []
    monkeypatch.setattr(measure, "_on_gpu", lambda _: True)
    monkeypatch.setattr(measure, "_host_buffer", torch.empty_like)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    data = shared(tmp_path / "data")
    ran = cli("front-door", "--device", "cpu", "--repeats", "1", *SMALL, "--data", str(data), "-o", "r.json")
    assert ran.code == 0, ran.err
    cases = {case["label"]: case for case in json.loads((tmp_path / "r.json").read_text())["cases"]}
    assert list(cases) == [
        "estimate, 96x64",
        "auto, 96x64",
        "2 pairs, 64x48",
        "files, 96x64",
        "auto and float32, shared pairs",
        "auto and TV-L1, a Sintel pair",
    ]
    assert len(waits) == 2 * sum(len(case["rows"]) for case in cases.values())
    assert all(row["status"] == "ok" for case in cases.values() for row in case["rows"])
    assert all(len(bar) == 2 for case in cases.values() for bar in case.get("bars", {}).values())
    errors = cases["auto and float32, shared pairs"]["errors"]
    assert len(errors) == 5
    assert all(both["auto"] == pytest.approx(both["auto, exact"], rel=0.1) for both in errors.values())
    assert all(both["auto"] < 1 for both in errors.values())
    assert [row["name"] for row in cases["auto and TV-L1, a Sintel pair"]["rows"]] == [
        "auto",
        "auto, exact",
        "tvl1",
    ]
    assert cases["auto and TV-L1, a Sintel pair"]["frames"] == "sintel clean alley_1"
    text = cli("front-door", "--stored", "r.json").out
    assert "estimate / network: " in text
    assert "auto, exact, error in px" in text
    assert "largest of 5 ratios (" in text
    assert len(cases) == len(command.PARTS)


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("threshold", [THRESHOLD, 80])  # 80 cascades: 48x32, enlarged to 96x64, starts 192x128
def test_front_door_compares_with_the_same_work(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, threshold: int
) -> None:
    """Frames are enlarged and cascaded as by the estimator, so on the CPU both flows agree to rounding."""
    monkeypatch.setattr(list_quartered_sizes, "__defaults__", (threshold,))
    monkeypatch.setattr(measure, "_SAME", 1e-4)
    ran = cli("front-door", "--device", "cpu", "--repeats", "1", "--parts", "estimate", "batch", *SMALL)
    assert ran.code == 0, ran.err


@pytest.mark.usefixtures("scene")
def test_front_door_gives_no_time_to_wrong_flow(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SAME", -1.0)
    ran = cli("front-door", "--device", "cpu", "--repeats", "1", "--parts", "batch", *SMALL)
    assert ran.code == 1
    assert "differs from the network's" in ran.err
