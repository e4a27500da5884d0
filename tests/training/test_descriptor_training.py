"""A training run: it learns, it is the same every time, it goes on after a stop."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullfield import InputError
from fullfield.registration import DescriptorConfig, LearnedDescriptor
from fullfield.registration.learned import DescriptorNetwork
from fullfield.testing import room_scan
from fullfield.training import DescriptorTraining, contrastive_loss, matching_ratio, train_descriptor
from fullfield.training.batches import described, example

SMALL = DescriptorConfig(
    spacing=1.0, inputs=("one", "shape"), channels=(8, 12), blocks=(1, 1), dimensions=16, stem_kernel=3
)
TINY = DescriptorTraining(descriptor=SMALL, steps=4, pairs=1, anchors=64, cells=300, learning_rate=5e-3)


def trained(folder: Path, clouds: Any = (), **more: Any) -> bytes:
    """The file of weights of a run."""
    train_descriptor(folder, TINY, clouds, every=2, **more)
    return (folder / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def room() -> np.ndarray:
    return room_scan(3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, room: np.ndarray) -> Path:
    """A run on made-up scenes and a cloud, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder, [room])
    return folder


def test_the_loss_falls_and_gradients_flow() -> None:
    pair = example(TINY, (), (0, 1))
    torch.manual_seed(0)
    model = DescriptorNetwork(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, ratios = [], []
    for _ in range(25):
        [(first, second)] = described(model, [pair])
        assert torch.allclose(first.norm(dim=1), torch.ones(len(first)), atol=1e-5)
        loss = contrastive_loss(first, second, pair.matches, pair.moved, pair.places)
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.any(), name
        optimizer.step()
        losses.append(loss.item())
        ratios.append(matching_ratio(first.detach(), second.detach(), pair.moved, pair.places))
    assert losses[-1] < 0.7 * losses[0]
    assert ratios[-1] > ratios[0] + 0.2


def test_a_run_leaves_a_descriptor_and_its_history(whole: Path) -> None:
    assert sorted(path.name for path in whole.iterdir()) == [
        "config.json",
        "history.csv",
        "state.safetensors",
        "weights.safetensors",
    ]
    config = json.loads((whole / "config.json").read_text())
    assert config["training"]["cells"] == 300
    assert config["clouds"][0]["points"] == 9000
    rows = list(csv.DictReader((whole / "history.csv").open()))
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert all(float(row["loss"]) > 0 and 0 <= float(row["ratio"]) <= 1 for row in rows)
    assert LearnedDescriptor.load(whole / "weights.safetensors").config == SMALL


def test_the_same_run_gives_the_same_weights(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
    before = torch.random.get_rng_state()
    again = trained(tmp_path / "again", [room], workers=3)
    assert torch.equal(before, torch.random.get_rng_state())
    assert again == (whole / "weights.safetensors").read_bytes()
    other = train_descriptor(tmp_path / "other", DescriptorTraining(**{**vars(TINY), "seed": 1}), [room], every=2)
    other.descriptor.save(tmp_path / "other.safetensors")
    assert (tmp_path / "other.safetensors").read_bytes() != again


def test_a_stopped_run_goes_on_where_it_was(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
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
    assert (
        trained(tmp_path, [room], progress=lambda *_: pytest.fail("it was done"))
        == (whole / "weights.safetensors").read_bytes()
    )


def test_a_folder_of_another_run_is_refused(whole: Path, tmp_path: Path, room: np.ndarray) -> None:
    for clouds, training, message in (
        ([room], DescriptorTraining(**{**vars(TINY), "seed": 5}), "training: seed was 0, is 5; use another folder"),
        ([room + 1], TINY, "clouds was"),
        ([], TINY, "clouds was"),
    ):
        with pytest.raises(InputError, match=message):
            train_descriptor(whole, training, clouds)
    state = (whole / "state.safetensors").read_bytes()
    for name in ("config.json", "state.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    (tmp_path / "state.safetensors").write_bytes(state[: len(state) // 2])
    with pytest.raises(InputError, match=r"state\.safetensors: expected"):
        train_descriptor(tmp_path, TINY, [room])
    (tmp_path / "state.safetensors").write_bytes((whole / "weights.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"state\.safetensors: expected weights of this run"):
        train_descriptor(tmp_path, TINY, [room])


def test_what_cannot_be_trained_on_is_named(tmp_path: Path) -> None:
    for clouds, message in (
        ([np.zeros((10, 3))], r"clouds\[0\]: expected at least 1000 finite points, got 10"),
        ([np.zeros((5000, 3))], "clouds: expected some from which overlapping parts can be cut"),
    ):
        training = DescriptorTraining(**{**vars(TINY), "synthetic": 0.0})
        with pytest.raises(InputError, match=message):
            train_descriptor(tmp_path / str(len(clouds[0])), training, clouds)
    large = DescriptorTraining(descriptor=DescriptorConfig(channels=(32, 64, 128, 256)))
    with pytest.raises(InputError, match="channels: expected weights of at most"):
        train_descriptor(tmp_path / "large", large)
    assert not (tmp_path / "large").exists()
    assert trained(tmp_path / "5000")  # where nothing was trained yet, another configuration may be
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
        ({"descriptor": None}, "descriptor: expected a DescriptorConfig"),
    ],
)
def test_bad_configurations_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DescriptorTraining(**change)


def test_the_rate_rises_and_falls() -> None:
    training = DescriptorTraining(steps=1000, learning_rate=1.0)
    rates = [training.rate(step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.05)
    assert max(rates) == rates[20] == pytest.approx(1.0)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] == pytest.approx(0.01, abs=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu(tmp_path: Path) -> None:
    found = train_descriptor(tmp_path, TINY, device="cuda", every=4)
    assert np.isfinite(found.history[-1].loss)
    assert LearnedDescriptor.load(tmp_path / "weights.safetensors").config == SMALL
