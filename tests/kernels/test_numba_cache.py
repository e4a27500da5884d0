"""The compile cache: where it lies, what a cold start says, many processes at once, nowhere to write."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullfield._kernels import cache_folder, numba_cache

SOLVE = """
import time
import torch
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
frames = torch.rand(2, 1, 1, 40, 50, generator=torch.Generator().manual_seed(0))
flow = TVL1Solver(40, 50, TVL1Config.from_preset("fast"))(*frames)
print(float(flow.abs().mean()), time.process_time())
"""
# What keeps, shares and announces is the same for every operator's kernels: a few are enough.
FEW = str(Path(__file__).with_name("few_kernels.py"))
RUN_FEW = f"import runpy\nrunpy.run_path({FEW!r}, run_name='__main__')"
FOUND = "[0.0, 0.5, 2.0]\n"


def start(script: list[str], cache: str, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "FULLFIELD_CACHE_DIR": cache, **more}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *script], env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def test_numba_kernels_announce_compilation_once(tmp_path: Path) -> None:
    out, messages = finish(start([FEW], str(tmp_path), FULLFIELD_QUIET=""))
    assert out == FOUND
    assert messages.startswith("fullfield: compiling ")
    assert messages.count("for this CPU, once ...\nfullfield: compiled in ") == 1
    assert finish(start([FEW], str(tmp_path), FULLFIELD_QUIET="")) == (FOUND, "")


@pytest.mark.long
def test_tvl1_solver_compiles_within_fifteen_seconds(tmp_path: Path) -> None:
    cold, messages = finish(start(["-c", SOLVE], str(tmp_path / "cache")))
    assert messages.startswith("fullfield: compiling TV-L1 kernels for this CPU, once ...\nfullfield: compiled in ")
    warm, messages = finish(start(["-c", SOLVE], str(tmp_path / "cache")))
    assert messages == ""
    (cold_flow, cold_seconds), (warm_flow, warm_seconds) = cold.split(), warm.split()
    assert warm_flow == cold_flow
    assert float(cold_seconds) - float(warm_seconds) <= 15


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], numba_cache.KernelModule]:
    """Return a function that makes the few kernels as a new process has them, with a cache in ``tmp_path``."""
    pytest.importorskip("numba")
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    monkeypatch.syspath_prepend(str(Path(FEW).parent))

    def make() -> numba_cache.KernelModule:
        sys.modules.pop("few_kernels", None)
        return numba_cache.KernelModule("few_kernels", "a few kernels")

    return make


def test_start_compiling_fills_cache_in_second_process(
    few: Callable[[], numba_cache.KernelModule], capsys: pytest.CaptureFixture[str]
) -> None:
    cold = few()
    cold.start_compiling_process_if_cold()
    module = cold()
    assert not cold.is_compiling
    assert sum(module.squares.stats.cache_hits.values()) == 1
    assert capsys.readouterr().err == "fullfield: compiling a few kernels for this CPU in a second process, once ...\n"
    few().start_compiling_process_if_cold()
    assert capsys.readouterr().err == "", "the cache is warm"


def test_kernels_compile_in_caller_after_second_process_dies(
    few: Callable[[], numba_cache.KernelModule], capsys: pytest.CaptureFixture[str]
) -> None:
    cold = few()
    cold.start_compiling_process_if_cold()
    assert cold._process is not None
    cold._process.kill()
    module = cold()
    assert sum(module.squares.stats.cache_misses.values()) == 1
    assert "compiling a few kernels for this CPU, once ..." in capsys.readouterr().err


def test_numba_cache_is_shared_by_concurrent_processes(tmp_path: Path) -> None:
    both = [start([FEW], str(tmp_path), FULLFIELD_QUIET="1") for _ in range(2)]
    assert [finish(process) for process in both] == [(FOUND, "")] * 2
    assert len(list(tmp_path.glob("numba-*/*.compiled"))) == 1


def test_numba_cache_is_shared_by_two_kinds_of_processor(tmp_path: Path) -> None:
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    both = [start([FEW], str(tmp_path), FULLFIELD_QUIET="1", **more) for more in ({}, other, {}, other)]
    assert [finish(process) for process in both] == [(FOUND, "")] * 4
    for more in ({}, other):  # an index that one lost to the other is completed here
        assert finish(start([FEW], str(tmp_path), FULLFIELD_QUIET="1", **more)) == (FOUND, "")
    (index,) = tmp_path.glob("numba-*/*/few_kernels.halves*.nbi")
    assert len(list(index.parent.glob("few_kernels.halves*.nbc"))) == 2


def test_numba_cache_keeps_code_apart_when_indices_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    kind = numba_cache._create_checksummed_file_class(())
    one, other = (kind(str(tmp_path), "kernel", 1) for _ in range(2))
    save_code = one._save_data

    def save_after_other(name: str, data: Any) -> None:
        monkeypatch.setattr(other, "_load_index", dict)  # as it was before the first had written
        other.save(("types", "other processor"), "other code")
        save_code(name, data)

    monkeypatch.setattr(one, "_save_data", save_after_other)
    one.save(("types", "processor"), "code")
    monkeypatch.undo()
    assert one.load(("types", "processor")) in ("code", None)
    assert one.load(("types", "other processor")) == "other code"


def test_numba_cache_skips_unwritable_folders(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    out, messages = finish(start([FEW], str(blocked / "cache"), TMPDIR=str(tmp_path)))
    assert out == FOUND
    assert "for this CPU, once" in messages
    assert list(tmp_path.glob("fullfield-*/numba-*/*.compiled"))


def test_numba_kernels_work_without_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "try_create_private_writable_folder", lambda _: False)
    assert numba_cache.find_or_create_numba_cache_folder_or_none(__file__) is None
    refuse = "cache_folder.try_create_private_writable_folder = lambda _: False"
    script = f"from fullfield._kernels import cache_folder\n{refuse}\n{RUN_FEW}"
    out, messages = finish(start(["-c", script], str(tmp_path)))
    assert out == FOUND
    assert "in every process: no cache folder can be written" in messages
    assert not any(tmp_path.iterdir())


def test_complete_cache_needs_no_temporary_folder(tmp_path: Path) -> None:
    """As in a container whose file system is read-only, where Python finds no temporary folder."""
    script = f"""
