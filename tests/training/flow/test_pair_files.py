"""Synthetic pairs as files, read back as the data set ``synthetic``."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fullfield import InputError
from fullfield.datasets import open_dataset
from fullfield.datasets.own import SyntheticPairs
from fullfield.training.flow import SceneStyle, pair_files
from fullfield.training.flow.pair_files import write_missing_pairs
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import create_procedural_picture_pack, load_or_create_picture_pack
from refusals import refuses
from tools.textures.pack import build_pack
from tools.textures.sources import own_pictures

SIZE = (16, 24)
FEW = SceneStyle(instants=2)


def generator() -> PairGenerator:
    """Return a generator that computes every batch again."""
    return PairGenerator(SIZE, seed=3, pictures=create_procedural_picture_pack(2, size=32, shape_count=4), style=FEW)


@pytest.fixture(scope="module")
def pairs() -> PairGenerator:
    """Return a generator that makes each batch once for all tests."""
    made = generator()
    made.batch = functools.cache(made.batch)  # type: ignore[method-assign]
    return made


def test_write_pairs_is_read_by_synthetic_pairs(pairs: PairGenerator, tmp_path: Path) -> None:
    written = write_missing_pairs(tmp_path / "made", pairs, 3, pairs_per_batch=2)
    assert (written.written_count, written.existing_count) == (3, 0)
    made = open_dataset("synthetic", tmp_path / "made")
    assert isinstance(made, SyntheticPairs)
    assert [record.name for record in made.records] == [f"{n:05d}" for n in range(3)]
    truth = pairs.batch(0, 3)
    for number, sample in enumerate(made):
        assert (sample.frame1 - truth.frame1[number]).abs().max() <= 0.51 / 255
        assert (sample.frame2 - truth.frame2[number]).abs().max() <= 0.51 / 255
        known = truth.valid[number]
        assert torch.equal(sample.valid, known)
        assert torch.equal(sample.flow[:, known], truth.flow[number][:, known])
        assert torch.equal(sample.occluded, truth.occluded[number])
    assert truth.occluded.any()  # and what was compared was something
    assert truth.flow.abs().max() > 1


def test_write_pairs_resumes_and_grows_set(pairs: PairGenerator, tmp_path: Path) -> None:
    write_missing_pairs(tmp_path / "whole", pairs, 3)
    write_missing_pairs(tmp_path / "made", generator(), 2)
    (tmp_path / "made/flow/00001.flo").unlink()  # as if it was stopped before
    refuses(r"pairs\.json: lists 2 pairs, found 1; run the same", open_dataset, "synthetic", tmp_path / "made")
    written = write_missing_pairs(tmp_path / "made", generator(), 3, pairs_per_batch=2)
    assert (written.written_count, written.existing_count) == (2, 1)
    for file in sorted((tmp_path / "whole").rglob("*.*")):
        assert file.read_bytes() == (tmp_path / "made" / file.relative_to(tmp_path / "whole")).read_bytes(), file.name
    write_missing_pairs(tmp_path / "made", pairs, 2)  # fewer: nothing is lost
    assert len(open_dataset("synthetic", tmp_path / "made")) == 3


def test_write_pairs_marks_motion_beyond_kitti_as_unknown(tmp_path: Path) -> None:
    pictures = create_procedural_picture_pack(2, size=32, shape_count=2)
    pairs = PairGenerator(SIZE, pictures=pictures, style=FEW)
    batch = pairs.batch(0, 1)
    far = batch.flow.clone()
    far[:, :, :5] = 600.0

    class Far(PairGenerator):
        def batch(self, batch_index: int, pair_count: int):  # type: ignore[no-untyped-def]
            is_first = (batch_index, pair_count) == (0, 1)
            return batch._replace(flow=far) if is_first else super().batch(batch_index, pair_count)

    write_missing_pairs(
        tmp_path / "made", Far(SIZE, pictures=pictures, style=FEW), 1, flow_format="png", pairs_per_batch=1
    )
    assert (tmp_path / "made/flow/00000.png").is_file()
    sample = open_dataset("synthetic", tmp_path / "made")[0]
    assert not sample.valid[:5].any()
    assert torch.equal(sample.valid[5:], batch.valid[0, 5:])
    known = sample.valid
    assert (sample.flow[:, known] - far[0][:, known]).abs().max() <= 1 / 128


def test_write_pairs_writes_licences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    (tmp_path / "photos").mkdir()
    Image.fromarray(small).resize((200, 160), Image.Resampling.BICUBIC).save(tmp_path / "photos/a.png")
    pack = build_pack(
        tmp_path / "pack.zip", packages=[], own=own_pictures(tmp_path / "photos", "CC0-1.0", "Me", cutout=False)
    )
    pictures = load_or_create_picture_pack(pack.path, size=64, procedural_shape_count=4)
    pairs = PairGenerator(SIZE, pictures=pictures, style=FEW)
    write_missing_pairs(tmp_path / "made", pairs, 1, textures=pack.path)
    assert "**CC0-1.0**: Me" in (tmp_path / "made/licences.md").read_text("utf-8")
    manifest = json.loads((tmp_path / "made/pairs.json").read_text("utf-8"))
    assert manifest["textures"]["from"] == "pack.zip"
    assert manifest["textures"]["pictures"] == len(pictures.pictures)
    assert (manifest["seed"], manifest["width"], manifest["height"]) == (0, 24, 16)
    with pytest.raises(InputError, match=r"made: was begun with other settings \(textures\.from was "):
        write_missing_pairs(tmp_path / "made", pairs, 1)

    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair_files, "read_pack_manifest", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_missing_pairs(tmp_path / "stopped", pairs, 1, textures=pack.path)
    assert write_missing_pairs(tmp_path / "stopped", pairs, 1, textures=pack.path).written_count == 1  # goes on


def test_write_pairs_refuses_other_settings(pairs: PairGenerator, tmp_path: Path) -> None:
    write_missing_pairs(tmp_path / "made", pairs, 1)
    pictures = create_procedural_picture_pack(2, size=32, shape_count=4)
    for other, word in (
        (PairGenerator(SIZE, seed=4, pictures=pictures, style=FEW), r"seed was 3, is 4"),
        (PairGenerator((16, 40), seed=3, pictures=pictures, style=FEW), r"width was 24, is 40"),
        (
            PairGenerator(SIZE, seed=3, pictures=pictures, style=SceneStyle(blur=0.5, instants=2)),
            r"style\.blur was 0\.35, is 0\.5",
        ),
    ):
        refuses(rf"made: was begun with other settings \({word}\)", write_missing_pairs, tmp_path / "made", other, 1)
    refuses("flow was 'flo', is 'png'", write_missing_pairs, tmp_path / "made", pairs, 1, flow_format="png")


def test_write_pairs_refuses_other_style_fields(pairs: PairGenerator, tmp_path: Path) -> None:
    """Its scenes had fields that are gone, or came before fields that there are now."""
    write_missing_pairs(tmp_path / "made", pairs, 1)
    manifest = tmp_path / "made/pairs.json"
    now = json.loads(manifest.read_text("utf-8"))
    early = {name: value for name, value in now["style"].items() if name != "smooth"}
    for style, word in (
        (now["style"] | {"fog": 0.15}, r"style\.fog was 0\.15, is None"),
        (early, r"style\.smooth was None, is 0\.3"),
        ("usual", r"style was 'usual', is "),
    ):
        manifest.write_text(json.dumps(now | {"style": style}), "utf-8")
        refuses(rf"made: was begun with other settings \({word}", write_missing_pairs, tmp_path / "made", pairs, 2)


def test_write_pairs_names_damaged_sets_and_bad_arguments(pairs: PairGenerator, tmp_path: Path) -> None:
    refuses(r"^count: ", write_missing_pairs, tmp_path, pairs, 0)
    refuses(r"^flow_format: ", write_missing_pairs, tmp_path, pairs, 1, flow_format="exr")
    assert not list(tmp_path.iterdir())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thing.txt").write_text("mine", "utf-8")
    with pytest.raises(InputError, match=r"other: holds files, and no pairs\.json says"):
        write_missing_pairs(tmp_path / "other", pairs, 1)
    refuses("expected the folder of", open_dataset, "synthetic", tmp_path / "absent")
    write_missing_pairs(tmp_path / "made", pairs, 1)
    manifest = tmp_path / "made/pairs.json"
    for text, word in (("{", "JSONDecodeError"), ("{}", "KeyError"), ('{"count": "x"}', "a count of pairs, got 'x'")):
        manifest.write_text(text, "utf-8")
        refuses(word, open_dataset, "synthetic", tmp_path / "made")
    refuses(r"pairs\.json: expected an entry count", write_missing_pairs, tmp_path / "made", pairs, 1)
    manifest.unlink()
    refuses(r"pairs\.json: does not exist", open_dataset, "synthetic", tmp_path / "made")
    manifest.write_text('{"count": 1}', "utf-8")
    (tmp_path / "made/frame2/00000.png").unlink()
    refuses(r"00000\.png: does not exist", open_dataset, "synthetic", tmp_path / "made")
