"""Every model of ptlflow that the table calls exact, and the table itself on its page."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fullfield
from fullfield.integrations import matching, windows
from fullfield.integrations.handle import is_patched
from fullfield.integrations.ptlflow import (
    EXACT,
    EXACT_WITH_NOTE,
    OTHER,
    SUPPORT,
    TESTED,
    ModelSupport,
    find_model_support_or_none,
)
from refusals import refuses

# Height, width and frames of models. The coarsest level read keeps two rows, below which the originals give NaN.
_RUNS = {
    (128, 144, 2): "raft sea_raft_s",
    (64, 64, 2): "ms_raft_p ccmr dpflow neuflow2 unimatch_sc2_ref6 liteflownet2 gmflow neuflow",
    (128, 128, 3): "memfof videoflow_bof videoflow_mof",
    (128, 128, 4): "streamflow",
    (128, 128, 2): "raft_small gma skflow rpknet rapidflow flowseek_t flow_anything recover_mn memflow splatflow "
    "matchflow gmflownet lcv_raft fastflownet",
}
RUNS = {name: size for size, names in _RUNS.items() for name in names.split()}
# Whose layers' other halves alone do not show a gradient through the block that is off by 1 %.
WHOLE = ("skflow", "memflow", "streamflow", "gmflownet", "liteflownet2")
# Height, width. Only estimated, for their own samplers take seconds: other ways to reach what the models above reach.
_ESTIMATES = {
    (64, 64): "flownetc liteflownet liteflownet3 gmflow_refine unimatch",
    (128, 128): "pwcnet pwcnet_nodc irr_pwc irr_pwcnet irr_pwcnet_irr scopeflow starflow hd3 maskflownet maskflownet_s",
}
ESTIMATES = {name: size for size, names in _ESTIMATES.items() for name in names.split()}
# Other ways to reach what the models left in the usual run reach; they come with scripts/check/run.py long.
_LONG = (
    "videoflow_bof videoflow_mof streamflow skflow rpknet flowseek_t flow_anything recover_mn memflow matchflow "
    "liteflownet3 unimatch pwcnet_nodc irr_pwc irr_pwcnet irr_pwcnet_irr scopeflow starflow hd3 maskflownet "
    "maskflownet_s memfof gmflownet ms_raft_p splatflow gma ccmr"
)
LONG = set(_LONG.split())


def split_by_length(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in names]


PATCHED = [support for support in SUPPORT if support.state != OTHER]


def run(model: Any, images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    flow = model({"images": images})["flows"]
    weights = torch.linspace(-1, 1, flow.numel()).view_as(flow)
    (flow * weights).sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return flow.detach(), grads


def without_beginnings(model: Any) -> None:
    """Freeze the first half of each part's layers, where the frames are large.

    Gradients through the block reach the other halves of the encoders; what follows them is PyTorch's alone.
    """
    for part in model.children():
        layers = [layer for layer in part.modules() if next(layer.parameters(recurse=False), None) is not None]
        for layer in layers[: len(layers) // 2]:
            layer.requires_grad_(False)


Gradients = dict[str, torch.Tensor]


def reruns(model: Any, images: torch.Tensor) -> Iterator[Gradients]:
    """The original's gradients for frames that differ in the last bits: what rounding alone does to them."""
    for seed in range(4):
        noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
        yield run(model, images * (1 + 8 * torch.finfo(images.dtype).eps * noise))[1]


def check_gradients(found: Gradients, expected: Gradients, again: Iterator[Gradients]) -> None:
    """Within 1e-3, or within twice of what the original's own gradients move when the frames' last bits do.

    Where a ReLU's input is zero but for rounding, the gradient jumps: another order of sums is enough. No more of
    ``again`` is computed than the gradients need.
    """
    assert found.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    moved: list[Gradients] = []

    def reran() -> Iterator[Gradients]:
        yield from moved
        for gradients in again:
            moved.append(gradients)
            yield gradients

    for parameter, grad in expected.items():
        # Some gradients vanish but for rounding, as a bias before a normalisation.
        allowed = 1e-3 * max(float(grad.abs().max()), 1e-3 * largest)
        off = float((found[parameter] - grad).abs().max())
        if not off < allowed:
            assert any(off <= 2 * float((other[parameter] - grad).abs().max()) for other in reran()), parameter


