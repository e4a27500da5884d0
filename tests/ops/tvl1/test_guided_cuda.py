"""The guided refinement on a GPU: against the reference in float64, recorded calls, streams, memory, bad values."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.estimators import RefinedEstimator
from fullfield.ops.tvl1 import FlowRefiner, RefinementConfig, guided_cuda, refine_flow
from fullfield.ops.tvl1.guided import refinement_backends
from fullfield.testing import textured_scene

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIGS = {
    "default": RefinementConfig(),
    "two passes": RefinementConfig(passes=2, rounds=1, warps=2),
    "bare": RefinementConfig(rounds=1, warps=2, iterations=23, blur=0, trust=0, edges=0, consistent_coupling=0),
    "all median": RefinementConfig(filter_threshold=0, filter_colour=60, warps=1),
}


def inputs_of(height: int, width: int, channels: int = 3, batch: int = 1) -> dict[str, Tensor]:
    scenes = [textured_scene(max(height, 64), max(width, 132), seed=seed, max_motion=4) for seed in range(batch)]
    noise = torch.Generator().manual_seed(1)
    truth = torch.stack([scene.flow for scene in scenes])
    flow = truth + 0.4 * torch.randn(1, 2, 1, 1, generator=noise) + 0.1 * torch.randn(truth.shape, generator=noise)
    frames = [torch.stack([getattr(scene, name)[:channels] for scene in scenes]) for name in ("frame1", "frame2")]
    every = {"frame1": frames[0], "frame2": frames[1], "flow": flow, "backward": -flow}
    return {name: value[..., :height, :width].cuda() for name, value in every.items()}


def test_cuda_is_the_first_choice_on_a_gpu() -> None:
    assert refinement_backends("cuda")[0] == ("cuda", None)
    assert FlowRefiner(20, 30, device="cuda").backend == "cuda"
    assert FlowRefiner(20, 30, device="cuda", dtype=torch.float64).backend == "reference"


@pytest.mark.parametrize("size", [(23, 37), (5, 130), (40, 1), (1, 40), (300, 411)])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_reference_to_rounding(name: str, size: tuple[int, int]) -> None:
    small = size[0] * size[1] < 10_000  # whose reference, thousands of short steps, is sooner done on the CPU
    inputs = inputs_of(*size, batch=2 if small else 1)
    refiner = FlowRefiner(*size, CONFIGS[name], device="cuda")
    read = {key: value.cpu() if small else value for key, value in inputs.items()}
    exact = refine_flow(**{key: value.double() for key, value in read.items()}, config=CONFIGS[name]).cuda()
    plain = refine_flow(**read, config=CONFIGS[name], backend="reference").cuda() - exact
    for _ in range(3):  # launched, recorded, replayed
        error = (refiner(**inputs) - exact).abs()
        assert error.mean() <= 2 * plain.abs().mean() + 1e-5
        assert (error > 2e-3).float().mean() <= (plain.abs() > 2e-3).float().mean() + 1e-4  # the median's ties


@pytest.mark.parametrize("shape", guided_cuda.SHAPES, ids=str)
def test_every_shape_gives_the_same_flow(shape: guided_cuda.Shape) -> None:
    inputs, config = inputs_of(200, 330), RefinementConfig()
    device = torch.device("cuda", torch.cuda.current_device())
    found = [guided_cuda.Refiner(200, 330, config, device, one)(**inputs)[0] for one in (guided_cuda.SHAPE, shape)]
    assert torch.equal(*found)


def test_a_recorded_call_reads_where_its_tensors_lie() -> None:
    refiner = FlowRefiner(60, 90, device="cuda")
    first = inputs_of(60, 90)
    second = {name: value.flip(-1).contiguous() for name, value in first.items()}
    want = [FlowRefiner(60, 90, device="cuda")(**one) for one in (first, second)]
    for _ in range(3):
        found = [refiner(**one) for one in (first, second)]
        assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))
    grey = {name: value[:, :1] if name.startswith("frame") else value for name, value in first.items()}
    without = {name: value for name, value in first.items() if name != "backward"}
    for other in (grey, without):
        assert torch.equal(refiner(**other), FlowRefiner(60, 90, device="cuda")(**other))
    assert torch.equal(refiner(**first), want[0])


def test_streams_and_pickle() -> None:
    inputs, refiner = inputs_of(120, 160), FlowRefiner(120, 160, device="cuda")
    want = refiner(**inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [refiner(**inputs) for _ in range(3)]
    stream.synchronize()
    assert all(torch.equal(one, want) for one in found)
    assert torch.equal(pickle.loads(pickle.dumps(refiner))(**inputs), want)


@pytest.mark.parametrize("name", ["frame1", "frame2", "flow", "backward"])
def test_bad_values_are_refused_by_name(name: str) -> None:
    inputs, refiner = inputs_of(40, 50), FlowRefiner(40, 50, device="cuda")
    want = refiner(**inputs)
    bad = {**inputs, name: inputs[name].clone()}
    bad[name][0, 1, 20, 30] = torch.nan
    for _ in range(2):
        with pytest.raises(InputError, match=f"^{name}: expected finite values"):
            refiner(**bad)
    assert torch.equal(refiner(**inputs), want)


def test_memory_is_what_the_formula_says() -> None:
    height, width = 540, 960
    inputs = inputs_of(height, width)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    refiner = FlowRefiner(height, width, device="cuda")
    refiner(**inputs)
    kept = torch.cuda.memory_allocated() - before
    assert abs(kept - guided_cuda.bytes_of(height, width)) < 2**20
    torch.cuda.reset_peak_memory_stats()
    refiner(**inputs)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < guided_cuda.bytes_of(height, width) + 2 * 4 * height * width + 2**21, "the result, and nothing else"


def test_an_estimator_is_refined_on_the_gpu() -> None:
    from fullfield.estimators import TVL1Estimator
    from fullfield.ops.tvl1 import TVL1Config

    inputs = inputs_of(80, 100)
    refined = RefinedEstimator(TVL1Estimator(TVL1Config.preset("fast")))
    refined(inputs["frame1"], inputs["frame2"])
    assert refined.parameters["refinement"]["backend"] == "cuda"
