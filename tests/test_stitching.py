"""The stitching experiment: every number of the grid is what two whole forwards and plain formulas give."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax, rel_entr
from stitching import TEXT, Context, plain_logits, plain_states
from tiny import save_tiny

from embcompare.errors import Cancelled, Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments import stitching_single, stitching_tasks, stitching_texts
from embcompare.experiments.stitching import Stitching, StitchingResult
from embcompare.learning import wilson
from embcompare.models import load_model
from embcompare.stitching import BridgeOptions
from embcompare.stitching.bridges import bridge_from_weights
from embcompare.text.corpora import Corpus, shipped_corpus
from embcompare.text.labelled import shipped_reviews
from embcompare.text.vocabulary import match_vocabularies

LABELS = tuple("LABEL_0" if at % 3 else "LABEL_1" for at in range(len(TEXT)))
PLAIN = Corpus("tiny text", TEXT)
LABELLED = Corpus("tiny labelled", TEXT, LABELS)


def run(models, corpus=PLAIN, **settings):
    a, b = models
    return Stitching(**{"model_a": "a", "model_b": "b", "sentences": 4, **settings}).compute(Context(corpus, a=a, b=b))


def ids_of(model, text):
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    return ids, torch.ones_like(ids)


def scored(logits, own, target):
    """Loss, KL to B's own and agreement, summed over places, by plain formulas in float64."""
    log_q, log_p = log_softmax(logits, -1), log_softmax(own, -1)
    return np.array(
        [
            -log_q[np.arange(len(target)), target].sum(),
            rel_entr(np.exp(log_p), np.exp(log_q)).sum(),
            float((logits.argmax(-1) == own.argmax(-1)).sum()),
        ]
    )


@pytest.mark.parametrize(("lower", "upper"), [("gpt2", "gpt2"), ("gpt-neox", "opt"), ("opt", "gpt-neox")])
def test_every_cell_is_what_two_whole_forwards_give(tiny_model, lower, upper):
    a, b = tiny_model(lower), tiny_model(upper, 1)
    result = run((a, b), kernels="pseudo_inverse, permuted, identity")
    assert result.task == "next token"
    drawn = [TEXT.index(text) for text in result.texts]
    assert len(set(drawn)) == 4
    match = match_vocabularies(a.tokens, b.tokens)
    for at, name in enumerate(result.kernels):
        kernel = bridge_from_weights(name, a, b, lambda: match, BridgeOptions(seed=0)).single
        carry = lambda x: x @ kernel.matrix + kernel.offset  # noqa: B023, E731
        for cut, entry in ((0, 0), (1, 1), (2, 0), (0, 2), (2, 2)):
            sums, count = np.zeros(3), 0
            for text in result.texts:
                ids, mask = ids_of(b, text)
                own = b.module(input_ids=ids, attention_mask=mask).logits[0, :-1, :1300].numpy()
                logits = plain_logits(a, b, carry, cut, entry, ids, mask).logits[0, :-1, :1300].numpy()
                sums += scored(logits, own, ids[0, 1:].numpy())
                count += ids.shape[1] - 1
            np.testing.assert_allclose(result.values[0, at, :, cut, entry], sums / count, rtol=1e-7, atol=1e-9)
            assert result.counts[0] == count
    np.testing.assert_allclose(result.own_b[0, 1:], [0, 1], atol=1e-12)


def test_a_masked_model_is_asked_for_what_was_hidden(tiny_model):
    a, b = tiny_model("bert-mlm"), tiny_model("bert-untied", 1)
    result = run((a, b), kernels="identity", mask_share=0.3)
    assert result.task == "masked token"
    task = stitching_tasks.LanguageTask
    texts = stitching_texts.Texts(TEXT, a, b, by_words=False)
    hidden = task(texts, b, stitching_single.read_head(b, torch.float64), np.arange(2), 0.3, 0)
    sums, own_sums, count = np.zeros((3, 3, 3)), np.zeros(3), 0
    for text in result.texts:
        ids, mask = ids_of(b, text)
        places = hidden._hidden(TEXT.index(text))
        assert len(places) == max(1, round(0.3 * (ids.shape[1] - 2)))
        assert not set(places) & {0, ids.shape[1] - 1}, "special tokens are never masked"
        given = ids.clone()
        given[0, places] = b.tokenizer.mask_token_id
        own = b.module(input_ids=given, attention_mask=mask).logits[0, places].detach().numpy()
        target = ids[0, places].numpy()
        own_sums += scored(own, own, target)
        for cut in range(3):
            for entry in range(3):
                logits = plain_logits(a, b, lambda x: x, cut, entry, given, mask).logits[0, places].numpy()
                sums[:, cut, entry] += scored(logits, own, target)
        count += len(places)
    np.testing.assert_allclose(result.values[0, 0], sums / count, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result.own_b[0], own_sums / count, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("lower", "upper"), [("gpt2", "gpt2-classifier"), ("bert-mlm", "bert-classifier")])
