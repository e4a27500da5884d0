"""Metrics against independent implementations of the benchmarks' definitions."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import metrics_definitions as definitions
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_definitions import assert_same
from PIL import Image

from fullfield import metrics
from fullfield._check import InputError
from fullfield.metrics import FlowMetrics
from fullfield.metrics.accumulator import AVERAGING
from fullfield.metrics.distance import compute_boundary_distance
from fullfield.metrics.pixels import angular_error, compute_true_motion_length
from refusals import refuses


def random_case(seed, height=17, width=23, *, four=False, spread=60.0, error=4.0):
    """Prediction, truth with NaN, valid mask, occlusion map; errors from tiny to large."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, spread, (height, width, 1, 2)) * rng.uniform(0, 3, (height, width, 1, 1)) ** 2
    truth = truth + rng.normal(0, 2, (height, width, 4 if four else 1, 2))
    size = error * 10 ** rng.uniform(-2.5, 1.5, (height, width, 1))
    pred = (truth[:, :, 0] + size * rng.normal(0, 1, (height, width, 2))).astype(np.float32)
    truth[rng.uniform(size=truth.shape[:3]) < 0.03] = np.nan
    truth[rng.uniform(size=truth.shape[:3]) < 0.01, 1] = 1.666e9
    truth = truth.astype(np.float32)
    pred[np.isnan(truth).any(axis=(2, 3))] = np.nan
    if not four:
        truth = truth[:, :, 0]
    valid = rng.uniform(size=(height, width)) < 0.9
    occluded = np.zeros((height, width), bool)
    occluded[height // 4 : height // 2, : width // 2] = True
    return pred, truth, valid, occluded


def tensors(pred, truth, valid=None, occluded=None):
    """As the package wants them: channels first."""
    return (
        torch.from_numpy(np.moveaxis(pred, -1, 0).copy()),
        torch.from_numpy(np.moveaxis(truth, (-2, -1), (0, 1) if truth.ndim == 4 else (1, 0)).copy())
        if truth.ndim == 4
        else torch.from_numpy(np.moveaxis(truth, -1, 0).copy()),
        None if valid is None else torch.from_numpy(valid),
        None if occluded is None else torch.from_numpy(occluded),
    )


def scored(pred, truth, valid=None, occluded=None, **options):
    """The metrics of one image or batch."""
    made = FlowMetrics(**options)
    made.update(pred, truth, valid, occluded)
    return made


def records(pred, truth, valid=None, occluded=None):
    distance = None if occluded is None else definitions.compute_boundary_distance(occluded)
    return definitions.pixel_list(pred, truth, valid, occluded, distance)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("size", "four"), [((17, 23), False), ((20, 11), True), ((4, 310), False)]
)  # the last reaches beyond all bands of distance
def test_flow_metrics_equal_definitions(size, four):
    case = random_case(sum(size), *size, four=four)
    gathered = scored(*tensors(*case))
    pixels = records(*case)
    wanted = definitions.summary(pixels)
    assert_same(gathered.compute(), wanted)
    for name, occluded in (("matched", False), ("unmatched", True)):
        part = definitions.summary([record for record in pixels if record["occluded"] is occluded])
        table = gathered.compute_by_class()[name]
        assert_same(table, {key: part[key] for key in table})
    assert wanted["pixels"] < case[2].sum()  # some truth is unknown
    assert not math.isnan(wanted["lm_epe"])
    pred, truth, valid, _ = tensors(*case)
    single = {
        "epe": metrics.epe(pred, truth, valid),
        "aae": metrics.aae(pred, truth, valid),
        "px1": metrics.outliers(pred, truth, valid),
        "px5": metrics.outliers(pred, truth, valid, threshold=5),
        "fl_all": metrics.fl_all(pred, truth, valid),
        "wauc": metrics.wauc(pred, truth, valid),
        "lm_epe": metrics.epe(pred, truth, valid & (compute_true_motion_length(truth) > 128)),
    }
    assert_same(single, {key: wanted[key] for key in single})


