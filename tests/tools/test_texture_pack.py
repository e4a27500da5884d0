"""The picture pack: licences, what is left out, and building."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fullfield import InputError
from fullfield.io import write_image
from fullfield.training.flow.pictures import (
    format_licences,
    load_or_create_picture_pack,
    read_pack_manifest,
    unpack_4bit_masks,
)
from fullfield.training.flow.procedural import MARGIN, draw_procedural_shape_masks
from tools.textures.pack import (
    build_pack,
    fingerprint,
    is_duplicate,
    is_same_shape,
    pack_masks,
    shape_fingerprint,
    silhouette,
    why_not_texture,
)
from tools.textures.sources import (
    DebianCopyright,
    Package,
    bpy_pictures,
    debian_pictures,
    openclipart_pictures,
    own_pictures,
    pmndrs_pictures,
    skimage_pictures,
    usable,
)

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: game
Comment: Files: of all kinds
 License: none

Files: *
Copyright: 2010, The Team
License: GPL-3+

Files: data/free/* data/one\\*.png
Copyright: 2012 Ann Author <ann@example.org>
           2013 Ben Author
License: CC-BY-3.0

Files: data/free/shared*
Copyright: 2014 Cyd
License: CC-BY-SA-3.0

Files: data/either.png
Copyright: Dee
License: GPL-2 or CC-BY-SA-4.0 or Expat

Files:
 data/both.png
 data/img_?.png
Copyright: Eve
License: CC-BY-4.0 and CC0

Files: data/mixed.png
Copyright: Fay
License: CC-BY-4.0 and GPL-2

Files: data/lost.png
Copyright: Public Domain ???? by ????
License: CC0

Files: data/special.png
Copyright: Gus
License: CC0 with an exception

License: CC-BY-3.0
 Files: * is what this text is about.
"""


def photo(seed: int, height: int = 200, width: int = 260) -> np.ndarray:
    """A picture [H, W, 3] that no check refuses and that is like no other seed's."""
    small = np.random.default_rng(seed).integers(0, 256, (9, 11, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def cutout(seed: int) -> np.ndarray:
    """Colour and alpha [200, 240, 4] of a polygon."""
    mask = Image.fromarray(draw_procedural_shape_masks(8 * seed + 1, 0)[-1]).resize((240, 200))
    return np.dstack([photo(seed, 200, 240), np.asarray(mask)])


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize(
    ("path", "licence"),
    [
        ("data/free/deep/er/a.png", "CC-BY-3.0"),
        ("data/free/shared_a.png", None),  # the last stanza that names a file wins
        ("data/other.png", None),
        ("data/either.png", "MIT"),
        ("data/both.png", "CC-BY-4.0 and CC0-1.0"),
        ("data/img_7.png", "CC-BY-4.0 and CC0-1.0"),
        ("data/img_77.png", None),
        ("data/mixed.png", None),
        ("data/lost.png", None),
        ("data/special.png", None),
        ("data/one*.png", "CC-BY-3.0"),
        ("data/one2.png", None),
    ],
)
def test_debian_copyright_terms_returns_licence_of_file(path: str, licence: str | None) -> None:
    assert usable(DebianCopyright(COPYRIGHT).terms(path)) == licence


def debian_tree(root: Path) -> Path:
    doc = root / "usr/share/doc/game-data/copyright"
    doc.parent.mkdir(parents=True)
    doc.write_text(COPYRIGHT, "utf-8")
    data = root / "usr/share/games/game/data"
    for seed, name in enumerate(("free/a.png", "free/shared.png", "free/a_nm.png", "other.png", "either.png")):
        save(data / name, photo(seed))
    save(data / "free/leaf.png", cutout(3))
    save(data / "gui/free.png", photo(8))
    (data / "free/link.png").symlink_to("a.png")
    return root


GAME = Package(
    "game-data",
    "deb",
    "",
    lambda root, version: debian_pictures(
        root, version, name="game-data", installed="usr/share/games/game", source="", cutouts="leaf"
    ),
)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_build_pack_reads_debian_archive(tmp_path: Path) -> None:
    tree = debian_tree(tmp_path / "tree")
    control = tree / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text(
        "Package: game-data\nVersion: 1.5-2\nArchitecture: all\nMaintainer: N\nDescription: d\n", "utf-8"
    )
    (tmp_path / "archives").mkdir()
    archive = tmp_path / "archives/game-data_1.5-2_all.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", str(tree), str(archive)], check=True, capture_output=True)

    pack = build_pack(tmp_path / "pack.zip", packages=[GAME], archives=tmp_path / "archives")
    assert (pack.pictures, pack.shapes) == (2, 1)  # the leaf is no texture, the map of normals nothing
    assert pack.left_out == {"named as a map": 1, "cut-out": 1}
    listed = read_pack_manifest(tmp_path / "pack.zip")
    assert [(e["package"], e["version"], e["path"], e["licence"]) for e in listed["pictures"]] == [
        ("game-data", "1.5-2", "data/either.png", "MIT"),
        ("game-data", "1.5-2", "data/free/a.png", "CC-BY-3.0"),
    ]
    text = format_licences(listed)
    assert "| game-data | 1.5-2 | CC-BY-3.0 | 1 | 1 |" in text
    assert "**CC-BY-3.0**: 2012 Ann Author <ann@example.org> 2013 Ben Author" in text
    assert "- `data/free/` a.png, leaf.png" in text
    assert "shared" not in text

    loaded = load_or_create_picture_pack(tmp_path / "pack.zip", size=128, procedural_shape_count=5)
    assert loaded.pictures.shape == (8, 128, 128, 3)  # 200 × 260: four crops of each
    assert loaded.pictures.dtype == torch.uint8
    assert loaded.shapes.shape == (6, 128, 128)
    assert loaded.names[0] == "game-data/data/either.png, whole, crop 1"

    before = (tmp_path / "pack.zip").read_bytes()
    build_pack(tmp_path / "again.zip", packages=[GAME], archives=tmp_path / "archives")
    assert (tmp_path / "again.zip").read_bytes() == before

    archive.write_bytes(archive.read_bytes()[:500])
    with pytest.raises(InputError, match="dpkg-deb"):
        build_pack(tmp_path / "pack.zip", packages=[GAME], archives=tmp_path / "archives")
    assert (tmp_path / "pack.zip").read_bytes() == before


