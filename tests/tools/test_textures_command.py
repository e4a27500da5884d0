"""``python -m tools textures``: a pack of one's own pictures, its list, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tools.__main__ import main


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders with one photograph and one cut-out; the working directory."""
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "cut"):
        Path(folder).mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (9, 11, 4), np.uint8)
    picture = Image.fromarray(noise).resize((200, 160), Image.Resampling.BICUBIC)
    picture.convert("RGB").save("photos/a.png")
    y, x = np.mgrid[0:160, 0:200]
    picture.putalpha(Image.fromarray(np.where((x - 90) ** 2 + (y - 80) ** 2 < 70**2, 255, 0).astype(np.uint8)))
    picture.save("cut/disc.png")
    return tmp_path


@pytest.mark.unit
def test_textures_command_lists_own_pictures(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        assert main(["textures", *words]) == 0
        return capsys.readouterr().out

    own = ("-o", "pack.zip", "--no-packages", "--pictures", "photos", "--cutouts", "cut", "-q")
    facts: dict[str, Any] = json.loads(printed(*own, "--licence", "CC0-1.0", "--author", "Me", "--json"))
    assert (facts["pictures"], facts["silhouettes"]) == (1, 1)
    assert facts["bytes"] == (scene / "pack.zip").stat().st_size
    listed = printed("--list", "pack.zip")
    assert "**CC0-1.0**: Me\n\n- `./` disc.png\n" in listed
    assert "| photos |  | CC0-1.0 | 1 | 0 | 0 |" in listed
    assert json.loads(printed("--list", "pack.zip", "--json"))["shapes"][0]["path"] == "disc.png"
    first, second = printed(*own).splitlines()
    assert first.startswith("pack.zip: 1 picture, 1 silhouette, ")
    assert second == "left out: nothing"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "one of the arguments -o/--output --list is required"),
        ("-o pack.zip --no-packages", "no pictures left"),
        ("-o pack.zip --no-packages --pictures absent", "--pictures absent: expected a folder"),
        ("-o pack.zip --no-packages --pictures empty", "empty: expected pictures"),
        ("-o pack.tar", "pack.tar: unknown suffix '.tar'"),
        ("--list absent.zip", "absent.zip: no such file"),
        ("--list bad.zip", "bad.zip: not a picture pack"),
        ("-o pack.zip --archives archives -q", "dpkg-deb"),
    ],
)
def test_textures_command_reports_mistakes(
    scene: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    (scene / "empty").mkdir()
    (scene / "bad.zip").write_bytes(b"no")
    (scene / "archives").mkdir()
    (scene / "archives/openclipart-png_1_all.deb").write_bytes(b"none")
    assert main(["textures", *words.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (scene / "pack.zip").exists()


@pytest.mark.unit
def test_textures_command_requires_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert (
        "no verb given; one of render, textures, meshes, training (see python -m tools --help)"
        in capsys.readouterr().err
    )
