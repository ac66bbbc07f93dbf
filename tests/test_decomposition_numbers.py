"""Indicators of terms and statistics of series: declared invariances, plain formulas, and answers known beforehand."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from embcompare.decomposition import (
    INDICATORS,
    common_language,
    dtw,
    indicators,
    same_text_correlation,
    spearman_of_differences,
    standardised,
    summarise,
    text_correlation,
    variance_components,
)
from embcompare.errors import SettingsError

NUMBERS = st.integers(0, 2**32 - 1)


def drawn(seed, terms=4, tokens=6, width=5):
    values = torch.randn(terms, tokens, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values, values.sum(0)


@given(NUMBERS)
@settings(max_examples=30, deadline=None)
def test_indicators_are_their_formulas(seed):
    values, hidden = drawn(seed)
    found = indicators(values, hidden)
    assert list(found) == list(INDICATORS)
    for term, token in itertools.product(range(4), range(6)):
        d, e = values[term, token].numpy(), hidden[token].numpy()
        expected = [
            d @ e / (e @ e),
            d @ e / np.linalg.norm(d) / np.linalg.norm(e),
            np.linalg.norm(d - e),
            np.linalg.norm(d) / np.linalg.norm(e),
        ]
        assert [float(found[name][term, token]) for name in INDICATORS] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(found["importance"].sum(0), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-9)


@given(NUMBERS, st.integers(-150, 150))
@settings(max_examples=30, deadline=None)
def test_scale_and_rotation_change_distances_only_and_those_by_the_scale(seed, power):
    values, hidden = drawn(seed)
    plain = indicators(values, hidden)
    rotation, _ = torch.linalg.qr(drawn(seed + 1, 1, 5)[0][0])
    for changed, factor in (
        (indicators(values @ rotation, hidden @ rotation), 1.0),
        (indicators(-values, -hidden), 1.0),
        (indicators(values * 10.0**power, hidden * 10.0**power), 10.0**power),
    ):
        for name, value in plain.items():
            expected = value * factor if name == "distance" else value
            torch.testing.assert_close(changed[name], expected, rtol=1e-8, atol=1e-10 * factor if factor < 1 else 1e-10)


def test_what_is_undefined_is_nan_and_counted():
    values, _ = drawn(0)
    values[1, 2] = 0
    values[:, 4] = 0
    found = indicators(values, values.sum(0))
    assert found["importance"][1, 2] == 0
    assert found["norm_ratio"][1, 2] == 0
    assert found["cosine"].isnan().nonzero().tolist() == [[0, 4], [1, 2], [1, 4], [2, 4], [3, 4]]
    for name in ("importance", "norm_ratio"):
        assert found[name].isnan().nonzero().tolist() == [[term, 4] for term in range(4)]
    assert not found["distance"].isnan().any()
    summary = summarise(found["cosine"])
    assert summary.undefined.tolist() == [1, 2, 1, 1]
    assert summary.count.tolist() == [5, 4, 5, 5]
    kept = found["cosine"][1][~found["cosine"][1].isnan()].numpy()
    assert summary.mean[1] == pytest.approx(kept.mean())
    assert summary.sd[1] == pytest.approx(kept.std(ddof=1))
    nothing = summarise(np.full((2, 3), np.nan))
    assert np.isnan(nothing.mean).all()
    assert nothing.undefined.tolist() == [3, 3]
    single = summarise(np.array([[1.0, np.nan]]))
    assert single.mean.tolist() == [1.0]
    assert np.isnan([single.sd, single.low, single.high]).all()


def test_intervals_hold_the_mean_and_those_of_whole_texts_are_wider():
    rng = np.random.default_rng(0)
    texts = np.repeat(np.arange(30), 20)
    values = rng.normal(size=30)[texts] + 0.1 * rng.normal(size=600) + 3
    by_token, by_text = summarise(values), summarise(values, texts)
    for each in (by_token, by_text):
        assert each.low < each.mean < each.high
    assert by_text.high - by_text.low > 3 * (by_token.high - by_token.low)
    # The interval of a mean of independent numbers is that of the normal approximation.
    plain = rng.normal(size=400)
    found = summarise(plain, resamples=4000)
    assert found.high - found.low == pytest.approx(2 * 1.96 * plain.std(ddof=1) / 20, rel=0.08)
    one = summarise(values, np.zeros(600, int))
    assert np.isnan(one.low)
    with pytest.raises(SettingsError, match="one text number each"):
        summarise(values, texts[:-1])
    assert summarise(values, texts).low == by_text.low
    assert summarise(values, texts, seed=1).low != by_text.low


def test_rising_together_is_positive_and_falling_is_negative():
    quality = np.array([1.0, 5.0, 9.0, 14.0, 20.0, 21.0])
    up = spearman_of_differences(np.sqrt(quality), quality)
    down = spearman_of_differences(-np.sqrt(quality), quality)
    assert up.rho > 0.9
    assert down.rho == pytest.approx(-up.rho)
    assert up.low > 0.5
    assert down.high < -0.5
    assert up.pairs == 30
    assert up.units == 6
    linear = spearman_of_differences(3 * quality - 7, quality)
    assert linear.rho == pytest.approx(1)
    assert spearman_of_differences(standardised(quality), quality).rho == pytest.approx(1)
    assert spearman_of_differences(standardised(-quality), quality).rho == pytest.approx(-1)
    assert np.isnan(spearman_of_differences(np.ones(6), quality).rho)
    steps = np.array([0.1, 0.2, 0.3, 0.4])  # all steps equal, but not in floating point
    assert spearman_of_differences(steps, 10 * steps).rho == pytest.approx(1)
    assert spearman_of_differences(steps, np.arange(4)).rho == pytest.approx(1)


def test_differences_are_within_runs_and_agree_with_scipy():
    rng = np.random.default_rng(1)
    performance = [rng.normal(size=n).cumsum() for n in (5, 6, 4)]
    # Each run is shifted by a lot: across runs the sign would turn.
    indicator = [run * 0.5 + rng.normal(size=len(run)) * 0.1 - 100 * number for number, run in enumerate(performance)]
    performance = [run + 100 * number for number, run in enumerate(performance)]
    x, y = [], []
    for a, b in zip(indicator, performance, strict=True):
        for i, j in itertools.permutations(range(len(a)), 2):
            x.append(a[j] - a[i])
            y.append(b[j] - b[i])
    found = spearman_of_differences(indicator, performance, resamples=200)
    assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.rho > 0.9
    assert found.pairs == len(x)
    assert found.low <= found.rho <= found.high
    assert found == spearman_of_differences(indicator, performance, resamples=200)
    few = spearman_of_differences(indicator, performance, resamples=10, max_pairs=30)
    assert few.pairs == 30
    assert few.rho > 0.8
    with pytest.raises(SettingsError, match="same checkpoints"):
        spearman_of_differences(indicator, performance[:2])
    gap = [run.copy() for run in indicator]
    gap[0][2] = np.nan
    assert spearman_of_differences(gap, performance, resamples=10).units == 14


def test_intervals_are_those_of_resamples_written_out():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 3, 6)).round(1)
    y += 0.7 * x
    found, rhos = spearman_of_differences(x, y, resamples=4000), []
    for _ in range(800):
        left, right = [], []
        for run in rng.integers(0, 3, 3):
            picks = rng.integers(0, 6, 6)
            for i, j in itertools.permutations(picks, 2):
                if i != j:
                    left.append(round(x[run, j] - x[run, i], 9))
                    right.append(round(y[run, j] - y[run, i], 9))
        rhos.append(stats.spearmanr(left, right).statistic)
    low, high = np.percentile(rhos, [2.5, 97.5])
    assert found.low == pytest.approx(low, abs=0.06)
    assert found.high == pytest.approx(high, abs=0.03)
    a, b = rng.normal(size=(2, 40))
    b += a
    found, rhos = text_correlation(a, b, resamples=4000), []
    for _ in range(800):
        picks = rng.integers(0, 40, 40)
        rhos.append(stats.spearmanr(a[picks], b[picks]).statistic)
    low, high = np.percentile(rhos, [2.5, 97.5])
    assert found.low == pytest.approx(low, abs=0.05)
    assert found.high == pytest.approx(high, abs=0.03)


def test_series_that_have_nothing_to_do_with_each_other_are_told_so():
    held = 0
    for seed in range(20):
        x, y = np.random.default_rng(seed).normal(size=(2, 5, 8))
        found = spearman_of_differences(x, y, resamples=100)
        held += found.low <= 0 <= found.high
    assert held >= 17


def test_texts_and_pairs_of_runs_on_one_text():
    rng = np.random.default_rng(2)
    ease, skill = rng.normal(size=60) * 10, rng.normal(size=(4, 60))
    score, indicator = ease + skill, -ease + 2 * skill
    plain = text_correlation(indicator[0], score[0])
    assert plain.rho < -0.9
    assert plain.rho == pytest.approx(stats.spearmanr(indicator[0], score[0]).statistic)
    same = same_text_correlation(indicator, score)
    assert same.rho == pytest.approx(1)
    assert same.pairs == 12 * 60
    assert same.units == 60
    noise = rng.normal(size=300)
    found = text_correlation(noise, rng.normal(size=300))
    assert found.low < 0 < found.high
    with pytest.raises(SettingsError, match="same texts"):
        text_correlation(noise, noise[1:])
    with pytest.raises(SettingsError, match="at least two runs"):
        same_text_correlation(noise, noise)
    with pytest.raises(SettingsError, match="one number a text"):
        text_correlation(indicator, score)


def test_variance_goes_to_the_runs_or_to_the_tokens():
    run, token = np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0, 6.0, 9.0])
    found = variance_components(run[:, None] + token)
    assert found.rest == pytest.approx(0, abs=1e-12)
    assert found.runs == pytest.approx(run.var(ddof=1))
    assert found.tokens == pytest.approx(token.var(ddof=1))
    assert found.sd_of_means == pytest.approx(1)
    assert found.sd_within == pytest.approx(token.std(ddof=1))
    rng = np.random.default_rng(0)
    many = [
        variance_components(2 * rng.normal(size=(5, 1)) + 3 * rng.normal(size=(1, 20)) + 1.5 * rng.normal(size=(5, 20)))
        for _ in range(3000)
    ]
    assert np.mean([each.runs for each in many]) == pytest.approx(4, rel=0.05)
    assert np.mean([each.tokens for each in many]) == pytest.approx(9, rel=0.05)
    assert np.mean([each.rest for each in many]) == pytest.approx(2.25, rel=0.05)
    assert np.isnan(variance_components(np.ones((1, 5))).runs)
    gap = run[:, None] + token
    gap[0, 0] = np.nan
    assert variance_components(gap).tokens == pytest.approx(token[1:].var(ddof=1))
    with pytest.raises(SettingsError, match="table"):
        variance_components(run)


def warped(a, b):
    """Every path there is, one by one."""
    if len(a) == 1 and len(b) == 1:
        return np.linalg.norm(a[0] - b[0])
    steps = [(a[:-1], b[:-1]), (a[:-1], b), (a, b[:-1])]
    return np.linalg.norm(a[-1] - b[-1]) + min(warped(x, y) for x, y in steps if len(x) and len(y))


@given(NUMBERS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_warping_finds_the_best_of_all_paths(seed, n, m, p):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n, p)), rng.normal(size=(m, p))
    assert dtw(a, b) == pytest.approx(warped(a, b))
    assert dtw(a, b) == pytest.approx(dtw(b, a))
    assert dtw(a, np.repeat(a, 2, axis=0)) == 0
    assert dtw(a + 4, b + 4) == pytest.approx(dtw(a, b))
    assert dtw(a[:, 0], b[:, 0]) == pytest.approx(warped(a[:, :1], b[:, :1]))


def test_series_that_cannot_be_warped_are_refused():
    with pytest.raises(SettingsError, match="one width"):
        dtw(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(SettingsError, match="one width"):
        dtw([], [1.0])


def test_common_language_effect_counts_pairs():
    a, b = np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 3.0, np.nan])
    pairs = [(x > y) + 0.5 * (x == y) for x in a for y in b[:2]]
    assert common_language(a, b) == pytest.approx(np.mean(pairs))
    assert common_language(b, a) == pytest.approx(1 - np.mean(pairs))
    assert np.isnan(common_language([], a))


def test_series_need_no_torch():
    import subprocess
    import sys

    code = "import sys; from embcompare.decomposition.series import dtw; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