def test_a_classifier_is_asked_for_classes(tiny_model, lower, upper):
    a, b = tiny_model(lower), tiny_model(upper, 1)
    result = run((a, b), LABELLED, kernels="identity", sentences=6)
    assert (result.task, result.scores) == ("classes", ("accuracy", "loss", "kl", "agreement"))
    right = np.zeros((3, 3))
    loss = np.zeros((3, 3))
    for text, label in zip(result.texts, result.labels, strict=True):
        ids, mask = ids_of(b, text)
        for cut in range(3):
            for entry in range(3):
                logits = plain_logits(a, b, lambda x: x, cut, entry, ids, mask).logits[0].numpy()
                right[cut, entry] += logits.argmax() == int(label[-1])
                loss[cut, entry] -= log_softmax(logits)[int(label[-1])]
    np.testing.assert_allclose(result.values[0, 0, 0], right / 6)
    np.testing.assert_allclose(result.values[0, 0, 1], loss / 6, rtol=1e-7)
    np.testing.assert_allclose(result.text_hits[0].sum(0), right)
    assert result.base_name == "majority class"
    share = max(result.labels.count("LABEL_0"), result.labels.count("LABEL_1")) / 6
    assert result.base[0, 0] == share
    assert result.base[0, 1] == pytest.approx(stats.entropy([share, 1 - share]))


def test_one_model_with_itself_is_itself_along_the_diagonal(tiny_model):
    model = tiny_model("gpt2")
    result = run((model, model), kernels="pseudo_inverse, identity")
    for name in result.kernels:
        for score, own in zip(result.scores, result.own_b[0], strict=True):
            np.testing.assert_allclose(np.diag(result.mean(name, score)), own, rtol=1e-6, atol=1e-9)
    assert (result.identity_error < 1e-12).all()
    np.testing.assert_allclose(result.own_a, result.own_b)


def test_batches_and_blocks_of_logits_play_no_part(tiny_model, monkeypatch):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    whole = run(models, sentences=8)
    monkeypatch.setattr(stitching_texts, "BATCH_TOKENS", 10)
    monkeypatch.setattr(stitching_tasks, "LOGIT_BYTES", 4 * 1300 * 3)
    parts = run(models, sentences=8)
    np.testing.assert_allclose(whole.values, parts.values, rtol=1e-9)
    np.testing.assert_allclose(whole.errors, parts.errors, rtol=1e-7)
    np.testing.assert_allclose(whole.text_loss, parts.text_loss, rtol=1e-9)


