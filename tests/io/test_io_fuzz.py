"""Damaged files of every format: a result of the right shape, InputError or OSError, and nothing else."""

from __future__ import annotations

from pathlib import Path

import fuzz_readers
import pytest
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
