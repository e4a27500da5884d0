"""Estimation in forked processes: one thread works, more are refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

SCRIPT = """
import os
import warnings
import torch
from fullfield import InputError, estimate

os.environ["FULLFIELD_QUIET"] = "1"  # a cold cache of kernels is announced
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of forks of a process with threads
torch.set_num_threads(2)
frames = torch.rand(2, 3, 24, 32)

def estimate_in_fork(threads):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(threads)
        try:
            estimate(*frames, "fullfield-s", updates=1, cascade=False)
            print("estimated", flush=True)
        except InputError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

estimate_in_fork(2)
estimate(*frames, "fullfield-s", updates=1, cascade=False)
estimate_in_fork(1)
estimate_in_fork(2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_estimate_refuses_forked_child_of_computing_parent(run_measured_script: Callable[..., str]) -> None:
    before, one_thread, two_threads = run_measured_script(SCRIPT).splitlines()
    assert before == one_thread == "estimated"
    assert two_threads.startswith("process: was forked after its parent had computed")
    assert "multiprocessing.get_context('spawn')" in two_threads
