"""A training run: it learns, it is the same every time, it goes on after a stop."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fullfield import InputError
from fullfield.registration import LearnedDescriptor
from fullfield.registration.learned_network import DescriptorConfig, DescriptorNetwork
from fullfield.testing import sample_room_scan
from fullfield.training import DescriptorTraining, descriptor, train_descriptor
from fullfield.training.batches import ExampleExecutor, compute_pair_descriptors, generate_example, iterate_batches
from fullfield.training.checkpoint import DivergedError
from fullfield.training.descriptor import compute_mutual_match_precision, contrastive_loss
from fullfield.training.pairs import synthesize_overlapping_pair_if_possible
from refusals import refuses

SMALL = DescriptorConfig(channels=8, layers=1)
TINY = DescriptorTraining(
    descriptor=SMALL, steps=4, pairs=1, block=2, reuse=2, anchors=64, cells=150, learning_rate=5e-3
)


def trained(folder: Path, clouds: Any = (), **more: Any) -> bytes:
    """The file of weights of a run."""
    train_descriptor(folder, TINY, clouds, checkpoint_every=2, **more)
    return (folder / "weights.safetensors").read_bytes()


@pytest.fixture(autouse=True, scope="module")
def _few_held_out() -> Iterator[None]:
    """The checkpoint is measured on two pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptor, "_VALIDATION_PAIRS", 2)
        yield


