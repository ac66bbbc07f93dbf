"""Malformed input is refused, undefined values are NaN with a reason, and failures met elsewhere do not happen here."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

import embcompare.measures as measures
from embcompare.errors import EmbcompareError, EmbcompareWarning, Incomparable, SettingsError
from embcompare.measures import GEOMETRY, MEASURES, BadInput, UndefinedMeasure, why_undefined
from embcompare.measures import neighbours as neighbours_module
from tests.golden.make_measures import RECIPES, arrays, plain_pwcca


def gaussian(n, p, seed=0):
    return np.random.default_rng(seed).standard_normal((n, p))


# ------------------------------------------------------------------ malformed


@pytest.mark.parametrize("name", MEASURES)
def test_malformed_arrays_are_a_typed_error_that_says_what_is_wrong(name):
    measure, x = MEASURES[name], gaussian(30, 5)
    with pytest.raises(BadInput, match="X has 30 samples and Y has 29"):
        measure(x, x[:29])
    holed = x.copy()
    holed[[3, 7], 2] = np.nan
    with pytest.raises(BadInput, match=r"2 of 30 rows of Y hold NaN or infinite values \(the first is row 3"):
        measure(x, holed)
    with pytest.raises(BadInput, match="1 of 30 rows of X"):
        measure(np.where(np.arange(30)[:, None] == 4, np.inf, x), x)
    for wrong in (x[0], x[None], x + 1j, x.astype(str)):
        with pytest.raises(BadInput, match="samples, features"):
            measure(wrong, wrong)


def test_errors_are_embcompare_errors():
    assert issubclass(BadInput, EmbcompareError)
    assert issubclass(UndefinedMeasure, EmbcompareError)


def test_unknown_settings_are_refused_by_name():
    x, y = gaussian(40, 5), gaussian(40, 4, 1)
    for call in (
        lambda: measures.cca(x, y, summary="median"),
        lambda: measures.svcca(x, y, keep=1.5),
        lambda: measures.pwcca(x, y, side="z"),
        lambda: measures.rsa(x, y, rdm="hamming"),
        lambda: measures.rsa(x, y, compare="kendall"),
        lambda: measures.mutual_knn(x, y, k=0),
        lambda: measures.mutual_knn(x, y, k=2.5),
        lambda: measures.cknna(x, y, k=True),
        lambda: measures.neighbourhood_jaccard(x, y, metric="manhattan"),
        lambda: measures.regression_r2(x, y, kind="lasso"),
        lambda: measures.regression_r2(x, y, folds=1),
        lambda: measures.get_measure("similarity"),
    ):
        with pytest.raises(SettingsError):
            call()
    with pytest.raises(BadInput, match="one label for each of the 40 samples"):
        measures.regression_r2(x, y, groups=[1, 2])
    with pytest.raises(Incomparable, match="5 and 4 wide"):
        measures.tokenwise_cosine(x, y)
    with pytest.raises(AttributeError):
        _ = measures.nothing


# ------------------------------------------------------------------ undefined


@pytest.mark.parametrize("name", [name for name in MEASURES if name != "tokenwise_cosine"])
@pytest.mark.parametrize("constant", [0.0, 3.3, 1e12, -1e-9])
def test_a_constant_layer_is_nan_with_a_reason_never_zero(name, constant):
    x, flat = gaussian(30, 5), np.full((30, 5), constant) * np.linspace(1, 2, 5)
    for pair in ((x, flat), (flat, x), (flat, flat)):
        with pytest.warns(EmbcompareWarning, match="undefined here"):
            assert np.isnan(MEASURES[name](*pair))
        assert why_undefined(*pair, name)
    assert why_undefined(x, gaussian(30, 5, 1), name) is None


def test_token_wise_cosine_is_undefined_for_a_zero_vector_only():
    x = gaussian(30, 5)
    assert measures.tokenwise_cosine(np.ones((30, 5)), np.full((30, 5), 2.0)) == pytest.approx(1.0)
    x[4] = 0
    assert "1 of 30 samples has no direction" in why_undefined(x, gaussian(30, 5, 1), "tokenwise_cosine")


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("p", [3, 6, 17])
def test_the_least_number_of_samples_is_the_declared_one(name, p):
    measure = MEASURES[name]
    least = measure.min_samples(p, p)
    enough = gaussian(least, p), gaussian(least, p, 1)
    assert np.isfinite(measure(*enough)), why_undefined(*enough, name)
    with pytest.warns(EmbcompareWarning):
        assert np.isnan(measure(enough[0][:-1], enough[1][:-1]))
    assert why_undefined(enough[0][:-1], enough[1][:-1], name)


@pytest.mark.parametrize("name", ["cca", "cca_r2", "svcca", "pwcca"])
def test_the_cca_family_is_undefined_by_rule_unless_samples_outnumber_both_widths(name):
    for p, q in ((20, 5), (5, 20), (20, 20)):
        with pytest.warns(EmbcompareWarning, match="at least 21 samples .more samples than the 20 features"):
            assert np.isnan(MEASURES[name](gaussian(20, p), gaussian(20, q, 1)))
        assert np.isfinite(MEASURES[name](gaussian(21, p), gaussian(21, q, 1)))


@pytest.mark.parametrize("name", MEASURES)
def test_duplicate_rows_are_counted_not_refused(name):
    x, y = gaussian(24, 4), gaussian(24, 4, 1)
    twice = np.repeat(np.arange(24), 2)
    measure = MEASURES[name]
    assert np.isfinite(measure(x[twice], y[twice]))
    assert np.isfinite(measure(x[twice], gaussian(48, 4, 2)))
    best = measure.high if measure.higher_is_closer else measure.low
    assert measure(x[twice], x[twice]) == pytest.approx(best, abs=1e-6 if "r2" in name else 1e-9)


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_of_a_constant_or_missing_layer(name):
    spread = name in ("effective_rank", "iso_score", "top_dimension_share")
    if spread:
        with pytest.warns(EmbcompareWarning, match="constant"):
            assert np.isnan(GEOMETRY[name].function(np.full((10, 3), 0.1)))
    with pytest.warns(EmbcompareWarning):
        assert np.isnan(GEOMETRY[name].function(np.zeros((0, 3))))
    with pytest.raises(BadInput):
        GEOMETRY[name].function(np.full((10, 3), np.nan))


def test_geometry_at_its_ends():
    line = np.outer(np.arange(10.0), [1.0, 2.0, 3.0, 4.0])
    ball = np.kron(np.eye(4), [[1.0], [-1.0]])
    assert measures.effective_rank(line) == pytest.approx(1.0)
    assert measures.effective_rank(ball) == pytest.approx(4.0)
    assert measures.iso_score(line) == pytest.approx(0.0, abs=1e-12)
    assert measures.iso_score(ball) == pytest.approx(1.0)
    assert measures.mean_cosine(line[1:]) == pytest.approx(1.0)
    assert measures.mean_cosine(ball) == pytest.approx(-1 / 7)
    assert measures.top_dimension_share(line) == pytest.approx(16 / 30)
    np.testing.assert_allclose(measures.norms(line), np.arange(10) * np.sqrt(30))
    assert measures.norm_spread(ball) == 0.0


def test_orthonormal_samples_have_no_debiased_structure():
    # all pairs are equally similar: HSIC₁ of the layer with itself is 0, and 0/0 is not 0
    x = np.eye(12)
    assert "equally similar" in why_undefined(x, gaussian(12, 5), "linear_cka")
    assert "equally similar" in why_undefined(x, gaussian(12, 5), "rbf_cka")
    assert np.isfinite(measures.linear_cka(x, gaussian(12, 5), debiased=False))


# ------------------------------------------------------------------ failures met in other tools: CKA and HSIC


def test_trap_batch_of_fewer_than_four_rows_is_a_reason_not_nan_without_one():
    for n in (1, 2, 3):
        assert f"at least 4 samples (HSIC₁ divides by n-3) and there are {n}" in why_undefined(
            gaussian(n, 3), gaussian(n, 3, 1), "linear_cka"
        )


def test_trap_pairing_is_by_row_so_identical_layers_score_one_and_shuffled_ones_do_not():
    x = gaussian(200, 10)
    assert measures.linear_cka(x, x.copy()) == pytest.approx(1.0, abs=1e-12)
    assert abs(measures.linear_cka(x, np.random.default_rng(1).permutation(x))) < 0.1


def test_trap_every_option_changes_the_number():
    x, y = arrays(**RECIPES["related"])
    values = [
        measures.linear_cka(x, y, debiased=True),
        measures.linear_cka(x, y, debiased=False),
        *(measures.rbf_cka(x, y, debiased=d, bandwidth=b) for d in (True, False) for b in (0.5, 1.0)),
        *(measures.rsa(x, y, rdm=r, compare=c) for r in ("correlation", "cosine", "euclidean", "sqeuclidean")
          for c in ("pearson", "cosine")),
        *(measures.rsa(x, y, rdm=r, compare="spearman") for r in ("correlation", "cosine", "euclidean")),
        *(measures.mutual_knn(x, y, k=k, metric=m) for k in (5, 10) for m in ("cosine", "euclidean")),
        *(measures.neighbourhood_jaccard(x, y, k=k, metric=m) for k in (5, 10) for m in ("cosine", "euclidean")),
        measures.cknna(x, y, k=5),
        measures.cknna(x, y, k=10),
        measures.cca(x, y, summary="mean"),
        measures.cca(x, y, summary="r2"),
        measures.svcca(x, y, keep=0.99),
        measures.svcca(x, y, keep=0.8),
        measures.pwcca(x, y, side="x"),
        measures.pwcca(x, y, side="y"),
        *(measures.regression_r2(x, y, kind=k, folds=f, seed=s) for k in ("linear", "ridge") for f in (4, 5)
          for s in (0, 1)),
    ]  # fmt: skip
    assert len({round(v, 10) for v in values}) == len(values)


def test_trap_unrelated_layers_give_a_small_debiased_value_of_either_sign_never_nan_never_clamped():
    values = [measures.linear_cka(gaussian(40, 30, 2 * s), gaussian(40, 30, 2 * s + 1)) for s in range(20)]
    values += [measures.rbf_cka(gaussian(40, 30, 2 * s), gaussian(40, 30, 2 * s + 1)) for s in range(20)]
    assert min(values) < -0.001
    assert max(values) > 0.001
    assert max(map(abs, values)) < 0.2


@pytest.mark.parametrize(("n", "biased"), [(32, 0.96), (64, 0.92), (128, 0.86), (256, 0.75), (512, 0.60), (1024, 0.43)])
def test_trap_unbiased_means_unbiased_on_independent_gaussians_of_width_768(n, biased):
    # a single value scatters by about √2/n, so the fewer the samples the more draws it takes to see the bias
    pairs = [(gaussian(n, 768, s), gaussian(n, 768, 1000 + s)) for s in range(max(1, 2048 // n))]
    assert np.mean([measures.linear_cka(x, y, debiased=False) for x, y in pairs]) == pytest.approx(biased, abs=0.01)
    assert abs(np.mean([measures.linear_cka(x, y) for x, y in pairs])) < 0.015


@pytest.mark.parametrize("name", ["linear_cka", "linear_cka_biased", "rbf_cka", "rbf_cka_biased"])
def test_trap_no_constant_in_the_denominator_scales_from_1e_minus_6_to_1e6_give_one_value(name):
    x, y = arrays(**RECIPES["related"])
    expected = MEASURES[name](x, y)
    for a in (1e-6, 1e-3, 1e6):
        for b in (1e-6, 1e6):
            assert MEASURES[name](a * x, b * y) == pytest.approx(expected, abs=1e-11)
        assert MEASURES[name](a * x, x) == pytest.approx(1.0, abs=1e-11)
    # squares of these would overflow or vanish
    assert MEASURES[name](1e200 * x, 1e-200 * y) == pytest.approx(expected, abs=1e-11)


def test_trap_gaussian_bandwidth_with_duplicate_rows_is_not_zero():
    x, y = gaussian(40, 5), gaussian(40, 5, 1)
    x[5:] = x[4]  # most pairs coincide: the median distance over all pairs is 0
    value = measures.rbf_cka(x, y)
    assert np.isfinite(value)
    assert measures.rbf_cka(x, x) == pytest.approx(1.0)
    shifted = measures.rbf_cka(x + 1e3, y)
    assert shifted == pytest.approx(value, abs=1e-6)


def test_trap_square_root_in_the_denominator():
    x = gaussian(50, 6)
    assert measures.linear_cka(x, x) == pytest.approx(1.0, abs=1e-13)
    assert measures.linear_cka(2 * x, x) == pytest.approx(1.0, abs=1e-13)


def test_trap_direction_is_declared_for_every_measure_and_only_distances_go_down():
    assert {name for name, measure in MEASURES.items() if not measure.higher_is_closer} == {"procrustes"}
    close, far = gaussian(200, 5), gaussian(200, 5, 1)
    for measure in MEASURES.values():
        near, apart = measure(close, close + 0.01 * far), measure(close, far)
        assert (near > apart) is measure.higher_is_closer, measure.name


def test_trap_one_shared_outlier_dimension_decides_cka_and_the_geometry_says_so():
    x, y = gaussian(512, 129), gaussian(512, 129, 1)
    y[:, 7] = x[:, 3] = 50 * gaussian(512, 1, 2)[:, 0]
    assert measures.linear_cka(x, y, debiased=False) > 0.999
    assert measures.linear_cka(x, y) > 0.999
    assert measures.top_dimension_share(x) > 0.9
    scored = [(z - z.mean(0)) / z.std(0) for z in (x, y)]
    assert measures.linear_cka(*scored, debiased=False) < 0.35
    assert measures.linear_cka(*scored) < 0.05
    assert measures.top_dimension_share(scored[0]) == pytest.approx(1 / 129)


# ------------------------------------------------------------------ failures met in other tools: CCA, Procrustes, RSA


def test_trap_pwcca_weighs_by_the_variates_not_by_their_coefficients():
    x, y = arrays(**RECIPES["outlier"])
    assert measures.pwcca(x, y) == pytest.approx(plain_pwcca(x, y), abs=1e-9)
    xc, yc = x - x.mean(0), y - y.mean(0)
    values, a = np.linalg.eig(np.linalg.solve(xc.T @ xc, xc.T @ yc) @ np.linalg.solve(yc.T @ yc, yc.T @ xc))
    by_coefficients = np.abs(np.linalg.qr(a.real)[0].T @ xc.T).sum(1)
    wrong = by_coefficients @ np.sqrt(np.abs(values.real)) / by_coefficients.sum()
    assert abs(measures.pwcca(x, y) - wrong) > 0.01


def test_trap_pwcca_states_its_direction():
    x, y = arrays(**RECIPES["related"])
    assert not MEASURES["pwcca"].symmetric
    assert measures.pwcca(x, y, side="y") == pytest.approx(measures.pwcca(y, x, side="x"), abs=1e-12)
    assert measures.pwcca(x, y, side="smaller") == measures.pwcca(x, y, side="x")
    assert measures.pwcca(y, x, side="smaller") == pytest.approx(measures.pwcca(x, y, side="x"), abs=1e-12)


def test_trap_svcca_centres_before_it_reduces():
    x, y = gaussian(100, 8), gaussian(100, 8, 1)
    assert measures.svcca(x + 2, x + 2) == pytest.approx(1.0, abs=1e-12)
    assert measures.svcca(x + 200, y) == pytest.approx(measures.svcca(x, y), abs=1e-10)


def test_trap_projected_pairs_correlate_as_reported():
    x, y = arrays(**RECIPES["offset"])
    left, right, rho = measures.canonical_variates(x, y)
    for i, value in enumerate(rho):
        assert np.corrcoef(left[:, i], right[:, i])[0, 1] == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(rho, measures.canonical_correlations(x, y), atol=1e-12)
    # each variate is a combination of its own layer's centred features
    weights = np.linalg.lstsq(x - x.mean(0), left, rcond=None)[0]
    np.testing.assert_allclose((x - x.mean(0)) @ weights, left, atol=1e-12)


def test_trap_svcca_at_the_edges_of_its_threshold():
    x, y = arrays(**RECIPES["related"])
    assert measures.svcca(x, y, keep=1.0) == pytest.approx(measures.cca(x, y), abs=1e-12)
    assert 0 < measures.svcca(x, y, keep=1e-6) < 1  # one direction each
    even = np.kron(np.eye(4), [[1.0], [-1.0]]) + 5.0  # shares of exactly a quarter
    assert measures.svcca(even, even, keep=0.5) == pytest.approx(1.0)


def test_trap_procrustes_rotation_maps_source_to_target():
    rng = np.random.default_rng(0)
    x = gaussian(60, 5)
    q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    y = 2.0 * x @ q + 7
    rotation = measures.aligning_rotation(x, y)
    np.testing.assert_allclose(rotation, q, atol=1e-12)
    assert not np.allclose(rotation, q.T, atol=0.1)
    expected = orthogonal_procrustes(x - x.mean(0), y - y.mean(0))[0]
    np.testing.assert_allclose(rotation, expected, atol=1e-12)
    with pytest.raises(Incomparable, match="5 and 4 wide"):
        measures.aligning_rotation(x, y[:, :4])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["cca", "cca_r2", "pwcca", "regression_r2", "ridge_r2", "procrustes"])
def test_trap_rank_deficient_layers_give_the_value_of_the_directions_they_have(name, dtype):
    x, y = (z.astype(dtype) for z in arrays(**RECIPES["offset"]))
    options = {"side": "y"} if name == "pwcca" else {}
    turn = np.linalg.qr(gaussian(16, 16))[0][:12].astype(dtype)
    wider = x @ turn  # 16 features of rank 12, up to rounding
    expected = MEASURES[name](x, y, **options)
    assert MEASURES[name](wider, y, **options) == pytest.approx(expected, abs=1e-9 if dtype is np.float64 else 1e-4)


def test_trap_few_items_and_negative_rsa_are_legitimate():
    values = [measures.rsa(gaussian(5, 6, 2 * s), gaussian(5, 6, 2 * s + 1)) for s in range(20)]
    assert np.isfinite(values).all()
    assert min(values) < -0.2
    x = np.arange(6.0)[:, None] * np.ones((1, 3))
    order = np.array([5, 0, 4, 1, 3, 2])
    assert measures.rsa(x, x[order], rdm="euclidean") < 0
    assert MEASURES["rsa"].low == -1.0


def test_rsa_of_equal_samples_but_constant_features_names_the_reason():
    x, y = gaussian(10, 5), gaussian(10, 5, 1)
    x[3] = 2.5  # a sample whose features are all equal correlates with nothing
    assert "1 of 10 samples has no direction to take correlations" in why_undefined(x, y, "rsa")
    assert why_undefined(x, y, "rsa_euclidean") is None
    assert "±1 or nothing" in why_undefined(gaussian(10, 2), y, "rsa")


def test_rsa_ties_share_their_rank_in_spite_of_rounding():
    square = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    turned = square @ np.linalg.qr(gaussian(2, 2))[0] * 0.1 + 1 / 3
    assert measures.rsa(square, turned, rdm="euclidean") == pytest.approx(1.0, abs=1e-12)


# ------------------------------------------------------------------ neighbours


def test_ties_share_the_places_that_are_left():
    # the middle of a line has two equally near samples for one place
    line = np.array([[0.0], [1.0], [2.0], [10.0]])
    other = np.array([[0.0], [1.0], [2.5], [10.0]])
    weights = neighbours_module.prepare_neighbours(line, k=1, metric="euclidean").weights.toarray()
    np.testing.assert_allclose(weights, [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    # sample 1 shares half of its neighbourhood: (1 + 1/2 + 1 + 1) / 4, and 0.5 / 1.5 of the union
    assert measures.mutual_knn(line, other, k=1, metric="euclidean") == pytest.approx(3.5 / 4)
    assert measures.neighbourhood_jaccard(line, other, k=1, metric="euclidean") == pytest.approx((3 + 1 / 3) / 4)


@pytest.mark.parametrize("name", ["mutual_knn", "neighbourhood_jaccard", "cknna"])
def test_a_declaration_follows_its_number_of_neighbours(name):
    usual, other = MEASURES[name], MEASURES[name].counting(4)
    assert (usual.k, other.k, other.counting(10).k) == (10, 4, 10)
    assert usual.counting(10) is usual
    x, y = gaussian(40, 6), gaussian(40, 6, 1)
    assert other(x, y) == usual(x, y, k=4) != usual(x, y)
    assert (usual.needs, other.needs) == ("n ≥ k + 2 = 12", "n ≥ k + 2 = 6")
    assert (usual.min_samples(6, 6), other.min_samples(6, 6)) == (12, 6)
    assert usual.state_bytes(100, 6) - other.state_bytes(100, 6) == 12 * 6 * 100
    assert "10" in usual.formula
    assert "10" not in other.formula
    assert "4" in other.formula
    assert "{" not in usual.formula + other.formula
    assert other.invariances == usual.invariances
    with pytest.raises(SettingsError, match="whole number of at least 1"):
        usual.counting(0)


def test_measures_without_neighbours_stay_what_they_are():
    for name, measure in MEASURES.items():
        counts = name in ("mutual_knn", "neighbourhood_jaccard", "cknna")
        assert (measure.k is not None) == counts == ("k" in measure.options)
        assert counts or measure.counting(3) is measure


@pytest.mark.parametrize("name", ["mutual_knn", "neighbourhood_jaccard", "cknna"])
def test_ties_do_not_depend_on_the_order_of_the_samples(name):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (40, 3)) + 1.0, rng.integers(0, 3, (40, 3)) + 1.0
    order = rng.permutation(40)
    assert MEASURES[name](x[order], y[order]) == pytest.approx(MEASURES[name](x, y), abs=1e-12)
    assert MEASURES[name](x, x) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("rows", [1, 7, 39, 40])
def test_neighbours_do_not_depend_on_the_blocks(rows, monkeypatch):
    x, y = gaussian(40, 5), gaussian(40, 6, 1)
    expected = [MEASURES[name](x, y) for name in ("mutual_knn", "neighbourhood_jaccard", "cknna")]
    monkeypatch.setattr(neighbours_module, "BLOCK_ROWS", rows)
    assert [MEASURES[name](x, y) for name in ("mutual_knn", "neighbourhood_jaccard", "cknna")] == pytest.approx(
        expected
    )


def test_neighbours_of_unrelated_layers_lie_at_chance():
    values = [measures.mutual_knn(gaussian(101, 8, 2 * s), gaussian(101, 8, 2 * s + 1), k=10) for s in range(8)]
    assert np.mean(values) == pytest.approx(10 / 100, abs=0.015)


def test_too_many_neighbours_for_the_samples_is_a_reason():
    assert "with k = 29 everybody" in why_undefined(gaussian(30, 4), gaussian(30, 4, 1), "mutual_knn", k=29)
    assert why_undefined(gaussian(30, 4), gaussian(30, 4, 1), "mutual_knn", k=28) is None


# ------------------------------------------------------------------ regression


def test_groups_stay_together_and_folds_are_even_and_seeded():
    groups = np.repeat(np.arange(23), np.arange(1, 24))
    folds = measures.fold_numbers(len(groups), 5, groups, seed=3)
    for group in range(23):
        assert len(set(folds[groups == group])) == 1
    assert np.ptp(np.bincount(folds)) <= 23  # the largest group
    np.testing.assert_array_equal(folds, measures.fold_numbers(len(groups), 5, groups, seed=3))
    assert (folds != measures.fold_numbers(len(groups), 5, groups, seed=4)).any()
    assert np.ptp(np.bincount(measures.fold_numbers(103, 5))) == 1


def test_leakage_through_a_sentence_is_seen_by_groups_only():
    # tokens of a sentence share a code that says nothing about other sentences
    rng = np.random.default_rng(0)
    sentence = np.repeat(np.arange(60), 10)
    code, meaning = rng.standard_normal((60, 40)), rng.standard_normal((60, 3))
    x, y = code[sentence] + 0.1 * rng.standard_normal((600, 40)), meaning[sentence]
    assert measures.regression_r2(x, y) > 0.5
    assert measures.regression_r2(x, y, groups=sentence) < 0
    assert measures.regression_r2(x, y, kind="ridge", groups=sentence) < 0.2
    with pytest.warns(EmbcompareWarning, match="one group for each fold"):
        assert np.isnan(measures.regression_r2(x, y, groups=np.zeros(600)))


def test_both_directions_on_the_same_folds():
    x, y = arrays(**RECIPES["related"])
    both = measures.regression_r2_both(x, y, seed=2)
    assert both.x_to_y == measures.regression_r2(x, y, seed=2)
    assert both.y_to_x == measures.regression_r2(y, x, seed=2)
    assert abs(both.x_to_y - both.y_to_x) > 0.01


def test_a_linear_map_that_is_there_is_found_and_one_that_is_not_scores_below_zero():
    x = gaussian(200, 10)
    assert measures.regression_r2(x, x @ gaussian(10, 4, 1) + 3) == pytest.approx(1.0, abs=1e-12)
    assert measures.regression_r2(x, gaussian(200, 4, 2)) < 0
    assert measures.regression_r2(x, gaussian(200, 4, 2), kind="ridge") == pytest.approx(0, abs=0.03)
    assert "not determined; use ridge" in why_undefined(gaussian(20, 18), gaussian(20, 3), "regression_r2")
    # wide layers can still be predicted
    assert np.isfinite(measures.regression_r2(gaussian(20, 3), gaussian(20, 18)))


# ------------------------------------------------------------------ the package


def test_importing_measures_costs_neither_torch_nor_sklearn_nor_scipy():
    code = (
        "import sys, embcompare.measures as m; print([k for k in ('torch', 'sklearn', 'scipy') if k in sys.modules]);"
        "m.MEASURES; m.linear_cka; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent
    )
    assert done.stdout.split() == ["[]", "False"], done.stdout + done.stderr


def test_every_public_name_resolves_to_what_it_says():
    for name in measures.__all__:
        assert getattr(measures, name) is not None
    for name in ("linear_cka", "rbf_cka", "cknna", "cca", "svcca", "pwcca", "procrustes", "rsa", "mutual_knn",
                 "neighbourhood_jaccard", "regression_r2", "tokenwise_cosine"):  # fmt: skip
        assert callable(getattr(measures, name))
        assert measures.MEASURES[name].function is getattr(measures, name)
    assert set(measures.__all__) == set(dir(measures))


def test_only_what_needs_shared_coordinates_says_so():
    assert [name for name, measure in MEASURES.items() if measure.needs_shared_coordinates] == ["tokenwise_cosine"]


def test_half_precision_input_is_not_summed_in_half_precision():
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0)).half() + 100
    exact = measures.linear_cka(x.double(), x.double()[:, :4])
    assert measures.linear_cka(x, x[:, :4]) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if not measure.needs_shared_coordinates])
def test_no_scale_of_a_layer_overflows_or_changes_the_value(name):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(60, 5)), rng.normal(size=(60, 4))
    y[:, :3] += x[:, :3]
    plain = MEASURES[name](x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert MEASURES[name](x * 1e200, y * 1e-200) == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("name", GEOMETRY)
def test_no_scale_of_a_layer_overflows_its_geometry(name):
    x = np.random.default_rng(5).normal(size=(40, 6)) + 1
    expected = GEOMETRY[name].function(x) * (1e200 if name == "mean_norm" else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GEOMETRY[name].function(x * 1e200) == pytest.approx(expected, rel=1e-9)
