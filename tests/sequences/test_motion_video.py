"""Videos that warp and retime read and write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from motion_shots import psnr, shot_of, stored
from sequence_shots import HEIGHT, WIDTH, CommandLine, moving

from fullfield.io import VideoWriter, open_video, read_frame, read_frame_window
from fullfield.io.all_channels import ChannelPicture, write_all_channels
from fullfield.sequences import open_plates
from fullfield.sequences.pictures import write_job_pictures
from fullfield.sequences.retiming import RetimeSettings, build_retime_job
from fullfield.sequences.warping import build_warp_job
from refusals import refuses


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("is_broken", [False, True])
def test_warp_and_retime_close_video(is_broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(3), "prores")
    stored(1, 3, -2.0)
    for name, job in (
        ("w", build_warp_job("clip.mov", "mv.%04d.exr", "w.%d.png")),
        ("r", build_retime_job("clip.mov", "mv.%04d.exr", "r.%d.png", RetimeSettings(2))),
    ):
        closed: list[str] = []
        monkeypatch.setattr(job.plates, "close", lambda name=name, closed=closed: closed.append(name))
        settled, plan = job.write_settings_and_get_job_and_plan()
        if is_broken:
            monkeypatch.setattr(type(job), "_read_input", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                write_job_pictures(settled, plan.missing)
        else:
            assert write_job_pictures(settled, plan.missing).written
        assert closed == [name]


def write_video(path: str, frames: list[torch.Tensor], codec: str = "h264", pixel_aspect: float = 1.0) -> None:
    from fullfield.io import VideoWriter

    with VideoWriter(path, WIDTH, HEIGHT, 25.0, codec, pixel_aspect) as writer:
        for number, frame in enumerate(frames):
            writer.write((frame * 65535).round().to(torch.int32), number / 25)


@pytest.mark.parametrize(("name", "codec"), [("slow.mp4", "h264"), ("slow.mkv", "h264")])
def test_retime_and_warp_keep_pixel_aspect_ratio(cli: CommandLine, name: str, codec: str) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(3), "prores", 2.0)
    stored(1, 3, -2.0)
    cli.done("retime", "clip.mov", "--flow", "mv.%04d.exr", "--factor", "2", "-o", name, "--codec", codec)
    source = open_video(name)
    assert source.pixel_aspect == 2  # type: ignore[attr-defined]
    source.close()
    with pytest.warns(UserWarning, match=r"a\.mkv: players will show square pixels; write \.mov"):
        write_video("a.mkv", moving(1), "prores", 2.0)
    cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.exr")
    assert read_frame_window("w.1.exr").pixel_aspect == 2


@pytest.mark.parametrize(("name", "codec"), [("slow.mp4", "h264"), ("slow.mov", "prores")])
def test_retime_reads_and_writes_video(cli: CommandLine, name: str, codec: str) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(4), "prores")
    stored(1, 4, -2.0)
    command = ("retime", "clip.mov", "--flow", "mv.%04d.exr", "--factor", "2", "-o", name)
    out, err = cli.done(*command, "--codec", codec)
    assert f"{name}: 7 frames written" in out
    assert f"{name}: is written without sound" in err
    plates = open_plates(name)
    assert plates.numbers == list(range(1, 8))
    for number, plate in ((1, 1), (3, 2), (7, 4)):
        assert psnr(plates.read(number).frame, open_plates("clip.mov").read(plate).frame) > 27
    assert "already exists; use --overwrite" in cli.refused(*command)


def test_warp_reads_video_and_writes_files(cli: CommandLine) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(4), "prores")
    stored(1, 4, -2.0)
    out, _ = cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.png")
    assert "3 frames written" in out
    expected = open_plates("clip.mov").read(2).frame
    torch.testing.assert_close(read_frame("w.1.png")[:, :, 2:], expected[:, :, :-2], atol=0.01, rtol=0)
    assert "0 frames written" in cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.png")[0]
    out, _ = cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.mp4")
    assert open_plates("w.mp4").numbers == [1, 2, 3]


def test_retime_encodes_linear_pictures_for_video(cli: CommandLine) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    stored(1, 2, 0.0)
    for number in (1, 2):
        write_all_channels(
            f"p.{number}.exr", ChannelPicture(torch.full((3, HEIGHT, WIDTH), 0.214), ("R", "G", "B"), "half")
        )
    cli.done("retime", "p.%d.exr", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "s.mp4")
    assert float(open_plates("s.mp4").read(2).frame.mean()) == pytest.approx(0.5, abs=0.02), "sRGB of 0.214"


def test_warp_and_retime_refuse_unsupported_video_output(cli: CommandLine) -> None:
    stored(1, 3, 1.0)
    shot_of(range(1, 4))
    retime = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o")
    assert "--codec: expected h264 for s.mp4, got prores" in cli.refused(*retime, "s.mp4", "--codec", "prores")
    assert "--codec: is for a video" in cli.refused(*retime, "s.%d.png", "--codec", "prores")
    warp = ("warp", "p.1.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "s.mp4")
    assert "--output s.mp4: expected files with a reference" in cli.refused(*warp)
    assert not Path("s.mp4").exists()


def test_video_writer_refuses_dnxhr_outside_mov(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    for name, expected in (("a.mkv", "h264 or prores"), ("a.mp4", "h264")):
        refuses(f"codec: expected {expected} for", VideoWriter, tmp_path / name, 256, 128, 24.0, "dnxhr")


def test_video_writer_refuses_small_dnxhr(tmp_path: Path) -> None:
    for width, height in ((254, 128), (256, 118)):
        refuses("codec: expected 256x120 or more", VideoWriter, tmp_path / "a.mov", width, height, 24.0, "dnxhr")
    assert list(tmp_path.iterdir()) == []
    with VideoWriter(tmp_path / "a.mov", 256, 120, 24.0, "dnxhr") as writer:
        writer.write(torch.zeros(3, 120, 256, dtype=torch.uint8), 0.0)


def test_video_writer_writes_10_bit_dnxhr(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    from fullfield.io import VideoWriter

    ramp = (torch.linspace(0, 65535, 256).expand(3, 128, 256)).round().to(torch.int32)
    with VideoWriter(tmp_path / "a.mov", 256, 128, 24.0, "dnxhr") as writer:
        writer.write(ramp, 0.0)
    with av.open(str(tmp_path / "a.mov")) as container:
        assert container.streams.video[0].codec_context.name == "dnxhd"
        assert container.streams.video[0].codec_context.pix_fmt == "yuv422p10le"
    frame = open_plates(tmp_path / "a.mov").read(1).frame
    torch.testing.assert_close(frame, ramp / 65535, atol=0.02, rtol=0)
