"""Lookups that keep products between them: the same bits whatever was looked up before, and products really kept."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import cpu
from fullfield.ops.correlation.protocol import check_reuse
from tests.oracles.correlation import Case, make_case, rounded

pytest.importorskip("numba")

SHAPES = [
    # size1, size2, batch, channels, levels, radius
    ((9, 21), (9, 21), 2, 20, 4, 4),
    ((17, 33), (10, 40), 1, 35, 3, 3),
    ((1, 1), (8, 8), 3, 1, 1, 1),
    ((3, 50), (3, 50), 1, 16, 2, 8),
    ((8, 8), (5, 3), 2, 30, 8, 1),  # levels that pool to nothing
    ((6, 20), (1, 1), 1, 7, 2, 5),
]


def journey(case: Case) -> list[Tensor]:
    """Positions as a network's, then as none would have them: small steps, jumps, borders, and what is no number."""
    start = case.coords
    height, width = case.fmap2.shape[-2:]
    generator = torch.Generator().manual_seed(3)
    found = [start, start.clone()]
    for step in range(5):  # every pixel by itself, in all directions
        found.append(found[-1] + torch.randn(start.shape, generator=generator) * (0.4 + 0.4 * step))
    found += [start + torch.tensor([d, -d]).view(1, 2, 1, 1) for d in (0.6, 1.7, 2.5, -1.2, -3.9)]
    found.append(torch.rand(start.shape, generator=generator) * torch.tensor([width, height]).view(1, 2, 1, 1))
    found.append(found[-1] + 1.3)  # windows far apart that move, too
    found.append(found[-1] - torch.tensor([2.1, 0.4]).view(1, 2, 1, 1))
    found.append(start * 0 + torch.tensor([-4.5, height + 2.5]).view(1, 2, 1, 1))  # partly outside
    broken = start.clone()
    broken[..., ::2] = torch.nan
    broken[..., :1, 1::3] = torch.inf
    far = torch.where(torch.rand(start.shape, generator=generator) < 0.5, start, -1e9)
    return [*found, broken, start, far, start + 0.25, start]


def bits(out: Tensor) -> Tensor:
    return out.contiguous().view(torch.int32)


def pyramid(case: Case, **options: Any) -> CorrelationPyramid:
    return CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cpu", **options)


def prepared(look: CorrelationPyramid) -> cpu.Cpu:
    found = look._lookups._pair
    assert found is not None
    assert isinstance(found.prepared, cpu.Cpu)
    return found.prepared


