"""Guided refinement: against loops, backends against each other, contract, and what it is for."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from emulator import HOPPER, Emulator
from torch import Tensor

from fullfield import InputError
from fullfield.estimators import RefinedEstimator, TVL1Estimator
from fullfield.ops.consistency import compute_forward_backward_distance
from fullfield.ops.tvl1 import FlowRefiner, TVL1Config, guided, guided_cuda, refine_flow
from fullfield.ops.tvl1 import guided_reference as reference
from fullfield.ops.tvl1.config import PassPosition, RefinementConfig
from fullfield.ops.tvl1.guided import explain_refinement_backends
from fullfield.ops.tvl1.guided_cuda import CudaRefiner, IterationTile
from fullfield.testing import sample_textured_scene
from known_scenes import known_scene

CONFIGS = {
    "default": RefinementConfig(),
    "three passes": RefinementConfig(passes=3, rounds=1, warps=2, passes_fall=0),
    "bare": RefinementConfig(rounds=1, warps=2, iterations=23, blur=0, trust=0, edges=0, consistent_coupling=0),
    "all median": RefinementConfig(filter_threshold=0, filter_colour=60, warps=1),
}


def pair(height: int, width: int, channels: int = 3, batch: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """Frames, a flow a good half pixel off with a motion boundary, and a flow back."""
    scenes = [known_scene(height, width, seed + number, 4) for number in range(batch)]
    noise = torch.Generator().manual_seed(1)
    truth = torch.stack([scene.flow for scene in scenes])
    flow = truth + 0.4 * torch.randn(1, 2, 1, 1, generator=noise) + 0.1 * torch.randn(truth.shape, generator=noise)
    frames = [torch.stack([getattr(scene, name)[:channels] for scene in scenes]) for name in ("frame1", "frame2")]
    return {"frame1": frames[0], "frame2": frames[1], "flow": flow, "backward": -flow}


def inputs_of(height: int, width: int, channels: int = 3, seed: int = 0, batch: int = 1) -> dict[str, torch.Tensor]:
    """The corner of larger scenes; its values are not contiguous."""
    full = pair(max(height, 64), max(width, 132), channels, batch, seed)
    return {name: value[..., :height, :width] for name, value in full.items()}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("default", size) for size in ((23, 37), (5, 130), (40, 1))),
        ("three passes", (17, 30)),
        ("bare", (23, 37)),
        ("all median", (5, 130)),
    ],
)
def test_refine_flow_backends_agree(name: str, size: tuple[int, int]) -> None:
    inputs = inputs_of(*size, batch=2)
    exact = refine_flow(**{key: value.double() for key, value in inputs.items()}, config=CONFIGS[name])
    assert exact.dtype == torch.float64
    for backend in ("reference", "cpu"):
        actual = refine_flow(**inputs, config=CONFIGS[name], backend=backend)
        error = (actual - exact).abs()
        assert error.max() < 2e-3
        assert error.mean() < 1e-5


def test_refine_flow_treats_frame_sides_as_no_boundary() -> None:
    """Everything moves by six pixels and by far less than the threshold against its neighbours."""
    inputs = inputs_of(23, 37)
    inputs = inputs | {"flow": inputs["flow"] + 6, "backward": inputs["backward"] - 6}
    config = RefinementConfig(filter_threshold=4, warps=1, rounds=1)
    expected, actual = (refine_flow(**inputs, config=config, backend=name) for name in ("reference", "cpu"))
    assert (actual - expected).abs().max() < 1e-3


def test_refine_flow_is_independent_of_threads() -> None:
    inputs, before = pair(150, 90), torch.get_num_threads()
    actual = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            actual.append(refine_flow(**inputs, backend="cpu"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*actual)


def test_refine_flow_iteration_equals_loops() -> None:
    rng = np.random.default_rng(0)
    height, width, step, sigma = 5, 6, 0.1, 2.5
    flow, dual = rng.normal(size=(2, height, width)), rng.normal(size=(4, height, width)) * 0.3
    m11, m22 = rng.uniform(0.05, 0.1, (2, height, width))
    m12, b1, b2 = rng.normal(size=(3, height, width)) * 0.01
    edge = rng.uniform(0.1, 1, (height, width))
    dual[0::2, :, -1] = dual[1::2, -1, :] = 0
    expected, p = np.empty_like(flow), np.empty_like(dual)
    for y in range(height):
        for x in range(width):
            r = []
            for n in range(2):
                div = dual[2 * n, y, x] - (dual[2 * n, y, x - 1] if x else 0)
                div += dual[2 * n + 1, y, x] - (dual[2 * n + 1, y - 1, x] if y else 0)
                r.append(flow[n, y, x] / step + div)
            expected[:, y, x] = (
                m11[y, x] * r[0] + m12[y, x] * r[1] + b1[y, x],
                m12[y, x] * r[0] + m22[y, x] * r[1] + b2[y, x],
            )
    for y in range(height):
        for x in range(width):
            for n in range(2):
                u = expected[n]
                a = dual[2 * n, y, x] + sigma * (u[y, x + 1] - u[y, x] if x < width - 1 else 0)
                b = dual[2 * n + 1, y, x] + sigma * (u[y + 1, x] - u[y, x] if y < height - 1 else 0)
                over = max(1.0, math.hypot(a, b) / edge[y, x])
                p[2 * n, y, x], p[2 * n + 1, y, x] = a / over, b / over
    system = tuple(torch.from_numpy(tensor) for tensor in (m11, m12, m22, b1, b2))
    config = RefinementConfig(step=step)
    actual, dual_found = reference.update_flow_and_dual(
        *map(torch.from_numpy, (flow, dual)), system, torch.from_numpy(edge), config
    )
    assert np.allclose(actual, expected, atol=1e-12)
    assert np.allclose(dual_found, p, atol=1e-12)


def test_refine_flow_minimizes_energy_without_smoothing() -> None:
    """A single pixel's quadratic: gradients that differ by a known amount, a coupling, no neighbours that count."""
    ramp = torch.arange(24, dtype=torch.float64)
    image = (ramp[:, None] ** 2 + 2 * ramp**2) / 10
    one = torch.stack(reference.compute_central_gradient(image))
    xx, xy = reference.compute_central_gradient(one[0])
    yy = reference.compute_central_gradient(one[1])[1]
    prior = torch.full((2, 24, 24), 0.3, dtype=torch.float64)
    config = RefinementConfig(edges=0, epsilon=1e3, step=1e3)
    coupling = torch.full((24, 24), 0.02, dtype=torch.float64)
    system = reference.compute_linear_systems_and_fit(one, one, (xx, xy, yy), prior, prior, coupling, config)
    flow, dual, none = prior, torch.zeros(4, 24, 24, dtype=torch.float64), torch.zeros(24, 24, dtype=torch.float64)
    for _ in range(60):
        flow, dual = reference.update_flow_and_dual(flow, dual, system, none + 1e-12, config)
    weight = config.lambda_ / math.sqrt(config.epsilon**2)
    inner = flow[:, 6:-6, 6:-6]
    for component, curvature in ((0, 0.4), (1, 0.2)):  # w h² u + c (u - prior) = 0
        expected = 0.02 * 0.3 / (weight * curvature**2 + 0.02)
        assert torch.allclose(inner[component], torch.full_like(inner[component], expected), rtol=1e-3)


