"""The compiler of the GPU kernels: its errors, its cache on disk, where it is found, and launches."""

from __future__ import annotations

import ctypes
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from assembled import compiled, said_of
from test_resources import ARCHS, build_lookup_request, get_device_gpu_properties, needs_nvrtc

from fullfield._kernels import cache_folder, nvrtc
from fullfield._kernels.nvrtc import Compiler, KernelError, KernelSource
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.tvl1.cuda import passes as tvl1

TRIVIAL = KernelSource('extern "C" __global__ void nothing(int *to) { *to = VALUE; }', ("-DVALUE=1",))


@needs_nvrtc
@pytest.mark.parametrize("arch", [ARCHS[0], ARCHS[-1]])
def test_assembled_json_matches_compiler(arch: str) -> None:
    lookups = shapes.choose_forward_config(build_lookup_request(), get_device_gpu_properties(arch))
    for source in (tvl1.generate_pyramid_source(), shapes.generate_coords_gradient_source(lookups, 0)):
        assert said_of(source, arch) == compiled(source, arch)


@needs_nvrtc
def test_nvrtc_compile_error_contains_compiler_log() -> None:
    with pytest.raises(KernelError, match=r"cannot compile for sm_80: .*fullfield.cu\(1\): error"):
        nvrtc.load_nvrtc().compile(KernelSource("nonsense"), "sm_80")


@needs_nvrtc
def test_choose_target_follows_device_and_compiler() -> None:
    compiler = nvrtc.load_nvrtc()
    assert compiler.choose_compilation_target((9, 0)) == "sm_90a"
    assert compiler.choose_compilation_target((8, 7)) == "sm_87"
    assert compiler.choose_compilation_target((99, 0)) == f"compute_{max(compiler.archs)}"
    assert compiler.compile(TRIVIAL, compiler.choose_compilation_target((99, 0)))[0].startswith(b"//")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    return tmp_path / "cache" / "nvrtc"


@needs_nvrtc
def test_compiler_caches_code_and_announces_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sources = [TRIVIAL, KernelSource(TRIVIAL.text, ("-DVALUE=2",))]
    codes = Compiler("sm_80", "test kernels").compile(sources)
    messages = capfd.readouterr().err
    assert messages.startswith("fullfield: compiling test kernels for sm_80, once ...\nfullfield: compiled in ")
    assert codes[0] != codes[1]
    assert len(list(cache.iterdir())) == 2
    assert Compiler("sm_80", "test kernels").compile(sources) == codes
    assert capfd.readouterr().err == ""
    assert Compiler("sm_90a", "test kernels").compile(sources) != codes


@needs_nvrtc
def test_compiler_recompiles_damaged_code(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (code,) = Compiler("sm_80", "test kernels").compile([TRIVIAL])
    (kept,) = cache.iterdir()
    capfd.readouterr()
    for damage in (b"", kept.read_bytes()[:-1], b"\0" * 100):
        kept.write_bytes(damage)
        assert Compiler("sm_80", "test kernels").compile([TRIVIAL]) == [code]
        assert f"{kept}: damaged" in capfd.readouterr().err


@needs_nvrtc
def test_compiler_reports_unwritable_cache(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compiler = Compiler("sm_80", "test kernels")
    cache.rmdir()  # meanwhile
    assert compiler.compile([TRIVIAL])[0]
    assert f"{cache}/" in (messages := capfd.readouterr().err)
    assert "cannot keep compiled kernels (No such file or directory)" in messages


@needs_nvrtc
def test_compiler_processes_share_cold_cache(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: Compiler("sm_80", "test kernels").compile([TRIVIAL]), range(8)))
    assert all(code == codes[0] for code in codes)
    assert len(list(cache.iterdir())) == 1


@needs_nvrtc
def test_compiler_works_without_writable_folder(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    monkeypatch.setattr(cache_folder, "try_create_private_writable_folder", lambda _: False)
    assert Compiler("sm_80", "test kernels").compile([TRIVIAL])[0]
    assert "in every process: no cache folder can be written" in capfd.readouterr().err
    assert not cache.exists()


@needs_nvrtc
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_compiler_reads_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    codes = Compiler("sm_80", "test kernels").compile([TRIVIAL])
    (kept,) = cache.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o644
    capfd.readouterr()
    monkeypatch.setattr(cache_folder, "try_create_private_writable_folder", lambda _: False)
    assert Compiler("sm_80", "test kernels").compile([TRIVIAL]) == codes
    assert capfd.readouterr().err == ""


def test_explain_refusal_names_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "iterate_candidate_nvrtc_libraries", lambda: iter(("libnvrtc-of-nobody.so",)))
    monkeypatch.setattr(nvrtc, "_open_nvrtc_by_pathfinder_or_none", lambda: None)
    nvrtc._load_newest_nvrtc_or_none.cache_clear()
    try:
        assert re.match(
            r"NVRTC for CUDA \d+ or older was not found \(pip install 'fullfield\[cuda13\]'",
            nvrtc.explain_missing_nvrtc() or "",
        )
    finally:
        nvrtc._load_newest_nvrtc_or_none.cache_clear()


def test_list_candidate_libraries_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's wheels for CUDA 13 and 12, and PyTorch's own folder, by the names of this system."""
    names = [nvrtc._list_nvrtc_file_names(major)[0] for major in (13, 12)]
    places = [tmp_path / "nvidia/cu13/lib" / names[0], tmp_path / "nvidia/cuda_nvrtc/lib" / names[1]]
    places.append(tmp_path / "torch/lib" / names[1])
    for place in places:
        place.parent.mkdir(parents=True)
        place.touch()
    monkeypatch.setattr(nvrtc, "_find_package_folders", lambda name: [tmp_path / name])
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert list(nvrtc.iterate_candidate_nvrtc_libraries()) == [*map(str, places), *names]


def test_nvrtc_launch_structures_match_cuda_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUlaunchConfig and CUlaunchAttribute as cuda.h lays them out; the context is made current where there is none."""
    seen: list[tuple[object, ...]] = []
    current: list[int] = []

    def launch(config: Any, handle: object, _arguments: object, _extra: object) -> int:
        if not current:
            return nvrtc._INVALID_CONTEXT
        at = ctypes.addressof(config._obj)
        attributes, count = ctypes.c_void_p.from_address(at + 40).value, ctypes.c_uint.from_address(at + 48).value
        early = None
        if attributes is not None:
            early = ctypes.c_int.from_address(attributes).value, ctypes.c_int.from_address(attributes + 8).value
        sizes = tuple((ctypes.c_uint * 7).from_address(at))
        seen.append((sizes, ctypes.c_void_p.from_address(at + 32).value, count, early, handle))
        return 0

    monkeypatch.setattr(nvrtc, "ensure_current_cuda_context", current.append)
    kernel = nvrtc.Kernel.__new__(nvrtc.Kernel)
    kernel._handle, kernel._launch = ctypes.c_void_p(5), launch
    kernel.launch((7, 2), 96, 1024, 3, 99, (ctypes.c_void_p * 1)(), True)
    kernel.launch((8, 1), 32, 0, 3, 2**40 + 1, (ctypes.c_void_p * 1)())
    assert seen == [
        ((7, 2, 1, 96, 1, 1, 1024), 99, 1, (6, 1), kernel._handle),
        ((8, 1, 1, 32, 1, 1, 0), 2**40 + 1, 0, None, kernel._handle),
    ]
    assert current == [3]
    assert ctypes.sizeof(nvrtc._Attribute) == 72
    assert ctypes.sizeof(nvrtc._Launch) == 56
