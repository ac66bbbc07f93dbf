"""Maps from one model's coordinates to another's, against the plain float64 formulas."""

import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge
from torch.utils._python_dispatch import TorchDispatchMode

from embcompare.errors import EmbcompareError, Incomparable, InputError, SettingsError
from embcompare.maps import (
    KERNELS,
    Kernel,
    SingularEmbedding,
    TooFewRows,
    anchors,
    draw_anchors,
    get_kernel,
    identity,
    least_squares,
    orthogonal,
    orthogonal_fit,
    permuted,
    pseudo_inverse,
    random_rotation,
    ridge,
    split_items,
)

V = 300
WIDTHS = [(12, 8), (8, 12), (10, 10), (1, 1)]
seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 9)


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def embeddings(d_a=12, d_b=8, seed=0, dtype=torch.float64, v=V):
    """Two embeddings that share part of their directions, with a mean and unequal spreads."""
    common = gaussian(v, max(d_a, d_b), seed=seed)
    a = common[:, :d_a] @ gaussian(d_a, d_a, seed=seed + 1) + 0.3 * gaussian(v, d_a, seed=seed + 2) + 1
    b = common[:, :d_b] @ gaussian(d_b, d_b, seed=seed + 3) + 0.3 * gaussian(v, d_b, seed=seed + 4) - 2
    return a.to(dtype), b.to(dtype)


def states(d_a=12, d_b=8, n=400, noise=0.5, seed=0):
    x = gaussian(n, d_a, seed=seed) * torch.logspace(0, -1.5, d_a, dtype=torch.float64) + 3
    return x, x @ gaussian(d_a, d_b, seed=seed + 1) + noise * gaussian(n, d_b, seed=seed + 2) - 5


def rotation(d, seed):
    return torch.linalg.qr(gaussian(d, d, seed=seed)).Q


