"""Reading ahead: order, bounds, errors and the end of its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fullfield._read_ahead import ReadAhead, choose_max_buffered_bytes, iterate_ahead


def count_reads(started: list[int], expected: int) -> int:
    """Return how many reads have started, once ``expected`` have and others had time to."""
    deadline = time.monotonic() + 30
    while len(started) < expected and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.02)
    return len(started)


def test_read_ahead_returns_items_of_keys() -> None:
    def read(key: int) -> int:
        time.sleep(0.002 * (key % 3))
        return 10 * key

    with ReadAhead(read, lambda _: 1, threads=3) as reads:
        reads.enqueue_keys_and_start_reads(range(20))
        assert [reads.wait_and_take_item(key) for key in range(20)] == [10 * key for key in range(20)]
        assert reads.wait_and_take_item(99) == 990, "a key that was not announced is read too"


@pytest.mark.parametrize(("max_bytes", "ahead"), [(1000, 5), (30, 3), (1, 2)])
def test_read_ahead_stays_within_bounds(max_bytes: int, ahead: int) -> None:
    started: list[int] = []

    def read(key: int) -> bytes:
        started.append(key)
        return bytes(10)

    with ReadAhead(read, len, threads=4, max_bytes=max_bytes) as reads:
        reads.enqueue_keys_and_start_reads(range(50))
        for key in range(10):
            reads.wait_and_take_item(key)
            assert count_reads(started, key + 1 + ahead) == key + 1 + ahead
    assert sorted(started) == list(range(10 + ahead)), "each once"


@pytest.mark.parametrize(("gib", "expected"), [(4, 1), (32, 2), (512, 4)])
def test_choose_buffer_bytes_follows_machine_memory(monkeypatch: pytest.MonkeyPatch, gib: int, expected: int) -> None:
    sizes = {"SC_PHYS_PAGES": gib << 18, "SC_PAGE_SIZE": 1 << 12}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__, raising=False)
    assert choose_max_buffered_bytes() == expected << 30


def test_get_item_if_read_returns_finished_item() -> None:
    go_on = threading.Event()

    def read(key: int) -> int:
        if key == 1:
            raise ValueError("bad")
        if key == 2:
            go_on.wait(10)
        return key + 10

    with ReadAhead(read, lambda _: 1, threads=1) as reads:
        reads.enqueue_keys_and_start_reads(range(3))
        assert reads.wait_and_take_item(0) == 10
        with pytest.raises(ValueError, match="bad"):
            reads.wait_and_take_item(1)
        assert reads.get_item_if_read(2) is None, "not read yet"
        assert reads.get_item_if_read(7) is None, "not announced"
        go_on.set()
        assert reads.wait_and_take_item(2) == 12
        reads.enqueue_keys_and_start_reads([3])
        while reads.get_item_if_read(3) is None:
            time.sleep(0.001)
        assert reads.wait_and_take_item(3) == 13


def test_read_ahead_raises_error_for_its_key() -> None:
    def read(key: int) -> int:
        if key == 1:
            raise ValueError("bad")
        return key

    with ReadAhead(read, lambda _: 1, threads=2) as reads:
        reads.enqueue_keys_and_start_reads(range(3))
        assert reads.wait_and_take_item(0) == 0
        with pytest.raises(ValueError, match="bad"):
            reads.wait_and_take_item(1)
        assert reads.wait_and_take_item(2) == 2


def test_read_ahead_continues_after_discarded_keys() -> None:
    started: list[int] = []

    def read(key: int) -> bytes:
        started.append(key)
        return bytes(10)

    with ReadAhead(read, len, threads=1, max_bytes=1) as reads:
        reads.enqueue_keys_and_start_reads(range(8))
        reads.wait_and_take_item(0)
        assert count_reads(started, 3) == 3
        reads.discard_and_cancel_unneeded_keys(lambda key: key in (1, 2, 4))
        assert count_reads(started, 5) == 5
        assert started == [0, 1, 2, 3, 5]
        assert reads.wait_and_take_item(3) == bytes(10)
    assert 4 not in started


def test_read_ahead_exit_ends_threads() -> None:
    before, started = threading.active_count(), []
    with ReadAhead(started.append, lambda _: 1, threads=2) as reads:
        reads.enqueue_keys_and_start_reads([1, 2, 3, 2])
        reads.enqueue_keys_and_start_reads([3, 4])
        for key in (1, 2, 3, 4):
            reads.wait_and_take_item(key)
    assert sorted(started) == [1, 2, 3, 4]
    assert threading.active_count() == before


def test_iterate_ahead_yields_all_items_within_bounds() -> None:
    produced: list[int] = []

    def produce() -> Iterator[int]:
        for number in range(30):
            produced.append(number)
            yield number

    items = iterate_ahead(produce(), lambda _: 1, max_items=4)
    for expected in range(10):
        assert next(items) == expected
        assert count_reads(produced, expected + 1) <= expected + 1 + 4
    assert list(items) == list(range(10, 30))


def test_iterate_ahead_raises_error_of_source() -> None:
    def produce() -> Iterator[int]:
        yield 1
        raise OSError("lost")

    items = iterate_ahead(produce(), lambda _: 1)
    assert next(items) == 1
    with pytest.raises(OSError, match="lost"):
        list(items)


def test_read_ahead_can_be_left_in_its_own_thread() -> None:
    """As when the garbage collector closes an abandoned iterator while a thread reads."""
    reads: ReadAhead[int, None] = ReadAhead(lambda _: reads.__exit__(), lambda _: 1, threads=1)
    assert reads.wait_and_take_item(0) is None