def farthest(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", split_by_length(RUNS))
def test_patch_ptlflow_model_equals_original(name: str, build: Callable[[str], Any]) -> None:
    model = build(name)
    if name == "rapidflow":
        model.train()  # in evaluation its weights' graph is kept from call to call
    if name not in WHOLE:
        without_beginnings(model)
    height, width, frames = RUNS[name]
    images = torch.rand(1, frames, 3, height, width, generator=torch.Generator().manual_seed(1))
    flow, grads = run(model, images)
    assert flow.isfinite().all()
    attributes = [dict(vars(part)) for part in model.modules()]
    modules = {key: dict(vars(importlib.import_module(k.__module__))) for key, k in _classes(model)}

    with fullfield.patch(model) as handle:
        patched_flow, patched_grads = run(model, images)
        assert modules == {key: dict(vars(importlib.import_module(k.__module__))) for key, k in _classes(model)}

    assert handle.replaced
    assert farthest(patched_flow, flow) < 1e-3
    check_gradients(patched_grads, grads, reruns(model, images))
    assert not torch.equal(patched_flow, flow), "bit-identical: was anything replaced?"

    with torch.no_grad():
        assert torch.equal(model({"images": images})["flows"], flow)
    assert [list(vars(part)) for part in model.modules()] == [list(a) for a in attributes]
    assert not any(is_patched(part) for part in model.modules())


def _steady_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some models keep what they warp where four rounded weights sum to one or more, which is a matter of chance."""
    sample = torch.nn.functional.grid_sample

    def steady(values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = sample(values, *args, **kwargs)
        return found + 1e-4 if bool((values == 1).all()) else found

    monkeypatch.setattr(torch.nn.functional, "grid_sample", steady)


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", split_by_length(ESTIMATES))
def test_patch_ptlflow_model_estimates_like_original(
    name: str, build: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(name)
    images = torch.rand(1, 2, 3, *ESTIMATES[name], generator=torch.Generator().manual_seed(1))

    def estimate(frames: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model({"images": frames})["flows"]
        return found

    _steady_masks(monkeypatch)
    reached: list[str] = []
    for room, function in ((windows, "spatial_correlation"), (matching, "global_matching")):
        original = getattr(room, function)
        monkeypatch.setattr(room, function, lambda *a, of=original, **k: [of(*a, **k), reached.append("")][0])
    flow = estimate(images)
    assert flow.isfinite().all()
    with fullfield.patch(model) as handle:
        reached.clear()
        patched = estimate(images)
    assert handle.replaced
    assert reached
    assert farthest(patched, flow) < 1e-3
    assert torch.equal(estimate(images), flow)


def _classes(model: Any) -> list[tuple[str, type]]:
    kinds = {type(part) for part in model.modules()}
    return [(k.__module__, k) for k in kinds if k.__module__.startswith("ptlflow.")]


@pytest.mark.unit
@pytest.mark.parametrize("support", PATCHED, ids=lambda s: s.models[0])
def test_tested_models_cover_every_support_row(support: ModelSupport, ptlflow: Any) -> None:
    """Models of a row share the methods that reach the block, and one of them is run above."""
    tested = [name for name in support.models if name in RUNS or name in ESTIMATES]
    assert tested
    for name in support.models:
        forward = ptlflow.get_model_reference(name).forward
        same = [ptlflow.get_model_reference(other).forward for other in tested]
        if forward not in same:  # FlowNetC is a part of FlowNet2
            with torch.device("meta"):
                parts = ptlflow.get_model_reference(name)().modules()
            assert any(type(part).forward in same for part in parts), name


@pytest.mark.unit
def test_support_table_names_each_model_once(ptlflow: Any) -> None:
    assert ptlflow.__version__ == TESTED
    listed = [name for support in SUPPORT for name in support.models]
    assert sorted(listed) == sorted(ptlflow.get_model_names())
    assert {support.state for support in SUPPORT} == {EXACT, EXACT_WITH_NOTE, OTHER}
    assert all(support.note for support in SUPPORT if support.state != EXACT)


@pytest.mark.unit
@pytest.mark.parametrize("name", ["csflow", "llaflow", "flow1d"])
def test_patch_refuses_other_operators_with_reason(name: str, build: Callable[[str], Any]) -> None:
    model = build(name)
    support = find_model_support_or_none(model)
    refused = refuses("no correlation that is known", fullfield.patch, model)
    assert support.note in refused


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "fullfield" / "integrations" / "README.md"
MEASURED = ROOT / "benchmarks" / "notes" / "patched.md"
RESULTS = ROOT / "benchmarks" / "results" / "patched_h200.json"
COLUMNS = [((436, 1024), False), ((375, 1242), False), ((368, 496), True)]


def between(name: str, page: Path = PAGE) -> str:
    return page.read_text("utf-8").split(f"<!-- {name}: begin -->\n")[1].split(f"\n<!-- {name}: end -->")[0]


def support_table() -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in SUPPORT:
        groups.setdefault((entry.state, entry.note), []).extend(f"`{name}`" for name in entry.models)
    rows = [f"| {', '.join(names)} | {state} | {note} |" for (state, note), names in groups.items()]
    return "\n".join(["| models | state | |", "|---|---|---|", *rows])


def measured() -> str:
    cases = [c for c in json.loads(RESULTS.read_text("utf-8"))["cases"] if c["own_lookup"] == "dense"]
    lines = ["| model | 1024×436 | 1242×375 | training step, 2 × 496×368 |", "|---|---|---|---|"]
    for model in dict.fromkeys(c["model"] for c in cases):
        found = {(tuple(c["size"]), c["train"]): c["rows"] for c in cases if c["model"] == model}
        lines.append(f"| `{model}` | " + " | ".join(cell(found.get(column)) for column in COLUMNS) + " |")
    return "\n".join(lines)


def cell(rows: list[dict[str, Any]] | None) -> str:
    if rows is None:
        return ""
    own, ours = rows
    after = f"{1e3 * ours['median_s']:.1f}"
    if own["status"] != "ok":
        return f"its volume fails → {after} ms"
    change = 100 * (ours["median_s"] / own["median_s"] - 1)
    return f"{1e3 * own['median_s']:.1f} → {after} ms ({change:+.0f} %)"


@pytest.mark.unit
def test_support_page_equals_table_and_measurements() -> None:
    assert between("support") == support_table()
    assert between("measured", MEASURED) == measured()
    page = " ".join(PAGE.read_text("utf-8").split())
    assert f"ptlflow {TESTED}" in page
    tested = len(RUNS) + len(ESTIMATES)
    assert f"Tests run {tested} models with random weights in float32: {len(RUNS)} have the outputs" in page
    assert f"The other {len(ESTIMATES)} were compared in their outputs alone" in page
