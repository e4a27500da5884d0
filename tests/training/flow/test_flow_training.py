"""The loop: what a step does, what is skipped, stops and several processes."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flow_parts import Plain, Scenes, Tiny, network, spoilt, until
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fullfield import InputError
from fullfield.models import SEARAFT, SEARAFTConfig
from fullfield.models.framing import choose_padding, resample_flow_to_cells
from fullfield.models.sea_raft.model import compute_expected_log_scale
from fullfield.training.checkpoint import DivergedError, restore_run_if_any
from fullfield.training.flow import FlowRun, FlowTraining, loop, train_flow
from fullfield.training.flow import ranks as ranks_module
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.curves import FlowRow
from fullfield.training.flow.loss import laplace_mixture_loss
from fullfield.training.flow.ranks import Ranks
from fullfield.training.flow.stepping import AveragedWeights, TrainingObjective, TrainingStepper
from refusals import refuses

TRAINING = FlowTraining(steps=8, batch=2, learning_rate=5e-3, average=0.9, seed=3)
RUN = FlowRun(checkpoint_every=2, read_loss_every=3)
WEIGHTS = "weights.safetensors"


def trained(folder: Path, model: nn.Module | None = None, **more: Any) -> bytes:
    """The file of weights of a run."""
    inputs: dict[str, Any] = {"training": TRAINING, "run": RUN, **more}
    train_flow(folder, model or network(), inputs.pop("source", None) or Scenes(), inputs.pop("training"), **inputs)
    return (folder / WEIGHTS).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder)
    return folder


def steps(stepper: TrainingStepper, source: Scenes, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        stepper.train_on_batch(source.batch(number, 2), number, learning_rate=5e-3)


def test_train_flow_reduces_loss(scenes: Scenes) -> None:
    for kind in (Tiny, Plain):
        stepper = TrainingStepper(network(kind).train(), FlowTraining(learning_rate=5e-3, average=0.9))
        assert stepper.loss_name == ("mixture" if kind is Tiny else "sequence")
        steps(stepper, scenes, 5)
        early = stepper.wait_read_and_reset_means()
        steps(stepper, scenes, 40)
        stepper.wait_read_and_reset_means()
        steps(stepper, scenes, 6)
        late = stepper.wait_read_and_reset_means()
        assert late.steps == 6
        assert late.loss < 0.95 * early.loss, kind  # the scenes are the same, and a plain convolution learns little
        assert late.error < 0.95 * early.error, kind
        assert late.skipped == early.skipped == 0


class _NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_stepper_does_not_synchronize(scenes: Scenes, precision: str) -> None:
    stepper = TrainingStepper(network().train(), TRAINING.replace(precision=precision))
    with _NoWaiting():
        steps(stepper, scenes, 3)
    assert stepper.wait_read_and_reset_means().steps == 3
    with pytest.raises(AssertionError, match="waits for the device"), _NoWaiting():
        float(torch.ones(()))


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """How far weights are apart, in parts of what training has changed: Adam makes steps of rounding errors here and
    there, so the mean tells."""
    start = network(norm=False).state_dict()
    keys = [key for key in start if key != "unused"]
    difference = sum(float((one[key] - two[key]).abs().mean()) for key in keys)
    return difference / sum(float((two[key] - start[key]).abs().mean()) for key in keys)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_stepper_recorded_step_equals_eager(scenes: Scenes, precision: str) -> None:
    actual = []
    for graph in (False, True):
        stepper = TrainingStepper(network().cuda().train(), TRAINING.replace(precision=precision, graph=graph))
        for number in range(12):
            batch = scenes.batch(number, 2).to(torch.device("cuda"))
            if number == 9:
                batch.frame1[0, 0, 0, 0] = float("nan")
            stepper.train_on_batch(batch, number, learning_rate=1e-3 * (1 + number))
        actual.append(([*stepper.average.model.state_dict().values()], stepper.wait_read_and_reset_means()))
        assert (stepper._recorded is not None) == graph
    (weights, messages), (recorded, retold) = actual
    assert messages.skipped == retold.skipped == 1
    for one, other in zip(weights, recorded, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def test_stepper_equals_adamw_with_clipping(scenes: Scenes) -> None:
    training = FlowTraining(learning_rate=5e-3, clip=0.3, weight_decay=0.1, average=0.9)
    stepper = TrainingStepper(
        network(norm=False).train(), training
    )  # a bias before a norm has a gradient of rounding alone
    other = network(norm=False).train()
    optimizer = torch.optim.AdamW(other.parameters(), lr=5e-3, weight_decay=0.1)
    average = {key: value.clone() for key, value in other.state_dict().items()}
    objective = TrainingObjective(other, training)
    for number in range(4):
        batch = scenes.batch(number, 2)
        stepper.train_on_batch(batch, number, learning_rate=5e-3 * (number + 1))
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (number + 1)
        optimizer.zero_grad()
        objective(batch.frame1, batch.frame2, batch.flow, batch.valid)[0].backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.3)
        optimizer.step()
        keep = min(0.9, (1 + number) / (10 + number))
        for key, value in other.state_dict().items():
            average[key] = keep * average[key] + (1 - keep) * value
    assert apart(stepper.model.state_dict(), other.state_dict()) < 1e-4
    assert apart(stepper.average.model.state_dict(), average) < 1e-4
    assert apart(stepper.model.state_dict(), average) > 0.1  # the measure can fail


def test_objective_limits_log_scale_of_sea_raft(scenes: Scenes) -> None:
    model, batch = SEARAFT(SEARAFTConfig.fullfield_s()).eval(), scenes.batch(0, 1)
    with torch.no_grad():
        pairs = model.predictions_with_mixture(batch.frame1, batch.frame2, updates=1)
        for flow, info in pairs:
            flow += 100.0  # far off: the wide scale decides the loss
            info[:, :2], info[:, 2:3] = 0.0, 9.0
        model.compute_padding_coarse_fields_and_weights = None
        model.predictions_with_mixture = lambda *_, **__: pairs
        actual, _ = TrainingObjective(model, FlowTraining(updates=1))(
            batch.frame1, batch.frame2, batch.flow, batch.valid
        )
        right = [laplace_mixture_loss(pairs, batch.flow, batch.valid, log_scale_max=high) for high in (1.5, 10.0)]
    assert actual == right[0]
    assert right[0] > 2 * right[1]
    assert float(compute_expected_log_scale(info, model.config).max()) > 4


def test_averaged_weights_follow_buffers() -> None:
    model = network()
    average = AveragedWeights(model, 0.5)
    with torch.no_grad():
        for value in (model.norm.running_mean, model.norm.num_batches_tracked, model.encode.weight):
            value.fill_(4)  # type: ignore[operator]
    average.update_average(100)
    assert torch.equal(average.model.norm.running_mean, torch.full((8,), 2.0))  # type: ignore[arg-type]
    assert average.model.norm.num_batches_tracked == 4
    assert torch.allclose(average.model.encode.weight, network().encode.weight / 2 + 2)  # type: ignore[operator]


def state_of(stepper: TrainingStepper) -> dict[str, Tensor]:
    state = {key: value.clone() for key, value in stepper.model.state_dict().items()}
    for name, parameter in stepper.model.named_parameters():
        state |= {
            f"{name}.{tensor_group}": value.clone()
            for tensor_group, value in stepper.optimizer.state.get(parameter, {}).items()
        }
    return state


def test_stepper_nonfinite_step_changes_nothing() -> None:
    source = spoilt(2)
    stepper = TrainingStepper(network().train(), TRAINING)
    steps(stepper, source, 2)
    before = state_of(stepper)
    assert any(key.endswith("exp_avg") for key in before)
    steps(stepper, source, 1, first=2)
    after = state_of(stepper)
    counts = {key for key in before if not torch.equal(before[key], after[key])}
    assert counts <= {"norm.num_batches_tracked"}
    reading = stepper.wait_read_and_reset_means()
    assert (reading.steps, reading.skipped, reading.consecutive_skipped) == (3, 1, 1)
    assert reading.loss == reading.loss
    steps(stepper, source, 2, first=3)
    assert not torch.equal(state_of(stepper)["encode.weight"], before["encode.weight"])
    assert stepper.wait_read_and_reset_means().consecutive_skipped == 0


def test_train_flow_stops_after_many_nonfinite_steps(tmp_path: Path) -> None:
    run = FlowRun(checkpoint_every=50, read_loss_every=10)
    some = spoilt(*range(4, 20), *range(21, 36))
    trained(tmp_path / "some", source=some, training=TRAINING.replace(steps=40), run=run)
    rows = list(csv.DictReader((tmp_path / "some" / "history.csv").open()))
    assert [row["skipped"] for row in rows] == ["31"]
    many = spoilt(*range(4, 30))
    with pytest.raises(
        InputError, match=r"^learning_rate: loss or gradient was not finite in \d\d steps in a row until"
    ):
        trained(tmp_path / "many", source=many, training=TRAINING.replace(steps=40), run=run)


def test_train_flow_without_finite_step_stops(tmp_path: Path) -> None:
    """Twenty steps in a row are never reached here; the checkpoint before stays as it was."""
    run = FlowRun(checkpoint_every=4, read_loss_every=2)
    with pytest.raises(DivergedError, match=r"^learning_rate: .* in every step since the last checkpoint until step 4"):
        trained(tmp_path / "none", source=spoilt(*range(4)), training=TRAINING.replace(steps=4), run=run)
    assert not (tmp_path / "none" / "weights.safetensors").exists()
    with pytest.raises(DivergedError, match="until step 8"):
        trained(tmp_path / "late", source=spoilt(*range(4, 8)), training=TRAINING.replace(steps=8), run=run)
    retained = load_file(tmp_path / "late" / "weights.safetensors")
    assert all(bool(value.isfinite().all()) for value in retained.values() if value.is_floating_point())
    assert DivergedError.exit_code == 1


def test_stepper_half_precision_scales_loss() -> None:
    stepper = TrainingStepper(network().train(), TRAINING.replace(precision="float16"))
    source = spoilt(1)
    scale = float(stepper.scaling[0])
    assert scale > 1
    steps(stepper, source, 1)
    assert float(stepper.scaling[0]) == scale
    steps(stepper, source, 1, first=1)
    assert float(stepper.scaling[0]) == scale / 2
    stepper.scaling[1] = 999.0
    steps(stepper, source, 1, first=2)
    assert stepper.scaling.tolist() == [scale, 0.0]
    plain = TrainingStepper(network().train(), TRAINING)
    steps(plain, Scenes(), 1)
    fine, half = (
        plain.wait_read_and_reset_means(),
        TrainingStepper(network().train(), TRAINING.replace(precision="float16")),
    )
    steps(half, Scenes(), 1)
    assert half.wait_read_and_reset_means().norm == pytest.approx(fine.norm, rel=0.02)


def test_train_flow_writes_weights_recipe_and_history(whole: Path) -> None:
    files = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
    tensor_groups = ("average", "exp_avg", "exp_avg_sq", "model")
    assert files == [
        "history.csv",
        "recipe.json",
        *(f"state/8.{tensor_group}.safetensors" for tensor_group in tensor_groups),
        "state/state.json",
        WEIGHTS,
    ]
    recipe = json.loads((whole / "recipe.json").read_text())
    assert recipe["training"]["steps"] == 8
    assert recipe["loss"] == "mixture"
    rows = list(csv.DictReader((whole / "history.csv").open()))
    assert [int(row["step"]) for row in rows] == [2, 4, 6, 8]
    assert all(float(row["loss"]) > 0 and float(row["pairs_per_second"]) > 0 for row in rows)
    numbers = sum(parameter.numel() for parameter in Tiny().parameters())
    for tensor_group in tensor_groups:
        assert (whole / "state" / f"8.{tensor_group}.safetensors").stat().st_size < 4 * numbers + 4096


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_train_flow_continues_stopped_run(whole: Path, tmp_path: Path, stop: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, source=until(stop))
    source = Scenes()
    assert trained(tmp_path, source=source) == (whole / WEIGHTS).read_bytes()
    # The batch of a step is made beside the step before it.
    assert source.asked[0] == (max(0, stop - 1) // 2 * 2, 2)
    for name in ("model", "exp_avg", "exp_avg_sq", "average"):
        file = f"state/8.{name}.safetensors"
        assert (tmp_path / file).read_bytes() == (whole / file).read_bytes()
    requested = len(source.asked)
    assert trained(tmp_path, source=source) == (whole / WEIGHTS).read_bytes()
    assert len(source.asked) == requested  # it was done


class Updated(Tiny):
    """A network that is called with a number of updates, and remembers which."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def predictions_with_mixture(self, frame1: Tensor, frame2: Tensor, updates: int = 3) -> list[tuple[Tensor, Tensor]]:
        self.seen.append(updates)
        return super().predictions_with_mixture(frame1, frame2)[:updates]

    def predictions(self, frame1: Tensor, frame2: Tensor, updates: int = 3) -> list[Tensor]:
        return [flow for flow, _ in self.predictions_with_mixture(frame1, frame2, updates)]