def test_build_pack_reads_wheel_and_npm_package(tmp_path: Path) -> None:
    for index, name in enumerate(("coffee.png", "coins.png")):  # the second is not in the list of what was given away
        save(tmp_path / name, photo(index, 160, 160))
    with zipfile.ZipFile(tmp_path / "scikit_image-0.1.2-cp313-none.whl", "w") as wheel:
        for name in ("coffee.png", "coins.png"):
            wheel.write(tmp_path / name, f"skimage/data/{name}")
    light = photo(5, 128, 256).astype(np.float32) / 64
    write_image(tmp_path / "park.exr", torch.from_numpy(light.transpose(2, 0, 1).copy()))
    module = "export default 'data:application/exr;base64,"
    module += base64.b64encode((tmp_path / "park.exr").read_bytes()).decode() + "'"
    (tmp_path / "package/hdri").mkdir(parents=True)
    (tmp_path / "package/hdri/park.exr.js").write_text(module, "ascii")
    (tmp_path / "package/LICENSE").write_text("CC0 1.0 Universal", "utf-8")
    with tarfile.open(tmp_path / "pmndrs-assets-3.4.5.tgz", "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    packages = [
        Package("scikit-image", "wheel", "", skimage_pictures),
        Package("@pmndrs/assets", "npm", "", pmndrs_pictures),
    ]
    build_pack(tmp_path / "pack.zip", packages=packages, archives=tmp_path)
    entries = read_pack_manifest(tmp_path / "pack.zip")["pictures"]
    assert [(e["package"], e["version"], e["path"], e["author"], e["view"]) for e in entries] == [
        ("scikit-image", "0.1.2", "skimage/data/coffee.png", "Rachel Michetti", "whole"),
        ("@pmndrs/assets", "3.4.5", "hdri/park.exr", "Poly Haven", "piece 1 of 2"),
        ("@pmndrs/assets", "3.4.5", "hdri/park.exr", "Poly Haven", "piece 2 of 2"),
    ]
    mapped = load_or_create_picture_pack(tmp_path / "pack.zip", size=128, procedural_shape_count=0).pictures[1].float()
    assert 60 < mapped.median() < 190  # exposed for the middle


@pytest.mark.parametrize("find", [bpy_pictures, pmndrs_pictures, openclipart_pictures])
def test_picture_sources_refuse_other_licence_statement(tmp_path: Path, find: Callable) -> None:  # type: ignore[type-arg]
    for place in (
        "bpy/5.2/datafiles/studiolights/world/license.txt",
        "package/LICENSE",
        "usr/share/doc/openclipart-png/copyright",
    ):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("All rights reserved", "utf-8")
    with pytest.raises(InputError, match=r"expected (CC0|a licence file|the dedication).*, found no"):
        list(find(tmp_path, "1"))


def test_why_not_texture_names_unsuitable_pictures() -> None:
    good = photo(1)
    assert why_not_texture(good, None) is None
    assert why_not_texture(good[:100], None) == "small"
    assert why_not_texture(np.full_like(good, 90), None) == "flat"
    assert why_not_texture(np.where(good > 128, 255, 0).astype(np.uint8), None) == "few colours"
    half = good.copy()
    half[:120] = (200, 10, 10)
    assert why_not_texture(half, None) == "mostly one colour"
    assert why_not_texture(good, np.zeros(good.shape[:2], np.uint8)) == "cut-out"
    normals = (good * 0.25 + np.array([96, 96, 185])).clip(0, 255).astype(np.uint8)
    assert why_not_texture(normals, None) == "normals"
    assert why_not_texture(photo(1, 130, 600), None) == "long and thin"


