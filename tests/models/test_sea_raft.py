"""SEA-RAFT: the original's outputs and gradients, and the contract of a network."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fullfield import InputError
from fullfield.models.framing import coordinate_grid, padding_for
from fullfield.models.sea_raft import SEARAFT, SEARAFTConfig, expected_log_scale

# Small enough for a test of what does not depend on the size.
TINY = SEARAFTConfig.small(stem_channels=8, stage_channels=(8, 12, 16), channels=16, updates=2)


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Weights under which every branch matters: the published layer scale of 1e-6 would hide the ConvNeXt blocks."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("gamma"):
            value.data.copy_(0.3 + 0.1 * noise)
        elif name.endswith("running_var"):
            value.copy_(1 + 0.2 * noise.abs())
        elif name.endswith(("bias", "running_mean")):
            value.data.copy_(0.05 * noise)
        elif value.ndim == 1:
            value.data.copy_(0.7 + 0.1 * noise)
        elif value.ndim > 1:
            value.data.copy_(noise / value[0].numel() ** 0.5)


def frames(height: int, width: int, batch: int = 1, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, height // 4 + 2, width // 4 + 2, generator=generator)
    fine = nn.functional.interpolate(coarse, size=(height + 4, width + 4), mode="bicubic").clamp(0, 1)
    return fine[..., :height, :width].contiguous(), fine[..., 2 : height + 2, 3 : width + 3].contiguous()


def pair(ptlflow: Any, size: str) -> tuple[nn.Module, SEARAFT]:
    """ptlflow's model and ours with the same weights."""
    theirs = ptlflow.get_model(f"sea_raft_{size}").eval()
    randomise(theirs)
    config = {"s": SEARAFTConfig.small, "m": SEARAFTConfig.medium, "l": SEARAFTConfig.large}[size]()
    ours = SEARAFT(config).eval()
    ours.load_checkpoint(theirs.state_dict())
    return theirs, ours


def as_images(frame1: Tensor, frame2: Tensor) -> dict[str, Tensor]:
    """What ptlflow's models take: BGR."""
    return {"images": torch.stack((frame1, frame2), 1).flip(2)}


def tiny(seed: int = 0, **changes: Any) -> SEARAFT:
    model = SEARAFT(TINY.replace(**changes)).eval()
    randomise(model, seed)
    return model


@pytest.mark.parametrize(("size", "updates"), [("s", 4), ("m", 4), ("l", 12)])
def test_equals_ptlflow(ptlflow: Any, size: str, updates: int) -> None:
    theirs, ours = pair(ptlflow, size)
    frame1, frame2 = frames(130, 141)
    with torch.no_grad():
        expected = theirs(as_images(frame1, frame2))["flows"][:, 0]
        got = ours(frame1, frame2)
        assert ours.config.updates == updates
        assert expected.isfinite().all()
        assert 1 < expected.std() < 100
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * expected.abs().max().item())
        assert (ours(frame1, frame2, updates - 1) - expected).abs().max() > 1e-2  # the last update counts


def named_gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name.replace(".bn3.", ".downsample.1."): p.grad for name, p in module.named_parameters()}
    return {name: grad for name, grad in found.items() if grad is not None}


@pytest.mark.parametrize("training", [False, True])
def test_predictions_and_gradients_equal_ptlflow(ptlflow: Any, training: bool) -> None:
    theirs, ours = pair(ptlflow, "s")
    batch = 2 if training else 1  # which statistics are of
    frame1, frame2 = frames(128, 136, batch=batch)
    # ptlflow returns what losses need only in training mode.
    for module in (theirs, ours):
        module.train()
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.train(training)
    images = as_images(frame1, frame2)
    out = theirs({**images, "flows": torch.zeros(batch, 1, 2, 128, 136)})
    got = ours.predictions_with_info(frame1, frame2)
    assert len(got) == len(out["flow_preds"]) == 5
    generator = torch.Generator().manual_seed(3)
    ours_loss, theirs_loss = torch.zeros(()), torch.zeros(())
    for (flow, info), flow0, info0 in zip(got, out["flow_preds"], out["info_preds"], strict=True):
        for value, wanted in ((flow, flow0), (info, info0)):
            scale = wanted.detach().abs().max().item()
            torch.testing.assert_close(value, wanted, rtol=0, atol=5e-5 * scale)
            weights = torch.randn(wanted.shape, generator=generator) / scale
            ours_loss = ours_loss + (value * weights).mean()
            theirs_loss = theirs_loss + (wanted * weights).mean()
    ours_loss.backward()
    theirs_loss.backward()
    expected, gradients = named_gradients(theirs), named_gradients(ours)
    assert gradients.keys() == expected.keys() == dict(ours.named_parameters()).keys()
    for name, wanted in expected.items():
        # A bias in front of a batch norm has no gradient but rounding.
        assert (gradients[name] - wanted).norm() <= 2e-3 * wanted.norm() + 1e-6, name
    if training:
        buffers = {k.replace(".bn3.", ".downsample.1."): b for k, b in theirs.named_buffers()}
        for name, buffer in ours.named_buffers():
            torch.testing.assert_close(buffer, buffers[name], rtol=1e-4, atol=1e-4)


