"""``fullfield flow``: what it writes and what it reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch

import fullfield.estimators.estimation
import fullfield.io
from fullfield._check import InputError
from fullfield.estimators.estimation import estimate, estimate_tensors
from fullfield.estimators.flow import Flow
from fullfield.io import read_flow, read_frame, write_flow, write_image
from fullfield.io.flow import read_flow_window
from fullfield.io.names import FLOW_WRITE_SUFFIXES
from fullfield.io.oiio import Header, write_and_verify_picture
from fullfield.io.windows import FrameWindow
from fullfield.metrics import epe
from fullfield.ops.tvl1 import TVL1Config
from fullfield.ops.tvl1.config import PRESETS
from fullfield.testing import sample_textured_scene
from fullfield.testing.scenes import Scene

FAST = ("--method", "tvl1", "--preset", "fast", "--iterations", "3", "--warps", "2")
CONFIG = TVL1Config.from_preset("fast").replace(iterations=3, warps=2)


@pytest.mark.parametrize("suffix", FLOW_WRITE_SUFFIXES)
def test_flow_output_suffix_selects_format(cli: Any, scene: Path, suffix: str) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", f"out{suffix}", *FAST)
    assert ran.code == 0, ran.err
    flow, valid = read_flow(scene / f"out{suffix}")
    expected = estimate("a.png", "b.png", "tvl1", config=CONFIG).flow
    assert valid.all()
    assert (flow - expected).abs().max() <= (1 / 128 + 1e-6 if suffix == ".png" else 0)
    assert ran.out.startswith(f"out{suffix}: 64x48, tvl1 (preset fast)")


def test_flow_default_preset_estimates_motion(cli: Any, made: Scene) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.flo").code == 0
    assert epe(read_flow("out.flo").flow, made.flow, ~made.occluded) < 0.3


def test_flow_json_is_one_object(cli: Any) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--lambda", "0.2", *FAST, "--json")
    report = ran.json
    config = dataclasses.replace(PRESETS["fast"], lambda_=0.2, iterations=3, warps=2)
    assert report["output"] == "out.flo"
    assert (report["method"], report["preset"]) == ("tvl1", "fast")
    assert report["parameters"] == dataclasses.asdict(config)
    assert report["size"] == {"width": 64, "height": 48}
    assert report["backend"] == estimate("a.png", "b.png", "tvl1", preset="fast").backend
    assert report["seconds"].keys() == {"load", "compile", "estimate", "write", "total"}
    assert report["seconds"]["total"] == pytest.approx(sum(report["seconds"].values()) / 2, abs=0.01)
    longest = float(torch.hypot(*read_flow("out.flo").flow).max())
    assert report["longest_motion"] == pytest.approx(longest)
    assert report["picture"] == {"path": "v.png", "kind": "sheet", "max_motion": pytest.approx(longest)}
    assert report["peak_memory_bytes"] is None or report["peak_memory_bytes"] > 1e7
    assert report["versions"]["fullfield"] == fullfield.__version__


def test_flow_direction_both_uses_first_frame_pixels(cli: Any) -> None:
    """One picture that moves by 1 px, then by 3 px to the right: the fields differ, and so do their pixels."""
    texture = sample_textured_scene(60, 90, seed=4).frame1
    for name, left in (("z", 21), ("a", 20), ("b", 17)):  # a window that moves left moves the picture right
        write_image(f"{name}.png", texture[:, 6:54, left : left + 64])
    assert cli("flow", "a.png", "b.png", "-o", "out.exr", "--previous", "z.png", *FAST[:4]).code == 0
    forward, backward = read_flow("out.exr").flow, read_flow("out.exr", layer="backward").flow
    assert torch.equal(forward, estimate("a.png", "b.png", "tvl1", preset="fast").flow)
    assert torch.equal(backward, estimate("a.png", "z.png", "tvl1", preset="fast").flow)
    inner = (slice(8, -8), slice(8, -8))
    assert float(forward[0][inner].median()) == pytest.approx(3, abs=0.1)
    assert float(backward[0][inner].median()) == pytest.approx(-1, abs=0.1)
    report = cli("flow", "a.png", "b.png", "-o", "out.exr", "--previous", "z.png", *FAST, "--json").json
    assert report["previous"] == "z.png"
    turned = cli("flow", "a.png", "z.png", "-o", "out.exr", "--previous", "b.png", *FAST, "--json").json
    forward, backward = (read_flow("out.exr", layer=layer).flow for layer in ("forward", "backward"))
    assert turned["longest_motion"] == float(torch.hypot(*backward).max()) > float(torch.hypot(*forward).max())


def test_flow_reports_levels_that_small_frames_skip(cli: Any, scene: Path) -> None:
    assert scene
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", *FAST, "--scales", "100")
    assert ran.code == 0
    assert "--scales 100: " in ran.err
    assert "levels; a side of the next would be under 16" in ran.err
    for more in (("--scales", "2"), ("--scales", "auto"), ("--scales", "100", "--quiet")):
        assert "levels" not in cli("flow", "a.png", "b.png", "-o", "out.flo", *FAST, *more).err


def _plates(corners: dict[str, tuple[int, int]]) -> None:
    """EXR frames of one unmoving picture, each with its 64 x 48 data window at that corner."""
    texture = sample_textured_scene(90, 120, seed=4).frame1
    for name, (x, y) in corners.items():
        pixels = np.ascontiguousarray(texture[:, y : y + 48, x : x + 64].permute(1, 2, 0).numpy())
        window = FrameWindow((x, y, 64, 48), (10, 0, 100, 90), 2.0)
        write_and_verify_picture(Path(f"{name}.exr"), "openexr", pixels, ("R", "G", "B"), Header(window=window))


def test_flow_window_data_writes_union_of_data_windows(cli: Any) -> None:
    _plates({"a": (20, 30), "b": (25, 34)})
    ran = cli("flow", "a.exr", "b.exr", "-o", "out.exr", "--st-map", "st.exr", "--window", "data", *FAST[:4])
    assert ran.code == 0, ran.err
    window = FrameWindow((20, 30, 69, 52), (10, 0, 100, 90), 2.0)
    assert read_flow_window("out.exr") == window
    flow = read_flow("out.exr", window="data").flow
    assert flow.shape == (2, 52, 69)
    assert flow[:, 12:40, 13:56].norm(dim=0).median() < 0.05  # the picture stays where it is
    st_map = oiio.ImageInput.open("st.exr")
    spec = st_map.spec()
    assert (spec.x, spec.y, spec.full_x, spec.full_width) == (20, 30, 10, 100)
    s = torch.from_numpy(st_map.read_image("float"))[..., 0]
    assert torch.allclose(s * 100 - 0.5 - (torch.arange(69) + 20 - 10), flow[0], atol=1e-3)


def test_flow_keeps_display_windows(cli: Any) -> None:
    _plates({"a": (20, 30), "b": (25, 34)})
    assert cli("flow", "a.exr", "b.exr", "-o", "out.exr", *FAST).code == 0
    assert read_flow_window("out.exr") == FrameWindow((10, 0, 100, 90), (10, 0, 100, 90), 2.0)
    assert cli("convert", "out.exr", "copy.exr", "--half").code == 0
    assert read_flow_window("copy.exr") == read_flow_window("out.exr")
    assert cli("viz", "out.exr", "-o", "v.png", "--kind", "overlay", "--frame", "a.exr").code == 0


def test_flow_refuses_mismatched_windows(refused: Callable[..., str], cli: Any) -> None:
    _plates({"a": (0, 0), "b": (56, 40), "c": (50, 42)})
    write_image("d.exr", torch.rand(3, 48, 64))
    options = ("-o", "out.exr", "--window", "data", *FAST)
    assert "d.exr: its display window is 64x48 at (0, 0)" in refused("flow", "a.exr", "d.exr", *options)
    assert cli("flow", "a.exr", "b.exr", *options).code == 0
    assert read_flow_window("out.exr").data == (0, 0, 120, 88)
    kept = ("viz", "out.exr", "-o", "v.png", "--kind", "sheet", "--frame", "a.exr", "--frame2", "b.exr")
    assert cli(*kept, "--window", "data").code == 0
    assert cli("flow", "a.exr", "b.exr", "--initial-flow", "out.exr", "-o", "two.exr", *options[2:]).code == 0


def test_flow_initial_layer_selects_exr_layer(cli: Any) -> None:
    start = torch.full((2, 48, 64), 0.5)
    write_flow("start.exr", torch.zeros(2, 48, 64), backward=start)
    named = ("--initial-flow", "start.exr", "--initial-layer", "backward", "--initial-part", "0")
    assert cli("flow", "a.png", "b.png", "-o", "out.flo", *named, *FAST).code == 0
    expected = estimate("a.png", "b.png", "tvl1", config=CONFIG, initial_flow=start).flow
    assert torch.equal(read_flow("out.flo").flow, expected)


def test_flow_quiet_silences_compilation(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(*args: Any, **named: Any) -> Any:
        seen.append(os.environ.get("FULLFIELD_QUIET"))
        return estimate_tensors(*args, **named)

    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", look)
    assert cli("flow", "a.png", "b.png", "-o", "out.flo", "--quiet", *FAST).err == ""
    assert set(seen) == {"1"}
    assert "FULLFIELD_QUIET" not in os.environ


def test_flow_half_and_compression_are_stored(cli: Any) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.exr", "--half", "--compression", "piz", *FAST).code == 0
    spec = oiio.ImageInput.open("out.exr").spec()
    assert str(spec.format) == "half"
    assert spec.get_string_attribute("compression") == "piz"


@pytest.mark.parametrize("kind", ["sheet", "flow", "overlay", "warped"])
def test_flow_viz_writes_pictures(cli: Any, kind: str) -> None:
    chosen = () if kind == "sheet" else ("--viz-kind", kind)
    scale = () if kind == "warped" else ("--max-motion", "7")
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", *chosen, *scale, *FAST)
    assert ran.code == 0, ran.err
    assert (f"v.png: {kind}, colour scale: 0 to 7 px" in ran.out) is bool(scale)
    picture = read_frame("v.png")
    if kind == "sheet":
        assert picture.shape[-1] > 3 * 64
    else:
        assert picture.shape[-2:] == (48, 64)


def test_flow_viz_warped_matches_first_frame(cli: Any, made: Scene) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--viz-kind", "warped").code == 0
    warped, first = read_frame("v.png"), read_frame("a.png")
    seen = ~made.occluded
    seen[:4], seen[-4:], seen[:, :4], seen[:, -4:] = False, False, False, False
    assert (warped - first)[:, seen].abs().mean() < 0.4 * (read_frame("b.png") - first)[:, seen].abs().mean()


def test_flow_initial_flow_starts_estimation(cli: Any) -> None:
    write_flow("start.flo", torch.full((2, 48, 64), 0.5), torch.arange(64).expand(48, 64) > 0)
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--initial-flow", "start.flo", *FAST)
    start = torch.full((2, 48, 64), 0.5)
    start[:, :, 0] = 0
    expected = estimate("a.png", "b.png", "tvl1", config=CONFIG, initial_flow=start).flow
    assert torch.equal(read_flow("out.flo").flow, expected)
    assert "start.flo: 48 unknown vectors start from zero" in ran.err


def test_flow_transfer_option_changes_frames(cli: Any) -> None:
    for name in ("a", "b"):
        write_image(f"{name}.exr", read_frame(f"{name}.png"))
    assert cli("flow", "a.png", "b.png", "-o", "png.flo", *FAST).code == 0
    assert cli("flow", "a.exr", "b.exr", "-o", "auto.flo", *FAST).code == 0
    assert cli("flow", "a.exr", "b.exr", "-o", "raw.flo", "--input-transfer", "srgb", *FAST).code == 0
    same, auto, raw = (read_flow(f"{name}.flo").flow for name in ("png", "auto", "raw"))
    assert (same - auto).abs().max() < 0.01
    assert (same - raw).abs().max() > 0.05


def test_flow_is_independent_of_threads(cli: Any) -> None:
    for threads in (1, 2):
        assert cli("flow", "a.png", "b.png", "-o", f"{threads}.flo", "--threads", threads, *FAST).code == 0
        assert torch.get_num_threads() == threads
    assert Path("1.flo").read_bytes() == Path("2.flo").read_bytes()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    def estimated(*args: Any, **named: Any) -> Any:
        found = estimate_tensors(*args, **named)
        return dataclasses.replace(found, flow=torch.full_like(found.flow, 70000.0))

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", estimated)


@pytest.mark.usefixtures("far")
def test_flow_exceeding_format_range_is_written_as_npy(cli: Any) -> None:
    write_flow("out.png.npy", torch.full((2, 48, 64), 0.5))
    before = Path("out.png.npy").read_bytes()
    others = ("--st-map", "st.exr", "--viz", "v.png", "--initial-flow", "out.png.npy", "--json")
    ran = cli("flow", "a.png", "b.png", "-o", "out.png", *others, *FAST)
    assert ran.code == 2
    assert ran.err.startswith("fullfield: error: out.png: the KITTI PNG format holds")
    assert ran.err.count("\n") == 1
    assert ran.json["output"] == "out.png.1.npy"
    assert ran.json["problem"] in ran.err
    assert not Path("out.png").exists()
    assert Path("out.png.npy").read_bytes() == before
    assert (read_flow("out.png.1.npy").flow == 70000).all()
    assert Path("st.exr").is_file()
    assert Path("v.png").is_file()


@pytest.mark.usefixtures("far")
def test_flow_direction_both_stores_both_layers(cli: Any) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", "out.exr", "--half", "--previous", "b.png", *FAST)
    assert ran.code == 2
    assert "out.exr: half precision holds up to 65504 px, got 70000; the flow is kept in out.exr.float.exr" in ran.err
    assert (read_flow("out.exr.float.exr").flow == 70000).all()
    assert (read_flow("out.exr.float.exr", layer="backward").flow == 70000).all()


def test_flow_writer_error_stores_no_other_file(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("something else")

    monkeypatch.setattr(fullfield.io, "write_flow", refuse)
    assert "something else" in refused("flow", "a.png", "b.png", "-o", "out.png", *FAST)
    assert not Path("out.png.npy").exists()


def test_flow_refine_writes_occlusion_and_confidence(cli: Any, refused: Callable[..., str]) -> None:
    files = ("-o", "out.exr", "--occlusion", "--confidence", "--viz", "hidden.png", "--viz-kind", "occlusion")
    report = cli("flow", "a.png", "b.png", *files, "--refine", *FAST, "--json").json
    expected = estimate(
        "a.png",
        "b.png",
        "tvl1",
        config=CONFIG,
        refine=True,
        reliability=True,
    )
    assert torch.equal(read_flow("out.exr").flow, expected.flow)
    assert report["refined"] is True
    assert report["parameters"]["refinement"]["rounds"] == 2
    assert report["estimate_seconds"].keys() == {"forward", "backward", "refinement", "reliability"}
    stored = oiio.ImageInput.open("out.exr")
    names = list(stored.spec().channelnames)
    pixels = torch.from_numpy(stored.read_image("float"))
    for name in ("occlusion", "confidence"):
        assert torch.equal(pixels[..., names.index(f"{name}.forward")], getattr(expected, name))
    loaded = Flow.load("out.exr")
    assert torch.equal(loaded.occlusion, expected.occlusion)
    assert torch.equal(loaded.confidence, expected.confidence)
    assert torch.allclose(read_frame("hidden.png")[0], expected.occlusion, atol=0.003)
    assert "--occlusion: expected an .exr output" in refused("flow", "a.png", "b.png", "-o", "out.flo", "--occlusion")


@pytest.mark.parametrize("kind", ["occlusion", "confidence"])
def test_flow_viz_kind_draws_occlusion_and_confidence(cli: Any, kind: str) -> None:
    assert cli("flow", "a.png", "b.png", "-o", "out.flo", "--viz", "map.png", "--viz-kind", kind, *FAST).code == 0
    expected = estimate("a.png", "b.png", "tvl1", config=CONFIG, reliability=True)
    assert torch.allclose(read_frame("map.png")[0], getattr(expected, kind), atol=0.003)


def test_flow_refuses_shot_and_suggests_shot_command(refused: Callable[..., str]) -> None:
    for arguments, message in (
        (("plate.%04d.png",), "plate.%04d.png: is a whole shot; use fullfield shot plate.%04d.png -o OUT"),
        (("a.png",), "B: expected a second frame, got none; for a whole shot use fullfield shot PATTERN"),
        (
            ("a.png", "b.png", "c.png"),
            "expected two frames, got 3; for a shot use fullfield shot with a quoted pattern",
        ),
        (("clip.mp4", "b.png"), "clip.mp4: is a whole shot; use fullfield shot clip.mp4 -o OUT"),
    ):
        assert message in refused("flow", *arguments, "-o", "out.flo")
    message = "PLATES: expected one pattern, got 3 names; quote a glob, as in 'plate.*.exr'"
    assert message in refused("shot", "a.png", "b.png", "c.png", "-o", "mv.%d.exr")


@pytest.mark.parametrize("verb", ["flow", "shot"])
def test_flow_and_shot_help_lists_common_options_first(cli: Any, verb: str) -> None:
    lines = cli(verb, "--help").out.splitlines()
    first_screen = "\n".join(lines[:40])
    for option in ("--output", "--method", "--preset", "--device", "--refine", "--half", "--occlusion", "--overwrite"):
        assert option in first_screen
    text = "\n".join(lines)
    others = ("--frames", "--farm", "--step") if verb == "flow" else ("--previous", "--initial-flow", "--initial-layer")
    assert not [option for option in others if option in text]


@pytest.mark.long
def test_flow_of_rubberwhale_has_small_error(cli: Any, data_dir: Path, tmp_path: Path) -> None:
    scene = data_dir / "flow" / "middlebury" / "RubberWhale"
    out = tmp_path / "out.flo"
    assert cli("flow", scene / "frame10.png", scene / "frame11.png", "-o", out, "--preset", "fast").code == 0
    assert cli("score", out, scene / "flow10.flo", "--json").json["epe"] < 0.3