def test_is_duplicate_detects_resized_pictures() -> None:
    seen = np.stack([fingerprint(photo(1)), fingerprint(photo(2))])
    shrunk = np.asarray(Image.fromarray(photo(1)).resize((140, 130)))
    assert is_duplicate(fingerprint(shrunk), seen)
    assert not is_duplicate(fingerprint(photo(3)), seen)
    assert not is_duplicate(fingerprint(photo(1)), seen[:0])
    shapes = draw_procedural_shape_masks(10, 0)
    seen = np.stack([shape_fingerprint(s) for s in shapes[:9]])
    assert is_same_shape(shape_fingerprint(shapes[1][:, ::-1]), seen)
    assert not is_same_shape(shape_fingerprint(shapes[9]), seen)


def test_silhouette_fills_tile_except_margin() -> None:
    alpha = cutout(2)[..., 3]
    for scale in (1, 3):
        mask = silhouette(np.kron(alpha, np.ones((scale, scale), np.uint8)))
        assert mask is not None
        rows, columns = (mask > 0).any(1).nonzero()[0], (mask > 0).any(0).nonzero()[0]
        assert rows[0] >= MARGIN
        assert columns[0] >= MARGIN
        assert max(rows[-1] - rows[0], columns[-1] - columns[0]) >= 128 - 2 * MARGIN - 3
        assert rows[-1] < 128 - MARGIN
        assert columns[-1] < 128 - MARGIN
    assert silhouette(np.full((200, 200), 255, np.uint8)) is None  # a rectangle
    assert silhouette(np.zeros((200, 200), np.uint8)) is None
    assert silhouette(alpha[::5, ::5]) is None  # small
    assert silhouette((alpha > 0).astype(np.uint8) * 120) is None  # half-transparent


def test_build_pack_accepts_own_pictures(tmp_path: Path) -> None:
    save(tmp_path / "photos/b.png", photo(1))
    save(tmp_path / "photos/sub/a.jpg", photo(2))
    (tmp_path / "photos/broken.png").write_bytes(b"\x89PNG none")
    save(tmp_path / "cut/c.png", cutout(1))
    own = [
        *own_pictures(tmp_path / "photos", "mine", "Me", cutout=False),
        *own_pictures(tmp_path / "cut", "mine", "Me", cutout=True),
    ]
    pack = build_pack(tmp_path / "pack.zip", packages=[], own=own)
    assert (pack.pictures, pack.shapes, pack.left_out) == (2, 1, {"cannot be read, or huge": 1})
    assert {e["licence"] for e in read_pack_manifest(pack.path)["pictures"]} == {"mine"}
    (tmp_path / "cut/c.png").unlink()
    with pytest.raises(InputError, match=r"cut: expected pictures .*, found none$"):
        list(own_pictures(tmp_path / "cut", "mine", "Me", cutout=True))
    with pytest.raises(InputError, match="expected at least one usable picture"):
        build_pack(tmp_path / "empty.zip", packages=[])
    assert not (tmp_path / "empty.zip").exists()


def test_build_pack_limits_silhouettes(tmp_path: Path) -> None:
    for seed in range(3):
        save(tmp_path / f"cut/{seed}.png", cutout(seed))
    cut = list(own_pictures(tmp_path / "cut", "mine", "Me", cutout=True))
    with pytest.raises(InputError, match="expected at least one usable picture"):
        build_pack(tmp_path / "a.zip", packages=[], own=cut)
    save(tmp_path / "photos/a.png", photo(1))
    own = [*cut, *own_pictures(tmp_path / "photos", "mine", "Me", cutout=False)]
    kept = build_pack(tmp_path / "a.zip", packages=[], own=own, most_shapes=2)
    assert kept.shapes == 2
    assert kept.left_out["silhouette beyond the limit"] == 1
    turned = build_pack(tmp_path / "b.zip", packages=[], own=own[::-1], most_shapes=2)
    names = [{e["path"] for e in read_pack_manifest(p.path)["shapes"]} for p in (kept, turned)]
    assert names[0] == names[1]


def test_pack_masks_keeps_four_bits() -> None:
    masks = np.random.default_rng(0).integers(0, 256, (3, 128, 128), np.uint8)
    packed = pack_masks(masks)
    assert packed.shape == (3, 128, 64)
    assert np.abs(unpack_4bit_masks(packed).astype(int) - masks).max() <= 8
    assert set(np.unique(unpack_4bit_masks(pack_masks(np.array([[[0, 255]]], np.uint8))))) == {0, 255}
