"""Command lines drawn at random; ``fuzz_arguments.py`` draws more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_arguments

pytest.importorskip("OpenImageIO")

CASES = 40


@pytest.mark.slow
def test_any_command_line_ends_with_an_exit_code(tmp_path: Path) -> None:
    """In a process of its own: one that hangs is ended, and says where."""
    command = [sys.executable, fuzz_arguments.__file__, "--cases", str(CASES), "--seed", "3"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert sum(found["codes"].values()) == CASES
    assert set(found["codes"]) <= {"0", "1", "2", "3"}
    assert found["codes"]["0"] >= 5, "some of them work"


def test_command_lines_are_drawn_from_every_parser_and_the_same_again() -> None:
    parsers = fuzz_arguments.verbs()
    lines = [fuzz_arguments.command(number, 0, parsers) for number in range(2000)]
    assert lines == [fuzz_arguments.command(number, 0, parsers) for number in range(2000)]
    assert lines[:50] != [fuzz_arguments.command(number, 1, parsers) for number in range(50)]
    drawn = {word.partition("=")[0] for line in lines for word in line}
    options = {option for parser in parsers.values() for option in parser._option_string_actions}
    unseen = {option for option in options if option.startswith("--")} - drawn - {"--help"}
    assert len(unseen) < len(options) / 20, unseen


def test_harm_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nothing above could fail."""
    monkeypatch.chdir(tmp_path)
    fuzz_arguments.furnish(tmp_path / "whole")

    def given(line: list[str], act: object) -> dict[str, object]:
        monkeypatch.setattr(fuzz_arguments, "fullfield", act)
        return fuzz_arguments.one(line, tmp_path / "whole", tmp_path / "here")

    def lose(_: list[str]) -> int:
        Path("flow.flo").unlink()
        return 0

    def fail(_: list[str]) -> int:
        Path("flow.flo").write_bytes(b"")
        sys.stderr.write("fullfield: error: no\n")
        return 2

    def broken(_: list[str]) -> int:
        raise KeyError("x")

    assert "harmed: flow.flo" in str(given(["score", "a.png"], lose)["wrong"])
    assert "harmed: flow.flo" in str(given(["flow", "-o", "flow.flo"], fail)["wrong"])
    assert "KeyError" in str(given(["flow"], broken)["wrong"])
    assert "exit code 7" in str(given(["flow"], lambda _: 7)["wrong"])
    assert "no word of error" in str(given(["flow"], lambda _: 2)["wrong"])
    assert "wrong" not in given(["flow"], lambda _: 0)
