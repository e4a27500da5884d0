"""Runs on files: what is written, what a killed run leaves, what a bad plate costs, which process gets a chunk."""

from __future__ import annotations

import errno
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from long_shot import grown
from PIL import Image
from sequence_shots import HEIGHT, QUICK, WIDTH, CommandLine, assert_same, forking, loaded, moving, started

from fullfield import Flow, estimate
from fullfield._check import InputError
from fullfield.cli.main import main
from fullfield.io import read_flow, read_flow_layers, read_frame, read_metadata, write_image
from fullfield.io.flow import read_flow_window
from fullfield.io.scanlines import HEAD
from fullfield.io.windows import FrameWindow
from fullfield.ops.tvl1 import TVL1Config
from fullfield.sequences import outputs
from fullfield.sequences.pool import _RemainingChunks, split_into_chunks
from fullfield.sequences.results import StageTime, StageTimes
from fullfield.sequences.run import _LineBuffers
from fullfield.sequences.writing import compute_max_waiting_results

oiio = pytest.importorskip("OpenImageIO")
CONFIG = TVL1Config.from_preset("fast").replace(iterations=4, warps=2)


@pytest.fixture
def flow(shot: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:  # noqa: ARG001 - sets the folder
    return CommandLine(capsys, ("shot",), QUICK)


def write_exr(
    path: Path, frame: torch.Tensor, at: tuple[int, int] = (0, 0), full: tuple[int, ...] | None = None
) -> None:
    """An EXR plate as a camera department delivers it."""
    height, width = frame.shape[-2:]
    spec = oiio.ImageSpec(width, height, 3, "half")
    spec.x, spec.y = at
    spec.full_x, spec.full_y, spec.full_width, spec.full_height = full or (0, 0, width, height)
    spec.attribute("smpte:TimeCode", oiio.TypeDesc("timecode"), (0x01020304, 0))
    spec.attribute("nuke/version", "15.1")
    spec.attribute("camera", "ALEXA")
    spec.attribute("worldToCamera", oiio.TypeDesc("matrix"), tuple(float(n) for n in range(16)))
    spec.attribute("PixelAspectRatio", 2.0)
    out = oiio.ImageOutput.create("openexr")
    assert out.open(str(path), spec)
    assert out.write_image(frame.permute(1, 2, 0).contiguous().numpy().astype(np.float32))
    out.close()


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (("--step", "50"), "frames 11-18: no frame is 50 later; the vectors are 0"),
        (("--frames", "11", "--direction", "backward"), "frames 11: no frame is 1 earlier; the vectors are 0"),
        (("--frames", "11", "--direction", "both"), None),
    ],
)
def test_shot_notes_frames_without_neighbours(flow: CommandLine, options: tuple[str, ...], note: str | None) -> None:
    _, err = flow.done("plate.####.png", "-o", "mv.####.exr", *options)
    assert ("no frame is" in err) == (note is not None)
    assert note is None or note in err


def test_shot_keeps_metadata_of_exr_plates(flow: CommandLine, shot: Path) -> None:
    for number, frame in enumerate(moving(4), 1):
        write_exr(shot / f"exr.{number:04d}.exr", frame)
    out, _ = flow.done("exr.####.exr", "-o", "mv.####.exr", "--direction", "both", "--occlusion", "--confidence",
                        "--st-map", "st.####.exr", "--json", "-q")  # fmt: skip
    report = json.loads(out)
    assert (report["written"], report["problems"], report["frames"]) == ("1-4", [], "1-4")
    parts = read_flow_layers("mv.0002.exr")
    assert sorted(parts) == ["backward", "confidence.backward", "confidence.forward", "forward",
                             "occlusion.backward", "occlusion.forward"]  # fmt: skip
    alone = estimate("exr.0002.exr", "exr.0003.exr", "tvl1", config=CONFIG)
    assert torch.equal(parts["forward"], alone.flow)
    alone.save("alone.exr")
    assert read_flow_window("alone.exr").pixel_aspect == 2.0, "from Python too"
    assert read_flow_window("mv.0002.exr").pixel_aspect == 2.0
    metadata = {entry.name: entry.value for entry in read_metadata("mv.0002.exr")}
    assert metadata["smpte:TimeCode"] == (0x01020304, 0)
    assert (metadata["nuke/version"], metadata["camera"]) == ("15.1", "ALEXA")
    assert metadata["worldToCamera"][5] == 5.0
    assert Path("st.0002.exr").exists()
    ends = read_flow_layers("mv.0004.exr")
    assert not ends["forward"].any(), "no vectors where the shot ends"
    assert ends["occlusion.forward"].min() == 1
    assert ends["backward"].any()


