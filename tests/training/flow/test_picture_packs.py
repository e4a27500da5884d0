"""Reading picture packs, and pictures drawn from a seed."""

from __future__ import annotations

import hashlib
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fullfield import InputError
from fullfield.training.flow.pictures import (
    PicturePack,
    create_procedural_picture_pack,
    crop_or_enlarge_to_squares,
    load_or_create_picture_pack,
    read_pack_manifest,
)
from fullfield.training.flow.procedural import MARGIN, draw_procedural_shape_masks
from refusals import refuses


def photo(seed: int, height: int = 200, width: int = 260) -> np.ndarray:
    """A picture [H, W, 3] that no check refuses and that is like no other seed's."""
    small = np.random.default_rng(seed).integers(0, 256, (9, 11, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize(
    ("height", "width", "crops"),
    [(512, 512, 1), (640, 640, 1), (427, 640, 2), (256, 256, 1), (130, 300, 1), (128, 512, 2)],
)
def test_crop_squares_covers_picture(height: int, width: int, crops: int) -> None:
    found = crop_or_enlarge_to_squares(photo(2, height, width), 512)
    assert [square.shape for square in found] == [(512, 512, 3)] * crops


def test_crop_squares_mirrors_small_pictures() -> None:
    (square,) = crop_or_enlarge_to_squares(photo(2, 128, 128), 512)  # twice as large, then mirrored
    assert np.array_equal(square[:256], square[256:][::-1])
    assert np.array_equal(square[:, :256], square[:, 256:][:, ::-1])
    assert not np.array_equal(square[:128], square[128:256][::-1])


def test_load_picture_pack_refuses_damaged_packs(tmp_path: Path) -> None:
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"no zip")
    refuses(r"bad\.zip: not a picture pack, or a damaged one", load_or_create_picture_pack, bad)
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("other", "")
    for reader in (load_or_create_picture_pack, read_pack_manifest):
        refuses(r"bad\.zip: not a picture pack", reader, bad)
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("manifest.json", '{"format": 99}')
    refuses("format 1, got another", load_or_create_picture_pack, bad)
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("manifest.json", '{"format": 1, "pictures": [], "shapes": [{}]}')
        file.writestr("shapes.bin", b"123")
    refuses("expected 8192 bytes of silhouettes, got 3", load_or_create_picture_pack, bad)
    with zipfile.ZipFile(bad, "w") as file:
        entry = '{"file": "a.jpg", "package": "p", "path": "a", "view": "whole"}'
        file.writestr("manifest.json", f'{{"format": 1, "pictures": [{entry}], "shapes": []}}')
        file.writestr("shapes.bin", b"")
        file.writestr("a.jpg", b"none")
    refuses(r"bad\.zip: not a picture pack, or a damaged one \(a picture in it", load_or_create_picture_pack, bad)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(bad, "w", method) as file:
            file.writestr("manifest.json", '{"format": 1, "pictures": [], "shapes": [{}]}')
            file.writestr("shapes.bin", bytes(8192))
        whole = bad.read_bytes()
        for bit in range(0, 8 * len(whole), 19):
            broken = bytearray(whole)
            broken[bit // 8] ^= 1 << bit % 8
            bad.write_bytes(broken)
            with suppress(InputError):  # whatever else it raises fails
                load_or_create_picture_pack(bad, procedural_shape_count=0)
            with suppress(InputError):
                read_pack_manifest(bad)
    with pytest.raises(FileNotFoundError):
        load_or_create_picture_pack(tmp_path / "absent.zip")


def digest(pack: PicturePack) -> str:
    return hashlib.sha256(pack.pictures.numpy().tobytes() + pack.shapes.numpy().tobytes()).hexdigest()[:16]


def test_create_procedural_pictures_depend_on_seed_alone() -> None:
    assert digest(create_procedural_picture_pack(10, 64, 0, shape_count=16)) == "3a73dbc963df119c"
    assert digest(create_procedural_picture_pack(10, 64, 1, shape_count=16)) != "3a73dbc963df119c"
    pack = create_procedural_picture_pack(20, 64, 3, shape_count=8)
    assert pack.pictures.shape == (20, 64, 64, 3)
    assert len(set(pack.names)) == 20
    few = create_procedural_picture_pack(4, 64, 3, shape_count=2)
    assert torch.equal(few.pictures, pack.pictures[:4])
    assert torch.equal(few.shapes, pack.shapes[:2])
    assert torch.equal(
        load_or_create_picture_pack(None, size=16, procedural_shape_count=8).shapes,
        create_procedural_picture_pack(1, 16, shape_count=8).shapes,
    )
    spread = pack.pictures.float().mean(-1).flatten(1).std(1)
    assert (spread > 0.5).all()  # none is one colour
    assert (spread > 20).sum() >= 8
    refuses(r"^size: ", load_or_create_picture_pack, None, size=4)
    refuses(r"^count: ", create_procedural_picture_pack, 0)
    refuses(r"^seed: ", create_procedural_picture_pack, 1, 16, -1)


def test_create_procedural_shapes_fill_tile_except_margin() -> None:
    shapes = draw_procedural_shape_masks(48, 5)
    covered = shapes.astype(bool)
    assert not covered[:, :MARGIN].any()
    assert not covered[:, -MARGIN:].any()
    assert not covered[:, :, :MARGIN].any()
    assert not covered[:, :, -MARGIN:].any()
    longest = np.maximum(covered.any(1).sum(1), covered.any(2).sum(1))
    assert longest.min() >= 0.85 * (128 - 2 * MARGIN)
    assert len({s.tobytes() for s in shapes}) == 48
