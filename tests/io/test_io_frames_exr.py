"""read_frame of parts, layers and windows, most of them of OpenEXR."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from io_files import ExrPart, complaint, pixels_8, planes, samples, save, srgb
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame, read_frame_window
from fullfield.io.channels import choose_color_channels_and_warn_if_ambiguous
from fullfield.io.oiio import ImagePart, write_and_verify_picture
from fullfield.io.windows import FrameWindow

pytestmark = pytest.mark.unit


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
