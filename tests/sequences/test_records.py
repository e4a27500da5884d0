"""What made each stored frame: what runs keep, what they make again, and what they never touch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from sequence_shots import HEIGHT, QUICK, WIDTH, CommandLine, moving

from fullfield import sequences
from fullfield._ledger.records import Journal, Records
from fullfield.cli.main import main
from fullfield.io import files, read_flow_layers, write_flow_layers, write_image
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.io.files import remove_abandoned_temporary_files, write_atomically
from fullfield.io.windows import FrameWindow
from fullfield.sequences import ShotJob, cluster, outputs
from fullfield.sequences.names import find_frame_files

pytestmark = pytest.mark.usefixtures("shot")
SHOT = ("shot", "plate.%04d.png", "-o", "mv.%04d.exr", *QUICK)


def stamps(pattern: str = "mv.*.exr") -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in Path().glob(pattern)}


def layers(number: int) -> set[str]:
    return set(read_flow_layers(f"mv.{number:04d}.exr"))


def made_here(*argv: str, pattern: str) -> dict[str, bytes]:
    """What the command writes in an empty folder, by name."""
    here, fresh = Path.cwd(), Path("fresh").absolute()
    fresh.mkdir()
    for path in here.glob("plate.*.png"):
        shutil.copyfile(path, fresh / path.name)
    os.chdir(fresh)
    try:
        assert main([*argv]) == 0
        return {path.name: path.read_bytes() for path in Path().glob(pattern)}
    finally:
        os.chdir(here)


def test_shot_overwrite_of_part_removes_old_settings(cli: CommandLine) -> None:
    assert cli(*SHOT)[0] == 0
    new = ("--lambda", "0.05", "--direction", "both")
    assert cli(*SHOT, *new, "--frames", "11-13", "--overwrite")[0] == 0
    part = stamps()
    out, err = cli.done(*SHOT, *new, "--json")
    told = json.loads(out)
    assert (told["written"], told["existing"]) == ("14-18", 3)
    assert told["recomputed"] == {"made with other settings": "14-18"}
    assert "note: 5 of 8 frames are recomputed: 5 (made with other settings)" in err
    assert all(layers(number) == {"forward", "backward"} for number in range(11, 19))
    assert {name: stamps()[name] for name in part if name < "mv.0014"} == {
        n: s for n, s in part.items() if n < "mv.0014"
    }


@pytest.mark.parametrize(
    "options",
    [
        ("--y-axis", "down"),
        ("--half",),
        ("--compression", "piz"),
        ("--direction", "both"),
        ("--step", "2"),
        ("--warm-start",),
        ("--occlusion",),
        ("--confidence",),
        ("--refine",),
        ("--scale", "1/2"),
        ("--median", "3"),
        ("--input-transfer", "linear"),
        ("--mask", "plate.%04d.png"),
    ],
    ids=" ".join,
)
def test_shot_refuses_other_settings_without_overwrite(cli: CommandLine, options: tuple[str, ...]) -> None:
    assert cli(*SHOT, "--frames", "11-12")[0] == 0
    before = {path: path.read_bytes() for path in Path().glob("mv.*.exr")}
    for extra in ((), ("--st-map", "st.%04d.exr")):
        assert "was begun with other settings" in cli.refused(*SHOT, "--frames", "11-12", *options, *extra)
    assert {path: path.read_bytes() for path in before} == before
    assert not list(Path().glob("st.*"))


@pytest.mark.parametrize(
    "options", [(), ("--direction", "backward"), ("--direction", "both", "--occlusion"), ("--y-axis", "down")]
)
def test_shot_writes_st_maps_from_stored_vectors(cli: CommandLine, options: tuple[str, ...]) -> None:
    assert cli(*SHOT, *options)[0] == 0
    before = stamps()
    out, _ = cli.done(*SHOT, *options, "--st-map", "st.%04d.exr", "--json")
    report = json.loads(out)
    assert (report["written"], report["existing"], report["st_maps_from_existing"]) == ("", 8, "11-18")
    assert cli(*SHOT[:3], "once.%04d.exr", *QUICK, *options, "--st-map", "st_once.%04d.exr")[0] == 0
    for path in Path().glob("st.*.exr"):
        assert torch.equal(
            read_all_channels(path).pixels, read_all_channels(path.name.replace("st.", "st_once.")).pixels
        ), path.name
    written = stamps("st.*.exr")
    assert "0 frames written, 8 kept, tvl1" in cli.done(*SHOT, *options, "--st-map", "st.%04d.exr")[0]
    assert "0 frames written, 8 kept, tvl1" in cli.done(*SHOT, *options)[0], "the option may be left out"
    assert (stamps(), stamps("st.*.exr")) == (before, written)
    Path("st.0011.exr").unlink()
    shutil.copyfile("st.0013.exr", "st.0012.exr")
    out, _ = cli.done(*SHOT, *options, "--st-map", "st.%04d.exr")
    assert "0 frames written, 8 kept, 2 ST maps written from them" in out
    assert stamps() == before


def test_shot_writes_st_maps_of_overscan_from_stored_vectors(cli: CommandLine) -> None:
    window = FrameWindow((-4, -2, WIDTH, HEIGHT), (0, 0, WIDTH - 8, HEIGHT - 4))
    for number, frame in enumerate(moving(2), 1):
        picture = ChannelPicture(frame, ("R", "G", "B"), "float", window)
        write_all_channels(f"wide.{number}.exr", picture)
    command = ("shot", "wide.%d.exr", "-o", "mv.%d.exr", "--window", "data", *QUICK)
    assert cli(*command)[0] == 0
    assert cli(*command, "--st-map", "st.%d.exr")[0] == 0
    assert cli(*command, "--st-map", "st_once.%d.exr", "--overwrite")[0] == 0
    for number in (1, 2):
        after, once = (oiio.ImageInput.open(f"{name}.{number}.exr") for name in ("st", "st_once"))
        assert np.array_equal(after.read_image("float"), once.read_image("float"))
        for spec in (after.spec(), once.spec()):
            assert (spec.x, spec.y, spec.width, spec.height) == window.data
            assert (spec.full_x, spec.full_y, spec.full_width, spec.full_height) == window.display


@pytest.mark.parametrize(
    "name_and_options", [("mv.%04d.exr", "--half"), ("mv.%04d.exr", "--compression", "dwaa"), ("mv.%04d.flo",)]
)
def test_shot_recomputes_for_st_maps_where_files_are_rounded(
    cli: CommandLine, name_and_options: tuple[str, ...]
) -> None:
    command = (*SHOT[:3], *name_and_options, "--frames", "11-12", *QUICK)
    assert cli(*command)[0] == 0
    out, err = cli.done(*command, "--st-map", "st.%04d.exr")
    assert "2 frames written, 0 kept" in out
    assert "2 of 2 frames are recomputed: 2 (without ST map)" in err
    assert "0 frames written, 2 kept" in cli.done(*command, "--st-map", "st.%04d.exr")[0]


def test_shot_keeps_st_maps_of_other_programs(cli: CommandLine) -> None:
    write_image("st.0012.exr", torch.rand(3, HEIGHT, WIDTH))
    Path("st.0013.exr").write_bytes(b"other")
    before = {path: path.read_bytes() for path in Path().glob("st.*.exr")}
    for options in (("--st-map", "st.%04d.exr"), (), ("--st-map", "st.%04d.exr")):
        if options:
            err = cli.refused(*SHOT, *options)
            assert "st.0012.exr: was not written by fullfield; use --overwrite, or another name" in err
        else:
            assert cli(*SHOT)[0] == 0
    assert {path: path.read_bytes() for path in before} == before
    assert cli(*SHOT, "--st-map", "st.%04d.exr", "--overwrite")[0] == 0
    assert read_all_channels("st.0013.exr").pixels.shape[-2:] == (HEIGHT, WIDTH)


def test_shot_st_map_of_incomplete_frame_is_of_main_direction(cli: CommandLine) -> None:
    Path("plate.0014.png").write_bytes(b"bad")
    assert cli(*SHOT, "--direction", "both", "--st-map", "st.%04d.exr")[0] == 2
    assert layers(13) == {"forward", "backward"}
    assert torch.equal(read_all_channels("st.0013.exr").pixels, read_all_channels("st.0018.exr").pixels), "no motion"


def test_shot_continues_with_other_spellings_of_names(cli: CommandLine, shot: Path) -> None:
    for number in range(11, 19):
        write_image(f"matte.{number:04d}.png", torch.ones(1, HEIGHT, WIDTH))
    first = ("shot", "plate.%04d.png", "-o", "mv.%04d.exr", "--mask", "matte.%04d.png", *QUICK)
    assert cli(*first)[0] == 0
    plates = ("plate.####.png", "plate.%4d.png", "./plate.@@@@.png", shot / "plate.$F4.png", "plate.*.png")
    masks = ("matte.%4d.png", shot / "matte.####.png")
    for name in plates:
        assert "0 frames written, 8 kept" in cli.done("shot", name, *first[2:])[0], name
    for mask in masks:
        options = ("-o", shot / "mv.####.exr", "--mask", mask, *QUICK)
        assert "0 frames written, 8 kept" in cli.done("shot", plates[0], *options)[0], mask
    assert "reading.mask was 'matte.#.png', is 'R'" in cli.refused(*first[:4], "--mask", "R", *QUICK)


def test_shot_notes_masks_that_hide_most_of_the_frames(cli: CommandLine) -> None:
    note = "hides more than half of 2 frames; it hides where it is black, so invert a matte that is white there"
    mask = torch.zeros(1, HEIGHT, WIDTH)
    mask[:, :, : WIDTH // 3] = 1.0
    write_image("white.png", mask)
    write_image("inverted.png", 1 - mask)
    command = (*SHOT, "--frames", "11-12", "--overwrite", "--mask")
    assert f"--mask white.png: {note}" in cli.done(*command, "white.png")[1]
    assert "hides" not in cli.done(*command, "inverted.png")[1]


@pytest.mark.parametrize("verb", ["retime", "warp"])
def test_retime_and_warp_continue_with_other_spellings_of_names(cli: CommandLine, verb: str, shot: Path) -> None:
    assert cli(*SHOT, "--direction", "both")[0] == 0
    more = ("--factor", "2") if verb == "retime" else ("--reference", "11")
    words = (*more, "-o", "s.%04d.png")
    assert cli(verb, "plate.%04d.png", "--flow", "mv.%04d.exr", *words)[0] == 0
    out, _ = cli.done(verb, shot / "plate.####.png", "--flow", "./mv.%4d.exr", *words)
    assert " 0 frames written" in out


def test_shot_repeats_frames_of_replaced_plates(cli: CommandLine, shot: Path) -> None:
    assert cli(*SHOT)[0] == 0
    write_image("plate.0014.png", torch.rand(3, HEIGHT, WIDTH))
    out, err = cli.done(*SHOT)
    assert "2 frames written, 6 kept" in out
    assert "2 of 8 frames are recomputed: 2 (inputs changed)" in err
    (shot / "other").mkdir()
    for number, frame in enumerate(moving(8, seed=9), 11):
        write_image(f"other/plate.{number:04d}.png", frame)
    out, _ = cli.done("shot", "other/plate.%04d.png", *SHOT[2:])
    assert "8 frames written, 0 kept" in out
    (shot / "copy").mkdir()
    for path in (shot / "other").iterdir():
        shutil.copyfile(path, shot / "copy" / path.name)
    assert "0 frames written, 8 kept" in cli("shot", "copy/plate.%04d.png", *SHOT[2:])[1], "the same pictures"


def test_shot_of_more_frames_repeats_old_end(cli: CommandLine) -> None:
    cli.done(*SHOT)
    out, err = cli.done("warp", "plate.%04d.png", "--flow", "mv.%04d.exr", "-o", "next.%04d.png")
    assert "7 frames written" in out
    assert "note: no picture for 18: the shot ends there" in err
    write_image("plate.0019.png", moving(9)[8])
    assert "2 frames written, 7 kept" in cli.done(*SHOT)[0]


def test_shot_repeats_frames_of_other_version_or_weights(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli(*SHOT)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "__version__", "99.0")
        out, _ = cli.done(*SHOT)
        assert "8 frames written, 0 kept" in out
    _, _, err = cli(*SHOT)
    assert "8 of 8 frames are recomputed: 8 (made by fullfield 99.0)" in err
    real = ShotJob._collect_recorded_settings

    def other(self: ShotJob, estimator: Any) -> dict[str, Any]:
        found = real(self, estimator)
        return {**found, "parameters": {**found["parameters"], "weights_sha256": "0123"}}

    monkeypatch.setattr(ShotJob, "_collect_recorded_settings", other)
    _, out, err = cli(*SHOT)
    assert "8 of 8 frames are recomputed: 8 (made with other weights)" in err
    assert ShotJob(find_frame_files("plate.%04d.png"), (11,), outputs.Output("x.%d.exr")).method == "auto"


def test_shot_keeps_files_of_other_programs(cli: CommandLine) -> None:
    assert cli(*SHOT)[0] == 0
    write_flow_layers("mv.0013.exr", {"forward": torch.ones(2, HEIGHT, WIDTH)})
    err = cli.refused(*SHOT)
    assert "mv.0013.exr: was not written by fullfield, or was changed since; use --overwrite" in err
    assert cli(*SHOT, "--frames", "13", "--overwrite")[0] == 0
    assert cli(*SHOT)[0] == 0


@pytest.mark.parametrize("verb", ["retime", "warp"])
def test_retime_and_warp_repeat_after_changed_flow(cli: CommandLine, verb: str) -> None:
    make = (*SHOT, "--direction", "both")
    more = ("--factor", "2", "-o", "s.%04d.png") if verb == "retime" else ("--reference", "11", "-o", "s.%04d.png")
    pull = (verb, "plate.%04d.png", "--flow", "mv.%04d.exr", *more)
    assert cli(*make)[0] == 0
    assert cli(*pull)[0] == 0
    assert "0 frames written" in cli(*pull)[1]
    write_image("plate.0015.png", 0.9 * moving(8)[4])
    assert cli(*make)[0] == 0
    out, err = cli.done(*pull)
    assert "are recomputed" in err
    assert " 0 frames written" not in out
    made = {path.name: path.read_bytes() for path in Path().glob("s.*.png")}
    assert made_here(*make, pattern="nothing") == {}
    shutil.rmtree("fresh/mv.exr.fullfield", ignore_errors=True)
    os.chdir("fresh")
    assert main([*pull]) == 0
    assert {path.name: path.read_bytes() for path in Path().glob("s.*.png")} == made


@pytest.mark.parametrize(
    "argv",
    [
        ("warp", "plate.%04d.png", "--reference", "12", "--flow", "mv.%04d.exr", "-o", "mv.%04d.exr"),
        ("retime", "plate.%04d.png", "--factor", "2", "--flow", "mv.%04d.exr", "-o", "mv.%04d.exr"),
        ("warp", "plate.0011.png", "--flow", "mv.0011.exr", "-o", "mv.0011.exr", "--overwrite"),
    ],
)
def test_warp_and_retime_refuse_to_replace_their_flow(cli: CommandLine, argv: tuple[str, ...]) -> None:
    assert cli(*SHOT, "--direction", "both")[0] == 0
    before = {path: path.read_bytes() for path in Path().glob("mv.*.exr")}
    err = cli.refused(*argv, *(() if "--overwrite" in argv else ("--overwrite",)))
    assert "is also an input" in err
    assert {path: path.read_bytes() for path in before} == before


def test_flow_keeps_files_of_other_programs(cli: CommandLine) -> None:
    pair = ("flow", "plate.0011.png", "plate.0012.png", "-o")
    plate = Path("plate.0013.png").read_bytes()
    err = cli.refused(*pair, "plate.0013.png", *QUICK)
    assert "--output plate.0013.png: already exists and was not written by fullfield; use --overwrite" in err
    assert Path("plate.0013.png").read_bytes() == plate
    assert cli(*pair, "a.flo", "--viz", "a.png", *QUICK)[0] == 0
    assert cli(*pair, "a.flo", "--viz", "a.png", *QUICK)[0] == 0, "its own earlier output"
    code, _, err = cli(*pair, "b.flo", "--viz", "plate.0013.png", *QUICK)
    assert (code, Path("plate.0013.png").read_bytes()) == (2, plate)
    assert "--viz plate.0013.png: already exists" in err
    assert cli(*pair, "plate.0013.png", "--overwrite", *QUICK)[0] == 0


def test_remove_abandoned_temporary_files_keeps_running_ones(tmp_path: Path) -> None:
    week = time.time() - 7 * 24 * 3600
    with write_atomically(tmp_path / f"{'n' * 70}.exr") as mine:
        mine.write_bytes(b"x")
        for age in (time.time(), week - 60):
            os.utime(mine, (age, age))
            remove_abandoned_temporary_files(tmp_path)
            assert mine.exists(), "its process still runs"
    lines = (
        "import os, sys",
        "from fullfield.io.files import write_atomically",
        "with write_atomically(sys.argv[1]): os._exit(1)",
    )
    script = "\n".join(lines)
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "mv.0001.exr")], check=False)
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "mv.0001.left.exr")], check=False)
    (far,) = [path for path in tmp_path.glob(".mv.0001.left.*") if path.name]
    host = files._hash_host_and_pid_namespace()
    far.rename(far.with_name(far.name.replace(host, "0" * 8)))
    remove_abandoned_temporary_files(tmp_path)
    (far,) = tmp_path.glob(".*")
    assert far.name == far.name.replace(host, "0" * 8), "of another machine"
    for age, count in ((week + 60, 1), (week - 60, 0)):
        os.utime(far, (age, age))
        remove_abandoned_temporary_files(tmp_path)
        assert len(list(tmp_path.glob(".*"))) == count


def test_records_prune_notes_after_last_frame(cli: CommandLine) -> None:
    notes = Path("mv.exr.fullfield")

    def made(*flags: str) -> int:
        out = cli(*SHOT, *flags)[1]
        return int(out.partition(": ")[2].partition(" ")[0])

    assert made() == 8
    (mine,) = notes.glob("*.jsonl")
    ended = mine.rename(notes / f"{files._hash_host_and_pid_namespace()}-9999999999-00000000.jsonl")
    far = notes / "00000000-9999999999-00000000.jsonl"
    far.write_bytes(ended.read_bytes())
    assert (made(), ended.exists()) == (0, True), "its frames are there"
    assert (made("--frames", "11-17", "--overwrite"), made(), ended.exists()) == (7, 0, True), "one of them is"
    assert (made("--frames", "18", "--overwrite"), made(), ended.exists()) == (1, 0, False)
    assert far.exists(), "of another machine"
    assert made() == 0


@pytest.mark.parametrize("stand_in", ["nothing", "a link to itself", "another program's file"])
def test_records_keep_notes_of_moved_frames(cli: CommandLine, stand_in: str) -> None:
    assert cli(*SHOT, "--frames", "11-12")[0] == 0
    (mine,) = Path("mv.exr.fullfield").glob("*.jsonl")
    mine.rename(mine.with_name(f"{files._hash_host_and_pid_namespace()}-9999999999-00000000.jsonl"))
    frames = [Path(f"mv.{number:04d}.exr") for number in (11, 12)]
    for frame in frames:
        moved = frame.rename(f"away.{frame.name}")
        if stand_in == "a link to itself":
            frame.symlink_to(frame)
        elif stand_in != "nothing":
            frame.write_bytes(bytes(moved.stat().st_size))
    assert cli(*SHOT, "--frames", "13-14")[0] == 0
    for frame in frames:
        Path(f"away.{frame.name}").replace(frame)
    out, _ = cli.done(*SHOT, "--frames", "11-14")
    assert "0 frames written, 4 kept" in out


def test_records_keep_notes_of_older_version(tmp_path: Path) -> None:
    frame, notes = tmp_path / "a.flo", tmp_path / "notes"
    ended = f"{files._hash_host_and_pid_namespace()}-9999999999-00000000"
    for name, content in (("pairs", "old"), (ended, "newer")):
        with Journal(notes, name).record_file_on_atomic_write(str(frame), {}), write_atomically(frame) as temporary:
            temporary.write_text(content)
        if name == "pairs":
            shutil.copy2(frame, tmp_path / "copy.flo")
    (tmp_path / "copy.flo").replace(frame)
    Records(notes).delete_superseded_notes_from_ended_processes()
    assert (notes / f"{ended}.jsonl").exists()


def test_output_cuts_long_names_by_bytes(cli: CommandLine) -> None:
    name = "\N{CAMERA}" * 58
    assert cli("shot", "plate.%04d.png", "-o", f"{name}.%04d.exr", "--frames", "11", *QUICK)[0] == 0
    assert Path(f"{name}.0011.exr").is_file()
    assert cli("flow", "plate.0011.png", "plate.0012.png", "-o", f"{name}.flo", *QUICK)[0] == 0


def test_shot_names_missing_plates_in_one_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    real = sequences.write_shot_flow

    def watched(job: ShotJob, numbers: list[int], *arguments: Any, **named: Any) -> Any:
        told.extend(numbers)
        return real(job, numbers, *arguments, **named)

    monkeypatch.setattr(sequences, "write_shot_flow", watched)
    begin = time.perf_counter()
    code, out, err = cli(*SHOT, "--frames", "11-6000", "--json")
    assert code == 2
    assert time.perf_counter() - begin < 20
    assert told == list(range(11, 19)), "nothing is tried without its plate"
    assert "error: plate.%04d.png: 5982 plates are missing: 19-6000" in err.splitlines()[0]
    assert err.count("\n") == 1 + (len(err.splitlines()) - 1)
    assert sum("missing" in line or "no such file" in line for line in err.splitlines()) == 1
    assert json.loads(out)["not_written"] == "18-6000"


def test_shot_names_faults_of_many_plates_in_one_line(cli: CommandLine, tmp_path: Path) -> None:
    for number in range(101, 112):
        shutil.copyfile(tmp_path / "plate.0011.png", tmp_path / f"many.{number:04d}.png")
    code, out, err = cli("shot", "many.%04d.png", "-o", "mv.%04d.exr", *QUICK, "--mask", "matte.%04d.png", "--json")
    assert code == 2
    assert err.splitlines() == [
        "fullfield: error: many.0101.png: mask: matte.0101.png: no such file; 10 further files likewise"
    ]
    assert len(json.loads(out)["problems"]) == 11
    code, _, err = cli(
        "shot", "many.%04d.png", "-o", "mv.%04d.exr", *QUICK, "--mask", "m.%04d.png", "--frames", "101-110"
    )
    assert len([line for line in err.splitlines() if "no such file" in line]) == 10


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"settings": ' + '{"a": ' * 50_000, "{", "[]", '{"settings": 3}', "null", "\udcff"],
    ids=["nested", "nested-settings", "cut", "list", "number", "null", "bytes"],
)
def test_shot_names_damaged_settings_in_one_line(cli: CommandLine, text: str) -> None:
    assert cli(*SHOT)[0] == 0
    Path("mv.exr.fullfield.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    err = cli.refused(*SHOT)
    assert "mv.exr.fullfield.json: expected " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("entry", "value", "named"),
    [
        ("reading", {"gamma": 2.2}, "gamma=2.2"),
        ("reading", {"layer": ["N"]}, "layer=['N']"),
        ("reading", ["layer"], "reading (object)"),
        ("step", "2", "step (count)"),
        ("step", [1], "step (count)"),
        ("direction", ["both"], "direction (text)"),
    ],
)
@pytest.mark.parametrize("verb", ["view", "warp"])
def test_view_and_warp_refuse_unknown_settings(
    cli: CommandLine, verb: str, entry: str, value: object, named: str
) -> None:
    assert cli(*SHOT)[0] == 0
    sidecar = Path("mv.exr.fullfield.json")
    notes = json.loads(sidecar.read_text("utf-8"))
    notes["settings"][entry] = value
    sidecar.write_text(json.dumps(notes), "utf-8")
    options = [] if verb == "view" else ["plate.%04d.png", "-o", "w.%04d.png", "--flow"]
    err = cli.refused(verb, *options, "mv.%04d.exr")
    assert "mv.exr.fullfield.json: expected " in err
    assert named in err
    assert err.count("\n") == 1


def test_shot_accepts_frames_of_concurrent_run(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli(*SHOT)[0] == 0
    folders = iter([tmp_path / "not yet there"])  # what the first reading finds
    monkeypatch.setattr(outputs, "Records", lambda folder: Records(next(folders, folder)))
    assert "0 frames written, 8 kept" in cli(*SHOT)[1]


def test_shot_accepts_settings_of_concurrent_run(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli(*SHOT)[0] == 0
    sidecar, kept = Path("mv.exr.fullfield.json"), Path("kept.json")
    real = outputs.Output.get_path

    def path(self: outputs.Output, number: int) -> str:
        if kept.exists():  # the other run has written its settings, then its frames
            kept.rename(sidecar)
        return real(self, number)

    sidecar.rename(kept)
    monkeypatch.setattr(outputs.Output, "get_path", path)
    assert "0 frames written, 8 kept" in cli(*SHOT)[1]


def test_records_ignore_damaged_lines_of_shot(cli: CommandLine) -> None:
    assert cli(*SHOT)[0] == 0
    (notes,) = Path("mv.exr.fullfield").glob("*.jsonl")
    good = notes.read_bytes()
    notes.write_bytes(b"[" * 100_000 + b"\n{}\n3\n\xff\n" + good + b'{"name": "mv.0011.exr", "sta')
    assert "0 frames written, 8 kept" in cli(*SHOT)[1]
    notes.write_bytes(b"")
    assert Records(Path("mv.exr.fullfield")).find_records_of_current_file("mv.0011.exr") == []
    assert "was not written by fullfield" in cli(*SHOT)[2]


@pytest.mark.parametrize("verb", ["retime", "warp"])
def test_shot_stops_at_once_on_full_disk(cli: CommandLine, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.io import all_channels

    assert cli(*SHOT, "--direction", "both")[0] == 0
    tried = []

    def full(path: str, picture: Any) -> None:
        tried.append((path, picture))
        raise OSError(28, "cannot write: No space left on device", path)

    monkeypatch.setattr(all_channels, "write_all_channels", full)
    more = ("--factor", "2") if verb == "retime" else ("--reference", "12")
    err = cli.refused(verb, "plate.%04d.png", "--flow", "mv.%04d.exr", *more, "-o", "s.%04d.png")
    assert 1 <= len(tried) <= 3, "two threads write, and one picture waits"
    assert ".png: cannot write: No space left on device; run the same command again to continue" in err


def test_warp_explains_plates_given_as_flow(cli: CommandLine) -> None:
    from fullfield.io.all_channels import ChannelPicture, write_all_channels

    for number, frame in enumerate(moving(2), 1):
        write_all_channels(f"p.{number}.exr", ChannelPicture(frame, ("R", "G", "B"), "float"))
    for command in (
        ("retime", "p.%d.exr", "--flow", "p.%d.exr", "--factor", "2", "-o", "s.%d.exr"),
        ("view", "p.%d.exr", "-o", "v.html"),
    ):
        err = cli.refused(*command)
        assert "it is no flow; give a file that 'fullfield flow' wrote" in err
        assert "name another layer" not in err


def test_shot_ray_names_missing_cluster_quickly(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "_ANSWER_S", 2)
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        begin = time.perf_counter()
        err = cli.refused(*SHOT, "--ray", address)
        assert f"--ray {address}: no cluster answers there" in err
        assert time.perf_counter() - begin < 15
