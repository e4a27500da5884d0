"""The fast form of a network: in float32 the same numbers as the plain module, in bfloat16 near them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from tiny_networks import CONFIGS, built
from torch import Tensor, nn

from fullfield.metrics import epe
from fullfield.models import RAFT, SEARAFT, load_weights
from fullfield.models.cascade import Cascade
from fullfield.models.prepared import PreparedFlow, PreparedFlowCache, choose_cpu_dtype, shared
from fullfield.models.prepared.shared import WeightConverter
from fullfield.ops._fused import reference
from fullfield.testing import sample_textured_scene
from refusals import refuses

SIZE = (70, 93)


def network(name: str) -> RAFT | SEARAFT:
    """With norms and scales that matter."""
    torch.manual_seed(0)
    model = built(CONFIGS[name])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.normal_(module.bias, 0, 0.1)
        gamma = getattr(module, "gamma", None)
        if isinstance(gamma, nn.Parameter):
            nn.init.normal_(gamma, 0, 0.3)
    return model.eval()


def frames(batch: int = 1, size: tuple[int, int] = SIZE) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    first, second = torch.rand(2, batch, 3, *size)
    return first, second


def close(got: Tensor, right: Tensor) -> None:
    assert got.shape == right.shape
    assert got.dtype == right.dtype == torch.float32
    assert float((got - right).norm() / right.norm()) < 2e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_prepared_flow_equals_module(name: str) -> None:
    model = network(name)
    first, second = frames(2)
    fast = PreparedFlow(model, *SIZE, batch=2, precision="exact")
    start = 3 * torch.randn(2, 2, 12, 9)
    with torch.no_grad():
        right = model(first, second, updates=3)
        close(fast(first, second, updates=3), right)
        right = model(first, second, updates=2, initial_flow=start)
        close(fast(first, second, 2, start), right)
        right = model(first, second, updates=0, initial_flow=start)
        close(fast(first, second, 0, start), right)
        if name == "sea-raft":  # from the flow that it regresses
            close(fast(first, second, updates=0), model(first, second, updates=0))
        # Nothing of the calls before is left, whatever layout and dtype the frames have.
        eight_bit = [(255 * f).to(torch.uint8).contiguous(memory_format=torch.channels_last) for f in (second, first)]
        close(fast(*eight_bit, updates=1), model(*eight_bit, updates=1))


def test_prepared_flow_uses_padding_of_config() -> None:
    model = RAFT(CONFIGS["raft"].replace(padding="kitti")).eval()
    first, second = frames()
    with torch.no_grad():
        close(PreparedFlow(model, *SIZE, precision="exact")(first, second, updates=1), model(first, second, updates=1))


@pytest.mark.parametrize("name", CONFIGS)
def test_prepared_flow_bfloat16_is_close_to_module(name: str) -> None:
    model = network(name)
    first, second = frames(2)
    half = PreparedFlow(model, *SIZE, batch=2, precision="bfloat16")
    assert half.dtype == torch.bfloat16
    with torch.no_grad():
        got, right = half(first, second, updates=3), model(first, second, updates=3)
    assert 1e-5 < float((got - right).norm() / right.norm()) < 0.05
    assert PreparedFlow(model, *SIZE, precision="exact").backend is None
    both = PreparedFlow(model, *SIZE, batch=2, precision="bfloat16")
    there, back = both.bidirectional(first, second, updates=3)
    assert both.backend == half.backend is not None
    assert torch.equal(there, got)
    assert torch.equal(back, half(second, first, updates=3))
    native = choose_cpu_dtype()
    fast = PreparedFlow(model, *SIZE, batch=2)
    assert fast.dtype == native
    same = half if native == torch.bfloat16 else PreparedFlow(model, *SIZE, batch=2, precision="exact")
    assert torch.equal(fast(first, second, updates=1), same(first, second, updates=1))


def test_prepared_flow_keeps_earlier_results() -> None:
    model = network("raft")
    first, second = frames()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        fast = PreparedFlow(model, *SIZE, precision="exact")
        inside = fast(first, second, updates=2)
    kept = inside.clone()
    after = fast(first.requires_grad_(), second, updates=2)
    assert not after.requires_grad
    assert torch.equal(after, inside)
    fast(second, first, updates=1)
    assert torch.equal(inside, kept), "results are new memory"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(fast(first, second, updates=2), kept), "later changes of the model are not seen"


@pytest.mark.parametrize("where", ["frames", "features", "context", "correlation", "state"])
@pytest.mark.parametrize("name", CONFIGS)
def test_prepared_flow_shows_nonfinite_input(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though rectifiers make 0 of NaN, as those of some libraries do."""
    model: Any = network(name)
    convolve, products = reference.convolve, shared.multiply_relu

    def swallowing(*arguments: Any, relu: bool = False, **options: Any) -> Tensor:
        done = convolve(*arguments, relu=relu, **options)
        return done.nan_to_num_(0.0, float("inf")) if relu else done

    monkeypatch.setattr(reference, "convolve", swallowing)
    monkeypatch.setattr(shared, "multiply_relu", lambda *a, **o: products(*a, **o).nan_to_num_(0.0, float("inf")))
    first, second = (frame.clone() for frame in frames(2))
    update = model.update_block
    last = (
        update.refine[0].pwconv2
        if name == "sea-raft"
        else update.gru.convq
        if name == "raft-small"
        else update.gru.convq2
    )
    layers = {
        "features": model.fnet.layer2[0].conv1,
        "context": model.cnet.layer2[0].conv1,
        "correlation": update.encoder.convc1,
        "state": last,
    }
    if where == "frames":
        first[0, :, 20, 30] = float("nan")
    else:
        with torch.no_grad():
            layers[where].weight.fill_(float("nan") if where == "state" else 1e38)
    flow = PreparedFlow(model, *SIZE, batch=2, precision="exact")(first, second, updates=2)
    assert bool(flow[0].isnan().all())
    assert bool(flow[1].isfinite().all()) == (where == "frames")


