"""``fullfield pairs``: a data set from a seed, read by ``fullfield evaluate``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullfield.training.flow import pictures
from fullfield.training.flow.config import PRESETS

OUT = ("pairs", "-o", "made", "--size", "48x32", "--count")


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing 64 pictures of 512 px and 500 shapes takes seconds, and so do exposures of twelve instants."""
    drawn = pictures.create_procedural_picture_pack
    monkeypatch.setattr(
        pictures, "create_procedural_picture_pack", lambda *_args, **_options: drawn(4, 64, 0, shape_count=8)
    )
    monkeypatch.setitem(PRESETS, "usual", PRESETS["usual"].replace(instants=2))


def test_pairs_writes_set_that_evaluate_reads(cli: Any, scene: Path) -> None:
    ran = cli(*OUT, 2, "--seed", "5", "--json", "-q")
    assert ran.code == 0
    assert (ran.json["made"], ran.json["kept"]) == (2, 0)
    assert ran.json["size"] == {"width": 48, "height": 32}
    ran = cli(*OUT, 3, "--seed", "5", "-q")
    assert ran.out.startswith("made: 1 pair written in ")
    assert ran.out.endswith(", 2 existed\n")
    assert sorted(path.name for path in (scene / "made").iterdir()) == [
        "flow",
        "frame1",
        "frame2",
        "invalid",
        "occlusions",
        "pairs.json",
    ]
    ran = cli("evaluate", "tvl1", "synthetic:made", "--preset", "fast", "-o", "run", "--json", "-q")
    assert ran.code == 0
    assert ran.json["scores"]["epe"] > 0


def test_pairs_report_full_disk_in_one_line(refused: Callable[..., str], cli: Any, scene: Path) -> None:
    """The manifest fits, and a frame does not."""
    small = scene / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root alone")
    try:
        pairs = ("pairs", "-o", "small/made", "--size", "96x64", "--count", "1", "-q")
        assert "No space left on device" in refused(*pairs)
        assert not list(small.rglob("*.part*")), "no piece is left"
        subprocess.run(["mount", "-o", "remount,size=4m", str(small)], check=True)
        assert cli(*pairs).out.startswith("small/made: 1 pair written in ")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_pairs_refuses_bad_input(refused: Callable[..., str], cli: Any, scene: Path) -> None:
    (scene / "file").write_text("x", "utf-8")
    assert "--seed: expected a whole number >= 0, got -1" in refused(*OUT, 1, "--seed", "-1")
    assert "absent.zip: no such file" in refused(*OUT, 1, "--textures", "absent.zip")
    assert "file: not a picture pack" in refused(*OUT, 1, "--textures", "file")
    assert "file: is a file; --output" in refused("pairs", "-o", "file")
    assert "--size: expected" in refused("pairs", "-o", "made", "--size", "4x4")
    assert "--device: expected" in refused(*OUT, 1, "--device", "abacus")
    assert "--style: expected one of usual, small, figures, bodies" in refused(*OUT, 1, "--style", "thin")
    assert cli(*OUT, 1, "-q").code == 0
    assert "made: was begun with other settings (seed was 0, is 1)" in refused(*OUT, 1, "--seed", "1")
    assert "(style.camera_motion was 9.0, is 3.0; style.object_motion was " in refused(*OUT, 1, "--style", "small")
