"""``fullfield flow``: what it writes and what it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fullfield.estimators
from fullfield.estimators import estimate
from fullfield.io import FLOW_WRITE_SUFFIXES, read_flow, read_frame, write_flow, write_image
from fullfield.metrics import epe
from fullfield.ops.tvl1.config import PRESETS
from fullfield.testing import Scene

FAST = ("--preset", "fast", "--iterations", "3", "--warps", "2")


@pytest.mark.parametrize("suffix", FLOW_WRITE_SUFFIXES)
def test_the_suffix_picks_the_format(cli: Any, scene: Path, suffix: str) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", f"out{suffix}", *FAST)
    assert ran.code == 0, ran.err
    flow, valid = read_flow(scene / f"out{suffix}")
    expected = estimate("a.png", "b.png", preset="fast", iterations=3, warps=2).flow
    assert valid.all()
    assert (flow - expected).abs().max() <= (1 / 128 + 1e-6 if suffix == ".png" else 0)
    assert ran.out.startswith(f"out{suffix}: 64x48, tvl1 fast")


def test_the_default_preset_finds_the_motion(cli: Any, made: Scene) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.flo").code == 0
    assert epe(read_flow("out.flo").flow, made.flow, ~made.occluded) < 0.3


def test_json_is_one_complete_object(cli: Any) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--lambda", "0.2", *FAST, "--json")
    report = ran.json
    config = dataclasses.replace(PRESETS["fast"], lambda_=0.2, iterations=3, warps=2)
    assert report["output"] == "out.flo"
    assert (report["method"], report["preset"]) == ("tvl1", "fast")
    assert report["parameters"] == dataclasses.asdict(config)
    assert report["size"] == {"width": 64, "height": 48}
    assert report["backend"] == estimate("a.png", "b.png", preset="fast").backend
    assert report["seconds"].keys() == {"load", "compile", "estimate", "write", "total"}
    assert report["seconds"]["total"] == pytest.approx(sum(report["seconds"].values()) / 2, abs=0.01)
    longest = float(torch.hypot(*read_flow("out.flo").flow).max())
    assert report["longest_motion"] == pytest.approx(longest)
    assert report["picture"] == {"path": "v.png", "kind": "sheet", "max_motion": pytest.approx(longest)}
    assert report["peak_memory_bytes"] is None or report["peak_memory_bytes"] > 1e7
    assert report["versions"]["fullfield"] == fullfield.__version__


def test_backward_is_the_second_layer(cli: Any) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.exr", "--backward", *FAST).code == 0
    back = estimate("b.png", "a.png", preset="fast", iterations=3, warps=2).flow
    assert torch.equal(read_flow("out.exr", layer="backward").flow, back)


def test_half_and_compression_reach_the_file(cli: Any) -> None:
    import OpenImageIO as oiio

    assert cli("flow", "a.png", "b.png", "-o", "out.exr", "--half", "--compression", "piz", *FAST).code == 0
    spec = oiio.ImageInput.open("out.exr").spec()
    assert str(spec.format) == "half"
    assert spec.get_string_attribute("compression") == "piz"


def test_st_map_shows_where_the_colour_comes_from(cli: Any) -> None:
    import OpenImageIO as oiio

    assert cli("flow", "a.png", "b.png", "-o", "out.flo", "--st-map", "st.exr", *FAST).code == 0
    s = torch.from_numpy(oiio.ImageInput.open("st.exr").read_image())[..., 0]
    u = read_flow("out.flo").flow[0]
    assert torch.allclose(s * 64 - 0.5 - torch.arange(64), u, atol=1e-4)


@pytest.mark.parametrize("kind", ["sheet", "flow", "overlay", "warped"])
def test_pictures(cli: Any, kind: str) -> None:
    chosen = () if kind == "sheet" else ("--viz-kind", kind)
    scale = () if kind == "warped" else ("--max-motion", "7")
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", *chosen, *scale, *FAST)
    assert ran.code == 0, ran.err
    assert ("v.png: the full colour is 7 px" in ran.out) is bool(scale)
    picture = read_frame("v.png")
    if kind == "sheet":
        assert picture.shape[-1] > 3 * 64
    else:
        assert picture.shape[-2:] == (48, 64)


def test_the_warped_picture_resembles_the_first_frame(cli: Any, made: Scene) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--viz-kind", "warped").code == 0
    warped, first = read_frame("v.png"), read_frame("a.png")
    seen = ~made.occluded
    seen[:4], seen[-4:], seen[:, :4], seen[:, -4:] = False, False, False, False
    assert (warped - first)[:, seen].abs().mean() < 0.4 * (read_frame("b.png") - first)[:, seen].abs().mean()


def test_initial_flow_is_the_start(cli: Any) -> None:
    write_flow("start.flo", torch.full((2, 48, 64), 0.5), torch.arange(64).expand(48, 64) > 0)
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--initial-flow", "start.flo", *FAST)
    start = torch.full((2, 48, 64), 0.5)
    start[:, :, 0] = 0
    expected = estimate("a.png", "b.png", preset="fast", iterations=3, warps=2, initial_flow=start).flow
    assert torch.equal(read_flow("out.flo").flow, expected)
    assert "start.flo: 48 unknown vectors start from zero" in ran.err


def test_the_transfer_reaches_the_frames(cli: Any) -> None:
    for name in ("a", "b"):
        write_image(f"{name}.exr", read_frame(f"{name}.png"))
    assert cli("flow", "a.png", "b.png", "-o", "png.flo", *FAST).code == 0
    assert cli("flow", "a.exr", "b.exr", "-o", "auto.flo", *FAST).code == 0
    assert cli("flow", "a.exr", "b.exr", "-o", "raw.flo", "--input-transfer", "srgb", *FAST).code == 0
    same, auto, raw = (read_flow(f"{name}.flo").flow for name in ("png", "auto", "raw"))
    assert (same - auto).abs().max() < 0.01
    assert (same - raw).abs().max() > 0.05


def test_threads_do_not_change_the_flow(cli: Any) -> None:
    for threads in (1, 2):
        assert cli("flow", "a.png", "b.png", "-o", f"{threads}.flo", "--threads", threads, *FAST).code == 0
        assert torch.get_num_threads() == threads
    assert Path("1.flo").read_bytes() == Path("2.flo").read_bytes()


def test_motion_beyond_the_format_is_kept_elsewhere(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def far(*args: Any, **named: Any) -> Any:
        found = estimate(*args, **named)
        return dataclasses.replace(found, flow=torch.full_like(found.flow, 600.0))

    monkeypatch.setattr(fullfield.estimators, "estimate", far)
    line = refused("flow", "a.png", "b.png", "-o", "out.png", *FAST)
    assert "out.png: the KITTI PNG format holds" in line
    assert "out.png.npy" in line
    assert not Path("out.png").exists()
    assert (read_flow("out.png.npy").flow == 600).all()


def test_real_frames(cli: Any, data_dir: Path, tmp_path: Path) -> None:
    scene = data_dir / "flow" / "middlebury" / "RubberWhale"
    out = tmp_path / "out.flo"
    assert cli("flow", scene / "frame10.png", scene / "frame11.png", "-o", out, "--preset", "fast").code == 0
    assert cli("score", out, scene / "flow10.flo", "--json").json["epe"] < 0.3
