"""Transfer functions: whatever a frame is stored as, the tensor is sRGB-encoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from io_files import ExrPart, complaint, samples, save, srgb
from PIL import Image

from fullfield import InputError
from fullfield.io import read_frame, transfer
from fullfield.io.names import OCIO_TRANSFERS, TRANSFERS
from fullfield.io.transfer import choose_inplace_curve_to_srgb_if_needed, decode_srgb_inplace, encode_srgb_inplace

pytestmark = pytest.mark.unit

RGB = ("R", "G", "B")


def to_linear(encoded: np.ndarray) -> np.ndarray:
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def exr(path: Path, pixels: np.ndarray) -> Path:
    return save(path, ExrPart(np.asarray(pixels, np.float32), RGB))


def test_read_frame_linear_exr_equals_srgb_png(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (31, 33, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    linear = to_linear(pixels / 255)
    shown = read_frame(tmp_path / "a.png")
    assert torch.allclose(read_frame(exr(tmp_path / "a.exr", linear)), shown, atol=1e-6)
    half = save(tmp_path / "h.exr", ExrPart(linear.astype(np.float16), RGB))
    assert torch.allclose(read_frame(half), shown, atol=5e-4)
    tiff = save(tmp_path / "a.tif", ExrPart(linear.astype(np.float32), RGB))
    assert torch.allclose(read_frame(tiff), shown, atol=1e-6)
    (tmp_path / "a.pfm").write_bytes(b"PF\n33 31\n-1\n" + linear[::-1].astype("<f4").tobytes())
    assert torch.allclose(read_frame(tmp_path / "a.pfm"), shown, atol=1e-6)
    hdr = save(tmp_path / "a.hdr", ExrPart(linear.astype(np.float32), RGB))
    assert torch.allclose(read_frame(hdr), shown, atol=0.06)
    # The test can fail: the same EXR taken as display-referred is another frame.
    assert not torch.allclose(read_frame(tmp_path / "a.exr", transfer="srgb"), shown, atol=0.1)


def test_read_frame_integers_keep_stored_values(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 65536, (5, 6, 3)).astype(np.uint16)
    path = save(tmp_path / "a.png", ExrPart(pixels, RGB))
    stored = torch.from_numpy((pixels / 65535).astype(np.float32).transpose(2, 0, 1).copy())
    assert torch.allclose(read_frame(path), stored, atol=1e-7)
    assert torch.allclose(read_frame(path, transfer="srgb"), stored, atol=1e-7)
    as_light = srgb(stored.numpy())
    assert np.allclose(read_frame(path, transfer="linear").numpy(), as_light, atol=1e-6)


def test_read_frame_keeps_highlights_and_clamps_negative_light(tmp_path: Path) -> None:
    light = np.linspace(-2, 50, 300).reshape(10, 10, 3)
    frame = read_frame(exr(tmp_path / "a.exr", light))
    assert np.allclose(frame.numpy(), srgb(light).transpose(2, 0, 1), rtol=1e-6, atol=1e-6)
    assert float(frame.max()) > 5
    assert float(frame.min()) == 0


@pytest.mark.parametrize(
    ("header_value", "meant"),
    [
        ("Printing density", "cineon"),
        ("Logarithmic", "cineon"),
        ("Linear", "linear"),
        ("ITU-R 709-4", "srgb"),
        ("Unspecified video", "srgb"),
        ("User defined", "srgb"),
        (None, "srgb"),
    ],
)
def test_read_frame_dpx_header_selects_transfer(tmp_path: Path, header_value: str | None, meant: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 65536, (5, 6, 3)).astype(np.uint16)
    attributes: dict[str, object] = {"oiio:BitsPerSample": 10}
    if header_value:
        attributes["dpx:Transfer"] = header_value
    path = save(tmp_path / "a.dpx", ExrPart(pixels, RGB, attributes=attributes))
    frame = read_frame(path)
    assert torch.equal(frame, read_frame(path, transfer=meant))
    others = {"cineon", "linear", "srgb"} - {meant}
    assert not any(torch.equal(frame, read_frame(path, transfer=other)) for other in others)


def test_read_frame_cineon_equals_formula(tmp_path: Path) -> None:
    codes = np.arange(0, 1023, 4).reshape(16, 16)[..., None].repeat(3, 2)
    frame = read_frame(exr(tmp_path / "a.exr", codes / 1023), transfer="cineon").numpy()
    black = 10 ** ((95 - 685) / 300)
    light = (10 ** ((codes - 685) / 300) - black) / (1 - black)
    assert np.allclose(frame, srgb(light).transpose(2, 0, 1), atol=2e-5)
    at = {code: frame[0].ravel()[code // 4] for code in (92, 96, 684)}
    assert at[92] == 0
    assert 0 < at[96] < 0.02
    assert at[684] == pytest.approx(1, abs=0.01)


def logc3(code: np.ndarray) -> np.ndarray:
    cut, a, b, c, d, e, f = 0.010591, 5.555556, 0.052272, 0.247190, 0.385537, 5.367655, 0.092809
    return np.where(code > e * cut + f, (10 ** ((code - d) / c) - b) / a, (code - f) / e)


@pytest.mark.parametrize(
    ("name", "codes"),  # of 1, 18 and 90 % grey, by the makers' papers
    [
        ("logc3", (0.146486, 0.391007, 0.559432)),
        ("logc4", (0.120829, 0.278396, 0.417959)),
        ("slog3", (0.159083, 0.410557, 0.584453)),
        ("slog3.cine", (0.159083, 0.410557, 0.584453)),
        ("vlog", (0.181, 0.423311, 0.588167)),
        ("log3g10", (0.137899, 0.333333, 0.483361)),
        ("acescct", (0.175579, 0.413588, 0.546119)),
    ],
)
def test_read_frame_camera_curves_equal_published_values(tmp_path: Path, name: str, codes: tuple[float, ...]) -> None:
    """On greys, which every camera's primaries leave grey."""
    path = exr(tmp_path / "a.exr", np.array(codes).reshape(1, 3, 1).repeat(3, 2))
    expected = srgb(np.array([0.01, 0.18, 0.9]))
    assert np.allclose(read_frame(path, transfer=name).numpy()[:, 0], expected, rtol=2e-4, atol=2e-3)


