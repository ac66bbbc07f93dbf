"""Assignments of layers and how far they follow depth."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.experiments.depth import closest_at_equal_depth, depth_agreement, double_centred, equal_depth


def test_a_bright_diagonal_is_found_under_bright_columns():
    matrix = np.full((6, 6), 0.1) + np.eye(6) * 0.02 + np.linspace(0, 0.5, 6)
    agreement = depth_agreement(matrix)
    assert agreement.rate == 1.0
    assert (agreement.pairs == np.stack([np.arange(6)] * 2, 1)).all()
    assert agreement.chance == pytest.approx(1 / 6)
    assert (matrix.argmax(1) == 5).all()  # the plain row maximum would miss it
    assert (double_centred(matrix).argmax(1) == np.arange(6)).all()


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_assignment_is_the_best_of_all(n, m, seed):
    matrix = np.random.default_rng(seed).random((n, m))
    agreement = depth_agreement(matrix, sampled=0)
    small = matrix if n <= m else matrix.T
    if math.perm(small.shape[1], small.shape[0]) <= 800:
        best = max(small[range(len(o)), o].sum() for o in itertools.permutations(range(small.shape[1]), small.shape[0]))
        assert matrix[tuple(agreement.pairs.T)].sum() == pytest.approx(best)
    assert len(agreement.pairs) == min(n, m)
    assert len(set(agreement.pairs[:, 0])) == len(set(agreement.pairs[:, 1])) == min(n, m)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (5, 3), (2, 4)])
def test_chance_and_p_value_agree_with_all_assignments_counted(n, m):
    near = equal_depth(n, m)
    short = near if n <= m else near.T
    hits = [short[range(len(o)), o].sum() for o in itertools.permutations(range(max(n, m)), min(n, m))]
    matrix = near + np.random.default_rng(0).random((n, m)) * 0.01
    agreement = depth_agreement(matrix)
    assert agreement.chance == pytest.approx(np.mean(hits) / min(n, m))
    reached = round(agreement.rate * min(n, m))
    assert agreement.p_value == pytest.approx(np.mean([h >= reached for h in hits]), abs=0.01)


def test_equal_depth_is_the_diagonal_of_a_square_and_symmetric_in_the_models():
    assert (equal_depth(7, 7) == np.eye(7, dtype=bool)).all()
    assert (equal_depth(6, 8) == equal_depth(8, 6).T).all()
    for n, m in [(6, 8), (6, 12), (4, 24)]:
        marked = equal_depth(n, m)
        assert marked[0, 0]
        assert marked[-1, -1]
        assert marked.any(1).all()


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_double_centring_removes_rows_and_columns_and_nothing_else(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.random((4, 6))
    centred = double_centred(matrix)
    np.testing.assert_allclose(centred.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(centred.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(double_centred(matrix + rng.random((4, 1)) + rng.random((1, 6))), centred, atol=1e-12)


def test_undefined_cells_stay_undefined_and_are_not_preferred():
    matrix = np.eye(3) + 1
    matrix[0, 1] = np.nan
    assert np.isnan(double_centred(matrix)[0, 1])
    assert np.isfinite(double_centred(matrix)).sum() == 8
    assert depth_agreement(matrix).rate == 1.0
    nothing = depth_agreement(np.full((3, 3), np.nan))
    assert np.isnan(nothing.rate)
    assert len(nothing.pairs) == 0
    assert np.isnan(double_centred(np.full((2, 2), np.nan))).all()


def test_a_layer_without_any_defined_cell_does_not_disturb_the_others():
    matrix = np.eye(4)
    matrix[2] = np.nan
    centred = double_centred(matrix)
    assert np.isnan(centred[2]).all()
    assert np.isfinite(centred[[0, 1, 3]]).all()


def test_same_seed_same_p_value():
    matrix = np.random.default_rng(0).random((6, 6))
    assert depth_agreement(matrix, 3).p_value == depth_agreement(matrix, 3).p_value
    assert np.isnan(depth_agreement(matrix, 3, sampled=0).p_value)


def test_undefined_layers_are_neither_assigned_nor_counted():
    matrix = np.array([[1.0, np.nan, 0.0], [0.0, 1.0, 0.0], [np.nan] * 3])
    agreement = depth_agreement(matrix, 0, 2000)
    assert agreement.pairs.tolist() == [[0, 0], [1, 1]]
    assert agreement.rate == 1.0
    assert agreement.chance == pytest.approx(2 / 3 / 2)
    lone = depth_agreement(np.array([[np.nan, 0.166], [np.nan, 0.171]]))
    assert lone.pairs.tolist() == [[1, 1]]
    assert lone.chance == pytest.approx(1 / 2)


def test_as_few_undefined_cells_as_possible_are_taken():
    matrix = np.array([[np.nan, 5.0, 0.0], [0.1, np.nan, 0.1], [0.0, 5.0, np.nan]])
    assert len(depth_agreement(matrix).pairs) == 3


def test_closest_rows_are_counted_where_they_are_defined():
    matrix = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0], [np.nan] * 3])
    assert closest_at_equal_depth(matrix) == (1, 2)
    assert closest_at_equal_depth(np.full((2, 2), np.nan)) == (0, 0)
