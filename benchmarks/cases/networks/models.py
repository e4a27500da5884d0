"""Networks end to end, one pair that is already on the device: our forms compared with ptlflow's model.

All entries get the same weights and frames, and each precision has entries of ours and of the peer: float32 and half
precision (float16 on a GPU, bfloat16 on a CPU). Before a time counts, the flow is compared with that of our module in
float32. The case also stores which positions the network looks up, because they depend on the weights.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.correlation.positions import coherence, smooth
from benchmarks.cases.networks.forms import (
    COMPILED_FORMS,
    DEFAULT_FORMS,
    DEFAULT_PEER_FORMS,
    EXTENSION_FORMS,
    FORMS,
    PEER_FORMS,
)
from benchmarks.cases.networks.peers import HALF, Flow, build_extension_flow, build_peer_flow, load_peer
from benchmarks.harness import (
    Candidate,
    clock_of,
    first_line,
    given_up,
    interleaved,
    is_out_of_memory,
    limit_seconds,
    release,
)
from fullfield._check import InputError
from fullfield.models import RAFT, SEARAFT
from fullfield.models.cascade import Cascade
from fullfield.models.prepared import PreparedFlowCache
from fullfield.models.state import State
from fullfield.models.weights import NETWORKS, WEIGHTS, build_random_model, find_local_weights

Network: TypeAlias = RAFT | SEARAFT

PACKAGED = "fullfield-s"
"""Comes with its weights."""
PEERS = {name: name.replace("-", "_") for name in NETWORKS if name != PACKAGED}
"""What ptlflow calls them."""
# Updates after which results are compared: rounding grows from update to update where weights are random.
CHECKED_UPDATES = 4
# Of the flow's length. Convolutions of the peer and of our module use TF32 unless PyTorch is told otherwise.
ALLOWED = 0.02


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    methods: Sequence[str]
    sizes: Sequence[tuple[int, int]]
    """Height, width of the frames."""
    device: torch.device
    updates: Sequence[int] | None = None
    """Of each method; each network's own number where there is none."""
    forms: Sequence[str] = DEFAULT_FORMS
    cascade: bool = False
    """Also ours cascaded."""
    peers: bool = True
    peer_forms: Sequence[str] = DEFAULT_PEER_FORMS
    """Of PEER_FORMS."""
    compile_seconds: float = 120.0
    """A form whose first call takes longer is given up."""
    extension: Any = None
    """RAFT's compiled alt_cuda_corr."""
    extension_forms: Sequence[str] = tuple(EXTENSION_FORMS)
    """Precisions of the peer with the extension."""
    weights: dict[str, State] | None = None
    """Tensors by method; where there are none the package's own, or random ones."""
    pair: tuple[Tensor, Tensor] | None = None
    """Frames [3, H, W], 0 ... 1, that are resized; made up where there are none."""
    true_flow: Tensor | None = None
    """Flow [2, H, W] of the pair, NaN where it is unknown; resized with it."""
    repeats: int = 5
    patience: float = 20.0


class Entry(NamedTuple):
    """One implementation in a case. ``make`` prepares it and raises TooLarge if the memory cannot suffice."""

    name: str
    ours: bool
    make: Callable[[], Flow]
    compiled: bool = False
    """Checked after all updates, because another number would be compiled again; the first call has a time limit."""


def cases(plan: Plan, note: Note) -> Cases:
    """All cases of a plan."""
    numbers = plan.updates or [NETWORKS[method].updates for method in plan.methods]
    for method, updates in zip(plan.methods, numbers, strict=True):
        for size in plan.sizes:
            note(f"{method}, {size[1]}×{size[0]}")
            label = f"{method} {size[1]}×{size[0]}, {updates} updates"
            yield Case(label, partial(_case, plan, method, size, updates, note))


# ---- what everybody gets


