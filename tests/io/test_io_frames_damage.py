"""read_frame of files that are missing, damaged, replaced, false or large."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from io_files import ExrPart, complaint, pixels_8, samples, save
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame
from fullfield.io.files import refuse_implausible_pixel_count
from fullfield.io.names import FRAME_SUFFIXES
from peak_memory import PeakMemory

pytestmark = pytest.mark.unit


def test_read_frame_names_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.png"):
        read_frame(tmp_path / "no.png")
    with pytest.raises(IsADirectoryError, match="folder"):
        read_frame(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.png: the file is empty"):
        read_frame(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("hello, this is text\n")
    with pytest.raises(InputError, match=r"a\.txt: expected a frame \(PNG, JPEG") as error:
        read_frame(tmp_path / "a.txt")
    complaint(error)


def test_read_frame_refuses_pipe(tmp_path: Path) -> None:
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes in the file system here")
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(InputError, match="regular file"):
        read_frame(tmp_path / "a.png")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("suffix", [s for s in FRAME_SUFFIXES if s not in (".pbm", ".pnm")])
def test_read_frame_refuses_truncated_files(tmp_path: Path, suffix: str, keep: float) -> None:
    path = tmp_path / f"a{suffix}"
    made(path)
    read_frame(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match=r"truncated|corrupt") as error:
        read_frame(path)
    assert complaint(error).startswith(str(path))


class ReplacingInput:
    """OpenImageIO's reader of files, after whose opening another process replaces the file."""

    def __init__(self, path: Path, later_contents: list[bytes]) -> None:
        self.path, self.later_contents = path, later_contents
        self.open_file, self.openings = oiio.ImageInput.open, 0

    def open(self, *arguments: Any) -> Any:
        handle = self.open_file(*arguments)
        self.openings += 1
        if self.later_contents:
            complete = self.path.with_name("complete")
            complete.write_bytes(self.later_contents.pop(0))
            complete.replace(self.path)
        return handle


@pytest.mark.parametrize("keep", [0.1, 0.9])  # OpenImageIO refuses the one, and of the other only the rows
def test_read_frame_reads_again_a_file_replaced_while_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: float
) -> None:
    path = tmp_path / "a.exr"
    made(path)
    complete, expected = path.read_bytes(), read_frame(path)
    path.write_bytes(complete[: int(len(complete) * keep)])
    replacing = ReplacingInput(path, [complete])
    monkeypatch.setattr(oiio, "ImageInput", replacing)
    assert torch.equal(read_frame(path), expected)
    assert replacing.openings == 2


def test_read_frame_refuses_a_damaged_file_that_is_replaced_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.exr"
    made(path)
    cut = path.read_bytes()[:100]
    path.write_bytes(cut)
    replacing = ReplacingInput(path, [cut] * 100)
    monkeypatch.setattr(oiio, "ImageInput", replacing)
    with pytest.raises(InputError, match="truncated") as error:
        read_frame(path)
    assert complaint(error).startswith(str(path))
    assert 2 <= replacing.openings < 100


def test_read_frame_opens_a_damaged_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.exr"
    made(path)
    path.write_bytes(path.read_bytes()[:100])
    replacing = ReplacingInput(path, [])
    monkeypatch.setattr(oiio, "ImageInput", replacing)
    with pytest.raises(InputError, match="truncated"):
        read_frame(path)
    assert replacing.openings == 1


def test_read_frame_names_a_file_that_vanishes_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, open_file, openings = tmp_path / "a.exr", oiio.ImageInput.open, list[Path]()
    made(path)

    def open_and_remove(*arguments: Any) -> Any:
        openings.append(path)
        handle = open_file(*arguments)
        path.unlink()
        return handle

    monkeypatch.setattr(oiio, "ImageInput", SimpleNamespace(open=open_and_remove))
    with pytest.raises(FileNotFoundError) as error:
        read_frame(path)
    assert error.value.filename == str(path)
    assert len(openings) == 1


def made(path: Path) -> None:
    """A 48 × 40 frame in the format of the suffix."""
    pixels = np.kron(pixels_8(5, 6), np.ones((8, 8, 1), np.uint8))
    suffix = path.suffix
    if suffix == ".pfm":
        path.write_bytes(b"PF\n48 40\n-1\n" + (pixels / 255).astype("<f4").tobytes())
    elif suffix == ".pgm":
        Image.fromarray(pixels[..., 0]).save(path)
    elif suffix in (".exr", ".hdr"):
        save(path, ExrPart((pixels / 255).astype(np.float32), ("R", "G", "B")))
    elif suffix == ".dpx":
        save(path, ExrPart(pixels.astype(np.uint16) * 257, ("R", "G", "B")))
    else:
        Image.fromarray(pixels).save(path)


def test_read_frame_refuses_truncated_progressive_jpeg(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels_8(64, 64)).save(path, progressive=True)
    read_frame(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"unreadable jpeg file \(truncated.*[Pp]remature end"):
        read_frame(path)


