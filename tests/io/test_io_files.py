"""Writing: all or nothing, whatever happens; and write_image."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from io_files import complaint, samples
from PIL import Image

from fullfield import InputError
from fullfield.io import (
    files,
    read_flow,
    read_frame,
    read_point_cloud,
    write_flow,
    write_image,
    write_point_cloud,
    write_st_map,
)
from fullfield.io.files import write_atomically
from fullfield.io.names import FLOW_WRITE_SUFFIXES, IMAGE_WRITE_SUFFIXES

WRITERS = [*(f"flow{s}" for s in FLOW_WRITE_SUFFIXES), *(f"image{s}" for s in IMAGE_WRITE_SUFFIXES), "map.exr"]


def write(path: Path, side: int = 5) -> None:
    """Write something in the format that the name says, see WRITERS."""
    content = torch.from_numpy(samples((3, side, side)))
    if path.name.startswith("flow"):
        write_flow(path, content[:2])
    elif path.name.startswith("map"):
        write_st_map(path, content[:2])
    else:
        write_image(path, content)


# atomic_path


@pytest.mark.unit
def test_write_atomically_shows_file_at_end_of_block(tmp_path: Path) -> None:
    target = tmp_path / "a.flo"
    with write_atomically(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".flo"
        assert temporary.name.startswith(".")
        temporary.write_bytes(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.unit
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_write_atomically_keeps_old_file_on_failure(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.flo"
    target.write_bytes(b"old")

    def fail() -> None:
        with write_atomically(target) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.unit
def test_write_atomically_supports_two_writers(tmp_path: Path) -> None:
    target = tmp_path / "a.flo"
    with write_atomically(target) as first, write_atomically(target) as second:
        assert first != second
        first.write_bytes(b"1")
        second.write_bytes(b"2")
    assert target.read_bytes() == b"1"


@pytest.mark.unit
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_write_atomically_mode_follows_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for name in WRITERS:
            write(tmp_path / name)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask, name
    finally:
        os.umask(before)


@pytest.mark.unit
def test_write_atomically_writes_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.flo").symlink_to(tmp_path / "real" / "a.flo")
    write_flow(tmp_path / "link.flo", torch.zeros(2, 3, 4))
    assert (tmp_path / "link.flo").is_symlink()
    assert (tmp_path / "real" / "a.flo").stat().st_size == 12 + 2 * 4 * 12


@pytest.mark.unit
def test_write_atomically_accepts_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_flow("a.flo", torch.zeros(2, 3, 4))
    assert (tmp_path / "a.flo").is_file()


@pytest.mark.unit
def test_write_atomically_accepts_long_name(tmp_path: Path) -> None:
    write_flow(tmp_path / ("n" * 251 + ".flo"), torch.zeros(2, 3, 4))


@pytest.mark.unit
@pytest.mark.parametrize("name", WRITERS)
def test_write_atomically_names_unwritable_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot write into this folder: .*nowhere") as error:
        write(tmp_path / "nowhere" / name)
    complaint(error)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot write into this folder") as error:
        write(tmp_path / "file" / name)
    complaint(error)
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError, match=name):
        write(tmp_path / name)


@pytest.mark.unit
def test_write_atomically_names_folder_without_permission(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(PermissionError, match=r"cannot write into this folder: .*locked"):
        write_flow(folder / "a.flo", torch.zeros(2, 3, 4))


@pytest.mark.unit
def test_write_atomically_refuses_devices() -> None:
    if not Path("/dev/null").exists():
        pytest.skip("no /dev/null here")
    with pytest.raises(InputError, match="regular file to replace"), write_atomically("/dev/null"):
        pass
    assert not Path("/dev/null").is_file()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.path.insert(0, sys.argv[1])
from test_io_files import WRITERS, write
folder = Path(sys.argv[2])
for name in WRITERS:
    write(folder / name, 120)
whole = {name: (folder / name).read_bytes() for name in WRITERS}
for short in (1, 2000, 20000):
    for name in WRITERS:
        limit = max(len(whole[name]) - short, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            write(folder / name, 120)
        except OSError as error:
            assert name in str(error) and len(str(error).splitlines()) == 1, error
            assert ".part" not in str(error), error
        else:
            raise SystemExit(f"{name}: written {short} bytes short without a complaint")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (folder / name).read_bytes() == whole[name], name
    assert sorted(p.name for p in folder.iterdir()) == sorted(WRITERS)
print("every short write was noticed")
"""


def test_writers_name_file_on_full_disk(tmp_path: Path, run_measured_script: Callable[..., str]) -> None:
    """The limit on a file's size stands for the full disk; in a process of its own, for libraries that crash."""
    assert "every short write was noticed" in run_measured_script(FULL_DISK, Path(__file__).parent, tmp_path)


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_io_files import read_flow, write
target = Path(sys.argv[2])
writer = os.fork()
while writer == 0:
    write(target, 300)
    write(target, 301)
try:
    deadline = time.monotonic() + 60
    while not target.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.1)
    for _ in range(10):
        assert read_flow(target).flow.shape[1] in (300, 301)
