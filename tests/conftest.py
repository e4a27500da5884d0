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

# PyTorch and its exporters have a million objects: with Python's own thresholds, garbage collection takes a quarter of
# the processor time.
gc.set_threshold(10_000, 10, 50)

_DATA = Path(os.environ.get("FULLFIELD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of real frames and true flow, or skip the test if it is absent."""
    if not _DATA.is_dir():
        pytest.skip(f"no real data: {_DATA} is absent (set FULLFIELD_DATA)")
    return _DATA


# Tests on one thread: with two, a busy machine stalls every one of PyTorch's many small parallel regions.
_ONE_THREAD = ("integrations", "models", "nn", "ops/correlation", "ops/point_conv", "cli/test_cli_train_flow")


@pytest.fixture(autouse=True)
def _use_one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of those folders on one thread and restore the number of threads."""
    if not request.path.relative_to(Path(__file__).parent).as_posix().startswith(_ONE_THREAD):
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# What is chosen once for a machine, and estimators built for it.
_CHOICES = (
    ("fullfield.ops._launching", "_get_rocm_gpu_name"),
    ("fullfield.ops._launching", "_explain_unsupported_gpu"),
    ("fullfield.ops.matching.api", "_choose_backend_name"),
    ("fullfield.ops.spatial_correlation.protocol", "_choose_backend_module_cached"),
    ("fullfield.models.prepared.runner", "choose_cpu_dtype"),
    ("fullfield.estimators.estimation", "_get_or_build_cached_estimator"),
)


@pytest.fixture(autouse=True)
def _clear_choices() -> None:
    """Forget choices of the test before, which may have simulated another machine."""
    for module, name in _CHOICES:
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()


# Tests that compare results of the CPU on every machine.
_ON_CPU = ("evaluation", "training", "cli/test_cli_evaluate", "cli/test_cli_pairs", "cli/test_cli_train")


@pytest.fixture(autouse=True)
def _resolve_auto_to_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device ``auto`` be the CPU in those files, also on a machine with a GPU."""
    path = request.path.relative_to(Path(__file__).parent).as_posix()
    if path.startswith(_ON_CPU) and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


# They run first, so that no process waits at the end.
_LONG = ("tests/models/test_export", "tests/test_modes", "tests/kernels/test_numba_cache", "tests/sequences/test_farm")


def pytest_collection_finish() -> None:
    """Exclude the objects of the collection from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse the mark unit on a test that takes long or needs a GPU."""
    marks = {mark.name for mark in item.iter_markers()}
    if "unit" in marks and marks & {"gpu", "alone", "slow", "long"}:
        raise pytest.UsageError(f"{item.nodeid}: a unit test cannot be {', '.join(sorted(marks - {'unit'}))}")


@pytest.fixture(autouse=True)
def _forbid_processes_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse processes and compiled kernels in tests marked unit."""
    if request.node.get_closest_marker("unit") is None:
        return

    platform.processor()  # starts uname once, as the import of h5py does

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test starts no process and compiles nothing; remove the mark")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr("fullfield._kernels.numba_cache.KernelModule.__call__", refuse)
    monkeypatch.setattr("fullfield._kernels.nvrtc.load_nvrtc", refuse)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest tests to the front."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


@pytest.fixture(scope="session")
def get_or_compute(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """Return ``get_or_compute(name, compute)``, which shares results as JSON between processes."""
    from shared_results import build_result_cache

    return build_result_cache(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def _fork_server() -> Iterator[Any]:
    """Start a process that has imported PyTorch and forks, on Linux."""
    from fork_server import ForkServer

    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def run_measured_script(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return ``run_measured_script(script, *arguments)``, which runs a script that measures its memory."""
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is read from Linux's /proc")
    measure: Callable[..., str] = request.getfixturevalue("_fork_server").measure_script
    return measure


@pytest.fixture(scope="session")
def run_script(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return ``run_script(script, *arguments)``, which returns the output of a script in a new process.

    On Linux the process is a fork that has imported PyTorch and numba only, elsewhere a new Python.
    """
    if sys.platform.startswith("linux"):
        run: Callable[..., str] = request.getfixturevalue("_fork_server").run_script
        return run

    def start(script: str, *arguments: object) -> str:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    return start


@pytest.fixture(scope="session")
def get_child_cpu_seconds() -> Callable[[], float]:
    """Return a function that returns the processor seconds of all ended child processes.

    Unlike the time of the clock, they do not depend on other work of the machine.
    """

    def seconds() -> float:
        times = os.times()
        return times.children_user + times.children_system

    return seconds


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """Return the package torchvision, with or without its compiled operators."""
    return _import_peer("torchvision")


@pytest.fixture(scope="session")
def ptlflow(torchvision: Any) -> Any:  # noqa: ARG001 - it imports torchvision
    """Return the package ptlflow; its models come from ``ptlflow.get_model(name)``."""
    return _import_peer("ptlflow")


# Keeps the operators that it defines registered.
_libraries: list[Any] = []


def _import_peer(name: str) -> Any:
    """Import a package of tests/peers.txt without its output and warnings, or skip."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install --no-deps -r tests/peers.txt)")
    _declare_torchvision_operators()
    output = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _declare_torchvision_operators() -> None:
    """Declare the operators that torchvision's import requires if its library does not fit this PyTorch."""
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
