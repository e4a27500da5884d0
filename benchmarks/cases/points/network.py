"""ResNet-18 on native points: time with and without its geometry, launches, the host's share, memory.

Every time begins with the points on the device and an idle device, and ends when the device has finished:

- geometry: levels, neighbours and triplets of all layers.
- forward: logits without gradients, with a geometry from before.
- training: forward, loss and gradients, with a geometry from before. A recorded step copies the geometry first.
- whole: geometry, forward, loss and gradients.

A row of one batch repeats it; its shapes never change. In a row of changing batches each step has another part of the
clouds, so all sizes but the number of points change. Recording a step is not inside the times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.points.clouds import Scene
from benchmarks.harness import (
    Candidate,
    CheckFailed,
    clock_of,
    given_up,
    interleaved,
    issue_seconds,
    peak_bytes,
    spread,
)
from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig, RecordedStep

# Of the largest logit: float16 and bfloat16 against the same weights in float32.
_ALLOWED = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
Case = dict[str, Any]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), labels)


class _Work:
    """The network, and what one call does."""

    def __init__(self, scene: Scene, grid: float, dtype: torch.dtype, net: PointResNet | None = None) -> None:
        torch.manual_seed(0)
        self.scene, self.dtype = scene, dtype
        device = scene.points.device
        self.net = net or PointResNet(PointResNetConfig(grid=grid)).to(device=device, dtype=dtype)
        self.parameters = list(self.net.parameters())
        generator = torch.Generator(device).manual_seed(0)
        count = scene.points.shape[0]
        self.features = torch.randn(count, 3, generator=generator, device=device).to(dtype)
        self.labels = torch.arange(scene.offsets.numel() - 1, device=device) % 1000

    def prepare(self) -> PointPyramid:
        return self.net.prepare(self.scene.points, self.scene.offsets)

    def forward(self, pyramid: PointPyramid) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.net(self.features, pyramid)
        return logits

    def train(self, pyramid: PointPyramid) -> Tensor:
        """Forward and the gradients of all parameters, which are let go of before as an optimizer does."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = _loss(self.net(self.features, pyramid), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def differs(self, step: RecordedStep) -> str | None:
        """Compare the loss and the gradients of a recorded step with those of :meth:`train`."""
        pyramid, allowed = self.prepare(), _ALLOWED[self.dtype]
        found = [step(self.features, pyramid, self.labels)]
        found += [p.grad.clone() for p in self.parameters if p.grad is not None]
        right = [self.train(pyramid), *(p.grad for p in self.parameters if p.grad is not None)]
        for one, two in zip(found, right, strict=True):
            error = float((one.float() - two.float()).norm() / two.float().norm().clamp(min=1e-30))
            if not error <= allowed:
                return f"a gradient or the loss is off by {error:.2g} of its length, allowed {allowed:.2g}"
        return None

    def whole(self) -> Tensor:
        """Geometry, forward and backward."""
        return self.train(self.prepare())

    def wrong(self, pyramid: PointPyramid) -> str | None:
        """Logits against the same weights in float32, and gradients that are finite."""
        logits = self.forward(pyramid).float()
        exact = PointResNet(self.net.config).to(logits.device)
        exact.load_state_dict({name: value.float() for name, value in self.net.state_dict().items()})
        with torch.no_grad():
            right = exact(self.features.float(), pyramid)
        error, allowed = float((logits - right).abs().max() / right.abs().max()), _ALLOWED[self.dtype]
        if not error <= allowed:
            return f"the logits are off by {error:.2g} of the largest, allowed {allowed:.2g}"
        self.train(pyramid)
        finite = all(bool(p.grad.isfinite().all()) for p in self.net.parameters() if p.grad is not None)
        return None if finite else "a gradient has NaN or infinite values"


def timed(
    scenes: Sequence[Scene],
    grid: float,
    dtype: torch.dtype,
    repeats: int,
    note: Callable[[str], None],
    recorded: bool | None = None,
) -> Case:
    """Time all phases of a training step on the first scene, and whole steps that go through all scenes in turn.

    ``recorded``: whether recorded steps take part; by default on GPUs, where there are such.
    """
    work = _Work(scenes[0], grid, dtype)
    points = scenes[0].points
    pyramid = work.prepare()
    note("checking ResNet-18")
    wrong = work.wrong(pyramid)
    row: Case = {"name": "ResNet-18", "ours": True, "status": "ok" if wrong is None else "check failed"}
    case: Case = {"dtype": str(dtype).removeprefix("torch."), "rows": [row]}
    case |= {"points": points.shape[0], "levels": [len(level) for level in pyramid.points]}
    if wrong is not None:
        row["reason"] = wrong
        return case
    calls: dict[str, dict[str, Callable[[], Any]]] = {}
    calls["ResNet-18"] = {
        "geometry": work.prepare,
        "forward": lambda: work.forward(pyramid),
        "training": lambda: work.train(pyramid),
        "whole": work.whole,
    }
    own = calls["ResNet-18"]
    calls["ResNet-18, backward in the calling thread"] = {
        name: partial(_in_one_thread, own[name]) for name in ("training", "whole")
    }
    works = [work, *(_Work(scene, grid, dtype, work.net) for scene in scenes[1:])]
    if len(works) > 1:
        calls["ResNet-18, changing batches"] = {"whole": _in_turn([one.whole for one in works])}
    kept: Case = {}
    if points.is_cuda if recorded is None else recorded:
        calls |= _recorded(works, pyramid, kept)
    rows = {name: row if name == row["name"] else {"name": name, "ours": True, "status": "ok"} for name in calls}
    case["rows"] = [*rows.values()]
    for name, found in kept.items():
        rows[name] |= found
    entries = [(rows[name], phase, call) for name, phases in calls.items() for phase, call in phases.items()]
    candidates = [Candidate(f"{own['name']}, {phase}", call, lambda _: None) for own, phase, call in entries]
    clock = clock_of(points.device)
    for (own_row, phase, _), timing in zip(entries, interleaved(candidates, repeats, note, clock), strict=True):
        own_row[phase] = timing.in_full()
    if points.is_cuda:
        for own_row, phase, call in entries:
            own_row[f"{phase}_peak_bytes"] = peak_bytes(call)
            own_row[f"{phase}_host_s"] = issue_seconds([call], 3)
            own_row[f"{phase}_launches"], own_row[f"{phase}_device_s"] = _on_device(call)
    return case


