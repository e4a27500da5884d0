"""Pairs of partial clouds cut from one cloud, with the places that are the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield.registration.descriptors import Floats, Ints, nearest
from fullfield.registration.ransac import apply
from fullfield.registration.scan import CELLS, choose_voxel, kept

Draw = np.random.Generator

PARTNER = 1.0
"""Voxels within which mutual nearest points are the same place."""
FEWEST = 32
"""Places that a pair shares, at least."""
_ATTEMPTS = 20
_MOST_POINTS = 40  # a cell
_WAVES = ((0.6, 10.0, 40.0, 3), (0.25, 2.5, 6.0, 6))  # of a bent cloud, voxels: amount, shortest, longest; how many


class Side(NamedTuple):
    """Cloud of a pair, in voxels around its own middle."""

    fine: Floats  # [F, 3], one point per half voxel
    rows: Ints  # [N], those that are described


class Pair(NamedTuple):
    """Two clouds of one scene."""

    source: Side
    target: Side
    truth: Floats  # [4, 4], source into target
    matches: Ints  # [K, 2] into the two rows: mutual nearest within PARTNER

    @property
    def moved(self) -> Floats:
        """Return the described points of the source [N, 3], moved by the true transform."""
        return apply(self.truth, self.source.fine[self.source.rows])


def cut_pair(points: Floats, draw: np.random.Generator, cells: int = CELLS, other: Floats | None = None) -> Pair | None:
    """Return two overlapping parts of ``points`` [N, 3], each degraded and turned at random.

    With ``other`` [M, 3], a second scan of the same place in the same frame, the second part is of that.

    Each side draws its own points (so that densities differ, also within a side), may lose what its viewpoint does not
    see and what lies beyond a plane, is bent a little, gets noise, and its own rigid motion. Both are in voxels, of an
    edge with which the larger has about ``cells`` of them. None where twenty draws found too little in common. The same
    state of ``draw`` gives the same pair.
    """
    middle = (points.min(0) + points.max(0)) / 2
    scans = [_fewer(points, draw, _MOST_POINTS * cells) - middle]
    scans.append(scans[0] if other is None else _fewer(other, draw, _MOST_POINTS * cells) - middle)
    for _ in range(_ATTEMPTS):
        views = [_part(scan, draw) for scan in scans]
        if min(len(view) for view in views) < FEWEST:
            continue
        edge = choose_voxel(*views) * float(np.sqrt(CELLS / cells) * draw.uniform(0.75, 1.25))
        if edge <= 0.0:
            return None
        noise = draw.choice((0.0, draw.uniform(0.0, 0.3)))
        sides, poses = [], []
        for view in views:
            turn = _turn(draw)
            cloud = _bent(view / edge, draw) @ turn.T
            centre = (cloud.min(0) + cloud.max(0)) / 2
            cloud = cloud - centre + draw.normal(scale=noise, size=cloud.shape)
            fine = cloud[kept(cloud, 0.5)]
            sides.append(Side(fine, kept(fine, 1.0)))
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = turn, -centre
            poses.append(pose)
        truth = poses[1] @ np.linalg.inv(poses[0])
        matches = same_places(apply(truth, sides[0].fine[sides[0].rows]), sides[1].fine[sides[1].rows])
        if len(matches) >= max(FEWEST, 0.15 * min(len(side.rows) for side in sides)):
            return Pair(sides[0], sides[1], truth, matches)
    return None


def _fewer(points: Floats, draw: Draw, most: int) -> Floats:
    return points if len(points) <= most else points[draw.choice(len(points), most, replace=False)]


def same_places(moved: Floats, target: Floats) -> Ints:
    """Return the rows [K, 2] of ``moved`` and ``target`` that are mutual nearest, within :data:`PARTNER`."""
    if not len(moved) or not len(target):
        return np.empty((0, 2), np.int64)
    apart, forth = (column[:, 0] for column in nearest(target, moved))
    back = nearest(moved, target)[1][:, 0]
    rows = np.flatnonzero((back[forth] == np.arange(len(moved))) & (apart <= PARTNER))
    return np.stack((rows, forth[rows]), 1)


def _turn(draw: Draw) -> Floats:
    """Return a uniformly distributed rotation."""
    turn, upper = np.linalg.qr(draw.normal(size=(3, 3)))
    turn = turn * np.sign(np.diag(upper))
    turned: Floats = turn * np.linalg.det(turn)
    return turned


def _part(points: Floats, draw: Draw) -> Floats:
    part = points[draw.random(len(points)) < _density(points, draw)]
    if len(part) and draw.random() < 0.25:
        low, high = part.min(0), part.max(0)  # the eye is in the box around the points, or a little outside
        part = part[_seen(part, (low + high) / 2 + draw.uniform(-0.65, 0.65, 3) * (high - low))]
    if len(part) and draw.random() < 0.6:
        direction = draw.normal(size=3)
        along = part @ direction
        part = part[along >= np.quantile(along, draw.uniform(0.0, 0.4))]
    return part


def _bent(points: Floats, draw: Draw) -> Floats:
    """Move voxels by waves: long ones, as reconstructions drift, and short ones, as noisy surfaces have."""
    moved = points.copy()
    for most, shortest, longest, waves in _WAVES:
        amount = draw.uniform(0.0, most) / np.sqrt(waves)
        for _ in range(waves):
            along = draw.normal(size=3)
            along *= 2 * np.pi / draw.uniform(shortest, longest) / np.linalg.norm(along)
            phase, way = draw.uniform(0, 2 * np.pi), draw.normal(size=3)
            moved += amount * np.sin(points @ along + phase)[:, None] * way
    return moved


def _density(points: Floats, draw: Draw) -> Floats:
    """Return the keep probability [N]: uniform, or falling along one direction."""
    most = draw.uniform(0.35, 0.95)
    if draw.random() < 0.5:
        return np.full(len(points), most)
    direction = draw.normal(size=3)
    along = points @ (direction / np.linalg.norm(direction))
    thinned: Floats = most * np.exp(-draw.uniform(0.0, 2.0) * (along - along.min()) / max(float(np.ptp(along)), 1e-9))
    return thinned


def _seen(points: Floats, eye: Floats) -> NDArray[np.bool_]:
    """Return which points [N] are about as near as the nearest in their direction, of about five points."""
    away = points - eye
    depth = np.maximum(np.linalg.norm(away, axis=1), 1e-9)
    across = max(8, round(np.sqrt(len(points) / 5 / 2)))
    row = np.arccos(np.clip(away[:, 2] / depth, -1, 1)) / np.pi * across
    column = (np.arctan2(away[:, 1], away[:, 0]) / (2 * np.pi) + 0.5) * 2 * across
    cell = row.astype(np.int64).clip(0, across - 1) * 2 * across + column.astype(np.int64).clip(0, 2 * across - 1)
    first = np.full(2 * across * across, np.inf)
    np.minimum.at(first, cell, depth)
    visible: NDArray[np.bool_] = depth <= 1.1 * first[cell] + 0.02 * float(np.median(depth))
    return visible
