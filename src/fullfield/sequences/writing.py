"""Threads that write results behind the computation."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield._read_ahead import choose_max_buffered_bytes
from fullfield.sequences.results import FrameReport, Outcome, Problem, StageTimes

_FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO,
                 errno.ENOTCONN, errno.EHOSTDOWN, errno.ENODEV}  # fmt: skip
"""Errors of writing after which the next file will fail as well."""


def is_fatal_for_writing(error: OSError) -> bool:
    """Return whether the next file cannot be written either."""
    return error.errno in _FATAL_ERRORS


class WriterThreads:
    """Threads that write one result each; the memory of results that wait is limited.

    Files that cannot be written become problems of ``outcome``. Where no further file can be written (a full disk, a
    folder that was removed), ``outcome.stopped`` says so, and later results are not written.

    Args:
        outcome: receives the numbers of written frames, and problems.
        stages: receives the time that the calling thread waits.
        device: where the results are computed.
        report: receives the number of every finished frame.
        thread_count: number of threads; with 1, results are written in order. By default it depends on the device.
    """

    def __init__(
        self,
        outcome: Outcome,
        stages: StageTimes,
        device: torch.device,
        report: FrameReport | None,
        thread_count: int | None = None,
    ) -> None:
        self._outcome, self._stages, self._device, self._report = outcome, stages, device, report
        is_cuda = device.type == "cuda"
        # When a GPU computes, most of a frame's time on the CPU is writing.
        self._count = thread_count or (max(2, min(16, (os.cpu_count() or 1) * 3 // 4)) if is_cuda else 2)
        self._executor = ThreadPoolExecutor(self._count, thread_name_prefix="fullfield-write")
        self._waiting: deque[Future[None]] = deque()
        self._max_bytes = choose_max_buffered_bytes()
        self._lock = threading.Lock()
        self._thread_values = threading.local()

    def __enter__(self) -> WriterThreads:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._executor.shutdown(cancel_futures=True)
            return
        try:
            self._wait_for_writes(0)
        finally:
            self._executor.shutdown()

    def wait_and_submit_write(self, number: int, path: str, size_bytes: int, write: Callable[[], bool]) -> None:
        """Call ``write`` in a thread, once few enough results wait; it returns whether it wrote the frame's file."""
        self._wait_for_writes(compute_max_waiting_results(size_bytes, self._count, self._max_bytes))
        self._waiting.append(self._executor.submit(self._write_unless_stopped_and_record, number, path, write))

    def add_problem_if_new(self, problem: Problem) -> None:
        """Add a problem to the outcome, once; from any thread."""
        with self._lock:
            if problem not in self._outcome.problems:
                self._outcome.problems.append(problem)

    def record_stream_event_if_cuda(self) -> Any:
        """Return an event after the work of the current stream; None on a CPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextlib.contextmanager
    def use_copy_stream_and_wait(self, tensors: dict[str, Tensor], event: Any) -> Iterator[None]:
        """Run the work inside on a stream of this thread, after ``event``, and wait for it."""
        if not hasattr(self._thread_values, "stream"):
            self._thread_values.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream = self._thread_values.stream
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            for tensor in tensors.values():
                tensor.record_stream(stream)
            yield
            end = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            end.record(stream)
        end.synchronize()  # asleep: a thread that waits for its stream takes a core

    def copy_to_host_if_on_gpu(self, tensors: dict[str, Tensor], event: Any) -> dict[str, Tensor]:
        """Return copies of the tensors in the host's memory; on a CPU the tensors themselves."""
        if event is None:
            return tensors
        host = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in tensors.items()}
        with self.use_copy_stream_and_wait(tensors, event):
            for name, tensor in tensors.items():
                host[name].copy_(tensor, non_blocking=True)
        return host

    def _wait_for_writes(self, max_remaining: int) -> None:
        with self._stages.measure("wait for writers"):
            while len(self._waiting) > max_remaining:
                self._waiting.popleft().result()

    def _write_unless_stopped_and_record(self, number: int, path: str, write: Callable[[], bool]) -> None:
        try:
            if self._outcome.stopped is None and write():
                with self._lock:
                    self._outcome.written.append(number)
        except (InputError, OSError) as error:
            problem = Problem.from_error(path, error)
            self.add_problem_if_new(problem._replace(reason=problem.reason.removeprefix("flow: ")))
            if isinstance(error, OSError) and is_fatal_for_writing(error):
                self._outcome.stopped = f"{path}: {error.strerror}"
        if self._report is not None:
            self._report(number)


def compute_max_waiting_results(size_bytes: int, writers: int, max_bytes: int) -> int:
    """Return how many results of this size may wait to be written; with one more they take at most ``max_bytes``."""
    return max(1, min(writers, max_bytes // max(size_bytes, 1) - 1))
