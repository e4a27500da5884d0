"""read_flow and read_flow_layers on files of renderers and of data sets whose formats look alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from io_files import ExrPart, complaint, samples, save
from torch import Tensor

from fullfield import InputError
from fullfield.io import read_flow, read_flow_layers, write_flow_layers
from fullfield.io.flow import read_flow_window
from fullfield.io.masks import read_mask_array
from fullfield.io.vectors import FlowReadOptions
from refusals import refuses

pytestmark = pytest.mark.unit

U, V = 5.25, -3.5
SIZE = (6, 9)


def write_png(path: Path, red: float, green: float, blue: float) -> Path:
    pixels = np.zeros((*SIZE, 3), np.uint16)
    pixels[:] = np.rint([red, green, blue])
    return save(path, ExrPart(pixels, ("R", "G", "B")))


def assert_constant(flow: Tensor, u: float, v: float, tolerance: float = 0.0) -> None:
    assert flow.shape == (2, *SIZE)
    for plane, value in zip(flow, (u, v), strict=True):
        assert (plane - value).abs().max() <= tolerance, (plane[0, 0], value)


def test_read_flow_of_virtual_kitti(tmp_path: Path) -> None:
    height, width = SIZE
    codes = [(value / (side - 1) + 1) / 2 * 65535 for value, side in ((U, width), (V, height))]
    for blue in (65535, 255):
        path = write_png(tmp_path / "a.png", *codes, blue)
        with pytest.raises(
            InputError, match=r"B of KITTI's PNG to be 0 or 1, got up to (65535|255); name its enc"
        ) as error:
            read_flow(path)
        assert "a.png" in complaint(error)
        found = read_flow(path, encoding="virtual-kitti")
        assert_constant(found.flow, U, V, 1e-3)
        assert found.valid.all()
    path = write_png(tmp_path / "b.png", *codes, 0)
    message = "to be 0 or 1, got 0 everywhere; name its encoding: kitti, virtual-kitti, tartanair"
    with pytest.raises(InputError, match=message):
        read_flow(path)
    assert not read_flow(path, encoding="virtual-kitti").valid.any()


def test_read_flow_of_kitti_and_hd1k(tmp_path: Path) -> None:
    codes = [64 * value + 32768 for value in (U, V)]
    assert_constant(read_flow(write_png(tmp_path / "a.png", *codes, 1)).flow, U, V)
    assert_constant(read_flow(write_png(tmp_path / "a.png", *codes, 7), encoding="kitti").flow, U, V)
    nothing = read_flow(write_png(tmp_path / "b.png", 0, 0, 0))
    assert not nothing.valid.any()
    assert not nothing.flow.any()


def test_read_flow_of_tartanair(tmp_path: Path) -> None:
    codes = [64 * value + 32768 for value in (V, U)]
    for mask in (0, 1, 10, 100):
        found = read_flow(write_png(tmp_path / "a.png", mask, *codes))
        assert bool(found.valid.all()) is (mask == 0)
        if mask == 0:
            assert_constant(found.flow, U, V)


def test_read_flow_refuses_encoding_of_other_formats(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((*SIZE, 2), np.float32))
    with pytest.raises(InputError, match="only PNG files have an encoding"):
        read_flow(tmp_path / "a.npy", encoding="kitti")
    with pytest.raises(InputError, match="encoding: expected"):
        read_flow(write_png(tmp_path / "a.png", 1, 1, 1), encoding="other")  # type: ignore[arg-type]


def test_read_flow_of_npz(tmp_path: Path) -> None:
    flow = samples((*SIZE, 2))
    mask = np.zeros(SIZE, np.uint8)
    mask[2, 3] = 100
    for arrays, expected in (
        ({"flow": flow}, mask < 1000),
        ({"flow": flow.transpose(2, 0, 1), "valid": mask}, mask > 0),
        ({"u": flow[..., 0], "v": flow[..., 1], "invalid": mask}, mask == 0),
        ({"anything": flow}, mask < 1000),
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        found = read_flow(tmp_path / "a.npz")
        assert torch.equal(found.valid, torch.from_numpy(expected))
        assert torch.equal(found.flow, torch.from_numpy((flow * expected[..., None]).transpose(2, 0, 1).copy()))
    np.savez(tmp_path / "a.npz", flow=flow, mask=mask)
    with pytest.raises(InputError, match="array mask does not say whether it marks known vectors; rename it valid"):
        read_flow(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", flow=flow, valid=mask[:2])
    with pytest.raises(InputError, match=r"expected array valid \[6, 9\], got \[2, 9\]"):
        read_flow(tmp_path / "a.npz")


def test_read_mask_array_reads_npy_and_npz(tmp_path: Path) -> None:
    mask = (np.arange(54).reshape(SIZE) % 3 * 10).astype(np.uint8)
    np.save(tmp_path / "a.npy", mask)
    np.savez(tmp_path / "one.npz", mask)
    np.savez(tmp_path / "two.npz", a=mask[..., None], b=mask == 0)
    for path, name in (("a.npy", None), ("one.npz", None), ("two.npz", "a")):
        assert np.array_equal(read_mask_array(tmp_path / path, name), mask > 0)
    assert np.array_equal(read_mask_array(tmp_path / "two.npz", "b"), mask == 0)
    with pytest.raises(InputError, match="expected one array, or its name as FILE:NAME, got a, b"):
        read_mask_array(tmp_path / "two.npz")
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 5)))
    with pytest.raises(InputError, match=r"expected a mask \[H, W\], got shape \[3, 4, 5\]"):
        read_mask_array(tmp_path / "a.npy")


# renderers


def constant(*values: float) -> np.ndarray:
    return np.full((*SIZE, len(values)), values, np.float32)


@pytest.mark.parametrize("layer", ["ViewLayer.Vector", "Vector", "View Layer.001.Vector"])
def test_read_flow_of_blender(tmp_path: Path, layer: str) -> None:
    """The frame moves by (2, 1) px to the next, x right and y down, and moved by (4, 3) px from the one before."""
    names = tuple(f"{layer}.{axis}" for axis in "XYZW")
    path = save(tmp_path / "a.exr", ExrPart(constant(4, -3, 2, -1), names))
    for options in ({}, {"layer": "forward"}, {"layer": layer}, {"channels": (names[2], names[3])}):
        assert_constant(read_flow(path, **options).flow, 2, 1)  # type: ignore[arg-type]
    assert_constant(read_flow(path, layer="backward").flow, -4, -3)
    parts = read_flow_layers(path)
    assert list(parts) == ["forward", "backward"]
    assert_constant(parts["forward"], 2, 1)
    assert_constant(parts["backward"], -4, -3)


def test_read_flow_of_blender_in_own_part(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.exr",
        ExrPart(constant(1, 1, 1), ("R", "G", "B"), "ViewLayer.Combined"),
        ExrPart(constant(4, -3, 2, -1), ("X", "Y", "Z", "W"), "ViewLayer.Vector"),
    )
    assert_constant(read_flow(path).flow, 2, 1)
    assert_constant(read_flow(path, layer="backward").flow, -4, -3)


def test_read_flow_of_red_and_green(tmp_path: Path) -> None:
    names = ("motionvector.R", "motionvector.G", "motionvector.B", "R", "G", "B")
    path = save(tmp_path / "a.exr", ExrPart(constant(2, -1, 0, 9, 9, 9), names))
    assert_constant(read_flow(path, layer="motionvector").flow, 2, 1)
    assert_constant(read_flow(path, layer="motionvector", y_axis="down").flow, 2, -1)
    with pytest.raises(InputError, match=r"no channels forward\.u, forward\.v"):
        read_flow(path)


def test_read_flow_of_any_channels(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.exr",
        ExrPart(constant(1, 1, 1), ("R", "G", "B"), "C"),
        ExrPart(constant(0.5, 0.25, 7), ("mv.horizontal", "mv.vertical", "mv.depth"), "mv", origin=(1, 2),
                display=(0, 0, 9, 6)),
    )  # fmt: skip
    channels = ("mv.horizontal", "mv.vertical")
    found = read_flow(path, channels=channels, y_axis="down", window="data")
    assert_constant(found.flow, 0.5, 0.25)
    assert read_flow_window(path, channels=channels).data == (1, 2, 9, 6)
    assert_constant(read_flow(path, channels=channels, scale=4, window="data").flow, 2, -1)
    assert_constant(read_flow(path, channels=channels, scale=(9, 6), window="data", y_axis="down").flow, 4.5, 1.5)
    with pytest.raises(InputError, match=r"no channels mv\.u, mv\.v; the file has part 0 'C': R, G, B; part 1"):
        read_flow(path, channels=("mv.u", "mv.v"))
    with pytest.raises(InputError, match="layer: expected None beside channels, got 'mv'"):
        read_flow(path, channels=channels, layer="mv")
    for names, got in ((("mv.u",), "mv.u"), (("mv.depth", "mv.depth"), "mv.depth, mv.depth"), (3, "3")):
        with pytest.raises(InputError, match=rf"channels: expected two different names, got .*{got}"):
            read_flow(path, channels=names)  # type: ignore[arg-type]
    for names in (("a", "b", "c"), ("a", "b", "a", "b")):
        with pytest.raises(InputError, match=r"channels: expected two or four different names, got a, b, [ca]"):
            FlowReadOptions(names)
    with pytest.raises(InputError, match="y_axis: expected"):
        read_flow(path, channels=channels, y_axis="left")  # type: ignore[arg-type]


def test_read_flow_y_axis_overrides_header(tmp_path: Path) -> None:
    write_flow_layers(tmp_path / "a.exr", {"forward": torch.full((2, *SIZE), 2.0)}, y="down")
    assert_constant(read_flow(tmp_path / "a.exr").flow, 2, 2)
    assert_constant(read_flow(tmp_path / "a.exr", y_axis="up").flow, 2, -2)


# vectors from their surroundings


def test_write_vectors_refuses_tensor_without_name(tmp_path: Path) -> None:
    message = "^layers: expected tensors by the names of their layers, got float32 tensor"
    refuses(message, write_flow_layers, tmp_path / "a.exr", torch.zeros(2, *SIZE))


def test_write_vectors_marks_filled_pixels(tmp_path: Path) -> None:
    flow = torch.from_numpy(samples((2, *SIZE)))
    flow[:, 5, 5] = float("nan")
    valid = torch.ones(SIZE)
    valid[:2] = 0
    write_flow_layers(tmp_path / "a.exr", {"forward": flow, "valid": valid})
    found = read_flow(tmp_path / "a.exr")
    expected = valid.bool()
    expected[5, 5] = False
    assert torch.equal(found.valid, expected)
    assert torch.equal(found.flow, flow.nan_to_num(0.0)), "what comes from the surroundings stays"
    parts = read_flow_layers(tmp_path / "a.exr")
    assert set(parts) == {"forward", "valid"}
    assert torch.equal(parts["valid"], valid)
    assert torch.equal(parts["forward"].isnan(), flow.isnan())
