"""Measures of registration against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fullfield.metrics import (
    feature_matching_recall,
    inlier_ratio,
    registration_recall,
    registration_rmse,
    relative_rotation_error,
    relative_translation_error,
    rmse_by_information,
)
from fullfield.metrics.registration import compute_mean_homogeneous_outer_product, compute_rmse_by_mean_outer_product
from refusals import refuses

pytestmark = pytest.mark.unit


def turn(degrees: float, shift: tuple[float, float, float] = (0, 0, 0)) -> Tensor:
    angle = math.radians(degrees)
    pose = torch.eye(4, dtype=torch.float64)
    pose[0, 0] = pose[1, 1] = math.cos(angle)
    pose[0, 1], pose[1, 0] = -math.sin(angle), math.sin(angle)
    pose[:3, 3] = torch.tensor(shift)
    return pose


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 0.3, 90.0, 179.9999, 180.0])
def test_relative_rotation_error_is_exact_for_small_angles(degrees: float) -> None:
    assert float(relative_rotation_error(turn(10 + degrees), turn(10))) == pytest.approx(degrees, rel=1e-6, abs=1e-9)


def test_pose_errors_of_batch_equal_singles() -> None:
    pred = torch.stack([turn(5, (1, 2, 2)), turn(0)]).float()
    truth = turn(0).float().expand(2, 4, 4)
    assert relative_rotation_error(pred, truth).tolist() == pytest.approx([5.0, 0.0], abs=1e-4)
    assert relative_translation_error(pred, truth).tolist() == pytest.approx([3.0, 0.0])
    refuses("pred: expected a float tensor", relative_rotation_error, torch.eye(3), torch.eye(4))


def test_rmse_by_moment_equals_rmse_over_points() -> None:
    points = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    assert float(registration_rmse(turn(0, (3, 4, 0)), turn(0), points)) == pytest.approx(5.0)
    assert float(registration_rmse(turn(180), turn(0), points)) == pytest.approx(2.0)
    assert math.isnan(registration_rmse(turn(0), turn(0), points[:0]))
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pred, truth = turn(20, (1, 2, 3)), turn(12, (1, 2, 2.5))
    expected = float(registration_rmse(pred, truth, points))
    assert float(
        compute_rmse_by_mean_outer_product(pred, truth, compute_mean_homogeneous_outer_product(points))
    ) == pytest.approx(expected)
    assert float(compute_rmse_by_mean_outer_product(truth, truth, compute_mean_homogeneous_outer_product(points))) == 0
    assert math.isnan(
        compute_rmse_by_mean_outer_product(pred, truth, compute_mean_homogeneous_outer_product(points[:0]))
    )


def information(points: Tensor) -> Tensor:
    """As gt.info holds it: Σ GᵀG, G = [I, -2 [p]×], for the vector part of a quaternion, half the angle."""
    total = torch.zeros(6, 6, dtype=torch.float64)
    for x, y, z in points.tolist():
        cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
        rows = torch.cat([torch.eye(3, dtype=torch.float64), -2 * cross], 1)
        total += rows.T @ rows
    return total


def test_rmse_by_information_equals_rmse_for_small_errors() -> None:
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = turn(50, (1, 2, 3))
    pred = truth @ turn(0.2, (0.01, -0.02, 0.005))
    expected = float(registration_rmse(pred, truth, points))
    assert float(rmse_by_information(pred, truth, information(points))) == pytest.approx(expected, rel=1e-3)
    assert float(rmse_by_information(truth, truth, information(points))) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 60.0, 130.0, 179.9999, 180.0])
def test_rmse_by_information_equals_formula_for_any_rotation(degrees: float) -> None:
    weights = torch.diag(torch.tensor([4.0, 4, 4, 0, 0, 4], dtype=torch.float64))
    expected = math.hypot(1.0, math.sin(math.radians(degrees / 2)))
    assert float(rmse_by_information(turn(degrees, (0, 1, 0)), turn(0), weights)) == pytest.approx(expected, abs=1e-6)


def test_registration_recall_needs_every_error_below_threshold() -> None:
    rre, rte = torch.tensor([0.5, 0.5, 6.0, math.nan]), torch.tensor([0.1, 3.0, 0.1, math.nan])
    assert registration_recall(rre=rre, rte=rte) == 0.25
    assert registration_recall(rre=rre, rte=rte, max_rte=4.0) == 0.5
    assert registration_recall(rmse=torch.tensor([0.19, 0.2]).double()) == 0.5
    assert math.isnan(registration_recall(rmse=torch.empty(0)))
    refuses("at least one of them", registration_recall)


def test_inlier_ratio_and_feature_matching_recall_equal_definitions() -> None:
    source = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    target = source + torch.tensor([[0.05], [0.09], [0.2], [5.0]]) * torch.tensor([1.0, 0, 0])
    assert inlier_ratio(source, target, turn(0)) == 0.5
    assert inlier_ratio(source, target, turn(0), threshold=0.3) == 0.75
    assert math.isnan(inlier_ratio(source[:0], target[:0], turn(0)))
    ratios = torch.tensor([0.04, 0.06, math.nan, 0.5])
    assert feature_matching_recall(ratios) == 0.5
    assert feature_matching_recall(ratios, threshold=0.1) == 0.25
