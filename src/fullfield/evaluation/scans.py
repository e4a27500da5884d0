"""Registration on lists of pairs of point clouds: transforms stored once, scored as often as wanted.

>>> from fullfield.datasets import open_scans
>>> from fullfield.evaluation import Registrar, evaluate_scans
>>> pairs = open_scans("3dmatch", "/data/3dmatch")  # doctest: +SKIP
>>> result = evaluate_scans(Registrar(), pairs, "runs/3dmatch")  # doctest: +SKIP
>>> result["scores"]["rr"], result["scores"]["fmr"]  # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield._check import InputError
from fullfield._read_ahead import ReadAhead
from fullfield.datasets.scans import KITTIOdometry, RegistrationCriteria, ScanDataset, ScanRecord, ScanSample
from fullfield.evaluation.predict import EvaluationSettings
from fullfield.evaluation.run import (
    RESULT,
    ScanRun,
    build_versions_and_dataset_config,
    fingerprint_method_code_if_no_parameters,
    summarize_runtime,
)
from fullfield.evaluation.sharing import wait_for_all_processes
from fullfield.io import PointCloud
from fullfield.metrics import (
    feature_matching_recall,
    inlier_ratio,
    relative_rotation_error,
    relative_translation_error,
    rmse_by_information,
)
from fullfield.metrics.registration import compute_mean_homogeneous_outer_product, compute_rmse_by_mean_outer_product
from fullfield.ops.devices import AUTO

if TYPE_CHECKING:
    from fullfield.registration import Registration


def score_registered_pair(
    record: ScanRecord,
    summary: Mapping[str, Any],
    truth: Mapping[str, Any],
    matches: NDArray[np.float64],
    criteria: RegistrationCriteria,
) -> dict[str, Any]:
    """Return the scores of one pair.

    ``rre`` (degrees), ``rte``, ``rmse`` (NaN where refused), ``ir``, ``matches``, ``overlap``; whether the method
    ``accepted`` its pose, whether that ``passed`` the criteria, and whether the ``features`` match.
    """
    pose = torch.tensor(truth["pose"], dtype=torch.float64)
    errors = dict.fromkeys(("rre", "rte", "rmse"), math.nan)
    if summary["success"]:
        estimated = torch.tensor(summary["transform"], dtype=torch.float64)
        if record.information is not None:
            rmse = rmse_by_information(estimated, pose, record.information)
        else:
            moment = [[math.nan if entry is None else entry for entry in line] for line in truth["moment"]]
            rmse = compute_rmse_by_mean_outer_product(estimated, pose, torch.tensor(moment, dtype=torch.float64))
        angle, shift = relative_rotation_error(estimated, pose), relative_translation_error(estimated, pose)
        errors = {"rre": float(angle), "rte": float(shift), "rmse": float(rmse)}
    points = torch.from_numpy(matches)
    ratio = inlier_ratio(points[:, 0], points[:, 1], pose, threshold=criteria.inlier_distance)
    features = feature_matching_recall(torch.tensor([ratio], dtype=torch.float32), threshold=criteria.inlier_ratio)
    limits = {name: getattr(criteria, f"max_{name}") for name in errors}
    within = all(errors[name] < limit for name, limit in limits.items() if limit is not None)
    return {
        **errors,
        "ir": ratio,
        "matches": len(matches),
        "overlap": truth["overlap"],
        "accepted": bool(summary["success"]),
        "passed": bool(summary["success"]) and within,
        "features": bool(features),
        "reason": summary["reason"],
    }


def score_all_pairs_and_scenes(
    records: Sequence[ScanRecord], pair_scores: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
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
    by_scene = {scene: _summarize_pair_scores(some, pair_scores) for scene, some in scenes.items()}
    scores = _summarize_pair_scores(records, pair_scores)
    for name in ("rr", "fmr"):
        scores[f"{name}_pairs"] = scores[name]
        scores[name] = _compute_mean_or_nan([one[name] for one in by_scene.values() if not math.isnan(one[name])])
    return {"scores": scores, "scenes": by_scene}


def _summarize_pair_scores(
    records: Sequence[ScanRecord], pair_scores: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    mine = [pair_scores[record.name] for record in records]
    counted = [pair_scores[record.name] for record in records if record.counted]
    passed = [one for one in counted if one["passed"]]
    accepted = [one for one in counted if one["accepted"]]
    errors = {name: [one[name] for one in passed] for name in ("rre", "rte")}
    return {
        "rr": _compute_mean_or_nan([one["passed"] for one in counted]),
        "fmr": _compute_mean_or_nan([one["features"] for one in mine]),
        "ir": _compute_mean_or_nan([0.0 if math.isnan(one["ir"]) else one["ir"] for one in mine]),
        **{name: _compute_mean_or_nan(values) for name, values in errors.items()},
        **{f"{name}_median": statistics.median(values) if values else math.nan for name, values in errors.items()},
        "accepted": _compute_mean_or_nan([one["accepted"] for one in counted]),
        "wrong": _compute_mean_or_nan([not one["passed"] for one in accepted]),
        "pairs": len(mine),
        "counted": len(counted),
    }


def _compute_mean_or_nan(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


SAMPLES = 5000


class RegistrationMethod(Protocol):
    """Callable that finds the pose of one cloud in another; ``parameters`` are plain values."""

    @property
    def method_name(self) -> str:
        """Name of the method."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the method, as plain values."""

    def __call__(self, source: PointCloud, target: PointCloud) -> Registration:
        """Find the pose of ``source`` in ``target``."""


