"""From a data set to stored predictions."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError, NoRoomError
from fullfield.datasets import FlowDataset
from fullfield.estimators import Estimator
from fullfield.evaluation.loading import read_ahead
from fullfield.evaluation.run import AUTOMATIC, FAILURE, OUT_OF_MEMORY, Run, described
from fullfield.evaluation.scoring import Scorer
from fullfield.evaluation.sharing import Share
from fullfield.evaluation.warm_start import moved_forward

_WRITES_AHEAD = 2


@dataclass(frozen=True)
class Setting:
    """How a data set is gone through.

    Attributes:
        device: where to estimate and score.
        warm_start: start every pair of a sequence from the flow of the one before, moved along.
        share: which part of the pairs this process takes.
        progress: called with the fraction done and the pair's name.
    """

    device: str = "cpu"
    warm_start: bool = False
    share: Share = field(default_factory=Share)
    progress: Callable[[float, str], None] | None = None


def configured(dataset: FlowDataset, estimator: Estimator, setting: Setting) -> dict[str, Any]:
    """The configuration of the run that :func:`predict` makes.

    An estimator that can be prepared is prepared first: only then does a network know the checksum of its weights.
    Runs of two backends do not mix: an estimator that can be asked for one tells it as ``asked_backend``.
    """
    device = _check.device(setting.device)
    prepare = getattr(estimator, "prepare", None)
    if prepare is not None:
        prepare(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **described(dataset),
        "device": name,
        "float32": _float32(device),
        "method": estimator.method,
        "parameters": {**estimator.parameters, "warm_start": setting.warm_start},
        "backend": getattr(estimator, "asked_backend", None) or AUTOMATIC,
    }


def _float32(device: torch.device) -> dict[str, str]:
    """The process's switches for coarser products, which estimators that do not set them follow."""
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
    run: Run,
    setting: Setting | None = None,
    *,
    averaging: str | None = None,
) -> dict[str, float]:
    """Estimate and store the flow of every pair that ``run`` does not hold yet; with ``averaging`` score it as well.

    Reading and writing go on beside the estimation. A pair's seconds are those of the estimator with the frames on
    the device, waited for; the first pair of every size is estimated once before, unmeasured.

    Returns ``estimated`` (pairs), ``busy_s`` (seconds of estimation, warm-ups included) and ``wall_s``.
    Raises InputError naming the pair whose flow is not finite; what was stored stays. Where memory is too small for
    the estimator, the run's folder notes it.
    """
    setting = setting or Setting()
    device = _check.device(setting.device)
    mine = setting.share.of(dataset, whole_sequences=setting.warm_start)
    missing = [index for index in mine if run.facts(dataset.records[index].name) is None]
    scorer = None if averaging is None else Scorer(dataset, run, averaging, device)
    begin, busy, sizes = time.perf_counter(), 0.0, set[tuple[int, ...]]()
    before: tuple[int, Tensor] | None = None
    writes: list[Future[None]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="fullfield-write") as writer:
        for count, loaded in enumerate(read_ahead(dataset, missing, truth=scorer is not None)):
            record = dataset.records[loaded.index]
            if setting.progress is not None:
                setting.progress(count / len(missing), record.name)
            if loaded.frame1 is None or loaded.frame2 is None:
                raise RuntimeError(f"{record.name} was read without its frames")
            frame1, frame2 = (_to(frame, device)[None] for frame in (loaded.frame1, loaded.frame2))
            start = _start(dataset, run, loaded.index, before, device) if setting.warm_start else None
            try:
                if tuple(frame1.shape) not in sizes:
                    sizes.add(tuple(frame1.shape))
                    busy += _timed(estimator, frame1, frame2, start, device)[1]
                flow, seconds, peak = _timed(estimator, frame1, frame2, start, device)
            except (torch.OutOfMemoryError, NoRoomError):
                run.write(FAILURE, {"failure": OUT_OF_MEMORY})
                raise
            busy += seconds
            if not bool(flow.isfinite().all()):
                raise InputError(f"{record.name}: {estimator.method} gives a flow that is not finite")
            before = (loaded.index, flow) if setting.warm_start else None
            backend, threads = estimator.backend, torch.get_num_threads()
            facts = {"seconds": seconds, "peak_bytes": peak, "backend": backend, "threads": threads}
            state = None
            if scorer is not None and loaded.truth is not None:
                state = scorer.state(loaded.index, flow, loaded.truth)
            _wait(writes, _WRITES_AHEAD)
            writes.append(writer.submit(_store, run, scorer, loaded.index, record.name, flow.cpu(), facts, state))
            del flow, frame1, frame2, start  # the next pair's peak of memory is its own
        _wait(writes, 0)
    return {"estimated": len(missing), "busy_s": busy, "wall_s": time.perf_counter() - begin}


def _store(
    run: Run,
    scorer: Scorer | None,
    index: int,
    name: str,
    flow: Tensor,
    facts: dict[str, Any],
    state: dict[str, Any] | None,
) -> None:
    """The prediction first: a score without it would be of nothing."""
    run.save(name, flow, facts)
    if scorer is not None and state is not None:
        scorer.keep(index, state)


def _timed(
    estimator: Estimator, frame1: Tensor, frame2: Tensor, start: Tensor | None, device: torch.device
) -> tuple[Tensor, float, int | None]:
    """The flow [2, H, W], the seconds it took, and the peak of CUDA memory."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    begin = time.perf_counter()
    flow = estimator(frame1, frame2, initial_flow=start)[0].to(torch.float32)
    if cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    return flow, seconds, torch.cuda.max_memory_allocated(device) if cuda else None


def _start(
    dataset: FlowDataset, run: Run, index: int, before: tuple[int, Tensor] | None, device: torch.device
) -> Tensor | None:
    """The flow to start from; None at the beginning of a sequence."""
    record = dataset.records[index]
    last = dataset.records[index - 1] if index else None
    if last is None or last.sequence != record.sequence or last.index + 1 != record.index:
        return None
    flow = before[1] if before is not None and before[0] == index - 1 else run.read(last.name)[0].to(device)
    return moved_forward(flow)[None]


def _to(frame: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        return frame.pin_memory().to(device, non_blocking=True)
    return frame.to(device)


def _wait(writes: list[Future[None]], most: int) -> None:
    while len(writes) > most:
        writes.pop(0).result()
