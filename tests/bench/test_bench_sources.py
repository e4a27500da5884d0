"""Stored results name the files that decide them: those of the networks that they measured, and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.code_changes import SUFFIXES
from benchmarks.sources import CPU_KERNELS, KERNELS, list_sources
from benchmarks.stored import RESULTS
from fullfield.models.prepared import PreparedFlowCache
from fullfield.models.weights import NETWORKS, build_random_model
from fullfield.ops._fused import reference

ROOT = Path(__file__).resolve().parents[2]
FILES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.*") if path.suffix in SUFFIXES]
NETWORK_FILES = {path for path in FILES if path.startswith(("src/fullfield/models/raft/", "src/fullfield/models/sea_"))}
DEPTHWISE = "src/fullfield/ops/_fused/depthwise.cu"
CASCADE = "src/fullfield/models/cascade.py"


def list_of(bench: str, *networks: str, rows: tuple[str, ...] = ("fast",), on_gpu: bool = True) -> list[str]:
    cases = [{"label": f"{network} 64×48", "rows": [{"name": row} for row in rows]} for network in networks]
    return list_sources({"bench": bench, "cases": cases}, on_gpu=on_gpu)


@pytest.mark.parametrize(("bench", "classes"), [("models", ("network", "prepared")), ("training", ("network",))])
@pytest.mark.parametrize("network", ["raft", "fullfield-s"])
def test_sources_are_modules_that_network_imports(network: str, bench: str, classes: tuple[str, ...]) -> None:
    program = f"""
import sys
from fullfield.models.{"sea_raft" if "sea" in NETWORKS[network].network else "raft"}.config import *
from fullfield.models import raft
for name in {[getattr(NETWORKS[network], name).partition(":")[0] for name in classes]}:
    __import__(name)
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("fullfield.models.")))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {Path(name).relative_to(ROOT).as_posix() for name in ran.stdout.split()}
    listed = list_of(bench, network)
    named = {path for path in NETWORK_FILES if any(fnmatchcase(path, source) for source in listed)}
    assert named == imported & NETWORK_FILES


@pytest.mark.parametrize("network", ["raft", "raft-small", "fullfield-s", "sea-raft-s"])
def test_depthwise_kernel_is_source_of_networks_that_run_it(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[str]()
    convolve = reference.convolve_depthwise_and_normalize

    def record_call(*arguments: Any) -> None:
        ran.append("depthwise")
        convolve(*arguments)

    monkeypatch.setattr(reference, "convolve_depthwise_and_normalize", record_call)
    with torch.no_grad():
        PreparedFlowCache(build_random_model(network, seed=0), "fast")(*torch.rand(2, 1, 3, 64, 64), updates=1)
    assert (DEPTHWISE in list_of("models", network)) == bool(ran)
    assert DEPTHWISE not in list_of("models", network, on_gpu=False)


def test_sources_follow_cases_and_rows() -> None:
    assert DEPTHWISE in list_of("models", "raft", "sea-raft-m")
    assert DEPTHWISE in list_of("training", "raft", "fullfield-s")
    assert DEPTHWISE not in list_of("training", "raft")
    assert CASCADE not in list_of("models", "raft")
    assert CASCADE in list_of("models", "raft", rows=("fast", "fast, cascaded"))
    assert list_sources({"cases": []}, on_gpu=True) == []


@pytest.mark.parametrize("bench", sorted(KERNELS))
def test_sources_hold_headers_that_listed_modules_read(bench: str) -> None:
    cases = [{"label": network, "rows": []} for network in ("raft", "sea-raft-m")]
    listed = list_sources({"bench": bench, "cases": cases}, on_gpu=True)
    modules = [path for path in FILES if path.endswith(".py") and any(fnmatchcase(path, one) for one in listed)]
    text = "".join((ROOT / path).read_text("utf-8") for path in modules)
    headers = {path.stem: path.relative_to(ROOT).as_posix() for path in (ROOT / "src/fullfield/_kernels").glob("*.cuh")}
    read = {name for name, path in headers.items() if re.search(rf"\b{name.upper()}\b(?!=)", text)}
    assert {headers[name] for name in read} - set(listed) == set()


@pytest.mark.parametrize("bench", sorted(KERNELS))
def test_sources_exist(bench: str) -> None:
    sources = [*KERNELS[bench], *CPU_KERNELS.get(bench, ())]
    assert [source for source in sources if not any(fnmatchcase(path, source) for path in FILES)] == []


def test_stored_results_name_sources_of_what_they_measured() -> None:
    differing = []
    for path in sorted(RESULTS.glob("*.json")):
        stored = json.loads(path.read_text("utf-8"))
        if stored.get("bench") is None:
            continue
        listed = list_sources(stored, on_gpu="gpu" in stored["environment"])
        if [source.partition("@")[0] for source in stored["sources"]] != listed:
            differing.append(path.name)
    assert differing == []