@pytest.mark.unit
def test_flow_metrics_pooled_and_per_image():
    cases = [random_case(0, 9, 40), random_case(1, 20, 11, error=0.1), random_case(2, 8, 8, spread=0.5), random_case(3)]
    cases[3][2][:] = False  # an image without a scored pixel
    pooled, per_image = FlowMetrics(averaging="pooled"), FlowMetrics(averaging="per_image")
    for case in cases:
        pooled.update(*tensors(*case))
        per_image.update(*tensors(*case))
    parts = [records(*case) for case in cases]
    everything = definitions.summary([record for part in parts for record in part])
    assert_same(pooled.compute(), {**everything, "images": 4})
    singles = [definitions.summary(part) for part in parts]
    means = {
        key: definitions.mean([single[key] for single in singles if not math.isnan(single[key])]) for key in everything
    }
    assert_same(per_image.compute(), {**means, "pixels": everything["pixels"], "images": 4})
    assert any(math.isnan(single["s40_plus"]) for single in singles[:3])  # a class that only some images have
    assert pooled.compute()["epe"] != per_image.compute()["epe"]


@pytest.mark.unit
def test_flow_metrics_equal_springs_evaluation():
    """Truth at twice the size, pooled over images, all of Spring's measures over its classes of speed."""
    gathered, preds, truths = FlowMetrics(), [], []
    for seed in range(3):
        pred, truth, _, _ = random_case(seed, 12, 18, four=True)
        truth[np.abs(truth) > 1e9] = np.nan
        double = np.zeros((2, 24, 36), np.float32)
        for y, x, k in itertools.product(range(12), range(18), range(4)):
            double[:, 2 * y + k // 2, 2 * x + k % 2] = truth[y, x, k]
        four = metrics.split_four_values(torch.from_numpy(double))
        torch.testing.assert_close(four, tensors(pred, truth)[1], rtol=0, atol=0, equal_nan=True)
        gathered.update(tensors(pred, truth)[0], four)
        preds.append(pred.reshape(-1, 2))
        truths.append(truth.reshape(-1, 4, 2))
    wanted = definitions.spring_scores(np.concatenate(preds).astype(float), np.concatenate(truths).astype(float))
    table = gathered.compute_by_class()
    assert_same({name: {m: table[name][m] for m in wanted[name]} for name in wanted}, wanted)


@pytest.mark.unit
def test_four_values_returns_nan_where_invalid():
    flow = torch.arange(2 * 2 * 4, dtype=torch.float32).reshape(2, 2, 4)
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[1, 2] = False
    four = metrics.split_four_values(flow, valid)
    assert four.shape == (4, 2, 1, 2)
    assert four[:, 0, 0, 0].tolist() == [0, 1, 4, 5]
    assert torch.isnan(four[2, :, 0, 1]).all()
    assert int(torch.isnan(four).sum()) == 2
    refuses("an even height and width", metrics.split_four_values, torch.zeros(2, 3, 4))


@pytest.mark.unit
def test_fl_all_requires_both_conditions():
    truth = torch.tensor([[100.0, 100.0, 10.0, 10.0, 0.0]] * 1)[None].repeat(2, 1, 1)
    truth[1] = 0
    pred = truth.clone()
    pred[1, 0] = torch.tensor([4.0, 5.1, 2.9, 3.1, 3.0])  # 4 %, 5.1 %, < 3 px, both, exactly 3 px
    assert metrics.fl_all(pred, truth) == pytest.approx(100 * 2 / 5)
    assert metrics.outliers(pred, truth, threshold=3) == pytest.approx(100 * 3 / 5)


@pytest.mark.unit
def test_wauc_counts_errors_at_thresholds():
    """An error of exactly i/20 counts as an inlier at i; beyond 5 px nothing counts."""
    for error, first in ((0.0, 1), (0.05, 1), (0.0500001, 2), (0.25, 5), (2.5, 50), (5.0, 100), (5.0000001, 101)):
        pred = torch.tensor([error, 0.0], dtype=torch.float64).reshape(2, 1, 1)
        inliers = sum(101 - i for i in range(first, 101))
        assert metrics.wauc(pred, torch.zeros(2, 1, 1)) == pytest.approx(100 * inliers / 5050, abs=1e-12)


@pytest.mark.unit
def test_aae_keeps_small_angles():
    """acos of a cosine near 1 would return 0 or 1e-6 degrees here."""
    truth = torch.tensor([30.0, -20.0], dtype=torch.float64).reshape(2, 1, 1)
    step = torch.tensor([1e-9, 2e-9], dtype=torch.float64).reshape(2, 1, 1)
    # Derivative of the direction: |step x (u, v, 1)| / |(u, v, 1)|²
    a, d = np.array([30.0, -20.0, 1.0]), np.array([1e-9, 2e-9, 0.0])
    wanted = math.degrees(np.linalg.norm(np.cross(d, a)) / (a @ a))
    assert metrics.aae(truth + step, truth) == pytest.approx(wanted, rel=1e-5)
    assert metrics.aae(-truth, truth) == pytest.approx(2 * math.degrees(math.atan(math.hypot(30, 20))), rel=1e-12)


@pytest.mark.unit
def test_flow_metrics_speed_and_large_motion_bounds():
    """10 belongs to s10-40, 40 to s40+, and exactly 128 is not large motion."""
    truth = torch.zeros(2, 1, 5)
    truth[0, 0] = torch.tensor([9.999, 10.0, 40.0, 128.0, 128.01])
    pred = truth.clone()
    pred[1, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    gathered = scored(pred, truth)
    got = gathered.compute()
    assert (got["s0_10"], got["s10_40"], got["s40_plus"]) == (1.0, 2.0, pytest.approx(28 / 3))
    assert (got["lm_epe"], got["lm_px1"]) == (16.0, 100.0)
    lower = scored(pred, truth, lm_threshold=39.0)
    assert lower.compute()["lm_epe"] == pytest.approx(28 / 3)


@pytest.mark.unit
def test_flow_metrics_of_empty_classes_are_nan():
    empty = FlowMetrics().compute()
    assert (empty.pop("pixels"), empty.pop("images")) == (0, 0)
    assert all(math.isnan(value) for value in empty.values())
    gathered = FlowMetrics()
    flow = torch.zeros(2, 4, 5)
    gathered.update(flow, flow)
    got = gathered.compute()
    assert got["epe"] == 0
    assert got["wauc"] == 100
    absent = {"lm_epe", "lm_px1", "s10_40", "s40_plus", "epe_matched", "epe_unmatched", "d0_10", "d10_60", "d60_140"}
    assert {key for key, value in got.items() if math.isnan(value)} == absent
    assert math.isnan(metrics.epe(flow, flow, torch.zeros(4, 5, dtype=torch.bool)))
    assert math.isnan(metrics.epe(flow[:, :0], flow[:, :0]))
    gathered.update(flow[:, :0], flow[:, :0])
    assert gathered.compute()["images"] == 2


@pytest.mark.unit
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_flow_metrics_refuse_nonfinite_prediction(bad):
    pred, truth, valid, occluded = tensors(*random_case(4))
    gathered = scored(pred, truth, valid, occluded)
    before = gathered.state_dict()
    wrong = pred.clone()
    counted = valid & ~torch.isnan(metrics.end_point_error(pred, truth))
    y, x = counted.nonzero()[7].tolist()
    wrong[1, y, x] = bad
    with pytest.raises(InputError, match=rf"^pred: .* got 1 without a finite error, the first at x={x}, y={y}$"):
        gathered.update(wrong, truth, valid, occluded)
    assert gathered.state_dict() == before
    with pytest.raises(InputError, match="finite"):
        gathered.update(torch.stack([pred, wrong]), torch.stack([truth, truth]), torch.stack([valid, valid]))
    assert gathered.state_dict() == before
    for function in (metrics.epe, metrics.aae, metrics.outliers, metrics.fl_all, metrics.wauc):
        refuses("finite", function, wrong, truth, valid)
    valid[y, x] = False
    gathered.update(wrong, truth, valid, occluded)


@pytest.mark.unit
def test_flow_metrics_of_batch_equal_images():
    cases = [tensors(*random_case(seed, four=True)) for seed in range(3)]
    one_by_one, batched = FlowMetrics(averaging="per_image"), FlowMetrics(averaging="per_image")
    for case in cases:
        one_by_one.update(*case)
    batched.update(*(torch.stack(column) for column in zip(*cases, strict=True)))
    assert batched.state_dict() == one_by_one.state_dict()
    # Four images without four values are not one image with four values.
    flows = torch.randn(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    four_images, four_values = scored(flows, flows), scored(flows[0], flows)
    assert four_images.compute()["pixels"] == 120
    assert four_values.compute()["pixels"] == 30


@pytest.mark.unit
@settings(max_examples=10, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6), st.sampled_from(AVERAGING))
def test_flow_metrics_merge_is_exact(order, cut, averaging):
    cases = [tensors(*random_case(seed, 6, 7, spread=40, error=3)) for seed in range(6)]
    whole, left, right = (FlowMetrics(averaging=averaging) for _ in range(3))
    for case in cases:
        whole.update(*case)
    for position, index in enumerate(order):
        (left if position < cut else right).update(*cases[index])
    stored = json.loads(json.dumps(right.state_dict()))
    left.merge(FlowMetrics.from_state(stored))
    assert left.state_dict() == whole.state_dict()
    assert_same(left.compute(), whole.compute(), rel=0)


@pytest.mark.unit
def test_flow_metrics_refuse_other_state():
    refuses("averaging", FlowMetrics().merge, FlowMetrics(averaging="per_image"))
    refuses("lm_threshold", FlowMetrics().merge, FlowMetrics(lm_threshold=64))
    refuses("pooled, per_image", FlowMetrics, averaging="mean")
    state = FlowMetrics().state_dict()
    for broken in ({}, {**state, "counts": {}}, {**state, "images": -1}, {**state, "pixels": 1.5}):
        refuses("state", FlowMetrics.from_state, broken)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pred": torch.zeros(3, 4, 5)}, "pred: expected shape"),
        ({"pred": torch.zeros(2, 4, 6)}, "truth: expected shape"),
        ({"pred": torch.zeros(2, 4, 5, dtype=torch.int32)}, "pred: expected dtype"),
        ({"truth": torch.zeros(3, 2, 4, 5)}, "truth: expected shape"),
        ({"truth": np.zeros((2, 4, 5))}, "truth: expected a tensor"),
        ({"valid": torch.ones(4, 5)}, "valid: expected dtype bool"),
        ({"valid": torch.ones(5, 4, dtype=torch.bool)}, "valid: expected shape"),
        ({"occluded": torch.ones(1, 4, 5, dtype=torch.bool)}, "occluded: expected shape"),
        ({"pred": torch.zeros(3, 2, 4, 5)}, "truth: expected a batch of 3"),
    ],
)
def test_flow_metrics_name_wrong_input(change, message):
    arguments = {"pred": torch.zeros(2, 4, 5), "truth": torch.zeros(2, 4, 5), "valid": None, "occluded": None}
    refuses(f"^{message}", FlowMetrics().update, **{**arguments, **change})