def test_info_of_the_last_update_belongs_to_the_flow() -> None:
    model = tiny()
    pictures = frames(67, 90)
    with torch.no_grad():
        flow, info = model.flow_with_info(*pictures)
        every = model.predictions_with_info(*pictures)
        torch.testing.assert_close(flow, model(*pictures))
        torch.testing.assert_close((flow, info), every[-1])
        assert len(every) == 3
        assert flow.shape == (1, 2, 67, 90)
        assert info.shape == (1, 4, 67, 90)
        torch.testing.assert_close(model.predictions(*pictures)[1], model(*pictures, updates=1))


def test_expected_log_scale() -> None:
    info = torch.tensor([0.0, 0.0, 3.0, -2.0]).view(1, 4, 1, 1)
    assert expected_log_scale(info, SEARAFTConfig()).item() == pytest.approx(1.5)  # the narrow scale is limited to 0
    assert expected_log_scale(info, SEARAFTConfig(log_scale_min=-1.0)).item() == pytest.approx(1.0)
    info[:, 2] = 40
    info[:, 0] = 100
    assert expected_log_scale(info, SEARAFTConfig()).item() == pytest.approx(10.0)


@pytest.mark.parametrize(("height", "width"), [(64, 72), (61, 71), (65, 95), (9, 20), (3, 1)])
def test_any_size(height: int, width: int) -> None:
    """The padding is the original's: evenly on both sides, the odd pixel right and below."""
    model = tiny()
    frame1, frame2 = torch.rand(2, 1, 3, height, width)
    left, right = (-width) % 8 // 2, (-width) % 8 - (-width) % 8 // 2
    top, bottom = (-height) % 8 // 2, (-height) % 8 - (-height) % 8 // 2
    with torch.no_grad():
        flow = model(frame1, frame2)
        assert flow.shape == (1, 2, height, width)
        assert flow.isfinite().all()
        if min(height, width) > 8:
            by_hand = (nn.functional.pad(f, (left, right, top, bottom), mode="replicate") for f in (frame1, frame2))
            padded = model(*by_hand)
            torch.testing.assert_close(flow, padded[..., top : top + height, left : left + width])


def test_batch_and_frame_dtypes() -> None:
    model = tiny()
    one, two = frames(64, 80, batch=2)
    with torch.no_grad():
        both = model(one, two)
        for index in range(2):
            torch.testing.assert_close(both[index], model(one[index, None], two[index, None])[0])
        coarse1, coarse2 = ((f * 255).round().to(torch.uint8) for f in (one, two))
        torch.testing.assert_close(model(coarse1, coarse2), model(coarse1 / 255, coarse2 / 255))
        swapped = model(two, one)
        assert (swapped - both).abs().max() > 1e-2


def test_frames_encoded_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SEARAFT(TINY).eval()
    randomise(model)
    first, second = frames(56, 72, 2)
    seen: list[int] = []
    model.fnet.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    with torch.no_grad():
        together = model(first, second)
        monkeypatch.setattr("fullfield.models.framing._TOGETHER_PIXELS", 1)
        torch.testing.assert_close(model(first, second), together, rtol=0, atol=1e-4)
    model.predictions(first, second, 1)
    assert seen == [4, 2, 2, 4]