def test_read_frame_ignores_harmless_jpeg_warnings(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels_8(16, 16)).save(path)
    frame = read_frame(path)
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\0\0\0" + data[-2:])
    assert torch.equal(read_frame(path), frame)


def test_read_frame_detects_flipped_bit_in_png(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels_8(64, 64)).save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(InputError, match="wrong checksum in chunk IDAT"):
        read_frame(path)


# headers that lie


def png(width: int, height: int, data: bytes, interlace: int = 0) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def liars(folder: Path) -> dict[str, bytes]:
    """Small files that claim to be 60000 × 60000."""
    side = 60000
    actual = {"a.png": png(side, side, zlib.compress(b"\0" * 1000))}
    actual["interlaced.png"] = png(3000, 3000, zlib.compress(b"\0" * 1000), 1)
    for name, variant in (("a.ppm", "P6"), ("a.pgm", "P5")):
        actual[name] = f"{variant}\n{side} {side}\n255\n".encode() + bytes(1000)
    actual["a.pfm"] = f"PF\n{side} {side}\n-1\n".encode() + bytes(1000)
    actual["a.hdr"] = f"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y {side} +X {side}\n".encode() + bytes(1000)
    for suffix in (".jpg", ".tif", ".exr", ".dpx", ".bmp", ".tga"):
        path = folder / f"honest{suffix}"
        made(path)
        actual[f"a{suffix}"] = enlarged(path.read_bytes(), suffix, side)
    return actual


def enlarged(data: bytes, suffix: str, side: int) -> bytes:
    """The same file with its 48 × 40 header changed."""
    out = bytearray(data)
    if suffix == ".jpg":
        at = data.index(b"\xff\xc0") + 5
        struct.pack_into(">HH", out, at, side, side)
    elif suffix == ".tif":
        for tag in (256, 257):
            for kind in (3, 4):
                at = data.find(struct.pack("<HHI", tag, kind, 1))
                if at >= 0:
                    struct.pack_into("<HHII", out, at, tag, 4, 1, side)
    elif suffix == ".exr":
        for name in (b"dataWindow\0box2i\0", b"displayWindow\0box2i\0"):
            struct.pack_into("<4i", out, data.index(name) + len(name) + 4, 0, 0, side - 1, side - 1)
    elif suffix == ".dpx":
        order = ">" if data[:4] == b"SDPX" else "<"
        struct.pack_into(order + "II", out, 772, side, side)
    elif suffix == ".bmp":
        struct.pack_into("<ii", out, 18, side, side)
    elif suffix == ".tga":
        struct.pack_into("<HH", out, 12, side, side)
    assert out != data
    return bytes(out)


def test_read_frame_refuses_false_headers_without_allocating(tmp_path: Path) -> None:
    for name, data in liars(tmp_path).items():
        path = tmp_path / name
        path.write_bytes(data)
        with PeakMemory() as peak, pytest.raises(InputError) as error:
            read_frame(path)
        assert complaint(error).startswith(str(path))
        assert (peak.growth_mib or 0) < 20, f"{name}: {peak.growth_mib} MiB"


def test_read_frame_refuses_display_window_beyond_file(tmp_path: Path) -> None:
    pixels = samples((4, 4, 3))
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B"), display=(0, 0, 60000, 60000)))
    with pytest.raises(InputError, match="60000 × 60000"):
        read_frame(path)
    honest = save(tmp_path / "b.exr", ExrPart(pixels, ("R", "G", "B"), display=(0, 0, 8192, 4320)))
    assert read_frame(honest).shape == (3, 4320, 8192)


def test_check_pixel_count_accepts_black_frames(tmp_path: Path) -> None:
    """The densest files there are must not look like lies."""
    spec = {"compression": "dwab"}
    exr_image = ExrPart(np.zeros((1100, 4096, 1), np.float16), ("Y",), attributes=spec)
    assert float(read_frame(save(tmp_path / "a.exr", exr_image)).max()) == 0
    Image.fromarray(np.zeros((1100, 4096), bool)).save(tmp_path / "a.png")
    assert read_frame(tmp_path / "a.png").shape == (1, 1100, 4096)
    refuse_implausible_pixel_count(tmp_path / "16k-black-dwab.exr", 16384, 8640, 51581)
    with pytest.raises(InputError, match="60000 × 60000 pixels, which a file of 1024 bytes cannot hold"):
        refuse_implausible_pixel_count(tmp_path / "a.exr", 60000, 60000, 1024)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_read_frame_peak_memory_is_below_two_copies(tmp_path: Path, dtype: type) -> None:
    pixels = np.full((3072, 4096, 3), 0.5, dtype)
    exr_image = ExrPart(pixels, ("R", "G", "B"), attributes={"compression": "none"})
    path = save(tmp_path / "a.exr", exr_image)
    with PeakMemory() as peak:
        frame = read_frame(path)
    if peak.growth_mib is None:
        pytest.skip("the peak of memory is read from /proc")
    assert 0.9 < peak.growth_mib * 2**20 / (4 * frame.numel()) < 2


# real files
