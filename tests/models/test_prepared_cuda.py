"""The fast form on a GPU: half precision, graphs, bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield.metrics import epe
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig, framing
from fullfield.models.cascade import Cascade
from fullfield.models.prepared import PreparedFlow, PreparedFlowCache

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GIB = 1 << 30
SIZE = (436, 1024)


@pytest.fixture(autouse=True)
def _float32_convolutions() -> Iterator[None]:
    """The modules' convolutions in float32, which TF32 is as far from as float16 is."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
        yield


def textured(size: tuple[int, int], batch: int = 1) -> tuple[Tensor, Tensor]:
    """A pair that moves a little."""
    torch.manual_seed(0)
    coarse = torch.rand(batch, 3, size[0] // 4, size[1] // 4, device="cuda")
    frame = functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)
    return frame, frame.roll((2, 5), (2, 3))


def settled(model: RAFT | SEARAFT) -> RAFT | SEARAFT:
    """Random weights whose batch norms have seen frames, so that activations have the size they have in use."""
    model.cuda()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
        gamma = getattr(module, "gamma", None)
        if isinstance(gamma, nn.Parameter):
            nn.init.constant_(gamma, 0.1)
    with torch.no_grad():
        model.train()(*textured((128, 256)), updates=1)
    return model.eval()


def network(name: str) -> RAFT | SEARAFT:
    torch.manual_seed(0)
    if name == "sea-raft":
        return settled(SEARAFT(SEARAFTConfig.medium()))
    return settled(RAFT(RAFTConfig.large() if name == "raft" else RAFTConfig.small()))


def off(got: Tensor, right: Tensor) -> float:
    assert bool(got.isfinite().all())
    return float((got - right).norm() / right.norm())


@pytest.mark.parametrize("name", ["raft", "raft-small", "sea-raft"])
@pytest.mark.parametrize("size", [(64, 64), (99, 133), SIZE])
def test_prepared_flow_is_close_to_module(name: str, size: tuple[int, int]) -> None:
    model = network(name)
    first, second = textured(size, 2)
    start = 2 * torch.randn(2, 2, 9, 11, device="cuda")
    with torch.no_grad():
        right = [model(first, second, updates=2), model(first, second, updates=2, initial_flow=start)]
    for precision, allowed in (("fast", 6e-3), ("bfloat16", 5e-2), ("exact", 3e-5)):
        fast = PreparedFlow(model, *size, batch=2, precision=precision)
        assert off(fast(first, second, 2), right[0]) < allowed
        assert off(fast(first, second, 2, start), right[1]) < allowed


@pytest.mark.parametrize("name", ["raft", "raft-small", "sea-raft"])
@pytest.mark.parametrize("size", [(1, 1), (8, 700), (301, 16)])
def test_prepared_flow_of_unusual_sizes(name: str, size: tuple[int, int]) -> None:
    model = network(name)
    torch.manual_seed(2)
    first, second = torch.rand(2, 3, 3, *size, device="cuda")
    with torch.no_grad():
        right = model(first, second, updates=2)
    assert off(PreparedFlow(model, *size, batch=3)(first, second, 2), right) < 2e-2


def test_prepared_flow_error_equals_module_on_real_frames(data_dir: Path) -> None:
    from fullfield.estimators._frames import read_or_convert_frame
    from fullfield.io import read_flow

    model = RAFT()
    model.load_checkpoint(data_dir / "weights" / "raft-sintel.pth")
    model.cuda().eval()
    fast = None
    for name in ("Grove2", "Urban2"):
        folder = data_dir / "flow" / "middlebury" / name
        first, second = (read_or_convert_frame(folder / f"frame{n}.png")[None].cuda() for n in (10, 11))
        truth = read_flow(folder / "flow10.flo")
        with torch.no_grad():
            exact = model(first, second)
        if fast is None:
            fast = PreparedFlow(model, *first.shape[-2:])
        errors = [float(epe(flow[0].cpu(), truth.flow, truth.valid)) for flow in (exact, fast(first, second))]
        assert errors[1] == pytest.approx(errors[0], rel=0.005)


def test_prepared_flow_is_repeatable_and_allocates_nothing() -> None:
    fast = PreparedFlow(network("raft"), *SIZE)
    pairs = [textured(SIZE), textured(SIZE)[::-1]]
    first = [fast(*pair, updates=3) for pair in pairs]
    del pairs[2:]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        for pair, right in zip(pairs, first, strict=True):
            assert torch.equal(fast(*pair, updates=3), right)
    assert torch.cuda.memory_allocated() == before
    assert not torch.equal(first[0], first[1])


