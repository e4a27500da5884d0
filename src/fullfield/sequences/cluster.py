"""A Ray cluster on a shot: an actor for each node or GPU; only file names travel, never pixels."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fullfield._check import InputError
from fullfield.sequences.job import ShotJob
from fullfield.sequences.names import format_frames
from fullfield.sequences.pool import split_into_chunks
from fullfield.sequences.results import FrameReport, Outcome, Problem
from fullfield.sequences.run import write_shot_flow

_RETRIES = 2
_ANSWER_S = 10


class ShotActor:
    """Actor that keeps an estimator and writes chunks of frames."""

    def __init__(self, job: ShotJob) -> None:
        self._job = job
        warnings.filterwarnings("ignore", ".* NaN or infinite")  # whoever started the cluster warns once
        self._estimator = job.set_threads_and_build_prepared_estimator()

    def write_frames_and_get_outcome_or_refusal(self, chunk: list[int]) -> tuple[str, Any]:
        """Write a chunk; return its outcome, or why it was refused."""
        try:
            return "chunk", write_shot_flow(self._job, chunk, self._estimator, self._job.open_plates())
        except InputError as error:
            return "refused", str(error)


def write_shot_flow_on_cluster(
    job: ShotJob, numbers: Sequence[int], address: str, *, report: FrameReport | None = None
) -> Outcome:
    """Write the files of ``numbers`` on the Ray cluster at ``address``; the files are those that one machine writes.

    With a device ``cuda`` there is an actor for every GPU of the cluster, with ``cpu`` one for every node. All of them
    reach plates and output by the same names. An actor that dies is started again, up to twice, and so is its chunk.
    Raises InputError where there is no such cluster or it has no GPU.
    """
    import ray

    _require_answer_if_host_and_port(address)
    start_s = time.perf_counter()
    was_connected = ray.is_initialized()
    try:
        if not was_connected:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises a bare one where a node does not start
        reason = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
        raise InputError(f"--ray {address}: cannot connect to a cluster ({reason})") from error
    try:
        actors = _start_actor_per_gpu_or_node(job)
        outcome = Outcome()
        chunks = split_into_chunks(numbers, len(actors))
        busy: dict[Any, tuple[Any, list[int]]] = {}
        for actor in actors[: len(chunks)]:
            chunk = chunks.pop(0)
            busy[actor.write_frames_and_get_outcome_or_refusal.remote(chunk)] = (actor, chunk)
        while busy:
            (task,), _ = ray.wait(list(busy), num_returns=1)
            actor, chunk = busy.pop(task)
            _wait_and_add_chunk_outcome_or_problem(ray, task, chunk, outcome, report)
            if chunks and outcome.stopped is None:
                following = chunks.pop(0)
                busy[actor.write_frames_and_get_outcome_or_refusal.remote(following)] = (actor, following)
    finally:
        if not was_connected:
            ray.shutdown()
    return outcome.sort_warn_and_set_wall_time(start_s)


def _require_answer_if_host_and_port(address: str) -> None:
    """Raise InputError where nothing answers at ``HOST:PORT``; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # auto, local, or a session's name, which Ray looks up at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--ray {address}: no cluster answers there ({reason}); check the address") from error


def _wait_and_add_chunk_outcome_or_problem(
    ray: Any, task: Any, chunk: list[int], outcome: Outcome, report: FrameReport | None
) -> None:
    try:
        kind, content = ray.get(task)
    except ray.exceptions.RayActorError as error:
        reason = f"the actor died again and again ({' '.join(str(error).split())[:120]})"
        outcome.problems.append(Problem(f"frames {format_frames(chunk)}", reason))
        return
    if kind == "refused":
        raise InputError(content)
    outcome.merge_parallel_outcome(content)
    if report is not None:
        for number in chunk:
            report(number)


def _start_actor_per_gpu_or_node(job: ShotJob) -> list[Any]:
    """Start the actors and return them."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    on_gpu = job.settings.device.startswith("cuda")
    requests: list[dict[str, Any]] = []
    for node in nodes:
        resources = node["Resources"]
        if on_gpu:
            requests += [{"num_gpus": 1, "num_cpus": 1}] * int(resources.get("GPU", 0))
        elif resources.get("CPU", 0) >= 1:
            requests.append({"num_cpus": int(resources["CPU"])})
    if not requests:
        raise InputError(f"--ray: the cluster has no {'GPU' if on_gpu else 'CPU'} (--device {job.settings.device})")
    if on_gpu:  # Ray shows an actor only its own GPU, which is the first that it sees
        job = replace(job, settings=replace(job.settings, device="cuda:0"))
    remote_class = ray.remote(ShotActor)
    actors = []
    for request in requests:
        threads = job.threads if on_gpu or job.threads is not None else request["num_cpus"]
        options = remote_class.options(**request, max_restarts=_RETRIES, max_task_retries=_RETRIES)
        actors.append(options.remote(replace(job, threads=threads)))
    return actors
