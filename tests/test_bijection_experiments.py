"""Bijection and map pairs: scores against scikit-learn and the maps themselves, B's predictions against hooks."""

import dataclasses
import math
import os
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, rel_entr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.preprocessing import StandardScaler
from stitching import plain_logits, plain_states

import embcompare
from embcompare.activations import capture
from embcompare.errors import Cancelled, EmbcompareError, Incomparable, SettingsError
from embcompare.experiments import bijection_fits, bijection_run, bijection_shown, bijection_training
from embcompare.experiments.bijection import DEFAULT_MAPS, Bijection
from embcompare.experiments.bijection_fits import FitFolder, fit_key
from embcompare.experiments.bijection_result import METRICS
from embcompare.experiments.map_pairs import MapPairs
from embcompare.experiments.sides import wrong_order
from embcompare.maps import INN, MLP, Identity, LeastSquares, Ridge, all_pairs, evaluate, prepare, read_maps
from embcompare.maps.protocol import split_three
from embcompare.text.corpora import shipped_corpus
from embcompare.text.uploads import Vectors

SENTENCES = 40
QUICK = {"epochs": 3, "max_rows": 500, "downstream": 0}


class Context:
    """Lends models, a corpus and vectors by name; ``stop`` is raised at the first report whose message holds a text."""

    device = "cpu"

    def __init__(self, states, corpus=None, models=None, vectors=(), stop=None, error=None):
        self.states, self.text, self.models = states, corpus, models or {}
        self.given = {f"vectors/{v.name}": v for v in vectors}
        self.stop, self.error, self.reports = stop, error or Cancelled("stopped"), []

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def vectors(self, name):
        return self.given[name]

    def report(self, done, total, message, partial=None):
        assert 0 <= done <= total
        self.reports.append((done, total, message, partial))
        if self.stop is not None and self.stop in message:
            raise self.error


@pytest.fixture(scope="module")
def corpus():
    whole = shipped_corpus()
    return dataclasses.replace(whole, sentences=whole.sentences[:SENTENCES], labels=whole.labels[:SENTENCES])


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def models(tiny_model):
    found = {"a": tiny_model("gpt2"), "b": tiny_model("gpt2", 1)}
    return found | {"bert": tiny_model("bert-mlm"), "bert2": tiny_model("bert-mlm", 1)}


@pytest.fixture
def context(states, corpus, models):
    return Context(states, corpus, models)


@pytest.fixture(scope="module")
def usual(states, corpus, models):
    """One run of all the usual maps, two trainings each."""
    settings = Bijection("a", "b", 1, 2, runs=2, seed=3, downstream=6, epochs=4, max_rows=700)
    return settings, settings.compute(Context(states, corpus, models))


def token_rows(model, corpus, states, layer):
    captured = capture(model, corpus, folder=states)
    return np.array(captured.layer(layer)), captured.index.sentence


def drawn(items, settings):
    """Whole sentences until max_rows, as the representation experiments draw them."""
    names, sizes = np.unique(items, return_counts=True)
    order = np.random.default_rng([settings.seed, 1]).permutation(len(names))
    taken = np.cumsum(sizes[order]) <= settings.max_rows
    return np.flatnonzero(np.isin(items, names[order[taken]]))


def plain_rows(settings, models, corpus, states):
    (x, items), (y, _) = (
        token_rows(models[name], corpus, states, layer)
        for name, layer in ((settings.model_a, settings.layer_a), (settings.model_b, settings.layer_b))
    )
    rows = drawn(items, settings)
    return x[rows], y[rows], items[rows]


def gaussian(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def given_pair(states, x, y, corpus=None):
    return Context(states, corpus, vectors=[Vectors("x", x.astype(np.float32)), Vectors("y", y.astype(np.float32))])


def of_vectors(x, y, states, layers=(0, 0), **options):
    quick = {"epochs": 3, "max_rows": 2000, "downstream": 0}
    return Bijection("vectors/x", "vectors/y", *layers, **{**quick, **options}).compute(given_pair(states, x, y))


# --- settings ----------------------------------------------------------------------------------------------------


def test_the_same_maps_are_the_same_run_however_they_are_written():
    assert Bijection("a", "b", 0, 0, maps="inn ridge,, inn").maps == "inn, ridge"
    assert Bijection("a", "b", 0, 0).map_names() == tuple(DEFAULT_MAPS.split(", "))
    assert MapPairs("a", "b", maps="ridge orthogonal").maps == "ridge, orthogonal"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Bijection("a", "b", 0, 0, maps="inn, cubic"), "no map 'cubic'"),
        (lambda: Bijection("a", "b", 0, 0, maps=" , "), "No map was chosen"),
        (lambda: Bijection("a", "b", -1, 0), "smallest value is 0"),
        (lambda: Bijection("a", "b", 0, 0, validation=0.5, test=0.5), "less than a tenth"),
        (lambda: Bijection("a", "b", 0, 0, rate=1e-9), "at least 1e-8"),
        (lambda: Bijection("a", "b", 0, 0, pooling="letters"), "choose one of"),
        (lambda: MapPairs("a", "b", maps="inn"), "not fitted between all layers"),
        (lambda: MapPairs("a", "b", maps="cubic"), "no map 'cubic'"),
        (lambda: MapPairs("a", "b", validation=0.5, test=0.5), "less than a tenth"),
    ],
)
def test_settings_that_cannot_be_are_said(make, match):
    with pytest.raises(SettingsError, match=match):
        make()


