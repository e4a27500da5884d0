"""The CUDA kernels of the guided refinement, run on the CPU by ``emulator``, against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import emulator
import pytest
import torch
from emulator import AMPERE, Emulator
from torch import Tensor

from fullfield import InputError
from fullfield.ops.tvl1 import FlowRefiner, RefinementConfig, guided_cuda
from fullfield.ops.tvl1.guided_cuda import Refiner, Shape
from known_scenes import known_scene

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
CPU = torch.device("cpu")
SMALL = Shape(4, 4, 5)
CONFIGS = {
    "default": RefinementConfig(),
    "bare": RefinementConfig(rounds=1, warps=2, iterations=13, blur=0, trust=0, edges=0, consistent_coupling=0),
    "all median": RefinementConfig(filter_threshold=0, filter_colour=60, warps=1, blur=1.5),
}


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(163 << 10)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.installed(monkeypatch, AMPERE, guided_cuda)
    monkeypatch.setattr(guided_cuda, "raw_stream", lambda _: 0)
    with machine.used():
        yield


def inputs_of(height: int, width: int, channels: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Frames, a flow a good half pixel off with a motion boundary, and a flow back."""
    scene = known_scene(max(height, 64), max(width, 132), seed, 4)
    noise = torch.Generator().manual_seed(1)
    flow = scene.flow + 0.4 * torch.randn(2, 1, 1, generator=noise)
    flow = flow + 0.1 * torch.randn(flow.shape, generator=noise)
    all_ = {"frame1": scene.frame1[:channels], "frame2": scene.frame2[:channels], "flow": flow, "backward": -flow}
    return {name: value[None, ..., :height, :width].clone() for name, value in all_.items()}


def close(found: tuple[Tensor, ...], inputs: dict[str, Tensor], config: RefinementConfig) -> None:
    """Flow and misfits; and nothing was noted."""
    frames, flows = (
        [inputs[name].double() for name in names] for names in (("frame1", "frame2"), ("flow", "backward"))
    )
    reference = FlowRefiner(*flows[0].shape[-2:], config, dtype=torch.float64, backend="reference")
    flow, misfit, _ = reference._made(*frames, *flows, rounds=config.rounds)
    error = (found[0] - flow).abs()
    assert error.max() < 2e-3
    assert error.mean() < 1e-5
    assert int(found[1]) == 0
    assert found[2].shape == (len(flow), min(config.rounds, 2))
    assert torch.allclose(found[2], misfit, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("size", [(23, 37), (5, 130), (40, 1), (1, 40), (70, 101)])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_kernels_are_the_reference(name: str, size: tuple[int, int], machine: Emulator) -> None:
    config, inputs = CONFIGS[name], inputs_of(*size)
    refiner = Refiner(*size, config, CPU, SMALL)
    for schedule in (0, 1):
        machine.schedule = schedule
        close(refiner(**inputs), inputs, config)


@pytest.mark.parametrize("shape", guided_cuda.SHAPES, ids=str)
def test_every_shape_gives_the_same_flow(shape: Shape) -> None:
    config, inputs = RefinementConfig(warps=1, rounds=1), inputs_of(50, 90)
    inputs["backward"] = None  # type: ignore[assignment]
    found = [Refiner(50, 90, config, CPU, one)(**inputs)[0] for one in (shape, SMALL)]
    assert torch.equal(*found)


def test_a_batch_and_frames_of_any_strides() -> None:
    config, parts = RefinementConfig(warps=1), [inputs_of(24, 40, 1, seed) for seed in (0, 1)]
    inputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    for name in ("frame1", "frame2"):
        inputs[name] = inputs[name].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).flip(-1).flip(-1)
    refiner = Refiner(24, 40, config, CPU, SMALL)
    close(refiner(**inputs), inputs, config)
    colour = inputs_of(24, 40)
    colour["frame1"] = colour["frame1"].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    close(refiner(**colour), colour, config)  # channels may change from call to call


SPOILT: list[tuple[str, Callable[[Tensor], None], int]] = [
    ("frame1", lambda t: t[0, 1, 2, 3].fill_(torch.nan), 1),
    ("frame2", lambda t: t[0, 2, 2, 3].fill_(2e6), 2),
    ("flow", lambda t: t[0, 1, 5, 6].fill_(torch.inf), 8),
    ("flow", lambda t: t[0, 0, 5, 6].fill_(torch.nan), 8),
    ("backward", lambda t: t[0, 1, 0, 0].fill_(torch.nan), 16),
]


@pytest.mark.parametrize(("name", "spoil", "bit"), SPOILT)
def test_bad_values_are_noted(name: str, spoil: Callable[[Tensor], None], bit: int) -> None:
    inputs = inputs_of(10, 12)
    spoil(inputs[name])
    _, flags, _ = Refiner(10, 12, RefinementConfig(rounds=1, warps=1, iterations=2), CPU, SMALL)(**inputs)
    assert int(flags) & bit
    assert not int(flags) & ~(bit | 4)


def by_kernels(height: int, width: int, config: RefinementConfig) -> FlowRefiner:
    """The public refiner, on the emulated kernels."""
    refiner = FlowRefiner(height, width, config, backend="reference")
    refiner._cuda = Refiner(height, width, config, CPU, SMALL)
    return refiner


def test_passes_and_what_remains_of_them() -> None:
    inputs, config = inputs_of(23, 37), RefinementConfig(passes=3, rounds=1, warps=2, least_fall=0.9)
    exact = FlowRefiner(23, 37, config, dtype=torch.float64)(**{name: value.double() for name, value in inputs.items()})
    found = by_kernels(23, 37, config)(**inputs)
    assert (found - exact).abs().max() < 2e-3
    everything = by_kernels(23, 37, config.replace(least_fall=0.0))(**inputs)
    assert (found - everything).abs().max() > 0.05


@pytest.mark.parametrize(("name", "spoil", "_bit"), SPOILT)
@pytest.mark.parametrize("passes", [1, 2])
def test_bad_values_are_refused_by_name_after_the_last_pass(
    name: str, spoil: Callable[[Tensor], None], _bit: int, passes: int
) -> None:
    inputs = inputs_of(10, 12)
    spoil(inputs[name])
    with pytest.raises(InputError, match=f"^{name}: expected finite values"):
        by_kernels(10, 12, RefinementConfig(passes=passes, rounds=1, warps=1, iterations=2))(**inputs)


def test_fewer_rounds_than_the_configuration_s() -> None:
    inputs, config = inputs_of(20, 30), RefinementConfig(warps=1)
    refiner = Refiner(20, 30, config, CPU, SMALL)
    whole = refiner(**inputs)[0]
    close(refiner(**inputs, rounds=1), inputs, config.replace(rounds=1))
    assert torch.equal(refiner(**inputs)[0], whole)


def test_made_in_inference_mode_and_used_in_and_outside() -> None:
    inputs, config = inputs_of(20, 30), RefinementConfig(warps=1, rounds=1, iterations=2)
    with torch.inference_mode():
        refiner = Refiner(20, 30, config, CPU, SMALL)
        within = refiner(**inputs)[0]
    assert torch.equal(refiner(**inputs)[0], within)


def test_memory_is_what_the_formula_says() -> None:
    refiner = Refiner(30, 50, RefinementConfig(), CPU, SMALL)
    assert refiner._planes.numel() * 4 == guided_cuda.bytes_of(30, 50) == 24 * 30 * 64 * 4
