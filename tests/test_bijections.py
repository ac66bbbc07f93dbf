"""Maps fitted on paired rows: closed forms against independent libraries, and what every map owes to awkward input."""

import json
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.metrics import r2_score

from embcompare.errors import EmbcompareError, EmbcompareWarning, Incomparable, InputError, SettingsError
from embcompare.maps import (
    INN,
    MAPS,
    MLP,
    BertINN,
    CCAMap,
    Identity,
    LeastSquares,
    MeanPredictor,
    NotFitted,
    NotInvertible,
    Orthogonal,
    PWCCAMap,
    Ridge,
    SVCCAMap,
    TooFewRows,
    get_map,
    load_map,
)
from embcompare.maps.start import best_start, invertible

CLOSED = [name for name, declared in MAPS.items() if not declared.trained]
TRAINED = [name for name, declared in MAPS.items() if declared.trained]
QUICK = {"epochs": 3, "batch": 64}
seeds = st.integers(0, 2**31 - 1)


def made(name, **options):
    return get_map(name).make(**{**(QUICK if MAPS[name].trained else {}), **options})


def rows(n=200, d_a=6, d_b=6, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d_a)) * np.logspace(0, -1, d_a) + 2
    y = x @ rng.standard_normal((d_a, d_b)) + noise * rng.standard_normal((n, d_b)) - 1
    return x, y


