"""Series of checkpoints: performance, indicators and statistics are what plain formulas give, and signs are plain."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sacrebleu import corpus_bleu, corpus_chrf, sentence_chrf
from scipy.special import log_softmax
from scipy.stats import spearmanr
from stitching import TEXT, Context

from embcompare import demo, export, running
from embcompare.decomposition import INDICATORS, decompose, decompose_source_target, indicators
from embcompare.decomposition.series import dtw, variance_components
from embcompare.decomposition.series_table import correlate_same_steps
from embcompare.errors import Cancelled, Incomparable, InputError, SettingsError
from embcompare.experiments import term_series_run
from embcompare.experiments.base import canonical
from embcompare.experiments.decomposition_targets import own_output, written_as
from embcompare.experiments.decomposition_texts import TextsOf
from embcompare.experiments.term_runs import MOST_CHECKPOINTS, Run, read_runs, step_of, written
from embcompare.experiments.term_series import TermSeries, TermSeriesResult
from embcompare.experiments.term_series_metrics import Predicted, Scorer, predict
from embcompare.experiments.term_series_result import ALL_TERMS, BETWEEN
from embcompare.experiments.term_series_statistics import Gathered, correlations, distances, over_texts, variances
from embcompare.experiments.term_series_words import spread
from embcompare.models import load_model
from embcompare.store import Store
from embcompare.text.corpora import Corpus
from embcompare.text.translations import shipped_numbers

PAIRS = shipped_numbers().first(6)
SMALL = "; ".join(
    f"{name}: {', '.join(f'demo/numbers-{seed}-{step}' for step in (100, 250, 600))}"
    for seed, name in ((1, "one"), (2, "two"))
)


class Lent(Context):
    """Lends demo models by their names, and keeps the partial results that it hears of."""

    def __init__(self, corpus, stop_after=None, **models):
        super().__init__(corpus, stop_after, **models)
        self.partials = []

    def lease(self, name):
        if name not in self.models:
            self.models[name] = load_model(name)
        return nullcontext(self.models[name])

    def report(self, done, total, message, partial=None):
        if partial is not None:
            self.partials.append(partial)
        super().report(done, total, message, partial)


LOADED = {}


def run(corpus=PAIRS, stop_after=None, models=None, **settings):
    context = Lent(corpus, stop_after, **(models or {}))
    context.models = {**LOADED, **context.models}
    settings = TermSeries(**{"runs": SMALL, "sentences": 6, **settings})
    result = settings.compute(context)
    LOADED.update({name: model for name, model in context.models.items() if name.startswith("demo/")})
    assert context.reports[-1][0] == context.reports[-1][1]
    return result, context


@pytest.fixture(scope="module")
def small():
    return run()


def one_pair(model, number, corpus=PAIRS):
    """One pair as the decoder reads it, by the formula."""
    tok = model.tokenizer
    source, labels = (
        torch.tensor([tok(text)["input_ids"]]) for text in (corpus.sentences[number], corpus.targets[number])
    )
    read = torch.cat([torch.full((1, 1), model.module.config.decoder_start_token_id), labels[:, :-1]], 1)
    return source, read, labels


def test_the_preset_is_every_seed_or_some():
    settings = TermSeries.demo()
    assert len(settings.series()) == len(demo.SEEDS) >= 5
    assert settings.models() == tuple(f"demo/{name}" for names in demo.NUMBERS.values() for name in names)
    few = TermSeries.demo(seeds=(2, 3), sentences=5)
    assert [run.name for run in few.series()] == ["seed 2", "seed 3"]
    assert few.sentences == 5
    assert eval(few.call().replace("embcompare.run", "").replace("embcompare.", "")) == few


def test_indicators_are_what_their_definitions_give(small):
    result, _ = small
    for number, at in ((0, 0), (1, 2)):
        model = LOADED[result.checkpoints[number][at]]
        found = []
        for text in range(6):
            source, read, _ = one_pair(model, text)
            stream = decompose(model, read, torch.ones_like(read), source=source)
            values = [indicators(each.values[:, 0, 1:], each.hidden[0, 1:]) for each in stream]
            found.append([[each[name].numpy() for each in values] for name in INDICATORS])
        every = np.concatenate([np.array(each) for each in found], -1)
        np.testing.assert_allclose(result.mean[:, number, at], every.mean(-1), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(result.sd[:, number, at], every.std(-1, ddof=1), rtol=1e-8, atol=1e-10)
        assert result.tokens == every.shape[-1]
    np.testing.assert_allclose(result.mean[0].sum(-1), 1, atol=1e-9)
    assert result.residual.max() < 1e-10
    known = np.isfinite(result.mean)
    assert (result.low <= result.mean + 1e-12)[known].all()
    assert (result.high >= result.mean - 1e-12)[known].all()
    # only what is zero before the first block has no cosine
    assert set(zip(*np.nonzero(~known.all((1, 2))), strict=True)) == {(1, 0, term) for term in (1, 2, 3, 4)}


def test_performance_is_what_plain_formulas_and_sacrebleu_give(small):
    result, _ = small
    assert result.metrics == ("loss", "accuracy", "exact match", "BLEU", "chrF")
    for number, at in np.ndindex(2, 3):
        model = LOADED[result.checkpoints[number][at]]
        losses, right, texts = [], [], []
        for text in range(6):
            source, read, labels = one_pair(model, text)
            with torch.no_grad():
                logits = model.module(input_ids=source, decoder_input_ids=read).logits[0].double().numpy()
            losses += [-log_softmax(row)[label] for row, label in zip(logits, labels[0].tolist(), strict=True)]
            right += (logits.argmax(-1) == labels[0].numpy()).tolist()
            out = model.module.generate(input_ids=source, do_sample=False, num_beams=1, max_new_tokens=47)
            texts.append(model.tokenizer.decode(out[0], skip_special_tokens=True))
        expected = [
            np.mean(losses),
            np.mean(right),
            np.mean([one == other for one, other in zip(texts, PAIRS.targets, strict=True)]),
            corpus_bleu(texts, [list(PAIRS.targets)]).score,
            corpus_chrf(texts, [list(PAIRS.targets)]).score,
        ]
        np.testing.assert_allclose(result.performance[:, number, at], expected, rtol=1e-4)
        if at == 2:
            scores = [sentence_chrf(one, [other]).score for one, other in zip(texts, PAIRS.targets, strict=True)]
            np.testing.assert_allclose(result.text_scores[1, number], scores)
    assert (result.performance[3, :, 0] < result.performance[3, :, -1]).all()
    assert result.signatures[3].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert result.signatures[0] == ""


def test_standard_errors_are_those_of_a_jackknife_over_groups():
    rng = np.random.default_rng(0)
    written = tuple(rng.choice(["uno dos tres", "uno dos", "mil tres y cuatro"], 25).tolist())
    expected = tuple(rng.choice(["uno dos tres", "mil tres y cuatro"], 25).tolist())
    found = Predicted(
        rng.random(25) * 9,
        rng.integers(2, 9, 25).astype(float),
        rng.integers(0, 2, 25).astype(float),
        written,
        expected,
    )
    whole, errors = Scorer(25, expected)(found)
    assert whole["BLEU"] == corpus_bleu(list(written), [list(expected)]).score
    assert whole["loss"] == pytest.approx(found.loss.sum() / found.tokens.sum())
    left = []
    for group in range(10):
        kept = [i for i in range(25) if i % 10 != group]
        left.append(
            [
                found.loss[kept].sum() / found.tokens[kept].sum(),
                corpus_chrf([written[i] for i in kept], [[expected[i] for i in kept]]).score,
            ]
        )
    for name, values in zip(("loss", "chrF"), np.array(left).T, strict=True):
        assert errors[name] == pytest.approx(np.sqrt(0.9 * ((values - values.mean()) ** 2).sum()))
    # of a plain mean, with every text its own group, it is the textbook's
    one = Predicted(np.arange(6.0), np.ones(6), np.ones(6))
    assert Scorer(6)(one)[1]["loss"] == pytest.approx(np.arange(6.0).std(ddof=1) / np.sqrt(6))
    assert np.isnan(Scorer(1)(Predicted(np.ones(1), np.ones(1), np.ones(1)))[1]["loss"])


def test_what_a_model_writes_is_transformers_greedy_output_whatever_the_batch():
    model = load_model("demo/numbers-4-250")
    corpus = shipped_numbers().first(12)
    texts = TextsOf.of(model, corpus.sentences, targets=corpus.targets)
    found = own_output(model, texts.sources)
    for number in range(12):
        source, _, _ = one_pair(model, number, corpus)
        out = model.module.generate(input_ids=source, do_sample=False, num_beams=1, max_new_tokens=47)[0, 1:]
        assert found.ids[number].tolist() == out.tolist()
        assert written_as(model, found)[number] == model.tokenizer.decode(out, skip_special_tokens=True)
    assert found.cut == 0
    short = own_output(model, texts.sources, 3)
    assert all(len(row) <= 3 for row in short.ids)
    assert short.cut == sum(len(row) > 3 for row in found.ids)


def synthetic(way, runs=5, checkpoints=6, seed=0):
    """A series whose answer is known: ``way`` (4, S, K) says how each indicator goes with the one metric."""
    rng = np.random.default_rng(seed)
    metric = np.sort(rng.normal(size=(runs, checkpoints)), 1)
    noise = rng.normal(size=(*way.shape, runs, checkpoints))
    mean = way[..., None, None] * metric + np.where(way == 0, 1.0, 0.05)[..., None, None] * noise
    texts = rng.normal(size=(4, runs, way.shape[1], way.shape[2], 20))
    units = [texts[:, run] for run in range(runs)]
    steps = np.tile(np.arange(checkpoints), (runs, 1))
    return Gathered(
        (checkpoints,) * runs,
        steps,
        metric[None],
        mean.transpose(0, 3, 4, 1, 2),
        units,
        texts,
        rng.normal(size=(1, runs, 20)),
    )


def test_a_known_series_has_the_known_signs_and_noise_is_not_called_clear():
    way = np.zeros((4, 1, 3))
    way[0, 0] = 1, -1, 0
    found = correlations(synthetic(way), 0)
    assert found["tests"] == 16
    rho, low, high = (found[name][0, 0, 0] for name in ("rho", "rho_low_all", "rho_high_all"))
    assert rho[0] > 0.9
    assert rho[1] < -0.9
    assert low[0] > 0.5
    assert high[1] < -0.5
    assert low[2] < 0 < high[2]
    assert (found["rho_run"][0, 0, 0, 0] > 0.8).all()
    assert (found["rho_run"][0, 0, 0, 1] < -0.8).all()
    # how far terms move goes with how far the metric does, whichever way each goes
    moved = correlations(synthetic(np.where(way == 0, 0, way) + np.array([1, -1, 1])), 0)
    assert (moved["rho"][0, :, 0, 3] > 0.7).all()


def test_variances_and_distances_are_the_plain_functions():
    found = synthetic(np.ones((4, 2, 3)))
    parts = variances(found)
    for cell in np.ndindex(4, 2, 3):
        own = variance_components(np.stack([table[cell] for table in found.units]))
        assert parts[(slice(None), *cell)].tolist() == [own.runs, own.tokens, own.rest, own.sd_of_means, own.sd_within]
    apart = distances(found)
    assert apart.shape == (4, 2, 4, 5, 5)
    every = found.mean[2, :, :, 1]
    scaled = (every - every.mean((0, 1))) / every.std((0, 1))
    assert apart[2, 1, 0, 3, 1] == pytest.approx(dtw(scaled[3, :, 0], scaled[1, :, 0]))
    assert apart[2, 1, 3, 3, 1] == pytest.approx(dtw(scaled[3], scaled[1]))
    assert np.array_equal(apart, apart.swapaxes(-1, -2))
    assert (np.diagonal(apart, axis1=-2, axis2=-1) == 0).all()
    shifted = dataclasses.replace(found, mean=found.mean.copy())
    shifted.mean[:, 0] += 100
    assert distances(shifted)[..., 0, 1:].min() > distances(shifted)[..., 1:, 1:].max()


def test_scores_that_follow_an_indicator_text_by_text_are_found():
    found = synthetic(np.ones((4, 1, 2)))
    scores = found.by_text[1, :, 0, 1][None].copy()
    fields = over_texts(dataclasses.replace(found, scores=scores), 0)
    assert np.allclose(fields["text_rho"][0, 1, 0, 1], 1)
    assert fields["same_rho"][0, 1, 0, 1] == pytest.approx(1)
    assert abs(fields["same_rho"][0, 0, 0, 0]) < 0.4
    plain = spearmanr(found.by_text[2, 3, 0, 0], scores[0, 3]).statistic
    assert fields["text_rho"][0, 2, 0, 0, 3] == pytest.approx(plain)


def test_correlations_of_the_small_series_are_spearmans(small):
    result, _ = small
    metric, indicator, state, term = result.place("importance", "cross-attention", "chrF")
    x, y = result.mean[indicator, :, :, state, term], result.performance[metric]
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    plain = spearmanr(
        [x[r, b] - x[r, a] for r in range(2) for a, b in pairs], [y[r, b] - y[r, a] for r in range(2) for a, b in pairs]
    ).statistic
    assert result.rho[metric, indicator, state, term] == pytest.approx(plain)
    assert result.tests == 24
    assert result.units == "tokens"
    assert result.units_read == result.tokens


def test_the_models_own_output_is_split_when_asked(small):
    reference, _ = small
    result, _ = run(mode="generated")
    assert result.mode == "generated"
    assert result.units == "texts"
    assert result.units_read == 6
    assert np.array_equal(result.performance, reference.performance)
    model = LOADED[result.checkpoints[0][2]]
    values = []
    for text in range(6):
        source, _, _ = one_pair(model, text)
        read = model.module.generate(input_ids=source, do_sample=False, num_beams=1, max_new_tokens=47)[:, :-1]
        *_, last = decompose(model, read, torch.ones_like(read), source=source)
        values.append(indicators(last.values[:, 0, 1:], last.hidden[0, 1:])["importance"].numpy())
    np.testing.assert_allclose(result.mean[0, 0, 2, -1], np.concatenate(values, 1).mean(1), rtol=1e-8)
    assert not np.allclose(result.mean[0, 0, 0], reference.mean[0, 0, 0])


def test_terms_by_source_and_target():
    result, _ = run(split="source-target", runs="one: demo/numbers-1-100, demo/numbers-1-600", layer=2)
    assert result.terms == ("target", "source", "correction")
    assert result.state == 2
    model = LOADED["demo/numbers-1-600"]
    values = []
    for text in range(6):
        source, read, _ = one_pair(model, text)
        *_, last = decompose_source_target(model, read, torch.ones_like(read), source)
        values.append(indicators(last.values[:, 0, 1:], last.hidden[0, 1:])["norm_ratio"].numpy())
    np.testing.assert_allclose(result.mean[3, 0, 1, -1], np.concatenate(values, 1).mean(1), rtol=1e-8)


def test_one_run_of_a_language_model_says_what_it_cannot_tell():
    settings = {"runs": "demo/gpt2-series-50, demo/gpt2-series-400, demo/gpt2-series-2000", "sentences": 4}
    corpus = Corpus("few", TEXT)
    result, _ = run(corpus, **settings)
    assert result.metrics == ("loss", "accuracy")
    assert (result.mode, result.units, result.runs) == ("text", "tokens", ("run 1",))
    assert result.steps.tolist() == [[50, 400, 2000]]
    assert result.same_rho is None
    assert np.isnan(result.variance).all()
    assert np.isnan(result.rho_low_all).all()
    model = LOADED["demo/gpt2-series-400"]
    losses = []
    for text in TEXT[:4]:
        ids = torch.tensor([model.tokenizer(text)["input_ids"]])
        logits = model.module(input_ids=ids).logits[0].double().numpy()
        # neither [SEP] nor what follows [CLS]
        losses += [-log_softmax(logits[i])[ids[0, i + 1]] for i in range(1, ids.shape[1] - 2)]
    assert result.performance[0, 0, 1] == pytest.approx(np.mean(losses), rel=1e-5)
    assert "In this one run, what changes most along with loss" in result.sentence()
    assert "One run cannot tell what another seed would do" in result.limits()
    assert "takes at least two" in spread(result, "importance", 0)
    assert not result.correlation_frame().clear.any()


def test_losses_do_not_depend_on_the_batch(monkeypatch):
    model = load_model("demo/numbers-1-250")
    texts = TextsOf.of(model, PAIRS.sentences, targets=PAIRS.targets)
    whole = predict(texts)
    monkeypatch.setattr("embcompare.experiments.term_series_metrics.BATCH_TOKENS", 1)
    alone = predict(texts)
    np.testing.assert_allclose(alone.loss, whole.loss, rtol=1e-5)
    assert np.array_equal(alone.tokens, whole.tokens)


NARROW = ("step_low_all", "step_high_all")


def fake(**changes):
    """A result whose correlations are made up: two indicators go with BLEU, all else is noise."""
    shape = (1, 4, 1, 3)
    rho, low, high = np.zeros(shape), np.full(shape, -0.9), np.full(shape, 0.9)
    rho[0, 0, 0, 0], low[0, 0, 0, 0] = 0.9, 0.4
    rho[0, 1, 0, 1], high[0, 1, 0, 1] = -0.8, -0.2
    values = {
        item.name: None for item in dataclasses.fields(TermSeriesResult) if item.name not in ("provenance", "notices")
    }
    values |= {
        "runs": tuple("abcde"),
        "checkpoints": tuple((f"{run}-1", f"{run}-2", f"{run}-3") for run in "abcde"),
        "metrics": ("BLEU",),
        "indicators": tuple(INDICATORS),
        "states": ("block 1",),
        "state": 0,
        "terms": ("input", "correction"),
        "tests": 12,
        "rho": rho,
        "rho_low_all": low,
        "rho_high_all": high,
        "rho_rising": 0.88,
        "step_rho": np.zeros((1, 4, 1, 2)),
        "step_low_all": np.full((1, 4, 1, 2), -0.5),
        "step_high_all": np.full((1, 4, 1, 2), 0.5),
    }
    return TermSeriesResult(**{**values, **changes})


def test_the_verdict_names_what_is_clear_and_which_way_it_goes():
    said = fake().sentence()
    assert said.startswith(
        "Along the training 2 of 12 indicators in block 1 change with BLEU, clear of 0 by an interval that allows for "
        "all 12: importance of input (up in better models, ρ 0.90), cosine of correction (down in better models, "
        "ρ −0.80). But training alone gives as much: two unrelated series that only rise have a ρ of about 0.88 here. "
    )
    assert "none tells better runs from worse ones clear of chance" in said
    apart = np.zeros((1, 4, 1, 2))
    apart[0, 0, 0, 0] = 0.6
    told = fake(step_rho=apart, step_low_all=apart - 0.2, step_high_all=apart + 0.2).sentence()
    assert "1 still tells better runs from worse ones: importance of input (up in better models, ρ 0.60)." in told
    assert "it takes four runs to say more" in fake(**dict.fromkeys(NARROW, np.full((1, 4, 1, 2), np.nan))).sentence()
    assert "not seen at the same steps" in fake(step_rho=None).sentence()
    assert "importance of input (down in better models, ρ 0.90)" in fake(metrics=("loss",)).sentence()
    nothing = fake(rho_low_all=np.full((1, 4, 1, 3), -1.0), rho_high_all=np.full((1, 4, 1, 3), 1.0)).sentence()
    assert "none with BLEU is clear of 0; the strongest is importance of input" in nothing
    assert "once every checkpoint has been read" in fake(rho=None).sentence()
    assert "takes at least two checkpoints" in fake(rho=np.full((1, 4, 1, 3), np.nan)).sentence()


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        (5, ("Five runs", "p = 1/16, above 5 %", "six runs are the fewest", "9 to allow for all 12")),
        (2, ("Two runs", "p = 1/2, above 5 %")),
        (6, ("Six runs", "p = 1/32, below 5 % for one indicator", "all 12 takes 9 runs")),
        (9, ("Nine runs", "p = 1/256, which allows for all 12")),
        (1, ("One run cannot tell",)),
    ],
)
def test_what_so_many_runs_can_tell_is_counted(runs, parts):
    names = tuple(f"run {number}" for number in range(runs))
    said = fake(runs=names, checkpoints=tuple((f"{name}-1", f"{name}-2", f"{name}-3") for name in names)).limits()
    for part in parts:
        assert part in said
    assert "no cause" in said


def test_terms_that_differ_between_runs_are_named():
    variance = np.zeros((5, 4, 1, 2))
    variance[3, 0, 0] = 0.2, 0.1
    variance[4, 0, 0] = 0.1, 0.3
    result = fake(variance=variance, units="tokens")
    assert spread(result, "importance", 0).endswith("from run to run than from token to token in input.")
    assert "in every term" in spread(fake(variance=variance[:, :, :, ::-1] * 0 + 1, units="texts"), "cosine", 0)


def test_tables_hold_every_number(small):
    result, _ = small
    series = result.to_frame()
    assert len(series) == 6 * 5 * 5 * 4
    (row,) = series[
        (series.run == "two")
        & (series.place == 2)
        & (series.layer == 3)
        & (series.term == "feed-forward")
        & (series.indicator == "cosine")
    ].to_dict("records")
    assert row["mean"] == result.mean[1, 1, 1, 3, 3]
    assert row["BLEU"] == result.performance[3, 1, 1]
    assert row["step"] == 250
    performance = result.performance_frame()
    assert performance["chrF se"].tolist() == result.performance_se[4].ravel().tolist()
    table = result.correlation_frame()
    assert len(table) == result.rho.size
    (row,) = table[
        (table.metric == "loss") & (table.layer == 4) & (table.indicator == "importance") & (table.term == ALL_TERMS)
    ].to_dict("records")
    assert row["rho"] == result.rho[0, 0, 4, 5]
    assert row["rho, two"] == result.rho_run[0, 0, 4, 5, 1]
    parts = result.variance_frame()
    assert np.array_equal(parts.sd_within, result.variance[4].ravel(), equal_nan=True)
    apart = result.dtw_frame()
    assert len(apart) == result.distance.size
    texts = result.text_frame()
    assert set(texts.run) == {"one", "two", BETWEEN}
    assert len(texts) == 2 * 4 * 5 * 5 * 3


def test_partial_results_hold_what_is_done_and_a_run_stops_between_checkpoints():
    context = Lent(PAIRS)
    context.models.update(LOADED)
    settings = TermSeries(SMALL, sentences=3)
    settings.compute(context)
    assert len(context.partials) == 6
    first = context.partials[0]
    assert first.rho is None
    assert first.correlation_frame().empty
    assert first.variance_frame().empty
    assert len(first.performance_frame()) == 1
    assert np.isfinite(first.performance[:, 0, 0]).all()
    assert np.isnan(first.performance[:, 1]).all()
    assert "once every checkpoint" in first.sentence()
    assert np.isnan(first.mean[0, 0, 1]).all()  # and what came later has not changed it
    for stop_after in (0, 3, len(context.reports) - 2):
        stopped = Lent(PAIRS, stop_after)
        stopped.models.update(LOADED)
        with pytest.raises(Cancelled):
            settings.compute(stopped)


def test_a_result_is_stored_and_exported_whole(tmp_path):
    settings = TermSeries("one: demo/numbers-1-100, demo/numbers-1-600; two: demo/numbers-2-600", sentences=3)
    store = Store(tmp_path)
    first, again = running.run(settings, store=store), running.run(settings, store=store)
    assert isinstance(again, TermSeriesResult)
    assert again.provenance["cached"]
    for item in dataclasses.fields(first):
        value, kept = getattr(first, item.name), getattr(again, item.name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, kept, equal_nan=True), item.name
        elif item.name != "provenance":
            assert value == kept, item.name
    assert export.to_csv(again)
    assert again.checkpoints == (("demo/numbers-1-100", "demo/numbers-1-600"), ("demo/numbers-2-600",))
    assert np.isnan(again.performance[:, 1, 1]).all()
    assert again.steps.tolist() == [[100, 600], [600, -1]]
    assert any("two: one checkpoint has no change" in notice for notice in again.notices)


def test_equal_series_have_one_key_and_other_weights_another():
    one, same = TermSeries("a: demo/x-1,demo/x-2;b: demo/y"), TermSeries(" a :  demo/x-1 , demo/x-2 \n\n b: demo/y ")
    assert one == same
    prints = {"demo/x-1": "1", "demo/x-2": "2", "demo/y": "3", "numbers": "4"}
    assert canonical(one, prints) == canonical(same, prints)
    assert canonical(one, {**prints, "demo/y": "5"}) != canonical(one, prints)
    assert "demo/" not in canonical(one, prints)
    renamed = TermSeries("c: demo/x-1,demo/x-2;b: demo/y")
    assert canonical(renamed, prints) != canonical(one, prints)


def test_runs_are_read_as_they_are_written():
    runs = read_runs("seed 1: a/b@main, ./out/checkpoint-500; /data/c-1,/data/c-2\nC: x")
    assert runs == (
        Run("seed 1", ("a/b@main", "./out/checkpoint-500")),
        Run("run 2", ("/data/c-1", "/data/c-2")),
        Run("C", ("x",)),
    )
    assert read_runs(written(runs)) == runs
    assert [step_of(name) for name in ("out/checkpoint-500/", "numbers-1-100", "gpt2", "org/m@step3000", "12")] == [
        500,
        100,
        2,
        3000,
        12,
    ]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (" ; \n", "No run is named"),
        ("a:", "'a' names no checkpoint"),
        ("a: x; a: y", "Two runs are called 'a'"),
        ("a: x; b: x", "x is named twice"),
        (", ".join(f"m{n}" for n in range(MOST_CHECKPOINTS + 1)), "301 checkpoints, and 300 are read at most"),
        ("; ".join(f"m{n}" for n in range(31)), "31 runs, and 30"),
    ],
)
def test_runs_that_cannot_be_are_refused_in_one_sentence(runs, message):
    with pytest.raises(SettingsError, match=message):
        TermSeries(runs)


def test_what_cannot_be_compared_is_refused_with_the_reason(tiny_model, monkeypatch):
    few = Corpus("few", TEXT)
    refused = (
        ({"a": "bert-mlm"}, {}, few, Incomparable, "sees the tokens that it predicts"),
        ({"a": "gpt2-classifier"}, {}, few, Incomparable, "has no head that predicts tokens"),
        ({"a": "gpt2", "b": "marian"}, {}, few, Incomparable, "is a model of one stack with 2 layers, and"),
        ({"a": "gpt2"}, {"mode": "generated"}, few, Incomparable, "translates nothing"),
        ({"a": "gpt2"}, {"split": "source-target"}, few, Incomparable, "not split by source and target"),
        ({"a": "gpt2"}, {"layer": 7}, few, SettingsError, "has no layer 7; its layers are 0"),
        ({"a": "marian"}, {}, few, InputError, "few holds no translations"),
    )
    for names, settings, corpus, error, message in refused:
        models = {key: tiny_model(name) for key, name in names.items()}
        if "b" in models:
            corpus = Corpus("few", TEXT, targets=TEXT)
        with pytest.raises(error, match=message):
            run(corpus, models=models, runs=", ".join(names), **settings)
    with pytest.raises(Incomparable, match="is a file of vectors"):
        run(few, runs=f"vectors/{'0' * 64}")
    marian = tiny_model("marian")
    empty = Corpus("few", (marian.tokenizer.eos_token, "the dog"), targets=("the dog", "a man"))
    with pytest.raises(InputError, match="Sentence 1 of few has no token"):
        run(empty, models={"a": marian}, runs="a")
    monkeypatch.setattr(term_series_run, "KEPT_BYTES", 10)
    with pytest.raises(SettingsError, match="read fewer texts"):
        run(few, models={"a": tiny_model("gpt2")}, runs="a")


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5-gated", "mt5"])
def test_other_families_make_series_too(tiny_model, name):
    models = {"a": tiny_model(name), "b": tiny_model(name, 1)}
    corpus = Corpus("few", TEXT, targets=TEXT[::-1])
    result, _ = run(corpus, models=models, runs="a, b")
    assert result.residual.max() < 1e-10
    assert np.isfinite(result.performance[0]).all()
    np.testing.assert_allclose(result.mean[0].sum(-1), 1, atol=1e-8)
    assert ("cross-attention" in result.terms) == (name in ("t5-gated", "mt5"))


@pytest.mark.parametrize(
    ("lengths", "single", "together"),
    [
        ((2, 2), False, False),
        ((2,) * 9, False, False),
        ((3, 3), True, False),
        ((6,), True, False),
        ((6, 6), True, False),
        ((3, 3, 3), True, False),
        ((4, 4, 4), True, True),
        ((4, 4, 4, 1), True, True),
        ((5, 5, 2), True, False),
        ((6,) * 5, True, True),
    ],
)
def test_too_few_runs_or_checkpoints_give_no_interval(lengths, single, together):
    from embcompare.experiments.term_series_statistics import can_resample

    assert can_resample(lengths) == (single, together)


def test_noise_is_seldom_clear_where_an_interval_is_given():
    """Twenty indicators of noise against a metric of noise, at the fewest runs and checkpoints that are let through."""
    from embcompare.decomposition.series_table import correlate_changes

    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x, y = [rng.normal(size=(20, 4)) for _ in range(3)], [rng.normal(size=(1, 4)) for _ in range(3)]
        part = correlate_changes(x, y, tests=20, resamples=500)
        found.append(bool(((part.low_all > 0) | (part.high_all < 0)).any()))
    assert np.mean(found) <= 0.15


def test_two_checkpoints_of_two_runs_clear_nothing():
    runs = "a: demo/numbers-1-200, demo/numbers-1-600; b: demo/numbers-2-200, demo/numbers-2-600"
    result = running.run(TermSeries(runs, sentences=6), keep=False)
    assert not result.correlation_frame()["clear"].any()
    assert np.isnan(result.rho_low).all()
    assert "which may be chance" in result.sentence()
    assert "clear of 0" not in result.sentence()
    assert "too few checkpoints to resample" in result.limits()


def test_nothing_goes_with_terms_that_are_not_there_yet():
    result = running.run(TermSeries.demo(seeds=[1, 2], sentences=6, layer=0), keep=False)
    state = list(result.layers).index(0)
    others = [at for at, term in enumerate(result.terms) if term != "input"]
    assert np.isnan(result.rho[:, :, state][..., others]).all()
    assert np.isfinite(result.rho[:, :, state + 1][..., others]).any()
    np.testing.assert_allclose(result.mean[0].sum(-1), 1, atol=1e-9)
    for name in ("self-attention", "cross-attention", "feed-forward", "correction"):
        assert f"of {name}" not in result.sentence()


def test_differences_at_the_same_step_are_all_ordered_pairs_by_hand():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(3, 4, 5)), rng.normal(size=(2, 4, 5))
    found = correlate_same_steps(x, y, resamples=0)
    for one, other in np.ndindex(3, 2):
        pairs = [
            (x[one, i, c] - x[one, j, c], y[other, i, c] - y[other, j, c])
            for i in range(4)
            for j in range(4)
            for c in range(5)
            if i != j
        ]
        assert found.rho[one, other] == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic, abs=1e-12)


def test_what_merely_rises_goes_with_everything_along_the_training_and_with_nothing_at_the_same_step():
    """Indicators that rise in training on their own, and one that tells better runs from worse."""
    clear, apart = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        metric = rng.exponential(size=(5, 6)).cumsum(1) + 3 * rng.normal(size=(5, 1))
        mean = rng.exponential(size=(4, 5, 6, 1, 3)).cumsum(2)
        mean[0, ..., 0, 0] = metric + 0.1 * rng.normal(size=(5, 6))
        empty = rng.normal(size=(4, 5, 1, 3, 4))
        steps = np.tile(np.arange(6), (5, 1))
        table = [empty[:, run] for run in range(5)]
        found = correlations(Gathered((6,) * 5, steps, metric[None], mean, table, empty, rng.normal(size=(1, 5, 4))), 0)
        low, high = found["rho_low_all"][0, 1:, 0, :-1], found["rho_high_all"][0, 1:, 0, :-1]
        clear.append(float(((low > 0) | (high < 0)).mean()))
        low, high = found["step_low_all"][0, :, 0], found["step_high_all"][0, :, 0]
        apart.append(float(((low > 0) | (high < 0))[1:].mean()))
        assert found["step_rho"][0, 0, 0, 0] > 0.9
        assert found["rho_rising"] > 0.8
    assert np.mean(clear) > 0.8
    assert np.mean(apart) < 0.05


def test_runs_seen_at_other_steps_are_not_compared_at_the_same_step():
    known = synthetic(np.ones((4, 1, 2)))
    other = dataclasses.replace(known, steps=known.steps + np.arange(5)[:, None])
    assert correlations(other, 0)["step_rho"] is None
    few = synthetic(np.ones((4, 1, 2)), runs=3)
    assert np.isfinite(correlations(few, 0)["step_rho"]).all()
    assert np.isnan(correlations(few, 0)["step_low"]).all()