@pytest.mark.parametrize(
    ("shape", "dtype", "motion"),
    [
        (shape, dtype, ("smooth", "random")[(number + column) % 2])
        for number, shape in enumerate(SHAPES)
        for column, dtype in enumerate((torch.float32, (torch.float16, torch.bfloat16)[number // 2 % 2]))
    ],
    ids=str,
)
def test_bits_do_not_depend_on_what_was_looked_up(dtype: torch.dtype, motion: str, shape: tuple[Any, ...]) -> None:
    size1, size2, batch, channels, levels, radius = shape
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius, motion=motion)
    case = rounded(case, dtype)
    case = replace(case, fmap1=case.fmap1.to(dtype), fmap2=case.fmap2.to(dtype))
    plain = pyramid(case, reuse=False)
    there = journey(case)
    expected = [bits(plain(at)) for at in there]
    assert prepared(plain)._patches is None
    for reuse in (True, None):
        for order in (1, -1):
            look = pyramid(case, reuse=reuse)
            for number, (at, want) in enumerate(list(zip(there, expected, strict=True))[::order]):
                assert torch.equal(bits(look(at)), want), f"lookup {number}, order {order}"
            assert prepared(look)._patches is not None


def test_bits_do_not_depend_on_layout_and_threads() -> None:
    case = make_case((19, 45), levels=4, radius=4, channels=40)
    there = journey(case)
    plain = pyramid(case, reuse=False)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            look = pyramid(case, reuse=True, memory_format=torch.channels_last, out_dtype=torch.float16)
            for at in there:
                out = look(at)
                assert out.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(out, plain(at).half())
    finally:
        torch.set_num_threads(threads)


def test_features_that_are_not_finite_stay_where_they_are() -> None:
    case = make_case((9, 21), batch=1, levels=2, radius=2)
    case.fmap2[0, :, 4, 10] = torch.nan
    plain, look = pyramid(case, reuse=False), pyramid(case, reuse=True)
    for at in journey(case):
        expected = plain(at)
        out = look(at)
        assert torch.equal(out.isnan(), expected.isnan())
        assert torch.equal(out.nan_to_num(), expected.nan_to_num())
    assert plain(case.coords).isnan().any()


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_products_are_kept(motion: str) -> None:
    """Behind the pair's back its features become zero: what is read afterwards had been kept."""
    case = make_case((12, 40), batch=1, levels=1, radius=4, motion=motion)
    case.coords.floor_().add_(0.5)
    look = pyramid(case, reuse=True)
    first = look(case.coords)
    prepared(look).state[0].zero_()
    assert torch.equal(look(case.coords), first)
    other = case.coords - 0.25  # the same windows, blended anew
    assert torch.equal(look(other), pyramid(case)(other))
    moved = look(case.coords + torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)).view(9, 9, 12, 40)  # dx, dy
    assert torch.equal(moved[:7], first.view(9, 9, 12, 40)[2:])  # the cells of before
    if motion == "smooth":
        jump = case.coords.flip(3)
        assert pyramid(case)(jump)[..., :8].abs().max() > 1
        assert look(jump)[..., :8].abs().max() == 0  # where no window had been


def test_the_first_lookup_keeps_nothing() -> None:
    case = make_case()
    look, eager, never = pyramid(case), pyramid(case, reuse=True), pyramid(case, reuse=False)
    for each in (look, eager, never):
        each(case.coords)
    assert prepared(look)._patches is None
    assert prepared(eager)._patches is not None
    for each in (look, never):
        each(case.coords)
    assert prepared(look)._patches is not None
    assert prepared(never)._patches is None


def test_an_empty_batch_keeps_nothing() -> None:
    look = CorrelationPyramid(torch.zeros(0, 4, 5, 6), torch.zeros(0, 4, 5, 6), backend="cpu", reuse=True)
    assert look(torch.zeros(0, 2, 5, 6)).shape == (0, 324, 5, 6)
    assert prepared(look)._patches is None


def test_gradients_are_those_of_lookups_that_keep_nothing() -> None:
    case = make_case((9, 21), levels=3, radius=3)
    there = journey(case)[:6]

    def gradients(reuse: bool | None) -> list[Tensor]:
        fmap1, fmap2 = case.fmap1.clone().requires_grad_(), case.fmap2.clone().requires_grad_()
        steps = [at.clone().requires_grad_() for at in there]
        look = CorrelationPyramid(fmap1, fmap2, case.levels, case.radius, backend="cpu", reuse=reuse)
        outs = [look(at) for at in steps]
        return list(torch.autograd.grad(sum(out.square().sum() for out in outs), (fmap1, fmap2, *steps)))  # type: ignore[arg-type]

    for got, expected in zip(gradients(None), gradients(False), strict=True):
        assert torch.equal(got, expected)


def test_lookups_at_once() -> None:
    case = make_case((24, 60), batch=1, channels=48, levels=4, radius=4)
    there = journey(case)
    plain, look = pyramid(case, reuse=False), pyramid(case, reuse=True)
    expected = [bits(plain(at)) for at in there]
    with ThreadPoolExecutor(4) as pool:
        for out, want in zip(pool.map(look, there * 3), expected * 3, strict=True):
            assert torch.equal(bits(out), want)


def test_a_lookup_that_fails_leaves_the_products_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case()
    look = pyramid(case, reuse=True)
    first = look(case.coords)
    with monkeypatch.context() as patched:
        patched.setattr(cpu, "run_parts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            look(case.coords)
    kept = prepared(look)._patches
    assert kept is not None
    assert not kept.lock.locked()
    assert torch.equal(look(case.coords), first)


def test_copies_keep_nothing() -> None:
    case = make_case()
    pair = cpu.prepare(replace(prepared(pyramid(case)).request, reuse=True), case.fmap1, case.pyramid())
    first = pair.lookup(case.coords, torch.float32, False)
    for other in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert other._patches is None
        assert torch.equal(other.lookup(case.coords, torch.float32, False), first)
    assert pair._patches is not None


def test_memory_is_what_the_page_says() -> None:
    """At radius 4 with four levels 4.2 kB for every pixel of the first map, and 264 bytes for every tile and level."""
    case = make_case((32, 64), batch=2, channels=3, levels=4, radius=4)
    look = pyramid(case, reuse=True)
    look(case.coords)
    kept = prepared(look)._patches
    assert kept is not None
    pixels = 2 * 32 * 64
    assert kept.cells.nbytes == pixels * 4200
    assert kept.notes.nbytes == pixels / 16 * 4 * 264
    assert sum(cpu.slot_cells(4, level) for level in range(4)) * 4 == 4200


def test_refusals_are_named() -> None:
    case = make_case()
    with pytest.raises(InputError, match="reuse: expected True, False or None, got int 1"):
        pyramid(case, reuse=1)
    with pytest.raises(InputError, match=r"reuse: expected None or False on a GPU.*got True on cuda:0"):
        check_reuse(True, torch.device("cuda", 0))
    check_reuse(None, torch.device("cuda", 0))
    with pytest.raises(InputError, match=r"backend: 'dense' cannot .*keeps no products between lookups \(reuse=True\)"):
        CorrelationPyramid(case.fmap1, case.fmap2, backend="dense", reuse=True)
    assert CorrelationPyramid(case.fmap1, case.fmap2, reuse=True).backend == "cpu"
    with pytest.raises(InputError, match="backend: none can serve this request"):
        CorrelationPyramid(case.fmap1.double(), case.fmap2.double(), reuse=True)

    def traced(fmap1: Tensor, fmap2: Tensor) -> Tensor:
        return CorrelationPyramid(fmap1, fmap2, 3, 3, reuse=True)(case.coords)

    with pytest.raises(Exception, match="reuse: expected None or False in traced code"):
        torch.compile(traced, fullgraph=True, backend="aot_eager")(case.fmap1, case.fmap2)