# --- scores ------------------------------------------------------------------------------------------------------


def test_least_squares_is_scikit_learns_on_the_same_split(usual, states, corpus, models):
    asked, result = usual
    x, y, items = plain_rows(asked, models, corpus, states)
    split = split_three(len(x), items, seed=3)
    train, test = split.train.numpy(), split.test.numpy()
    assert result.rows == (len(train), len(split.validation), len(test))
    assert result.texts_in == tuple(
        len(np.unique(items[part.numpy()])) for part in (split.train, split.validation, split.test)
    )
    scaled_x, scaled_y = StandardScaler().fit(x[train].astype(float)), StandardScaler().fit(y[train].astype(float))
    fitted = LinearRegression().fit(scaled_x.transform(x[train]), scaled_y.transform(y[train]))
    for rows, part in ((train, "train"), (test, "test")):
        wanted, mapped = scaled_y.transform(y[rows]), fitted.predict(scaled_x.transform(x[rows]))
        assert result.mean("least_squares", "mse", part) == pytest.approx(mean_squared_error(wanted, mapped), rel=1e-4)
        expected = r2_score(wanted, mapped, multioutput="variance_weighted")
        assert result.mean("least_squares", "r2", part) == pytest.approx(expected, abs=1e-5)
        unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (mapped, wanted)]
        assert result.mean("least_squares", "cosine", part) == pytest.approx(
            np.mean((unit[0] * unit[1]).sum(1)), abs=1e-5
        )
    errors = np.square(mapped - wanted).mean(1)
    for number, error, count in zip(
        result.text_numbers, result.text_errors[result.at("least_squares")], result.text_rows, strict=True
    ):
        own = items[test] == number
        assert count == own.sum()
        assert error == pytest.approx(errors[own].mean(), rel=1e-4)
    assert result.texts == tuple(corpus.sentences[number] for number in result.text_numbers)
    frame = result.text_frame("least_squares")
    assert frame.mse.is_monotonic_decreasing
    assert frame.text[0] == result.texts[int(result.text_errors[result.at("least_squares")].argmax())]


def test_networks_are_the_maps_themselves_and_each_run_has_its_seed(usual, states, corpus, models):
    asked, result = usual
    data = prepare(*plain_rows(asked, models, corpus, states), seed=3)
    train, validation, test = (data.part(part) for part in vars(data.split).values())
    assert result.seeds == (3, 4)
    for name, kind in (("inn", INN), ("mlp", MLP)):
        at, errors = result.at(name), []
        for run, seed in enumerate(result.seeds):
            fitted = kind(seed=seed, epochs=4).fit(*train, *validation)
            for part, rows in enumerate((train, test)):
                scores = evaluate(fitted, *rows)
                np.testing.assert_array_equal(
                    result.scores[at, run, part], [getattr(scores, metric) for metric in METRICS]
                )
            np.testing.assert_array_equal(result.curves[at, run, :, 0], fitted.trace.train.numpy())
            np.testing.assert_array_equal(result.curves[at, run, :, 1], fitted.trace.validation.numpy())
            assert result.best_epoch[at, run] == fitted.trace.best_epoch
            np.testing.assert_equal(result.log_determinant[at, run], fitted.log_determinant)
            np.testing.assert_equal(result.condition[at, run], fitted.condition)
            errors.append((fitted.transform(test[0]).double() - test[1].double()).square().mean(1).numpy())
        assert (result.start[at], result.ended[at]) == (fitted.start, fitted.ended)
        items = drawn_items(asked, states, corpus, models)[data.split.test.numpy()]
        expected = [np.mean(errors, axis=0)[items == number].mean() for number in result.text_numbers]
        np.testing.assert_allclose(result.text_errors[at], expected, rtol=1e-6)
        low, high = result.interval(name, "r2")
        assert low <= result.mean(name, "r2") <= high
    assert result.values("ridge", "r2").shape == (1,)
    assert all(math.isnan(end) for end in result.interval("ridge", "r2"))
    assert np.isnan(result.curves[result.at("ridge")]).all()


def drawn_items(asked, states, corpus, models):
    return plain_rows(asked, models, corpus, states)[2]


def test_the_verdict_is_the_readings_of_the_same_predictions(usual, states, corpus, models):
    asked, result = usual
    x, y, items = plain_rows(asked, models, corpus, states)
    data = prepare(x, y, items, seed=3)
    train, validation, test = (data.part(part) for part in vars(data.split).values())
    from embcompare.maps import MeanPredictor, Orthogonal

    linear = {"least_squares": LeastSquares().fit(*train), "ridge": Ridge().fit(*train)}
    best = max(linear, key=lambda name: linear[name].score(*validation))
    fitted = {"mean": [MeanPredictor()], "orthogonal": [Orthogonal()]}
    fitted |= {name: [kind(seed=seed, epochs=4) for seed in (3, 4)] for name, kind in (("inn", INN), ("mlp", MLP))}
    predicted = {
        name: [each.fit(*train, *validation).transform(test[0]) for each in own] for name, own in fitted.items()
    }
    predicted["linear"] = [linear[best].transform(test[0])]
    expected = read_maps(test[1], predicted, items[data.split.test.numpy()], seed=3)
    assert (result.linear, result.rotation) == (best, "orthogonal")
    assert (result.kind, result.sentence) == (expected.kind, expected.sentence)
    assert dict(zip(result.gap_names, map(tuple, result.gaps.tolist()), strict=True)) == {
        names: (gap.value, gap.low, gap.high) for names, gap in expected.gaps.items()
    }
    value, low, high = result.gap("linear", "inn")
    assert low <= value <= high
    own = result.mean("inn", "r2") - result.mean(best, "r2")
    assert value == pytest.approx(own, abs=1e-6)
    with pytest.raises(SettingsError, match="was not taken"):
        result.gap("inn", "linear")