class Masked(Tiny):
    """With a buffer that is not finite, and meant to be."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))


@pytest.mark.parametrize(
    ("kind", "more", "change"),
    [
        (Tiny, {"dropout": 0.5}, {}),
        (Tiny, {}, {"channels_last": True}),  # the moments keep the order of the parameters' memory
        (Masked, {}, {}),
        (Updated, {}, {"updates": (1, 3)}),
    ],
    ids=["dropout", "channels last", "mask", "updates"],
)
def test_train_flow_continues_every_kind_of_run(
    tmp_path: Path, kind: type[nn.Module], more: dict[str, Any], change: dict[str, Any]
) -> None:
    training = TRAINING.replace(**change)
    full, resumed = network(kind, **more), network(kind, **more)
    weights = trained(tmp_path / "whole", full, training=training)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", network(kind, **more), source=until(5), training=training)
    assert trained(tmp_path / "stopped", resumed, training=training) == weights
    paused = FlowRun(checkpoint_every=2, read_loss_every=1, pause_after_s=1e-6)
    while train_flow(tmp_path / "paused", network(kind, **more), Scenes(), training, run=paused).completed < 1:
        pass
    assert (tmp_path / "paused" / WEIGHTS).read_bytes() == weights
    actual = load_file(tmp_path / "whole" / WEIGHTS)
    if more:
        assert trained(tmp_path / "seed", network(kind, **more), training=training.replace(seed=4)) != weights
    if kind is Masked:
        assert actual["mask"].tolist() == [0.0, float("-inf")]
    if kind is Updated:
        assert set(full.seen) == {1, 2, 3}
        assert full.seen == [training.get_or_draw_update_count(step) for step in range(8)]
        assert resumed.seen == full.seen[4:]


def test_choose_update_count_is_uniform_and_seeded() -> None:
    training = TRAINING.replace(updates=(1, 3))
    drawn, other = (
        [each.get_or_draw_update_count(step) for step in range(8)] for each in (training, training.replace(seed=4))
    )
    assert drawn != other
    drawn = [FlowTraining(updates=(4, 12)).get_or_draw_update_count(step) for step in range(2000)]
    assert set(drawn) == set(range(4, 13))
    assert min(drawn.count(number) for number in range(4, 13)) > 150


SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
from flow_parts import Scenes, network
from fullfield.training.flow import FlowRun, FlowTraining, train_flow
training = FlowTraining(steps={steps}, batch=2, learning_rate=5e-3, average=0.9, seed=3)
train_flow(sys.argv[1], network(**{network}), Scenes(), training, run=FlowRun(checkpoint_every=2, read_loss_every=3))
"""


