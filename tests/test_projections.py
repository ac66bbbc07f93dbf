"""Both ends of readings and of heads' matrices, against the dense float64 forms that are never built in the package."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.errors import SettingsError
from embcompare.projections import (
    entry_ends,
    mean_row,
    right_inverse,
    token_ends,
    token_scores,
    top_entries,
    top_tokens,
)


def gaussian(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dense_tokens(vectors, e, k, largest=True, usable=None):
    """Sort every projection in float64; equal ones in the order of the vocabulary."""
    scores = (vectors.double() @ e.double().T).numpy()
    ids = np.arange(len(e)) if usable is None else np.flatnonzero(usable.numpy())
    scores = scores[:, ids]
    order = np.argsort(-scores if largest else scores, axis=1, kind="stable")[:, :k]
    return ids[order], np.take_along_axis(scores, order, 1)


def dense_entries(left, right, k, largest=True, rows=None, columns=None, identical=None):
    matrix = (left.double() @ right.double().T).numpy() * (1 if largest else -1)
    allowed = np.ones(matrix.shape, dtype=bool)
    if rows is not None:
        allowed &= rows.numpy()[:, None]
    if columns is not None:
        allowed &= columns.numpy()
    if identical is not None:
        allowed &= identical[0].numpy()[:, None] != identical[1].numpy()
    flat = np.flatnonzero(allowed)
    if len(flat) > k:  # all that could be listed, ties with the last one too
        last = np.partition(matrix.ravel()[flat], len(flat) - k)[len(flat) - k]
        flat = flat[matrix.ravel()[flat] >= last]
    order = flat[np.argsort(-matrix.ravel()[flat], kind="stable")][:k]
    sign = 1 if largest else -1
    return order // matrix.shape[1], order % matrix.shape[1], sign * matrix.ravel()[order]


def same_entries(found, expected, exact=False):
    rows, columns, values = (part.numpy() for part in found)
    np.testing.assert_allclose(values, expected[2], rtol=0 if exact else 1e-12, atol=1e-300)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(columns, expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("largest", [True, False])
def test_tokens_are_those_of_the_dense_float64_projection(dtype, largest):
    vectors, e = gaussian(70, 24, seed=1, dtype=dtype), gaussian(4096, 24, seed=2, dtype=dtype) + 2
    index, scores = top_tokens(vectors, e, 20, largest, block=1000)
    expected, values = dense_tokens(vectors, e, 20, largest)
    np.testing.assert_array_equal(index.numpy(), expected)
    np.testing.assert_allclose(scores.numpy(), values, rtol=1e-12)


def test_both_ends_and_moments_come_from_one_pass():
    vectors, e = gaussian(9, 16, seed=3), gaussian(3000, 16, seed=4) + 1
    usable = torch.arange(3000) % 3 != 0
    ends = token_ends(vectors, e, 7, usable=usable, block=512)
    for largest, index, values in ((True, ends.top, ends.top_scores), (False, ends.bottom, ends.bottom_scores)):
        expected, scores = dense_tokens(vectors, e, 7, largest, usable)
        np.testing.assert_array_equal(index.numpy(), expected)
        np.testing.assert_allclose(values.numpy(), scores, rtol=1e-12)
    whole = (vectors.double() @ e[usable].double().T).numpy()
    np.testing.assert_allclose(ends.mean.numpy(), whole.mean(1), rtol=1e-10)
    np.testing.assert_allclose(ends.sd.numpy(), whole.std(1), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_size_of_vectors_and_embedding_changes_no_order(scale):
    vectors, e = gaussian(5, 8, dtype=torch.float64), gaussian(500, 8, seed=1, dtype=torch.float64)
    index, scores = top_tokens(vectors * scale, e, 5)
    plain, values = top_tokens(vectors, e, 5)
    assert torch.equal(index, plain)
    np.testing.assert_allclose(scores.numpy(), values.numpy() * scale, rtol=1e-12)


def test_rows_that_float32_cannot_tell_apart_are_told_apart_in_float64():
    base = gaussian(1, 16, seed=5, dtype=torch.float64)
    e = base.repeat(600, 1)
    e[:, 0] += torch.randperm(600, generator=torch.Generator().manual_seed(0)).double() * 1e-10
    vectors = gaussian(4, 16, seed=6, dtype=torch.float64)
    for largest in (True, False):
        index, _ = top_tokens(vectors, e, 10, largest, block=128)
        np.testing.assert_array_equal(index.numpy(), dense_tokens(vectors, e, 10, largest)[0])


def test_a_zero_vector_lists_the_first_usable_tokens():
    usable = torch.arange(200) >= 50
    index, scores = top_tokens(torch.zeros(2, 6), gaussian(200, 6), 3, usable=usable)
    assert index.tolist() == [[50, 51, 52]] * 2
    assert not scores.any()


def test_identical_rows_are_listed_in_the_order_of_the_vocabulary():
    e = gaussian(3, 12, seed=7).repeat(700, 1)
    vectors = gaussian(3, 12, seed=8)
    index, _ = top_tokens(vectors, e, 30, block=256)
    best = (vectors.double() @ e[:3].double().T).argmax(1)
    assert index.tolist() == [[int(b) + 3 * i for i in range(30)] for b in best]


@pytest.mark.parametrize(("allowed", "columns"), [(4, 4), (1, 1), (0, 0)])
def test_fewer_usable_tokens_than_asked_for_give_fewer_columns(allowed, columns):
    ends = token_ends(gaussian(3, 4), gaussian(60, 4, seed=1), 9, usable=torch.arange(60) < allowed)
    assert ends.top.shape == ends.bottom_scores.shape == (3, columns)
    assert set(ends.top.flatten().tolist()) == set(range(allowed))
    assert bool(ends.sd.isnan().all()) is (allowed == 0)


def test_no_vectors_give_no_rows():
    index, scores = top_tokens(torch.zeros(0, 4), gaussian(60, 4), 9)
    assert index.shape == scores.shape == (0, 9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_and_filters_agree_with_the_dense_result(data):
    n, d, v = (data.draw(st.integers(1, high)) for high in (4, 5, 120))
    seed = data.draw(st.integers(0, 10_000))
    draw = torch.Generator().manual_seed(seed)
    high = data.draw(st.sampled_from([1, 2, 50]))
    vectors = torch.randint(-high, high + 1, (n, d), generator=draw).float()
    e = torch.randint(-high, high + 1, (v, d), generator=draw).float()
    usable = torch.rand(v, generator=draw) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    k, block = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 60))
    for largest in (True, False):
        index, scores = top_tokens(vectors, e, k, largest, usable, block)
        expected, values = dense_tokens(vectors, e, k, largest, usable)
        np.testing.assert_array_equal(index.numpy(), expected)
        np.testing.assert_array_equal(scores.numpy(), values)


def test_the_same_tokens_whatever_the_block():
    vectors, e = gaussian(40, 8, seed=1), gaussian(900, 8, seed=2)
    first = top_tokens(vectors, e, 12, block=900)
    for block in (1, 33, 500, 10_000):
        other = top_tokens(vectors, e, 12, block=block)
        assert torch.equal(first[0], other[0])
        assert torch.equal(first[1], other[1])


@pytest.mark.parametrize(
    ("vectors", "e", "more", "sentence"),
    [
        ((2, 3), (5, 4), {}, "are read with an embedding"),
        ((2, 4), (5, 4), {"k": 0}, "k cannot be 0"),
        ((2, 4), (5, 4), {"usable": torch.ones(4, dtype=torch.bool)}, "usable must be 5"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_a_sentence(vectors, e, more, sentence):
    with pytest.raises(SettingsError, match=sentence):
        top_tokens(torch.ones(vectors), torch.ones(e), **{"k": 2, **more})


def test_numbers_that_are_not_finite_are_refused():
    bad, good = torch.full((3, 4), float("nan")), torch.ones(3, 4)
    with pytest.raises(SettingsError, match="vectors hold numbers that are not finite"):
        top_tokens(bad, good, 1)
    with pytest.raises(SettingsError, match="embedding matrix holds numbers that are not finite"):
        top_tokens(good, bad, 1)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(SettingsError, match="factors hold numbers that are not finite"):
            top_entries(*pair, 1)


def test_token_scores_stream_over_stacked_vectors():
    parts, e = [gaussian(5, 6, seed=1), gaussian(3, 6, seed=2)], gaussian(50, 6, seed=3)
    scores = token_scores(parts, e[[7, 9]], rows=2)
    np.testing.assert_allclose(scores.numpy(), (torch.cat(parts).double() @ e[[7, 9]].double().T).numpy(), rtol=1e-13)
    assert token_scores([], e[:2]).shape == (0, 2)


def test_mean_row_is_over_usable_rows_only():
    e, usable = gaussian(100, 5), torch.arange(100) > 20
    np.testing.assert_allclose(mean_row(e, usable, block=7).numpy(), e[usable].double().mean(0).numpy(), rtol=1e-12)
    assert not mean_row(e, torch.zeros(100, dtype=torch.bool)).any()


def test_right_inverse_is_the_pseudo_inverse_of_the_prepared_embedding():
    e, usable, gain = gaussian(400, 12), torch.arange(400) >= 10, gaussian(12, seed=3, dtype=torch.float64)
    mean = mean_row(e, usable)
    found = right_inverse(e, usable=usable, mean=mean, gain=gain, block=64)
    prepared = (e[usable].double() - mean) * gain
    expected = torch.linalg.pinv(prepared).T
    assert torch.allclose(prepared @ found.inverse, expected, atol=1e-12)
    assert torch.allclose(prepared.T @ prepared @ found.inverse, torch.eye(12, dtype=torch.float64), atol=1e-10)
    assert found.rank == 12
    assert found.condition == pytest.approx(float(torch.linalg.cond(prepared)), rel=1e-8)


def test_right_inverse_keeps_what_float32_pinv_drops():
    e = gaussian(5000, 16, dtype=torch.float64) * torch.logspace(0, -4, 16, dtype=torch.float64)
    found = right_inverse(e.float())
    eye = torch.eye(16, dtype=torch.float64)
    assert float((e.float().double().T @ (e.float().double() @ found.inverse) - eye).abs().max()) < 1e-6
    assert found.condition == pytest.approx(1e4, rel=0.1)
    assert float((torch.linalg.pinv(e.float()) @ e.float() - eye.float()).abs().max()) > 0.5


def test_right_inverse_of_a_rank_deficient_embedding_projects_on_what_it_sees():
    e = gaussian(300, 4, dtype=torch.float64) @ gaussian(4, 9, seed=1, dtype=torch.float64)
    found = right_inverse(e)
    assert found.rank == 4
    projector = e.T @ e @ found.inverse
    assert torch.allclose(projector @ projector, projector, atol=1e-9)
    assert torch.allclose(found(e), e @ torch.linalg.pinv(e.T @ e, rtol=1e-12), atol=1e-9)


def test_an_embedding_of_zeros_has_no_inverse():
    with pytest.raises(SettingsError, match="zero or not finite"):
        right_inverse(torch.zeros(10, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_are_those_of_the_dense_matrix_at_4096_tokens(dtype):
    left, right = gaussian(4096, 16, seed=1, dtype=dtype), gaussian(4096, 16, seed=2, dtype=dtype)
    left *= torch.rand(4096, 1, generator=torch.Generator().manual_seed(0)) * 2
    high, low = entry_ends(left, right, 50)
    same_entries((high.rows, high.columns, high.values), dense_entries(left, right, 50))
    same_entries((low.rows, low.columns, low.values), dense_entries(left, right, 50, largest=False))


def test_masks_and_identical_tokens_are_left_out_of_the_entries():
    left = gaussian(700, 8, seed=3)
    rows, columns = torch.arange(700) % 2 == 0, torch.arange(700) % 3 != 0
    same = torch.arange(700) // 5
    found = top_entries(left, left, 40, rows=rows, columns=columns, identical=(same, same), tile=128)
    same_entries(found, dense_entries(left, left, 40, True, rows, columns, (same, same)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tied_entries_agree_with_the_dense_result(data):
    v, w, r = (data.draw(st.integers(1, high)) for high in (60, 60, 4))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    high = data.draw(st.sampled_from([0, 1, 3, 40]))
    left = torch.randint(-high, high + 1, (v, r), generator=draw).float()
    right = torch.randint(-high, high + 1, (w, r), generator=draw).float()
    share = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    rows, columns = torch.rand(v, generator=draw) < share, torch.rand(w, generator=draw) < max(share, 0.5)
    labels = data.draw(st.sampled_from([1, 4, 1000]))
    identical = tuple(torch.randint(0, labels, (size,), generator=draw) for size in (v, w))
    identical = data.draw(st.sampled_from([None, identical]))
    k, tile = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 40))
    for largest in (True, False):
        found = top_entries(left, right, k, largest, rows=rows, columns=columns, identical=identical, tile=tile)
        same_entries(found, dense_entries(left, right, k, largest, rows, columns, identical), exact=True)


def test_a_head_of_zeros_lists_its_first_pairs():
    rows, columns, values = top_entries(torch.zeros(300, 4), gaussian(300, 4), 5, tile=64)
    assert rows.tolist() == [0] * 5
    assert columns.tolist() == [0, 1, 2, 3, 4]
    assert not values.any()


def test_entries_that_float32_cannot_tell_apart_are_told_apart_in_float64():
    base = gaussian(1, 8, dtype=torch.float64)
    left = base.repeat(90, 1) + gaussian(90, 8, seed=1, dtype=torch.float64) * 1e-10
    right = base.repeat(70, 1) + gaussian(70, 8, seed=2, dtype=torch.float64) * 1e-10
    same_entries(top_entries(left, right, 25, tile=32), dense_entries(left, right, 25))


def test_factors_that_do_not_fit_are_refused_in_a_sentence():
    with pytest.raises(SettingsError, match="one width"):
        top_entries(torch.ones(3, 4), torch.ones(3, 5), 2)
    with pytest.raises(SettingsError, match="k cannot be 0"):
        top_entries(torch.ones(3, 4), torch.ones(3, 4), 0)
    with pytest.raises(SettingsError, match="identical needs 3 numbers"):
        top_entries(torch.ones(3, 4), torch.ones(3, 4), 2, identical=(torch.ones(2), torch.ones(3)))
