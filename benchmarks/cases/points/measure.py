"""Convolution on native points against its peers, with identical triplets: what the supplement of PointCNN++ shows.

Search, triplets and convolution are timed apart. Every result is compared with float64 at a sample of centres, points
and weights before its time counts; all take turns. Times are a CUDA graph's replay where the work can be captured, else
eager; memory is PyTorch's own count of what a call takes beyond its inputs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.points import network
from benchmarks.cases.points.clouds import (
    Scene,
    crowded,
    of_two_densities,
    on_a_line,
    other_parts,
    sized,
    thinned,
    voxels_name,
    voxels_of,
)
from benchmarks.cases.points.contenders import Apply, Contender, Problem
from benchmarks.cases.points.truth import PEER_SLACK, Truth
from benchmarks.harness import (
    Candidate,
    captured,
    event_clock,
    first_line,
    given_up,
    interleaved,
    is_out_of_memory,
    peak_bytes,
    release,
    wall_clock,
)
from fullfield.ops.neighbors import grid_downsample, knn_search, radius_search
from fullfield.ops.point_conv import knn_geometry, protocol, radius_geometry, voxel_geometry
from fullfield.ops.point_conv.geometry import compute_equal_volume_radius

PARTS = {
    "build": "search, triplets and downsampling",
    "layer": "one layer, at the scan's density and on a coarser grid",
    "worst": "one layer on clouds that are hard for it: a full cell, a line, two densities in a batch",
    "voxels": "one layer where every point is a voxel, beside spconv and ocnn: time and memory against size",
    "lowering": "figure A: beside the two ways through dense products",
    "order": "figure B: the listing with its triplets sorted by k, i or j",
    "knn": "figure C: kNN neighbourhoods",
    "sizes": "figures D, E and H to J: time and memory against size",
    "network": "figures F and G: ResNet-18, geometry included",
    "limit": "figure K: ResNet-18's memory against size",
}
NEAREST = 16  # of figure C
_NETWORK_REPEATS = 21  # on a GPU, where the spread is the host's
_NEAR = 0.05  # between the largest size that fits and the smallest that does not, of the former
_REPLAYED = 0.05
"""Seconds; a longer call is timed eagerly: a graph would save nothing and keep its memory."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    scene: Scene
    device: torch.device
    contenders: Sequence[Contender]
    parts: Sequence[str]
    grid: float
    coarse: float
    channels: Sequence[tuple[int, int]]
    dtypes: Sequence[torch.dtype]
    sizes: Sequence[int]
    network_points: int
    limit_sizes: Sequence[int]
    ablation_sizes: Sequence[int] = ()
    """Of figures A to C."""
    network_dtype: torch.dtype = torch.float16
    voxel_dtype: torch.dtype = torch.float16
    """spconv 2.3.8 has no kernels for bfloat16."""
    full_cell: int = 10_000
    """Points in one cell, of a worst case."""
    kernel: int = 3
    repeats: int = 5
    patience: float = 1.0
    """Seconds after which a contender is not repeated any more."""

    @property
    def gpu(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device.type == "cuda"


def cases(plan: Plan, note: Note) -> Cases:
    """All cases of a plan, by part."""
    scene = plan.scene.to(plan.device)
    frozen_before = gc.get_freeze_count()
    gc.collect()
    gc.freeze()  # what is here already is not looked at again, so that collecting takes no time below
    try:
        for part in plan.parts:
            note(PARTS[part])
            for case in _CASES[part](plan, scene, note):
                case.part = part
                yield case
    finally:
        if not frozen_before:
            gc.unfreeze()


# ---- one layer


@dataclass
class Layer:
    """A problem with its inputs."""

    problem: Problem
    features: Tensor = field(init=False)
    weight: Tensor = field(init=False)
    grad: Tensor = field(init=False)

    def __post_init__(self) -> None:
        p = self.problem
        generator = torch.Generator(p.device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=p.device).to(p.dtype)

        self.features = normal(p.geometry.points, p.channels[0])
        self.weight = (normal(p.geometry.cells, *p.channels) * (p.geometry.cells * p.channels[0]) ** -0.5).to(p.dtype)
        self.grad = normal(p.geometry.center_count, p.channels[1])

    def forward(self, apply: Apply) -> Tensor:
        """Return the result, without gradients."""
        with torch.no_grad():
            return apply(self.features, self.weight)

    def train(self, apply: Apply) -> tuple[Tensor, ...]:
        """Return both gradients."""
        given = [t.detach().requires_grad_() for t in (self.features, self.weight)]
        return torch.autograd.grad(apply(*given), given, self.grad)

    def truth(self) -> Truth:
        """Return the reference's results in float64."""
        return Truth.of(self.problem, self.features, self.weight, self.grad)


@dataclass(frozen=True)
class _Task:
    """A layer's case before anything is made for it."""

    name: str
    channels: tuple[int, int]
    dtype: torch.dtype
    figures: tuple[str, ...]
    problem: Callable[[tuple[int, int], torch.dtype], Problem]
    facts: Result = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name}, {self.channels[0]}→{self.channels[1]}, {str(self.dtype).removeprefix('torch.')}"


