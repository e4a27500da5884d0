"""Synthetic pairs by their earlier name, ``made``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield import InputError, datasets
from fullfield.cli.evaluate import opened
from fullfield.io import write_flow, write_image
from fullfield.training.checkpoint import freeze_recipe


def test_the_earlier_name_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("frame1", "frame2", "occlusions", "invalid", "flow"):
        (tmp_path / part).mkdir()
        if part != "flow":
            write_image(tmp_path / part / "00000.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    write_flow(tmp_path / "flow" / "00000.flo", torch.zeros(2, 8, 8))
    (tmp_path / "made.json").write_text('{"count": 1}')
    dataset: Any = opened(f"made:{tmp_path}", "NAME:FOLDER")
    assert capsys.readouterr().err == "fullfield: warning: NAME:FOLDER: made is deprecated, use synthetic\n"
    assert opened(f"synthetic:{tmp_path}", "NAME:FOLDER").records == dataset.records
    assert capsys.readouterr().err == ""
    with pytest.warns(DeprecationWarning, match="Made is deprecated, use SyntheticPairs"):
        assert type(dataset) is datasets.Made
    with pytest.warns(DeprecationWarning, match="made is deprecated, use synthetic"):
        datasets.open_dataset("made", tmp_path)


def test_a_run_of_the_earlier_name_continues(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    freeze_recipe(recipe, {"data": ["made=0.3", "made-figures", "pairs:made"], "validate": ["made"]}, begun=False)
    now = {"data": ["synthetic=0.3", "synthetic-figures", "pairs:made"], "validate": ["synthetic"]}
    freeze_recipe(recipe, now, begun=True)
    with pytest.raises(InputError, match="another run"):
        freeze_recipe(recipe, {**now, "data": ["synthetic=0.3", "synthetic-figures", "pairs:synthetic"]}, begun=True)