@pytest.fixture
def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.long
def test_train_flow_continues_killed_run(tmp_path: Path, environment: dict[str, str]) -> None:
    training = TRAINING.replace(steps=3000)
    script = SCRIPT.format(steps=3000, network={})
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder / "state" / "state.json").exists():
        time.sleep(0.005)
    time.sleep(0.3 * random.random())
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # it was still at work
    reached = json.loads((folder / "state" / "state.json").read_text())["step"]
    assert 0 < reached < 3000
    # As far as the next checkpoint of both, in this process: the run above, and one that was never stopped.
    expected = reached + 6
    results = []
    for run_folder in (folder, tmp_path / "whole"):
        source = until(expected)
        with pytest.raises(KeyboardInterrupt):
            trained(run_folder, source=source, training=training)
        pointer = json.loads((run_folder / "state" / "state.json").read_text())
        results.append((pointer["step"], (run_folder / WEIGHTS).read_bytes()))
        for tensor_group in ("model", "exp_avg", "exp_avg_sq"):
            results[-1] += ((run_folder / "state" / f"{pointer['step']}.{tensor_group}.safetensors").read_bytes(),)
    assert results[0] == results[1]
    assert results[0][0] > reached


FIRST_STEP = """
train_flow(sys.argv[1] + "/1", network(norm=False), Scenes(), training.replace(steps=1))
"""