def _layer(plan: Plan, task: _Task, note: Note) -> Case:
    return Case(task.label, partial(_layer_case, plan, task, note))


def _layer_case(plan: Plan, task: _Task, note: Note) -> Result:
    problem = task.problem(task.channels, task.dtype)
    layer = Layer(problem)
    truth = layer.truth()
    rows: list[Result] = []
    entered: list[tuple[Result, Apply]] = []
    for contender in plan.contenders:
        if not contender.ours and contender.figures not in task.figures:
            continue
        note(f"checking {contender.name}: {task.label}")
        row, apply = _entered(plan, contender, layer, truth)
        rows.append(row)
        if apply is not None:
            entered.append((row, apply))
    for way, work in (("forward", layer.forward), ("training", layer.train)):
        _time(plan, way, [(row, partial(work, apply)) for row, apply in entered], note)
    return {**task.facts, **_facts(problem), "rows": rows}


def _facts(problem: Problem) -> Result:
    g = problem.geometry
    i, _, k = g.triplets()
    buckets = int(((i.diff() != 0) | (k.diff() != 0)).sum()) + 1 if i.numel() else 0
    return {
        "points": g.points,
        "centers": g.center_count,
        "triplets": i.numel(),
        "buckets_per_point": round(buckets / max(1, g.center_count), 2),
        "geometry_bytes": g.nbytes,
        "kernel": list(g.kernel_size),
        "channels": list(problem.channels),
        "dtype": str(problem.dtype).removeprefix("torch."),
    }


def _entered(plan: Plan, contender: Contender, layer: Layer, truth: Truth) -> tuple[Result, Apply | None]:
    """Return the contender's row with its check and memory, and no function where it does not take part."""
    row: Result = {"name": contender.name, "ours": contender.ours, "status": "ok"}
    slack = 1.0 if contender.ours else PEER_SLACK
    try:
        before = torch.cuda.memory_allocated() if plan.gpu else 0
        apply = contender.prepare(layer.problem)
        phases: list[tuple[str, Callable[[Apply], Any], Callable[[Any, float], tuple[str | None, float]]]] = [
            ("forward", layer.forward, truth.of_forward),
            ("training", layer.train, truth.of_gradients),
        ]
        for way, work, judge in phases:
            wrong, error = judge(work(apply), slack)
            row[f"{way}_error"] = error
            if wrong is not None:
                row.update(status="check failed", reason=wrong)
                return row, None
            if plan.gpu:
                gc.collect()  # results in cycles would count as there before
                start = time.perf_counter()
                row[f"{way}_peak_bytes"] = peak_bytes(partial(work, apply))
                row[f"{way}_once_s"] = time.perf_counter() - start
        if plan.gpu:  # what is kept between calls; ours reads the geometry that all were given
            gc.collect()
            retained = torch.cuda.memory_allocated() - before
            row["kept_bytes"] = layer.problem.geometry.nbytes if contender.ours else retained
    except Exception as error:
        if contender.ours and not isinstance(error, (MemoryError, RuntimeError, TypeError, ValueError)):
            raise  # a peer's mistake, such as a failed assertion, must not end the run
        row.update(given_up(error))
        release(plan.device)
        return row, None
    return row, apply


def _time(plan: Plan, way: str, works: Sequence[tuple[Result, Call]], note: Note) -> None:
    """Time all in turns; one after another where memory does not suffice for all graphs."""
    for group in [list(works)], [[work] for work in works]:
        short = False
        for some in group:
            try:
                _timed(plan, way, some, note)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                short = True
                release(plan.device)
                if len(some) == 1:
                    some[0][0].update(status="out of memory", reason=f"while {way} was timed")
        if not short:
            return


def _timed(plan: Plan, way: str, works: Sequence[tuple[Result, Call]], note: Note) -> None:
    candidates = []
    for row, call in works:
        selected, row[f"{way}_graph"] = call, False
        if plan.gpu and row[f"{way}_once_s"] < _REPLAYED:
            try:
                selected, row[f"{way}_graph"] = captured(call), True
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                row["no_graph"] = first_line(error)
        candidates.append(Candidate(row["name"], selected, lambda _: None))
    if not candidates:
        return
    clock = event_clock if plan.gpu else wall_clock
    for (row, _), timing in zip(works, interleaved(candidates, plan.repeats, note, clock, plan.patience), strict=True):
        row[way] = timing.in_full()


