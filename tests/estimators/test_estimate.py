"""`estimate` with everything a user may hand in."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullfield import Flow, InputError, estimate, estimate_batch
from fullfield.estimators import Estimator, TVL1Estimator
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators.estimation import build_estimator
from fullfield.io import read_flow_layers, read_frame, write_image
from fullfield.io.flow import read_flow_window
from fullfield.io.windows import FrameWindow
from fullfield.ops.tvl1 import TVL1Config
from fullfield.ops.tvl1.frames import QueuedFlow
from fullfield.testing import sample_textured_scene
from refusals import refuses

SCENE = sample_textured_scene(48, 64, seed=3)
FAST: dict[str, Any] = {"method": "tvl1", "config": TVL1Config.from_preset("fast").replace(warps=2)}


def test_estimate_agrees_for_every_frame_type(tmp_path: Path) -> None:
    eight = [(f.clamp(0, 1) * 255).round().to(torch.uint8) for f in (SCENE.frame1, SCENE.frame2)]
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, frame in zip(paths, eight, strict=True):
        write_image(path, frame)
    expected = estimate(*paths, **FAST).flow
    arrays = [f.permute(1, 2, 0).numpy() for f in eight]
    kinds = {
        "str": [str(p) for p in paths],
        "uint8 array": arrays,
        "uint8 tensor": eight,
        "uint16 array": [a.astype(np.uint16) * 257 for a in arrays],
        "float32 array": [a.astype(np.float32) / 255 for a in arrays],
        "float64 array": [a.astype(np.float64) / 255 for a in arrays],
        "big-endian array": [a.astype(">u2") * 257 for a in arrays],
        "array with alpha": [np.dstack([a, np.full(a.shape[:2], 7, np.uint8)]) for a in arrays],
        "flipped view": [a[::-1][::-1] for a in arrays],
        "float tensor": [f.float() / 255 for f in eight],
        "batch of one": [f[None] for f in eight],
        "array of one": [a[None] for a in arrays],
    }
    for name, frames in kinds.items():
        assert torch.allclose(estimate(*frames, **FAST).flow, expected, atol=1e-3), name
    half = estimate(*[(a / 255).astype(np.float16) for a in arrays], **FAST).flow
    assert (half - expected).norm(dim=0).mean() < 0.05


def test_estimate_reads_both_files_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for path in paths:
        write_image(path, torch.rand(3, 24, 32))
    met = threading.Barrier(2)

    def read(path: Path, **options: object) -> torch.Tensor:
        met.wait(timeout=20)
        return read_frame(path, **options)

    monkeypatch.setattr("fullfield.io.read_frame", read)
    flow = estimate(*paths, TVL1Estimator(TVL1Config(scales=1)))
    monkeypatch.undo()
    frames = [read_frame(path) for path in paths]
    assert torch.equal(flow.flow, estimate(*frames, TVL1Estimator(TVL1Config(scales=1))).flow)


def test_estimate_accepts_pil_images() -> None:
    image = pytest.importorskip("PIL.Image")
    eight = [(f.clamp(0, 1) * 255).round().to(torch.uint8) for f in (SCENE.frame1, SCENE.frame2)]
    arrays = [f.permute(1, 2, 0).numpy() for f in eight]
    images = [image.fromarray(a) for a in arrays]
    assert torch.equal(estimate(*images, **FAST).flow, estimate(*eight, **FAST).flow)
    for mode in ("RGBA", "CMYK"):
        assert read_or_convert_frame(images[0].convert(mode)).shape == (3, 48, 64), mode
    grey = images[0].convert("L")
    assert torch.equal(read_or_convert_frame(grey), read_or_convert_frame(np.asarray(grey)))
    for mode in ("LA", "1"):
        assert read_or_convert_frame(images[0].convert(mode)).shape == (1, 48, 64), mode
    palette = images[0].convert("P")
    assert torch.equal(read_or_convert_frame(palette), read_or_convert_frame(np.asarray(palette.convert("RGB"))))
    sixteen = image.fromarray(arrays[0][..., 0].astype(np.uint16) * 257)
    assert torch.equal(read_or_convert_frame(sixteen), eight[0][:1] / 255)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "PPM", "TIFF"])
def test_estimate_names_damaged_pil_image(kind: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (SCENE.frame1 * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    whole, file = image.fromarray(pixels), io.BytesIO()
    whole.save(file, kind)
    damaged = image.open(io.BytesIO(file.getvalue()[: len(file.getvalue()) // 2]))
    refuses(r"frame2: expected a PIL image that can be decoded, got", estimate, whole, damaged, **FAST)


def test_estimate_takes_pil_images_as_their_pixels_lie(tmp_path: Path) -> None:
    image, ops = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageOps")
    tags = image.Exif()
    tags[0x112] = 6  # to be turned by 90 degrees
    path = tmp_path / "sideways.jpg"
    image.new("RGB", (40, 20)).save(path, exif=tags)
    assert read_or_convert_frame(path).shape == (3, 40, 20)
    assert read_or_convert_frame(image.open(path)).shape == (3, 20, 40)
    assert read_or_convert_frame(ops.exif_transpose(image.open(path))).shape == (3, 40, 20)
    by_hand = image.open(path).rotate(-90, expand=True)  # PIL keeps the tag, so it may not be read here
    assert read_or_convert_frame(by_hand).shape == (3, 40, 20)


def test_estimate_batch_equals_singles() -> None:
    first = torch.stack((SCENE.frame1, SCENE.frame2, SCENE.frame1))
    second = torch.stack((SCENE.frame2, SCENE.frame1, SCENE.frame1))
    alone = [estimate(a, b, **FAST).flow for a, b in zip(first, second, strict=True)]
    together = estimate_batch(first, second, **FAST)
    listed = estimate_batch(list(first), [frame.numpy().transpose(1, 2, 0) for frame in second], **FAST)
    for flows in (together, listed):
        assert [flow.flow.shape for flow in flows] == [(2, 48, 64)] * 3
        for flow, expected in zip(flows, alone, strict=True):
            assert torch.allclose(flow.flow, expected, atol=1e-5)
    # Half precision rounds a batch and a single pair differently.
    exact: dict[str, Any] = {"preset": "fast", "precision": "exact", "reliability": True}
    maps = estimate_batch(first[:2], second[:2], "auto", **exact)
    one = estimate(first[1], second[1], "auto", **exact)
    assert one.confidence is not None
    assert maps[1].confidence is not None
    torch.testing.assert_close(maps[1].confidence, one.confidence, atol=1e-3, rtol=0)
    refuses(r"frame1: expected one frame \(estimate_batch .*\), got a batch of 3", estimate, first, second)
    refuses("frames2: expected 3 frames like frames1, got 2", estimate_batch, first, second[:2])
    with pytest.raises(InputError, match=r"frames1\[1\]: expected 64×48 pixels like frames1\[0\], got 64×47"):
        estimate_batch([first[0], first[1, :, 1:]], list(second[:2]))
    refuses("frames1: expected a batch", estimate_batch, [], [])


@pytest.mark.unit
def test_flow_to_moves_all_tensors() -> None:
    flow = Flow(torch.zeros(2, 4, 5), torch.ones(4, 5, dtype=torch.bool))
    assert flow.cpu() is flow
    assert flow.device == torch.device("cpu")
    there = Flow(flow.flow.to("meta"), flow.valid.to("meta"))
    assert repr(there) == "Flow(5×4, on meta)"
    refuses("valid: expected device meta", Flow, flow.flow.to("meta"), flow.valid)


def test_estimate_checks_values_with_one_host_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy of a few numbers to the host for the frames, none for integers, and one for the flow."""
    host_copies: list[tuple[int, ...]] = []
    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: host_copies.append(tuple(self.shape)) or real(self))
    estimate(SCENE.frame1, SCENE.frame2, **FAST)
    assert host_copies == [(2, 3), (2,)]
    eight = [(f.clamp(0, 1) * 255).round().to(torch.uint8) for f in (SCENE.frame1, SCENE.frame2)]
    estimate(*eight, **FAST)
    assert host_copies == [(2, 3), (2,), (2,)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_estimate_keeps_result_on_gpu(tmp_path: Path) -> None:
    frames = [f.cuda() for f in (SCENE.frame1, SCENE.frame2)]
    flow = estimate(*frames, "fullfield-s", device="cuda", reliability=True)
    assert flow.confidence is not None
    assert {t.device.type for t in (flow.flow, flow.valid, flow.confidence)} == {"cuda"}
    host = flow.cpu()
    assert host.flow.is_pinned()
    assert torch.equal(host.flow, flow.flow.cpu())
    assert np.array_equal(flow.numpy(), host.numpy())
    flow.save(tmp_path / "a.flo")
    assert torch.equal(Flow.load(tmp_path / "a.flo").flow, host.flow)
    assert torch.equal(host.to("cuda").flow, flow.flow)
    from_host = estimate(SCENE.frame1, SCENE.frame2, "fullfield-s", device="cuda")
    assert torch.equal(from_host.flow, flow.flow)
    again = estimate(*frames, "tvl1", device="cuda", initial_flow=flow)
    assert again.device.type == "cuda"


def test_estimate_accepts_grey_frames() -> None:
    grey = [f.mean(0) for f in (SCENE.frame1, SCENE.frame2)]
    expected = estimate(*[g[None] for g in grey], **FAST).flow
    assert torch.equal(estimate(*[g.numpy() for g in grey], **FAST).flow, expected)
    assert torch.equal(estimate(*[g.numpy()[..., None] for g in grey], **FAST).flow, expected)
    mixed = estimate(grey[0].numpy(), grey[1].numpy()[..., None].repeat(3, 2), **FAST).flow
    assert torch.allclose(mixed, expected, atol=1e-2)


def test_estimate_result_names_method_and_parameters(tmp_path: Path) -> None:
    flow = estimate(SCENE.frame1, SCENE.frame2, "tvl1", config=TVL1Config.from_preset("fast").replace(lambda_=0.2))
    assert isinstance(flow, Flow)
    assert (flow.height, flow.width) == (48, 64)
    assert (flow.method, flow.backend) == ("tvl1", "cpu")
    assert flow.parameters["lambda_"] == 0.2
    assert flow.parameters["scale_factor"] == 0.5
    assert flow.seconds > 0
    assert flow.valid.all()
    assert repr(flow) == "Flow(64×48, tvl1 (cpu))"
    array = flow.numpy()
    assert array.shape == (48, 64, 2)
    assert np.array_equal(array[..., 0], flow.flow[0].numpy())
    flow.save(tmp_path / "x.flo")
    again = Flow.load(tmp_path / "x.flo")
    assert torch.equal(again.flow, flow.flow)
    assert again.method == ""


def test_flow_exr_holds_occlusion_and_confidence(tmp_path: Path) -> None:
    flow = estimate(SCENE.frame1, SCENE.frame2, reliability=True, **FAST)
    flow.save(tmp_path / "a.exr")
    assert read_flow_layers(tmp_path / "a.exr").keys() == {"forward", "occlusion.forward", "confidence.forward"}
    loaded = Flow.load(tmp_path / "a.exr")
    loaded.save(tmp_path / "again.exr")
    for stored in (loaded, Flow.load(tmp_path / "again.exr")):
        for name in ("flow", "valid", "occlusion", "confidence"):
            assert torch.equal(getattr(stored, name), getattr(flow, name)), name
    partly = replace(flow, valid=flow.valid & (flow.flow[0] > 0))
    partly.save(tmp_path / "partly.exr")
    loaded = Flow.load(tmp_path / "partly.exr")
    assert torch.equal(loaded.valid, partly.valid)
    assert torch.equal(loaded.confidence, flow.confidence)
    flow.save(tmp_path / "a.flo")
    assert Flow.load(tmp_path / "a.flo").occlusion is None


@pytest.mark.parametrize("method", ["tvl1", "auto"])
def test_estimate_is_interrupted_by_progress(method: str) -> None:
    options = FAST if method == "tvl1" else {"method": method}
    expected = estimate(SCENE.frame1, SCENE.frame2, **options).flow

    def interrupt(fraction: float, _: str) -> None:
        if fraction > 0:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        estimate(SCENE.frame1, SCENE.frame2, **options, progress=interrupt)
    assert torch.equal(estimate(SCENE.frame1, SCENE.frame2, **options).flow, expected)


def test_estimate_solves_textured_scene() -> None:
    scene = sample_textured_scene(64, 80, seed=3)
    flow = estimate(scene.frame1, scene.frame2).flow
    seen = scene.valid & ~scene.occluded
    assert (flow - scene.flow).norm(dim=0)[seen].mean() < 0.5 * scene.flow.norm(dim=0)[seen].mean()


def test_estimate_accepts_estimator_and_initial_flow(tmp_path: Path) -> None:
    estimator = TVL1Estimator()
    assert isinstance(estimator, Estimator)
    first = estimate(SCENE.frame1, SCENE.frame2, estimator)
    assert torch.equal(estimate(SCENE.frame1, SCENE.frame2, estimator).flow, first.flow)
    again = estimate(SCENE.frame1, SCENE.frame2, initial_flow=first, preset="fast")
    assert torch.equal(again.flow, estimate(SCENE.frame1, SCENE.frame2, initial_flow=first.flow, preset="fast").flow)
    first.save(tmp_path / "first.npy")
    for start in (tmp_path / "first.npy", first.numpy()):
        assert torch.equal(estimate(SCENE.frame1, SCENE.frame2, initial_flow=start, preset="fast").flow, again.flow)
    used = copy.deepcopy(estimator)
    assert torch.equal(estimate(SCENE.frame1, SCENE.frame2, used).flow, first.flow)
    assert torch.equal(pickle.loads(pickle.dumps(estimator))(SCENE.frame1[None], SCENE.frame2[None])[0], first.flow)
    refuses("method: expected a name or an Estimator, got type", estimate, SCENE.frame1, SCENE.frame2, TVL1Estimator)
    refuses("expected no parameters with an Estimator", estimate, SCENE.frame1, SCENE.frame2, estimator, preset="fast")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ((np.zeros((4, 4, 2), np.uint8),) * 2, r"frame1: expected an array \[H, W\], \[H, W, 1\]"),
        ((np.zeros((4, 4), np.int32),) * 2, "frame1: expected dtype uint8, uint16, float16"),
        ((torch.zeros(4, 4),) * 2, r"frame1: expected a tensor \[1 or 3, H, W\]"),
        ((torch.zeros(1, 4, 4, dtype=torch.int32),) * 2, "frame1: expected dtype uint8, uint16 or floating"),
        ((np.zeros((0, 4), np.uint8),) * 2, "frame1: expected at least one pixel"),
        ((np.zeros((1, 1), np.uint8),) * 2, "frame1: expected more than one pixel, got 1×1"),
        ((np.zeros((4, 5), np.uint8), np.zeros((5, 4), np.uint8)), "frame2: expected 5×4 pixels like frame1, got 4×5"),
        ((np.full((4, 4), np.nan, np.float32),) * 2, "frame1: expected finite values, got NaN"),
        ((np.ma.masked_greater(np.eye(4), 0),) * 2, "frame1: expected an array without masked values, got 4 of 16"),
        (([[1, 2], [3, 4]],) * 2, "frame1: expected a path, an array, a PIL image or a tensor, got list"),
    ],
)
def test_estimate_refuses_bad_frames(frames: tuple[object, object], message: str) -> None:
    refuses(message, estimate, *frames)


