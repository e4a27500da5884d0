"""warp, retime and score of frames that are not known everywhere, and on vectors of renderers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from sequence_shots import CommandLine

from fullfield import InputError
from fullfield.io import read_frame, write_flow_layers
from fullfield.io.all_channels import read_all_channels
from fullfield.sequences import RetimeSettings, retime_shot
from fullfield.sequences.motion import interpolate_picture_and_visibility, warp_image

HEIGHT, WIDTH = 24, 32
INSIDE = (slice(4, 20), slice(5, 25))


def write_exr(
    path: str,
    pixels: np.ndarray,  # [H, W, C]
    names: tuple[str, ...] = ("R", "G", "B"),
    origin: tuple[int, int] = (0, 0),
) -> None:
    height, width, count = pixels.shape
    spec = oiio.ImageSpec(width, height, count, "float")
    spec.channelnames = names
    spec.x, spec.y = origin
    spec.full_x, spec.full_y, spec.full_width, spec.full_height = 0, 0, WIDTH, HEIGHT
    output = oiio.ImageOutput.create("openexr")
    assert output.open(path, spec)
    assert output.write_image(np.ascontiguousarray(pixels, np.float32))
    assert output.close()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Two grey plates of 0.5 and still vectors; the second plate has a smaller data window."""
    monkeypatch.chdir(tmp_path)
    grey = np.full((HEIGHT, WIDTH, 3), 0.5)
    write_exr("p.1.exr", grey)
    write_exr("p.2.exr", grey[INSIDE], origin=(5, 4))
    still = torch.zeros(2, HEIGHT, WIDTH)
    for number in (1, 2):
        write_flow_layers(f"mv.{number}.exr", {"forward": still, "backward": still})
    return CommandLine(capsys, (), ())


def light(path: str) -> np.ndarray:
    return np.asarray(oiio.ImageBuf(path).get_pixels(oiio.FLOAT))[..., 0]


def test_retime_keeps_brightness_where_one_plate_is_unknown(run: CommandLine) -> None:
    run.done("retime", "p.%d.exr", "--flow", "mv.%d.exr", "--factor", "4", "-o", "slow.%d.exr")
    for number in (1, 2, 3, 4):
        assert np.abs(light(f"slow.{number}.exr") - 0.5).max() < 1e-5, number


@pytest.mark.filterwarnings("default::UserWarning")
def test_warp_along_flow_without_known_vectors_warns(run: CommandLine) -> None:
    write_flow_layers("no.1.exr", {"forward": torch.full((2, HEIGHT, WIDTH), torch.nan)})
    _, err = run.done("warp", "p.%d.exr", "--flow", "no.%d.exr", "--frames", "1", "-o", "w.%d.exr")
    assert (err.count("warning:"), err.count("no.1.exr")) == (1, 1)
    assert not light("w.1.exr").any()
    _, err = run.done("warp", "p.%d.exr", "--flow", "mv.%d.exr", "--frames", "1", "-o", "v.%d.exr")
    assert "warning:" not in err


def test_read_all_channels_keeps_colour_where_depth_is_infinite(tmp_path: Path) -> None:
    pixels = np.full((HEIGHT, WIDTH, 6), 0.5)
    names = ("R", "G", "B", "A", "Z", "position.Y")
    pixels[2, 3, 4] = np.inf
    write_exr(str(tmp_path / "a.exr"), pixels, names)
    raw = read_all_channels(tmp_path / "a.exr")
    order = [raw.channels.index(name) for name in names]
    assert raw.valid is None
    assert raw.pixels[order, 2, 3].tolist() == [0.5, 0.5, 0.5, 0.5, 0, 0.5]
    assert "a.exr: Z: 1 pixel is NaN or infinite, the first at x = 3, y = 2" in raw.note
    pixels[5, 6, 1] = np.nan
    write_exr(str(tmp_path / "b.exr"), pixels, names)
    raw = read_all_channels(tmp_path / "b.exr")
    assert raw.valid is not None
    assert (~raw.valid).nonzero().tolist() == [[5, 6]]
    assert raw.pixels[order, 5, 6].tolist() == [0, 0, 0, 0, 0.5, 0.5]
    assert "b.exr: 1 pixel is NaN or infinite, the first at x = 6, y = 5" in raw.note