# ---- cases


def _by_radius(plan: Plan, scene: Scene, grid: float, channels: tuple[int, int], dtype: torch.dtype) -> Problem:
    return Problem(radius_geometry(scene.points, grid, plan.kernel, offsets=scene.offsets), channels, dtype)


def _by_rank(plan: Plan, scene: Scene, grid: float, channels: tuple[int, int], dtype: torch.dtype) -> Problem:
    return Problem(knn_geometry(scene.points, grid, NEAREST, plan.kernel, offsets=scene.offsets), channels, dtype)


def _by_voxel(
    plan: Plan, scene: Scene, cell: float, size: int, channels: tuple[int, int], dtype: torch.dtype
) -> Problem:
    some, numbers = voxels_of(scene, cell, size)
    return Problem(voxel_geometry(some.points, cell, plan.kernel), channels, dtype, numbers)


def _densities(plan: Plan, scene: Scene) -> list[tuple[Scene, float]]:
    """Return the scan's own cloud and the coarser one, with the grid of each."""
    return [(scene, plan.grid), (thinned(scene, plan.coarse), plan.coarse)]


def _layers(plan: Plan, scene: Scene, note: Note) -> Cases:
    for some, grid in _densities(plan, scene):
        for channels in plan.channels:
            for dtype in plan.dtypes:
                problem = partial(_by_radius, plan, some, grid)
                yield _layer(plan, _Task(some.name, channels, dtype, ("layer",), problem), note)


def _worst(plan: Plan, scene: Scene, note: Note) -> Cases:
    """Clouds that are hard for a layer, and the ones that they are compared with per triplet."""
    count = scene.points.shape[0]
    clouds = [
        (scene, plan.grid),
        (crowded(scene, plan.grid, plan.full_cell), plan.grid),
        (on_a_line(count, plan.grid, plan.device), plan.grid),
        *((some, plan.coarse) for some in of_two_densities(scene, plan.coarse)),
    ]
    for some, grid in clouds:
        for dtype in plan.dtypes:
            problem = partial(_by_radius, plan, some, grid)
            yield _layer(plan, _Task(some.name, plan.channels[0], dtype, ("worst",), problem), note)


def _sizes(plan: Plan, scene: Scene, note: Note) -> Cases:
    """At the scan's density and thinned; parts and copies of the scene."""
    for full, grid in _densities(plan, scene):
        for size in plan.sizes:
            some, properties = sized(full, size), {"size": size, "series": full.name}
            problem = partial(_by_radius, plan, some, grid)
            yield _layer(
                plan, _Task(some.name, plan.channels[0], plan.dtypes[0], ("layer",), problem, properties), note
            )


def _voxels(plan: Plan, scene: Scene, note: Note) -> Cases:
    """At the scan's density, hardly more than a point a voxel, and coarser."""
    for cell in (plan.grid, plan.coarse):
        for size in plan.sizes:
            properties = {"size": size, "series": f"voxels of {100 * cell:g} cm"}
            name, problem = voxels_name(scene, cell, size), partial(_by_voxel, plan, scene, cell, size)
            yield _layer(plan, _Task(name, plan.channels[0], plan.voxel_dtype, ("voxels",), problem, properties), note)


def _ablation(
    figures: tuple[str, ...], problem_of: Callable[..., Problem], plan: Plan, scene: Scene, note: Note
) -> Cases:
    for size in plan.ablation_sizes:
        some, properties = sized(scene, size), {"size": size, "series": scene.name}
        problem = partial(problem_of, plan, some, plan.grid)
        yield _layer(plan, _Task(some.name, plan.channels[0], plan.dtypes[0], figures, problem, properties), note)


def _build(plan: Plan, scene: Scene, note: Note) -> Cases:
    for some, grid in _densities(plan, scene):
        yield Case(some.name, partial(_build_case, plan, some, grid, note))


