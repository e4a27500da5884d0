"""Everything CI checks: lint, spelling, format, types, kernels for this CPU, tests; and the site with its examples.

python scripts/check/run.py                  all steps; the site and the tests only if the others pass
python scripts/check/run.py tests -k tvl1    one step; what follows is passed on to it
python scripts/check/run.py long             further cases, such as every model of ptlflow; before a release
python scripts/check/run.py gpu FILE.json    the tests of a GPU on this machine's, and a summary with its environment
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORES = os.cpu_count() or 1
GPU = shutil.which("nvidia-smi") is not None
WORKERS = min(CORES, 10)
# A test that hangs fails; if no signal reaches it, its process prints where every thread is and ends. The others go on.
LIMIT = ["--timeout=300", "-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true"]
TESTS = ["pytest", f"--numprocesses={WORKERS}", "--dist=worksteal", "--durations=20", *LIMIT]
TOOLS = {
    "lint": ["ruff", "check", "."],
    "spelling": ["codespell_lib"],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
}
# Tests start a hundred Pythons: without bytecode each would compile every file anew.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
# Every process has its share of the cores, and idle threads sleep, so that they do not slow the other processes.
ENVIRONMENT.setdefault("OMP_NUM_THREADS", str(CORES // WORKERS))
ENVIRONMENT.setdefault("OMP_WAIT_POLICY", "passive")
STEPS = ("lint", "spelling", "format", "types", "kernels", "site", "tests")
# Modules with compiled kernels, in two processes. Compiled before the site and the tests, whose processes would all do
# it otherwise.
KERNELS = (
    ("ops.correlation.cpu", "ops._splatting.cpu", "registration.descriptors"),
    ("ops.neighbors.cpu", "ops.point_conv.cpu", "ops.tvl1.cpu", "ops.tvl1.guided_cpu"),
)
COMPILE = """
import importlib, sys
from fullfield._kernels.numba_cache import KernelModule
for name in sys.argv[1:]:
    for value in vars(importlib.import_module(f"fullfield.{name}")).values():
        if isinstance(value, KernelModule):
            value()
"""


def commands(step: str, further: list[str]) -> list[list[str]]:
    """Return the commands of a step, without the interpreter."""
    if step == "site":
        return [[os.fspath(ROOT / "scripts" / "docs" / "site.py"), *further]]
    if step == "kernels":
        return [["-c", COMPILE, *modules, *further] for modules in KERNELS]
    if step == "long":
        return [["-m", *TESTS, "-m", "long", *further]]
    if step == "tests":
        return suite(further)
    return [["-m", *TOOLS[step], *further]]


def stages(steps: Sequence[str], further: list[str]) -> list[list[list[str]]]:
    """Return commands in groups that run one after the other; those of a group run at once, also on few cores.

    The site is built while the tests run, so that no core waits. With a GPU, whose tests measure times, it comes first.
    """
    result = {step: commands(step, further) for step in steps}
    checks = [command for step in steps if step not in ("site", "tests") for command in result[step]]
    checks.sort(key=lambda command: "mypy" not in command and COMPILE not in command)  # the longest first
    site, tests = result.get("site", []), result.get("tests", [])
    return [checks, site, *([test] for test in tests)] if GPU else [checks, site + tests]


def suite(further: list[str], marked: str = "") -> list[list[str]]:
    """Return the command of the tests; with a GPU two, the first for tests that must run alone.

    Those measure times or fill the memory.
    """
    if "-m" in further:
        return [["-m", *TESTS, *further]]
    if not GPU:
        return [["-m", *TESTS, "-m", f"{marked}not long", *further]]
    return [
        ["-m", "pytest", *LIMIT, "-m", f"{marked}alone", *further],
        ["-m", *TESTS, "-m", f"{marked}not alone and not long", *further],
    ]


def run(command: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code, and its output unless that was printed at once."""
    tool, tests = command[:1] == ["-m"], command[:2] == ["-m", "pytest"]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT if tool else folder,
            env=ENVIRONMENT,
            stdout=None if tests else subprocess.PIPE,
            stderr=None if tests else subprocess.STDOUT,
            text=True,
            check=False,
        )
    code = done.returncode
    said = "-c COMPILE" if command[:1] == ["-c"] else " ".join(command)
    if tests and code == 5 and "alone" in command:
        code = 0  # none of the requested tests runs alone
    result = f"{'FAILED' if code else 'passed'} in {time.perf_counter() - start:.0f} s"
    return code, f"$ {said}\n{done.stdout or ''}{result}"


def gpu(target: Path) -> int:
    """Run the tests of a GPU and write the counts of results, the time and the environment."""
    import torch

    if not torch.cuda.is_available():
        print("gpu: PyTorch finds no GPU here", file=sys.stderr)
        return 2
    worst, parts = 0, []
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    for command in suite([os.fspath(path.relative_to(ROOT)) for path in files], "gpu and "):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            code, said = run([*command, f"--junit-xml={report}"])
            print(said, flush=True)
            counts = ET.parse(report).getroot()[0].attrib if report.is_file() else {}
        total, *rest = (int(counts.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
        worst = max(worst, code)
        parts.append(
            {
                "command": " ".join(["python", *command[: -len(files)]]),
                "exit_code": code,
                "passed": total - sum(rest),
                **dict(zip(("failed", "errors", "skipped"), rest, strict=True)),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    git = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    properties = {
        "gpu": torch.cuda.get_device_name(),
        "cores": CORES,
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]},
        "commit": os.environ.get("FULLFIELD_COMMIT") or git.stdout.strip() or None,
        "date": time.strftime("%Y-%m-%d"),
    }
    part = target.with_name(f"{target.name}.part")
    part.write_text(json.dumps({"environment": properties, "parts": parts}, indent=1) + "\n")
    part.replace(target)
    return worst


def main(arguments: list[str]) -> int:
    """Run the requested steps and return the exit code of the first that fails."""
    if arguments[:1] == ["gpu"] and len(arguments) == 2:
        return gpu(Path(arguments[1]))
    if arguments and arguments[0] not in (*STEPS, "long"):
        print(
            f"expected one of {', '.join(STEPS)}, long or gpu FILE.json, got {' '.join(arguments)!r}", file=sys.stderr
        )
        return 2
    for jobs in stages(arguments[:1] or STEPS, arguments[1:]):
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:  # no core waits for the last of the long ones
            for code, said in pool.map(run, jobs):
                print(said, flush=True)
                if code:
                    pool.shutdown(cancel_futures=True)
                    return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
