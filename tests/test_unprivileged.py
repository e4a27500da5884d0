"""What a user without rights meets: files of others, folders that take nothing, no home. Root becomes nobody for it.

One process imports and works through everything as it was started, gives its rights away, and goes through the same
again: what Python is itself may lie where nobody may read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fullfield.io import write_flow, write_image
from fullfield.testing import sample_textured_scene

pytestmark = pytest.mark.skipif(not hasattr(os, "setuid"), reason="no users to become")

_QUICK = ["--method", "tvl1", "--preset", "fast", "--iterations", "2", "--backend", "reference", "-q"]
_COMMANDS: dict[str, list[str]] = {
    "fine": ["flow", "a.png", "b.png", "-o", "out.flo", *_QUICK],
    "frame": ["flow", "a.png", "secret.png", "-o", "out2.flo", *_QUICK],
    "folder": ["flow", "a.png", "b.png", "-o", "locked/out.flo", *_QUICK],
    "file": ["flow", "a.png", "b.png", "-o", "old.flo", *_QUICK],
    "shot": ["shot", "plate.%04d.png", "-o", "mv.%04d.exr", *_QUICK],
    "shot, folder": ["shot", "plate.%04d.png", "-o", "locked/mv.%04d.exr", *_QUICK],
    "shot, blind": ["shot", "seen.%04d.png", "-o", "blind/mv.%04d.exr", *_QUICK],
    "shot, notes": ["shot", "plate.%04d.png", "-o", "noted.%04d.exr", *_QUICK],
    "shot, hidden": ["shot", "hidden/plate.%04d.png", "-o", "none.%04d.exr", *_QUICK],
    "warp": ["warp", "a.png", "--flow", "secret.flo", "-o", "warped.png"],
    "warp, folder": ["warp", "a.png", "--flow", "flow.flo", "-o", "locked/warped.png"],
    "score": ["score", "flow.flo", "secret.flo"],
    "convert": ["convert", "flow.flo", "locked/flow.npy"],
    "viz": ["viz", "secret.flo", "-o", "viz.png"],
    "evaluate": ["evaluate", "tvl1", "pairs:.", "-o", "locked/run", *_QUICK[2:]],
    "evaluate, begun": ["evaluate", "tvl1", "pairs:.", "-o", "begun", *_QUICK[2:]],
    "weights": ["export", "--method", "raft-small", "--weights", "secret.pth", "-o", "net.onnx", "--size", "64x64"],
}
_PROCESS = """
import contextlib, io, json, os, sys
from fullfield._kernels.cache_folder import find_or_create_writable_folder_or_none
from fullfield.cli.main import main
commands = json.loads(sys.argv[1])
def run_commands():
    results = {}
    for name, line in commands.items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            results[name] = [main(line), err.getvalue()]
    return results
os.chdir("before")
run_commands()
os.chdir("..")
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
for name in ("HOME", "XDG_CACHE_HOME", "FULLFIELD_CACHE_DIR"):
    os.environ.pop(name, None)
os.environ["HOME"] = os.path.abspath("locked")
results = run_commands()
folders = []
for chosen in (None, "unowned", "locked"):
    if chosen is not None:
        os.environ["FULLFIELD_CACHE_DIR"] = os.path.abspath(chosen)
    folders.append(str(find_or_create_writable_folder_or_none("kernels")))
