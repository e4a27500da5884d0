"""``fullfield flow`` and ``fullfield demo`` with networks, ``fullfield weights``, and what doctor says of them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield.estimators.estimation import estimate
from fullfield.estimators.network_config import RAFTSettings
from fullfield.io import read_flow, write_flow, write_image
from fullfield.models import RAFT, RAFTConfig
from fullfield.models.downloads import DownloadError
from fullfield.models.weights import DEFAULTS, WEIGHTS
from fullfield.testing import sample_textured_scene

PAIR = ("flow", "a.png", "b.png", "-o", "out.flo")


@pytest.fixture(scope="module")
def _stored_weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.save({f"module.{name}": value for name, value in RAFT(RAFTConfig.small()).state_dict().items()}, path)
    return path.read_bytes()


@pytest.fixture
def weights(_stored_weights: bytes, scene: Path) -> str:
    """The name of a file in the scene's folder, in the form of the official ones."""
    (scene / "w.pth").write_bytes(_stored_weights)
    return "w.pth"


@pytest.fixture
def cache(scene: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(scene / "cache"))

    def unreachable(url: str, *_: object, **__: object) -> None:
        raise DownloadError(f"{url}: cannot be reached")

    monkeypatch.setattr("fullfield.models.weights.download_if_missing", unreachable)
    return scene / "cache" / "weights"


def test_flow_method_selects_network(cli: Any, weights: str) -> None:
    ran = cli(*PAIR, "--method", "raft-small", "--weights", weights, "--updates", "3", "--padding", "kitti")
    assert ran.code == 0, ran.err
    backend = estimate("a.png", "b.png", "raft-small", weights=weights, updates=1).backend
    assert ran.out.startswith(
        f"out.flo: 64x48, raft-small (preset default), on cpu (backend {backend}), longest motion"
    )
    expected = estimate(
        "a.png", "b.png", "raft-small", config=RAFTSettings(weights=weights, updates=3, padding="kitti")
    )
    assert torch.equal(read_flow("out.flo").flow, expected.flow)


def test_flow_method_auto_reports_network(cli: Any) -> None:
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--method", "auto", "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert (report["requested_method"], report["refined"]) == ("auto", True)
    assert report["method"] == "auto"
    assert torch.equal(read_flow("out.flo").flow, estimate("a.png", "b.png", "auto").flow)


def test_flow_json_describes_network(cli: Any, weights: str) -> None:
    chosen = ("--method", "raft-small", "--weights", weights, "--updates", "2", "--cascade", "--backend", "dense")
    report = cli(*PAIR, *chosen, "--preset", "fast", "--json").json
    assert (report["method"], report["preset"], report["backend"]) == ("raft-small", "fast", "dense")
    assert report["parameters"] == {
        "weights": weights,
        "weights_sha256": hashlib.sha256(Path(weights).read_bytes()).hexdigest()[:12],
        "updates": 2,
        "cascade": True,
        "coarse_updates": 2,
        "double": None,
        "precision": "fast",
        "padding": "sintel",
    }
    assert report["seconds"].keys() == {"load", "compile", "estimate", "write", "total"}


def test_flow_reports_random_weights(cli: Any) -> None:
    ran = cli(*PAIR, "--method", "sea-raft", "--weights", "random", "--updates", "1")
    assert ran.code == 0, ran.err
    assert "64x48, sea-raft-m (preset default), random weights, on cpu (" in ran.out
    report = cli(*PAIR, "--method", "raft-small", "--weights", "random", "--updates", "1", "--json").json
    assert report["parameters"]["weights"] == "random"
    assert report["parameters"]["weights_sha256"] is None


def test_flow_warm_start_uses_initial_flow(cli: Any, weights: str) -> None:
    start = torch.randn(2, 48, 64)
    write_flow("start.flo", start)
    chosen = ("--method", "raft-small", "--weights", weights, "--updates", "2")
    assert cli(*PAIR, *chosen, "--initial-flow", "start.flo").code == 0
    expected = estimate("a.png", "b.png", "raft-small", weights=weights, updates=2, initial_flow=start)
    assert torch.equal(read_flow("out.flo").flow, expected.flow)


