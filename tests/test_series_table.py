"""Many correlations at once: each cell is that of the plain function for one pair, and signs are plain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from embcompare.decomposition.series import same_text_correlation, spearman_of_differences, text_correlation
from embcompare.decomposition.series_table import (
    correlate_changes,
    correlate_moves,
    correlate_same_texts,
    correlate_texts,
    settled,
)

LENGTHS = (6, 5, 7)


def runs(rows, seed, digits=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(*rows, n)).round(digits) for n in LENGTHS]


def near(found, one, cell):
    expected = one.rho, one.low, one.high
    np.testing.assert_allclose([getattr(found, name)[cell] for name in ("rho", "low", "high")], expected, atol=1e-12)
    assert (found.pairs, found.units) == (one.pairs, one.units)


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_each_cell_is_the_plain_correlation_of_differences(digits):
    x, y = runs((3,), 0, digits), runs((2,), 1, digits)
    found = correlate_changes(x, y, resamples=300, seed=4)
    for i, j in np.ndindex(3, 2):
        near(found, spearman_of_differences([r[i] for r in x], [r[j] for r in y], resamples=300, seed=4), (i, j))


def test_pairs_beyond_the_most_are_drawn_alike():
    x, y = runs((1,), 0), runs((1,), 1)
    found = correlate_changes(x, y, resamples=50, seed=4, max_pairs=40)
    plain = spearman_of_differences([r[0] for r in x], [r[0] for r in y], resamples=50, seed=4, max_pairs=40)
    near(found, plain, (0, 0))
    assert found.pairs == 40


def test_each_cell_over_texts_is_the_plain_one():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(3, 4, 30)).round(1), rng.normal(size=(2, 4, 30)).round(1)
    between = correlate_same_texts(x, y, resamples=300, seed=5)
    alone = correlate_texts(x[:, 1], y[:, 1], resamples=300, seed=5)
    for i, j in np.ndindex(3, 2):
        near(between, same_text_correlation(x[i], y[j], resamples=300, seed=5), (i, j))
        near(alone, text_correlation(x[i, 1], y[j, 1], resamples=300, seed=5), (i, j))


def test_moves_are_l1_norms_of_standardised_differences():
    x, y = runs((2, 3), 0, 9), runs((2,), 1, 9)
    found = correlate_moves(x, y, resamples=20)
    spread = np.concatenate(x, -1).std(-1)
    for i, j in np.ndindex(2, 2):
        moved, changed = [], []
        for run, own in zip(x, y, strict=True):
            for a, b in np.ndindex(run.shape[-1], run.shape[-1]):
                if a != b:
                    moved.append((np.abs(run[i, :, a] - run[i, :, b]) / spread[i]).sum())
                    changed.append(abs(own[j, a] - own[j, b]))
        assert found.rho[i, j] == pytest.approx(spearmanr(moved, changed).statistic)


def test_a_constant_or_undefined_term_leaves_the_group_as_it_is():
    x, y = runs((1, 3), 0), runs((1,), 1)
    for filling in (5.0, np.nan):
        for run in x:
            run[:, 2] = filling
        full = correlate_moves(x, y, resamples=20)
        two = correlate_moves([run[:, :2] for run in x], y, resamples=20)
        assert np.array_equal(full.rho, two.rho)


def test_rising_together_is_positive_and_one():
    metric = [np.array([[1.0, 2, 4, 8]]), np.array([[0.5, 3, 5, 6]])]
    x = [np.stack([run[0], -run[0], np.exp(run[0]), np.ones(4)]) for run in metric]
    found = correlate_changes(x, metric, resamples=200)
    assert found.rho[:2, 0].tolist() == pytest.approx([1, -1])
    assert 0.9 < found.rho[2, 0] <= 1
    assert (found.low[0, 0], found.high[1, 0]) == pytest.approx((1, -1))
    assert np.isnan(found.rho[3, 0])
    assert np.isnan(found.low[3, 0])


def test_the_interval_for_many_tests_holds_the_one_for_one():
    x, y = runs((4,), 0), runs((2,), 1)
    one, many = correlate_changes(x, y, resamples=500), correlate_changes(x, y, resamples=500, tests=20)
    assert np.array_equal(one.low, many.low)
    assert np.array_equal(one.low, one.low_all)
    assert (many.low_all <= many.low).all()
    assert (many.high_all >= many.high).all()
    assert (many.high_all - many.low_all > many.high - many.low).any()


def test_noise_is_rarely_clear_of_zero_and_a_signal_always():
    rng, clear = np.random.default_rng(0), []
    for _ in range(40):
        walks = [rng.normal(size=(20, 8)) for _ in range(6)]
        metric = [rng.normal(size=(1, 8)) for _ in range(6)]
        found = correlate_changes(walks, metric, tests=20, resamples=400)
        clear.append(((found.low_all > 0) | (found.high_all < 0)).any())
    assert np.mean(clear) < 0.25
    walks = [
        np.concatenate([own + 0.1 * rng.normal(size=own.shape), walk[:19]])
        for walk, own in zip(walks, metric, strict=True)
    ]
    found = correlate_changes(walks, metric, tests=20, resamples=400)
    assert found.low_all[0, 0] > 0.5


def test_too_little_has_no_interval():
    one = correlate_changes([np.ones((2, 1))], [np.ones((1, 1))])
    assert np.isnan(one.rho).all()
    two = correlate_changes([np.array([[1.0, 2]])], [np.array([[1.0, 3]])])
    assert two.rho[0, 0] == pytest.approx(1)
    assert np.isnan(two.low).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(0.1, 1e6), st.floats(-1e3, 1e3))
def test_scale_and_shift_of_either_side_change_nothing_and_the_sign_turns(seed, scale, shift):
    x, y = runs((1,), seed, 9), runs((1,), seed + 1, 9)
    plain = correlate_changes(x, y, resamples=30)
    moved = correlate_changes([scale * run + shift for run in x], y, resamples=30)
    turned = correlate_changes(x, [-run for run in y], resamples=30)
    np.testing.assert_allclose(moved.rho, plain.rho, atol=1e-9)
    np.testing.assert_allclose(turned.rho, -plain.rho, atol=1e-12)
    np.testing.assert_allclose(moved.low, plain.low, atol=1e-9)


def test_what_is_constant_but_for_rounding_is_constant():
    noisy = 1 + np.array([[0, 2e-16, -3e-16, 1e-16]])
    assert np.ptp(settled(noisy)) == 0
    assert np.array_equal(settled(np.array([[1.0, 2, 3]])), [[1.0, 2, 3]])
    found = correlate_changes([noisy], [np.array([[1.0, 2, 3, 4]])])
    assert np.isnan(found.rho).all()