def turn(d, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def close(found, expected, tolerance=1e-9):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


# --- closed forms against independent libraries ------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(6, 6), (8, 5), (5, 8), (1, 1)])
def test_least_squares_and_full_cca_are_the_regression_of_scikit_learn(widths):
    x, y = rows(120, *widths)
    expected = LinearRegression().fit(x, y)
    for each in (LeastSquares(), CCAMap(), SVCCAMap(keep=1.0), PWCCAMap(keep=1.0)):
        fitted = each.fit(x, y)
        close(fitted.transform(x), expected.predict(x).reshape(y.shape), 1e-8)
        assert fitted.score(x, y) == pytest.approx(
            r2_score(y, expected.predict(x), multioutput="variance_weighted"), abs=1e-10
        )


def test_ridge_is_scikit_learns_for_a_penalty_and_chooses_one_that_its_leave_one_out_would_not_mind():
    x, y = rows(40, 20, 4, noise=3.0)
    close(Ridge(strength=2.5).fit(x, y).transform(x), SklearnRidge(2.5).fit(x, y).predict(x))
    chosen = Ridge().fit(x, y)
    by_hand = RidgeCV(np.logspace(-4, 4, 60), store_cv_results=True).fit(x, y)
    errors = by_hand.cv_results_.mean((0, 1))
    near = errors[np.argmin(np.abs(np.log(by_hand.alphas / chosen.chosen)))]
    assert near < 1.1 * errors.min()
    assert chosen.chosen > 0


@pytest.mark.parametrize("scale", [False, True])
def test_the_rotation_is_scipys_procrustes_solution(scale):
    x, y = rows(100)
    a, b = x - x.mean(0), y - y.mean(0)
    rotation, total = scipy.linalg.orthogonal_procrustes(a, b)
    expected = a @ rotation * (total / np.square(a).sum() if scale else 1) + y.mean(0)
    fitted = Orthogonal(scale=scale).fit(x, y)
    close(fitted.transform(x), expected)
    assert fitted.condition == pytest.approx(1)
    assert fitted.log_determinant == pytest.approx(6 * math.log(total / np.square(a).sum()) if scale else 0, abs=1e-9)


@pytest.mark.parametrize("each", [CCAMap(), CCAMap(shrink=False), SVCCAMap(), PWCCAMap(keep=0.8)])
@pytest.mark.parametrize("widths", [(6, 6), (7, 4), (4, 7)])
def test_paired_variates_correlate_exactly_as_said_and_with_no_other(each, widths):
    x, y = rows(150, *widths, noise=2.0)
    fitted = each.fit(x, y)
    left, right = (x - x.mean(0)) @ fitted.directions_a.numpy(), (y - y.mean(0)) @ fitted.directions_b.numpy()
    close(left.T @ right, np.diag(fitted.correlations.numpy()))
    close(left.T @ left, np.eye(len(fitted.correlations)))
    close(right.T @ right, np.eye(len(fitted.correlations)))
    assert float(fitted.weights.sum()) <= 1 + 1e-12


def test_canonical_correlations_are_those_of_statsmodels_and_by_the_textbook():
    x, y = rows(150, 5, 4, noise=2.0)
    found = CCAMap().fit(x, y).correlations.numpy()
    a, b = x - x.mean(0), y - y.mean(0)
    product = np.linalg.solve(a.T @ a, a.T @ b) @ np.linalg.solve(b.T @ b, b.T @ a)
    textbook = np.sqrt(np.sort(np.linalg.eigvals(product).real)[::-1][:4])
    close(found, textbook, 1e-8)
    cancorr = pytest.importorskip("statsmodels.multivariate.cancorr")
    close(found, cancorr.CanCorr(y, x).cancorr, 1e-8)


def test_matched_variates_keep_the_variance_that_shrinking_gives_up():
    x, y = rows(400, noise=2.0)
    shrunk, matched = CCAMap().fit(x, y), CCAMap(shrink=False).fit(x, y)
    close(np.cov(matched.transform(x).T), np.cov(y.T), 1e-8)
    assert matched.score(x, y) < shrunk.score(x, y)


def test_svcca_keeps_the_fewest_directions_of_the_share_and_pwcca_the_heaviest_variates():
    x, y = rows(300)
    for keep in (0.5, 0.9, 0.99):
        spectrum = [np.cumsum(s**2) / np.sum(s**2) for s in (np.linalg.svd(z - z.mean(0))[1] for z in (x, y))]
        wanted = min(int(np.argmax(each >= keep)) + 1 for each in spectrum)
        assert len(SVCCAMap(keep=keep).fit(x, y).correlations) == wanted
        weights = CCAMap().fit(x, y).weights.numpy()
        fitted = PWCCAMap(keep=keep).fit(x, y)
        assert fitted.weights.sum() >= keep - 1e-12
        assert fitted.weights.sum() - fitted.weights.min() < keep
        assert fitted.weights.min() >= np.sort(weights)[::-1][: len(fitted.weights)].min() - 1e-12
        assert fitted.rank == len(fitted.weights)


def test_pwcca_weights_are_the_published_formula():
    x, y = rows(200, 5, 4, noise=2.0)
    fitted = CCAMap().fit(x, y)
    centred = x - x.mean(0)
    alpha = np.abs((centred @ fitted.directions_a.numpy()).T @ centred).sum(1)
    close(fitted.weights, alpha / alpha.sum())


def test_the_mean_and_the_identity():
    x, y = rows()
    mean = MeanPredictor().fit(x, y)
    close(mean.transform(x), np.broadcast_to(y.mean(0), y.shape))
    assert mean.score(x, y) == pytest.approx(0, abs=1e-12)
    assert mean.log_determinant == -math.inf
    assert not mean.invertible
    close(Identity().fit(x, y).transform(x), x)


# --- declared invariances ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["least_squares", "cca", "cca_matched", "orthogonal", "scaled_rotation", "ridge"])
@given(seed=seeds)
@settings(deadline=None, max_examples=10)
def test_predictions_move_with_rotations_shifts_and_order(name, seed):
    x, y = rows(seed=seed % 1000)
    rng = np.random.default_rng(seed)
    q, r, order = turn(6, seed), turn(6, seed + 1), rng.permutation(len(x))
    before = made(name).fit(x, y).transform(x)
    after = made(name).fit((x @ q + 3)[order], (y @ r - 2)[order]).transform(x @ q + 3)
    close(after, before @ r - 2, 1e-7)


@pytest.mark.parametrize("name", ["least_squares", "cca", "cca_matched", "pwcca"])
@given(seed=seeds)
@settings(deadline=None, max_examples=10)
def test_regressions_take_any_invertible_change_of_the_target(name, seed):
    x, y = rows(seed=seed % 1000)
    change = turn(6, seed) @ np.diag(np.exp(np.random.default_rng(seed).uniform(-1, 1, 6)))
    close(made(name).fit(x, y @ change).transform(x), made(name).fit(x, y).transform(x) @ change, 1e-7)


@given(seed=seeds, power=st.integers(-8, 8))
@settings(deadline=None, max_examples=4)
def test_trained_maps_see_neither_the_scale_of_the_features_nor_of_the_target(seed, power):
    x, y = rows(60, 3, 3, seed=seed % 1000)
    scale = np.array([2.0**power, 1.0, 2.0**-power])
    for name in ("inn", "mlp"):
        plain = made(name, seed=1).fit(x, y, x, y)
        scaled = made(name, seed=1).fit(x * scale, 4 * y, x * scale, 4 * y)
        if plain.start == scaled.start:
            close(scaled.transform(x * scale), 4 * plain.transform(x), 2e-3)
            assert scaled.trace.train[0] == pytest.approx(float(plain.trace.train[0]), rel=1e-4)


@pytest.mark.parametrize("name", [n for n in MAPS if MAPS[n].bijective])
@given(seed=seeds)
@settings(deadline=None, max_examples=5)
def test_what_is_declared_bijective_comes_back(name, seed):
    x, y = rows(80, 5, 5, seed=seed % 10_000)
    fitted = made(name).fit(x, y)
    assert fitted.invertible
    close(fitted.inverse_transform(fitted.transform(x)), x, 1e-7)
    close(fitted.transform(fitted.inverse_transform(y)), y, 1e-7)
    back = fitted.inverse_transform(fitted.transform(x.astype(np.float32)))
    assert back.dtype == np.float32
    assert np.linalg.norm(back - x) < 1e-4 * np.linalg.norm(x - x.mean(0))


# --- the Jacobian ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in MAPS if MAPS[n].bijective])
def test_log_determinant_and_condition_are_those_of_the_jacobian_by_differences(name):
    x, y = rows(100, 4, 4)
    fitted = made(name, **({"rate": 0.02} if MAPS[name].trained else {})).fit(x, y, x, y)

    def jacobian(row):
        steps = 1e-5 * np.eye(4)
        return np.array([(fitted.transform(row + s) - fitted.transform(row - s))[0] / 2e-5 for s in steps]).T

    found = [np.linalg.slogdet(jacobian(row[None]))[1] for row in x]
    assert fitted.log_determinant == pytest.approx(np.mean(found), abs=1e-4)
    if MAPS[name].trained:
        close(fitted.log_determinants(x), found, 1e-4)
        scaled = jacobian(x[:1]) * (x.std(0)[None, :] / y.std(0)[:, None])
        close(fitted.jacobian(x[0]), scaled, 1e-5)
        probed = [np.linalg.cond(fitted.jacobian(x[k])) for k in (0, 33, 66, 99)]
        assert fitted.condition == pytest.approx(np.median(probed), rel=1e-6)
    else:
        assert fitted.condition == pytest.approx(np.linalg.cond(jacobian(x[:1])), rel=1e-4)


@pytest.mark.parametrize("name", [n for n in MAPS if MAPS[n].bijective and not MAPS[n].equal_widths])
@pytest.mark.parametrize("widths", [(3, 5), (1, 4), (6, 7)])
def test_into_a_wider_side_a_map_is_one_to_one_and_into_a_narrower_one_it_is_not(name, widths):
    x, y = rows(90, *widths)
    into = made(name).fit(x, y)
    assert into.invertible
    close(into.inverse_transform(into.transform(x)), x, 1e-6)
    assert math.isnan(into.log_determinant)
    assert into.condition >= 1
    out = made(name).fit(y, x)
    assert not out.invertible
    assert out.transform(y).shape == x.shape
    with pytest.raises(NotInvertible, match="fit one the other way"):
        out.inverse_transform(x)


# --- where networks start ----------------------------------------------------------------------------------------


@given(seed=seeds, p=st.integers(1, 6), q=st.integers(1, 6), extra=st.integers(0, 2))
@settings(deadline=None, max_examples=40)
def test_the_start_is_invertible_of_bounded_condition_and_holds_the_map(seed, p, q, extra):
    rng = np.random.default_rng(seed)
    matrix = torch.tensor(rng.standard_normal((p, q)) @ np.diag(10.0 ** rng.uniform(-6, 0, q)))
    if extra and q > 1:
        matrix[:, 0] = matrix[:, 1]
    wide = invertible(matrix, max(p, q), 100.0)
    assert np.linalg.cond(wide) <= 100.0 * (1 + 1e-6)
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    assert float(torch.linalg.matrix_norm(wide[:p, :q] - matrix, 2)) <= largest / 100 * (1 + 1e-9)


def test_a_well_conditioned_start_is_the_best_linear_map_itself():
    x, y = (torch.tensor(each) for each in rows())
    share = torch.ones(6, dtype=torch.float64)
    start = best_start(x[:150], y[:150], x[150:], y[150:], share, 1e6)
    losses = {}
    for each in (LeastSquares(), Ridge(), Orthogonal(scale=True), Identity()):
        each.fit(x[:150], y[:150])
        losses[each.name] = float((each.transform(x[150:]) - y[150:]).square().sum(1).mean())
    assert losses[start.made_of] == min(losses.values()) == pytest.approx(start.loss, rel=1e-9)


@pytest.mark.parametrize("widths", [(6, 6), (5, 7), (7, 5), (2, 2)])
def test_before_training_an_inn_is_its_linear_start_exactly(widths):
    x, y = rows(150, *widths)
    fitted = INN(epochs=1, rate=1e-8).fit(x[:100], y[:100], x[100:], y[100:])
    linear = {"least_squares": LeastSquares(), "ridge": Ridge(), "orthogonal": Orthogonal(scale=True)}[fitted.start]
    mean, spread = x[:100].mean(0), x[:100].std(0)
    to, wide = y[:100].mean(0), y[:100].std(0)
    linear.fit((x[:100] - mean) / spread, (y[:100] - to) / wide)
    close(fitted.transform(x), linear.transform((x - mean) / spread) * wide + to, 1e-4)
    assert float(fitted.trace.validation[0]) == pytest.approx(
        np.square(linear.transform((x[100:] - mean) / spread) * wide + to - y[100:]).sum(1).mean()
        / y[:100].var(0).sum(),
        rel=1e-4,
    )


def test_training_never_ends_worse_on_validation_than_it_began():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 5)), rng.standard_normal((40, 5))
    for name in TRAINED:
        free = {} if name == "mlp" else {"round_trip": 1.0}
        fitted = made(name, epochs=10, rate=0.05, **free).fit(x[:25], y[:25], x[25:], y[25:])
        assert float(fitted.trace.validation[fitted.trace.best_epoch]) == float(fitted.trace.validation.min())
        kept = np.square(fitted.transform(x[25:]) - y[25:]).sum(1).mean() / y[:25].var(0).sum()
        assert kept == pytest.approx(float(fitted.trace.validation.min()), rel=1e-4)


