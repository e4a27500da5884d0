"""Start and end of the processes that make batches."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import signal
import threading
from multiprocessing.context import BaseContext


def create_worker_context_and_start_fork_server(*preloaded_modules: str) -> BaseContext:
    """Return the context of processes that start with these modules imported, where the system allows it."""
    # Forks of this process would inherit CUDA and its threads; of a server that has imported this once, neither.
    served = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if served else "spawn")
    if served:
        context.set_forkserver_preload([*preloaded_modules])
        _start_fork_server_with_sigint_blocked()
    return context


def _start_fork_server_with_sigint_blocked() -> None:
    """Start the server of forks with Ctrl-C blocked, which would end it, or a fork, before they ignore it."""
    multiprocessing.resource_tracker.ensure_running()  # started by the server, it would lift the block
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def ignore_sigint_and_exit_with_parent(folder_to_remove: str, _worker: int = 0) -> None:
    """Let this process end when the one that trains does.

    A killed parent sends no signal. Its folder of sockets would remain, and this process would wait for work
    forever and hold its semaphores. Ctrl-C reaches this process too; the parent decides what follows.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_parent_remove_folder_and_exit, args=(folder_to_remove,), daemon=True).start()


def _wait_for_parent_remove_folder_and_exit(folder_to_remove: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder_to_remove, ignore_errors=True)
        os._exit(1)
