"""Damaged files of every format: a result of the right shape, InputError or OSError, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import fuzz_readers
import pytest
from fuzz_damage import damage, mend_png
from fuzz_samples import READERS, make

FILES = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small file of every kind."""
    place = tmp_path_factory.mktemp("fuzz")
    make(place / "whole")
    return place


@pytest.mark.slow
def test_damaged_files(folder: Path) -> None:
    pytest.importorskip("av")
    pytest.importorskip("laspy")
    found = fuzz_readers.run(folder, range(FILES), seed=0)
    assert not found["failures"], "\n".join(found["failures"])
    assert found["kinds"].keys() == READERS.keys()
    assert sum(found["outcomes"].values()) == FILES
    assert found["outcomes"]["refused"] > found["outcomes"]["read"] > FILES / 10
    assert found["grew"] < 300


def test_the_damage_is_real_and_the_same_again(folder: Path) -> None:
    """Otherwise the test above would pass for readers that read anything."""
    files = fuzz_readers.whole_files(folder)
    for number, path in enumerate(files):
        data = path.read_bytes()
        changed = sum(damage(data, random.Random(seed), path.suffix, data) != data for seed in range(20))
        assert changed > 14, path.name
        chosen, first = fuzz_readers.case(number, 7, files)
        assert chosen == path
        assert (path, first) == fuzz_readers.case(number, 7, files)
        assert len(data) < 100 or first != fuzz_readers.case(number, 8, files)[1]
    data = (folder / "whole" / "frame-a.png").read_bytes()
    assert mend_png(data) == data
    assert mend_png(data[:40] + b"\0" + data[41:]) != data


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"outcome": "refused"}, None),
        ({"outcome": "traceback", "told": "KeyError: 'u'"}, "traceback: KeyError: 'u'"),
        ({"outcome": "complaint: 'two\\nlines'"}, "complaint"),
        ({"seconds": 11.0}, "11.0 s"),
        ({"grew": 1100.0}, "1100 MiB"),
    ],
)
def test_what_counts_as_a_failure(change: dict[str, Any], told: str | None) -> None:
    said = fuzz_readers.failure({"outcome": "read", "seconds": 0.1, "grew": 3.0, **change})
    assert (said is None) == (told is None)
    assert said is None or said.startswith(str(told))


STAND_IN = """
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    if line == "1\\n":
        print("the last words", file=sys.stderr, flush=True)
        os.abort()
    if line == "2\\n":
        time.sleep(60)
    print('{"outcome": "read"}', flush=True)
"""


def test_a_reader_that_dies_or_hangs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reader.py").write_text(STAND_IN)
    monkeypatch.setattr(fuzz_readers, "__file__", str(tmp_path / "reader.py"))
    for number, silence, told in ((1, 60.0, "died with -6: the last words"), (2, 2.0, "no answer for 2 s")):
        monkeypatch.setattr(fuzz_readers, "SILENCE", silence)
        reader = fuzz_readers.Reader(tmp_path, 0)
        assert reader.ask(0) == {"outcome": "read"}
        assert reader.ask(number) is None
        assert told in reader.end
        reader.close()
