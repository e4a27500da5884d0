"""Products that lookups on a GPU keep for the next ones of a pair: the same bits whatever came before, graphs too."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from reuse_cases import journey
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.testing.correlation import Case, assert_within, make_case, rounded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NCHW, LAST = torch.contiguous_format, torch.channels_last
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def positions(case: Case) -> list[Tensor]:
    return [at.cuda() for at in journey(replace(case, coords=case.coords.cpu()))]


def on_gpu(case: Case, dtype: torch.dtype) -> Case:
    case = rounded(case, dtype)
    return replace(
        case, fmap1=case.fmap1.to("cuda", dtype), fmap2=case.fmap2.to("cuda", dtype), coords=case.coords.cuda()
    )


def pair_of(case: Case, **options: Any) -> CorrelationPyramid:
    return CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cuda", **options)


def patches_of(pair: CorrelationPyramid) -> list[Any]:
    """Those that its lookups have made."""
    found = pair._lookups._pair
    assert found is not None
    keeper = found.prepared._keeper  # type: ignore[attr-defined]
    contexts = [] if keeper is None else keeper._contexts.values()
    return [context.patches for context in contexts if context.patches is not None]


SHAPES = [
    # size1, size2, batch, channels, levels, radius
    ((9, 21), (9, 21), 2, 20, 4, 4),
    ((17, 33), (10, 140), 1, 67, 3, 3),
    ((1, 1), (8, 8), 3, 1, 1, 1),
    ((3, 50), (3, 50), 1, 16, 2, 8),
    ((8, 8), (5, 3), 2, 130, 8, 1),  # levels that pool to nothing
    ((120, 171), (120, 171), 1, 256, 4, 4),  # three teams a multiprocessor
    ((5, 18), (19, 21), 1, 600, 2, 2),  # several blocks of channels
]
KINDS = [(F16, F32, NCHW), (F16, F16, NCHW), (BF16, BF16, LAST), (BF16, F32, LAST), (F32, F32, NCHW), (F32, F16, LAST)]


@pytest.mark.parametrize(("dtype", "out", "layout"), KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_what_was_looked_up(
    dtype: torch.dtype, out: torch.dtype, layout: torch.memory_format, shape: tuple[Any, ...]
) -> None:
    size1, size2, batch, channels, levels, radius = shape
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius)
    case = on_gpu(case, dtype)
    there, kind = positions(case), {"out_dtype": out, "memory_format": layout}
    expected = [pair_of(case, **kind, reuse=True)(at) for at in there]  # of a first lookup, which finds nothing
    plain = pair_of(case, **kind, reuse=False)
    eps = 2 * torch.finfo(out).eps if out != F32 else 2.0**-19 if dtype == F32 else 2.0**-15
    eps *= max(1.0, channels / 256)  # several blocks' sums
    for got, at in zip(expected, there, strict=True):
        want = plain(at)
        assert_within(got, want, eps * float(want.abs().max()), "rounded products")
    assert not patches_of(plain)
    for reuse in (True, None) if out != F32 else (True,):
        for order in (1, -1):
            pair = pair_of(case, **kind, reuse=reuse)
            for number, (at, want) in enumerate(list(zip(there, expected, strict=True))[::order]):
                torch.full_like(want, torch.nan)  # what the result's memory holds before
                assert torch.equal(pair(at), want), f"lookup {number}, order {order}"


def test_products_are_kept() -> None:
    """Behind the pair's back its features become zero: what is read afterwards had been kept."""
    case = on_gpu(make_case((32, 48), batch=1, levels=3, radius=4, channels=64), F16)
    pair = pair_of(case, reuse=True)
    first = pair(case.coords)
    found = pair._lookups._pair
    assert found is not None
    found.prepared.state[0].zero_()
    assert torch.equal(pair(case.coords), first)
    assert pair(case.coords.flip(3))[..., :8].abs().max() == 0  # where no window had been


def test_who_keeps() -> None:
    case = on_gpu(make_case((32, 48), channels=64), F16)
    never, later, at_once = (pair_of(case, reuse=reuse, out_dtype=F16) for reuse in (False, None, True))
    for pair in (never, later, at_once):
        pair(case.coords)
    assert [len(patches_of(pair)) for pair in (never, later, at_once)] == [0, 0, 1]
    for pair in (never, later, at_once):
        pair(case.coords)
    assert [len(patches_of(pair)) for pair in (never, later, at_once)] == [0, 1, 1]
    trained = replace(case, fmap1=case.fmap1.requires_grad_())
    for reuse, expected in ((None, 0), (True, 1)):
        pair = pair_of(trained, reuse=reuse, out_dtype=F16)
        for _ in range(3):
            pair(case.coords)
        assert len(patches_of(pair)) == expected


def test_gradients_are_those_of_lookups_that_keep_nothing() -> None:
    case = on_gpu(make_case((24, 40), levels=3, channels=64), F32)

    def gradients(reuse: bool) -> Sequence[Tensor]:
        maps = [case.fmap1.clone().requires_grad_(), case.fmap2.clone().requires_grad_()]
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda", reuse=reuse)
        return torch.autograd.grad([pair(case.coords + shift) for shift in (0.0, 0.3, 0.9)], maps, 3 * [weight])

    weight = torch.randn(2, 147, 24, 40, device="cuda")
    for got, want in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(got, want)


