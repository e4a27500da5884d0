"""Guided refinement: against loops, backends against each other, contract, and what it is for."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from fullfield import InputError
from fullfield._kernels import Missing
from fullfield.ops import backends
from fullfield.ops.consistency import forward_backward_distance
from fullfield.ops.tvl1 import FlowRefiner, RefinementConfig, guided, refine_flow
from fullfield.ops.tvl1 import guided_reference as reference
from fullfield.testing import textured_scene
from known_scenes import known_scene

CONFIGS = {
    "default": RefinementConfig(),
    "two passes": RefinementConfig(passes=2, rounds=1, warps=2),
    "bare": RefinementConfig(rounds=1, warps=2, iterations=23, blur=0, trust=0, edges=0, consistent_coupling=0),
    "all median": RefinementConfig(filter_threshold=0, filter_colour=60, warps=1),
}


def pair(height: int, width: int, channels: int = 3, batch: int = 1) -> dict[str, torch.Tensor]:
    """Frames, a flow a good half pixel off with a motion boundary, and a flow back."""
    scenes = [known_scene(height, width, seed, 4) for seed in range(batch)]
    noise = torch.Generator().manual_seed(1)
    truth = torch.stack([scene.flow for scene in scenes])
    flow = truth + 0.4 * torch.randn(1, 2, 1, 1, generator=noise) + 0.1 * torch.randn(truth.shape, generator=noise)
    frames = [torch.stack([getattr(scene, name)[:channels] for scene in scenes]) for name in ("frame1", "frame2")]
    return {"frame1": frames[0], "frame2": frames[1], "flow": flow, "backward": -flow}


@pytest.mark.parametrize("size", [(23, 37), (5, 130), (40, 1)])
@pytest.mark.parametrize("name", CONFIGS)
def test_backends_agree(name: str, size: tuple[int, int]) -> None:
    inputs = pair(64, 132, batch=2)
    inputs = {key: value[..., : size[0], : size[1]] for key, value in inputs.items()}  # not contiguous
    exact = refine_flow(**{key: value.double() for key, value in inputs.items()}, config=CONFIGS[name])
    assert exact.dtype == torch.float64
    for backend in ("reference", "cpu"):
        found = refine_flow(**inputs, config=CONFIGS[name], backend=backend)
        error = (found - exact).abs()
        assert error.max() < 2e-3
        assert error.mean() < 1e-5


def test_threads_change_nothing() -> None:
    inputs, before = pair(150, 90), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(refine_flow(**inputs, backend="cpu"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_an_iteration_equals_loops() -> None:
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
    system = tuple(torch.from_numpy(part) for part in (m11, m12, m22, b1, b2))
    config = RefinementConfig(step=step)
    found, dual_found = reference.iterate(*map(torch.from_numpy, (flow, dual)), system, torch.from_numpy(edge), config)
    assert np.allclose(found, expected, atol=1e-12)
    assert np.allclose(dual_found, p, atol=1e-12)


def test_the_solution_is_the_energy_s_minimum_where_nothing_is_smoothed() -> None:
    """A single pixel's quadratic: gradients that differ by a known amount, a coupling, no neighbours that count."""
    ramp = torch.arange(24, dtype=torch.float64)
    image = (ramp[:, None] ** 2 + 2 * ramp**2) / 10
    one = torch.stack(reference.image_gradient(image))
    xx, xy = reference.image_gradient(one[0])
    yy = reference.image_gradient(one[1])[1]
    prior = torch.full((2, 24, 24), 0.3, dtype=torch.float64)
    config = RefinementConfig(edges=0, epsilon=1e3, step=1e3)
    coupling = torch.full((24, 24), 0.02, dtype=torch.float64)
    system = reference.linearise(one, one, (xx, xy, yy), prior, prior, coupling, config)
    flow, dual, none = prior, torch.zeros(4, 24, 24, dtype=torch.float64), torch.zeros(24, 24, dtype=torch.float64)
    for _ in range(60):
        flow, dual = reference.iterate(flow, dual, system, none + 1e-12, config)
    weight = config.lambda_ / math.sqrt(config.epsilon**2)
    inner = flow[:, 6:-6, 6:-6]
    for component, curvature in ((0, 0.4), (1, 0.2)):  # w h² u + c (u - prior) = 0
        expected = 0.02 * 0.3 / (weight * curvature**2 + 0.02)
        assert torch.allclose(inner[component], torch.full_like(inner[component], expected), rtol=1e-3)


