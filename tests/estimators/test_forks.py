"""Estimation in forked processes: one thread works, more are refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import torch
from fullfield import InputError, estimate

torch.set_num_threads(int(sys.argv[1]))
frames = torch.rand(2, 3, 48, 64)
if sys.argv[3] == "computed":
    estimate(*frames, "fullfield-s", updates=1, cascade=False)
child = os.fork()
if child == 0:
    torch.set_num_threads(int(sys.argv[2]))
    try:
        estimate(*frames, "fullfield-s", updates=1, cascade=False)
        print("estimated", flush=True)
    except InputError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("parent", "child", "before", "works"),
    [(2, 2, "computed", False), (2, 1, "computed", True), (2, 2, "idle", True)],
)
def test_a_fork_of_a_process_that_computed_is_refused(parent: int, child: int, before: str, works: bool) -> None:
    command = [sys.executable, "-c", SCRIPT, str(parent), str(child), before]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    if works:
        assert done.stdout == "estimated\n"
    else:
        assert done.stdout.startswith("process: was forked after its parent had computed")
        assert "multiprocessing.get_context('spawn')" in done.stdout
        assert done.stdout.count("\n") == 1