def test_train_flow_on_two_processes_equals_one(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a batch norm, which sees each process's pairs alone; two runs one after the other, by one address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    several = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # as torchrun sets them
    script = SCRIPT.format(steps=8, network={"norm": False}) + FIRST_STEP
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "two")], env={**environment, **several, "RANK": "1"}
    )
    for folder in ("two", "one"):
        for name in several:
            monkeypatch.delenv(name, raising=False)
        if folder == "two":
            monkeypatch.setenv("RANK", "0")
            for name, value in several.items():
                monkeypatch.setenv(name, value)
        trained(tmp_path / folder, network(norm=False))
        trained(tmp_path / folder / "1", network(norm=False), training=TRAINING.replace(steps=1))
    assert other.wait(60) == 0
    actual = [json.loads((tmp_path / folder / "state" / "state.json").read_text()) for folder in ("one", "two")]
    states = [load_file(tmp_path / folder / "state" / "8.model.safetensors") for folder in ("one", "two")]
    first = [load_file(tmp_path / folder / "1" / "state" / "1.exp_avg.safetensors") for folder in ("one", "two")]
    for key, value in first[0].items():
        assert torch.allclose(value, first[1][key], rtol=1e-4, atol=1e-6 * float(value.abs().max())), key  # gradients
    assert apart(states[1], states[0]) < 0.01
    for left, right in zip(actual[0]["history"], actual[1]["history"], strict=True):
        assert left[0] == right[0]
        assert left[2:5] == pytest.approx(right[2:5], rel=1e-4)


@pytest.mark.parametrize(("device", "fails", "closed"), [("cuda:0", True, 0), ("cuda:0", False, 1), ("cpu", True, 1)])
def test_train_flow_failed_process_ends_others(
    monkeypatch: pytest.MonkeyPatch, device: str, fails: bool, closed: int
) -> None:
    calls = {"init_process_group": 0, "destroy_process_group": 0}
    monkeypatch.setattr(
        ranks_module, "_get_rendezvous_store_and_group_numbers", lambda *_: (torch.distributed.HashStore(), count())
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for name in calls:
        monkeypatch.setattr(torch.distributed, name, lambda *_, name=name, **__: calls.update({name: calls[name] + 1}))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks_module, "_failed", False)
    with (
        pytest.raises(InputError) if fails else nullcontext(),
        ranks_module.join_process_group_if_distributed(torch.device(device)),
    ):
        if fails:
            raise InputError("folder: another run")
    assert calls == {"init_process_group": 1, "destroy_process_group": closed}
    if not closed:
        refuses(
            "torchrun: expected a new process",
            ranks_module.join_process_group_if_distributed(torch.device("cpu")).__enter__,
        )


def test_train_flow_stops_after_time_limit(tmp_path: Path) -> None:
    training = TRAINING.replace(steps=1_000_000, seconds=0.6, schedule="stable", decay=0.5)
    seen: list[float] = []
    begin = time.perf_counter()
    actual = train_flow(
        tmp_path,
        network(),
        Scenes(),
        training,
        run=FlowRun(checkpoint_every=10**6, read_loss_every=5),
        progress=lambda d, _: seen.append(d),
    )
    assert time.perf_counter() - begin < 20
    assert actual.completed == 1.0
    assert seen == sorted(seen)
    assert actual.history[-1].seconds == pytest.approx(0.6, rel=0.5)
    assert actual.history[-1].rate < 0.2 * training.learning_rate


