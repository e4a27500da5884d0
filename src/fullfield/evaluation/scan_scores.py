"""Scores from stored transforms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield.datasets import Criteria, ScanRecord
from fullfield.metrics import (
    feature_matching_recall,
    inlier_ratio,
    relative_rotation_error,
    relative_translation_error,
    rmse_by_information,
    rmse_by_moment,
)


def row(
    record: ScanRecord,
    facts: Mapping[str, Any],
    truth: Mapping[str, Any],
    matched: NDArray[np.float64],
    criteria: Criteria,
) -> dict[str, Any]:
    """Return the scores of one pair.

    ``rre`` (degrees), ``rte``, ``rmse`` (NaN where refused), ``ir``, ``matches``, ``overlap``; whether the method
    ``accepted`` its pose, whether that ``passed`` the criteria, and whether the ``features`` match.
    """
    pose = torch.tensor(truth["pose"], dtype=torch.float64)
    errors = dict.fromkeys(("rre", "rte", "rmse"), math.nan)
    if facts["success"]:
        found = torch.tensor(facts["transform"], dtype=torch.float64)
        if record.information is not None:
            rmse = rmse_by_information(found, pose, record.information)
        else:
            moment = [[math.nan if entry is None else entry for entry in line] for line in truth["moment"]]
            rmse = rmse_by_moment(found, pose, torch.tensor(moment, dtype=torch.float64))
        angle, shift = relative_rotation_error(found, pose), relative_translation_error(found, pose)
        errors = {"rre": float(angle), "rte": float(shift), "rmse": float(rmse)}
    points = torch.from_numpy(matched)
    ratio = inlier_ratio(points[:, 0], points[:, 1], pose, threshold=criteria.inlier_distance)
    features = feature_matching_recall(torch.tensor([ratio], dtype=torch.float32), threshold=criteria.inlier_ratio)
    return {
        **errors,
        "ir": ratio,
        "matches": len(matched),
        "overlap": truth["overlap"],
        "accepted": bool(facts["success"]),
        "passed": bool(facts["success"]) and _passes(errors, criteria),
        "features": bool(features),
        "reason": facts["reason"],
    }


def _passes(errors: Mapping[str, float], criteria: Criteria) -> bool:
    limits = {"rre": criteria.max_rre, "rte": criteria.max_rte, "rmse": criteria.max_rmse}
    return all(errors[name] < limit for name, limit in limits.items() if limit is not None)


def totals(records: Sequence[ScanRecord], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``scores`` over the list and ``scenes``, the same for each scene.

    ``rr`` registration recall and ``fmr`` feature matching recall, each the mean over scenes; ``rr_pairs``,
    ``fmr_pairs`` over pairs; ``ir`` mean over pairs, one without matches counts 0; ``rre``, ``rte`` mean over the
    pairs that passed, ``rre_median``, ``rte_median``; ``accepted`` share of pairs whose pose the method accepts,
    ``wrong`` the share of those that did not pass; ``pairs`` all, and ``counted`` those that count for the recall and
    the errors. A pair that was refused is one that is missed. NaN over no pairs.
    """
    scenes: dict[str, list[ScanRecord]] = {}
    for record in records:
        scenes.setdefault(record.scene, []).append(record)
    by_scene = {scene: _over(some, rows) for scene, some in scenes.items()}
    scores = _over(records, rows)
    for name in ("rr", "fmr"):
        scores[f"{name}_pairs"] = scores[name]
        scores[name] = _mean([one[name] for one in by_scene.values() if not math.isnan(one[name])])
    return {"scores": scores, "scenes": by_scene}


def _over(records: Sequence[ScanRecord], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    mine = [rows[record.name] for record in records]
    counted = [rows[record.name] for record in records if record.counted]
    passed = [one for one in counted if one["passed"]]
    accepted = [one for one in counted if one["accepted"]]
    errors = {name: [one[name] for one in passed] for name in ("rre", "rte")}
    return {
        "rr": _mean([one["passed"] for one in counted]),
        "fmr": _mean([one["features"] for one in mine]),
        "ir": _mean([0.0 if math.isnan(one["ir"]) else one["ir"] for one in mine]),
        **{name: _mean(values) for name, values in errors.items()},
        **{f"{name}_median": statistics.median(values) if values else math.nan for name, values in errors.items()},
        "accepted": _mean([one["accepted"] for one in counted]),
        "wrong": _mean([not one["passed"] for one in accepted]),
        "pairs": len(mine),
        "counted": len(counted),
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