def test_estimate_refuses_bad_names_and_configurations(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"method: expected one of tvl1, auto, fullfield-s, .*, got 'craft'"):
        estimate(SCENE.frame1, SCENE.frame2, "craft")
    with pytest.raises(InputError, match=r"lamda: expected a parameter of tvl1 \(lambda_, theta.* mean lambda_\?"):
        build_estimator("tvl1", lamda=1)
    with pytest.raises(InputError, match=r"^warps: expected a parameter of auto \(.*\), got one of method='tvl1'$"):
        build_estimator("auto", warps=3)
    with pytest.raises(InputError, match=r"^weights: expected a parameter of tvl1 \(.*\), got one of method='auto' or"):
        estimate(SCENE.frame1, SCENE.frame2, "tvl1", weights="random")
    with pytest.raises(InputError, match="preset: expected one of default, realtime, fast, paper, got 'best'"):
        estimate(SCENE.frame1, SCENE.frame2, "tvl1", preset="best")
    with pytest.raises(InputError, match="device: expected a device of this machine, got 'gpu7'"):
        estimate(SCENE.frame1, SCENE.frame2, device="gpu7")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        estimate(tmp_path / "nowhere.png", SCENE.frame2)
    with pytest.raises(InputError, match=r"initial_flow: expected shape \[2, 48, 64\]"):
        estimate(SCENE.frame1, SCENE.frame2, initial_flow=torch.zeros(2, 4, 4))
    frames = torch.rand(2, 1, 20, 24)
    with pytest.raises(InputError, match=r"backend: 'cpu' cannot serve this request .*cpu: has no precision float16"):
        estimate(*frames, "tvl1", precision="float16", backend="cpu")
    with pytest.raises(InputError, match=r"precision: expected 'float32', or an NVIDIA GPU .* got 'float16' on cpu"):
        estimate(*frames, "tvl1", precision="float16")
    config = TVL1Config.from_preset("fast")
    by_config = estimate(SCENE.frame1, SCENE.frame2, "tvl1", config=config.replace(warps=2))
    assert torch.equal(by_config.flow, estimate(SCENE.frame1, SCENE.frame2, **FAST).flow)
    with pytest.raises(InputError, match="preset: expected None with a config, got 'paper'"):
        estimate(SCENE.frame1, SCENE.frame2, "tvl1", config=config, preset="paper")


