"""The metrics beside ptlflow's own, under its averaging: over each image first, then over images."""

from __future__ import annotations

import importlib
import math
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield.metrics import FlowMetrics

H, W = 40, 56


@pytest.fixture(scope="module")
def theirs(ptlflow: Any) -> ModuleType:  # noqa: ARG001 - makes its import possible
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("ptlflow.utils.flow_metrics")


Image = tuple[Tensor, Tensor, Tensor, Tensor]


def image(seed: int, *, four: bool = False) -> Image:
    """Prediction, truth with unknown pixels, validity, occlusion; errors from a tenth to tens of pixels."""
    random = torch.Generator().manual_seed(seed)
    truth = 60 * torch.randn(*((4,) if four else ()), 2, H, W, generator=random)
    if four:
        truth = truth[:1] + 0.6 * torch.randn(4, 2, H, W, generator=random)
    spread = 10 ** (3 * torch.rand(H, W, generator=random) - 1.5)
    pred = (truth[0] if four else truth) + spread * torch.randn(2, H, W, generator=random)
    valid = torch.rand(H, W, generator=random) > 0.3
    unknown = torch.rand(H, W, generator=random) > 0.9
    truth[..., unknown] = float("nan")
    occluded = torch.rand(H, W, generator=random) > 0.7
    return pred, truth, valid, occluded


def told_by_ptlflow(theirs: ModuleType, images: list[Image]) -> dict[str, float]:
    metrics = theirs.FlowMetrics()
    for pred, truth, valid, occluded in images:
        finite = truth.isfinite().reshape(-1, H, W).all(0)
        metrics.update(
            {"flows": pred[None]},
            {
                "flows": torch.where(finite, truth, 0.0)[(None,) * (2 if truth.ndim == 4 else 1)],
                "valids": (valid & finite)[None, None].float(),
                "occs": occluded[None, None].float(),
            },
        )
    return {key: float(value) for key, value in metrics.compute().items()}


def told_by_us(images: list[Image]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    metrics = FlowMetrics(averaging="per_image")
    for one in images:
        metrics.update(*one)
    return metrics.compute(), metrics.breakdown()


@pytest.mark.parametrize("four", [False, True])
def test_same_values(theirs: ModuleType, four: bool) -> None:
    images = [image(seed, four=four) for seed in range(4)]
    wanted = told_by_ptlflow(theirs, images)
    ours, table = told_by_us(images)
    for suffix, name in (("", "all"), ("_non_occ", "matched"), ("_occ", "unmatched")):
        mine = table[name]
        assert mine["epe"] == pytest.approx(wanted[f"epe{suffix}"], rel=1e-5)
        for k in (1, 3, 5):  # theirs are fractions of inliers
            assert mine[f"px{k}"] == pytest.approx(100 * (1 - wanted[f"px{k}{suffix}"]), abs=1e-4)
        if not four:  # of four lengths theirs takes the nearest value's for the 5 %, Spring the longest
            assert mine["fl_all"] == pytest.approx(wanted[f"flall{suffix}"], abs=1e-4)
        else:
            assert mine["fl_all"] == pytest.approx(wanted[f"flall{suffix}"], abs=2.0)
            assert mine["fl_all"] <= wanted[f"flall{suffix}"] + 1e-4
    assert ours["wauc"] == pytest.approx(wanted["wauc"], rel=1e-5)
    assert 5 < ours["px5"] < ours["px1"] < 95


def test_an_empty_class_is_zero_to_them_and_absent_to_us(theirs: ModuleType) -> None:
    images = [image(seed) for seed in range(3)]
    images[1][3][:] = False  # nothing occluded
    images[2][2][:] = False  # nothing scored
    wanted = told_by_ptlflow(theirs, images)
    ours, table = told_by_us(images)
    assert ours["epe"] * 2 / 3 == pytest.approx(wanted["epe"], rel=1e-5)
    assert table["unmatched"]["epe"] / 3 == pytest.approx(wanted["epe_occ"], rel=1e-5)
    assert table["matched"]["epe"] * 2 / 3 == pytest.approx(wanted["epe_non_occ"], rel=1e-5)
    alone, _ = told_by_us(images[2:])
    assert math.isnan(alone["epe"])


def test_pooling_is_another_average(theirs: ModuleType) -> None:
    images = [image(seed) for seed in range(2)]
    images[0][2][: H // 2] = False
    pooled = FlowMetrics()
    for one in images:
        pooled.update(*one)
    assert pooled.compute()["epe"] != pytest.approx(told_by_ptlflow(theirs, images)["epe"], rel=1e-4)
