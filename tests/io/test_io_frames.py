"""read_frame: values of every format, grey, alpha, orientation, names, real files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from io_files import ExrPart, complaint, pixels_8, planes, samples, save
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame, read_frame_window, write_image

pytestmark = pytest.mark.unit


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


@pytest.mark.parametrize("option", [{"alpha": "maybe"}, {"window": "full"}, {"transfer": "nonsense"}])
def test_read_frame_refuses_unknown_options(tmp_path: Path, option: dict[str, str]) -> None:
    path = save(tmp_path / "a.exr", ExrPart(samples((4, 4, 3)), ("R", "G", "B")))
    with pytest.raises(InputError, match=f"{next(iter(option))}: expected one of"):
        read_frame(path, **option)  # type: ignore[arg-type]


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
