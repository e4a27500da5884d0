"""Files in forked children of processes that used OpenImageIO, PyTorch and numba with several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, warnings
import OpenImageIO as oiio
from numba.np.ufunc.parallel import _launch_threads
import torch
from fullfield.io import read_flow, read_frame, write_flow, write_image

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of forks of a process with threads
os.chdir(sys.argv[1])
oiio.attribute("threads", 3)
oiio.attribute("exr_threads", 3)
torch.set_num_threads(2)
flow = torch.randn(2, 200, 300)
image = torch.rand(3, 200, 300)

def work(name):
    write_flow(f"{name}.exr", flow, compression="zip")
    write_image(f"{name}.tif", image)
    write_image(f"{name}.png", image)
    assert torch.equal(read_flow(f"{name}.exr").flow, flow)
    assert read_frame(f"{name}.tif").shape == (3, 200, 300)
    assert read_frame(f"{name}.png").mul(2).sum() > 0
    assert (image.flatten() @ image.flatten()) > 0  # of 2 threads

def run_child(name, then):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that waits for ever is ended
        work(name)
        then()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"{name}: {status}"

work("parent")
_launch_threads()
for turn in range(3):
    run_child(f"child{turn}", lambda: run_child(f"grandchild{turn}", lambda: None))
    assert (oiio.get_int_attribute("threads"), oiio.get_int_attribute("exr_threads")) == (3, 3)
    assert torch.get_num_threads() == 2
    work("parent")
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_readers_and_writers_work_in_forked_child(tmp_path: Path, run_script: Callable[..., str]) -> None:
    assert run_script(SCRIPT, tmp_path).splitlines()[-1] == "done"


def test_fork_guard_keeps_one_thread_with_old_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fullfield.io import forks

    threads = torch.get_num_threads()
    guard = forks._ForkGuard()
    monkeypatch.setattr(forks, "_stop_gnu_openmp_threads_if_possible", lambda: False)
    try:
        torch.set_num_threads(2)
        guard.lock_and_stop_pools()
        guard.restore_pools_and_unlock()
        assert torch.get_num_threads() == 2
        guard.lock_and_stop_pools()
        guard.reset_lock_and_torch_threads_in_child()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
