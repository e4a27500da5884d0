"""Video through PyAV: what is written comes back, what is broken is named."""

from __future__ import annotations

import importlib
import socket
import struct
import threading
import warnings
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield import InputError, SetupError
from fullfield.io import VideoWriter, open_video, video
from fullfield.io.video import CameraSource
from fullfield.sequences import open_plates
from peak_memory import PeakMemory

pytestmark = pytest.mark.unit

pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")


def pictures(count: int, height: int = 48, width: int = 64) -> list[Tensor]:
    """A bright square on dark blue that moves to the right by 4 px a picture."""
    made = []
    for number in range(count):
        picture = torch.zeros(3, height, width, dtype=torch.uint8)
        picture[2] = 90
        picture[:, 16:32, 4 * number : 4 * number + 16] = 240
        made.append(picture)
    return made


def film(path: Path, count: int = 6, rate: float = 25.0, height: int = 48, width: int = 64) -> Path:
    with VideoWriter(path, width, height, rate) as writer:
        for number, picture in enumerate(pictures(count, height, width)):
            writer.write(picture, number / rate)
    return path


def noisy(path: Path, count: int) -> Path:
    """A film whose frames take about as many bytes each."""
    noise = torch.Generator().manual_seed(0)
    with VideoWriter(path, 64, 48, 25.0) as writer:
        for number in range(count):
            writer.write(torch.randint(0, 256, (3, 48, 64), generator=noise, dtype=torch.uint8), number / 25)
    return path


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_video_writer_round_trip(tmp_path: Path, suffix: str) -> None:
    source = open_video(str(film(tmp_path / f"a{suffix}")))
    assert (source.width, source.height, source.is_live) == (64, 48, False)
    assert source.frame_rate == pytest.approx(25.0)
    for number, (frame, picture) in enumerate(zip(source, pictures(6), strict=True)):
        assert frame.time == pytest.approx(number / 25, abs=1e-3)
        rgb, luma = frame.read_rgb(), frame.read_luma()
        assert (rgb.shape, luma.shape) == ((3, 48, 64), (1, 48, 64))
        assert (rgb.dtype, luma.dtype) == (torch.uint8, torch.uint8)
        assert torch.equal(frame.convert_to_float_rgb(), rgb.float() / 255)
        assert (rgb.float() - picture.float()).abs().mean() < 6
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        assert ((picture * weights).sum(0) - luma[0]).abs().mean() < 8, "the full range, not 16 ... 235"
    source.close()


def test_open_video_accepts_path_object(tmp_path: Path) -> None:
    source = open_video(film(tmp_path / "film.mkv", 2))
    assert len(list(source)) == 2
    source.close()


def test_video_writer_pads_odd_sides(tmp_path: Path) -> None:
    source = open_video(str(film(tmp_path / "odd.mp4", 2, 25.0, 47, 63)))
    assert (source.width, source.height) == (64, 48)
    first = next(iter(source)).read_rgb().float()
    assert (first[:, 46] - first[:, 47]).abs().mean() < 8
    source.close()


def test_video_writer_keeps_time_stamps(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "gaps.mkv", 64, 48, 25.0) as writer:
        for picture, seconds in zip(pictures(4), (0.0, 0.04, 0.4, 0.41), strict=True):
            writer.write(picture, seconds)
    source = open_video(str(tmp_path / "gaps.mkv"))
    assert [frame.time for frame in source] == pytest.approx([0.0, 0.04, 0.4, 0.41], abs=2e-3)
    source.close()


def test_video_writer_sets_x264_quality(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", 64, 48, 25.0) as writer:
        if writer._stream.codec_context.name != "libx264":
            pytest.skip("this FFmpeg has no libx264")
        assert writer._stream.options == {"preset": "veryfast", "crf": "18"}


def test_video_writer_without_encoder_is_fault_of_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("av"), "codecs_available", frozenset[str]())
    with pytest.raises(SetupError, match=r"a\.mp4: this FFmpeg writes none of libx264"):
        VideoWriter(tmp_path / "a.mp4", 64, 48, 25.0)
    assert list(tmp_path.iterdir()) == []