def test_validation_rows_choose_the_linear_map_and_test_rows_do_not(tmp_path):
    disagreed = 0
    for seed in range(10):
        x = gaussian(60, 5, seed)
        y = x @ gaussian(5, 5, seed + 50) + gaussian(60, 5, seed + 100)
        result = of_vectors(x, y, tmp_path, maps="least_squares, ridge", seed=seed)
        data = prepare(x.astype(np.float32), y.astype(np.float32), seed=seed)
        fitted = {"least_squares": LeastSquares(), "ridge": Ridge()}
        best = [
            max(fitted, key=lambda name: fitted[name].fit(*data.part(data.split.train)).score(*data.part(part)))
            for part in (data.split.validation, data.split.test)
        ]
        assert result.linear == best[0]
        disagreed += best[0] != best[1]
    assert disagreed


def test_the_sample_lies_along_principal_directions_of_the_target(usual, states, corpus, models):
    asked, result = usual
    x, y, items = plain_rows(asked, models, corpus, states)
    data = prepare(x, y, items, seed=3)
    (x_train, y_train), (x_test, y_test) = data.part(data.split.train), data.part(data.split.test)
    centred = y_train.double() - y_train.double().mean(0)
    _, values, axes = torch.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(result.sample_shares, (values.square() / values.square().sum()).numpy()[:8], rtol=1e-6)
    assert len(result.sample_texts) == len(y_test)
    for found, rows in (
        (result.sample_target, y_test),
        (result.sample_mapped[result.at("ridge")], Ridge().fit(x_train, y_train).transform(x_test)),
    ):
        plain = (rows.double() @ axes.T[:, :8]).numpy()
        np.testing.assert_allclose(np.abs(found), np.abs(plain), atol=1e-5)
    row = int(data.split.test[5])
    assert corpus.sentences[items[row]] in result.sample_texts[5].replace("[", "").replace("]", "")
    assert result.sample_labels[5] == corpus.labels[items[row]]
    frame = result.sample_frame("ridge", 1)
    np.testing.assert_array_equal(frame.mapped, result.sample_mapped[result.at("ridge"), :, 1])
    with pytest.raises(SettingsError, match="no direction 8"):
        result.sample_frame("ridge", 8)


def test_the_sample_is_as_large_as_asked_for_and_its_rows_are_spread(context):
    result = Bijection("a", "b", 1, 1, maps="ridge", shown=7, **QUICK).compute(context)
    assert len(result.sample_texts) == 7
    assert result.sample_target.shape == (7, 8)
    assert np.isfinite(result.sample_errors).all()


def test_unscaled_rows_are_fitted_as_they_are(context, states, corpus, models):
    asked = Bijection("a", "b", 1, 1, maps="least_squares, identity", standardise=False, **QUICK)
    result = asked.compute(context)
    x, y, items = plain_rows(asked, models, corpus, states)
    split = split_three(len(x), items)
    train, test = split.train.numpy(), split.test.numpy()
    fitted = LinearRegression().fit(x[train].astype(float), y[train].astype(float))
    expected = mean_squared_error(y[test], fitted.predict(x[test].astype(float)))
    assert result.mean("least_squares", "mse") == pytest.approx(expected, rel=1e-4)
    assert result.mean("identity", "mse") == pytest.approx(mean_squared_error(y[test], x[test]), rel=1e-5)


def test_words_of_two_tokenizers_and_sentences_are_mapped_and_b_is_not_asked(context):
    for pooling, layer in (("word", 1), ("mean", 2)):
        asked = Bijection("a", "bert", layer, 1, maps="mean, ridge", pooling=pooling, max_rows=500)
        result = asked.compute(context)
        assert result.answers is None
        assert result.answer_scores == ()
        assert any("rows are no tokens" in notice for notice in result.notices)
        assert any("no verdict" in notice and "orthogonal, inn, mlp" in notice for notice in result.notices)
        assert result.kind == result.sentence == ""
        assert np.isfinite(result.mean("ridge", "r2"))
    assert sum(result.rows) == SENTENCES
    with pytest.raises(Incomparable, match="different tokens"):
        Bijection("a", "bert", 1, 1, **QUICK).compute(context)


# --- what B predicts ---------------------------------------------------------------------------------------------


def scored(logits, own, target):
    log_q, log_p = log_softmax(logits, -1), log_softmax(own, -1)
    loss = -log_q[np.arange(len(target)), target].sum()
    return np.array([loss, rel_entr(np.exp(log_p), np.exp(log_q)).sum(), (logits.argmax(-1) == own.argmax(-1)).sum()])


def chosen_texts(asked, items, split):
    tested = np.unique(items[split.test.numpy()])
    order = np.random.default_rng([asked.seed, 6]).permutation(len(tested))[: asked.downstream]
    return tested[np.sort(order)]


