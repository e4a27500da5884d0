"""Small files that claim much: memory and time stay in proportion to the file, or one line says what was asked."""

from __future__ import annotations

import struct
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from bombs import (
    empty_window,
    gif,
    las,
    lzf_of_one_byte,
    npy,
    npz_of_another_length,
    npz_of_shared_bytes,
    pcd_of_many_values,
)
from io_files import MIB, ExrPart, refused, save

from fullfield.io import read_flow, read_flow_layers, read_frame, read_point_cloud
from peak_memory import PeakMemory

pytestmark = pytest.mark.unit


def test_read_point_cloud_reads_minimal_las(tmp_path: Path) -> None:
    pytest.importorskip("laspy")
    (tmp_path / "a.las").write_bytes(las())
    assert read_point_cloud(tmp_path / "a.las").points.tolist() == [[0.0, 0.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (las(records=0xFFFFFFFF), "4294967295 variable-length records, and 0 bytes hold them"),
        (las(points_at=429, records=1)[:395] + b"\xff" * 70, "variable-length record 1 of 1 goes beyond"),
        (las(extended=0xFFFFFFFF, extended_at=375), "4294967295 variable-length records, and 90 bytes"),
        (las(extended=1, extended_at=375)[:375] + b"\xff" * 90, "variable-length record 1 of 1 goes beyond"),
        (las(points=1 << 40), "the header says 1099511627776 points, 32985348833280 bytes; 90 are stored"),
        (las(points=1 << 40, form=6 | 128), "claims 32985348833280 bytes"),
        (las(row=65535), "3 points, 196605 bytes; 90 are stored"),
        (las(points_at=1 << 30), "points from byte 1073741824 on, in a file of 465"),
        (las(header=100), "a header of 100 bytes"),
        (las(header=230, points_at=300), "version 1.4 with a header of 230 bytes"),
        (las()[:200], "ends inside its header"),
        (b"LASX" + bytes(400), "does not begin with 'LASF'"),
    ],
)
def test_read_point_cloud_refuses_las_counts_beyond_file(tmp_path: Path, data: bytes, match: str) -> None:
    refused(tmp_path / "a.las", bytes(data), match)


def test_read_point_cloud_refuses_truncated_las(tmp_path: Path) -> None:
    pytest.importorskip("laspy")
    whole = bytes(las())
    for end in range(1, len(whole), 3):
        refused(tmp_path / "a.las", whole[:end], "LAS|points")


@pytest.mark.parametrize("entries", [2, 120])
@pytest.mark.parametrize("renamed", [True, False])
def test_read_point_cloud_refuses_npz_with_shared_bytes(tmp_path: Path, entries: int, renamed: bool) -> None:
    data = npz_of_shared_bytes(entries, renamed=renamed)
    refused(tmp_path / "a.npz", data, "shares its bytes or its name")


def test_read_point_cloud_refuses_npz_of_unequal_lengths(tmp_path: Path) -> None:
    cloud = npz_of_another_length()
    refused(tmp_path / "a.npz", cloud, r"array label: expected \[2\], got \[30000000\]")
    flow = cloud.replace(b"points.npy", b"u.npy     ").replace(b"label.npy", b"v.npy    ")
    refused(tmp_path / "b.npz", flow, "u and v", read_flow)


def test_read_frame_refuses_gif_before_decoding(tmp_path: Path) -> None:
    for name in ("a.tga", "a.gif", "a.png"):
        refused(tmp_path / name, gif(), "starts like none of them", read_frame)


