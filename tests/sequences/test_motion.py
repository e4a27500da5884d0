"""Pulling pictures along, and frames in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from sequence_shots import HEIGHT, WIDTH, CommandLine, moving

from fullfield import InputError, estimate
from fullfield.io import (
    VideoWriter,
    open_video,
    read_flow_layers,
    read_frame,
    read_frame_window,
    write_flow,
    write_flow_layers,
    write_image,
)
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.io.vectors import FlowReadOptions
from fullfield.io.windows import FrameWindow
from fullfield.sequences import WarpSettings, open_plates, retime_shot, warp_shot
from fullfield.sequences.motion import (
    chain_flows,
    interpolate_picture_and_visibility,
    iterate_accumulated_flow_to_reference,
    warp_image,
)
from fullfield.sequences.pictures import InputReader, write_job_pictures
from fullfield.sequences.results import Outcome, StageTimes
from fullfield.sequences.retiming import RetimeSettings, build_retime_job
from fullfield.sequences.stored_flow import StoredFlow
from fullfield.sequences.warping import build_warp_job
from fullfield.testing import sample_textured_scene
from fullfield.testing.shots import SyntheticShot
from refusals import refuses


def steady(u: float, v: float = 0.0) -> torch.Tensor:
    return torch.tensor([u, v]).view(2, 1, 1).expand(2, HEIGHT, WIDTH).contiguous()


def stored(first: int, last: int, u: float) -> None:
    """Files of both directions for a shot that moves by u px a frame."""
    for number in range(first, last + 1):
        ends = [name for name, at in (("forward", last), ("backward", first)) if at == number]
        parts = {"forward": steady(u) * (number < last), "backward": steady(-u) * (number > first)}
        write_flow_layers(f"mv.{number:04d}.exr", parts, notes={"fullfield/shot_ends": ",".join(ends)} if ends else {})


def hdr(seed: int = 0) -> torch.Tensor:
    """[4, H, W]: colour with highlights of 60, multiplied by an alpha with soft edges."""
    made = torch.rand(4, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed))
    made[:3] *= 60 * made[3]
    return made


def test_write_all_channels_round_trip(tmp_path: Path) -> None:
    window = FrameWindow((0, 0, WIDTH, HEIGHT), (0, 0, WIDTH, HEIGHT), 2.0)
    raw = ChannelPicture(hdr() - 0.5, ("R", "G", "B", "A"), "float", window)
    write_all_channels(tmp_path / "a.exr", raw)
    back = read_all_channels(tmp_path / "a.exr")
    assert torch.equal(back.pixels, raw.pixels)
    assert (back.channels, back.value_type, back.window) == (raw.channels, "float", window)
    write_all_channels(tmp_path / "h.exr", raw._replace(value_type="half"))
    assert read_all_channels(tmp_path / "h.exr").value_type == "half"
    refuses("PNG holds no floats", write_all_channels, tmp_path / "a.png", raw)
    write_all_channels(tmp_path / "a.tif", raw._replace(pixels=hdr()))
    torch.testing.assert_close(read_all_channels(tmp_path / "a.tif").pixels, hdr(), rtol=1e-5, atol=1e-5)
    for kind, channels in ((b"PF", ("R", "G", "B")), (b"Pf", ("Y",))):
        planes = hdr()[: len(channels)]
        rows = planes.flip(1).permute(1, 2, 0).contiguous().numpy().tobytes()
        (tmp_path / "a.pfm").write_bytes(kind + b"\n%d %d\n-1\n" % (WIDTH, HEIGHT) + rows)
        back = read_all_channels(tmp_path / "a.pfm")
        assert torch.equal(back.pixels, planes)
        assert (back.channels, back.value_type) == (channels, "float")


@pytest.mark.parametrize("depth", ["uint8", "uint16"])
def test_read_all_channels_premultiplies_png_alpha(tmp_path: Path, depth: str) -> None:
    from PIL import Image

    codes = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    codes[..., 3][codes[..., 3] < 128] = 200
    Image.fromarray(codes, "RGBA").save(tmp_path / "a.png")
    raw = read_all_channels(tmp_path / "a.png")
    assert raw.alpha_index == 3
    expected = codes[..., 0] / 255 * (codes[..., 3] / 255)
    np.testing.assert_allclose(raw.pixels[0].numpy(), expected, atol=1e-6)
    write_all_channels(tmp_path / "b.png", raw._replace(value_type=depth))
    again = read_all_channels(tmp_path / "b.png")
    assert again.value_type == depth
    np.testing.assert_allclose(again.pixels.numpy(), raw.pixels.numpy(), atol=1 / 255)
    write_all_channels(tmp_path / "b.exr", raw)
    opaque = raw.pixels[3] > 0
    assert torch.allclose(read_all_channels(tmp_path / "b.exr").pixels[3], raw.pixels[3])
    assert (read_all_channels(tmp_path / "b.exr").pixels[0] <= raw.pixels[0] + 1e-6)[opaque].all(), (
        "light, no longer encoded"
    )


def test_chain_flows_equals_composition() -> None:
    total = chain_flows(steady(1.5, 0.5), steady(2.0, -1.0))
    inner = total[:, 2:-2, 2:-4]
    torch.testing.assert_close(inner, steady(3.5, -0.5)[:, 2:-2, 2:-4])
    assert total[:, :, -1].isnan().all(), "beyond the frame nothing is known"


def test_accumulate_flow_to_reference_stops_at_missing_flow() -> None:
    def backward(number: int) -> torch.Tensor:
        if number == 13:
            raise InputError("mv.0013.exr: no such file")
        return steady(-2.0)

    found = dict(iterate_accumulated_flow_to_reference(10, range(7, 15), lambda _: steady(2.0), backward))
    assert sorted(found) == [7, 8, 9, 11, 12, 13, 14]
    for number in (7, 8, 9, 11, 12):
        field = found[number]
        assert isinstance(field, torch.Tensor)
        assert float(field[0].nanmean()) == pytest.approx(-2.0 * (number - 10))
    assert isinstance(found[13], InputError)
    assert isinstance(found[14], InputError)


def test_warp_keeps_highlights_of_paint(cli: CommandLine) -> None:
    stored(1, 6, 3.0)
    paint = ChannelPicture(hdr(), ("R", "G", "B", "A"), "float")
    write_all_channels("paint.exr", paint)
    out, err = cli.done("warp", "paint.exr", "--reference", "3", "--flow", "mv.%04d.exr", "-o", "on.%04d.exr")
    assert "6 frames written, paint.exr of frame 3 moved onto each frame" in out
    for number in range(1, 7):
        moved = read_all_channels(f"on.{number:04d}.exr")
        assert moved.channels == paint.channels
        shift = 3 * (number - 3)
        expected = torch.zeros_like(paint.pixels)
        if shift >= 0:
            expected[:, :, shift:] = paint.pixels[:, :, : WIDTH - shift]
        else:
            expected[:, :, :shift] = paint.pixels[:, :, -shift:]
        torch.testing.assert_close(moved.pixels, expected, rtol=1e-5, atol=1e-4)
    assert read_all_channels("on.0006.exr").pixels.max() > 40
    err = cli.refused("warp", "paint.exr", "--reference", "2", "--flow", "mv.%04d.exr", "-o", "on.%04d.exr")
    assert "was begun with other settings (reference was 3, is 2)" in err
    Path("on.exr.fullfield.json").unlink()
    err = cli.refused("warp", "paint.exr", "--reference", "3", "--flow", "mv.%04d.exr", "-o", "on.%04d.exr")
    assert "on.0001.exr: exists, and no on.exr.fullfield.json" in err
    assert "--overwrite" in err


def test_warp_moves_neighbors_onto_frames(cli: CommandLine) -> None:
    for number, frame in enumerate(moving(3), 1):
        write_image(f"p.{number}.png", frame)
    stored(1, 3, -2.0)
    out, err = cli.done("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "w.%d.png")
    assert "note: no picture for 3: the shot ends there" in err
    assert "2 frames written, on each frame lies its next frame" in out
    torch.testing.assert_close(read_frame("w.1.png")[:, :, 2:], read_frame("p.1.png")[:, :, 2:], atol=1e-6, rtol=0)
    assert read_all_channels("w.1.png").value_type == "uint8"
    cli.done("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "b.%d.png", "--direction", "backward",
                      "--frames", "2-3")  # fmt: skip
    torch.testing.assert_close(read_frame("b.3.png")[:, :, :-2], read_frame("p.3.png")[:, :, :-2], atol=1e-6, rtol=0)


def test_warp_hide_occluded_leaves_zeros(cli: CommandLine) -> None:
    hidden = torch.zeros(HEIGHT, WIDTH)
    hidden[:, 10:20] = 1
    write_flow_layers("mv.1.exr", {"forward": steady(0), "occlusion.forward": hidden})
    write_all_channels("m.exr", ChannelPicture(torch.ones(1, HEIGHT, WIDTH), ("A",), "float"))
    assert cli("warp", "m.exr", "--flow", "mv.1.exr", "-o", "o.exr", "--hide-occluded")[0] == 0
    assert torch.equal(read_all_channels("o.exr").pixels[0], 1 - hidden)


@pytest.mark.usefixtures("cli")
def test_warp_hide_occluded_follows_reading_options() -> None:
    hidden = torch.zeros(HEIGHT, WIDTH)
    hidden[:, 10:20] = 1
    write_flow_layers("mv.1.exr", {"forward": steady(3), "occlusion.forward": hidden})
    reading = FlowReadOptions(scale=2.0)
    plain, masked = (
        StoredFlow("mv.1.exr", read_options=reading).read_flow_with_unknown_as_nan(1, "forward", hide_occluded=on)
        for on in (False, True)
    )
    assert plain[0].unique().tolist() == [6]
    assert torch.equal(masked.isnan().all(0), hidden > 0.5)
    assert masked[0][hidden == 0].unique().tolist() == [6]


def test_warp_hide_occluded_works_with_pair(cli: CommandLine) -> None:
    for number, frame in enumerate(moving(2, step=3), 1):
        write_image(f"p.{number}.png", frame)
    cli.done("flow", "p.1.png", "p.2.png", "-o", "pair.exr", "--occlusion", "--method", "tvl1")
    cli.done("warp", "p.2.png", "--flow", "pair.exr", "-o", "o.png", "--hide-occluded")
    hidden = read_flow_layers("pair.exr")["occlusion.forward"] > 0.5
    assert hidden.any()
    assert not read_frame("o.png")[:, hidden].any()


def shot_of(numbers: Iterable[int]) -> None:
    for number, frame in zip(numbers, moving(6), strict=False):
        write_image(f"p.{number}.png", frame)


def test_warp_refuses_flow_over_two_frames(cli: CommandLine) -> None:
    shot_of(range(1, 5))
    cli.done("shot", "p.%d.png", "-o", "far.%d.exr", "--step", "2", "--direction", "both", "--method", "tvl1")
    for verb in (
        ("warp", "p.%d.png"),
        ("warp", "p.1.png", "--reference", "1"),
        ("retime", "p.%d.png", "--factor", "2"),
    ):
        err = cli.refused(*verb, "--flow", "far.%d.exr", "-o", "o.%d.png")
        assert "--flow far.%d.exr: expected flow to the neighbouring frame, got flow over 2 frames" in err
    assert not [*Path().glob("o.*")]


def test_warp_and_retime_refuse_missing_direction(cli: CommandLine) -> None:
    shot_of(range(1, 4))
    cli.done("shot", "p.%d.png", "-o", "f.%d.exr", "--method", "tvl1")
    cli.done("shot", "p.%d.png", "-o", "f.%d.flo", "--method", "tvl1", "--frames", "1-2")
    needing = (
        ("retime", "p.%d.png", "--factor", "2"),
        ("warp", "p.%d.png", "--direction", "backward"),
        ("warp", "p.1.png", "--reference", "1"),
    )
    for suffix in ("exr", "flo"):
        for verb in needing:
            err = cli.refused(*verb, "--flow", f"f.%d.{suffix}", "-o", "o.%d.png")
            assert f"--flow f.%d.{suffix}: expected " in err
            assert "backward vectors, got forward direction; store both as .exr with --direction both" in err
        assert not [*Path().glob("o.*.png")]
        cli.done("warp", "p.3.png", "--reference", "3", "--flow", f"f.%d.{suffix}", "-o", f"{suffix}.%d.png")
        cli.done("warp", "p.1.png", "--reference", "1", "--frames", "1", "--flow", f"f.%d.{suffix}", "-o",
                 f"same_{suffix}.%d.png")  # fmt: skip
        cli.done("retime", "p.%d.png", "--factor", "0.5", "--flow", f"f.%d.{suffix}", "-o", f"half_{suffix}.%d.png")
    Path("f.flo.fullfield.json").unlink()
    err = cli.refused("retime", "p.%d.png", "--factor", "2", "--flow", "f.%d.flo", "-o", "o.%d.png")
    assert "expected forward and backward vectors, got one direction" in err


def test_retime_names_missing_plates_before_work(cli: CommandLine) -> None:
    stored(1, 5, 2.0)
    shot_of((1, 2, 4, 5))
    command = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "o.%d.png")
    assert "p.%d.png: expected the plates 1-5, missing: 3" in cli.refused(*command)
    assert "p.%d.png: expected the plates 4-9, missing: 6-9" in cli.refused(*command, "--frames", "4-9")
    assert "--frames: expected consecutive" in cli.refused("retime", "p.1-5x2@.png", *command[2:])
    assert not [*Path().glob("o.*")]
    cli.done(*command, "--frames", "4-5")


def test_retime_names_both_sizes_that_differ(cli: CommandLine) -> None:
    stored(1, 2, 2.0)
    for number in (1, 2):
        write_image(f"p.{number}.png", torch.full((3, HEIGHT + 3, WIDTH), 0.5))
    err = cli.refused("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "o.%d.png")
    assert f"p.1.png: is {WIDTH}x{HEIGHT + 3}, but the flow mv.0001.exr is {WIDTH}x{HEIGHT}" in err


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * (a - b).square().mean().log10())


def test_interpolate_picture_matches_true_frame() -> None:
    better = []
    for seed in (1, 5):
        scene = sample_textured_scene(96, 128, seed=seed, max_motion=8)
        truth = sample_textured_scene(96, 128, seed=seed, max_motion=4).frame2
        there = estimate(scene.frame1, scene.frame2, "tvl1").flow
        back = estimate(scene.frame2, scene.frame1, "tvl1").flow
        made = interpolate_picture_and_visibility(scene.frame1, scene.frame2, there, back, 0.5)
        mixed = (scene.frame1 + scene.frame2) / 2
        better.append(psnr(made.picture, truth) - psnr(mixed, truth))
        assert float(made.visible.float().mean()) > 0.97
        for at, frame in ((0.0, scene.frame1), (1.0, scene.frame2)):
            assert torch.equal(
                interpolate_picture_and_visibility(scene.frame1, scene.frame2, there, back, at).picture, frame
            )
    assert min(better) > 4, better


def test_interpolate_picture_takes_disoccluded_pixels_from_one_frame() -> None:
    """A white square on grey moves by 8 px: half way, what it uncovers is grey and not half white."""
    first, second = torch.full((1, 32, 48), 0.5), torch.full((1, 32, 48), 0.5)
    first[:, 10:20, 10:20], second[:, 10:20, 18:28] = 9.0, 9.0
    forward, backward = torch.zeros(2, 32, 48), torch.zeros(2, 32, 48)
    forward[0, 10:20, 10:20], backward[0, 10:20, 18:28] = 8, -8
    made = interpolate_picture_and_visibility(first, second, forward, backward, 0.5).picture
    expected = torch.full((1, 32, 48), 0.5)
    expected[:, 10:20, 14:24] = 9.0
    torch.testing.assert_close(made, expected, atol=1e-3, rtol=0)


def test_retime_names_missing_vectors_before_work(cli: CommandLine) -> None:
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    stored(1, 3, -2.0)
    command = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "s.%d.png")
    err = cli.refused(*command)
    assert "expected vectors of the plates 1-4, missing: 4; estimate them, or pass only frames (--frames)" in err
    assert not Path("s.1.png").exists()
    assert "5 frames written" in cli.done(*command, "--frames", "1-3")[0]


def test_warp_of_one_picture_reports_direction(cli: CommandLine) -> None:
    write_image("p.png", moving(1)[0])
    stored(1, 2, -2.0)
    out, _ = cli.done("warp", "p.png", "--flow", "mv.0001.exr", "-o", "w.png")
    assert "p.png, read as the next frame, moved onto the frame of mv.0001.exr" in out


def count_specks(picture: torch.Tensor, truth: torch.Tensor) -> int:
    """Return how many pixels stand out from the 3 x 3 pixels around them by more than in the true picture."""

    def contrast(image: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(image[:, None], (1, 1, 1, 1), mode="replicate")
        neighbours = torch.nn.functional.unfold(padded, 3).view(len(image), 9, -1)
        return (image.flatten(1) - neighbours.median(1).values).abs().amax(0)

    return int((contrast(picture) - contrast(truth) > 0.12).sum())


@pytest.mark.parametrize("seed", [1, 3, 7])
def test_interpolate_picture_adds_no_specks_or_black_pixels(seed: int) -> None:
    """The true flow leads out of the picture at its border, and bodies pass before each other."""
    shot = SyntheticShot(120, 160, 25, seed=seed, bodies=3, light=0.0, shutter=0.0)
    specks = 0
    for number in (0, 6, 16):
        first, truth, second = (shot.render_frame(number + step) for step in range(3))
        forward, backward = (
            shot.compute_flow_and_visibility(number, number + 2).flow,
            shot.compute_flow_and_visibility(number + 2, number).flow,
        )
        picture = interpolate_picture_and_visibility(first, second, forward, backward, 0.5).picture
        assert not ((picture.amax(0) < 1e-3) & (truth.amax(0) > 0.02)).any()
        assert psnr(picture, truth) > psnr((first + second) / 2, truth) + 4
        specks += count_specks(picture, truth)
    assert specks < 110  # more than 300 where samples are not checked against the flow of their frame


def test_retime_shot_writes_frames_at_factor(cli: CommandLine) -> None:
    stored(1, 3, 4.0)
    for number in range(1, 4):
        light = torch.zeros(4, HEIGHT, WIDTH)
        light[:, 8:30, 4 * number + 6 : 4 * number + 20] = torch.tensor([30.0, 2, 1, 1]).view(4, 1, 1)
        write_all_channels(f"p.{number:04d}.exr", ChannelPicture(light, ("R", "G", "B", "A"), "half"))
    out, err = cli.done("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "2.5", "-o", "s.%04d.exr")
    assert "6 frames written" in out
    for number in range(1, 7):
        made = read_all_channels(f"s.{number:04d}.exr")
        time = 1 + (number - 1) / 2.5
        weight = made.pixels[0].sum(0)
        middle = float((weight * torch.arange(WIDTH)).sum() / weight.sum())
        assert middle == pytest.approx(4 * time + 12.5, abs=0.1), number
        assert made.pixels[0].max() == pytest.approx(30, rel=0.01)
        assert made.pixels[3].max() == pytest.approx(1, rel=0.01)
        assert made.value_type == "half"
    assert torch.equal(read_all_channels("s.0001.exr").pixels, read_all_channels("p.0001.exr").pixels)
    assert cli("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "0.5", "-o", "f.%04d.exr")[0] == 0
    assert torch.equal(read_all_channels("f.0002.exr").pixels, read_all_channels("p.0003.exr").pixels)
    Path("p.0002.exr").write_bytes(b"")
    err = cli.refused("retime", "p.%04d.exr", "--flow", "mv.%04d.exr", "--factor", "1", "-o", "t.%04d.exr")
    assert "p.0002.exr: the file is empty" in err


@pytest.mark.parametrize("verb", ["warp", "retime"])
def test_warp_and_retime_continue_stopped_run(cli: CommandLine, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.io import all_channels

    stored(1, 5, 2.0)
    for number, frame in enumerate(moving(5), 1):
        write_image(f"p.{number:04d}.png", frame)
    more = ("--factor", "2") if verb == "retime" else ("--reference", "3")
    command = (verb, "p.%04d.png", "--flow", "mv.%04d.exr", *more, "-o")
    assert cli(*command, "whole.%04d.png")[0] == 0
    whole = {path.name.replace("whole", "o"): path.read_bytes() for path in Path().glob("whole.*.png")}
    real = all_channels.write_all_channels

    def stopped(path: str, picture: ChannelPicture) -> None:
        if len(list(Path().glob("o.*.png"))) >= 2:
            raise KeyboardInterrupt
        real(path, picture)

    with monkeypatch.context() as patch:
        patch.setattr(all_channels, "write_all_channels", stopped)
        assert cli(*command, "o.%04d.png")[0] == 130
    first = {path: path.stat().st_mtime_ns for path in Path().glob("o.*.png")}
    assert 2 <= len(first) <= 3, "two threads write"
    out, err = cli.done(*command, "o.%04d.png")
    assert f"{len(whole) - len(first)} frames written" in out
    assert f"{len(first)} of {len(whole)} frames exist" in err
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert {path.name: path.read_bytes() for path in Path().glob("o.*.png")} == whole
    out, _ = cli.done(*command, "o.%04d.png")
    assert "0 frames written" in out
    err = cli.refused(verb, "p.%04d.png", "--flow", "mv.%04d.exr", more[0], "4", "-o", "o.%04d.png")
    assert "was begun with other settings" in err
    cli.done(verb, "p.%04d.png", "--flow", "mv.%04d.exr", more[0], "4", "-o", "o.%04d.png", "--overwrite")
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in first.items())


def test_retime_does_not_interpolate_across_cut(cli: CommandLine) -> None:
    stored(1, 4, 2.0)
    shots = [*moving(2, seed=4), *moving(2, seed=9)]
    for number, frame in enumerate(shots, 1):
        write_image(f"p.{number:04d}.png", frame)
    out, err = cli.done("retime", "p.%04d.png", "--flow", "mv.%04d.exr", "--factor", "4", "-o", "s.%04d.png", "--json")
    assert json.loads(out)["cuts"] == [[2, 3]]
    assert "the shot changes between the frames 2 and 3" in err
    pictures = {number: read_frame(f"s.{number:04d}.png") for number in range(1, 14)}
    for number, plate in ((5, 2), (6, 2), (7, 3), (8, 3), (9, 3)):
        assert torch.equal(pictures[number], read_frame(f"p.{plate:04d}.png")), number
    assert not torch.equal(pictures[3], pictures[1]), "within a shot there are frames in between"


def test_warp_keeps_float_values_of_exr(cli: CommandLine) -> None:
    light = 0.05 * hdr()[:3]  # on average not above white, which would be warned about
    assert light.max() > 1
    write_all_channels("b.exr", ChannelPicture(light, ("R", "G", "B"), "float"))
    write_flow("f.flo", steady(2.0))
    assert cli("viz", "f.flo", "-o", "w.exr", "--kind", "warped", "--frame2", "b.exr")[0] == 0
    expected = torch.zeros(3, HEIGHT, WIDTH)
    expected[:, :, :-2] = light[:, :, 2:]
    torch.testing.assert_close(read_all_channels("w.exr").pixels, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("warp", "p.png", "--flow", "mv.%04d.exr", "-o", "o.%04d.exr"), "--reference: expected the number of"),
        (("warp", "no.png", "--flow", "mv.%04d.exr", "-o", "o.%04d.exr"), "no.png: no such file"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.exr"), "expected a pattern"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.%d.jpg"), "--output takes .exr"),
        (("warp", "p.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "o.%d.exr", "--direction", "forward"),
         "--direction: not used with --reference"),
        (("warp", "p.png", "--reference", "9", "--flow", "mv.%04d.exr", "-o", "o.%d.exr"), "expected 0 to 3"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "0", "-o", "o.%d.exr"), "--factor: expected"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "1e-4", "-o", "o.%d.exr"), "expected 0.001 to"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "1e300", "-o", "o.%d.exr"), "expected 0.001 to"),
        (("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "p.%d.png"), "is also an input"),
    ],
)  # fmt: skip
def test_warp_and_retime_report_mistakes_in_one_line(cli: CommandLine, arguments: tuple[str, ...], word: str) -> None:
    stored(1, 2, 1.0)
    for name in ("p.png", "p.1.png", "p.2.png"):
        write_image(name, torch.rand(3, HEIGHT, WIDTH))
    err = cli.refused(*arguments)
    assert word in err, err
    assert err.count("\n") == 1


def test_warp_image_is_zero_outside_and_where_unknown() -> None:
    image = torch.rand(3, 20, 30, generator=torch.Generator().manual_seed(2)) + 0.5
    flow = torch.tensor([3.0, -2.0]).reshape(2, 1, 1).repeat(1, 20, 30)
    flow[:, 10, 10] = float("nan")
    warped, inside = warp_image(image, flow)
    expected = torch.zeros_like(image)
    expected[:, 2:, :-3] = image[:, :-2, 3:]
    expected[:, 10, 10] = 0
    assert torch.equal(warped, expected)
    assert inside.sum() == 18 * 27 - 1
    refuses("flow: expected shape", warp_image, image, flow[:, :-1])


def test_warp_shot_and_retime_shot_equal_commands(cli: CommandLine) -> None:
    stored(1, 4, -2.0)
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    cli.done("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "w.%d.png", "--reference", "2")
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "r.%d.png", "--factor", "2")
    reported: list[int] = []
    outcome = warp_shot("p.%d.png", "mv.%04d.exr", "a.%d.png", WarpSettings(reference=2), report=reported.append)
    assert outcome.written == sorted(reported) == [1, 2, 3, 4]
    assert outcome.is_complete
    outcome = retime_shot("p.%d.png", "mv.%04d.exr", "b.%d.png", RetimeSettings(2), device="cpu")
    assert outcome.written == [1, 2, 3, 4, 5, 6, 7]
    for ours, theirs in (("a", "w"), ("b", "r")):
        files = {path.name[1:]: path.read_bytes() for path in Path().glob(f"{ours}.*.png")}
        assert files == {path.name[1:]: path.read_bytes() for path in Path().glob(f"{theirs}.*.png")}
    assert warp_shot("p.%d.png", "mv.%04d.exr", "a.%d.png", WarpSettings(reference=2)).written == []
    refuses("reference: expected 0 to 5", warp_shot, "p.1.png", "mv.%04d.exr", "c.%d.png", WarpSettings(reference=9))
    refuses("factor: expected 0.001", RetimeSettings, 1e9)
    refuses("settings: expected a RetimeSettings, got", retime_shot, "p.%d.png", "mv.%04d.exr", "c.%d.png", 2.5)


def test_input_reader_rereads_file_replaced_after_read_ahead(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text("first")
    texts: list[str] = []
    is_read_ahead = threading.Event()

    def read(path: Path) -> str:
        texts.append(path.read_text())
        if path == paths[1]:
            is_read_ahead.set()
        return texts[-1]

    with InputReader(read, str, paths, StageTimes(), Outcome(), threads=1) as reader:
        assert reader.wait_and_get_current_item_or_raise(paths[0]) == "first"
        assert is_read_ahead.wait(60)
        replacement = tmp_path / "new"
        replacement.write_text("second")
        replacement.replace(paths[1])
        assert reader.wait_and_get_current_item_or_raise(paths[1]) == "second"
    assert texts == ["first", "first", "second"]


def test_input_reader_releases_skipped_items() -> None:
    started: list[str] = []
    with InputReader(started.append, lambda _: __file__, list("abcdef"), StageTimes(), Outcome(), threads=1) as reader:
        for key in "bcdef":  # "a" is never taken
            reader.discard_unneeded_items(lambda other, key=key: other >= key)
            reader.wait_and_get_current_item_or_raise(key)
            assert "a" not in reader._reads._pending
            assert len(reader._reads._pending) <= 2


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("is_broken", [False, True])
def test_warp_and_retime_close_video(is_broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(3), "prores")
    stored(1, 3, -2.0)
    for name, job in (
        ("w", build_warp_job("clip.mov", "mv.%04d.exr", "w.%d.png")),
        ("r", build_retime_job("clip.mov", "mv.%04d.exr", "r.%d.png", RetimeSettings(2))),
    ):
        closed: list[str] = []
        monkeypatch.setattr(job.plates, "close", lambda name=name, closed=closed: closed.append(name))
        settled, plan = job.write_settings_and_get_job_and_plan()
        if is_broken:
            monkeypatch.setattr(type(job), "_read_input", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                write_job_pictures(settled, plan.missing)
        else:
            assert write_job_pictures(settled, plan.missing).written
        assert closed == [name]


def test_retime_reads_each_file_once(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences import picture_files

    stored(1, 4, -2.0)
    for number, frame in enumerate(moving(4), 1):
        write_image(f"p.{number}.png", frame)
    paths: list[str] = []
    monkeypatch.setattr(
        picture_files, "read_all_channels", lambda path, mask: paths.append(path) or read_all_channels(path, mask)
    )
    assert retime_shot("p.%d.png", "mv.%04d.exr", "s.%d.png", RetimeSettings(3)).written == list(range(1, 11))
    assert sorted(paths) == [f"p.{number}.png" for number in range(1, 5)]

    def replaced(number: int) -> None:
        if number == 1:
            write_image("p.4.png", 0.5 * moving(4)[3])

    retime_shot("p.%d.png", "mv.%04d.exr", "t.%d.png", RetimeSettings(3), report=replaced)
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "3", "-o", "t.%d.png")
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "3", "-o", "u.%d.png")
    assert [Path(f"t.{n}.png").read_bytes() for n in range(1, 11)] == [
        Path(f"u.{n}.png").read_bytes() for n in range(1, 11)
    ]


def test_warp_flow_scale_applies_proxy_flow_to_plates(cli: CommandLine) -> None:
    stored(1, 3, -2.0)
    for number, frame in enumerate(moving(3), 1):
        large = torch.nn.functional.interpolate(frame[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
        write_image(f"p.{number}.png", large)
    warp = ("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "w.%d.png")
    err = cli.refused(*warp)
    assert f"p.2.png: is {2 * WIDTH}x{2 * HEIGHT}, but the flow mv.%04d.exr is {WIDTH}x{HEIGHT}" in err
    cli.done(*warp, "--flow-scale", "1/2")
    plate = read_frame("p.2.png")
    torch.testing.assert_close(read_frame("w.1.png")[:, :, 4:], plate[:, :, :-4], atol=1e-6, rtol=0)
    cli.done("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--flow-scale", "1/2", "--factor", "2", "-o", "s.%d.png")
    middle, expected = read_frame("s.2.png")[:, 8:-8, 8:-8], read_frame("p.1.png")[:, 8:-8, 10:-6]
    assert psnr(middle, expected) > 35
    assert "flow_scale was '1/2', is '1'" in cli.refused(*warp)
    err = cli.refused("warp", "p.%d.png", "--flow", "mv.%04d.exr", "-o", "x.%d.png", "--flow-scale", "1/4")
    assert "expected 1/4 of the size" in err
    assert "--flow-scale: expected a fraction such as 1/2" in cli.refused(*warp, "--flow-scale", "half")


def test_shot_scale_stores_full_size_flow(cli: CommandLine) -> None:
    for number, frame in enumerate(moving(3, step=4), 1):
        write_image(f"p.{number}.png", frame)
    cli.done("shot", "p.%d.png", "-o", "mv.%d.exr", "--scale", "1/2", "--method", "tvl1")
    cli.done("flow", "p.1.png", "p.2.png", "-o", "pair.exr", "--scale", "1/2", "--method", "tvl1")
    flow = read_flow_layers("mv.1.exr")["forward"]
    assert torch.equal(flow, read_flow_layers("pair.exr")["forward"])
    assert flow.shape == (2, HEIGHT, WIDTH)
    assert float(flow[0, 10:-10, 10:-10].mean()) == pytest.approx(-4, abs=0.5)
    full = estimate("p.1.png", "p.2.png", "tvl1").flow
    assert not torch.equal(flow, full)
    err = cli.refused("shot", "p.%d.png", "-o", "mv.%d.exr", "--method", "tvl1")
    assert "was begun with other settings (--scale was '1/2'" in err
    assert "--scale: expected a fraction such as 1/4" in cli.refused(
        "shot", "p.%d.png", "-o", "x.%d.exr", "--scale", "2x"
    )


def write_video(path: str, frames: list[torch.Tensor], codec: str = "h264", pixel_aspect: float = 1.0) -> None:
    from fullfield.io import VideoWriter

    with VideoWriter(path, WIDTH, HEIGHT, 25.0, codec, pixel_aspect) as writer:
        for number, frame in enumerate(frames):
            writer.write((frame * 65535).round().to(torch.int32), number / 25)


@pytest.mark.parametrize(("name", "codec"), [("slow.mp4", "h264"), ("slow.mkv", "h264")])
def test_retime_and_warp_keep_pixel_aspect_ratio(cli: CommandLine, name: str, codec: str) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(3), "prores", 2.0)
    stored(1, 3, -2.0)
    cli.done("retime", "clip.mov", "--flow", "mv.%04d.exr", "--factor", "2", "-o", name, "--codec", codec)
    source = open_video(name)
    assert source.pixel_aspect == 2  # type: ignore[attr-defined]
    source.close()
    with pytest.warns(UserWarning, match=r"a\.mkv: players will show square pixels; write \.mov"):
        write_video("a.mkv", moving(1), "prores", 2.0)
    cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.exr")
    assert read_frame_window("w.1.exr").pixel_aspect == 2


@pytest.mark.parametrize(("name", "codec"), [("slow.mp4", "h264"), ("slow.mov", "prores")])
def test_retime_reads_and_writes_video(cli: CommandLine, name: str, codec: str) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(4), "prores")
    stored(1, 4, -2.0)
    command = ("retime", "clip.mov", "--flow", "mv.%04d.exr", "--factor", "2", "-o", name)
    out, err = cli.done(*command, "--codec", codec)
    assert f"{name}: 7 frames written" in out
    assert f"{name}: is written without sound" in err
    plates = open_plates(name)
    assert plates.numbers == list(range(1, 8))
    for number, plate in ((1, 1), (3, 2), (7, 4)):
        assert psnr(plates.read(number).frame, open_plates("clip.mov").read(plate).frame) > 27
    assert "already exists; use --overwrite" in cli.refused(*command)


def test_warp_reads_video_and_writes_files(cli: CommandLine) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    write_video("clip.mov", moving(4), "prores")
    stored(1, 4, -2.0)
    out, _ = cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.png")
    assert "3 frames written" in out
    expected = open_plates("clip.mov").read(2).frame
    torch.testing.assert_close(read_frame("w.1.png")[:, :, 2:], expected[:, :, :-2], atol=0.01, rtol=0)
    assert "0 frames written" in cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.%d.png")[0]
    out, _ = cli.done("warp", "clip.mov", "--flow", "mv.%04d.exr", "-o", "w.mp4")
    assert open_plates("w.mp4").numbers == [1, 2, 3]


def test_retime_encodes_linear_pictures_for_video(cli: CommandLine) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    stored(1, 2, 0.0)
    for number in (1, 2):
        write_all_channels(
            f"p.{number}.exr", ChannelPicture(torch.full((3, HEIGHT, WIDTH), 0.214), ("R", "G", "B"), "half")
        )
    cli.done("retime", "p.%d.exr", "--flow", "mv.%04d.exr", "--factor", "2", "-o", "s.mp4")
    assert float(open_plates("s.mp4").read(2).frame.mean()) == pytest.approx(0.5, abs=0.02), "sRGB of 0.214"


def test_warp_and_retime_refuse_unsupported_video_output(cli: CommandLine) -> None:
    stored(1, 3, 1.0)
    shot_of(range(1, 4))
    retime = ("retime", "p.%d.png", "--flow", "mv.%04d.exr", "--factor", "2", "-o")
    assert "--codec: expected h264 for s.mp4, got prores" in cli.refused(*retime, "s.mp4", "--codec", "prores")
    assert "--codec: is for a video" in cli.refused(*retime, "s.%d.png", "--codec", "prores")
    warp = ("warp", "p.1.png", "--reference", "1", "--flow", "mv.%04d.exr", "-o", "s.mp4")
    assert "--output s.mp4: expected files with a reference" in cli.refused(*warp)
    assert not Path("s.mp4").exists()


def test_video_writer_refuses_dnxhr_outside_mov(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    for name, expected in (("a.mkv", "h264 or prores"), ("a.mp4", "h264")):
        refuses(f"codec: expected {expected} for", VideoWriter, tmp_path / name, 256, 128, 24.0, "dnxhr")


def test_video_writer_refuses_small_dnxhr(tmp_path: Path) -> None:
    for width, height in ((254, 128), (256, 118)):
        refuses("codec: expected 256x120 or more", VideoWriter, tmp_path / "a.mov", width, height, 24.0, "dnxhr")
    assert list(tmp_path.iterdir()) == []
    with VideoWriter(tmp_path / "a.mov", 256, 120, 24.0, "dnxhr") as writer:
        writer.write(torch.zeros(3, 120, 256, dtype=torch.uint8), 0.0)


def test_video_writer_writes_10_bit_dnxhr(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")
    from fullfield.io import VideoWriter

    ramp = (torch.linspace(0, 65535, 256).expand(3, 128, 256)).round().to(torch.int32)
    with VideoWriter(tmp_path / "a.mov", 256, 128, 24.0, "dnxhr") as writer:
        writer.write(ramp, 0.0)
    with av.open(str(tmp_path / "a.mov")) as container:
        assert container.streams.video[0].codec_context.name == "dnxhd"
        assert container.streams.video[0].codec_context.pix_fmt == "yuv422p10le"
    frame = open_plates(tmp_path / "a.mov").read(1).frame
    torch.testing.assert_close(frame, ramp / 65535, atol=0.02, rtol=0)
