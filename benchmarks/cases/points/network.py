"""ResNet-18 on native points: time with and without its geometry, launches, the host's share, memory.

Each time begins with the points on an idle device and ends when the device has finished. Recording is not included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.points.clouds import Scene
from benchmarks.cases.points.recorded_step import RecordedStep
from benchmarks.harness import (
    Candidate,
    clock_of,
    given_up,
    interleaved,
    issue_seconds,
    peak_bytes,
    spread,
)
from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig

# Of the largest logit: float16 and bfloat16 against the same weights in float32.
_ALLOWED = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
# Gradients that errors are measured against.
_EXACT = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}
# Of the length of a gradient, with a ReLU that is switched.
_SWITCHED = 3e-3
Case = dict[str, Any]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide, labels)


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
        return self.net.build_pyramid(self.scene.points, self.scene.offsets)

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

    def gradients(self) -> list[Tensor]:
        """Return copies of the gradients that the last step left."""
        return [p.grad.clone() for p in self.parameters if p.grad is not None]

    def with_dtype(self, dtype: torch.dtype) -> PointResNet:
        """Return the network with the same weights in another dtype."""
        net = PointResNet(self.net.config).to(device=self.features.device, dtype=dtype)
        net.load_state_dict({name: value.to(dtype) for name, value in self.net.state_dict().items()})
        return net

    def whole(self) -> Tensor:
        """Geometry, forward and backward."""
        return self.train(self.prepare())

    def wrong(self, pyramid: PointPyramid) -> str | None:
        """Logits against the same weights in float32, and gradients that are finite."""
        logits = self.forward(pyramid).float()
        exact = self.with_dtype(torch.float32)
        with torch.no_grad():
            right = exact(self.features.float(), pyramid)
        error, allowed = float((logits - right).abs().max() / right.abs().max()), _ALLOWED[self.dtype]
        if not error <= allowed:
            return f"the logits are off by {error:.2g} of the largest, allowed {allowed:.2g}"
        self.train(pyramid)
        finite = all(bool(p.grad.isfinite().all()) for p in self.net.parameters() if p.grad is not None)
        return None if finite else "a gradient has NaN or infinite values"


def relative_errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> Tensor:
    """Return ‖found − exact‖ / ‖exact‖ of each gradient, [gradients] float64."""
    pairs = [(one.double(), two.double()) for one, two in zip(found, exact, strict=True)]
    return torch.stack([(one - two).norm() / two.norm().clamp(min=1e-300) for one, two in pairs]).cpu()


def judged(recorded: Tensor, eager: Tensor, dtype: torch.dtype) -> tuple[str | None, Case]:
    """Compare the errors of recorded gradients with those of eager ones; return what is wrong, and both errors.

    The root mean square of the recorded errors may be twice that of the eager ones, and so may the largest, plus
    0.3 % in half precision and 1e-5 else. Single gradients are not compared: rounding that switches one ReLU changes
    them by chance.
    """
    errors = {"eager": eager, "recorded": recorded}
    properties = {f"{name}_rms": float(result.square().mean().sqrt()) for name, result in errors.items()}
    properties |= {f"{name}_most": float(result.max()) for name, result in errors.items()}
    for kind, what in (("rms", "root mean square of the errors"), ("most", "largest error")):
        result = properties[f"recorded_{kind}"]
        allowed = 2.0 * properties[f"eager_{kind}"] + (_SWITCHED if dtype.itemsize == 2 else 1e-5)
        if not result <= allowed:
            return f"the {what} of the gradients is {result:.2g} of their length, allowed {allowed:.2g}", properties
    return None, properties


def recorded(works: Sequence[_Work]) -> tuple[RecordedStep, str | None, list[Case]]:
    """Record the step of the first work; return it, what is wrong on any work, and the errors of the gradients."""
    first = works[0]
    step = RecordedStep(first.net, _loss, first.features, first.prepare(), first.labels)
    wrong, errors = None, []
    for work in works:
        pyramid, exact_dtype = work.prepare(), _EXACT[work.dtype]
        exact = _Work(work.scene, first.net.config.grid, exact_dtype, first.with_dtype(exact_dtype))
        exact.features = work.features.to(exact_dtype)
        exact.train(pyramid)
        right = exact.gradients()
        step(work.features, pyramid, work.labels)
        own = relative_errors(work.gradients(), right)
        work.train(pyramid)
        result, properties = judged(own, relative_errors(work.gradients(), right), work.dtype)
        errors.append({"points": len(work.features), **properties})
        if result is not None and wrong is None:
            wrong = f"{len(work.features):,} points: {result}"
    if first.features.is_cuda and step.plain_steps and wrong is None:
        wrong = "a batch does not fit the recording"
    return step, wrong, errors


def checked(scenes: Sequence[Scene], grid: float, dtype: torch.dtype) -> Case:
    """Measure the errors of recorded gradients and of eager ones."""
    first = _Work(scenes[0], grid, dtype)
    _, wrong, errors = recorded([first, *(_Work(scene, grid, dtype, first.net) for scene in scenes[1:])])
    row = {"name": "ResNet-18, recorded", "ours": True, "status": "ok"}
    if wrong is not None:
        row.update(status="check failed", reason=wrong)
    return {"dtype": str(dtype).removeprefix("torch."), "rows": [row], "gradient_errors": errors}


def timed(
    scenes: Sequence[Scene],
    grid: float,
    dtype: torch.dtype,
    repeats: int,
    note: Callable[[str], None],
    graph: bool | None = None,
) -> Case:
    """Time all phases of a training step on the first scene, and whole steps on the others.

    ``graph``: whether recorded steps take part; by default on GPUs.
    """
    work = _Work(scenes[0], grid, dtype)
    gpu = scenes[0].points.is_cuda
    pyramid = work.prepare()
    note("checking ResNet-18")
    wrong = work.wrong(pyramid)
    row: Case = {"name": "ResNet-18", "ours": True, "status": "ok" if wrong is None else "check failed"}
    case: Case = {"dtype": str(dtype).removeprefix("torch."), "rows": [row]}
    case |= {"points": len(work.features), "levels": [len(points) for points in pyramid.points]}
    if wrong is not None:
        row["reason"] = wrong
        return case
    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "ResNet-18": {
            "geometry": work.prepare,
            "forward": lambda: work.forward(pyramid),
            "training": lambda: work.train(pyramid),
            "whole": work.whole,
        }
    }
    works = [work, *(_Work(scene, grid, dtype, work.net) for scene in scenes[1:])]
    calls |= {f"ResNet-18, {len(one.features):,} points": {"whole": one.whole} for one in works[1:]}
    rows = {name: {"name": name, "ours": True, "status": "ok"} for name in calls} | {"ResNet-18": row}
    if gpu if graph is None else graph:
        note("recording ResNet-18")
        before = torch.cuda.memory_allocated() if gpu else 0
        step, wrong, case["gradient_errors"] = recorded(works)
        case["recorded_bytes"] = torch.cuda.memory_allocated() - before if gpu else 0
        for one in works:
            name = "ResNet-18, recorded" + ("" if one is work else f", {len(one.features):,} points")
            rows[name] = {"name": name, "ours": True, "status": "ok"}
            if wrong is None:
                calls[name] = {"whole": partial(_replayed, step, one)}
            else:
                rows[name].update(status="check failed", reason=wrong)
        if wrong is None:
            calls["ResNet-18, recorded"]["training"] = partial(step, work.features, pyramid, work.labels)
    case["rows"] = [*rows.values()]
    entries = [(rows[name], phase, call) for name, phases in calls.items() for phase, call in phases.items()]
    candidates = [Candidate(f"{own['name']}, {phase}", call, lambda _: None) for own, phase, call in entries]
    clock = clock_of(scenes[0].points.device)
    for (own, phase, _), timing in zip(entries, interleaved(candidates, repeats, note, clock), strict=True):
        own[phase] = timing.in_full()
    if gpu:
        for own, phase, call in entries:
            own[f"{phase}_peak_bytes"] = peak_bytes(call)
            own[f"{phase}_host_s"] = issue_seconds([call], 3)
            own[f"{phase}_launches"], own[f"{phase}_device_s"] = _on_device(call)
    return case


def _replayed(step: RecordedStep, work: _Work) -> Tensor:
    return step(work.features, work.prepare(), work.labels)


def _on_device(call: Callable[[], Any]) -> tuple[int, float]:
    """Return the number of a call's kernels and copies, and the seconds that they took one after the other."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as result:
        call()
        torch.cuda.synchronize()
    events = [e for e in result.key_averages() if e.self_device_time_total > 0]
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
        retained: list[PointPyramid] = []

        def prepare() -> None:
            retained.clear()
            retained.append(work.prepare())

        for name, call in (
            ("geometry", prepare),
            ("forward", lambda: work.forward(retained[0])),
            ("training", lambda: work.train(retained[0])),
        ):
            row |= _phase(name, call, work.features.device)
        case["levels"] = [len(points) for points in retained[0].points]
        case["triplets"] = sum(g.forward.entries.numel() for g in retained[0].geometries.values())
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

    result: Case = {}
    if device.type == "cuda":
        result[f"{name}_peak_bytes"] = peak_bytes(twice)
        result[f"{name}_allocated_bytes"] = torch.cuda.max_memory_allocated()
    else:
        twice()
    return {**result, name: {**spread(seconds[1:]), "seconds": seconds[1:]}, f"{name}_first_s": seconds[0]}