def close(found, expected, tolerance=1e-9):
    found, expected = (np.asarray(each, dtype=np.float64) for each in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def dense(e_a, e_b, centred=False):
    """E_A E_B⁺ as the paper writes it, E being (d, V)."""
    a, b = (each.double().numpy() for each in (e_a, e_b))
    if centred:
        a, b = a - a.mean(0), b - b.mean(0)
    return a.T @ np.linalg.pinv(b.T)


# --- read off the embeddings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_is_the_pseudo_inverse_of_the_paper(widths, centred, dtype):
    e_a, e_b = embeddings(*widths, dtype=dtype)
    kernel = pseudo_inverse(e_a, e_b, centred=centred, block=64)
    close(kernel.matrix, dense(e_a, e_b, centred))
    assert kernel.matrix.dtype == kernel.offset.dtype == torch.float64
    assert not kernel.offset.any()
    b = e_b.double() - (e_b.double().mean(0) if centred else 0)
    assert kernel.condition == pytest.approx(np.linalg.cond(b.numpy()), rel=1e-6)
    assert kernel.rank == min(widths)
    assert kernel.rows == V


@pytest.mark.parametrize("centred", [False, True])
def test_explained_is_the_share_of_readings_reproduced(centred):
    e_a, e_b = embeddings()
    for kernel in (pseudo_inverse(e_a, e_b, centred=centred), orthogonal(e_a, e_b, centred=centred, scale=True)):
        a, b = (each - (each.mean(0) if centred else 0) for each in (e_a, e_b))
        missed = (a - b @ kernel.matrix.T).square().sum() / a.square().sum()
        assert kernel.explained == pytest.approx(1 - float(missed), abs=1e-10)


@pytest.mark.parametrize("widths", WIDTHS)
def test_the_orthogonal_map_is_the_polar_factor_of_the_kernel(widths):
    e_a, e_b = embeddings(*widths)
    expected, stretch = scipy.linalg.polar(dense(e_a, e_b))
    found = orthogonal(e_a, e_b)
    close(found.matrix, expected)
    scaled = orthogonal(e_a, e_b, scale=True)
    close(scaled.matrix, expected * np.trace(stretch) / min(widths))
    assert orthogonal(e_a, e_b, of="kernel").condition == pytest.approx(pseudo_inverse(e_a, e_b).condition)


@pytest.mark.parametrize("centred", [False, True])
def test_the_rotation_between_tokens_is_the_procrustes_solution(centred):
    e_a, e_b = embeddings(10, 10)
    a, b = ((each - (each.mean(0) if centred else 0)).numpy() for each in (e_a, e_b))
    expected, total = scipy.linalg.orthogonal_procrustes(a, b)
    kernel = orthogonal(e_a, e_b, of="tokens", scale=True, centred=centred)
    close(kernel.matrix, expected * total / np.square(a).sum())
    close(kernel(e_a.mean(0)), e_b.mean(0)) if centred else close(kernel.offset, torch.zeros(10))
    missed = (e_b - kernel(e_a)).square().sum() / np.square(b).sum()
    assert kernel.explained == pytest.approx(1 - float(missed), abs=1e-10)


@pytest.mark.parametrize("widths", [(12, 8), (8, 12)])
def test_the_rotation_between_unequal_widths_is_that_of_the_narrower_one_padded(widths):
    e_a, e_b = embeddings(*widths)
    padded = [np.pad(each.numpy(), ((0, 0), (0, 12 - each.shape[1]))) for each in (e_a, e_b)]
    best = np.linalg.svd(padded[0].T @ padded[1], compute_uv=False).sum()
    for scale in (False, True):
        kernel = orthogonal(e_a, e_b, of="tokens", scale=scale)
        missed = (e_b - kernel(e_a)).square().sum() / e_b.square().sum()
        assert kernel.explained == pytest.approx(1 - float(missed), abs=1e-10)
        if not scale:
            assert float((kernel.matrix * (e_a.T @ e_b)).sum()) == pytest.approx(best)
            smaller = kernel.matrix if widths[0] > widths[1] else kernel.matrix.T
            close(smaller.T @ smaller, np.eye(8))


@given(sizes, st.integers(0, 5), seeds, st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_change_of_coordinates_is_recovered(d, more, seed, centred):
    e_a = gaussian(60, d, seed=seed)
    into = rotation(d + more, seed)[:d]
    e_b = e_a @ into
    options = {"centred": centred, "allow_singular": more > 0}
    kernel = pseudo_inverse(e_a, e_b, **options)
    assert kernel.explained == pytest.approx(1)
    assert kernel.rank == d
    close(kernel.matrix, into, 1e-6)
    close(orthogonal(e_a, e_b, **options).matrix, into, 1e-6)
    close(orthogonal(e_a, e_b, of="tokens", **options).matrix, into, 1e-6)
    # any other invertible change is answered by the inverse of its transpose, for it is readings that are kept
    stretch = rotation(d, seed + 1) * torch.logspace(0, 1, d).double() @ rotation(d, seed + 2)
    close(pseudo_inverse(e_a, e_a @ stretch, centred=centred).matrix, torch.linalg.inv(stretch).T, 1e-6)


@given(sizes, sizes, seeds, st.booleans())
@settings(max_examples=30, deadline=None)
def test_kernels_turn_with_the_coordinates_of_either_model(d_a, d_b, seed, centred):
    e_a, e_b = embeddings(d_a, d_b, seed=seed)
    q_a, q_b = rotation(d_a, seed), rotation(d_b, seed + 1)
    for make in (pseudo_inverse, orthogonal):
        plain = make(e_a, e_b, centred=centred, allow_singular=True)
        turned = make(e_a @ q_a, e_b @ q_b, centred=centred, allow_singular=True)
        if plain.condition < 1e3 and np.linalg.cond(dense(e_a, e_b, centred)) < 1e3:
            close(turned.matrix, q_a.T @ plain.matrix @ q_b, 1e-6)


@given(seeds, st.booleans(), st.integers(1, 400))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_tokens_and_the_blocks_change_nothing(seed, centred, block):
    e_a, e_b = embeddings(7, 5, seed=seed)
    order = torch.randperm(V, generator=torch.Generator().manual_seed(seed))
    for make in (pseudo_inverse, orthogonal):
        plain = make(e_a, e_b, centred=centred)
        close(make(e_a[order], e_b[order], centred=centred, block=block).matrix, plain.matrix, 1e-8)
        paired = make(e_a[order], e_b, tokens=(torch.arange(V), order), centred=centred, block=block)
        close(paired.matrix, plain.matrix, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of", [None, "kernel", "tokens"])
@pytest.mark.parametrize("centred", [False, True])
def test_a_model_maps_to_itself_by_the_identity(dtype, of, centred):
    e = embeddings(12, 12, dtype=dtype)[0]
    kernel = pseudo_inverse(e, e, centred=centred) if of is None else orthogonal(e, e, of=of, centred=centred)
    close(kernel.matrix, np.eye(12))
    close(kernel.offset, np.zeros(12))
    assert kernel.explained == pytest.approx(1)


def test_padded_and_special_rows_are_left_out_even_where_they_hold_nan():
    e_a, e_b = embeddings()
    rows = torch.randperm(V, generator=torch.Generator().manual_seed(5))[:200]
    expected = dense(e_a[rows], e_b[rows])
    padded_a = torch.cat([e_a, torch.full((20, 12), float("nan")).double()])
    padded_b = torch.cat([torch.zeros(7, 8).double(), e_b])
    padded_b[0] = float("inf")
    found = pseudo_inverse(padded_a, padded_b, tokens=(rows.tolist(), (rows + 7).numpy()))
    close(found.matrix, expected)
    usable = torch.zeros(V, dtype=torch.bool)
    usable[rows] = True
    close(pseudo_inverse(e_a, e_b, usable_a=usable).matrix, expected)
    close(pseudo_inverse(e_a, e_b, usable_b=usable, tokens=(range(V), range(V))).matrix, expected)
    tied = torch.cat([torch.arange(V), torch.arange(V)])
    twice = pseudo_inverse(e_a, e_b, tokens=(tied, tied))
    close(twice.matrix, dense(e_a, e_b))
    zeros_a, zeros_b = (torch.cat([each, torch.zeros(50, each.shape[1]).double()]) for each in (e_a, e_b))
    close(pseudo_inverse(zeros_a, zeros_b).matrix, dense(e_a, e_b))


def test_nothing_that_is_given_is_changed():
    e_a, e_b = embeddings()
    x, y = states()
    before = [each.clone() for each in (e_a, e_b, x, y)]
    for centred in (False, True):
        pseudo_inverse(e_a, e_b, centred=centred)
    anchors(e_a, e_b, range(20))
    ridge(x, y)
    for now, then in zip((e_a, e_b, x, y), before, strict=True):
        assert torch.equal(now, then)


def ill_conditioned(v=30_000, d=32, condition=400.0, dtype=torch.float32):
    basis = torch.linalg.qr(gaussian(v, d, seed=3)).Q
    spectrum = torch.logspace(0, -math.log10(condition), d, dtype=torch.float64)
    return ((basis * spectrum) @ rotation(d, 4) * 100).to(dtype)


def test_at_condition_400_the_kernel_is_exact_where_a_float32_pseudo_inverse_is_not():
    e_b = ill_conditioned()
    e_a = e_b @ rotation(32, 5).float() + 0.05 * gaussian(len(e_b), 32, seed=6, dtype=torch.float32)
    exact = dense(e_a, e_b)
    kernel = pseudo_inverse(e_a, e_b)
    assert kernel.condition == pytest.approx(400, rel=1e-3)
    np.testing.assert_allclose(kernel.matrix.numpy(), exact, rtol=0, atol=1e-6)
    usual = (e_a.T @ torch.linalg.pinv(e_b.T)).double().numpy()
    assert np.abs(usual - exact).max() > 0.05
    own = pseudo_inverse(e_b, e_b).matrix.numpy()
    np.testing.assert_allclose(own, np.eye(32), rtol=0, atol=1e-6)
    assert np.abs((e_b.T @ torch.linalg.pinv(e_b.T)).numpy() - np.eye(32)).max() > 0.05


class Largest(TorchDispatchMode):
    """The most elements of any tensor made, and of any float64 one."""

    def __init__(self, *given):
        super().__init__()
        self.any = self.wide = 0
        self.given = {each.untyped_storage().data_ptr() for each in given}

    def __torch_dispatch__(self, function, types, given=(), options=None):
        made = function(*given, **(options or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in self.given:
                self.any = max(self.any, each.numel())
                self.wide = max(self.wide, each.numel() if each.dtype == torch.float64 else 0)
        return made


@pytest.mark.parametrize("paired", [False, True])
def test_nothing_larger_than_a_block_or_a_small_gram_is_made(paired):
    e_a, e_b = embeddings(24, 16, dtype=torch.float32, v=5000)
    tokens = (torch.arange(5000), torch.arange(5000)) if paired else None
    with Largest(e_a, e_b) as most:
        kernel = pseudo_inverse(e_a, e_b, centred=True, tokens=tokens, block=100)
    assert most.wide == 100 * 24
    assert most.any == 5000  # the list of rows
    close(kernel.matrix, dense(e_a, e_b, True), 1e-6)


def test_lost_directions_are_an_error_that_counts_them():
    e_a, e_b = embeddings(12, 8)
    flat = e_b.clone()
    flat[:, 5:] = flat[:, :3]
    with pytest.raises(SingularEmbedding, match=r"second model.*tells 5 of 8 directions apart, so 3 would be lost"):
        pseudo_inverse(e_a, flat)
    kernel = pseudo_inverse(e_a, flat, allow_singular=True)
    close(kernel.matrix, dense(e_a, flat))
    assert kernel.rank == 5
    with pytest.raises(SingularEmbedding, match=r"first model.*tells 5 of 8 directions apart"):
        pseudo_inverse(flat, e_a)
    with pytest.raises(SingularEmbedding, match="tells 5 of 8"):
        orthogonal(e_a, flat, of="tokens")
    assert orthogonal(e_a, flat, of="tokens", allow_singular=True).rank == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_of_the_stored_numbers_is_no_direction(dtype):
    factor = gaussian(2000, 20, seed=1) @ gaussian(20, 32, seed=2)
    e_a = gaussian(2000, 32, seed=3)
    with pytest.raises(SingularEmbedding, match="20 of 32"):
        pseudo_inverse(e_a, factor.to(dtype))
    whole = ill_conditioned(4000, 32, 40.0 if dtype == torch.bfloat16 else 200.0, dtype)
    assert pseudo_inverse(e_a[:, :16], whole[:2000]).rank == 16


def test_a_cut_off_drops_what_is_below_it():
    e_b = ill_conditioned(2000, 8, 100.0, torch.float64)
    e_a = gaussian(2000, 8, seed=9)
    kernel = pseudo_inverse(e_a, e_b, cutoff=0.05, allow_singular=True)
    close(kernel.matrix, e_a.numpy().T @ np.linalg.pinv(e_b.numpy().T, rcond=0.05))
    assert kernel.rank < 8
    for wrong in (1e-9, 1.0, -1.0, float("nan")):
        with pytest.raises(SettingsError, match="cutoff"):
            pseudo_inverse(e_a, e_b, cutoff=wrong)


def test_too_few_shared_tokens_are_an_error_with_a_way_round():
    e_a, e_b = embeddings(12, 8, v=12)
    with pytest.raises(TooFewRows, match="at least 13 shared tokens and there are 12"):
        pseudo_inverse(e_a, e_b)
    e_a, e_b = embeddings(12, 8, v=6)
    close(pseudo_inverse(e_a, e_b, allow_singular=True).matrix, dense(e_a, e_b), 1e-6)
    with pytest.raises(TooFewRows, match="there are 0"):
        pseudo_inverse(e_a, e_b, tokens=([], []))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_named_by_row(wrong):
    e_a, e_b = embeddings()
    e_b[123, 4] = wrong
    for make in (pseudo_inverse, orthogonal, lambda a, b: orthogonal(a, b, of="tokens", centred=True)):
        with pytest.raises(InputError, match="Row 123 of the second model"):
            make(e_a, e_b)
    order = torch.arange(V).flip(0)
    with pytest.raises(InputError, match="Row 123 of the second model"):
        pseudo_inverse(e_a, e_b, tokens=(order, order))


@pytest.mark.parametrize(
    ("a", "b", "error", "match"),
    [
        (torch.ones(20, 3), torch.ones(21, 3), Incomparable, "say which rows"),
        (torch.zeros(0, 3), torch.zeros(0, 3), InputError, "empty"),
        (torch.ones(20), torch.ones(20, 2), InputError, "shape"),
        (torch.ones(20, 2, dtype=torch.int64), torch.ones(20, 2), InputError, "int64"),
        (gaussian(20, 2), torch.zeros(20, 2), Incomparable, "all zero"),
        (torch.zeros(20, 2), gaussian(20, 2), Incomparable, "all zero"),
        (gaussian(20, 2), gaussian(20, 2) * 1e200, InputError, "too large"),
        (gaussian(20, 2), gaussian(20, 2) * 1e-200, Incomparable, "too small"),
    ],
)
def test_what_is_no_pair_of_embeddings_is_refused(a, b, error, match):
    for make in (pseudo_inverse, orthogonal):
        with pytest.raises(error, match=match):
            make(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_rows_have_no_variance_once_centred(dtype):
    e = gaussian(200, 4)
    same = torch.full((200, 4), 0.1).to(dtype)
    for pair in ((e, same), (same, e)):
        with pytest.raises(Incomparable, match="all equal"):
            pseudo_inverse(*pair, centred=True)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokens": ([0, 1], [0])}, "2 rows with 1"),
        ({"tokens": ([0, -1], [0, 1])}, "no row -1"),
        ({"tokens": ([0, 1], [0, 300])}, "no row 300"),
        ({"tokens": ([0.0, 1.0], [0, 1])}, "whole numbers"),
        ({"usable_a": torch.ones(3, dtype=torch.bool)}, "300 true or false"),
        ({"usable_b": torch.ones(V)}, "300 true or false"),
        ({"block": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_named(options, match):
    with pytest.raises(SettingsError, match=match):
        pseudo_inverse(*embeddings(), **options)


# --- anchors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 40])
def test_anchors_are_cosines_undone_by_the_other_models_anchors(count):
    e_a, e_b = embeddings()
    chosen = draw_anchors(V, count, seed=3)
    a, b = (torch.nn.functional.normalize(each[chosen]).numpy() for each in (e_a, e_b))
    x = gaussian(6, 12, seed=8).numpy()
    cosines = x @ a.T / np.linalg.norm(x, axis=1, keepdims=True)
    expected = cosines @ np.linalg.pinv(b.T)
    kernel = anchors(e_a, e_b, chosen)
    close(kernel(torch.from_numpy(x)), expected)
    close(kernel(torch.from_numpy(7 * x)), expected)
    kept = anchors(e_a, e_b, chosen, norm="keep")
    close(kept(torch.from_numpy(x)), expected * np.linalg.norm(x, axis=1, keepdims=True))
    assert kernel.rank == kept.rank == min(count, 8)
    assert kernel.rows == count
    rows = torch.arange(V).flip(0)
    close(anchors(e_a, e_b, V - 1 - chosen, tokens=(rows, rows)).matrix, kernel.matrix)


@given(seeds, st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_anchors_of_a_rotated_model_turn_every_direction_whatever_the_lengths_of_tokens(seed, size):
    e_a, turn = gaussian(40, 6, seed=seed), rotation(6, seed)
    lengths = torch.rand(40, 1, generator=torch.Generator().manual_seed(seed)).double() + size
    kernel = anchors(e_a, e_a @ turn * lengths, range(40), norm="keep")
    close(kernel.matrix, turn, 1e-6)


def test_anchors_that_cannot_be_used_are_refused():
    e_a, e_b = embeddings()
    with pytest.raises(TooFewRows, match="at least 2 anchors"):
        anchors(e_a, e_b, [4])
    with pytest.raises(SettingsError, match="twice"):
        anchors(e_a, e_b, [4, 5, 4])
    with pytest.raises(SettingsError, match="no row 300"):
        anchors(e_a, e_b, [4, 300])
    with pytest.raises(SettingsError, match="'unit'"):
        anchors(e_a, e_b, [4, 5], norm="none")
    e_b[7] = 0
    with pytest.raises(InputError, match="Row 7 of the second model's embedding is zero"):
        anchors(e_a, e_b, [4, 7])
    for count in (1, V + 1):
        with pytest.raises(SettingsError, match="cannot be drawn"):
            draw_anchors(V, count)


# --- fitted on states --------------------------------------------------------------------------------------------


def r2(kernel, x, y, mean):
    return 1 - float((y - kernel(x)).square().sum() / (y - mean).square().sum())


@pytest.mark.parametrize("widths", WIDTHS)
def test_least_squares_is_that_of_sklearn_and_scored_on_both_parts(widths):
    x, y = states(*widths)
    items = np.arange(400) // 10
    kernel = least_squares(x, y, items=items, seed=4, block=37)
    aside = split_items(400, items, 0.2, 4)
    oracle = LinearRegression().fit(x[~aside].numpy(), y[~aside].numpy())
    close(kernel.matrix, oracle.coef_.T, 1e-7)
    close(kernel.offset, oracle.intercept_, 1e-7)
    mean = y[~aside].mean(0)
    assert kernel.explained == pytest.approx(r2(kernel, x[~aside], y[~aside], mean), abs=1e-10)
    assert kernel.held_out == pytest.approx(r2(kernel, x[aside], y[aside], mean), abs=1e-10)
    assert kernel.rows == int((~aside).sum())
    assert kernel.rank == min(widths)
    assert kernel.condition == pytest.approx(np.linalg.cond((x[~aside] - x[~aside].mean(0)).numpy()), rel=1e-6)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("n", [400, 9])
def test_ridge_is_that_of_sklearn(strength, n):
    x, y = states(n=n)
    kernel = ridge(x, y, strength=strength, held_out=0)
    oracle = Ridge(alpha=strength).fit(x.numpy(), y.numpy())
    close(kernel.matrix, oracle.coef_.T, 1e-8)
    close(kernel.offset, oracle.intercept_, 1e-8)
    assert kernel.strength == strength
    assert kernel.held_out is None


@pytest.mark.parametrize(("n", "noise"), [(40, 0.5), (60, 5.0), (400, 0.01)])
def test_the_strength_of_a_ridge_has_the_least_generalised_cross_validation_error(n, noise):
    x, y = states(n=n, noise=noise)
    kernel = ridge(x, y, held_out=0)
    centred, target = (x - x.mean(0)).numpy(), (y - y.mean(0)).numpy()
    largest = np.linalg.svd(centred, compute_uv=False)[0] ** 2
    errors = []
    for strength in np.logspace(-10, 2, 37) * largest:
        hat = centred @ np.linalg.solve(centred.T @ centred + strength * np.eye(12), centred.T)
        left = target - hat @ target
        errors.append((np.square(left).sum() / (n - 1 - np.trace(hat)) ** 2, strength))
    assert kernel.strength == pytest.approx(min(errors)[1], rel=1e-6)


def test_a_ridge_works_with_fewer_rows_than_features_and_beats_least_squares_on_few():
    x, y = states(30, 5, n=12, noise=0.1)
    kernel = ridge(x, y, held_out=0)
    assert torch.isfinite(kernel.matrix).all()
    x, y = states(30, 5, n=60, noise=3.0)
    assert ridge(x, y, seed=1).held_out > least_squares(x, y, seed=1).held_out


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("scale", [False, True])
def test_the_rotation_of_states_is_the_procrustes_solution(widths, scale):
    x, y = states(*widths)
    kernel = orthogonal_fit(x, y, scale=scale, held_out=0)
    a, b = ((each - each.mean(0)).numpy() for each in (x, y))
    wide = max(widths)
    padded = [np.pad(each, ((0, 0), (0, wide - each.shape[1]))) for each in (a, b)]
    best, total = scipy.linalg.orthogonal_procrustes(*padded)
    if widths[0] == widths[1]:
        close(kernel.matrix, best * (total / np.square(a).sum() if scale else 1))
    if not scale:
        assert float((kernel.matrix.numpy() * (a.T @ b)).sum()) == pytest.approx(total)
    else:
        plain = orthogonal_fit(x, y, held_out=0).matrix.numpy()
        target, moved = b.ravel(), (a @ plain).ravel()
        close(kernel.matrix, plain * (moved @ target) / (moved @ moved))
    close(kernel(x.mean(0)), y.mean(0))
    assert kernel.explained == pytest.approx(r2(kernel, x, y, y.mean(0)), abs=1e-10)


@given(sizes, seeds)
@settings(max_examples=25, deadline=None)
def test_fits_recover_a_rotation_and_a_shift(d, seed):
    x = gaussian(50, d, seed=seed)
    y = x @ rotation(d, seed) * 2 + 7
    for kernel in (least_squares(x, y), ridge(x, y, strength=1e-9), orthogonal_fit(x, y, scale=True)):
        close(kernel.matrix, 2 * rotation(d, seed), 1e-6)
        assert kernel.explained == pytest.approx(1)
        assert kernel.held_out == pytest.approx(1)


@given(sizes, sizes, seeds)
@settings(max_examples=25, deadline=None)
def test_fits_turn_with_the_coordinates_and_ignore_the_order_of_rows(d_a, d_b, seed):
    x, y = states(d_a, d_b, n=80, seed=seed)
    q_a, q_b = rotation(d_a, seed), rotation(d_b, seed + 1)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(seed))
    for make in (least_squares, ridge):
        plain = make(x, y, held_out=0)
        close(make(x @ q_a, y @ q_b, held_out=0).matrix, q_a.T @ plain.matrix @ q_b, 1e-6)
        close(make(x[order], y[order], held_out=0, block=17).matrix, plain.matrix, 1e-6)


@given(st.integers(2, 60), st.integers(2, 9), st.floats(0.01, 0.95), seeds)
@settings(max_examples=60, deadline=None)
def test_whole_items_are_kept_aside_and_some_on_either_side(n, count, share, seed):
    items = np.random.default_rng(seed).integers(0, count, n)
    items[:2] = (0, 1)
    aside = split_items(n, [f"text {each}" for each in items], share, seed).numpy()
    assert not set(items[aside]) & set(items[~aside])
    assert aside.any()
    assert not aside.all()
    assert np.array_equal(aside, split_items(n, items.tolist(), share, seed).numpy())
    if len(set(items)) == n:
        assert aside.sum() == min(max(math.ceil(share * n - 1e-9), 1), n - 1)


def test_half_precision_states_and_numpy_are_taken():
    x, y = states()
    kernel = least_squares(x.numpy(), y.numpy())
    close(kernel.matrix, least_squares(x, y).matrix)
    close(least_squares(x.half(), y.bfloat16()).matrix, kernel.matrix, 0.2)


@pytest.mark.parametrize("make", [least_squares, ridge, orthogonal_fit])
def test_states_that_cannot_be_fitted_are_refused(make):
    x, y = states()
    with pytest.raises(InputError, match=r"400 states .* and 399"):
        make(x, y[:-1])
    with pytest.raises(InputError, match="empty"):
        make(x[:0], y[:0])
    with pytest.raises(Incomparable, match="all equal"):
        make(torch.full_like(x, 0.1), y)
    with pytest.raises(Incomparable, match="all equal"):
        make(x, torch.full_like(y, 0.1))
    with pytest.raises(TooFewRows, match="training rows? and there are"):
        make(x[:3], y[:3])
    with pytest.raises(InputError, match="1 item"):
        make(x, y, items=[0] * 400)
    with pytest.raises(InputError, match="one label"):
        make(x, y, items=[0, 1])
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(SettingsError, match="kept aside"):
            make(x, y, held_out=share)
    aside = torch.nonzero(split_items(400)).flatten()
    train = torch.nonzero(~split_items(400)).flatten()
    for row in (int(aside[3]), int(train[3])):
        broken = y.clone()
        broken[row, 0] = float("nan")
        with pytest.raises(InputError, match=f"Row {row} of the second model's states"):
            make(x, broken)


def test_too_few_states_name_the_way_out():
    x, y = states(n=15)
    with pytest.raises(TooFewRows, match=r"at least 13 training rows and there are 12; .*ridge"):
        least_squares(x, y)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SettingsError, match="above 0"):
            ridge(x, y, strength=wrong)


# --- controls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pseudo_inverse", "orthogonal"])
def test_the_permuted_kernel_pairs_every_usable_token_with_another(kind):
    e_a, e_b = embeddings()
    usable = torch.arange(V) % 7 != 0
    e_b[~usable] = float("nan")
    kernel = permuted(e_a, e_b, seed=3, kind=kind, usable_b=usable, centred=True)
    order = torch.randperm(int(usable.sum()), generator=torch.Generator().manual_seed(3))
    make = {"pseudo_inverse": pseudo_inverse, "orthogonal": orthogonal}[kind]
    close(kernel.matrix, make(e_a[usable], e_b[usable][order], centred=True).matrix)
    assert kernel.name == "permuted"
    assert kernel.explained < 0.2 < pseudo_inverse(e_a, e_b, usable_b=usable, centred=True).explained
    assert torch.equal(kernel.matrix, permuted(e_a, e_b, seed=3, kind=kind, usable_b=usable, centred=True).matrix)
    assert not torch.equal(kernel.matrix, permuted(e_a, e_b, seed=4, kind=kind, usable_b=usable, centred=True).matrix)
    with pytest.raises(SettingsError, match="'ridge'"):
        permuted(e_a, e_b, kind="ridge")


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_random_rotation_is_as_large_as_the_kernel_beside_it(widths):
    like = pseudo_inverse(*embeddings(*widths))
    kernel = random_rotation(like, seed=1)
    assert kernel.norm == pytest.approx(like.norm)
    values = torch.linalg.svdvals(kernel.matrix)
    close(values, np.full(min(widths), float(values[0])))
    assert torch.equal(kernel.matrix, random_rotation(like, seed=1).matrix)
    assert not kernel.offset.any()
    if widths != (1, 1):
        assert not torch.equal(kernel.matrix, random_rotation(like, seed=2).matrix)


def test_random_rotations_are_even():
    like = identity(3, 3)
    drawn = torch.stack([random_rotation(like, seed=seed).matrix for seed in range(2000)])
    close(drawn.mean(0), np.zeros((3, 3)), 0.06)
    close(drawn.square().mean(0), np.full((3, 3), 1 / 3), 0.04)
    trace = drawn.diagonal(dim1=1, dim2=2).sum(1)
    assert float(trace.square().mean()) == pytest.approx(1, abs=0.1)


def test_the_identity_needs_one_width():
    x = gaussian(3, 5, dtype=torch.float32)
    assert torch.equal(identity(5, 5)(x), x)
    with pytest.raises(Incomparable, match="5 and 6 wide"):
        identity(5, 6)
    with pytest.raises(SettingsError):
        identity(0, 0)


# --- the kernel itself, and its declarations -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 12), (0, 12)])
def test_vectors_are_mapped_in_their_own_dtype_whatever_their_batch(dtype, shape):
    kernel = least_squares(*states())
    x = gaussian(*shape, dtype=dtype)
    found = kernel.apply(x)
    assert found.dtype == dtype
    assert found.shape == (*shape[:-1], 8)
    exact = x.double() @ kernel.matrix + kernel.offset
    np.testing.assert_allclose(
        found.double().numpy(), exact.numpy(), rtol=0, atol=60 * torch.finfo(dtype).eps * float(kernel.norm)
    )


def test_unit_kernels_survive_extreme_lengths_and_have_none_for_zero():
    kernel = anchors(*embeddings(), range(30))
    x = gaussian(4, 12, dtype=torch.float16)
    close(kernel(x * 1000), kernel(x).double(), 1e-2)
    close(kernel(x.float() * 1e-30), kernel(x.float()), 1e-5)
    assert kernel(torch.zeros(1, 12)).isnan().all()


@pytest.mark.parametrize("wrong", [np.ones((3, 12)), torch.ones(3, 12, dtype=torch.int64), torch.tensor(1.0)])
def test_what_is_no_floating_tensor_is_not_mapped(wrong):
    with pytest.raises(InputError, match="floating tensors"):
        least_squares(*states())(wrong)


def test_vectors_of_another_width_are_not_mapped():
    with pytest.raises(Incomparable, match="takes vectors 12 wide and these are 8 wide"):
        least_squares(*states())(torch.ones(3, 8))


def test_a_kernel_says_what_it_is():
    said = least_squares(*states()).sentence()
    assert "12 to 8 wide, carries 8 of 8 directions" in said
    assert "over 320 rows" in said
    assert "kept aside" in said


@pytest.mark.parametrize("name", KERNELS)
def test_every_declared_map_is_made_from_what_it_says_it_needs(name):
    declared = get_kernel(name)
    given = {
        "E": embeddings(),
        "states": states(),
        "kernel": (pseudo_inverse(*embeddings()),),
        "widths": (12, 12),
    }[declared.fitted_on]
    if name == "anchors":
        given = (*given, range(30))
    kernel = declared.make(*given)
    assert isinstance(kernel, Kernel)
    x = gaussian(4, 12)
    assert kernel(x).shape == (4, kernel.width_b)
    for text in (declared.label, declared.formula, declared.meaning, declared.needs):
        assert text
    assert (kernel.explained is not None) == bool(declared.explained)
    assert declared.linear == torch.allclose(kernel(2 * x) - kernel(x), kernel(x) - kernel(0 * x + 1e-9), atol=1e-6)
    if declared.equal_widths:
        with pytest.raises(Incomparable):
            declared.make(12, 8)
    if declared.stochastic:
        assert not torch.equal(declared.make(*given, seed=1).matrix, declared.make(*given, seed=2).matrix)


def test_unknown_maps_and_kinds_are_named():
    with pytest.raises(SettingsError, match="no map 'magic'; there are pseudo_inverse"):
        get_kernel("magic")
    with pytest.raises(SettingsError, match="'kernel' or of the 'tokens'"):
        orthogonal(*embeddings(), of="magic")
    assert issubclass(SingularEmbedding, EmbcompareError)
    assert issubclass(TooFewRows, EmbcompareError)


def test_declarations_can_be_read_without_torch():
    code = "import sys; from embcompare.maps import KERNELS; print(len(KERNELS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{len(KERNELS)} False", done.stderr