def test_refine_flow_boundary_threshold_is_exclusive() -> None:
    flow = torch.zeros(2, 12, 16)
    flow[0, :, 8:] = 0.25
    colours, fit = torch.rand(3, 12, 16, generator=torch.Generator().manual_seed(0)), torch.ones(12, 16)
    for threshold, same in ((0.25, True), (0.2499, False)):
        config = RefinementConfig(filter_threshold=threshold)
        assert (
            torch.equal(reference.filter_motion_boundaries_by_weighted_median(flow, colours, fit, config), flow) is same
        )


@pytest.mark.parametrize(("light", "share"), [(1.0, 0.6), (0.8, 0.85)])
def test_refine_flow_removes_half_pixel_error(light: float, share: float) -> None:
    scene = sample_textured_scene(90, 120, seed=5, max_motion=3)
    off = scene.flow + torch.tensor([0.35, -0.25])[:, None, None]
    seen = scene.valid & ~scene.occluded
    frame2 = scene.frame2 * light + 0.05 * (light < 1)
    refined = refine_flow(scene.frame1[None], frame2[None], off[None])[0]
    before, after = ((flow - scene.flow).norm(dim=0)[seen].mean() for flow in (off, refined))
    assert before > 0.4
    assert after < share * before


def test_refine_flow_changes_consistent_flow_less() -> None:
    inputs = pair(60, 80)
    inputs.pop("backward")
    flow = inputs["flow"]
    back = torch.full_like(flow, 50.0)
    strong = RefinementConfig(consistent_coupling=100)
    agreeing = -flow.mean((2, 3), keepdim=True).expand_as(flow)
    inputs["flow"] = -agreeing
    retained = (refine_flow(**inputs, backward=agreeing, config=strong) - inputs["flow"])[..., 10:-10, 10:-10].norm(
        dim=1
    )
    free = (refine_flow(**inputs, backward=back, config=strong) - inputs["flow"])[..., 10:-10, 10:-10].norm(dim=1)
    assert retained.median() < 0.3 * free.median()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_filter_by_weighted_median_downweights_misfits(backend: str) -> None:
    """A strip of 6 columns is new in the second frame, and its flow wrong; all colours are alike."""
    texture = 0.5 + 0.04 * torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(3))
    second = texture.clone()
    second[..., 30:36] = torch.rand(1, 3, 48, 6, generator=torch.Generator().manual_seed(4))
    flow = torch.zeros(1, 2, 48, 64)
    flow[:, 1, :, 30:36] = 5.0
    still = {"lambda_": 0.0, "edges": 0.0, "iterations": 1, "warps": 1, "rounds": 1, "coupling": 1e6, "trust": 0.0}
    blind, seeing = (
        refine_flow(texture, second, flow, config=RefinementConfig(filter_residual=one, **still), backend=backend)
        for one in (1e6, 5.0)
    )
    hidden = slice(31, 34)
    assert seeing[:, 1, 12:-12, hidden].mean() < 0.5 * blind[:, 1, 12:-12, hidden].mean()