def test_video_writer_separates_equal_time_stamps(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "same.mp4", 64, 48, 25.0) as writer:
        for picture in pictures(3):
            writer.write(picture, 0.0)
    source = open_video(str(tmp_path / "same.mp4"))
    assert [frame.time for frame in source] == pytest.approx([0.0, 1 / video._TICKS, 2 / video._TICKS], abs=1e-9)
    source.close()


def test_video_writer_without_picture_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with VideoWriter(path, 64, 48, 25.0):
        pass
    assert not path.exists()
    path.write_bytes(b"before")
    VideoWriter(path, 64, 48, 25.0).close()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_video_source_reports_and_skips_jumping_time_stamps(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "gap.mkv", 64, 48, 25.0) as writer:
        for picture, seconds in zip(pictures(4), (0.0, 0.04, 5000.0, 5000.04), strict=True):
            writer.write(picture, seconds)
    source = open_video(str(tmp_path / "gap.mkv"))
    with pytest.warns(
        UserWarning, match=r"gap\.mkv: the time stamps jump by .* after frame 2; the next .* 0\.04"
    ) as caught:
        assert [frame.time for frame in source] == pytest.approx([0.0, 0.04, 0.08, 0.12], abs=2e-3)
    assert len(caught) == 1
    source.close()


@pytest.mark.parametrize("name", ["InvalidDataError", "EOFError", "PatchWelcomeError", "ArgumentError", "OSError"])
@pytest.mark.parametrize("where", ["open", "decode"])
def test_open_video_ffmpeg_errors_name_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    import av

    path = str(film(tmp_path / "a.mkv", 2))
    error = getattr(av.error, name)(7, "it said so")

    def decode() -> Any:
        raise error

    class Container:
        streams = SimpleNamespace(
            video=[
                SimpleNamespace(
                    codec_context=SimpleNamespace(),
                    width=64,
                    height=48,
                    average_rate=25,
                    guessed_rate=None,
                    sample_aspect_ratio=None,
                )
            ]
        )

        def demux(self, _: Any) -> Any:
            yield SimpleNamespace(is_corrupt=False, decode=decode)

        def close(self) -> None: ...

    def opened(*_: object, **__: object) -> Any:
        if where == "open":
            raise error
        return Container()

    monkeypatch.setattr(av, "open", opened)
    with pytest.raises(InputError, match=r"a\.mkv: (expected a video|broken after frame 0).* \(it said so\)"):
        list(open_video(path))


def test_video_source_names_undecodable_stream(tmp_path: Path) -> None:
    data = film(tmp_path / "a.mkv", 2).read_bytes()
    for codec in (b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/ASP"):
        data = data.replace(codec, b"V_QUITE/UNKNOWN")
    (tmp_path / "b.mkv").write_bytes(data)
    with pytest.raises(InputError, match=r"b\.mkv: expected a video"):
        list(open_video(str(tmp_path / "b.mkv")))


def test_video_writer_failure_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"before")

    def break_off() -> None:
        with VideoWriter(path, 64, 48, 25.0) as writer:
            writer.write(pictures(1)[0], 0.0)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        break_off()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_open_video_of_real_file(data_dir: Path) -> None:
    source = open_video(str(data_dir / "video" / "bbb_1080p_2s.mp4"))
    assert (source.width, source.height, source.frame_rate) == (1920, 1080, 24.0)
    times = [frame.time for frame in source]
    assert times == pytest.approx([n / 24 for n in range(50)], abs=1e-3), "the first frame is at 0"
    source.close()


def test_open_video_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("not a film")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(InputError, match=r"text\.mp4: expected a video"):
        open_video(str(tmp_path / "text.mp4"))
    with pytest.raises(InputError, match=r"empty\.mp4: the file is empty"):
        open_video(str(tmp_path / "empty.mp4"))
    with pytest.raises(FileNotFoundError):
        open_video(str(tmp_path / "none.mp4"))