def test_train_flow_speed_excludes_validation(tmp_path: Path) -> None:
    def slow(_: nn.Module) -> float:
        time.sleep(0.4)
        return 1.0

    run = FlowRun(checkpoint_every=4, read_loss_every=2)
    history = train_flow(tmp_path, network(), Scenes(), TRAINING, run=run, validation=slow).history
    assert history[1].seconds - history[0].seconds > 0.4
    assert history[1].pairs_per_second > 2 * 4 * TRAINING.batch


def restored(folder: Path, stepper: TrainingStepper) -> dict[str, Any]:
    """Load a run's state into a stepper; return what else was stored."""
    modules = {"model": stepper.model, "average": stepper.average.model}
    actual = restore_run_if_any(folder, modules, stepper.optimizer, FlowRow)
    return actual.resume_state


def test_train_flow_continues_from_paused_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = FlowRun(checkpoint_every=100, read_loss_every=2, pause_after_s=1e-6)
    actual = train_flow(tmp_path / "first", network(), Scenes(), TRAINING, run=paused)
    assert actual.completed < 1
    assert actual.history[-1].step in (2, 3)
    reached = actual.history[-1].step
    source = Scenes()
    longer = TRAINING.replace(steps=2, schedule="stable", warmup=0.0, decay=0.0)
    averaged: list[int] = []
    update = AveragedWeights.update_average

    def noted(self: AveragedWeights, step: int) -> None:
        averaged.append(step)
        update(self, step)

    monkeypatch.setattr(AveragedWeights, "update_average", noted)
    second = train_flow(tmp_path / "second", network(), source, longer, run=FlowRun(after=tmp_path / "first"))
    assert averaged == [reached, reached + 1]  # the average does not begin anew
    assert [index for index, _ in source.asked] == [reached, reached + 1]  # pairs that the first run has not seen
    assert second.history[-1].rate == TRAINING.learning_rate
    stepper = TrainingStepper(network().train(), TRAINING)
    retained = restored(tmp_path / "second", stepper)
    assert retained["batches"] == reached
    assert float(stepper.optimizer.state[stepper.model.encode.weight]["step"]) == reached + 2
    source = Scenes()  # another batch: pairs are numbered by index times count
    other = longer.replace(batch=1, precision="float16")
    train_flow(tmp_path / "other", network(), source, other, run=FlowRun(after=tmp_path / "second"))
    assert [index for index, _ in source.asked] == [2 * reached + 4, 2 * reached + 5]
    assert restored(tmp_path / "other", stepper)["scaling"][0] == 2.0**14  # float16's, not that of the run before
    with pytest.raises(InputError, match="after: expected the folder of a run"):
        train_flow(tmp_path / "third", network(), Scenes(), longer, run=FlowRun(after=tmp_path / "none"))


def test_train_flow_counts_occluded_pixels_later(tmp_path: Path) -> None:
    hidden = Scenes(change=lambda _, batch: batch._replace(occluded=torch.ones_like(batch.occluded)))
    actual = train_flow(tmp_path, network(), hidden, TRAINING.replace(visible=0.5), run=FlowRun(checkpoint_every=2))
    rows = [row.loss for row in actual.history]
    assert rows[:2] == [0.0, 0.0]
    assert rows[2] > 0


