"""read_flow on files that are not what they should be: one line, no allocation."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from bombs import npy
from io_files import ExrPart, complaint, refused, samples, save

from fullfield import InputError
from fullfield.io import read_flow, write_flow
from fullfield.io.names import FLOW_SUFFIXES

pytestmark = pytest.mark.unit


def flo(magic: float = 202021.25, width: int = 3, height: int = 2, floats: int = 12) -> bytes:
    return struct.pack("<fii", magic, width, height) + bytes(4 * floats)


@pytest.mark.parametrize(
    ("suffix", "data", "what"),
    [
        (".flo", flo(magic=1.0), "not a .flo file: expected it to start with b'PIEH'"),
        (".flo", flo()[:3], "not a .flo file"),
        (".flo", flo()[:9], "it ends inside its header"),
        (".flo", flo(width=0), "the header says 0 × 2 pixels"),
        (".flo", flo(height=-2), "the header says 3 × -2 pixels"),
        (".flo", flo(width=-3, height=-2), "the header says -3 × -2 pixels"),
        (".flo", flo(floats=11), "the header says 3 × 2 pixels, 60 bytes; the file has 56"),
        (".flo", flo(floats=13), "60 bytes; the file has 64"),
        (".flo", flo(width=2, height=3)[:-1], "60 bytes; the file has 59"),
        (".flo", flo(width=60000, height=60000), "28800000012 bytes; the file has 60"),
        (".flo", flo(width=2**31 - 1, height=2**31 - 1), "the file has 60"),
        (".pfm", b"P6\n3 2\n255\n" + bytes(18), "not a PFM file"),
        (".pfm", b"PF\n3 2\n", "cut short"),
        (".pfm", b"PF\n3 2 -1.0", "cut short"),
        (".pfm", b"PF\n3 two\n-1\n" + bytes(72), "expected width, height and scale, got '3 two -1'"),
        (".pfm", b"PF\n3 -2\n-1\n" + bytes(72), "makes no sense"),
        (".pfm", b"PF\n3 2\n0\n" + bytes(72), "makes no sense"),
        (".pfm", b"PF\n3 2\nnan\n" + bytes(72), "makes no sense"),
        (".pfm", b"PF\n3 2\n-1\n" + bytes(71), "3 × 2 × 3 values, 82 bytes; the file has 81"),
        (".pfm", b"PF\n60000 60000\n-1\n" + bytes(72), "43200000018 bytes; the file has 90"),
        (".pfm", b"Pf\n3 2\n-1\n" + bytes(24), "expected flow in a three-channel PFM"),
        (".pfm", b"PF\n" + b" " * 600 + b"3 2\n-1\n" + bytes(72), "cut short"),
        (".npy", npy("(2, 3, 2)", "<f4") + bytes(47), "the file holds 47"),
        (".npy", npy("(60000, 60000, 2)", "<f4") + bytes(48), "28800000000 bytes"),
        (".npy", npy("(2, -3, -2)", "<f4") + bytes(48), r"shape \[2, -3, -2\]"),
        (".npy", npy("(0, 3, 2)", "<f4"), r"shape \[0, 3, 2\]"),
        (".npy", npy("(3, 4)", "<f4") + bytes(48), r"got shape \[3, 4\]"),
        (".npy", npy("(3, 4, 1)", "<f4") + bytes(48), r"got shape \[3, 4, 1\]"),
        (".npy", npy("(2, 3, 2)", "|O") + bytes(48), "real numbers, got object"),
        (".npy", npy("(1, 3, 2)", "<c8") + bytes(48), "real numbers, got complex64"),
        (".npy", npy("(1, 3, 1)", "<U4") + bytes(48), "real numbers, got <U4"),
        (".npy", (npy("(2, 3, 2)", "<f4") + bytes(48)).replace(b"Y\x01", b"Y\x07"), "version"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_read_flow_refuses_corrupt_files(tmp_path: Path, suffix: str, data: bytes, what: str) -> None:
    refused(tmp_path / f"a{suffix}", data, what, read_flow)


def test_read_flow_refuses_corrupt_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content, what in (
        ({"flow": np.zeros((3, 4))}, r"expected flow \[H, W, 2\] or \[2, H, W\], got shape \[3, 4\]"),
        ({"u": np.zeros((3, 4)), "v": np.zeros((4, 3))}, r"one shape \[H, W\], got \[3, 4\] and \[4, 3\]"),
        ({"u": np.zeros(12), "v": np.zeros(12)}, r"one shape \[H, W\], got \[12\]"),
        ({"u": np.array([None], object), "v": np.zeros(1)}, "real numbers, got object"),
    ):
        np.savez(path, **content)
        with pytest.raises(InputError, match=what) as error:
            read_flow(path)
        assert complaint(error).startswith(str(path))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="truncated or corrupt"):
        read_flow(path)


def test_read_flow_refuses_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    bomb = npy("(60000, 60000)", "<f4") + bytes(1 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u.npy", bomb)
        archive.writestr("v.npy", bomb)
    with pytest.raises(InputError, match="claims 14400000000 bytes"):
        read_flow(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("u.npy", bomb)
        archive.writestr("v.npy", bomb)
    with pytest.raises(InputError, match="method"):
        read_flow(path)


def test_read_flow_refuses_corrupt_flo5(tmp_path: Path) -> None:
    path = tmp_path / "a.flo5"

    def check(what: str) -> None:
        with pytest.raises(InputError, match=what) as error:
            read_flow(path)
        assert complaint(error).startswith(str(path))

    path.write_bytes(b"nothing of the kind")
    check("not a .flo5 file")
    huge = (60000, 60000, 2)
    for options, what in (
        ({"name": "other", "data": np.zeros((2, 2, 2))}, "expected a dataset 'flow', got other"),
        ({"name": "flow/inner", "data": np.zeros((2, 2, 2))}, "got a group"),
        ({"name": "flow", "data": np.zeros((2, 2))}, r"shape \[H, W, 2\], got \[2, 2\]"),
        ({"name": "flow", "data": np.zeros((2, 0, 2))}, r"got \[2, 0, 2\]"),
        ({"name": "flow", "dtype": "f4"}, "shape"),
        ({"name": "flow", "data": np.full((2, 2, 2), b"x")}, "real numbers"),
        ({"name": "flow", "data": np.zeros((2, 2, 2), "c8")}, "real numbers"),
        ({"name": "flow", "shape": huge, "dtype": "f4"}, "claims 28800000000 bytes .* 0 bytes are stored"),
        ({"name": "flow", "shape": huge, "dtype": "f4", "chunks": (512, 512, 2), "fillvalue": 1}, "claims"),
        ({"name": "flow", "shape": huge, "dtype": "f4", "compression": "gzip"}, "claims"),
    ):
        with h5py.File(path, "w") as file:
            file.create_dataset(**options)
        check(what)
    with h5py.File(path, "w") as file:
        file.create_dataset("elsewhere", data=np.zeros((2, 2, 2)))
        file["flow"] = h5py.SoftLink("/elsewhere")
    check("expected a dataset 'flow', got elsewhere, flow")
    with h5py.File(path, "w") as file:
        file.create_dataset("flow", (2, 2, 2), "f4", external=[("other.bin", 0, 32)])
    check("in other files")
    write_flow(path, torch.from_numpy(samples((2, 50, 50))))
    path.write_bytes(path.read_bytes()[:-500])
    check("truncated or corrupt")


def test_read_flow_refuses_pictures(tmp_path: Path, data_dir: Path) -> None:
    with pytest.raises(InputError, match=r"16-bit RGB PNG .* got uint8 × 3"):
        read_flow(data_dir / "flow" / "sintel" / "clean" / "frame_0001.png")
    path = save(tmp_path / "a.png", ExrPart(np.ones((4, 4, 1), np.uint16), ("Y",)))
    with pytest.raises(InputError, match=r"16-bit RGB PNG .* got uint16 × 1"):
        read_flow(path)
    (tmp_path / "b.png").write_bytes(b"\xff\xd8\xff" + bytes(50))
    with pytest.raises(InputError, match="got a jpeg file"):
        read_flow(tmp_path / "b.png")
    (tmp_path / "b.exr").write_bytes(b"\xff\xd8\xff" + bytes(50))
    with pytest.raises(InputError, match="expected flow in OpenEXR, got a jpeg file"):
        read_flow(tmp_path / "b.exr")


@pytest.mark.parametrize("suffix", FLOW_SUFFIXES)
def test_read_flow_names_missing_and_empty_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(FileNotFoundError, match=rf"a\{suffix}"):
        read_flow(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=rf"a\{suffix}"):
        read_flow(path)
    path.rmdir()
    path.touch()
    with pytest.raises(InputError, match="empty"):
        read_flow(path)
