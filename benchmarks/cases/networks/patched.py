"""ptlflow's models as they are, and on our lookups: the same weights, frames and memory, estimating or training.

Random weights, so that every model can take part; a flow head of SEA-RAFT's kind is calmed, or its flow would leave the
frame. Which positions are looked up is told beside the time. The patched flow is compared with the model's own, in
float32, before its time counts; in training, the gradients of all parameters too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.correlation.positions import coherence
from benchmarks.cases.networks.models import Plan as FramePlan
from benchmarks.cases.networks.models import frames
from benchmarks.harness import Candidate, clock_of, given_up, interleaved, peak_bytes, release
from fullfield._check import InputError
from fullfield.integrations.forms import silence_output_and_warnings
from fullfield.integrations.patching import patch
from fullfield.nn import CorrelationPyramid

# Of the largest value. Convolutions in float32, not TF32, while it is found.
ALLOWED = 1e-3
# Of their length: gradients of all parameters together.
ALLOWED_GRADIENT = 1e-2
_CALM = 0.01
_LARGEST_FLOW = 400.0
_MOST_FRAMES = {"memfof": 3, "videoflow_bof": 3, "videoflow_mof": 5, "streamflow": 4}


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    models: Sequence[str]
    """As ptlflow calls them."""
    sizes: Sequence[tuple[int, int]]
    """Height, width of the frames."""
    device: torch.device
    train: bool = False
    """A training step instead of an estimate."""
    batch: int = 1
    alternate: bool = False
    """The models' own on-demand lookup (alt_cuda_corr) instead of their volume."""
    repeats: int = 5


def cases(plan: Plan, note: Note) -> Cases:
    """All cases of a plan."""
    how = "alt_cuda_corr" if plan.alternate else "dense"
    what = f"training step, batch {plan.batch}" if plan.train else "estimate"
    for name in plan.models:
        for size in plan.sizes:
            note(f"{name}, {size[1]}×{size[0]}")
            yield Case(f"{name} {size[1]}×{size[0]}, {what}, {how}", partial(_case, plan, name, size, how, note))


def _model(plan: Plan, name: str) -> Any:
    with silence_output_and_warnings(), torch.random.fork_rng(devices=[]):
        import ptlflow

        torch.manual_seed(0)
        try:
            model = ptlflow.get_model(name)
        except (ValueError, ImportError) as error:
            raise InputError(f"{name}: ptlflow cannot build it here: {' '.join(str(error).split())}") from None
    head = getattr(model, "flow_head", None)
    if isinstance(head, nn.Sequential):
        with torch.no_grad():
            head[-1].get_parameter("weight").mul_(_CALM)
    for part in model.modules():
        if hasattr(part, "cache_weights"):
            part.cache_weights = False  # it would keep the graph of the first step
    if hasattr(model, "corr_mode"):
        model.corr_mode = "local" if plan.alternate else "allpairs"
    if hasattr(model, "alternate_corr"):
        model.alternate_corr = plan.alternate
    return model.to(plan.device).train(plan.train)


def _images(plan: Plan, name: str, size: tuple[int, int]) -> Tensor:
    first, second = frames(FramePlan((), (), plan.device), size)
    requested = [first, second] * 3
    return torch.stack(requested[: _MOST_FRAMES.get(name, 2)], 1).expand(plan.batch, -1, -1, -1, -1).contiguous()


def _work(plan: Plan, model: Any, images: Tensor) -> Callable[[], Tensor]:
    def estimate() -> Tensor:
        with torch.no_grad():
            result: Tensor = model({"images": images})["flows"]
        return result

    truth = images.new_zeros(images.shape[0], images.shape[1] - 1, 2, *images.shape[-2:])

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        outputs = model({"images": images, "flows": truth, "valids": truth[:, :, :1] + 1})
        flows = [flow for flow in outputs.get("flow_preds") or [outputs["flows"]] if isinstance(flow, Tensor)]
        torch.stack([(flow.float() ** 2).clamp(max=_LARGEST_FLOW**2).mean() for flow in flows]).sum().backward()  # type: ignore[no-untyped-call]
        return flows[-1].detach()

    def quietly() -> Tensor:
        with silence_output_and_warnings():
            return (step if plan.train else estimate)()

    return quietly