# --- awkward input, by rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(
    "bad",
    [
        (np.zeros((0, 4)), np.zeros((0, 4))),
        (np.ones((5, 4)), np.ones((6, 4))),
        (np.ones(5), np.ones(5)),
        (np.ones((5, 4), dtype=int), np.ones((5, 4))),
        (np.full((9, 4), np.nan), np.ones((9, 4))),
        (np.random.default_rng(0).standard_normal((9, 4)), np.full((9, 4), np.inf)),
        ("text", "text"),
    ],
)
def test_malformed_input_is_a_typed_error(name, bad):
    with pytest.raises(InputError):
        made(name).fit(*bad)


@pytest.mark.parametrize("name", [n for n in MAPS if n not in ("mean", "identity")])
def test_constant_sides_are_a_typed_error_and_the_mean_and_identity_need_no_variance(name):
    x, _ = rows(50, 4, 4)
    constant = np.full((50, 4), 3.7)
    for pair in ((constant, x), (x, constant)):
        with pytest.raises(Incomparable):
            made(name).fit(*pair)
    assert MeanPredictor().fit(constant, x).rank == 0
    assert Identity().fit(constant, x).invertible


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_tiny_inputs_fit_or_say_how_many_rows_would_do(name, n):
    x, y = rows(n, 6, 6)
    aside = rows(3, 6, 6, seed=1) if MAPS[name].trained else (None, None)
    if n >= MAPS[name].least_rows(6, 6):
        assert np.isfinite(made(name).fit(x, y, *aside).transform(x)).all()
    else:
        with pytest.raises(TooFewRows, match="at least"):
            made(name).fit(x, y, *aside)