@pytest.mark.unit
def test_error_maps_equal_definitions():
    case = random_case(8, 40, 30)
    pred, truth, valid, _ = tensors(*case)
    error, angle = metrics.end_point_error(pred, truth, valid), angular_error(pred, truth, valid)
    assert error.dtype == torch.float64
    flat = records(*case[:3])
    assert error[~error.isnan()].tolist() == pytest.approx([r["epe"] for r in flat], rel=1e-12)
    assert angle[~angle.isnan()].tolist() == pytest.approx([r["aae"] for r in flat], rel=1e-9)
    assert bool((error.isnan() == angle.isnan()).all())
    motion = compute_true_motion_length(truth)
    assert bool((motion.isnan() == ((truth.abs() <= 1e9).all(0)).logical_not()).all())


@pytest.mark.unit
def test_flow_metrics_are_independent_of_dtype_and_strides(monkeypatch):
    pred, truth, valid, _ = tensors(*random_case(10, spread=10))
    truth = torch.where(truth.abs() > 1e4, math.nan, truth)
    half = scored(pred.half(), truth.half(), valid)
    same = scored(pred.half().float(), truth.half().double(), valid)
    assert half.state_dict() == same.state_dict()
    strided = scored(pred.mT.contiguous().mT, truth.mT.contiguous().mT, valid.mT.contiguous().mT)
    plain = scored(pred, truth, valid)
    assert_same(strided.compute(), plain.compute())
    case = tensors(*random_case(9, 31, 17))
    whole = scored(*case)
    monkeypatch.setattr("fullfield.metrics.pixels._BLOCK_PIXELS", 40)
    cut = scored(*case)
    assert_same(cut.compute(), whole.compute())


