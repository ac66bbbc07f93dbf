"""Scores of two sets of vectors against their plain formulas, and the invariances they declare."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.measures.matching import SCORES, best_match, correlation_blocks, mean_abs, one_to_one, whole


def random_rho(n, m, seed):
    return torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def plain(name, rho):
    strength = np.abs(rho.numpy())
    if name == "mean_abs":
        return strength.mean()
    if name == "best_match":
        return (strength.max(1).mean() + strength.max(0).mean()) / 2
    small = strength if strength.shape[0] <= strength.shape[1] else strength.T
    orders = itertools.permutations(range(small.shape[1]), small.shape[0])
    return max(small[range(len(order)), order].mean() for order in orders)


sizes = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10_000))


@pytest.mark.parametrize("name", SCORES)
@given(size=sizes, rows=st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_score_equals_its_formula_however_the_blocks_are_cut(name, size, rows):
    rho = random_rho(*size)
    assert SCORES[name].function(rho.split(rows)) == pytest.approx(plain(name, rho), abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
@given(size=sizes)
@settings(deadline=None, max_examples=30)
def test_order_and_sign_of_the_vectors_do_not_matter(name, size):
    n, m, seed = size
    rho = random_rho(*size)
    generator = torch.Generator().manual_seed(seed)
    flips = torch.randint(0, 2, (n, 1), generator=generator) * 2.0 - 1
    moved = (rho * flips)[torch.randperm(n, generator=generator)][:, torch.randperm(m, generator=generator)]
    assert SCORES[name].function([moved]) == pytest.approx(SCORES[name].function([rho]), abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_swapping_the_sets_does_not_matter(name):
    rho = random_rho(5, 4, 3)
    assert SCORES[name].function([rho.T]) == pytest.approx(SCORES[name].function([rho]), abs=1e-12)


def test_only_a_permutation_makes_the_matching_perfect_and_the_mean_does_not_see_it():
    eye = torch.eye(6, dtype=torch.float64)[torch.randperm(6, generator=torch.Generator().manual_seed(1))]
    assert one_to_one([eye]) == 1.0
    assert best_match([eye]) == 1.0
    assert mean_abs([eye]) == pytest.approx(1 / 6)
    # one partner for all: every row is happy, a one-to-one matching is not
    shared = torch.zeros(4, 4, dtype=torch.float64)
    shared[:, 0] = 1.0
    assert best_match([shared]) == pytest.approx((1 + 1 / 4) / 2)
    assert one_to_one([shared]) == pytest.approx(1 / 4)


@pytest.mark.parametrize("name", SCORES)
def test_no_pair_is_undefined_not_zero(name):
    assert np.isnan(SCORES[name].function([]))
    assert np.isnan(SCORES[name].function([torch.empty(0, 3)]))
    assert np.isnan(SCORES[name].function([torch.empty(3, 0)]))


def test_blocks_are_the_product_and_reuse_one_buffer():
    u, v = torch.randn(11, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(whole(correlation_blocks(u, v, rows=4)), u @ v.T)
    first = next(correlation_blocks(u, v, rows=4))
    assert first.shape == (4, 5)


def test_float32_sum_over_a_large_matrix_keeps_six_digits():
    rho = torch.rand(3000, 3072, generator=torch.Generator().manual_seed(0)) * 0.05
    assert mean_abs(rho.split(512)) == pytest.approx(float(rho.double().abs().mean()), rel=1e-6)


def test_every_score_declares_how_to_read_it():
    for score in SCORES.values():
        assert score.formula
        assert score.meaning
        assert score.source
        assert score.higher_is_closer
        assert score.low < score.high
