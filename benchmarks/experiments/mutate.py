"""Mutation check: put small faults into the code, one at a time, and count those that the tests find.

python -m benchmarks.experiments.mutate --count 40 --seed 1
python -m benchmarks.experiments.mutate --count 5 --only fullfield/io --notes notes.json

A fault is one changed operator, comparison, constant or condition on a line inside a function. Each is tried in a copy
of the repository, so the checkout stays as it is. The tests of the packages first run without a fault; those that fail
are named and left out, and it is noted which functions each of the others enters. A fault is then shown to the tests
that enter its function, the shortest first, until one fails; where none enters it, as with functions that numba
compiles, to all tests of its package. ``--notes`` names a file that keeps these notes for the next call, ``--jobs``
tries several faults at once. Exits with 1 if more than --missed faults survive. Survivors are printed, and most ask for
a test; those that change no result are listed in HARMLESS with the reason, and others are drawn in their place.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.experiments import build_program_parser

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fullfield"
TESTS = {  # package -> tests that have to find a fault in it; the longest matching name counts
    "ops": ["tests/ops"],
    "ops/correlation": ["tests/ops/correlation", "tests/nn"],
    "ops/tvl1": ["tests/ops/tvl1"],
    "ops/point_conv": ["tests/ops/point_conv"],
    "ops/neighbors": ["tests/ops/neighbors"],
    "io": ["tests/io", "tests/viz"],
    "estimators": ["tests/estimators", "tests/sequences"],
}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}
HARMLESS = {  # (file, line, fault) -> why no test could tell
    (
        "ops/point_conv/reference.py",
        "width = (sum(request.channels) + 4) * request.accumulate_dtype.itemsize",
        "4 -> 5",
    ): "bytes of a row, by which rows are counted that are computed at a time",
    (
        "io/flow_formats/exr.py",
        "rows = np.linspace(0, height - 1, min(height, max(4, _TRIED // row))).round().astype(np.intp)",
        "4 -> 5",
    ): "rows of a trial",
    (
        "ops/tvl1/guided_cpu.py",
        "self._packed = np.zeros((height + 3) * (width + 3) * 4 + k.LEFT, np.float32)",
        "3 -> 4",
    ): "a buffer with more room",
    (
        "io/vectors.py",
        "first, half = channels[0].plane, dtype == \"half\"",
        "0 -> 1",
    ): "all channels have one shape and device",
    (
        "ops/point_conv/api.py",
        "return (one, two, three, [None] * ctx.count[0], [None] * ctx.count[1], None, None, None)",
        "0 -> 1",
    ): "both directions have as many tensors",
    (
        "estimators/live.py",
        "yield Captured(frame, number, due, late=now > due + interval / speed)",
        "now > due + interval / speed -> now >= due + interval / speed",
    ): "a clock that shows the limit itself",
    ("ops/correlation/_cpu_kernels.py", "fx[lane] = np.float32(0.0)", "0.0 -> 1.0"): "of a lane that sees nothing",
    ("ops/neighbors/_cpu_kernels.py", "widest = np.float32(-1.0)", "1.0 -> 2.0"): "less than any extent, as before",
    (
        "ops/neighbors/cpu.py",
        "shape = (np.floor((high - low) / cell).astype(np.int64) + 1)[::-1].copy()  # z, y, x",
        "1 -> 2",
    ): "one more layer of cells, which are empty",
}  # fmt: skip
SECONDS = 600  # a mutant that runs longer hangs, which is a finding
Notes = dict[str, tuple[float, frozenset[str]]]
"""Tests -> their seconds, and the functions that they enter, as FILE:LINE of the first line."""


class Fault(NamedTuple):
    """One changed expression of a file."""

    path: Path
    function: str  # that it is in, as in Notes
    node: ast.expr
    text: str  # what the expression becomes

    def applied(self) -> str:
        """Return the file's text with the fault."""
        lines = self.path.read_text("utf-8").encode().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or self.node.lineno) - 1
        before, after = lines[first][: self.node.col_offset], lines[last][self.node.end_col_offset :]
        return b"".join([*lines[:first], before + self.text.encode() + after, *lines[last + 1 :]]).decode()

    @property
    def change(self) -> str:
        """What it does to the code."""
        return f"{' '.join(ast.unparse(self.node).split())} -> {self.text}"

    @property
    def harmless(self) -> bool:
        """Whether it is known to change no result."""
        line = self.path.read_text("utf-8").splitlines()[self.node.lineno - 1]
        return (self.path.relative_to(SOURCE).as_posix(), line.strip(), self.change) in HARMLESS

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE)}:{self.node.lineno}: {self.change}"


