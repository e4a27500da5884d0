"""Packed runs: their size, what they keep, and how a training continues from them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from flow_parts import Scenes, network
from torch import Tensor

from fullfield.models.state import read_safetensors
from fullfield.training.flow import FlowRun, FlowTraining, train_flow
from fullfield.training.packing import (
    _dequantize_logarithms,
    _dequantize_signed,
    _quantize_logarithms,
    _quantize_signed,
    pack_run_lossily,
    unpack_run,
)
from refusals import refuses

pytestmark = pytest.mark.unit

TRAINING = FlowTraining(steps=40, batch=2, schedule="stable", decay=0.0, learning_rate=2e-3, warmup=0.1, average=0.9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_flow(
        folder, network(width=64), Scenes(), TRAINING, run=FlowRun(checkpoint_every=20, recipe={"network": "tiny"})
    )
    return folder


def tensors(folder: Path, part: str) -> dict[str, Tensor]:
    return read_safetensors(folder / "state" / f"40.{part}.safetensors")


def test_unpack_run_equals_run_within_rounding(run: Path, tmp_path: Path) -> None:
    pack_run_lossily(run, tmp_path / "packed")
    copy = unpack_run(tmp_path / "packed", tmp_path / "copy")
    model = tensors(run, "model")
    assert (copy / "history.csv").read_text() == (run / "history.csv").read_text()
    assert json.loads((copy / "recipe.json").read_text()) == json.loads((run / "recipe.json").read_text())
    assert json.loads((copy / "state/state.json").read_text()) == json.loads((run / "state/state.json").read_text())
    for part, limit in (("model", 5e-4), ("average", 0.15), ("exp_avg", 0.15), ("exp_avg_sq", 0.35)):
        before, after = tensors(run, part), tensors(copy, part)
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert value.shape == after[name].shape
            assert value.dtype == after[name].dtype
            if value.ndim < 2:
                assert torch.equal(value, after[name]), name
            else:
                scale = value - model[name] if part == "average" else value
                change = (value - after[name]).norm() / scale.norm()
                assert change <= limit, (name, part, change)
    average, weights = tensors(copy, "average"), read_safetensors(copy / "weights.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in average.items())


def test_unpack_run_has_no_best_error(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    pointer = tmp_path / "run/state/state.json"
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "best": 0.5}))
    pack_run_lossily(tmp_path / "run", tmp_path / "packed")
    copy = unpack_run(tmp_path / "packed", tmp_path / "copy")
    assert json.loads((copy / "state/state.json").read_text())["best"] is None


def test_pack_run_refuses_folder_with_other_files(run: Path, tmp_path: Path) -> None:
    (tmp_path / "packed_by_hand.zip").write_text("")
    refuses("expected an empty folder or a packed run, got packed_by_hand.zip", pack_run_lossily, run, tmp_path)


def test_pack_run_limits_size_of_files(run: Path, tmp_path: Path) -> None:
    files = pack_run_lossily(run, tmp_path / "packed", max_file_bytes=1 << 16)
    assert all(path.stat().st_size <= 1 << 16 for path in files)
    assert len(files) == 3
    parameters = sum(value.numel() for value in tensors(run, "model").values())
    headers = 60_000  # names and shapes, which do not grow with the network's width
    assert sum(path.stat().st_size for path in files[1:]) < 3.7 * parameters + headers
    again = pack_run_lossily(run, tmp_path / "packed")
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == sorted(path.name for path in again)


def test_train_flow_continues_from_unpacked_run(run: Path, tmp_path: Path) -> None:
    pack_run_lossily(run, tmp_path / "packed")
    copy = unpack_run(tmp_path / "packed", tmp_path / "copy")
    more = TRAINING.replace(steps=24, warmup=0.0)
    losses = {}
    for name, after in (("exact", run), ("packed", copy)):
        options = FlowRun(checkpoint_every=4, read_loss_every=4, after=after)
        trained = train_flow(tmp_path / name, network(width=64), Scenes(), more, run=options)
        losses[name] = [row.loss for row in trained.history]
    noise = max(abs(a / b - 1) for a, b in zip(losses["exact"], losses["exact"][1:], strict=False))
    for exact, packed in zip(losses["exact"], losses["packed"], strict=True):
        assert packed == pytest.approx(exact, rel=min(noise, 0.03))


def test_quantized_signed_and_logarithms_limit_relative_error() -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(7, 31, generator=draw) * 10.0 ** torch.randint(-9, 3, (7, 1), generator=draw)
    restored = _dequantize_signed(*_quantize_signed(values), [7, 31])
    blocks = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % 64)).view(-1, 64).abs().amax(1)
    limits = blocks.repeat_interleave(64)[: values.numel()].view(7, 31)
    assert ((values - restored).abs() <= limits / 13).all()
    squares = values.square()
    squares[2] = 0
    squares[:, 3] = 0
    restored = _dequantize_logarithms(*_quantize_logarithms(squares), [7, 31])
    ratio = (restored / squares)[squares > limits.square() * 2.0**-19]
    assert (ratio.log2().abs() <= 20 / 15 / 2 + 0.05).all()
    assert (restored >= 0).all()
    assert restored.isfinite().all()
    assert (_dequantize_logarithms(*_quantize_logarithms(torch.zeros(9, 9)), [9, 9]) == 0).all()
    assert math.isinf(float(_quantize_logarithms(torch.zeros(9, 9))[1][0]))


def test_unpack_run_refuses_damaged_and_other_folders(run: Path, tmp_path: Path) -> None:
    refuses(
        "nothing: expected the folder of a run with a checkpoint",
        pack_run_lossily,
        tmp_path / "nothing",
        tmp_path / "p",
    )
    packed = tmp_path / "packed"
    pack_run_lossily(run, packed)
    refuses("run.*expected an empty folder or a packed run, got", pack_run_lossily, run, run)
    refuses("expected a new or empty folder", unpack_run, packed, run)
    refuses("without packed.json", unpack_run, run, tmp_path / "copy")
    (packed / "packed-0.safetensors").unlink()
    refuses("packed-0.safetensors: is named by packed.json, but is missing", unpack_run, packed, tmp_path / "copy")
    (packed / "packed.json").write_text("{}")
    refuses("packed.json: expected a packed run, cannot be read", unpack_run, packed, tmp_path / "copy")
