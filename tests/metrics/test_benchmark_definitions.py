"""KITTI's and Sintel's totals from their definitions, in NumPy, over several images with the masks of their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fullfield.metrics import FlowMetrics

Array = NDArray[np.float64]


def kitti_image(seed: int, shape: tuple[int, int]) -> tuple[Array, Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Prediction, truth, where flow_occ has a vector, where flow_noc has one; [H, W, 2]."""
    random = np.random.default_rng(seed)
    truth = random.normal(0, 40, (*shape, 2))
    pred = truth + random.normal(0, 1, (*shape, 2)) * 10 ** random.uniform(-1, 1.2, (*shape, 1))
    known = random.random(shape) < 0.5
    visible = known & (random.random(shape) < 0.8)
    truth[~known] = random.choice([0.0, np.nan])
    return pred, truth, known, visible


def tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(array, -1, 0).astype(np.float32).copy())


def test_kitti() -> None:
    """Outliers are beyond 3 px and 5 %; their number over all images by that of all vectors; noc beside occ."""
    metrics = FlowMetrics()
    wrong, vectors, total = {"all": 0, "matched": 0}, {"all": 0, "matched": 0}, 0.0
    for seed, shape in enumerate([(30, 50), (37, 41), (12, 60)]):
        pred, truth, known, visible = kitti_image(seed, shape)
        metrics.update(tensor(pred), tensor(truth), torch.from_numpy(known), torch.from_numpy(known & ~visible))
        pred, truth = pred.astype(np.float32).astype(float), truth.astype(np.float32).astype(float)
        for name, mask in (("all", known), ("matched", visible)):
            error = np.hypot(*(pred - truth)[mask].T)
            length = np.hypot(*truth[mask].T)
            wrong[name] += int(((error > 3) & (error / length > 0.05)).sum())
            vectors[name] += int(mask.sum())
            total += error.sum() if name == "all" else 0.0
    table = metrics.breakdown()
    for name in vectors:
        assert table[name]["fl_all"] == pytest.approx(100 * wrong[name] / vectors[name], rel=1e-12)
    assert table["all"]["epe"] == pytest.approx(total / vectors["all"], rel=1e-6)
    assert 5 < table["all"]["fl_all"] < 95


def distance_to_boundary(occluded: NDArray[np.bool_]) -> Array:
    """To the nearest pixel beside one of the other kind."""
    padded = np.pad(occluded, 1, mode="edge")
    marked = np.zeros_like(occluded)
    for shifted in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        marked |= shifted != occluded
    rows, columns = np.nonzero(marked)
    y, x = np.indices(occluded.shape)
    if not len(rows):
        return np.full(occluded.shape, np.inf)
    return np.hypot(y[..., None] - rows, x[..., None] - columns).min(-1)


def test_sintel() -> None:
    """Means over all pixels of all images that the invalid maps leave: by occlusion, by speed, by distance."""
    metrics = FlowMetrics()
    gathered: dict[str, list[Array]] = {}
    for seed in range(3):
        random = np.random.default_rng(seed)
        shape = (60, 90)
        truth = random.normal(0, 1, (*shape, 2)) * 10 ** random.uniform(0, 1.8, (*shape, 1))
        pred = truth + random.normal(0, 2, (*shape, 2))
        occluded = np.zeros(shape, bool)
        if seed < 2:  # the last image has nothing occluded: its pixels are in no band
            occluded[5:20, 8:30] = True
        invalid = random.random(shape) < 0.1
        metrics.update(tensor(pred), tensor(truth), torch.from_numpy(~invalid), torch.from_numpy(occluded))
        pred, truth = pred.astype(np.float32).astype(float), truth.astype(np.float32).astype(float)
        error, speed = np.hypot(*np.moveaxis(pred - truth, -1, 0)), np.hypot(*np.moveaxis(truth, -1, 0))
        near = distance_to_boundary(occluded)
        masks = {
            "epe": np.ones(shape, bool),
            "epe_matched": ~occluded,
            "epe_unmatched": occluded,
            "s0_10": speed < 10,
            "s10_40": (speed >= 10) & (speed < 40),
            "s40_plus": speed >= 40,
            "d0_10": near < 10,
            "d10_60": (near >= 10) & (near < 60),
            "d60_140": (near >= 60) & (near < 140),
        }
        for name, mask in masks.items():
            gathered.setdefault(name, []).append(error[mask & ~invalid])
    values = metrics.compute()
    for name, parts in gathered.items():
        pixels = np.concatenate(parts)
        assert len(pixels), name
        assert values[name] == pytest.approx(pixels.mean(), rel=1e-6), name
