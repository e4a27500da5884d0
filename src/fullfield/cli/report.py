"""Reports of verbs: one JSON object or lines on stdout, notes on stderr, and errors that name files and options."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import platform
import re
import shlex
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import __version__
from fullfield._check import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.estimators.bars import Bars
    from fullfield.sequences.outputs import WritePlan
    from fullfield.sequences.results import Problem

_MAX_LINES = 10  # on files with the same fault


@contextmanager
def rename_arguments_in_errors(**words: str) -> Iterator[None]:
    """Turn an InputError ``argument: ...`` inside into ``word: ...``, for every ``argument=word``.

    Stored settings that differ, ``parameters.argument was ...``, get the same words.
    """
    try:
        yield
    except InputError as error:
        argument, colon, rest = str(error).partition(":")
        text = f"{words.get(argument) or argument}{colon}{rest}"
        text = re.sub(r"parameters\.(\w+)(?= was )", lambda name: words.get(name[1]) or name[0], text)
        if text == str(error):
            raise
        raise type(error)(text) from error


@contextmanager
def name_resume_step_in_interruption(folder: str, history_row: type[tuple[Any, ...]]) -> Iterator[None]:
    """Let an interruption inside name the step that a training continues from; its history has ``history_row``s."""
    from fullfield.training.checkpoint import read_history_or_empty

    try:
        yield
    except KeyboardInterrupt:
        history = read_history_or_empty(Path(folder), history_row)
        continues = f"the same command continues from step {history[-1].step}" if history else "nothing was stored yet"
        raise KeyboardInterrupt(f"{folder}: {continues}") from None


def map_arguments_to_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the option of each argument of a command, for :func:`rename_arguments_in_errors`."""
    return {name: f"--{name.replace('_', '-')}" for name in vars(args)}


def select_attributes(source: object, *names: str) -> dict[str, Any]:
    """Return attributes by name, for a report: of the arguments of a command, or of a result."""
    return {name: getattr(source, name) for name in names}


def format_size(image: Tensor) -> str:
    """Return the size of ``[..., H, W]`` as text, width x height."""
    return f"{image.shape[-1]}x{image.shape[-2]}"


def check_same_size(first: Tensor, first_path: str, second: Tensor, second_path: str) -> None:
    """Check that both ``[..., H, W]`` have one size; the InputError names both files."""
    if first.shape[-2:] != second.shape[-2:]:
        raise InputError(
            f"{second_path}: is {format_size(second)}, but {first_path} is {format_size(first)}; "
            "they must have the same size"
        )


_BIDIRECTIONAL = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # they reorder the text that follows


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems as errors, a line each; more than ten whose reasons differ in numbers at most share a line."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(re.sub(r"\d+", "0", problem.reason), []).append(problem)
    for group in groups.values():
        if len(group) > _MAX_LINES:
            print_note(f"{group[0]}; {len(group) - 1} further files likewise", kind="error")
        else:
            for problem in group:
                print_note(str(problem), kind="error")


def print_note(text: str, *, kind: str = "note") -> None:
    """Print ``fullfield: KIND: text`` as one line on stderr."""
    print_to_stderr_ignoring_errors(f"fullfield: {kind}: {escape_control_characters(' '.join(text.split()))}")


def describe_bars(bars: Bars) -> str:
    """Return what bars are and what becomes of them."""
    return f"{bars} have one constant colour; as bars, they are not matched, and their vectors are 0"


def print_existing_and_outdated_counts(frame_numbers: Sequence[int], plan: WritePlan) -> None:
    """Print how many frames of a run are kept, how many are recomputed, and why."""
    existing = len(frame_numbers) - len(plan.missing)
    if existing:
        print_note(f"{existing} of {len(frame_numbers)} frames {'exists' if existing == 1 else 'exist'}")
    if plan.outdated:
        count = sum(map(len, plan.outdated.values()))
        verb = "is" if count == 1 else "are"
        print_note(
            f"{count} of {len(frame_numbers)} frames {verb} recomputed: {plan.format_outdated_counts_and_reasons()}"
        )


def escape_control_characters(text: object, allowed: str = "") -> str:
    r"""Return ``text`` with control characters escaped, as in ``\x1b``, so that it cannot forge a line of output.

    Names and contents of files may have such characters. Those in ``allowed`` stay.
    """

    def is_control(c: str) -> bool:
        return unicodedata.category(c) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(c) in _BIDIRECTIONAL

    return "".join(ascii(c)[1:-1] if c not in allowed and is_control(c) else c for c in str(text))


def print_to_stderr_ignoring_errors(text: str, end: str = "\n") -> None:
    """Print to stderr; a stderr that is closed or full changes neither the work nor its exit code."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def print_json(report: Mapping[str, object]) -> None:
    """Print the JSON object of ``--json``, in ASCII, with null for numbers that are not finite."""
    print(json.dumps(_convert_to_json_value(report), indent=2, allow_nan=False))


def print_report(
    args: argparse.Namespace, report: Mapping[str, object], text: str, *, has_peak_memory: bool = False
) -> None:
    """Print the report of a verb: its text, or with ``--json`` its facts, versions and peak memory if requested."""
    if args.json:
        taken = {"peak_memory_bytes": get_peak_memory_bytes()} if has_peak_memory else {}
        print_json({**report, **taken, "versions": collect_versions()})
    else:
        print(text)


def format_next_command_unless_quiet(args: argparse.Namespace, *command: str) -> str:
    """Return a last line that names the command to run next; empty with ``--quiet``."""
    return "" if args.quiet else "\nnext: " + " ".join(shlex.quote(escape_control_characters(word)) for word in command)


def _convert_to_json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _convert_to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert_to_json_value(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def add_report_options(parser: Any, *, has_quiet_option: bool = False) -> None:
    """Add ``--json``, and ``--quiet`` for verbs that show progress."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    if has_quiet_option:
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no notes on stderr")


def collect_versions() -> dict[str, str | None]:
    """Return the versions of fullfield, Python and the packages that decide a result; None for an absent one."""
    installed: dict[str, str | None] = {"fullfield": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "numba", "OpenImageIO", "h5py", "pillow"):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = None
    return installed


def get_peak_memory_bytes() -> int | None:
    """Return the largest resident size of this process; None where the system does not report it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        # getrusage's maximum starts from the parent's; the kernel's own high-water mark does not.
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def get_processor_name() -> str:
    """Return the processor's name as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 frame``, ``2 frames``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_aligned_columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text with aligned columns, the first one to the left."""
    first, *widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join((row[0].ljust(first), *map(str.rjust, row[1:], widths))) for row in table]


class Stopwatch:
    """Stopwatch for the stages of a verb."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def add_lap(self, stage: str) -> None:
        """Add the time since the last lap to ``stage``."""
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def get_stage_seconds(self) -> dict[str, float]:
        """Return all stages and their ``total``, rounded to a millisecond."""
        stages = {**self._stages, "total": self._last - self._start}
        return {name: round(value, 3) for name, value in stages.items()}