@pytest.mark.unit
@pytest.mark.parametrize(("low", "high"), [(255.0, 255.0), (0.0, 127.0), (0.0, 200.0)])
def test_estimate_refuses_floats_of_0_to_255(low: float, high: float) -> None:
    values = np.tile(np.array([low, high], np.float32), (4, 2))
    pattern = (
        rf"^frame: expected values of 0 \.\.\. 1, got {low:g} to {high:g}, .* on average; divide by 255 or pass uint8"
    )
    for frame in (values, torch.from_numpy(values)[None]):
        refuses(pattern, read_or_convert_frame, frame)
        refuses("divide by 255", read_or_convert_frame, frame, transfer="srgb")
    refuses("frame2: expected values", estimate, np.zeros((4, 4), np.float32), values, "tvl1")
    with pytest.raises(InputError, match="frames2: expected values"):
        estimate_batch(torch.zeros(2, 1, 4, 4), torch.from_numpy(values)[None, None].expand(2, -1, -1, -1), "tvl1")


def test_estimate_warns_once_about_value_range() -> None:
    frames = torch.rand(2, 1, 20, 24) * 4000
    with pytest.warns(UserWarning, match="frame1: frames are expected in 0") as warned:
        estimate(*frames, "tvl1", config=TVL1Config(scales=1, iterations=1, warps=1), transfer="linear")
    assert len(warned) == 1
    values = np.tile(np.array([-1.0, 1.0], np.float32), (4, 2))
    with pytest.warns(UserWarning, match=r"frame: frames are expected in 0 \.\.\. 1.*; got -1 to 1, 0 on") as warned:
        assert read_or_convert_frame(values).min() == -1
    assert len(warned) == 1
    # Highlights and undershoots are not questioned: under pytest's configuration a warning is an error.
    bright = np.full((10, 10), 0.3, np.float32)
    bright[0, :2] = 30.0, -0.05
    assert read_or_convert_frame(bright).max() == 30
    read_or_convert_frame(np.full((4, 4), 200, np.uint8))
    read_or_convert_frame(np.full((4, 4), 500.0, np.float32) * (np.arange(16).reshape(4, 4) == 3), transfer="linear")