def _build_case(plan: Plan, scene: Scene, grid: float, note: Note) -> Result:
    points, offsets, sides = scene.points, scene.offsets, (plan.kernel,) * 3
    radius = compute_equal_volume_radius(grid, plan.kernel)
    result = radius_search(points, radius, offsets=offsets)
    build: Any = protocol.choose_triplet_backend_module(plan.device)
    fewer = grid_downsample(points, 2 * grid, offsets=offsets)
    sparse = points[fewer.indices]
    exact = _brute_force(points, offsets, radius)
    works: dict[str, tuple[Call, Callable[[Any], str | None]]] = {
        "radius search": (partial(radius_search, points, radius, offsets=offsets), exact),
        "triplets of found neighbours": (
            lambda: build.build_triplets((result.offsets, result.indices), points, points, grid, sides),
            lambda t: None if torch.equal(t.rows, result.offsets) else "has other rows",
        ),
        "search and triplets": (
            partial(radius_geometry, points, grid, plan.kernel, offsets=offsets),
            lambda g: exact((g.forward.rows, g.triplets()[1])),
        ),
        "the same, strided, both directions": (
            lambda: radius_geometry(points, grid, plan.kernel, sparse, offsets=offsets, center_offsets=fewer.offsets),
            lambda g: None if g.backward.entries.numel() == g.forward.entries.numel() else "lost triplets",
        ),
        f"{NEAREST} nearest": (
            partial(knn_search, points, NEAREST, offsets=offsets),
            lambda n: None if bool((n.offsets.diff() <= NEAREST).all()) else "found too many",
        ),
        "grid downsampling": (
            partial(grid_downsample, points, 2 * grid, offsets=offsets),
            lambda d: None if torch.equal(d.indices, fewer.indices) else "changed from run to run",
        ),
    }
    candidates = [Candidate(name, call, judge) for name, (call, judge) in works.items()]
    rows = []
    clock = event_clock if plan.gpu else wall_clock
    for timing in interleaved(candidates, plan.repeats, note, clock, plan.patience):
        row: Result = {"name": timing.name, "ours": True, "status": "ok", "build": timing.in_full()}
        if plan.gpu:
            row["build_peak_bytes"] = peak_bytes(works[timing.name][0])
        rows.append(row)
    properties = {"points": points.shape[0], "triplets": result.indices.numel(), "kernel": list(sides)}
    return {**properties, "rows": rows}


def _brute_force(points: Tensor, offsets: Tensor, radius: float) -> Callable[[Any], str | None]:
    """Compare the rows of some queries of the first cloud with all its points."""
    first = points[: int(offsets[1])]
    selected = torch.randperm(len(first), generator=torch.Generator().manual_seed(2))[:20].tolist()
    limit = torch.tensor(radius, dtype=torch.float32).square().item()

    def judge(found: Any) -> str | None:
        for number in selected:
            x, y, z = (first[number] - first).square().unbind(1)
            right = ((x + y) + z <= limit).nonzero()[:, 0]
            row = found[1][int(found[0][number]) : int(found[0][number + 1])].to(torch.int64)
            if not torch.equal(row.sort().values, right):
                return f"the neighbours of point {number} are not those of brute force"
        return None

    return judge


def _network(plan: Plan, scene: Scene, note: Note) -> Cases:
    some, count = sized(scene, plan.network_points), plan.network_points
    scenes = [some, *other_parts(scene, (3 * count // 4, 17 * count // 16))]
    repeats = max(plan.repeats, _NETWORK_REPEATS) if plan.gpu else plan.repeats
    work = partial(network.timed, scenes, plan.grid, plan.network_dtype, repeats, note)
    yield Case(f"ResNet-18, {some.name}", work)
    if plan.gpu:  # elsewhere no step is recorded
        fewer = [sized(scene, count // 8), *other_parts(scene, (count // 10,))]  # float64 takes long
        for dtype, given in ((torch.float32, fewer), (torch.bfloat16, scenes)):
            check = partial(network.checked, given, plan.grid, dtype)
            yield Case(f"gradients of a recorded ResNet-18 step, {str(dtype).removeprefix('torch.')}", check)


def _limit(plan: Plan, scene: Scene, note: Note) -> Cases:
    """Sizes until one does not fit; then halves of what lies between, for the largest that does."""

    def case_of(size: int) -> Case:
        work = partial(network.once, partial(sized, scene, size), size, plan.grid, plan.network_dtype)
        return Case(f"ResNet-18, {size:,} points", work)

    fits = short = 0
    sizes = list(plan.limit_sizes)
    while sizes:
        size = sizes.pop(0)
        note(f"ResNet-18 on {size:,} points")
        case = case_of(size)
        yield case
        status = case.result["rows"][0]["status"] if case.result is not None else "failed"
        if status == "ok":
            fits = size
        elif status == "out of memory":
            short = size
        else:
            return
        if short:
            unit = max(1, 10 ** (len(str(fits)) - 2))
            middle = (fits + short) // 2 // unit * unit
            sizes = [middle] if 0 < fits < middle and short - fits > _NEAR * fits else []


_CASES: dict[str, Callable[[Plan, Scene, Note], Cases]] = {
    "build": _build,
    "layer": _layers,
    "worst": _worst,
    "voxels": _voxels,
    "lowering": partial(_ablation, ("layer", "lowering"), _by_radius),
    "order": partial(_ablation, ("order",), _by_radius),
    "knn": partial(_ablation, ("layer", "lowering"), _by_rank),
    "sizes": _sizes,
    "network": _network,
    "limit": _limit,
}