@pytest.mark.parametrize("name", [n for n in MAPS if n not in ("mean", "identity")])
def test_duplicated_and_constant_features_are_carried_by_no_linear_map_and_networks_stay_invertible(name):
    x, y = rows(120, 4, 6)
    x = np.hstack([x, x[:, :1], np.full((120, 1), 5.0)])
    fitted = made(name).fit(x, y)
    assert np.isfinite(fitted.transform(x)).all()
    if name in ("inn", "bert_inn"):
        close(fitted.inverse_transform(fitted.transform(x)), x, 1e-6)
        assert math.isfinite(fitted.condition)
    elif name == "ridge":
        assert fitted.condition > 1e6 or not fitted.invertible
    elif name not in ("orthogonal", "scaled_rotation", "mlp"):
        assert fitted.rank <= 4
        assert not fitted.invertible
        assert fitted.condition == math.inf
        with pytest.raises(NotInvertible, match="every direction"):
            fitted.inverse_transform(y)


@pytest.mark.parametrize("name", [n for n in CLOSED if n != "ridge"])  # its cross-validation counts rows
def test_duplicated_rows_change_nothing_but_their_weight(name):
    x, y = rows(60, 4, 4)
    twice = made(name).fit(np.vstack([x, x]), np.vstack([y, y]))
    close(twice.transform(x), made(name).fit(x, y).transform(x), 1e-8)