def captured(work: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


def test_replays_with_other_features_and_positions() -> None:
    """Prepared inside of the graph: nothing that a replay kept is of use for the next."""
    one, two = (on_gpu(make_case((48, 64), batch=1, channels=64, levels=4, radius=4, seed=s), F16) for s in (0, 1))
    given = replace(one, fmap1=one.fmap1.clone(), fmap2=one.fmap2.clone(), coords=one.coords.clone())
    shifts = (0.0, 0.4, 0.9, 0.7, 12.0, 12.3)

    def work() -> list[Tensor]:
        pair = pair_of(given, out_dtype=F16)
        return [pair(given.coords + shift) for shift in shifts]

    with torch.no_grad():
        graph, outs = captured(work)
        for case in (one, two, two, one):
            given.fmap1.copy_(case.fmap1)
            given.fmap2.copy_(case.fmap2)
            given.coords.copy_(case.coords)
            graph.replay()
            for out, shift in zip(outs, shifts, strict=True):
                assert torch.equal(out, pair_of(case, out_dtype=F16)(case.coords + shift))


def test_a_graph_beside_eager_lookups_of_its_pair() -> None:
    """Also when the replay of the preparation changes the features that eager lookups have kept products of."""
    one, two = (on_gpu(make_case((48, 64), batch=1, channels=64, levels=4, radius=4, seed=s), F16) for s in (0, 1))
    given = replace(one, fmap1=one.fmap1.clone(), fmap2=one.fmap2.clone())
    made: list[CorrelationPyramid] = []

    def prepare() -> Tensor:
        made.append(pair_of(given, out_dtype=F16))
        return made[-1](one.coords)

    with torch.no_grad():
        preparing, _ = captured(prepare)
        pair = made[-1]
        preparing.replay()
        lookups, outs = captured(lambda: [pair(one.coords + shift) for shift in (0.0, 0.2, 0.4)])
        for case in (one, two, one):
            given.fmap1.copy_(case.fmap1)
            given.fmap2.copy_(case.fmap2)
            preparing.replay()
            for _ in range(2):
                lookups.replay()
                for out, shift in zip((*outs, pair(one.coords)), (0.0, 0.2, 0.4, 0.0), strict=True):
                    assert torch.equal(out, pair_of(case, out_dtype=F16)(one.coords + shift))


def test_replays_of_one_lookup_keep_from_one_to_the_next() -> None:
    """As a recorded update of a network is replayed: once the features are gone, what was kept still is there."""
    case, other = (on_gpu(make_case((48, 64), batch=1, channels=64, levels=4, radius=4, seed=s), F16) for s in (0, 1))
    given = replace(case, fmap1=case.fmap1.clone())
    made: list[CorrelationPyramid] = []

    def prepare() -> None:
        made.clear()
        torch.zeros(64 << 10, device="cuda")  # memory that what follows may get, and that every replay writes first
        made.append(pair_of(given, out_dtype=F16, reuse=True))

    def look() -> Tensor:
        torch.zeros(8 << 20, device="cuda")
        return made[0](grid)

    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(64.0), indexing="ij")
    grid = torch.stack((x, y))[None].cuda() + 0.3
    with torch.no_grad():
        preparing, _ = captured(prepare)
        looking, out = captured(look)
        for features in (case.fmap1, other.fmap1, case.fmap1):
            given.fmap1.copy_(features)
            preparing.replay()
            right = pair_of(given, out_dtype=F16)(grid)
            for _ in range(2):
                looking.replay()
                assert torch.equal(out, right)
        found = made[0]._lookups._pair
        assert found is not None
        found.prepared.state[0].zero_()
        looking.replay()
        assert torch.equal(out, right)
        preparing.replay()  # a new preparation, and nothing is known
        found.prepared.state[0].zero_()
        looking.replay()
        assert not out.any()


def test_lookups_on_several_streams_and_threads() -> None:
    case = on_gpu(make_case((64, 96), batch=1, channels=64, levels=4, radius=4), F16)
    there = positions(case)
    expected = [pair_of(case, reuse=True)(at) for at in there]
    pair = pair_of(case, reuse=True)
    torch.cuda.synchronize()

    def work(number: int) -> list[Tensor]:
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            outs = [pair(at) for at in there]
        stream.synchronize()
        return outs

    with ThreadPoolExecutor(4) as pool:
        for outs in pool.map(work, range(6)):
            assert all(torch.equal(out, want) for out, want in zip(outs, expected, strict=True))


def test_memory_is_what_the_page_says() -> None:
    """At most half as much again as without, with the features and a result."""
    size = (224, 512)
    maps = [torch.randn(1, 256, *size, device="cuda", dtype=F16) for _ in range(2)]
    coords = torch.rand(1, 2, *size, device="cuda") * 100
    for out_dtype, each in ((F32, 553 * 3), (F16, 578 * 2)):
        taken = {}
        for reuse in (False, True):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() - sum(m.nbytes for m in maps)
            pair = CorrelationPyramid(*maps, backend="cuda", out_dtype=out_dtype, reuse=reuse)
            for _ in range(3):
                pair(coords)
            taken[reuse] = torch.cuda.max_memory_allocated() - before
            del pair
        pixels = size[0] * size[1]
        assert taken[True] - taken[False] <= pixels * (each + 28) + (1 << 21)
        assert taken[True] <= 1.5 * taken[False]
