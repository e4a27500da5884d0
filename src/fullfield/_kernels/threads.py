"""Distribution of rows over threads. Kernels release the GIL, so plain Python threads use all cores.

These are not numba's threads, whose default layers abort with concurrent callers or after ``fork``. The number of
threads is PyTorch's (``torch.set_num_threads``), which is 1 in DataLoader workers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise

_lock = threading.Lock()
_pool: tuple[int, int, ThreadPoolExecutor] | None = None


def _get_or_create_executor(min_threads: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool[0] != os.getpid() or _pool[1] < min_threads:
            # The pool before is dropped, never shut down: another caller may still hold it, and after a fork its
            # min_threads are gone. Without references it drains and ends.
            _pool = (os.getpid(), min_threads, ThreadPoolExecutor(min_threads, thread_name_prefix="fullfield"))
        return _pool[2]


def _drop_executor_after_fork() -> None:
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_executor_after_fork)


class _SingleRunTask:
    """Task that only its first caller runs: a pool that cannot start a thread still keeps the task in its queue."""

    __slots__ = ("_first", "_task")

    def __init__(self, task: Callable[[], object]) -> None:
        self._task = task
        self._first = threading.Lock()

    def __call__(self) -> None:
        if self._first.acquire(blocking=False):
            self._task()


def run_tasks_and_wait(tasks: Sequence[Callable[[], object]], threads: int) -> None:
    """Run every task; the first exception is raised after all have ended."""
    if threads <= 1 or len(tasks) <= 1:
        for task in tasks:
            task()
        return
    pool = _get_or_create_executor(threads)
    claims = [_SingleRunTask(task) for task in tasks]
    futures: list[Future[object]] = []
    errors: list[BaseException] = []
    own = claims[:1]
    try:
        for claim in claims[1:]:
            futures.append(pool.submit(claim))
    except RuntimeError:  # no memory for another thread: this thread runs the tasks that none has begun
        own = claims
    try:
        for claim in own:
            claim()
    except BaseException as error:  # noqa: BLE001 - raised below, once no task runs any more
        errors.append(error)
    for future in futures:
        problem = future.exception()
        if problem is not None:
            errors.append(problem)
    if errors:
        raise errors[0]


def split_into_row_ranges(height: int, threads: int, min_rows: int = 16) -> list[tuple[int, int]]:
    """Cut ``height`` rows into at most ``threads`` nearly equal parts of at least ``min_rows`` rows."""
    strips = max(1, min(threads, height // min_rows))
    edges = [round(i * height / strips) for i in range(strips + 1)]
    return list(pairwise(edges))


def run_task_on_ranges_and_wait(
    item_count: int, min_count: int, threads: int, task: Callable[[int, int], object]
) -> None:
    """Run ``task(first, last)`` over [0, count), in a few ranges of at least ``min_count`` per thread: work varies."""
    chunks = split_into_row_ranges(item_count, 4 * threads if threads > 1 else 1, min_count) if item_count else []
    run_tasks_and_wait([partial(task, *chunk) for chunk in chunks], threads)
