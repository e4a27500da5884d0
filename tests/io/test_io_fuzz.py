"""Damaged files of every format: a result of the right shape, InputError or OSError, and nothing else."""

from __future__ import annotations

from pathlib import Path

import fuzz_readers
import pytest
from fuzz_samples import READERS, make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small file of every kind."""
    place = tmp_path_factory.mktemp("fuzz")
    make(place / "whole")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("files", [250, pytest.param(2000, marks=pytest.mark.long)])
def test_readers_refuse_damaged_files(folder: Path, files: int) -> None:
    pytest.importorskip("av")
    pytest.importorskip("laspy")
    found = fuzz_readers.run(folder, range(files), seed=0)
    assert not found["failures"], "\n".join(found["failures"])
    assert found["kinds"].keys() == READERS.keys()
    assert sum(found["outcomes"].values()) == files
    assert found["outcomes"]["refused"] > found["outcomes"]["read"] > files / 10
    assert found["grew"] < 300