def test_train_flow_keeps_best_validated_weights(tmp_path: Path) -> None:
    errors: Iterator[float] = iter([3.0, 1.0, 2.0, 4.0])
    seen: list[bytes] = []

    def validation(model: nn.Module) -> float:
        assert not model.training
        seen.append(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
        return next(errors)

    actual = train_flow(tmp_path, network(), Scenes(), TRAINING, run=RUN, validation=validation)
    assert [row.validation for row in actual.history] == [3.0, 1.0, 2.0, 4.0]
    stepper = TrainingStepper(network(), TRAINING)
    stepper.model.load_state_dict(load_file(tmp_path / "best.safetensors"))
    assert b"".join(v.numpy().tobytes() for v in stepper.model.state_dict().values()) == seen[1]


@pytest.mark.parametrize("killed_at", [1, 4])
def test_train_flow_killed_in_validation_continues_with_it(tmp_path: Path, killed_at: int) -> None:
    calls = 0

    def validation(model: nn.Module) -> float:
        nonlocal calls
        calls += 1
        if calls == killed_at:
            raise KeyboardInterrupt
        return float(model.state_dict()["encode.weight"].abs().mean()) + float(torch.rand(()))

    with pytest.raises(KeyboardInterrupt):
        train_flow(tmp_path / "run", network(), Scenes(), TRAINING, run=RUN, validation=validation)
    stored = json.loads((tmp_path / "run" / "state" / "state.json").read_text())
    assert stored["step"] == killed_at * RUN.checkpoint_every
    source = Scenes()
    actual = train_flow(tmp_path / "run", network(), source, TRAINING, run=RUN, validation=validation)
    assert len(source.asked) == TRAINING.steps - stored["step"]  # no step is repeated
    calls = 10
    full = train_flow(tmp_path / "whole", network(), Scenes(), TRAINING, run=RUN, validation=validation)
    assert [row.validation for row in actual.history] == [row.validation for row in full.history]
    for file in (WEIGHTS, "best.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_train_flow_writes_curves_and_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "run" / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None:
            pass

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    run = FlowRun(checkpoint_every=4, tensorboard=True, curves=True)
    actual = train_flow(tmp_path / "run", network(), Scenes(), TRAINING, run=run)
    assert [(value, step) for name, value, step in written if name == "loss"] == [
        (row.loss, row.step) for row in actual.history
    ]
    assert not any(name == "validation" for name, *_ in written)  # nothing validated
    assert (tmp_path / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    source = Scenes()
    for module, message in (
        ("torch.utils.tensorboard", "tensorboard: expected TensorBoard, which is not installed"),
        ("matplotlib.figure", "curves: expected matplotlib, which is not installed"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        refuses(message, train_flow, tmp_path / "none", network(), source, TRAINING, run=run)
    assert not source.asked  # before any step


def test_train_flow_restores_lost_files_of_finished_run(tmp_path: Path) -> None:
    weights = trained(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(weights[:100])
    (tmp_path / "history.csv").unlink()
    source = Scenes()
    assert trained(tmp_path, source=source, run=FlowRun(checkpoint_every=2, read_loss_every=3, curves=True)) == weights
    assert not source.asked
    assert (tmp_path / "history.csv").exists()
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "state" / "state.json").unlink()
    refuses(r"holds weights\.safetensors without the state to continue from", trained, tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == weights


def test_stepper_compiles_network_parts_once(
    scenes: Scenes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "fullfield"]

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Conv2d(6, 2, 5, padding=2)

        def forward(self, frames: Tensor) -> Tensor:
            return cast(Tensor, self.inner(frames))

    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def predictions(self, frame1: Tensor, frame2: Tensor, updates: int = 1) -> list[Tensor]:
            frames = torch.cat((frame1, frame2), 1)
            return [self.part(frames) * (number + 1) for number in range(updates)]

    compiled: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(1)
        return graph.forward

    compile_, reset = torch.compile, torch._dynamo.reset
    reset()
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_(module, backend=backend))
    training = TRAINING.replace(updates=(1, 4), compile="default")
    stepper = TrainingStepper(network(Many).train(), training)
    steps(stepper, scenes, 24)
    assert {training.get_or_draw_update_count(step) for step in range(24)} == {1, 2, 3, 4}
    assert len(compiled) == 1
    first, second = messages()
    assert first == "compiling the network (torch.compile, default); this may take a minute, or longer ..."
    assert re.fullmatch(r"compiled in \d+\.\d s", second)
    stepper.unfreeze_biases_and_uncompile()
    assert stepper.model.part._compiled_call_impl is None  # type: ignore[union-attr]
    plain = TrainingStepper(network(Many).train(), training.replace(compile=None))
    steps(plain, scenes, 24)
    assert len(messages()) == 2
    assert torch.allclose(stepper.model.part.inner.weight, plain.model.part.inner.weight, atol=1e-5)  # type: ignore[union-attr,arg-type]
    reset()


def small_network() -> SEARAFT:
    """A SEA-RAFT whose convolutions in front of norms have biases."""
    torch.manual_seed(2)
    model = SEARAFT(SEARAFTConfig.small(stem_channels=8, stage_channels=(8, 8, 16), channels=8)).train()
    for name, _ in model.find_cancelled_biases_and_their_norms():
        torch.nn.init.normal_(model.get_parameter(f"{name}.bias"))
    return model


def test_stepper_folds_biases_into_norms(scenes: Scenes) -> None:
    model, batch = small_network(), scenes.batch(0, 2)
    names = [f"{name}.bias" for name, _ in model.find_cancelled_biases_and_their_norms()]
    assert "fnet.conv1.bias" in names
    assert "cnet.layer2.0.downsample.0.bias" in names
    before = model.eval()(batch.frame1, batch.frame2)
    model.train()
    stepper = TrainingStepper(model, TRAINING)
    for network_ in (model.eval(), stepper.average.model):
        assert torch.allclose(network_(batch.frame1, batch.frame2), before, rtol=1e-3, atol=1e-4)
    model.train()
    steps(stepper, scenes, 2)
    assert not any(model.get_parameter(name).requires_grad for name in names)
    assert all(float(model.get_parameter(name).abs().max()) == 0 for name in names)
    assert model.fnet.bn1.running_mean.abs().max() > 0
    stepper.unfreeze_biases_and_uncompile()
    assert all(parameter.requires_grad for parameter in model.parameters())
    frozen = small_network()
    loop.freeze_batch_norm_statistics(frozen)
    assert frozen.find_cancelled_biases_and_their_norms() == []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # while PyTorch traces
def test_stepper_compiled_sea_raft_accepts_any_updates(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(1)
        return graph.forward

    compile_ = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda part, **_: compile_(part, backend=backend))
    training = TRAINING.replace(updates=(1, 3), compile="default")
    stepper, plain = (TrainingStepper(small_network(), training.replace(compile=mode)) for mode in ("default", None))
    for one in (stepper, plain):
        steps(one, scenes, 5)
    assert len(compiled) == 2
    for own, other in zip(stepper.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(own, other, atol=1e-4)
    torch._dynamo.reset()


def test_stepper_starts_every_second_pair_from_coarse_flow(scenes: Scenes) -> None:
    training = TRAINING.replace(updates=2, coarse_starts=2)
    stepper = TrainingStepper(small_network(), training)
    model, objective, batch = stepper.model, stepper._uncompiled, scenes.batch(0, 4)
    frames = batch.frame1, batch.frame2
    for step, divisor in ((0, 2), (1, 4)):
        buffers = [buffer.clone() for buffer in model.buffers()]
        objective.coarse_divisor = training.get_coarse_divisor(step)
        coarse = objective.estimate_coarse_flow_if_any(*frames)
        size = tuple(side // divisor for side in batch.frame1.shape[-2:])
        assert coarse is not None
        assert coarse.shape == (2, 2, *size)
        assert all(module.training for module in model.modules())
        assert all(torch.equal(one, other) for one, other in zip(model.buffers(), buffers, strict=True))
        fields = [
            model.compute_padding_coarse_fields_and_weights(*frames, 1, *start)[1]  # type: ignore[operator]
            for start in ((), (coarse, 2))
        ]
        for own, given in zip(*fields, strict=True):
            assert torch.equal(own[0][1::2, :2], given[0][1::2, :2])
            assert not torch.allclose(own[0][::2, :2], given[0][::2, :2])
        start = resample_flow_to_cells(coarse, *batch.frame1.shape[-2:], choose_padding(*batch.frame1.shape[-2:]))
        assert torch.equal(fields[1][0][0][::2, :2], 8 * start)
    before = {name: value.clone() for name, value in model.named_parameters()}
    stepper.train_on_batch(batch, 0, learning_rate=1e-3)
    assert all((value != before[name]).any() for name, value in model.named_parameters() if value.requires_grad)
    refuses(
        "coarse_starts: expected 0 without SEA-RAFT and the mixture loss",
        TrainingStepper,
        network(),
        TRAINING.replace(coarse_starts=2),
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("coarse_starts", [0, 2])
def test_stepper_recorded_steps_of_any_updates_equal_eager(scenes: Scenes, coarse_starts: int) -> None:
    results = []
    for graph in (False, True):
        training = TRAINING.replace(updates=(1, 3), graph=graph, channels_last=True, coarse_starts=coarse_starts)
        stepper = TrainingStepper(small_network().cuda(), training)
        for number in range(20):
            stepper.train_on_batch(scenes.batch(number, 2).to(torch.device("cuda")), number, learning_rate=1e-4)
        results.append([*stepper.average.model.state_dict().values()])
        if graph:
            assert stepper._recorded is not None
            assert {updates for updates, _ in stepper._recorded._recordings} == {1, 2, 3}
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-2, atol=1e-3)


def test_train_flow_frozen_norms_keep_statistics(tmp_path: Path) -> None:
    before, benchmark = torch.random.get_rng_state(), torch.backends.cudnn.benchmark
    model = network()
    trained(tmp_path, model, training=TRAINING.replace(freeze_norms=True))
    assert torch.equal(model.norm.running_mean, torch.zeros(8))
    assert not torch.equal(model.norm.weight, torch.ones(8))
    assert not model.training
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.backends.cudnn.benchmark == benchmark


def test_train_flow_refuses_other_runs_and_damaged_files(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training\.seed was 3, is 4\); use another folder$"):
        trained(whole, training=TRAINING.replace(seed=4, steps=9))
    longer = rf"\(training\.steps was 8, is 9\); use another folder, and --after {re.escape(str(whole))} "
    refuses(longer, trained, whole, training=TRAINING.replace(steps=9))
    refuses(r"was begun with other settings", trained, whole, run=FlowRun(recipe={"network": "raft"}))
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    refuses(r"8\.model\.safetensors: expected weights of this run", trained, tmp_path, network(width=9))
    moments = tmp_path / "state" / "8.exp_avg.safetensors"
    content = moments.read_bytes()
    moments.write_bytes(content[: len(content) // 2])
    refuses(r"8\.exp_avg\.safetensors: expected a safetensors file", trained, tmp_path)
    moments.unlink()
    refuses(r"is named by state\.json, but is not there", trained, tmp_path)
    (tmp_path / "state" / "state.json").write_text("{}")
    refuses(r"state\.json: expected the state of a run", trained, tmp_path)


@pytest.mark.parametrize(
    ("part", "key", "value", "word"),
    [
        ("model", "encode.bias", float("nan"), "NaN"),
        ("average", "norm.running_mean", float("inf"), "infinity"),
        ("exp_avg", "exp_avg.encode.bias", float("-inf"), "infinity"),
        ("exp_avg_sq", "exp_avg_sq.encode.bias", float("nan"), "NaN"),
    ],
)
def test_train_flow_refuses_nonfinite_state(
    whole: Path, tmp_path: Path, part: str, key: str, value: float, word: str
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    file = tmp_path / "run" / "state" / f"8.{part}.safetensors"
    tensors = load_file(file)
    tensors[key].view(-1)[-1] = value
    save_file(tensors, file)
    expected = rf"8\.{part}\.safetensors: expected finite numbers, got {word} in {re.escape(key)}$"
    refuses(expected, trained, tmp_path / "run")
    refuses(expected, trained, tmp_path / "next", run=FlowRun(after=tmp_path / "run"))


@pytest.mark.parametrize(("key", "rank"), [("unused", 0), ("norm.running_mean", 0), ("unused", 1)])
def test_train_flow_stores_no_nonfinite_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, rank: int
) -> None:
    """The losses and the validation's errors stay finite; processes that store nothing stop as well."""
    monkeypatch.setattr(loop, "join_process_group_if_distributed", lambda _: nullcontext(Ranks(rank)))
    model, errors = network(), iter([3.0, 2.0, 1.0])

    def spoiled(index: int, batch: FlowBatch) -> FlowBatch:
        if index == 6:
            model.state_dict()[key].fill_(float("inf"))
        return batch

    with pytest.raises(DivergedError, match=rf"^learning_rate: {key} is not finite after step 6; use a lower one"):
        trained(tmp_path, model, source=Scenes(change=spoiled), validation=lambda _: next(errors))
    if rank == 1:
        assert not any(tmp_path.iterdir())
        return
    assert json.loads((tmp_path / "state" / "state.json").read_text())["step"] == 4
    for file in (WEIGHTS, "best.safetensors"):
        assert all(bool(value.isfinite().all()) for value in load_file(tmp_path / file).values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "1e999"),
        ("history", "[[1e999, 1, 1, 1, 1, 1, 1, 1, 1]]"),
        ("pairs", "1e999"),
        ("scaling", f"[1{'0' * 400}, 0]"),
        ("rng", '"00ff"'),
        ("rng", f'"{"00" * len(torch.get_rng_state())}"'),
    ],
)
def test_train_flow_refuses_damaged_state(whole: Path, tmp_path: Path, name: str, value: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    file = tmp_path / "run" / "state" / "state.json"
    stored = json.loads(file.read_text())
    assert name in stored
    file.write_text(json.dumps({**stored, name: "HERE"}).replace('"HERE"', value))
    refuses(r"state\.json: expected the state of a run.*, cannot be read$", trained, tmp_path / "run")


def test_train_flow_names_untrainable_arguments(tmp_path: Path, scenes: Scenes) -> None:
    wrong = Scenes(change=lambda _, batch: batch._replace(valid=batch.valid.float()))
    for model, source, training, message in (
        (nn.Identity(), scenes, TRAINING, "model: expected parameters to train, got none"),
        (nn.Conv2d(3, 3, 1), scenes, TRAINING, "model: expected a network with predictions"),
        (network(Plain), scenes, TRAINING.replace(loss="mixture"), "loss: expected sequence"),
        (network(), wrong, TRAINING, "source: valid: expected dtype bool"),
        (network(Plain), scenes, TRAINING.replace(updates=3), "updates: expected None .* without them, got Plain"),
    ):
        refuses(message, train_flow, tmp_path / "run", model, source, training)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected an integer >= 1"),
        ({"seconds": 0.0}, "seconds: expected a number > 0"),
        ({"schedule": "cosine"}, "schedule: expected one of one-cycle, stable"),
        ({"precision": "half"}, "precision: expected one of"),
        ({"average": 1.0}, "average: expected a number >= 0 and < 1"),
        ({"schedule": "stable", "warmup": 0.7, "decay": 0.7}, "warmup: expected shares of warm-up and decay"),
        ({"clip": 0.0}, "clip: expected a number > 0"),
        ({"updates": -1}, "updates: expected an integer >= 0"),
        ({"updates": (4,)}, "updates: expected two numbers, the lower first"),
        ({"updates": (12, 4)}, "updates: expected two numbers, the lower first"),
        ({"updates": (0, 4)}, "updates: expected an integer >= 1"),
        ({"compile": "fast"}, "compile: expected one of"),
        ({"channels_last": 1}, "channels_last: expected True or False"),
    ],
)
def test_flow_training_names_bad_values(change: dict[str, Any], message: str) -> None:
    refuses(message, FlowTraining, **change)


def test_flow_training_learning_rate_follows_schedule() -> None:
    cycle = FlowTraining(learning_rate=1.0, warmup=0.1, last=0.01)
    rates = [cycle.compute_learning_rate(percent / 100) for percent in range(101)]
    assert rates[0] == pytest.approx(0.04)
    assert max(rates) == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.505)
    assert rates[100] == pytest.approx(0.01)
    stable = cycle.replace(schedule="stable", decay=0.4)
    rates = [stable.compute_learning_rate(percent / 100) for percent in range(101)]
    assert rates[10:61] == [1.0] * 51
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[100] == pytest.approx(0.01)
    assert stable.replace(decay=0.0).compute_learning_rate(1.0) == 1.0
    timed = FlowTraining(steps=1000, seconds=50.0)
    positions = ((0, 0.0), (100, 1.0), (100, 25.0), (999, 60.0))
    assert [timed.compute_completed_fraction(*position) for position in positions] == [0.0, 0.1, 0.5, 1.0]