finally:
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
"""


def test_write_atomically_leaves_no_partial_file_when_killed(
    tmp_path: Path, run_measured_script: Callable[..., str]
) -> None:
    target = tmp_path / "flow.exr"
    run_measured_script(KILLED, Path(__file__).parent, target)
    assert read_flow(target).flow.shape[1] in (300, 301)
    assert all(path == target or path.name.startswith(".") for path in tmp_path.iterdir())


# write_image


@pytest.mark.unit
@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_write_image_keeps_integers(tmp_path: Path, suffix: str, channels: int, dtype: type) -> None:
    full = np.iinfo(dtype).max
    pixels = np.random.default_rng(0).integers(0, full + 1, (7, 9, channels)).astype(dtype)
    path = tmp_path / f"a{suffix}"
    expected = torch.from_numpy((pixels / full).astype(np.float32).transpose(2, 0, 1).copy())
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    tensors = (torch.from_numpy(pixels), torch.from_numpy(planes)) if dtype == np.uint8 else ()
    for image in (pixels, planes, *tensors):
        write_image(path, image)
        assert torch.allclose(read_frame(path), expected, atol=1e-7)


@pytest.mark.unit
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_write_image_rounds_and_clamps_floats(tmp_path: Path, suffix: str) -> None:
    frame = torch.tensor([-1.0, 0.0, 0.1, 0.5, 1.0, 7.0]).expand(3, 2, 6)
    write_image(tmp_path / f"a{suffix}", frame)
    expected = torch.tensor([0, 0, 26, 128, 255, 255]) / 255
    assert torch.allclose(read_frame(tmp_path / f"a{suffix}"), expected.expand(3, 2, 6), atol=1e-7)


@pytest.mark.unit
@pytest.mark.parametrize("channels", [1, 3])
def test_write_image_exr_round_trip(tmp_path: Path, channels: int) -> None:
    frame = torch.from_numpy(samples((channels, 11, 12))) * 4
    write_image(tmp_path / "a.exr", frame)
    assert torch.allclose(read_frame(tmp_path / "a.exr"), frame, rtol=1e-6, atol=1e-6)
    linear = read_frame(tmp_path / "a.exr", transfer="srgb")
    assert not torch.allclose(linear, frame, atol=0.1)
    write_image(tmp_path / "b.exr", (frame.clamp(0, 1) * 255).to(torch.uint8))
    assert torch.allclose(read_frame(tmp_path / "b.exr"), frame.clamp(0, 1), atol=1.01 / 255)


@pytest.mark.unit
def test_write_image_jpeg_is_approximate(tmp_path: Path) -> None:
    smooth = torch.linspace(0, 1, 64).expand(3, 64, 64)
    for suffix in (".jpg", ".JPEG"):
        write_image(tmp_path / f"a{suffix}", smooth)
        assert Image.open(tmp_path / f"a{suffix}").format == "JPEG"
        assert torch.allclose(read_frame(tmp_path / f"a{suffix}"), smooth, atol=0.02)
    write_image(tmp_path / "g.jpg", smooth[0])
    assert read_frame(tmp_path / "g.jpg").shape == (1, 64, 64)
    with pytest.raises(InputError, match="uint8 or floating point for JPEG"):
        write_image(tmp_path / "a.jpg", np.zeros((4, 4, 3), np.uint16))


@pytest.mark.unit
def test_write_image_png_is_plain_picture(tmp_path: Path) -> None:
    pixels = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    write_image(tmp_path / "a.png", pixels)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), pixels)
    write_image(tmp_path / "a.png", torch.from_numpy(pixels))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), pixels.transpose(1, 2, 0))
    write_image(tmp_path / "a.png", pixels[:, :, 0])
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), pixels[:, :, 0])


@pytest.mark.unit
@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 5, 2), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
        np.zeros((4, 5, 3), np.int32),
        np.zeros((1, 4, 5, 3), np.uint8),
        torch.full((3, 4, 5), float("nan")),
        [[0, 1]],
    ],
)
def test_write_image_refuses_other_shapes(tmp_path: Path, image: object) -> None:
    with pytest.raises(InputError, match="image: expected") as error:
        write_image(tmp_path / "a.png", image)  # type: ignore[arg-type]
    complaint(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
def test_write_image_refuses_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.gif: .*\.png, \.jpg.*, got '\.gif'") as error:
        write_image(tmp_path / "a.gif", torch.zeros(3, 4, 4))
    complaint(error)


# imports


LOADED = """
import sys, fullfield.io as io, fullfield.io.names
io.names.FLOW_SUFFIXES
print([name for name in ("numpy", "torch", "OpenImageIO", "h5py", "PIL") if name in sys.modules])
"""


def test_import_io_loads_no_torch(run_measured_script: Callable[..., str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    functions = LOADED.replace("io.names.FLOW_SUFFIXES", "io.read_flow, io.read_frame, io.write_image")
    assert run_measured_script(functions) == "['numpy', 'torch']\n"


@pytest.mark.unit
def test_readers_log_opened_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_image(tmp_path / "a.png", torch.zeros(3, 4, 4))
    write_flow(tmp_path / "a.flo", torch.zeros(2, 4, 4))
    with caplog.at_level("DEBUG", logger="fullfield"):
        read_frame(tmp_path / "a.png")
        read_flow(tmp_path / "a.flo")
    for name in ("a.png", "a.flo"):
        assert f"opened {tmp_path / name}" in caplog.text


# files that another process replaces while they are read


@pytest.mark.unit
@pytest.mark.parametrize("name", ["flow.flo", "flow.pfm", "flow.npy", "cloud.ply", "cloud.pcd", "cloud.npy"])
def test_read_takes_size_of_the_file_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path, larger = tmp_path / name, tmp_path / f"larger_{name}"
    for target, side in ((path, 4), (larger, 6)):
        if name.startswith("flow"):
            write_flow(target, torch.zeros(2, side, side))
        else:
            write_point_cloud(target, samples((side, 3)))
    check = files.require_nonempty_file_and_get_bytes

    def check_and_replace(checked: Path) -> int:
        size = check(checked)
        larger.replace(checked)
        return size

    monkeypatch.setattr(files, "require_nonempty_file_and_get_bytes", check_and_replace)
    if name.startswith("flow"):
        assert read_flow(path).flow.shape == (2, 6, 6)
    else:
        assert len(read_point_cloud(path)) == 6
    assert not larger.exists()
