"""The commands and the code of docs/sequences.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from sequence_shots import CHANGED, HEIGHT, WIDTH, moving

from fullfield import estimate_sequence
from fullfield.cli.main import main
from fullfield.io.all_channels import ChannelPicture, write_all_channels
from fullfield.ops.tvl1.config import PRESETS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str = "") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def test_sequences_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, frame in enumerate(moving(6), 1001):
        write_all_channels(f"plate.{number}.exr", ChannelPicture(frame, ("R", "G", "B"), "half"))
    write_all_channels("paint.1001.exr", ChannelPicture(torch.ones(4, HEIGHT, WIDTH), ("R", "G", "B", "A"), "half"))
    commands = blocks("sequences.md")[0].splitlines()
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)[1:]
        assert main([*words, *(CHANGED if words[0] == "shot" else ())]) == 0, command
    assert len(list(tmp_path.glob("mv.*.exr"))) == 6
    assert len(list(tmp_path.glob("paint_on.*.exr"))) == 4
    assert len(list(tmp_path.glob("slow.*.exr"))) == 13
    assert main(["view", "mv.%04d.exr", "-o", "shot.html"]) == 0
    assert (tmp_path / "shot.html").read_text("utf-8").count("data:image/jpeg") == 6
    code = blocks("sequences.md", "python")[0]
    assert "import estimate_sequence" in code

    def quicker(frames: str, **more: object) -> object:
        config = PRESETS[str(more.pop("preset"))].replace(iterations=4, warps=2)
        return estimate_sequence(frames, "tvl1", config=config, **more)  # type: ignore[arg-type]

    exec(code.split("\n", 1)[1], {"estimate_sequence": quicker})
    assert len(list(tmp_path.glob("forward.*.exr"))) == 5
    assert capsys.readouterr().out.count("1003 () ()") == 1
