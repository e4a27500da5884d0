"""Vectors laid out as lines of an unpacked EXR and written as they are: the files are OpenImageIO's, byte by byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullfield.io import read_frame, write_flow_layers
from fullfield.io.flow_formats import FlowRangeError, exr
from fullfield.io.oiio import (
    Header,
    one_thread_a_file,
    open_image_source,
    read_metadata,
    write_and_verify_picture,
    write_and_verify_uncompressed_exr,
)
from fullfield.io.scanlines import HEAD, NamedPlane, Scanlines, pack_channels_into_scanlines
from fullfield.io.transfer import encode_srgb_inplace
from fullfield.io.vectors import pack_layers_into_scanlines, pack_layers_on_device_and_check_range
from fullfield.io.windows import FrameWindow

pytestmark = pytest.mark.unit

pytest.importorskip("OpenImageIO")

WINDOW = FrameWindow((-3, 5, 9, 7), (0, 0, 20, 30), 2.0)


def without_time(path: Path) -> bytes:
    return re.sub(rb"\d{4}:\d\d:\d\d \d\d:\d\d:\d\d", b"", path.read_bytes())


def planes(count: int, height: int = 7, width: int = 9) -> np.ndarray:
    found = np.random.default_rng(count).normal(size=(count, height, width)).astype(np.float32)
    found[0, 0, 0] = np.nan
    return found


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("names", [("u",), ("v", "u"), ("forward.u", "forward.v", "occlusion.forward")])
def test_write_and_verify_scanlines_equals_openimageio(
    tmp_path: Path, names: tuple[str, ...], window: FrameWindow | None, half: bool
) -> None:
    found = planes(len(names))
    channels = [NamedPlane(name, plane, name.endswith("v")) for name, plane in zip(names, found, strict=True)]
    lines = pack_channels_into_scanlines(channels, half)
    assert lines.names == tuple(sorted(names))
    notes = {"compression": "none", "fullfield/y": "up"}
    write_and_verify_uncompressed_exr(tmp_path / "ours.exr", lines, Header(notes, window))
    stored = [-plane if name.endswith("v") else plane for name, plane in zip(names, found, strict=True)]
    pixels = np.stack(stored, axis=-1).astype(np.float16 if half else np.float32)
    write_and_verify_picture(tmp_path / "theirs.exr", "openexr", pixels, names, Header(notes, window))
    assert without_time(tmp_path / "ours.exr") == without_time(tmp_path / "theirs.exr")


def test_write_and_verify_scanlines_keeps_frame_metadata(tmp_path: Path) -> None:
    pixels = np.zeros((4, 5, 3), np.float16)
    plate = tmp_path / "plate.exr"
    write_and_verify_picture(plate, "openexr", pixels, ("R", "G", "B"), Header({"owner": "me", "nuke/node": "x"}))
    kept = read_metadata(plate)
    write_and_verify_uncompressed_exr(
        tmp_path / "mv.exr",
        pack_channels_into_scanlines([NamedPlane("u", np.ones((4, 5), np.float32))], False),
        Header(metadata=kept),
    )
    assert {entry.name: entry.value for entry in read_metadata(tmp_path / "mv.exr")} == {
        entry.name: entry.value for entry in kept
    }


def test_write_and_verify_scanlines_refuses_file_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = pack_channels_into_scanlines([NamedPlane("u", np.ones((6, 5), np.float32))], False)
    real = Path.open

    class Forgetful:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Forgetful:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: Any) -> int:
            if isinstance(data, bytes):
                return int(self.file.write(data))
            wrong = np.array(data)
            wrong[:, HEAD:] = 7
            return int(self.file.write(wrong.tobytes()))

    def harmed(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = real(self, mode, *rest, **more)
        return Forgetful(file) if mode == "r+b" else file

    monkeypatch.setattr(Path, "open", harmed)
    with pytest.raises(OSError, match="something else than was written"):
        write_and_verify_uncompressed_exr(tmp_path / "mv.exr", lines)


def test_pack_lines_reuses_fitting_buffer_only() -> None:
    flow = planes(2)
    room = np.empty((7, HEAD + 2 * 9 * 4), np.uint8)
    channels = exr.build_vector_channels("forward", flow)
    assert pack_channels_into_scanlines(channels, False, room).body is room
    assert pack_channels_into_scanlines(channels, True, room).body.shape == (7, HEAD + 2 * 9 * 2)
    assert np.array_equal(pack_channels_into_scanlines(channels, False, room).planes[:, 0], flow[0], equal_nan=True)


@pytest.mark.parametrize("dtype", [None, "half"])
@pytest.mark.parametrize("y", ["up", "down"])
def test_pack_vector_lines_on_device_equals_host_bytes(dtype: str | None, y: str) -> None:
    flow = 1000 * torch.randn(2, 7, 9, generator=torch.Generator().manual_seed(1))
    parts = {"forward": flow, "occlusion.forward": torch.rand(7, 9), "backward": torch.zeros(2, 7, 9)}
    names, body, good = pack_layers_on_device_and_check_range(parts, dtype, y)
    there = Scanlines(names, body.numpy(), dtype == "half")
    here = pack_layers_into_scanlines({name: part.numpy() for name, part in parts.items()}, dtype, y)
    assert bool(good)
    assert there.names == here.names
    assert there.planes.tobytes() == here.planes.tobytes()


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), None), (float("inf"), None), (7e4, "half")])
def test_pack_vector_lines_refuses_values_beyond_half(value: float, dtype: str | None) -> None:
    flow = torch.zeros(2, 7, 9)
    flow[1, 3, 4] = value
    assert not bool(pack_layers_on_device_and_check_range({"forward": flow}, dtype, "up")[2])
    if dtype is not None:
        with pytest.raises(FlowRangeError, match="half precision holds up to 65504 px, got 70000"):
            pack_layers_into_scanlines({"forward": flow.numpy()}, dtype, "up")


@pytest.mark.parametrize("packing", ["none", "rle", "zips", "zip", "piz", "b44", "dwaa", "dwab"])
def test_read_frame_in_bands_equals_whole(tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fullfield.io.image as image
    import fullfield.io.oiio as oiio

    pixels = np.random.default_rng(3).random((301, 40, 3)).astype(np.float16)
    path = tmp_path / "plate.exr"
    write_and_verify_picture(path, "openexr", pixels, ("R", "G", "B"), Header({"compression": packing}))
    whole = read_frame(path)
    with open_image_source(path) as source:
        (band,) = [
            band for _, band in source.iterate_row_bands(source.get_first_part_or_raise(), [0, 1, 2], (0, 301), "float")
        ]
    expected = band.transpose(2, 0, 1).copy()
    encode_srgb_inplace(expected)
    np.testing.assert_allclose(whole.numpy(), expected, atol=1e-6)
    monkeypatch.setattr(oiio, "_BAND_PIXELS_ALONE", 40)
    monkeypatch.setattr(image, "_LOOKED_UP", 97)
    with one_thread_a_file:
        assert torch.equal(read_frame(path), whole)


def test_write_vectors_omits_colour_space_metadata(tmp_path: Path) -> None:
    import OpenImageIO as oiio

    from fullfield.io.all_channels import read_all_channels

    spec = oiio.ImageSpec(5, 4, 3, "half")
    colour = {"colorInteropID": "lin_ap1_scene", "colorspace": "ACEScg", "whiteLuminance": 100.0}
    for name, value in {**colour, "camera": "ALEXA"}.items():
        spec.attribute(name, value)
    spec.attribute("chromaticities", oiio.TypeDesc("float[8]"), (0.7, 0.3, 0.2, 0.8, 0.1, 0.1, 0.32, 0.34))
    plate = tmp_path / "plate.exr"
    output = oiio.ImageOutput.create(str(plate))
    assert output.open(str(plate), spec)
    assert output.write_image(np.zeros((4, 5, 3), np.float16))
    assert output.close()
    write_flow_layers(tmp_path / "mv.exr", {"forward": torch.zeros(2, 4, 5)}, metadata=read_metadata(plate))
    stored = oiio.ImageInput.open(str(tmp_path / "mv.exr")).spec()
    names = {entry.name for entry in stored.extra_attribs}
    assert "camera" in names
    assert not names & {*colour, "chromaticities"}
    assert stored.get_string_attribute("oiio:ColorSpace") != "lin_ap1_scene"
    assert {*colour, "chromaticities"} <= {entry.name for entry in read_all_channels(plate).metadata}, (
        "pictures keep it"
    )