def _recorded(
    works: Sequence[_Work], pyramid: PointPyramid, kept: dict[str, Any]
) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return the rows of recorded steps, recorded and checked; ``kept`` receives what they keep in memory."""
    calls: dict[str, dict[str, Callable[[], Any]]] = {}
    first = works[0]
    for name, some in (("ResNet-18, recorded", works[:1]), ("ResNet-18, recorded, changing batches", works)):
        if calls and len(some) == 1:
            continue
        step = RecordedStep(first.net, _loss)
        before = _allocated(first.features)
        for _ in range(2):  # in the second round there is room for all
            for work in some:
                step(work.features, work.prepare(), work.labels)
        for work in some:
            wrong = work.differs(step)
            if wrong is not None:
                raise CheckFailed(f"{name}: {wrong}; no time is reported")
        kept[name] = {"kept_bytes": _allocated(first.features) - before, "recordings": step.recordings}
        steps = [partial(_step, step, work) for work in some]
        calls[name] = {"whole": _in_turn(steps)}
        if len(some) == 1:
            calls[name] = {"training": partial(step, first.features, pyramid, first.labels), **calls[name]}
    return calls


def _step(step: RecordedStep, work: _Work) -> Tensor:
    return step(work.features, work.prepare(), work.labels)


def _in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function whose calls go through ``calls`` again and again."""
    every = cycle(calls)
    return lambda: next(every)()


def _allocated(like: Tensor) -> int:
    return torch.cuda.memory_allocated(like.device) if like.is_cuda else 0


def _in_one_thread(call: Callable[[], Any]) -> None:
    """Call without the thread that PyTorch has for a device's backward pass.

    A small network waits for the host, which then hands nothing over.
    """
    with torch.autograd.set_multithreading_enabled(False):
        call()


def _on_device(call: Callable[[], Any]) -> tuple[int, float]:
    """Return the number of a call's kernels and copies, and the seconds that they took one after the other."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total > 0]
    return sum(e.count for e in events), sum(e.self_device_time_total for e in events) / 1e6


def once(make: Callable[[], Scene], size: int, grid: float, dtype: torch.dtype) -> Case:
    """Measure geometry, forward and training at a size: peak memory and seconds, or that it does not fit.

    Each runs again after a first call, which compiles kernels and allocates memory.
    """
    row: Case = {"name": "ResNet-18", "ours": True, "status": "ok"}
    case: Case = {"size": size, "rows": [row]}
    case["dtype"] = str(dtype).removeprefix("torch.")
    try:
        work = _Work(make(), grid, dtype)
        kept: list[PointPyramid] = []

        def prepare() -> None:
            kept.clear()
            kept.append(work.prepare())

        for name, call in (
            ("geometry", prepare),
            ("forward", lambda: work.forward(kept[0])),
            ("training", lambda: work.train(kept[0])),
        ):
            row |= _phase(name, call, work.features.device)
        case["levels"] = [len(points) for points in kept[0].points]
        case["triplets"] = sum(g.forward.entries.numel() for g in kept[0].geometries.values())
        if not all(bool(p.grad.isfinite().all()) for p in work.net.parameters() if p.grad is not None):
            row.update(status="check failed", reason="a gradient has NaN or infinite values")
    except (MemoryError, RuntimeError) as error:
        row.update(given_up(error))
    return case


def _phase(name: str, call: Callable[[], Any], device: torch.device) -> Case:
    seconds: list[float] = []
    clock = clock_of(device)

    def twice() -> None:
        for _ in range(2):
            seconds.append(clock(call))

    found: Case = {}
    if device.type == "cuda":
        found[f"{name}_peak_bytes"] = peak_bytes(twice)
        found[f"{name}_allocated_bytes"] = torch.cuda.max_memory_allocated()
    else:
        twice()
    return {**found, name: {**spread(seconds[1:]), "seconds": seconds[1:]}, f"{name}_first_s": seconds[0]}