@pytest.mark.parametrize(("layer_a", "layer_b"), [(1, 1), (2, 0), (0, 2), (2, 2)])
def test_b_predicts_what_two_whole_forwards_and_a_hook_give(context, states, corpus, models, layer_a, layer_b):
    asked = Bijection("a", "b", layer_a, layer_b, maps="ridge, identity", downstream=5, max_rows=1000)
    result = asked.compute(context)
    a, b = models["a"], models["b"]
    x, y, items = plain_rows(asked, models, corpus, states)
    data = prepare(x, y, items)
    fitted = [each.fit(*data.part(data.split.train)) for each in (Ridge(), Identity())]
    sums, own_loss, count = np.zeros((2, 3)), 0.0, 0

    def carried(given, each):
        mapped = each.transform(data.scale_x.transform(given[0]))
        return data.scale_y.inverse_transform(mapped)[None]

    for number in chosen_texts(asked, items, data.split):
        ids = torch.tensor([b.tokenizer(corpus.sentences[number])["input_ids"]])[:, :40]
        mask, target = torch.ones_like(ids), ids[0, 1:].numpy()
        own = plain_states(b, ids, mask)[1].logits[0, :-1, :1300].numpy()
        for at, each in enumerate(fitted):
            if layer_b == 2:  # states of the last layer are after the final norm, and so is A's
                state = plain_states(a, ids, mask)[0][layer_a]
                given = a.module.transformer.ln_f(state).detach() if layer_a == 2 else state
                logits = b.module.lm_head(carried(given, each)).detach()
            elif layer_a == 2:
                norm = a.module.transformer.ln_f
                logits = plain_logits(a, b, lambda s: carried(norm(s).detach(), each), 2, layer_b, ids, mask).logits  # noqa: B023
            else:
                logits = plain_logits(a, b, lambda s: carried(s, each), layer_a, layer_b, ids, mask).logits  # noqa: B023
            sums[at] += scored(logits[0, -len(target) - 1 : -1, :1300].numpy(), own, target)
        own_loss += scored(own, own, target)[0]
        count += len(target)
    np.testing.assert_allclose(result.answers[:, 0], sums / count, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.answers_own, [own_loss / count, 0, 1], rtol=1e-6, atol=1e-9)
    assert (result.answer_task, result.answer_texts, result.answer_places) == ("next token", 5, count)
    assert result.answer_scores == ("loss", "kl", "agreement")


def test_masked_models_keep_their_own_states_at_special_tokens(context, states, corpus, models, monkeypatch):
    from embcompare.experiments.stitching_tasks import LanguageTask

    hidden = {}
    original = LanguageTask._hidden
    monkeypatch.setattr(
        LanguageTask, "_hidden", lambda self, text: hidden.setdefault(self.texts.sentences[text], original(self, text))
    )
    asked = Bijection("bert", "bert2", 1, 1, maps="ridge", downstream=4, max_rows=500)
    result = asked.compute(context)
    a, b = models["bert"], models["bert2"]
    x, y, items = plain_rows(asked, models, corpus, states)
    data = prepare(x, y, items)
    fitted = Ridge().fit(*data.part(data.split.train))
    sums, count = np.zeros(3), 0
    for number in chosen_texts(asked, items, data.split):
        ids = torch.tensor([b.tokenizer(corpus.sentences[number], truncation=True, max_length=40)["input_ids"]])
        places = hidden[corpus.sentences[number]]
        target = ids[0, places].numpy()
        ids[0, places] = b.tokenizer.mask_token_id
        mask = torch.ones_like(ids)
        states_b, out = plain_states(b, ids, mask)

        def carry(given, kept=states_b[1]):
            mapped = data.scale_y.inverse_transform(fitted.transform(data.scale_x.transform(given[0, 1:-1])))
            return torch.cat([kept[:, :1], mapped[None], kept[:, -1:]], dim=1)

        logits = plain_logits(a, b, carry, 1, 1, ids, mask).logits
        sums += scored(logits[0, places, :1300].numpy(), out.logits[0, places, :1300].numpy(), target)
        count += len(places)
    np.testing.assert_allclose(result.answers[0, 0], sums / count, rtol=1e-4, atol=1e-6)
    assert result.answer_task == "masked token"
    assert any(
        f"{2 * result.answer_texts} special tokens" in notice and "keeps its own states" in notice
        for notice in result.notices
    )


def test_a_model_mapped_to_itself_predicts_as_itself(context):
    result = Bijection("b", "b", 1, 1, maps="identity, mean", downstream=4, max_rows=500).compute(context)
    assert result.mean("identity", "r2") == 1
    np.testing.assert_allclose(result.answers[0, 0], result.answers_own, rtol=1e-5, atol=1e-6)
    assert result.answers[1, 0, 1] > 100 * max(result.answers[0, 0, 1], 1e-6)
    assert np.isfinite(result.answers_base).all()
    assert (result.answer_errors >= 0).all()


@pytest.mark.parametrize(
    ("lower", "upper", "pooling", "reason"),
    [
        ("gpt2", "gpt2-classifier", "token", "classifies texts"),
        ("bert-mlm", "bert-plain", "token", "no head"),
        ("t5", "t5", "token", "encoder-decoder"),
        ("gpt2", "gpt2", "mean", "rows are no tokens"),
    ],
)
def test_models_that_cannot_go_on_are_said_and_the_rest_is_there(
    states, corpus, tiny_model, lower, upper, pooling, reason
):
    lent = {"a": tiny_model(lower), "b": tiny_model(upper, 1)}
    asked = Bijection("a", "b", 1, 1, maps="ridge", pooling=pooling, max_rows=500)
    result = asked.compute(Context(states, corpus, lent))
    assert np.isfinite(result.mean("ridge", "r2"))
    assert result.answers is None
    assert any("left out" in notice and reason in notice for notice in result.notices)


