"""The command as a process: how fast it starts, what it imports, odd environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-m", "fullfield")


def test_flow_usage_error_imports_no_torch(scene: Path, get_child_cpu_seconds: Callable[[], float]) -> None:
    start = get_child_cpu_seconds()
    ran = subprocess.run(
        [*COMMAND, "flow", "a.png", "none.png", "-o", "c.flo"], capture_output=True, text=True, cwd=scene
    )
    assert ran.returncode == 2
    assert ran.stderr == "fullfield: error: none.png: no such file; check the path given as B\n"
    assert get_child_cpu_seconds() - start < 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
def test_flow_works_without_stdin_home_or_utf8(scene: Path) -> None:
    kept = ("PATH", "LD_LIBRARY_PATH", "FULLFIELD_CACHE_DIR", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["LC_ALL"] = "C"
    (scene / "première.png").write_bytes((scene / "a.png").read_bytes())
    line = f"'{sys.executable}' -m fullfield flow première.png b.png -o 'après.exr' --preset fast --json <&- 2>&-"
    ran = subprocess.run(line, shell=True, capture_output=True, env=environment, cwd=scene)
    assert ran.returncode == 0
    report: dict[str, Any] = json.loads(ran.stdout.decode("ascii"))
    assert report["output"] == "après.exr"
    assert (scene / "après.exr").is_file()


@pytest.mark.skipif(os.name == "nt", reason="POSIX streams")
def test_flow_error_is_escaped_for_ascii_stderr(scene: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    line = f"'{sys.executable}' -m fullfield flow a.png 'née.png' -o c.flo >&-"
    ran = subprocess.run(line, shell=True, capture_output=True, env=environment, cwd=scene)
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"fullfield: error: n\\xe9e.png: no such file")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_score_ends_without_traceback_when_stdout_closes(scene: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*COMMAND, "score", "close.flo", "truth.flo"], stdout=writer, stderr=subprocess.PIPE, cwd=scene
    )
    os.close(writer)
    assert ran.returncode == 141
    assert ran.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_commands_survive_full_streams(scene: Path) -> None:
    with Path("/dev/full").open("w") as full:
        weights = [*COMMAND, "weights", "list"]  # a report of a command that does not import PyTorch
        ran = subprocess.run(weights, stdout=full, stderr=subprocess.PIPE, text=True, cwd=scene)
        assert ran.returncode == 2
        assert ran.stderr == "fullfield: error: stdout: cannot write: No space left on device\n"
        assert subprocess.run([*COMMAND, "flow", "a.png", "none.png"], stderr=full, cwd=scene).returncode == 2


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are told by /proc")
def test_main_ends_child_processes(tmp_path: Path) -> None:
    """As the workers of a training do that something still refers to when it is done."""
    script = tmp_path / "verb.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from fullfield.cli import main\n"
        "def verb():\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=time.sleep, args=(60,), daemon=True)\n"
        "    worker.start()\n"
        "    print(worker.pid)\n"
        "    return 1\n"
        "if __name__ == '__main__':\n"
        "    main.main = verb\n"
        "    main.console()\n"
    )
    ran = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert ran.returncode == 1
    assert not Path("/proc", ran.stdout.strip(), "stat").exists()