import tempfile
def refuse(dir=None):
    raise FileNotFoundError("No usable temporary directory found")
tempfile.gettempdir = tempfile.TemporaryFile = refuse
{RUN_FEW}
"""
    (tmp_path / "file").touch()
    out, messages = finish(start(["-c", script], str(tmp_path / "file" / "cache"), FULLFIELD_QUIET=""))
    assert out == FOUND
    assert "in every process: no cache folder can be written" in messages
    finish(start([FEW], str(tmp_path / "cache")))
    assert finish(start(["-c", script], str(tmp_path / "cache"), FULLFIELD_QUIET="")) == (FOUND, "")


def test_announcement_knows_read_only_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container image that was built on another processor."""
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    for is_writable, times in ((True, "once ..."), (False, "in every process: no cache folder can be written ...")):
        monkeypatch.setattr(os, "access", lambda *_, allowed=is_writable: allowed)
        with cache_folder.announce_and_time_compilation("a few kernels", "this CPU", tmp_path):
            pass
        assert capsys.readouterr().err.startswith(f"fullfield: compiling a few kernels for this CPU, {times}\n")


def test_find_cache_folder_changes_with_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "kernels.py"
    source.write_text("a = 1\n")
    first = numba_cache.find_or_create_numba_cache_folder_or_none(str(source))
    assert first == numba_cache.find_or_create_numba_cache_folder_or_none(str(source))
    source.write_text("a = 2\n")
    second = numba_cache.find_or_create_numba_cache_folder_or_none(str(source))
    assert first is not None
    assert second is not None
    assert first != second
    assert first.parent == second.parent == tmp_path / "cache"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_try_create_private_folder_refuses_folder_of_other_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder.try_create_private_writable_folder(tmp_path)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert not cache_folder.try_create_private_writable_folder(tmp_path)


def test_cache_compiled_code_restores_numba_setting(tmp_path: Path) -> None:
    config = pytest.importorskip("numba").config
    before = config.CACHE_DIR
    with numba_cache.cache_compiled_code(tmp_path):
        assert str(tmp_path) == config.CACHE_DIR
    assert before == config.CACHE_DIR