def test_retime_reads_mask(run: CommandLine) -> None:
    hole = np.ones((HEIGHT, WIDTH, 1))
    hole[8:12, 8:12] = 0
    for number in (1, 2):
        pixels = np.full((HEIGHT, WIDTH, 3), 0.5)
        if number == 2:
            pixels[8:12, 8:12] = 7.0
        write_exr(f"p.{number}.exr", pixels)
        write_exr(f"m.{number}.exr", hole if number == 2 else np.ones_like(hole), ("A",))
    command = ("retime", "p.%d.exr", "--flow", "mv.%d.exr", "--factor", "2", "-o", "slow.%d.exr", "--mask", "m.%d.exr")
    run.done(*command)
    assert np.abs(light("slow.2.exr") - 0.5).max() < 1e-5
    out, _ = run.done(*command)
    assert "0 frames written" in out
    write_exr("m.2.exr", np.ones_like(hole), ("A",))
    out, err = run.done(*command)
    assert "1 frame written" in out
    assert "inputs changed" in err
    assert light("slow.2.exr").max() > 3


def test_retime_shot_mask_equals_command(run: CommandLine) -> None:  # noqa: ARG001 - its files
    pixels = np.full((HEIGHT, WIDTH, 3), 0.5)
    pixels[8:12, 8:12] = 7.0
    for number in (1, 2):
        write_exr(f"p.{number}.exr", pixels)
    hole = np.ones((HEIGHT, WIDTH, 1))
    hole[8:12, 8:12] = 0
    write_exr("m.1.exr", hole, ("A",))
    retime_shot("p.%d.exr", "mv.%d.exr", "slow.%d.exr", RetimeSettings(2, mask="m.1.exr"))
    assert np.abs(light("slow.2.exr")[8:12, 8:12]).max() < 1, "7 is behind the mask of both plates"
    with pytest.raises(InputError, match=r"slow\.%d\.exr.*other settings"):
        retime_shot("p.%d.exr", "mv.%d.exr", "slow.%d.exr", RetimeSettings(2))


def test_warp_ignores_outside_of_data_window(run: CommandLine) -> None:
    shift = torch.zeros(2, HEIGHT, WIDTH)
    shift[0] = 0.5
    for number in (1, 2):
        write_flow_layers(f"mv.{number}.exr", {"forward": shift, "backward": shift})
    run.done("warp", "p.2.exr", "--reference", "2", "--flow", "mv.%d.exr", "-o", "on.%d.exr")
    warped = light("on.1.exr")
    assert set(np.unique(warped.round(5))) <= {0.0, 0.5}, "no pixel is half black"
    assert (warped[4:20, 5:24] == 0.5).all()


def test_warp_continues_over_unknown_frames(run: CommandLine) -> None:
    """Paint on frame 1 reaches frame 3 through vectors that come from their surroundings."""
    valid = torch.zeros(HEIGHT, WIDTH)
    valid[INSIDE] = 1
    still = torch.zeros(2, HEIGHT, WIDTH)
    write_flow_layers("mv.2.exr", {"forward": still, "backward": still, "valid": valid})
    write_flow_layers("mv.3.exr", {"forward": still, "backward": still})
    run.done("warp", "p.1.exr", "--reference", "1", "--flow", "mv.%d.exr", "-o", "on.%d.exr")
    assert np.abs(light("on.3.exr") - 0.5).max() < 1e-5
    hidden = {"occlusion.forward": 1 - valid, "occlusion.backward": 1 - valid}
    write_flow_layers("mv.2.exr", {"forward": still, "backward": still, "valid": valid, **hidden})
    write_flow_layers("mv.3.exr", {"forward": still, "backward": still, **{k: 0 * v for k, v in hidden.items()}})
    run.done("warp", "p.1.exr", "--reference", "1", "--flow", "mv.%d.exr", "-o", "h.%d.exr", "--hide-occluded")
    assert np.abs(light("h.3.exr") - 0.5).max() < 1e-5, "not known is not hidden"


