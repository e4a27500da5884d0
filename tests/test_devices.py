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


def there(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, device="meta")


def here(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0))


def lookup() -> Tensor:
    levels = correlation_pyramid(there(1, 8, 6, 7), 1)
    return correlation_lookup(there(1, 8, 6, 7), levels, there(1, 2, 6, 7), 1, backend="cpu")


EYE = torch.eye(4)
CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "estimate": ("frame1", lambda: estimate(there(3, 32, 40), there(3, 32, 40))),
    "estimate, one": ("frame2", lambda: estimate(here(3, 32, 40), there(3, 32, 40))),
    "estimate, start": (
        "initial_flow",
        lambda: estimate(here(3, 32, 40), here(3, 32, 40), initial_flow=there(2, 32, 40)),
    ),
    "lookup": ("backend", lookup),
    "epe": ("pred", lambda: metrics.epe(there(2, 8, 8), there(2, 8, 8))),
    "epe, one": ("truth", lambda: metrics.epe(here(2, 8, 8), there(2, 8, 8))),
    "FlowMetrics": ("pred", lambda: metrics.FlowMetrics().update(there(2, 8, 8), there(2, 8, 8))),
    "inlier_ratio": ("source", lambda: poses.inlier_ratio(there(5, 3), there(5, 3), EYE)),
    "inlier_ratio, one": ("target", lambda: poses.inlier_ratio(here(5, 3), there(5, 3), EYE)),
    "inlier_ratio, pose": ("pred", lambda: poses.inlier_ratio(here(5, 3), here(5, 3), there(4, 4))),
    "recall": ("ratios", lambda: poses.feature_matching_recall(there(5))),
    "registration_recall": ("rte", lambda: poses.registration_recall(rre=here(5), rte=there(5))),
    "rmse": ("points", lambda: poses.registration_rmse(EYE, EYE, there(5, 3))),
    "rotation": ("truth", lambda: poses.relative_rotation_error(EYE, there(4, 4))),
    "moment": ("points", lambda: poses.compute_mean_outer_product(there(5, 3))),
    "by moment": ("moment", lambda: poses.rmse_by_moment(EYE, EYE, there(4, 4, dtype=torch.float64))),
    "information": ("information", lambda: poses.rmse_by_information(EYE, EYE, there(6, 6))),
    "register": ("source", lambda: register(there(500, 3), there(500, 3))),
    "write_flow": ("flow", lambda: io.write_flow("a.flo", there(2, 8, 8))),
    "write_flow, mask": ("valid", lambda: io.write_flow("a.flo", here(2, 8, 8), there(8, 8, dtype=torch.bool))),
    "write_st_map": ("flow", lambda: io.write_st_map("a.exr", there(2, 8, 8))),
    "write_vectors": ("forward", lambda: io.write_vectors("a.exr", {"forward": there(2, 8, 8)})),
    "write_image": ("image", lambda: io.write_image("a.png", there(3, 8, 8))),
    "write_point_cloud": ("points", lambda: io.write_point_cloud("a.ply", io.PointCloud(there(5, 3)))),  # type: ignore[arg-type]
    "Flow.save": ("flow", lambda: Flow(there(2, 8, 8), there(8, 8, dtype=torch.bool), "x", "y", {}).save("a.flo")),
    "warp": ("flow", lambda: warp_image(here(3, 8, 8), there(2, 8, 8))),
    "flow_to_image": ("flow", lambda: viz.flow_to_image(there(2, 8, 8))),
    "overlay": ("frame", lambda: viz.overlay(here(2, 8, 8), there(3, 8, 8))),
    "error_map": ("pred", lambda: viz.error_map(there(2, 8, 8), there(2, 8, 8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_public_functions_refuse_unreadable_tensors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argument, call = CALLS[name]
    with pytest.raises(InputError) as caught:
        call()
    told = str(caught.value)
    assert "\n" not in told
    assert argument in told
    assert "meta" in told
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_estimate_sequence_continues_after_unreadable_frame() -> None:
    found = list(estimate_sequence([here(3, 32, 40), there(3, 32, 40), here(3, 32, 40)], preset="fast"))
    assert [bool(flows.problems) for flows in found] == [True, True, False]
    assert "holds values" in found[0].problems[0].reason


@pytest.mark.parametrize("degrees", [10.0, 175.0])
def test_registration_errors_are_computed_on_their_device(degrees: float) -> None:
    """No constant on another device is mixed in: with ``meta`` as default device new tensors would be there."""
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    pose = torch.eye(4, dtype=torch.float64)
    pose[:2, :2] = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    plain = poses.rmse_by_information(pose, EYE, torch.eye(6))
    with torch.device("meta"):
        elsewhere = poses.rmse_by_information(pose, EYE, torch.eye(6, device="cpu"))
    assert elsewhere.device == torch.device("cpu")
    assert float(elsewhere) == float(plain)