def test_read_frame_grey_uses_same_curve(tmp_path: Path) -> None:
    code = np.linspace(0.05, 0.75, 256).reshape(16, 16, 1).astype(np.float32)
    frame = read_frame(save(tmp_path / "g.exr", ExrPart(code, ("Y",))), transfer="logc3").numpy()
    assert frame.shape == (1, 16, 16)
    assert np.allclose(frame[0], srgb(logc3(code[..., 0])), rtol=2e-4, atol=2e-3)


def test_read_frame_converts_primaries(tmp_path: Path) -> None:
    """ACEScg's red lies outside of Rec.709: more red there, and no negative green."""
    path = exr(tmp_path / "a.exr", np.array([[[0.5, 0, 0], [0.5, 0.5, 0.5]]]))
    red, grey = read_frame(path, transfer="acescg")[:, 0].T
    assert float(red[0]) > float(srgb(np.array(0.5))) + 0.05
    assert float(red[1]) == 0
    assert np.allclose(grey.numpy(), srgb(np.array(0.5)), atol=1e-3)


def test_choose_display_curve_if_needed_knows_every_short_name() -> None:
    for name in TRANSFERS:
        choose_inplace_curve_to_srgb_if_needed(name, "srgb")
    assert {space.lower() for space in OCIO_TRANSFERS.values()} <= transfer._list_lowercase_ocio_names(
        transfer.OCIO_CONFIG
    )


def test_read_frame_transfer_accepts_colour_space_names(tmp_path: Path) -> None:
    pixels = samples((6, 7, 3))
    path = exr(tmp_path / "a.exr", pixels)
    linear = read_frame(path)
    assert torch.allclose(read_frame(path, transfer="Linear Rec.709 (sRGB)"), linear, atol=1e-5)
    assert torch.allclose(read_frame(path, transfer="LIN_SRGB"), linear, atol=1e-5)
    encoded = read_frame(path, transfer="srgb")
    assert torch.allclose(read_frame(path, transfer="sRGB Encoded Rec.709 (sRGB)"), encoded, atol=1e-4)
    assert torch.equal(read_frame(path, transfer="ACES - ACEScg"), read_frame(path, transfer="acescg"))
    with pytest.raises(InputError, match=r"transfer: expected one of auto, srgb, linear, .*logc3.*'LogC'") as error:
        read_frame(path, transfer="LogC")
    complaint(error)


CONFIG = """ocio_profile_version: 1
search_path: ""
roles:
  scene_linear: house_linear
  default: house_linear
displays:
  d:
    - !<View> {name: v, colorspace: house_linear}
colorspaces:
  - !<ColorSpace>
    name: house_linear
    isdata: false
  - !<ColorSpace>
    name: house_square
    isdata: false
    to_reference: !<ExponentTransform> {value: [2, 2, 2, 1]}
"""