def test_shot_stores_half_and_y_down(flow: CommandLine) -> None:
    assert flow("plate.%04d.png", "--frames", "12", "-o", "mv.%04d.exr", "--half", "--y-axis", "down")[0] == 0
    assert flow("plate.%04d.png", "--frames", "12", "-o", "up.%04d.exr")[0] == 0
    down, up = read_flow("mv.0012.exr").flow, read_flow("up.0012.exr").flow
    torch.testing.assert_close(down, up, rtol=1e-3, atol=1e-3)
    file = oiio.ImageInput.open("mv.0012.exr")
    assert file.spec().format == "half"
    assert np.array_equal(file.read_image("float")[..., 1], down[1].numpy())
    file = oiio.ImageInput.open("up.0012.exr")
    assert np.array_equal(file.read_image("float")[..., 1], -up[1].numpy())


def test_shot_keeps_overscan_windows(flow: CommandLine, shot: Path) -> None:
    wide = moving(3)
    display = (0, 0, WIDTH - 16, HEIGHT - 10)
    for number, frame in enumerate(wide, 1):
        cut = number - 1  # every plate has its own data window
        write_exr(shot / f"o.{number:04d}.exr", frame[:, cut:, cut:].contiguous(), (cut - 8, cut - 5), display)
    flow.done("o.%04d.exr", "-o", "mv.%04d.exr", "--window", "data", "--direction", "both", "--occlusion")
    assert read_flow_window("mv.0002.exr") == FrameWindow((-8, -5, WIDTH, HEIGHT), display, 2.0)
    inner = read_flow("mv.0001.exr", window="data").flow[0, 10:-10, 10:-10]
    assert float(inner.mean()) == pytest.approx(-2, abs=0.5)
    assert main(["view", "mv.%04d.exr"]) == 0  # on the display window, flow and plates
    assert flow("o.%04d.exr", "-o", "d.%04d.exr")[0] == 0
    assert read_flow_window("d.0002.exr").data == display


def test_shot_writes_other_formats(flow: CommandLine, shot: Path) -> None:
    assert flow("plate.%04d.png", "-o", "v_@@@.flo", "--frames", "17-18")[0] == 0
    assert Path("v_017.flo").exists()
    assert not Flow.load("v_018.flo").flow.any()
    (shot / "out").mkdir()
    assert flow("plate.%04d.png", "-o", "out/", "--frames", "11-18x4")[0] == 0
    assert sorted(path.name for path in (shot / "out").glob("*.exr")) == ["plate.0011.exr", "plate.0015.exr"]
    alone = estimate("plate.0017.png", "plate.0018.png", "tvl1", config=CONFIG)
    assert torch.equal(Flow.load("v_017.flo").flow, alone.flow)


def test_shot_writes_each_frame_once(flow: CommandLine) -> None:
    assert flow("plate.%04d.png", "-o", "mv.%04d.exr", "--frames", "11-13")[0] == 0
    first = {path: path.stat().st_mtime_ns for path in Path().glob("mv.*.exr")}
    out, err = flow.done("plate.%04d.png", "-o", "mv.%04d.exr")
    assert "5 frames written, 3 kept" in out
    assert "note: 3 of 8 frames exist" in err
    assert {path: path.stat().st_mtime_ns for path in first} == first
    err = flow.refused("plate.%04d.png", "-o", "mv.%04d.exr", "--median", "3")
    assert "was begun with other settings (--median" in err
    assert "give the same --preset and options, or use --overwrite" in err
    flow.done("plate.%04d.png", "-o", "mv.%04d.exr", "--step", "2", "--overwrite")
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in first.items())
    Path("mv.exr.fullfield.json").unlink()
    err = flow.refused("plate.%04d.png", "-o", "mv.%04d.exr", "--step", "2")
    assert "mv.0011.exr: exists, and no mv.exr.fullfield.json says how it was made" in err


