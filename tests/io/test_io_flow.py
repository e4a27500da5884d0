"""read_flow and write_flow: round trips, layouts written out by hand, marks of invalid pixels, refusals."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import h5py
import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from io_files import ExrPart, complaint, samples, save
from torch import Tensor

from fullfield import InputError
from fullfield.io import (
    FlowData,
    FlowRangeError,
    read_flow,
    read_flow_layers,
    write_flow,
    write_flow_layers,
    write_st_map,
)
from fullfield.io.flow import read_flow_window
from fullfield.io.names import EXR_COMPRESSIONS, FLOW_SUFFIXES, FLOW_WRITE_SUFFIXES
from fullfield.io.windows import FrameWindow

pytestmark = pytest.mark.unit

EXACT = (".flo", ".flo5", ".pfm", ".npy", ".exr")


def some_flow(height: int, width: int, largest: float = 50, seed: int = 0) -> Tensor:
    return (torch.from_numpy(samples((2, height, width), seed)) * 2 - 1) * largest


def holes(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(samples((height, width), seed + 100) > 0.2)


# round trips


@st.composite
def flows(draw: st.DrawFn, largest: float = 1e9) -> tuple[Tensor, Tensor]:
    height, width = draw(st.integers(1, 17)), draw(st.integers(1, 17))
    flow = some_flow(height, width, largest=draw(st.sampled_from((1e-30, 1.0, 300.0, 8192.0, largest))),
                     seed=draw(st.integers(0, 1 << 20)))  # fmt: skip
    special = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, largest, -largest, 1e-45)
    for value in draw(st.lists(st.sampled_from(special), max_size=6)):
        at = draw(st.integers(0, 1)), draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
        flow[at] = value
    kind = draw(st.sampled_from(("all", "some", "none")))
    valid = {"all": torch.ones(height, width), "none": torch.zeros(height, width)}.get(kind, holes(height, width))
    return flow, valid.bool()


def check_round_trip(written: FlowData, flow: Tensor, valid: Tensor) -> None:
    known = valid & flow.isfinite().all(0)
    assert written.flow.dtype == torch.float32
    assert written.valid.dtype == torch.bool
    assert torch.equal(written.valid, known)
    assert torch.equal(written.flow, torch.where(known, flow, torch.zeros(())))


@pytest.mark.parametrize("suffix", EXACT)
@settings(max_examples=30, deadline=None)
@given(data=flows())
def test_write_flow_round_trip(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: tuple[Tensor, Tensor]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"flow{suffix}"
    write_flow(path, *data)
    check_round_trip(read_flow(path), *data)


@settings(max_examples=30, deadline=None)
@given(data=flows(largest=511.9))
def test_write_flow_kitti_round_trip(tmp_path_factory: pytest.TempPathFactory, data: tuple[Tensor, Tensor]) -> None:
    flow, valid = data[0].clamp(-512, 511.9), data[1]
    path = tmp_path_factory.getbasetemp() / "flow.png"
    write_flow(path, flow, valid)
    steps = (flow.nan_to_num(0, 0, 0).double() * 64).round() / 64
    check_round_trip(read_flow(path), torch.where(flow.isfinite(), steps.float(), flow), valid)


@settings(max_examples=30, deadline=None)
@given(data=flows(largest=65504), compression=st.sampled_from(EXR_COMPRESSIONS))
def test_write_flow_half_round_trip(
    tmp_path_factory: pytest.TempPathFactory, data: tuple[Tensor, Tensor], compression: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "half.exr"
    write_flow(path, *data, dtype="half", compression=compression)
    check_round_trip(read_flow(path), data[0].half().float(), data[1])


@pytest.mark.parametrize("compression", EXR_COMPRESSIONS)
def test_write_flow_exr_compressions_are_lossless(tmp_path: Path, compression: str) -> None:
    flow, back, valid = some_flow(70, 45, 3000), some_flow(70, 45, 7, seed=1), holes(70, 45)
    back[0, 3, 4] = float("nan")
    path, mask = tmp_path / "a.exr", back[0].nan_to_num()
    planes = {"confidence.forward": mask}
    write_flow(path, flow, valid, backward=back, compression=compression, planes=planes)
    vectors = read_flow_layers(path)
    assert torch.equal(vectors["confidence.forward"], mask)
    assert torch.equal(vectors["backward"].isnan().any(0), back.isnan().any(0))
    check_round_trip(read_flow(path), flow, valid)
    check_round_trip(read_flow(path, layer="forward"), flow, valid)
    check_round_trip(read_flow(path, layer="backward"), back, torch.ones(70, 45, dtype=torch.bool))
    stored = oiio.ImageInput.open(str(path)).spec()
    assert stored.getattribute("compression").startswith(compression)
    assert str(stored.format) == "float"


def packed_as(path: Path) -> str:
    return str(oiio.ImageInput.open(str(path)).spec().getattribute("compression")).partition(":")[0]


@pytest.mark.parametrize(("height", "width"), [(60, 83), (1, 300)])
def test_write_flow_exr_compresses_only_if_smaller(tmp_path: Path, height: int, width: int) -> None:
    x, y = torch.meshgrid(torch.arange(width) / 40, torch.arange(height) / 40, indexing="xy")
    smooth = torch.stack((3 * torch.sin(x + y), torch.cos(2 * x)))
    # 23 bits of mantissa, of which deflate makes little.
    noise = smooth + 0.01 * torch.randn(smooth.shape, generator=torch.Generator().manual_seed(2))
    still = torch.zeros(2, height, width)
    for flow, dtype, expected in ((noise, None, "none"), (noise, "half", "zip"), (still, None, "zip")):
        where = tmp_path / "a.exr"
        write_flow(where, flow, dtype=dtype)  # type: ignore[arg-type]
        assert packed_as(where) == expected, (dtype, expected)
        size = where.stat().st_size
        write_flow_layers(where, {"forward": flow}, dtype=dtype)  # type: ignore[arg-type]
        assert packed_as(where) == expected
        write_flow(where, flow, dtype=dtype, compression="zip")  # type: ignore[arg-type]
        assert packed_as(where) == "zip"
        assert size <= 1.4 * where.stat().st_size
    write_flow(tmp_path / "tiny.exr", noise[:, :1, :1])
    assert read_flow(tmp_path / "tiny.exr").flow.equal(noise[:, :1, :1])


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_write_flow_flo5_compression_reduces_size(tmp_path: Path, compression: str) -> None:
    flow = torch.zeros(2, 100, 100)
    write_flow(tmp_path / "a.flo5", flow, compression=compression)
    check_round_trip(read_flow(tmp_path / "a.flo5"), flow, torch.ones(100, 100, dtype=torch.bool))
    assert ((tmp_path / "a.flo5").stat().st_size < 10_000) == (compression == "gzip")


@pytest.mark.parametrize("suffix", FLOW_WRITE_SUFFIXES)
def test_write_flow_accepts_other_dtypes_and_strides(tmp_path: Path, suffix: str) -> None:
    flow = (some_flow(6, 5) * 64).round() / 64
    path = tmp_path / f"a{suffix.upper()}"
    for given_ in (flow.double(), flow.transpose(1, 2).contiguous().transpose(1, 2), flow.clone().requires_grad_()):
        write_flow(path, given_)
        assert torch.equal(read_flow(path).flow, flow)
    write_flow(path, flow.half())
    assert torch.equal(read_flow(path).flow, flow.half().float().mul(64).round().div(64))


# layouts


def hand_made() -> tuple[np.ndarray, np.ndarray]:
    """u, v of 2 × 3 pixels."""
    return np.array([[1, 2, 3], [4, 5, 6]], np.float32) / 2, np.array([[-1, -2, -3], [-4, -5, -6]], np.float32)


def check_hand_made(found: FlowData) -> None:
    u, v = hand_made()
    assert torch.equal(found.flow, torch.from_numpy(np.stack((u, v))))
    assert bool(found.valid.all())


def hand_made_tensor() -> Tensor:
    return torch.from_numpy(np.stack(hand_made()))


def test_flo_file_equals_format_description(tmp_path: Path) -> None:
    data = struct.pack("<fii", 202021.25, 3, 2)
    data += struct.pack("<12f", 0.5, -1, 1, -2, 1.5, -3, 2, -4, 2.5, -5, 3, -6)
    (tmp_path / "a.flo").write_bytes(data)
    check_hand_made(read_flow(tmp_path / "a.flo"))
    write_flow(tmp_path / "b.flo", hand_made_tensor())
    assert (tmp_path / "b.flo").read_bytes() == data


def test_kitti_file_equals_format_description(tmp_path: Path) -> None:
    u, v = hand_made()
    pixels = np.stack((u * 64 + 2**15, v * 64 + 2**15, np.ones((2, 3))), axis=-1).astype(np.uint16)
    check_hand_made(read_flow(save(tmp_path / "a.png", ExrPart(pixels, ("R", "G", "B")))))
    write_flow(tmp_path / "b.png", hand_made_tensor())
    assert np.array_equal(oiio.ImageInput.open(str(tmp_path / "b.png")).read_image("uint16"), pixels)


@pytest.mark.parametrize(("order", "scale"), [("<", "-1.0"), (">", "1.0"), ("<", "-1"), (">", "1")])
def test_pfm_file_equals_format_description(tmp_path: Path, order: str, scale: str) -> None:
    rows = struct.pack(f"{order}9f", 2, -4, 0, 2.5, -5, 7, 3, -6, 0)
    rows += struct.pack(f"{order}9f", 0.5, -1, 0, 1, -2, 7, 1.5, -3, 0)
    (tmp_path / "a.pfm").write_bytes(f"PF\n3 2\n{scale}\n".encode() + rows)
    check_hand_made(read_flow(tmp_path / "a.pfm"))
    (tmp_path / "b.pfm").write_bytes(f"PF\n# by hand\n3\n2 {scale}\n".encode() + rows)
    check_hand_made(read_flow(tmp_path / "b.pfm"))
    write_flow(tmp_path / "c.pfm", hand_made_tensor())
    assert (tmp_path / "c.pfm").read_bytes().startswith(b"PF\n3 2\n-1.0\n" + struct.pack("<3f", 2, -4, 0))


def test_read_flow_multiplies_by_pfm_scale(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.pfm", hand_made_tensor() / 4)
    data = (tmp_path / "a.pfm").read_bytes().replace(b"-1.0", b"-4.0", 1)
    (tmp_path / "a.pfm").write_bytes(data)
    check_hand_made(read_flow(tmp_path / "a.pfm"))


def test_flo5_file_equals_format_description(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.flo5", "w") as file:
        file.create_dataset("flow", data=np.stack(hand_made(), axis=-1), compression="gzip", compression_opts=5)
    check_hand_made(read_flow(tmp_path / "a.flo5"))
    write_flow(tmp_path / "b.flo5", hand_made_tensor())
    with h5py.File(tmp_path / "b.flo5") as file:
        assert list(file) == ["flow"]
        assert file["flow"].dtype == np.float32
        assert np.array_equal(file["flow"][()], np.stack(hand_made(), axis=-1))


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_read_flow_reads_every_npy_layout(tmp_path: Path, dtype: str, order: str) -> None:
    u, v = hand_made()
    if dtype == "i2":
        u, v = u * 2, v
    for axis in (0, -1):
        np.save(tmp_path / "a.npy", np.array(np.stack((u, v), axis=axis), dtype=dtype, order=order))  # type: ignore[call-overload]
        assert torch.equal(read_flow(tmp_path / "a.npy").flow, torch.from_numpy(np.stack((u, v))))


def test_read_flow_npy_of_two_rows_uses_last_axis(tmp_path: Path) -> None:
    """[2, W, 2] reads both ways; the last axis decides, which is what we write."""
    flow = some_flow(2, 5)
    write_flow(tmp_path / "a.npy", flow)
    assert np.load(tmp_path / "a.npy").shape == (2, 5, 2)
    assert torch.equal(read_flow(tmp_path / "a.npy").flow, flow)


@pytest.mark.parametrize("saver", [np.savez, np.savez_compressed])
def test_read_flow_of_viper(tmp_path: Path, saver) -> None:  # type: ignore[no-untyped-def]
    u, v = hand_made()
    saver(tmp_path / "a.npz", u=u, v=v.astype(np.float16))
    check_hand_made(read_flow(tmp_path / "a.npz"))
    u[1, 2] = np.nan
    saver(tmp_path / "a.npz", u=u, v=v)
    found = read_flow(tmp_path / "a.npz")
    assert (~found.valid).nonzero().tolist() == [[1, 2]]
    with pytest.raises(InputError, match=r"got '\.npz' \(\.npz is only read\)"):
        write_flow(tmp_path / "b.npz", hand_made_tensor())


# marks of invalid pixels


def mark(tmp_path: Path, suffix: str) -> FlowData:
    valid = torch.tensor([[True, False, True], [True, True, True]])
    flow = hand_made_tensor()
    flow[1, 1, 2] = float("nan")
    write_flow(tmp_path / f"a{suffix}", flow, valid)
    found = read_flow(tmp_path / f"a{suffix}")
    assert found.valid.tolist() == [[True, False, True], [True, True, False]]
    assert found.flow[:, ~found.valid].abs().max() == 0
    return found


def test_unknown_vectors_are_stored_by_format_marks(tmp_path: Path) -> None:
    for suffix in FLOW_WRITE_SUFFIXES:
        mark(tmp_path, suffix)
    values = np.frombuffer((tmp_path / "a.flo").read_bytes()[12:], "<f4").reshape(2, 3, 2)
    assert (values[[0, 1], [1, 2]] > 1e9).all()
    pixels = oiio.ImageInput.open(str(tmp_path / "a.png")).read_image("uint16")
    assert pixels[..., 2].tolist() == [[1, 0, 1], [1, 1, 0]]
    with h5py.File(tmp_path / "a.flo5") as file:
        assert np.isnan(file["flow"][0, 1]).all()
    assert np.isnan(np.load(tmp_path / "a.npy")[1, 2]).all()


@pytest.mark.parametrize("value", [1.1e9, -1.1e9, 1666666752, float("nan"), float("inf")])
def test_read_flow_flo_marks_unknown_vectors(tmp_path: Path, value: float) -> None:
    data = struct.pack("<fii", 202021.25, 2, 1) + struct.pack("<4f", 1, value, 3, 1e9)
    (tmp_path / "a.flo").write_bytes(data)
    assert read_flow(tmp_path / "a.flo").valid.tolist() == [[False, True]]


def test_read_flow_kitti_treats_any_blue_as_valid(tmp_path: Path) -> None:
    pixels = np.full((1, 3, 3), 2**15, np.uint16)
    pixels[0, :, 2] = (0, 1, 65535)
    found = read_flow(save(tmp_path / "a.png", ExrPart(pixels, ("R", "G", "B"))), encoding="kitti")
    assert found.valid.tolist() == [[False, True, True]]


# what a format cannot hold


def refuse(path: Path, what: str, *arguments: object, kind: type[InputError] = InputError, **options: object) -> None:
    path.write_bytes(b"before")
    with pytest.raises(kind, match=what) as error:
        write_flow(path, *arguments, **options)  # type: ignore[arg-type]
    complaint(error)
    assert type(error.value) is kind
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [-512.01, 511.995, 600, -1e9])
def test_write_flow_kitti_refuses_values_beyond_range(tmp_path: Path, value: float) -> None:
    flow = some_flow(3, 4)
    flow[1, 2, 3] = value
    refuse(tmp_path / "a.png", "KITTI PNG format holds -512 to 511.984 px", flow, kind=FlowRangeError)
    valid = torch.ones(3, 4, dtype=torch.bool)
    valid[2, 3] = False
    write_flow(tmp_path / "a.png", flow, valid)
    assert torch.equal(read_flow(tmp_path / "a.png").valid, valid)


@pytest.mark.parametrize("value", [-512.0, 511.984375, -512.005, 511.99])
def test_write_flow_kitti_accepts_limits_of_range(tmp_path: Path, value: float) -> None:
    write_flow(tmp_path / "a.png", torch.full((2, 1, 1), value))
    assert torch.allclose(read_flow(tmp_path / "a.png").flow, torch.tensor(value), atol=1 / 128)


def test_write_flow_half_refuses_values_beyond_range(tmp_path: Path) -> None:
    refuse(tmp_path / "a.exr", "half precision holds up to 65504 px, got 70000", torch.full((2, 2, 2), 7e4),
           dtype="half", kind=FlowRangeError)  # fmt: skip
    write_flow(tmp_path / "a.exr", torch.full((2, 2, 2), 65504.0), dtype="half")
    assert float(read_flow(tmp_path / "a.exr").flow.max()) == 65504


def test_write_flow_flo_refuses_values_beyond_range(tmp_path: Path) -> None:
    refuse(tmp_path / "a.flo", "holds values up to 1e9 px", torch.full((2, 2, 2), 1.5e9), kind=FlowRangeError)


@pytest.mark.parametrize(
    ("suffix", "option"),
    [
        (".flo", {"compression": "zip"}),
        (".npy", {"dtype": "half"}),
        (".png", {"backward": torch.zeros(2, 3, 4)}),
        (".exr", {"compression": "gzip"}),
        (".exr", {"dtype": "double"}),
        (".exr", {"backward": torch.zeros(2, 3, 5)}),
        (".flo5", {"compression": "zip"}),
    ],
)
def test_write_flow_refuses_options_of_other_formats(tmp_path: Path, suffix: str, option: dict[str, object]) -> None:
    refuse(tmp_path / f"a{suffix}", next(iter(option)), torch.zeros(2, 3, 4), **option)


@pytest.mark.parametrize(
    ("flow", "valid"),
    [
        (torch.zeros(3, 4, 5), None),
        (torch.zeros(1, 2, 4, 5), None),
        (torch.zeros(2, 0, 5), None),
        (torch.zeros(2, 4, 5, dtype=torch.int32), None),
        (np.zeros((2, 4, 5), np.float32), None),
        (torch.zeros(2, 4, 5), torch.ones(4, 5)),
        (torch.zeros(2, 4, 5), torch.ones(5, 4, dtype=torch.bool)),
    ],
)
def test_write_flow_refuses_other_shapes(tmp_path: Path, flow: object, valid: object) -> None:
    refuse(tmp_path / "a.flo", r"(flow|valid): expected", flow, valid)


def test_read_flow_refuses_unknown_suffix(tmp_path: Path) -> None:
    known = re.escape(", ".join(FLOW_WRITE_SUFFIXES))
    refuse(tmp_path / "a.txt", rf"a\.txt: .*{known}, got '\.txt'", torch.zeros(2, 3, 4))
    with pytest.raises(InputError, match=rf"{re.escape(', '.join(FLOW_SUFFIXES))}, got ''"):
        read_flow(tmp_path / "a")


# OpenEXR


def test_write_flow_exr_matches_nuke_layers(tmp_path: Path) -> None:
    """Layers forward and backward; u to the right, v up."""
    write_flow(tmp_path / "a.exr", hand_made_tensor(), backward=-2 * hand_made_tensor())
    image = oiio.ImageInput.open(str(tmp_path / "a.exr"))
    pixels = image.read_image("float")
    stored = {name: pixels[..., i] for i, name in enumerate(image.spec().channelnames)}
    u, v = hand_made()
    assert sorted(stored) == ["backward.u", "backward.v", "forward.u", "forward.v"]
    assert np.array_equal(stored["forward.u"], u)
    assert np.array_equal(stored["forward.v"], -v)
    assert np.array_equal(stored["backward.u"], -2 * u)
    assert np.array_equal(stored["backward.v"], 2 * v)


@pytest.mark.parametrize("tile", [0, 16])
def test_read_flow_exr_places_data_window(tmp_path: Path, tile: int) -> None:
    pixels = samples((16, 32, 2))
    pixels[4, 5, 0] = np.nan
    part = ExrPart(pixels, ("forward.u", "forward.v"), origin=(-3, 2), display=(0, 0, 30, 20), tile=tile)
    found = read_flow(save(tmp_path / "a.exr", part))
    expected = np.zeros((2, 20, 30), np.float32)
    valid = np.zeros((20, 30), bool)
    expected[0, 2:18, :29], expected[1, 2:18, :29] = pixels[:, 3:, 0], -pixels[:, 3:, 1]
    valid[2:18, :29] = True
    valid[6, 2], expected[:, 6, 2] = False, 0
    assert torch.equal(found.valid, torch.from_numpy(valid))
    assert torch.equal(found.flow, torch.from_numpy(expected))
    outside = part._replace(origin=(100, 100))
    assert not read_flow(save(tmp_path / "b.exr", outside)).valid.any()


def test_read_flow_selects_exr_layer_and_part(tmp_path: Path) -> None:
    content = samples((4, 5, 7))
    colour = ExrPart(content[..., :3], ("R", "G", "B"), "beauty")
    motion = ExrPart(content[..., 3:], ("backward.u", "backward.v", "motion.X", "motion.Y"), "vectors")
    path = save(tmp_path / "a.exr", colour, motion)
    assert torch.equal(read_flow(path, layer="backward").flow[0], torch.from_numpy(content[..., 3].copy()))
    assert torch.equal(read_flow(path, layer="motion").flow[1], torch.from_numpy(-content[..., 6]))
    assert torch.equal(
        read_flow(path, layer="motion", part="vectors").flow[0], torch.from_numpy(content[..., 5].copy())
    )
    for options in ({}, {"layer": "forward"}, {"layer": "motion", "part": 0}, {"part": "no"}):
        with pytest.raises(InputError, match=r"(no channels .* 'beauty'|no channels .*R, G, B|no part)") as error:
            read_flow(path, **options)  # type: ignore[arg-type]
        complaint(error)


def test_read_flow_refuses_integer_exr(tmp_path: Path) -> None:
    path = save(tmp_path / "a.exr", ExrPart(np.ones((4, 5, 2), np.uint32), ("forward.u", "forward.v")))
    with pytest.raises(InputError, match="expected half or float flow"):
        read_flow(path)


def test_read_flow_refuses_layer_of_other_formats(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.flo", hand_made_tensor())
    for options in ({"layer": "forward"}, {"part": 0}):
        with pytest.raises(InputError, match="only OpenEXR"):
            read_flow(tmp_path / "a.flo", **options)  # type: ignore[arg-type]


def test_write_st_map_equals_definition(tmp_path: Path) -> None:
    flow = torch.zeros(2, 3, 4)
    flow[0, 0, 1], flow[1, 0, 1] = 2, 1
    write_st_map(tmp_path / "a.exr", flow)
    image = oiio.ImageInput.open(str(tmp_path / "a.exr"))
    assert (image.spec().channelnames, str(image.spec().format)) == (("R", "G"), "float")
    pixels = image.read_image("float")
    assert np.allclose(pixels[1, :, 0], (np.arange(4) + 0.5) / 4)
    assert np.allclose(pixels[:, 3, 1], [5 / 6, 3 / 6, 1 / 6])
    assert np.allclose(pixels[0, 1], [(1 + 2 + 0.5) / 4, 1 - (0 + 1 + 0.5) / 3])


def test_write_st_map_refuses_bad_input(tmp_path: Path) -> None:
    flow = torch.zeros(2, 3, 4)
    with pytest.raises(InputError, match=r"written as an ST map with a suffix out of \.exr"):
        write_st_map(tmp_path / "a.png", flow)
    flow[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="finite values for an ST map, got 1 that are not"):
        write_st_map(tmp_path / "a.exr", flow)
    assert list(tmp_path.iterdir()) == []


# windows


@pytest.mark.parametrize("data", [(3, 2, 4, 3), (-2, -1, 4, 3), (8, 8, 4, 3)])
def test_write_flow_exr_keeps_windows(tmp_path: Path, data: tuple[int, int, int, int]) -> None:
    window = FrameWindow(data, (1, 1, 9, 8), 2.0)
    flow, path = some_flow(3, 4), tmp_path / "a.exr"
    write_flow(path, flow, backward=-flow, window=window, compression="piz")
    assert read_flow_window(path) == read_flow_window(path, layer="backward") == window
    assert torch.equal(read_flow(path, window="data").flow, flow)
    assert torch.equal(read_flow(path, window=data, layer="backward").flow, -flow)
    shown = read_flow(path)
    assert shown.flow.shape == (2, 8, 9)
    for y in range(8):
        for x in range(9):
            row, column = y + 1 - data[1], x + 1 - data[0]
            inside = 0 <= row < 3 and 0 <= column < 4
            assert bool(shown.valid[y, x]) is inside
            if inside:
                assert torch.equal(shown.flow[:, y, x], flow[:, row, column])


def test_write_st_map_uses_display_window(tmp_path: Path) -> None:
    window = FrameWindow((3, 2, 4, 3), (1, 1, 10, 8), 2.0)
    write_st_map(tmp_path / "a.exr", torch.full((2, 3, 4), 0.5), window=window)
    image = oiio.ImageInput.open(str(tmp_path / "a.exr"))
    spec = image.spec()
    assert (spec.x, spec.y, spec.full_x, spec.full_y, spec.full_width, spec.full_height) == (3, 2, 1, 1, 10, 8)
    assert spec.get_float_attribute("PixelAspectRatio") == 2
    pixels = image.read_image("float")
    assert np.allclose(pixels[0, :, 0], (np.arange(2, 6) + 1) / 10)
    assert np.allclose(pixels[:, 0, 1], 1 - (np.arange(1, 4) + 1) / 8)


def test_write_flow_refuses_bad_windows(tmp_path: Path) -> None:
    good = FrameWindow((0, 0, 4, 3), (0, 0, 4, 3))
    refuse(tmp_path / "a.flo", r"only \.exr has windows", torch.zeros(2, 3, 4), window=good)
    (tmp_path / "a.flo").unlink()
    for wrong in (good._replace(data=(0, 0, 3, 4)), good._replace(display=(0, 0, 0, 4)),
                  good._replace(pixel_aspect=0), "data"):  # fmt: skip
        refuse(tmp_path / "a.exr", "window: expected", torch.zeros(2, 3, 4), window=wrong)
    write_flow(tmp_path / "b.flo", torch.zeros(2, 3, 4))
    with pytest.raises(InputError, match="only OpenEXR files have windows"):
        read_flow(tmp_path / "b.flo", window=(0, 0, 4, 3))
    with pytest.raises(InputError, match="only OpenEXR files have windows"):
        read_flow_window(tmp_path / "b.flo")


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_write_flow_refuses_looping_link(tmp_path: Path) -> None:
    (tmp_path / "a.flo").symlink_to("a.flo")
    with pytest.raises(OSError, match="leads back to itself"):
        write_flow(tmp_path / "a.flo", torch.zeros(2, 3, 4))
    assert (tmp_path / "a.flo").is_symlink()


# real files


def test_read_flow_reads_multipart_exr(data_dir: Path) -> None:
    path = data_dir / "exr" / "multipart.0001.exr"
    found = read_flow(path)
    assert found.flow.shape == (2, 1556, 2048)
    assert int(found.valid.sum()) == 877 * 876
    assert bool(found.valid[245 : 245 + 876, 688 : 688 + 877].all())
    assert torch.equal(read_flow(path, part="forward_left").flow, found.flow)
    right = read_flow(path, part="forward_right")
    assert bool(right.valid[245 : 245 + 876, 654 : 654 + 877].all())
    assert read_flow(path, layer="disparityL").valid.sum() == 911 * 876


def test_read_flow_reads_exr_of_bare_channels(tmp_path: Path) -> None:
    content = samples((4, 5, 2))
    path = save(tmp_path / "a.exr", ExrPart(content, ("u", "v")))
    assert torch.equal(read_flow(path).flow[1], torch.from_numpy(-content[..., 1]))


def test_read_flow_finds_bare_channels_next_to_occlusion(tmp_path: Path) -> None:
    planes = np.stack([np.full((6, 8), value, np.float32) for value in (3.0, -2.0, 1.0)], -1)
    file = save(tmp_path / "a.exr", ExrPart(planes, ("u", "v", "occlusion.forward")))
    found = read_flow_layers(file)
    assert found.keys() == {"forward", "occlusion.forward"}
    assert torch.equal(found["forward"], read_flow(file).flow)
    save(tmp_path / "b.exr", ExrPart(planes[..., 2:], ("occlusion.forward",)))
    with pytest.raises(InputError, match=r"b\.exr: "):
        read_flow_layers(tmp_path / "b.exr")
