"""The coupling network and its training, the protocol, all pairs of layers, and verdicts on truths that are known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler

from embcompare.errors import InputError, SettingsError
from embcompare.maps import (
    INN,
    MLP,
    Identity,
    Kind,
    LeastSquares,
    MeanPredictor,
    Orthogonal,
    Ridge,
    Standardiser,
    all_pairs,
    evaluate,
    get_map,
    interval,
    load_map,
    orthogonal_fit,
    prepare,
    r2_gap,
    read_maps,
    ridge,
    run_protocol,
    split_items,
    split_three,
)
from embcompare.maps.coupling import CouplingStack
from embcompare.maps.networks import Perceptron, SingleBlock
from embcompare.maps.training import plateaus

seeds = st.integers(0, 2**31 - 1)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(width, blocks=2, hidden=5, clip=0.8, seed=0, size=0.5):
    """A coupling stack that is far from the identity."""
    made = CouplingStack(width, blocks, hidden, clip, seed)
    made.weights.add_(size * torch.randn(made.weights.shape, generator=torch.Generator().manual_seed(seed + 1)))
    return made


# --- the network -------------------------------------------------------------------------------------------------


@given(seed=seeds, width=st.integers(2, 9), blocks=st.integers(1, 3), clip=st.sampled_from([0.5, 1.0, 2.0]))
@settings(deadline=None, max_examples=20)
def test_the_gradient_by_hand_is_that_of_autograd(seed, width, blocks, clip):
    net = network(width, blocks, clip=clip, seed=seed, size=0.3)
    if seed % 2:
        net.place(gaussian(width, width, seed=seed), gaussian(width, seed=seed), seed // 2 % blocks)
    x, y = gaussian(30, width, seed=seed).float(), gaussian(30, width, seed=seed + 1).float()
    share = torch.rand(width, generator=torch.Generator().manual_seed(seed))
    loss, found = net.learn(x, y, share), net.gradient.clone()
    net.weights = net.weights.double().requires_grad_()
    expected = ((net.forward(x.double()) - y).square() * share).mean(0).sum()
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-4)
    largest = float(net.weights.grad.abs().max())
    torch.testing.assert_close(found.double(), net.weights.grad, rtol=0, atol=1e-4 * max(largest, 1e-3))


@pytest.mark.parametrize("make", [lambda w: network(w, 3), lambda w: SingleBlock(w, 0)])
@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("fixed", [False, True])
def test_inverse_and_log_determinant_are_those_of_the_jacobian(make, width, fixed):
    net, x = make(width), gaussian(20, width)
    if fixed:
        matrix = gaussian(width, width, seed=3)
        net.place(matrix, gaussian(width, seed=4), *([1] if isinstance(net, CouplingStack) else []))
    y, log = net.forward_with_log(x)
    assert torch.equal(y, net.forward(x))
    torch.testing.assert_close(net.inverse(y), x, rtol=1e-8, atol=1e-8)
    for row, one in zip(x, log, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: net.forward(v[None])[0], row)
        assert float(torch.linalg.slogdet(jacobian).logabsdet) == pytest.approx(float(one), abs=1e-9)


def test_a_coupling_is_the_published_formula():
    net = network(5, 1, hidden=3, clip=0.8)
    x = gaussian(10, 5).numpy()
    first, second = ([each.double().numpy() for each in layer] for layer in net.layers())
    order = net.orders[0].numpy()
    a, b = x[:, order[:3]], x[:, order[3:]]

    def scale_shift(given, layer, width):
        out = np.maximum(given @ layer[0] + layer[1], 0) @ layer[2] + layer[3]
        return np.exp(0.8 * np.tanh(out[:, :width] / 0.8)), out[:, width:]

    scale, shift = scale_shift(a, first, 2)
    b = b * scale + shift
    scale, shift = scale_shift(b, second, 3)
    a = a * scale + shift
    expected = np.empty_like(x)
    expected[:, order] = np.hstack([a, b])
    np.testing.assert_allclose(net.forward(torch.tensor(x)), expected, atol=1e-12)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_network_that_is_the_identity_around_a_fixed_map_is_that_map(before):
    net, x = CouplingStack(5, 3, 4, 1.0, 0), gaussian(10, 5)
    matrix, offset = gaussian(5, 5, seed=1), gaussian(5, seed=2)
    net.place(matrix, offset, before)
    torch.testing.assert_close(net.forward(x), x @ matrix + offset)
    torch.testing.assert_close(net.forward(x.float()).double(), x @ matrix + offset, rtol=1e-5, atol=1e-5)


def test_every_coordinate_is_changed_in_every_block_and_no_block_has_the_order_of_another():
    net = network(9, 3)
    changed = net.forward(torch.zeros(1, 9, dtype=torch.float64))[0]
    assert int((changed != 0).sum()) == 9
    assert len({tuple(order.tolist()) for order in net.orders}) == 3
    assert torch.equal(network(9, 3).orders, net.orders)
    assert not torch.equal(network(9, 3, seed=1).orders, net.orders)


def test_log_scales_stay_within_the_clip_whatever_comes_in():
    net = network(6, 4, clip=0.5, size=10.0)
    _, log = net.forward_with_log(1e3 * gaussian(50, 6))
    assert float(log.abs().max()) <= 0.5 * 6 * 4 + 1e-9


def test_the_flow_library_agrees_on_a_coupling():
    zuko = pytest.importorskip("zuko")
    net = network(6, 1, hidden=4, clip=1.0)
    order, x = net.orders[0], gaussian(20, 6)
    expected = x[:, order]
    for passive, layer in zip((slice(0, 3), slice(3, 6)), net.layers(net.weights.double()), strict=True):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[passive] = True

        def meta(given, layer=layer):
            out = (given @ layer[0] + layer[1]).relu() @ layer[2] + layer[3]
            # an affine transform whose own soft clip is all but off
            s = out[:, :3].tanh()
            transform = zuko.transforms.MonotonicAffineTransform(out[:, 3:], s, slope=1e-300)
            return zuko.transforms.DependentTransform(transform, 1)

        expected = zuko.transforms.CouplingTransform(meta, mask)(expected)
    torch.testing.assert_close(net.forward(x)[:, order], expected, rtol=0.02, atol=0.02)


def test_the_round_trip_at_768_is_below_1e_4_in_float32():
    d, n = 768, 900
    spread = torch.diag(torch.logspace(0, -3, d, dtype=torch.float64))
    x = gaussian(n, d) @ spread @ gaussian(d, d, seed=1)
    y = torch.tanh(x @ gaussian(d, d, seed=2) / 30) @ spread + 1
    arrays, header = INN(epochs=1, blocks=2, hidden=32).fit(x[:800], y[:800], x[800:], y[800:]).to_arrays()
    arrays["weights"] = arrays["weights"] + 0.03 * gaussian(len(arrays["weights"]), seed=3).float().numpy()
    bent, given = load_map(arrays, header), x.float()
    assert float((bent.log_determinants(x[:20]) - INN.from_arrays(arrays, header).log_determinants(x[:20])).max()) == 0
    assert np.ptp(bent.log_determinants(x[:20])) > 0.1  # it is bent
    back = bent.inverse_transform(bent.transform(given))
    assert back.dtype == torch.float32
    assert float((back - given).norm() / (given - given.mean(0)).norm()) < 1e-4


def test_a_perceptron_starts_at_zero_and_its_gradient_goes_everywhere():
    net = Perceptron([4, 8, 8, 3], 0)
    x, y = gaussian(20, 4).float(), gaussian(20, 3).float()
    assert not net.forward(x).any()
    for _ in range(3):
        net.learn(x, y, torch.ones(3))
        net.weights.sub_(0.1 * net.gradient)
    assert int((net.gradient != 0).sum()) == len(net.gradient)


# --- training ----------------------------------------------------------------------------------------------------


def curved(n=300, d=4, seed=0):
    """Rows of a random invertible network with a little noise."""
    x = gaussian(n, d, seed=seed)
    return x, network(d, 2, 8, 1.0, seed=7, size=0.8).forward(x) + 0.02 * gaussian(n, d, seed=seed + 1)


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", ["inn", "bert_inn", "mlp"])
@pytest.mark.parametrize("schedule", ["cosine", "plateau", "constant"])
def test_a_fit_that_was_cancelled_and_taken_up_is_the_uninterrupted_one_to_the_bit(name, schedule):
    x, y = curved(120)
    options = {"epochs": 7, "batch": 32, "rate": 0.01, "schedule": schedule, "patience": 6, "decay": 0.01}
    whole = get_map(name).make(**options).fit(x, y)
    again = get_map(name).make(**options).fit(x, y)
    assert np.array_equal(whole.to_arrays()[0]["weights"], again.to_arrays()[0]["weights"])
    for last in (0, 1, 4):
        seen = []

        def report(epoch, epochs, loss, held, last=last, seen=seen):
            seen.append((epoch, epochs, loss, held))
            if epoch == last:
                raise Stop

        part = get_map(name).make(**options)
        with pytest.raises(Stop):
            part.fit(x, y, report=report)
        assert [each[0] for each in seen] == list(range(last + 1))
        assert {each[1] for each in seen} == {7}
        kept = {key: each.copy() for key, each in part.checkpoint.items()}
        later = []
        on = (
            get_map(name).make(**options).fit(x, y, resume=kept, report=lambda *given, later=later: later.append(given))
        )
        assert [each[0] for each in later] == list(range(last + 1, len(whole.trace.train)))
        for key, each in whole.to_arrays()[0].items():
            assert np.array_equal(on.to_arrays()[0][key], each), key
        assert np.array_equal(on.transform(x), whole.transform(x))


def test_seeds_differ_and_a_checkpoint_of_another_fit_is_refused():
    x, y = curved(120)
    first = INN(epochs=2, seed=0).fit(x, y)
    assert not np.array_equal(first.transform(x), INN(epochs=2, seed=1).fit(x, y).transform(x))
    others = (
        lambda: INN(epochs=2, seed=1).fit(x, y, resume=first.checkpoint),
        lambda: INN(epochs=2, rate=1e-4).fit(x, y, resume=first.checkpoint),
        lambda: INN(epochs=2, hidden=3).fit(x, y, resume=first.checkpoint),
        lambda: INN(epochs=2).fit(x, 2 * y + x, resume=first.checkpoint),
    )
    for other in others:
        with pytest.raises(InputError, match="another fit"):
            other()
    with pytest.raises(InputError, match="cannot be read"):
        INN(epochs=2).fit(x, y, resume={})


def test_training_stops_early_keeps_the_best_and_says_why():
    x, y = curved(200)
    noise = gaussian(200, 4, seed=9)
    stopped = INN(epochs=100, patience=3, rate=0.01).fit(x, noise)
    assert stopped.ended == "no better validation loss in 3 epochs"
    assert len(stopped.trace.train) == stopped.trace.best_epoch + 4
    assert INN(epochs=2).fit(x, y).ended == "all 2 epochs done"
    exploded = MLP(epochs=20, rate=1.0, hidden=64, decay=0.0)
    exploded.fit(x, y)
    assert bool(torch.isfinite(exploded.transform(x)).all())


def test_plateaus_are_counted_anew_after_each():
    assert plateaus([5, 4, 3], 2) == 0
    assert plateaus([3, 4, 4], 2) == 1
    assert plateaus([3, 4, 4, 4, 4, 2, 3], 2) == 2


def test_losses_reported_are_shares_of_the_variance():
    x, y = curved(300)
    seen = []
    fitted = INN(epochs=5).fit(x[:200], y[:200], x[200:], y[200:], report=lambda *given: seen.append(given))
    spread = float((y[:200] - y[:200].mean(0)).square().sum(1).mean())
    best = fitted.trace.best_epoch
    missed = (fitted.transform(x[200:]) - y[200:]).square().sum(1).mean().item()
    assert seen[best][3] == pytest.approx(missed / spread, rel=1e-4)
    assert float(fitted.trace.validation[best]) == seen[best][3]


def test_a_network_is_not_taken_where_rows_do_not_come_back():
    x = gaussian(600, 6)
    y = (x @ gaussian(6, 6, seed=3)).abs()
    loose = INN(epochs=60, rate=0.01, round_trip=1.0).fit(x, y)
    strict = INN(epochs=60, rate=0.01, round_trip=1e-5).fit(x, y)
    given = x.float()

    def error(fitted):
        return float((fitted.inverse_transform(fitted.transform(given)) - given).norm() / given.norm())

    assert error(strict) < 3e-5 < error(loose)
    assert strict.trace.best_epoch < loose.trace.best_epoch


# --- the protocol ------------------------------------------------------------------------------------------------


def test_the_standardiser_is_scikit_learns_and_leaves_constants_at_zero():
    x = np.random.default_rng(0).standard_normal((50, 4)) * [1, 10, 0.01, 0] + [0, 5, 1, 0.1]
    fitted = Standardiser.fit(x)
    np.testing.assert_allclose(fitted.transform(x), StandardScaler().fit_transform(x), atol=1e-10)
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(x)), x, atol=1e-12)
    assert fitted.transform(x.astype(np.float32)).dtype == np.float32
    assert isinstance(fitted.transform(torch.tensor(x)), torch.Tensor)


@given(seed=seeds, texts=st.integers(3, 30))
@settings(deadline=None, max_examples=30)
def test_no_text_is_in_two_parts_and_no_row_in_none(seed, texts):
    items = np.random.default_rng(seed).integers(0, texts, 200)
    items[:texts] = np.arange(texts)
    split = split_three(200, items, seed=seed)
    parts = [split.train, split.validation, split.test]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(200))
    assert all(len(part) for part in parts)
    labels = [set(items[part.numpy()].tolist()) for part in parts]
    assert sum(map(len, labels)) == texts
    again = split_three(200, items, seed=seed)
    assert torch.equal(split.train, again.train)
    assert torch.equal(split.test, again.test)


def test_splits_that_cannot_be_are_said():
    for shares in ({"validation": 0.0}, {"test": 0.0}, {"validation": 0.5, "test": 0.5}):
        with pytest.raises(SettingsError, match="above 0 and below 1"):
            split_three(10, **shares)
    with pytest.raises(InputError, match="give more texts"):
        split_three(10, np.repeat([0, 1], 5))


def test_scores_are_the_plain_formulas():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 5))
    y = x @ rng.standard_normal((5, 5)) + 0.5 * rng.standard_normal((60, 5))
    fitted = LeastSquares().fit(x, y)
    found, mapped = evaluate(fitted, x, y), fitted.transform(x)
    assert found.mse == pytest.approx(np.mean((mapped - y) ** 2))
    assert found.r2 == pytest.approx(r2_score(y, mapped, multioutput="variance_weighted"))
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (mapped, y)]
    near = unit[0] @ unit[1].T
    assert found.cosine == pytest.approx(np.mean(np.diag(near)))
    assert found.retrieval == pytest.approx(np.mean(near.argmax(1) == np.arange(60)))
    assert found.cycle < 1e-12
    assert not found.reasons
    assert found.n == 60


def test_scores_that_are_not_defined_have_a_reason():
    x = gaussian(40, 4)
    y = x - x.mean(0)
    none = evaluate(MeanPredictor().fit(x, y), x, y)
    assert math.isnan(none.cosine)
    assert math.isnan(none.retrieval)
    assert math.isnan(none.cycle)
    assert set(none.reasons) == {"cosine", "retrieval", "cycle"}
    assert none.r2 == pytest.approx(0, abs=1e-12)
    constant = evaluate(LeastSquares().fit(x, y), x, torch.ones(40, 4, dtype=torch.float64))
    assert math.isnan(constant.r2)
    assert "equal" in constant.reasons["r2"]
    narrower = evaluate(LeastSquares().fit(x, y[:, :2]), x, y[:, :2])
    assert "fit one the other way" in narrower.reasons["cycle"]


def test_equal_targets_share_a_hit():
    x = gaussian(30, 4)
    doubled = torch.cat([x, x])
    assert evaluate(Identity().fit(doubled, doubled), doubled, doubled).retrieval == pytest.approx(0.5)
    mean = MeanPredictor().fit(x, x + 3)
    assert evaluate(mean, x, (x + 3)).retrieval == pytest.approx(1 / 30)


def test_the_protocol_fits_on_training_rows_only_and_scores_both_parts():
    x, y = curved(400)
    items = np.arange(400) // 4
    told = []
    data = prepare(x, y, items, seed=3)
    done = run_protocol(
        data,
        {"linear": lambda seed: LeastSquares(), "inn": lambda seed: INN(seed=seed, epochs=2)},
        seeds=(0, 1),
        progress=lambda *given: told.append(given[:3]),
    )
    assert [(each.name, each.seed) for each in done] == [("linear", 0), ("inn", 0), ("inn", 1)]
    assert told == [("inn", seed, epoch) for seed in (0, 1) for epoch in range(3)]
    train, test = data.split.train.numpy(), data.split.test.numpy()
    scaled_x, scaled_y = StandardScaler().fit(x[train]), StandardScaler().fit(y[train])
    expected = LinearRegression().fit(scaled_x.transform(x[train]), scaled_y.transform(y[train]))
    for part, found in ((train, done[0].train), (test, done[0].test)):
        given, wanted = scaled_x.transform(x[part]), scaled_y.transform(y[part])
        assert found.r2 == pytest.approx(r2_score(wanted, expected.predict(given), multioutput="variance_weighted"))
    with pytest.raises(SettingsError, match="one seed"):
        run_protocol(data, {}, seeds=())


def test_the_interval_over_seeds_is_students():
    mean, low, high = interval([1.0, 2.0, 4.0])
    expected = student.interval(0.95, 2, loc=7 / 3, scale=np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert (mean, low, high) == pytest.approx((7 / 3, *expected))
    assert interval([2.0])[0] == 2.0
    assert math.isnan(interval([2.0])[1])
    with pytest.raises(InputError):
        interval([])


# --- verdicts on known truths ------------------------------------------------------------------------------------


def truth(kind, n=1500, d=6):
    x = gaussian(n, d) * torch.logspace(0, -0.7, d, dtype=torch.float64)
    noise = 0.05 * gaussian(n, d, seed=2)
    if kind == "unrelated":
        return x, gaussian(n, d, seed=5)
    if kind == "rotation":
        return x, x @ torch.linalg.qr(gaussian(d, d, seed=3)).Q + 0.3 * noise
    if kind == "linear":
        return x, x @ gaussian(d, d, seed=3) + noise
    if kind == "bijection":
        return x, network(d, 2, 12, 1.0, seed=7, size=0.9).forward(x / x.std(0)) + noise
    # two of four rows fall together: a state and its mirror image
    return x, (x @ gaussian(d, d, seed=3)).abs() + noise


@pytest.mark.parametrize("kind", Kind)
def test_the_verdict_on_a_known_truth_is_right_and_an_inn_is_never_worse_than_least_squares(kind):
    x, y = truth(kind)
    items = np.arange(len(x)) // 5
    data = prepare(x, y, items)
    scaled = kind is not Kind.ROTATION  # standardising features one by one would hide a rotation
    given, wanted = (data.x, data.y) if scaled else (x, y)
    rows = [data.split.train, data.split.validation, data.split.test]
    (x, x_val, x_test), (y, y_val, y_test) = ([each[part] for part in rows] for each in (given, wanted))
    options = {"epochs": 80, "rate": 5e-3, "patience": 15}
    maps = {"mean": MeanPredictor(), "orthogonal": Orthogonal(scale=True), "linear": LeastSquares()}
    maps |= {"inn": INN(hidden=24, **options), "mlp": MLP(hidden=64, **options)}
    predicted = {name: each.fit(x, y, x_val, y_val).transform(x_test) for name, each in maps.items()}
    held = items[data.split.test.numpy()]
    reading = read_maps(y_test, predicted, held, margin=0.02)
    assert reading.kind is kind, {name: each.score(x_test, y_test) for name, each in maps.items()}
    assert reading.sentence.endswith(".")
    # not worse beyond noise: the interval of the gap reaches zero, or what is lost is a thousandth
    gap = r2_gap(y_test, predicted["linear"], predicted["inn"], held)
    assert gap.high >= 0 or gap.value > -1e-3
    assert evaluate(maps["inn"], x_test.float(), y_test.float()).cycle < 1e-4


def test_a_gap_is_the_difference_of_r2_and_its_interval_covers_it():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((300, 3))
    first, second = y + rng.standard_normal(y.shape), y + 0.7 * rng.standard_normal(y.shape)
    found = r2_gap(y, first, second)
    plain = [r2_score(y, each, multioutput="variance_weighted") for each in (first, second)]
    assert found.value == pytest.approx(plain[1] - plain[0])
    assert found.low < found.value < found.high
    assert found.shows(0.1)
    assert not found.shows(2.0)
    back = r2_gap(y, second, first)
    assert back.value == pytest.approx(-found.value)
    same = r2_gap(y, first, first)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert not same.shows(0.0)
    several = r2_gap(y, [first, second], second)
    assert several.value == pytest.approx(found.value / 2)
    grouped = r2_gap(np.repeat(y, 4, 0), np.repeat(first, 4, 0), np.repeat(second, 4, 0), np.repeat(np.arange(300), 4))
    assert grouped.high - grouped.low == pytest.approx(found.high - found.low, rel=1e-9)


def reading_of(mean, error, apart=0.0, rows=400, seed=0):
    """Read maps that miss a target by ``error`` standard deviations alike, and by ``apart`` each for itself."""
    generator = np.random.default_rng(seed)
    y, missed = generator.normal(size=(2, rows, 5))
    roles = ("orthogonal", "linear", "inn", "mlp")
    predicted = {role: y + error * missed + apart * generator.normal(size=y.shape) for role in roles}
    return read_maps(y, {**predicted, "mean": np.full_like(y, mean)}, margin=0.01)


def test_no_map_is_enough_where_none_predicts():
    """The mean of training rows can be far from that of test rows, and to beat it is not to predict anything."""
    reading = reading_of(1.5, 1.2)
    assert reading.gaps["mean", "linear"].low > 0
    assert reading.kind is Kind.UNRELATED


def test_what_is_not_ruled_out_is_left_open():
    assert reading_of(0.0, 0.1).sentence.startswith("A rotation is enough")
    readings = (reading_of(0.0, 0.5, 0.2, rows=40, seed=seed) for seed in range(20))
    open_ = next(each for each in readings if each.kind is Kind.ROTATION)
    assert open_.sentence.startswith("Nothing beyond a rotation is shown, nor ruled out")
    assert "0.01 would count" in open_.sentence


def test_a_share_for_test_that_leaves_one_text_is_said():
    with pytest.raises(InputError, match=r"share of 0\.8 for test 1 text of 4 is left"):
        split_three(40, np.repeat(np.arange(4), 10), validation=0.1, test=0.8)


def test_gaps_and_readings_refuse_what_they_cannot_read():
    y = np.random.default_rng(0).standard_normal((20, 3))
    with pytest.raises(InputError, match="prediction"):
        r2_gap(y, y[:, :2], y)
    with pytest.raises(InputError, match="no prediction"):
        r2_gap(y, [], y)
    with pytest.raises(InputError, match="one label"):
        r2_gap(y, y, y, np.arange(3))
    with pytest.raises(SettingsError, match="draws"):
        r2_gap(y, y, y, draws=3)
    with pytest.raises(SettingsError, match="mlp"):
        read_maps(y, {"mean": y, "orthogonal": y, "linear": y, "inn": y})
    assert math.isnan(r2_gap(np.ones((20, 3)), y, y).value)
    assert math.isnan(r2_gap(y, y, y, np.zeros(20)).low)


# --- all pairs of layers -----------------------------------------------------------------------------------------


def stacks(n=200, d_a=7, d_b=5):
    shared = gaussian(n, 4)
    a = torch.stack([shared @ gaussian(4, d_a, seed=k) + 0.5 * gaussian(n, d_a, seed=10 + k) + k for k in range(3)])
    b = torch.stack([shared @ gaussian(4, d_b, seed=20 + k) + 0.5 * gaussian(n, d_b, seed=30 + k) for k in range(4)])
    return a, b


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_pairs_are_a_loop_of_scikit_learn(dtype):
    a, b = (each.to(dtype) for each in stacks())
    items = np.arange(200) // 4
    done = []
    found = all_pairs(a, b, items=items, report=lambda *given: done.append(given))
    assert done == [(k + 1, 12) for k in range(12)]
    data = split_items(200, items).numpy()
    assert found.rows == (int((~data).sum()), int(data.sum()))
    for i, x in enumerate(a.double().numpy()):
        for j, y in enumerate(b.double().numpy()):
            fitted = LinearRegression().fit(x[~data], y[~data])
            for part, scores in ((~data, found.train), (data, found.test)):
                expected = r2_score(y[part], fitted.predict(x[part]), multioutput="variance_weighted")
                assert scores[i, j] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("kind", "function", "made"), [
    ("ridge", ridge, Ridge()), ("orthogonal", orthogonal_fit, Orthogonal()),
])  # fmt: skip
@pytest.mark.parametrize("widths", [(7, 5), (5, 7), (6, 6)])
def test_all_pairs_of_the_other_kinds_are_the_maps_one_by_one(kind, function, made, widths):
    a, b = stacks(60, *widths)
    aside = torch.arange(60) % 3 == 0
    found = all_pairs(list(a), list(b), kind=kind, aside=aside)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            made.fit(x[~aside], y[~aside])
            assert found.test[i, j] == pytest.approx(made.score(x[aside], y[aside]), abs=1e-8)
            assert found.train[i, j] == pytest.approx(made.score(x[~aside], y[~aside]), abs=1e-8)
            if kind == "ridge":
                expected = function(x[~aside], y[~aside], held_out=0).strength
                assert found.strength[i, j] == pytest.approx(expected, rel=1e-6)


def test_pairs_without_a_value_say_why_and_do_not_stop_the_rest():
    a, b = stacks()
    a[1] = 3.7
    found = all_pairs(a, b)
    assert np.isnan(found.test[1]).all()
    assert np.isfinite(found.test[[0, 2]]).all()
    assert "constant" in found.reasons[1, 2]
    few = all_pairs(a[:, :8], b[:, :8], held_out=0.25)
    assert "at least 8" in few.reasons[0, 0]
    assert np.isfinite(all_pairs(a[:, :8], b[:, :8], held_out=0.25, kind="ridge").test[0]).all()


def test_a_rank_deficient_layer_predicts_as_the_shortest_least_squares_does():
    a, b = stacks()
    a[:, :, 1] = 2 * a[:, :, 0]
    aside = torch.arange(200) % 4 == 0
    found = all_pairs(a, b, aside=aside)
    x, y = a[0].numpy(), b[2].numpy()
    fitted = LinearRegression().fit(x[~aside], y[~aside])
    expected = r2_score(y[aside], fitted.predict(x[aside]), multioutput="variance_weighted")
    assert found.test[0, 2] == pytest.approx(expected, abs=1e-8)


def test_malformed_stacks_are_typed_errors():
    a, b = stacks()
    bad = b.clone()
    bad[2, 5, 1] = math.nan
    for pair in ((a[0], b), (a, b[:, :100]), (a, bad), ([], b), (a, b.int())):
        with pytest.raises(InputError):
            all_pairs(*pair)
    for options in ({"kind": "cubic"}, {"held_out": 0.0}):
        with pytest.raises(SettingsError):
            all_pairs(a, b, **options)
    with pytest.raises(InputError, match="held out"):
        all_pairs(a, b, aside=np.zeros(3, dtype=bool))