class Registrar:
    """:func:`fullfield.registration.register` as a method: ``fpfh``, or ``learned`` with a file of weights.

    With ``ransac_only`` it stops after RANSAC, as :func:`fullfield.registration.register_by_ransac` does.

    >>> result = evaluate_scans(Registrar(voxel=0.05), pairs, "runs/3dmatch")  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        voxel: float | None = None,
        seed: int = 0,
        iterations: int = 50_000,
        samples: int = SAMPLES,
        weights: str | os.PathLike[str] | None = None,
        ransac_only: bool = False,
    ) -> None:
        from fullfield.registration.register import Settings

        Settings(voxel, None, seed, iterations, samples).check_settings()
        self._parameters = {"voxel": voxel, "seed": seed, "iterations": iterations, "samples": samples}
        self.ransac_only = ransac_only
        self._descriptor, self._checksum = None, None
        if weights is not None:
            from fullfield.registration import LearnedDescriptor

            self._descriptor = LearnedDescriptor.load(weights)
            self._checksum = hashlib.sha256(Path(weights).read_bytes()).hexdigest()[:16]

    @property
    def method_name(self) -> str:
        """Name of the descriptor: ``fpfh`` or ``learned``."""
        return "fpfh" if self._descriptor is None else "learned"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments, with the beginning of the weights' checksum for their file."""
        weights = {} if self._checksum is None else {"weights": self._checksum}
        return {**self._parameters, **weights, **({"ransac_only": True} if self.ransac_only else {})}

    @property
    def run_name(self) -> str:
        """Name of the folder for a run: ``samples-5000``, or ``ransac-samples-5000``."""
        return f"{'ransac-' * self.ransac_only}samples-{self._parameters['samples']}"

    def __call__(self, source: PointCloud, target: PointCloud) -> Registration:
        """Find the pose of ``source`` in ``target``, or the reason why there is none."""
        from fullfield.registration import register, register_by_ransac

        method = register_by_ransac if self.ransac_only else register
        return method(source, target, **self._parameters, descriptor=self._descriptor)  # type: ignore[arg-type]


def evaluate_scans(
    method: RegistrationMethod,
    dataset: ScanDataset,
    folder: str | os.PathLike[str],
    settings: EvaluationSettings | None = None,
    *,
    criteria: RegistrationCriteria | None = None,
) -> dict[str, Any]:
    """Register what is missing in ``folder``, score it, and store and return the result.

    A stopped run resumes. With several processes (``settings.process``) each returns the scores of all.
    ``settings.device`` must be ``"auto"`` or ``"cpu"``.

    Returns:
        ``config``, ``criteria``, ``scores``, ``scenes`` (the same by scene), ``pairs`` (errors by pair), ``runtime``
        (seconds a pair), and of this call alone ``this_call``.
        :func:`~fullfield.evaluation.scans.score_all_pairs_and_scenes` has the scores.

    >>> result = evaluate_scans(Registrar(), open_scans("3dmatch", "/data/3dmatch"), "runs/3dmatch")  # doctest: +SKIP
    >>> result["scores"]["rr"]  # doctest: +SKIP
    """
    _check.convert_path_to_text(folder, "folder")
    settings = settings or EvaluationSettings()
    is_cpu = settings.device in (AUTO, "cpu")
    _check.require(is_cpu, "device", "cpu, where point clouds are registered", repr(settings.device))
    config = {
        **build_versions_and_dataset_config(dataset),
        "method": method.method_name,
        "parameters": dict(method.parameters),
        **fingerprint_method_code_if_no_parameters(method),
    }
    run = ScanRun(folder, config)
    start_s = time.perf_counter()
    estimated = register_store_and_count_missing_pairs(method, dataset, run, settings)
    wait_for_all_processes(settings.process)
    this_call = {"estimated": estimated, "wall_s": time.perf_counter() - start_s}
    return {**score_scans(dataset, run, criteria=criteria, settings=settings), "this_call": this_call}


