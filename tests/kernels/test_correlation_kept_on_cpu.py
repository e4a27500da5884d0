"""Products that CUDA lookups keep for the next ones, run on the CPU by ``emulator``: the same bits as without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import emulator
import pytest
import torch
from correlation_emulated import correlation_on
from emulator import AMPERE, Emulator
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation.cuda import keep, launch, launch_backward
from fullfield.testing.correlation import Case, assert_within, make_case, rounded

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(AMPERE.shared)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with correlation_on(machine, monkeypatch):
        yield


def journey(case: Case) -> list[Tensor]:
    """Positions as a network's, then as none would have them: small steps, jumps, borders, and what is no number."""
    start = case.coords
    height, width = case.fmap2.shape[-2:]
    generator = torch.Generator().manual_seed(3)
    found = [start, start + 0.4 * torch.randn(start.shape, generator=generator)]
    found.append(found[-1] + torch.randn(start.shape, generator=generator))  # every pixel by itself
    found.append(start + torch.tensor([1.7, -3.9]).view(1, 2, 1, 1))
    found.append(torch.rand(start.shape, generator=generator) * torch.tensor([width, height]).view(1, 2, 1, 1))
    found.append(found[-1] + 1.3)  # windows far apart that move, too
    broken = start - torch.tensor([2.5, -3.5]).view(1, 2, 1, 1)  # partly outside
    broken[..., ::3] = torch.nan
    far = torch.where(torch.rand(start.shape, generator=generator) < 0.1, start + 14.0, start)
    return [*found, broken, start, far, start + 0.25]


def look(case: Case, **options: Any) -> CorrelationPyramid:
    return CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cuda", **options)


@pytest.mark.parametrize(
    ("dtype", "out", "size1", "size2", "batch", "channels", "levels", "radius"),
    [
        (torch.float16, torch.float32, (9, 21), (11, 30), 1, 20, 2, 3),
        (torch.bfloat16, torch.bfloat16, (5, 9), (40, 60), 2, 8, 2, 2),
        (torch.float32, torch.float32, (6, 18), (7, 20), 1, 8, 4, 1),  # levels that pool to nothing
    ],
    ids=str,
)
def test_bits_do_not_depend_on_what_was_looked_up(
    dtype: torch.dtype,
    out: torch.dtype,
    size1: tuple[int, int],
    size2: tuple[int, int],
    batch: int,
    channels: int,
    levels: int,
    radius: int,
    machine: Emulator,
) -> None:
    case = rounded(make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius), dtype)
    case = replace(case, fmap1=case.fmap1.to(dtype), fmap2=case.fmap2.to(dtype))
    there = journey(case)
    expected = [look(case, out_dtype=out, reuse=True)(at) for at in there]  # of a first lookup, which finds nothing
    by_default = None if out != torch.float32 else True
    plain = look(case, out_dtype=out, reuse=False)
    eps = 2.0**-19 if dtype == torch.float32 else max(2.0**-15, torch.finfo(out).eps * 2)
    for got, at in zip(expected, there, strict=True):
        want = plain(at)
        assert_within(got, want, eps * float(want.abs().max()), "rounded products")
    machine.launched.clear()
    for reuse, order in ((True, 1), (by_default, -1)):
        pair = look(case, out_dtype=out, reuse=reuse)
        for number, (at, want) in enumerate(list(zip(there, expected, strict=True))[::order]):
            assert torch.equal(pair(at), want), f"lookup {number}, order {order}"
    # The first lookup that keeps computes everything, as there is nothing to sample; not for split features.
    first = 2 * (dtype != torch.float32)
    assert machine.launched["sample_kept"] == 2 * len(there) - first - (by_default is None)


