"""Patterns, folders and globs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fullfield import InputError
from fullfield.sequences.names import Pattern, choose, find_frames, is_sequence


@pytest.fixture
def shot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in (998, 999, 1000, 1001):
        (tmp_path / f"plate.{number:04d}.exr").touch()
    (tmp_path / "notes.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a.%04d.exr", "a.0007.exr"),
        ("a.%d.exr", "a.7.exr"),
        ("a.%6d.exr", "a.000007.exr"),
        ("a.####.exr", "a.0007.exr"),
        ("a.######.exr", "a.000007.exr"),
        ("a.##.exr", "a.07.exr"),
        ("a.#.exr", "a.0007.exr"),
        ("a.@@@.exr", "a.007.exr"),
        ("a.@.exr", "a.7.exr"),
        ("a.$F4.exr", "a.0007.exr"),
        ("a.$F.exr", "a.7.exr"),
        ("#/../f/a_%03d_b.exr".replace("#/../", ""), "f/a_007_b.exr"),
    ],
)
def test_a_pattern_names_files(text: str, name: str) -> None:
    assert Pattern.parse(text).path(7) == name.replace("/", os.sep)


def test_long_and_negative_numbers() -> None:
    assert Pattern.parse("a.%04d.exr").path(123456) == "a.123456.exr"
    assert Pattern.parse("a.%04d.exr").path(-5) == "a.-005.exr"


@pytest.mark.parametrize("text", ["a.exr", "a.%04d.%04d.exr", "a.####.@@.exr", "f.%04d/a.exr"])
def test_what_is_no_pattern_is_named(text: str) -> None:
    with pytest.raises(InputError, match=f"^{text.split('%')[0].split('#')[0]}.*: expected"):
        Pattern.parse(text)


@pytest.mark.parametrize(
    "text",
    ["plate.%04d.exr", "plate.####.exr", "plate.@@@@.exr", "plate.#.exr", "plate.$F4.exr", "*.exr", ".", "plate*"],
)
def test_spellings_of_one_shot(shot: Path, text: str) -> None:
    assert is_sequence(text)
    found = find_frames(text)
    assert list(found.files) == [998, 999, 1000, 1001]
    assert choose(found, None) == [998, 999, 1000, 1001]
    assert choose(found, "1000-1005") == [1000, 1001, 1002, 1003, 1004, 1005]
    assert Path(found.path(998)).name == "plate.0998.exr"
    assert Path(found.path(2)).name == "plate.0002.exr"
    assert find_frames(str(shot / text)).files.keys() == found.files.keys()


@pytest.mark.parametrize(
    "text",
    ["plate.999-1001####.exr", "plate.999-1001@@@@.exr", "plate.999-1001#.exr", "plate.%04d.exr 999-1001",
     "plate.####.exr 999,1000-1001", "plate.999-1001%04d.exr"],
)  # fmt: skip
def test_frames_in_the_name(shot: Path, text: str) -> None:  # noqa: ARG001
    assert choose(find_frames(text), None) == [999, 1000, 1001]
    assert choose(find_frames(text), "1001") == [1001]


def test_padding_is_exact_but_of_a_single_hash(tmp_path: Path) -> None:
    for name in ("a.1.png", "a.02.png", "a.0003.png", "a.10.png"):
        (tmp_path / name).touch()
    assert list(find_frames(f"{tmp_path}/a.%d.png").files) == [1, 10]
    assert list(find_frames(f"{tmp_path}/a.##.png").files) == [2, 10]
    assert list(find_frames(f"{tmp_path}/a.####.png").files) == [3]
    assert list(find_frames(f"{tmp_path}/a.#.png").files) == [1, 2, 3, 10]
    with pytest.raises(InputError, match=r"a\.%06d\.png: no such file; the folder has a\.1\.png and 3 more"):
        find_frames(f"{tmp_path}/a.%06d.png")


def test_names_with_other_numbers_and_signs(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"sh010_v002_{number:03d}.png").touch()
    assert list(find_frames(str(tmp_path)).files) == [1, 2]
    (tmp_path / "b.-001.png").touch()
    assert list(find_frames(f"{tmp_path}/b.%04d.png").files) == [-1]


def test_frames_without_numbers_are_counted(tmp_path: Path) -> None:
    for name in ("c.png", "a.png", "b.png", ".hidden.png"):
        (tmp_path / name).touch()
    assert [path.name for path in find_frames(str(tmp_path)).files.values()] == ["a.png", "b.png", "c.png"]


def test_two_sequences_are_not_mixed(tmp_path: Path) -> None:
    for name in ("left.0001.png", "right.0001.png"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="expected one sequence, got 2"):
        find_frames(str(tmp_path))
    assert list(find_frames(f"{tmp_path}/left*.png").files) == [1]
    (tmp_path / "left.1.png").touch()
    with pytest.raises(InputError, match="expected one file a frame"):
        find_frames(f"{tmp_path}/left*.png")


def test_refusals(shot: Path) -> None:
    with pytest.raises(InputError, match=r"is one frame; a sequence is a pattern, such as plate\.####\.exr"):
        find_frames("plate.1001.exr")
    with pytest.raises(InputError, match=r"none of the frames 1-5 is there; plate\.%04d\.exr has 998-1001"):
        choose(find_frames("plate.%04d.exr"), "1-5")
    for text, words in (("no.%04d.exr", "no such file"), ("no/x.%04d.exr", "folder no does not exist"),
                        ("*.png", "found none"), ("none", "no such file or"), ("x.mp4", "no such file")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            find_frames(text)
    assert not is_sequence("plate.1001.exr")
    (shot / "odd[1].%04d.png").touch()
    assert not is_sequence("odd[1].%04d.png"), "a file of that very name"