@pytest.mark.unit
def test_flow_metrics_are_independent_of_threads():
    pred, truth, valid, occluded = tensors(*random_case(11, 300, 500))
    del occluded
    threads, states = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            gathered = FlowMetrics()
            gathered.update(pred, truth, valid)
            states.append(gathered.state_dict())
    finally:
        torch.set_num_threads(threads)
    assert states[0] == states[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_flow_metrics_on_gpu_equal_cpu():
    case = tensors(*random_case(12, 50, 60, four=True))
    host, device = scored(*case), scored(*(part.cuda() for part in case))
    assert_same(device.compute(), host.compute())


@pytest.mark.unit
@pytest.mark.parametrize("seed", range(4))
def test_compute_boundary_distance_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    occluded = np.zeros((26, 31), bool)
    for _ in range(seed + 1):
        y, x = rng.integers(0, 20, 2)
        occluded[y : y + rng.integers(1, 9), x : x + rng.integers(1, 9)] = True
    wanted = definitions.compute_boundary_distance(occluded)
    for reach in (1, 6, 140):
        got = compute_boundary_distance(torch.from_numpy(occluded), radius=reach).double().numpy()
        limited = np.where(wanted < reach, wanted, np.inf)
        np.testing.assert_allclose(got, limited, rtol=1e-6)


@pytest.mark.unit
def test_compute_boundary_distance_is_independent_of_blocks(monkeypatch):
    monkeypatch.setattr("fullfield.metrics.pixels._BLOCK_PIXELS", 700)
    occluded = torch.zeros(330, 340, dtype=torch.bool)
    occluded[3, 5] = True
    got = compute_boundary_distance(occluded)
    y, x = torch.meshgrid(torch.arange(330.0), torch.arange(340.0), indexing="ij")
    to_cross = torch.stack(
        [torch.hypot(y - 3 - dy, x - 5 - dx) for dy, dx in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))]
    )
    wanted = to_cross.amin(0)
    torch.testing.assert_close(got, torch.where(wanted < 140, wanted, math.inf))
    for constant in (False, True):
        assert bool(compute_boundary_distance(torch.full((4, 6), constant)).isinf().all())
    assert compute_boundary_distance(torch.zeros(0, 4, dtype=torch.bool)).shape == (0, 4)
    refuses("radius", compute_boundary_distance, occluded, radius=182)