def test_open_video_truncated_ends_early_or_raises(tmp_path: Path) -> None:
    whole = film(tmp_path / "whole.mkv", 60).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    message, frames = "", 0
    try:
        for _ in open_video(str(tmp_path / "cut.mkv")):
            frames += 1
    except InputError as error:
        message = str(error)
    assert frames < 60
    assert not message or "cut.mkv: " in message


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_open_plates_truncated_video_warns(tmp_path: Path, share: float) -> None:
    whole = noisy(tmp_path / "whole.mkv", 100).read_bytes()
    assert len(open_plates(tmp_path / "whole.mkv").numbers) == 100
    (tmp_path / "cut.mkv").write_bytes(whole[: round(share * len(whole))])
    with pytest.warns(UserWarning, match=r"cut\.mkv: its header says 4\.00 s, but \d\.\d\d s are there"):
        plates = open_plates(tmp_path / "cut.mkv")
    assert 0 < len(plates.numbers) < 75


@pytest.mark.parametrize(("suffix", "codec"), [("mkv", "mpeg4"), ("mp4", "libx264"), ("avi", "mpeg4")])
def test_open_plates_short_truncated_video_yields_existing_frames(tmp_path: Path, suffix: str, codec: str) -> None:
    import av

    path, chance = tmp_path / f"a.{suffix}", np.random.default_rng(0)
    options = {"movflags": "faststart"} if suffix == "mp4" else {}  # the header lists every frame, also the cut one
    with av.open(str(path), "w", options=options) as film:
        stream = film.add_stream(codec, 25, width=64, height=48, pix_fmt="yuv420p")
        for _ in range(50):
            picture = av.VideoFrame.from_ndarray(chance.integers(0, 256, (48, 64, 3), np.uint8))
            film.mux(stream.encode(picture))
        film.mux(stream.encode(None))
    assert len(open_plates(path).numbers) == 50
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with pytest.warns(UserWarning, match=r"its header says 2\.00 s, but \d\.\d\d s are there"):
        plates = open_plates(path)
    assert 20 < len(plates.numbers) < 35
    for number in plates.numbers:
        assert plates.read(number).frame.shape == (3, 48, 64)


@pytest.mark.parametrize("late", [0, 15])
@pytest.mark.parametrize(
    ("suffix", "codec"), [("mkv", "libx264"), ("webm", "libvpx"), ("mp4", "libx264"), ("avi", "mpeg4")]
)
def test_open_plates_complete_video_warns_of_nothing(tmp_path: Path, suffix: str, codec: str, late: int) -> None:
    """Also where its pictures begin after its sound would, and with frames that are stored out of order."""
    import av

    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as film:
        stream = film.add_stream(codec, 25, width=64, height=48, pix_fmt="yuv420p")
        stream.codec_context.max_b_frames = 0 if codec == "libvpx" else 2
        for number in range(50):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 4 * number, np.uint8))
            picture.pts = number + late
            film.mux(stream.encode(picture))
        film.mux(stream.encode(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_plates(path).numbers) == 50


def test_video_frame_values_refuses_damaged_frame() -> None:
    frame = video._DecodedFrame(SimpleNamespace(is_corrupt=True), video.DisplayRotation(), 0.0, "a.mkv, frame 3")
    with pytest.raises(InputError, match=r"a\.mkv, frame 3: is damaged"):
        frame.convert_to_float_rgb()


@pytest.mark.parametrize("sides", [(16000, 16000), (64, 48)])
def test_open_video_refuses_header_beyond_limits(tmp_path: Path, sides: tuple[int, int]) -> None:
    import av

    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        container.mux(stream.encode(av.VideoFrame(64, 48, "yuvj420p")))
        container.mux(stream.encode(None))
    data = bytearray(path.read_bytes())
    struct.pack_into("<II", data, data.index(b"avih") + 40, *sides)
    struct.pack_into("<ii", data, data.index(b"strf") + 12, *sides)
    struct.pack_into(">HH", data, data.index(b"\xff\xc0\0\x11") + 5, *sides[::-1])
    path.write_bytes(data)
    if sides == (64, 48):
        assert len(list(open_video(str(path)))) == 1
    else:
        with PeakMemory() as memory, pytest.raises(InputError, match=r"a\.avi: the header says 16000 × 16000 pixels"):
            open_video(str(path))
        assert (memory.growth_mib or 0) < 64


@pytest.mark.parametrize(("rate", "expected"), [(Fraction(1, 90000), None), (Fraction(10**6), None), (24, 24.0)])
def test_open_video_impossible_rate_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: Fraction, expected: float | None
) -> None:
    """Its frames would be a day apart, or a writer could not count them."""
    import av

    stream = SimpleNamespace(
        codec_context=SimpleNamespace(),
        width=64,
        height=48,
        average_rate=rate,
        guessed_rate=None,
        sample_aspect_ratio=None,
    )
    (tmp_path / "a.mkv").write_bytes(b"stands for a film")
    container = SimpleNamespace(streams=SimpleNamespace(video=[stream]), demux=lambda _: iter(()))
    monkeypatch.setattr(av, "open", lambda *_, **__: container)
    assert open_video(str(tmp_path / "a.mkv")).frame_rate == expected


