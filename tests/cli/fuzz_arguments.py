"""Command lines drawn from the parsers of all verbs: whatever is asked, an exit code and no traceback.

    python tests/cli/fuzz_arguments.py                       200 command lines
    python tests/cli/fuzz_arguments.py --cases 20000         the long run
    python tests/cli/fuzz_arguments.py --case 4711           one again, with what it says

Allowed are the exit codes of ``fullfield`` (0, 1, 2; 3 of ``register``), with one line that says why where it is 2.
No command may hang, nor harm a file that it does not write: what is not named on the command line stays as it
is, and what is named stays where the command fails. There is no network. Options and values come from the parsers;
numbers are small, or so large that they must be refused. The same seed and number make the same command line.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fullfield import InputError
from fullfield.cli.main import build_parser
from fullfield.cli.main import main as fullfield
from fullfield.io import PointCloud, write_flow, write_image, write_point_cloud
from fullfield.testing import sample_room_scan, sample_textured_scene

PATIENCE = 240.0  # seconds, on a busy machine
CODES = (0, 1, 2, 3)
_NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "1e-3", "nan", "inf", "1e400", "10" * 20, "٣", "0x2", "1_0", "")
_FINE = ("1", "2", "3", "0.5")
_WORDS = (
    "", " ", "-", "--", "..", "/", "/dev/null", "/proc/self/mem", "*", "%s", "%d", "ä\N{SNOWMAN}", "a\nb", "[",
    "\udcff",
)  # fmt: skip
_FILES = (
    "a.png", "b.png", "flow.flo", "plate.%04d.png", "plate.####.png", "plates", "*.png", "cloud.ply", "moved.ply",
    "pairs.txt", "notes.json", "broken.png", "empty.exr", "nowhere.png", "no/where.flo",
)  # fmt: skip
_OUTPUTS = (
    "out.flo", "out.exr", "out.png", "out.npy", "out.json", "out.html", "out.mp4", "out.%04d.exr", "out.%04d.png",
    "out", "no/where.exr", "plates/out.flo", "out.xyz", "out.ply", "a.png", "plate.%04d.png", "flow.flo",
)  # fmt: skip
_PICTURES = ("a.png", "b.png", "plate.%04d.png", "plates", "*.png")
_SPECIAL = {
    "frame1": _PICTURES,
    "frame2": ("a.png", "b.png"),
    "previous": ("a.png", "b.png"),
    "image": _PICTURES,
    "plates": _PICTURES,
    "pred": ("flow.flo",),
    "truth": ("flow.flo",),
    "flow": ("flow.flo", "out.flo", "out.png"),
    "input": ("flow.flo", "a.png"),
    "clouds": ("cloud.ply", "moved.ply"),
    "others": ("b.png",),
    "method": ("auto", "tvl1", "fullfield-s"),
    "reference": ("11", "12", "13"),
    "name": ("fullfield-s",),
    "names": ("fullfield-s",),
    "source": ("cloud.ply", "plates", "plate.%04d.png"),
    "dataset": ("pairs:.", "sintel:."),
    "backend": ("cpu", "reference", "cuda"),
    "layer": ("forward", "backward", "x"),
    "device": ("cpu", "cpu", "cpu", "cuda", "cuda:99", "meta", "gpu"),
    "devices": ("cpu", "all", "cuda:0,cuda:1", "cpu,cpu", ","),
    "frames": ("11-13", "12", "11-14x2", "1-2", "13-11", "x", "1-999999999"),
    "ray": ("127.0.0.1:1", "x"),
}
_SMALL = {"demo": ("--size", "64x48")}
"""What some verbs get at the end, so that they work for a moment."""
_LONG = ("train", "export", "pairs")
"""Work for minutes; their command lines are parsed alone."""


def verbs() -> dict[tuple[str, ...], argparse.ArgumentParser]:
    """The parsers of all verbs, by their words."""
    found: dict[tuple[str, ...], argparse.ArgumentParser] = {}

    def go(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for action in below:
            for name, one in action.choices.items():
                go(one, (*words, name))
        if not below:
            found[words] = parser

    go(build_parser(), ())
    return found


def command(number: int, seed: int, parsers: dict[tuple[str, ...], argparse.ArgumentParser]) -> list[str]:
    """The command line of case ``number``."""
    rng = random.Random(f"{seed} {number}")
    first = rng.choice(sorted({words[0] for words in parsers}))
    words = rng.choice(sorted(words for words in parsers if words[0] == first))
    odd = rng.choice((0.0, 0.0, 0.1, 0.5))  # how often a value is none that the option is for
    actions = [
        one for one in parsers[words]._actions if not isinstance(one, (argparse._HelpAction, argparse._VersionAction))
    ]
    many = rng.choice((0.0, 1.0, 2.5, 6.0))  # options on average
    line: list[str] = []
    for action in actions:
        if not action.option_strings:
            if rng.random() < 1 - odd / 4:
                line += _values(action, rng, odd)
        elif rng.random() < (1 - odd / 2 if action.required else min(0.5, many / len(actions))):
            values = _values(action, rng, odd)
            option = rng.choice(action.option_strings)
            line += [f"{option}={values[0]}"] if len(values) == 1 and rng.random() < 0.2 else [option, *values]
    if rng.random() < odd / 5:
        line.append(rng.choice(("--nonsense", "-Z", "--devic", "stray")))
    if rng.random() < odd / 5:
        rng.shuffle(line)
    return [*words, *line, *_SMALL.get(words[0], ())]


def _values(action: argparse.Action, rng: random.Random, odd: float) -> list[str]:
    if action.nargs == 0:
        return []
    count = action.nargs if isinstance(action.nargs, int) else 1
    if action.nargs in ("*", "+"):
        count = rng.choice((1, 1, 2, 3))
    return [_value(action, rng, odd) for _ in range(count)]


def _value(action: argparse.Action, rng: random.Random, odd: float) -> str:
    if rng.random() < odd:
        return rng.choice((*_WORDS, *_NUMBERS, *_FILES, *_OUTPUTS))
    if action.choices is not None:
        return rng.choice(sorted(map(str, action.choices)))
    if action.dest in _SPECIAL:
        return rng.choice(_SPECIAL[action.dest])
    if action.dest.startswith("parameter"):
        return rng.choice(("auto", *_FINE, *str(action.metavar).strip("{}").split(",")))
    shown = " ".join(filter(None, (action.metavar if isinstance(action.metavar, str) else "", action.dest))).lower()
    if "output" in shown or action.dest in ("viz", "st_map", "occlusion", "confidence", "initial_flow"):
        return rng.choice(_OUTPUTS)
    if "WxH" in shown or "size" in action.dest:
        return rng.choice(("32x24", "64x48"))
    return rng.choice(_FINE if action.type is not None else _FILES)


# ---- running


def furnish(folder: Path) -> None:
    """The files that command lines name."""
    folder.mkdir()
    scene = sample_textured_scene(40, 56, seed=4)
    write_image(folder / "a.png", scene.frame1)
    write_image(folder / "b.png", scene.frame2)
    write_flow(folder / "flow.flo", scene.flow)
    (folder / "plates").mkdir()
    for number in range(11, 14):
        moved = scene.frame1.roll(number, -1)
        for place in (folder, folder / "plates"):
            write_image(place / f"plate.{number:04d}.png", moved)
    points = sample_room_scan(1, 600)
    write_point_cloud(folder / "cloud.ply", PointCloud(points))
    write_point_cloud(folder / "moved.ply", PointCloud(points + 0.1))
    (folder / "pairs.txt").write_text("a.png b.png flow.flo\n")
    (folder / "notes.json").write_text("{}")
    (folder / "broken.png").write_bytes((folder / "a.png").read_bytes()[:300])
    (folder / "empty.exr").write_bytes(b"")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def one(line: list[str], whole: Path, folder: Path) -> dict[str, Any]:
    """What came of a command line, in a fresh copy of the files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    before = contents(folder)
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    begin = time.perf_counter()
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code: Any = parsed(line) if line[0] in _LONG else fullfield(line)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - told
        return {"code": "traceback", "wrong": traceback.format_exc()[-3000:]}
    finally:
        faulthandler.cancel_dump_traceback_later()
    errors = err.getvalue()
    answer = {"code": code, "said": errors, "seconds": time.perf_counter() - begin}
    if code not in CODES or isinstance(code, bool):
        answer["wrong"] = f"exit code {code!r}: {errors[-500:]}"
    elif "Traceback" in errors:
        answer["wrong"] = errors[-3000:]
    elif code == 2 and not any(row.startswith("fullfield: error: ") for row in errors.splitlines()):
        answer["wrong"] = f"no word of error: {errors[-500:]!r}"
    else:
        lost = list(_lost(before, contents(folder), line, code))
        if lost:
            answer["wrong"] = f"exit code {code}, harmed: {', '.join(lost)}"
    return answer


