"""Which part of a file is the picture, and which of its pixels are known."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from io_files import ExrPart, complaint, samples, save
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame, read_frame_window
from fullfield.io.all_channels import read_all_channels
from fullfield.io.image import FrameReader

pytestmark = pytest.mark.unit


def write_parts(path: Path, *names: str, channels: tuple[str, ...] = ("R", "G", "B"), **attributes: object) -> Path:
    """Write parts of these names; part i holds (i + 1) / 16."""
    values = [np.full((4, 5, len(channels)), (i + 1) / 16, np.float16) for i in range(len(names))]
    parts = [ExrPart(v, channels, name, attributes=attributes) for v, name in zip(values, names, strict=True)]
    return save(path, *parts)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("N", "albedo", "C"), 2),
        (("N", "rgba", "depth"), 1),
        (("albedo", "RGBA"), 1),
        (("diffuse", "Beauty", "specular"), 1),
        (("P", "ViewLayer.Combined"), 1),
        (("N", "render", "albedo"), 1),
        (("Normals", "worldNormal", "key"), 2),
        (("diffuse_albedo", "N"), 0),
    ],
)
def test_read_frame_prefers_beauty_part(tmp_path: Path, names: tuple[str, ...], chosen: int) -> None:
    path = write_parts(tmp_path / "a.exr", *names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = read_frame(path, transfer="srgb")
    assert frame[0, 0, 0] == (chosen + 1) / 16
    assert read_frame_window(path, part=names[chosen]) == read_frame_window(path, part=chosen)
    is_doubtful = names == ("diffuse_albedo", "N")
    assert len(caught) == is_doubtful
    if is_doubtful:
        assert "took part 'diffuse_albedo', the first of 'diffuse_albedo', 'N'; name another with part=" in str(
            caught[0].message
        )


def test_read_frame_prefers_beauty_layer(tmp_path: Path) -> None:
    names = tuple(f"{layer}.{c}" for layer in ("N", "albedo", "C") for c in "RGB")
    pixels = np.repeat(np.array([1, 2, 3], np.float32) / 16, 3) * np.ones((4, 5, 1), np.float32)
    path = save(tmp_path / "a.exr", ExrPart(pixels, names))
    assert read_frame(path, transfer="srgb")[0, 0, 0] == 3 / 16
    only_data = save(tmp_path / "b.exr", ExrPart(pixels[..., :6], names[:6]))
    with pytest.raises(InputError, match=r"no channels R, G, B \(or Y\); the file has N\.R"):
        read_frame(only_data)


def test_read_frame_reports_selected_eye(tmp_path: Path) -> None:
    pixels = samples((4, 5, 6))
    names = ("R", "G", "B", "right.R", "right.G", "right.B")
    path = save(tmp_path / "a.exr", ExrPart(pixels, names, attributes={"view": "left"}))
    with pytest.warns(UserWarning, match=r"took R, G, B, the left eye and the default view; name .*: 'right'"):
        assert torch.equal(read_frame(path, transfer="srgb")[0], torch.from_numpy(pixels[..., 0].copy()))
    names = ("right.R", "right.G", "right.B", "left.R", "left.G", "left.B")
    path = save(tmp_path / "b.exr", ExrPart(pixels, names))
    with pytest.warns(UserWarning, match="took layer '(left|right)', the (left|right) eye, the first of"):
        read_frame(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_frame(path, layer="left")


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int16, np.int8])
def test_read_frame_refuses_integers_without_white_level(tmp_path: Path, dtype: type[np.integer[Any]]) -> None:
    output = oiio.ImageOutput.create("tiff")
    spec = oiio.ImageSpec(5, 4, 3, str(np.dtype(dtype)).replace("int32", "int"))
    assert output.open(str(tmp_path / "a.tif"), spec)
    assert output.write_image(np.arange(60, dtype=dtype).reshape(4, 5, 3))
    assert output.close()
    for read in (read_frame, read_all_channels):
        with pytest.raises(InputError, match=r"expected 8 or 16 bits or floats, got .*int") as error:
            read(tmp_path / "a.tif")
        assert "a.tif" in complaint(error)


# what is known of a frame


@pytest.mark.parametrize("tile", [0, 16])
@pytest.mark.parametrize("compression", ["zip", "dwaa", "none"])
def test_frame_reader_marks_outside_of_data_window_unknown(tmp_path: Path, compression: str, tile: int) -> None:
    part = ExrPart(samples((20, 30, 3)), ("R", "G", "B"), origin=(4, -3), display=(0, 0, 40, 24), tile=tile,
                   attributes={"compression": compression})  # fmt: skip
    path = save(tmp_path / "a.exr", part)
    result = FrameReader().read(path)
    expected = torch.zeros(24, 40, dtype=torch.bool)
    expected[:17, 4:34] = True
    assert result.valid is not None
    assert torch.equal(result.valid, expected)
    assert result.frame[:, ~expected].abs().max() == 0
    assert FrameReader(window="data").read(path).valid is None
    box = FrameReader(window=(0, -5, 10, 10)).read(path).valid
    assert box is not None
    assert box.sum() == 8 * 6
    assert FrameReader(window=(4, 0, 10, 10)).read(path).valid is None


def test_frame_reader_marks_dead_pixels(tmp_path: Path) -> None:
    for suffix, dtype in ((".exr", np.float16), (".exr", np.float32), (".tif", np.float32), (".pfm", np.float32)):
        pixels = samples((6, 7, 3)).astype(dtype)
        pixels[2, 3, 1], pixels[5, 0] = np.nan, np.inf
        path = save(tmp_path / f"a{suffix}", ExrPart(pixels, ("R", "G", "B")))
        result = FrameReader().read(path)
        assert result.valid is not None
        assert (~result.valid).nonzero().tolist() == [[2, 3], [5, 0]]
        assert "2 pixels are NaN or infinite, the first at x = 3, y = 2" in result.note
        assert result.frame.isfinite().all()


def test_frame_reader_reads_masks(tmp_path: Path) -> None:
    pixels = samples((6, 7, 4)) + 0.1
    pixels[1:3, 2:4, 3] = 0
    path = save(tmp_path / "a.exr", ExrPart(pixels, ("R", "G", "B", "A")))
    holes = torch.ones(6, 7, dtype=torch.bool)
    holes[1:3, 2:4] = False
    matte = ExrPart(pixels[..., 3:], ("matte.A",))
    save(tmp_path / "m.exr", matte)
    save(tmp_path / "z.exr", matte._replace(channels=("Z",)))
    Image.fromarray((pixels[..., 3] > 0).astype(np.uint8)).save(tmp_path / "m.png")
    frame = FrameReader().read(path).frame
    for mask in ("A", "a", f"{tmp_path}/m.exr:matte", f"{tmp_path}/m.exr:matte.A", f"{tmp_path}/m.exr",
                 f"{tmp_path}/z.exr", f"{tmp_path}/m.png"):  # fmt: skip
        result = FrameReader(mask=mask).read(path)
        assert result.valid is not None, mask
        assert torch.equal(result.valid, holes), mask
        assert torch.equal(result.frame, frame), "the picture under a mask stays"
    inside = FrameReader(mask=f"{tmp_path}/m.png", window=(1, -1, 4, 4)).read(path).valid
    assert inside is not None
    assert torch.equal(inside, torch.nn.functional.pad(holes[:3, 1:5], (0, 0, 1, 0)))
    Image.new("L", (8, 6)).save(tmp_path / "large.png")
    for mask, words in (
        ("B.A", "expected a channel 'B.A'; the file has"),
        (f"{tmp_path}/m.exr:no", "expected a channel 'no'; the file has matte.A"),
        (f"{tmp_path}/large.png", "expected the frame's size, 7x6, got 8x6"),
    ):
        with pytest.raises(InputError, match=words) as error:
            FrameReader(mask=mask).read(path)
        assert complaint(error).startswith("mask: ")
    with pytest.raises(InputError, match="mask: expected a picture or a channel of an OpenEXR frame, got 'A'"):
        FrameReader(mask="A").read(tmp_path / "m.png")
