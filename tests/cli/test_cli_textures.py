"""``fullfield textures``: a pack of one's own pictures, its list, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def folders(scene: Path) -> None:
    for folder in ("photos", "cut"):
        (scene / folder).mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (9, 11, 4), np.uint8)
    picture = Image.fromarray(noise).resize((200, 160), Image.Resampling.BICUBIC)
    picture.convert("RGB").save(scene / "photos/a.png")
    y, x = np.mgrid[0:160, 0:200]
    picture.putalpha(Image.fromarray(np.where((x - 90) ** 2 + (y - 80) ** 2 < 70**2, 255, 0).astype(np.uint8)))
    picture.save(scene / "cut/disc.png")


def test_own_pictures_and_their_list(cli: Any, scene: Path) -> None:
    folders(scene)
    own = ("textures", "-o", "pack.zip", "--no-packages", "--pictures", "photos", "--cutouts", "cut", "-q")
    ran = cli(*own, "--licence", "CC0-1.0", "--author", "Me", "--json")
    assert ran.code == 0
    assert (ran.json["pictures"], ran.json["silhouettes"]) == (1, 1)
    assert ran.json["bytes"] == (scene / "pack.zip").stat().st_size
    ran = cli("textures", "--list", "pack.zip")
    assert "**CC0-1.0**: Me\n\n- `./` disc.png\n" in ran.out
    assert "| photos |  | CC0-1.0 | 1 | 0 |" in ran.out
    assert cli("textures", "--list", "pack.zip", "--json").json["shapes"][0]["path"] == "disc.png"
    ran = cli(*own)
    assert ran.out.splitlines()[0].startswith("pack.zip: 1 pictures, 1 silhouettes, ")
    assert ran.out.splitlines()[1] == "left out: nothing"


def test_packages_are_taken_from_a_folder(refused: Callable[..., str], scene: Path) -> None:
    (scene / "archives").mkdir()
    (scene / "archives/openclipart-png_1_all.deb").write_bytes(b"none")
    assert "dpkg-deb" in refused("textures", "-o", "pack.zip", "--archives", "archives", "-q")
    assert not (scene / "pack.zip").exists()


def test_mistakes(refused: Callable[..., str], scene: Path) -> None:
    (scene / "empty").mkdir()
    out = ("textures", "-o", "pack.zip", "--no-packages")
    assert "one of the arguments -o/--output --list is required" in refused("textures")
    assert "nothing is left" in refused(*out)
    assert "--pictures absent: expected a folder" in refused(*out, "--pictures", "absent")
    assert "empty: expected pictures" in refused(*out, "--pictures", "empty")
    assert "pack.tar: unknown suffix '.tar'" in refused("textures", "-o", "pack.tar")
    assert "absent.zip: no such file" in refused("textures", "--list", "absent.zip")
    (scene / "bad.zip").write_bytes(b"no")
    assert "bad.zip: not a picture pack" in refused("textures", "--list", "bad.zip")