# --- stopped and taken up ----------------------------------------------------------------------------------------


def same(one, other):
    for item in dataclasses.fields(one):
        if item.name not in ("seconds", "provenance", "notices"):
            np.testing.assert_equal(getattr(one, item.name), getattr(other, item.name), err_msg=item.name)


def kept(states):
    folder = states / bijection_fits.FOLDER
    return sorted(folder.glob("*.safetensors")) if folder.exists() else []


@pytest.mark.parametrize("stop", ["invertible network, run 1 of 2: epoch 2", "perceptron, run 2 of 2: epoch 3"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, stop):
    x = gaussian(300, 6)
    y = np.tanh(x @ gaussian(6, 6, 1))
    options = {"epochs": 5, "runs": 2, "maps": "ridge, inn, mlp"}
    whole = of_vectors(x, y, tmp_path / "whole", **options)
    asked = Bijection("vectors/x", "vectors/y", 0, 0, max_rows=2000, downstream=0, **options)
    stopped = given_pair(tmp_path / "cut", x, y)
    stopped.stop = stop
    with pytest.raises(Cancelled, match="stopped"):
        asked.compute(stopped)
    assert len(kept(tmp_path / "cut")) == (1 if "invertible" in stop else 4)
    again = given_pair(tmp_path / "cut", x, y)
    result = asked.compute(again)
    same(result, whole)
    messages = [message for _, _, message, _ in again.reports]
    first = stop.partition(":")[0]
    at = int(stop[-1])
    assert f"{first}: taken up after epoch {at}" in messages
    assert not any(message.startswith(f"{first}: epoch {epoch} ") for message in messages for epoch in range(at + 1))
    assert any(message.startswith(f"{first}: epoch {at + 1} ") for message in messages)
    if "perceptron" in stop:  # what was finished is not trained again
        assert not any(message.startswith("invertible network, run 1 of 2: epoch") for message in messages)
    # what is done stays, for whoever asks for one of its fits again
    assert len(kept(tmp_path / "cut")) == len(kept(tmp_path / "whole")) == 4
    third = given_pair(tmp_path / "cut", x, y)
    same(asked.compute(third), whole)
    assert not any(": epoch " in message for _, _, message, _ in third.reports)


def test_a_fit_of_other_settings_or_rows_is_not_taken_up(tmp_path):
    x = gaussian(300, 6)
    y = np.tanh(x @ gaussian(6, 6, 1))
    stopped = given_pair(tmp_path, x, y)
    stopped.stop = "epoch 2"
    with pytest.raises(Cancelled):
        Bijection("vectors/x", "vectors/y", 0, 0, maps="inn", epochs=5).compute(stopped)
    for change, options in ((y + 1e-3 * x, {}), (y, {"epochs": 6}), (y, {"seed": 1}), (y, {"batch": 100})):
        other = given_pair(tmp_path, x, change)
        Bijection("vectors/x", "vectors/y", 0, 0, **{"maps": "inn", "epochs": 5, **options}).compute(other)
        assert not any("taken up" in message for _, _, message, _ in other.reports)
    assert len(kept(tmp_path)) == 5


def test_a_damaged_fit_is_begun_anew_and_said(tmp_path):
    x = gaussian(300, 6)
    y = np.tanh(x @ gaussian(6, 6, 1))
    asked = Bijection("vectors/x", "vectors/y", 0, 0, maps="inn", epochs=4)
    for spoil in (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], lambda data: data[:100], lambda _: b""):
        stopped = given_pair(tmp_path, x, y)
        stopped.stop = "epoch 2"
        with pytest.raises(Cancelled):
            asked.compute(stopped)
        (path,) = kept(tmp_path)
        path.write_bytes(spoil(path.read_bytes()))
        again = given_pair(tmp_path, x, y)
        result = asked.compute(again)
        assert any("damaged" in notice for notice in result.notices)
        assert not any("taken up" in message for _, _, message, _ in again.reports)
        same(result, asked.compute(given_pair(tmp_path / "whole", x, y)))
        path.unlink()


def test_a_checkpoint_that_does_not_fit_is_begun_anew(tmp_path, monkeypatch):
    x = gaussian(300, 6)
    y = np.tanh(x @ gaussian(6, 6, 1))
    asked = Bijection("vectors/x", "vectors/y", 0, 0, maps="inn", epochs=3)
    trained = INN(epochs=9)
    trained.fit(x, y)
    monkeypatch.setattr(FitFolder, "read", lambda self, key: (trained.checkpoint, 5.0))
    result = asked.compute(given_pair(tmp_path, x, y))
    assert any("begun anew" in notice for notice in result.notices)
    monkeypatch.undo()
    same(result, asked.compute(given_pair(tmp_path, x, y)))