def test_tiles_whose_patches_lie_together(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 16×4 pixels, as on a GPU with little shared memory; an odd one has none beside it."""
    machine.installed(monkeypatch, replace(AMPERE, shared=36 << 10), launch, launch_backward)
    case = make_case((9, 40), (11, 30), batch=2, channels=20, levels=2, radius=2)
    case = replace(case, fmap1=case.fmap1.half(), fmap2=case.fmap2.half())
    there = journey(case)
    pair = look(case, out_dtype=torch.float16, reuse=True)
    for number, at in enumerate(there):
        assert torch.equal(pair(at), look(case, out_dtype=torch.float16, reuse=True)(at)), f"lookup {number}"
    found = pair._lookups._pair
    assert found is not None
    (call,) = found.prepared._launches.values()  # type: ignore[attr-defined]
    assert call.config.groups == 1
    assert call.params.tiles_x == 3


@pytest.mark.parametrize(("size", "full"), [((33, 80), True), ((6, 18), False)])
def test_entries_are_divided_by_what_runs_at_once(size: tuple[int, int], full: bool) -> None:
    """Not by a launch's blocks, which before Hopper are one for every item; they count where they are fewer."""
    case = make_case(size, batch=1, channels=8, levels=2, radius=1)
    case = replace(case, fmap1=case.fmap1.half(), fmap2=case.fmap2.half())
    pair = look(case, reuse=True)
    pair(case.coords)
    (call,) = pair._lookups._pair.prepared._launches.values()  # type: ignore[union-attr,attr-defined]
    assert call.params.crew == (2 * AMPERE.processors if full else call.launch.blocks)
    assert (call.launch.blocks > 2 * AMPERE.processors) == full


def test_products_are_kept() -> None:
    """Behind the pair's back its features become zero: what is read afterwards had been kept."""
    case = make_case((6, 18), batch=1, channels=8, levels=1, radius=1)
    case = replace(case, coords=case.coords.floor() + 0.5)
    pair = look(case, reuse=True)
    first = pair(case.coords)
    found = pair._lookups._pair
    assert found is not None
    found.prepared.state[0].zero_()
    for shift in (0.0, 1.0, -1.0):  # as far as a patch's margin
        moved = case.coords + torch.tensor([shift, 0.0]).view(1, 2, 1, 1)
        assert torch.equal(pair(moved), look(case, reuse=True)(moved))
    assert torch.equal(pair(case.coords), first)
    assert not pair(case.coords + torch.tensor([9.0, 0.0]).view(1, 2, 1, 1))[..., :8].any()  # where no window had been
    assert not look(case, reuse=False)._lookups._pair.prepared._keeper  # type: ignore[union-attr,attr-defined]


def test_patches_made_with_the_pair_serve_the_first_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a network's update is recorded after its preparation; ``graph``: what is being captured."""
    graph = 1
    monkeypatch.setattr(keep, "captured_by", lambda _: graph)
    case = make_case((6, 18), batch=1, channels=8, levels=1, radius=1)
    pair = look(case, reuse=True)
    found = pair._lookups._pair
    assert found is not None
    keeper = found.prepared._keeper  # type: ignore[attr-defined]
    made = keeper._offered[1]
    graph = 0
    assert keeper.take(0, keeper._offered[0]).patches is None  # not captured: makes its own
    graph = 2
    first = pair(case.coords)
    assert keeper._contexts[2].patches is made
    found.prepared.state[0].zero_()
    assert torch.equal(pair(case.coords), first)
    graph = 3  # has patches of its own
    assert not pair(case.coords).any()
    assert keeper._contexts[3].patches is not made


def test_a_number_for_every_preparation() -> None:
    """Whatever lay in the memory that holds it, as in replays of a graph where another tensor has used it before."""
    case = make_case((6, 18), batch=1, channels=8, levels=1, radius=1)
    numbers = set()
    for _ in range(3):
        found = look(case)._lookups._pair
        assert found is not None
        numbers.add(int(found.prepared.state[2].view(torch.int32)[3]))
        found.prepared.state[2].view(torch.int32)[3] = 5
    assert len(numbers) == 3


@pytest.mark.parametrize(("prepared", "captured", "looked"), [(0, 0, 2), (0, 7, 3), (7, 7, 2), (7, 0, 3)])
def test_what_another_replay_has_left_is_looked_at(
    prepared: int, captured: int, looked: int, machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only lookups captured together with the preparation, or neither of them captured, know that nothing is there."""
    case = make_case((6, 18), batch=1, channels=8, levels=1, radius=1)
    case = replace(case, fmap1=case.fmap1.half(), fmap2=case.fmap2.half())
    there = journey(case)[:3]
    expected = [look(case, reuse=True)(at) for at in there]
    graphs = iter([prepared] + 3 * [captured])
    monkeypatch.setattr(keep, "captured_by", lambda _: next(graphs))
    pair = look(case, reuse=True)
    machine.launched.clear()
    for at, want in zip(there, expected, strict=True):
        assert torch.equal(pair(at), want)
    assert machine.launched["sample_kept"] == looked


def test_parts_of_costly_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits stay, whichever parts an entry is in: of so few entries those of every class but the last are divided."""
    seen: set[int] = set()
    run = launch._LookupLaunch.run

    def noting(self: launch._LookupLaunch, stream: int, patches: keep.Patches | None, empty: bool) -> None:
        behind = self.behind

        def counted(stream: int) -> None:
            assert patches is not None
            seen.update(torch.nonzero(patches.notes[:5]).flatten().tolist())
            behind(stream)

        self.behind = counted  # type: ignore[assignment]
        run(self, stream, patches, empty)
        self.behind = behind

    monkeypatch.setattr(launch._LookupLaunch, "run", noting)
    case = make_case((16, 32), (60, 90), batch=1, channels=8, levels=2, radius=2)
    case = replace(case, fmap1=case.fmap1.half(), fmap2=case.fmap2.half())
    generator = torch.Generator().manual_seed(1)
    edges = 20 * torch.rand(case.coords.shape, generator=generator).round()
    spread = [step * torch.randn(case.coords.shape, generator=generator) for step in (0.7, 1.5, 4.0, 9.0, 20.0)]
    pair = look(case, out_dtype=torch.float16, reuse=True)
    for number, moved in enumerate([torch.zeros_like(edges), edges, *spread]):
        at = case.coords + moved
        assert torch.equal(pair(at), look(case, out_dtype=torch.float16, reuse=True)(at)), f"lookup {number}"
    assert seen == {0, 1, 2, 3, 4}
