"""Launching compiled kernels, as far as no GPU is needed."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching

PARAMS = launching.structure("Params", ("data", ctypes.c_void_p), ("count", ctypes.c_longlong))


class Recorder(Libraries):
    """Loads nothing, notes what is launched."""

    def __init__(self) -> None:
        super().__init__("nothing")
        self.launched: list[tuple[object, ...]] = []

    def load(self, sources: object, arch: object, device: object) -> list[object]:  # type: ignore[override]
        recorder = self

        class Kernel:
            def launch(self, *arguments: object) -> None:
                recorder.launched.append((sources, arch, device, *arguments[:5]))

        return [{"double": Kernel()}]


@pytest.fixture
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "arch_of", lambda _: "sm_80")
    monkeypatch.setattr(launching, "raw_stream", lambda _: 7)


def test_where_kernels_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launching.why_not(torch.device("cpu")) == "runs on NVIDIA GPUs, the tensors are on cpu"
    for device in (torch.device("cuda"), torch.device("cuda:3")):
        launching._why_not.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert launching.why_not(device) == "no NVIDIA GPU or driver was found"
        launching._why_not.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        assert launching.why_not(device) == "needs compute capability 8.0, got 7.5"
    launching._why_not.cache_clear()


@pytest.mark.usefixtures("_no_device")
def test_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    libraries, source, like = Recorder(), Source("text"), torch.zeros(3)
    for items in (1, 256, 257, 0):
        launching.launch(libraries, source, "double", items, 256, PARAMS(), like)
    assert [one[3] for one in libraries.launched] == [(1, 1), (1, 1), (2, 1)]
    assert libraries.launched[0][4:] == (256, 0, -1, 7)
    with pytest.raises(ValueError, match="double: expected at most 2147483647 blocks"):
        launching.launch(libraries, source, "double", 2**32, 1, PARAMS(), like)


@pytest.mark.usefixtures("_no_device")
def test_rows_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    libraries, source = Recorder(), Source("text")
    kernels = launching.kernels(libraries, source, 0)
    for blocks, rows in ((5, 3), (5, 0), (0, 3)):
        kernels.launch("double", blocks, 256, PARAMS(), rows=rows)
    assert [one[3] for one in libraries.launched] == [(5, 3)]


def test_parameters(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    params = PARAMS(launching.address(tensor), 5)
    assert (params.data, params.count) == (tensor.data_ptr(), 5)
    assert PARAMS(launching.address(None), 0).data is None
    for name in "ab":
        (tmp_path / name).write_text(name)
    assert launching.read_source(tmp_path / "a", tmp_path / "b") == "ab"