def test_what_stops_a_run_is_never_taken_for_a_map_that_failed(tmp_path):
    x = gaussian(200, 4)
    late = EmbcompareError("The run was stopped after 3 seconds.")
    for stop in ("ridge", "invertible network", "epoch 0", "epoch 1", "what kind"):
        context = given_pair(tmp_path / stop, x, x)
        context.stop, context.error = stop, late
        with pytest.raises(EmbcompareError, match="after 3 seconds"):
            Bijection("vectors/x", "vectors/y", 0, 0, maps="ridge, inn", epochs=2).compute(context)


def test_fits_under_way_are_bounded_and_none_is_lost_by_halves(tmp_path):
    arrays = {"weights": np.arange(100, dtype=np.float32), "step": np.array(3.0), "none": np.zeros(0, np.float32)}
    folder = FitFolder(tmp_path, max_bytes=2000)
    names = [fit_key({"n": n}, arrays) for n in range(3)]
    assert len(set(names)) == 3
    assert folder.read(names[0]) is None
    for age, name in enumerate(names):
        folder.write(name, arrays, 1.5)
        os.utime(tmp_path / "fits" / f"{name}.safetensors", ns=(age, age))
    assert folder.read(names[0]) is None, "the oldest goes first"
    found, seconds = folder.read(names[2])
    assert seconds == 1.5
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    folder.write(names[2], {**arrays, "weights": np.zeros(10_000)}, 1.0)
    assert any("may be kept" in notice for notice in folder.notices)
    assert folder.read(names[2])[1] == 1.5
    folder.remove(names[1])
    folder.remove(names[2])
    folder.remove(names[2])
    assert not kept(tmp_path)


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path):
    (tmp_path / "blocked").write_text("a file")
    x = gaussian(100, 4)
    result = of_vectors(x, x, tmp_path / "blocked", maps="inn", epochs=2)
    assert any("could not be kept" in notice for notice in result.notices)
    assert np.isfinite(result.mean("inn", "r2"))


def test_partial_results_carry_the_learning_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(bijection_run, "PARTIAL_SECONDS", 0.0)
    monkeypatch.setattr(bijection_training, "KEEP_SECONDS", 0.0)
    x = gaussian(200, 4)
    context = given_pair(tmp_path, x, np.tanh(x))
    Bijection("vectors/x", "vectors/y", 0, 0, maps="ridge, inn", epochs=4, downstream=0).compute(context)
    partials = [partial for _, _, message, partial in context.reports if "epoch 2" in message]
    assert partials
    assert partials[0].curves.shape == (2, 1, 3, 2)
    assert np.isfinite(partials[0].curves[1]).all()
    assert np.isfinite(partials[0].mean("ridge", "r2"))
    assert np.isnan(partials[0].mean("inn", "r2"))
    assert np.isnan(partials[0].text_errors[1]).all()
    frame = partials[0].curve_frame()
    assert frame.groupby("part").epoch.max().to_dict() == {"train": 2, "validation": 2}
    done = [done for done, *_ in context.reports]
    assert done == sorted(done)


# --- bad input by rule -------------------------------------------------------------------------------------------


def test_a_map_that_cannot_be_fitted_is_left_out_with_its_reason(tmp_path):
    x, y = gaussian(40, 30), gaussian(40, 20, 1)
    result = of_vectors(x, y, tmp_path, maps="least_squares, identity, ridge")
    assert np.isfinite(result.mean("ridge", "r2"))
    for name, reason in (("least_squares", "31"), ("identity", "equal widths")):
        assert np.isnan(result.scores[result.at(name)]).all()
        assert np.isnan(result.text_errors[result.at(name)]).all()
        assert any(each[0] == name and each[1] == "" and reason in each[3] for each in result.reasons)
        assert any("was not fitted" in notice and reason in notice for notice in result.notices)
    assert any("few" in notice for notice in result.notices)
    frame = result.to_frame()
    assert list(frame["map"].unique()) == ["least_squares", "identity", "ridge"]
    with pytest.raises(Incomparable, match="31"):
        of_vectors(x, y, tmp_path, maps="least_squares")


def test_constant_and_tiny_inputs_are_said(tmp_path):
    x = gaussian(40, 4)
    with pytest.raises(Incomparable, match="equal"):
        of_vectors(x, np.ones_like(x), tmp_path, maps="ridge, inn")
    mean = of_vectors(x, np.ones_like(x), tmp_path, maps="mean, ridge")
    assert np.isnan(mean.mean("mean", "r2"))
    assert any(each[:3] == ("mean", "test", "r2") for each in mean.reasons)
    with pytest.raises(Incomparable, match="2 texts"):
        of_vectors(x[:2], x[:2], tmp_path, maps="ridge")
    few = of_vectors(x[:4], x[:4], tmp_path, maps="mean, ridge")
    assert sum(few.rows) == 4
    doubled = np.concatenate([x, x])
    found = of_vectors(np.repeat(doubled, 2, axis=1), doubled, tmp_path, maps="least_squares, ridge")
    assert found.mean("least_squares", "r2") == pytest.approx(1)


def test_layers_and_files_that_do_not_fit_are_said(context, states, corpus, models):
    with pytest.raises(SettingsError, match="no layer 9"):
        Bijection("a", "b", 9, 0, **QUICK).compute(context)
    x = gaussian(40, 4)
    with pytest.raises(SettingsError, match="no layer 1"):
        of_vectors(x, x, states, layers=(1, 0))
    own = Context(states, corpus, models, vectors=[Vectors("x", gaussian(SENTENCES, 8).astype(np.float32))])
    with pytest.raises(SettingsError, match="one row a sentence"):
        Bijection("vectors/x", "a", 0, 1, **QUICK).compute(own)
    result = Bijection("vectors/x", "a", 0, 1, maps="ridge", pooling="mean", max_rows=500).compute(own)
    assert set(result.texts) <= set(corpus.sentences)
    assert any("given vectors" in notice for notice in result.notices)


