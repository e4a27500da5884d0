"""Wrong arguments of every benchmark: exit code 2, nothing on stdout, one line that names the argument."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    ("tvl1 --large x.png b.png", "x.png: no such file; check the path given as --large"),
    ("tvl1 --presets .", "--presets"),
    ("tvl1 --parts energy", "--parts: is for --device cuda"),
    ("tvl1 --tables x.md", "--tables: is for --device cuda"),
    ("tvl1 --tune", "--tune: is for --device cuda"),
    ("tvl1 --device cuda --large a.png b.png", "large"),
    ("tvl1 --device cuda --tables x.txt", "--tables takes .md"),
    ("tvl1 --device cuda --plots none", "--plots"),
    ("tvl1 --device abacus", "--device"),
    ("tvl1 --device cuda --resume", "--output is absent"),
    ("packing", "--flows: expected files of flow"),
    ("training --sizes 64x64 --batches 1 2", "--batches: expected one number or one for each of 1 sizes"),
    ("sequence --devices 3 --device cpu", "--devices 3: expected GPUs, and PyTorch finds"),
    ("sequence --method tvl1 --presets fastest", "--presets: tvl1 has"),
    ("sequence --frames 2", "--frames: expected 3 or more"),
    ("sequence --folder nowhere", "does not exist"),
    ("models --updates 1 2 3", "--updates: expected one number or one for each of 2 methods"),
    ("models --weights raft", "--weights: expected METHOD=FILE"),
    ("models --weights gma=x.pth", "--weights: expected METHOD=FILE"),
    ("models --weights raft=missing.pth", "missing.pth"),
    ("models --alt-cuda-corr missing", "--alt-cuda-corr missing: no such folder"),
    ("models --alt-cuda-corr . --no-peers", "which --no-peers leaves out"),
    *((f"models --stored {STORED} {option}", "--stored measures nothing; leave it out")
      for option in ("--updates 3", "--device cpu", "--repeats 5", "-o r.json", "--no-peers")),
    ("points --resume", "--output is absent"),
    ("points --seconds 0", "expected a number above 0"),
    ("points --kernel 9", "--kernel: expected 1 to 8"),
    ("points --channels 64", "expected INxOUT"),
    ("points --clouds nowhere.ply", "nowhere.ply"),
    ("points --pointelligence nowhere", "no such folder"),
    ("points --markdown tables.txt", ".md"),
    ("record raft-small --pair a.png b.png -o absent", "--output absent: expected an existing folder"),
    ("record raft-small --pair a.png c.png -o .", "c.png"),
    ("record fullfield-s --pair a.png b.png -o . --weights no.pth", "no.pth"),
    ("reproduce absent", "absent: expected a folder of runs"),
    ("reproduce --only 4", "invalid choice"),
    ("reproduce --stand-in mine", "--stand-in: expected SET=NAME with SET one of charge-8k"),
    ("reproduce --only 2 --lookups a.png", "--lookups: is for table 3"),
    ("reproduce --only 3 --lookups a.png", "--lookups a.png: expected JSON"),
    ("reproduce --frames pairs:mine", "--frames: is for the sheets"),
    ("reproduce -o a.png", "a.png: is a file"),
    ("correlation --levels 9", "--levels"),
    ("correlation --radius 0", "--radius"),
    ("correlation --updates 1 2", "--sweep updates"),
    ("correlation --channels 32 64 --sweep size", "--sweep channels"),
    ("correlation --sizes 8x8 9x9 --sweep updates", "--sizes"),
    ("correlation --lookups none.npy", "none.npy"),
    ("correlation --lookups five.npy --updates 6", "expected the 8 updates"),
    ("correlation --compare other.json", "--plots"),
    ("correlation --compare other.json --plots .", "expected results"),
    ("correlation --alt-cuda-corr none", "--alt-cuda-corr"),
    ("correlation --alt-cuda-corr .", "correlation_kernel.cu"),
    ("correlation --backends magic", "magic"),
    ("analyze flow.npy", "flow.npy: expected lookups [U, 2, H, W], got shape [2, 4, 5]"),
    ("analyze whole.npy", "expected floating point lookups, got int32"),
    ("analyze objects.npy", "objects.npy: not a readable .npy array"),
    ("analyze header.npy", "header.npy: not a readable .npy array"),
    ("analyze huge.npy", "huge.npy: not a readable .npy array"),
    ("analyze none.npy", "no such file"),
    ("analyze .", "is a folder"),
    ("analyze five.npy --updates 4", "--updates: interpolation needs"),
    ("analyze good.npy --blocks 0", "--blocks"),
    ("analyze good.npy --layouts spiral", "--layouts"),
    ("analyze good.npy --plot out.jpg", ".png"),
    ("analyze", "FILE"),
]  # fmt: skip


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings that are none, and of results that are none."""
    folder = tmp_path_factory.mktemp("files")
    for name, shape, kind in (
        ("good", (8, 2, 12, 20), "f4"),
        ("flow", (2, 4, 5), "f4"),
        ("whole", (8, 2, 4, 5), "i4"),
        ("five", (5, 2, 4, 5), "f4"),
    ):
        np.save(folder / f"{name}.npy", np.zeros(shape, kind))
    np.save(folder / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    whole = (folder / "good.npy").read_bytes()
    (folder / "header.npy").write_bytes(whole[:40])
    (folder / "huge.npy").write_bytes(whole.replace(b"(8, 2, 12, 20)", b"(8, 2, 99999, 99999)"))
    (folder / "other.json").write_text('{"bench": "tvl1"}')
    (folder / "broken.json").write_text("{")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 48)).save(folder / name)
    return folder