@pytest.mark.parametrize(("light", "share"), [(1.0, 0.6), (0.8, 0.85)])
def test_a_flow_half_a_pixel_off_becomes_exact(light: float, share: float) -> None:
    scene = textured_scene(90, 120, seed=5, max_motion=3)
    off = scene.flow + torch.tensor([0.35, -0.25])[:, None, None]
    seen = scene.valid & ~scene.occluded
    frame2 = scene.frame2 * light + 0.05 * (light < 1)
    refined = refine_flow(scene.frame1[None], frame2[None], off[None])[0]
    before, after = ((flow - scene.flow).norm(dim=0)[seen].mean() for flow in (off, refined))
    assert before > 0.4
    assert after < share * before


def test_where_both_directions_agree_the_flow_is_kept_more() -> None:
    inputs = pair(60, 80)
    inputs.pop("backward")
    flow = inputs["flow"]
    back = torch.full_like(flow, 50.0)
    strong = RefinementConfig(consistent_coupling=100)
    agreeing = -flow.mean((2, 3), keepdim=True).expand_as(flow)
    inputs["flow"] = -agreeing
    kept = (refine_flow(**inputs, backward=agreeing, config=strong) - inputs["flow"])[..., 10:-10, 10:-10].norm(dim=1)
    free = (refine_flow(**inputs, backward=back, config=strong) - inputs["flow"])[..., 10:-10, 10:-10].norm(dim=1)
    assert kept.median() < 0.3 * free.median()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_neighbours_whose_gradients_do_not_fit_count_less(backend: str) -> None:
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


def test_forward_backward_distance() -> None:
    flow = torch.zeros(1, 2, 4, 6)
    flow[:, 0] = 2.5
    back = torch.zeros(1, 2, 4, 6)
    back[:, 0] = -torch.arange(6.0)
    distance = forward_backward_distance(flow, back)[0]
    assert torch.allclose(distance[:, :3], torch.arange(3.0).expand(4, 3))
    assert distance[:, 3:].isinf().all()
    with pytest.raises(InputError, match="backward"):
        forward_backward_distance(flow, back[:, :, :3])


def test_contract() -> None:
    inputs = pair(20, 30, channels=1)
    refiner = FlowRefiner(20, 30)
    expected = refiner(**inputs)
    assert expected.shape == (1, 2, 20, 30)
    assert torch.equal(refiner(**inputs), expected)
    assert torch.equal(pickle.loads(pickle.dumps(refiner))(**inputs), expected)
    assert refiner(*(part[:0] for part in inputs.values())).shape == (0, 2, 20, 30)
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


