"""Several devices of one machine that follow reference frames: one process for each.

The frames after a reference and those before it do not depend on each other, nor do several references. A process takes
one side of one reference after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait

from fullfield._check import InputError
from fullfield.sequences.follow_job import FollowJob, write_reference_flow
from fullfield.sequences.names import format_frames
from fullfield.sequences.results import FrameReport, Outcome, Problem
from fullfield.sequences.worker import ParentPipe, run_task_and_send_errors_then_exit

_MAX_DEATHS = 2  # processes that may die of a side before it is given up


@dataclass
class _ReferenceSide:
    """Frames on one side of a reference."""

    position: int  # of the job
    job: FollowJob
    numbers: list[int]
    death_count: int = 0


class _Worker:
    """A process and the side that it is working on."""

    def __init__(self, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self.process = context.Process(
            target=_write_sides_until_parent_ends, args=(worker_pipe, device, threads), daemon=True
        )
        self.process.start()
        worker_pipe.close()
        self.device = device
        self.side: _ReferenceSide | None = None

    def assign_and_send_side(self, side: _ReferenceSide) -> None:
        """Record the side as this worker's, and send its job and frame numbers."""
        self.side = side
        with contextlib.suppress(OSError):  # a dead process is noticed when its messages are read
            self.pipe.send((side.job, side.numbers))

    def terminate_if_busy_and_join_process(self) -> None:
        """End the process; at once where it still has frames."""
        if self.side is not None:
            self.process.terminate()
        self.pipe.close()
        self.process.join(10)


def write_reference_flows_on_devices(
    jobs_with_frames: Sequence[tuple[FollowJob, Sequence[int]]],
    devices: Sequence[str],
    *,
    report_frame: FrameReport | None = None,
) -> list[Outcome]:
    """Write frames of several references on several devices of this machine (``cuda:0``, ``cuda:1``; ``cpu`` too).

    The files are those that one device writes. When a process dies, another one repeats its side.

    Args:
        jobs_with_frames: for each reference its settled job
            (:meth:`FollowJob.write_settings_and_get_job_and_plan`) and the frames to write.
        devices: one process computes on each.
        report_frame: receives the number of every finished frame.

    Returns:
        The outcome of each job.
    """
    start_s = time.perf_counter()
    outcomes = [Outcome() for _ in jobs_with_frames]
    sides = [
        _ReferenceSide(position, job, numbers)
        for position, (job, requested) in enumerate(jobs_with_frames)
        for numbers in split_into_nonempty_sides(requested, job.reference)
    ]
    remaining = deque(sorted(sides, key=lambda side: -len(side.numbers)))
    devices = devices[: len(sides)]
    threads = max(1, (os.cpu_count() or 1) // max(1, len(devices)))
    workers = [_Worker(device, threads) for device in devices]
    try:
        for worker in workers:
            worker.assign_and_send_side(remaining.popleft())
        while any(worker.side is not None for worker in workers):
            for pipe in wait([worker.pipe for worker in workers if worker.side is not None]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                if not _receive_and_apply_message_if_alive(worker, outcomes, report_frame):
                    workers.remove(worker)
                    _requeue_side_or_record_problem(worker, outcomes, remaining)
                    if remaining:
                        worker = _Worker(worker.device, threads)
                        workers.append(worker)
                is_stopped = any(outcome.stopped is not None for outcome in outcomes)
                if worker in workers and worker.side is None and remaining and not is_stopped:
                    worker.assign_and_send_side(remaining.popleft())
    finally:
        for worker in workers:
            worker.terminate_if_busy_and_join_process()
    return [outcome.sort_warn_and_set_wall_time(start_s) for outcome in outcomes]


def split_into_nonempty_sides(frame_numbers: Sequence[int], reference: int) -> list[list[int]]:
    """Return the frames from the reference on, and those before it; sides without frames are left out."""
    ordered = sorted(frame_numbers)
    sides = [number for number in ordered if number >= reference], [number for number in ordered if number < reference]
    return [side for side in sides if side]


def _receive_and_apply_message_if_alive(
    worker: _Worker, outcomes: Sequence[Outcome], report_frame: FrameReport | None
) -> bool:
    """Receive one message and act on it; return False where the process is dead."""
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        return False
    if kind == "frame":
        if report_frame is not None:
            report_frame(content)
    elif kind == "outcome":
        assert worker.side is not None
        outcomes[worker.side.position].merge_parallel_outcome(content)
        worker.side = None
    elif kind == "refused":
        raise InputError(content)
    else:
        raise RuntimeError(f"{worker.device}: {content}")
    return True


def _requeue_side_or_record_problem(
    worker: _Worker, outcomes: Sequence[Outcome], remaining_sides: deque[_ReferenceSide]
) -> None:
    """Return the side of a dead process to the remaining ones; the second time, record a problem instead."""
    worker.process.join(10)
    side = worker.side
    assert side is not None
    worker.side = None
    side.death_count += 1
    if side.death_count < _MAX_DEATHS:
        remaining_sides.appendleft(side)
        return
    reason = f"the process on {worker.device} died twice of them (exit {worker.process.exitcode})"
    outcomes[side.position].problems.append(Problem(f"frames {format_frames(side.numbers)}", reason))


def _write_sides_until_parent_ends(connection: Connection, device: str, threads: int) -> None:
    """Run the process: receive sides, send frames and outcomes, until the pipe is closed."""
    run_task_and_send_errors_then_exit(connection, partial(_write_received_sides_forever, device, threads))


def _write_received_sides_forever(device: str, threads: int, pipe: ParentPipe) -> None:
    estimator = None
    while True:
        job, numbers = pipe.receive()
        job = replace(job, device=device, threads=threads if job.threads is None else job.threads)
        estimator = estimator or job.set_threads_and_build_prepared_estimator()
        pipe.send("outcome", write_reference_flow(job, numbers, estimator, job.open_plates(), report=pipe.report_frame))