def test_read_frame_recognizes_targa_by_header(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert read_frame(save(tmp_path / "a.tga", ExrPart(pixels, ("R", "G", "B")))).shape == (3, 4, 4)
    assert read_frame(save(tmp_path / "b.tga", ExrPart(pixels[..., :1].copy(), ("Y",)))).shape == (1, 4, 4)


def test_read_flow_of_empty_window_allocates_nothing(tmp_path: Path) -> None:
    path = empty_window(tmp_path / "a.exr")
    with PeakMemory() as memory:
        flow, valid = read_flow(path)
        assert (flow[:, 7, 5].tolist(), flow[:, 9, 5].tolist()) == ([1.0, -1.0], [0.0, 0.0])
        assert (bool(valid[7, 5]), bool(valid[9, 5])) == (True, False)
    assert flow.shape == (2, 8192, 16384)
    assert (memory.growth_mib or 0) < MIB


def test_read_vectors_refuses_huge_display_window(tmp_path: Path) -> None:
    path = tmp_path / "a.exr"
    save(path, ExrPart(np.ones((2, 3, 1), np.float32), ("occlusion.forward",), display=(0, 0, 1 << 20, 1 << 20)))
    refused(path, path.read_bytes(), "1048576 × 1048576 pixels, which a file of", read_flow_layers)


def test_read_flow_exr_nonfinite_vectors_are_zero(tmp_path: Path) -> None:
    pixels = np.ones((2, 2, 2), np.float32)
    pixels[0, 0, 0], pixels[1, 1, 1] = np.nan, np.inf
    flow, valid = read_flow(save(tmp_path / "a.exr", ExrPart(pixels, ("u", "v"))))
    assert valid.tolist() == [[False, True], [True, False]]
    assert flow.tolist() == [[[0.0, 1.0], [1.0, 0.0]], [[0.0, -1.0], [-1.0, 0.0]]]


def test_read_point_cloud_limits_values_of_pcd_point(tmp_path: Path) -> None:
    refused(tmp_path / "a.pcd", pcd_of_many_values(), "its fields have 8192003 values a point; at most 4096 are read")


def test_read_point_cloud_decompresses_lzf_runs_quickly(tmp_path: Path) -> None:
    (tmp_path / "a.pcd").write_bytes(lzf_of_one_byte())
    begin = time.perf_counter()
    assert not read_point_cloud(tmp_path / "a.pcd").points.any()
    assert time.perf_counter() - begin < 3


@pytest.mark.parametrize("distance", [1, 2, 3, 5, 7, 23, 24, 25])
def test_decompress_lzf_copies_any_distance(tmp_path: Path, distance: int) -> None:
    first = bytes(range(1, 26))
    body = bytes([24]) + first + bytes([0xE0, 14, distance - 1]) + bytes([1, 0, 0])  # 25, then 7 + 14 + 2, then 2 → 50
    made = bytearray(first)
    for _ in range(23):
        made.append(made[-distance])
    wanted = bytes(made) + bytes(2)
    from fullfield.io.point_formats.pcd import _decompress_lzf

    assert _decompress_lzf(tmp_path, body, 50) == wanted


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian"])
def test_read_point_cloud_refuses_ply_without_properties(tmp_path: Path, form: str) -> None:
    head = f"ply\nformat {form} 1.0\nelement vertex 3\nend_header\n".encode()
    refused(tmp_path / "a.ply", head + bytes(9), "expected points with x, y and z, got nothing")


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (npy("(True, 3)"), "not in NumPy's format"),
        (npy("(2, None)"), "not in NumPy's format"),
        (npy(r"(2, 3\d)"), "not in NumPy's format"),
        (npy("(1if 1else 2, 3)"), "not in NumPy's format"),
        (npy("(" * 4000 + ")" * 4000), "not in NumPy's format"),
        (npy("(2, 3)", r"<f8\d"), "real numbers|NumPy's format"),
        (npy("(2, 3)", "<f3"), "not in NumPy's format"),
        (npy("(99999999999999999999, 3)"), "shape"),
        (npy("(2, 3)").replace(b"'shape'", b"'sharp'"), "not in NumPy's format"),
        (npy("(2, 3)").replace(b"False", b"Fals "), "not in NumPy's format"),
        (npy("(2, 3)").replace(b"'shape'", b"[]     "), "not in NumPy's format"),
        (npy("(2, 3)").replace(b"'shape'", b"1      "), "not in NumPy's format"),
        (npy("(2, 3)").replace(b"'<f8'", b"()   "), "not in NumPy's format"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 400 << 20), "a header of 419430400 bytes"),
    ],
)
def test_read_point_cloud_refuses_other_npy_headers(tmp_path: Path, header: bytes, match: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(tmp_path / "a.npy", header + bytes(48), match)


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")  # NumPy's note on a file of Python 2
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}  ",
        '{"shape": (2, 3), "descr": "<f8", "fortran_order": False}',
        "{'descr':'=f8','fortran_order':False,'shape':(2L,3L,)}",
    ],
)
def test_read_point_cloud_reads_foreign_npy_headers(tmp_path: Path, header: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    text = header.encode() + b"\n"
    data = values.tobytes("F" if "True" in header else "C")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)
    assert read_point_cloud(tmp_path / "a.npy").points.tolist() == values.tolist()
