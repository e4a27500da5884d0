"""``fullfield convert`` and ``fullfield viz``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield.io import read_flow, read_frame, write_flow
from fullfield.testing.scenes import Scene
from fullfield.viz import flow_to_image


@pytest.mark.parametrize("suffix", [".flo", ".flo5", ".pfm", ".npy", ".exr"])
def test_convert_prints_no_rounding_for_lossless_formats(cli: Any, made: Scene, suffix: str) -> None:
    ran = cli("convert", "truth.flo", f"out{suffix}")
    assert (ran.code, ran.err) == (0, "")
    assert torch.equal(read_flow(f"out{suffix}").flow, made.flow)


@pytest.mark.parametrize(("out", "options"), [("out.exr", ("--half",)), ("out.png", ())])
def test_convert_reports_rounding(cli: Any, made: Scene, out: str, options: tuple[str, ...]) -> None:
    ran = cli("convert", "truth.flo", out, *options, "--json")
    loss = ran.json["loss"]
    worst = float((read_flow(out).flow - made.flow).norm(dim=0).max())
    assert loss["largest_px"] == pytest.approx(worst, rel=1e-4)
    assert 0 < loss["mean_px"] < worst < 0.02
    assert ran.err.startswith(f"fullfield: note: {out}: vectors are rounded by")


def test_convert_measures_rounding_of_backward_layer(cli: Any, made: Scene) -> None:
    write_flow("both.exr", torch.zeros_like(made.flow), backward=made.flow)
    loss = cli("convert", "both.exr", "out.exr", "--half", "--json").json["loss"]
    worst = float((read_flow("out.exr", layer="backward").flow - made.flow).norm(dim=0).max())
    assert loss["largest_px"] == pytest.approx(worst, rel=1e-4)
    assert worst > 0


def test_convert_keeps_unknown_vectors(cli: Any, made: Scene) -> None:
    valid = made.flow[0] > 0
    write_flow("holes.png", made.flow, valid)
    ran = cli("convert", "holes.png", "holes.flo", "--json")
    assert ran.json["unknown"] == int((~valid).sum())
    assert ran.json["loss"]["unknown_lost"] == 0
    assert torch.equal(read_flow("holes.flo").valid, valid)
    ran = cli("convert", "holes.flo", "st.exr", "--st-map")
    assert "unknown vectors became zero motion" in ran.err


def test_convert_keeps_both_exr_layers(cli: Any, made: Scene) -> None:
    write_flow("both.exr", made.flow, backward=-made.flow)
    assert cli("convert", "both.exr", "copy.exr", "--compression", "zips").code == 0
    assert torch.equal(read_flow("copy.exr", layer="backward").flow, -made.flow)
    ran = cli("convert", "both.exr", "one.flo")
    assert "holds only the forward layer" in ran.err
    assert torch.equal(read_flow("one.flo").flow, made.flow)
    assert cli("convert", "both.exr", "back.flo", "--layer", "backward").err == ""
    assert torch.equal(read_flow("back.flo").flow, -made.flow)


def test_convert_keeps_old_file_when_flow_exceeds_format(refused: Any, scene: Path) -> None:
    write_flow("far.flo", torch.full((2, 4, 4), 900.0))
    (scene / "out.png").write_text("before")
    assert "out.png: the KITTI PNG format holds" in refused("convert", "far.flo", "out.png")
    assert (scene / "out.png").read_text() == "before"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("flow", ()),
        ("overlay", ("--frame", "a.png")),
        ("warped", ("--frame2", "b.png")),
        ("error", ("--truth", "truth.flo", "--max-error", "4")),
        ("sheet", ("--frame", "a.png", "--frame2", "b.png", "--truth", "truth.flo")),
        ("sheet", ()),
    ],
)
def test_viz_writes_picture_of_every_kind(cli: Any, kind: str, options: tuple[str, ...]) -> None:
    ran = cli("viz", "close.flo", "-o", "v.png", "--kind", kind, *options)
    assert (ran.code, ran.err) == (0, "")
    picture = read_frame("v.png")
    assert picture.shape[0] == 3
    assert kind == "sheet" or picture.shape[-2:] == (48, 64)


def test_viz_max_motion_fixes_scale_and_prints_it(cli: Any, made: Scene) -> None:
    ran = cli("viz", "truth.flo", "-o", "v.png", "--max-motion", "12", "--json")
    assert ran.json["max_motion"] == 12
    assert torch.equal((read_frame("v.png") * 255).round().byte(), flow_to_image(made.flow, max_motion=12))
    longest = float(torch.hypot(*made.flow).max())
    assert f"colour scale: 0 to {longest:.4g} px" in cli("viz", "truth.flo", "-o", "v.png").out


def test_viz_draws_still_and_unknown_flow(cli: Any) -> None:
    write_flow("still.flo", torch.zeros(2, 48, 64))
    write_flow("unknown.flo", torch.zeros(2, 48, 64), torch.zeros(48, 64, dtype=torch.bool))
    for name in ("still", "unknown"):
        for kind in ("flow", "sheet"):
            assert cli("viz", f"{name}.flo", "-o", "v.png", "--kind", kind).code == 0
    ran = cli("viz", "unknown.flo", "-o", "v.png", "--kind", "sheet", "--frame", "a.png", "--frame2", "b.png")
    assert ran.code == 0
    assert "0 px" in ran.out


def test_viz_draws_named_exr_layer(cli: Any, made: Scene) -> None:
    write_flow("both.exr", made.flow, backward=2 * made.flow)
    one = cli("viz", "both.exr", "-o", "v.png", "--json").json["max_motion"]
    two = cli("viz", "both.exr", "-o", "v.png", "--flow-layer", "backward", "--json").json["max_motion"]
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize(
    ("kind", "motion", "error"), [("error", False, 16), ("warped", False, None), ("flow", True, None)]
)
def test_viz_prints_only_scales_it_draws(cli: Any, kind: str, motion: bool, error: float | None) -> None:
    needed = {"error": ("--truth", "truth.flo"), "warped": ("--frame2", "b.png")}.get(kind, ())
    ran = cli("viz", "close.flo", "-o", "v.png", "--kind", kind, *needed)
    assert ("colour scale: 0 to" in ran.out) is motion
    assert ("error scale: 0 to 16 px" in ran.out) is (error is not None)
    report = cli("viz", "close.flo", "-o", "v.png", "--kind", kind, *needed, "--json").json
    assert (report["max_motion"] is not None) is motion
    assert report["max_error"] == error
