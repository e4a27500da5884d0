"""One small file of every kind that is read, and how each is read."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bombs import (
    empty_window,
    gif,
    las,
    lzf_of_one_byte,
    npz_of_another_length,
    npz_of_shared_bytes,
    pcd_of_many_values,
)
from io_files import ExrPart, samples, save
from PIL import Image

from fullfield import InputError
from fullfield.io import PointCloud, VideoWriter, write_flow, write_image, write_point_cloud

RGB = ("R", "G", "B")
POINTS = samples((40, 3)) * 10
_LARGE = 1 << 22  # values: of more only the shape is looked at


def make(folder: Path) -> None:
    """Write them all. A name begins with its kind, a key of :data:`READERS`."""
    folder.mkdir(parents=True, exist_ok=True)
    _frames(folder)
    _flows(folder)
    _clouds(folder)
    _texts(folder)
    _weights(folder)
    _videos(folder)
    _bombs(folder)


def _frames(folder: Path) -> None:
    blocks = np.kron(np.random.default_rng(3).integers(0, 256, (5, 6, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    light = (blocks / 255).astype(np.float32)
    image = Image.fromarray(blocks)
    for suffix in (".png", ".jpg", ".tif", ".bmp", ".ppm", ".tga"):
        image.save(folder / f"frame-a{suffix}")
    image.save(folder / "frame-progressive.jpg", progressive=True)
    image.save(folder / "frame-lzw.tif", compression="tiff_lzw")
    image.save(folder / "frame-jpeg.tif", compression="jpeg")
    image.quantize(16).save(folder / "frame-palette.png")
    save(folder / "frame-a.dpx", ExrPart(blocks.astype(np.uint16) * 257, RGB, attributes={"oiio:BitsPerSample": 10}))
    save(folder / "frame-a.hdr", ExrPart(light, RGB))
    save(folder / "frame-tiles.tif", ExrPart(light, RGB, tile=16, attributes={"compression": "zip"}))
    (folder / "frame-a.pfm").write_bytes(b"PF\n48 40\n-1\n" + light.tobytes())
    for compression in ("none", "rle", "zips", "zip", "piz", "pxr24", "b44", "dwaa"):
        part = ExrPart(light.astype(np.float16), RGB, attributes={"compression": compression})
        save(folder / f"frame-{compression}.exr", part)
    save(folder / "frame-tiles.exr", ExrPart(light, RGB, tile=16))


def _flows(folder: Path) -> None:
    flow = torch.from_numpy(samples((2, 24, 33))) * 50
    valid = flow[0] > 5
    for suffix in (".flo", ".png", ".flo5", ".pfm", ".npy", ".exr"):
        write_flow(folder / f"flow{suffix}", flow, valid)
    write_flow(folder / "flow-raw.flo5", flow, valid, compression="none")
    write_flow(folder / "flow-half.exr", flow, valid, backward=-flow, dtype="half", compression="piz")
    np.savez(folder / "flow.npz", u=flow[0].numpy(), v=flow[1].numpy())
    np.savez_compressed(folder / "flow-packed.npz", u=flow[0].numpy(), v=flow[1].numpy())
    parts = [
        ExrPart(samples((10, 20, n)), names, title, origin=(-3, 2), display=(0, 0, 32, 16))
        for n, names, title in ((3, RGB, "beauty"), (2, ("forward.u", "forward.v"), "vectors"))
    ]
    for name in ("frame-parts.exr", "flow-parts.exr"):
        save(folder / name, *parts)


def _clouds(folder: Path) -> None:
    colors = (POINTS * 20).astype(np.uint8)
    whole = PointCloud(POINTS, colors, POINTS, {"time": POINTS[:, 0].copy()})
    write_point_cloud(folder / "cloud.ply", whole)
    write_point_cloud(folder / "cloud.npz", whole)
    write_point_cloud(folder / "cloud.npy", PointCloud(POINTS))
    np.concatenate([POINTS, POINTS[:, :1]], 1).astype("<f4").tofile(folder / "cloud.bin")
    rows = "".join(" ".join(f"{value:.5f}" for value in row) + "\n" for row in POINTS)
    head = "element vertex 40\nproperty float x\nproperty float y\nproperty float z\nelement face 0\n"
    head += "property list uchar int vertex_indices\nend_header\n"
    (folder / "cloud-ascii.ply").write_text("ply\nformat ascii 1.0\n" + head + rows)
    big = POINTS.astype(">f4").tobytes()
    (folder / "cloud-big.ply").write_bytes(b"ply\nformat binary_big_endian 1.0\n" + head.encode() + big)
    head = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 40\nHEIGHT 1\nPOINTS 40\nDATA "
    (folder / "cloud-ascii.pcd").write_text(head + "ascii\n" + rows)
    (folder / "cloud.pcd").write_bytes(head.encode() + b"binary\n" + POINTS.tobytes())
    flat = POINTS.T.tobytes()[:-32] + bytes(32)
    packed = b"".join(bytes([31]) + flat[at : at + 32] for at in range(0, len(flat) - 32, 32))
    packed += b"\0\0" + struct.pack("BBB", 7 << 5, 22, 0)  # a zero, then 31 copied from one before
    sizes = struct.pack("<II", len(packed), len(flat))
    (folder / "cloud-packed.pcd").write_bytes(head.encode() + b"binary_compressed\n" + sizes + packed)
    try:
        import laspy
    except ImportError:
        return
    for version, form, suffix in (("1.2", 2, "las"), ("1.4", 7, "las"), ("1.4", 6, "laz"), ("1.2", 1, "laz")):
        header = laspy.LasHeader(point_format=form, version=version)
        header.scales = [1e-3] * 3
        if suffix == "las":
            header.add_extra_dim(laspy.ExtraBytesParams("shade", "uint16"))
            header.vlrs.append(laspy.VLR("somebody", 7, "a record", b"some words"))
        las = laspy.LasData(header)
        las.x, las.y, las.z = POINTS.astype(np.float64).T
        if suffix == "laz" and not any(backend.is_available() for backend in laspy.LazBackend):
            continue
        las.write(folder / f"cloud-{form}.{suffix}")


def _texts(folder: Path) -> None:
    pose = np.array([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])
    line = " ".join(f"{value:.6e}" for value in pose[:3].ravel())
    block = "".join(" ".join(f"{value:.8e}" for value in row) + "\n" for row in pose)
    (folder / "pairs.txt").write_text("# mine\na.png b.png t.flo\nb.png\ta.png\t-\nc.png a.png t.flo a.png a.png\n")
    (folder / "poses.txt").write_text("".join(line[:-12] + f"{4 * i:.6e}\n" for i in range(5)))
    (folder / "calibration.txt").write_text(f"P0: {line}\nTr: {line}\n")
    (folder / "fragments.log").write_text(f"0\t1\t2\n{block}0\t2\t2\n{block}")
    (folder / "information.log").write_text("0 1 2\n" + "1 0 0 0 0 2.5\n" * 6 + "0 2 2\n" + "1 0 0 0 0 2.5\n" * 6)
    (folder / "pose.txt").write_text(block)
    np.save(folder / "pose.npy", pose)
    config = {"method": "tvl1", "parameters": {"scale": "1/2"}, "dataset": {"name": "mine", "pairs": 2}}
    (folder / "config.json").write_text(json.dumps(config))
    facts = {"success": True, "reason": None, "transform": pose.tolist(), "seconds": 1.5, "bytes": 128}
    (folder / "facts.json").write_text(json.dumps(facts))


def _weights(folder: Path) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    state = {f"layer.{n}.weight": torch.randn(3, 4, generator=generator).to(kind) for n, kind in enumerate(
        (torch.float32, torch.float16, torch.int64)
    )}  # fmt: skip
    torch.save(state, folder / "weights.pth")
    torch.save({"state_dict": state}, folder / "weights-old.pth", _use_new_zipfile_serialization=False)
    save_file(state, folder / "weights.safetensors")
    from fullfield.registration.learned import fetch_published_descriptor_file

    shutil.copy(fetch_published_descriptor_file(), folder / "descriptor.safetensors")


def _videos(folder: Path) -> None:
    try:
        import av
    except ImportError:
        return
    for suffix in ("mp4", "mkv"):
        with VideoWriter(folder / f"video.{suffix}", 48, 32, 10.0) as writer:
            for number, picture in enumerate(_pictures()):
                writer.write(picture, number / 10)
    os.environ.setdefault("SVT_LOG", "1")  # errors alone
    for name, codec, form in (
        ("video-h265.mp4", "libx265", "yuv420p10le"),
        ("video.webm", "libvpx-vp9", "yuv420p"),
        ("video-av1.mkv", "libsvtav1", "yuv420p"),
        ("video.mov", "prores_ks", "yuv422p10le"),
        ("video.avi", "mpeg4", "yuv420p"),
        ("video-jpeg.avi", "mjpeg", "yuvj420p"),
        ("video.ts", "mpeg2video", "yuv420p"),
        ("video-ffv1.mkv", "ffv1", "yuv444p16le"),
    ):
        if codec in av.codecs_available:
            _encoded(folder / name, codec, form)


def _pictures() -> Iterator[torch.Tensor]:
    for number in range(5):
        picture = torch.full((3, 32, 48), 40, dtype=torch.uint8)
        picture[:, 8:20, 4 * number : 4 * number + 9] = 220
        yield picture


def _encoded(path: Path, codec: str, form: str) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, form
        if codec == "libx265":
            stream.options = {"x265-params": "log-level=none"}
        for picture in _pictures():
            rows = np.pad(picture.permute(1, 2, 0).numpy(), ((0, 32), (0, 16), (0, 0)), mode="edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(rows), format="rgb24")))
        container.mux(stream.encode(None))


def _bombs(folder: Path) -> None:
    """Damaged too: what lies near a lie that is refused. Their names say which are."""
    empty_window(folder / "flow-window.exr")
    (folder / "frame-refused.tga").write_bytes(gif())
    (folder / "cloud-lzf.pcd").write_bytes(lzf_of_one_byte(22 * 1000))
    (folder / "cloud-values-refused.pcd").write_bytes(pcd_of_many_values())
    (folder / "cloud-shared-refused.npz").write_bytes(npz_of_shared_bytes(40))
    (folder / "cloud-other-refused.npz").write_bytes(npz_of_another_length())
    (folder / "cloud-by-hand-refused.las").write_bytes(las(records=1, points_at=429, extended=1, extended_at=375))


# ---- reading


def _frame(path: Path) -> Any:
    from fullfield.io import read_frame, read_frame_window, read_metadata
    from fullfield.io.all_channels import read_all_channels

    read_frame_window(path)
    frame = read_frame(path)
    assert frame.dtype == torch.float32
    assert frame.ndim == 3
    assert frame.shape[0] in (1, 3)
    assert frame.numel() > _LARGE or frame.isfinite().all()
    read_metadata(path)
    raw = read_all_channels(path)
    assert raw.pixels.shape[0] == len(raw.channels)
    return frame


def _flow(path: Path) -> Any:
    from fullfield.io import read_flow, read_flow_layers
    from fullfield.io.flow import read_flow_window

    flow, valid = read_flow(path)
    if path.suffix == ".exr":
        read_flow_window(path)
    if path.suffix == ".exr" and flow.numel() <= _LARGE:
        assert all(part.shape[-2:] == valid.shape for part in read_flow_layers(path).values())
    assert flow.dtype == torch.float32
    assert flow.shape == (2, *valid.shape)
    assert flow.numel() > _LARGE or (flow.isfinite().all() and not flow[:, ~valid].any())
    return flow


def _cloud(path: Path) -> Any:
    from fullfield.io import read_point_cloud

    cloud = read_point_cloud(path)
    assert cloud.points.dtype in (np.float32, np.float64)
    assert cloud.points.ndim == 2
    assert cloud.points.shape[1] == 3
    for values in (cloud.colors, cloud.normals):
        assert values is None or values.shape == cloud.points.shape
    assert all(values.shape == (len(cloud),) for values in cloud.attributes.values())
    return cloud


def _video(path: Path) -> Any:
    """As a film and as a shot: the one is read to its end also where the other is refused."""
    found, errors = [], []
    for read in (_film, _shot):
        try:
            found.append(read(path))
        except InputError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return found


def _film(path: Path) -> Any:
    from fullfield.io import open_video

    source = open_video(str(path))
    try:
        last = -1.0
        for frame in itertools.islice(source, 20):
            assert frame.read_luma().shape == (1, source.height, source.width)
            assert frame.read_rgb().shape == (3, source.height, source.width)
            assert abs(frame.time - last) < 3600
            last = frame.time
    finally:
        source.close()
    return source


def _shot(path: Path) -> Any:
    from fullfield.sequences import open_plates

    plates = open_plates(path)
    refused: list[InputError] = []
    try:
        for number in plates.numbers[:20]:
            try:
                frame = plates.read(number).frame
                assert frame.ndim == 3
                assert frame.shape[0] == 3
            except InputError as error:
                refused.append(error)
    finally:
        plates.close()
    if refused:
        raise refused[0]
    return plates


def _weight(path: Path) -> Any:
    from fullfield.models.state import read_state_dict_and_name

    state, _ = read_state_dict_and_name(path)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    return state


def _descriptor(path: Path) -> Any:
    from fullfield.registration import LearnedDescriptor

    return LearnedDescriptor.load(path)


def _pairs(path: Path) -> Any:
    from fullfield.datasets import Pairs

    if not (path.parent / "a.png").is_file():
        for name in ("a.png", "b.png", "c.png"):
            write_image(path.parent / name, torch.zeros(3, 4, 4))
        write_flow(path.parent / "t.flo", torch.zeros(2, 4, 4))
    return Pairs(path.parent)[:]


def _odometry(path: Path) -> Any:
    from fullfield.datasets.scans import KITTIOdometry

    top = path.parent / "odometry"
    if not top.is_dir():
        for name in ("08", "09", "10"):
            scans = top / "sequences" / name / "velodyne"
            scans.mkdir(parents=True)
            for i in range(3):
                np.zeros((3, 4), np.float32).tofile(scans / f"{i:06d}.bin")
            _put(path.parent.parent / "whole" / "calibration.txt", scans.with_name("calib.txt"))
            _put(path.parent.parent / "whole" / "poses.txt", top / "poses" / f"{name}.txt")
    place = top / "poses" / "08.txt" if path.name == "poses.txt" else top / "sequences" / "08" / "calib.txt"
    return _instead(path, place, lambda: KITTIOdometry(top)[:])


def _fragments(path: Path) -> Any:
    from fullfield.datasets.three_d_match import ThreeDMatch

    top = path.parent / "fragments"
    if not top.is_dir():
        for i in range(3):
            (top / "kitchen").mkdir(parents=True, exist_ok=True)
            write_point_cloud(top / "kitchen" / f"cloud_bin_{i}.ply", PointCloud(POINTS))
        _put(path.parent.parent / "whole" / "fragments.log", top / "kitchen" / "gt.log")
        _put(path.parent.parent / "whole" / "information.log", top / "kitchen" / "gt.info")
    place = top / "kitchen" / ("gt.log" if path.name == "fragments.log" else "gt.info")
    return _instead(path, place, lambda: ThreeDMatch(top)[:])


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _instead(path: Path, place: Path, call: Callable[[], Any]) -> Any:
    """``call()`` with ``path`` in the place of a whole file."""
    whole = place.read_bytes()
    shutil.copy(path, place)
    try:
        return call()
    finally:
        place.write_bytes(whole)


def _pose(path: Path) -> Any:
    from fullfield.registration import read_pose

    pose = read_pose(path)
    assert pose.shape == (4, 4)
    assert np.isfinite(pose).all()
    return pose


def _config(path: Path) -> Any:
    from fullfield.evaluation.run import PredictionRun

    return PredictionRun.load(path.parent)


def _facts(path: Path) -> Any:
    from fullfield.evaluation.run import ScanRun

    run = path.parent / "run"
    _put(path, run / "predictions" / "facts.json")
    (run / "config.json").write_text("{}")
    (run / "predictions" / "facts.npy").write_bytes(bytes(128))
    return ScanRun.load(run).read_summary_if_complete("facts")


READERS: dict[str, Callable[[Path], Any]] = {
    "frame": _frame,
    "flow": _flow,
    "cloud": _cloud,
    "video": _video,
    "weights": _weight,
    "descriptor": _descriptor,
    "pairs": _pairs,
    "poses": _odometry,
    "calibration": _odometry,
    "fragments": _fragments,
    "information": _fragments,
    "pose": _pose,
    "config": _config,
    "facts": _facts,
}


def reader(path: Path) -> Callable[[Path], Any]:
    """What reads the file, by its name."""
    return READERS[path.stem.partition("-")[0]]
