"""Estimation in forked processes: one thread works, more are refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

SCRIPT = """
import os
import warnings
import torch
from fullfield import InputError, estimate, estimate_batch
from fullfield.estimators import NetworkEstimator

os.environ["FULLFIELD_QUIET"] = "1"  # a cold cache of kernels is announced
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of forks of a process with threads
torch.set_num_threads(2)
frames = torch.rand(2, 3, 24, 32)

def estimate_in_fork(count, estimate=estimate, **options):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(count)
        try:
            estimate(*frames, "fullfield-s", updates=1, cascade=False, **options)
            print("estimated", flush=True)
        except InputError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

estimate_in_fork(2)
estimate(*frames, "fullfield-s", updates=1, cascade=False, threads=1)
estimate_in_fork(2)
estimate(*frames, "fullfield-s", updates=1, cascade=False)
estimate_in_fork(1)
estimate_in_fork(2, threads=1)
estimate_in_fork(2, lambda a, b, *args, **options: estimate_batch([a], [b], *args, **options), threads=1)
estimate_in_fork(2)
estimate_in_fork(2, lambda *frames, **options: NetworkEstimator("fullfield-s").prepare("cpu"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_estimate_refuses_forked_child_of_computing_parent(run_measured_script: Callable[..., str]) -> None:
    *estimated, two_threads, preparation = run_measured_script(SCRIPT).splitlines()
    assert estimated == ["estimated"] * 5
    assert preparation == two_threads
    assert two_threads.startswith("process: was forked after its parent had computed")
    assert "multiprocessing.get_context('spawn'), or compute on the CPU with threads=1" in two_threads


LARGE = """
import os
import signal
import warnings
import torch
from fullfield import Flow

warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(2)
flow = Flow(torch.rand(2, 300, 400), torch.ones(300, 400, dtype=torch.bool))
flow.flow.permute(1, 2, 0).contiguous()  # starts PyTorch's threads
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that hangs
    print(flow.numpy().shape, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_flow_numpy_works_in_forked_child_of_computing_parent(run_measured_script: Callable[..., str]) -> None:
    assert run_measured_script(LARGE) == "(300, 400, 2)\n"
