"""Metrics of rigid registration. Poses are [..., 4, 4], source into target.

Thresholds are parameters; the defaults are those of 3DMatch (RMSE 0.2 m, inliers within 0.1 m, inlier ratio above 5 %).
KITTI's usual ones are RRE < 5° and RTE < 2 m, or RRE < 1° and RMSE < 0.2 m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check

_FLOATS = (torch.float32, torch.float64)


def _check_and_convert_poses(pred: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    for pose, name in ((pred, "pred"), (truth, "truth")):
        is_valid = isinstance(pose, Tensor) and pose.shape[-2:] == (4, 4) and pose.dtype in _FLOATS
        _check.require(is_valid, name, "a float tensor [..., 4, 4]", pose)
        _check.check_not_meta(pose, name)
    _check.require(truth.device == pred.device, "truth", f"device {pred.device}", truth)
    return pred.double(), truth.double()


def _check_points(
    points: Tensor, name: str, shape: tuple[int | str, ...], device: torch.device | None = None
) -> Tensor:
    return _check.check_not_meta(_check.check_tensor(points, name, shape, dtypes=_FLOATS, device=device), name)


def relative_rotation_error(pred: Tensor, truth: Tensor) -> Tensor:
    """Return RRE: the angle of the rotation between two poses, degrees ``[...]``; NaN for a pose that is NaN.

    >>> turned = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64))
    >>> float(relative_rotation_error(turned, torch.eye(4, dtype=torch.float64)))
    180.0
    """
    first, second = _check_and_convert_poses(pred, truth)
    turn = first[..., :3, :3] @ second[..., :3, :3].mT
    skew = turn - turn.mT
    sine = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1).norm(dim=-1)
    cosine = turn.diagonal(dim1=-2, dim2=-1).sum(-1) - 1
    return torch.rad2deg(torch.atan2(sine, cosine))  # exact near 0 and 180, where the cosine alone is not


def relative_translation_error(pred: Tensor, truth: Tensor) -> Tensor:
    """Return RTE: the distance between the translations of two poses ``[...]``, in their unit.

    >>> shifted = torch.eye(4, dtype=torch.float64)
    >>> shifted[0, 3] = 2.0
    >>> float(relative_translation_error(shifted, torch.eye(4, dtype=torch.float64)))
    2.0
    """
    first, second = _check_and_convert_poses(pred, truth)
    distances = first[..., :3, 3] - second[..., :3, 3]
    return distances.square().sum(-1).sqrt()


def registration_rmse(pred: Tensor, truth: Tensor, points: Tensor) -> Tensor:
    """Return the RMS distance between where two poses ``[4, 4]`` bring ``points`` ``[N, 3]``; NaN without points.

    With the source's points of true correspondences this is the error that 3DMatch judges by.

    >>> pose, shifted = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    >>> shifted[0, 3] = 0.5
    >>> float(registration_rmse(shifted, pose, torch.rand(9, 3, dtype=torch.float64)))
    0.5
    """
    first, second = _check_and_convert_poses(pred, truth)
    _check_points(points, "points", ("N", 3), first.device)
    difference = first - second
    distances = points.double() @ difference[:3, :3].mT + difference[:3, 3]
    return distances.square().sum(1).mean().sqrt()


def compute_mean_homogeneous_outer_product(points: Tensor) -> Tensor:
    """Return [4, 4] float64: the mean of p pᵀ over ``points`` ``[N, 3]`` with a 1 appended; NaN without points.

    :func:`compute_rmse_by_mean_outer_product` needs no more than this of the points.
    """
    _check_points(points, "points", ("N", 3))
    ends = torch.cat([points.double(), points.new_ones(len(points), 1).double()], 1)
    return (ends.mT @ ends).div(len(points))


def compute_rmse_by_mean_outer_product(pred: Tensor, truth: Tensor, mean_outer_product: Tensor) -> Tensor:
    """Return :func:`registration_rmse` over points with this :func:`compute_mean_homogeneous_outer_product`."""
    first, second = _check_and_convert_poses(pred, truth)
    _check.check_tensor(mean_outer_product, "mean_outer_product", (4, 4), dtypes=(torch.float64,), device=first.device)
    difference = first - second
    squared = torch.einsum("ij,jk,ik->", difference, mean_outer_product, difference)
    return squared.clamp(min=0).sqrt()


def rmse_by_information(pred: Tensor, truth: Tensor, information: Tensor) -> Tensor:
    """Return 3DMatch's RMSE of two poses ``[4, 4]``, from ``information`` ``[6, 6]`` of ``gt.info``.

    √(eᵀ I e / I₀₀), where e is the translation of truth⁻¹ · pred and the vector part of its rotation's quaternion, and
    I₀₀ the number of true correspondences (Choi, Zhou, Koltun, CVPR 2015).

    >>> pose, information = torch.eye(4, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    >>> float(rmse_by_information(pose, pose, information))
    0.0
    """
    first, second = _check_and_convert_poses(pred, truth)
    _check_points(information, "information", (6, 6), first.device)
    left = torch.linalg.inv(second) @ first
    turn = left[:3, :3]
    skew = torch.stack([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    half = torch.atan2(skew.norm(), turn.trace() - 1) / 2
    distances = torch.cat([left[:3, 3], _compute_rotation_axis(turn, skew) * half.sin()])
    weights = information.double()
    squared = torch.einsum("i,ij,j->", distances, weights, distances) / weights[0, 0]
    return squared.clamp(min=0).sqrt()


def _compute_rotation_axis(rotation: Tensor, antisymmetric_part: Tensor) -> Tensor:
    """Return the unit axis of a rotation [3, 3]; any axis of no rotation."""
    if float(rotation.trace()) > 0:
        return antisymmetric_part.div(antisymmetric_part.norm().clamp(min=1e-300))
    # Towards half a turn the skew part vanishes, and the symmetric part holds the axis.
    halves = (rotation + rotation.mT) / 2 + torch.eye(3, dtype=rotation.dtype, device=rotation.device) * (
        1 - rotation.trace()
    ) / 2
    column = halves[:, halves.diagonal().argmax()]
    axis = column.div(column.norm())
    return -axis if float(axis @ antisymmetric_part) < 0 else axis


def registration_recall(
    *,
    rre: Tensor | None = None,  # [P] degrees
    rte: Tensor | None = None,  # [P]
    rmse: Tensor | None = None,  # [P]
    max_rre: float = 5.0,
    max_rte: float = 2.0,
    max_rmse: float = 0.2,
) -> float:
    """Return RR: the share of pairs all of whose given errors are below their thresholds.

    A pair that was refused has NaN errors and counts as missed.

    >>> rre, rte = torch.tensor([1.0, 9.0]), torch.tensor([0.1, 0.1])
    >>> registration_recall(rre=rre, rte=rte)
    0.5
    """
    value_ = [
        (e, name, top)
        for e, name, top in ((rre, "rre", max_rre), (rte, "rte", max_rte), (rmse, "rmse", max_rmse))
        if e is not None
    ]
    _check.require(bool(value_), "rre, rte, rmse", "at least one of them", "none")
    passed = None
    for errors, name, top in value_:
        shape, axis_ = (("P",), None) if passed is None else (tuple(passed.shape), passed.device)
        _check_points(errors, name, shape, axis_)
        _check.check_number(top, f"max_{name}", above=0.0)
        below = errors < top
        passed = below if passed is None else passed & below
    return float("nan") if passed is None or not passed.numel() else float(passed.double().mean())


def inlier_ratio(source: Tensor, target: Tensor, truth: Tensor, *, threshold: float = 0.1) -> float:
    """Return IR: the share of matches that the true pose ``[4, 4]`` brings within ``threshold``; NaN without matches.

    Row by row, ``source`` and ``target`` ``[M, 3]`` are the matched points.

    >>> points = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    >>> inlier_ratio(points, points, torch.eye(4, dtype=torch.float64))
    1.0
    """
    _check_points(source, "source", ("M", 3))
    _check_points(target, "target", tuple(source.shape), source.device)
    _check.check_number(threshold, "threshold", above=0.0)
    _, pose = _check_and_convert_poses(truth, truth)
    _check.require(pose.device == source.device, "truth", f"device {source.device}", truth)
    transformed_points = source.double() @ pose[:3, :3].mT + pose[:3, 3]
    return float(((transformed_points - target.double()).norm(dim=1) < threshold).double().mean())


def feature_matching_recall(ratios: Tensor, *, threshold: float = 0.05) -> float:
    """Return FMR: the share of pairs whose :func:`inlier_ratio` ``[P]`` is above ``threshold``; NaN without pairs.

    A pair without matches (NaN) is not above.

    >>> feature_matching_recall(torch.tensor([0.2, 0.01, 0.5, 0.3]))
    0.75
    """
    _check_points(ratios, "ratios", ("P",))
    return float((ratios > threshold).double().mean())