@pytest.mark.unit
def test_compute_boundary_distance_equals_scipy_on_sintel(data_dir):
    scipy = pytest.importorskip("scipy.ndimage")
    path: Path = data_dir / "flow" / "sintel" / "truth" / "occlusions_0002.png"
    occluded = np.asarray(Image.open(path).convert("L")) > 127
    cross = scipy.generate_binary_structure(2, 1)
    edge = occluded & ~scipy.binary_erosion(occluded, cross, border_value=1)
    edge |= ~occluded & scipy.binary_dilation(occluded, cross)
    wanted = scipy.distance_transform_edt(~edge)
    got = compute_boundary_distance(torch.from_numpy(occluded)).numpy()
    np.testing.assert_allclose(got, np.where(wanted < 140, wanted, np.inf), rtol=1e-6)


MEMORY = """
import torch
torch.set_num_threads(1)
from fullfield.metrics import FlowMetrics
from peak_memory import PeakMemory
small = torch.ones(2, 64, 4096)
FlowMetrics().update(small, small, None, small[0] > 2)
pred, truth = torch.full((2, 858, 4096), 1.5), torch.full((2, 858, 4096), 2.5)
occluded = torch.zeros(858, 4096, dtype=torch.bool)
occluded[500:700] = True
with PeakMemory() as memory:
    FlowMetrics().update(pred, truth, None, occluded)
print(memory.growth_mib * 2**20 / (4 * 858 * 4096))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc here")
def test_flow_metrics_peak_memory_is_few_planes(run_measured_script):
    """An eighth of an 8192x3432 frame, in a process of its own; the unit is one float32 plane."""
    assert 0.5 < float(run_measured_script(MEMORY)) <= 3.5


@pytest.mark.unit
def test_flow_metrics_accept_far_and_differentiable_predictions():
    truth = torch.zeros(2, 4, 4)
    gathered = FlowMetrics()
    refuses("pred: expected finite vectors", gathered.update, torch.full((2, 4, 4), 1e308, dtype=torch.float64), truth)
    gathered.update(torch.full((2, 4, 4), 3e38), truth)
    assert gathered.compute()["epe"] > 1e38
    pred, truth = torch.ones(2, 4, 5).requires_grad_(), torch.zeros(2, 4, 5)
    seen = torch.zeros(4, 5) > 0
    learning, plain = scored(pred, truth, occluded=seen), scored(pred.detach(), truth, occluded=seen)
    assert learning.state_dict() == plain.state_dict()
