"""Registration of two clouds: from their points to the pose of one in the other, or the reason of a refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.pointcloud import check_and_orthonormalize_pose
from fullfield.ops.devices import AUTO, resolve_device
from fullfield.registration.descriptors import Floats
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.result import AcceptedRegistration, RefusedRegistration, Registration, build_refusal
from fullfield.registration.scale import replace_refusal_if_scale_explains
from fullfield.registration.scan import (
    choose_voxel,
    compute_median_point,
    express_relative_to_origins,
    take_finite_points,
)
from fullfield.registration.search import Search, register_at_voxel_size_and_check_retry

Progress = Callable[[float, str], None]

ITERATIONS = 50_000
SAMPLES = 5000
_SCALES = (1.0, 0.75)
"""Multiples of the automatic voxel, tried in turn until a pose is accepted or refused for good."""
_PROGRESS = ((0.1, 0.7), (0.7, 0.85), (0.85, 1.0))
"""Parts of the progress: registration at each voxel, and at other sizes. The first is the last one for most pairs."""
_MAX_VOXELS = 2.0**50


def register(
    source: Any,
    target: Any,
    *,
    voxel: float | None = None,
    init: Any = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
    samples: int = SAMPLES,
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None,
    device: str | torch.device = AUTO,
) -> AcceptedRegistration | RefusedRegistration:
    """Find the rigid transform that brings ``source`` onto ``target``, or the reason why none is accepted.

    Args:
        source: a file, a :class:`~fullfield.io.PointCloud`, an array or tensor [N, 3], or an object with ``points``
            such as Open3D's. Points that are not finite are left out.
        target: as ``source``.
        voxel: edge of a voxel in the clouds' units; None chooses it from their extent and spacing.
        init: [4, 4] source into target to start from instead of searching; the verdict stays the same. It may be
            about 20° and 5 voxels off; farther away, the reason says so.
        seed: seed of RANSAC's draws. The same seed gives the same result.
        iterations: number of triples that RANSAC draws.
        samples: largest number of matches for RANSAC, drawn at random from all.
        descriptor: a learned one, its file of weights, or "learned" for the published one (checkout or download);
            "fpfh" or None for FPFH.
        device: where a descriptor that is read from a file is computed; "auto" is the first GPU with kernels, else the
            CPU. All else is computed on the CPU.

    Raises:
        InputError: if an argument is no cloud, pose or descriptor, or a cloud has no finite point.
        SetupError: if small_gicp or SciPy is not installed.
    """
    return register_clouds(source, target, Settings(voxel, init, seed, iterations, samples, descriptor, device))


def register_by_ransac(
    source: Any,
    target: Any,
    *,
    voxel: float | None = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
    samples: int = SAMPLES,
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None,
    device: str | torch.device = AUTO,
) -> AcceptedRegistration | RefusedRegistration:
    """Estimate the pose by RANSAC on mutual matches alone, as papers compare descriptors.

    The pose that most matches agree on is fitted to those matches (Fischler and Bolles, 1981) and returned. It is
    neither refined on the points nor judged, and no second voxel size is tried, so ``success`` only means that there
    is a pose, and ``confidence``, ``fitness`` and ``rmse`` are NaN. Arguments and errors as in :func:`register`.
    """
    settings = Settings(voxel, None, seed, iterations, samples, descriptor, device, ransac_only=True)
    return register_clouds(source, target, settings)


class Settings(NamedTuple):
    """Arguments of :func:`register`; ``ransac_only`` stops after RANSAC."""

    voxel: float | None = None
    init: Any = None
    seed: int = 0
    iterations: int = ITERATIONS
    samples: int = SAMPLES
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None
    device: str | torch.device = AUTO
    ransac_only: bool = False

    def check_settings(self) -> None:
        """Raise InputError naming the number that makes no sense."""
        if self.voxel is not None:
            _check.check_number(self.voxel, "voxel", above=0.0)
        _check.check_number(self.seed, "seed", integer=True, low=0)
        _check.check_number(self.iterations, "iterations", integer=True, low=1, high=10_000_000)
        _check.check_number(self.samples, "samples", integer=True, low=3)


def register_clouds(
    source: Any, target: Any, settings: Settings, progress: Progress | None = None
) -> AcceptedRegistration | RefusedRegistration:
    """Run :func:`register`; ``progress`` receives the fraction done and the next step."""
    settings.check_settings()
    voxel, init, seed, iterations, samples, _, _, ransac_only = settings
    descriptor = load_descriptor_if_learned(settings.descriptor, settings.device)
    clouds = [take_finite_points(value, name, 1) for value, name in ((source, "source"), (target, "target"))]
    start = None if init is None else check_and_orthonormalize_pose(init)
    if progress is not None and voxel is None:
        progress(0.0, "choosing the voxel")
    middles = [compute_median_point(points) for points in clouds]
    centred = [points - middle for points, middle in zip(clouds, middles, strict=True)]
    edge = float(voxel) if voxel is not None else choose_voxel(*centred)
    if edge <= 0.0:
        single = [
            n for n, points in zip(("source", "target"), centred, strict=True) if not np.ptp(points, axis=0).any()
        ]
        name = f"the {' and the '.join(single)}" if single else "a cloud"  # its sample, at the least
        return _restore_coordinates(
            build_refusal(f"all the points of {name} are at the same place", "place", edge), middles
        )
    for name, points, middle in zip(("source", "target"), centred, middles, strict=True):
        _refuse_distant_points(name, points, middle, edge)
    start = None if start is None else express_relative_to_origins(start, *middles)
    search = Search(seed, iterations, samples, start, descriptor, ransac_only)
    outcomes = []
    scales = _SCALES if voxel is None and not ransac_only else (1.0,)
    for number, scale in enumerate(scales):
        steps = _Steps(progress, *_PROGRESS[number], edge * scale)
        outcome, may_change = register_at_voxel_size_and_check_retry(centred, edge * scale, search, steps)
        outcomes.append(outcome)
        if not may_change:
            outcomes = [outcome]
            break
    best = max(outcomes, key=lambda outcome: (outcome.success, outcome.confidence))
    if not best.success and not ransac_only and may_change:
        untried = {"descriptor": descriptor is None, "init": init is None}
        best = replace(best, untried=tuple(name for name, is_open in untried.items() if is_open))
    if not best.success and not ransac_only and best.cause != "init":
        steps = _Steps(progress, *_PROGRESS[-1], best.voxel)
        best = replace_refusal_if_scale_explains(best, centred, search, steps)
    return _restore_coordinates(best, middles)


def load_descriptor_if_learned(
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None, device: str | torch.device
) -> LearnedDescriptor | None:
    """Return the learned descriptor that an argument of :func:`register` names, on ``device``; None for FPFH."""
    if isinstance(descriptor, LearnedDescriptor):
        return descriptor
    if descriptor is None or descriptor == "fpfh":
        _check.require(str(device) in (AUTO, "cpu"), "device", "auto or cpu, where FPFH is computed", str(device))
        return None
    device = resolve_device(device)
    if descriptor == "learned":
        return LearnedDescriptor.published(device)
    return LearnedDescriptor.load(descriptor, device)


def _refuse_distant_points(name: str, points: Floats, center: Floats, voxel: float) -> None:
    """Raise InputError naming a point that is too far from the others for any voxel."""
    farthest = int(np.abs(points).max(1).argmax())
    if float(np.abs(points[farthest]).max()) > _MAX_VOXELS * voxel:
        position = ", ".join(f"{value:.4g}" for value in points[farthest] + center)
        raise InputError(f"{name}: expected points close enough for a grid of voxels, got a point at ({position})")


def _restore_coordinates(outcome: Registration, centers: list[Floats]) -> AcceptedRegistration | RefusedRegistration:
    """Return the outcome in the clouds' own coordinates, as the subclass that type checkers distinguish."""
    entries = dict(vars(outcome))
    if outcome.matched is not None:
        entries["matched"] = outcome.matched + np.stack(centers)
    for name, pose in (("transform", outcome.transform), ("candidate", outcome.candidate)):
        entries[name] = None if pose is None else express_relative_to_origins(pose, -centers[0], -centers[1])
    entries["alternatives"] = tuple(
        express_relative_to_origins(pose, -centers[0], -centers[1]) for pose in outcome.alternatives
    )
    entries["free_directions"] = tuple(one._replace(point=one.point + centers[1]) for one in outcome.free_directions)
    return AcceptedRegistration(**entries) if outcome.success else RefusedRegistration(**entries)


class _Steps:
    """Callback that reports the steps at one voxel size."""

    def __init__(self, progress: Progress | None, start: float, end: float, edge: float) -> None:
        self._progress, self._start, self._end, self._edge = progress, start, end, edge

    def __call__(self, fraction: float, step: str) -> None:
        if self._progress is not None:
            self._progress(self._start + (self._end - self._start) * fraction, f"{step}, voxel {self._edge:.4g}")
