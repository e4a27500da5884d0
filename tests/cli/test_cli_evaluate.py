"""``fullfield evaluate``: runs, resumed, scored again, gated, submitted, shared out."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper.matching import read_runs
from fullfield.cli.main import main
from fullfield.cli.methods import MethodChoice
from fullfield.datasets import DATASETS
from fullfield.io import read_flow, read_frame, write_flow, write_image
from fullfield.metrics import FlowMetrics
from fullfield.models.raft import RAFT, RAFTConfig

FAST = ("--preset", "fast", "--scales", "2", "--warps", "2", "--iterations", "4")


@pytest.fixture
def pairs(scene: Path) -> Path:
    """Two pairs of the scene, forward and backward."""
    folder = scene / "mine"
    folder.mkdir()
    for name in ("a.png", "b.png", "truth.flo", "occluded.png"):
        (folder / name).write_bytes((scene / name).read_bytes())
    (folder / "pairs.txt").write_text("a.png b.png truth.flo occluded.png\nb.png a.png close.flo - occluded.png\n")
    (folder / "close.flo").write_bytes((scene / "close.flo").read_bytes())
    return folder


def test_evaluate_prints_table_and_writes_folder(cli: Any, pairs: Path) -> None:
    ran = cli("evaluate", "tvl1", "pairs:mine", *FAST)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("runs/mine/tvl1: tvl1 (preset fast) on mine, 2 pairs (")
    for word in ("epe ", "runtime ", "utilisation ", "2 images, averaging pooled"):
        assert word in ran.out
    result = json.loads(Path("runs/mine/tvl1/result.json").read_text())
    metrics = FlowMetrics()
    for name, truth in (("a", "truth"), ("b", "close")):
        pred = read_flow(f"runs/mine/tvl1/predictions/{name}.flo").flow
        flow, known = read_flow(pairs / f"{truth}.flo")
        if name == "b":
            known &= ~(read_frame(pairs / "occluded.png") > 0).any(0)
        metrics.update(pred, flow, known)
    assert result["scores"]["epe"] == metrics.compute()["epe"]


def test_evaluate_prints_weights_and_updates_of_networks(cli: Any, refused: Callable[..., str], pairs: Path) -> None:
    write_wide(pairs)
    weights(Path("w.pth"), 1)
    for method, options, expected in (
        (
            "raft-small",
            ("--weights", "w.pth", "--updates", "1"),
            r"w\.pth \(sha256 [0-9a-f]{12}\.\.\.\), 1 update a pair, precision exact",
        ),
        ("fullfield-s", (), r"fullfield-s \(sha256 [0-9a-f]{12}\.\.\.\), 4 to 12 updates a pair, precision \w+"),
    ):
        lines = cli("evaluate", method, "pairs:mine", *options).out.splitlines()
        assert re.fullmatch(f"weights {expected}", lines[1])
    changes = "--updates was 4, is 5; --coarse-updates was 4, is 5; highest --updates was 12, is None"
    assert f"({changes})" in refused("evaluate", "fullfield-s", "pairs:mine", "--updates", "5")
    assert "weights" not in cli("evaluate", "tvl1", "pairs:mine", *FAST).out


def test_evaluate_prints_json_and_resumes(cli: Any, pairs: Path) -> None:  # noqa: ARG001
    first = cli("evaluate", "tvl1", "pairs:mine", *FAST, "--json").json
    assert first["run"] == "runs/mine/tvl1"
    assert first["this_call"]["estimated"] == 2
    assert first["config"]["parameters"]["scales"] == 2
    assert first["config"]["backend"] == "automatic"
    assert first["peak_bytes"] is None
    Path("runs/mine/tvl1/predictions/b.flo").unlink()
    again = cli("evaluate", "tvl1", "pairs:mine", *FAST, "--json").json
    assert again["this_call"]["estimated"] == 1
    assert again["scores"] == first["scores"]
    assert "2 pairs have their stored flow" in cli("evaluate", "tvl1", "pairs:mine", *FAST).out


def test_evaluate_refuses_other_settings_of_folder(refused: Callable[..., str], cli: Any, pairs: Path) -> None:  # noqa: ARG001
    assert cli("evaluate", "tvl1", "pairs:mine", *FAST).code == 0
    assert "(--warps was 2, is 3)" in refused("evaluate", "tvl1", "pairs:mine", *FAST[:-3], "3", *FAST[-2:])
    assert "backend was 'automatic', is 'reference'" in refused(
        "evaluate", "tvl1", "pairs:mine", *FAST, "--backend", "reference"
    )


def test_evaluate_scale_writes_to_own_folder(cli: Any, pairs: Path) -> None:  # noqa: ARG001
    ran = cli("evaluate", "tvl1", "pairs:mine", *FAST, "--scale", "1/2", "--warm-start", "--json").json
    assert ran["run"] == "runs/mine/tvl1-1of2"
    assert ran["config"]["parameters"]["scale"] == "1/2"
    assert ran["config"]["parameters"]["warm_start"] is True
    assert read_flow("runs/mine/tvl1-1of2/predictions/a.flo").flow.shape == (2, 48, 64)


@pytest.mark.usefixtures("pairs")
def test_evaluate_prepares_method_for_reduced_frames(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    once = MethodChoice.load_weights_and_kernels

    def noted(self: MethodChoice, size: tuple[int, int], *more: Any, **named: Any) -> None:
        sizes.append(size)
        once(self, size, *more, **named)

    monkeypatch.setattr(MethodChoice, "load_weights_and_kernels", noted)
    assert cli("evaluate", "tvl1", "pairs:mine", *FAST, "--scale", "1/4").code == 0
    assert sizes == [(12, 16)]


@pytest.mark.usefixtures("pairs")
def test_evaluate_records_memory_shortage_of_preparation(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(MethodChoice, "load_weights_and_kernels", no_room)
        assert cli("evaluate", "tvl1", "pairs:mine", *FAST).code != 0
    assert json.loads(Path("runs/mine/tvl1/failure.json").read_text()) == {"failure": "out of memory"}
    assert cli("evaluate", "tvl1", "pairs:mine", *FAST).code == 0
    assert not Path("runs/mine/tvl1/failure.json").exists()


def test_evaluate_score_only_estimates_nothing(cli: Any, refused: Callable[..., str], pairs: Path) -> None:
    first = cli("evaluate", "tvl1", "pairs:mine", *FAST, "-o", "r", "--json").json
    again = cli("evaluate", "tvl1", "pairs:mine", "-o", "r", "--score-only", "--averaging", "per_image", "--json").json
    assert "this_call" not in again
    assert again["averaging"] == "per_image"
    assert again["scores"]["epe"] != first["scores"]["epe"]
    assert json.loads(Path("r/result.json").read_text())["averaging"] == "per_image"
    ran = cli("evaluate", "tvl1", "pairs:mine", "-o", "r", "--score-only")
    assert f"{first['scores']['epe']:.4f}" in ran.out
    assert "utilisation" not in ran.out
    assert "elsewhere holds no run" in refused("evaluate", "tvl1", "pairs:mine", "-o", "elsewhere", "--score-only")
    assert "holds tvl1 at scale 1, not raft at 1" in refused(
        "evaluate", "raft", "pairs:mine", "-o", "r", "--score-only"
    )
    assert "--warps: nothing is estimated" in refused(
        "evaluate", "tvl1", "pairs:mine", "-o", "r", "--score-only", "--warps", "2"
    )
    (pairs / "a.png").write_bytes((pairs / "b.png").read_bytes() + b"\0")
    assert "holds predictions of other frames" in refused("evaluate", "tvl1", "pairs:mine", "-o", "r", "--score-only")


def test_evaluate_max_epe_sets_exit_code(cli: Any, refused: Callable[..., str], pairs: Path) -> None:
    epe = cli("evaluate", "tvl1", "pairs:mine", *FAST, "--json").json["scores"]["epe"]
    assert cli("evaluate", "tvl1", "pairs:mine", *FAST, "--max-epe", 1.01 * epe).code == 0
    failed = cli("evaluate", "tvl1", "pairs:mine", *FAST, "--max-epe", 0.99 * epe, "-q")
    assert failed.code == 1
    assert failed.err.startswith("fullfield: evaluate: the error exceeded --max-epe: ")
    (pairs / "pairs.txt").write_text("a.png b.png\n")
    assert "--max-epe: mine has no truth" in refused("evaluate", "tvl1", "pairs:mine", "--max-epe", "1")


def test_evaluate_without_truth_stores_predictions(cli: Any, pairs: Path) -> None:
    (pairs / "pairs.txt").write_text("a.png b.png\n")
    ran = cli("evaluate", "tvl1", "pairs:mine", *FAST)
    assert ran.code == 0
    assert ran.out.startswith("runs/mine/tvl1: tvl1 (preset fast) on mine, 1 pair (")
    assert "epe" not in ran.out
    assert "runtime" in ran.out
    assert Path("runs/mine/tvl1/predictions/a.flo").is_file()


@pytest.mark.parametrize("word", ["mine", "pairs", "pairs:", "nothing:mine", ":mine"])
def test_evaluate_lists_names_for_wrong_data_set(refused: Callable[..., str], pairs: Path, word: str) -> None:  # noqa: ARG001
    message = refused("evaluate", "tvl1", word)
    assert "NAME:FOLDER" in message
    assert all(name in message for name in DATASETS)


def test_evaluate_refuses_more_processes_than_gpus(
    refused: Callable[..., str],
    pairs: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "99")
    message = refused("evaluate", "tvl1", "pairs:mine", "--device", "cuda")
    assert "--device: expected a device of this machine, got 'cuda:99'" in message


def test_evaluate_writes_submission(cli: Any, scene: Path) -> None:
    frames = scene / "sintel" / "test" / "final" / "market_1"
    frames.mkdir(parents=True)
    for i, name in enumerate(("a", "b", "a"), 1):
        (frames / f"frame_{i:04d}.png").write_bytes((scene / f"{name}.png").read_bytes())
    ran = cli("evaluate", "tvl1", "sintel-final-test:sintel", *FAST, "--warm-start", "--submission", "out")
    assert ran.code == 0, ran.err
    assert "out: 2 files to submit" in ran.out
    for i in (1, 2):
        stored = read_flow(f"runs/sintel-final-test/tvl1/predictions/market_1/frame_{i:04d}.flo").flow
        assert torch.equal(read_flow(f"out/final/market_1/frame_{i:04d}.flo").flow, stored)


def write_wide(folder: Path) -> None:
    """Replace the pairs by one that is large enough for RAFT."""
    (folder / "pairs.txt").write_text("a.png b.png truth.flo\n")
    wide = torch.rand(2, 3, 128, 136, generator=torch.Generator().manual_seed(1))
    write_image(folder / "a.png", wide[0])
    write_image(folder / "b.png", wide[1])
    write_flow(folder / "truth.flo", torch.zeros(2, 128, 136))


def weights(path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    torch.save(RAFT(RAFTConfig.small()).state_dict(), path)


def test_evaluate_refuses_other_weights_of_same_name(cli: Any, refused: Callable[..., str], pairs: Path) -> None:
    write_wide(pairs)
    common = ("evaluate", "raft-small", "pairs:mine", "--weights", "w.pth", "--updates", "1")
    weights(Path("w.pth"), 1)
    first = cli(*common, "--json").json
    assert len(first["config"]["parameters"]["weights_sha256"]) == 12
    assert first["config"]["parameters"]["weights"] == "w.pth"
    assert cli(*common, "--json").json["this_call"]["estimated"] == 0
    weights(Path("w.pth"), 2)
    assert "parameters.weights_sha256 was" in refused(*common)
    second = cli(*common, "-o", "other", "--scale", "1/1", "--json").json
    assert second["scores"]["epe"] != first["scores"]["epe"]


@pytest.mark.usefixtures("ptlflow")
@pytest.mark.parametrize(
    ("model", "options", "variant"),
    [
        ("ptlflow:raft_small", ("--no-patched",), "default"),
        ("ptlflow:raft_small", ("--patched",), "ours"),
        ("raft-small", ("--backend", "dense"), "default"),
        ("raft-small", ("--backend", "reference"), "on_demand"),
    ],
)
def test_read_runs_returns_variant_of_evaluate_run(
    cli: Any, pairs: Path, model: str, options: tuple[str, ...], variant: str
) -> None:
    write_wide(pairs)
    ran = cli("evaluate", model, "pairs:mine", "--weights", "random", "--updates", "1", *options, "-o", "r")
    assert ran.code == 0, ran.err
    assert "random weights" in ran.out
    (stored,) = read_runs(["r"])
    assert (stored.variant, stored.has_papers_weights, stored.scale, stored.dataset) == (variant, False, "1/1", "mine")


def evaluate_as(rank: int, port: int, folder: Path, argv: list[str]) -> None:
    """Run ``fullfield`` as one of two processes that torchrun has started."""
    os.chdir(folder)
    set_by_torchrun = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in set_by_torchrun.items()})
    with Path(f"{rank}.json").open("w") as out, contextlib.redirect_stdout(out):
        code = main(argv)
    sys.exit(code)


def test_evaluate_in_two_processes_equals_one(cli: Any, pairs: Path) -> None:
    alone = cli("evaluate", "tvl1", "pairs:mine", *FAST, "-o", "alone", "--json").json
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fullfield.cli.main"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = ["evaluate", "tvl1", "pairs:mine", *FAST, "-o", "shared", "--json"]
    begun = [context.Process(target=evaluate_as, args=(rank, port, pairs.parent, argv)) for rank in (0, 1)]
    for process in begun:
        process.start()
    for process in begun:
        process.join(180)
        assert process.exitcode == 0
    together = json.loads(Path("0.json").read_text())
    assert together["this_call"]["estimated"] == 1
    assert together["scores"] == alone["scores"]