def test_forward_backward_distance_equals_values_by_hand() -> None:
    flow = torch.zeros(1, 2, 4, 6)
    flow[:, 0] = 2.5
    back = torch.zeros(1, 2, 4, 6)
    back[:, 0] = -torch.arange(6.0)
    distance = compute_forward_backward_distance(flow, back)[0]
    assert torch.allclose(distance[:, :3], torch.arange(3.0).expand(4, 3))
    assert distance[:, 3:].isinf().all()
    with pytest.raises(InputError, match="backward"):
        compute_forward_backward_distance(flow, back[:, :, :3])


def test_flow_refiner_keeps_shapes_and_refuses_bad_arguments() -> None:
    inputs = pair(20, 30, channels=1)
    refiner = FlowRefiner(20, 30)
    expected = refiner(**inputs)
    assert expected.shape == (1, 2, 20, 30)
    assert torch.equal(refiner(**inputs), expected)
    assert torch.equal(pickle.loads(pickle.dumps(refiner))(**inputs), expected)
    assert refiner(*(tensor[:0] for tensor in inputs.values())).shape == (0, 2, 20, 30)
    bad = inputs["flow"].clone()
    bad[0, 0, 3, 4] = float("nan")
    wrong = {
        "flow": {**inputs, "flow": bad},
        "backward": {**inputs, "backward": inputs["backward"][:, :1]},
        "frame2": {**inputs, "frame2": inputs["frame2"][..., :-1]},
        "frame1": {**inputs, "frame1": inputs["frame1"].to(torch.uint8)},
    }
    for name, arguments in wrong.items():
        with pytest.raises(InputError, match=f"^{name}"):
            refiner(**arguments)
    with pytest.raises(InputError, match="cpu: computes in float32 only"):
        FlowRefiner(20, 30, dtype=torch.float64, backend="cpu")
    with pytest.raises(InputError, match="epsilon"):
        RefinementConfig(epsilon=0)


def test_flow_refiner_memory_bytes_equals_buffers() -> None:
    assert FlowRefiner(64, 96, backend="reference").memory_bytes is None
    small, large = (FlowRefiner(height, 96, backend="cpu").memory_bytes for height in (64, 128))
    assert small is not None
    assert large is not None
    assert 64 * 96 * 4 * 28 < small < large < 2 * small


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_refine_flow_later_passes_continue_with_flow_and_dual_variable(backend: str) -> None:
    inputs, config = pair(60, 80), RefinementConfig(passes=3, least_fall=0.0, passes_fall=0.0)
    frame1, frame2, flow, backward = inputs.values()
    refiner, other = (FlowRefiner(60, 80, config, backend=backend) for _ in range(2))
    dual, zero = (torch.zeros(4, 60, 80) for _ in range(2))
    for number, rounds in enumerate((1, 1, config.rounds)):
        options: dict[str, Any] = {"rounds": rounds, "position": PassPosition(number, 3)}
        before = flow
        flow, _ = refiner._run_pass_and_get_misfits(frame1, frame2, before, backward, dual_inout=dual, **options)
    fresh, _ = other._run_pass_and_get_misfits(frame1, frame2, before, backward, dual_inout=zero, **options)
    assert torch.equal(refine_flow(**inputs, config=config, backend=backend), flow)
    assert not torch.equal(fresh, flow)

    inputs.pop("backward")
    assert torch.equal(refine_flow(**inputs, config=RefinementConfig(passes=2)), refine_flow(**inputs)), (
        "without a backward flow there is nothing to compute again"
    )


