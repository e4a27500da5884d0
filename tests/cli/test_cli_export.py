"""``fullfield export``: what it writes, what it hands on, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullfield.cli import export
from fullfield.ops.correlation.traceable import FORMS

SMALL = ("export", "--method", "raft-small", "--size", "72x64")


def quick_graph() -> Any:
    """A graph of 400 kB in place of a network's, which takes long to export."""
    from onnx import TensorProto, helper, numpy_helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("frame1", "frame2", "flow")]
    node = helper.make_node("Add", ["frame1", "frame2"], ["flow"])
    weights = numpy_helper.from_array(np.zeros(100_000, np.float32), "weights")
    return helper.make_model(helper.make_graph([node], "quick", values[:2], values[2:], [weights]))


def test_export_keeps_old_file_on_full_disk(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on a file's size stands for the full disk. What a killed run left goes."""
    resource, name = pytest.importorskip("resource"), "flow.onnx"
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("fullfield.models.export._export_sections", lambda *_: None)
    monkeypatch.setattr("fullfield.models.export._join_sections", lambda *_: quick_graph())
    Path(name).write_bytes(b"before")
    script = (
        "import os, sys; from fullfield.io import write_atomically\nwith write_atomically(sys.argv[1]): os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, name], check=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        ran = cli(*SMALL, "-o", name, "--weights", "random", "--updates", "1", "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (ran.code, ran.err) == (2, f"fullfield: error: {name}: cannot write: File too large\n")
    assert Path(name).read_bytes() == b"before"
    assert not list(Path().glob(".*"))


def test_export_passes_options_to_exporter(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def noted(model: Any, path: str, *size: int, **options: object) -> None:
        calls.append((model.config.name, path, size, options))
        Path(path).write_bytes(b"graph")

    monkeypatch.setattr("fullfield.models.export.export_onnx", noted)
    monkeypatch.setattr("fullfield.models.export.require_onnx", lambda: None)
    report = cli(*SMALL, "-o", "a.onnx", "--weights", "random", "--json").json
    assert calls.pop() == (
        "raft-small",
        "a.onnx",
        (64, 72),
        {"lookup": "linear", "batch": 1, "updates": None, "dynamic": False},
    )
    assert (report["weights"], report["updates"], report["lookup"], report["bytes"]) == ("random", 32, "linear", 5)
    ran = cli("export", "-o", "a.onnx", "--size", "64x72")
    assert ran.out.startswith("a.onnx: fullfield-m, weights fullfield-m, 64x72, 4 updates")  # no download by default
    assert calls.pop()[0] == "fullfield-m"
    more = ("--weights", "random", "--dynamic", "--lookup", "dense", "--updates", "0", "--batch", "3")
    ran = cli("export", "-o", "a.onnx", "--method", "sea-raft", "--size", "128x136", *more)
    assert ran.out == "a.onnx: sea-raft-m, weights random, multiples of 8 from 128x128, 0 updates, 0.0 MB\n"
    name, _, size, options = calls.pop()
    assert (name, size) == ("sea-raft-m", (136, 128))
    assert options == {"lookup": "dense", "batch": 3, "updates": 0, "dynamic": True}


def test_export_without_onnx_fetches_no_weights(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("fullfield.models.export.find_spec", lambda _: None)
    fetched: list[object] = []
    monkeypatch.setattr("fullfield.models.weights.download_if_missing", lambda *given, **_: fetched.append(given))
    assert "onnx and onnxscript are not installed" in refused(*SMALL, "-o", "flow.onnx")
    assert not fetched


def test_export_options_match_lookup_forms() -> None:
    assert export.LOOKUPS == FORMS
