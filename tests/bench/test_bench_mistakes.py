"""Wrong arguments of every benchmark: exit code 2, nothing on stdout, one line that names the argument."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.runner import BENCHES, build_parser, main

ROOT = Path(__file__).resolve().parents[2]
STORED = str(ROOT / "benchmarks" / "results" / "models_h200.json")
MISTAKES = [
    ("", "WHAT"),
    ("raft", "raft"),
    ("tvl1 --repeats 0", "--repeats"),
    ("tvl1 -o results.txt", "results.txt"),
    ("tvl1 --pair x.png b.png c.flo", "x.png: no such file; check the path given as --pair"),
    ("tvl1 --parts energy", "--parts: is for --device cuda"),
    ("packing", "--flows: expected files of flow"),
    ("training --sizes 64x64 --batches 1 2", "--batches: expected one number or one for each of 1 sizes"),
    ("sequence --frames 2", "--frames: expected 3 or more"),
    ("models --updates 1 2 3", "--updates: expected one number or one for each of 2 methods"),
    ("models --weights raft=missing.pth", "missing.pth"),
    ("correlation --localcorr missing.whl", "--localcorr missing.whl: no such file or folder"),
    ("models --alt-cuda-corr missing", "--alt-cuda-corr missing: no such folder"),
    ("points --resume", "--output is absent"),
    ("points --kernel 9", "--kernel: expected 1 to 8"),
    ("points --clouds nowhere.ply", "nowhere.ply"),
    ("record raft-small --pair a.png c.png -o .", "c.png"),
    ("reproduce absent", "absent: expected a folder of runs"),
    ("reproduce --stand-in mine", "--stand-in: expected SET=NAME with SET one of charge-8k"),
    ("correlation --levels 9", "--levels"),
    ("correlation --updates 1 2", "--sweep updates"),
    ("correlation --lookups five.npy --updates 6", "expected the 8 updates"),
    ("correlation --compare other.json --plots .", "expected results"),
    ("correlation --backends magic", "magic"),
    ("analyze flow.npy", "flow.npy: expected lookups [U, 2, H, W], got shape [2, 4, 5]"),
    ("analyze objects.npy", "objects.npy: not a readable .npy array"),
    ("analyze huge.npy", "huge.npy: not a readable .npy array"),
    ("analyze none.npy", "no such file"),
    ("analyze five.npy --updates 4", "--updates: interpolation needs"),
    (f"models --stored {STORED} --repeats 5", "--stored measures nothing; leave it out"),
]  # fmt: skip


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings that are none, and of results that are none."""
    folder = tmp_path_factory.mktemp("files")
    for name, shape in (("good", (8, 2, 12, 20)), ("flow", (2, 4, 5)), ("five", (5, 2, 4, 5))):
        np.save(folder / f"{name}.npy", np.zeros(shape, np.float32))
    np.save(folder / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    whole = (folder / "good.npy").read_bytes()
    (folder / "huge.npy").write_bytes(whole.replace(b"(8, 2, 12, 20)", b"(8, 2, 99999, 99999)"))
    (folder / "other.json").write_text('{"bench": "tvl1"}')
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 48)).save(folder / name)
    return folder


@pytest.mark.parametrize(("line", "words"), MISTAKES, ids=[line.replace(STORED, "r.json") for line, _ in MISTAKES])
def test_benchmarks_main_refuses_mistakes_in_one_line(
    line: str, words: str, wrong_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(wrong_files)
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    *notes, last = printed.err.splitlines()
    assert last.startswith("fullfield: error: ")
    assert words in last
    assert not notes


def test_readme_lists_every_benchmark_and_option() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    (targets,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(targets.choices) == {*(bench.name for bench in BENCHES), "analyze", "record", "reproduce"}
    for name, parser in targets.choices.items():
        assert f"## `python -m benchmarks {name}" in page
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in page, f"{name} {option}"


FILES = {
    "tvl1": ["tvl1_cpu", "tvl1_h200"],
    "correlation": ["correlation_h200_sizes", "correlation_h200_train"],
    "points": ["points_h200"],
    "models": ["models_h200"],
    "patched": ["patched_h200", "patched_h200_4k"],
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FILES.items() for file in files])
def test_read_results_reads_every_stored_result(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "benchmarks" / "results" / f"{file}.json"
    assert main([name, "--stored", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for case in json.loads(path.read_text("utf-8"))["cases"]:
        assert case.get("label", "") in captured.out


@pytest.mark.parametrize("name", list(FILES))
def test_read_results_refuses_bad_file_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    head = f'{{"bench": "{name}", "environment": {{}}, "cases": '
    for text in ("nonsense", '{"cases": []}', head + '[{"case": "ceilings", "rows": [{}]}, {"case": "schedules"}]}'):
        path.write_bytes(text.encode("latin-1"))
        assert main([name, "--stored", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("fullfield: error: --stored")
        assert captured.err.count("\n") == 1
