"""Fixtures shared by the whole suite."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# PyTorch and its exporters are a million objects: by Python's own thresholds a quarter of the processor time goes into
# looking at them again.
gc.set_threshold(10_000, 10, 50)

_DATA = Path(os.environ.get("FULLFIELD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real frames and true flow; a test that needs it skips where it is absent."""
    if not _DATA.is_dir():
        pytest.skip(f"no real data: {_DATA} is absent (set FULLFIELD_DATA)")
    return _DATA


# Tests on one thread: with two, a busy machine stalls every one of PyTorch's many small parallel regions.
_ONE_THREAD = ("integrations", "models", "nn", "ops/correlation", "ops/point_conv", "cli/test_cli_train_flow")


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread in those folders, and afterwards as many as before."""
    if not request.path.relative_to(Path(__file__).parent).as_posix().startswith(_ONE_THREAD):
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Tests that compare results of the CPU, whatever ``auto`` would choose.
_ON_THE_CPU = ("evaluation", "training", "cli/test_cli_evaluate", "cli/test_cli_pairs", "cli/test_cli_train")


@pytest.fixture(autouse=True)
def _auto_is_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device ``auto`` be the CPU in those files, also on a machine with a GPU."""
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    if place.startswith(_ON_THE_CPU) and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


# The longest first: at the end no process waits for another's.
_LONG = ("tests/models/test_export", "tests/test_modes", "tests/kernels/test_numba_cache", "tests/sequences/test_farm")


def pytest_collection_finish() -> None:
    """What is there now stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse the mark unit on a test that takes long or needs a GPU."""
    marks = {mark.name for mark in item.iter_markers()}
    if "unit" in marks and marks & {"gpu", "alone", "slow", "long"}:
        raise pytest.UsageError(f"{item.nodeid}: a unit test cannot be {', '.join(sorted(marks - {'unit'}))}")


@pytest.fixture(autouse=True)
def _unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test that is marked unit start no process and compile no kernel."""
    if request.node.get_closest_marker("unit") is None:
        return

    platform.processor()  # starts uname once, as the import of h5py does

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test starts no process and compiles nothing; remove the mark")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr("fullfield._kernels.numba_cache.Kernels.__call__", refuse)
    monkeypatch.setattr("fullfield._kernels.nvrtc.load_nvrtc", refuse)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """``once(name, make)``: what ``make()`` returned, as JSON, in whichever of the run's processes was first to ask."""
    from made_once import made_once

    return made_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def _server() -> Iterator[Any]:
    """A process that has imported PyTorch and forks; on Linux."""
    from forked import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def forked(request: pytest.FixtureRequest) -> Callable[..., str]:
    """``forked(script, *arguments)``: what a script that looks at its memory printed in a process of its own."""
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is read from Linux's /proc")
    measure: Callable[..., str] = request.getfixturevalue("_server").measure
    return measure


@pytest.fixture(scope="session")
def fresh(request: pytest.FixtureRequest) -> Callable[..., str]:
    """``fresh(script, *arguments)``: what the script printed in a process that had imported at most PyTorch and numba.

    On Linux a fork, which need not import PyTorch anew; elsewhere a new Python.
    """
    if sys.platform.startswith("linux"):
        run: Callable[..., str] = request.getfixturevalue("_server").run
        return run

    def start(script: str, *arguments: object) -> str:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return start


@pytest.fixture(scope="session")
def spent() -> Callable[[], float]:
    """Processor seconds of all processes waited for until now: unlike the clock's, the same on a busy machine."""

    def seconds() -> float:
        times = os.times()
        return times.children_user + times.children_system

    return seconds


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """The package torchvision, its compiled operators missing or not."""
    return _peer("torchvision")


@pytest.fixture(scope="session")
def ptlflow(torchvision: Any) -> Any:  # noqa: ARG001 - it imports torchvision
    """The package ptlflow; its models come from ``ptlflow.get_model(name)``."""
    return _peer("ptlflow")


# Keeps what it defines alive.
_libraries: list[Any] = []


def _peer(name: str) -> Any:
    """Import a package of tests/peers.txt without what it prints and warns of, or skip."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install --no-deps -r tests/peers.txt)")
    _declare_operators()
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _declare_operators() -> None:
    """Name the operators that torchvision's import wants to exist, where its library does not fit this PyTorch."""
    import torch

    spec = find_spec("torchvision")
    if spec is None or _libraries:
        return
    try:
        torch.ops.load_library(next(Path(str(spec.origin)).parent.glob("_C*")))
    except (OSError, StopIteration):
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
