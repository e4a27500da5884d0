"""Point clouds in every format, round trips, and files that lie."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bombs import lzf_file
from io_files import refused
from numpy.typing import NDArray

from fullfield import InputError
from fullfield.io import PointCloud, read_point_cloud, write_point_cloud
from fullfield.io.point_formats.coordinate_system import CoordinateSystem, SystemRecord
from fullfield.io.pointcloud import (
    merge_clouds_and_list_dropped_fields,
    read_coordinate_system_or_none,
    read_or_convert_point_cloud,
    select_common_fields_and_list_dropped,
    transform_cloud,
)

pytestmark = pytest.mark.unit

RNG = np.random.default_rng(0)
XYZ = RNG.normal(size=(7, 3)).astype(np.float32)
RGB = RNG.integers(0, 256, (7, 3)).astype(np.uint8)
UP = RNG.normal(size=(7, 3)).astype(np.float32)
UTM = XYZ.astype(np.float64) + np.array([500_000.125, 5_200_000.25, 100.0])

_NAMES = {"f4": "float", "f8": "double", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int"}


def ply(
    columns: list[tuple[str, str, Any]], form: str, before: bytes = b"", after: bytes = b"", head: str = ""
) -> bytes:
    count = len(columns[0][2])
    lines = ["ply", f"format {form} 1.0", "comment made by hand", *head.splitlines(), f"element vertex {count}"]
    lines += [f"property {_NAMES[kind]} {name}" for name, kind, _ in columns]
    lines += ["element face 1", "property list uchar int vertex_indices", "end_header", ""]
    if form == "ascii":
        rows = zip(*(np.asarray(values).tolist() for _, _, values in columns), strict=True)
        body = "".join(" ".join(map(repr, row)) + "\n" for row in rows).encode()
    else:
        order = "<" if "little" in form else ">"
        table = np.empty(count, [(name, order + kind) for name, kind, _ in columns])
        for name, _, values in columns:
            table[name] = values
        body = table.tobytes()
    return "\n".join(lines).encode() + before + body + after


def saved(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def equal(cloud: PointCloud, points: Any, colors: Any = None, normals: Any = None) -> bool:
    pairs = ((cloud.points, points), (cloud.colors, colors), (cloud.normals, normals))
    return all((a is None) == (b is None) and (a is None or np.array_equal(a, b, equal_nan=True)) for a, b in pairs)


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_read_point_cloud_ply_accepts_any_property_order(tmp_path: Path, form: str) -> None:
    columns = [
        ("red", "u1", RGB[:, 0]), ("z", "f4", XYZ[:, 2]), ("nx", "f4", UP[:, 0]), ("intensity", "i2", np.arange(7)),
        ("green", "u1", RGB[:, 1]), ("x", "f4", XYZ[:, 0]), ("ny", "f4", UP[:, 1]), ("nz", "f4", UP[:, 2]),
        ("blue", "u1", RGB[:, 2]), ("y", "f4", XYZ[:, 1]),
    ]  # fmt: skip
    cloud = read_point_cloud(saved(tmp_path, "a.PLY", ply(columns, form, after=b"3 0 1 2\n")))
    assert equal(cloud, XYZ, RGB, UP)
    assert cloud.points.dtype == np.float32
    assert cloud.attributes["intensity"].tolist() == list(range(7))


@pytest.mark.parametrize("form", ["ascii", "binary_big_endian"])
def test_read_point_cloud_ply_skips_other_elements(tmp_path: Path, form: str) -> None:
    columns = [(axis, "f8", UTM[:, i]) for i, axis in enumerate("xyz")]
    sensor = b"1 2\n" if form == "ascii" else struct.pack(">ff", 1, 2)
    head = "element sensor 1\nproperty float a\nproperty float b"
    cloud = read_point_cloud(saved(tmp_path, "a.ply", ply(columns, form, before=sensor, head=head)))
    assert equal(cloud, UTM)
    assert cloud.points.dtype == np.float64


def lzf_literals(data: bytes) -> bytes:
    return b"".join(bytes([len(data[i : i + 32]) - 1]) + data[i : i + 32] for i in range(0, len(data), 32))


def pcd(form: str, points: NDArray[Any] = XYZ) -> bytes:
    packed = (RGB.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(1).astype(np.uint32)
    head = (
        "# .PCD v0.7\n\nVERSION 0.7\nFIELDS x y z _ rgb label\nSIZE 4 4 4 1 4 2\nTYPE F F F U F U\nCOUNT 1 1 1 4 1 1\n"
        f"WIDTH 7\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 7\nDATA {form}\n"
    )
    kinds = [("xyz", "<f4", 3), ("_", "u1", 4), ("rgb", "<u4"), ("label", "<u2")]
    rows = np.zeros(7, kinds)
    rows["xyz"], rows["rgb"], rows["label"] = points, packed, np.arange(7)
    if form == "ascii":
        floats = packed.view(np.float32)
        lines = [
            f"{x!r} {y!r} {z!r} 0 0 0 0 {c!r} {i}\n"
            for i, ((x, y, z), c) in enumerate(zip(points.tolist(), floats.astype(float).tolist(), strict=True))
        ]
        return (head + "".join(lines)).encode()
    if form == "binary":
        return head.encode() + rows.tobytes()
    flat = b"".join(np.ascontiguousarray(rows["xyz"][:, i]).tobytes() for i in range(3))
    flat += bytes(4 * 7) + packed.tobytes() + rows["label"].tobytes()
    body = lzf_literals(flat)
    return head.encode() + struct.pack("<II", len(body), len(flat)) + body


@pytest.mark.parametrize("form", ["ascii", "binary", "binary_compressed"])
def test_read_point_cloud_of_pcd(tmp_path: Path, form: str) -> None:
    points = XYZ.copy()
    points[2] = np.nan  # organised clouds mark what the sensor did not see
    cloud = read_point_cloud(saved(tmp_path, "a.pcd", pcd(form, points)))
    assert equal(cloud, points, RGB)
    assert cloud.attributes["label"].tolist() == list(range(7))
    assert list(cloud.attributes) == ["label"]


def test_read_point_cloud_of_numpy_and_kitti(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", XYZ)
    assert equal(read_point_cloud(tmp_path / "a.npy"), XYZ)
    np.save(tmp_path / "b.npy", np.concatenate([UTM, UTM[:, :1]], 1))
    wide = read_point_cloud(tmp_path / "b.npy")
    assert equal(wide, UTM)
    assert np.array_equal(wide.attributes["column_3"], UTM[:, 0])
    np.savez_compressed(tmp_path / "c.npz", points=XYZ, colors=RGB, normals=UP, label=np.arange(7))
    assert equal(read_point_cloud(tmp_path / "c.npz"), XYZ, RGB, UP)
    np.concatenate([XYZ, XYZ[:, :1]], 1).astype("<f4").tofile(tmp_path / "d.bin")
    kitti = read_point_cloud(tmp_path / "d.bin")
    assert equal(kitti, XYZ)
    assert np.array_equal(kitti.attributes["intensity"], XYZ[:, 0])


def test_read_point_cloud_of_las(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=2, version="1.2")
    header.offsets, header.scales = UTM.min(0), [1e-4] * 3
    las = laspy.LasData(header)
    las.x, las.y, las.z = UTM.T
    las.red, las.green, las.blue = (RGB.astype(np.uint16) * 256).T
    las.write(tmp_path / "a.las")
    cloud = read_point_cloud(tmp_path / "a.las")
    assert np.abs(cloud.points - UTM).max() < 1e-4
    assert np.array_equal(cloud.colors, RGB.astype(np.uint16) * 256)
    assert "intensity" in cloud.attributes
    data = (tmp_path / "a.las").read_bytes()
    with pytest.raises(InputError, match=r"cut\.las"):
        read_point_cloud(saved(tmp_path, "cut.las", data[:-20]))
    with pytest.raises(InputError, match=r"bad\.las"):
        read_point_cloud(saved(tmp_path, "bad.las", b"LASF" + bytes(400)))


@pytest.mark.parametrize("form", [0, 3, 6, 7, 8])
@pytest.mark.parametrize("extra", [False, True])
def test_read_point_cloud_of_laz(tmp_path: Path, form: int, extra: bool) -> None:
    """Several chunks of 50,000 points: their lengths are checked before a decompressor sees them."""
    laspy = pytest.importorskip("laspy")
    pytest.importorskip("lazrs", reason="LAZ needs a decompressor (pip install lazrs)")
    header = laspy.LasHeader(point_format=form, version="1.4")
    header.scales = [1e-3] * 3
    if extra:
        header.add_extra_dim(laspy.ExtraBytesParams("shade", "uint16"))
    las = laspy.LasData(header)
    points = np.random.default_rng(form).integers(0, 10_000, (120_000, 3)) * 1e-3
    las.x, las.y, las.z = points.T
    las.intensity = np.arange(len(points)) % 60_000
    las.write(tmp_path / "a.laz")
    cloud = read_point_cloud(tmp_path / "a.laz")
    assert np.abs(cloud.points - points).max() < 1e-6
    assert np.array_equal(cloud.attributes["intensity"], np.arange(len(points)) % 60_000)
    data = bytearray((tmp_path / "a.laz").read_bytes())
    (start,), (row,) = struct.unpack_from("<I", data, 96), struct.unpack_from("<H", data, 105)
    (table,) = struct.unpack_from("<q", data, start)
    struct.pack_into("<I", data, table + 4, 0x7FFFFFFF)
    del data[table + 8 :]
    for place, message in (
        (table, "2147483647 chunks of points in"),
        (table + 1, "its table of chunks is at byte"),
        (start + 8, "chunks of points in 8 bytes"),
        (start + 7, "its table of chunks is at byte"),
    ):
        struct.pack_into("<q", data, start, place)
        with pytest.raises(InputError, match=message):
            read_point_cloud(saved(tmp_path, "b.laz", bytes(data)))
    if form >= 6:
        data = bytearray((tmp_path / "a.laz").read_bytes())
        struct.pack_into("<I", data, start + 8 + row + 4 + 8, 0x7FFFFFFF)
        with pytest.raises(InputError, match=r"a chunk ends .* bytes behind the last point"):
            read_point_cloud(saved(tmp_path, "c.laz", bytes(data)))


@pytest.mark.parametrize("suffix", [".ply", ".npz"])
@pytest.mark.parametrize("points", [XYZ, UTM])
def test_write_point_cloud_round_trip_keeps_all_fields(tmp_path: Path, suffix: str, points: NDArray[Any]) -> None:
    cloud = PointCloud(points, RGB, UP, {"time": np.arange(7) / 3, "count": np.arange(7, dtype=np.int32)})
    path = tmp_path / f"a{suffix}"
    write_point_cloud(path, cloud)
    back = read_point_cloud(path)
    assert equal(back, points, RGB, UP)
    assert back.points.dtype == points.dtype
    assert {k: v.tolist() for k, v in back.attributes.items()} == {k: v.tolist() for k, v in cloud.attributes.items()}


def test_write_point_cloud_npy_refuses_extra_fields(tmp_path: Path) -> None:
    write_point_cloud(tmp_path / "a.npy", PointCloud(XYZ))
    assert np.array_equal(np.load(tmp_path / "a.npy"), XYZ)
    with pytest.raises(InputError, match=r"the cloud has colors, time; take \.npz or \.ply") as refused:
        write_point_cloud(tmp_path / "b.npy", PointCloud(XYZ, RGB, attributes={"time": np.arange(7)}))
    assert str(refused.value).startswith(f"{tmp_path / 'b.npy'}: ")
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize("suffix", [".ply", ".npy"])
def test_write_point_cloud_refuses_integers_that_floats_round(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    for exact, dtype in ((2**53, np.int64), (-(2**53), np.int64), (2**53, np.uint64), (2**25 + 1, np.int32)):
        write_point_cloud(path, PointCloud(XYZ, attributes={"column_3": np.full(7, exact, dtype)}))
        assert read_point_cloud(path).attributes["column_3"].tolist() == [exact] * 7
    cloud = PointCloud(XYZ, attributes={"column_3": np.full(7, 2**60 + 1)})
    with pytest.raises(InputError, match=rf"b\{suffix}: floats of \{suffix} round .* in column_3; take \.npz"):
        write_point_cloud(tmp_path / f"b{suffix}", cloud)
    write_point_cloud(tmp_path / "b.npz", cloud)
    assert read_point_cloud(tmp_path / "b.npz").attributes["column_3"].tolist() == [2**60 + 1] * 7


def test_read_or_convert_point_cloud_accepts_arrays_and_open3d() -> None:
    assert equal(read_or_convert_point_cloud(XYZ), XYZ)
    assert equal(read_or_convert_point_cloud(torch.from_numpy(UTM)), UTM)
    open3d = SimpleNamespace(points=UTM.tolist(), colors=np.empty((0, 3)), normals=UP.tolist())
    assert equal(read_or_convert_point_cloud(open3d), UTM, None, UP.astype(np.float64))
    for wrong in (3, np.zeros(3), np.zeros((2, 2)), np.zeros((3, 3), bool), SimpleNamespace(points=[1, 2])):
        with pytest.raises(InputError, match="scan"):
            read_or_convert_point_cloud(wrong, "scan")


@pytest.mark.parametrize("suffix", [".ply", ".npz", ".npy"])
def test_write_point_cloud_accepts_tensors_and_arrays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    tensor: Any = torch.from_numpy(UTM)
    for cloud in (UTM, tensor, tensor.clone().requires_grad_(), PointCloud(tensor)):
        write_point_cloud(path, cloud)
        assert equal(read_point_cloud(path), UTM)
    if suffix != ".npy":
        whole: Any = PointCloud(torch.from_numpy(XYZ), torch.from_numpy(RGB), attributes={"n": torch.arange(7)})
        write_point_cloud(path, whole)
        assert equal(read_point_cloud(path), XYZ, RGB)
        write_point_cloud(path, PointCloud(XYZ, attributes={"is_ground": np.arange(7) > 3}))
        assert read_point_cloud(path).attributes["is_ground"].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_write_point_cloud_refuses_other_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    wrong: list[Any] = [
        "b.ply", 3, np.zeros(3), PointCloud(np.zeros((3, 4))), PointCloud(XYZ, RGB[:5]),
        PointCloud(XYZ, attributes={"n": np.arange(6)}), PointCloud(XYZ, attributes={"n": np.array(["a"] * 7)}),
    ]  # fmt: skip
    for cloud in wrong:
        with pytest.raises(InputError, match=r"^cloud"):
            write_point_cloud(path, cloud)
    assert not path.exists()


def test_transform_cloud_rotates_normals_and_keeps_precision() -> None:
    turn = np.array([[0.0, -1, 0, 10], [1, 0, 0, 20], [0, 0, 1, 30], [0, 0, 0, 1]])
    near = transform_cloud(PointCloud(XYZ, RGB, UP), turn)
    assert near.points.dtype == np.float32
    assert np.allclose(near.points, np.stack([10 - XYZ[:, 1], 20 + XYZ[:, 0], 30 + XYZ[:, 2]], 1), atol=1e-5)
    assert np.allclose(near.normals, np.stack([-UP[:, 1], UP[:, 0], UP[:, 2]], 1))
    turn[:3, 3] = (5e5, 5e6, 0)
    assert transform_cloud(PointCloud(XYZ), turn).points.dtype == np.float64


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


XYZ_COLUMNS = [(axis, "f4", XYZ[:, i]) for i, axis in enumerate("xyz")]
GOOD_PLY = ply(XYZ_COLUMNS, "binary_little_endian")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.ply", b"", "the file is empty"),
        ("a.ply", b"plyx\n", "does not begin with 'ply'"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 3\n", "does not end"),
        ("a.ply", GOOD_PLY.replace(b"vertex 7", b"vertex 70000000000"), "the header says 70000000000 points"),
        ("a.ply", ply(XYZ_COLUMNS, "ascii").replace(b"vertex 7", b"vertex 9000000000"), "bytes of text cannot hold"),
        ("a.ply", ply(XYZ_COLUMNS, "ascii")[:-30], "expected 7 points|no row of 3 numbers"),
        ("a.ply", GOOD_PLY.replace(b"float y", b"float x"), "has a property twice"),
        ("a.ply", GOOD_PLY.replace(b"float y", b"float w"), "expected points with x, y and z, got x, w, z"),
        ("a.ply", GOOD_PLY.replace(b"float y", b"quark y"), "cannot read 'property quark y'"),
        ("a.ply", GOOD_PLY.replace(b"element vertex", b"element vertices"), "no element vertex"),
        ("a.ply", GOOD_PLY.replace(b"property float y", b"property list uchar int y"), "lists of values"),
        ("a.pcd", b"FIELDS x y z\n", "header does not end"),
        ("a.pcd", pcd("binary").replace(b"POINTS 7", b"POINTS 7000000000000"), "the header says 7000000000000 points"),
        ("a.pcd", pcd("ascii").replace(b"POINTS 7", b"POINTS 7000000000000"), "bytes of text cannot hold"),
        ("a.pcd", pcd("binary_compressed").replace(b"POINTS 7", b"POINTS 7000000000000"), "the header says 7000000"),
        ("a.pcd", lzf_file(b"\xe0\x6e\x05\x00", 10), "cannot be unpacked"),
        ("a.pcd", pcd("binary").replace(b"POINTS 7", b"POINTS seven"), "POINTS is seven"),
        ("a.pcd", pcd("binary").replace(b"TYPE F F", b"TYPE F Q"), "field y Q 4 1"),
        ("a.pcd", pcd("binary").replace(b"DATA binary", b"DATA morse"), "DATA 'morse' is unknown"),
        ("a.pcd", pcd("binary").replace(b"DATA binary", b"DATA"), "DATA '' is unknown"),
        ("a.npy", b"\x93NUMPY", "not in NumPy's format"),
        ("a.npy", npy(np.zeros((0, 3))), r"expected the array to hold at least one number, got shape \[0, 3\]"),
        ("a.npz", b"PK\x03\x04nothing", "truncated or corrupt"),
        ("a.bin", bytes(17), "no multiple"),
        ("a.xyz", b"1 2 3", "unknown format '.xyz'"),
    ],
)
def test_read_point_cloud_refuses_wrong_headers_in_one_line(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    refused(tmp_path / name, data, message)


@pytest.mark.parametrize(("name", "data"), [("a.ply", ply(XYZ_COLUMNS, "ascii")), ("a.pcd", pcd("ascii"))])
def test_read_point_cloud_text_beyond_float32_is_infinite(
    tmp_path: Path, name: str, data: bytes, recwarn: pytest.WarningsRecorder
) -> None:
    row = data.splitlines()[-7]
    cloud = read_point_cloud(saved(tmp_path, name, data.replace(row, b"1e99 " + row.split(b" ", 1)[1])))
    assert np.isinf(cloud.points[0, 0])
    assert not recwarn.list


def test_read_point_cloud_refuses_every_truncation(tmp_path: Path) -> None:
    """No prefix of a file brings anything but one line."""
    for name, data in (("a.ply", GOOD_PLY), ("a.pcd", pcd("binary")), ("b.pcd", pcd("binary_compressed"))):
        for end in range(1, len(data) - 1, 7):
            with pytest.raises(InputError):
                read_point_cloud(saved(tmp_path, name, data[:end]))


def test_read_point_cloud_accepts_empty_cloud(tmp_path: Path) -> None:
    for form in ("ascii", "binary_little_endian"):
        empty = ply([(axis, "f4", np.empty(0)) for axis in "xyz"], form)
        assert len(read_point_cloud(saved(tmp_path, "a.ply", empty))) == 0


def test_point_cloud_converts_to_array() -> None:
    cloud = PointCloud(np.arange(12, dtype=np.float32).reshape(4, 3))
    assert np.shares_memory(np.asarray(cloud), cloud.points)
    assert np.shares_memory(np.asarray(cloud, np.float32), cloud.points)
    assert not np.shares_memory(np.array(cloud), cloud.points)
    assert np.asarray(cloud, np.float64).dtype == np.float64
    assert np.array_equal(np.asarray(cloud, np.float64), cloud.points)
    assert not np.shares_memory(cloud.__array__(copy=True), cloud.points)
    assert cloud.__array__(copy=False) is cloud.points
    with pytest.raises(ValueError, match=r"copy: points of type float32 become float64 only by a copy"):
        cloud.__array__(np.float64, copy=False)
    assert np.cov(cloud, rowvar=False).shape == (3, 3)
    assert np.array_equal(np.asarray(PointCloud(torch.ones(2, 3))), np.ones((2, 3)))


# oddities


def ascii_pcd(
    kind: str, *rows: str, head: str = "VERSION .7\nFIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F {}\n"
) -> bytes:
    lines = "".join(f"{row}\n" for row in rows)
    return f"{head.format(kind)}WIDTH {len(rows)}\nHEIGHT 1\nPOINTS {len(rows)}\nDATA ascii\n{lines}".encode()


@pytest.mark.parametrize("kind", ["F", "U", "I"])
def test_read_point_cloud_unpacks_ascii_pcd_colors(tmp_path: Path, kind: str) -> None:
    """Whole numbers are packed colours under any type; NaN is no colour."""
    data = ascii_pcd(kind, "0 0 1 13132850", "1 0 1 nan", "2 0 1 4291559424", "3 0 1 255", "4 0 1 -3407872")
    colors = read_point_cloud(saved(tmp_path, "a.pcd", data)).colors
    assert colors is not None
    assert colors.tolist() == [[200, 100, 50], [0, 0, 0], [204, 0, 0], [0, 0, 255], [204, 0, 0]]


def test_read_point_cloud_unpacks_float_pcd_colors(tmp_path: Path) -> None:
    words = np.array([(200 << 16) + (100 << 8) + 50, 7, 0], np.uint32)
    rows = [f"0 0 1 {float(value)!r}" for value in words.view(np.float32)]
    colors = read_point_cloud(saved(tmp_path, "a.pcd", ascii_pcd("F", *rows))).colors
    assert colors is not None
    assert colors.tolist() == [[200, 100, 50], [0, 0, 7], [0, 0, 0]]


def test_read_point_cloud_pcd_nan_color_is_black(tmp_path: Path) -> None:
    rows = np.zeros(2, [("xyz", "<f4", 3), ("rgb", "<f4")])
    rows["rgb"] = np.nan, np.array([0xFF0A0B0C], "<u4").view("<f4")[0]
    head = "VERSION .7\nFIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F F\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA binary\n"
    colors = read_point_cloud(saved(tmp_path, "a.pcd", head.encode() + rows.tobytes())).colors
    assert colors is not None
    assert colors.tolist() == [[0, 0, 0], [10, 11, 12]]


@pytest.mark.parametrize("head", ["VERSION .5\nCOLUMNS x y z\n", "# .PCD v.5\nVERSION .5\nFIELDS x y z\n"])
def test_read_point_cloud_reads_old_pcd_versions(tmp_path: Path, head: str) -> None:
    for points in ("WIDTH 2\nHEIGHT 1\nPOINTS 2\n", "WIDTH 1\nHEIGHT 2\n", "POINTS 2\n", "WIDTH 2\n"):
        data = f"{head}{points}DATA ascii\n1 2 3\n4 5 6.5\n".encode()
        assert read_point_cloud(saved(tmp_path, "a.pcd", data)).points.tolist() == [[1, 2, 3], [4, 5, 6.5]]


@pytest.mark.parametrize(("value", "kind"), [("nan", "U"), ("-1", "U"), ("300", "U"), ("200", "I"), ("inf", "I")])
def test_read_point_cloud_pcd_refuses_numbers_beyond_type(tmp_path: Path, value: str, kind: str) -> None:
    head = "VERSION .7\nFIELDS x y z label\nSIZE 4 4 4 1\nTYPE F F F {}\n"
    with pytest.raises(InputError, match=rf"a\.pcd: field label holds whole numbers of type {kind.lower()}1, got"):
        read_point_cloud(saved(tmp_path, "a.pcd", ascii_pcd(kind, f"0 0 0 {value}", head=head)))


def test_read_point_cloud_las_keeps_array_dimensions(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.add_extra_dim(laspy.ExtraBytesParams("normal", "3f4"))
    las = laspy.LasData(header)
    las.x, las.y, las.z = XYZ.T
    las.normal = UP
    las.write(tmp_path / "a.las")
    cloud = read_point_cloud(tmp_path / "a.las")
    write_point_cloud(tmp_path / "a.ply", cloud)
    for read in (cloud, read_point_cloud(tmp_path / "a.ply")):
        assert np.array_equal(np.stack([read.attributes[f"normal_{i}"] for i in range(3)], 1), UP)


# .bin without a header


def scan(count: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(0, 20, (count, columns)).astype("<f4")
    rows[:, 3] = draw.uniform(0, 1 if columns == 4 else 200, count)
    if columns > 4:
        rows[:, 4] = np.arange(count) % 32 if columns == 5 else draw.uniform(0, 1, count)
    return rows


@pytest.mark.parametrize("count", [7, 60, 1000, 1002])
@pytest.mark.parametrize(
    ("columns", "name"), [(4, "a.bin"), (5, "a.pcd.bin"), (5, "a.bin"), (6, "a.bin"), (4, "b.pcd.bin")]
)
def test_read_point_cloud_bin_infers_columns(tmp_path: Path, count: int, columns: int, name: str) -> None:
    rows = scan(count, columns)
    rows.tofile(tmp_path / name)
    cloud = read_point_cloud(tmp_path / name)
    assert np.array_equal(cloud.points, rows[:, :3])
    assert np.array_equal(cloud.attributes["intensity"], rows[:, 3])
    assert list(cloud.attributes) == {4: ["intensity"], 5: ["intensity", "ring"]}.get(
        columns, ["intensity", "elongation", "time"]
    )


def test_read_point_cloud_bin_refuses_ambiguous_columns(tmp_path: Path) -> None:
    rows = np.abs(scan(100, 5))
    rows[:] = np.floor(rows)
    rows.tofile(tmp_path / "a.bin")
    with pytest.raises(InputError, match=r"a\.bin: expected rows of 4 .*, and its 500 numbers fit 4 or 5; name"):
        read_point_cloud(tmp_path / "a.bin")
    for columns in (4, 5):
        assert len(read_point_cloud(tmp_path / "a.bin", columns=columns)) == 500 // columns
    with pytest.raises(InputError, match="expected rows of 7 float32, 28 bytes; 2000 bytes are no multiple of that"):
        read_point_cloud(tmp_path / "a.bin", columns=7)
    np.save(tmp_path / "a.npy", rows)
    with pytest.raises(InputError, match=r"only \.bin has columns to name, got columns=5"):
        read_point_cloud(tmp_path / "a.npy", columns=5)


WKT = 'PROJCS["WGS 84 / UTM zone 33N",GEOGCS["WGS 84",AUTHORITY["EPSG","4326"]],AUTHORITY["EPSG","32633"]]'
KEYS = np.array([[1, 1, 0, 2], [1024, 0, 1, 1], [3072, 0, 1, 32633]], "<u2").tobytes()


@pytest.mark.parametrize(
    ("record_id", "content", "is_wkt", "name"),
    [
        (2112, WKT.encode() + b"\0", True, "EPSG:32633"),
        (2112, b'LOCAL_CS["site grid"]\0', True, "site grid"),
        (2112, b'COMPD_CS["A + B",PROJCS["A"],VERT_CS["B",AUTHORITY["EPSG","5773"]]]', True, "A + B"),
        (2112, b'LOCAL_CS["large"]' + b" " * 70_000, True, "large"),
        (34735, KEYS, False, "EPSG:32633"),
        (34737, b"no code|\0", False, "unknown"),
    ],
)
@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_write_point_cloud_las_keeps_coordinate_system(
    tmp_path: Path, suffix: str, record_id: int, content: bytes, is_wkt: bool, name: str
) -> None:
    laspy = pytest.importorskip("laspy")
    if suffix == ".laz":
        pytest.importorskip("lazrs")
    system = CoordinateSystem((SystemRecord(record_id, "a description", content),), is_wkt)
    assert system.name == name
    write_point_cloud(tmp_path / f"a{suffix}", PointCloud(UTM, coordinate_system=system))
    with laspy.open(tmp_path / f"a{suffix}") as stream:
        header = stream.read().header
    assert header.global_encoding.wkt == is_wkt
    records = [*header.vlrs, *(header.evlrs or ())]
    assert (record_id, "LASF_Projection") in [(record.record_id, record.user_id) for record in records]
    cloud = read_point_cloud(tmp_path / f"a{suffix}")
    again = transform_cloud(cloud, np.eye(4)).coordinate_system
    assert again.name == name
    assert again.records[0].content.rstrip(b"\0") == content.rstrip(b"\0")
    assert read_coordinate_system_or_none(tmp_path / f"a{suffix}") == again
    assert merge_clouds_and_list_dropped_fields([cloud, cloud])[0].coordinate_system is None
    write_point_cloud(tmp_path / "a.ply", cloud)
    assert read_coordinate_system_or_none(tmp_path / "a.ply") is None


def test_merge_clouds_joins_fields_that_all_have() -> None:
    points, time, row = np.eye(3), np.arange(3), np.arange(3.0)
    first = PointCloud(points, np.full((3, 3), 128, np.uint8), points, {"time": time, "row": row})
    second = PointCloud(points + 1, np.full((3, 3), 0.5), None, {"row": row + 3, "class": time})
    selected, dropped = select_common_fields_and_list_dropped([first, second])
    assert dropped == ["normals", "time", "class"]
    assert [list(cloud.attributes) for cloud in selected] == [["row"], ["row"]]
    assert all(cloud.normals is None and cloud.colors is not None for cloud in selected)
    merged, of_merged = merge_clouds_and_list_dropped_fields([first, second])
    assert of_merged == dropped
    assert np.array_equal(merged.points, np.concatenate((points, points + 1)))
    assert np.array_equal(merged.colors, np.full((6, 3), 128))
    assert merged.colors.dtype == np.uint8
    assert merged.normals is None
    assert np.array_equal(merged.attributes.pop("row"), np.arange(6.0))
    assert merged.attributes == {}


@pytest.mark.parametrize("suffix", [".ply", ".pcd", ".las", ".laz"])
def test_write_point_cloud_keeps_colors_normals_and_attributes(tmp_path: Path, suffix: str) -> None:
    if suffix in (".las", ".laz"):
        laspy = pytest.importorskip("laspy")
        if suffix == ".laz" and not laspy.LazBackend.detect_available():
            pytest.skip("no LAZ backend")
    draw = np.random.default_rng(0)
    colors = draw.integers(0, 256, (50, 3)).astype(np.uint8)
    normals = draw.normal(size=(50, 3)).astype(np.float32)
    attributes = {"intensity": draw.integers(0, 900, 50).astype(np.uint16), "weight": draw.random(50)}
    cloud = PointCloud(draw.random((50, 3)) * 100 + (450_000, 5_400_000, 0), colors, normals, attributes)
    path = tmp_path / f"a{suffix}"
    write_point_cloud(path, cloud)
    read = read_point_cloud(path)
    assert np.abs(read.points - cloud.points).max() < 1e-4
    assert np.array_equal(read.colors >> 8 if read.colors.dtype == np.uint16 else read.colors, colors)
    columns = read.attributes
    found = np.stack([columns[name] for name in ("nx", "ny", "nz")], 1) if read.normals is None else read.normals
    assert np.array_equal(found, normals)
    for name, values in attributes.items():
        assert np.array_equal(columns[name], values)


def test_write_point_cloud_ply_stores_uint8_colors(tmp_path: Path) -> None:
    for colors in (np.full((4, 3), 0.5), np.full((4, 3), 32896, np.uint16), np.full((4, 3), 128, np.uint8)):
        write_point_cloud(tmp_path / "a.ply", PointCloud(np.eye(4)[:, :3], colors))
        read = read_point_cloud(tmp_path / "a.ply")
        assert read.colors.dtype == np.uint8
        assert np.array_equal(read.colors, np.full((4, 3), 128))


def test_write_point_cloud_las_refuses_nonfinite_points(tmp_path: Path) -> None:
    pytest.importorskip("laspy")
    with pytest.raises(InputError, match="finite points only"):
        write_point_cloud(tmp_path / "a.las", PointCloud(np.full((2, 3), np.nan)))
