"""read_frame: channels, parts, layers, windows, alpha, orientation, formats."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from io_files import ExrPart, complaint, samples, save, srgb
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame, read_frame_window, write_image
from fullfield.io.channels import choose_color_channels_and_warn_if_ambiguous
from fullfield.io.files import refuse_implausible_pixel_count
from fullfield.io.names import FRAME_SUFFIXES
from fullfield.io.oiio import ImagePart, write_and_verify_picture
from fullfield.io.windows import FrameWindow
from peak_memory import PeakMemory

pytestmark = pytest.mark.unit


def pixels_8(height: int = 13, width: int = 17, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, channels)).astype(np.uint8)


def planes(pixels: np.ndarray, full: float) -> torch.Tensor:
    return torch.from_numpy((pixels.astype(np.float64) / full).astype(np.float32).transpose(2, 0, 1).copy())


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp", ".tga", ".ppm"])
def test_read_frame_8_bit_is_exact(tmp_path: Path, suffix: str) -> None:
    pixels = pixels_8()
    Image.fromarray(pixels).save(tmp_path / f"a{suffix}")
    frame = read_frame(tmp_path / f"a{suffix}")
    assert frame.dtype == torch.float32
    assert frame.is_contiguous()
    assert torch.equal(frame, planes(pixels, 255))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp", ".tga", ".pgm"])
def test_read_frame_grey_has_one_channel(tmp_path: Path, suffix: str) -> None:
    pixels = np.full((8, 9), 77, np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"a{suffix}")
    frame = read_frame(tmp_path / f"a{suffix}")
    assert frame.shape == (1, 8, 9)
    assert torch.equal(frame, torch.full((1, 8, 9), 77 / 255))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_read_frame_16_bit_is_exact(tmp_path: Path, suffix: str, channels: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 65536, (7, 5, channels)).astype(np.uint16)
    names = ("R", "G", "B") if channels == 3 else ("Y",)
    path = save(tmp_path / f"a{suffix}", ExrPart(pixels, names))
    assert torch.equal(read_frame(path), planes(pixels, 65535))


def test_read_frame_scales_ppm_maximum(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 1024, (4, 3, 3))
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6\n3 4\n1023\n" + pixels.astype(">u2").tobytes())
    assert torch.allclose(read_frame(path), planes(pixels, 1023), atol=1 / 65535)


def test_read_frame_reads_10_bit_dpx(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 1024, (6, 5, 3))
    spec = ExrPart((codes * 65535 // 1023).astype(np.uint16), ("R", "G", "B"),
                   attributes={"oiio:BitsPerSample": 10})  # fmt: skip
    frame = read_frame(save(tmp_path / "a.dpx", spec))
    assert torch.allclose(frame, planes(codes, 1023), atol=1.01 / 1023)


def test_read_frame_detects_format_by_content(tmp_path: Path) -> None:
    pixels = pixels_8()
    Image.fromarray(pixels).save(tmp_path / "really.png")
    renamed = (tmp_path / "really.png").rename(tmp_path / "looks.jpg")
    assert torch.equal(read_frame(renamed), planes(pixels, 255))


def test_read_frame_reads_palette_and_bilevel_png(tmp_path: Path) -> None:
    image = Image.fromarray(pixels_8(6, 5)).quantize(16)
    image.save(tmp_path / "palette.png")
    assert torch.equal(read_frame(tmp_path / "palette.png"), planes(np.asarray(image.convert("RGB")), 255))
    bits = (np.indices((9, 11)).sum(axis=0) % 2).astype(bool)
    Image.fromarray(bits).save(tmp_path / "bits.png")
    assert torch.equal(read_frame(tmp_path / "bits.png"), torch.from_numpy(bits).float()[None])


def test_read_frame_converts_cmyk_to_rgb(tmp_path: Path) -> None:
    image = Image.fromarray(np.full((8, 8, 4), (10, 100, 200, 30), np.uint8), "CMYK")
    image.save(tmp_path / "a.jpg", quality=100)
    expected = planes(np.asarray(image.convert("RGB")), 255)
    assert torch.allclose(read_frame(tmp_path / "a.jpg"), expected, atol=3 / 255)


def test_read_frame_refuses_lab(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8, 3), 120, np.uint8), "LAB").save(tmp_path / "a.tif")
    with pytest.raises(InputError, match="CIE Lab") as error:
        read_frame(tmp_path / "a.tif")
    complaint(error)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(4, 6), (1, 6), (4, 1)])
def test_read_frame_applies_orientation(tmp_path: Path, orientation: int, size: tuple[int, int]) -> None:
    from PIL import ImageOps

    image = Image.fromarray(pixels_8(*size))
    exif = Image.Exif()
    exif[0x112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.png")))
    frame = read_frame(tmp_path / "a.png")
    assert torch.equal(frame, planes(upright, 255))
    assert frame.is_contiguous()


# alpha


@pytest.mark.parametrize("suffix", [".png", ".tga", ".tif"])
def test_read_frame_ignores_or_applies_straight_alpha(tmp_path: Path, suffix: str) -> None:
    pixels = pixels_8(channels=4)
    pixels[0, 0, 3] = 0
    Image.fromarray(pixels).save(tmp_path / f"a{suffix}")
    assert torch.equal(read_frame(tmp_path / f"a{suffix}"), planes(pixels[..., :3], 255))
    applied = pixels[..., :3] * (pixels[..., 3:] / 255)
    frame = read_frame(tmp_path / f"a{suffix}", alpha="apply")
    assert torch.allclose(frame, planes(applied, 255), atol=1e-6)


def test_read_frame_applies_alpha_to_grey(tmp_path: Path) -> None:
    pixels = pixels_8(channels=2)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert torch.equal(read_frame(tmp_path / "a.png"), planes(pixels[..., :1], 255))
    applied = planes(pixels[..., :1] * (pixels[..., 1:] / 255), 255)
    assert torch.allclose(read_frame(tmp_path / "a.png", alpha="apply"), applied, atol=1e-6)


def test_read_frame_exr_alpha_is_premultiplied(tmp_path: Path) -> None:
    pixels = samples((5, 6, 4))
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B", "A")))
    ignored = read_frame(path)
    assert torch.equal(ignored, read_frame(path, alpha="apply"))
    assert np.allclose(ignored.numpy(), srgb(pixels[..., :3]).transpose(2, 0, 1), atol=1e-6)


# EXR channels, parts and layers


def test_read_frame_finds_channels_by_name(tmp_path: Path) -> None:
    pixels = samples((5, 6, 6))
    names = ("A", "B", "G", "R", "Z", "diffuse.R")
    path = save(tmp_path / "a.exr", ExrPart(pixels, names))
    frame = read_frame(path, transfer="srgb")
    assert torch.equal(frame, torch.from_numpy(pixels[..., [3, 2, 1]].transpose(2, 0, 1).copy()))


@pytest.mark.parametrize("names", [("R", "G", "B"), ("red", "green", "blue"), ("r", "g", "b")])
def test_read_frame_selects_layer(tmp_path: Path, names: tuple[str, ...]) -> None:
    pixels = samples((5, 6, 12))
    channels = (*names, "A", *(f"diffuse.{n}" for n in names), *(f"spec.left.{n}" for n in names), "N.x", "N.y")
    path = save(tmp_path / "a.exr", ExrPart(pixels, channels))
    for layer, first in ((None, 0), ("diffuse", 4), ("spec.left", 7)):
        frame = read_frame(path, transfer="srgb", layer=layer)
        assert torch.equal(frame, torch.from_numpy(pixels[..., first : first + 3].transpose(2, 0, 1).copy()))
    for layer in ("spec", "N", "nothing"):
        with pytest.raises(InputError, match=rf"no channels {layer}\.R") as error:
            read_frame(path, layer=layer)
        assert "diffuse." in complaint(error)


def test_read_frame_reads_distant_channels(tmp_path: Path) -> None:
    pixels = samples((5, 6, 40))
    names = ["A.R", *(f"n{i:02d}" for i in range(19)), "A.G", *(f"p{i:02d}" for i in range(18)), "A.B"]
    path = save(tmp_path / "a.exr", ExrPart(pixels, tuple(names)))
    frame = read_frame(path, transfer="srgb", layer="A")
    assert torch.equal(frame, torch.from_numpy(pixels[..., [0, 20, 39]].transpose(2, 0, 1).copy()))


def test_read_frame_reads_luminance_channel(tmp_path: Path) -> None:
    pixels = samples((5, 6, 2))
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("Y", "A")))
    assert torch.equal(read_frame(path, transfer="srgb"), torch.from_numpy(pixels[None, ..., 0].copy()))


def test_read_frame_refuses_luminance_and_chroma(tmp_path: Path) -> None:
    path = save(tmp_path / "a.exr", ExrPart(samples((4, 4, 3)), ("BY", "RY", "Y")))
    with pytest.raises(InputError, match=r"luminance and chroma|subsampling") as error:
        read_frame(path)
    assert str(path) in complaint(error)


def test_read_frame_refuses_file_without_colour(tmp_path: Path) -> None:
    path = save(tmp_path / "a.exr", ExrPart(samples((4, 4, 2)), ("Z", "mask.m")))
    with pytest.raises(InputError, match=r"the file has Z, mask\.m") as error:
        read_frame(path)
    complaint(error)


def test_read_frame_refuses_uint_exr(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint32).reshape(4, 4, 3)
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B")))
    with pytest.raises(InputError, match="expected half or float colour, got uint"):
        read_frame(path)


@pytest.fixture
def many_parts(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    content = [samples((4, 5, n), seed) for seed, n in enumerate((1, 3, 3, 1))]
    names = (("Z",), ("R", "G", "B"), ("R", "G", "B"), ("Y",))
    titles = ("depth", "beauty.left", "beauty.right", "7")
    exr_images = [ExrPart(p, n, t) for p, n, t in zip(content, names, titles, strict=True)]
    return save(tmp_path / "parts.exr", *exr_images), content


def test_read_frame_selects_part(many_parts: tuple[Path, list[np.ndarray]]) -> None:
    path, content = many_parts
    expected = ((None, 1), (1, 1), ("beauty.left", 1), (2, 2), ("2", 2), ("beauty.right", 2), (3, 3), ("7", 3))
    for exr_image, index in expected:
        selected: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if exr_image is None:
            selected = pytest.warns(UserWarning, match="took part 'beauty.left', the left eye, the first of")
        with selected:
            frame = read_frame(path, transfer="srgb", part=exr_image)
        assert torch.equal(frame, torch.from_numpy(content[index].transpose(2, 0, 1).copy())), exr_image


@pytest.mark.parametrize("part", ["beauty", 4, -1, "4", ""])
def test_read_frame_wrong_part_lists_parts(many_parts: tuple[Path, list[np.ndarray]], part: int | str) -> None:
    with pytest.raises(InputError, match=r"no part .*; the file has parts 0 'depth', 1 'beauty\.left', 2") as error:
        read_frame(many_parts[0], part=part)
    complaint(error)


def test_read_frame_refuses_part_without_colour(many_parts: tuple[Path, list[np.ndarray]]) -> None:
    with pytest.raises(InputError, match=r"no channels R, G, B"):
        read_frame(many_parts[0], part="depth")


def test_read_frame_part_selects_tiff_page(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((4, 5, 3), value, np.uint8)) for value in (10, 20)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert float(read_frame(tmp_path / "a.tif").max()) == pytest.approx(10 / 255)
    assert float(read_frame(tmp_path / "a.tif", part=1).max()) == pytest.approx(20 / 255)
    with pytest.raises(InputError, match="no part 2"):
        read_frame(tmp_path / "a.tif", part=2)


@pytest.mark.parametrize("tile", [0, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("compression", ["none", "zip", "piz", "rle", "zips"])
def test_read_frame_reads_every_exr_storage(tmp_path: Path, tile: int, dtype: str, compression: str) -> None:
    pixels = samples((40, 48, 3)).astype(dtype)
    exr_image = ExrPart(pixels, ("R", "G", "B"), tile=tile, attributes={"compression": compression})
    frame = read_frame(save(tmp_path / "a.exr", exr_image), transfer="srgb")
    assert torch.equal(frame, torch.from_numpy(pixels.astype(np.float32).transpose(2, 0, 1).copy()))


def test_read_frame_refuses_htj2k(tmp_path: Path) -> None:
    exr_image = ExrPart(samples((8, 8, 3)), ("R", "G", "B"), attributes={"compression": "htj2k256"})
    path = save(tmp_path / "a.exr", exr_image)
    if not oiio.ImageInput.open(str(path)).spec().getattribute("compression").startswith("htj2k"):
        pytest.skip("this OpenEXR has no HTJ2K")
    with pytest.raises(InputError, match="HTJ2K compression is not supported"):
        read_frame(path)


@pytest.mark.parametrize("tile", [0, 64])
def test_read_frame_of_tall_frame_equals_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    from fullfield.io import oiio as reader

    pixels = samples((700, 30, 3))
    exr_image = ExrPart(pixels, ("R", "G", "B"), origin=(-3, -300), display=(0, -40, 25, 330), tile=tile)
    path = save(tmp_path / "a.exr", exr_image)
    full = read_frame(path)
    monkeypatch.setattr(reader, "_BAND_PIXELS", 30 * 256)
    assert torch.equal(read_frame(path), full)
    expected = srgb(pixels[260:590, 3:28]).transpose(2, 0, 1)
    assert np.allclose(full.numpy(), expected, atol=1e-6)


# windows


@pytest.mark.parametrize("tile", [0, 16])
@pytest.mark.parametrize(
    ("origin", "display"),
    [
        ((0, 0), (0, 0, 20, 12)),  # smaller than the display window
        ((5, 3), (0, 0, 30, 24)),  # inside it
        ((-7, -4), (0, 0, 16, 10)),  # overscan on every side
        ((-7, 5), (-2, 2, 40, 9)),  # negative origins, hanging out on one side
        ((100, 100), (100, 100, 24, 16)),  # the same, not at zero
        ((50, 50), (0, 0, 9, 7)),  # nowhere in it
    ],
)
def test_read_frame_selects_window(
    tmp_path: Path, origin: tuple[int, int], display: tuple[int, int, int, int], tile: int
) -> None:
    pixels = samples((16, 24, 3)) + 0.1
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B"), origin=origin, display=display, tile=tile))
    stored = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    assert torch.equal(read_frame(path, transfer="srgb", window="data"), stored)
    expected = np.zeros((3, display[3], display[2]), np.float32)
    for y in range(display[3]):
        for x in range(display[2]):
            row, column = y + display[1] - origin[1], x + display[0] - origin[0]
            if 0 <= row < 16 and 0 <= column < 24:
                expected[:, y, x] = pixels[row, column]
    assert torch.equal(read_frame(path, transfer="srgb"), torch.from_numpy(expected))


def test_read_frame_ignores_windows_of_tiff(tmp_path: Path) -> None:
    pixels = pixels_8()
    exr_image = ExrPart(pixels, ("R", "G", "B"), origin=(3, 2), display=(0, 0, 40, 30))
    path = save(tmp_path / "a.tif", exr_image)
    assert torch.equal(read_frame(path), planes(pixels, 255))


# values that are not finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_read_frame_nonfinite_values_are_black(tmp_path: Path, bad: float) -> None:
    pixels = samples((9, 8, 3))
    pixels[4, 6, 1] = pixels[4, 6, 2] = pixels[7, 0, 0] = bad
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B"), origin=(-2, 1), display=(0, 0, 8, 16)))
    with pytest.warns(UserWarning, match=r"a\.exr: 1 pixel is NaN or infinite, the first at x = 4, y = 5"):
        frame = read_frame(path)
    assert frame[:, 5, 4].abs().max() == 0
    assert frame.isfinite().all()
    with pytest.warns(UserWarning, match="2 pixels are NaN or infinite, the first at x = 6, y = 4"):
        frame = read_frame(path, window="data", transfer="srgb")
    expected = np.where(np.isfinite(pixels).all(2, keepdims=True), pixels, 0)
    assert np.array_equal(frame.numpy(), expected.transpose(2, 0, 1))


# files that are no frames


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


@pytest.mark.parametrize("option", [{"alpha": "maybe"}, {"window": "full"}, {"transfer": "nonsense"}])
def test_read_frame_refuses_unknown_options(tmp_path: Path, option: dict[str, str]) -> None:
    path = save(tmp_path / "a.exr", ExrPart(samples((4, 4, 3)), ("R", "G", "B")))
    with pytest.raises(InputError, match=f"{next(iter(option))}: expected one of"):
        read_frame(path, **option)  # type: ignore[arg-type]


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


def test_read_frame_of_stereo_exr_warns_of_eye(data_dir: Path) -> None:
    path = data_dir / "exr" / "multipart.0001.exr"
    with pytest.warns(UserWarning, match="took part 'rgba_right', the right eye, the first of"):
        frame = read_frame(path)
    assert frame.shape == (3, 1556, 2048)
    assert frame.isfinite().all()
    data = read_frame(path, window="data", part="rgba_right")
    assert data.shape == (3, 876, 877)
    assert torch.equal(frame[:, 245 : 245 + 876, 654 : 654 + 877], data)
    assert float(frame[:, :245].max()) == 0
    assert not torch.equal(read_frame(path, part="rgba_left"), frame)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("flow/sintel/clean/frame_0002.png", (3, 436, 1024)),
        ("flow/middlebury/Venus/frame10.png", (3, 380, 420)),
        ("flow/flyingchairs/0000000-img0.ppm", (3, 384, 512)),
        ("frames/real_1080p/image1.jpg", (3, 1080, 1920)),
    ],
)
def test_read_frame_of_real_files_equals_pillow(data_dir: Path, name: str, shape: tuple[int, ...]) -> None:
    frame = read_frame(data_dir / name)
    assert frame.shape == shape
    expected = planes(np.asarray(Image.open(data_dir / name).convert("RGB")), 255)
    assert torch.allclose(frame, expected, atol=2.01 / 255 if name.endswith("jpg") else 0)


# windows that tell where a picture lies


def test_read_frame_window_data_covers_union(tmp_path: Path) -> None:
    full = samples((40, 50, 3))
    windows = []
    for name, x, y in (("a", 20, 30), ("b", 25, 34)):
        crop = np.ascontiguousarray(full[y - 30 : y - 14, x - 20 : x + 4])
        exr_image = ExrPart(
            crop, ("R", "G", "B"), origin=(x, y), display=(1, 2, 90, 80), attributes={"PixelAspectRatio": 2.0}
        )
        windows.append(read_frame_window(save(tmp_path / f"{name}.exr", exr_image)))
    assert windows[0] == FrameWindow((20, 30, 24, 16), (1, 2, 90, 80), 2.0)
    both = windows[0].union(windows[1])
    assert both == windows[0]._replace(data=(20, 30, 29, 20))
    a, b = (read_frame(tmp_path / f"{name}.exr", transfer="srgb", window=both.data) for name in "ab")
    assert a.shape == b.shape == (3, 20, 29)
    assert torch.equal(a[:, 4:16, 5:24], b[:, 4:16, 5:24])
    assert torch.equal(a[:, :16, :24], read_frame(tmp_path / "a.exr", transfer="srgb", window="data"))
    assert a[:, 16:].abs().max() == a[:, :, 24:].abs().max() == b[:, :4].abs().max() == b[:, :, :5].abs().max() == 0


def test_frame_window_overlaps_equals_intersection() -> None:
    first = FrameWindow((0, 0, 4, 4), (0, 0, 9, 9))
    for x, y, is_overlapping in (
        (3, 3, True),
        (4, 0, False),
        (0, 4, False),
        (-3, -3, True),
        (-4, 0, False),
        (0, 0, True),
    ):
        assert first.has_overlap(first._replace(data=(x, y, 4, 4))) is is_overlapping


@pytest.mark.parametrize("suffix", [".png", ".pfm"])
def test_read_frame_refuses_window_of_other_format(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a{suffix}", ExrPart(samples((5, 7, 3)), ("R", "G", "B")))
    assert read_frame_window(path) == FrameWindow((0, 0, 7, 5), (0, 0, 7, 5))
    full = read_frame(path)
    box = read_frame(path, window=(-2, 1, 6, 8))
    assert box.shape == (3, 8, 6)
    assert torch.equal(box[:, :4, 2:], full[:, 1:, :4])
    assert box[:, 4:].abs().max() == box[:, :, :2].abs().max() == 0
    assert read_frame(path, window=(100, 100, 2, 3)).shape == (3, 3, 2)
    for width, height in ((1, 3), (2, 1)):
        assert torch.equal(read_frame(path, window=(3, 1, width, height)), full[:, 1 : 1 + height, 3 : 3 + width])
    for wrong in ((0, 0, 0, 3), (0, 0, 3), (0.0, 0, 3, 3)):
        with pytest.raises(InputError, match="window: expected one of display, data, or"):
            read_frame(path, window=wrong)  # type: ignore[arg-type]


def test_frame_window_of_rotated_picture_is_upright(tmp_path: Path) -> None:
    exr_image = ExrPart(pixels_8(), ("R", "G", "B"), attributes={"Orientation": 6})
    path = save(tmp_path / "a.tif", exr_image)
    assert read_frame_window(path).data[2:] == tuple(read_frame(path).shape[:0:-1])


def test_read_frame_huge_values_stay_finite(tmp_path: Path) -> None:
    pixels = np.full((4, 4, 3), 1e37, np.float32)
    pixels[0, 0] = -1e37
    frame = read_frame(save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B"))))
    assert frame.isfinite().all()
    assert frame.max() > 1e15
    assert frame.min() == 0


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names are Unicode here")
def test_read_frame_accepts_name_outside_utf8(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", ExrPart(pixels_8(), ("R", "G", "B"))).rename(tmp_path / "\udce9.png")
    for call in (read_frame, read_frame_window):
        with pytest.raises(InputError, match="the name of the file is not UTF-8") as error:
            call(path)
        complaint(error).encode()
    with pytest.raises(InputError, match="the name of the file is not UTF-8"):
        write_image(path, torch.zeros(3, 4, 4))


def test_find_colour_channels_prefers_flat_part(tmp_path: Path) -> None:
    """OpenImageIO writes no file of both kinds; renderers do."""

    def make_part(index: int, name: str, deep: bool) -> ImagePart:
        spec = SimpleNamespace(deep=deep, get_string_attribute=lambda *_: "", getattribute=lambda *_: None)
        return ImagePart(index, name, ("R", "G", "B", "A"), spec)

    exr_images = [make_part(0, "rgba", deep=True), make_part(1, "flattened", deep=False)]
    source = SimpleNamespace(path=tmp_path / "a.exr", kind="openexr", iterate_parts=lambda: iter(exr_images))
    assert choose_color_channels_and_warn_if_ambiguous(source, None, None).part.index == 1
    exr_images.pop()
    assert choose_color_channels_and_warn_if_ambiguous(source, None, None).part.index == 0


def test_read_frame_of_unnamed_layers_suggests_option(tmp_path: Path) -> None:
    names = tuple(f"{layer}.{channel}" for layer in ("diffuse", "specular") for channel in "RGB")
    write_and_verify_picture(tmp_path / "a.exr", "openexr", np.zeros((4, 4, 6), np.float32), names)
    with pytest.raises(InputError, match=r"choose a layer with layer= \(--layer\): 'diffuse', 'specular'"):
        read_frame(tmp_path / "a.exr")
    assert read_frame(tmp_path / "a.exr", layer="diffuse").shape == (3, 4, 4)
