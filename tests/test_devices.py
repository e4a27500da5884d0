"""Tensors where a function cannot read them, on ``meta`` here: one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import Flow, InputError, estimate, io, metrics, viz
from fullfield.metrics import registration as poses
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.registration import register
from fullfield.sequences import warp_image
from fullfield.sequences.estimation import estimate_sequence

pytestmark = pytest.mark.unit


def create_meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, device="meta")


def create_random(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0))


def lookup() -> Tensor:
    levels = correlation_pyramid(create_meta(1, 8, 6, 7), 1)
    return correlation_lookup(create_meta(1, 8, 6, 7), levels, create_meta(1, 2, 6, 7), 1, backend="cpu")


EYE = torch.eye(4)
CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "estimate": ("frame1", lambda: estimate(create_meta(3, 32, 40), create_meta(3, 32, 40))),
    "estimate, one": ("frame2", lambda: estimate(create_random(3, 32, 40), create_meta(3, 32, 40))),
    "estimate, start": (
        "initial_flow",
        lambda: estimate(create_random(3, 32, 40), create_random(3, 32, 40), initial_flow=create_meta(2, 32, 40)),
    ),
    "lookup": ("backend", lookup),
    "epe": ("pred", lambda: metrics.epe(create_meta(2, 8, 8), create_meta(2, 8, 8))),
    "epe, one": ("truth", lambda: metrics.epe(create_random(2, 8, 8), create_meta(2, 8, 8))),
    "FlowMetrics": ("pred", lambda: metrics.FlowMetrics().update(create_meta(2, 8, 8), create_meta(2, 8, 8))),
    "inlier_ratio": ("source", lambda: poses.inlier_ratio(create_meta(5, 3), create_meta(5, 3), EYE)),
    "inlier_ratio, one": ("target", lambda: poses.inlier_ratio(create_random(5, 3), create_meta(5, 3), EYE)),
    "inlier_ratio, pose": (
        "pred",
        lambda: poses.inlier_ratio(create_random(5, 3), create_random(5, 3), create_meta(4, 4)),
    ),
    "recall": ("ratios", lambda: poses.feature_matching_recall(create_meta(5))),
    "registration_recall": ("rte", lambda: poses.registration_recall(rre=create_random(5), rte=create_meta(5))),
    "rmse": ("points", lambda: poses.registration_rmse(EYE, EYE, create_meta(5, 3))),
    "rotation": ("truth", lambda: poses.relative_rotation_error(EYE, create_meta(4, 4))),
    "moment": ("points", lambda: poses.compute_mean_homogeneous_outer_product(create_meta(5, 3))),
    "by moment": (
        "mean_outer_product",
        lambda: poses.compute_rmse_by_mean_outer_product(EYE, EYE, create_meta(4, 4, dtype=torch.float64)),
    ),
    "information": ("information", lambda: poses.rmse_by_information(EYE, EYE, create_meta(6, 6))),
    "register": ("source", lambda: register(create_meta(500, 3), create_meta(500, 3))),
    "write_flow": ("flow", lambda: io.write_flow("a.flo", create_meta(2, 8, 8))),
    "write_flow, mask": (
        "valid",
        lambda: io.write_flow("a.flo", create_random(2, 8, 8), create_meta(8, 8, dtype=torch.bool)),
    ),
    "write_st_map": ("flow", lambda: io.write_st_map("a.exr", create_meta(2, 8, 8))),
    "write_flow_layers": ("forward", lambda: io.write_flow_layers("a.exr", {"forward": create_meta(2, 8, 8)})),
    "write_image": ("image", lambda: io.write_image("a.png", create_meta(3, 8, 8))),
    "write_point_cloud": ("points", lambda: io.write_point_cloud("a.ply", io.PointCloud(create_meta(5, 3)))),  # type: ignore[arg-type]
    "Flow.save": (
        "flow",
        lambda: Flow(create_meta(2, 8, 8), create_meta(8, 8, dtype=torch.bool), "x", "y", {}).save("a.flo"),
    ),
    "warp": ("flow", lambda: warp_image(create_random(3, 8, 8), create_meta(2, 8, 8))),
    "flow_to_image": ("flow", lambda: viz.flow_to_image(create_meta(2, 8, 8))),
    "draw_overlay": ("frame", lambda: viz.draw_overlay(create_random(2, 8, 8), create_meta(3, 8, 8))),
    "draw_error_map": ("pred", lambda: viz.draw_error_map(create_meta(2, 8, 8), create_meta(2, 8, 8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_public_functions_refuse_unreadable_tensors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argument, call = CALLS[name]
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert argument in message
    assert "meta" in message
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_estimate_sequence_continues_after_unreadable_frame() -> None:
    found = list(
        estimate_sequence([create_random(3, 32, 40), create_meta(3, 32, 40), create_random(3, 32, 40)], preset="fast")
    )
    assert [bool(flows.problems) for flows in found] == [True, True, False]
    assert "holds values" in found[0].problems[0].reason


@pytest.mark.parametrize("degrees", [10.0, 175.0])
def test_registration_errors_are_computed_on_their_device(degrees: float) -> None:
    """With ``meta`` as default device, a constant without a device would be on ``meta``."""
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    pose = torch.eye(4, dtype=torch.float64)
    pose[:2, :2] = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    plain = poses.rmse_by_information(pose, EYE, torch.eye(6))
    with torch.device("meta"):
        elsewhere = poses.rmse_by_information(pose, EYE, torch.eye(6, device="cpu"))
    assert elsewhere.device == torch.device("cpu")
    assert float(elsewhere) == float(plain)
