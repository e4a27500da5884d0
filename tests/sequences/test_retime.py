"""Frames in between by stored flow: ``fullfield retime``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from motion_shots import shot_of, stored
from sequence_shots import HEIGHT, WIDTH, CommandLine, moving

from fullfield.io import read_frame, write_image
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.sequences import WarpSettings, retime_shot, warp_shot
from fullfield.sequences.retiming import RetimeSettings
from refusals import refuses


def test_warp_and_retime_refuse_missing_direction(cli: CommandLine) -> None:
    shot_of(range(1, 4))
    cli.done("shot", "p.%d.png", "-o", "f.%d.exr", "--method", "tvl1")
    cli.done("shot", "p.%d.png", "-o", "f.%d.flo", "--method", "tvl1", "--frames", "1-2")
    needing = (
        ("retime", "p.%d.png", "--factor", "2"),
        ("warp", "p.%d.png", "--direction", "backward"),
        ("warp", "p.1.png", "--reference", "1"),
    )
    for suffix in ("exr", "flo"):
        for verb in needing:
            err = cli.refused(*verb, "--flow", f"f.%d.{suffix}", "-o", "o.%d.png")
            assert f"--flow f.%d.{suffix}: expected " in err
            assert "backward vectors, got forward direction; store both as .exr with --direction both" in err
        assert not [*Path().glob("o.*.png")]
        cli.done("warp", "p.3.png", "--reference", "3", "--flow", f"f.%d.{suffix}", "-o", f"{suffix}.%d.png")
        cli.done("warp", "p.1.png", "--reference", "1", "--frames", "1", "--flow", f"f.%d.{suffix}", "-o",
                 f"same_{suffix}.%d.png")  # fmt: skip
        cli.done("retime", "p.%d.png", "--factor", "0.5", "--flow", f"f.%d.{suffix}", "-o", f"half_{suffix}.%d.png")
    Path("f.flo.fullfield.json").unlink()
    err = cli.refused("retime", "p.%d.png", "--factor", "2", "--flow", "f.%d.flo", "-o", "o.%d.png")
    assert "expected forward and backward vectors, got one direction" in err


def test_retime_names_missing_plates_before_work(cli: CommandLine) -> None:
    stored(1, 5, 2.0)
    shot_of((1, 2, 4, 5))
    command = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "o.%d.png")
    assert "p.%d.png: expected the plates 1-5, missing: 3" in cli.refused(*command)
    assert "p.%d.png: expected the plates 4-9, missing: 6-9" in cli.refused(*command, "--frames", "4-9")
    assert "--frames: expected consecutive" in cli.refused("retime", "p.1-5x2@.png", *command[2:])
    assert not [*Path().glob("o.*")]
    cli.done(*command, "--frames", "4-5")


def test_retime_names_both_sizes_that_differ(cli: CommandLine) -> None:
    stored(1, 2, 2.0)
    for number in (1, 2):
        write_image(f"p.{number}.png", torch.full((3, HEIGHT + 3, WIDTH), 0.5))
    err = cli.refused("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "o.%d.png")
    assert f"p.1.png: is {WIDTH}x{HEIGHT + 3}, but the flow mv.0001.exr is {WIDTH}x{HEIGHT}" in err


def test_retime_names_missing_vectors_before_work(cli: CommandLine) -> None:
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    stored(1, 3, -2.0)
    command = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "s.%d.png")
    err = cli.refused(*command)
    assert "expected vectors of the plates 1-4, missing: 4; estimate them, or pass only frames (--frames)" in err
    assert not Path("s.1.png").exists()
    assert "5 frames written" in cli.done(*command, "--frames", "1-3")[0]


def test_retime_shot_writes_frames_at_factor(cli: CommandLine) -> None:
    stored(1, 3, 4.0)
    for number in range(1, 4):
        light = torch.zeros(4, HEIGHT, WIDTH)
        light[:, 8:30, 4 * number + 6 : 4 * number + 20] = torch.tensor([30.0, 2, 1, 1]).view(4, 1, 1)
        write_all_channels(f"p.{number:04d}.exr", ChannelPicture(light, ("R", "G", "B", "A"), "half"))
    out, err = cli.done("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "2.5", "-o", "s.%04d.exr")
    assert "6 frames written" in out
    for number in range(1, 7):
        made = read_all_channels(f"s.{number:04d}.exr")
        time = 1 + (number - 1) / 2.5
        weight = made.pixels[0].sum(0)
        middle = float((weight * torch.arange(WIDTH)).sum() / weight.sum())
        assert middle == pytest.approx(4 * time + 12.5, abs=0.1), number
        assert made.pixels[0].max() == pytest.approx(30, rel=0.01)
        assert made.pixels[3].max() == pytest.approx(1, rel=0.01)
        assert made.value_type == "half"
    assert torch.equal(read_all_channels("s.0001.exr").pixels, read_all_channels("p.0001.exr").pixels)
    assert cli("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "0.5", "-o", "f.%04d.exr")[0] == 0
    assert torch.equal(read_all_channels("f.0002.exr").pixels, read_all_channels("p.0003.exr").pixels)
    Path("p.0002.exr").write_bytes(b"")
    err = cli.refused("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "1", "-o", "t.%04d.exr")
    assert "p.0002.exr: the file is empty" in err


@pytest.mark.parametrize("verb", ["warp", "retime"])
def test_warp_and_retime_continue_stopped_run(cli: CommandLine, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.io import all_channels

    stored(1, 5, 2.0)
    for number, frame in enumerate(moving(5), 1):
        write_image(f"p.{number:04d}.png", frame)
    more = ("--factor", "2") if verb == "retime" else ("--reference", "3")
    command = (verb, "p.%04d.png", "--flow", "mv.%04d.exr", *more, "-o")
    assert cli(*command, "whole.%04d.png")[0] == 0
    whole = {path.name.replace("whole", "o"): path.read_bytes() for path in Path().glob("whole.*.png")}
    real = all_channels.write_all_channels

    def stopped(path: str, picture: ChannelPicture) -> None:
        if len(list(Path().glob("o.*.png"))) >= 2:
            raise KeyboardInterrupt
        real(path, picture)

    with monkeypatch.context() as patch:
        patch.setattr(all_channels, "write_all_channels", stopped)
        assert cli(*command, "o.%04d.png")[0] == 130
    first = {path: path.stat().st_mtime_ns for path in Path().glob("o.*.png")}
    assert 2 <= len(first) <= 3, "two threads write"
    out, err = cli.done(*command, "o.%04d.png")
    assert f"{len(whole) - len(first)} frames written" in out
    assert f"{len(first)} of {len(whole)} frames exist" in err
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert {path.name: path.read_bytes() for path in Path().glob("o.*.png")} == whole
    out, _ = cli.done(*command, "o.%04d.png")
    assert "0 frames written" in out
    err = cli.refused(verb, "p.%04d.png", "--flow", "mv.%04d.exr", more[0], "4", "-o", "o.%04d.png")
    assert "was begun with other settings" in err
    cli.done(verb, "p.%04d.png", "--flow", "mv.%04d.exr", more[0], "4", "-o", "o.%04d.png", "--overwrite")
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in first.items())


def test_retime_does_not_interpolate_across_cut(cli: CommandLine) -> None:
    stored(1, 4, 2.0)
    shots = [*moving(2, seed=4), *moving(2, seed=9)]
    for number, frame in enumerate(shots, 1):
        write_image(f"p.{number:04d}.png", frame)
    out, err = cli.done("retime", "p.%04d.png", "--flow", "mv.%04d.exr", "--factor", "4", "-o", "s.%04d.png", "--json")
    assert json.loads(out)["cuts"] == [[2, 3]]
    assert "the shot changes between the frames 2 and 3" in err
    pictures = {number: read_frame(f"s.{number:04d}.png") for number in range(1, 14)}
    for number, plate in ((5, 2), (6, 2), (7, 3), (8, 3), (9, 3)):
        assert torch.equal(pictures[number], read_frame(f"p.{plate:04d}.png")), number
    assert not torch.equal(pictures[3], pictures[1]), "within a shot there are frames in between"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("warp", "p.png", "--flow", "mv.%04d.exr", "-o", "o.%04d.exr"), "--reference: expected the number of"),
        (("warp", "no.png", "--flow", "mv.%04d.exr", "-o", "o.%04d.exr"), "no.png: no such file"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.exr"), "expected a pattern"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.%d.jpg"), "--output takes .exr"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.%d.exr", "--direction", "forward"),
         "--direction: not used with --reference"),
        (("warp", "p.png", "--reference", "9", "--flow", "mv.%04d.exr", "-o", "o.%d.exr"), "expected 0 to 3"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "0", "-o", "o.%d.exr"), "--factor: expected"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "1e-4", "-o", "o.%d.exr"), "expected 0.001 to"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "1e300", "-o", "o.%d.exr"), "expected 0.001 to"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "p.%d.png"), "is also an input"),
    ],
)  # fmt: skip
def test_warp_and_retime_report_mistakes_in_one_line(cli: CommandLine, arguments: tuple[str, ...], word: str) -> None:
    stored(1, 2, 1.0)
    for name in ("p.png", "p.1.png", "p.2.png"):
        write_image(name, torch.rand(3, HEIGHT, WIDTH))
    err = cli.refused(*arguments)
    assert word in err, err
    assert err.count("\n") == 1


def test_warp_shot_and_retime_shot_equal_commands(cli: CommandLine) -> None:
    stored(1, 4, -2.0)
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    cli.done("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "w.%d.png", "--reference", "2")
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "r.%d.png", "--factor", "2")
    reported: list[int] = []
    outcome = warp_shot("p.%d.png", "mv.%04d.exr", "a.%d.png", WarpSettings(reference=2), report=reported.append)
    assert outcome.written == sorted(reported) == [1, 2, 3, 4]
    assert outcome.is_complete
    outcome = retime_shot("p.%d.png", "mv.%04d.exr", "b.%d.png", RetimeSettings(2), device="cpu")
    assert outcome.written == [1, 2, 3, 4, 5, 6, 7]
    for ours, theirs in (("a", "w"), ("b", "r")):
        files = {path.name[1:]: path.read_bytes() for path in Path().glob(f"{ours}.*.png")}
        assert files == {path.name[1:]: path.read_bytes() for path in Path().glob(f"{theirs}.*.png")}
    assert warp_shot("p.%d.png", "mv.%04d.exr", "a.%d.png", WarpSettings(reference=2)).written == []
    refuses("reference: expected 0 to 5", warp_shot, "p.1.png", "mv.%04d.exr", "c.%d.png", WarpSettings(reference=9))
    refuses("factor: expected 0.001", RetimeSettings, 1e9)
    refuses("settings: expected a RetimeSettings, got", retime_shot, "p.%d.png", "mv.%04d.exr", "c.%d.png", 2.5)


def test_retime_reads_each_file_once(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences import picture_files

    stored(1, 4, -2.0)
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    paths: list[str] = []
    monkeypatch.setattr(
        picture_files, "read_all_channels", lambda path, mask: paths.append(path) or read_all_channels(path, mask)
    )
    assert retime_shot("p.%d.png", "mv.%04d.exr", "s.%d.png", RetimeSettings(3)).written == list(range(1, 11))
    assert sorted(paths) == [f"p.{number}.png" for number in range(1, 5)]

    def replaced(number: int) -> None:
        if number == 1:
            write_image("p.4.png", 0.5 * moving(4)[3])

    retime_shot("p.%d.png", "mv.%04d.exr", "t.%d.png", RetimeSettings(3), report=replaced)
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "3", "-o", "t.%d.png")
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "3", "-o", "u.%d.png")
    assert [Path(f"t.{n}.png").read_bytes() for n in range(1, 11)] == [
        Path(f"u.{n}.png").read_bytes() for n in range(1, 11)
    ]
