"""Patterns, folders, globs and ranges of frames."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullfield import InputError
from fullfield.sequences.names import (
    FramePattern,
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    format_frames,
    is_sequence_or_video_path,
    parse_frames,
)
from refusals import refuses


@pytest.fixture
def shot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in (998, 999, 1000, 1001):
        (tmp_path / f"plate.{number:04d}.exr").touch()
    (tmp_path / "notes.txt").touch()
    return tmp_path


@pytest.mark.unit
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
def test_pattern_format_path_returns_file_name(text: str, name: str) -> None:
    assert FramePattern.parse(text).format_path(7) == name.replace("/", os.sep)


@pytest.mark.unit
def test_pattern_accepts_long_and_negative_numbers(tmp_path: Path) -> None:
    assert FramePattern.parse("a.%04d.exr").format_path(123456) == "a.123456.exr"
    assert FramePattern.parse("a.%04d.exr").format_path(-5) == "a.-005.exr"
    for number in (1, 2):
        (tmp_path / f"sh010_v002_{number:03d}.png").touch()
    assert list(find_frame_files(str(tmp_path)).files) == [1, 2]
    (tmp_path / "b.-001.png").touch()
    assert list(find_frame_files(f"{tmp_path}/b.%04d.png").files) == [-1]


@pytest.mark.unit
@pytest.mark.parametrize("text", ["a.exr", "a.%04d.%04d.exr", "a.####.@@.exr", "f.%04d/a.exr"])
def test_pattern_refuses_other_text(text: str) -> None:
    refuses(f"^{text.split('%')[0].split('#')[0]}.*: expected", FramePattern.parse, text)


@pytest.mark.unit
@pytest.mark.parametrize(
    "text",
    ["plate.%04d.exr", "plate.####.exr", "plate.@@@@.exr", "plate.#.exr", "plate.$F4.exr", "*.exr", ".", "plate*"],
)
def test_find_frame_files_accepts_every_spelling(shot: Path, text: str) -> None:
    assert is_sequence_or_video_path(text)
    found = find_frame_files(text)
    assert list(found.files) == [998, 999, 1000, 1001]
    assert choose_requested_or_all_frame_numbers(found, None) == [998, 999, 1000, 1001]
    assert choose_requested_or_all_frame_numbers(found, "1000-1005") == [1000, 1001, 1002, 1003, 1004, 1005]
    assert Path(found.get_path(998)).name == "plate.0998.exr"
    assert Path(found.get_path(2)).name == "plate.0002.exr"
    assert find_frame_files(str(shot / text)).files.keys() == found.files.keys()


@pytest.mark.unit
@pytest.mark.parametrize(
    "text",
    ["plate.999-1001####.exr", "plate.999-1001@@@@.exr", "plate.999-1001#.exr", "plate.%04d.exr 999-1001",
     "plate.####.exr 999,1000-1001", "plate.999-1001%04d.exr"],
)  # fmt: skip
def test_select_frames_reads_frames_in_name(shot: Path, text: str) -> None:  # noqa: ARG001
    assert choose_requested_or_all_frame_numbers(find_frame_files(text), None) == [999, 1000, 1001]
    assert choose_requested_or_all_frame_numbers(find_frame_files(text), "1001") == [1001]


@pytest.mark.unit
def test_find_frame_files_requires_exact_padding(tmp_path: Path) -> None:
    for name in ("a.1.png", "a.02.png", "a.0003.png", "a.10.png"):
        (tmp_path / name).touch()
    assert list(find_frame_files(f"{tmp_path}/a.%d.png").files) == [1, 10]
    assert list(find_frame_files(f"{tmp_path}/a.##.png").files) == [2, 10]
    assert list(find_frame_files(f"{tmp_path}/a.####.png").files) == [3]
    assert list(find_frame_files(f"{tmp_path}/a.#.png").files) == [1, 2, 3, 10]
    refuses(
        r"a\.%06d\.png: no such file; the folder has a\.1\.png and 3 more", find_frame_files, f"{tmp_path}/a.%06d.png"
    )


@pytest.mark.unit
def test_find_frame_files_numbers_unnumbered_files(tmp_path: Path) -> None:
    for name in ("c.png", "a.png", "b.png", ".hidden.png"):
        (tmp_path / name).touch()
    assert [path.name for path in find_frame_files(str(tmp_path)).files.values()] == ["a.png", "b.png", "c.png"]


@pytest.mark.unit
def test_find_frame_files_refuses_two_sequences(tmp_path: Path) -> None:
    for name in ("left.0001.png", "right.0001.png"):
        (tmp_path / name).touch()
    refuses("expected one sequence, got 2", find_frame_files, str(tmp_path))
    assert list(find_frame_files(f"{tmp_path}/left*.png").files) == [1]
    (tmp_path / "left.1.png").touch()
    refuses("expected one file a frame", find_frame_files, f"{tmp_path}/left*.png")


@pytest.mark.unit
def test_find_frame_files_refuses_bad_names(shot: Path) -> None:
    refuses(r"is one frame; a sequence is a pattern, such as plate\.####\.exr", find_frame_files, "plate.1001.exr")
    with pytest.raises(InputError, match=r"none of the frames 1-5 exists; plate\.%04d\.exr has 998-1001"):
        choose_requested_or_all_frame_numbers(find_frame_files("plate.%04d.exr"), "1-5")
    for text, words in (("no.%04d.exr", "no such file"), ("no/x.%04d.exr", "folder no does not exist"),
                        ("*.png", "found none"), ("none", "no such file or"), ("x.mp4", "no such file")):  # fmt: skip
        refuses(words, find_frame_files, text)
    assert not is_sequence_or_video_path("plate.1001.exr")
    (shot / "odd[1].%04d.png").touch()
    assert not is_sequence_or_video_path("odd[1].%04d.png"), "a file of that very name"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("7", [7]),
        ("1-5", [1, 2, 3, 4, 5]),
        ("5-1", [1, 2, 3, 4, 5]),
        ("1001-1004", [1001, 1002, 1003, 1004]),
        ("1-10x2", [1, 3, 5, 7, 9]),
        ("1-10x3", [1, 4, 7, 10]),
        ("10-1x3", [1, 4, 7, 10]),
        ("10-1x-3", [1, 4, 7, 10]),
        ("10-1x4", [2, 6, 10]),
        ("1-3,20", [1, 2, 3, 20]),
        ("1-3, 20", [1, 2, 3, 20]),
        ("1-3 20 30-31", [1, 2, 3, 20, 30, 31]),
        ("20,1-3,2", [1, 2, 3, 20]),
        ("1-10y3", [2, 3, 5, 6, 8, 9]),
        ("1-6:3", [1, 2, 3, 4, 5, 6]),
        ("-3--1", [-3, -2, -1]),
        ("-1-1", [-1, 0, 1]),
        ("-5", [-5]),
        ("0001-0003", [1, 2, 3]),
        (" 4 ", [4]),
        ("1-10x20", [1]),
    ],
)
def test_parse_frames_reads_every_spelling(text: str, frames: list[int]) -> None:
    assert parse_frames(text) == frames


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-", "1..5", "1.5", "1-5x", "1-5x0", "1-5z2", "1,,2-", "1-2-3", "1-999999999", "1-1y1", "٣"]
)
def test_parse_frames_refuses_other_text(text: str) -> None:
    refuses(r"^--frames: expected", parse_frames, text, "--frames")


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["1-10000000000", "10000000000-1", "1-2000000000x2", "1-999999999:1000", "1-9999999y9"]
)
def test_parse_frames_refuses_too_long_range(text: str) -> None:
    refuses(rf"^--frames: expected at most 1000000 frames, got '{text}'", parse_frames, text, "--frames")


@pytest.mark.unit
def test_format_frames_spells_ranges() -> None:
    assert format_frames([3, 1, 2, 7]) == "1-3,7"
    assert format_frames([1, 3, 5, 8, 9]) == "1-5x2,8-9"
    assert format_frames([1, 4]) == "1,4"
    assert format_frames([]) == ""
    assert format_frames([-2, -1]) == "-2--1"


@pytest.mark.unit
@given(st.sets(st.integers(-200, 200), min_size=1, max_size=40))
def test_format_frames_and_parse_frames_are_inverse(numbers: set[int]) -> None:
    assert parse_frames(format_frames(numbers)) == sorted(numbers)


@pytest.mark.parametrize("folder", ["job#12", "a@b", "take%d", "shot[1]", "50%", "v$F"])
def test_find_frame_files_accepts_pattern_signs_in_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir()
    for number in (1, 2):
        Path(folder, f"plate.{number:04d}.exr").touch()
    for text in ("plate.%04d.exr", "plate.####.exr", "plate.*.exr", ""):
        frame_files = find_frame_files(f"{folder}/{text}")
        assert list(frame_files.files) == [1, 2], text
        assert frame_files.get_path(3) == f"{folder}/plate.0003.exr"
        assert list(find_frame_files(str(frame_files.pattern)).files) == [1, 2]


def test_pattern_prefers_explicit_frame_field() -> None:
    assert FramePattern.parse("me@work#2.%04d.exr").format_path(7) == "me@work#2.0007.exr"
    assert FramePattern.parse("me@work.####.exr").format_path(7) == "me@work.0007.exr"
    for text in ("a.%d.%d.exr", "a.#.#.exr", "plain.exr"):
        refuses("expected one field for the frame number", FramePattern.parse, text)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
@pytest.mark.parametrize("name", ["film.mp4", "plate.png", "plate.0001.exr"])
def test_find_frame_files_refuses_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refuses(f"{name}: expected a regular file, got a device, pipe or socket", find_frame_files, str(tmp_path / name))