def test_read_frame_uses_ocio_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.ocio").write_text(CONFIG)
    pixels = samples((6, 7, 3))
    path = exr(tmp_path / "a.exr", pixels)
    with pytest.raises(InputError, match="house_square"):
        read_frame(path, transfer="house_square")
    monkeypatch.setenv("OCIO", str(tmp_path / "config.ocio"))
    frame = read_frame(path, transfer="house_square")
    assert np.allclose(frame.numpy(), srgb(pixels**2).transpose(2, 0, 1), atol=1e-5)
    # Short names keep their meaning; other names are looked up only there.
    grey = exr(tmp_path / "g.exr", np.full((2, 2, 3), 0.391))
    assert np.allclose(read_frame(grey, transfer="logc3").numpy(), srgb(np.array(0.18)), atol=1e-3)
    with pytest.raises(InputError, match=r"colour space of \$OCIO, got 'ARRI LogC4'"):
        read_frame(path, transfer="ARRI LogC4")


def test_read_frame_refuses_broken_ocio_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exr(tmp_path / "a.exr", samples((3, 3, 3)))
    for content in (None, "this is no configuration"):
        config = tmp_path / "config.ocio"
        if content:
            config.write_text(content)
        monkeypatch.setenv("OCIO", str(config))
        assert read_frame(path).shape == (3, 3, 3)
        with pytest.raises(InputError, match="OCIO: cannot use the configuration") as error:
            read_frame(path, transfer="house_square")
        complaint(error)


def test_read_frame_refuses_infinite_light(tmp_path: Path) -> None:
    path = exr(tmp_path / "a.exr", np.full((2, 2, 3), 1e30))
    with pytest.raises(InputError, match="infinite"):
        read_frame(path, transfer="cineon")


def test_decode_srgb_inplace_is_inverse_of_encoding() -> None:
    encoded = np.concatenate([np.linspace(0, 1, 4096), np.linspace(1, 30, 500)]).astype(np.float32)
    light = encoded.copy()
    decode_srgb_inplace(light)
    assert np.allclose(light, to_linear(encoded.astype(np.float64)), rtol=2e-6, atol=1e-9)
    encode_srgb_inplace(light)
    assert np.allclose(light, encoded, rtol=2e-6, atol=1e-7)


def test_encode_srgb_inplace_is_independent_of_position() -> None:
    light = samples((100_003,))
    whole = light.copy()
    encode_srgb_inplace(whole)
    for start, stop, step in ((1, 1000, 1), (3, 100_003, 7), (77_777, 77_790, 1)):
        piece = light[start:stop:step].copy()
        encode_srgb_inplace(piece)
        assert np.array_equal(piece, whole[start:stop:step])


def test_choose_display_curve_if_needed_returns_none_for_identity() -> None:
    assert choose_inplace_curve_to_srgb_if_needed("srgb", "linear") is None
    assert choose_inplace_curve_to_srgb_if_needed("auto", "srgb") is None
    assert choose_inplace_curve_to_srgb_if_needed("auto", "linear") is encode_srgb_inplace


@pytest.mark.parametrize("transfer", ["srgb", "linear", "cineon"])
def test_read_frame_half_equals_float(tmp_path: Path, transfer: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16)
    halves = halves[np.isfinite(halves) & (halves < 10)]
    halves = np.random.default_rng(3).permutation(halves)[: 3 * 97 * 150].reshape(97, 150, 3)
    where = {"origin": (2, -3), "display": (0, 0, 140, 120)}
    half = save(tmp_path / "h.exr", ExrPart(halves, RGB, **where))  # type: ignore[arg-type]
    full = save(tmp_path / "f.exr", ExrPart(halves.astype(np.float32), RGB, **where))  # type: ignore[arg-type]
    assert torch.equal(read_frame(half, transfer=transfer), read_frame(full, transfer=transfer))


@pytest.mark.parametrize(("value", "transfer"), [(np.nan, "srgb"), (-np.inf, "linear"), (np.inf, "cineon")])
def test_read_frame_nonfinite_half_warns_like_float(tmp_path: Path, value: float, transfer: str) -> None:
    pixels = np.full((9, 12, 3), 0.25, np.float16)
    pixels[5, 7, 1] = pixels[6, 2, 0] = value
    frames = []
    for dtype in (np.float16, np.float32):
        path = save(tmp_path / "a.exr", ExrPart(pixels.astype(dtype), RGB))
        with pytest.warns(UserWarning, match="2 pixels are NaN or infinite, the first at x = 7, y = 5"):
            frames.append(read_frame(path, transfer=transfer))
    assert torch.equal(*frames)


def test_read_frame_infinite_half_raises_like_float(tmp_path: Path) -> None:
    pixels = np.full((9, 12, 3), 0.25, np.float16)
    pixels[5, 7, 1] = pixels[6, 2, 0] = 60000
    messages = []
    for dtype in (np.float16, np.float32):
        path = save(tmp_path / "a.exr", ExrPart(pixels.astype(dtype), RGB))
        with pytest.raises(InputError) as error:
            read_frame(path, transfer="cineon")
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "NaN" not in messages[0]