# --- known truths, through the experiment ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rotation", "linear", "unrelated"])
def test_the_verdict_on_vectors_of_a_known_truth_is_right(tmp_path, kind):
    x = gaussian(900, 6) * np.logspace(0, -0.7, 6)
    noise = 0.02 * gaussian(900, 6, 2)
    y = {
        "rotation": x @ np.linalg.qr(gaussian(6, 6, 3))[0] + noise,
        "linear": x @ gaussian(6, 6, 3) + noise,
        "unrelated": gaussian(900, 6, 5),
    }[kind]
    result = of_vectors(x, y, tmp_path, maps=DEFAULT_MAPS, epochs=15, standardise=False)
    assert result.kind == kind
    assert result.sentence.endswith(".")
    assert result.answers is None
    assert result.mean("inn", "r2") > result.mean(result.linear, "r2") - 2e-3
    assert result.mean("inn", "cycle") < 1e-4
    assert len(result.gap_frame()) == len(result.gaps)


@given(seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=8)
def test_closed_forms_do_not_mind_coordinates_that_they_can_undo(seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits")
    x, y = gaussian(80, 5), gaussian(80, 5, 1) + gaussian(80, 5)
    turned = x @ np.linalg.qr(gaussian(5, 5, seed))[0] + gaussian(1, 5, seed + 1)
    bent = x @ (gaussian(5, 5, seed) + 4 * np.eye(5))
    plain, rotated, linear = (
        of_vectors(each, y, folder, maps="orthogonal, least_squares", standardise=False) for each in (x, turned, bent)
    )
    for name in plain.maps:
        assert rotated.mean(name, "r2") == pytest.approx(plain.mean(name, "r2"), abs=1e-4)
    assert linear.mean("least_squares", "r2") == pytest.approx(plain.mean("least_squares", "r2"), abs=1e-3)


# --- kept and shown ----------------------------------------------------------------------------------------------


def test_results_survive_the_store_and_fit_a_table(usual, tmp_path):
    from embcompare.resultfile import arrays_of, packed, verified

    asked, result = usual
    data = packed("0" * 64, result, asked)
    description = verified(data, "0" * 64)
    back = type(result).unpack(arrays_of(data, description), description["scalars"])
    for item in dataclasses.fields(result):
        np.testing.assert_equal(getattr(back, item.name), getattr(result, item.name), err_msg=item.name)
    frame = result.to_frame()
    assert len(frame) == 2 * (5 + 2 * 2)
    test = frame[(frame["map"] == "inn") & (frame.part == "test")]
    np.testing.assert_array_equal(test.r2, result.values("inn", "r2"))
    np.testing.assert_array_equal(test.b_loss, result.answers[result.at("inn"), :, 0])
    assert frame[frame.part == "train"].b_loss.isna().all()
    for name, part in (("cubic", "test"), ("inn", "valid")):
        with pytest.raises(SettingsError, match="There is no"):
            result.mean(name, "r2", part)


def test_the_worst_of_many_texts_are_kept(monkeypatch, context):
    monkeypatch.setattr(bijection_shown, "TEXTS", 2)
    result = Bijection("a", "b", 1, 1, maps="mean, ridge", **QUICK).compute(context)
    monkeypatch.undo()
    whole = Bijection("a", "b", 1, 1, maps="mean, ridge", **QUICK).compute(context)
    assert len(result.texts) == 2 < len(whole.texts)
    relative = (whole.text_errors / whole.text_errors.mean(1, keepdims=True)).sum(0)
    assert set(result.text_numbers) == set(whole.text_numbers[np.argsort(-relative)[:2]])
    assert any("the 2 with the largest errors" in notice for notice in result.notices)


def test_same_settings_give_the_same_bits_and_other_seeds_other_texts(context):
    one, again, other = (
        Bijection("a", "b", 1, 1, maps="ridge, inn", seed=seed, **QUICK).compute(context) for seed in (0, 0, 1)
    )
    same(one, again)
    assert one.texts != other.texts


# --- all pairs of layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", [True, False])
def test_a_cell_of_map_pairs_is_what_bijection_gives(context, standardise):
    options = {"max_rows": 500, "standardise": standardise, "seed": 2}
    pairs = MapPairs("a", "b", maps="orthogonal, least_squares, ridge", splits=2, null_draws=0, **options).compute(
        context
    )
    assert pairs.test.shape == (3, 2, 3, 3)
    assert pairs.null_mean is None
    assert pairs.beyond_null("ridge") is None
    for i, j in ((0, 0), (2, 1)):
        single = Bijection("a", "b", i, j, maps=", ".join(pairs.maps), downstream=0, **options).compute(context)
        for at, name in enumerate(pairs.maps):
            assert pairs.test[at, 0, i, j] == pytest.approx(single.mean(name, "r2"), abs=2e-5)
            assert pairs.train[at, 0, i, j] == pytest.approx(single.mean(name, "r2", "train"), abs=2e-5)
    assert pairs.rows == (single.rows[0], single.rows[2])
    again = MapPairs("a", "b", maps="ridge", splits=1, null_draws=0, **{**options, "max_rows": 500}).compute(context)
    np.testing.assert_array_equal(again.test[0, 0], pairs.test[2, 0])
    assert not np.allclose(pairs.test[:, 0], pairs.test[:, 1])
    np.testing.assert_allclose(pairs.sd("ridge"), pairs.test[2].std(0, ddof=1))
    assert np.isnan(again.sd("ridge")).all()


def test_the_null_of_map_pairs_is_all_pairs_of_wrongly_paired_rows(context, states, corpus, models):
    asked = MapPairs("a", "b", maps="ridge", splits=1, null_draws=2, max_rows=500, standardise=False)
    result = asked.compute(context)
    a, items = zip(*(token_rows(models["a"], corpus, states, layer) for layer in range(3)), strict=True)
    rows = drawn(items[0], asked)
    items = items[0][rows]
    a = [layer[rows] for layer in a]
    b = [token_rows(models["b"], corpus, states, layer)[0][rows] for layer in range(3)]
    split = split_three(len(rows), items)
    use = np.sort(np.concatenate([split.train.numpy(), split.test.numpy()]))
    aside = np.isin(use, split.test.numpy())
    generator = np.random.default_rng([0, 2])
    null = []
    for _ in range(2):
        order = wrong_order(generator, items)
        moved = [layer[order][use] for layer in b]
        null.append(all_pairs([layer[use] for layer in a], moved, kind="ridge", aside=aside).test)
    np.testing.assert_allclose(result.null_mean[0], np.mean(null, axis=0), atol=1e-9)
    np.testing.assert_allclose(result.null_best[0], np.max(null, axis=0), atol=1e-9)
    np.testing.assert_allclose(result.null_sd[0], np.std(null, axis=0, ddof=1), atol=1e-9)
    beyond = result.test[0, 0] > np.maximum(np.max(null, axis=0), 0)
    np.testing.assert_array_equal(result.beyond_null("ridge"), beyond)
    assert beyond[0, 0]
    assert not beyond.all()
    np.testing.assert_array_equal(result.best_b("ridge"), result.mean("ridge").argmax(1))
    frame = result.to_frame()
    assert len(frame) == 9
    cell = frame[(frame.layer_a == 2) & (frame.layer_b == 1)].iloc[0]
    assert cell.r2 == result.test[0, 0, 2, 1]
    assert cell.null_best == result.null_best[0, 2, 1]


def test_map_pairs_says_why_a_cell_has_no_value_and_stops_when_asked(tmp_path):
    layers = np.stack([gaussian(60, 5), np.ones((60, 5)), gaussian(60, 5, 1)]).astype(np.float32)
    context = Context(tmp_path, vectors=[Vectors(name, layers) for name in "xy"])
    result = MapPairs("vectors/x", "vectors/y", maps="least_squares", splits=2).compute(context)
    assert np.isnan(result.mean("least_squares")[1]).all()
    assert np.isnan(result.mean("least_squares")[:, 1]).all()
    assert result.mean("least_squares")[0, 0] == pytest.approx(1)
    assert result.best_b("least_squares").tolist() == [0, -1, 2]
    assert any(each[:3] == ("least_squares", 1, 0) and "constant" in each[3] for each in result.reasons)
    done = [done for done, *_ in context.reports]
    assert done == sorted(done)
    assert done[-1] == context.reports[-1][1]
    partials = [partial for *_, partial in context.reports if partial is not None]
    assert np.isnan(partials[0].test[:, 1]).all()
    with pytest.raises(SettingsError, match="not fitted here"):
        result.mean("ridge")
    with pytest.raises(SettingsError, match="no part"):
        result.mean("least_squares", "valid")
    context.stop = "wrong pairing 1"
    with pytest.raises(Cancelled):
        MapPairs("vectors/x", "vectors/y", maps="ridge").compute(context)


# --- what ships --------------------------------------------------------------------------------------------------


def test_the_twins_are_closer_than_chance_and_the_inn_is_never_worse_than_a_linear_map(states, corpus):
    from embcompare.models import ModelSpec, load_model

    lent = {name: load_model(ModelSpec.parse(f"demo/gpt2-{name}")) for name in "ab"}
    few = dataclasses.replace(corpus, sentences=corpus.sentences[:30], labels=corpus.labels[:30])
    asked = Bijection("a", "b", 3, 3, maps="mean, orthogonal, ridge, inn, mlp", epochs=6, downstream=6)
    result = asked.compute(Context(states, few, lent))
    assert result.mean("ridge", "r2") > 0.3
    assert result.mean("inn", "r2") > result.mean("ridge", "r2") - 0.02
    assert result.mean("inn", "cycle") < 1e-4
    loss = dict(zip(result.maps, result.answers[:, 0, 0], strict=True))
    assert result.answers_own[0] < min(loss["ridge"], loss["inn"])
    assert max(loss["ridge"], loss["inn"]) < loss["mean"]
    assert result.kind


def test_both_are_public_and_registered():
    from embcompare.experiments import settings_type

    assert settings_type("bijection") is embcompare.Bijection
    assert settings_type("map-pairs") is embcompare.MapPairs
    call = Bijection("a", "b", 1, 2, maps="inn").call()
    assert call == "embcompare.run(embcompare.Bijection(model_a='a', model_b='b', layer_a=1, layer_b=2, maps='inn'))"