@pytest.mark.filterwarnings("default:.*NaN or infinite")
def test_warp_masks_dead_pixels_and_warns_once(run: CommandLine) -> None:
    pixels = np.full((HEIGHT, WIDTH, 3), 0.5)
    pixels[10, 10] = np.nan
    for number in (1, 2):
        write_exr(f"p.{number}.exr", pixels)
    _, err = run.done("retime", "p.%d.exr", "--flow", "mv.%d.exr", "--factor", "3", "-o", "slow.%d.exr")
    assert err.count("NaN or infinite") == 1
    frame = light("slow.2.exr")
    assert np.isfinite(frame).all()
    frame[10, 10] = 0.5
    assert np.abs(frame - 0.5).max() < 1e-5


def test_warp_and_score_read_renderer_vectors(run: CommandLine) -> None:
    ramp = np.repeat(np.arange(WIDTH, dtype=np.float32)[None, :, None], HEIGHT, 0).repeat(3, 2)
    blender = np.tile(np.array([-3, 0, 2, 0], np.float32), (HEIGHT, WIDTH, 1))
    for number in (1, 2):
        write_exr(f"r.{number}.exr", ramp)
        write_exr(f"b.{number}.exr", blender, tuple(f"ViewLayer.Vector.{axis}" for axis in "XYZW"))
        write_exr(f"c.{number}.exr", blender / 2, ("mv.a", "mv.b", "mv.c", "mv.d"))
    run.done("warp", "r.%d.exr", "--flow", "b.%d.exr", "--frames", "1", "-o", "f.1.exr")
    assert np.allclose(light("f.1.exr")[:, 4:-4], ramp[:, 4:-4, 0] + 2)
    run.done("warp", "r.%d.exr", "--flow", "b.%d.exr", "--frames", "2", "--direction", "backward", "-o", "g.2.exr")
    assert np.allclose(light("g.2.exr")[:, 4:-4], ramp[:, 4:-4, 0] + 3)
    scale = ("--channels", "mv.c,mv.d,mv.a,mv.b", "--vector-scale", "2", "--y-axis", "down")
    run.done("warp", "r.%d.exr", "--flow", "c.%d.exr", "--frames", "1", "-o", "h.1.exr", *scale)
    assert np.allclose(light("h.1.exr")[:, 4:-4], ramp[:, 4:-4, 0] + 2)
    code, _, err = run(
        "retime", "r.%d.exr", "--flow", "c.%d.exr", "--factor", "2", "-o", "s.%d.exr", "--channels", "mv.c,mv.d"
    )
    assert code == 2
    assert "expected four names, of forward and backward flow, got mv.c, mv.d" in err
    run.done("view", "c.%d.exr", "-o", "c.html", *scale)
    out, _ = run.done("score", "b.1.exr", "c.1.exr", "--json", "--truth-channels", "mv.c,mv.d", "--truth-scale", "2")
    assert json.loads(out)["epe"] == 0


def test_score_ignores_pixels_unknown_in_frame(run: CommandLine) -> None:
    valid = torch.zeros(HEIGHT, WIDTH)
    valid[INSIDE] = 1
    flow = torch.zeros(2, HEIGHT, WIDTH).masked_fill(valid < 0.5, 9.0)
    write_flow_layers("pred.exr", {"forward": flow, "valid": valid})
    write_exr("small.exr", np.zeros((16, 20, 2)), ("forward.u", "forward.v"), (5, 4))
    write_flow_layers("truth.exr", {"forward": torch.zeros(2, HEIGHT, WIDTH)})
    for name in ("pred.exr", "small.exr"):
        report = json.loads(run.done("score", name, "truth.exr", "--json")[0])
        assert (report["pixels"], report["epe"]) == (16 * 20, 0)
        assert report["outside"] == HEIGHT * WIDTH - 16 * 20
    assert "448 outside the frame's data window or mask left out" in run.done("score", "pred.exr", "truth.exr")[0]
    flow[0, 10, 10] = float("nan")
    write_flow_layers("pred.exr", {"forward": flow, "valid": valid})
    code, _, err = run("score", "pred.exr", "truth.exr")
    assert code == 2
    assert "has no vector at 1 of 768 pixels to score" in err


