"""Estimation of a data set, its stored predictions, their totals, and the layouts of benchmark sites."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError, NotEnoughMemoryError
from fullfield._ledger.notes import check_entry_kinds
from fullfield.datasets import KITTI2012, KITTI2015, FlowDataset, Sintel, Spring
from fullfield.estimators import Estimator
from fullfield.estimators.protocol import (
    Progress,
    check_estimator,
    get_requested_backend,
    prepare_estimator_if_supported,
)
from fullfield.evaluation.finishing import PairScorer, PredictionFinisher
from fullfield.evaluation.loading import DevicePairs, iterate_pairs_ahead
from fullfield.evaluation.run import (
    AUTOMATIC,
    FAILURE,
    OUT_OF_MEMORY,
    RESULT,
    PredictionRun,
    build_versions_and_dataset_config,
    fingerprint_method_code_if_no_parameters,
    summarize_runtime,
)
from fullfield.evaluation.sharing import ProcessRank, wait_for_all_processes
from fullfield.io import write_flow
from fullfield.ops._splatting import predict_next_flow
from fullfield.ops.devices import AUTO, resolve_device

ESTIMATOR = "an Estimator (method, backend, parameters and a call: see docs/evaluation.md)"


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of a run over a data set.

    Attributes:
        device: device of the estimator and the scores; ``auto`` is the first GPU with kernels, else the CPU.
        warm_start: whether each pair of a sequence starts from the previous flow, moved along itself.
        sequential: whether reading, scoring and storing wait while the estimator works, for undisturbed times.
        process: rank of this process and their number; each takes its part of the pairs.
        progress: receives the fraction done and the pair's name.

    >>> result = evaluate(estimator, dataset, "runs/sintel", EvaluationSettings(warm_start=True))  # doctest: +SKIP
    """

    device: str = AUTO
    warm_start: bool = False
    sequential: bool = False
    process: ProcessRank = field(default_factory=ProcessRank)
    progress: Progress | None = None

    @property
    def torch_device(self) -> torch.device:
        """Device that computes; InputError if this machine has no such device."""
        return resolve_device(self.device)


def build_run_config(dataset: FlowDataset, estimator: Estimator, settings: EvaluationSettings) -> dict[str, Any]:
    """Return the configuration of the run that :func:`predict` makes.

    Runs of two backends do not mix: an estimator whose backend can be requested has ``requested_backend``. An estimator
    that can be prepared must be: only then does a network know the checksum of its weights.
    """
    device = settings.torch_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **build_versions_and_dataset_config(dataset),
        "device": name,
        "float32": _get_reduced_precision_flags(device),
        "method": estimator.method,
        "parameters": {**estimator.parameters, "warm_start": settings.warm_start},
        **fingerprint_method_code_if_no_parameters(estimator),
        "backend": get_requested_backend(estimator) or AUTOMATIC,
    }


@contextmanager
def record_failure_if_memory_runs_out(
    estimator: Estimator, dataset: FlowDataset, folder: str | os.PathLike[str], settings: EvaluationSettings
) -> Iterator[None]:
    """Enclose work that may run out of memory, and note it in the run's folder if it does.

    The run is the one that would have been started, as far as the estimator's parameters are known by then.
    """
    try:
        yield
    except (torch.OutOfMemoryError, NotEnoughMemoryError):
        PredictionRun(folder, build_run_config(dataset, estimator, settings)).write_json(
            FAILURE, {"failure": OUT_OF_MEMORY}
        )
        raise


def _get_reduced_precision_flags(device: torch.device) -> dict[str, str]:
    """Return the process's switches for reduced-precision products, which estimators that do not set them follow."""
    switches = {"matmul": torch.get_float32_matmul_precision()}
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):  # PyTorch 2.9
            switches["cudnn"] = str(cudnn.conv.fp32_precision)
        else:
            switches["cudnn"] = "tf32" if cudnn.allow_tf32 else "ieee"
    return switches


