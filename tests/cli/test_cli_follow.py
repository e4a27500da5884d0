"""``fullfield follow``: files, tracks and refusals."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fullfield.cli.main import main
from fullfield.io import read_flow_layers, write_flow_layers, write_image, write_st_map
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.sequences.tracks import TrackedPoint, read_points_csv, read_tracks_from_flow_files, write_tracks
from fullfield.testing.shots import SyntheticShot

QUICK = ["--method", "tvl1", "--preset", "fast", "--warps", "2", "--iterations", "4", "--quiet"]


@pytest.fixture(scope="module")
def shot() -> SyntheticShot:
    return SyntheticShot(48, 64, 20, seed=5, bodies=1, shutter=0.0, pan=0.1, light=0.0)


@pytest.fixture
def plates(tmp_path: Path, shot: SyntheticShot, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for index in range(4):
        write_image(f"plate.{1001 + index}.png", shot.render_frame(index))
    return tmp_path


def follow(*words: str) -> int:
    return main(["follow", "plate.%04d.png", *words, *QUICK])


@pytest.mark.usefixtures("plates")
def test_follow_writes_layers_st_maps_and_tracks(shot: SyntheticShot, capsys: pytest.CaptureFixture[str]) -> None:
    Path("points.csv").write_text("name,x,y\nsky,5,6\nmiddle,30.5,20.25\n")
    words = ["--reference", "1002", "-o", "ref.%04d.exr", "--st-map", "st.%04d.exr", "--points", "points.csv"]
    assert follow(*words, "--tracks", "tracks.csv", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["existing"], report["references"]) == (4, 0, [1002])
    layers = read_flow_layers("ref.1004.exr")
    assert set(layers) == {
        *("forward", "backward", "occlusion.forward", "occlusion.backward"),
        *("confidence.forward", "confidence.backward"),
    }
    truth = shot.compute_flow_and_visibility(1, 3)
    error = torch.linalg.vector_norm(layers["forward"] - truth.flow, dim=0)[truth.visible]
    assert float(error.median()) < 0.2
    assert all(Path(f"st.{number}.exr").exists() for number in range(1001, 1005))
    with Path("tracks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["frame"]) for row in rows[:4]] == [
        *(("sky", "1001"), ("middle", "1001")),
        *(("sky", "1002"), ("middle", "1002")),
    ]
    still = rows[3]
    assert (float(still["x"]), float(still["y"]), still["visible"]) == (30.5, 20.25, "1")


@pytest.mark.usefixtures("plates")
def test_follow_writes_st_maps_from_existing_files(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--reference", "1002", "-o", "ref.%04d.exr"]
    assert follow(*words) == 0
    before = {number: read_flow_layers(f"ref.{number}.exr") for number in range(1001, 1005)}
    capsys.readouterr()
    assert follow(*words, "--st-map", "st.%04d.exr", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["existing"], report["st_maps_from_existing"]) == (0, 4, 4)
    assert follow("--reference", "1002", "-o", "again.%04d.exr", "--st-map", "st_again.%04d.exr") == 0
    for number, layers in before.items():
        assert torch.equal(
            read_all_channels(f"st.{number}.exr").pixels, read_all_channels(f"st_again.{number}.exr").pixels
        ), number
        assert torch.equal(read_flow_layers(f"ref.{number}.exr")["backward"], layers["backward"])
    capsys.readouterr()
    assert follow(*words, "--st-map", "st.%04d.exr", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["existing"], report["st_maps_from_existing"]) == (0, 4, 0)


@pytest.mark.usefixtures("plates")
def test_follow_replaces_outdated_st_maps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--reference", "1002", "-o", "ref.%04d.exr", "--frames", "1001-1002"]
    assert follow(*words) == 0
    write_st_map("st.1001.exr", torch.ones(2, 48, 64))
    write_st_map("st.1002.exr", torch.ones(2, 48, 64))
    capsys.readouterr()
    assert follow(*words, "--st-map", "st.%04d.exr", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["existing"], report["st_maps_from_existing"]) == (0, 2, 2)
    assert follow(*words, "--st-map", "once.%04d.exr", "--overwrite") == 0
    for number in (1001, 1002):
        once = read_all_channels(f"once.{number}.exr").pixels
        assert torch.equal(read_all_channels(f"st.{number}.exr").pixels, once), number


@pytest.mark.usefixtures("plates")
def test_follow_keeps_st_maps_of_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--reference", "1002", "-o", "ref.%04d.exr", "--frames", "1001-1002"]
    assert follow(*words) == 0
    Path("st.1001.exr").write_bytes(b"other")
    capsys.readouterr()
    assert follow(*words, "--st-map", "st.%04d.exr") == 2
    assert "st.1001.exr: was not written by fullfield; use --overwrite" in capsys.readouterr().err
    assert Path("st.1001.exr").read_bytes() == b"other"


@pytest.mark.usefixtures("plates")
def test_follow_prints_view_command_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--reference", "1001", "--frames", "1001-1002", "-o", "ref.%04d.exr"]
    assert main(["follow", "plate.%04d.png", *words, *QUICK[:-1]]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line == "next: fullfield view ref.%04d.exr"
    assert main(shlex.split(last_line.removeprefix("next: fullfield "))) == 0
    assert Path("ref.html").is_file()


@pytest.mark.usefixtures("plates")
def test_follow_several_references_writes_files_of_each() -> None:
    assert follow("--reference", "1001", "1004", "-o", "ref{reference}.%04d.exr", "--frames", "1002-1003") == 0
    assert sorted(path.name for path in Path().glob("ref*.exr")) == [
        f"ref{reference}.{number}.exr" for reference in (1001, 1004) for number in (1002, 1003)
    ]


@pytest.mark.usefixtures("plates")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reference", "1009", "-o", "ref.%04d.exr"], "--reference: expected a frame of plate.%04d.png, got 1009"),
        (["--reference", "1001", "1002", "-o", "ref.%04d.exr"], "expected {reference} in the name"),
        (["--reference", "1001", "-o", "ref.%04d.flo"], "ref.%04d.flo"),
        (["--reference", "1001", "-o", "ref.%04d.exr", "--points", "absent.csv"], "--points"),
        (["--reference", "1001", "-o", "plate.%04d.png"], "plate.%04d.png"),
        (["--reference", "1001", "-o", "a.%04d.exr", "--st-map", "a.%04d.exr"], "--st-map a.%04d.exr: is also written"),
        (["--reference", "1001", "-o", "ref.%04d.exr", "--window", "data"], "--window data"),
        (["--reference", "1001", "-o", "ref.%04d.exr", "--device", "cpu", "--devices", "cpu,cpu"], "--device cpu: not"),
        (["--reference", "1001", "-o", "ref.%04d.exr", "--devices", "cpu,gpu9"], "--devices"),
        (
            ["--reference", "1001", "-o", "ref.%04d.exr", "--points", "plate.1001.png", "--tracks", "tracks.xml"],
            "--tracks takes .csv, .nk, .txt",
        ),
    ],
)
def test_follow_refuses_bad_options_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(*words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.usefixtures("plates")
def test_follow_skips_bad_plates(shot: SyntheticShot, capsys: pytest.CaptureFixture[str]) -> None:
    write_image("plate.1002.png", shot.render_frame(1)[:, :40])
    write_image("plate.1006.png", shot.render_frame(5))
    assert (
        follow("--reference", "1001", "-o", "ref.%04d.exr", "--frames", "1001-1006", "--devices", "cpu", "--json") == 2
    )
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert sorted(path.name for path in Path().glob("ref.*.exr")) == [
        f"ref.{number}.exr" for number in (1001, 1003, 1004, 1006)
    ]
    assert (report["written"], report["devices"]) == (4, ["cpu"])
    assert sorted(problem["path"] for problem in report["problems"]) == ["plate.1002.png", "plate.1005.png"]
    assert "plate.1002.png: is 64x40, but the reference is 64x48" in output.err
    assert "plate.1005.png: no such file" in output.err


def test_follow_help_lists_common_options_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["follow", "--help"]) == 0
    first_screen = "\n".join(capsys.readouterr().out.splitlines()[:40])
    usual = "reference output method preset device frames st-map points tracks half overwrite"
    assert [name for name in usual.split() if f"--{name}" not in first_screen] == []


def test_write_tracks_3dequalizer_counts_from_lower_left(tmp_path: Path) -> None:
    tracks = [
        TrackedPoint("a", 1, 0.0, 0.0, True, 1.0),
        TrackedPoint("a", 2, 3.25, 9.0, False, 0.1),
        TrackedPoint("b", 1, 4.0, 5.0, True, 0.5),
    ]
    write_tracks(tmp_path / "tracks.txt", tracks, 10, 1)
    expected = "2\na\n0\n1\n1 0.5000 9.5000\nb\n0\n1\n1 4.5000 4.5000\n"
    assert (tmp_path / "tracks.txt").read_text() == expected


def test_write_tracks_nuke_is_readable_by_tcl(tmp_path: Path) -> None:
    tkinter = pytest.importorskip("tkinter")  # the reader of the language that Nuke's scripts are written in
    tracks = [
        *(TrackedPoint("a {x}", frame, frame + 0.25, 2.0, frame not in (3, 4), 1.0) for frame in range(1, 7)),
        TrackedPoint('b "[$', 1, 4.0, 5.0, True, 0.5),
    ]
    write_tracks(tmp_path / "tracks.nk", tracks, 10, 2)
    split = tkinter.Tcl().splitlist
    kind, body = split((tmp_path / "tracks.nk").read_text())
    words = split(body)
    knobs = dict(zip(words[::2], words[1::2], strict=True))
    assert (kind, knobs["reference_frame"]) == ("Tracker4", "2")
    (_, column_count, row_count), columns, rows = (split(part) for part in split(knobs["tracks"]))
    names = [split(column)[4] if split(column)[3] == "enable" else split(column)[3] for column in columns]
    assert (len(columns), int(column_count), int(row_count), names[1:4]) == (31, 31, 2, ["name", "track_x", "track_y"])
    table = [dict(zip(names, split(row), strict=True)) for row in split(knobs["tracks"])[2:] for row in split(row)]
    assert [row["name"] for row in table] == ["a {x}", 'b "[$']
    assert split(table[0]["e"]) == ("curve", "x1", "1", "1", "0", "0", "1", "1")
    assert split(table[0]["track_x"]) == ("curve", "x1", "1.7500", "2.7500", "x5", "5.7500", "6.7500")
    assert split(table[1]["track_y"]) == ("curve", "x1", "4.5000")
    assert len(rows) == 2


@pytest.mark.usefixtures("plates")
def test_follow_points_refuses_outside_positions_and_unreadable_tables(capsys: pytest.CaptureFixture[str]) -> None:
    Path("points.csv").write_text("x,y\n200,3\n")
    words = ["--reference", "1001", "--frames", "1001-1002", "-o", "ref.%04d.exr", "--points", "points.csv"]
    assert follow(*words, "--tracks", "tracks.csv") == 2
    assert "expected positions in 64x48 pixels (plate.1001.png)" in capsys.readouterr().err
    assert follow(*words, "--tracks", "absent/tracks.csv") == 2
    assert "--tracks absent/tracks.csv: folder absent does not exist" in capsys.readouterr().err
    assert not list(Path().glob("ref*"))
    Path("points.csv").write_text("a,b\n1,2\n")
    assert follow(*words, "--tracks", "tracks.csv") == 2
    assert "expected the columns x and y" in capsys.readouterr().err


@pytest.mark.usefixtures("plates")
def test_follow_points_are_checked_before_plates_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fullfield.io.image.FrameReader.read", lambda *_: pytest.fail("a plate was read"))
    Path("points.csv").write_text("x,y\n200,3\n")
    words = ["--reference", "1001", "-o", "ref.%04d.exr", "--points", "points.csv", "--tracks", "tracks.csv"]
    assert follow(*words) == 2
    assert "expected positions in 64x48 pixels" in capsys.readouterr().err


@pytest.mark.usefixtures("plates")
def test_follow_tracks_skip_frames_of_failed_plates(shot: SyntheticShot) -> None:
    Path("points.csv").write_text("x,y\n20,30\n")
    words = ["--reference", "1001", "-o", "ref.%04d.exr", "--points", "points.csv", "--tracks", "tracks.csv"]
    assert follow(*words) == 0
    write_image("plate.1003.png", shot.render_frame(2)[:, :40])
    assert follow(*words) == 2
    assert Path("ref.1003.exr").exists()
    with Path("tracks.csv").open(newline="") as file:
        assert [row["frame"] for row in csv.DictReader(file)] == ["1001", "1002", "1004"]


def test_track_points_adds_forward_flow(tmp_path: Path) -> None:
    from fullfield.io import write_flow_layers

    flow = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(10.0), indexing="ij"))
    planes = {"forward": flow, "occlusion.forward": torch.zeros(8, 10), "confidence.forward": torch.ones(8, 10)}
    write_flow_layers(tmp_path / "ref.0007.exr", planes)
    (tmp_path / "points.csv").write_text("x,y\n2.5,3\n", encoding="utf-8-sig")  # as Excel writes it
    points = read_points_csv(tmp_path / "points.csv")
    (track,) = read_tracks_from_flow_files(points, [7], lambda number: str(tmp_path / f"ref.{number:04d}.exr"))
    assert (track.frame, track.x, track.y, track.is_visible) == (7, 2.5 + 3, 3 + 2.5, True)


@pytest.mark.usefixtures("plates")
def test_warp_moves_reference_picture_along_followed_files(
    shot: SyntheticShot, capsys: pytest.CaptureFixture[str]
) -> None:
    paint = torch.zeros(3, 48, 64)
    paint[:, 10:30, 15:40] = 1.0
    write_all_channels("paint.exr", ChannelPicture(paint, ("R", "G", "B"), "float"))
    assert follow("--reference", "1002", "-o", "ref.%04d.exr") == 0
    assert main(["warp", "paint.exr", "--flow", "ref.%04d.exr", "-o", "on.%04d.exr", "--quiet"]) == 0
    assert torch.equal(read_all_channels("on.1002.exr").pixels, paint)
    painted = read_all_channels("on.1004.exr").pixels[0] > 0.5
    truth = shot.compute_flow_and_visibility(3, 1)
    expected = warp_planes_and_mark_inside(paint[None, :1], truth.flow[None])[0][0, 0] > 0.5
    shared = float((painted & expected & truth.visible).sum())
    assert shared / float(((painted | expected) & truth.visible).sum()) > 0.95
    assert not painted[~truth.visible].all()
    capsys.readouterr()
    assert main(["warp", "paint.exr", "--flow", "ref.%04d.exr", "--reference", "1001", "-o", "no.%04d.exr"]) == 2
    assert "--reference: expected 1002" in capsys.readouterr().err
    words = ["retime", "plate.%04d.png", "--flow", "ref.%04d.exr", "--factor", "2", "-o", "slow.%04d.png"]
    assert main(words) == 2
    assert "got motion from frame 1002" in capsys.readouterr().err


@pytest.mark.usefixtures("plates")
def test_follow_several_references_refuses_mistakes_before_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow("--reference", "1001", "1050", "-o", "ref{reference}.%04d.exr") == 2
    assert "got 1050" in capsys.readouterr().err
    assert not list(Path().glob("ref*"))
    Path("points.csv").write_text("name,x,y\na,1,1\na,2,2\n")
    words = ["--reference", "1001", "-o", "ref.%04d.exr", "--points", "points.csv", "--tracks", "tracks.csv"]
    assert follow(*words) == 2
    assert "expected names that differ, got a twice" in capsys.readouterr().err
    assert not list(Path().glob("ref*"))


def test_follow_reads_a_video(shot: SyntheticShot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    from fullfield.io import VideoWriter

    monkeypatch.chdir(tmp_path)
    writer = VideoWriter("clip.mp4", 64, 48, 25)
    for index in range(4):
        writer.write((255 * shot.render_frame(index)).to(torch.uint8), index / 25)
    writer.close()
    assert main(["follow", "clip.mp4", "--reference", "2", "-o", "ref.%04d.exr", *QUICK]) == 0
    assert sorted(path.name for path in Path().glob("ref.*.exr")) == [f"ref.{number:04d}.exr" for number in range(1, 5)]


def read_page(path: str) -> tuple[dict[str, Any], dict[int, Tensor]]:
    """Return the data of a page, and its pictures by frame."""
    text = Path(path).read_text("utf-8")
    data = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[0])
    pictures = {}
    for frame in data["frames"]:
        encoded = base64.b64decode(frame["frame"].partition(",")[2])
        pixels = np.array(Image.open(io.BytesIO(encoded)).convert("RGB"))
        pictures[frame["number"]] = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    return data, pictures


@pytest.mark.usefixtures("plates")
def test_view_of_followed_files_draws_grid_or_paint(shot: SyntheticShot, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow("--reference", "1002", "-o", "ref.%04d.exr") == 0
    paint = torch.zeros(4, 48, 64)
    paint[0, 10:30, 15:40] = paint[3, 10:30, 15:40] = 1.0
    write_all_channels("paint.exr", ChannelPicture(paint, ("R", "G", "B", "A"), "float"))
    assert main(["view", "ref.%04d.exr", "--paint", "paint.exr", "-o", "page.html", "--quiet"]) == 0
    data, pictures = read_page("page.html")
    assert (data["reference"], list(pictures)) == (1002, [1001, 1002, 1003, 1004])
    assert data["max_motion"] < 64
    truth = shot.compute_flow_and_visibility(3, 1)
    expected = (warp_planes_and_mark_inside(paint[None, 3:], truth.flow[None])[0][0, 0] > 0.5) & truth.visible
    painted = (pictures[1004][0] > 0.75) & (pictures[1004][1:].amax(0) < 0.25)
    assert float((painted & expected).sum()) / float((painted | expected).sum()) > 0.8
    plate = shot.render_frame(1)
    outside = ~(paint[3] > 0)
    outside[8:32, 13:42] = False  # JPEG smears edges
    assert float((pictures[1002] - plate).abs()[:, outside].mean()) < 0.03
    assert main(["view", "ref.%04d.exr", "--grid", "16", "-o", "grid.html", "--quiet"]) == 0
    _, grids = read_page("grid.html")
    changes = (grids[1002] - 0.8 * plate).abs().mean(0)
    assert float(changes[:, [8, 24, 40, 56]].mean()) > 3 * float(changes[:, [16, 32, 48]][[0, 16, 32]].mean())
    capsys.readouterr()


@pytest.mark.usefixtures("plates")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ref.%04d.exr", "--paint", "absent.png"], "absent.png: no such file; check the path given as --paint"),
        (["ref.%04d.exr", "--paint", "small.png"], "--paint: expected the size of the reference, 64x48, got 32x24"),
        (["ref.%04d.exr", "--paint", "small.png", "--grid", "9"], "--grid: not used with --paint"),
        (["ref.%04d.exr", "--layer", "forward"], "--layer: not used with files of fullfield follow"),
        (["mv.%04d.exr", "--grid", "9"], "--grid: expected files of fullfield follow, got mv.%04d.exr"),
    ],
)
def test_view_paint_refuses_bad_input_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {"backward": torch.zeros(2, 48, 64)}
    layers |= {f"{name}.backward": torch.zeros(48, 64) for name in ("occlusion", "confidence")}
    write_flow_layers("ref.1001.exr", layers)
    write_flow_layers("mv.1001.exr", layers)
    Path("ref.exr.fullfield.json").write_text(json.dumps({"settings": {"reference": 1001}}))
    write_image("small.png", torch.zeros(3, 24, 32))
    assert main(["view", *words, "--plates", "plate.%04d.png", "-o", "page.html", "--quiet"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not Path("page.html").exists()


@pytest.mark.usefixtures("plates")
def test_follow_refuses_outputs_that_lead_to_the_file_of_all_plates(capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [Image.open(f"plate.{1001 + index}.png") for index in range(3)]
    pictures[0].save("shot.gif", save_all=True, append_images=pictures[1:])
    content = Path("shot.gif").read_bytes()
    Path("ref.0002.exr").symlink_to("shot.gif")
    for words in (["-o", "ref.%04d.exr"], ["-o", "other.%04d.exr", "--st-map", "ref.%04d.exr"]):
        assert main(["follow", "shot.gif", "--reference", "1", *words, "--overwrite", *QUICK]) == 2
        assert f"{words[-2].replace('-o', '--output')} ref.%04d.exr: names the plates" in capsys.readouterr().err
    assert Path("shot.gif").read_bytes() == content
