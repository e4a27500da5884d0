"""Results as JSON, with the machine, versions and commit they are of."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fullfield import _check
from fullfield._check import InputError

RESULTS = Path(__file__).resolve().parent / "results"


def stored_result(name: str) -> Any:
    """Return the content of a file in ``benchmarks/results``."""
    return json.loads((RESULTS / name).read_text("utf-8"))


def environment() -> dict[str, Any]:
    """Machine, versions and commit: what a number depends on."""
    import torch

    from fullfield import __version__
    from fullfield.cli.report import processor_name

    versions = {"fullfield": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "cv2", "skimage"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            continue
    facts: dict[str, Any] = {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "versions": versions,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["gpu_memory_bytes"] = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        facts["cuda"] = torch.version.cuda
    return facts


def _commit() -> str | None:
    """Return the commit of the checkout this code runs from, marked when files differ from it; None for a wheel.

    ``FULLFIELD_COMMIT`` says it where the files came without their history.
    """
    told = os.environ.get("FULLFIELD_COMMIT")
    if told:
        return told
    import fullfield

    here = Path(fullfield.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(top)benchmarks/*.py")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def read_results(path: Path, bench: str, option: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Results that :func:`write_results` wrote of the benchmark called ``bench``; ``option`` names the file's option.

    Every case has ``rows`` and the facts called ``names``. Raises InputError for anything else.
    """
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        dict(stored["environment"])
        fine = stored["bench"] == bench and all(_is_case(case, names) for case in stored["cases"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fine = False
    _check.require(fine, option, f"results of the benchmark {bench} in {path}", "something else")
    return stored


def _is_case(case: Any, names: Sequence[str]) -> bool:
    return all(name in case for name in names) and all(isinstance(row, dict) for row in case["rows"])


def check_same(option: str, facts: Sequence[tuple[str, Any, Any]]) -> None:
    """Of (fact, stored value, present value) all agree, so that numbers may stand in one file; else InputError."""
    for name, got, wanted in facts:
        _check.require(got == wanted, option, f"results of {name} {wanted}", str(got))


def write_results(path: str | os.PathLike[str], results: dict[str, Any]) -> None:
    """Write results and environment as JSON; InputError when the folder is missing."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"{target}: expected an existing folder for the results")
    from fullfield.io.files import atomic_path

    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps({**results, "environment": environment()}, indent=1) + "\n")
