"""``fullfield train flow``, and ``fullfield flow --weights`` with what it writes."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fullfield.cli import train_flow
from fullfield.cli.main import build_parser
from fullfield.io import write_flow, write_image
from fullfield.models.weights import build_random_model
from fullfield.training.checkpoint import write_safetensors
from fullfield.training.flow import FlowValidation, PairGenerator, SceneStyle, pictures
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.config import MIXTURE, PRESETS
from fullfield.training.flow.stepping import TrainingStepper
from known_scenes import known_scene

TINY = ("--size", "40x32", "--batch", "2", "--steps", "2", "--every", "1", "--updates", "1", "-q")
RAFT = ("--network", "raft-small", "--correlation", "dense")


@pytest.fixture
def pairs(scene: Path) -> Path:
    """The folder of the scene with a folder of three pairs."""
    root = scene / "mine"
    (root / "frames").mkdir(parents=True)
    (root / "flow").mkdir()
    for seed in range(3):
        made = known_scene(48, 64, seed, 2.0)
        write_image(root / "frames" / f"shot_{2 * seed:04}.png", made.frame1)
        write_image(root / "frames" / f"shot_{2 * seed + 1:04}.png", made.frame2)
        for number in (2 * seed, 2 * seed + 1):
            write_flow(root / "flow" / f"shot_{number:04}.flo", made.flow)
    return scene


def test_train_flow_default_pairs_mix_styles() -> None:
    given = build_parser().parse_args(["train", "flow", "-o", "run", "--network", "raft-small"]).data
    parts = [train_flow._parse_data_name_folder_and_weight(text, "--data", can_have_weight=True) for text in given]
    shares = {train_flow._get_scene_style(name, "--data"): weight for name, _, weight in parts}
    assert shares == {SceneStyle.from_preset(name): share for name, share in MIXTURE.items()}


class _SourceOfOneMotion:
    """Pairs whose every pixel moves by 3 px to the right."""

    def batch(self, _index: int, count: int) -> FlowBatch:
        flow = torch.tensor([3.0, 0.0])[None, :, None, None].expand(count, 2, 32, 40)
        valid = torch.ones(count, 32, 40, dtype=torch.bool)
        return FlowBatch(torch.rand(count, 3, 32, 40), torch.rand(count, 3, 32, 40), flow, valid, ~valid)


def test_train_flow_enlarges_half_of_synthetic_pairs() -> None:
    command = ["train", "flow", "-o", "run", *RAFT, "--size", "40x32", "--data", "synthetic", "--enlarge", "2"]
    args = build_parser().parse_args(command)
    source = train_flow._build_pair_source(args, torch.device("cpu"), lambda *_: _SourceOfOneMotion())
    pairs = source.batch(0, 400)
    motion = pairs.flow[:, 0].mean((1, 2))
    assert pairs.frame1.shape == (400, 3, 32, 40)
    assert 0.4 < (motion > 3.001).float().mean() < 0.6
    assert 5.5 < float(motion.max()) < 6.001
    assert float(motion.min()) > 2.999


def test_train_flow_refuses_to_shrink_synthetic_pairs(cli: Any, pairs: Path) -> None:
    ran = cli("train", "flow", "-o", "run", *RAFT, *TINY, "--enlarge", "0.5")
    assert ran.code == 2
    assert "--enlarge: expected a number >= 1, got float 0.5" in ran.err
    assert not (pairs / "run").exists()


def test_train_flow_writes_weights_that_flow_reads(cli: Any, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = pictures.create_procedural_picture_pack(count=4, size=64, shape_count=4)
    monkeypatch.setattr(pictures, "create_procedural_picture_pack", lambda **_options: few)
    for name in ("usual", "figures"):  # exposures of twelve instants take seconds
        monkeypatch.setitem(PRESETS, name, PRESETS[name].replace(instants=2))
    makers: list[tuple[int, SceneStyle]] = []

    class Told(PairGenerator):
        def __init__(self, size: tuple[int, int], *, seed: int, style: SceneStyle, **options: Any) -> None:
            makers.append((seed, style))
            super().__init__(size, seed=seed, style=style, **options)

    monkeypatch.setattr("fullfield.training.flow.pairs.PairGenerator", Told)
    command = (
        "train",
        "flow",
        "-o",
        "run",
        *RAFT,
        *TINY,
        "--data",
        "synthetic=0.3",
        "synthetic-figures=0.2",
        "pairs:mine=0.5",
    )
    ran = cli(*command, "--validate", "pairs:mine", "--validation-pairs", "2", "--curves", "--json")
    assert ran.code == 0, ran.err
    assert makers == [(0, PRESETS["usual"]), (1, PRESETS["figures"])]
    report = ran.json
    assert report["weights"] == "run/weights.safetensors"
    assert report["done"] == 1.0
    assert [row["step"] for row in report["history"]] == [1, 2]
    assert report["recipe"]["training"]["batch"] == 2
    assert report["history"][-1]["validation"] == pytest.approx(report["validation"]["pairs:mine"])
    recipe = json.loads((pairs / "run" / "recipe.json").read_text())
    assert recipe["data"] == ["synthetic=0.3", "synthetic-figures=0.2", "pairs:mine=0.5"]
    assert recipe["size"] == [32, 40]
    assert recipe["network"] == "raft-small"
    rows = list(csv.DictReader((pairs / "run" / "history.csv").open()))
    assert [row["step"] for row in rows] == ["1", "2"]
    for name in ("best.safetensors", "curves.png"):
        assert (pairs / "run" / name).stat().st_size > 1000
    assert (pairs / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"

    weights = (pairs / "run" / "weights.safetensors").read_bytes()
    again = cli(*command, "--validate", "pairs:mine", "--validation-pairs", "2", "--curves")  # it is done
    assert again.code == 0
    assert again.out.startswith("run/weights.safetensors: finished before, nothing was trained: 2 steps in ")
    assert "px in validation" in again.out
    assert (pairs / "run" / "weights.safetensors").read_bytes() == weights
    method = ("--method", "raft-small", "--updates", "1", "--backend", "dense")
    ran = cli("flow", "a.png", "b.png", "-o", "f.flo", *method, "--weights", "run/weights.safetensors")
    assert ran.code == 0, ran.err
    recipe["scenes"]["figures"]["blur"] = 0.125  # as begun by a version whose style was another
    (pairs / "run" / "recipe.json").write_text(json.dumps(recipe))
    ran = cli(*command, "--validate", "pairs:mine", "--validation-pairs", "2", "--curves")
    assert ran.code == 2
    assert "scenes.figures.blur was 0.125, is " in ran.err
    recipe["scenes"]["figures"] |= {"blur": PRESETS["figures"].blur, "veils": 0.1}  # a field that is gone
    (pairs / "run" / "recipe.json").write_text(json.dumps(recipe))
    ran = cli(*command, "--validate", "pairs:mine", "--validation-pairs", "2", "--curves")
    assert ran.code == 2
    assert "(scenes.figures.veils was 0.1, is None); use another folder, and --after run " in ran.err
    ran = cli("train", "flow", "-o", "further", *command[4:], "--after", "run")
    assert ran.code == 0, ran.err


def test_train_flow_init_starts_from_given_weights(cli: Any, pairs: Path) -> None:
    torch.manual_seed(11)
    start = build_random_model("raft-small").state_dict()
    write_safetensors(pairs / "start.safetensors", start)
    slow = ("--learning-rate", "1e-12", "--weight-decay", "0", "--data", "pairs:mine")
    ran = cli("train", "flow", "-o", "tuned", *RAFT, *TINY, *slow, "--init", "start.safetensors")
    assert ran.code == 0, ran.err
    found = load_file(pairs / "tuned" / "weights.safetensors")
    assert all(torch.allclose(found[key], start[key], atol=1e-5) for key in start)
    recipe = json.loads((pairs / "tuned" / "recipe.json").read_text())
    assert recipe["init"]["name"] == "start.safetensors"
    assert len(recipe["init"]["sha256"]) == 64
    # And a run that goes on from that one, with other frames and a schedule of its own.
    ran = cli("train", "flow", "-o", "more", *RAFT, *TINY, *slow, "--after", "tuned", "--size", "48x40", "--json")
    assert ran.code == 0, ran.err
    found = load_file(pairs / "more" / "weights.safetensors")
    assert all(torch.allclose(found[key], start[key], atol=1e-5) for key in start)


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the caller of the tests ignores it, as a script's background does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("pairs", "default_ctrl_c")
def test_train_flow_ctrl_c_stores_checkpoint(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train_on_batch, signals = TrainingStepper.train_on_batch, {0: 2}  # number of signals by step

    def interrupt(self: TrainingStepper, batch: FlowBatch, number: int, **options: Any) -> None:
        for _ in range(signals.pop(number, 0)):
            signal.raise_signal(signal.SIGINT)
        train_on_batch(self, batch, number, **options)

    validated: list[object] = []

    def validate(_validation: FlowValidation, network: object, **_options: Any) -> float:
        validated.append(network)
        return 1.0

    monkeypatch.setattr(TrainingStepper, "train_on_batch", interrupt)
    monkeypatch.setattr(FlowValidation, "__call__", validate)
    command = ("train", "flow", "-o", "run", *RAFT, *TINY[:-1], "--data", "pairs:mine", "--steps", "3", "--every", "9")
    command += ("--validate", "pairs:mine")
    ran = cli(*command)
    assert (ran.code, ran.out) == (130, "")
    assert "Ctrl-C again stops without one" in ran.err
    assert ran.err.endswith("interrupted; run: nothing was stored yet\n")
    signals[1] = 1
    ran = cli(*command)
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.endswith("interrupted; run: the same command continues from step 2\n")
    assert validated == []
    ran = cli(*command)
    assert ran.code == 0, ran.err
    assert len(validated) == 2  # step 2, then 3
    assert "run: continues from step 2" in ran.err
    assert ran.out.startswith("run/weights.safetensors: 3 steps in ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("pairs")
def test_train_flow_ignores_ctrl_c_as_its_caller_does(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train_on_batch = TrainingStepper.train_on_batch

    def interrupt(*arguments: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        train_on_batch(*arguments, **options)

    monkeypatch.setattr(TrainingStepper, "train_on_batch", interrupt)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ran = cli("train", "flow", "-o", "run", *RAFT, *TINY, "--data", "pairs:mine")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran.code == 0, ran.err


def test_train_flow_continues_paused_run(cli: Any, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.training.flow.stepping.choose_training_precision", lambda _: "bfloat16")
    command = ("train", "flow", "-o", "run", *RAFT, *TINY, "--data", "pairs:mine", "--steps", "9", "--every", "100")
    ran = cli(*command, "--pause", "0.00001")
    assert ran.code == 0, ran.err
    assert "of the training is left" in ran.out
    ran = cli(*command)
    assert ran.code == 0, ran.err
    assert ": 9 steps" in ran.out
    assert (pairs / "run" / "state" / "9.model.safetensors").exists()
    assert json.loads((pairs / "run" / "recipe.json").read_text())["training"]["precision"] == "bfloat16"


def test_train_flow_exits_with_1_on_divergence(cli: Any, pairs: Path) -> None:
    command = ("train", "flow", "-o", "run", *RAFT, *TINY, "--data", "pairs:mine", "--steps", "9")
    ran = cli(*command, "--learning-rate", "1e30", "--every", "100")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("fullfield: error: --learning-rate: ")
    assert ran.err.count("\n") == 1
    assert not (pairs / "run" / "weights.safetensors").exists()


def test_train_flow_init_refuses_nonfinite_weights(refused: Any, pairs: Path) -> None:
    state = build_random_model("raft-small").state_dict()
    state["fnet.conv1.weight"][0, 0, 0, 0] = float("nan")
    write_safetensors(pairs / "nan.safetensors", state)
    command = ("train", "flow", "-o", "run", *RAFT, *TINY, "--data", "pairs:mine", "--init", "nan.safetensors")
    assert "nan.safetensors: expected finite numbers, got NaN in fnet.conv1.weight" in refused(*command)
    assert not (pairs / "run").exists()
