"""Check the stored results: complete conditions, and no older than the code they measure.

python scripts/docs/results.py           write into benchmarks/owed.json what each result lacks
python scripts/docs/results.py --check   exit with 1 when the file says something else
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.code_changes import SUFFIXES, declared_names, is_same_code, top_level_names  # noqa: E402
from benchmarks.stored import OLDER, OWED, PARTLY_SINGLE, RESULTS  # noqa: E402  the benchmarks read their results

CLEAN = re.compile(r"[0-9a-f]{7,40}")
NAMED = re.compile(r"[0-9a-f]{7,40}\b")
NO_COMMAND = "no command is known"
NO_COMMIT = "no such commit"
MEDIANS = {"median_s", "median_ms"}
SINGLE_TIMES = {"pair_s", "frame_s", "step_ms", "loop_ms"}
"""Times that some results hold as one number, without repeats."""


def timings(stored: Any) -> Iterator[dict[str, Any]]:
    """Yield every measured time in a result: the objects that hold a median, or a time of one run."""
    if isinstance(stored, dict):
        names = {*SINGLE_TIMES, *({"seconds"} if "threads" in stored else ())}
        if MEDIANS & stored.keys() or any(isinstance(stored.get(name), int | float) for name in names):
            yield stored
        stored = list(stored.values())
    if isinstance(stored, list):
        for value in stored:
            yield from timings(value)


def has_spread(timing: dict[str, Any]) -> bool:
    """Return whether a time is of several runs, and comes with their number and their spread."""
    seconds = timing.get("seconds")
    if isinstance(seconds, list):
        return len(seconds) > 1
    is_counted = "std_s" in timing or timing.get("repeats", timing.get("calls", 1)) > 1
    return is_counted and bool({"min", "min_s", "p99_ms", "quartiles_ms"} & timing.keys())


def missing_conditions(stored: dict[str, Any]) -> list[str]:
    """Return which of machine, versions, clean commit, date and spread a result does not state."""
    about = stored.get("environment", {})
    times = list(timings(stored))
    is_of_changed_tree = "changes" in str(about.get("measured_as")) or "commit_is" in about
    commits = map(str, about.get("commits", [about.get("commit")]))
    conditions = {
        "no machine": bool(not times or about.get("gpu") or about.get("cpu")),
        "no versions": bool(about.get("torch") or about.get("versions", {}).get("torch")),
        "no clean commit": not is_of_changed_tree and all(map(CLEAN.fullmatch, commits)),
        "no date": bool(about.get("date")),
        "no sources": bool(not times or stored.get("sources")),
        "no repeats and spread": not times or any(map(has_spread, times)),
        PARTLY_SINGLE: all(map(has_spread, times)) or not any(map(has_spread, times)),
    }
    return [name for name, is_stated in conditions.items() if not is_stated]


def git(*arguments: str) -> str:
    """Return what git prints in this checkout."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


def is_shallow() -> bool:
    """Return whether the history of this checkout is cut, or absent."""
    try:
        return git("rev-parse", "--is-shallow-repository").strip() != "false"
    except (OSError, subprocess.CalledProcessError):
        return True


def named_commits(stored: Any) -> Iterator[str]:
    """Yield the commits that a result and its parts are of, as far as they are named by their digits."""
    if isinstance(stored, dict):
        values = [stored.get("commit"), *stored.get("commits", [])]
        yield from (match[0] for value in values if isinstance(value, str) and (match := NAMED.match(value)))
        stored = list(stored.values())
    if isinstance(stored, list):
        for value in stored:
            yield from named_commits(value)


@cache
def is_in_history(commit: str) -> bool:
    """Return whether this checkout is built on a commit."""
    command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, capture_output=True).returncode == 0


def is_source(path: str, sources: list[str]) -> bool:
    """Return whether a path is code that one of the patterns or folders names."""
    named = any(fnmatchcase(path, source) or path.startswith(f"{source.rstrip('/')}/") for source in sources)
    return named and path.endswith(SUFFIXES)


@cache
def files_of_commit(commit: str) -> dict[str, str]:
    """Return the identifiers of the contents of a commit's sources, by path."""
    lines = git("ls-tree", "-r", commit, "--", "src").splitlines()
    return {path: entry.split()[2] for entry, path in (line.split("\t") for line in lines)}