def test_flow_direction_both_loads_network_once(cli: Any, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = RAFT.load_checkpoint
    monkeypatch.setattr(RAFT, "load_checkpoint", lambda self, source: (loaded.append(source), load(self, source))[1])
    chosen = ("--method", "raft-small", "--weights", weights, "--updates", "1", "--previous", "b.png")
    assert cli("flow", "a.png", "b.png", "-o", "out.exr", *chosen).code == 0
    assert len(loaded) == 1
    assert torch.equal(read_flow("out.exr").flow, read_flow("out.exr", layer="backward").flow)


@pytest.mark.usefixtures("ptlflow")
def test_flow_runs_ptlflow_models(cli: Any, refused: Callable[..., str]) -> None:
    chosen = ("--method", "ptlflow:raft_small", "--weights", "random", "--updates", "1")
    ran = cli(*PAIR, *chosen)
    assert ran.code == 0, ran.err
    assert "64x48, ptlflow:raft_small (preset default), random weights, on cpu (" in ran.out
    large = sample_textured_scene(128, 136)  # the original fails on smaller ones
    for name, frame in (("c.png", large.frame1), ("d.png", large.frame2)):
        write_image(name, frame)
    report = cli("flow", "c.png", "d.png", "-o", "out.flo", *chosen, "--no-patched", "--json").json
    assert report["backend"] == "ptlflow"
    assert report["parameters"]["patched"] is False
    assert (report["parameters"]["weights"], report["parameters"]["updates"]) == ("random", 1)
    line = refused(*PAIR, "--method", "ptlflow:rafd")
    assert "--method: expected ptlflow: and one of " in line
    write_flow("start.flo", torch.zeros(2, 48, 64))
    assert "--initial-flow: expected None" in refused(*PAIR, *chosen, "--initial-flow", "start.flo")
    assert "--weights: none.ckpt: no such file" in refused(*PAIR, *chosen[:2], "--weights", "none.ckpt")


def test_flow_names_missing_ptlflow(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptlflow", None)
    line = refused(*PAIR, "--method", "ptlflow:dpflow")
    assert "--method: ptlflow:NAME needs the package ptlflow, which cannot be imported" in line


def test_flow_uses_cached_weights(cli: Any, weights: str, cache: Path) -> None:
    ran = cli(*PAIR, "--method", "raft-small")
    assert ran.code == 2
    note, error = ran.err.splitlines()
    assert note == "fullfield: note: downloading the weights raft-small"
    assert error.startswith("fullfield: error: raft-small: ")
    assert "cannot be reached; fetch " in error
    assert f"put it at {cache / 'raft-small.pth'}" in error
    assert not Path("out.flo").exists()
    assert cli(*PAIR, "--method", "raft-small", "--quiet").err == f"{error}\n"
    (cache / "raft-small.pth").write_bytes(Path(weights).read_bytes())
    ran = cli(*PAIR, "--method", "raft-small", "--updates", "1", "--json")
    assert "fetching" not in ran.err
    assert ran.json["parameters"]["weights"] == "raft-small"


def test_weights_lists_all_entries(cli: Any, cache: Path, weights: str) -> None:
    cache.mkdir(parents=True)
    (cache / "raft-things.pth").write_bytes(Path(weights).read_bytes())
    ran = cli("weights", "list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == len(WEIGHTS) + 1
    here = [line.removeprefix("* ").split()[0] for line in lines if " here " in line]
    assert here == ["fullfield-s", "fullfield-m", "raft-things", "descriptor"]
    by_hand = {line.split()[0] for line in lines[:-1] if " by hand " in line}
    elsewhere = {entry.name for entry in WEIGHTS.values() if not (entry.packaged or entry.in_repository)}
    assert by_hand == {name for name in elsewhere if WEIGHTS[name].url is None}
    assert {line.split()[1] for line in lines[:-1] if line.startswith("* ")} == set(DEFAULTS.values())
    report = cli("weights", "list", "--json").json
    assert report["defaults"] == dict(DEFAULTS)
    entries = {entry["name"]: entry for entry in report["weights"]}
    assert entries.keys() == WEIGHTS.keys()
    assert entries["raft-things"]["path"] == str(cache / "raft-things.pth")
    assert entries["raft-small"]["path"] is None
    assert entries["raft-small"]["metrics"] == dict(WEIGHTS["raft-small"].metrics)
    assert entries["raft-small"]["sha256"] == WEIGHTS["raft-small"].sha256


def test_weights_prints_path_of_entry(cli: Any, refused: Callable[..., str], cache: Path, weights: str) -> None:
    assert "raft-small: is not on this machine; run 'fullfield weights fetch raft-small'" in refused(
        "weights", "path", "raft-small"
    )
    assert "small: no such entry; see fullfield weights list" in refused("weights", "path", "small")
    cache.mkdir(parents=True)
    (cache / "raft-small.pth").write_bytes(Path(weights).read_bytes())
    assert cli("weights", "path", "raft-small").out == f"{cache / 'raft-small.pth'}\n"
    report = cli("weights", "path", "raft-small", "--json").json
    assert report == {"name": "raft-small", "path": str(cache / "raft-small.pth")}


def test_weights_fetch_downloads_file(
    cli: Any, refused: Callable[..., str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "small: no such entry" in refused("weights", "fetch", "raft-small", "small")
    assert "cannot be reached; fetch " in refused("weights", "fetch", "raft-small")
    assert not list(cache.glob("*.pth"))

    def fetch(url: str, target: Path, **more: Any) -> None:
        more["progress"](1000, 2000)
        target.write_text(url)

    monkeypatch.setattr("fullfield.models.weights.download_if_missing", fetch)
    names = ("torchvision-small-c-t-v1", "torchvision-small-c-t-v2")
    ran = cli("weights", "fetch", *names)
    assert ran.code == 0, ran.err
    assert [Path(line).read_text("utf-8") for line in ran.out.splitlines()] == [WEIGHTS[name].url for name in names]
    report = cli("weights", "fetch", names[0], "--json").json
    assert report == {"paths": {names[0]: ran.out.splitlines()[0]}}
    assert "required: WHAT" in refused("weights")


def test_doctor_lists_networks(cli: Any, cache: Path, weights: str) -> None:
    cache.mkdir(parents=True)
    (cache / "raft-small.pth").write_bytes(Path(weights).read_bytes())
    out = cli("doctor").out
    assert f"raft-small    {cache / 'raft-small.pth'}" in out
    assert "raft          weights raft-sintel are not on this machine: fullfield weights fetch raft-sintel" in out
    assert "\nptlflow       " in out
    report = cli("doctor", "--json").json
    assert report["networks"].keys() == DEFAULTS.keys()
    assert report["networks"]["raft-small"] == {"weights": "raft-small", "path": str(cache / "raft-small.pth")}
    assert report["networks"]["raft"]["path"] is None


def test_demo_runs_with_network(cli: Any, weights: str) -> None:
    small = ("--size", "64x48", "--method", "raft-small", "--weights", weights, "--updates", "1")
    ran = cli("demo", "-o", "made", *small, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["parameters"]["weights"] == weights
