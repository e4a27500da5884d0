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

from benchmarks.sources import list_sources
from fullfield import _check
from fullfield._check import InputError

RESULTS = Path(__file__).resolve().parent / "results"
OWED = Path(__file__).resolve().parent / "owed.json"
"""Results that should be measured again: by file the reasons, and the command that does it."""
OLDER = "older than the code"
"""The reason of a result whose commit precedes the last change of its sources."""
PARTLY_SINGLE = "some times are of one run"
"""The reason of a result in which some times have no repeats; captions name those times instead."""


def stored_result(name: str) -> Any:
    """Return the content of a file in ``benchmarks/results``, with the file's name as ``file``."""
    stored = json.loads((RESULTS / name).read_text("utf-8"))
    stored["file"] = name
    return stored


def describe_faults(results: dict[str, Any]) -> str:
    """Return in brackets why a stored result should be measured again; nothing if it need not."""
    owed = json.loads(OWED.read_text("utf-8")).get(results.get("file"), {"why": []})
    reasons = [reason for reason in owed["why"] if reason != PARTLY_SINGLE]
    return f" ({', '.join(reasons)})" if reasons else ""


def get_row(case: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of a case called ``name``."""
    row: dict[str, Any] = next(row for row in case["rows"] if row["name"] == name)
    return row


def describe_commit(results: dict[str, Any]) -> str:
    """Return commit and date of a stored result, and whether its code has changed since."""
    about = results["environment"]
    return f"commit {about['commit'][:7]}, {about['date']}{describe_faults(results)}"


def describe_run(results: dict[str, Any], command: str) -> str:
    """Return the line below a table: machine, version, commit, date and the command that measures it."""
    about = results["environment"]
    machine = about.get("gpu") or about["cpu"]
    versions = f"PyTorch {about['versions']['torch']}, {describe_commit(results)}"
    return f"{machine}, {versions}; `python -m benchmarks {command}`.\n"


def environment() -> dict[str, Any]:
    """Machine, versions and commit: what a number depends on."""
    import torch

    from fullfield import __version__
    from fullfield.cli.report import get_processor_name

    versions = {"fullfield": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "cv2", "skimage"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            continue
    facts: dict[str, Any] = {
        "cpu": get_processor_name(),
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


def state_conditions(*sources: str) -> dict[str, Any]:
    """Return what a result of an experiment states beside its numbers: the code it measures, and its environment."""
    return {"sources": list(sources), "environment": environment()}


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
    from fullfield.io.files import write_atomically

    with write_atomically(target) as temporary:
        about = environment()
        whole = {**results, "sources": list_sources(results, on_gpu="gpu" in about), "environment": about}
        temporary.write_text(json.dumps(whole, indent=1) + "\n")