def test_a_start_replaces_the_regressed_flow() -> None:
    model = tiny()
    pictures = frames(64, 80)
    with torch.no_grad():
        constant = torch.tensor([3.0, -5.0]).view(1, 2, 1, 1)
        for share in (1, 2, 4, 8):
            start = (constant / share).expand(1, 2, 64 // share, 80 // share)
            flow = model(*pictures, updates=0, initial_flow=start)
            inner = flow[..., 8:-8, 8:-8]  # convex combinations read zeros beyond the border, as the original's do
            torch.testing.assert_close(inner, constant.expand_as(inner))
        regressed = model.start(model.encode(*(model.prepare(p, padding_for(64, 80)) for p in pictures)).net)
        torch.testing.assert_close(model(*pictures, initial_flow=regressed), model(*pictures))
        assert (model(*pictures, initial_flow=regressed + 1) - model(*pictures)).abs().max() > 1e-2


def test_no_updates_give_the_regressed_flow(ptlflow: Any) -> None:
    theirs, ours = pair(ptlflow, "s")
    theirs.iters = 0
    pictures = frames(64, 77)
    with torch.no_grad():
        expected = theirs(as_images(*pictures))["flows"][:, 0]
        torch.testing.assert_close(ours(*pictures, updates=0), expected, rtol=1e-5, atol=1e-5)


def test_parts_make_the_whole() -> None:
    model = tiny()
    pictures = frames(64, 80)
    padding = padding_for(64, 80)
    with torch.no_grad():
        fmap1, fmap2, net, context = model.encode(*(model.prepare(p, padding) for p in pictures))
        grid = coordinate_grid(1, 8, 10, net.device)
        coords = grid + model.start(net)
        lookup = model.pyramid(fmap1, fmap2)
        for _ in range(2):
            net, coords = model.step(lookup, net, context, coords, grid)
        flow = model.upsample(coords - grid, model.mask(net))
        torch.testing.assert_close(flow, model(*pictures), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("half", [False, True])
def test_half_precision_keeps_coordinates_in_float32(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    pictures = frames(64, 80)
    with torch.no_grad():
        exact = model(*pictures)
        seen = []
        pyramid = model.pyramid

        def spied(fmap1: Tensor, fmap2: Tensor) -> Any:
            lookup = pyramid(fmap1, fmap2)

            def call(coords: Tensor) -> Tensor:
                found = lookup(coords)
                seen.append((fmap1.dtype, coords.dtype, found.dtype))
                return found

            return call

        monkeypatch.setattr(model, "pyramid", spied)
        if half:
            flow = model.to(torch.bfloat16)(*pictures)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                flow = model(*pictures)
    assert flow.dtype == torch.float32
    assert seen == [(torch.bfloat16, torch.float32, torch.bfloat16)] * 2
    assert (flow - exact).abs().mean() < 0.2 * exact.abs().mean()


def test_compiled_as_one_graph() -> None:
    model = tiny()
    pictures = frames(61, 80)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*pictures), model(*pictures))


def test_the_correlation_backend_is_the_callers_choice() -> None:
    model = tiny()
    pictures = frames(64, 80)
    with torch.no_grad():
        expected = model(*pictures)
        for name in ("reference", "dense"):
            other = SEARAFT(model.config, correlation=name).eval()
            other.load_state_dict(model.state_dict())
            torch.testing.assert_close(other(*pictures), expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(InputError, match="backend: expected one of"):
            SEARAFT(model.config, correlation="fast").eval()(*pictures)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame1": torch.zeros(3, 64, 64)}, "frame1: expected shape"),
        ({"frame1": torch.zeros(1, 1, 64, 64)}, "frame1: expected shape"),
        ({"frame2": torch.zeros(1, 3, 64, 65)}, "frame2: expected shape"),
        ({"frame2": torch.zeros(1, 3, 64, 64, dtype=torch.uint8)}, "frame2: expected dtype"),
        ({"frame1": torch.zeros(1, 3, 64, 64, dtype=torch.int64)}, "frame1: expected dtype"),
        ({"frame1": None}, "frame1: expected a tensor"),
        ({"updates": -1}, "updates: expected an integer >= 0"),
        ({"updates": 1.5}, "updates: expected an integer"),
        ({"initial_flow": torch.zeros(2, 8, 8)}, "initial_flow: expected shape"),
        ({"initial_flow": torch.zeros(2, 2, 8, 8)}, "initial_flow: expected shape"),
        ({"initial_flow": torch.zeros(1, 2, 8, 8, dtype=torch.int32)}, "initial_flow: expected a floating dtype"),
    ],
    ids=str,
)
def test_wrong_inputs_are_named(changes: dict[str, Any], message: str) -> None:
    one, two = torch.rand(2, 1, 3, 64, 64)
    for call in (tiny(), tiny().predictions, tiny().flow_with_info):
        with pytest.raises(InputError, match=message):
            call(**{"frame1": one, "frame2": two, **changes})


OFFICIAL = {
    "name": "spring-M",
    "use_var": True,
    "var_min": 0,
    "var_max": 10,
    "pretrain": "resnet34",
    "initial_dim": 64,
    "block_dims": [64, 128, 256],
    "radius": 4,
    "dim": 128,
    "num_blocks": 2,
    "iters": 4,
    "scale": -1,
    "lr": 4e-4,
}


def test_configurations_need_no_torch() -> None:
    script = "import sys; from fullfield.models.sea_raft import SEARAFTConfig; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_configurations() -> None:
    small, medium, large = SEARAFTConfig.small(), SEARAFTConfig.medium(), SEARAFTConfig.large()
    assert (small.backbone, medium.backbone, large.backbone) == ("resnet18", "resnet34", "resnet34")
    assert (small.updates, medium.updates, large.updates) == (4, 4, 12)
    assert large.replace(name=medium.name, updates=4) == medium
    assert SEARAFTConfig.from_official(OFFICIAL).replace(name=medium.name) == medium
    limits = SEARAFTConfig.from_official({**OFFICIAL, "use_var": False})
    assert (limits.log_scale_min, limits.log_scale_max) == (0, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.updates = 3  # type: ignore[misc]
    assert len({small, medium, large}) == 3
    assert SEARAFTConfig(**medium.as_dict()) == medium
    assert sum(p.numel() for p in SEARAFT(small).parameters()) == 8_883_460
    with pytest.raises(InputError, match="config: expected a SEARAFTConfig"):
        SEARAFT({"updates": 4})  # type: ignore[arg-type]


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
    ],
    ids=str,
)
def test_wrong_configurations_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SEARAFTConfig(**changes)


def test_settings_that_are_not_complete() -> None:
    with pytest.raises(InputError, match="settings: expected those of a SEA-RAFT network, 'dim' is missing"):
        SEARAFTConfig.from_official({k: v for k, v in OFFICIAL.items() if k != "dim"})
