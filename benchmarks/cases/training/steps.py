"""Steps of training with several correlations one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.harness import Unsupported, clock_of, given_up, peak_bytes, release, spread
from fullfield.models.raft import RAFT, RAFTConfig
from fullfield.models.sea_raft import SEARAFT, SEARAFTConfig
from fullfield.training.flow import FlowTraining
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import create_procedural_picture_pack
from fullfield.training.flow.stepping import TrainingStepper

_NEAR = 0.02  # relative difference of the first step's loss: half precision
_BEFORE = 4
_UPDATES = {"raft": 12, "raft-small": 12, "fullfield-s": 4}


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    networks: Sequence[str]
    correlations: Sequence[str]
    problems: Sequence[tuple[tuple[int, int], int]]  # (height, width), pairs
    device: torch.device
    updates: int | None
    precision: str
    graph: bool
    repeats: int


def cases(plan: Plan, note: Note) -> Cases:
    """One case for each size and network."""
    pictures = create_procedural_picture_pack(32)
    for size, batch in plan.problems:
        for network in plan.networks:
            label = f"{network} {size[1]}x{size[0]}, batch {batch}"

            def make(network: str = network, size: tuple[int, int] = size, batch: int = batch) -> Result:
                pairs = PairGenerator(size, seed=1, device=plan.device, pictures=pictures).batch(0, batch)
                return _measured(plan, network, pairs, note)

            yield Case(label, make)


def _measured(plan: Plan, network: str, pairs: FlowBatch, note: Note) -> Result:
    """Each correlation's steps, one after another so that only one network lies in memory."""
    rows: list[Result] = []
    known: float | None = None
    for name in plan.correlations:
        row: Result = {"name": name, "ours": name == "fullfield"}
        note(f"{network} with {name}")
        try:
            timed = _timed(plan, network, name, pairs)
        except (RuntimeError, MemoryError, ImportError) as error:
            row |= given_up(error)
        else:
            known = timed["first_loss"] if known is None else known
            away = abs(timed["first_loss"] - known) / abs(known)
            row |= {"status": "ok", **timed} if away <= _NEAR else {
                "status": "check failed", "reason": f"the first loss is {away:.1%} from that of {plan.correlations[0]}"
            }  # fmt: skip
        rows.append(row)
        release(plan.device)
    updates = plan.updates or _UPDATES[network]
    return {"precision": plan.precision, "graph": plan.graph, "updates": updates, "rows": rows}


def _timed(plan: Plan, network: str, name: str, pairs: FlowBatch) -> Result:
    model = _network(network, name).to(plan.device).train()
    training = FlowTraining(
        batch=len(pairs.flow),
        precision=plan.precision,
        graph=plan.graph,
        updates=plan.updates or _UPDATES[network],
    )
    stepper = TrainingStepper(model, training)
    step = partial(stepper.train_on_batch, pairs, 0, learning_rate=0.0)  # always the same step
    step()
    result: Result = {"first_loss": stepper.wait_read_and_reset_means().loss}
    if plan.device.type == "cuda":
        result["peak_bytes"] = torch.cuda.memory_allocated() + peak_bytes(step)
    for _ in range(_BEFORE):  # a recorded step is recorded after some that are not
        step()
    clock = clock_of(plan.device)
    seconds = [clock(step) for _ in range(plan.repeats)]
    result |= spread(seconds)
    return result | {"pairs_per_second": len(pairs.flow) / result["median_s"]}


def _network(network: str, correlation: str) -> torch.nn.Module:
    backend = "dense" if correlation == "dense" else None
    torch.manual_seed(0)
    model: RAFT | SEARAFT
    if network == "fullfield-s":
        model = SEARAFT(SEARAFTConfig.fullfield_s(), correlation=backend)
    else:
        config = RAFTConfig.small() if network == "raft-small" else RAFTConfig.large()
        model = RAFT(config, correlation=backend)
    if correlation == "localcorr":
        cast(Any, model).build_pyramid = _localcorr(model.config.levels, model.config.radius)
    return model


def _localcorr(levels: int, radius: int) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    try:
        blocks: Any = import_module("localcorr.blocks")
    except ImportError as error:
        raise Unsupported(f"localcorr cannot be imported ({error}): pip install localcorr triton") from error
    return lambda fmap1, fmap2: blocks.LocalCorrTritonFusedBlock(fmap1, fmap2, levels, radius)
