"""A shot on a Ray cluster of this machine, one of whose processes is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sequence_shots import QUICK

from fullfield.cli.main import main
from fullfield.io import read_vectors

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'fullfield[ray]')")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


def makers() -> list[int]:
    """The processes of our actors."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::Maker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_cluster_makes_what_one_machine_makes(shot: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if list(shot.glob("mv.*.exr")) and makers():
                killed.append(makers()[0])
                os.kill(killed[0], signal.SIGKILL)
                return
            time.sleep(0.01)

    options = ("--direction", "both", "--occlusion", *QUICK)
    thread = threading.Thread(target=kill_one)
    thread.start()
    where = ("flow", f"{shot}/plate.%04d.png", "-o", f"{shot}/mv.%04d.exr")
    code = main([*where, *options, "--ray", address, "--json"])
    thread.join()
    out, err = capsys.readouterr()
    assert code == 0, err
    assert killed
    assert json.loads(out)["written"] == "11-18"
    assert main(["flow", "plate.%04d.png", "-o", "one.%04d.exr", *options]) == 0
    for number in range(11, 19):
        theirs, alone = (read_vectors(f"{name}.{number:04d}.exr") for name in ("mv", "one"))
        assert all(torch.equal(theirs[layer], alone[layer]) for layer in alone)
    assert main([*where, "--ray", address, "--device", "cuda", "--overwrite", *QUICK]) == 2
    assert main(["flow", "plate.%04d.png", "-o", "x.%04d.exr", "--ray", address, "--devices", "cpu", *QUICK]) == 2