def changed(node: ast.expr) -> Iterator[str]:
    """Yield what the expression becomes in each fault that it can have."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield ast.unparse(ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators))
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in OPERATORS
        and not isinstance(node.left, (ast.Constant, ast.List))
    ):
        yield f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        yield repr(node.value + 1)


def faults(path: Path) -> Iterator[Fault]:
    """Yield every fault of a file: of code inside functions, annotations and docstrings left out."""
    tree = ast.parse(path.read_text("utf-8"))
    inside = [part for part in ast.walk(tree) if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
    seen: set[tuple[int, int]] = set()
    for function in reversed(inside):  # inner ones first
        first = min(part.lineno for part in (function, *function.decorator_list))
        name = f"{path.relative_to(SOURCE).as_posix()}:{first}"
        for statement in function.body:
            notes = {id(part) for outer in ast.walk(statement) for part in not_run(outer)}
            for node in ast.walk(statement):
                if not isinstance(node, ast.expr) or id(node) in notes or isinstance(statement, ast.Raise):
                    continue
                place = node.lineno, node.col_offset
                if place not in seen:
                    for text in changed(node):
                        seen.add(place)
                        yield Fault(path, name, node, text)


def not_run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that are annotations or messages."""
    for name in ("annotation", "returns"):
        if (part := getattr(node, name, None)) is not None:
            yield from ast.walk(part)
    if isinstance(node, (ast.JoinedStr, ast.Raise)):
        yield from ast.walk(node)


def tests_of(path: Path) -> list[str]:
    """Return the tests that have to find a fault in a file."""
    name = path.relative_to(SOURCE).as_posix()
    fits = [package for package in TESTS if name.startswith(f"{package}/")]
    return TESTS[max(fits, key=len)]


