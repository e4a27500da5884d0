"""The contract that RAFT and SEA-RAFT share: sizes, batches, dtypes, starts, backends, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_networks import CONFIGS, built, pair, randomise, tiny
from torch import Tensor, nn
from torch.nn import functional

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig
from refusals import refuses

Network = RAFT | SEARAFT


@pytest.fixture(params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> Network:
    return tiny(name)


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (8, 8), (17, 16), (40, 9), (64, 72), (61, 71), (65, 95)])
def test_networks_accept_any_size(model: Network, size: tuple[int, int]) -> None:
    """The padding is the original's: evenly on both sides, the odd pixel right and below."""
    height, width = size
    frames = pair(*size)
    left, right = (-width) % 8 // 2, (-width) % 8 - (-width) % 8 // 2
    top, bottom = (-height) % 8 // 2, (-height) % 8 - (-height) % 8 // 2
    with torch.no_grad():
        flow = model(*frames, 2)
        assert flow.shape == (1, 2, *size)
        assert flow.isfinite().all()
        if min(size) > 8:
            padded = model(*(functional.pad(f, (left, right, top, bottom), mode="replicate") for f in frames), 2)
            torch.testing.assert_close(flow, padded[..., top : top + height, left : left + width])


def test_network_batch_equals_singles_and_accepts_uint8(model: Network) -> None:
    one, two = pair(64, 80, batch=2)
    bytes_ = [(255 * frame).round().to(torch.uint8) for frame in (one, two)]
    with torch.no_grad():
        both = model(one, two, 2)
        alone = torch.cat([model(one[i, None], two[i, None], 2) for i in range(2)])
        torch.testing.assert_close(both, alone, rtol=0, atol=1e-4)
        assert (model(two, one, 2) - both).abs().max() > 1e-2
        as_floats = model(*(frame / 255 for frame in bytes_), 2)
        torch.testing.assert_close(model(*bytes_, 2), as_floats, rtol=0, atol=1e-4)


def test_prepared_flow_on_cpu_equals_network(model: Network) -> None:
    randomise(model)  # batch norms whose statistics count
    frames = pair(40, 56, batch=2)
    with torch.no_grad():
        expected = model(*frames, 2)
        model.optimize_for_cpu()
        flow = model(*frames, 2)
        none = model(*(frame[:0] for frame in frames), 2)
        copied = copy.deepcopy(model)(*frames, 2)
        exact = copy.deepcopy(model).double()(*(frame.double() for frame in frames), 2)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert none.shape == (0, 2, 40, 56)
    assert torch.equal(copied, flow)
    for found in (flow, exact):
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_merged_layers_follow_weight_changes() -> None:
    one, two = (tiny("sea-raft") for _ in range(2))
    for seed, network in enumerate((one, two)):
        randomise(network, seed)
        network.optimize_for_cpu()
    frames, block = pair(40, 56), one.update_block.refine[0]
    with torch.no_grad():
        expected = two(*frames, 2)
        assert (one(*frames, 2) - expected).abs().max() > 1e-2 * expected.abs().max()
        one.load_state_dict(two.state_dict())
        assert torch.equal(one(*frames, 2), expected)
        block.merged_narrow.zero_()
        assert not torch.equal(one(*frames, 2), expected)  # it computes with them
    assert not any("merged" in name for name in one.state_dict())
    block.train()(torch.rand(1, block.dwconv.in_channels, 4, 4)).sum().backward()
    assert block.pwconv1.weight.grad is not None


