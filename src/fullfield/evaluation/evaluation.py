"""Totals from stored predictions, and predictions in the layouts of benchmark sites."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import KITTI2012, KITTI2015, FlowDataset, Sintel, Spring
from fullfield.estimators import Estimator
from fullfield.estimators.protocol import check_estimator, prepare_estimator
from fullfield.evaluation.finishing import Scorer
from fullfield.evaluation.predict import ESTIMATOR, Setting, configured, noting_shortage, predict
from fullfield.evaluation.run import FAILURE, RESULT, Run, check_entries, runtime
from fullfield.evaluation.sharing import wait_for_all
from fullfield.io import write_flow


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


_FORMS: dict[type[FlowDataset], str] = {Sintel: "sintel", KITTI2012: "kitti", KITTI2015: "kitti", Spring: "spring"}


def check_submission(dataset: FlowDataset) -> str:
    """Return the layout of a data set's site; InputError for a set without one."""
    form = _FORMS.get(type(dataset))
    if form is None:
        names = ", ".join(kind.__name__ for kind in _FORMS)
        raise InputError(f"{dataset.name}: expected one of {names}, which have sites to submit to")
    return form


def write_submission(dataset: FlowDataset, run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the predictions of a test set in the layout of its site.

    - Sintel: ``FOLDER/clean/SCENE/frame_0001.flo`` (or ``final``), for the site's bundler;
    - KITTI: ``FOLDER/flow/000000_10.png``;
    - Spring: ``FOLDER/SEQUENCE/flow_FW_left/flow_FW_left_0001.flo5``, for the site's subsampling tool.

    Nothing is written unless every pair has its prediction. Returns the files.

    Raises:
        InputError: a set without a site, a pair that was not predicted, or motion beyond KITTI's ±512 px.
    """
    form = check_submission(dataset)
    lacking = [record.name for record in dataset.records if run.facts(record.name) is None]
    if lacking:
        raise InputError(
            f"{run.folder}: has no prediction of {lacking[0]} and {len(lacking) - 1} more; predict them first"
        )
    written = []
    for record in dataset.records:
        if form == "sintel":
            target = Path(folder) / dataset.name.split("-")[1] / f"{record.name}.flo"
        elif form == "kitti":
            target = Path(folder) / "flow" / f"{record.name}.png"
        else:
            scene, file = record.name.split("/")
            target = Path(folder) / scene / file.rsplit("_", 1)[0] / f"{file}.flo5"
        target.parent.mkdir(parents=True, exist_ok=True)
        flow, _ = run.read(record.name)
        write_flow(target, flow)
        written.append(target)
    return written
