"""Totals from stored predictions."""

from __future__ import annotations

import os
import time
from typing import Any

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import FlowDataset
from fullfield.estimators import Estimator
from fullfield.estimators.protocol import check_estimator, prepare_estimator
from fullfield.evaluation.predict import ESTIMATOR, Setting, configured, noting_shortage, predict
from fullfield.evaluation.run import FAILURE, RESULT, Run, check_entries, runtime
from fullfield.evaluation.scoring import Scorer
from fullfield.evaluation.sharing import wait_for_all


def evaluate(
    estimator: Estimator,
    dataset: FlowDataset,
    folder: str | os.PathLike[str],
    setting: Setting | None = None,
    *,
    averaging: str = "pooled",
) -> dict[str, Any]:
    """Predict what is missing in ``folder``, score it, and store and return the result.

    A stopped run resumes, with the totals of one that was not stopped. With several processes (:class:`Setting`'s
    share) each returns the totals of all.

    Returns:
        ``config``; ``averaging``; ``scores`` (as of :meth:`FlowMetrics.compute <fullfield.metrics.FlowMetrics>`) and
        ``classes``, over the pairs with truth, both None where no pair has any; ``runtime`` (seconds a pair: mean,
        std, median, min, max, and whether all were ``alone``); ``peak_bytes`` (CUDA memory, None on a CPU);
        ``backends`` and numbers of CPU ``threads`` that were used; and of this call alone ``this_call``: pairs
        ``estimated``, ``busy_s``, ``wall_s`` and their ratio ``utilisation``.

    Raises:
        InputError: ``estimator`` is none, the folder belongs to another configuration, or a file cannot be used.
        torch.OutOfMemoryError: the device's memory is too small. If that happens in the estimator, or while it is
            prepared, a note is left in the run's folder.
    """
    setting = setting or Setting()
    check_estimator(estimator, expected=ESTIMATOR)
    with noting_shortage(estimator, dataset, folder, setting):
        prepare_estimator(estimator, _check.device(setting.device))
    run = Run(folder, configured(dataset, estimator, setting))
    has_truth = any(record.flow is not None for record in dataset.records)
    begin = time.perf_counter()
    work = predict(estimator, dataset, run, setting, averaging=averaging if has_truth else None)
    wait_for_all(setting.share)
    scorer = Scorer(dataset, run, averaging, _check.device(setting.device))
    if has_truth:
        scorer.score_stored(setting.share.of(dataset))
    wall = time.perf_counter() - begin
    wait_for_all(setting.share)
    result = {
        **(_totals(scorer) if has_truth else {"averaging": averaging, "scores": None, "classes": None}),
        **_runtime(dataset, run),
        "this_call": {**work, "wall_s": wall, "utilisation": work["busy_s"] / wall if wall else 0.0},
    }
    if setting.share.rank == 0:
        run.write(RESULT, result)
        (run.folder / FAILURE).unlink(missing_ok=True)
    return result


def score(
    dataset: FlowDataset, run: Run, *, averaging: str = "pooled", setting: Setting | None = None
) -> dict[str, Any]:
    """Score the stored predictions again, or in another averaging, and store the result; estimate nothing.

    Raises InputError naming a pair that was not predicted, or for a run of other frames, or a set without any truth.
    """
    setting = setting or Setting()
    run.check_dataset(dataset)
    if all(record.flow is None for record in dataset.records):
        raise InputError(f"{dataset.name}: has no truth to score against")
    scorer = Scorer(dataset, run, averaging, _check.device(setting.device))
    scorer.score_stored(setting.share.of(dataset))
    wait_for_all(setting.share)
    result = {**_totals(scorer), **_runtime(dataset, run)}
    if setting.share.rank == 0:
        run.write(RESULT, result)
    return result


def _totals(scorer: Scorer) -> dict[str, Any]:
    total = scorer.total()
    return {"averaging": total.averaging, "scores": total.compute(), "classes": total.breakdown()}


def _runtime(dataset: FlowDataset, run: Run) -> dict[str, Any]:
    noted = [run.facts(record.name) for record in dataset.records]
    facts = [fact for fact in noted if fact is not None]
    if len(facts) < len(dataset):
        raise InputError(f"{run.folder}: holds {len(facts)} of {len(dataset)} predictions; predict the rest first")
    for record, fact in zip(dataset.records, facts, strict=True):
        kinds = {"seconds": "number", "peak_bytes": "number or null", "backend": "text", "threads": "count"}
        check_entries(run.path(record.name).with_suffix(".json"), fact, **kinds)
    seconds = [float(fact["seconds"]) for fact in facts]
    peaks = [fact["peak_bytes"] for fact in facts if fact["peak_bytes"] is not None]
    return {
        "config": run.config,
        "runtime": {**runtime(seconds), "alone": all(fact.get("alone", False) for fact in facts)},
        "peak_bytes": max(peaks) if peaks else None,
        "backends": sorted({str(fact["backend"]) for fact in facts}),
        "threads": sorted({int(fact["threads"]) for fact in facts}),
    }