def test_the_slow_backend_is_told_once(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setattr(backends, "_warned", set())
    monkeypatch.setattr(guided.guided_cpu, "supports", lambda *_: Missing("not here"))
    with pytest.warns(UserWarning, match=r"the refinement: the cpu kernel is not used \(not here\)"):
        assert FlowRefiner(20, 30).backend == "reference"
    assert FlowRefiner(20, 30).backend == "reference"
    assert FlowRefiner(20, 30, backend="reference").backend == "reference"
    assert not recwarn.list


def test_memory_is_that_of_the_buffers() -> None:
    assert FlowRefiner(64, 96, backend="reference").memory_bytes is None
    small, large = (FlowRefiner(height, 96, backend="cpu").memory_bytes for height in (64, 128))
    assert small is not None
    assert large is not None
    assert 64 * 96 * 4 * 28 < small < large < 2 * small


def test_a_second_pass_begins_with_both_flows_refined() -> None:
    inputs = pair(60, 80)
    everything = {"least_fall": 0.0, "passes_fall": 0.0}
    config = RefinementConfig(rounds=1, **everything)
    there = refine_flow(**inputs, config=config)
    turned = {"frame1": inputs["frame2"], "frame2": inputs["frame1"]}
    back = refine_flow(**turned, flow=inputs["backward"], backward=inputs["flow"], config=config)
    expected = refine_flow(inputs["frame1"], inputs["frame2"], there, back, RefinementConfig(**everything))
    assert torch.equal(refine_flow(**inputs, config=RefinementConfig(passes=2, **everything)), expected)

    three = refine_flow(**inputs, config=RefinementConfig(passes=3, **everything))
    once_more = {"flow": there, "backward": back, "config": RefinementConfig(passes=2, **everything)}
    assert torch.equal(refine_flow(inputs["frame1"], inputs["frame2"], **once_more), three)
    inputs.pop("backward")
    assert torch.equal(refine_flow(**inputs, config=RefinementConfig(passes=2)), refine_flow(**inputs)), (
        "without a flow back there is nothing to find anew"
    )


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("passes", [{}, {"passes": 2, "rounds": 1}], ids=["one pass", "two passes"])
def test_an_exact_flow_of_noisy_frames_is_left_more(passes: dict[str, int], backend: str) -> None:
    """A round hardly lets their gradients fit better."""
    scene = textured_scene(64, 96, seed=2, max_motion=2)
    noise = torch.Generator().manual_seed(3)
    frames = [part + 0.05 * torch.randn(part.shape, generator=noise) for part in (scene.frame1, scene.frame2)]
    inputs = *(frame[None] for frame in frames), scene.flow[None], -scene.flow[None]
    everything, judged = (
        refine_flow(*inputs, config=RefinementConfig(**passes, **kept), backend=backend) - inputs[2]
        for kept in ({"least_fall": 0.0, "passes_fall": 0.0}, {})
    )
    assert everything.norm(dim=1).mean() > 0.2
    assert judged.norm(dim=1).mean() < 0.6 * everything.norm(dim=1).mean()


def test_later_passes_need_a_larger_fall_of_the_misfit() -> None:
    inputs = pair(60, 80)
    once = refine_flow(**inputs, config=RefinementConfig(rounds=1))
    low = RefinementConfig(passes=2, rounds=1, passes_fall=0.0, least_fall=0.0)
    assert not torch.equal(refine_flow(**inputs, config=low), once)
    assert torch.equal(refine_flow(**inputs, config=low.replace(passes_fall=1.0)), once)


def test_what_remains() -> None:
    config = RefinementConfig(least_fall=0.1, passes_fall=0.2)
    misfits = torch.tensor([[0.1, 0.11], [0.1, 0.095], [0.1, 0.0825], [0.1, 0.08], [0.0, 0.0]], dtype=torch.float64)
    first, later = guided.remaining(misfits, config)
    assert first.shape == later.shape == (5, 1, 1, 1)
    assert torch.allclose(first.flatten(), torch.tensor([0, 0.5, 1, 1, 1], dtype=torch.float64))
    assert torch.allclose(later.flatten(), torch.tensor([0, 0, 0.5, 1, 1], dtype=torch.float64))
    assert torch.equal(guided.remaining(misfits[:, :1], config)[0].flatten(), torch.ones(5, dtype=torch.float64))


def test_every_pair_of_a_batch_is_judged_by_itself() -> None:
    clean, spoilt = pair(60, 80), pair(60, 80)
    noise = torch.Generator().manual_seed(3)
    for name in ("frame1", "frame2"):
        spoilt[name] = spoilt[name] + 0.05 * torch.randn(spoilt[name].shape, generator=noise)
    together = refine_flow(**{name: torch.cat([clean[name], spoilt[name]]) for name in clean})
    assert torch.equal(together, torch.cat([refine_flow(**clean), refine_flow(**spoilt)]))