def score_scans(
    dataset: ScanDataset,
    run: ScanRun,
    *,
    criteria: RegistrationCriteria | None = None,
    settings: EvaluationSettings | None = None,
) -> dict[str, Any]:
    """Score the stored transforms, by other criteria than the data set's if given, and store the result.

    Raises InputError naming a pair that was not registered, or for a run of other clouds.

    >>> result = score_scans(pairs, run, criteria=RegistrationCriteria(max_rmse=0.2))  # doctest: +SKIP
    """
    settings = settings or EvaluationSettings()
    run.check_same_dataset(dataset)
    criteria = criteria or dataset.criteria
    mine = settings.process.list_pair_indices(dataset)
    unknown = [
        i
        for i in mine
        if run.read_truth_if_current(dataset.records[i].name, _checksum_pose_and_overlap_settings(dataset, i)) is None
    ]
    for index, sample in zip(unknown, _iterate_samples_ahead(dataset, unknown), strict=True):
        _store_measured_truth(dataset, run, index, sample)
    wait_for_all_processes(settings.process)
    rows = {}
    seconds = []
    for index, record in enumerate(dataset.records):
        summary = run.read_summary_or_raise(record.name)
        truth = run.read_truth_if_current(record.name, _checksum_pose_and_overlap_settings(dataset, index))
        if truth is None:
            raise InputError(f"{run.folder}: has no truth of {record.name}; was another process stopped?")
        rows[record.name] = score_registered_pair(record, summary, truth, run.read_matches(record.name), criteria)
        seconds.append(float(summary["seconds"]))
    result = {
        "config": run.config,
        "criteria": vars(criteria),
        **score_all_pairs_and_scenes(dataset.records, rows),
        "pairs": rows,
        "runtime": summarize_runtime(seconds),
    }
    if settings.process.rank == 0:
        run.write_json(RESULT, result)
    return result


def register_store_and_count_missing_pairs(
    method: RegistrationMethod, dataset: ScanDataset, run: ScanRun, settings: EvaluationSettings | None = None
) -> int:
    """Register and store every pair that ``run`` does not hold yet; return their number.

    The next pair is read meanwhile. The first pair is registered once before, unmeasured. A pair that the method
    refuses is stored as refused. Raises InputError naming the pair whose clouds cannot be used.
    """
    settings = settings or EvaluationSettings()
    missing = [
        i
        for i in settings.process.list_pair_indices(dataset)
        if run.read_summary_if_complete(dataset.records[i].name) is None
    ]
    for count, (index, sample) in enumerate(zip(missing, _iterate_samples_ahead(dataset, missing), strict=True)):
        if settings.progress is not None:
            settings.progress(count / len(missing), sample.name)
        if count == 0:
            _register_pair_or_raise_with_its_name(method, sample)
        start_s = time.perf_counter()
        registration = _register_pair_or_raise_with_its_name(method, sample)
        seconds = time.perf_counter() - start_s
        summary = {
            "success": registration.success,
            "reason": registration.reason,
            "transform": None if registration.transform is None else registration.transform.tolist(),
            "confidence": registration.confidence,
            "voxel": registration.voxel,
            "seconds": seconds,
            "threads": torch.get_num_threads(),
        }
        matches = np.empty((0, 2, 3)) if registration.matched is None else registration.matched
        run.save_registration_unless_complete(sample.name, summary, matches)
        if run.read_truth_if_current(sample.name, _checksum_pose_and_overlap_settings(dataset, index)) is None:
            _store_measured_truth(dataset, run, index, sample)
    return len(missing)