def test_open_video_refuses_sound_only(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sound.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame(format="s16", layout="mono", samples=800)
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(InputError, match="there is no picture in it"):
        open_video(str(path))


def test_open_video_camera_yields_newest_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    grabbed = [picture.permute(1, 2, 0).flip(2).numpy().copy() for picture in pictures(3)]

    class Camera:
        def __init__(self, number: int) -> None:
            self.there = number == 1

        def isOpened(self) -> bool:  # OpenCV's names
            return self.there

        def set(self, name: int, value: float) -> None:
            assert (name, value) == (cv2.CAP_PROP_BUFFERSIZE, 1)

        def get(self, name: int) -> float:
            return {cv2.CAP_PROP_FRAME_WIDTH: 64.0, cv2.CAP_PROP_FRAME_HEIGHT: 48.0, cv2.CAP_PROP_FPS: 0.0}[name]

        def read(self) -> tuple[bool, Any]:
            return (True, grabbed.pop(0)) if grabbed else (False, None)

        def release(self) -> None:
            self.there = False

    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    seconds = iter((7.0, 7.5, 9.0))
    source = CameraSource("camera:1", clock=lambda: next(seconds))
    assert (source.width, source.height, source.frame_rate, source.is_live) == (64, 48, None, True)
    for frame, picture, at in zip(source, pictures(3), (0.0, 0.5, 2.0), strict=True):
        assert frame.time == at
        assert torch.equal(frame.read_rgb(), picture)
        assert abs(float(frame.read_luma()[0, 20, 63]) - 0.114 * 90) <= 1
    source.close()
    with pytest.raises(InputError, match="camera:7: no such camera"):
        open_video("camera:7")
    with pytest.raises(InputError, match="expected camera:NUMBER"):
        open_video("camera:front")


@pytest.mark.parametrize(
    ("share", "word"), [(0.0, "no video came within 0.5 s"), (0.6, "nothing came for 0.5 s after")]
)
def test_open_video_silent_address_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, word: str
) -> None:
    monkeypatch.setattr(video, "_PATIENCE", 0.5)
    data = noisy(tmp_path / "a.mkv", 100).read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as held:

        def serve() -> None:
            connection = held.enter_context(server.accept()[0])
            connection.sendall(data[: round(share * len(data))])

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with pytest.raises(InputError, match=word):
            list(open_video(f"tcp://127.0.0.1:{server.getsockname()[1]}"))
        serving.join(5)


def test_video_writer_names_missing_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("av"), "codecs_available", {"gif"})
    with pytest.raises(InputError, match=r"writes none of libx264"):
        VideoWriter(tmp_path / "a.mp4", 64, 48, 25.0)
    assert not list(tmp_path.iterdir())