def frames(plan: Plan, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the plan's pair at ``size``, or a texture of several octaves and the same moved by a smooth flow."""
    if plan.pair is not None:
        first, second = (
            functional.interpolate(frame[None].to(plan.device), size, mode="bicubic", antialias=True).clamp(0, 1)
            for frame in plan.pair
        )
        return first, second
    generator = torch.Generator().manual_seed(0)
    texture = torch.zeros(1, 3, *size, device=plan.device)
    for octave in (64, 16, 4):
        coarse = torch.rand(1, 3, size[0] // octave + 2, size[1] // octave + 2, generator=generator)
        texture += functional.interpolate(coarse.to(plan.device), size, mode="bicubic") / 3
    flow = functional.interpolate(smooth((size[0] // 8, size[1] // 8), 4)[-1:], size, mode="bicubic").to(plan.device)
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, size[0], device=plan.device),
        torch.linspace(-1, 1, size[1], device=plan.device),
        indexing="ij",
    )
    at = torch.stack((xs - 2 * flow[0, 0] / size[1], ys - 2 * flow[0, 1] / size[0]), -1)
    moved = functional.grid_sample(texture, at[None], padding_mode="border", align_corners=True)
    return texture.clamp(0, 1), moved.clamp(0, 1)


def network(plan: Plan, method: str, first: Tensor, second: Tensor) -> Network:
    """Return the method's network with the plan's weights, or random ones whose batch norms have seen the frames."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_random_model(NETWORKS[method])
    model.to(plan.device)
    if has_weights(plan, method):
        state = (plan.weights or {}).get(method)
        try:
            model.load_checkpoint(state or str(find_local_weights(WEIGHTS[method])))
        except InputError as error:
            raise InputError(f"--weights: {method}: {error}") from error
        return model.eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
        gamma = getattr(module, "gamma", None)
        if isinstance(gamma, nn.Parameter):  # 1e-6 as they begin: the refinements would do nothing
            nn.init.constant_(gamma, 0.1)
    with torch.no_grad():
        size = (min(first.shape[-2], 192), min(first.shape[-1], 384))
        model.train()(*(functional.interpolate(f, size, mode="bilinear") for f in (first, second)), updates=1)
    return model.eval()


def has_weights(plan: Plan, method: str) -> bool:
    """Return whether a method's weights are given or come with the package; others are random."""
    return method == PACKAGED or method in (plan.weights or {})


@contextmanager
def looked_up(model: Network) -> Iterator[list[Tensor]]:
    """Record the positions of every lookup of the plain module."""
    result: list[Tensor] = []
    pyramid = model.build_pyramid

    def recorded(fmap1: Tensor, fmap2: Tensor) -> Callable[[Tensor], Tensor]:
        lookup = pyramid(fmap1, fmap2)

        def call(coords: Tensor) -> Tensor:
            result.append(coords.detach().clone())
            return lookup(coords)

        return call

    model.build_pyramid = recorded  # type: ignore[method-assign, assignment]
    try:
        yield result
    finally:
        del model.build_pyramid


# ---- who takes part


def entries(plan: Plan, method: str, model: Network, size: tuple[int, int], note: Note) -> list[Entry]:
    """Return our forms, cascaded ones if the plan has them, then the peer in both precisions where it is installed."""
    result = [Entry(FORMS[form], True, partial(_ours, model, form), form in COMPILED_FORMS) for form in plan.forms]
    if plan.cascade:
        cascaded = [form for form in plan.forms if form in DEFAULT_FORMS]
        result += [Entry(f"{FORMS[form]}, cascaded", True, partial(_cascaded, model, form)) for form in cascaded]
    if not plan.peers or method not in PEERS:
        return result
    try:
        peer = load_peer(PEERS[method])
    except (ImportError, OSError, AttributeError, RuntimeError) as error:  # RuntimeError: torchvision does not fit
        note(f"ptlflow does not import here, so it is not measured ({first_line(error)})")
        return result
    # Norms of its shortcuts are in its state twice; what else might be missing shows in the check.
    peer.load_state_dict(model.state_dict(), strict=False)
    peer.to(plan.device).eval()
    for form in (PEER_FORMS[name] for name in plan.peer_forms):
        result.append(Entry(form.name, False, partial(build_peer_flow, peer, form, size), form.compiled))
    if plan.extension is not None:
        for form in (EXTENSION_FORMS[name] for name in plan.extension_forms):
            result.append(Entry(form.name, False, partial(build_extension_flow, peer, plan.extension, form)))
    return result


def _ours(model: Network, form: str) -> Flow:
    if form in COMPILED_FORMS:
        return _compiled(_halved(model) if form == "compiled" else model)
    run: Network | PreparedFlowCache = model
    if form == "fast":
        run = PreparedFlowCache(model, "fast")
    elif form == "module-half":
        run = _halved(model)
    elif form == "optimized":
        run = copy.deepcopy(model)
        run.optimize_for_cpu()
    return lambda first, second, updates: run(first, second, updates=updates)


def _halved(model: Network) -> Network:
    """Return a copy of the plain module with weights in half precision; coordinates and the flow stay float32."""
    device = next(model.parameters()).device
    return copy.deepcopy(model).to(HALF[device.type])


def _compiled(model: Network) -> Flow:
    """Return the module through ``torch.compile``, with CUDA graphs on a GPU. Compiles at the first call."""
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)

    def flow(first: Tensor, second: Tensor, updates: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # the flow before is read no more
        result: Tensor = compiled(first, second, updates=updates)
        return result

    return flow


def _cascaded(model: Network, form: str) -> Flow:
    cascade = Cascade(model if form == "module" else PreparedFlowCache(model, form))
    return lambda first, second, updates: cascade(first, second, updates)


# ---- measuring


def resized_flow(flow: Tensor, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return a flow [2, H, W] at ``size``, [1, 2, h, w] in its pixels."""
    factors = torch.tensor((size[1] / flow.shape[2], size[0] / flow.shape[1]), device=device).view(1, 2, 1, 1)
    return functional.interpolate(flow[None].to(device), size, mode="bilinear") * factors


def mean_error(flow: Tensor, true_flow: Tensor) -> float:
    """Return the mean end-point error where the true flow is known."""
    return float((flow - true_flow).norm(dim=1).nanmean())


def describe_errors(flow: Tensor, true_flow: Tensor) -> dict[str, float]:
    """Return mean and median end-point error, and the share of pixels over 1 px, where the true flow is known."""
    errors = (flow - true_flow).norm(dim=1)
    errors = errors[~errors.isnan()]
    return {
        "epe_px": float(errors.mean()),
        "epe_median_px": float(errors.median()),
        "epe_over_1px": float((errors > 1).float().mean()),
    }


class Truth(NamedTuple):
    """Flows of our module in float32; none where it does not fit."""

    flow: Tensor | None
    few: dict[bool, Tensor]
    """After the updates that are compared, by whether cascaded."""
    lookups: dict[str, float] | None
    cascaded: Tensor | None = None
    """Of the module in a cascade, after all updates; None where the plan has no cascade."""

    @classmethod
    def of(cls, plan: Plan, model: Network, pair: tuple[Tensor, Tensor], updates: int, few: int) -> Truth:
        """Compute the flows after all and after ``few`` updates."""
        try:
            with looked_up(model) as positions:
                flow = model(*pair, updates=updates)
            retained = positions[:: max(1, len(positions) // 8)]
            lookups = coherence(retained, model.config.radius, model.config.levels) if retained else None
            result = {False: model(*pair, updates=few)}
            cascaded = None
            if plan.cascade:
                cascade = Cascade(model)
                result[True] = cascade(*pair, few)
                cascaded = cascade(*pair, updates)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return cls(None, {}, None)
        return cls(flow, result, lookups, cascaded)

    def describe_differences(self, flow: Tensor) -> dict[str, float]:
        """Return a flow's mean distance from the module's, plain and cascaded."""
        result = {}
        if self.flow is not None:
            distances = (flow - self.flow).norm(dim=1)
            result = {
                "from_module_px": float(distances.mean()),
                "from_module_over_1px": float((distances > 1).float().mean()),
            }
        if self.cascaded is not None:
            result["from_cascaded_module_px"] = float((flow - self.cascaded).norm(dim=1).mean())
        return result


def _case(plan: Plan, method: str, size: tuple[int, int], updates: int, note: Note) -> Result:
    first, second = frames(plan, size)
    model = network(plan, method, first, second)
    few = min(updates, CHECKED_UPDATES)
    rows: list[dict[str, Any]] = []
    candidates: list[Candidate] = []
    with torch.no_grad():
        truth = Truth.of(plan, model, (first, second), updates, few)
        true_flow = None if plan.true_flow is None else resized_flow(plan.true_flow, size, plan.device)
        release(plan.device)
        entrants = entries(plan, method, model, size, note)
        for entry in entrants:
            note(f"preparing {entry.name}")
            row: dict[str, Any] = {"name": entry.name, "ours": entry.ours, "status": "ok"}
            rows.append(row)
            cascaded = entry.name.endswith("cascaded")
            right = truth.flow if entry.compiled else truth.few.get(cascaded)
            with limit_seconds(plan.compile_seconds if entry.compiled else None, "its first call"):
                admitted = _admitted(entry, row, (first, second), updates, updates if entry.compiled else few, right)
            if admitted is not None:
                flow, result = admitted
                row |= truth.describe_differences(result)
                if true_flow is not None:
                    row |= describe_errors(result, true_flow)
                del result
                candidates.append(Candidate(entry.name, _work(flow, first, second, updates), lambda _: None))
            del admitted
            release(plan.device)
        clock = clock_of(plan.device)
        timings = interleaved(candidates, plan.repeats, note, clock, plan.patience) if candidates else []
        if any(entry.compiled for entry in entrants):
            torch.compiler.reset()  # gives back the memory of the graphs
    for timing in timings:
        row = next(row for row in rows if row["name"] == timing.name)
        row |= {**timing.as_dict(), "seconds": list(timing.seconds)}
    return {
        **_divergence(truth.flow, true_flow),
        "method": method,
        "size": list(size),
        "updates": updates,
        "weights": "given" if has_weights(plan, method) else "random",
        "frames": "made up" if plan.pair is None else "given",
        "flow_px": None if truth.flow is None else float(truth.flow.norm(dim=1).mean()),
        "true_flow_px": None if true_flow is None else mean_error(torch.zeros_like(true_flow), true_flow),
        "lookups": truth.lookups,
        "device": str(plan.device),
        "rows": rows,
    }


def _divergence(flow: Tensor | None, true_flow: Tensor | None) -> dict[str, str]:
    """Return how far our module's flow is off where its error exceeds half of the motion; nothing elsewhere."""
    if flow is None or true_flow is None:
        return {}
    error, motion = mean_error(flow, true_flow), mean_error(torch.zeros_like(true_flow), true_flow)
    if error <= motion / 2:
        return {}
    return {"diverged": f"the module's flow is {error:.3g} px off in the mean, the motion is {motion:.3g} px"}


def _work(flow: Flow, first: Tensor, second: Tensor, updates: int) -> Callable[[], Tensor]:
    def work() -> Tensor:
        with torch.no_grad():
            return flow(first, second, updates)

    return work


def count_skipped_graphs() -> int:
    """Return how often ``torch.compile`` has left out CUDA graphs in this process."""
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    return int(counters["inductor"]["cudagraph_skips"])


def _admitted(
    entry: Entry, row: dict[str, Any], pair: tuple[Tensor, Tensor], updates: int, few: int, right: Tensor | None
) -> tuple[Flow, Tensor] | None:
    """Prepare and check the entry, noting time and memory in its row; return it and its flow after all updates.

    Return None if it cannot take part.
    """
    on_gpu = pair[0].device.type == "cuda"
    try:
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        skipped = count_skipped_graphs()
        start = time.perf_counter()
        flow = entry.make()
        result = flow(*pair, few)
        # Without anything to compare with, finite has to do.
        off = float((result - right).norm() / right.norm()) if right is not None else float(0 * result.sum())
        row["first_call_s"] = time.perf_counter() - start
        if entry.compiled and on_gpu:
            row["graphs_skipped"] = count_skipped_graphs() - skipped
        row["check"] = {"error": None if right is None else off, "allowed": ALLOWED, "updates": few}
        if not off <= ALLOWED:
            row |= {
                "status": "check failed",
                "reason": f"the flow is off by {100 * off:.3g} %, allowed {100 * ALLOWED:.3g} %",
            }
            return None
        result = flow(*pair, updates)
        if on_gpu:
            torch.cuda.synchronize()
            row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    except Exception as error:  # noqa: BLE001 - a compiler's or a peer's mistake must not end the run
        row |= given_up(error)
        return None
    return flow, result


# ---- in words


def report(results: dict[str, Any]) -> list[str]:
    """Every case and who took part in it."""
    lines: list[str] = []
    for case in results["cases"]:
        lines += [
            f"{case['label']}, {case['weights']} weights, {case['frames']} frames, on {case['device']}",
            _lookups(case),
            *(f"  {row['name']:<48}{_row(row)}" for row in case["rows"]),
            "",
        ]
    return lines


def _lookups(case: dict[str, Any]) -> str:
    told = case["lookups"]
    if told is None:
        return "  our module does not fit: results are only known to be finite"
    shares = f"{told['mean_window']:.0f} columns mean window, {100 * told['inside']:.1f} % in the map"
    return f"  lookups: {shares}; mean flow {case['flow_px']:.1f} px"


def _row(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    parts = [f"{row['median_s']:.4f} s ({row['min']:.4f} ... {row['max']:.4f})"]
    if "peak_bytes" in row:
        parts.append(f"peak {row['peak_bytes'] / 2**30:.2f} GiB")
    parts.append(f"first call {row['first_call_s']:.2f} s")
    if "from_module_px" in row:
        parts.append(f"{row['from_module_px']:.2g} px from the module")
    if "epe_px" in row:
        parts.append(f"{row['epe_px']:.3g} px from the true flow")
    return ", ".join(parts)
