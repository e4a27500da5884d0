"""Rows over threads: complete, disjoint, and alive after fork."""

from __future__ import annotations

import os
import threading
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullfield._kernels import threads


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 64))
def test_split_rows_covers_rows_once(height: int, number: int, grain: int) -> None:
    parts = threads.split_into_row_ranges(height, number, grain)
    assert parts[0][0] == 0
    assert parts[-1][1] == height
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert len(parts) <= number
    if len(parts) > 1:
        assert min(b - a for a, b in parts) >= grain - 1


def test_run_tasks_uses_several_threads() -> None:
    meeting = threading.Barrier(3, timeout=10)
    threads.run_tasks_and_wait([lambda: meeting.wait() for _ in range(3)], 3)


def test_run_tasks_single_thread_is_caller() -> None:
    seen: list[int] = []
    threads.run_tasks_and_wait([lambda: seen.append(threading.get_ident())] * 3, 1)
    assert seen == [threading.get_ident()] * 3


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_run_tasks_raises_error_after_all_tasks(bad: int) -> None:
    ended: list[int] = []

    def work(index: int) -> None:
        if index == bad:
            raise ValueError(f"task {index}")
        ended.append(index)

    with pytest.raises(ValueError, match=f"task {bad}"):
        threads.run_tasks_and_wait([partial(work, index) for index in range(3)], 3)
    assert sorted(ended) == [i for i in range(3) if i != bad]


@pytest.mark.parametrize("most", [0, 1])
def test_run_tasks_uses_caller_if_threads_cannot_start(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """As with too little address space."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threading.Thread, "start", refusing)
    done: list[int] = []
    threads.run_tasks_and_wait([partial(done.append, index) for index in range(6)], 3)
    assert sorted(done) == list(range(6))


def test_run_tasks_keeps_concurrent_callers_while_pool_grows() -> None:
    problems: list[BaseException] = []

    def call(number: int) -> None:
        try:
            for count in range(2, 40):
                threads.run_tasks_and_wait([lambda: None] * count, count if number % 2 else 2)
        except BaseException as error:  # noqa: BLE001 - the test is that there is none
            problems.append(error)

    for _ in range(8):
        threads._pool = None
        callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_run_tasks_works_in_forked_child() -> None:
    threads.run_tasks_and_wait([lambda: None] * 2, 2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            meeting = threading.Barrier(2, timeout=10)
            threads.run_tasks_and_wait([lambda: meeting.wait() for _ in range(2)], 2)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("count", "number", "parts"), [(0, 2, 0), (100, 1, 1), (100, 2, 8), (30, 2, 3)])
def test_run_chunks_covers_range_once(count: int, number: int, parts: int) -> None:
    done: list[tuple[int, int]] = []
    threads.run_task_on_ranges_and_wait(count, 10, number, lambda first, last: done.append((first, last)))
    assert len(done) == parts
    assert [row for first, last in sorted(done) for row in range(first, last)] == list(range(count))