@pytest.fixture(scope="module")
def room() -> np.ndarray:
    return sample_room_scan(3, 4500)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, room: np.ndarray) -> Path:
    """A run on made-up scenes and a cloud, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder, [room])
    return folder


def test_train_descriptor_reduces_loss() -> None:
    pair = generate_example(TINY, (), (0, 1))
    torch.manual_seed(0)
    model = DescriptorNetwork(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, precisions = [], []
    for step in range(25):
        [(first, second)] = compute_pair_descriptors(model, [pair])
        assert torch.allclose(first.norm(dim=1), torch.ones(len(first)), atol=1e-5)
        loss = contrastive_loss(first, second, pair.matches, pair.moved_source_points, pair.target_points)
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.any(), name
        optimizer.step()
        losses.append(loss.item())
        if step in (0, 24):
            precisions.append(
                compute_mutual_match_precision(
                    first.detach(), second.detach(), pair.moved_source_points, pair.target_points
                )
            )
    assert losses[-1] < 0.7 * losses[0]
    assert precisions[-1] > precisions[0]


def test_train_descriptor_starts_from_given_weights(tmp_path: Path, whole: Path) -> None:
    wider = TINY.replace(descriptor=SMALL.replace(scales=2), steps=1)
    begun = tmp_path / "begun"
    weights = str(shutil.copy(whole / "weights.safetensors", tmp_path))
    actual = train_descriptor(begun, wider.replace(learning_rate=1e-9, start=weights))
    inputs = LearnedDescriptor.load(whole / "weights.safetensors").model.state_dict()
    state = actual.descriptor.model.state_dict()
    assert all(torch.allclose(state[name], value, atol=1e-6) for name, value in inputs.items())
    assert state.keys() > inputs.keys()
    assert json.loads((begun / "recipe.json").read_text())["start"]
    refuses(r"\(start was", train_descriptor, begun, wider.replace(learning_rate=1e-9))
    shutil.copy(begun / "weights.safetensors", weights)  # other numbers in the file of that name
    refuses(r"\(start was", train_descriptor, begun, wider.replace(learning_rate=1e-9, start=weights))
    message = (
        r"start: expected weights of 8 channels, 1 layers and at most 1 scales, got 8 channels, 1 layers, 2 scales"
    )
    recipe = json.loads((whole / "recipe.json").read_text())["training"]
    assert "start" not in recipe  # the file's checksum counts, not its path
    refuses(message, train_descriptor, tmp_path / "narrow", TINY.replace(start=str(begun / "weights.safetensors")))


def test_train_descriptor_writes_descriptor_and_history(whole: Path) -> None:
    assert sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()) == [
        "history.csv",
        "recipe.json",
        *(f"state/4.{tensor_group}.safetensors" for tensor_group in ("exp_avg", "exp_avg_sq", "model")),
        "state/state.json",
        "weights.safetensors",
    ]
    config = json.loads((whole / "recipe.json").read_text())
    assert config["training"]["cells"] == 150
    assert config["clouds"][0][0]["points"] == 4500
    rows = list(csv.DictReader((whole / "history.csv").open()))
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert all(float(row["loss"]) > 0 and 0 <= float(row["precision"]) <= 1 for row in rows)
    assert LearnedDescriptor.load(whole / "weights.safetensors").config == SMALL


def test_train_descriptor_is_deterministic(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
    before = torch.random.get_rng_state()
    repeated = trained(tmp_path / "again", [room], workers=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert repeated == (whole / "weights.safetensors").read_bytes()
    other = train_descriptor(tmp_path / "other", TINY.replace(seed=1), [room], checkpoint_every=2)
    other.descriptor.save(tmp_path / "other.safetensors")
    assert (tmp_path / "other.safetensors").read_bytes() != repeated


def test_train_descriptor_continues_stopped_run(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
    def stop(fraction: float, text: str) -> None:
        if fraction > 0.7:
            raise KeyboardInterrupt(text)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, [room], progress=stop)
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 2  # a checkpoint at step 2
    seen: list[float] = []
    assert (
        trained(tmp_path, [room], progress=lambda fraction, _: seen.append(fraction))
        == (whole / "weights.safetensors").read_bytes()
    )
    assert seen == [0.75, 1.0]
    (tmp_path / "weights.safetensors").unlink()  # lost, or never written
    assert (
        trained(tmp_path, [room], progress=lambda *_: pytest.fail("it was done"))
        == (whole / "weights.safetensors").read_bytes()
    )


def test_train_descriptor_refuses_folder_of_other_run(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
    for clouds, training, message in (
        ([room], TINY.replace(seed=5), r"\(training\.seed was 0, is 5\); use another"),
        ([room + 1], TINY, "clouds was"),
        ([], TINY, "clouds was"),
    ):
        refuses(message, train_descriptor, whole, training, clouds)
    shutil.copytree(whole, tmp_path / "run")
    file = tmp_path / "run" / "state" / "4.model.safetensors"
    state = file.read_bytes()
    file.write_bytes(state[: len(state) // 2])
    refuses(r"4\.model\.safetensors: expected", train_descriptor, tmp_path / "run", TINY, [room])
    for tensor_group, key in (("model", "enter.0.weight"), ("exp_avg", "exp_avg.enter.0.weight")):
        shutil.copytree(whole, tmp_path / tensor_group)
        spoilt = tmp_path / tensor_group / "state" / f"4.{tensor_group}.safetensors"
        tensors = load_file(spoilt)
        tensors[key].view(-1)[0] = float("nan")
        save_file(tensors, spoilt)
        expected = rf"4\.{tensor_group}\.safetensors: expected finite numbers, got NaN in {re.escape(key)}$"
        refuses(expected, train_descriptor, tmp_path / tensor_group, TINY, [room])
    file.write_bytes((whole / "state" / "4.exp_avg.safetensors").read_bytes())
    refuses(r"4\.model\.safetensors: expected weights of this run", train_descriptor, tmp_path / "run", TINY, [room])


def test_train_descriptor_refuses_state_of_earlier_version(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / "weights.safetensors", tmp_path)
    refuses(
        r"holds files, and no recipe\.json says how they were made; use another folder$",
        train_descriptor,
        tmp_path,
        TINY,
    )
    assert not (tmp_path / "recipe.json").exists()


def test_train_descriptor_stores_no_nonfinite_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = descriptor._train_step_and_get_loss

    def spoiled(model: DescriptorNetwork, *rest: Any) -> float:
        loss = step(model, *rest)
        with torch.no_grad():
            next(model.parameters()).fill_(float("inf"))
        return loss

    monkeypatch.setattr(descriptor, "_train_step_and_get_loss", spoiled)
    with pytest.raises(DivergedError, match=r"^learning_rate: .* is not finite after step 1; use a lower one"):
        train_descriptor(tmp_path, TINY, checkpoint_every=1)
    assert not (tmp_path / "weights.safetensors").exists()


def test_train_descriptor_names_unusable_clouds(tmp_path: Path) -> None:
    for clouds, message in (
        ([np.zeros((10, 3))], r"clouds\[0\]: expected at least 1000 finite points, got 10"),
        ([np.zeros((5000, 3))], "clouds: expected some from which overlapping parts can be cut"),
    ):
        training = TINY.replace(synthetic=0.0)
        refuses(message, train_descriptor, tmp_path / str(len(clouds[0])), training, clouds)
    large = DescriptorTraining(descriptor=DescriptorConfig(channels=256))
    refuses("channels: expected weights of at most", train_descriptor, tmp_path / "large", large)
    assert not (tmp_path / "large").exists()
    train_descriptor(
        tmp_path / "5000", TINY.replace(steps=1)
    )  # where nothing was trained yet, another configuration may be
    np.save(tmp_path / "few.npy", np.zeros((10, 3)))
    with pytest.raises(InputError, match=r"few\.npy: expected at least 1000"):
        train_descriptor(tmp_path / "few", TINY, [os.fspath(tmp_path / "few.npy")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected an integer >= 1"),
        ({"synthetic": 1.5}, "synthetic: expected a number >= 0 and <= 1"),
        ({"temperature": 0.0}, "temperature: expected a number > 0"),
        ({"cells": 3}, "cells: expected an integer >= 100"),
        ({"seconds": 0.0}, "seconds: expected a number > 0"),
        ({"pairs": 3}, "block: expected a multiple of 3 pairs"),
        ({"start": 3}, "start: expected the name of a file, or learned"),
        ({"reuse": 0}, "reuse: expected an integer >= 1"),
        ({"descriptor": None}, "descriptor: expected a DescriptorConfig"),
    ],
)
def test_descriptor_training_names_bad_values(change: dict[str, Any], message: str) -> None:
    refuses(message, DescriptorTraining, **change)


def test_descriptor_training_learning_rate_follows_schedule() -> None:
    training = DescriptorTraining(steps=1000, learning_rate=1.0)
    rates = [training.compute_learning_rate(training.compute_completed_fraction(step, 0.0)) for step in range(1001)]
    assert rates[0] == pytest.approx(0.05)
    assert max(rates) == rates[20] == pytest.approx(1.0)
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)
    timed = DescriptorTraining(steps=1000, seconds=50.0, learning_rate=1.0)
    assert [timed.compute_completed_fraction(*at) for at in ((0, 0.0), (100, 1.0), (100, 25.0), (999, 60.0))] == [
        0.0,
        0.1,
        0.5,
        1.0,
    ]


def test_train_descriptor_stops_after_time_limit(tmp_path: Path) -> None:
    training = TINY.replace(steps=1_000_000, seconds=0.5)
    seen: list[float] = []
    actual = train_descriptor(tmp_path, training, progress=lambda done, _: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert actual.history[-1].step == len(seen) < 100_000
    assert actual.history[-1].seconds >= 0.5
    repeated = train_descriptor(tmp_path, training, progress=lambda *_: pytest.fail("it was done"))
    assert repeated.history == actual.history


def test_train_descriptor_reuses_pairs_in_other_order(room: np.ndarray) -> None:
    training = TINY.replace(pairs=2, block=4, reuse=2, steps=8, seed=1)
    with closing(ExampleExecutor(training, [(room, None)], 1)) as cutter:
        displayed = [
            [float(pair.moved_source_points[0, 0]) for pair in cut]
            for cut in iterate_batches(training, cutter, 0, torch.device("cpu"))
        ]
        later = iterate_batches(training, cutter, 5, torch.device("cpu"))
        assert [float(pair.moved_source_points[0, 0]) for pair in next(later)] == displayed[5]
    blocks = [[pair for cut in displayed[at : at + 2] for pair in cut] for at in range(0, 8, 2)]
    assert len(set(blocks[0])) == 4
    assert sorted(blocks[0]) == sorted(blocks[1])
    assert not set(blocks[0]) & set(blocks[2])
    assert len({tuple(block) for block in blocks}) == 4


def test_train_descriptor_uses_posed_pairs(tmp_path: Path, room: np.ndarray) -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn * np.linalg.det(turn), (1.0, 2.0, 3.0)
    other = sample_room_scan(3, scan_seed=1)
    source = (room - pose[:3, 3]) @ pose[:3, :3]
    np.savetxt(tmp_path / "pose.txt", pose)
    only = TINY.replace(synthetic=0.0)
    actual = train_descriptor(tmp_path / "run", only, posed_pairs=[(source, other, tmp_path / "pose.txt")])
    assert np.isfinite(actual.history[-1].loss)
    draw = np.random.default_rng(0)
    pair = synthesize_overlapping_pair_if_possible(room, draw, 300, other + 0.0)
    assert pair is not None
    with pytest.raises(InputError, match=r"posed_pairs\[0\]\[2\]: expected a finite 4×4 matrix"):
        train_descriptor(tmp_path / "bad", only, posed_pairs=[(source, other, np.zeros((3, 3)))])
    with pytest.raises(InputError, match=r"posed_pairs\[0\]\[1\]: expected at least 1000 finite points"):
        train_descriptor(tmp_path / "bad", only, posed_pairs=[(source, other[:9], pose)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_train_descriptor_on_gpu(tmp_path: Path) -> None:
    actual = train_descriptor(tmp_path, TINY, device="cuda", checkpoint_every=4)
    assert np.isfinite(actual.history[-1].loss)
    assert LearnedDescriptor.load(tmp_path / "weights.safetensors").config == SMALL


def test_restore_run_refuses_deeply_nested_recipe(tmp_path: Path) -> None:
    """Python's reader of JSON stops at its recursion limit, on both paths that read a run's files."""
    from fullfield.training.checkpoint import restore_run_if_any, write_or_check_recipe

    deep = "[" * 200_000
    (tmp_path / "recipe.json").write_text(deep)
    with pytest.raises(InputError, match=r"recipe\.json: expected JSON"):
        write_or_check_recipe(tmp_path / "recipe.json", {}, has_started=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text(deep)
    with pytest.raises(InputError, match="expected the state of a run, cannot be read"):
        restore_run_if_any(tmp_path, {}, torch.optim.AdamW([torch.zeros(1)]), descriptor.DescriptorRow)