# Run the few kernels, become another user where that is possible, who perhaps cannot import, and run them again.
READ_ONLY = """
import os, runpy, sys
os.environ["FULLFIELD_CACHE_DIR"] = sys.argv[3]
runpy.run_path(sys.argv[1], run_name="__main__")
os.environ["FULLFIELD_CACHE_DIR"] = sys.argv[2]
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
kernels = runpy.run_path(sys.argv[1], run_name="__main__")
print(*(sum(kernels[name].stats.cache_hits.values()) for name in ("squares", "halves")))
"""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_numba_cache_is_used_by_user_who_cannot_write(tmp_path: Path) -> None:
    """As in a container image that root built, whose process is another user's."""
    top = Path(tempfile.mkdtemp(prefix="ff-")).resolve()  # pytest's folders are their user's alone
    try:
        top.chmod(0o755)
        kernels = shutil.copy(FEW, top / "few_kernels.py")
        for cache in (top / "cache", tmp_path):
            finish(start([str(kernels)], str(cache)))
        (folder,) = (top / "cache").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
        (top / "tmp").mkdir()
        paths = [folder, *folder.rglob("*")]
        modes = {path: stat.S_IMODE(path.stat().st_mode) & ~(0o022 if os.getuid() == 0 else 0o222) for path in paths}
        for path, mode in modes.items():
            path.chmod(mode)

        def run() -> str:
            script = ["-c", READ_ONLY, str(kernels), str(top / "cache"), str(tmp_path)]
            out, messages = finish(start(script, "", TMPDIR=str(top / "tmp"), FULLFIELD_QUIET=""))
            _, found, hits = out.splitlines()
            assert found == FOUND.strip()
            assert "compiling" not in messages
            return hits

        assert run() == "1 1", "without another folder"
        (top / "tmp").chmod(0o1777)
        assert run() == "1 1"
        (damaged,) = folder.rglob("*squares*.nbi")
        damaged.chmod(0o644)
        damaged.write_bytes(b"")
        damaged.chmod(modes[damaged])
        assert run() == "0 1", "one kernel is compiled and kept in the temporary folder"
        assert run() == "1 1"
    finally:
        for path in top.rglob("*"):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(top)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_read_only_folders_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "kernels"
    assert cache_folder.list_trusted_folders_before_writable("kernels", None) == []
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "code").touch()
    for path in (folder, folder / "below", folder / "below" / "code", folder.parent):
        path.chmod(0o755)
        assert cache_folder.list_trusted_folders_before_writable("kernels", None) == [folder]
        for mode in (0o775, 0o757):
            path.chmod(mode)
            assert cache_folder.list_trusted_folders_before_writable("kernels", None) == [], path
        path.chmod(0o755)
    if os.getuid() == 0:
        for path in (folder, folder / "below" / "code", folder.parent):
            os.chown(path, 12345, 12345)
            assert cache_folder.list_trusted_folders_before_writable("kernels", None) == [], path
            os.chown(path, 0, 0)
    (folder / "link").symlink_to(folder / "below" / "code")
    assert cache_folder.list_trusted_folders_before_writable("kernels", None) == []
    (folder / "link").unlink()
    assert cache_folder.list_trusted_folders_before_writable("kernels", None) == [folder]


def test_numba_kernels_run_in_folder_that_becomes_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    with numba_cache.cache_compiled_code(tmp_path / "kept"):
        function = numba.njit(cache=True)(_doubled)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").touch()
    assert function(21) == 42


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 16]) + content[len(content) // 2 + 1 :]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda _: b"", _cut, _flipped], ids=["empty", "cut", "flipped"])
def test_numba_cache_recompiles_damaged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str, damage: Any
) -> None:
    """numba itself raises EOFError, UnpicklingError and more, or crashes, at every call until the file is gone."""
    numba = pytest.importorskip("numba")
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    monkeypatch.setattr(numba_cache, "_SAID", set())

    def compiled() -> Any:
        with numba_cache.cache_compiled_code(tmp_path / "kept"):
            function = numba.njit(cache=True)(_doubled)
        function.compile("(int64,)")
        assert function(21) == 42
        return function

    compiled()
    assert sum(compiled().stats.cache_hits.values()) == 1
    (path,) = (tmp_path / "kept").rglob(f"*.{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    capsys.readouterr()
    assert sum(compiled().stats.cache_misses.values()) == 1
    assert capsys.readouterr().err == f"fullfield: {path}: damaged; its kernels are compiled again\n"
    assert sum(compiled().stats.cache_hits.values()) == 1
    assert capsys.readouterr().err == ""


def _doubled(x: int) -> int:
    return x * 2


def test_numba_kernels_run_on_full_disk(tmp_path: Path) -> None:
    """Here no file may grow beyond 3 kB."""
    pytest.importorskip("resource")
    script = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n{RUN_FEW}"
    out, messages = finish(start(["-c", script], str(tmp_path)))
    assert out == FOUND
    (line,) = (line for line in messages.splitlines() if "compil" not in line.split(":")[1][:8])
    assert str(tmp_path) in line
    assert "cannot keep compiled kernels (File too large)" in line


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_try_create_private_folder_refuses_shared_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    top = cache_folder._get_user_temporary_folder_or_none()
    assert top is not None
    assert cache_folder.try_create_private_writable_folder(top / "numba")
    assert stat.S_IMODE(top.stat().st_mode) == stat.S_IMODE((top / "numba").stat().st_mode) == 0o700
    for path, mode in ((top / "numba", 0o770), (top, 0o755), (tmp_path / "tmp", 0o777), (tmp_path / "tmp", 0o775)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        assert not cache_folder.try_create_private_writable_folder(top / "numba"), path
        path.chmod(before)
        assert cache_folder.try_create_private_writable_folder(top / "numba")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (top / "link").symlink_to(elsewhere)
    assert not cache_folder.try_create_private_writable_folder(top / "link")
    if os.getuid() == 0:  # a parent of somebody else's
        os.chown(top, 12345, 12345)
        assert not cache_folder.try_create_private_writable_folder(top / "numba")


def test_compile_all_accepts_kernels_of_other_modules(tmp_path: Path) -> None:
    from numba import types

    shared = numba_cache.create_jit_decorator(tmp_path)(_twice)
    for what in ("first kernels", "second kernels"):
        numba_cache.compile_or_load_all_and_mark_warm({"twice": (shared, (types.float32,))}, tmp_path, what)
    assert shared(2.0) == 4.0
    assert len(shared.overloads) == 1


def _twice(x: Any) -> Any:
    return 2 * x
