"""The command of the benchmarks: light, documented, and where ``fullfield bench`` went."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runner import BENCHES, build_parser
from fullfield.cli.main import main as fullfield

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words", [[], ["correlation"], ["reproduce"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    heavy = ("torch", "numpy", "numba", "matplotlib")
    code = (
        "import sys; from benchmarks.runner import main; code = main(sys.argv[1:]); "
        f"print([name for name in {heavy} if name in sys.modules], code, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *words, "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr == "[] 0\n"
    assert ran.stdout.startswith("usage: python -m benchmarks")


def test_the_page_names_every_benchmark_and_option() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    (targets,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert len(targets.choices) == len(BENCHES)
    for name, parser in targets.choices.items():
        assert f"## `python -m benchmarks {name}" in page
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in page, f"{name} {option}"


@pytest.mark.parametrize(
    ("words", "command"),
    [(["bench"], "benchmarks"), (["bench", "tvl1", "-q"], "benchmarks"), (["reproduce"], "benchmarks reproduce")],
)
def test_the_verbs_that_went_say_where(words: list[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fullfield(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("fullfield: error: ")
    assert said.endswith(f"in a checkout of fullfield run python -m {command}\n")
    assert said.count("\n") == 1