@pytest.mark.unit
def test_estimate_transfer_applies_to_arrays_and_warns_of_files(tmp_path: Path) -> None:
    linear = torch.full((3, 4, 4), 0.2140)
    assert torch.allclose(read_or_convert_frame(linear, transfer="linear"), torch.tensor(0.5), atol=1e-3)
    assert torch.equal(linear, torch.full((3, 4, 4), 0.2140)), "the caller's frame must stay as it is"
    assert torch.equal(read_or_convert_frame(linear), linear)
    path = tmp_path / "a.pfm"
    path.write_bytes(b"Pf\n4 4\n-1\n" + np.full(16, 127, "<f4").tobytes())
    with pytest.warns(UserWarning, match=r"a\.pfm: frames are expected in 0"):
        read_or_convert_frame(path)
    frame = torch.zeros(3, 20, 30)
    refuses("layer: expected None for an array or tensor", estimate, frame, frame, layer="beauty")


@pytest.mark.unit
@pytest.mark.parametrize(("backend", "able"), [(None, True), (None, False), ("cpu", True)])
def test_estimate_on_gpu_prepares_frame_size(monkeypatch: pytest.MonkeyPatch, backend: str | None, able: bool) -> None:
    """There the kernels' shapes follow the size; other backends' serve all sizes, and a small one takes less time."""
    made: list[tuple[int, int]] = []

    class Solver:
        backend = "cpu"

        def __init__(self, height: int, width: int, *_: object, **__: object) -> None:
            made.append((height, width))

        def queue(self, frame1: torch.Tensor, *_: object, **__: object) -> QueuedFlow:
            return QueuedFlow(frame1)

    monkeypatch.setattr("fullfield.estimators.tvl1.TVL1Solver", Solver)
    listed = [("cuda", None if able else "no GPU"), ("cpu", None)]
    monkeypatch.setattr("fullfield.estimators.tvl1.explain_backends", lambda *_, **__: listed)
    estimator = TVL1Estimator(backend=backend)
    estimator.prepare(size=(48, 64))
    estimator(torch.zeros(1, 1, 48, 64), torch.zeros(1, 1, 48, 64))
    on_gpu = backend is None and able
    assert made == ([(48, 64)] if on_gpu else [(16, 16), (48, 64)])


