"""Pictures pulled along by stored flow: ``fullfield warp``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from motion_shots import hdr, psnr, shot_of, steady, stored
from sequence_shots import HEIGHT, WIDTH, CommandLine, moving

from fullfield import estimate
from fullfield.io import read_flow_layers, read_frame, write_flow, write_flow_layers, write_image
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.io.vectors import FlowReadOptions
from fullfield.sequences.stored_flow import StoredFlow


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


def test_warp_of_one_picture_reports_direction(cli: CommandLine) -> None:
    write_image("p.png", moving(1)[0])
    stored(1, 2, -2.0)
    out, _ = cli.done("warp", "p.png", "--flow", "mv.0001.exr", "-o", "w.png")
    assert "p.png, read as the next frame, moved onto the frame of mv.0001.exr" in out


def test_warp_keeps_float_values_of_exr(cli: CommandLine) -> None:
    light = 0.05 * hdr()[:3]  # on average not above white, which would be warned about
    assert light.max() > 1
    write_all_channels("b.exr", ChannelPicture(light, ("R", "G", "B"), "float"))
    write_flow("f.flo", steady(2.0))
    assert cli("viz", "f.flo", "-o", "w.exr", "--kind", "warped", "--frame2", "b.exr")[0] == 0
    expected = torch.zeros(3, HEIGHT, WIDTH)
    expected[:, :, :-2] = light[:, :, 2:]
    torch.testing.assert_close(read_all_channels("w.exr").pixels, expected, rtol=1e-4, atol=1e-4)


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