@pytest.mark.parametrize("mask", ["m.png", "m.npy", "m.npz:inner", "m.exr:A", "hole"])
def test_score_reads_masks(run: CommandLine, mask: str) -> None:
    from PIL import Image

    hole = np.zeros((HEIGHT, WIDTH), np.float32)
    hole[INSIDE] = 1
    Image.fromarray((hole * 255).astype(np.uint8)).save("m.png")
    np.save("m.npy", hole.astype(bool))
    np.savez("m.npz", inner=hole.astype(np.uint8) * 100, other=hole)
    write_exr("m.exr", hole[..., None], ("A",))
    truth = np.stack([hole - 1, 0 * hole, hole], -1)
    write_exr("truth.exr", truth, ("forward.u", "forward.v", "hole"))
    write_flow_layers("pred.exr", {"forward": torch.zeros(2, HEIGHT, WIDTH)})
    report = json.loads(run.done("score", "pred.exr", "truth.exr", "--mask", mask, "--json")[0])
    assert (report["pixels"], report["epe"]) == (16 * 20, 0)
    report = json.loads(run.done("score", "pred.exr", "truth.exr", "--invalid", mask, "--json")[0])
    assert (report["pixels"], report["epe"]) == (HEIGHT * WIDTH - 16 * 20, 1)


def test_warp_image_ignores_unknown_pixels() -> None:
    image = torch.ones(1, 4, 8)
    valid = torch.ones(4, 8, dtype=torch.bool)
    valid[:, 4:] = False
    flow = torch.zeros(2, 4, 8)
    flow[0] = 0.25
    warped, inside = warp_image(image.masked_fill(~valid, float("nan")), flow, valid)
    assert torch.equal(warped[0], inside.float())
    assert inside[0].tolist() == [True] * 4 + [False] * 4


def test_interpolate_picture_uses_pixels_known_in_one_frame() -> None:
    first, second = torch.full((1, 6, 6), 1.0), torch.full((1, 6, 6), 3.0)
    still = torch.zeros(2, 6, 6)
    left = torch.zeros(6, 6, dtype=torch.bool)
    left[:, :3] = True
    picture = interpolate_picture_and_visibility(first, second, still, still, 0.5, (left, None)).picture[0]
    assert torch.allclose(picture[:, :3], torch.tensor(2.0))
    assert torch.allclose(picture[:, 3:], torch.tensor(3.0))
    surrounded = interpolate_picture_and_visibility(first, second, still, still, 0.5, (left, left)).picture[0]
    assert torch.allclose(surrounded, torch.tensor(2.0)), "what neither knows continues its surroundings"
    first[:, :, 3:], second[:, :, 3:] = 0.0, 0.0
    window = interpolate_picture_and_visibility(first, second, still, still, 0.5, (left, left)).picture[0]
    assert not window[:, 3:].any(), "both plates are 0 there, as outside a data window"


def test_read_frame_outside_of_data_window_is_black(run: CommandLine) -> None:  # noqa: ARG001 - makes the shot
    assert read_frame("p.2.exr")[:, :4].abs().max() == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
@pytest.mark.parametrize("suffix", [".flo", ".npz", ".exr"])
def test_warp_refuses_vectors_in_pipe(run: CommandLine, suffix: str) -> None:
    os.mkfifo(f"pipe{suffix}")
    code, _, err = run("warp", "p.1.exr", "--flow", f"pipe{suffix}", "-o", "x.exr")
    assert code == 2
    assert f"pipe{suffix}: expected a regular file, got a device, pipe or socket" in err
