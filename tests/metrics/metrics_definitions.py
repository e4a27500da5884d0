"""The metrics once more, written from the benchmarks' definitions with plain loops and numpy.

Nothing here is shared with the package: arrays are ``[H, W, 2]`` (truth ``[H, W, 4, 2]`` for four values).
"""

from __future__ import annotations

import math

import numpy as np


def pixel_list(pred, truth, valid=None, occluded=None, distance=None):
    """One record for every scored pixel of one image."""
    four = truth if truth.ndim == 4 else truth[:, :, None, :]
    records = []
    for y in range(pred.shape[0]):
        for x in range(pred.shape[1]):
            values = [tuple(float(c) for c in value) for value in four[y, x]]
            if valid is not None and not valid[y, x]:
                continue
            if any(not math.isfinite(c) or abs(c) > 1e9 for value in values for c in value):
                continue
            u, v = (float(c) for c in pred[y, x])
            lengths = [math.sqrt(tu * tu + tv * tv) for tu, tv in values]
            records.append(
                {
                    "epe": min(math.sqrt((u - tu) ** 2 + (v - tv) ** 2) for tu, tv in values),
                    "aae": min(angle(u, v, tu, tv) for tu, tv in values),
                    "mean": sum(lengths) / len(lengths),
                    "max": max(lengths),
                    "occluded": None if occluded is None else bool(occluded[y, x]),
                    "distance": None if distance is None else float(distance[y, x]),
                }
            )
    return records


def angle(u, v, tu, tv):
    """Degrees between (u, v, 1) and (tu, tv, 1): Kahan's formula, from the unit vectors' sum and difference."""
    a, b = np.array([u, v, 1.0]), np.array([tu, tv, 1.0])
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    return math.degrees(2.0 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b)))


def mean(values):
    return sum(values) / len(values) if values else math.nan


def summary(records, lm_threshold=128.0):
    """All keys of ``FlowMetrics.compute`` over the records of one image or of several."""
    epe = [r["epe"] for r in records]

    def over(condition, key="epe"):
        return mean([r[key] for r in records if condition(r)])

    def above(k, part=records):
        return mean([100.0 * (r["epe"] > k) for r in part])

    def band(low, high):
        return over(lambda r: r["distance"] is not None and low <= r["distance"] < high)

    lm = [r for r in records if r["mean"] > lm_threshold]
    return {
        "epe": mean(epe),
        "aae": mean([r["aae"] for r in records]),
        "px1": above(1),
        "px3": above(3),
        "px5": above(5),
        "fl_all": mean(
            [100.0 * (r["epe"] > 3 and r["epe"] / r["max"] > 0.05 if r["max"] else r["epe"] > 3) for r in records]
        ),
        "wauc": wauc(epe),
        "lm_epe": mean([r["epe"] for r in lm]),
        "lm_px1": above(1, lm),
        "s0_10": over(lambda r: r["mean"] < 10),
        "s10_40": over(lambda r: 10 <= r["mean"] < 40),
        "s40_plus": over(lambda r: r["mean"] >= 40),
        "epe_matched": over(lambda r: r["occluded"] is False),
        "epe_unmatched": over(lambda r: r["occluded"] is True),
        "d0_10": band(0, 10),
        "d10_60": band(10, 60),
        "d60_140": band(60, 140),
        "pixels": len(records),
        "images": 1,
    }


def wauc(epe):
    """Spring: weighted fractions of inliers at 100 thresholds up to 5 px."""
    if not epe:
        return math.nan
    errors, area, weights = np.asarray(epe), 0.0, 0.0
    for i in range(1, 101):
        weight = 1.0 - (i - 1) / 100.0
        area += weight * np.count_nonzero(errors <= i / 20.0) / len(errors)
        weights += weight
    return 100.0 * area / weights


def compute_boundary_distance(occluded):
    """Euclidean distance to the nearest pixel with a 4-neighbour of the other kind, by trying all of them."""
    height, width = occluded.shape
    marks = []
    for y in range(height):
        for x in range(width):
            for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):
                if 0 <= y + dy < height and 0 <= x + dx < width and occluded[y + dy, x + dx] != occluded[y, x]:
                    marks.append((y, x))
                    break
    result = np.full((height, width), np.inf)
    for y in range(height):
        for x in range(width):
            for my, mx in marks:
                result[y, x] = min(result[y, x], math.sqrt((y - my) ** 2 + (x - mx) ** 2))
    return result


def spring_scores(preds, truths):
    """Spring's numbers for flow, pooled: its way of taking minimum, maximum, mean and NaN, on arrays.

    ``preds``: ``[N, 2]``; ``truths``: ``[N, 4, 2]``. Returns {class: {measure: value}}.
    """
    length = np.linalg.norm(truths, axis=-1)
    nan = np.isnan(length).any(axis=1)
    error = np.linalg.norm(truths - preds[:, None], axis=-1).min(axis=1)
    speed = length.mean(axis=1)
    fl = (error > 3) & (error > 0.05 * length.max(axis=1))
    classes = {
        "all": ~nan,
        "s0_10": ~nan & (speed < 10),
        "s10_40": ~nan & (speed >= 10) & (speed < 40),
        "s40_plus": ~nan & (speed >= 40),
    }
    return {
        name: {
            "epe": error[chosen].mean(),
            "px1": 100 * (error[chosen] > 1).mean(),
            "fl_all": 100 * fl[chosen].mean(),
            "wauc": wauc(error[chosen].tolist()),
        }
        for name, chosen in classes.items()
    }


def assert_same(got, wanted, rel=1e-12):
    """Same keys and values, NaN only where NaN is wanted."""
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert_same(got[key], value, rel)
        elif math.isnan(value):
            assert math.isnan(got[key]), f"{key}: expected NaN, got {got[key]}"
        else:
            assert math.isclose(got[key], value, rel_tol=rel, abs_tol=1e-12), f"{key}: {got[key]} != {value}"