def _exr(path: Path, shift: int) -> None:
    """32×24 pixels of a frame of 28×20, twice as wide as high each; also as layer ``other``, upside down."""
    oiio = pytest.importorskip("OpenImageIO")
    spec = oiio.ImageSpec(32, 24, 6, oiio.HALF)
    spec.channelnames = ("R", "G", "B", "other.R", "other.G", "other.B")
    spec.x, spec.y = -2, -2
    spec.full_x, spec.full_y, spec.full_width, spec.full_height = 0, 0, 28, 20
    spec.attribute("PixelAspectRatio", 2.0)
    plane = np.random.default_rng(0).random((24, 40, 3), np.float32)[:, 4 - shift : 36 - shift]
    out = oiio.ImageOutput.create(str(path))
    assert out.open(str(path), spec)
    assert out.write_image(np.concatenate([plane, plane[::-1]], 2))
    out.close()


def test_estimate_keeps_exr_windows(tmp_path: Path) -> None:
    frames = [str(tmp_path / f"over.100{number}.exr") for number in (1, 2)]
    for number, path in enumerate(frames):
        _exr(Path(path), number)
    shown = estimate(*frames, preset="fast")
    assert shown.flow.shape == (2, 20, 28)
    assert shown.window == FrameWindow((0, 0, 28, 20), (0, 0, 28, 20), 2.0)
    shown.save(tmp_path / "shown.exr")
    assert read_flow_window(tmp_path / "shown.exr") == shown.window
    assert Flow.load(tmp_path / "shown.exr").window == shown.window
    shown.save(tmp_path / "shown.flo")  # has none
    assert Flow.load(tmp_path / "shown.flo").window is None
    whole = estimate(*frames, preset="fast", window="data")
    assert whole.flow.shape == (2, 24, 32)
    whole.save(tmp_path / "whole.exr")
    assert read_flow_window(tmp_path / "whole.exr") == FrameWindow((-2, -2, 32, 24), (0, 0, 28, 20), 2.0)
    part = estimate(*frames, preset="fast", window=(4, 2, 20, 16), layer="other")
    assert part.window == FrameWindow((4, 2, 20, 16), (0, 0, 28, 20), 2.0)
    assert not torch.equal(part.flow, estimate(*frames, preset="fast", window=(4, 2, 20, 16)).flow)


@pytest.mark.unit
def test_estimate_refuses_initial_flow_of_other_size() -> None:
    class Half(TVL1Estimator):
        def __call__(self, frame1: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return torch.zeros(1, 2, frame1.shape[2], frame1.shape[3] // 2)

    with pytest.raises(InputError, match=r"^the flow of tvl1: expected shape \[1, 2, 24, 32\], got .*24, 16"):
        estimate(torch.zeros(3, 24, 32), torch.zeros(3, 24, 32), Half())


@pytest.mark.parametrize("mask", [np.ones((8, 8)), torch.ones(8, 8)])
def test_a_mask_that_is_no_name_is_refused(mask: Any) -> None:
    with pytest.raises(InputError, match="mask: expected the name of a file or channel"):
        estimate("first.exr", "second.exr", mask=mask)
