"""Processes that make batches end when the training does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fullfield.training import DescriptorTraining, batches
from fullfield.training.flow.batch import PrefetchedBatches
from fullfield.training.workers import ignore_sigint_and_exit_with_parent

SCRIPT = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from fullfield.training.workers import create_worker_context_and_start_fork_server, ignore_sigint_and_exit_with_parent
if __name__ == "__main__":
    context = create_worker_context_and_start_fork_server()
    pool = ProcessPoolExecutor(1, context, initializer=ignore_sigint_and_exit_with_parent, initargs=(sys.argv[1],))
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def is_alive(process: int) -> bool:
    """Return whether a process runs; a dead one may wait for its parent."""
    try:
        os.kill(process, 0)
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc here, or it has just ended
        return not Path("/proc/self/status").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no signal 9 here")
def test_data_worker_ends_when_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sockets").mkdir()
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "sockets")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    assert is_alive(worker)
    process.kill()
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 30
    while is_alive(worker) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(worker)
    assert not (tmp_path / "sockets").exists()


def test_data_loader_workers_end_with_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(batches, "ignore_sigint_and_exit_with_parent", seen.append)
    monkeypatch.setattr(batches, "_arguments", None, raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    batches._initialize_worker_and_watch_parent(DescriptorTraining(), (), "sockets")
    assert seen == ["sockets"]
    loader = PrefetchedBatches(os.path.join, 1, pin=False)._create_loader(iter(()))
    assert loader.worker_init_fn.func is ignore_sigint_and_exit_with_parent  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no fork server here")
def test_ctrl_c_spares_starting_workers(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(
        "import os, pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(1)\n"
    )
    (tmp_path / "train.py").write_text(
        "import os, signal, threading, time\n"
        "from pathlib import Path\n"
        "from fullfield.training.workers import create_worker_context_and_start_fork_server\n"
        "def press():\n"
        "    while not Path('importing').exists():\n"
        "        time.sleep(0.01)\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, lambda *_: None)\n"
        "    threading.Thread(target=press).start()\n"
        "    context = create_worker_context_and_start_fork_server('slow_import')\n"
        "    process = context.Process(target=time.sleep, args=(0,))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    print(process.exitcode)\n"
    )
    command = [sys.executable, "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, start_new_session=True, timeout=60)
    assert ran.stdout == "0\n", ran.stderr