def _register_pair_or_raise_with_its_name(method: RegistrationMethod, sample: ScanSample) -> Registration:
    try:
        return method(sample.source, sample.target)
    except InputError as error:
        raise InputError(f"{sample.name}: {error}") from error


def _store_measured_truth(dataset: ScanDataset, run: ScanRun, sample_index: int, sample: ScanSample) -> None:
    from fullfield.registration.refinement import measure_true_overlap

    clouds = sample.source, sample.target
    overlap = measure_true_overlap(*clouds, sample.truth.numpy(), max_distance=dataset.reach, refine=dataset.coarse)
    content = {
        "pose": overlap.pose.tolist(),
        "moment": compute_mean_homogeneous_outer_product(torch.from_numpy(overlap.points)).tolist(),
        "overlap": overlap.fraction,
    }
    run.store_truth(sample.name, _checksum_pose_and_overlap_settings(dataset, sample_index), content)


def _checksum_pose_and_overlap_settings(dataset: ScanDataset, sample_index: int) -> str:
    """Return a checksum of the inputs of a pair's truth."""
    pose = dataset.records[sample_index].truth.numpy().tobytes()
    return hashlib.sha256(pose + f"{dataset.reach} {dataset.coarse}".encode()).hexdigest()[:16]


def _iterate_samples_ahead(dataset: ScanDataset, indices: Sequence[int]) -> Iterator[ScanSample]:
    """Yield the pairs in order, and read the next ones meanwhile."""
    with ReadAhead(dataset.__getitem__, _count_cloud_bytes, threads=1, min_items=1) as reader:
        reader.enqueue_keys_and_start_reads(indices)
        for index in indices:
            yield reader.wait_and_take_item(index)


def _count_cloud_bytes(sample: ScanSample) -> int:
    """Return the memory of the points of both clouds."""
    return sum(cloud.points.nbytes for cloud in (sample.source, sample.target))


@dataclass(frozen=True)
class ScanProtocol:
    """Numbers of matches, RANSAC trials and limits by which a paper compares descriptors.

    >>> for method in POINTCNNPP.build_ransac_and_full_registrars():  # doctest: +SKIP
    ...     evaluate_scans(method, pairs, f"runs/{method.run_name}", criteria=POINTCNNPP.choose_criteria(pairs))
    """

    samples: tuple[int, ...]  # matches at most, one run for each
    trials: int  # triples that RANSAC draws
    indoor: RegistrationCriteria
    lidar: RegistrationCriteria  # for KITTI

    def choose_criteria(self, dataset: ScanDataset) -> RegistrationCriteria:
        """Return the limits for ``dataset``."""
        return self.lidar if isinstance(dataset, KITTIOdometry) else self.indoor

    def build_ransac_and_full_registrars(
        self,
        *,
        sample_counts: Sequence[int] | None = None,
        voxel: float | None = None,
        seed: int = 0,
        iterations: int | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> list[Registrar]:
        """Return RANSAC alone and the whole pipeline for each number of matches, to be compared in one table.

        Arguments are those of :class:`Registrar`; without ``sample_counts`` and ``iterations`` they are the protocol's.
        """
        trials = self.trials if iterations is None else iterations
        return [
            Registrar(voxel=voxel, seed=seed, iterations=trials, samples=count, weights=weights, ransac_only=alone)
            for count in sample_counts or self.samples
            for alone in (True, False)
        ]


POINTCNNPP = ScanProtocol(
    samples=(5000, 2500, 1000, 500, 250),
    trials=50_000,
    indoor=RegistrationCriteria(max_rmse=0.2),
    lidar=RegistrationCriteria(max_rre=1.0, max_rmse=0.2, inlier_distance=KITTIOdometry.criteria.inlier_distance),
)
"""Protocol of the supplement of PointCNN++ (arXiv 2511.23227, C.1): plain RANSAC on up to 5000 mutual matches.

3DMatch: RMSE below 0.2 m, matches within 0.1 m, inlier ratio above 5 %. KITTI: RRE below 1° and RMSE below 0.2 m; the
supplement counts no matches there, so the inlier distance stays the data set's.
"""

PROTOCOLS = {"pointcnnpp": POINTCNNPP}
"""Protocols by name."""