def parsed(line: list[str]) -> int:
    """Parse and do nothing."""
    try:
        build_parser().parse_args(line)
    except InputError as error:
        sys.stderr.write(f"fullfield: error: {error}\n")
        return 2
    return 0


def _lost(before: dict[str, bytes], after: dict[str, bytes], line: list[str], code: int) -> Iterator[str]:
    named = " ".join(line)
    for name, data in before.items():
        stem = Path(name).name.partition(".")[0]
        if after.get(name) != data and (code != 0 or stem not in named or name not in after):
            yield name


def run(numbers: range, seed: int, chosen: str = "", tell: bool = True) -> dict[str, Any]:
    """All command lines of ``numbers``: how often each exit code came, and what was wrong."""
    parsers = {words: parser for words, parser in verbs().items() if chosen in " ".join(words)}
    codes: Counter[str] = Counter()
    done: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = (0.0, "")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        furnish(whole)
        for number in numbers:
            line = command(number, seed, parsers)
            if tell:
                print(f"{number} {line}", file=sys.__stderr__, flush=True)
            found = one(line, whole, Path(temporary) / "here")
            codes[str(found["code"])] += 1
            done[line[0]] += found["code"] == 0
            slowest = max(slowest, (found.get("seconds", 0.0), " ".join(line)))
            if "wrong" in found:
                wrong.append(f"case {number}, fullfield {line}: {found['wrong']}")
                print(wrong[-1], flush=True)  # noqa: T201
        os.chdir(before)
    return {"codes": dict(codes), "done": dict(+done), "slowest": slowest, "wrong": wrong}


def _no_network(*_: object, **__: object) -> NoReturn:
    raise OSError(101, "Network is unreachable")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="how many [200]")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case [0]")
    parser.add_argument("--case", type=int, metavar="N", help="this case alone")
    parser.add_argument("--seed", type=int, default=0, help="of all command lines [0]")
    parser.add_argument("--only", default="", metavar="VERB", help="verbs that have this in their name")
    parser.add_argument("--tell", action="store_true", help="every command line on stderr before it runs")
    args = parser.parse_args()
    socket.socket.connect = socket.create_connection = _no_network  # type: ignore[method-assign,assignment]
    numbers = range(args.first, args.first + args.cases) if args.case is None else range(args.case, args.case + 1)
    begin = time.perf_counter()
    found = run(numbers, args.seed, args.only, args.tell)
    wrong = found.pop("wrong")
    print(f"{len(wrong)} failures")  # noqa: T201
    print(json.dumps({**found, "wall_s": round(time.perf_counter() - begin)}))  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