def run(copy: Path, tests: Sequence[str], workers: int, *options: str, **environment: str) -> int:
    """Run tests in the copy and return pytest's exit code; 1 if they do not end."""
    path = os.pathsep.join((os.fspath(copy / "src"), os.fspath(copy)))
    given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    given.setdefault("FULLFIELD_DATA", os.fspath(ROOT.parent / "shared" / "data"))
    selected = copy / "tests.txt"
    selected.write_text("\n".join(tests), "utf-8")
    command = ["-m", "pytest", "-q", "-m", "not long", f"--numprocesses={workers}", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [sys.executable, *command, *options, f"@{selected}"],
            cwd=copy,
            env=given,
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def noted(copy: Path, tests: Sequence[str], workers: int) -> Notes:
    """Run tests without a fault, name those that fail, and return what the others enter."""
    place = copy / "entered"
    source = os.fspath(copy / "src" / "fullfield")
    code = run(
        copy,
        tests,
        workers,
        "-p",
        "benchmarks.experiments.entered",
        ENTERED_SOURCE=source,
        ENTERED_FILE=os.fspath(place),
    )
    if code > 1:
        raise ValueError(f"without a fault {' '.join(tests)} ends with {code}")
    notes: Notes = {}
    failed = set[str]()
    for part in copy.glob("entered*"):
        for line in part.read_text("utf-8").splitlines():
            test, seconds, passed, functions = json.loads(line)
            notes[test] = seconds, frozenset(functions)
            if not passed:
                failed.add(test)
        part.unlink()
    if failed == notes.keys():
        raise ValueError(f"without a fault every test of {' '.join(tests)} fails")
    sys.stdout.writelines(f"left out, fails without a fault: {test}\n" for test in sorted(failed))
    return {test: note for test, note in notes.items() if test not in failed}


def those_that_enter(fault: Fault, notes: Notes) -> list[str]:
    """Return the tests of a fault's package that enter its function, the shortest first.

    Where none does, as numba compiles it: those that enter a module beside it that names its own, or else all.
    """
    places = tuple(tests_of(fault.path))
    near = {test: note for test, note in notes.items() if test.startswith(places)}
    result = [test for test, (_, functions) in near.items() if fault.function in functions]
    if not result:
        users = [path for path in fault.path.parent.glob("*.py") if fault.path.stem in path.read_text("utf-8")]
        begins = tuple(f"{path.relative_to(SOURCE).as_posix()}:" for path in users if path != fault.path)
        result = [test for test, (_, functions) in near.items() if any(name.startswith(begins) for name in functions)]
    return sorted(result or near, key=lambda test: near[test][0])


def found(fault: Fault, copy: Path, notes: Notes, workers: int) -> bool:
    """Return whether the tests fail with the fault, or can no longer be collected."""
    target = copy / fault.path.relative_to(ROOT)
    target.write_text(fault.applied(), "utf-8")
    tests = those_that_enter(fault, notes)
    few = sum(notes[test][0] for test in tests) < 20  # then further processes would take longer to start
    try:
        code = run(copy, tests, 0 if few else workers, "-x")
    finally:
        shutil.copyfile(fault.path, target)
    if code > 2:  # pytest's own error, such as a test of the notes that is gone
        raise SystemExit(f"mutate: pytest ends with {code} on {len(tests)} tests, of {fault}")
    return code != 0


def main() -> int:
    """Run the check; 1 if more faults survive than allowed."""
    made = build_program_parser(__doc__)
    made.add_argument("--count", type=int, default=40)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--missed", type=int, default=2, help="faults that may survive [2]")
    made.add_argument("--only", default="", help="part of the paths of files")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of pytest")
    made.add_argument("--jobs", type=int, default=1, help="faults at once, the workers shared among them [1]")
    made.add_argument("--notes", type=Path, help="file that keeps what each test enters")
    made.add_argument("--list", action="store_true", help="print the faults and end")
    args = made.parse_args()
    draw = random.Random(args.seed)
    packages = sorted({name.split("/")[0] for name in TESTS})
    files = [path for name in packages for path in sorted((SOURCE / name).rglob("*.py"))]
    files = [path for path in files if args.only in path.as_posix() and "cuda" not in path.as_posix()]  # needs no GPU
    candidates = {path: list(faults(path)) for path in files}
    weights = {path: len(part) for path, part in candidates.items() if part}
    if not weights:
        made.error(f"--only: expected part of a path with code to change, got {args.only!r}")
    drawn: list[Fault] = []
    while len(drawn) < args.count:
        selected = draw.choices(list(weights), list(weights.values()), k=args.count - len(drawn))
        drawn += [fault for path in selected if not (fault := draw.choice(candidates[path])).harmless]
    if args.list:
        sys.stdout.writelines(f"{fault}\n" for fault in drawn)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "fullfield"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "results"))
        notes: Notes = {}
        if args.notes is not None and args.notes.exists():
            held = json.loads(args.notes.read_text("utf-8"))
            notes = {test: (seconds, frozenset(functions)) for test, (seconds, functions) in held.items()}
        requested = dict.fromkeys(test for fault in drawn for test in tests_of(fault.path))
        missing = [test for test in requested if not any(name.startswith(test) for name in notes)]
        try:
            notes |= noted(copy, missing, args.workers) if missing else {}
        except ValueError as error:
            print(f"mutate: {error}", file=sys.stderr)
            return 2
        if args.notes is not None:  # a test that failed has no note, and is not run again with these notes
            retained = {test: (seconds, sorted(functions)) for test, (seconds, functions) in notes.items()}
            args.notes.write_text(json.dumps(retained), "utf-8")
        copies = queue.SimpleQueue[Path]()
        for number in range(args.jobs):
            copies.put(shutil.copytree(copy, copy.with_name(f"fullfield{number}")))

        def tried(number: int) -> bool:
            start, place = time.perf_counter(), copies.get()
            try:
                hit = found(drawn[number], place, notes, max(1, args.workers // args.jobs))
            finally:
                copies.put(place)
            seconds = time.perf_counter() - start
            print(f"{number + 1} {'found' if hit else 'MISSED'} {seconds:.0f} s {drawn[number]}", flush=True)
            return hit

        with ThreadPoolExecutor(args.jobs) as pool:
            hits = list(pool.map(tried, range(len(drawn))))
    survivors = [fault for fault, hit in zip(drawn, hits, strict=True) if not hit]
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} faults found")
    sys.stdout.writelines(f"  missed: {fault}\n" for fault in survivors)
    return 1 if len(survivors) > args.missed else 0


if __name__ == "__main__":
    sys.exit(main())