def predict(
    estimator: Estimator,
    dataset: FlowDataset,
    run: PredictionRun,
    settings: EvaluationSettings | None = None,
    *,
    averaging: str | None = None,
) -> dict[str, float]:
    """Estimate and store the flow of every pair that ``run`` does not hold yet; with ``averaging`` score it as well.

    Reading and writing overlap with the estimation unless ``settings.sequential``; on a GPU so do scoring and the copy
    of the next pair. A pair's seconds are those of the estimator until the flow is finished, with the frames on the
    device. The first pair of every size is estimated once before, unmeasured. Peak memory is that of the first pair of
    a size, with nothing else running.

    Returns ``estimated`` and ``reused`` (pairs), ``busy_s`` (seconds of estimation, warm-ups included) and ``wall_s``.
    Raises InputError naming the pair whose flow is not finite; what was stored stays. Where memory is too small for
    the estimator, the run's folder notes it.

    >>> work = predict(estimator, dataset, run)  # doctest: +SKIP
    >>> work["estimated"], work["busy_s"]  # doctest: +SKIP
    """
    settings = settings or EvaluationSettings()
    check_estimator(estimator, expected=ESTIMATOR)
    device = settings.torch_device
    mine = (
        settings.process.list_pair_indices_of_own_sequences(dataset)
        if settings.warm_start
        else settings.process.list_pair_indices(dataset)
    )
    missing = [index for index in mine if run.read_summary_if_complete(dataset.records[index].name) is None]
    scorer = None if averaging is None else PairScorer(dataset, run, averaging, device)
    start_s, busy, peaks = time.perf_counter(), 0.0, dict[tuple[int, ...], int | None]()
    before: tuple[int, Tensor] | None = None
    overlapping = not settings.sequential
    read = iterate_pairs_ahead(
        dataset, missing, truth=scorer is not None, pin_memory=device.type == "cuda", overlapping=overlapping
    )
    pairs = DevicePairs(read, device, ahead=overlapping)
    with PredictionFinisher(run, scorer, device, estimator.method) as finish:

        def free_memory() -> None:
            """Free memory on the device for the estimator."""
            finish.wait_until_stored()
            pairs.free_prefetched_pair()
            if device.type == "cuda":
                torch.cuda.empty_cache()

        for count, (loaded, frame1, frame2) in enumerate(pairs):
            record = dataset.records[loaded.index]
            if settings.progress is not None:
                settings.progress(count / len(missing), record.name)
            start = (
                _extrapolate_previous_flow_if_in_sequence(dataset, run, loaded.index, before, device)
                if settings.warm_start
                else None
            )
            work, size = (
                partial(_estimate_and_retry_when_out_of_memory, run, estimator, frame1, frame2, start, free_memory),
                tuple(frame1.shape),
            )
            if settings.sequential:
                finish.wait_until_stored()
            if size not in peaks:
                free_memory()
                busy += work()[1]
                flow, seconds, peaks[size] = work()
            else:
                flow, seconds, _ = work()
            busy += seconds
            before = (loaded.index, flow) if settings.warm_start else None
            summary: dict[str, Any] = {"seconds": seconds, "peak_bytes": peaks[size]}
            summary |= {
                "backend": estimator.backend,
                "threads": torch.get_num_threads(),
                "sequential": settings.sequential,
            }
            finish(loaded.index, record.name, flow, loaded.truth, summary)
            del flow, frame1, frame2, start, loaded, work  # the next pair's memory is its own
    return {
        "estimated": len(missing),
        "reused": len(mine) - len(missing),
        "busy_s": busy,
        "wall_s": time.perf_counter() - start_s,
    }


def _estimate_and_retry_when_out_of_memory(
    run: PredictionRun,
    estimator: Estimator,
    frame1: Tensor,
    frame2: Tensor,
    initial_flow: Tensor | None,
    free_memory: Callable[[], None],
) -> tuple[Tensor, float, int | None]:
    """Run :func:`_estimate_and_measure_cost`, again after ``free_memory`` if memory is short; record a failure."""
    with suppress(torch.OutOfMemoryError, NotEnoughMemoryError):
        return _estimate_and_measure_cost(estimator, frame1, frame2, initial_flow)
    free_memory()
    try:
        return _estimate_and_measure_cost(estimator, frame1, frame2, initial_flow)
    except (torch.OutOfMemoryError, NotEnoughMemoryError):
        run.write_json(FAILURE, {"failure": OUT_OF_MEMORY})
        raise


