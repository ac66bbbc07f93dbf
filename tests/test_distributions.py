"""Divergences of distributions over tokens, against scipy in float64 and what the definitions promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr
from scipy.stats import entropy as scipy_entropy

from embcompare.measures.distributions import (
    LN2,
    Layers,
    clustered_mean,
    entropy,
    jsd,
    kl,
    overlap,
    pairwise,
    restrict,
    top_tokens,
)

SEEDS = st.integers(0, 2**31 - 1)


def logs(seed, *shape, peaked=3.0, dtype=torch.float64):
    """Random log-probabilities over the last axis."""
    logits = peaked * np.random.default_rng(seed).standard_normal(shape)
    return torch.as_tensor(logits).to(dtype).log_softmax(-1)


def probabilities(log_p):
    p = log_p.double().exp().numpy()
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("peaked", [0.01, 1.0, 6.0])
def test_everything_is_what_scipy_says(dtype, close, peaked):
    log_p, log_q = (logs(seed, 4, 5000, peaked=peaked, dtype=dtype) for seed in (1, 2))
    p, q = probabilities(log_p), probabilities(log_q)
    for found in (entropy(log_p), kl(log_p, log_q), jsd(log_p, log_q)):
        assert found.dtype == torch.float64
        assert found.shape == (4,)
    np.testing.assert_allclose(entropy(log_p), scipy_entropy(p, axis=-1), rtol=10 * close, atol=close)
    np.testing.assert_allclose(kl(log_p, log_q), rel_entr(p, q).sum(-1), rtol=10 * close, atol=close)
    np.testing.assert_allclose(jsd(log_p, log_q), jensenshannon(p, q, axis=-1) ** 2, rtol=10 * close, atol=close)


@pytest.mark.parametrize("v", [400, 9000])
def test_pairwise_is_every_pair_alone(v):
    log_p, log_q = logs(1, 3, 5, v), logs(2, 4, 5, v)
    found = pairwise(Layers.of(log_p, 7), Layers.of(log_q, 7))
    assert found.shape == (4, 3, 4, 5)
    for i in range(3):
        for j in range(4):
            p, q = probabilities(log_p[i]), probabilities(log_q[j])
            np.testing.assert_allclose(found[0, i, j], jensenshannon(p, q, axis=-1) ** 2, atol=1e-12)
            np.testing.assert_allclose(found[1, i, j], rel_entr(p, q).sum(-1), atol=1e-11)
            np.testing.assert_allclose(found[2, i, j], rel_entr(q, p).sum(-1), atol=1e-11)
            for n in range(5):
                common = set(np.argsort(-p[n])[:7]) & set(np.argsort(-q[n])[:7])
                assert found[3, i, j, n] == pytest.approx(len(common) / 7)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 60), st.floats(0.0, 300.0), st.sampled_from([torch.float32, torch.float64]))
def test_divergences_keep_their_bounds_however_peaked(seed, v, peaked, dtype):
    log_p, log_q = (logs([seed, side], 2, 3, v, peaked=peaked, dtype=dtype) for side in (0, 1))
    found = pairwise(Layers.of(log_p, 5), Layers.of(log_q, 5))
    assert np.isfinite(found.numpy()).all()
    assert (found[1:3] >= 0).all()
    for divergence in (found[0], jsd(log_p, log_q)):
        assert ((divergence >= 0) & (divergence <= LN2)).all()
    assert (kl(log_p, log_q) >= 0).all()
    assert ((found[3] >= 0) & (found[3] <= 1)).all()
    assert ((entropy(log_p) >= 0) & (entropy(log_p) <= math.log(v) + 1e-5)).all()


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([torch.float32, torch.float64]))
def test_jsd_is_symmetric_and_its_root_a_distance(seed, dtype):
    p, q, r = (logs([seed, side], 50, dtype=dtype) for side in range(3))
    assert jsd(p, q) == jsd(q, p)
    assert math.sqrt(jsd(p, r)) <= math.sqrt(jsd(p, q)) + math.sqrt(jsd(q, r)) + 1e-4


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([torch.float32, torch.float64]))
def test_a_distribution_is_nothing_away_from_itself(seed, dtype):
    log_p = logs(seed, 2, 3, 70, dtype=dtype)
    assert (kl(log_p, log_p) == 0).all()
    assert (jsd(log_p, log_p) == 0).all()
    found = pairwise(Layers.of(log_p, 5), Layers.of(log_p, 5))
    for layer in range(2):
        assert (found[0, layer, layer] == 0).all()
        assert found[1:3, layer, layer].max() < 1e-7
        assert (found[3, layer, layer] == 1).all()


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_order_of_the_vocabulary_plays_no_part(seed):
    log_p, log_q = logs([seed, 0], 2, 3, 80), logs([seed, 1], 2, 3, 80)
    order = torch.as_tensor(np.random.default_rng(seed).permutation(80))
    found = pairwise(Layers.of(log_p, 9), Layers.of(log_q, 9))
    moved = pairwise(Layers.of(log_p[..., order], 9), Layers.of(log_q[..., order], 9))
    np.testing.assert_allclose(found, moved, atol=1e-12)
    np.testing.assert_allclose(entropy(log_p), entropy(log_p[..., order]), atol=1e-12)


def test_chosen_positions_are_compared_as_if_they_were_all():
    log_p, log_q = logs(1, 2, 5, 60), logs(2, 3, 5, 60)
    order = [4, 0, 2, 2, 1]
    found = pairwise(Layers.of(log_p, 5), Layers.of(log_q, 5).at(order))
    expected = pairwise(Layers.of(log_p, 5), Layers.of(log_q[:, order], 5))
    np.testing.assert_array_equal(found, expected)


def test_disjoint_distributions_are_ln_2_apart():
    log_p = torch.tensor([0.0, -2000.0, -2000.0, 0.0]).log_softmax(-1)
    log_q = torch.tensor([-2000.0, 0.0, 0.0, -2000.0]).log_softmax(-1)
    assert float(jsd(log_p, log_q)) == pytest.approx(math.log(2))
    assert float(kl(log_p, log_q)) == pytest.approx(2000.0, rel=1e-3)


def test_top_tokens_are_the_largest_and_never_more_than_there_are():
    log_p = torch.tensor([[0.1, 0.6, 0.3]]).log()
    assert top_tokens(log_p, 2).tolist() == [[1, 2]]
    assert top_tokens(log_p, 10).tolist() == [[1, 2, 0]]
    assert overlap(top_tokens(log_p, 10), torch.tensor([[0, 1, 2]])).tolist() == [1.0]
    assert overlap([1, 2, 3], [3, 9, 1]).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("rows", [[3, 4, 5, 6], [6, 0, 9]])
def test_restricting_renormalises_and_tells_the_mass(rows):
    log_p = logs(3, 2, 10)
    p = probabilities(log_p)
    found, mass = restrict(log_p, np.array(rows))
    np.testing.assert_allclose(found.exp(), p[:, rows] / p[:, rows].sum(1, keepdims=True), atol=1e-14)
    np.testing.assert_allclose(mass, p[:, rows].sum(1), atol=1e-14)
    np.testing.assert_allclose(restrict(log_p + 5.0, np.array(rows))[0], found, atol=1e-13)


def test_the_mass_is_exact_where_hardly_any_is_left():
    log_p = torch.tensor([0.0, -30.0, -31.0, -90.0]).log_softmax(-1)
    _, mass = restrict(log_p, np.array([1, 2, 3]))
    assert float(mass) == pytest.approx(math.exp(-30) + math.exp(-31), rel=1e-5)


def test_standard_errors_count_items():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(50, 2))
    mean, error = clustered_mean(7 * means, np.full(50, 7.0))
    np.testing.assert_allclose(mean, means.mean(0))
    np.testing.assert_allclose(error, means.std(0, ddof=1) / np.sqrt(50))


def test_standard_errors_agree_with_the_jackknife_where_items_differ_in_size():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 9, size=400).astype(float)
    sums = counts * rng.normal(size=400) + rng.normal(size=400)
    _, error = clustered_mean(sums, counts)
    without = (sums.sum() - sums) / (counts.sum() - counts)
    jackknife = math.sqrt(399 / 400 * np.square(without - without.mean()).sum())
    assert error == pytest.approx(jackknife, rel=0.02)


def test_items_without_positions_change_nothing_and_one_alone_has_no_error():
    sums, counts = np.array([[4.0], [9.0], [0.0]]), np.array([2.0, 3.0, 0.0])
    with_empty, without = clustered_mean(sums, counts), clustered_mean(sums[:2], counts[:2])
    assert with_empty[0] == without[0] == 13 / 5
    assert with_empty[1] == without[1]
    mean, error = clustered_mean(sums[:1], counts[:1])
    assert mean == 2.0
    assert np.isnan(error).all()
    assert np.isnan(clustered_mean(np.zeros((2, 3)), np.zeros(2))[0]).all()
