"""Reading ahead: threads read the next items while the present one is worked on, within a bound in bytes."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_THREAD_NAME = "fullfield-read"


def choose_reader_thread_count() -> int:
    """Return the number of threads that read files; decoding releases the interpreter."""
    return max(2, min(16, (os.cpu_count() or 1) - 1))


def choose_max_buffered_bytes() -> int:
    """Return the limit for items in memory that wait for someone: a 16th of the machine's memory, 1 to 4 GiB."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        memory = 0
    return min(max(memory // 16, 1 << 30), 1 << 32)


class ReadAhead(Generic[Key, Item]):
    """Items by key, read by threads in the order in which they are taken.

    Use it as a context manager: leaving it cancels reads that have not started and ends its threads.

    Args:
        read_item: returns the item of a key; called in a thread.
        count_item_bytes: returns the memory that an item takes.
        threads: number of reads at the same time.
        max_bytes: limit for items that are read and not yet taken, estimated from the largest item so far; by default
            :func:`choose_max_buffered_bytes`.
        min_items: number of items that are read ahead even where they exceed the limit.
        max_items: number of items that are read ahead at most; by default one more than ``threads``.
        executor: where to read instead of in own threads; it is not shut down.
    """

    def __init__(
        self,
        read_item: Callable[[Key], Item],
        count_item_bytes: Callable[[Item], int],
        *,
        threads: int,
        max_bytes: int | None = None,
        min_items: int = 2,
        max_items: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._read, self._size_bytes = read_item, count_item_bytes
        self._max_items = threads + 1 if max_items is None else max_items
        self._max_bytes = choose_max_buffered_bytes() if max_bytes is None else max_bytes
        self._min_items = min_items
        self._own = ThreadPoolExecutor(threads, thread_name_prefix=_THREAD_NAME) if executor is None else None
        self._executor: Executor = executor or self._own  # type: ignore[assignment]  # one of them exists
        self._queue: deque[Key] = deque()
        self._pending: dict[Key, Future[Item]] = {}
        self._largest_bytes = 0

    def __enter__(self) -> ReadAhead[Key, Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        for future in self._pending.values():
            future.cancel()
        if self._own is not None:
            # An abandoned iterator is closed by whichever thread collects it; a reading one cannot wait for itself.
            self._own.shutdown(wait=not threading.current_thread().name.startswith(_THREAD_NAME))
        self._pending.clear()

    def enqueue_keys_and_start_reads(self, keys: Iterable[Key]) -> None:
        """Add keys of items that will be taken after those added before; a key that is waiting is not added twice."""
        waiting = {*self._queue, *self._pending}
        self._queue.extend(key for key in dict.fromkeys(keys) if key not in waiting)
        self._submit_queued_reads_up_to_limit()

    def wait_and_take_item(self, key: Key) -> Item:
        """Return an item once it is read, and start to read the following ones. Errors of the read are raised here."""
        while key in self._queue:
            self._submit_read(self._queue.popleft())
        if key not in self._pending:
            self._submit_read(key)
        self._submit_queued_reads_up_to_limit()
        item = self._pending.pop(key).result()
        self._largest_bytes = max(self._largest_bytes, self._size_bytes(item))
        self._submit_queued_reads_up_to_limit()
        return item

    def get_item_if_read(self, key: Key) -> Item | None:
        """Return an item that has been read and not yet taken; None where there is none."""
        future = self._pending.get(key)
        return None if future is None or not future.done() or future.exception() is not None else future.result()

    def discard_and_cancel_unneeded_keys(self, is_unneeded: Callable[[Key], bool]) -> None:
        """Forget keys that will not be taken, so that their items do not occupy the place of others."""
        self._queue = deque(key for key in self._queue if not is_unneeded(key))
        for key in [key for key in self._pending if is_unneeded(key)]:
            self._pending.pop(key).cancel()
        self._submit_queued_reads_up_to_limit()

    def _compute_max_pending_reads(self) -> int:
        """Return how many reads may be pending."""
        if self._largest_bytes == 0:
            return self._min_items
        return max(self._min_items, min(self._max_items, self._max_bytes // self._largest_bytes))

    def _submit_queued_reads_up_to_limit(self) -> None:
        while self._queue and len(self._pending) < self._compute_max_pending_reads():
            self._submit_read(self._queue.popleft())

    def _submit_read(self, key: Key) -> None:
        self._pending[key] = self._executor.submit(self._read, key)


def iterate_ahead(
    items: Iterable[Item], count_item_bytes: Callable[[Item], int], *, max_items: int = 8, max_bytes: int = 1 << 28
) -> Iterator[Item]:
    """Yield the items of an iterable that a thread advances ahead, such as a decoder's frames.

    Args:
        items: they are produced one after the other in one thread.
        count_item_bytes: returns the memory that an item takes.
        max_items: number of items that are produced ahead at most.
        max_bytes: limit for items that are produced and not yet yielded.
    """
    iterator, end = iter(items), object()

    def advance(_: int) -> Any:
        return next(iterator, end)

    def count_bytes(item: Any) -> int:
        return 1 if item is end else count_item_bytes(item)

    with ReadAhead(advance, count_bytes, threads=1, max_bytes=max_bytes, max_items=max_items) as reads:
        reads.enqueue_keys_and_start_reads(range(max_items))
        for number in itertools.count():
            item = reads.wait_and_take_item(number)
            if item is end:
                return
            reads.enqueue_keys_and_start_reads([number + max_items])
            yield item