def _estimate_and_measure_cost(
    estimator: Estimator, frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None
) -> tuple[Tensor, float, int | None]:
    """Return the flow [2, H, W], its seconds, and the peak of CUDA memory."""
    device = frame1.device
    stream = torch.cuda.current_stream(device) if frame1.is_cuda else None
    if stream is not None:
        stream.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
    start_s = time.perf_counter()
    flow = estimator(frame1, frame2, initial_flow=initial_flow)
    flow = _check.check_tensor(flow, f"the flow of {estimator.method}", (1, 2, *frame1.shape[2:]))[0].to(torch.float32)
    if stream is not None:
        stream.synchronize()  # not the device, which may still score the previous pair
    seconds = time.perf_counter() - start_s
    return flow, seconds, None if stream is None else torch.cuda.max_memory_allocated(device)


def _extrapolate_previous_flow_if_in_sequence(
    dataset: FlowDataset,
    run: PredictionRun,
    sample_index: int,
    previous: tuple[int, Tensor] | None,
    device: torch.device,
) -> Tensor | None:
    """Return the initial flow; None at the beginning of a sequence."""
    record = dataset.records[sample_index]
    last = dataset.records[sample_index - 1] if sample_index else None
    if last is None or last.sequence != record.sequence or last.index + 1 != record.index:
        return None
    if previous is not None and previous[0] == sample_index - 1:
        flow = previous[1]
    else:
        flow = run.read_prediction(last.name)[0].to(device)
    return predict_next_flow(flow)[None]


def evaluate(
    estimator: Estimator,
    dataset: FlowDataset,
    folder: str | os.PathLike[str],
    settings: EvaluationSettings | None = None,
    *,
    averaging: str = "pooled",
) -> dict[str, Any]:
    """Predict what is missing in ``folder``, score it, and store and return the result.

    A stopped run resumes, with the totals of one that was not stopped. With several processes (``settings.process``)
    each returns the totals of all.

    Returns:
        ``config``; ``averaging``; ``scores`` (as of :meth:`FlowMetrics.compute <fullfield.metrics.FlowMetrics>`) and
        ``classes``, over the pairs with truth, both None where no pair has any; ``runtime`` (seconds a pair: mean,
        std, median, min, max, and whether all were ``sequential``); ``peak_bytes`` (CUDA memory, None on a CPU);
        ``backends`` and numbers of CPU ``threads`` that were used; and of this call alone ``this_call``: pairs
        ``estimated`` and ``reused`` (stored by earlier calls), ``busy_s``, ``wall_s`` and their ratio ``utilisation``.

    Raises:
        InputError: ``estimator`` is none, the folder belongs to another configuration, or a file cannot be used.
        torch.OutOfMemoryError: the device's memory is too small. If that happens in the estimator, or while it is
            prepared, a note is left in the run's folder.
    """
    _check.convert_path_to_text(folder, "folder")
    settings = settings or EvaluationSettings()
    check_estimator(estimator, expected=ESTIMATOR)
    with record_failure_if_memory_runs_out(estimator, dataset, folder, settings):
        prepare_estimator_if_supported(estimator, settings.torch_device)
    run = PredictionRun(folder, build_run_config(dataset, estimator, settings))
    has_truth = any(record.flow is not None for record in dataset.records)
    start_s = time.perf_counter()
    work = predict(estimator, dataset, run, settings, averaging=averaging if has_truth else None)
    wait_for_all_processes(settings.process)
    scorer = PairScorer(dataset, run, averaging, settings.torch_device)
    if has_truth:
        scorer.score_and_store_unscored_predictions(settings.process.list_pair_indices(dataset))
    wall = time.perf_counter() - start_s
    wait_for_all_processes(settings.process)
    result = {
        **(_compute_total_scores(scorer) if has_truth else {"averaging": averaging, "scores": None, "classes": None}),
        **_summarize_config_runtime_and_memory(dataset, run),
        "this_call": {**work, "wall_s": wall, "utilisation": work["busy_s"] / wall if wall else 0.0},
    }
    if settings.process.rank == 0:
        run.write_json(RESULT, result)
        (run.folder / FAILURE).unlink(missing_ok=True)
    return result


