"""Motion applied to pictures: all channels, chains of flows, warping and interpolation, reading ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from motion_shots import hdr, psnr, steady
from sequence_shots import HEIGHT, WIDTH

from fullfield import InputError, estimate
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.io.windows import FrameWindow
from fullfield.sequences.motion import (
    chain_flows,
    interpolate_picture_and_visibility,
    iterate_accumulated_flow_to_reference,
    warp_image,
)
from fullfield.sequences.pictures import InputReader
from fullfield.sequences.results import Outcome, StageTimes
from fullfield.testing import sample_textured_scene
from fullfield.testing.shots import SyntheticShot
from refusals import refuses


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