def test_shot_without_results_accepts_other_settings(flow: CommandLine, shot: Path) -> None:
    for number, frame in enumerate(moving(2), 11):
        write_exr(shot / f"exr.{number:04d}.exr", frame)
    command = ("exr.%04d.exr", "-o", "mv.%04d.exr")
    assert "no channels" in flow.refused(*command, "--layer", "slip")
    assert "2 frames written" in flow.done(*command)[0]
    assert "was begun with other settings (step was 1, is 2)" in flow.refused(*command, "--step", "2")
    for path in shot.glob("mv.*.exr"):
        path.unlink()
    assert "2 frames written" in flow.done(*command, "--step", "2")[0]


def test_shot_refuses_glob_that_matches_results(flow: CommandLine) -> None:
    Path("own").mkdir()
    for number, frame in enumerate(moving(2), 1):
        write_image(f"own/p.{number}.png", frame)
    err = flow.refused("o*/*", "-o", "own/mv.%04d.exr")
    assert "--output own/mv.%04d.exr: o*/* would hold plates and results" in err


def test_output_settings_error_names_method_first(tmp_path: Path) -> None:
    def settle(**settings: object) -> None:
        output = outputs.Output(str(tmp_path / "mv.%04d.exr"))
        output.write_settings_and_st_maps_and_plan_frames(
            settings, [1], lambda _number, _checksums: {}, overwrite=False
        )

    many = dict.fromkeys("abcde", 1)
    settle(step=1, method="tvl1", parameters=many)
    (tmp_path / "mv.0002.exr").touch()
    with pytest.raises(InputError, match=r"settings \(method was 'tvl1', is 'raft'; step was 1, is 2\); use"):
        settle(step=2, method="raft", parameters={})
    with pytest.raises(InputError, match=r"parameters\.c was 1, is 2; and 2 more\); give the same --preset"):
        settle(step=1, method="tvl1", parameters=dict.fromkeys(many, 2))


