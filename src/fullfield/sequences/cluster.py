"""A Ray cluster on a shot: one actor for each GPU; only file names travel, never pixels."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fullfield._check import InputError
from fullfield.sequences.engine import Problem
from fullfield.sequences.names import format_frames
from fullfield.sequences.pool import chunks
from fullfield.sequences.run import Outcome, Tell, Work, run

_RETRIES = 2
_ANSWER_S = 10


class Maker:
    """Actor that keeps an estimator and makes chunks of frames."""

    def __init__(self, work: Work, every: list[int]) -> None:
        self._work, self._every = work, every
        self._estimator = work.ready()

    def make(self, chunk: list[int]) -> tuple[str, Any]:
        """Make a chunk; return its outcome, or why it was refused."""
        try:
            plates = self._work.open(self._every)
            return "chunk", run(self._work, chunk, estimator=self._estimator, plates=plates)
        except InputError as error:
            return "refused", str(error)


def run_on_cluster(
    work: Work, numbers: Sequence[int], address: str, *, every: Sequence[int] | None = None, tell: Tell | None = None
) -> Outcome:
    """Make the files of ``numbers`` on the Ray cluster at ``address``; the files are those that one machine makes.

    With a device ``cuda`` there is an actor for every GPU of the cluster, with ``cpu`` one for every node. All of them
    reach plates and output by the same names. An actor that dies is started again, up to twice, and so
    is its chunk. Raises InputError where there is no such cluster or it has no GPU.
    """
    import ray

    _check_answer(address)
    begin = time.perf_counter()
    theirs = ray.is_initialized()
    try:
        if not theirs:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--ray {address}: no such cluster ({str(error).splitlines()[0]})") from error
    try:
        makers = _makers(work, list(numbers if every is None else every))
        outcome = Outcome()
        left = chunks(numbers, len(makers))
        busy: dict[Any, tuple[Any, list[int]]] = {}
        for maker in makers[: len(left)]:
            chunk = left.pop(0)
            busy[maker.make.remote(chunk)] = (maker, chunk)
        while busy:
            (done,), _ = ray.wait(list(busy), num_returns=1)
            maker, chunk = busy.pop(done)
            _take(ray, done, chunk, outcome, tell)
            if left and outcome.stopped is None:
                following = left.pop(0)
                busy[maker.make.remote(following)] = (maker, following)
    finally:
        if not theirs:
            ray.shutdown()
    return outcome.end(begin)


def _check_answer(address: str) -> None:
    """Raise InputError where nothing answers at ``HOST:PORT``; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # auto, local, or a session's name, which Ray looks up at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--ray {address}: no cluster answers there ({reason}); check the address") from error


def _take(ray: Any, done: Any, chunk: list[int], outcome: Outcome, tell: Tell | None) -> None:
    try:
        kind, what = ray.get(done)
    except ray.exceptions.RayActorError as error:
        reason = " ".join(str(error).split())[:120]
        outcome.problems.append(Problem(f"frames {format_frames(chunk)}", f"the actor died again and again ({reason})"))
        return
    if kind == "refused":
        raise InputError(what)
    outcome.add(what)
    if tell is not None:
        for number in chunk:
            tell(number)


def _makers(work: Work, every: list[int]) -> list[Any]:
    """Start the actors and return them."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    on_gpu = work.setting.device.startswith("cuda")
    # Ray shows an actor its own GPU alone, which is the first that it sees.
    mine = replace(work, setting=replace(work.setting, device="cuda:0" if on_gpu else work.setting.device))
    wanted: list[dict[str, Any]] = []
    for node in nodes:
        resources = node["Resources"]
        if on_gpu:
            wanted += [{"num_gpus": 1, "num_cpus": 1}] * int(resources.get("GPU", 0))
        elif resources.get("CPU", 0) >= 1:
            wanted.append({"num_cpus": int(resources["CPU"])})
    if not wanted:
        raise InputError(f"--ray: the cluster has no {'GPU' if on_gpu else 'CPU'} (--device {work.setting.device})")
    kind = ray.remote(Maker)
    made = []
    for resources in wanted:
        threads = work.threads if on_gpu or work.threads is not None else resources["num_cpus"]
        chosen = kind.options(**resources, max_restarts=_RETRIES, max_task_retries=_RETRIES)
        made.append(chosen.remote(replace(mine, threads=threads), every))
    return made
