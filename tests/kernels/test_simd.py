"""The explicit vectors against numpy, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from fullfield._kernels import simd  # noqa: E402

RNG = np.random.default_rng(0)


@numba.njit
def _arithmetic(a, b, out):  # type: ignore[no-untyped-def]
    x = simd.load(a, 3)
    y = simd.load(b, 0)
    simd.store(out, 0, x + y)
    simd.store(out, 16, x - y)
    simd.store(out, 32, x * y)
    simd.store(out, 48, x / y)
    simd.store(out, 64, simd.minimum(x, y))
    simd.store(out, 80, simd.maximum(x, y))
    simd.store(out, 96, simd.sqrt(y))
    simd.store(out, 112, simd.floor(x))
    simd.store(out, 128, simd.get_ones_where_within(x, simd.splat(np.float32(0.0)), simd.splat(np.float32(2.0))))
    simd.store(out, 144, simd.compute_reciprocal_above_else_zero(x, simd.splat(np.float32(1.0))))
    simd.store(out, 160, simd.create_lane_numbers())
    simd.store(out, 176, simd.get_ones_where_above(x, y))


def test_simd_lanes_match_numpy() -> None:
    a = RNG.uniform(-4, 4, 19).astype(np.float32)
    a[5] = 2.0
    b = RNG.uniform(0.5, 4, 16).astype(np.float32)
    out = np.full(216, np.nan, np.float32)
    _arithmetic(a, b, out)
    x = a[3:]
    with np.errstate(divide="ignore"):
        expected = [x + b, x - b, x * b, x / b, np.minimum(x, b), np.maximum(x, b), np.sqrt(b), np.floor(x)]
    expected += [(x >= 0) & (x <= 2), np.where(x > 1, 1 / x, 0), np.arange(16), x > b]
    np.testing.assert_allclose(out[: 16 * len(expected)], np.concatenate(expected), rtol=3e-7)
    assert np.isnan(out[16 * len(expected) :]).all(), "nothing is written beyond the 16 lanes"


@numba.njit
def _columns(a, indices, out):  # type: ignore[no-untyped-def]
    for column, vector in enumerate(simd.load_rows_transposed(a, indices, 3)):
        simd.store(out, 16 * column, vector)


def test_simd_columns_match_rows() -> None:
    a, indices = RNG.uniform(-4, 4, (50, 8)).astype(np.float32), RNG.integers(0, 50, 19).astype(np.int32)
    out = np.zeros(128, np.float32)
    _columns(a.ravel(), indices, out)
    np.testing.assert_array_equal(out.reshape(8, 16), a[indices[3:]].T)


@numba.njit
def _folded(a, w, whole, out):  # type: ignore[no-untyped-def]
    x = simd.load(a, 0)
    out[0], out[1], out[2], out[3] = simd.sum_weighted_quarters(x, w[0], w[1], w[2], w[3])
    simd.store_truncated_int32(whole, 2, x)


def test_simd_weights_and_integers_match_numpy() -> None:
    a = RNG.uniform(-9, 9, 16).astype(np.float32)
    w = RNG.uniform(-1, 1, 4).astype(np.float32)
    out, whole = np.zeros(4, np.float32), np.full(20, -77, np.int32)
    _folded(a, w, whole, out)
    np.testing.assert_allclose(out, w @ a.reshape(4, 4), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(whole[2:18], np.trunc(a).astype(np.int32))
    assert (whole[[0, 1, 18, 19]] == -77).all()


@numba.njit
def _wrong(a, out):  # type: ignore[no-untyped-def]
    out[0] = simd.load(a, 0) + 1.0


def test_simd_lanes_refuse_scalars() -> None:
    with pytest.raises(numba.core.errors.TypingError):
        _wrong(np.zeros(16, np.float32), np.zeros(1, np.float32))


@numba.njit
def _estimated(a, out):  # type: ignore[no-untyped-def]
    x = simd.load(a, 0)
    simd.store(out, 0, simd.approximate_rsqrt(x))
    return simd.is_any_lane_above_zero(x - simd.splat(np.float32(2.0)))


@pytest.mark.parametrize(("largest", "some"), [(1.5, False), (2.5, True)])
def test_simd_rough_root_and_any_above_match_numpy(largest: float, some: bool) -> None:
    a, out = RNG.uniform(1e-4, 1.5, 16).astype(np.float32), np.zeros(16, np.float32)
    a[RNG.integers(16)] = largest
    assert bool(_estimated(a, out)) is some
    np.testing.assert_allclose(out, 1 / np.sqrt(a), rtol=2**-13)