def _case(plan: Plan, name: str, size: tuple[int, int], how: str, note: Note) -> Result:
    rows: list[Result] = [{"name": name, "ours": name == "patched", "status": "ok"} for name in ("as it is", "patched")]
    images = _images(plan, name, size)
    model, patched = _model(plan, name), _model(plan, name)
    calls = [_work(plan, model, images), _work(plan, patched, images)]
    _measured(calls[0], rows[0], plan.device)
    patch(patched)
    with looked_up() as lookups:
        result = _tried(lambda: _exactly(calls[1]), rows[1], plan.device)
    told = coherence([coords for coords, _, _ in lookups], lookups[0][2], lookups[0][1]) if lookups else None
    lookups.clear()
    if rows[1]["status"] == "ok":
        _measured(calls[1], rows[1], plan.device)
    if all(row["status"] == "ok" for row in rows):
        _compare(plan, (model, patched), calls, rows[1])
    clock = clock_of(plan.device)
    taking = [(row, call) for row, call in zip(rows, calls, strict=True) if row["status"] == "ok"]
    candidates = [Candidate(row["name"], call, lambda _: None) for row, call in taking]
    for timing in interleaved(candidates, plan.repeats, note, clock) if candidates else []:
        row = next(row for row in rows if row["name"] == timing.name)
        row |= {**timing.as_dict(), "seconds": list(timing.seconds)}
    return {
        "model": name,
        "size": list(size),
        "train": plan.train,
        "batch": plan.batch,
        "own_lookup": how,
        "flow_px": None if result is None else float(result.norm(dim=-3).mean()),
        "lookups": told,
        "device": str(plan.device),
        "rows": rows,
    }


def _tried(call: Callable[[], Tensor], row: dict[str, Any], device: torch.device) -> Tensor | None:
    """Return the flow; None, with the reason in the row, if the model fails or its flow is not finite."""
    try:
        flow = call()
    except (RuntimeError, NameError) as error:  # NameError: the extension is not there
        row |= given_up(error)
        release(device)
        return None
    if not bool(flow.isfinite().all()):
        row |= {"status": "failed", "reason": "the flow is not finite"}
        return None
    return flow


def _measured(call: Callable[[], Tensor], row: dict[str, Any], device: torch.device) -> None:
    """Return the memory that a second call takes."""
    if _tried(call, row, device) is not None and device.type == "cuda":
        row["peak_bytes"] = peak_bytes(call)


def _compare(plan: Plan, models: Sequence[Any], calls: Sequence[Callable[[], Tensor]], row: dict[str, Any]) -> None:
    right, ours = _exactly(calls[0]), _exactly(calls[1])
    off = float((ours - right).abs().max() / right.abs().max())
    row["check"] = {"error": off, "allowed": ALLOWED}
    if not off <= ALLOWED:
        row |= {"status": "check failed", "reason": f"the flow is off by {off:.2g} of its largest value"}
    if not plan.train:
        return
    expected, result = (_gradients(model) for model in models)
    off = float((result - expected).norm() / expected.norm())
    row["check"] |= {"gradient_error": off, "gradient_allowed": ALLOWED_GRADIENT}
    if not off <= ALLOWED_GRADIENT:
        row |= {"status": "check failed", "reason": f"the gradients are off by {100 * off:.2g} %"}


def _gradients(model: nn.Module) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads])


def _exactly(call: Callable[[], Tensor]) -> Tensor:
    """In float32, not TF32, and with the same random numbers every time."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return call()
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def looked_up() -> Iterator[list[tuple[Tensor, int, int]]]:
    """Positions, levels and radius of every lookup of ours."""
    result: list[tuple[Tensor, int, int]] = []
    original = CorrelationPyramid.__call__

    def noted(self: CorrelationPyramid, coords: Tensor) -> Tensor:
        result.append((coords.detach().clone(), self.levels, self.radius))
        return original(self, coords)

    CorrelationPyramid.__call__ = noted  # type: ignore[method-assign]
    try:
        yield result
    finally:
        CorrelationPyramid.__call__ = original  # type: ignore[method-assign]


# ---- in words


def report(results: dict[str, Any]) -> list[str]:
    """Every case: both times, their ratio, both peaks."""
    lines: list[str] = []
    for case in results["cases"]:
        told = case.get("lookups")
        inside = f"{100 * told['inside']:.1f} % of lookups in the map, " if told else ""
        length = "no flow" if case.get("flow_px") is None else f"mean flow {case['flow_px']:.1f} px"
        where = f" on {case['device']}" if "device" in case else ""
        lines.append(f"{case['label']}{where} ({inside}{length})")
        lines += [f"  {row['name']:<10}{_row(row)}" for row in case["rows"]]
        first, second = case["rows"]
        if "median_s" in first and "median_s" in second:
            lines.append(f"  {100 * (second['median_s'] / first['median_s'] - 1):+.1f} % time")
    return lines


def _row(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    peak = f", peak {row['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in row else ""
    return f"{row['median_s']:.4f} s ({min(row['seconds']):.4f} ... {max(row['seconds']):.4f}){peak}"
