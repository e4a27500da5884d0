"""Rigid transforms that many matches agree on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fullfield.registration.descriptors import Floats, Ints

EDGE_RATIO = 0.9
"""Smallest ratio of the lengths of a triangle's edge in the two clouds."""
_RESIDUALS = 1 << 17  # computed at a time, so that they fit the cache
_REFITS = 3
_PREVIEW, _PREVIEWED = 128, 1000  # all poses are scored on this many matches, this many best ones on all


class Hypothesis(NamedTuple):
    """Pose, and the number of matches that it brings within the threshold."""

    transform: Floats  # [4, 4], source into target
    inliers: int


def fit_rigid_transforms(source: Floats, target: Floats) -> Floats:
    """Fit the rigid transforms [..., 4, 4] that bring ``source`` [..., N, 3] closest to ``target`` (Kabsch)."""
    from_middle, to_middle = source.mean(-2, keepdims=True), target.mean(-2, keepdims=True)
    covariance = np.swapaxes(source - from_middle, -1, -2) @ (target - to_middle)
    left, _, right = np.linalg.svd(covariance)
    mirrored = np.linalg.det(left) * np.linalg.det(right) < 0
    right[..., 2, :] *= np.where(mirrored, -1.0, 1.0)[..., None]
    rotation = np.swapaxes(left @ right, -1, -2)
    transform = np.zeros((*rotation.shape[:-2], 4, 4))
    transform[..., :3, :3] = rotation
    transform[..., :3, 3] = (to_middle - from_middle @ np.swapaxes(rotation, -1, -2))[..., 0, :]
    transform[..., 3, 3] = 1.0
    return transform


def apply_transform(transform: Floats, points: Floats) -> Floats:
    """Move ``points`` [..., N, 3] by ``transform`` [..., 4, 4]."""
    transformed: Floats = points @ np.swapaxes(transform[..., :3, :3], -1, -2) + transform[..., None, :3, 3]
    return transformed


def search_pose_hypotheses(
    source: Floats,  # [M, 3]
    target: Floats,  # [M, 3], row by row the match of source
    threshold: float,
    *,
    iterations: int = 50_000,
    seed: int = 0,
    max_count: int = 8,
) -> list[Hypothesis]:
    """Return up to ``max_count`` different poses that bring the most matches within ``threshold``, best first.

    ``iterations`` triples of matches are drawn. A triple is dropped where an edge is shorter than twice the threshold,
    where its lengths in the two clouds are less alike than :data:`EDGE_RATIO`, or where its own pose leaves one of its
    points beyond the threshold. The same seed draws the same triples.
    """
    if len(source) < 3:
        return []
    triples = np.random.default_rng(seed).integers(0, len(source), (iterations, 3))
    keep = np.ones(iterations, bool)
    corners, source_axes, target_axes = triples.T.copy(), source.T.copy(), target.T.copy()
    for i, j in ((0, 1), (1, 2), (2, 0)):
        source_edges = _measure_distances_between_indices(source_axes, corners[i], corners[j])
        target_edges = _measure_distances_between_indices(target_axes, corners[i], corners[j])
        shorter, longer = np.minimum(source_edges, target_edges), np.maximum(source_edges, target_edges)
        keep &= (shorter >= EDGE_RATIO * longer) & (shorter >= 2 * threshold)
    triples = _select_distinct_triples(triples[keep], len(source))
    if not len(triples):
        return []
    poses = fit_rigid_transforms(source[triples], target[triples])
    distances = np.linalg.norm(apply_transform(poses, source[triples]) - target[triples], axis=2)
    poses = poses[(distances <= threshold).all(1)]
    if len(poses) > _PREVIEWED and len(source) > _PREVIEW:
        preview = np.random.default_rng(seed).choice(len(source), _PREVIEW, replace=False)
        counts = _count_inliers(poses, source[preview], target[preview], threshold)
        poses = poses[np.sort(np.argsort(-counts, kind="stable")[:_PREVIEWED])]
    counts = _count_inliers(poses, source, target, threshold)
    return _refit_and_select_distinct_hypotheses(
        poses[np.argsort(-counts, kind="stable")], source, target, threshold, max_count
    )