TURNS = [(a, 0, 0, d) for a in (1, -1) for d in (1, -1)] + [(0, b, c, 0) for b in (1, -1) for c in (1, -1)]


def encode(path: Path, matrix: tuple[int, int, int, int] | None = None, **options: str) -> Path:
    """Write four frames 64×48 of three unlike blocks, with a display matrix."""
    av = importlib.import_module("av")
    if not hasattr(av.video.stream.VideoStream, "set_display_matrix"):
        pytest.skip("this PyAV writes no display matrix")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.options = 64, 48, "yuv420p", {"crf": "1", **options}
        if matrix is not None:
            a, b, c, d = (entry << 16 for entry in matrix)
            stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(blocks(), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def blocks() -> np.ndarray[Any, np.dtype[np.uint8]]:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:16, :16], pixels[:16, 48:], pixels[32:, :16] = 250, 160, 80
    return pixels


@pytest.mark.parametrize("matrix", TURNS)
def test_open_video_rotates_frames_by_display_matrix(tmp_path: Path, matrix: tuple[int, int, int, int]) -> None:
    a, b, c, d = matrix
    stored = blocks()
    height, width = (48, 64) if a else (64, 48)
    expected = np.zeros((height, width, 3), np.uint8)
    for y in range(48):
        for x in range(64):  # where the matrix brings each stored pixel; negative coordinates count from the far side
            expected[(b * x + d * y) if b + d > 0 else height - 1 + b * x + d * y,
                     (a * x + c * y) if a + c > 0 else width - 1 + a * x + c * y] = stored[y, x]  # fmt: skip
    source = open_video(str(encode(tmp_path / "a.mp4", matrix)))
    assert (source.width, source.height) == (width, height)
    frames = list(source)
    assert len(frames) == 4
    for frame in frames:
        for pixels in (
            frame.read_rgb().float(),
            frame.read_luma().float().expand(3, -1, -1),
            frame.convert_to_float_rgb() * 255,
        ):  # type: ignore[attr-defined]
            assert np.abs(pixels.permute(1, 2, 0).numpy() - expected).mean() < 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plates = open_plates(str(tmp_path / "a.mp4"))
        assert plates.numbers == [1, 2, 3, 4]
        assert plates.read(3).frame.shape == (3, height, width)
        assert plates.read(1).frame.shape == (3, height, width)
        plates.close()
    source.close()


def test_read_display_rotation_without_side_data_equals_rotation(tmp_path: Path) -> None:
    """PyAV raises ValueError for the side data of a frame where it does not know the kind of one entry."""

    class Unreadable:
        @property
        def side_data(self) -> object:
            raise ValueError("31 is not a valid Type")

    for matrix in ((1, 0, 0, 1), (-1, 0, 0, -1), (0, 1, -1, 0), (0, -1, 1, 0)):
        av = importlib.import_module("av")
        with av.open(str(encode(tmp_path / "a.mp4", matrix))) as container:
            frame = next(container.decode(video=0))
        unreadable = Unreadable()
        unreadable.rotation = frame.rotation  # type: ignore[attr-defined]
        assert video._read_display_rotation_if_right_angle(unreadable) == video._read_display_rotation_if_right_angle(
            frame
        ), matrix


def test_open_video_other_rotation_angles_warn(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", (1, 1, -1, 1))
    with pytest.warns(UserWarning, match=r"a\.mp4: is turned by an angle that is no multiple of 90"):
        frames = list(open_video(str(path)))
    assert frames[0].read_rgb().shape == (3, 48, 64)


def test_open_video_interlaced_warns_once(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", None, **{"x264-params": "tff=1"})
    with pytest.warns(UserWarning, match=r"a\.mp4: is interlaced") as caught:
        assert len(list(open_video(str(path)))) == 4
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(open_video(str(encode(tmp_path / "b.mp4"))))) == 4