def test_shot_continues_killed_overwrite(flow: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flow("plate.%04d.png", "-o", "mv.%04d.exr")[0] == 0
    old = loaded("mv")
    from fullfield.sequences import outputs

    real = outputs.Output.write_frame_and_record

    def killed(self: Any, done: Any, *args: Any) -> None:
        if done.number == 14:
            raise KeyboardInterrupt
        real(self, done, *args)

    with monkeypatch.context() as patch:
        patch.setattr(outputs.Output, "write_frame_and_record", killed)
        assert flow("plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "backward", "--overwrite")[0] == 130
    assert flow("plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "backward")[0] == 0
    new = loaded("mv")
    assert all(set(new[name]) == {"backward"} for name in old), "no file of the old settings is left"


def test_shot_survives_hostile_plates(flow: CommandLine, shot: Path) -> None:
    frames = moving(4)
    for number in range(1, 12):
        write_image(shot / f"h.{number:04d}.png", frames[number % 4])
    bad = {number: shot / f"h.{number:04d}.png" for number in (2, 4, 6, 8)}
    bad[2].write_bytes(bad[2].read_bytes()[:200])
    bad[4].unlink()
    bad[4].mkdir()
    write_image(bad[6], torch.rand(3, 30, 30))
    values = np.full((HEIGHT, WIDTH, 3), np.nan, "<f4")
    bad[8].write_bytes(b"PF\n%d %d\n-1.0\n" % (WIDTH, HEIGHT) + values.tobytes())
    code, out, err = flow("h.%04d.png", "-o", "mv.%04d.exr", "--direction", "both", "--json")
    assert code == 2
    named = {problem["path"]: problem["reason"] for problem in json.loads(out)["problems"]}
    assert sorted(named) == [path.name for path in bad.values()]
    for path, why in named.items():
        assert f"fullfield: error: {path}: {why}" in err
        assert "\n" not in why
    made = [number for number in range(1, 12) if Path(f"mv.{number:04d}.exr").exists()]
    assert made == [1, 9, 10, 11], "a frame between two bad ones has no pair"


def test_shot_completes_direction_after_plate_is_repaired(flow: CommandLine, shot: Path) -> None:
    good = (shot / "plate.0014.png").read_bytes()
    (shot / "plate.0014.png").write_bytes(good[:100])
    code, out, err = flow("plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "both")
    assert code == 2
    assert "plate.0014.png: truncated PNG file" in err
    assert err.count("plate.0014.png") == 1
    assert "1 not written (14), 2 with only one direction (13,15)" in out
    assert not read_flow("mv.0013.exr").flow.any()
    assert read_flow("mv.0013.exr", layer="backward").flow.any()
    (shot / "plate.0014.png").write_bytes(good)
    out, _ = flow.done("plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "both")
    assert "3 frames written, 5 kept" in out
    assert flow("plate.%04d.png", "-o", "other.%04d.exr", "--direction", "both")[0] == 0
    assert_same(loaded("mv"), loaded("other"))


def test_shot_stops_on_full_disk_without_loss(flow: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences import outputs

    real = outputs.Output.write_frame_and_record

    def full(self: Any, done: Any, *args: Any) -> None:
        if done.number >= 14:
            raise OSError(errno.ENOSPC, "cannot write: No space left on device", self.get_path(done.number))
        real(self, done, *args)

    with monkeypatch.context() as patch:
        patch.setattr(outputs.Output, "write_frame_and_record", full)
        code, _, err = flow("plate.%04d.png", "-o", "mv.%04d.exr")
    assert code == 2
    assert "mv.0014.exr: cannot write: No space left on device" in err
    assert "stopped: " in err
    assert "plate.00" not in err
    out, _ = flow.done("plate.%04d.png", "-o", "mv.%04d.exr")
    assert "5 frames written, 3 kept" in out


@pytest.mark.parametrize("folder", ["net", "frame 1"])
def test_shot_names_lost_folder(flow: CommandLine, shot: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    from fullfield.sequences.plates import FilePlates

    (shot / folder).mkdir()
    for number, frame in enumerate(moving(8), 1):
        write_image(shot / folder / f"p.{number}.png", frame)
    real = FilePlates.read

    def lost(self: Any, number: int) -> Any:
        if number == 4:
            (shot / folder).rename(shot / "gone")
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(FilePlates, "read", lost)
        code, _, err = flow(f"{folder}/p.%d.png", "-o", "mv.%04d.exr")
    assert code == 2
    assert f"{folder}: is not there any more" in err
    (shot / "gone").rename(shot / folder)
    assert flow(f"{folder}/p.%d.png", "-o", "mv.%04d.exr")[0] == 0
    assert len(list(shot.glob("mv.*.exr"))) == 8


def test_shot_names_plate_replaced_during_run(flow: CommandLine, shot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences.plates import FilePlates

    real = FilePlates.read

    def replaced(self: Any, number: int) -> Any:
        plate = real(self, number)
        if number == 14:
            write_image(shot / "new.png", torch.rand(3, HEIGHT, WIDTH))
            (shot / "new.png").replace(shot / "plate.0014.png")
        return plate

    with monkeypatch.context() as patch:
        patch.setattr(FilePlates, "read", replaced)
        code, out, err = flow("plate.%04d.png", "-o", "mv.%04d.exr")
    assert code == 2
    assert "plate.0014.png: was replaced while it was worked on" in err
    assert "not written (13-14)" in out
    assert flow("plate.%04d.png", "-o", "mv.%04d.exr")[0] == 0
    alone = estimate("plate.0013.png", "plate.0014.png", "tvl1", config=CONFIG)
    assert torch.equal(read_flow("mv.0013.exr").flow, alone.flow)


def test_shot_killed_at_random_moments_equals_one_run(flow: CommandLine, shot: Path) -> None:
    arguments = ["plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "both", "--occlusion", "--warm-start", "--half"]
    reference = [word.replace("mv.", "ref.") for word in arguments]
    assert flow(*reference)[0] == 0
    chance = random.Random(5)
    counts = []
    for _ in range(3):
        process = started(shot, [*arguments, *QUICK, "-q"])
        before = len(list(shot.glob("mv.*.exr")))
        deadline = time.monotonic() + 60
        while len(list(shot.glob("mv.*.exr"))) == before and time.monotonic() < deadline and process.is_alive():
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.08))
        process.kill()
        process.join()
        counts.append(len(list(shot.glob("mv.*.exr"))))
    assert counts[0] < 8, "killed half way"
    assert flow(*arguments)[0] == 0
    assert_same(loaded("mv"), loaded("ref"))
    assert not list(shot.glob(".*.part.exr"))


def test_shot_on_two_devices_survives_killed_process(flow: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences import pool

    real, killed, context = pool._receive_and_apply_message_if_alive, [], forking()

    def heard(worker: Any, outcome: Any, left: Any, tell: Any) -> bool:
        if not killed and worker.finished:
            killed.append(worker.process.pid)
            worker.process.kill()
        return real(worker, outcome, left, tell)

    monkeypatch.setattr(pool, "_receive_and_apply_message_if_alive", heard)
    monkeypatch.setattr(pool.multiprocessing, "get_context", lambda _: context)
    options = ("--direction", "both", "--occlusion")
    assert flow("plate.%04d.png", "-o", "one.%04d.exr", *options)[0] == 0
    out, _ = flow.done("plate.%04d.png", "-o", "mv.%04d.exr", *options, "--devices", "cpu,cpu", "--json")
    assert killed
    assert json.loads(out)["written"] == "11-18"
    assert_same(loaded("mv"), loaded("one"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_shot_memory_is_bounded(tmp_path: Path) -> None:
    """``long_shot.py`` goes through 1,000 frames."""
    more, passing = grown(tmp_path, 60, settled=20)
    assert passing > 60
    assert more < 25


def test_shot_of_video_writes_every_pair(flow: CommandLine, shot: Path) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    for name, form in (("film.mp4", "yuv420p"), ("deep.mkv", "yuv420p10le")):
        container = av.open(str(shot / name), "w")
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt, stream.options = WIDTH, HEIGHT, form, {"crf": "4"}
        for frame in moving(6):
            picture = av.VideoFrame.from_ndarray((frame * 255).byte().permute(1, 2, 0).contiguous().numpy(), "rgb24")
            container.mux(stream.encode(picture.reformat(format=form)))
        container.mux(stream.encode(None))
        container.close()
        out, err = flow.done(name, "-o", f"{name}.%03d.flo", "--json")
        assert json.loads(out)["written"] == "1-6"
        middle = Flow.load(f"{name}.003.flo").flow[0, 10:-10, 10:-10]
        assert float(middle.mean()) == pytest.approx(-2, abs=0.5)
    assert flow("film.mp4", "-o", "part.%03d.exr", "--frames", "3-4", "--direction", "both")[0] == 0
    assert torch.equal(read_flow("part.003.exr").flow, Flow.load("film.mp4.003.flo").flow)
    err = flow.refused("film.mp4", "-o", "late.%03d.flo", "--frames", "5-8")
    assert "film.mp4, frame 7: no such file" in err
    from fullfield.sequences import open_plates

    deep = open_plates("deep.mkv").read(1).frame * 255
    assert (deep - deep.round()).abs().max() > 0.1, "more than 8 bits"


@pytest.mark.parametrize("option", ["mask", "layer"])
def test_shot_of_multi_picture_file_refuses_options(flow: CommandLine, option: str) -> None:
    pictures = [Image.new("RGB", (WIDTH, HEIGHT), color) for color in ("red", "blue")]
    pictures[0].save("film.gif", save_all=True, append_images=pictures[1:])
    message = f"--{option}: expected None for a video or a stack of pictures, film.gif"
    assert message in flow.refused("film.gif", "-o", "m.%d.exr", f"--{option}", "x.png")


def test_shot_prints_openjd_progress(flow: CommandLine) -> None:
    _, out, _ = flow("plate.%04d.png", "-o", "mv.%04d.exr", "--farm", "openjd")
    lines = [line for line in out.splitlines() if line.startswith("openjd_progress: ")]
    assert len(lines) == 8
    assert lines[-1] == "openjd_progress: 100.0"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("plate.%04d.png", "-o", "x.flo"), "expected a pattern for the files"),
        (("plate.%04d.png", "-o", "plate.%04d.png"), "names the plates"),
        ((".", "-o", "mv.%04d.exr"), "--output mv.%04d.exr: . would hold plates and results; choose another folder"),
        (("*.png", "-o", "mv.%04d.png"), "--output mv.%04d.png: *.png would hold plates and results"),
        ((".", "-o", "mv.%04d.flo", "--st-map", "st.%04d.exr"), "--st-map st.%04d.exr: . would hold plates"),
        (("plate.%04d.png", "-o", "mv.%04d.flo", "--direction", "both"), "--direction both: expected an .exr output"),
        (("plate.%04d.png", "-o", "mv.%04d.flo", "--occlusion"), "--occlusion: expected an .exr output"),
        (("plate.%04d.png", "-o", "no/mv.%04d.exr"), "folder no does not exist"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--frames", "1-3"), "none of the frames 1-3 exists"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--frames", "1-"), "--frames: expected frames such as"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--viz", "x.png"), "--viz x.png: expected a pattern for the files"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--viz", "plate.%04d.png"), "names the plates or another output"),
        (
            ("plate.%04d.png", "-o", "mv.%04d.exr", "--viz", "x.%d.png", "--viz-kind", "occlusion"),
            "expected --occlusion",
        ),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--viz-kind", "overlay"), "pictures of --viz, which is absent"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--devices", "cpu,cpu", "--warm-start"), "--warm-start: runs on"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--devices", "nine:1"), "--devices: expected a device"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--st-map", "mv.####.exr"), "is also written by --output"),
        (("plate.%04d.png", "-o", "mv.%04d.exr", "--window", "data", "--warm-start"), "--warm-start: expected frames"),
        (
            ("plate.0011.png", "-o", "mv.%04d.exr"),
            "is one frame; a sequence is a pattern, such as plate.####.png",
        ),
        (("plate.0011.png", "plate.0012.png", "-o", "x.%04d.flo"), "PLATES: expected one pattern, got 2 names"),
        (("no.%04d.png", "-o", "mv.%04d.exr"), "no.%04d.png: no such file"),
    ],
)
def test_shot_reports_mistakes_in_one_line(flow: CommandLine, arguments: tuple[str, ...], word: str) -> None:
    code, out, err = flow(*arguments)
    assert code == 2
    assert word in err
    assert err.count("\n") == 1
    assert out == ""


def test_compute_max_waiting_results_bounds_memory() -> None:
    for height, width in ((436, 1024), (1024, 2048), (2160, 4096), (4320, 8192), (8640, 16384)):
        size = 16 * height * width
        waiting = compute_max_waiting_results(size, 12, 1 << 30)
        assert waiting == 12 if size < 50e6 else 1 <= waiting < 12
        assert waiting == 1 or (waiting + 1) * size <= 1 << 30
    assert compute_max_waiting_results(16 * 2160 * 4096, 12, 1 << 30) >= 4
    assert compute_max_waiting_results(16 * 4320 * 8192, 12, 1 << 32) >= 6


def test_shot_compresses_files_in_writing_threads(shot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import OpenImageIO as oiio

    from fullfield.io.oiio import one_thread_a_file

    def switches() -> tuple[int, int]:
        return oiio.get_int_attribute("exr_threads"), oiio.get_int_attribute("threads")

    seen: list[tuple[int, int]] = []
    real = outputs.write_scanlines_atomically

    def watched(*args: Any, **more: Any) -> None:
        seen.append(switches())
        real(*args, **more)

    monkeypatch.setattr(outputs, "write_scanlines_atomically", watched)
    before = switches()
    assert main(["shot", f"{shot}/plate.%04d.png", "--frames", "11-13", *QUICK, "-o", f"{tmp_path}/m.%04d.exr"]) == 0
    assert seen == [(-1, 1)] * 3
    assert switches() == before
    with one_thread_a_file, one_thread_a_file:
        pass
    with one_thread_a_file:
        with pytest.raises(KeyError), one_thread_a_file:
            raise KeyError
        assert switches() == (-1, 1)
    assert switches() == before


def test_split_into_chunks_separates_processes() -> None:
    every = split_into_chunks(range(1, 201), 2, 12)
    assert [number for chunk in every for number in chunk] == list(range(1, 201))
    left = _RemainingChunks(every)
    one, first = left.take_starting_position_and_chunk([])
    two, second = left.take_starting_position_and_chunk([one])
    assert first == every[0]
    assert (one, two) == (0, (len(every) - 1) // 2 + 1)
    assert second == every[two]
    for place in range(1, two):
        assert left.take_following_chunk_or_empty(place - 1) == every[place]
    assert left.take_following_chunk_or_empty(two - 1) == [], "that is the other one's"
    count = len(left)
    stolen, chunk = left.take_starting_position_and_chunk([two])
    assert stolen == two + 1 + count // 2, "the middle of what the other one has before it"
    assert chunk == every[stolen]
    left.put_back_chunk([77])
    taken = [left.take_starting_position_and_chunk([two])[1] for _ in range(len(left))]
    assert sorted([*taken, chunk]) == sorted([*every[two + 1 :], [77]])
    assert not len(left)
    assert left.take_following_chunk_or_empty(0) == []


def test_lend_buffer_reuses_buffers_exclusively() -> None:
    class Taken(list[torch.Tensor]):
        """Empty once it is looked into."""

        def __bool__(self) -> bool:
            return True

    rooms = _LineBuffers(pinned=False)
    rooms._free = Taken()
    flow = {"forward": torch.zeros(2, 5, 7), "occlusion.forward": torch.zeros(5, 7)}
    with rooms.lend_scanline_buffer(flow, is_half=False) as one, rooms.lend_scanline_buffer(flow, is_half=False) as two:
        assert one.shape == two.shape == (5, HEAD + 3 * 7 * 4)
        assert one.data_ptr() != two.data_ptr()
        kept = {one.data_ptr(), two.data_ptr()}
    with rooms.lend_scanline_buffer(flow, is_half=False) as again:
        assert again.data_ptr() in kept
    with rooms.lend_scanline_buffer(flow, is_half=True) as other:
        assert other.shape == (5, HEAD + 3 * 7 * 2)


def test_stage_times_sum_over_threads() -> None:
    stages = StageTimes()

    def work() -> None:
        for _ in range(50):
            with stages.measure("one"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stages.by_name["one"].calls == 200
    stages.add_times({"one": StageTime(1, 2.0, 1.0), "two": StageTime(3, 1.0, 0.5)})
    assert stages.by_name["two"] == StageTime(3, 1.0, 0.5)
    assert 2.0 < stages.by_name["one"].wall_s < 3.0


@pytest.mark.parametrize("kind", ["flow", "overlay", "occlusion"])
def test_shot_viz_draws_every_frame(flow: CommandLine, kind: str) -> None:
    command = ("plate.%04d.png", "-o", "mv.%04d.exr", "--occlusion", "--frames", "11-13")
    out, _ = flow.done(*command, "--viz", "v.%04d.png", "--viz-kind", kind)
    assert f"v.%04d.png: 3 pictures, {kind}" in out
    pictures = [read_frame(f"v.{number:04d}.png") for number in (11, 12, 13)]
    assert all(picture.shape == (3, HEIGHT, WIDTH) for picture in pictures)
    if kind == "occlusion":
        stored = read_flow_layers("mv.0012.exr")["occlusion.forward"]
        assert torch.allclose(pictures[1][0], stored, atol=0.003)
    assert "0 frames written, 3 kept" in flow.done(*command, "--viz", "v.%04d.png", "--viz-kind", kind)[0]
    write_image("v.0012.png", torch.rand(3, 9, 9))
    assert "--viz v.0012.png: already exists and was not written by fullfield" in flow.refused(
        *command, "--viz", "v.%04d.png"
    )


def test_shot_viz_of_backward_flow_has_one_scale(flow: CommandLine) -> None:
    command = ("plate.%04d.png", "-o", "mv.%04d.exr", "--direction", "backward", "--frames", "11-13")
    out, _ = flow.done(*command, "--viz", "v.%04d.png")
    assert "v.%04d.png: 3 pictures, flow, colour scale: 0 to" in out


def test_shot_viz_writes_video(flow: CommandLine) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    out, _ = flow.done("plate.%04d.png", "-o", "mv.%04d.exr", "--viz", "preview.mp4", "--viz-kind", "overlay")
    assert "preview.mp4: 8 pictures, overlay, colour scale: 0 to" in out
    from fullfield.sequences import open_plates

    assert open_plates("preview.mp4").numbers == list(range(1, 9))