def test_misuse_is_said_in_a_sentence():
    x, y = rows(50, 4, 4)
    with pytest.raises(NotFitted, match=r"call fit\(X, Y\)"):
        INN().transform(x)
    with pytest.raises(Incomparable, match="4 wide"):
        LeastSquares().fit(x, y).transform(x[:, :3])
    with pytest.raises(Incomparable, match="equal widths"):
        Identity().fit(x, y[:, :3])
    with pytest.raises(Incomparable, match="use ridge"):
        INN().fit(x[:, :1], y[:, :1])
    with pytest.raises(InputError, match="pairs"):
        INN().fit(x, y, X_val=x)
    with pytest.raises(Incomparable, match="as wide"):
        MLP(epochs=1).fit(x, y, x[:, :2], y)
    with pytest.raises(NotInvertible, match="two rows to one"):
        MLP(epochs=1).fit(x, y).inverse_transform(y)
    for options in ({"epochs": 0}, {"rate": 2.0}, {"schedule": "warm"}, {"blocks": 0}, {"clip": 0.0}, {"seed": -1}):
        with pytest.raises(SettingsError):
            INN(**options).fit(x, y)
    with pytest.raises(SettingsError, match="its options are"):
        get_map("ridge").make(colour="red")
    with pytest.raises(SettingsError, match="there are mean, identity"):
        get_map("rigde")
    with pytest.raises(Incomparable, match="no determinant"):
        INN(epochs=1).fit(x, y[:, :3]).log_determinants(x)
    with pytest.warns(EmbcompareWarning, match="all equal"):
        assert math.isnan(MeanPredictor().fit(x, y).score(x, np.ones((50, 4))))