def score(
    dataset: FlowDataset, run: PredictionRun, *, averaging: str = "pooled", settings: EvaluationSettings | None = None
) -> dict[str, Any]:
    """Score the stored predictions again, or in another averaging, and store the result; estimate nothing.

    Raises InputError naming a pair that was not predicted, or for a run of other frames, or a set without any truth.
    """
    settings = settings or EvaluationSettings()
    run.check_same_dataset(dataset)
    if all(record.flow is None for record in dataset.records):
        raise InputError(f"{dataset.name}: has no truth to score against")
    scorer = PairScorer(dataset, run, averaging, settings.torch_device)
    scorer.score_and_store_unscored_predictions(settings.process.list_pair_indices(dataset))
    wait_for_all_processes(settings.process)
    result = {**_compute_total_scores(scorer), **_summarize_config_runtime_and_memory(dataset, run)}
    if settings.process.rank == 0:
        run.write_json(RESULT, result)
    return result


def _compute_total_scores(scorer: PairScorer) -> dict[str, Any]:
    total = scorer.merge_pair_scores_or_raise()
    return {"averaging": total.averaging, "scores": total.compute(), "classes": total.compute_by_class()}


def _summarize_config_runtime_and_memory(dataset: FlowDataset, run: PredictionRun) -> dict[str, Any]:
    stored = [run.read_summary_if_complete(record.name) for record in dataset.records]
    summary = [pair_summary for pair_summary in stored if pair_summary is not None]
    if len(summary) < len(dataset):
        raise InputError(f"{run.folder}: holds {len(summary)} of {len(dataset)} predictions; predict the rest first")
    for record, pair_summary in zip(dataset.records, summary, strict=True):
        kinds = {"seconds": "number", "peak_bytes": "number or null", "backend": "text", "threads": "count"}
        check_entry_kinds(run.get_summary_path(record.name), pair_summary, **kinds)
    seconds = [float(pair_summary["seconds"]) for pair_summary in summary]
    peaks = [pair_summary["peak_bytes"] for pair_summary in summary if pair_summary["peak_bytes"] is not None]
    return {
        "config": run.config,
        "runtime": {
            **summarize_runtime(seconds),
            "sequential": all(pair_summary.get("sequential", False) for pair_summary in summary),
        },
        "peak_bytes": max(peaks) if peaks else None,
        "backends": sorted({str(pair_summary["backend"]) for pair_summary in summary}),
        "threads": sorted({int(pair_summary["threads"]) for pair_summary in summary}),
    }


_LAYOUTS: dict[type[FlowDataset], str] = {Sintel: "sintel", KITTI2012: "kitti", KITTI2015: "kitti", Spring: "spring"}


def get_submission_layout_or_raise(dataset: FlowDataset) -> str:
    """Return the layout of a data set's site; InputError for a set without one."""
    layout = _LAYOUTS.get(type(dataset))
    if layout is None:
        names = ", ".join(kind.__name__ for kind in _LAYOUTS)
        raise InputError(f"{dataset.name}: expected one of {names}, which have sites to submit to")
    return layout


def write_submission(dataset: FlowDataset, run: PredictionRun, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the predictions of a test set in the layout of its site.

    - Sintel: ``FOLDER/clean/SCENE/frame_0001.flo`` (or ``final``), for the site's bundler;
    - KITTI: ``FOLDER/flow/000000_10.png``;
    - Spring: ``FOLDER/SEQUENCE/flow_FW_left/flow_FW_left_0001.flo5``, for the site's subsampling tool.

    Nothing is written unless every pair has its prediction. Returns the files. InputError for a set without a site, a
    pair that was not predicted, or motion beyond KITTI's ±512 px.

    >>> files = write_submission(KITTI2015("/data/kitti2015", split="testing"), run, "upload")  # doctest: +SKIP
    """
    _check.convert_path_to_text(folder, "folder")
    layout = get_submission_layout_or_raise(dataset)
    lacking = [record.name for record in dataset.records if run.read_summary_if_complete(record.name) is None]
    if lacking:
        raise InputError(
            f"{run.folder}: has no prediction of {lacking[0]} and {len(lacking) - 1} more; predict them first"
        )
    written = []
    for record in dataset.records:
        if layout == "sintel":
            name = f"{dataset.name.split('-')[1]}/{record.name}.flo"
        elif layout == "kitti":
            name = f"flow/{record.name}.png"
        else:
            scene, _, file = record.name.rpartition("/")
            name = f"{scene}/{file.rpartition('_')[0]}/{file}.flo5"
        target = Path(folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_flow(target, run.read_prediction(record.name)[0])
        written.append(target)
    return written