def test_same_settings_give_the_same_bits_and_other_seeds_other_texts(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    one, again, other = (run(models, seed=seed, kernels="permuted, ridge") for seed in (0, 0, 1))
    assert np.array_equal(one.values, again.values)
    assert np.array_equal(one.text_loss, again.text_loss)
    assert one.texts == again.texts != other.texts


def test_runs_are_what_single_runs_are(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    both = run(models, runs=2, seed=3)
    assert both.run_names == ("gpt2", "gpt2") or len(both.run_names) == 2
    for number, seed in enumerate((3, 4)):
        alone = run(models, seed=seed)
        assert np.array_equal(both.values[number], alone.values[0])
        assert np.array_equal(both.base[number], alone.base[0])
    name = both.kernels[0]
    np.testing.assert_allclose(both.mean(name, "loss"), both.values[:, 0, 0].mean(0))
    np.testing.assert_allclose(both.sd(name, "loss"), both.values[:, 0, 0].std(0, ddof=1))
    assert np.isnan(run(models).sd(name, "loss")).all()


def test_more_models_above_are_more_runs(tiny_model):
    a, b, c = tiny_model("gpt2"), tiny_model("gpt2", 1), tiny_model("gpt2", 2)
    settings = Stitching("a", "b", also="c", sentences=4, kernels="identity")
    assert settings.models() == ("a", "b", "c")
    result = settings.compute(Context(PLAIN, a=a, b=b, c=c))
    assert result.runs == 2
    assert np.array_equal(result.values[1], run((a, c), kernels="identity").values[0])
    with pytest.raises(SettingsError, match="stands twice"):
        Stitching("a", "b", also="b")
    with pytest.raises(SettingsError, match="stands twice"):
        Stitching("a", "b", also="c, c")


def test_all_texts_scored_in_every_run_is_said(tiny_model):
    result = run((tiny_model("gpt2"), tiny_model("gpt2", 1)), runs=2, sentences=12, kernels="identity")
    assert any("Every run scores all texts" in notice for notice in result.notices)
    fewer = run((tiny_model("gpt2"), tiny_model("gpt2", 1)), runs=2, sentences=4, kernels="identity")
    assert not any("scores all texts" in notice for notice in fewer.notices)


def test_the_unigram_row_knows_shipped_texts_and_those_that_are_not_scored(tiny_model):
    model = tiny_model("gpt2")
    result = run((model, model), kernels="identity", sentences=4)
    rest = [text for text in TEXT if text not in result.texts]
    counts = np.ones(1300)
    for text in (*rest, *shipped_corpus().sentences):
        np.add.at(counts, model.tokenizer(text)["input_ids"], 1)
    log_p, sums, places = np.log(counts / counts.sum()), 0.0, 0
    for text in result.texts:
        ids = model.tokenizer(text)["input_ids"]
        sums -= log_p[ids[1:]].sum()
        places += len(ids) - 1
    assert result.base[0, 0] == pytest.approx(sums / places)


def test_maps_fitted_on_states_see_no_text_that_is_scored(tiny_model, monkeypatch):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", 1)
    seen = {}
    original = stitching_single.bridge_from_states

    def spy(name, states_a, states_b, items, seed, tick):
        seen[name] = items, states_a, states_b
        return original(name, states_a, states_b, items, seed, tick)

    monkeypatch.setattr(stitching_single, "bridge_from_states", spy)
    result = run((a, b), kernels="ridge, orthogonal_fit", sentences=4)
    items, states_a, states_b = seen["ridge"]
    trained = {TEXT[item] for item in set(items.tolist())}
    assert trained
    assert not trained & set(result.texts)
    assert result.held_out.shape == (2, 3, 3)
    assert np.isfinite(result.held_out).all()
    assert np.isnan(result.condition).all()
    # row by row both models' states at the same tokens, special ones left out
    first = int(items[0])
    ids, mask = ids_of(a, TEXT[first])
    for layer, (one, other) in enumerate(
        zip(plain_states(a, ids, mask)[0], plain_states(b, ids, mask)[0], strict=True)
    ):
        own = items == first
        torch.testing.assert_close(states_a[layer][own], one[0])
        torch.testing.assert_close(states_b[layer][own], other[0])


def test_no_more_states_are_fitted_on_than_asked_for(tiny_model, monkeypatch):
    sizes = []
    original = stitching_single.bridge_from_states
    monkeypatch.setattr(
        stitching_single, "bridge_from_states", lambda n, x, *rest: sizes.append(len(x[0])) or original(n, x, *rest)
    )
    run((tiny_model("gpt2"), tiny_model("gpt2", 1)), kernels="ridge", fit_rows=10)
    assert 10 <= sizes[0] < 60


def test_the_paper_faithful_switch_adds_positions_and_feeds_the_normed_state(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", 1)
    plain, faithful = (run((a, b), kernels="identity", paper_faithful=flag) for flag in (False, True))
    assert not np.allclose(plain.values, faithful.values)
    assert any("official notebook" in notice for notice in faithful.notices)
    text, (ids, _) = faithful.texts[0], ids_of(b, faithful.texts[0])
    import copy

    # of a copy, for transformers leaves hooks where it was asked for hidden states
    states = copy.deepcopy(a.module).transformer(input_ids=ids, output_hidden_states=True).hidden_states
    # what the notebook does: the last blocks alone, given embeddings
    for cut in (1, 2):
        upper = copy.deepcopy(b.module)
        upper.transformer.h = upper.transformer.h[1:]
        logits = upper(inputs_embeds=states[cut]).logits[0, :-1].detach().numpy()
        loss = -log_softmax(logits, -1)[np.arange(ids.shape[1] - 1), ids[0, 1:].numpy()].mean()
        assert faithful.text_loss[0, faithful.texts.index(text), cut, 1] == pytest.approx(loss)


# -- words -----------------------------------------------------------------------------------------------------------


def test_a_classifier_of_another_tokenizer_reads_words(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("distilbert-classifier")
    with pytest.raises(Incomparable, match="special token at the beginning"):
        run((a, b), LABELLED, kernels="pseudo_inverse", small_overlap=True)
    a, b = tiny_model("bert-mlm"), tiny_model("gpt2-classifier")
    result = run((a, b), LABELLED, kernels="pseudo_inverse", small_overlap=True)
    assert result.by == "words"
    assert any("word by word" in notice for notice in result.notices)
    match = match_vocabularies(a.tokens, b.tokens, override=True)
    kernel = bridge_from_weights("pseudo_inverse", a, b, lambda: match, BridgeOptions()).single
    for number, text in enumerate(result.texts):
        ids, mask = ids_of(a, text)
        states = plain_states(a, ids, mask)[0]
        words = text.split()
        spans = a.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for cut, entry in ((0, 1), (2, 1)):
            rows, at = [], 0
            for word in words:
                start = text.index(word, at)
                at = start + len(word)
                own = [row for row, (s, e) in enumerate(spans) if s >= start and e <= at and e > s]
                rows.append(states[cut][0, own].mean(0))
            carried = (torch.stack(rows) @ kernel.matrix)[None]
            logits = upper_on_words(b, carried, entry)
            loss = -log_softmax(logits[0].numpy())[int(result.labels[number][-1])]
            assert result.text_loss[0, number, cut, entry] == pytest.approx(loss)


@torch.no_grad()
def upper_on_words(b, given, entry):
    """B's blocks on given states, by hand: the blocks one after another, then norm and classifier at the last place."""
    base = b.module.transformer
    length = given.shape[1]
    x = given
    mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)[None, None]
    for block in base.h[entry:]:
        x = block(x, attention_mask=mask)
    return b.module.score(base.ln_f(x)[:, -1])


def test_language_models_of_different_tokenizers_are_refused(tiny_model):
    with pytest.raises(Incomparable, match="different tokens"):
        run((tiny_model("bert-mlm"), tiny_model("gpt2")))


def test_states_of_different_tokenizers_fit_no_map(tiny_model):
    with pytest.raises(Incomparable, match="fitted on states of the same tokens"):
        run((tiny_model("bert-mlm"), tiny_model("gpt2-classifier")), LABELLED, kernels="ridge")


# -- statements ------------------------------------------------------------------------------------------------------


def made(values, errors=None, base=0.5, counts=100, scores=("accuracy", "loss", "kl", "agreement"), distinct=None):
    """A result of given main scores (r, m, L_A + 1, L_B + 1)."""
    values = np.asarray(values, dtype=float)
    runs, maps, cuts, entries = values.shape
    full = np.repeat(values[:, :, None], len(scores), 2)
    rows = np.full((runs, len(scores)), base)
    return StitchingResult(
        kernels=tuple("abcdef"[:maps]),
        scores=scores,
        values=full,
        errors=np.zeros_like(full) if errors is None else np.broadcast_to(np.asarray(errors, float), full.shape),
        own_a=rows,
        own_b=rows,
        own_b_errors=rows * 0,
        base=rows,
        gain_errors=np.broadcast_to(np.asarray(0.0 if errors is None else errors, float), values.shape),
        distinct_texts=counts if distinct is None else distinct,
        run_texts=np.full(runs, counts),
        base_name="majority class",
        task="classes",
        run_names=tuple(f"b, seed {run}" for run in range(runs)),
        counts=np.full(runs, counts),
        texts=("x", "y", "z"),
        labels=("0", "1", "0"),
        text_counts=np.array([1, 1, 1]),
        text_loss=np.zeros((maps, 3, cuts, entries)),
        text_hits=np.zeros((maps, 3, cuts, entries)),
        text_own_loss=np.zeros(3),
        text_own_hits=np.zeros(3),
        condition=np.ones(maps),
        explained=np.ones(maps),
        held_out=np.full((maps, cuts, entries), np.nan),
        identity_error=np.zeros(entries),
        by="tokens",
        shared=100,
    )


def test_beyond_the_base_rate_is_an_exact_test_that_allows_for_all_cells():
    values = np.full((1, 1, 3, 4), 0.5)
    values[0, 0, 1, 2], values[0, 0, 2, 2] = 0.65, 0.63
    result = made(values)
    expected = np.array(
        [[stats.binomtest(round(v * 100), 100, 0.5, alternative="greater").pvalue < 0.05 / 12 for v in row]
         for row in values[0, 0]]
    )  # fmt: skip
    assert np.array_equal(result.beyond_base("a"), expected)
    assert expected[1, 2]
    assert not expected[0, 0]


def test_random_answers_rarely_beat_the_base_rate():
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(300):
        values = rng.binomial(100, 0.5, (1, 1, 7, 7)) / 100
        false += made(values).beyond_base("a").any()
    assert false <= 25, "at 5 % for the whole grid, 15 of 300 are expected"


def test_an_interval_over_runs_is_students():
    values = 0.5 + 0.02 * np.random.default_rng(1).standard_normal((11, 1, 2, 2))
    low, high = made(values).interval("a")
    expected = stats.t.interval(0.95, 10, values[:, 0].mean(0), stats.sem(values[:, 0]))
    np.testing.assert_allclose((low, high), expected)


def test_runs_that_score_the_same_texts_are_no_more_texts():
    values = np.full((5, 1, 3, 3), 0.62)
    for distinct in (100, 300, 500):
        expected = stats.binomtest(round(0.62 * distinct), distinct, 0.5, alternative="greater").pvalue < 0.05 / 9
        assert made(values, distinct=distinct).beyond_base("a").all() == expected
    assert not made(values, distinct=100).beyond_base("a").any()
    assert made(values, distinct=500).beyond_base("a").all()


def test_losses_beat_the_base_rate_downward_and_by_text():
    values = np.array([[[[6.0, 5.0], [6.6, 5.8]]]])
    scores = ("loss", "kl", "agreement")
    result = made(values, errors=0.1, base=6.0, scores=scores)
    p = stats.t.sf((6.0 - values[0, 0]) / 0.1, 99)
    assert np.array_equal(result.beyond_base("a"), p < 0.05 / 4)
    assert np.array_equal(result.standing("a"), [[-1, 1], [-1, 0]])
    low, high = result.interval("a")
    np.testing.assert_allclose((high - low) / 2, 1.959964 * 0.1)
    several = made(np.repeat(values, 4, 0), errors=0.1, base=6.0, scores=scores, distinct=400)
    p = stats.t.sf((6.0 - values[0, 0]) / (0.1 / 2), 399)
    assert np.array_equal(several.beyond_base("a"), p < 0.05 / 4)
    assert several.standing("a")[1, 1] == 1


def test_gains_are_paired_by_text(tiny_model):
    from embcompare.measures.distributions import clustered_mean

    model = tiny_model("gpt2")
    result = run((model, model), kernels="permuted", sentences=8)
    log_p = np.log(unigram_of(model, result.texts))
    gains, counts = np.zeros((8, 3, 3)), result.text_counts.astype(float)
    for number, text in enumerate(result.texts):
        ids = model.tokenizer(text)["input_ids"]
        gains[number] = result.text_loss[0, number] * counts[number] + log_p[ids[1:]].sum()
    np.testing.assert_allclose(result.gain_errors[0, 0], clustered_mean(gains, counts)[1], rtol=1e-6)
    assert result.distinct_texts == 8


def unigram_of(model, scored):
    counts = np.ones(1300)
    for text in (*(text for text in TEXT if text not in scored), *shipped_corpus().sentences):
        np.add.at(counts, model.tokenizer(text)["input_ids"], 1)
    return counts / counts.sum()


def test_what_few_texts_cannot_tell_is_known():
    better = np.full((1, 1, 7, 9), 0.9)
    assert not made(better, counts=6, distinct=6).can_tell
    assert (made(better, counts=6, distinct=6).standing("a") == 0).all()
    assert made(better, counts=20, distinct=20).can_tell
    assert (made(better, counts=40, distinct=40).standing("a") == 1).all()
    undefined = made(np.full((1, 1, 2, 2), np.nan))
    assert (undefined.standing("a") == -1).all()


def test_wilson_is_scipys_interval():
    for right, n in ((0, 7), (3, 10), (50, 100), (100, 100)):
        low, high = wilson(np.array(right), n)
        expected = stats.binomtest(right, n).proportion_ci(method="wilson")
        np.testing.assert_allclose((low, high), (expected.low, expected.high), atol=1e-9)


def test_the_best_entry_of_a_cut_is_no_trivial_one():
    values = np.zeros((1, 1, 3, 3))
    values[0, 0] = [[0.9, 0.1, 0.2], [0.9, 0.3, 0.2], [0.9, 0.1, 0.4]]
    assert made(values).best_entries("a", "accuracy").tolist() == [0, 1, 2]
    assert made(values, scores=("loss", "kl", "agreement")).best_entries("a", "loss").tolist() == [1, 2, 1]


def test_an_advantage_over_a_control_is_paired_by_text():
    result = made(np.zeros((1, 2, 2, 2)))
    rng = np.random.default_rng(0)
    loss, counts = rng.random((2, 3, 2, 2)), np.array([1, 4, 2])
    result = dataclasses.replace(result, text_loss=loss, text_counts=counts)
    mean, error = result.advantage("a", "b")
    difference = loss[1] - loss[0]
    expected = (difference * counts[:, None, None]).sum(0) / counts.sum()
    np.testing.assert_allclose(mean, expected)
    rest = (difference - expected) * counts[:, None, None]
    np.testing.assert_allclose(error, np.sqrt(3 / 2 * (rest**2).sum(0)) / counts.sum())


def test_unknown_scores_and_maps_are_named():
    result = made(np.zeros((1, 1, 2, 2)))
    with pytest.raises(SettingsError, match="there are accuracy"):
        result.mean("a", "bleu")
    with pytest.raises(SettingsError, match="there are a"):
        result.mean("z", "loss")


def test_the_tables_hold_every_number(tiny_model):
    result = run((tiny_model("gpt2"), tiny_model("gpt2", 1)), runs=2)
    frame = result.to_frame()
    assert len(frame) == 2 * 4 * 9
    chosen = (frame["run"] == result.run_names[1]) & (frame["map"] == "permuted")
    row = frame[chosen & (frame.cut == 2) & (frame.entry == 1)]
    assert row.kl.item() == result.values[1, result.kernel("permuted"), 1, 2, 1]
    assert row.blocks_b.item() == 1
    examples = result.example_frame("permuted", 2, 1)
    assert examples.text.tolist() == list(result.texts)
    weighted = (examples.loss * examples.places).sum() / examples.places.sum()
    assert weighted == pytest.approx(result.values[0, result.kernel("permuted"), 0, 2, 1])


# -- bad input -------------------------------------------------------------------------------------------------------


def test_settings_that_cannot_be_are_refused():
    for changes in ({"kernels": "nothing"}, {"kernels": ""}, {"sentences": 3}, {"runs": 0}, {"mask_share": 0.0}):
        with pytest.raises(SettingsError):
            Stitching("a", "b", **changes)
    assert Stitching("a", "b", kernels="identity,ridge", also="c,d") == Stitching(
        "a", "b", kernels=" identity  ridge identity", also=" c, d "
    )
    paper = Stitching.paper("a", "b")
    assert (paper.runs, paper.tuned_blocks) == (11, 3)
    assert Stitching.paper("a", "b", runs=3).runs == 3


def test_identity_between_widths_is_left_out_and_alone_refused(tmp_path):
    from tiny import _gpt2, bytes_tokenizer

    models = []
    for number, width in enumerate((24, 36)):
        torch.manual_seed(number)
        _gpt2(n_embd=width)(1300).save_pretrained(tmp_path / str(number))
        bytes_tokenizer().save_pretrained(tmp_path / str(number))
        models.append(load_model(str(tmp_path / str(number))))
    result = run(models, kernels="pseudo_inverse, identity")
    assert result.kernels == ("pseudo_inverse",)
    assert any("24 wide" in notice for notice in result.notices)
    with pytest.raises(Incomparable, match="needs one width"):
        run(models, kernels="identity")


def test_labels_that_do_not_fit_are_refused(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2-classifier")
    with pytest.raises(SettingsError, match="have no labels"):
        run(models, PLAIN)
    with pytest.raises(SettingsError, match="LABEL_0, LABEL_1"):
        run(models, Corpus("strange", TEXT, tuple("good" for _ in TEXT)))
    with pytest.raises(SettingsError, match="All texts have the label"):
        run(models, Corpus("one", TEXT, tuple("LABEL_1" for _ in TEXT)))
    numbers = Corpus("numbers", TEXT, tuple(label[-1] for label in LABELS))
    named = run(models, LABELLED, kernels="identity")
    assert np.array_equal(run(models, numbers, kernels="identity").values, named.values)


def test_tuning_without_labels_or_texts_is_refused(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    with pytest.raises(SettingsError, match="has no labels"):
        run(models, PLAIN, tuned_blocks=1)
    with pytest.raises(SettingsError, match="left to learn from"):
        run(models, LABELLED, tuned_blocks=1, sentences=12)
    with pytest.raises(SettingsError, match="left to fit maps on"):
        run(models, PLAIN, kernels="ridge", sentences=12)


def test_models_that_answer_nothing_are_refused(tiny_model):
    with pytest.raises(Incomparable, match="no head that predicts tokens"):
        run((tiny_model("bert-mlm"), tiny_model("bert-plain")))
    with pytest.raises(Incomparable, match="encoder-decoder"):
        run((tiny_model("marian"), tiny_model("marian")))


def test_a_model_that_reads_both_ways_below_a_causal_one_is_warned_of(tiny_model, tmp_path):
    a = tiny_model("roberta")
    b = tiny_model("gpt2")
    result = run((a, b), kernels="pseudo_inverse")
    assert any("reads both ways" in notice for notice in result.notices)
    assert np.isnan(result.own_a).all()


def test_a_model_that_is_not_itself_when_stitched_is_refused(tiny_model, monkeypatch):
    original = stitching_single.Tail.states
    monkeypatch.setattr(stitching_single.Tail, "states", lambda self, *given: original(self, *given) * 1.01)
    with pytest.raises(UnsupportedFamily, match="is not itself"):
        run((tiny_model("gpt2"), tiny_model("gpt2", 1)))


def test_a_singular_embedding_is_refused_with_the_reason(tmp_path):
    folder = save_tiny("gpt2", tmp_path / "flat")
    model = load_model(str(folder))
    with torch.no_grad():
        model.module.transformer.wte.weight[:, 3] = model.module.transformer.wte.weight[:, 4]
    with pytest.raises(Incomparable, match=r"embedding of .*flat.* directions .* ridge") as caught:
        run((model, model), kernels="pseudo_inverse")
    assert "allow_singular" not in str(caught.value)
    assert np.isfinite(run((model, model), kernels="identity").values).all()


def test_texts_are_cut_to_what_both_models_read(tiny_model):
    long = Corpus("long", (" ".join(TEXT), *TEXT[:5]))
    result = run((tiny_model("gpt2"), tiny_model("gpt2", 1)), long, sentences=6, kernels="identity")
    assert any("cut to the 40 tokens" in notice for notice in result.notices)
    assert np.isfinite(result.values).all()


def test_cancelling_stops_between_cells(tiny_model):
    context = Context(PLAIN, stop_after=3, a=tiny_model("gpt2"), b=tiny_model("gpt2", 1))
    with pytest.raises(Cancelled):
        Stitching("a", "b", sentences=4).compute(context)
    assert len(context.reports) == 4


def test_progress_ends_at_the_end(tiny_model):
    context = Context(PLAIN, a=tiny_model("gpt2"), b=tiny_model("gpt2", 1))
    Stitching("a", "b", sentences=4, runs=2, kernels="ridge, identity").compute(context)
    assert context.reports[-1][0] == context.reports[-1][1]
    assert [each[0] for each in context.reports] == sorted(each[0] for each in context.reports)


# -- what the demo models show ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins():
    return load_model("demo/gpt2-a"), load_model("demo/gpt2-b")


def test_twins_share_a_space_that_controls_do_not(twins):
    """At the upper cuts the zero-shot loss is within half a nat of B's own; controls are 1.5 nats worse."""
    a, b = twins
    settings = Stitching("a", "b", sentences=40, kernels="orthogonal, permuted, identity")
    result = settings.compute(Context(shipped_corpus(), a=a, b=b))
    for cut, entry in ((4, 4), (5, 5), (6, 6)):
        loss, permuted, identity = (result.mean(name, "loss")[cut, entry] for name in result.kernels)
        assert loss < result.own_b[0, 0] + 0.5
        assert min(permuted, identity) > loss + 1.5
    assert result.identity_error.max() < 1e-5


def test_a_wider_model_below_the_sentiment_classifier_beats_the_majority_class():
    a, b = load_model("demo/gpt2-wide"), load_model("demo/gpt2-a-sentiment")
    settings = Stitching("a", "b", corpus="reviews", sentences=160, kernels="orthogonal, permuted")
    result = settings.compute(Context(shipped_reviews(), a=a, b=b))
    beyond = result.beyond_base("orthogonal")
    assert beyond.any()
    assert not beyond.all(), "the page must say where it does not"
    assert not result.beyond_base("permuted").any()


def test_a_classifier_tuned_in_every_run_learns_texts_that_are_not_scored(tiny_model, monkeypatch):
    from embcompare.models import tuning

    learned, original = [], tuning.tune_classifier

    def spy(model, sentences, labels, **options):
        learned.append((tuple(sentences), tuple(labels), options["blocks"], options["seed"]))
        return original(model, sentences, labels, **options)

    monkeypatch.setattr(tuning, "tune_classifier", spy)
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    before = {name: value.clone() for name, value in models[1].module.state_dict().items()}
    result = run(models, LABELLED, tuned_blocks=1, runs=2, kernels="identity", seed=4)
    assert result.task == "classes"
    assert [each[2:] for each in learned] == [(1, 4), (1, 5)]
    assert not set(learned[0][0]) & set(result.texts)
    assert set(learned[0][0]) | set(result.texts) == set(TEXT)
    assert learned[0][1] == tuple(LABELS[TEXT.index(text)] for text in learned[0][0])
    assert all("tuned" in name for name in result.run_names)
    assert result.identity_error.max() < 1e-5
    assert all(torch.equal(before[name], value) for name, value in models[1].module.state_dict().items())
    again = run(models, LABELLED, tuned_blocks=1, runs=2, kernels="identity", seed=4)
    assert np.array_equal(result.values, again.values)


# -- kinds of faults that once were ----------------------------------------------------------------------------------


def test_names_of_classes_count_before_their_numbers(tiny_model):
    import copy

    model = tiny_model("gpt2-classifier")
    stars = dataclasses.replace(model, module=copy.copy(model.module))
    stars.module.config = copy.deepcopy(model.module.config)
    for names, labels, expected in (
        (("1", "2", "3", "4", "5"), ("1", "2", "5", "4"), [0, 1, 4, 3]),
        (("1", "0"), ("0", "1"), [1, 0]),
        (("bad", "good"), ("1", "GOOD", "bad"), [1, 1, 0]),
    ):
        stars.module.config.id2label = dict(enumerate(names))
        assert stitching_tasks.match_labels(labels, stars)[1].tolist() == expected
    stars.module.config.id2label = {0: "value"}
    with pytest.raises(SettingsError, match="choose a classifier"):
        stitching_tasks.match_labels(("value",), stars)
    stars.module.config.id2label = {0: "a", 1: "b"}
    stars.module.config.problem_type = "multi_label_classification"
    with pytest.raises(SettingsError, match="choose a classifier"):
        stitching_tasks.match_labels(("a", "b"), stars)


@pytest.mark.parametrize(
    ("upper", "also"),
    [
        ("gpt2-classifier", "gpt2"),
        ("gpt2", "gpt2-classifier"),
        ("gpt2", "roberta"),
        ("gpt2-classifier", "bert-classifier"),
    ],
)
def test_models_above_that_are_asked_different_things_are_refused_before_anything_runs(tiny_model, upper, also):
    models = {"a": tiny_model("gpt2"), "b": tiny_model(upper, 1), "c": tiny_model(also, 2)}
    context = Context(LABELLED, **models)
    with pytest.raises(Incomparable, match=r"no repetitions of one experiment|special token"):
        Stitching("a", "b", also="c", sentences=4, kernels="identity").compute(context)
    assert not context.reports


def test_identity_is_left_out_of_all_runs_where_one_model_is_of_another_width(tiny_model, tmp_path):
    from tiny import _gpt2, bytes_tokenizer

    torch.manual_seed(5)
    _gpt2(n_embd=36)(1300).save_pretrained(tmp_path)
    bytes_tokenizer().save_pretrained(tmp_path)
    models = {"a": tiny_model("gpt2"), "b": tiny_model("gpt2", 1), "c": load_model(str(tmp_path))}
    result = Stitching("a", "b", also="c", sentences=4).compute(Context(PLAIN, **models))
    assert "identity" not in result.kernels
    assert result.values.shape[:2] == (2, 3)


@torch.no_grad()
def test_padding_without_a_direction_makes_no_cell_undefined(tiny_folders):
    model = load_model(str(tiny_folders("llama", 4)))
    model.module.model.embed_tokens.weight[model.module.config.pad_token_id] = 0
    result = run((model, model), kernels="anchors", sentences=6)
    assert np.isfinite(result.values).all()
    assert not any("NaN" in notice for notice in result.notices)


@torch.no_grad()
def test_a_token_without_a_direction_is_said(tiny_folders):
    model = load_model(str(tiny_folders("llama", 5)))
    model.module.model.embed_tokens.weight[model.tokenizer("dog")["input_ids"][0]] = 0
    result = run((model, model), kernels="anchors", sentences=12)
    assert np.isnan(result.values).any()
    assert any("(NaN)" in notice for notice in result.notices)


def test_a_causal_classifier_without_a_padding_token_reads_batches(tiny_model, tiny_folders):
    a, b = tiny_model("gpt2"), load_model(str(tiny_folders("gpt2-classifier", 3)))
    padded = run((a, b), LABELLED, kernels="identity", sentences=8)
    b.module.config.pad_token_id = None
    b.tokenizer.pad_token = None
    without = run((a, b), LABELLED, kernels="identity", sentences=8)
    np.testing.assert_allclose(without.values, padded.values, atol=1e-6)
    below = run((b, tiny_model("gpt2", 1)), PLAIN, kernels="identity")
    assert np.isnan(below.own_a).all()


def test_one_class_among_the_scored_is_said(tiny_model):
    labels = tuple("LABEL_1" if at == 0 else "LABEL_0" for at in range(len(TEXT)))
    models = tiny_model("gpt2"), tiny_model("gpt2-classifier")
    said = [run(models, Corpus("lone", TEXT, labels), kernels="identity", seed=seed).notices for seed in range(3)]
    assert any("always right" in notice for notices in said for notice in notices)


def test_texts_to_learn_from_are_spoken_of_as_parts_of_the_file(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    lone = Corpus("lone", TEXT, tuple("rare" if at == 0 else "common" for at in range(len(TEXT))))
    with pytest.raises(SettingsError, match="Of 12 texts of lone 8 are left to learn from"):
        run(models, lone, tuned_blocks=1)
    with pytest.raises(SettingsError, match="Text 2 of gap has no label"):
        run(models, Corpus("gap", TEXT, ("x", "", *("y" for _ in TEXT[2:]))), tuned_blocks=1)


def test_half_a_character_is_refused(tiny_model):
    with pytest.raises(SettingsError, match="half a character"):
        Stitching("a", "b", also="caf\udce9")


def test_a_cell_that_does_not_exist_has_no_table():
    result = made(np.zeros((1, 1, 2, 2)))
    for cut, entry in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(SettingsError, match="they are 0 to 1"):
            result.example_frame("a", cut, entry)
