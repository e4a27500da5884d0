"""Several devices of one machine on a shot: one process for each, which takes chunk after chunk.

A process requests more work before its chunk is finished. It gets the neighbouring chunk, so that it continues without
a pause and estimates no pair twice. Where that chunk is taken, it starts in the middle of the longest remaining run.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait

from fullfield._check import InputError
from fullfield.sequences.job import ShotJob
from fullfield.sequences.names import format_frames
from fullfield.sequences.results import FrameReport, Outcome, Problem
from fullfield.sequences.run import write_shot_flow
from fullfield.sequences.worker import ParentPipe, run_task_and_send_errors_then_exit

_MIN_CHUNK = 8
_TURNS = 4  # chunks of every process, so that none waits long for the last
_EXTENDED_TURNS = 3  # times as many where a process continues from chunk to chunk
_MAX_DEATHS = 2  # processes that may die of a chunk before it is given up


def split_into_chunks(frame_numbers: Sequence[int], workers: int, chunks_per_worker: int = _TURNS) -> list[list[int]]:
    """Return runs of neighbouring frames, about ``chunks_per_worker`` for each worker."""
    ordered = sorted(frame_numbers)
    size = max(_MIN_CHUNK, -(-len(ordered) // (workers * chunks_per_worker)))
    size = min(size, -(-len(ordered) // workers))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


class _RemainingChunks:
    """The remaining chunks by their position in the shot."""

    def __init__(self, chunks: Sequence[list[int]]) -> None:
        self._remaining = dict(enumerate(chunks))
        self._last_position = len(chunks)

    def __len__(self) -> int:
        return len(self._remaining)

    def take_starting_position_and_chunk(self, positions_in_use: Sequence[int]) -> tuple[int, list[int]]:
        """Take a chunk to start with, and return its position and frames.

        It is the first of the longest run of chunks, or the middle one where a position of ``positions_in_use`` is just
        before the run.
        """
        best, longest = -1, 0
        for position in sorted(self._remaining):
            if position - 1 in self._remaining:
                continue
            count = next(n for n in itertools.count(1) if position + n not in self._remaining)
            start = count // 2 if position - 1 in positions_in_use else 0
            if count - start > longest:
                best, longest = position + start, count - start
        return best, self._remaining.pop(best)

    def take_following_chunk_or_empty(self, position: int) -> list[int]:
        """Take the chunk after that position; return no frames where it is taken."""
        return self._remaining.pop(position + 1, [])

    def put_back_chunk(self, chunk: list[int]) -> None:
        """Return a chunk, or a part of one, to the remaining ones."""
        self._last_position += 2  # next to no other position
        self._remaining[self._last_position] = chunk


class _Worker:
    """A process and the frames it is working on."""

    def __init__(self, job: ShotJob, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        job = replace(job, settings=replace(job.settings, device=device), threads=threads)
        self.process = context.Process(target=_write_chunks_until_parent_ends, args=(job, worker_pipe), daemon=True)
        self.process.start()
        worker_pipe.close()
        self.device = device
        self.position = -1
        self.chunk: list[int] = []
        self.finished: set[int] = set()

    def assign_and_send_first_chunk(self, position: int, chunk: list[int]) -> None:
        """Send a chunk to start with."""
        self.position, self.chunk, self.finished = position, chunk, set()
        self._send_chunk_ignoring_dead_process(chunk)

    def append_and_send_next_chunk(self, chunk: list[int]) -> None:
        """Send the chunk after the current one; an empty one ends the run of chunks."""
        if chunk:
            self.position, self.chunk = self.position + 1, [*self.chunk, *chunk]
        self._send_chunk_ignoring_dead_process(chunk)

    def _send_chunk_ignoring_dead_process(self, chunk: list[int]) -> None:
        with contextlib.suppress(OSError):  # a dead process is noticed when its messages are read
            self.pipe.send(chunk)

    def terminate_if_busy_and_join_process(self) -> None:
        """End the process; at once where it still has frames."""
        if self.chunk:
            self.process.terminate()
        self.pipe.close()
        self.process.join(10)


def write_shot_flow_on_devices(
    job: ShotJob, numbers: Sequence[int], devices: Sequence[str], *, report: FrameReport | None = None
) -> Outcome:
    """Write the files of ``numbers`` on several devices of this machine (``cuda:0``, ``cuda:1``; ``cpu`` counts too).

    The files are those that one device writes. When a process dies, another one gets its frames.

    Args:
        job: a settled job (:meth:`ShotJob.write_settings_and_get_job_and_plan`).
        numbers: frames to write.
        devices: one process computes on each.
        report: receives the number of every finished frame.

    >>> outcome = write_shot_flow_on_devices(job, plan.missing, ["cuda:0", "cuda:1"])  # doctest: +SKIP
    """
    start_s = time.perf_counter()
    outcome, deaths = Outcome(), dict[int, int]()
    remaining = _RemainingChunks(split_into_chunks(numbers, len(devices), _TURNS * _EXTENDED_TURNS))
    threads = max(1, (os.cpu_count() or 1) // len(devices)) if job.threads is None else job.threads
    workers = [_Worker(job, device, threads) for device in devices[: len(remaining)]]
    try:
        for worker in workers:
            worker.assign_and_send_first_chunk(
                *remaining.take_starting_position_and_chunk([other.position for other in workers if other.chunk])
            )
        while any(worker.chunk for worker in workers):
            for pipe in wait([worker.pipe for worker in workers if worker.chunk]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                if not _receive_and_apply_message_if_alive(worker, outcome, remaining, report):
                    _requeue_frames_or_record_problem(worker, outcome, remaining, deaths)
                    workers.remove(worker)
                    if len(remaining):
                        workers.append(_Worker(job, worker.device, threads))
                if outcome.stopped is None:
                    for idle in [worker for worker in workers if not worker.chunk][: len(remaining)]:
                        idle.assign_and_send_first_chunk(
                            *remaining.take_starting_position_and_chunk(
                                [other.position for other in workers if other.chunk]
                            )
                        )
    finally:
        for worker in workers:
            worker.terminate_if_busy_and_join_process()
    return outcome.sort_warn_and_set_wall_time(start_s)


def _receive_and_apply_message_if_alive(
    worker: _Worker, outcome: Outcome, remaining: _RemainingChunks, report: FrameReport | None
) -> bool:
    """Receive one message and act on it; return False where the process is dead."""
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        return False
    if kind == "frame":
        worker.finished.add(content)
        if report is not None:
            report(content)
    elif kind == "request":
        worker.append_and_send_next_chunk(
            [] if outcome.stopped else remaining.take_following_chunk_or_empty(worker.position)
        )
    elif kind == "chunk":
        outcome.merge_parallel_outcome(content)
        worker.chunk = []
    elif kind == "refused":
        raise InputError(content)
    else:
        raise RuntimeError(f"{worker.device}: {content}")
    return True


def _requeue_frames_or_record_problem(
    worker: _Worker, outcome: Outcome, remaining: _RemainingChunks, deaths: dict[int, int]
) -> None:
    """Return the frames of a dead process to the remaining ones; the second time, record a problem instead."""
    worker.process.join(10)
    code = worker.process.exitcode
    unfinished = [number for number in worker.chunk if number not in worker.finished]
    outcome.written += [number for number in worker.finished if number not in outcome.written]
    worker.chunk = []
    if not unfinished:
        return
    deaths[unfinished[0]] = deaths.get(unfinished[0], 0) + 1
    if deaths[unfinished[0]] >= _MAX_DEATHS:
        reason = f"the process on {worker.device} died twice of them (exit {code})"
        outcome.problems.append(Problem(f"frames {format_frames(unfinished)}", reason))
        return
    remaining.put_back_chunk(unfinished)


def _write_chunks_until_parent_ends(job: ShotJob, connection: Connection) -> None:
    """Run the process: receive chunks, send frames and outcomes, until the pipe is closed."""
    run_task_and_send_errors_then_exit(connection, partial(_write_received_chunks_forever, job))


def _write_received_chunks_forever(job: ShotJob, pipe: ParentPipe) -> None:
    estimator = job.set_threads_and_build_prepared_estimator()

    def request_frames() -> list[int]:
        pipe.send("request")
        chunk: list[int] = pipe.receive()
        return chunk

    while True:
        chunk = pipe.receive()
        plates = job.open_plates()
        pipe.send(
            "chunk",
            write_shot_flow(job, chunk, estimator, plates, report=pipe.report_frame, request_frames=request_frames),
        )