@pytest.mark.parametrize(
    ("passes", "warps", "expected"), [(1, 3, [3]), (2, 3, [3, 2]), (3, 2, [2, 2, 1]), (3, 1, [1, 1, 1])]
)
def test_refine_flow_last_of_several_passes_takes_one_warp_less(
    passes: int, warps: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass linearises once for each warp; the flow that it was given says which pass it is."""
    linearise, priors = reference.compute_linear_systems_and_fit, list[Tensor]()

    def linearise_and_record(*arguments: Any) -> Any:
        priors.append(arguments[4])
        return linearise(*arguments)

    monkeypatch.setattr(reference, "compute_linear_systems_and_fit", linearise_and_record)
    config = RefinementConfig(passes=passes, rounds=1, warps=warps, iterations=1, passes_fall=0.0)
    refine_flow(**pair(20, 30), config=config, backend="reference")
    starts = [n for n, prior in enumerate(priors) if n == 0 or not torch.equal(prior, priors[n - 1])]
    assert np.diff([*starts, len(priors)]).tolist() == expected


@pytest.mark.parametrize(
    ("passes", "backend"), [({}, "reference"), ({"passes": 2, "rounds": 1}, "cpu")], ids=["one pass", "two passes"]
)
def test_refine_flow_keeps_exact_flow_of_noisy_frames(passes: dict[str, int], backend: str) -> None:
    """A round hardly lets their gradients fit better."""
    scene = sample_textured_scene(64, 96, seed=2, max_motion=2)
    noise = torch.Generator().manual_seed(3)
    frames = [tensor + 0.05 * torch.randn(tensor.shape, generator=noise) for tensor in (scene.frame1, scene.frame2)]
    inputs = *(frame[None] for frame in frames), scene.flow[None], -scene.flow[None]
    everything, judged = (
        refine_flow(*inputs, config=RefinementConfig(**passes, **retained), backend=backend) - inputs[2]
        for retained in ({"least_fall": 0.0, "passes_fall": 0.0}, {})
    )
    assert everything.norm(dim=1).mean() > 0.2
    assert judged.norm(dim=1).mean() < 0.6 * everything.norm(dim=1).mean()


def test_refine_flow_later_passes_require_larger_misfit_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, passes_run = pair(60, 80), list[bool]()
    run_pass = FlowRefiner._run_pass_and_get_misfits

    def count_pass(self: FlowRefiner, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        passes_run.append(options["position"].is_between)
        return run_pass(self, *arguments, **options)

    monkeypatch.setattr(FlowRefiner, "_run_pass_and_get_misfits", count_pass)
    once = refine_flow(**inputs, config=RefinementConfig(rounds=1))
    low = RefinementConfig(passes=2, rounds=1, passes_fall=0.0, least_fall=0.0)
    assert not torch.equal(refine_flow(**inputs, config=low), once)
    for passes in (2, 3):
        passes_run.clear()
        assert torch.equal(refine_flow(**inputs, config=low.replace(passes=passes, passes_fall=1.0)), once)
        assert passes_run == [False, passes == 3]  # the third pass is skipped


def test_compute_accepted_change_fractions_follows_misfit_reduction() -> None:
    config = RefinementConfig(least_fall=0.1, passes_fall=0.2)
    misfits = torch.tensor([[0.1, 0.11], [0.1, 0.095], [0.1, 0.0825], [0.1, 0.08], [0.0, 0.0]], dtype=torch.float64)
    first, later = guided.compute_total_and_later_kept_fractions(misfits, config)
    assert first.shape == later.shape == (5, 1, 1, 1)
    assert torch.allclose(first.flatten(), torch.tensor([0, 0.5, 1, 1, 1], dtype=torch.float64))
    assert torch.allclose(later.flatten(), torch.tensor([0, 0, 0.5, 1, 1], dtype=torch.float64))
    assert torch.equal(
        guided.compute_total_and_later_kept_fractions(misfits[:, :1], config)[0].flatten(),
        torch.ones(5, dtype=torch.float64),
    )


def test_refine_flow_batch_equals_singles() -> None:
    clean, spoilt = pair(60, 80), pair(60, 80)
    noise = torch.Generator().manual_seed(3)
    for name in ("frame1", "frame2"):
        spoilt[name] = spoilt[name] + 0.05 * torch.randn(spoilt[name].shape, generator=noise)
    together = refine_flow(**{name: torch.cat([clean[name], spoilt[name]]) for name in clean})
    assert torch.equal(together, torch.cat([refine_flow(**clean), refine_flow(**spoilt)]))


# ---- the CUDA kernels, emulated

CPU = torch.device("cpu")
SMALL = IterationTile(4, 4, 5)
EMULATED = {
    "default": RefinementConfig(),
    "bare": RefinementConfig(rounds=1, warps=2, iterations=13, blur=0, trust=0, edges=0, consistent_coupling=0),
    "all median": RefinementConfig(filter_threshold=0, filter_colour=60, warps=1, blur=1.5),
}


def laid_out(height: int, width: int, channels: int = 3, seed: int = 0) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in inputs_of(height, width, channels, seed).items()}


@pytest.fixture
def machine(emulate: Callable[..., Emulator]) -> Emulator:
    return emulate(guided_cuda)


gpu_marks = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_gpu(test: Any) -> Any:
    return gpu_marks[0](gpu_marks[1](test))


def close(results: list[tuple[Tensor, ...]], inputs: dict[str, Tensor], config: RefinementConfig) -> None:
    """Flow and misfits of every result; and nothing was noted."""
    frames, flows = (
        [inputs[name].double() for name in names] for names in (("frame1", "frame2"), ("flow", "backward"))
    )
    reference = FlowRefiner(*flows[0].shape[-2:], config, dtype=torch.float64, backend="reference")
    pairs = zip(*(values.split(1) for values in (*frames, *flows)), strict=True)
    refined = [reference._run_pass_and_get_misfits(*one, rounds=config.rounds) for one in pairs]
    flow, misfit = (torch.cat(values) for values in zip(*refined, strict=True))
    for actual in results:
        error = (actual[0] - flow).abs()
        assert error.max() < 2e-3
        assert error.mean() < 1e-5
        assert int(actual[1]) == 0
        assert actual[2].shape == (len(flow), min(config.rounds, 2))
        assert torch.allclose(actual[2], misfit, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("default", size) for size in ((23, 37), (5, 130), (40, 1), (1, 40))),
        ("bare", (23, 37)),
        ("all median", (23, 37)),
    ],
)
def test_refine_flow_kernels_equal_reference(name: str, size: tuple[int, int], machine: Emulator) -> None:
    config, inputs = EMULATED[name], laid_out(*size)
    refiner = CudaRefiner(*size, config, CPU, SMALL)
    results = []
    for schedule in (0, 1):
        machine.schedule = schedule
        results.append(tuple(tensor.clone() for tensor in refiner.refine_unblended_with_flags_and_misfits(**inputs)))
    close(results, inputs, config)


@pytest.mark.parametrize("shape", guided_cuda.SHAPES, ids=str)
@pytest.mark.parametrize(
    ("device", "size"), [("emulated", (50, 90)), pytest.param("cuda", (200, 330), marks=gpu_marks)], ids=str
)
def test_refine_flow_is_independent_of_launch_shape(
    device: str, size: tuple[int, int], shape: IterationTile, request: pytest.FixtureRequest
) -> None:
    if device == "emulated":
        request.getfixturevalue("machine")
    config = RefinementConfig() if device == "cuda" else RefinementConfig(warps=1, rounds=1)
    where = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else CPU
    inputs: dict[str, Any] = {name: value.to(where) for name, value in laid_out(*size).items()}
    inputs["backward"] = inputs["backward"] if device == "cuda" else None
    shapes = (guided_cuda.SHAPE, shape) if device == "cuda" else (shape, SMALL)
    assert torch.equal(*(guided_cuda.CudaRefiner(*size, config, where, one)(**inputs)[0] for one in shapes))


STRIPS = guided_cuda.IterationStrips(min_rows=0)


@pytest.mark.parametrize(
    ("size", "iterations", "ahead"),
    [
        ((60, 300), 10, 1),
        ((75, 128), 10, 2),
        ((40, 131), 10, 1),
        ((75, 300), 8, 2),
        ((90, 236), 5, 1),
        ((60, 250), 3, 2),
        ((33, 50), 1, 2),
        ((1, 40), 10, 2),
    ],
)
def test_refine_flow_strips_equal_tiles(size: tuple[int, int], iterations: int, ahead: int, machine: Emulator) -> None:
    config, inputs = RefinementConfig(warps=2, rounds=1, iterations=iterations), laid_out(*size)
    tiles = CudaRefiner(*size, config, CPU, IterationTile(4, 8, 10), None)(**inputs)[0]
    strips = CudaRefiner(*size, config, CPU, IterationTile(4, 8, 10), replace(STRIPS, ahead=ahead))
    assert f"-DAHEAD={ahead}" in strips._passes[iterations].source.options
    for schedule in (0, 1):
        machine.schedule = schedule
        assert torch.equal(strips(**inputs)[0], tiles)


@on_gpu
@pytest.mark.parametrize("size", [(300, 411), (200, 640), (70, 100)])
@pytest.mark.parametrize("iterations", [10, 8, 7])
def test_refine_flow_strips_on_gpu_equal_tiles(size: tuple[int, int], iterations: int) -> None:
    config, inputs = RefinementConfig(iterations=iterations), on_cuda(*size)
    inputs = {name: value.contiguous() for name, value in inputs.items()}
    where = torch.device("cuda", torch.cuda.current_device())
    tiles, strips = (CudaRefiner(*size, config, where, strips=strips)(**inputs)[0] for strips in (None, STRIPS))
    assert torch.equal(strips, tiles)


@pytest.mark.parametrize(("iterations", "ahead"), [(10, 1), (8, 2), (5, 2)])
def test_strips_fetch_ahead_where_as_many_blocks_fit(iterations: int, ahead: int) -> None:
    strips = guided_cuda.STRIPS.plan_strips_if_faster(iterations, (2160, 3840), HOPPER)
    assert strips is not None
    assert f"-DAHEAD={ahead}" in strips.source.options
    assert HOPPER.shared // strips.shared >= guided_cuda.STRIPS.blocks


@pytest.mark.usefixtures("machine")
def test_refine_flow_accepts_batches_and_strides() -> None:
    config, pairs = RefinementConfig(warps=1), [laid_out(24, 40, 1, seed) for seed in (0, 1)]
    inputs = {name: torch.cat([pair[name] for pair in pairs]) for name in pairs[0]}
    for name in ("frame1", "frame2"):
        inputs[name] = inputs[name].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).flip(-1).flip(-1)
    refiner = CudaRefiner(24, 40, config, CPU, SMALL)
    close([refiner.refine_unblended_with_flags_and_misfits(**inputs)], inputs, config)
    colour = laid_out(24, 40)
    colour["frame1"] = colour["frame1"].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    close(
        [refiner.refine_unblended_with_flags_and_misfits(**colour)], colour, config
    )  # channels may change from call to call


SPOILT: list[tuple[str, Callable[[Tensor], None]]] = [
    ("frame1", lambda t: t[0, 1, 2, 3].fill_(torch.nan)),
    ("frame2", lambda t: t[0, 2, 2, 3].fill_(2e6)),
    ("flow", lambda t: t[0, 1, 5, 6].fill_(torch.inf)),
    ("flow", lambda t: t[0, 0, 5, 6].fill_(torch.nan)),
    ("backward", lambda t: t[0, 1, 0, 0].fill_(torch.nan)),
]


def by_kernels(height: int, width: int, config: RefinementConfig) -> FlowRefiner:
    """The public refiner, on the emulated kernels."""
    refiner = FlowRefiner(height, width, config, backend="reference")
    refiner._cuda = CudaRefiner(height, width, config, CPU, SMALL)
    return refiner


@pytest.mark.usefixtures("machine")
def test_refine_flow_passes_limit_change() -> None:
    inputs, config = laid_out(23, 37), RefinementConfig(passes=3, rounds=1, warps=2, least_fall=0.9)
    exact = FlowRefiner(23, 37, config, dtype=torch.float64)(**{name: value.double() for name, value in inputs.items()})
    actual = by_kernels(23, 37, config)(**inputs)
    assert (actual - exact).abs().max() < 2e-3
    everything = by_kernels(23, 37, config.replace(least_fall=0.0))(**inputs)
    assert (actual - everything).abs().max() > 0.05


@pytest.mark.usefixtures("machine")
def test_refiner_skips_later_passes_of_which_nothing_remains() -> None:
    inputs, config = laid_out(23, 37), RefinementConfig(passes=3, rounds=1, warps=2, least_fall=0, passes_fall=1)
    once = CudaRefiner(23, 37, config.replace(passes=1), CPU, SMALL)(**inputs)[0]
    refiner = CudaRefiner(23, 37, config, CPU, SMALL, STRIPS)
    second_result = refiner._planes[guided_cuda.PLANES + 2 : guided_cuda.PLANES + 4].fill_(torch.nan)
    actual, flags = refiner(**inputs)
    assert int(flags) == 0
    assert torch.equal(actual, once)
    assert second_result.isnan().all()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "spoil"), SPOILT)
@pytest.mark.parametrize("passes", [1, 2])
def test_refine_flow_emulated_refuses_nonfinite_inputs(name: str, spoil: Callable[[Tensor], None], passes: int) -> None:
    inputs = laid_out(10, 12)
    spoil(inputs[name])
    with pytest.raises(InputError, match=f"^{name}: expected finite values"):
        by_kernels(10, 12, RefinementConfig(passes=passes, rounds=1, warps=1, iterations=2))(**inputs)


@pytest.mark.usefixtures("machine")
def test_refine_without_blending_rounds_equals_smaller_config() -> None:
    inputs, config = laid_out(20, 30), RefinementConfig(warps=1)
    refiner = CudaRefiner(20, 30, config, CPU, SMALL)
    full = refiner(**inputs)[0]
    close([refiner.refine_unblended_with_flags_and_misfits(**inputs, rounds=1)], inputs, config.replace(rounds=1))
    assert torch.equal(refiner(**inputs)[0], full)


@pytest.mark.usefixtures("machine")
def test_flow_refiner_works_in_and_outside_inference_mode() -> None:
    inputs, config = laid_out(20, 30), RefinementConfig(warps=1, rounds=1, iterations=2)
    with torch.inference_mode():
        refiner = CudaRefiner(20, 30, config, CPU, SMALL)
        within = refiner(**inputs)[0]
    assert torch.equal(refiner(**inputs)[0], within)


@pytest.mark.usefixtures("machine")
def test_emulated_refiner_memory_equals_formula() -> None:
    refiner = CudaRefiner(30, 50, RefinementConfig(), CPU, SMALL)
    assert refiner._planes.numel() * 4 == guided_cuda.count_buffer_bytes(30, 50) == 24 * 30 * 64 * 4


# ---- on a GPU


def on_cuda(height: int, width: int, channels: int = 3, batch: int = 1) -> dict[str, torch.Tensor]:
    return {name: value.cuda() for name, value in inputs_of(height, width, channels, batch=batch).items()}


@on_gpu
def test_flow_refiner_on_gpu_chooses_cuda() -> None:
    assert explain_refinement_backends("cuda")[0] == ("cuda", None)
    assert FlowRefiner(20, 30, device="cuda").backend == "cuda"
    assert FlowRefiner(20, 30, device="cuda", dtype=torch.float64).backend == "reference"


@on_gpu
@pytest.mark.parametrize("size", [(23, 37), (5, 130), (40, 1), (1, 40), (300, 411)])
@pytest.mark.parametrize("name", CONFIGS)
def test_refine_flow_cuda_equals_reference(name: str, size: tuple[int, int]) -> None:
    small = size[0] * size[1] < 10_000  # whose reference, thousands of short steps, is sooner done on the CPU
    inputs = on_cuda(*size, batch=2 if small else 1)
    refiner = FlowRefiner(*size, CONFIGS[name], device="cuda")
    read = {key: value.cpu() if small else value for key, value in inputs.items()}
    exact = refine_flow(**{key: value.double() for key, value in read.items()}, config=CONFIGS[name]).cuda()
    plain = refine_flow(**read, config=CONFIGS[name], backend="reference").cuda() - exact
    for _ in range(3):  # launched, recorded, replayed
        error = (refiner(**inputs) - exact).abs()
        assert error.mean() <= 2 * plain.abs().mean() + 1e-5
        assert (error > 2e-3).float().mean() <= (plain.abs() > 2e-3).float().mean() + 1e-4  # the median's ties


@on_gpu
def test_recorded_refiner_reads_tensor_addresses() -> None:
    refiner = FlowRefiner(60, 90, device="cuda")
    first = on_cuda(60, 90)
    second = {name: value.flip(-1).contiguous() for name, value in first.items()}
    expected = [FlowRefiner(60, 90, device="cuda")(**one) for one in (first, second)]
    for _ in range(3):
        actual = [refiner(**one) for one in (first, second)]
        assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
    grey = {name: value[:, :1] if name.startswith("frame") else value for name, value in first.items()}
    without = {name: value for name, value in first.items() if name != "backward"}
    for other in (grey, without):
        assert torch.equal(refiner(**other), FlowRefiner(60, 90, device="cuda")(**other))
    assert torch.equal(refiner(**first), expected[0])


@on_gpu
def test_flow_refiner_works_in_streams_and_pickles() -> None:
    inputs, refiner = on_cuda(120, 160), FlowRefiner(120, 160, device="cuda")
    expected = refiner(**inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        actual = [refiner(**inputs) for _ in range(3)]
    stream.synchronize()
    assert all(torch.equal(one, expected) for one in actual)
    assert torch.equal(pickle.loads(pickle.dumps(refiner))(**inputs), expected)


@on_gpu
@pytest.mark.parametrize("name", ["frame1", "frame2", "flow", "backward"])
def test_flow_refiner_on_gpu_refuses_nonfinite_inputs(name: str) -> None:
    inputs, refiner = on_cuda(40, 50), FlowRefiner(40, 50, device="cuda")
    expected = refiner(**inputs)
    bad = {**inputs, name: inputs[name].clone()}
    bad[name][0, 1, 20, 30] = torch.nan
    for _ in range(2):
        with pytest.raises(InputError, match=f"^{name}: expected finite values"):
            refiner(**bad)
    assert torch.equal(refiner(**inputs), expected)


@on_gpu
def test_refiner_memory_equals_formula() -> None:
    height, width = 540, 960
    inputs = on_cuda(height, width)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    refiner = FlowRefiner(height, width, device="cuda")
    refiner(**inputs)
    retained = torch.cuda.memory_allocated() - before
    assert abs(retained - guided_cuda.count_buffer_bytes(height, width)) < 2**20
    torch.cuda.reset_peak_memory_stats()
    refiner(**inputs)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < guided_cuda.count_buffer_bytes(height, width) + 2 * 4 * height * width + 2**21, (
        "the result, and nothing else"
    )


@on_gpu
def test_refined_estimator_runs_on_gpu() -> None:
    inputs = on_cuda(80, 100)
    refined = RefinedEstimator(TVL1Estimator(TVL1Config.from_preset("fast")))
    refined(inputs["frame1"], inputs["frame2"])
    assert refined.parameters["refinement"]["backend"] == "cuda"


HALF = RefinementConfig(filter_precision="float16")
FILTERED_IN_HALF = {
    "default": (HALF, {}),
    "all median": (HALF.replace(filter_threshold=0, filter_colour=60, warps=1), {}),
    "two passes": (HALF.replace(passes=2, rounds=1), {}),
    "three passes": (HALF.replace(passes=3, rounds=1, passes_fall=0), {}),
    "fast": (HALF, {"flow": 300.0}),
    "bright": (HALF, {"frame1": 3.0, "frame2": 3.0}),
}


def differ_by_half_precision(
    name: str, where: torch.device, sizes: list[tuple[int, int, int]], shape: IterationTile
) -> None:
    config, more = FILTERED_IN_HALF[name]
    for height, width, channels in sizes:
        inputs = {key: (value + more.get(key, 0)).to(where) for key, value in laid_out(height, width, channels).items()}
        actual, exact = (
            CudaRefiner(height, width, config.replace(filter_precision=precision), where, shape)(**inputs)
            for precision in ("float16", "float32")
        )
        error = (actual[0] - exact[0]).norm(dim=1)
        assert int(actual[1]) == int(exact[1]) == 0
        assert error.mean() < 3e-3
        assert (error > 0.05).float().mean() < 0.01


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", FILTERED_IN_HALF)
def test_refine_flow_half_precision_filter_matches_float32(name: str) -> None:
    differ_by_half_precision(name, CPU, [(23, 37, 3), (40, 66, 1)], SMALL)


@pytest.mark.usefixtures("machine")
def test_refine_flow_half_precision_filter_matches_float32_beside_jump() -> None:
    """At most pixels: at the others either side of the jump has nearly the same weight."""
    inputs = laid_out(40, 66)
    inputs["flow"][:, 0, :, 27:] += 60
    half, exact = (
        CudaRefiner(40, 66, HALF.replace(filter_precision=precision, trust=0, least_fall=0), CPU, SMALL)(**inputs)[0]
        for precision in ("float16", "float32")
    )
    assert (half - exact).norm(dim=1)[0, :, 20:34].median() < 5e-3


@on_gpu
@pytest.mark.parametrize("name", FILTERED_IN_HALF)
def test_refine_flow_half_precision_filter_on_gpu_matches_float32(name: str) -> None:
    where = torch.device("cuda", torch.cuda.current_device())
    differ_by_half_precision(name, where, [(200, 330, 3), (300, 411, 1)], guided_cuda.SHAPE)
