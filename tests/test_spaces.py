"""The small factors against the V-wide projection they stand for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.errors import Incomparable, SettingsError
from embcompare.spaces import EmbeddingSpace, FeatureSpace


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def wide(x, e, centred, order=None):
    """The plain form: project on every token, then centre over the vocabulary."""
    projection = x.double() @ e.double().T
    if order is not None:
        projection = projection[:, order]
    return projection - projection.mean(1, keepdim=True) if centred else projection


def wide_cosine(x, y, e_a, e_b, centred, order=None):
    a, b = wide(x, e_a, centred), wide(y, e_b, centred, order)
    return torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T


shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(12, 60), st.integers(0, 10_000))


@given(shapes, st.booleans(), st.integers(1, 70))
@settings(deadline=None, max_examples=60)
def test_joint_coordinates_keep_every_inner_product_norm_and_cosine(shape, centred, block):
    d_a, d_b, v, seed = shape
    e_a, e_b = gaussian(v, d_a, seed=seed) + 3, gaussian(v, d_b, seed=seed + 1) - 2
    x, y = gaussian(5, d_a, seed=seed + 2), gaussian(4, d_b, seed=seed + 3)
    space = EmbeddingSpace(e_a, e_b, centred=centred, block=block)
    both = torch.cat([space.coordinates_a(x), space.coordinates_b(y)])
    plain = torch.cat([wide(x, e_a, centred), wide(y, e_b, centred)])
    scale = float((plain @ plain.T).abs().max())
    assert both.shape[1] <= d_a + d_b
    torch.testing.assert_close(both @ both.T, plain @ plain.T, atol=1e-10 * scale, rtol=0)
    torch.testing.assert_close(space.inner(x, y), plain[:5] @ plain[5:].T, atol=1e-10 * scale, rtol=0)
    torch.testing.assert_close(space.cosine(x, y), wide_cosine(x, y, e_a, e_b, centred), atol=1e-10, rtol=0)


@given(shapes, st.booleans())
@settings(deadline=None, max_examples=30)
def test_permuting_the_vocabulary_is_permuting_the_wide_projection_of_b(shape, centred):
    d_a, d_b, v, seed = shape
    e_a, e_b = gaussian(v, d_a, seed=seed), gaussian(v, d_b, seed=seed + 1)
    x, y = gaussian(5, d_a, seed=seed + 2), gaussian(4, d_b, seed=seed + 3)
    order = torch.randperm(v, generator=torch.Generator().manual_seed(seed))
    null = EmbeddingSpace(e_a, e_b, centred=centred).permuted(order)
    expected = wide_cosine(x, y, e_a, e_b, centred, order)
    torch.testing.assert_close(null.cosine(x, y), expected, atol=1e-10, rtol=0)


def test_pearson_agrees_with_numpy_on_wide_vectors():
    e_a, e_b = gaussian(500, 16) + 1, gaussian(500, 24, seed=1)
    x, y = gaussian(6, 16, seed=2), gaussian(7, 24, seed=3)
    expected = np.corrcoef((x @ e_a.T).numpy(), (y @ e_b.T).numpy())[:6, 6:]
    np.testing.assert_allclose(EmbeddingSpace(e_a, e_b).cosine(x, y).numpy(), expected, atol=1e-12)


def test_rank_deficient_embedding_drops_null_directions_and_stays_exact():
    e_a = gaussian(80, 3) @ gaussian(3, 10, seed=1)
    e_b = gaussian(80, 12, seed=2)
    space = EmbeddingSpace(e_a, e_b)
    assert space.to_a.shape == (3, 10)
    x, y = gaussian(6, 10, seed=3), gaussian(6, 12, seed=4)
    torch.testing.assert_close(space.cosine(x, y), wide_cosine(x, y, e_a, e_b, True), atol=1e-10, rtol=0)


def test_leaving_out_common_directions_is_projecting_them_out_of_the_wide_vectors():
    e_a, e_b = gaussian(300, 10) + 2, gaussian(300, 14, seed=1)
    e_a[:, 0] *= 9
    x, y = gaussian(6, 10, seed=2), gaussian(5, 14, seed=3)

    def without(projection, e, count):
        strongest = torch.linalg.svd(e - e.mean(0), full_matrices=False)[0][:, :count]
        return projection - projection @ strongest @ strongest.T

    a, b = without(wide(x, e_a, True), e_a, 2), without(wide(y, e_b, True), e_b, 2)
    expected = torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T
    space = EmbeddingSpace(e_a, e_b, common=2)
    torch.testing.assert_close(space.cosine(x, y), expected, atol=1e-10, rtol=0)
    with pytest.raises(Incomparable, match="model A has 10 directions, so leaving out 10 leaves nothing"):
        EmbeddingSpace(e_a, e_b, common=10)


def test_same_model_twice_gives_correlation_one_with_itself():
    e = gaussian(300, 20)
    x = gaussian(8, 20, seed=1)
    space = EmbeddingSpace(e, e.clone())
    torch.testing.assert_close(space.cosine(x, x).diagonal(), torch.ones(8, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(space.coordinates_a(x) @ space.coordinates_b(x).T, space.inner(x, x))


def test_ill_conditioned_embedding_is_exact_in_float64_and_close_in_float32():
    e_a = gaussian(2000, 32) * torch.logspace(0, -3, 32, dtype=torch.float64)
    e_b = (e_a + 0.1 * gaussian(2000, 32, seed=1) * torch.logspace(0, -3, 32, dtype=torch.float64)) @ gaussian(
        32, 32, seed=2
    )
    x, y = gaussian(20, 32, seed=3), gaussian(20, 32, seed=4)
    expected = wide_cosine(x, y, e_a, e_b, True)
    space = EmbeddingSpace(e_a, e_b)
    torch.testing.assert_close(space.cosine(x, y), expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(space.cosine(x.float(), y.float()).double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_stored_precision_is_read_as_it_is(dtype):
    e_a, e_b = gaussian(400, 8, dtype=torch.float64).to(dtype), gaussian(400, 8, seed=1).to(dtype)
    x, y = gaussian(4, 8, seed=2), gaussian(4, 8, seed=3)
    expected = wide_cosine(x, y, e_a, e_b, True)
    torch.testing.assert_close(EmbeddingSpace(e_a, e_b).cosine(x, y), expected, atol=1e-11, rtol=0)


def test_a_vector_that_says_the_same_of_every_token_is_undefined_not_zero():
    # The third feature is one constant over the vocabulary: in the centred space its direction vanishes.
    e = gaussian(200, 3)
    e[:, 2] = 1.0
    space = EmbeddingSpace(e, e)
    x = torch.tensor([[0.0, 0.0, 5.0], [1.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    cosine = space.cosine(x, x)
    assert torch.isnan(cosine[0]).all()
    assert torch.isnan(cosine[2]).all()
    assert cosine[1, 1] == pytest.approx(1.0)
    # without centring the same vector has a direction
    assert EmbeddingSpace(e, e, centred=False).cosine(x, x)[0, 0] == pytest.approx(1.0)


def test_feature_space_is_pearson_over_features_and_plain_cosine_uncentred():
    x, y = gaussian(5, 12), gaussian(4, 12, seed=1)
    np.testing.assert_allclose(FeatureSpace(12, 12).cosine(x, y).numpy(), np.corrcoef(x, y)[:5, 5:], atol=1e-12)
    expected = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T
    torch.testing.assert_close(FeatureSpace(12, 12, centred=False).cosine(x, y), expected)
    torch.testing.assert_close(FeatureSpace(12, 12).coordinates_a(x), x - x.mean(1, keepdim=True))


def test_feature_space_null_shuffles_features_of_b():
    x, y = gaussian(5, 12), gaussian(4, 12, seed=1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    expected = np.corrcoef(x, y[:, order])[:5, 5:]
    np.testing.assert_allclose(FeatureSpace(12, 12).permuted(order).cosine(x, y).numpy(), expected, atol=1e-12)


def test_feature_space_of_unrelated_vectors_lies_at_its_chance_level():
    x, y = gaussian(2000, 128), gaussian(2000, 128, seed=1)
    mean = float(FeatureSpace(128, 128).cosine(x, y).abs().mean())
    assert FeatureSpace(128, 128).chance == pytest.approx(math.sqrt(2 / (math.pi * 128)))
    assert mean == pytest.approx(FeatureSpace(128, 128).chance, rel=0.01)


def test_different_widths_in_feature_space_say_what_to_do():
    with pytest.raises(Incomparable, match="128 and 160 wide; embedding space"):
        FeatureSpace(128, 160)


def test_unpaired_rows_and_an_embedding_that_says_nothing_are_refused():
    with pytest.raises(Incomparable, match=r"got shapes \(100, 4\) and \(90, 4\)"):
        EmbeddingSpace(gaussian(100, 4), gaussian(90, 4))
    with pytest.raises(Incomparable, match="got shapes"):
        EmbeddingSpace(gaussian(0, 4), gaussian(0, 4))
    with pytest.raises(Incomparable, match="got shapes"):
        EmbeddingSpace(gaussian(100), gaussian(100))
    with pytest.raises(Incomparable, match="model B says nothing"):
        EmbeddingSpace(gaussian(100, 4), torch.ones(100, 4))
    with pytest.raises(Incomparable, match="model A says nothing"):
        EmbeddingSpace(torch.zeros(100, 4), gaussian(100, 4))


@given(st.integers(0, 1000), st.floats(-4, 4), st.floats(-4, 4))
@settings(deadline=None, max_examples=30)
def test_correlations_ignore_the_scale_of_either_model_and_shifts_of_its_embedding(seed, log_a, log_b):
    e_a, e_b = gaussian(60, 5, seed=seed), gaussian(60, 7, seed=seed + 1)
    x, y = gaussian(4, 5, seed=seed + 2), gaussian(4, 7, seed=seed + 3)
    plain = EmbeddingSpace(e_a, e_b).cosine(x, y)
    moved = EmbeddingSpace(e_a * 10**log_a + 2, e_b * 10**log_b - 1).cosine(x * 10**log_b, y)
    torch.testing.assert_close(plain, moved, atol=1e-6, rtol=0)


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_embedding_space_does_not_depend_on_the_basis_of_the_hidden_states(seed):
    """An invertible change of basis of model B (weights transformed with it) changes no correlation."""
    e_a, e_b = gaussian(60, 5, seed=seed), gaussian(60, 7, seed=seed + 1)
    x, y = gaussian(4, 5, seed=seed + 2), gaussian(4, 7, seed=seed + 3)
    basis = torch.linalg.qr(gaussian(7, 7, seed=seed + 4))[0] * torch.linspace(0.5, 2, 7, dtype=torch.float64)
    plain = EmbeddingSpace(e_a, e_b).cosine(x, y)
    turned = EmbeddingSpace(e_a, e_b @ torch.linalg.inv(basis).T).cosine(x, y @ basis)
    torch.testing.assert_close(plain, turned, atol=1e-9, rtol=0)


def test_swapping_the_models_transposes_the_correlations():
    e_a, e_b = gaussian(60, 5), gaussian(60, 7, seed=1)
    x, y = gaussian(4, 5, seed=2), gaussian(3, 7, seed=3)
    forth, back = EmbeddingSpace(e_a, e_b).cosine(x, y), EmbeddingSpace(e_b, e_a).cosine(y, x)
    torch.testing.assert_close(forth, back.T, atol=1e-12, rtol=0)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e200, 1e-170])
def test_embeddings_that_cannot_be_squared_are_one_clear_sentence(scale):
    with pytest.raises(Incomparable, match="not finite, or too small or too large"):
        EmbeddingSpace(gaussian(50, 4) * scale, gaussian(50, 4))


def test_arguments_out_of_bounds_are_refused_at_the_public_boundary():
    e = gaussian(50, 4)
    for wrong in ({"common": -1}, {"block": 0}):
        with pytest.raises(SettingsError, match="common starts at 0 and block at 1"):
            EmbeddingSpace(e, e, **wrong)
    for width in (0, -1):
        with pytest.raises(SettingsError, match="smallest width is 1"):
            FeatureSpace(width, width)
    for order in (torch.zeros(50, dtype=torch.long), torch.arange(49), torch.arange(1, 51)):
        with pytest.raises(SettingsError, match="no permutation of 0 to 49"):
            EmbeddingSpace(e, e).permuted(order)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_huge_vectors_keep_their_correlations_in_float32(scale):
    e_a, e_b = gaussian(60, 5), gaussian(60, 7, seed=1)
    x, y = gaussian(4, 5, seed=2).float(), gaussian(3, 7, seed=3).float()
    space = EmbeddingSpace(e_a, e_b)
    torch.testing.assert_close(space.cosine(x * scale, y), space.cosine(x, y), atol=1e-5, rtol=0)


def test_what_the_space_sees_of_a_vector_has_no_common_direction():
    e_a, e_b = gaussian(60, 5) + 1, gaussian(60, 7, seed=1)
    x = gaussian(4, 5, seed=2)
    space = EmbeddingSpace(e_a, e_b, common=2)
    strongest = torch.linalg.svd(e_a - e_a.mean(0), full_matrices=False)[2][:2]
    torch.testing.assert_close(space.seen_a(x), x - x @ strongest.T @ strongest)
    torch.testing.assert_close(space.own_a(space.seen_a(x)), space.own_a(x))