def test_prepared_flow_serializes_streams_and_threads() -> None:
    fast = PreparedFlow(network("sea-raft"), *SIZE)
    pairs = [textured(SIZE), textured(SIZE)[::-1]]
    right = [fast(*pair) for pair in pairs]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]

    def run(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found[number] = [fast(*pairs[number]) for _ in range(4)]
            stream.synchronize()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        assert len(found[number]) == 4
        assert all(torch.equal(flow, right[number]) for flow in found[number])


@pytest.mark.parametrize("name", ["raft", "sea-raft"])
def test_prepared_flow_deletion_does_not_synchronize(name: str) -> None:
    """The object goes while a stream still works with its memory, and others ask for memory."""
    model, pair = network(name), textured((128, 256))
    right = PreparedFlow(model, 128, 256)(*pair)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    fast = PreparedFlow(model, 128, 256)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1 << 29)
        flow = fast(*pair)
        done = stream.record_event()
    del fast
    assert not done.query()
    sizes = [1 << bits for bits in range(9, 24)]
    poison = [torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(8)]
    torch.cuda.current_stream().synchronize()
    assert not done.query()
    stream.synchronize()
    assert torch.equal(flow, right)
    del poison


@pytest.mark.parametrize("where", ["features", "context", "update"])
@pytest.mark.parametrize("name", ["raft", "raft-small", "sea-raft"])
def test_prepared_flow_overflow_is_not_finite(name: str, where: str) -> None:
    """Activations past 65 504, in a layer that float32 holds, do not give a flow that looks like one."""
    model = network(name)
    module: Any = model
    block = {"features": module.fnet.layer2[0].conv1, "context": module.cnet.layer2[0].conv1}
    layer = block.get(where) or module.update_block.encoder.convc1
    with torch.no_grad():
        layer.weight.mul_(1e5)
        right = model(*textured((128, 256)), updates=2)
    pair = textured((128, 256))
    assert bool(right.isfinite().all())
    assert bool(PreparedFlow(model, 128, 256, precision="bfloat16")(*pair, updates=2).isfinite().all())
    assert not bool(PreparedFlow(model, 128, 256)(*pair, updates=2).isfinite().all())


@pytest.mark.parametrize(("name", "size", "most"), [("sea-raft", (864, 2048), 0.6), ("raft", (1728, 4096), 1.5)])
def test_prepared_flow_peak_memory_is_bounded(name: str, size: tuple[int, int], most: float) -> None:
    model = network(name)
    first, second = textured(size)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    flow = PreparedFlow(model, *size)(first, second, updates=2)
    torch.cuda.synchronize()
    assert bool(flow.isfinite().all())
    assert torch.cuda.max_memory_allocated() - before < most * GIB


def test_prepared_sizes_on_gpu_in_cascade_equal_module() -> None:
    model = network("sea-raft")
    first, second = textured((864, 1152))
    with torch.no_grad():
        right = Cascade(model, updates=2)(first, second)
    assert off(Cascade(PreparedFlowCache(model), updates=2)(first, second), right) < 0.05


def test_prepared_flow_keeps_global_torch_flags() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.is_inference_mode_enabled()
    PreparedFlow(network("raft-small"), 64, 96)(*textured((64, 96)))
    assert before == (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.is_inference_mode_enabled(),
    )


@pytest.mark.parametrize("name", ["raft", "raft-small", "sea-raft"])
def test_prepared_bidirectional_flow_equals_two_calls(name: str) -> None:
    first, second = textured((99, 133))
    fast = PreparedFlow(network(name), 99, 133)
    start = 2 * torch.randn(1, 2, 9, 11, device="cuda")
    for _ in range(2):  # recorded, replayed
        want = fast(first, second, updates=3, initial_flow=start), fast(second, first, updates=3)
        found = fast.bidirectional(first, second, updates=3, initial_flow=start)
        for got, right in zip(found, want, strict=True):
            assert off(got, right) < 2e-3
        found = fast.bidirectional(second, first, updates=3, initial_backward=start)
        for got, right in zip(found, want[::-1], strict=True):
            assert off(got, right) < 2e-3
    if name == "sea-raft":  # what is told of the flow's error
        model = network(name)
        with torch.no_grad():
            there, back = model.bidirectional_with_mixture(first, second, 3, start)
        for _ in range(2):
            ways = fast.bidirectional_with_mixture(first, second, 3, start)
            one = fast.flow_with_mixture(first, second, 3, start)
            for got, right in zip((*ways[0], *ways[1], *one), (*there, *back, *there), strict=True):
                assert got.shape == right.shape
                assert off(got, right) < 0.02
    again = fast.bidirectional(second, first, updates=3)
    assert off(again[0], want[1]) < 2e-3


@pytest.mark.parametrize("batch", [1, 2])
def test_prepared_flow_continues_updates_while_flow_moves(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    model = network("sea-raft")
    model.config = model.config.replace(max_updates=6)
    fast = PreparedFlow(model, 128, 256, batch)
    frames = textured((128, 256), batch)
    for moves, updates in ((False, 4), (True, 6)):
        monkeypatch.setattr(
            framing, "mark_unconverged_pairs", lambda old, _, moves=moves: old.new_full((len(old),), moves).bool()
        )
        assert torch.equal(fast(*frames), fast(*frames, updates=updates))