# --- kept and read again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("widths", [(5, 5), (4, 5)])
def test_a_map_survives_arrays_and_a_json_header_to_the_bit(name, widths):
    if MAPS[name].equal_widths and widths[0] != widths[1]:
        return
    x, y = rows(60, *widths)
    fitted = made(name).fit(x, y)
    arrays, header = fitted.to_arrays()
    assert all(isinstance(each, np.ndarray) and each.dtype in (np.float32, np.float64) for each in arrays.values())
    read = load_map(arrays, json.loads(json.dumps(header, allow_nan=False)))
    assert type(read) is type(fitted)
    assert read.options == fitted.options
    for some in (x, x.astype(np.float32), torch.tensor(x)):
        assert np.array_equal(np.asarray(read.transform(some)), np.asarray(fitted.transform(some)))
    assert read.condition == fitted.condition or math.isnan(fitted.condition)
    assert read.invertible == fitted.invertible
    if fitted.invertible:
        assert np.array_equal(read.inverse_transform(y), fitted.inverse_transform(y))


def test_arrays_that_do_not_fit_their_header_are_refused():
    arrays, header = LeastSquares().fit(*rows()).to_arrays()
    for change in ({"map": "ridge"}, {"format": 99}, {"width_a": 7}, {"options": {"x": 1}}, {"facts": {}}):
        with pytest.raises(InputError):
            LeastSquares.from_arrays(arrays, header | change)
    with pytest.raises(InputError, match="NaN"):
        LeastSquares.from_arrays(arrays | {"offset": np.full(6, np.nan)}, header)
    with pytest.raises(InputError, match="not known"):
        load_map(arrays, header | {"map": "magic"})
    arrays, header = INN(**QUICK).fit(*rows()).to_arrays()
    for change in ({"weights": np.zeros(3, np.float32)}, {"matrix": np.eye(5)}, {"scale_a": np.zeros(6)}):
        with pytest.raises(InputError):
            load_map(arrays | change, header)


@pytest.mark.parametrize("name", MAPS)
def test_numpy_gives_numpy_torch_gives_torch_in_the_precision_given(name):
    x, y = rows(60, 4, 4)
    fitted = made(name).fit(x.astype(np.float32), torch.tensor(y))
    assert isinstance(fitted.transform(x), np.ndarray)
    assert fitted.transform(x).dtype == np.float64
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        out = fitted.transform(torch.tensor(x).to(dtype))
        assert out.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("name", MAPS)
def test_every_declaration_is_complete_and_true(name):
    declared = MAPS[name]
    assert declared.name == name
    for text in (declared.label, declared.formula, declared.meaning, declared.needs, declared.direction):
        assert text.strip()
    fitted = made(name).fit(*rows(100, 4, 4))
    assert declared.trained == ("seed" in fitted.options)
    if declared.bijective:
        assert fitted.invertible
    assert declared.type.__doc__
    with pytest.raises(EmbcompareError):
        get_map(name + "x")


def test_the_catalogue_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; from embcompare.maps import MAPS; print(len(MAPS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(len(MAPS)), "False"], done.stderr


def test_the_single_block_is_the_published_formula():
    x, y = rows(50, 4, 4)
    fitted = BertINN(epochs=1, rate=1e-8).fit(x, y)
    arrays = fitted.to_arrays()[0]
    assert len(arrays["weights"]) == 48 * 16 + 18 * 4
    z, cut = (x - arrays["mean_a"]) / arrays["scale_a"], 0

    def layers(cut):
        for a, b in ((4, 16), (16, 16), (16, 4)):
            yield arrays["weights"][cut : cut + a * b].reshape(b, a).astype(float), arrays["weights"][cut + a * b :][:b]
            cut += a * b + b

    def network(v, cut):
        for k, (w, c) in enumerate(layers(cut)):
            v = v @ w.T + c
            if k < 2:
                v = 1.0507009873554805 * np.where(v > 0, v, 1.6732632423543772 * (np.exp(v) - 1))
        return v

    half = len(arrays["weights"]) // 2
    for mask in (np.array([1.0, 0, 1, 0]), np.array([0, 1.0, 0, 1])):
        s, t = np.tanh(network(mask * z, cut)), network(mask * z, half)
        z = mask * z + (1 - mask) * (z * (np.exp(s) + 1e-8) + t)
    close(fitted.transform(x), z * arrays["scale_b"] + arrays["mean_b"], 1e-6)
