"""Launching compiled kernels, as far as no GPU is needed."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fullfield._kernels import Missing
from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield._kernels.structures import CStructures
from fullfield.ops import _launching
from fullfield.ops.spatial_correlation import protocol as spatial_correlation
from fullfield.ops.tvl1 import TVL1Config
from fullfield.ops.tvl1.api import SOLVERS

PARAMS = CStructures("struct Params { void *data; i64 count; };")["Params"]
GPU = _launching.GpuProperties(-1, "none", "sm_80", 1, 99 << 10)


class Recorder(LibraryCache):
    """Loads nothing, notes what is launched."""

    def __init__(self) -> None:
        super().__init__("nothing")
        self.launched: list[tuple[object, ...]] = []
        self.allowed: list[int] = []

    def load(self, sources: object, arch: object, device: object) -> list[object]:  # type: ignore[override]
        recorder = self

        class Kernel:
            def raise_shared_memory_limit(self, _: int, size: int) -> None:
                recorder.allowed.append(size)

            def launch(self, *arguments: object) -> None:
                recorder.launched.append((sources, arch, device, *arguments[:6]))

        return [{"double": Kernel()}]


@pytest.fixture
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launching, "get_gpu_properties", lambda _: GPU)
    monkeypatch.setattr(_launching, "current_device", lambda: -1)
    monkeypatch.setattr(_launching, "raw_stream", lambda _: 7)


@pytest.fixture
def clear_caches() -> Iterator[Callable[[], None]]:
    """Function that clears what is known of the machine's GPUs; also called before and after the test."""

    def clear() -> None:
        _launching._explain_unsupported_gpu.cache_clear()
        _launching._get_rocm_gpu_name.cache_clear()

    clear()
    yield clear
    clear()


def test_explain_refusal_names_devices_without_kernels(
    monkeypatch: pytest.MonkeyPatch, clear_caches: Callable[[], None]
) -> None:
    assert _launching.explain_unsupported_device(torch.device("cpu")) == "runs on NVIDIA GPUs, the tensors are on cpu"
    for device in (torch.device("cuda"), torch.device("cuda:3")):
        clear_caches()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert _launching.explain_unsupported_device(device) == "no NVIDIA GPU or driver was found"
        clear_caches()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
        assert _launching.explain_unsupported_device(device) == "needs compute capability 7.5, got 7.0"


@pytest.mark.usefixtures("clear_caches")
def test_explain_refusal_names_rocm_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "AMD Instinct MI300X")
    reason = _launching.explain_unsupported_device(device)
    assert reason == "runs on NVIDIA GPUs, the tensors are on AMD Instinct MI300X (ROCm)"
    window = spatial_correlation.WindowRequest(
        spatial_correlation.DisplacementWindow((3, 3)), (4, 5), torch.float32, device
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spatial_correlation.SAMPLERS.choose(None, window) == "reference"
        assert SOLVERS.choose(None, device, torch.float32, TVL1Config()) == "reference"


def test_multiplies_bfloat16_requires_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    reason = _launching.explain_missing_bfloat16(torch.device("cuda", 0))
    assert reason == "needs compute capability 8.0 for bfloat16, got 7.5"
    assert isinstance(reason, Missing)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert _launching.explain_missing_bfloat16(torch.device("cuda", 0)) is None
    turing, ampere, hopper = (_launching.GpuProperties(0, "", arch, 1, 1) for arch in ("compute_75", "sm_80", "sm_90a"))
    assert [gpu.capability for gpu in (turing, ampere, hopper)] == [75, 80, 90]
    assert [gpu.has_bfloat16_tensor_cores for gpu in (turing, ampere, hopper)] == [False, True, True]


def test_explain_refusal_in_compiled_code_does_not_warn() -> None:
    """Of a cached function that is traced Dynamo warns, and warnings are errors here."""

    def asking(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if _launching.explain_unsupported_device(torch.device("cuda", 0)) is None else x + 2

    _launching._explain_unsupported_gpu.cache_clear()
    found = torch.compile(asking, fullgraph=True, backend="eager")(torch.zeros(1))
    assert float(found) == 2 - torch.cuda.is_available()


@pytest.mark.usefixtures("_no_device")
def test_launch_refuses_too_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    libraries = Recorder()
    kernels = _launching.load_kernels(libraries, KernelSource("text"), -1)
    assert _launching.load_kernels(libraries, KernelSource("text"), -1) is kernels
    for blocks in (1, 2, 0):
        kernels.launch("double", blocks, 256, PARAMS())
    assert [one[3] for one in libraries.launched] == [(1, 1), (2, 1)]
    assert libraries.launched[0][4:8] == (256, 0, -1, 7)
    with pytest.raises(ValueError, match="double: expected at most 2147483647 blocks"):
        kernels.launch("double", 2**32, 256, PARAMS())


@pytest.mark.usefixtures("_no_device")
@pytest.mark.parametrize("current", [-1, 1])
def test_launch_switches_to_its_device(monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    switched: list[int] = []
    monkeypatch.setattr(_launching, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", lambda index: switched.append(index) or torch.no_grad())
    kernels = _launching.load_kernels(Recorder(), KernelSource("text"), -1)
    switched.clear()  # they were loaded on it
    kernels.launch("double", 1, 256, PARAMS())
    assert switched == ([] if current == -1 else [-1])


@pytest.mark.usefixtures("_no_device")
def test_launch_rows_sets_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    libraries, source = Recorder(), KernelSource("text")
    kernels = _launching.load_kernels(libraries, source, -1)
    for blocks, rows in ((5, 3), (5, 0), (0, 3)):
        kernels.launch("double", blocks, 256, PARAMS(), grid_rows=rows)
    assert [one[3] for one in libraries.launched] == [(5, 3)]


@pytest.mark.usefixtures("_no_device")
def test_prepared_launch_copies_parameters() -> None:
    libraries, params, beside = Recorder(), PARAMS(), ctypes.c_int(3)
    at = ctypes.addressof(beside)
    launch = _launching.Launch(
        _launching.load_kernels(libraries, KernelSource("text"), -1), "double", 7, 64, params, 100 << 10, at, early=True
    )
    launch(5)
    (made,) = libraries.launched
    *how, arguments = made[3:]
    assert how == [(7, 1), 64, 100 << 10, -1, 5]
    assert list(arguments) == [ctypes.addressof(params), at]  # type: ignore[call-overload]
    assert libraries.allowed == [100 << 10]
    assert (launch.blocks, launch.params) == (7, params)


def test_get_address_and_read_source_return_values(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    params = PARAMS(_launching.get_address(tensor), 5)
    assert (params.data, params.count) == (tensor.data_ptr(), 5)
    assert PARAMS(_launching.get_address(None), 0).data is None
    for name in "ab":
        (tmp_path / name).write_text(name)
    assert _launching.read_source(tmp_path / "a", tmp_path / "b") == "ab"