@pytest.mark.parametrize(("line", "words"), MISTAKES, ids=[line.replace(STORED, "r.json") for line, _ in MISTAKES])
def test_mistakes(
    line: str, words: str, wrong_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(wrong_files)
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    *notes, last = printed.err.splitlines()
    assert last.startswith("fullfield: error: ")
    assert words in last
    assert not notes or line == "correlation --alt-cuda-corr ."  # which first says what does not run here


def test_pictures_without_matplotlib_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("benchmarks.harness.timing_device", lambda _: pytest.fail("nothing is to be measured"))
    assert main(["tvl1", "--device", "cuda", "--plots", str(tmp_path)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_the_page_names_every_benchmark_and_option() -> None:
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
def test_stored_results_stay_readable(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "benchmarks" / "results" / f"{file}.json"
    assert main([name, "--stored", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for case in json.loads(path.read_text("utf-8"))["cases"]:
        assert case.get("label", "") in captured.out


@pytest.mark.parametrize("name", list(FILES))
def test_a_bad_file_of_results_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    head = f'{{"bench": "{name}", "environment": {{}}, "cases": '
    for text in (
        "nonsense",
        "[]",
        '{"cases": []}',
        head + "[1]}",
        head + '[{"case": "ceilings", "label": "x"}]}',
        head + '[{"case": "ceilings", "rows": [{}]}, {"case": "schedules", "rows": [{}]}]}',
        "\xff",
    ):
        path.write_bytes(text.encode("latin-1"))
        assert main([name, "--stored", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("fullfield: error: --stored")
        assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("scene")
def test_a_part_without_its_data_is_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases.tvl1 import gpu

    measured: list[Any] = []
    Path("other.json").write_text("[]")
    row = {"name": "x", "status": "ok", "median_s": 1.0}
    old = {"bench": "tvl1", "cases": [{"case": "depths", "rows": [row]}], "environment": {"commit": "another"}}
    Path("old.json").write_text(json.dumps(old))
    monkeypatch.setattr(gpu, "cases", lambda *_: measured.append(1))
    monkeypatch.setattr("benchmarks.harness.timing_device", lambda _: torch.device("cpu"))
    for options, words in (
        (("--parts", "quality"), "--parts quality: needs pairs with true flow"),
        (("--presets", "none"), "--presets: folder"),
        (("--resume", "-o", "other.json"), "--resume: expected results of the benchmark tvl1 in"),
        (("--resume", "-o", "old.json"), "--resume: expected results of commit "),
        (("--tune", "--parts", "frames"), "--parts: --tune measures shapes of kernels alone"),
    ):
        assert words in refused("tvl1", "--device", "cuda", *options)
    assert not measured