def test_network_encoding_frames_separately_equals_batch(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = pair(56, 72, 2)
    seen: list[int] = []
    model.fnet.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    with torch.no_grad():
        together = model(*frames, 2)
        monkeypatch.setattr("fullfield.models.framing._TOGETHER_PIXELS", 1)
        torch.testing.assert_close(model(*frames, 2), together, rtol=0, atol=1e-4)
    model.predictions(*frames, 1)
    assert seen == [4, 2, 2, 4]


@pytest.mark.parametrize("half", [False, True], ids=["autocast", "bfloat16"])
def test_network_half_precision_keeps_float32_coordinates(
    name: str, model: Network, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if half and name != "sea-raft":
        pytest.skip("RAFT's instance norms are made for autocast")
    frames, seen = pair(64, 80), []
    pyramid, step = model.build_pyramid, model.update_hidden_state_and_coords

    def spied(fmap1: Tensor, fmap2: Tensor) -> Any:
        lookup = pyramid(fmap1, fmap2)

        def call(coords: Tensor) -> Tensor:
            found = lookup(coords)
            seen.append((fmap1.dtype, coords.dtype, found.dtype))
            return found

        return call

    def stepped(*arguments: Any) -> tuple[Tensor, Tensor]:
        net, coords = step(*arguments)
        seen.append((net.dtype, coords.dtype))
        return net, coords

    with torch.no_grad():
        exact = model(*frames, 2)
        monkeypatch.setattr(model, "build_pyramid", spied)
        monkeypatch.setattr(model, "update_hidden_state_and_coords", stepped)
        if half:
            flow = model.to(torch.bfloat16)(*frames, 2)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                flow = model(*frames, 2)
    low, full = torch.bfloat16, torch.float32
    assert seen == ([(low, full, low)] if name == "sea-raft" else [(low, full, full), (low, full)]) * 2
    assert flow.dtype == torch.float32
    difference = (flow - exact).abs()
    assert 0 < difference.mean() < 0.2 * exact.abs().mean()
    assert name == "sea-raft" or difference.max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("name", ["raft", "sea-raft"])
def test_network_compiles_without_graph_break(name: str) -> None:
    """Without a number of updates, a graph has those of the configuration, whether the flow still moves or not."""
    model = tiny(name, updates=1, **({"max_updates": 5} if name == "sea-raft" else {}))
    frames, start = pair(52, 64), torch.randn(1, 2, 13, 16)
    for encoder in (model.fnet, model.cnet):
        for stage in (encoder.layer1, encoder.layer2, encoder.layer3):
            del stage[1:]  # of the first block's kind
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        got = compiled(*frames, initial_flow=start)
        torch.testing.assert_close(got, model(*frames, 1, start), rtol=0, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["raft-small", "sea-raft"])
def test_network_uses_named_backend(model: Network) -> None:
    frames = pair(64, 80)
    with torch.no_grad():
        expected = model(*frames, 2)
        for backend in ("reference", "dense"):
            other = built(model.config, correlation=backend).eval()
            other.load_state_dict(model.state_dict())
            torch.testing.assert_close(other(*frames, 2), expected, rtol=1e-4, atol=1e-4)
        refuses("backend: expected one of", built(model.config, correlation="fast").eval(), *frames, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame1": torch.zeros(3, 64, 64)}, "frame1: expected shape"),
        ({"frame1": torch.zeros(1, 1, 64, 64)}, "frame1: expected shape"),
        ({"frame1": torch.zeros(1, 3, 0, 64), "frame2": torch.zeros(1, 3, 0, 64)}, "frame1: "),
        ({"frame2": torch.zeros(1, 3, 64, 65)}, "frame2: expected shape"),
        ({"frame2": torch.zeros(1, 3, 64, 64, dtype=torch.uint8)}, "frame2: expected dtype"),
        ({"frame2": torch.zeros(1, 3, 64, 64, dtype=torch.float64)}, "frame2: "),
        ({"frame1": torch.zeros(1, 3, 64, 64, dtype=torch.int64)}, "frame1: expected dtype"),
        ({"frame1": None}, "frame1: expected a tensor"),
        ({"frame2": None}, "frame2: "),
        ({"updates": -1}, "updates: expected an integer >= "),
        ({"updates": 1.5}, "updates: expected an integer"),
        ({"initial_flow": torch.zeros(2, 8, 8)}, "initial_flow: expected shape"),
        ({"initial_flow": torch.zeros(2, 2, 8, 8)}, "initial_flow: expected shape"),
        ({"initial_flow": torch.zeros(1, 3, 8, 8)}, "initial_flow: "),
        ({"initial_flow": torch.zeros(1, 2, 0, 8)}, "initial_flow: "),
        ({"initial_flow": torch.zeros(1, 2, 8, 8, dtype=torch.int32)}, "initial_flow: expected a floating dtype"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["raft-small", "sea-raft"])
def test_network_refuses_bad_inputs(model: Network, changes: dict[str, Any], message: str) -> None:
    one, two = torch.rand(2, 1, 3, 64, 64)
    for call in (model, model.predictions, getattr(model, "flow_with_mixture", model)):
        refuses(f"^{message}", call, **{"frame1": one, "frame2": two, "updates": 1, **changes})


@pytest.mark.parametrize("name", ["raft-small", "sea-raft"])
def test_network_refuses_frames_on_other_device(model: Network) -> None:
    elsewhere = torch.zeros(1, 3, 16, 16, device="meta")
    refuses(r"^frame1: expected device cpu, as the weights, got .* on meta$", model, elsewhere, elsewhere)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "resnet50"}, "backbone: expected one of resnet18, resnet34"),
        ({"stage_channels": (64, 128)}, "stage_channels: expected 3 sizes"),
        ({"stage_channels": (64, 128, 0)}, "stage_channels: expected an integer >= 1"),
        ({"channels": 3}, "channels: expected an integer >= 4"),
        ({"channels": 5}, "channels: expected an even integer"),
        ({"radius": 9}, "radius: expected"),
        ({"levels": 0}, "levels: expected"),
        ({"updates": -1}, "updates: expected an integer >= 0"),
        ({"refinements": 0}, "refinements: expected"),
        ({"log_scale_max": -1.0}, "log_scale_max: expected"),
        ({"raft": {"levels": 0}}, "levels: "),
        ({"raft": {"padding": "x"}}, "padding: "),
        ({"raft": {"encoder_channels": (1, 2)}}, "encoder_channels: "),
        ({"raft": {"updates": 0}}, "updates: "),
        ({"raft": {"dropout": 1}}, "dropout: "),
    ],
    ids=str,
)
def test_network_configs_refuse_bad_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        RAFTConfig.large(**changes["raft"]) if "raft" in changes else SEARAFTConfig(**changes)


def test_networks_refuse_config_of_other_type() -> None:
    for network, wrong in ((RAFT, "large"), (SEARAFT, {"updates": 4})):
        refuses(f"config: expected a {network.__name__}Config", network, wrong)
