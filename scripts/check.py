"""Everything CI checks, step by step: lint, format, types, examples, tests.

python scripts/check.py                  all steps; stops at the first that fails
python scripts/check.py tests -k tvl1    one step; what follows is passed on to it
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORES = os.cpu_count() or 1
# The tests of a GPU measure its memory and how long it is waited for: one process has it for itself.
PROCESSES = 0 if shutil.which("nvidia-smi") else min(CORES, 8)
TOOLS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "tests": ["pytest", f"--numprocesses={PROCESSES}", "--dist=worksteal"],
}
STEPS = ("lint", "format", "types", "examples", "tests")


def commands(step: str, further: list[str]) -> list[list[str]]:
    """Of examples one each."""
    if step == "examples":
        return [[os.fspath(script)] for script in sorted((ROOT / "examples").glob("*.py"))]
    return [["-m", *TOOLS[step], *further]]


def run(command: list[str]) -> tuple[int, str]:
    """The exit code, and what was said where it was not said at once; examples run in a folder of their own."""
    tool, tests = command[0] == "-m", command[:2] == ["-m", "pytest"]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT if tool else folder,
            stdout=None if tests else subprocess.PIPE,
            stderr=None if tests else subprocess.STDOUT,
            text=True,
            check=False,
        )
    result = f"{'FAILED' if done.returncode else 'passed'} in {time.perf_counter() - start:.0f} s"
    return done.returncode, f"$ {' '.join(command)}\n{done.stdout or ''}{result}"


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in STEPS:
        print(f"expected one of {', '.join(STEPS)}, got {arguments[0]!r}", file=sys.stderr)
        return 2
    wanted = arguments[:1] or STEPS
    before = [command for step in wanted if step != "tests" for command in commands(step, arguments[1:])]
    after = commands("tests", arguments[1:]) if "tests" in wanted else []
    for jobs, at_once in ((before, CORES), (after, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            for code, said in pool.map(run, jobs):
                print(said, flush=True)
                if code:
                    pool.shutdown(cancel_futures=True)
                    return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
