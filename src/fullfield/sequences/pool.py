"""Several devices of one machine on a shot: one process for each, which takes chunk after chunk.

A process requests more work before its chunk is done. It gets the neighbouring chunk, so that it continues without a
pause and estimates no pair twice. Where that chunk is taken, it begins in the middle of the longest run that is left.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait

from fullfield._check import InputError
from fullfield.sequences.engine import Problem
from fullfield.sequences.names import format_frames
from fullfield.sequences.run import Outcome, Tell, Work, run

_LEAST = 8
_TURNS = 4  # chunks of every process, so that none waits long for the last
_EXTENDED = 3  # times as many where a process goes on from chunk to chunk
_LIVES = 2  # a chunk is given up when so many processes have died of it


def chunks(numbers: Sequence[int], workers: int, turns: int = _TURNS) -> list[list[int]]:
    """Return runs of neighbouring frames, about ``turns`` for each worker."""
    ordered = sorted(numbers)
    size = max(_LEAST, -(-len(ordered) // (workers * turns)))
    size = min(size, -(-len(ordered) // workers))
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


class _Chunks:
    """The chunks that are left, by their position in the shot."""

    def __init__(self, every: Sequence[list[int]]) -> None:
        self._left = dict(enumerate(every))
        self._apart = len(every)

    def __len__(self) -> int:
        return len(self._left)

    def first(self, reached: Sequence[int]) -> tuple[int, list[int]]:
        """Take a chunk to begin with, and return its position and frames.

        It is the first of the longest run of chunks, or the middle one where a position of ``reached`` is just before
        the run.
        """
        best, most = -1, 0
        for place in sorted(self._left):
            if place - 1 in self._left:
                continue
            count = next(n for n in itertools.count(1) if place + n not in self._left)
            begin = count // 2 if place - 1 in reached else 0
            if count - begin > most:
                best, most = place + begin, count - begin
        return best, self._left.pop(best)

    def following(self, place: int) -> list[int]:
        """Take the chunk after that position; return no frames where it is taken."""
        return self._left.pop(place + 1, [])

    def back(self, chunk: list[int]) -> None:
        """Return a chunk, or a part of one, to those that are left."""
        self._apart += 2  # next to no other place
        self._left[self._apart] = chunk


class _Worker:
    """A process and the frames it is working on."""

    def __init__(self, work: Work, every: Sequence[int], device: str, threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        mine = replace(work, setting=replace(work.setting, device=device), threads=threads)
        self.process = context.Process(target=_serve, args=(mine, list(every), theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.device = device
        self.place = -1
        self.chunk: list[int] = []
        self.finished: set[int] = set()

    def give(self, place: int, chunk: list[int]) -> None:
        """Send a chunk to begin with."""
        self.place, self.chunk, self.finished = place, chunk, set()
        self._send(chunk)

    def extend(self, chunk: list[int]) -> None:
        """Send the chunk after the current one; an empty one ends the run of chunks."""
        if chunk:
            self.place, self.chunk = self.place + 1, [*self.chunk, *chunk]
        self._send(chunk)

    def _send(self, chunk: list[int]) -> None:
        with contextlib.suppress(OSError):  # a dead one is found when it is listened to
            self.pipe.send(chunk)

    def end(self) -> None:
        """End the process; at once where it still has frames."""
        if self.chunk:
            self.process.terminate()
        self.pipe.close()
        self.process.join(10)


def run_on_devices(
    work: Work,
    numbers: Sequence[int],
    devices: Sequence[str],
    *,
    every: Sequence[int] | None = None,
    tell: Tell | None = None,
) -> Outcome:
    """Make the files of ``numbers`` on several devices of this machine (``cuda:0``, ``cuda:1``; ``cpu`` counts too).

    ``every``: all frames of the run, those that are made already included. The files are those that one device makes.
    When a process dies, another one gets its frames.
    """
    begin = time.perf_counter()
    every = numbers if every is None else every
    outcome, deaths = Outcome(), dict[int, int]()
    left = _Chunks(chunks(numbers, len(devices), _TURNS * _EXTENDED))
    shared = max(1, (os.cpu_count() or 1) // len(devices)) if work.threads is None else work.threads
    workers = [_Worker(work, every, device, shared) for device in devices[: len(left)]]
    try:
        for worker in workers:
            worker.give(*left.first([other.place for other in workers if other.chunk]))
        while any(worker.chunk for worker in workers):
            for pipe in wait([worker.pipe for worker in workers if worker.chunk]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                if not _hear(worker, outcome, left, tell):
                    _reclaim(worker, outcome, left, deaths)
                    workers.remove(worker)
                    if len(left):
                        workers.append(_Worker(work, every, worker.device, shared))
                if outcome.stopped is None:
                    for idle in [worker for worker in workers if not worker.chunk][: len(left)]:
                        idle.give(*left.first([other.place for other in workers if other.chunk]))
    finally:
        for worker in workers:
            worker.end()
    return outcome.end(begin)


def _hear(worker: _Worker, outcome: Outcome, left: _Chunks, tell: Tell | None) -> bool:
    """Take one message; False where the process is dead."""
    try:
        kind, what = worker.pipe.recv()
    except (EOFError, OSError):
        return False
    if kind == "frame":
        worker.finished.add(what)
        if tell is not None:
            tell(what)
    elif kind == "more":
        worker.extend([] if outcome.stopped else left.following(worker.place))
    elif kind == "chunk":
        outcome.add(what)
        worker.chunk = []
    elif kind == "refused":
        raise InputError(what)
    else:
        raise RuntimeError(f"{worker.device}: {what}")
    return True


def _reclaim(worker: _Worker, outcome: Outcome, left: _Chunks, deaths: dict[int, int]) -> None:
    """Return the frames of a dead process to those that are left, at most twice."""
    worker.process.join(10)
    code = worker.process.exitcode
    rest = [number for number in worker.chunk if number not in worker.finished]
    outcome.written += [number for number in worker.finished if number not in outcome.written]
    worker.chunk = []
    if not rest:
        return
    deaths[rest[0]] = deaths.get(rest[0], 0) + 1
    if deaths[rest[0]] >= _LIVES:
        outcome.problems.append(
            Problem(f"frames {format_frames(rest)}", f"the process on {worker.device} died twice of them (exit {code})")
        )
        return
    left.back(rest)


def _serve(work: Work, every: list[int], pipe: Connection) -> None:
    """Run the process: receive chunks, send frames and outcomes, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it

    def stop(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
    try:
        _process_chunks(work, every, pipe)
    except (EOFError, OSError, SystemExit):  # the parent wants no more
        pass
    except InputError as error:
        pipe.send(("refused", str(error)))
    except Exception:  # noqa: BLE001 - told to the parent, which raises
        pipe.send(("error", traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)  # without taking PyTorch down piece by piece


def _process_chunks(work: Work, every: list[int], pipe: Connection) -> None:
    estimator = work.ready()
    lock = threading.Lock()  # several threads write files

    def tell(number: int) -> None:
        with lock:
            pipe.send(("frame", number))

    def more() -> list[int]:
        with lock:
            pipe.send(("more", None))
        further: list[int] = pipe.recv()
        return further

    while True:
        chunk = pipe.recv()
        outcome = run(work, chunk, estimator=estimator, plates=work.open(every), tell=tell, more=more)
        pipe.send(("chunk", outcome))