def estimate_scale_from_matches(
    source: Floats,  # [M, 3]
    target: Floats,  # [M, 3], row by row the match of source
    threshold: float,
    *,
    max_scale: float,
    iterations: int = 50_000,
    seed: int = 0,
) -> float | None:
    """Return the scale of the similarity that most matches agree on; None where no triple gives one.

    Like :func:`search_pose_hypotheses`, but the edges of a triple need only one common ratio, up to ``max_scale`` or
    its inverse.
    """
    if len(source) < 3:
        return None
    triples = np.random.default_rng(seed).integers(0, len(source), (iterations, 3))
    edges = [
        np.linalg.norm(points[triples] - points[np.roll(triples, 1, axis=1)], axis=2) for points in (source, target)
    ]
    is_long = (edges[0] >= 2 * threshold).all(1) & (edges[1] >= 2 * threshold).all(1)
    triples, ratios = triples[is_long], edges[1][is_long] / edges[0][is_long]
    scales = np.exp(np.log(ratios).mean(1))
    is_similar = ratios.min(1) >= EDGE_RATIO * ratios.max(1)
    keep = is_similar & (scales <= max_scale) & (scales >= 1 / max_scale)
    triples, scales = triples[keep], scales[keep]
    if not len(triples):
        return None
    poses = fit_rigid_transforms(scales[:, None, None] * source[triples], target[triples])
    poses[:, :3, :3] *= scales[:, None, None]
    distances = np.linalg.norm(apply_transform(poses, source[triples]) - target[triples], axis=2)
    is_close = (distances <= threshold).all(1)
    if not is_close.any():
        return None
    return float(scales[is_close][_count_inliers(poses[is_close], source, target, threshold).argmax()])


def _measure_distances_between_indices(axes: Floats, first_indices: Ints, second_indices: Ints) -> Floats:
    """Return the distances [K] between points [3, N] of these numbers [K], one coordinate at a time for speed."""
    x, y, z = (coordinates[first_indices] - coordinates[second_indices] for coordinates in axes)
    distances: Floats = np.sqrt(x * x + y * y + z * z)
    return distances


def _select_distinct_triples(triples: Ints, count: int) -> Ints:
    """Return the distinct triples [K, 3] of numbers below ``count``, each sorted, in order."""
    if count**3 > np.iinfo(np.int64).max:
        return np.unique(np.sort(triples, axis=1), axis=0)
    low, middle, high = np.sort(triples, axis=1).T
    keys = np.sort((low * count + middle) * count + high)  # np.unique of rows takes many times as long
    keys = keys[np.diff(keys, prepend=-1) > 0]
    return np.stack((keys // count**2, keys // count % count, keys % count), 1)


def _count_inliers(poses: Floats, source: Floats, target: Floats, threshold: float) -> Ints:
    """Count the matches that each pose brings within the threshold, one coordinate at a time for speed."""
    counts = np.empty(len(poses), np.int64)
    points, ends = np.vstack((source.T, np.ones(len(source)))), target.T.copy()
    step = max(1, _RESIDUALS // len(source))
    for first in range(0, len(poses), step):
        block = poses[first : first + step, :3]
        differences = (block.reshape(-1, 4) @ points).reshape(len(block), 3, -1)
        differences -= ends
        differences *= differences
        squared = differences[:, 0]
        squared += differences[:, 1]
        squared += differences[:, 2]
        counts[first : first + step] = np.count_nonzero(squared <= threshold**2, axis=1)
    return counts


def _refit_and_select_distinct_hypotheses(
    poses: Floats, source: Floats, target: Floats, threshold: float, max_count: int
) -> list[Hypothesis]:
    """Fit the first poses to their inliers, and leave out those that move the matches as a better one does."""
    distinct: list[Hypothesis] = []
    homogeneous = np.hstack((source, np.ones((len(source), 1))))
    moments = homogeneous.T @ homogeneous / len(source)  # give the RMS distance between poses without a look at points

    def is_new(pose: Floats) -> bool:
        differences = np.array([pose[:3] - other.transform[:3] for other in distinct]).reshape(-1, 4)
        squares = ((differences @ moments) * differences).reshape(-1, 12).sum(1)
        return bool((squares >= (2 * threshold) ** 2).all())

    for pose in poses[: 16 * max_count]:
        if not is_new(pose):
            continue
        transform, inliers = pose, 0
        for _ in range(_REFITS):
            is_inlier = np.linalg.norm(apply_transform(transform, source) - target, axis=1) <= threshold
            if is_inlier.sum() < max(3, inliers):
                break
            transform, inliers = fit_rigid_transforms(source[is_inlier], target[is_inlier]), int(is_inlier.sum())
        if is_new(transform):
            distinct.append(Hypothesis(transform, int(_count_inliers(transform[None], source, target, threshold)[0])))
        if len(distinct) == max_count:
            break
    return sorted(distinct, key=lambda h: -h.inliers)
