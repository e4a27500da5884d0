"""Errors on real frames: the bars the presets promise."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from fullfield import estimate
from fullfield.io import read_flow

SCENES = ("Dimetrodon", "Grove2", "Grove3", "RubberWhale", "Urban2", "Venus")


@cache
def mean_error(folder: Path, preset: str) -> float:
    truth = read_flow(folder / "flow10.flo")
    flow = estimate(folder / "frame10.png", folder / "frame11.png", "tvl1", preset=preset).flow
    return float((flow - truth.flow).norm(dim=0)[truth.valid].mean())


@pytest.mark.parametrize(
    ("preset", "scenes", "bar"),
    [
        ("default", ("RubberWhale", "Urban2", "Venus"), 0.245),
        pytest.param("default", SCENES, 0.28, marks=pytest.mark.long),
        pytest.param("realtime", SCENES, 0.28, marks=pytest.mark.long),
        ("fast", SCENES, 0.34),
        ("paper", SCENES, 1.4),
    ],
)
def test_tvl1_error_on_middlebury_is_below_limit(
    data_dir: Path, preset: str, scenes: tuple[str, ...], bar: float
) -> None:
    errors = [mean_error(data_dir / "flow" / "middlebury" / scene, preset) for scene in scenes]
    assert sum(errors) / len(errors) <= bar


def test_tvl1_paper_preset_matches_published_errors(data_dir: Path) -> None:
    # Romera et al. 2023, Table 2a, float32 at 10 ms. Their lambda, theta and tau are not printed.
    published = {"Dimetrodon": 0.20, "Grove2": 0.22, "Grove3": 1.01, "RubberWhale": 0.24, "Urban2": 5.59, "Venus": 0.52}
    for scene, error in published.items():
        assert mean_error(data_dir / "flow" / "middlebury" / scene, "paper") == pytest.approx(error, rel=0.2), scene


@pytest.mark.parametrize(("version", "bar"), [("clean", 0.22), pytest.param("final", 0.25, marks=pytest.mark.long)])
def test_tvl1_error_on_sintel_is_below_limit(data_dir: Path, version: str, bar: float) -> None:
    frames = data_dir / "flow" / "sintel" / version
    truth = read_flow(data_dir / "flow" / "sintel" / "truth" / "frame_0002.flo")
    flow = estimate(frames / "frame_0002.png", frames / "frame_0003.png", "tvl1").flow
    assert torch.isfinite(flow).all()
    assert float((flow - truth.flow).norm(dim=0).mean()) <= bar
