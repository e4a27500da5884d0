"""``fullfield score``: the metrics, the masks, the gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield.io import read_flow, read_frame, write_flow, write_image
from fullfield.metrics import FlowMetrics
from fullfield.testing.scenes import Scene


def test_score_json_equals_flow_metrics(cli: Any, made: Scene) -> None:
    ran = cli("score", "close.flo", "truth.flo", "--occlusion", "occluded.png", "--json")
    report = ran.json
    metrics = FlowMetrics()
    metrics.update(made.flow + 0.25, made.flow, None, made.occluded)
    for key, value in metrics.compute().items():
        assert report[key] == (None if math.isnan(value) else pytest.approx(value, rel=1e-5, abs=1e-9))
    assert report["epe"] == pytest.approx(0.25 * 2**0.5, rel=1e-5)
    assert report["lm_epe"] is None
    assert report["averaging"] == "pooled"
    assert report["classes"]["matched"]["px1"] == 0
    assert (ran.code, ran.err) == (0, "")


def test_score_prints_readable_table(cli: Any) -> None:
    out = cli("score", "close.flo", "truth.flo").out
    assert "epe               0.3536 px       end-point error" in out
    assert "px1               0.0000 %        error above 1 px" in out
    assert "lm_epe" not in out
    assert out.endswith(f"{48 * 64} pixels scored\n")


@pytest.mark.parametrize(("limit", "code"), [("0.36", 0), ("0.35", 1)])
def test_score_max_epe_sets_exit_code(cli: Any, limit: str, code: int) -> None:
    ran = cli("score", "close.flo", "truth.flo", "--max-epe", limit, "--json")
    assert ran.code == code
    assert ran.json["epe"] == pytest.approx(0.3536, abs=1e-4)
    assert ran.err.count("\n") == code


def test_score_max_epe_fails_without_valid_pixels(cli: Any) -> None:
    write_image("nothing.png", torch.zeros(3, 48, 64))
    ran = cli("score", "close.flo", "truth.flo", "--valid", "nothing.png", "--max-epe", "9", "--json")
    assert ran.code == 1
    assert ran.json["epe"] is None
    assert ran.json["pixels"] == 0


def test_score_masks_select_pixels(cli: Any) -> None:
    left = torch.zeros(3, 48, 64)
    left[:, :, :20] = 1 / 255  # the darkest value that is not black
    write_image("left.png", left)
    assert cli("score", "close.flo", "truth.flo", "--valid", "left.png", "--json").json["pixels"] == 48 * 20
    assert cli("score", "close.flo", "truth.flo", "--invalid", "left.png", "--json").json["pixels"] == 48 * 44
    both = cli("score", "close.flo", "truth.flo", "--valid", "left.png", "--invalid", "left.png", "--json")
    assert both.json["pixels"] == 0
    assert "no pixel is scored" in both.err


def test_score_refuses_missing_vectors_without_skip_missing(cli: Any, refused: Any) -> None:
    there = torch.ones(48, 64, dtype=torch.bool)
    there[:2] = False
    write_flow("holes.png", read_flow("close.flo").flow, there)
    assert "holes.png: has no vector at 128 of 3072 pixels to score" in refused("score", "holes.png", "truth.flo")
    ran = cli("score", "holes.png", "truth.flo", "--skip-missing", "--json")
    assert (ran.json["pixels"], ran.json["missing"]) == (3072 - 128, 128)


def test_score_truth_of_double_size_uses_four_values(cli: Any, made: Scene) -> None:
    fine = made.flow.repeat_interleave(2, 1).repeat_interleave(2, 2)
    fine[:, 1::2, 1::2] += 0.25
    write_flow("fine.flo5", fine)
    ran = cli("score", "close.flo", "fine.flo5", "--json")
    assert ran.json["epe"] == pytest.approx(0, abs=1e-6)
    assert ran.json["truth_values"] == 4
    assert ran.err.startswith("fullfield: note: fine.flo5: has twice the size, so four true values for each pixel")
    assert cli("score", "close.flo", "truth.flo", "--json").json["truth_values"] == 1
    write_flow("finer.flo5", 2 * fine)
    ran = cli("score", "close.flo", "finer.flo5", "--truth-scale", "0.5", "--json")
    assert ran.json["epe"] == pytest.approx(0, abs=1e-6)


def test_score_requires_option_for_truth_of_double_size(cli: Any, refused: Any, made: Scene) -> None:
    write_flow("fine.flo", made.flow.repeat_interleave(2, 1).repeat_interleave(2, 2))
    for verb in (("score",), ("viz", "--kind", "error", "-o", "v.png")):
        files = ("close.flo", *(() if verb == ("score",) else ("--truth",)), "fine.flo")
        line = refused(*verb, *files)
        assert "close.flo: is 64x48, but fine.flo is 128x96; they must have the same size" in line
        assert "use --four-values" in line
        ran = cli(*verb, *files, "--four-values", "--json")
        assert (ran.code, ran.err) == (0, "")
        assert ran.json["truth_values"] == 4


def test_score_reads_exr_layers(cli: Any, made: Scene) -> None:
    write_flow("both.exr", torch.zeros_like(made.flow), backward=made.flow)
    report = cli("score", "both.exr", "both.exr", "--pred-layer", "backward", "--truth-part", "0", "--json").json
    assert report["epe"] == pytest.approx(float(made.flow.norm(dim=0).mean()), rel=1e-4)
    report = cli("score", "close.flo", "both.exr", "--truth-layer", "backward", "--json").json
    assert report["epe"] == pytest.approx(0.25 * 2**0.5, rel=1e-5)


def test_score_matches_folders_by_name(cli: Any, refused: Any, scene: Path, made: Scene) -> None:
    for folder in ("pred", "truth", "masks"):
        (scene / folder).mkdir()
    for name, offset in (("one", 1.0), ("two", 3.0)):
        write_flow(f"pred/{name}.npy", made.flow + torch.tensor([offset, 0.0])[:, None, None])
        write_flow(f"truth/{name}.flo", made.flow)
        kept = torch.zeros(1, 48, 64)
        kept[:, : 12 if name == "one" else 48] = 1
        write_image(f"masks/{name}.png", kept)
    for stray in ("truth/sub.flo", "pred/.hidden.flo", "masks/sub"):
        (scene / stray).mkdir()
    report = cli("score", "pred", "truth", "--valid", "masks", "--json").json
    assert (report["images"], report["averaging"]) == (2, "pooled")
    assert report["epe"] == pytest.approx((12 * 1 + 48 * 3) / 60, abs=1e-6)
    ran = cli("score", "pred", "truth", "--valid", "masks", "--averaging", "per_image")
    assert "2.0000 px" in ran.out
    assert "2 images, averaging per_image" in ran.out
    (scene / "masks" / "two.png").unlink()
    assert "has no mask for two" in refused("score", "pred", "truth", "--valid", "masks")
    (scene / "truth" / "two.flo").unlink()
    assert "pred/two.npy: has no counterpart in truth" in refused("score", "pred", "truth")
    (scene / "pred" / "one.flo").touch()
    assert "one.flo has the same name" in refused("score", "pred", "truth")


def test_score_error_map_writes_picture(cli: Any) -> None:
    assert cli("score", "close.flo", "truth.flo", "--error-map", "e.png", "--max-error", "2").code == 0
    picture = read_frame("e.png")
    assert picture.shape == (3, 48, 64)
    assert (picture == picture[:, :1, :1]).all()


def test_score_of_sintel_truth_with_itself_is_zero(cli: Any, data_dir: Path) -> None:
    truth = data_dir / "flow" / "sintel" / "truth"
    masks = ("--occlusion", truth / "occlusions_0002.png", "--invalid", truth / "invalid_0002.png")
    report = cli("score", truth / "frame_0002.flo", truth / "frame_0002.flo", *masks, "--json").json
    assert (report["epe"], report["epe_unmatched"], report["wauc"]) == (0, 0, 100)
    assert 0 < report["pixels"] <= 1024 * 436


def test_score_warns_about_swapped_arguments(cli: Any, made: Scene) -> None:
    known = torch.ones(made.flow.shape[-2:], dtype=torch.bool)
    known[:5] = False
    write_flow("sparse.flo", made.flow, known)
    assert "PRED comes before TRUTH: are they swapped?" in cli("score", "sparse.flo", "close.flo").err
    assert "swapped" not in cli("score", "close.flo", "sparse.flo").err
