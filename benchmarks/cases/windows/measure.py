"""Cases of the windows benchmark: maps as the networks have them, truth in float64, times in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.windows import contenders
from benchmarks.cases.windows.contenders import DisplacementWindow, Sampler
from benchmarks.harness import Candidate, captured, clock_of, given_up, interleaved, peak_bytes
from fullfield.ops.spatial_correlation import explain_backends

# Levels of PWC-Net's pyramid that are compared: shrinking, channels.
PWC = ((64, 196), (32, 128), (16, 96), (8, 64), (4, 32))
ALLOWED = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# Cells, on average and of the largest, that a matched position may be off; a peer's is told and not judged.
ALLOWED_CELLS = {torch.float32: (1e-3, 0.1), torch.float16: (0.02, 0.5), torch.bfloat16: (0.1, 2.0)}
_SAMPLED = 256  # rows of the matrix that the truth is made of


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    parts: Sequence[str]
    sizes: Sequence[tuple[int, int]]
    """Height, width of the frames."""
    dtypes: Sequence[str]
    batch: int
    device: torch.device
    peers: Mapping[str, Sampler]
    repeats: int = 21


def cases(plan: Plan, note: Note) -> Cases:
    """All cases of a plan."""
    for size in plan.sizes:
        for name in plan.dtypes:
            for backward in (False, True):
                for what, shape, window in _problems(plan, size):
                    how = "with gradients" if backward else "forward"
                    label = f"{what}, {size[1]}×{size[0]}, {name}, {how}"
                    note(label)
                    make = partial(_case, plan, shape, window, getattr(torch, name), backward, note)
                    yield Case(label, make, part=what.split(",")[0])


def _problems(plan: Plan, size: tuple[int, int]) -> list[tuple[str, tuple[int, ...], DisplacementWindow | None]]:
    def shape(shrink: int, channels: int, multiple: int) -> tuple[int, ...]:
        height, width = (-(-n // multiple) * multiple // shrink for n in size)
        return plan.batch, channels, height, width

    result: list[tuple[str, tuple[int, ...], DisplacementWindow | None]] = []
    if "pwc" in plan.parts:
        result += [(f"pwc, 1/{shrink}", shape(shrink, channels, 64), (9, 1, 1)) for shrink, channels in PWC]
    if "liteflownet" in plan.parts:
        result += [("liteflownet, 1/4", shape(4, 64, 32), (7, 2, 2))]
    if "flownetc" in plan.parts:
        result += [("flownetc, 1/8", shape(8, 256, 64), (21, 2, 1))]
    if "matching" in plan.parts:
        result += [("matching, 1/8", shape(8, 128, 8), None)]
    return result


def _case(
    plan: Plan,
    shape: tuple[int, ...],
    window: DisplacementWindow | None,
    dtype: torch.dtype,
    backward: bool,
    note: Note,
) -> Result:
    maps = _maps(shape, window is None)
    maps = [m.to(plan.device, dtype).requires_grad_(backward) for m in maps]
    if window is None:
        calls = {name: partial(matcher, maps[0], maps[1]) for name, matcher in contenders.matchers().items()}
        judge = _matching_truth(maps, dtype)
    else:
        names = [name for name, why in explain_backends(plan.device, dtype) if why is None and name != "reference"]
        calls = {
            "ours": partial(contenders.ours, maps[0], maps[1], window),
            **({} if names else {"ours, reference": partial(contenders.ours, maps[0], maps[1], window, "reference")}),
            **{name: partial(sampler, maps[0], maps[1], window) for name, sampler in plan.peers.items()},
        }
        judge = _window_truth(maps, window, dtype, backward)
    rows: list[Result] = []
    candidates: list[Candidate] = []
    for name, call in calls.items():
        row: Result = {"name": name, "ours": name.startswith("ours"), "status": "ok"}
        rows.append(row)
        work = _work(call, maps, backward)
        try:
            row["check"] = judge(work())
            if plan.device.type == "cuda":
                row["peak_bytes"] = peak_bytes(work)
        except (RuntimeError, MemoryError, ValueError) as error:
            row |= given_up(error)
            continue
        if row["check"]["wrong"]:
            row |= {"status": "check failed", "reason": row["check"]["wrong"]}
            continue
        candidates.append(Candidate(name, work, lambda _: None))
        if row["ours"] and plan.device.type == "cuda":
            replay = _graph(work)
            if replay is not None:
                candidates.append(Candidate(f"{name}, graph", replay, lambda _: None))
                rows.append({"name": f"{name}, graph", "ours": True, "status": "ok"})
    for timing in interleaved(candidates, plan.repeats, note, clock_of(plan.device)) if candidates else []:
        row = next(row for row in rows if row["name"] == timing.name)
        row |= timing.as_dict()
    return {"shape": list(shape), "dtype": str(dtype), "backward": backward, "device": str(plan.device), "rows": rows}


def _graph(work: Callable[[], Any]) -> Callable[[], Any] | None:
    try:
        return captured(work)
    except RuntimeError:
        return None


def _maps(shape: tuple[int, ...], sharp: bool) -> list[Tensor]:
    """Return two maps: the second is the first, moved and with noise; for matching, strong enough to be sharp."""
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(shape, generator=generator)
    two = one.roll((3, -5), (2, 3)) + 0.3 * torch.randn(shape, generator=generator)
    return [2 * one, two] if sharp else [one, two]


def _work(call: Callable[[], Tensor], maps: list[Tensor], backward: bool) -> Callable[[], list[Tensor]]:
    if not backward:
        return lambda: [call()]
    retained: dict[str, Tensor] = {}

    def step() -> list[Tensor]:
        out = call()
        if "grad" not in retained:
            retained["grad"] = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
        return [out.detach(), *torch.autograd.grad(out, maps, retained["grad"])]

    return step


def _window_truth(
    maps: list[Tensor], window: DisplacementWindow, dtype: torch.dtype, backward: bool
) -> Callable[[list[Tensor]], Result]:
    exact = [m.detach().double().requires_grad_(backward) for m in maps]
    work = _work(lambda: contenders.ours(exact[0], exact[1], window, "reference"), exact, False)
    truth = work()
    if backward:
        grad = torch.linspace(-1, 1, truth[0].numel(), device=truth[0].device).view_as(truth[0]).to(dtype).double()
        truth += torch.autograd.grad(truth[0], exact, grad)
    truth = [t.detach().float() for t in truth]

    def judge(found: list[Tensor]) -> Result:
        errors = [
            float((a.float() - b).abs().max() / b.abs().max().clamp(min=1e-9))
            for a, b in zip(found, truth, strict=True)
        ]
        wrong = not max(errors) <= ALLOWED[dtype]
        return {"errors": errors, "allowed": ALLOWED[dtype], "wrong": f"off by {max(errors):.2g}" if wrong else None}

    return judge


def _matching_truth(maps: list[Tensor], dtype: torch.dtype) -> Callable[[list[Tensor]], Result]:
    """Of some pixels, in float64."""
    one, two = (m.detach()[:1].double().flatten(2)[0] for m in maps)
    width, count = maps[0].shape[3], one.shape[1]
    at = torch.linspace(0, count - 1, min(_SAMPLED, count), device=one.device).long()
    shares = (one[:, at].T @ two / one.shape[0] ** 0.5).softmax(-1)
    place = torch.arange(count, device=one.device)
    x, y = (place % width).double(), (place // width).double()
    truth = torch.stack((shares @ x - x[at], shares @ y - y[at]))

    def judge(found: list[Tensor]) -> Result:
        off = (found[0][0].double().flatten(1)[:, at] - truth).norm(dim=0)
        mean, largest = float(off.mean()), float(off.max())
        allowed = ALLOWED_CELLS[dtype]
        ours = found[0].dtype == torch.float32
        wrong = ours and not (mean <= allowed[0] and largest <= allowed[1])
        said = f"off by {mean:.2g} cells on average, {largest:.2g} at most" if wrong else None
        return {"mean_cells": mean, "largest_cells": largest, "allowed": allowed, "wrong": said}

    return judge


def report(results: Result) -> list[str]:
    """Every case: times, and how many times as long as ours the others take."""
    lines: list[str] = []
    for case in results["cases"]:
        lines.append(f"{case['label']} {case['shape']} on {case['device']}")
        own = next((row["median_s"] for row in case["rows"] if row["name"] == "ours" and "median_s" in row), None)
        lines += [f"  {row['name']:<28}{_row(row, own)}" for row in case["rows"]]
    return lines


def _row(row: Result, own: float | None) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    times = "" if own is None or row["name"] == "ours" else f", {row['median_s'] / own:.2f} × ours"
    peak = f", peak {row['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in row else ""
    check = row.get("check", {})
    cells = f", off by {check['mean_cells']:.1e} cells" if "mean_cells" in check else ""
    return f"{1e3 * row['median_s']:.3f} ms ({1e3 * row['min']:.3f} ... {1e3 * row['max']:.3f}){times}{peak}{cells}"