def tensors_of(thing: object, seen: set[int]) -> list[Tensor]:
    """Whatever an object of ours holds."""
    if id(thing) in seen or isinstance(thing, nn.Module | ModuleType | WeightConverter):
        return []
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return [thing]
    inner = thing if isinstance(thing, list | tuple) else vars(thing).values() if hasattr(thing, "__dict__") else ()
    return [found for part in inner for found in tensors_of(part, seen)]


@pytest.mark.parametrize("name", CONFIGS)
def test_prepared_flow_lists_all_its_tensors(name: str) -> None:
    """Their memory must outlive what streams have still to do."""
    fast = PreparedFlow(network(name), *SIZE, precision="exact")
    found = tensors_of(fast._network, set())
    assert len(found) > 20
    assert {id(values) for values in found} <= {id(values) for values in fast._parameters}


@pytest.mark.parametrize("name", CONFIGS)
def test_prepared_empty_batch_equals_module(name: str) -> None:
    model = network(name)
    first, second = torch.zeros(2, 0, 3, *SIZE)
    for fast in (
        PreparedFlow(model, *SIZE, batch=0),
        PreparedFlowCache(model),
        Cascade(PreparedFlowCache(model), threshold=60),
    ):
        for start in (None, torch.zeros(0, 2, 8, 8)):
            flow = fast(first, second, updates=1, initial_flow=start)
            with torch.no_grad():
                right = model(first, second, updates=1, initial_flow=start)
            assert flow.shape == right.shape == (0, 2, *SIZE)
            assert flow.dtype == right.dtype


def test_prepared_flow_refuses_bad_arguments() -> None:
    model = network("raft")
    first, second = frames()
    fast = PreparedFlow(model, *SIZE, precision="exact")
    for call, message in (
        (
            lambda: fast(*frames(size=(64, 64))),
            r"frame1: expected the prepared size \[1, 3, 70, 93\], got .*\[1, 3, 64, 64\]",
        ),
        (lambda: fast(first, second, updates=0), "updates: expected an integer >= 1"),
        (lambda: fast(first, second, initial_flow=torch.zeros(2, 2, 8, 8)), "initial_flow: expected shape"),
        (lambda: PreparedFlow(model, *SIZE, precision="half"), "precision: expected one of fast, bfloat16, exact"),
        (lambda: PreparedFlow(model, 0, 8), "height: expected an integer >= 1"),
        (lambda: PreparedFlow(nn.Identity(), 8, 8), "model: expected a RAFT or SEARAFT"),  # type: ignore[arg-type]
        (
            lambda: PreparedFlow(RAFT(CONFIGS["raft"].replace(hidden_channels=12)), *SIZE),
            "model: expected channels in multiples of 8, got 12",
        ),
    ):
        refuses(message, call)


def test_prepared_sizes_keep_last_used_sizes() -> None:
    model = network("sea-raft")
    fast = PreparedFlowCache(model, sizes=2)
    first = fast.get_or_prepare_size(64, 64)
    assert fast.get_or_prepare_size(64, 64) is first
    second = fast.get_or_prepare_size(64, 72)
    assert fast.get_or_prepare_size(64, 64) is first
    fast.get_or_prepare_size(64, 80)
    assert fast.get_or_prepare_size(64, 64) is first
    assert fast.get_or_prepare_size(64, 72) is not second
    fast = PreparedFlowCache(network("raft"))
    refuses(r"frame1: expected device cpu, got .*meta", fast, *torch.zeros(2, 1, 3, 64, 64, device="meta"))
    assert not fast._by_size


def test_prepared_sizes_in_cascade_equal_module() -> None:
    model = network("sea-raft")
    first, second = frames(size=(150, 190))
    with torch.no_grad():
        right = Cascade(model, updates=1, coarse_updates=2, threshold=100)(first, second)
        close(
            Cascade(PreparedFlowCache(model, "exact"), updates=1, coarse_updates=2, threshold=100)(first, second), right
        )


@pytest.mark.parametrize("name", ["fullfield-s", "fullfield-m"])
def test_bundled_networks_load_offline_and_equal_prepared_flow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.weights.download_if_missing", lambda *_, **__: pytest.fail("downloads"))
    model = load_weights(name)
    scene = sample_textured_scene(160, 200, seed=3, max_motion=4)
    frames = scene.frame1[None], scene.frame2[None]
    with torch.inference_mode():
        flow = model(*frames)
    assert epe(flow[0], scene.flow, ~scene.occluded) < 0.5 * scene.flow.norm(dim=0).mean()
    prepared = PreparedFlow(model, 160, 200, precision="exact")
    torch.testing.assert_close(prepared(*frames), flow, atol=1e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["fullfield-s", "fullfield-m"])
def test_bundled_networks_in_half_precision_match_float32(name: str) -> None:
    model = load_weights(name).cuda()
    scene = sample_textured_scene(160, 200, seed=3, max_motion=4)
    frames = scene.frame1[None].cuda(), scene.frame2[None].cuda()
    with torch.inference_mode():
        flow = model(*frames, updates=4)
    difference = (PreparedFlow(model, 160, 200)(*frames, updates=4) - flow).norm(dim=1)
    assert float(difference.mean()) < 0.05