@cache
def stored_content(identifier: str) -> bytes:
    """Return a content that git stores."""
    command = ["git", "-C", str(ROOT), "cat-file", "blob", identifier]
    return subprocess.run(command, capture_output=True, check=True).stdout


@cache
def present_files() -> list[str]:
    """Return the paths of the sources of this checkout."""
    return git("ls-files", "--", "src").splitlines()


def is_older(stored: dict[str, Any]) -> bool:
    """Return whether the code that a result measures has changed since its commit.

    A source ``PATH@COMMIT`` is compared with that commit instead: the earlier changes of the file are of parts that the
    measurement does not run.
    """
    commit, sources = str(stored.get("environment", {}).get("commit")), stored.get("sources")
    if not sources or not CLEAN.fullmatch(commit):
        return False
    reviewed = dict(source.split("@") for source in sources if "@" in source)
    others = [source for source in sources if "@" not in source]
    return has_changed(commit, lambda path: is_source(path, others) and path not in reviewed) or any(
        has_changed(later_commit, reviewed_path.__eq__) for reviewed_path, later_commit in reviewed.items()
    )


def has_changed(commit: str, is_selected: Callable[[str], bool]) -> bool:
    """Return whether the code of the selected files has changed since a commit."""
    try:
        old = {path: name for path, name in files_of_commit(commit).items() if is_selected(path)}
    except subprocess.CalledProcessError:  # the history has no such commit
        return True
    new = {path: (ROOT / path).read_bytes() for path in present_files() if is_selected(path)}
    contents = {path: stored_content(name) for path, name in old.items()}
    return not is_same_code(contents, new, partial(is_renamed, commit))


@cache
def package_names_at_commit(commit: str) -> frozenset[str]:
    """Return the names that the package declared at a commit."""
    contents = (stored_content(name) for path, name in files_of_commit(commit).items() if path.endswith(".py"))
    return frozenset[str]().union(*map(declared_names, contents))


@cache
def present_package_names() -> frozenset[str]:
    """Return the names that the package declares now."""
    contents = ((ROOT / path).read_bytes() for path in present_files() if path.endswith(".py"))
    return frozenset[str]().union(*map(declared_names, contents))


def is_renamed(commit: str, module: str, old_name: str, new_name: str) -> bool:
    """Return whether a module of ours has ``new_name`` now where it had ``old_name`` at the commit, and never both.

    Without a module: whether the whole package does.
    """
    if not module:
        gone = package_names_at_commit(commit) - present_package_names()
        added = present_package_names() - package_names_at_commit(commit)
        return old_name in gone and new_name in added
    path = f"src/{module.replace('.', '/')}.py"
    if path not in files_of_commit(commit) or not (ROOT / path).is_file():
        return False
    before = top_level_names(stored_content(files_of_commit(commit)[path]))
    now = top_level_names((ROOT / path).read_bytes())
    return old_name in before - now and new_name in now - before


def owed() -> dict[str, dict[str, Any]]:
    """Return the reasons why results should be measured again, with the commands that are noted for them."""
    noted: dict[str, dict[str, Any]] = json.loads(OWED.read_text("utf-8"))
    result = {}
    for path in sorted(RESULTS.glob("*.json")):
        stored = json.loads(path.read_text("utf-8"))
        why = [*([OLDER] if is_older(stored) else []), *missing_conditions(stored)]
        why += [] if all(map(is_in_history, named_commits(stored))) else [NO_COMMIT]
        if why:
            own = stored.get("command", NO_COMMAND)
            result[path.name] = {"why": why, "command": noted.get(path.name, {}).get("command", own)}
    return result


def main(arguments: list[str]) -> int:
    """Write or check the list; return the exit code."""
    if is_shallow():
        print("results: the history of this checkout is cut, so the age of results is unknown", file=sys.stderr)
        return 2
    text = json.dumps(owed(), indent=1, ensure_ascii=False) + "\n"
    if arguments == ["--check"]:
        agrees = text == OWED.read_text("utf-8")
        print(
            "the list agrees with the results" if agrees else "run scripts/docs/results.py, then scripts/docs/tables.py"
        )
        return int(not agrees)
    OWED.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
