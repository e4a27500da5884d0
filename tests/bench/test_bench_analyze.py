"""``python -m benchmarks analyze``: the share of the correlation volume that a recording reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cases.correlation.analysis import read_shares, recorded_positions


@pytest.fixture
def recording(scene: Path) -> Path:
    steps = 1 - 0.6 ** np.array([0, 1, 2, 4, 8, 12, 20, 31])
    y, x = np.mgrid[0:12, 0:20]
    flow = np.stack((2 * np.sin(y / 4), 1.5 * np.cos(x / 5)))
    np.save(scene / "a.npy", (steps[:, None, None, None] * flow).astype(np.float32))
    np.save(scene / "b.npy", (3 * steps[:, None, None, None] * flow).astype(np.float64))
    return scene


@pytest.mark.usefixtures("recording")
def test_shares_as_json(cli: Any, recording: Path) -> None:
    import torch

    ran = cli("analyze", "a.npy", "--radius", 2, "--levels", 2, "--blocks", 4, 1, "--json")
    assert ran.code == 0
    (one,) = ran.json["files"]
    coords = recorded_positions(torch.from_numpy(np.load(recording / "a.npy")))
    expected = read_shares(coords, 2, levels=2, blocks=[1]) + read_shares(coords, 2, levels=2, blocks=[4])
    assert one["shares"] == [share.as_dict() for share in expected]
    assert one["size"] == [12, 20]
    assert one["updates"] == 8
    assert 0 < one["inside"] <= 1
    assert one["mean_columns"] > 0


@pytest.mark.usefixtures("recording")
def test_table_over_files(cli: Any) -> None:
    ran = cli("analyze", "a.npy", "b.npy", "--blocks", "1", "2", "8")
    assert ran.code == 0
    lines = ran.out.splitlines()
    table = lines[-4:]
    assert table[0].split("  ")[0].strip() == "block"
    assert "row-major, level 0" in table[0]
    assert "patch-major, level 0" in table[0]
    assert [line.split()[0] for line in table[1:]] == ["1²", "2²", "8²"]
    assert all("±" in line for line in table[1:])
    single = cli("analyze", "a.npy", "--layouts", "patch-major", "--blocks", "2", "-q")
    assert "saved" not in single.out
    assert "row-major" not in single.out


@pytest.mark.usefixtures("recording")
def test_updates_in_between_add_cells(cli: Any) -> None:
    def shares(*more: object) -> list[float]:
        ran = cli("analyze", "b.npy", "--blocks", "1", "4", "--json", "-q", *more)
        return [share["share"] for share in ran.json["files"][0]["shares"]]

    one, some, all_ = shares("--updates", 1), shares(), shares("--updates", 32)
    assert all(a < b <= c for a, b, c in zip(one, some, all_, strict=True))


@pytest.mark.usefixtures("recording")
def test_picture(cli: Any) -> None:
    pytest.importorskip("matplotlib")
    assert cli("analyze", "a.npy", "--plot", "out.png", "--blocks", "1", "8").code == 0
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("recording")
def test_mistakes(refused: Callable[..., str], recording: Path) -> None:
    np.save(recording / "flow.npy", np.zeros((2, 4, 5), np.float32))
    np.save(recording / "three.npy", np.zeros((8, 3, 4, 5), np.float32))
    np.save(recording / "whole.npy", np.zeros((8, 2, 4, 5), np.int32))
    np.save(recording / "five.npy", np.zeros((5, 2, 4, 5), np.float32))
    np.save(recording / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    np.savez(recording / "archive.npz", a=np.zeros(3))
    (recording / "archive.npz").rename(recording / "archive.npy")
    (recording / "text.npy").write_text("hello")
    whole = (recording / "a.npy").read_bytes()
    (recording / "short.npy").write_bytes(whole[:200])
    (recording / "header.npy").write_bytes(whole[:40])
    (recording / "huge.npy").write_bytes(whole.replace(b"(8, 2, 12, 20)", b"(8, 2, 99999, 99999)"))
    for name, said in {
        "flow.npy": "expected lookups [U, 2, H, W], got shape [2, 4, 5]",
        "three.npy": "got shape [8, 3, 4, 5]",
        "whole.npy": "expected floating point lookups, got int32",
        "objects.npy": "not a readable .npy array",
        "archive.npy": "not a .npy file",
        "text.npy": "not a .npy file",
        "short.npy": "not a readable .npy array",
        "header.npy": "not a readable .npy array",
        "huge.npy": "not a readable .npy array",
        "none.npy": "no such file",
        ".": "is a folder",
    }.items():
        line = refused("analyze", name)
        assert line.startswith(f"fullfield: error: {name}: ")
        assert said in line
    assert "--updates: interpolation needs" in refused("analyze", "five.npy", "--updates", 4)
    assert "--levels" in refused("analyze", "a.npy", "--levels", 9)
    assert "--blocks" in refused("analyze", "a.npy", "--blocks", 0)
    assert "--layouts" in refused("analyze", "a.npy", "--layouts", "spiral")
    assert ".png" in refused("analyze", "a.npy", "--plot", "out.jpg")
    assert "none" in refused("analyze", "a.npy", "--plot", "none/out.png")
    assert "FILE" in refused("analyze")


def test_help_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = ("torch", "numpy", "numba", "matplotlib")
    code = (
        "import sys; from benchmarks.runner import main; code = main(sys.argv[1:]); "
        f"print([name for name in {heavy} if name in sys.modules], code, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, "analyze", "--help"], capture_output=True, text=True, check=True)
    assert ran.stderr == "[] 0\n"
    assert ran.stdout


def test_constants_are_the_librarys() -> None:
    from benchmarks.cases.correlation import analyze
    from benchmarks.cases.correlation.analysis import BLOCKS, LAYOUTS

    assert (analyze.BLOCKS, analyze.LAYOUTS) == (BLOCKS, LAYOUTS)
