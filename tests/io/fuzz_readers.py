"""Feeds damaged files of every format to everything that reads files, and says what did not hold.

    python tests/io/fuzz_readers.py                    1,500 files
    python tests/io/fuzz_readers.py --files 50000      the long run
    python tests/io/fuzz_readers.py --only cloud --case 4711   one case again, with its traceback

Allowed are a well-formed result, InputError and OSError, in one line; within ten seconds; and no gigabyte of memory
more than the file's worth, which here is nothing: they all are small. A process of its own reads the files, so that a
crash is seen and the next file comes all the same. Exit code 1 and one line a failure if anything else came. The same
seed and number damage the same file in the same way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz_damage import damage

sys.path.append(str(Path(__file__).parents[1]))  # for peak_memory, where this file is the program

MOST_SECONDS, MOST_MIB = 10.0, 1024.0
SILENCE = 60.0  # seconds without an answer, after which the reader is killed
SPARE_ADDRESSES = 8 << 30  # bytes that the reader may ask for beyond what it has
NAMING = ("frame", "flow", "cloud", "video", "weights", "descriptor", "pose-", "pose.")
"""How the names of files begin that their complaints name."""


def case(number: int, seed: int, files: list[Path]) -> tuple[Path, bytes]:
    """What file is damaged in case ``number``, and its damaged content."""
    rng = random.Random(f"{seed} {number}")
    path = files[number % len(files)]
    same = [other for other in files if other.suffix == path.suffix]
    return path, damage(path.read_bytes(), rng, path.suffix, rng.choice(same).read_bytes())


# ---- the process that reads


def read_all(folder: Path, seed: int, pipe: Connection) -> None:
    """Answers each number that comes, first of all with True when the whole files were read."""
    from fuzz_samples import reader

    os.dup2(os.open(folder / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    files = whole_files(folder)
    for path in files:  # what is loaded at the first call must not count
        if "refused" not in path.name:
            reader(path)(_put(folder, path.name, path.read_bytes()))
    _limit_addresses()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", UserWarning)
    pipe.send(True)
    with suppress(EOFError):  # nobody asks any more
        while True:
            path, data = case(pipe.recv(), seed, files)
            pipe.send(_outcome(reader(path), _put(folder, path.name, data)))


def _outcome(read: Callable[[Path], Any], path: Path) -> dict[str, Any]:
    """What came of reading a file, in which time and memory."""
    from fullfield import InputError
    from peak_memory import PeakMemory

    answer: dict[str, Any] = {"file": path.name}
    begin, spent = time.perf_counter(), time.process_time()
    with PeakMemory() as memory:
        try:
            read(path)
            answer["outcome"] = "read"
        except InputError as error:
            answer["outcome"] = _complaint(str(error), path)
        except OSError as error:
            answer["outcome"] = "os error"
            answer["told"] = str(error)
        except BaseException as error:  # noqa: BLE001 - Rust's panics are no Exception
            answer["outcome"] = "traceback"
            answer["told"] = f"{type(error).__name__}: {error}"[:300]
            answer["trace"] = traceback.format_exc()[-3000:]
    # On a busy machine the clock runs for others too.
    answer["seconds"] = min(time.perf_counter() - begin, time.process_time() - spent)
    answer["grew"] = memory.growth_mib or 0.0
    return answer


def _complaint(text: str, path: Path) -> str:
    one_line = len(text.splitlines()) == 1
    names = str(path) in text or not path.name.startswith(NAMING)
    return "refused" if one_line and names else f"complaint: {text!r}"


def _put(folder: Path, name: str, data: bytes) -> Path:
    target = folder / "damaged" / name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)
    return target


def _limit_addresses() -> None:
    """Whoever asks for the moon gets a MemoryError instead of the machine's memory."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_ADDRESSES,) * 2)


# ---- the process that asks


class Reader:
    """The process that reads, begun anew when it dies."""

    def __init__(self, folder: Path, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._said = folder / "said"
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=read_all, args=(folder, seed, theirs), daemon=True)
        self._process.start()
        theirs.close()
        begun = self._answer(10 * SILENCE)
        if begun is not True:
            raise SystemExit(f"the whole files cannot be read: {begun}")

    def ask(self, number: int) -> Any:
        """The answer, or in words why the process ended."""
        with suppress(OSError):  # it is dead already
            self._pipe.send(number)
        return self._answer(SILENCE)

    def _answer(self, patience: float) -> Any:
        if not self._pipe.poll(patience):
            self._process.kill()
            return f"no answer for {patience:g} s"
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"died with {self._process.exitcode}: {self._said.read_text('utf-8', 'replace')[-2000:]}"

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def failure(answer: dict[str, Any]) -> str | None:
    """What did not hold, in words."""
    if answer["outcome"] not in ("read", "refused", "os error"):
        return f"{answer['outcome']}: {answer.get('told', '')}"
    if answer["seconds"] > MOST_SECONDS:
        return f"{answer['seconds']:.1f} s"
    return f"{answer['grew']:.0f} MiB" if answer["grew"] > MOST_MIB else None


def whole_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "whole").iterdir() if path.is_file())


def run(
    folder: Path, numbers: range, seed: int, only: str = "", tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Every case of ``numbers``: how often each outcome came, the most seconds and MiB, and the failures.

    ``tell`` hears of a failure at once.
    """
    from fuzz_samples import make

    if not (folder / "whole").is_dir():
        make(folder / "whole")
    for path in whole_files(folder):
        if only not in path.name:
            path.unlink()
    names = [path.name for path in whole_files(folder)]
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    seconds = grew = 0.0
    reader = Reader(folder, seed)
    for number in numbers:
        answer = reader.ask(number)
        kinds[names[number % len(names)].partition(".")[0].partition("-")[0]] += 1
        if isinstance(answer, str):
            failures.append(f"case {number}, {names[number % len(names)]}: {answer}")
            tell(failures[-1])
            reader.close()
            reader = Reader(folder, seed)
            continue
        outcomes[answer["outcome"].partition(":")[0]] += 1
        seconds, grew = max(seconds, answer["seconds"]), max(grew, answer["grew"])
        wrong = failure(answer)
        if wrong is not None:
            failures.append(f"case {number}, {answer['file']}: {wrong}\n{answer.get('trace', '')}".rstrip())
            tell(failures[-1])
    reader.close()
    return {
        "outcomes": dict(outcomes), "kinds": dict(kinds), "seconds": seconds, "grew": grew, "failures": failures,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1500, metavar="N", help="how many [1500]")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case [0]")
    parser.add_argument("--case", type=int, metavar="N", help="this case alone")
    parser.add_argument("--seed", type=int, default=0, help="of all the damage [0]")
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose name has TEXT in it")
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.files) if args.case is None else range(args.case, args.case + 1)
    with tempfile.TemporaryDirectory() as temporary:
        begin = time.perf_counter()
        found = run(Path(temporary), numbers, args.seed, args.only, tell=partial(print, flush=True))
    failures = found.pop("failures")
    print(f"{len(failures)} failures")  # noqa: T201
    print(json.dumps({**found, "wall_s": round(time.perf_counter() - begin)}))  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
