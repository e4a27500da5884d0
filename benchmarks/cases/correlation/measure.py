"""The correlation lookup against its peers: pooling and layout once, then all lookups of a pair.

Every contender gets the same features and positions; its result is compared with the float64 reference at random
source pixels before a time counts. Time is taken as a CUDA graph's replay, where the work can be captured, and
eagerly from Python; memory is PyTorch's own count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.correlation.contenders import Contender, Problem
from benchmarks.cases.correlation.positions import Scene, coherence
from benchmarks.harness import (
    Candidate,
    captured,
    event_clock,
    first_line,
    given_up,
    interleaved,
    is_out_of_memory,
    issue_seconds,
    peak_bytes,
    release,
    wall_clock,
)
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation.protocol import Precision
from tests.oracles.correlation import budget, error

# Source pixels that are compared with the reference.
CHECKED = 500
# Peers sum in other orders and formats than our reference; ours have to meet the budget itself.
PEER_SLACK = 10.0
# Lookups issued at a time when the host's share is timed: fewer launches than the driver queues.
BURST = 8
Call = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    problem: Problem
    scenes: Sequence[Scene]
    contenders: Sequence[Contender]
    sizes: Sequence[tuple[int, int]]
    updates: Sequence[int]
    channels: Sequence[int]
    sweep: str | None = None
    precision: Precision = "highest"
    repeats: int = 5
    patience: float = 20.0
    """Seconds after which a contender is not repeated any more."""

    def problems(self) -> Iterator[tuple[str, int, Problem]]:
        """(variable, its value, problem), the first value of everything that is not swept."""
        base = replace(self.problem, size=self.sizes[0], updates=self.updates[0], channels=self.channels[0])
        if self.sweep == "updates":
            for updates in self.updates:
                yield "updates", updates, replace(base, updates=updates)
        elif self.sweep == "channels":
            for channels in self.channels:
                yield "channels", channels, replace(base, channels=channels)
        else:
            for size in self.sizes:
                yield "size", size[1], replace(base, size=size)


def default_values(device: torch.device, sweep: str | None) -> dict[str, list[Any]]:
    """Return the paper's values on a GPU, smaller ones on the CPU."""
    gpu = device.type != "cpu"
    widths = [128] if sweep != "size" and not gpu else [32, 64, 128]
    if gpu:
        widths = [32, 64, 128, 256, 512, 1024, 2048] if sweep == "size" else [512]
    updates = ([1, 8, 16, 24, 32] if gpu else [1, 2, 4]) if sweep == "updates" else [32 if gpu else 2]
    channels = ([64, 128, 256, 512, 1024] if gpu else [64, 128, 256]) if sweep == "channels" else [256]
    return {"sizes": [(width * 7 // 16, width) for width in widths], "updates": updates, "channels": channels}


def cases(plan: Plan, note: Note) -> Cases:
    """Yield all cases of a plan, with its precision and device set in PyTorch."""
    before = torch.get_float32_matmul_precision()
    device = plan.problem.device
    with ExitStack() as stack:
        torch.set_float32_matmul_precision(plan.precision)
        stack.callback(torch.set_float32_matmul_precision, before)
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        for variable, value, problem in plan.problems():
            for scene in plan.scenes:
                height, width = problem.size
                label = f"{width}×{height}, {problem.updates} lookups, {problem.channels} channels, {scene.name}"
                note(label)
                swept = {"variable": variable, "value": value}
                yield Case(label, partial(_case, plan, problem, scene, swept, note))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _case(plan: Plan, problem: Problem, scene: Scene, swept: Result, note: Note) -> Result:
    inputs = Inputs.make(problem, scene)
    truth = Truth.of(inputs, plan.precision)
    rows = []
    entrants = []
    for contender in plan.contenders:
        entrant = Entrant(contender, inputs, truth)
        note(f"checking {contender.name}")
        entrant.enter()
        rows.append(entrant.row)
        if entrant.row["status"] == "ok":
            entrants.append(entrant)
    _time(entrants, plan, note)
    properties = {
        "scene": scene.name,
        "size": list(problem.size),
        "updates": problem.updates,
        "channels": problem.channels,
        "batch": problem.batch,
        "levels": problem.levels,
        "radius": problem.radius,
        "dtype": _name(problem.dtype),
        "out_dtype": _name(problem.out_dtype),
        "position_dtype": _name(problem.position_dtype),
        "layout": "channels-last" if problem.channels_last else "nchw",
        "precision": plan.precision,
        "pass": "forward+backward" if problem.backward else "forward",
        "device": str(problem.device),
        "input_bytes": inputs.bytes,
        "checked_pixels": len(truth.pixels),
        "lookups": coherence(inputs.coords, problem.radius, problem.levels),
    }
    if not problem.backward:
        properties["write"] = _write_time(inputs, plan)
    del entrants, entrant, inputs, truth
    release(problem.device)
    return {**swept, **properties, "rows": rows}


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _memory_of(device: torch.device) -> float:
    """Return the bytes of a GPU's memory; for other devices no limit."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


@dataclass
class Inputs:
    """Features, positions and, for a backward pass, the gradient of every lookup."""

    problem: Problem
    fmap1: Tensor
    fmap2: Tensor
    coords: list[Tensor]
    grad_out: Tensor | None

    @classmethod
    def make(cls, problem: Problem, scene: Scene) -> Inputs:
        """Draw features and positions."""
        generator = torch.Generator(problem.device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=problem.device)

        maps = [normal(problem.batch, problem.channels, *problem.size).to(problem.dtype) for _ in range(2)]
        exact = scene.positions(problem.size, problem.updates, problem.batch, problem.device)
        coords = [each.to(problem.position_dtype).float() for each in exact]
        grad_out = None
        if problem.backward:
            grad_out = normal(*problem.out_shape).to(problem.out_dtype).contiguous(memory_format=problem.memory_format)
        return cls(problem, maps[0], maps[1], coords, grad_out)

    @property
    def bytes(self) -> int:
        """Bytes of both maps and the positions of one lookup: what a network holds at a time."""
        tensors = [self.fmap1, self.fmap2, self.coords[0], *([] if self.grad_out is None else [self.grad_out])]
        return sum(t.numel() * t.element_size() for t in tensors)

    def forward(self, contender: Contender) -> Tensor:
        """Prepare, look up everything, keep the last result."""
        with torch.no_grad():
            lookup = contender.prepare(self.problem, self.fmap1, self.fmap2)
            for coords in self.coords[:-1]:
                lookup(coords)
            return lookup(self.coords[-1])

    def backward(self, contender: Contender) -> tuple[Tensor, ...]:
        """Prepare, look up everything, keep all results, and go back to both maps."""
        maps = [f.detach().requires_grad_() for f in (self.fmap1, self.fmap2)]
        lookup = contender.prepare(self.problem, maps[0], maps[1])
        outs = [lookup(coords) for coords in self.coords]
        return torch.autograd.grad(outs, maps, [self.grad_out] * len(outs))

    def work(self, contender: Contender) -> Call:
        """Return the pass to time."""
        return partial(self.backward if self.problem.backward else self.forward, contender)

    @contextmanager
    def only_at(self, pixels: Tensor) -> Iterator[None]:
        """Set the lookups' gradient to zero except at some source pixels, in the same memory."""
        if self.grad_out is None:
            raise RuntimeError("there is no gradient to mask without a backward pass")
        full = self.grad_out.clone()
        mask = torch.zeros(self.problem.size, dtype=self.grad_out.dtype, device=self.grad_out.device)
        mask.view(-1)[pixels] = 1
        self.grad_out.mul_(mask)
        try:
            yield
        finally:
            self.grad_out.copy_(full)


def _at(values: Tensor, pixels: Tensor) -> Tensor:
    """Return [B, C, H, W] at n pixels: [B, C, 1, n]."""
    return values.flatten(2)[:, :, pixels][:, :, None]


@dataclass
class Truth:
    """Float64 reference at some source pixels, and the allowed error of a result in the problem's formats."""

    pixels: Tensor
    out: Tensor
    """Of the last lookup, [B, L·(2r+1)², 1, n]."""
    allowed: float
    grads: tuple[Tensor, ...] = ()
    """Of fmap1 at the pixels and of all of fmap2, if nothing but these pixels has a gradient."""
    grads_allowed: tuple[float, ...] = field(default=())

    @classmethod
    def of(cls, inputs: Inputs, precision: Precision) -> Truth:
        """Compute the reference and the allowed error."""
        problem = inputs.problem
        count = problem.size[0] * problem.size[1]
        selected = torch.randperm(count, generator=torch.Generator().manual_seed(1))[:CHECKED].to(problem.device)
        rounding = problem.dtype
        if problem.device.type == "cuda" and problem.dtype == torch.float32:
            # TF32 has the mantissa of float16.
            rounding = {"high": torch.float16, "medium": torch.bfloat16}.get(precision, torch.float32)
        exact = _reference(inputs, selected, torch.float64, problem.dtype)
        eager = _reference(inputs, selected, problem.dtype, rounding)
        given = eager[0].to(problem.out_dtype)
        allowed = [budget(got, right, problem.dtype) for got, right in zip(eager[1:], exact[1:], strict=True)]
        return cls(selected, exact[0], budget(given, exact[0], problem.out_dtype), tuple(exact[1:]), tuple(allowed))

    def of_lookup(self, out: Tensor, problem: Problem, slack: float) -> tuple[str | None, dict[str, float]]:
        """Return what is wrong with the last lookup's result, and its error."""
        if tuple(out.shape) != problem.out_shape or out.dtype != problem.out_dtype:
            return f"gave {_name(out.dtype)} {list(out.shape)}", {}
        if not out.is_contiguous(memory_format=problem.memory_format):
            return "gave another layout than requested", {}
        if not bool(out.isfinite().all()):
            return "gave NaN or infinite values", {}
        off = error(_at(out, self.pixels), self.out)
        properties = {"error": off, "allowed": slack * self.allowed}
        return (None if off <= properties["allowed"] else _off("the lookup", properties)), properties

    def of_gradients(self, grads: Sequence[Tensor], slack: float) -> tuple[str | None, dict[str, float]]:
        """Judge gradients that were computed inside :meth:`Inputs.only_at`, as :meth:`of_lookup`."""
        worst: dict[str, float] = {}
        for name, got, right, allowed in zip(
            ("fmap1", "fmap2"), (_at(grads[0], self.pixels), grads[1]), self.grads, self.grads_allowed, strict=True
        ):
            properties = {"error": error(got, right), "allowed": slack * allowed}
            if not properties["error"] <= properties["allowed"]:
                return _off(f"the gradient of {name}", properties), properties
            worst = max(worst or properties, properties, key=lambda f: f["error"] / f["allowed"])
        return None, worst


def _off(what: str, facts: dict[str, float]) -> str:
    return f"{what} is off by {facts['error']:.3g} from the float64 reference, allowed {facts['allowed']:.3g}"


def _reference(inputs: Inputs, pixels: Tensor, dtype: torch.dtype, rounding: torch.dtype) -> list[Tensor]:
    """Return the last lookup, and any gradients, in ``dtype`` of features rounded to ``rounding``."""
    problem = inputs.problem
    first = _at(inputs.fmap1, pixels).to(rounding).to(dtype)
    second = inputs.fmap2.to(rounding).to(dtype)
    positions = torch.float64 if dtype == torch.float64 else torch.float32
    coords = [_at(x, pixels).to(positions) for x in inputs.coords]
    first.requires_grad_(problem.backward)
    second.requires_grad_(problem.backward)
    lookup = CorrelationPyramid(first, second, problem.levels, problem.radius, backend="reference")
    if inputs.grad_out is None:
        return [lookup(coords[-1])]
    outs = [lookup(x) for x in coords]
    incoming = _at(inputs.grad_out, pixels)
    grads = torch.autograd.grad(outs, (first, second), [incoming.to(out) for out in outs])
    return [outs[-1].detach(), *grads]


class Entrant:
    """A contender in one case: admitted, checked, then timed."""

    def __init__(self, contender: Contender, inputs: Inputs, truth: Truth) -> None:
        self.contender = contender
        self.inputs = inputs
        self.truth = truth
        self.row: dict[str, Any] = {"name": contender.name, "ours": contender.ours, "status": "ok"}
        self.replay: Call | None = None

    def enter(self) -> None:
        """Check that it can take part and that its result is right, and measure its memory."""
        problem = self.inputs.problem
        try:
            self.contender.admit(problem)
            work = self.inputs.work(self.contender)
            wrong = self._wrong(work)
            if wrong is not None:
                self._give_up("check failed", wrong)
                return
            if _on_gpu(problem.device):
                peak = peak_bytes(work)
                self.row["peak_bytes"] = peak
                self.row["peak_with_inputs_bytes"] = peak + self.inputs.bytes
                self.row["outputs_bytes"] = self._outputs_bytes()
        except (MemoryError, RuntimeError) as error:
            self.row.update(given_up(error))
        if self.row["status"] != "ok":
            release(problem.device)

    def _outputs_bytes(self) -> int:
        problem = self.inputs.problem
        count = problem.updates if problem.backward else 1
        size = 1
        for n in problem.out_shape:
            size *= n
        return count * size * problem.out_dtype.itemsize

    def _give_up(self, status: str, reason: str) -> None:
        self.row.update(status=status, reason=reason)

    def _wrong(self, work: Call) -> str | None:
        """Run the work in a form that the truth can judge, and judge it."""
        if not self.inputs.problem.backward:
            return self._wrong_lookup(work())
        with self.inputs.only_at(self.truth.pixels):
            wrong, self.row["check"] = self.truth.of_gradients(work(), self._slack)
            return wrong

    def _wrong_lookup(self, out: Tensor) -> str | None:
        if self.contender.is_cut:
            return None
        wrong, self.row["check"] = self.truth.of_lookup(out, self.inputs.problem, self._slack)
        return wrong

    @property
    def _slack(self) -> float:
        return 1.0 if self.contender.ours else PEER_SLACK

    def capture(self) -> None:
        """Capture the work in a CUDA graph, or note why that fails."""
        if self.contender.no_graph is not None:
            self.row["no_graph"] = self.contender.no_graph
            return
        # A capture that fails leaves the allocator in disorder.
        if 2 * self.row.get("peak_bytes", 0) > _memory_of(self.inputs.problem.device):
            self.row["no_graph"] = "takes more than half of the memory, and a graph needs as much again"
            return
        try:
            self.replay = captured(self.inputs.work(self.contender))
            wrong = self._wrong(self.replay)
        except RuntimeError as error:
            self.replay = None
            self.row["no_graph"] = first_line(error)
            release(self.inputs.problem.device)
            return
        if wrong is not None:
            self._give_up("check failed", f"graph replay: {wrong}")

    def prepare(self) -> Any:
        """Prepare the pair."""
        with torch.no_grad():
            return self.contender.prepare(self.inputs.problem, self.inputs.fmap1, self.inputs.fmap2)

    def candidates(self) -> list[Candidate]:
        """Return what is timed; gradients were judged before, because they can only be judged masked."""
        name = self.contender.name
        judge = (lambda _: None) if self.inputs.problem.backward else self._wrong_lookup
        result = [Candidate(f"{name} eager", self.inputs.work(self.contender), judge)]
        if self.replay is not None:
            result.append(Candidate(f"{name} graph", self.replay, judge))
        if not self.inputs.problem.backward:
            result.append(Candidate(f"{name} prepare", self.prepare, self._judge_prepared))
        return result

    def _judge_prepared(self, lookup: Any) -> str | None:
        with torch.no_grad():
            return self._wrong_lookup(lookup(self.inputs.coords[-1]))

    def issue(self) -> dict[str, float]:
        """Return the host's seconds per lookup, without and with gradients, without waiting for the device."""
        problem = self.inputs.problem
        result = {}
        for key, grad in (("host_s", False), ("host_with_grad_s", True)):
            if grad and not self.contender.ours:
                continue
            maps = [f.detach().requires_grad_(grad) for f in (self.inputs.fmap1, self.inputs.fmap2)]
            with torch.set_grad_enabled(grad):
                lookup = self.contender.prepare(replace(problem, backward=grad), maps[0], maps[1])
                result[key] = issue_seconds([partial(lookup, x) for x in self.inputs.coords[:BURST]])
        return result


def _time(entrants: Sequence[Entrant], plan: Plan, note: Note) -> None:
    """Time all in turns; if memory does not suffice for that, one after another, at worst without graphs."""
    try:
        _timed(entrants, plan, note)
        return
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    note("too little memory for all side by side: one after another")
    for entrant in entrants:
        for graphs in (True, False):
            release(plan.problem.device)
            try:
                _timed([entrant], plan, note, graphs)
                break
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                entrant.row["no_graph"] = "out of memory"
        else:
            entrant.row.update(status="out of memory", reason="while it was timed")


def _timed(entrants: Sequence[Entrant], plan: Plan, note: Note, graphs: bool = True) -> None:
    gpu = _on_gpu(plan.problem.device)
    candidates: list[Candidate] = []
    try:
        for entrant in entrants:
            if gpu and graphs:
                entrant.capture()
            if entrant.row["status"] == "ok":
                candidates += entrant.candidates()
        if not candidates:
            return
        clock = event_clock if gpu else wall_clock
        timings = {t.name: t for t in interleaved(candidates, plan.repeats, note, clock, plan.patience)}
        for entrant in entrants:
            for way in ("graph", "eager", "prepare"):
                timing = timings.get(f"{entrant.contender.name} {way}")
                if timing is not None:
                    entrant.row[way] = timing.in_full()
            if gpu and entrant.row["status"] == "ok":
                entrant.row.update(entrant.issue())
    finally:
        for entrant in entrants:
            entrant.replay = None


def _write_time(inputs: Inputs, plan: Plan) -> dict[str, Any] | None:
    """Time writing all results alone, which no lookup can beat; None if it cannot be captured."""
    problem = inputs.problem
    gpu = _on_gpu(problem.device)
    out = torch.empty(problem.out_shape, dtype=problem.out_dtype, device=problem.device)

    def write() -> Tensor:
        for _ in range(problem.updates):
            out.zero_()
        return out

    try:
        call = captured(write) if gpu else write
    except RuntimeError:
        return None
    candidate = Candidate("write", call, lambda x: None if not bool(x.any()) else "wrote something else")
    (timing,) = interleaved([candidate], plan.repeats, lambda _: None, event_clock if gpu else wall_clock)
    return timing.in_full()