taken = os.path.abspath("taken")
import tempfile
tempfile.tempdir = taken
folders.append(str(find_or_create_writable_folder_or_none("kernels")))
print(json.dumps([results, folders, os.geteuid()]))
"""


def _furnish(folder: Path) -> None:
    scene = sample_textured_scene(32, 40, seed=4)
    write_image(folder / "a.png", scene.frame1)
    plates = [f"plate.{number:04d}.png" for number in range(1, 5)]
    for name in ("b.png", "secret.png", "seen.0001.png", "seen.0002.png", *plates):
        write_image(folder / name, scene.frame2)
    for name in ("flow.flo", "old.flo", "secret.flo"):
        write_flow(folder / name, scene.flow)
    (folder / "pairs.txt").write_text("a.png b.png flow.flo\n")
    (folder / "secret.pth").write_bytes(b"PK")
    (folder / "noted.exr.fullfield.json").write_text("{}")
    for name in ("locked", "blind", "begun", "taken", "unowned", "hidden"):
        (folder / name).mkdir()
    shutil.copy(folder / "a.png", folder / "hidden" / "plate.0001.png")
    shutil.copy(folder / "a.png", folder / "hidden" / "plate.0002.png")


@pytest.fixture(scope="module")
def command_results() -> Iterator[tuple[dict[str, list[Any]], list[str], Path]]:
    """Return exit code and errors of every command, the selected cache folders, and the working folder."""
    folder = Path(tempfile.mkdtemp(prefix="ff-"))  # pytest's own are its user's alone
    folder.chmod(0o1777)
    (folder / "before").mkdir()
    _furnish(folder)
    _furnish(folder / "before")
    for name in ("secret.png", "secret.flo", "secret.pth", "plate.0003.png", "noted.exr.fullfield.json", "hidden"):
        (folder / name).chmod(0)
    (folder / "old.flo").chmod(0o444)
    (folder / "taken" / f"fullfield-{65534 if os.geteuid() == 0 else os.getuid()}").mkdir(mode=0o755)
    if os.geteuid() != 0:
        (folder / "taken").chmod(0o555)
        (folder / "taken" / f"fullfield-{os.getuid()}").chmod(0o555)
    for name in ("locked", "begun", "unowned"):
        (folder / name).chmod(0o555)
    (folder / "blind").chmod(0o333)
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROCESS, json.dumps(_COMMANDS)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        commands, folders, user = json.loads(run.stdout)
        assert user != 0
        yield commands, folders, folder
    finally:
        for path in folder.iterdir():
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("frame", "secret.png: Permission denied"),
        ("folder", "--output locked/out.flo: cannot write in folder locked (Permission denied)"),
        ("file", "old.flo: is read-only"),
        ("shot, folder", "cannot write in folder locked (Permission denied)"),
        ("shot, notes", "noted.exr.fullfield.json"),
        ("shot, hidden", "hidden"),
        ("warp", "secret.flo"),
        ("warp, folder", "cannot write in folder locked"),
        ("score", "secret.flo: Permission denied"),
        ("convert", "cannot write in folder locked"),
        ("viz", "secret.flo: Permission denied"),
        ("evaluate", "locked"),
        ("evaluate, begun", "begun"),
        ("weights", "secret.pth"),
    ],
)
def test_commands_name_forbidden_files_in_one_line(command_results: Any, name: str, words: str) -> None:
    code, err = command_results[0][name]
    assert code == 2, err
    errors = [line for line in err.splitlines() if line.startswith("fullfield: error: ")]
    assert len(errors) == 1, err
    assert words in errors[0]
    assert "Traceback" not in err


def test_commands_work_without_home(command_results: Any) -> None:
    commands, folders, folder = command_results
    assert commands["fine"][0] == 0, commands["fine"]
    assert (folder / "out.flo").stat().st_size > 32 * 40 * 8
    user = 65534 if os.geteuid() == 0 else os.getuid()
    mine = str(folder / f"fullfield-{user}" / "kernels")
    assert folders == [mine, mine, mine, "None"], "another's folder is never taken, nor one that cannot be written"


def test_shot_writes_into_unlistable_folder(command_results: Any) -> None:
    commands, _, folder = command_results
    code, err = commands["shot, blind"]
    assert code == 0, err
    assert (folder / "blind" / "mv.0001.exr").is_file()


def test_shot_skips_pairs_of_unreadable_plate(command_results: Any) -> None:
    commands, _, folder = command_results
    code, err = commands["shot"]
    assert code == 2
    assert "plate.0003.png: Permission denied" in err
    assert sorted(path.name for path in folder.glob("mv.*.exr")) == ["mv.0001.exr", "mv.0004.exr"]
