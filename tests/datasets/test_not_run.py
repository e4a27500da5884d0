"""The commands of the page of what was not run, on small data sets of the layouts that they name."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import test_datasets
import test_scans

from benchmarks import runner
from fullfield.cli.main import main
from fullfield.datasets.three_d_match import SCENES

PAGE = Path(__file__).resolve().parents[2] / "benchmarks" / "notes" / "not_run.md"
COMMANDS = re.findall(r"`((?:fullfield|python -m benchmarks) [^`]+)`", PAGE.read_text("utf-8"))
FLOW = [command for command in COMMANDS if command.startswith("fullfield evaluate raft ")]
SCANS = [command for command in COMMANDS if command.startswith("fullfield evaluate fpfh ")]


def three_d_match(root: Path, lists: str) -> None:
    test_scans.three_d_match(root, f"benchmarks/{lists}/kitchen/gt.log")
    scene = SCENES["test"][0]
    (root / "kitchen").rename(root / scene)
    (root / "benchmarks" / lists / "kitchen").rename(root / "benchmarks" / lists / scene)


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "charge-8k": test_datasets.charge,
    "kubric-8k": test_datasets.kubric,
    "spring": test_datasets.spring,
    "sintel-final": test_datasets.sintel,
    "kitti-2015": test_datasets.kitti,
    "3dmatch-test": lambda root: three_d_match(root, "3DMatch"),
    "3dlomatch": lambda root: three_d_match(root, "3DLoMatch"),
    "kitti-odometry": lambda root: test_scans.kitti(root, [4.0 * i for i in range(4)]),
}


def split(command: str) -> tuple[list[str], str]:
    """Return the words of a command without its program, and the name of its data set."""
    words = shlex.split(command)[1:]
    return words, words[2].partition(":")[0]


@pytest.mark.parametrize("command", [*FLOW, *SCANS])
def test_not_run_command_works_on_layout_of_dataset(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, name = split(command)
    LAYOUTS[name](tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    words[2] = f"{name}:data"
    if words[1] == "raft":  # whose weights are downloaded, and whose features need larger frames
        words = [*words[:3], "--precision", "float32", "--preset", "fast"]
        words[1] = "tvl1"
    assert main([*words, "-q", "--json", "-o", "run"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert list((tmp_path / "run").rglob("result.json"))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python")])
def test_not_run_benchmark_commands_parse(command: str) -> None:
    words = shlex.split(command)[3:]
    assert runner.build_parser().parse_known_args(words)[1] == []


def test_not_run_tests_cover_every_command() -> None:
    assert {split(command)[1] for command in (*FLOW, *SCANS)} == LAYOUTS.keys()
    assert all(command in (*FLOW, *SCANS) or command.startswith("python") for command in COMMANDS)
