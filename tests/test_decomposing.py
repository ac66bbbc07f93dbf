"""The decomposition of a corpus: every mean, interval and loss is what plain formulas give, sentence by sentence."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from decompositions import EXACT, own_states
from scipy.special import log_softmax
from stitching import TEXT
from stitching import Context as Lent

from embcompare import export, running
from embcompare.decomposition import Conventions, decompose, decompose_source_target
from embcompare.errors import Cancelled, Incomparable, InputError, SettingsError
from embcompare.experiments import decomposition_run, decomposition_split, decomposition_texts, term_run
from embcompare.experiments.decomposition import Decomposition, DecompositionResult
from embcompare.experiments.decomposition_options import SPLITS
from embcompare.experiments.lens import LogitLens
from embcompare.experiments.term_sentence import SentenceTerms
from embcompare.store import Store
from embcompare.text.corpora import Corpus
from embcompare.text.encoding import encode

NAMES = ("importance", "cosine", "distance", "norm_ratio")
FEW = TEXT[:5]


class Context(Lent):
    def __init__(self, corpus, stop_after=None, states=None, **models):
        super().__init__(corpus, stop_after, **models)
        self.states = states


def run(a, b, texts=FEW, stop_after=None, **settings):
    context = Context(Corpus("few", tuple(texts)), stop_after, a=a, b=b)
    result = Decomposition("a", "b", **settings).compute(context)
    assert context.reports[-1][0] == context.reports[-1][1] == len(context.reports)
    return result


def alone(model, sentence):
    """One sentence unpadded: its ids, mask, and which tokens are text."""
    encoded = encode([sentence], model.tokenizer, model.tokens, 10**6)
    ids = torch.from_numpy(encoded.ids[0])[None]
    return ids, torch.ones_like(ids), encoded.is_text[0]


def plain(d, e):
    """The four indicators of one term (d,) of one state (d,), from their definitions."""
    dot, own, length = float(d @ e), float(np.sqrt(e @ e)), float(np.sqrt(d @ d))
    return dot / own**2, dot / own / length if length else np.nan, float(np.sqrt((d - e) @ (d - e))), length / own


def tables(model, sentences, by, options):
    """Indicators (4, states, terms, tokens) of text tokens and the text of each, one sentence at a time; the states
    that terms are compared with are the module's own.
    """
    values, texts = [], []
    for number, sentence in enumerate(sentences):
        ids, mask, is_text = alone(model, sentence)
        own, _ = own_states(model, ids, mask, {})
        found = []
        for terms in decompose(model, ids, mask, by=SPLITS[by], options=options):
            state = own[terms.layer, terms.after_norm][0].double().numpy()
            found.append(
                [[plain(d, e) for d, e in zip(each, state, strict=True)] for each in terms.values[:, 0].numpy()]
            )
        values.append(np.moveaxis(np.array(found), -1, 0)[..., is_text])
        texts += [number] * int(is_text.sum())
    return np.concatenate(values, -1), np.array(texts)


def bootstrapped(values, texts, seed):
    """Percentiles of the mean over 1,000 draws of whole texts, (..., tokens) -> (2, ...), by the definition."""
    groups = texts.max() + 1
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=1000)
    found = []
    for counts in drawn:
        weight = counts[texts]
        found.append((np.where(np.isnan(values), 0, values) * weight).sum(-1) / (~np.isnan(values) * weight).sum(-1))
    return np.nanpercentile(found, [2.5, 97.5], axis=0)


@pytest.mark.parametrize(
    ("one", "other", "by", "options"),
    [
        ("gpt2", "bert-mlm", "none", {}),
        ("opt-post-norm", "gpt-neox", "layer", {"mean": "own", "attention_bias": "attention"}),
        ("distilbert", "gpt2", "head", {"norm_bias": "correction"}),
        ("t5-encoder", "gpt2-plain", "layer", {}),
    ],
)
def test_all_indicators_are_what_their_definitions_give(tiny_model, one, other, by, options):
    models = tiny_model(one), tiny_model(other, 1)
    result = run(*models, by=by, ablation=False, seed=3, **options)
    assert result.indicators == NAMES
    for side, model, name in zip("ab", models, (one, other), strict=True):
        values, texts = tables(model, FEW, by, Conventions(**options))
        shape = values.shape[:3]
        assert getattr(result, f"mean_{side}").shape == shape
        assert getattr(result, f"tokens_{side}") == values.shape[-1]
        # Modules that compute a softmax or a norm in float32 are that far from the states in float64.
        off = 1e-9 if name.startswith(EXACT) else 1e-4
        close = {"rtol": off, "atol": off}
        with warnings.catch_warnings(action="ignore"):  # of slices that are NaN throughout
            mean, sd = np.nanmean(values, -1), np.nanstd(values, -1, ddof=1)
            low, high = bootstrapped(values, texts, 3)
        np.testing.assert_allclose(getattr(result, f"mean_{side}"), mean, **close)
        np.testing.assert_allclose(getattr(result, f"sd_{side}"), sd, **close)
        assert np.array_equal(getattr(result, f"undefined_{side}"), np.isnan(values).sum(-1))
        np.testing.assert_allclose(getattr(result, f"low_{side}"), low, **close)
        np.testing.assert_allclose(getattr(result, f"high_{side}"), high, **close)
        assert 0 <= getattr(result, f"residual_{side}") < 1e-10
    assert result.items == len(FEW)
    assert (result.loss_a, result.dropped_a, result.scored_a) == (None, (), 0)


def test_states_and_terms_are_named(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("bert-mlm"), by="head", ablation=False)
    assert result.states_a == ("embedding output", "block 1", "block 2", "block 2, after final norm")
    assert result.states_b == ("embedding output", "block 1", "block 2")
    assert result.layers_a.tolist() == [0, 1, 2, 2]
    heads = [f"self-attention, layer {layer}, head {head}" for layer in (1, 2) for head in range(3)]
    fed = [f"feed-forward, layer {layer}" for layer in (1, 2)]
    assert result.terms_a == ("input", *heads, *fed, "correction")
    assert result.kinds_a == ("input", *["self-attention"] * 6, *["feed-forward"] * 2, "correction")
    assert result.term_layers_a.tolist() == [-1, 1, 1, 1, 2, 2, 2, 1, 2, -1]
    assert result.term_heads_a.tolist() == [-1, 0, 1, 2, 0, 1, 2, -1, -1, -1]


def test_importances_add_up_and_a_finer_split_adds_up_to_the_coarser(tiny_model):
    models = tiny_model("gpt2"), tiny_model("bert-mlm")
    coarse, fine, finest = (run(*models, by=by, ablation=False) for by in SPLITS)
    for side in "ab":
        for result in (coarse, fine, finest):
            np.testing.assert_allclose(result.of(side, "importance").sum(1), 1, atol=1e-10)
        kinds = getattr(coarse, f"kinds_{side}")
        for result in (fine, finest):
            for kind, expected in zip(kinds, coarse.of(side, "importance").T, strict=True):
                own = [each == kind for each in getattr(result, f"kinds_{side}")]
                np.testing.assert_allclose(result.of(side, "importance")[:, own].sum(1), expected, atol=1e-10)


def nothing_and_each_term_dropped(model, sentences, by):
    """Losses (1 + terms, predictions) by the module's own head on the last state, and on it less a term."""
    causal, losses, texts = model.anatomy.blocks[0].attention.causal, [], []
    head = model.module.lm_head if causal else model.module.cls
    for number, sentence in enumerate(sentences):
        ids, mask, is_text = alone(model, sentence)
        *_, terms = decompose(model, ids, mask, by=SPLITS[by])
        own, out = own_states(model, ids, mask, {})
        last = own[max(own)]
        with torch.no_grad():
            logits = [out.logits, *(head(last - each) for each in terms.values)]
        at = np.flatnonzero(is_text[:-1] & is_text[1:]) if causal else np.flatnonzero(is_text)
        target = ids[0].numpy()[at + 1] if causal else ids[0].numpy()[at]
        losses.append([-log_softmax(each[0].numpy()[at], -1)[np.arange(len(at)), target] for each in logits])
        texts += [number] * len(at)
    return np.concatenate(losses, 1), np.array(texts)


@pytest.mark.parametrize(("name", "by"), [("gpt2", "none"), ("llama", "layer"), ("bert-mlm", "head")])
def test_losses_are_those_of_the_models_own_head_on_what_is_left(tiny_model, name, by):
    model = tiny_model(name)
    result = run(model, tiny_model("bert-plain"), by=by, seed=2)
    losses, texts = nothing_and_each_term_dropped(model, FEW, by)
    assert result.target_a == ("own token" if name == "bert-mlm" else "next token")
    assert result.dropped_a == ("nothing", *result.terms_a)
    assert result.scored_a == losses.shape[1]
    # llama's own RMS norms are computed in float32
    close = {"rtol": 1e-9, "atol": 1e-9} if name != "llama" else {"rtol": 1e-5, "atol": 1e-5}
    rises = losses - losses[0]
    for found, values in ((result.loss_a, losses), (result.rise_a, rises)):
        np.testing.assert_allclose(found[0], values.mean(1), **close)
        np.testing.assert_allclose(found[1:], bootstrapped(values, texts, 2), **close)
    assert (result.rise_a[:, 0] == 0).all()
    assert (result.loss_b, result.rise_b, result.dropped_b, result.scored_b) == (None, None, (), 0)
    assert any("bert-plain" in n and "no head that predicts tokens" in n for n in result.notices)


def test_the_loss_with_nothing_dropped_is_the_last_layers_in_the_lens(tiny_model, tmp_path):
    for pair in (("gpt2", "gpt2"), ("bert-mlm", "bert-untied")):
        models = {"a": tiny_model(pair[0]), "b": tiny_model(pair[1], 1)}
        lens = LogitLens("a", "b", null_draws=0, dtype="float64").compute(
            Context(Corpus("few", FEW), states=tmp_path, **models)
        )
        result = run(models["a"], models["b"])
        assert (result.target_a, result.scored_a) == (lens.target, lens.targets_a)
        assert result.loss_a[0, 0] == pytest.approx(lens.within_a[-1, -1], rel=1e-6)
        assert result.loss_b[0, 0] == pytest.approx(lens.within_b[-1, -1], rel=1e-6)


def test_batches_and_groups_of_drops_play_no_part(tiny_model, monkeypatch):
    models = tiny_model("gpt2"), tiny_model("bert-mlm")
    whole, again = run(*models, by="layer"), run(*models, by="layer")
    monkeypatch.setattr(decomposition_texts, "BATCH_TOKENS", 9)
    monkeypatch.setattr(decomposition_run, "DROPS", 2)
    parts = run(*models, by="layer")
    for item in dataclasses.fields(whole):
        one, same, other = (getattr(each, item.name) for each in (whole, again, parts))
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, same, equal_nan=True)
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-11)
        elif item.name.startswith("residual"):
            assert one == same
        else:
            assert one == same == other


def test_the_residual_shown_is_the_largest_of_any_state(tiny_model, monkeypatch):
    def spoilt(*args, **named):
        for number, terms in enumerate(decompose(*args, **named)):
            yield dataclasses.replace(terms, residual=(1e-8, 4e-8, 2e-8, 3e-8)[number])

    for module, settings in (
        (decomposition_split, Decomposition("a", "b")),
        (term_run, SentenceTerms("a", "b", "at ten")),
    ):
        monkeypatch.setattr(module, "decompose", spoilt)
        model = tiny_model("gpt2")
        result = settings.compute(Context(Corpus("few", FEW), a=model, b=model))
        assert result.residual_a == result.residual_b == 4e-8


def test_memory_bounds_the_batches(tiny_model, monkeypatch):
    texts = decomposition_texts.TextsOf.of(tiny_model("gpt2"), TEXT)
    monkeypatch.setattr(decomposition_texts, "BATCH_BYTES", 8 * 24 * 10 * 20)
    for batch in texts.batches(10):
        lengths = [len(texts.encoded.ids[text]) for text in batch]
        assert len(batch) == 1 or max(lengths) * len(batch) <= 20
    assert sorted(np.concatenate(texts.batches(10))) == list(range(len(TEXT)))


def test_special_tokens_enter_no_number(tiny_model):
    bert, gpt2 = tiny_model("bert-mlm"), tiny_model("gpt2")
    result = run(bert, gpt2, ["the old [SEP] man"])
    plainly = len(bert.tokenizer("the old man", add_special_tokens=False)["input_ids"])
    assert result.tokens_a == result.scored_a == plainly
    values, _ = tables(bert, ["the old [SEP] man"], "none", None)
    np.testing.assert_allclose(result.of("a", "importance"), values[0].mean(-1), atol=1e-10)
    ended = f"the old {gpt2.tokenizer.eos_token} man"
    after = run(gpt2, gpt2, [ended])
    _, mask, is_text = alone(gpt2, ended)
    assert after.tokens_a == int(is_text.sum()) < mask.shape[1]
    assert after.scored_a == int((is_text[:-1] & is_text[1:]).sum())


def test_predictions_are_drawn_and_said(tiny_model):
    model = tiny_model("gpt2")
    result = run(model, model, positions=6, seed=5)
    losses, _ = nothing_and_each_term_dropped(model, FEW, "none")
    chosen = np.sort(np.random.default_rng([5, 1]).choice(losses.shape[1], 6, replace=False))
    np.testing.assert_allclose(result.loss_a[0], losses[:, chosen].mean(1), rtol=1e-9)
    np.testing.assert_allclose(result.loss_b, result.loss_a)
    assert result.scored_a == 6
    assert any(f"6 of {losses.shape[1]} predictions were drawn" in notice for notice in result.notices)
    assert not np.allclose(run(model, model, positions=6, seed=6).loss_a[0], result.loss_a[0])


def test_what_is_asked_of_each_model_is_said(tiny_model):
    gpt2, bert, llama = tiny_model("gpt2"), tiny_model("bert-mlm"), tiny_model("llama")
    mixed = " ".join(run(gpt2, bert).notices)
    assert "the next token and" in mixed
    assert "the token it stands on, so their losses do not compare" in mixed
    assert "copying it" in mixed
    assert "per token of the model's own" in " ".join(run(gpt2, llama).notices)
    assert run(gpt2, gpt2).notices == ()


def test_terms_of_length_zero_are_counted_and_said(tiny_model):
    result = run(tiny_model("llama"), tiny_model("gpt2"), ablation=False)
    correction, tokens = result.terms_a.index("correction"), result.tokens_a
    assert (result.undefined_a[result.at("cosine"), :, correction] == tokens).all()
    assert np.isnan(result.of("a", "cosine")[:, correction]).all()
    assert (result.of("a", "importance")[:, correction] == 0).all()
    (said,) = [notice for notice in result.notices if "undefined" in notice]
    assert f"{3 * tokens:,} values of the cosine are undefined" in said
    assert "(correction)" in said
    attention = result.terms_b.index("self-attention")
    assert result.undefined_b[:, 0, attention].tolist() == [0, result.tokens_b, 0, 0]


def test_one_sentence_has_no_interval(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("gpt2", 1), FEW[:1])
    assert np.isfinite(result.of("a", "importance")).all()
    for field in (result.low_a, result.high_b, result.loss_a[1:], result.rise_b[1:]):
        assert np.isnan(field).all()


def test_only_the_first_sentences_are_read(tiny_model):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    few, many = run(*models, FEW[:2]), run(*models)
    first = Decomposition("a", "b", sentences=2).compute(Context(Corpus("few", FEW), a=models[0], b=models[1]))
    assert np.array_equal(first.mean_a, few.mean_a, equal_nan=True)
    assert not np.allclose(first.of("a", "distance"), many.of("a", "distance"))


def test_long_sentences_are_cut_and_empty_ones_left_out(tiny_model):
    gpt2, bert = tiny_model("gpt2"), tiny_model("bert-mlm")
    long = " ".join(["the old man went to sea"] * 12)
    result = run(bert, gpt2, ["[SEP]", "the dog", long])
    assert result.items == 2
    assert any("1 sentence was left out" in notice for notice in result.notices)
    assert sum("1 text was cut to the 40 tokens" in notice for notice in result.notices) == 2
    assert result.tokens_a == len(bert.tokenizer("the dog", add_special_tokens=False)["input_ids"]) + 38
    with pytest.raises(InputError, match="No sentence of few has a token"):
        run(bert, gpt2, ["[SEP]", "[SEP] [CLS]"])


def test_without_a_next_token_nothing_is_scored(tiny_model):
    result = run(tiny_model("llama"), tiny_model("bert-mlm"), ["a"])
    assert result.loss_a is None
    assert result.loss_b.shape == (3, 5)
    assert any("is followed by another" in notice for notice in result.notices)


def translated(model, source, target):
    """One pair as the decoder reads it, by the formula: start token, then the target's tokens without the last."""
    labels = model.tokenizer(target)["input_ids"]
    start = model.module.config.decoder_start_token_id
    read, (ids, mask, _) = torch.tensor([[start, *labels[:-1]]]), alone(model, source)
    special = set(model.tokenizer.all_special_ids) - {model.tokenizer.unk_token_id}
    is_text = np.array([False, *(label not in special for label in labels[:-1])])
    return read, torch.ones_like(read), is_text, {"source": ids, "source_mask": mask}, labels


@pytest.mark.parametrize(
    ("name", "split"), [("marian", "additive"), ("t5-gated", "additive"), ("marian", "source-target")]
)
def test_decoders_states_are_split_beside_their_sources(tiny_model, name, split):
    model, other = tiny_model(name), tiny_model(name, 1)
    targets = tuple(reversed(FEW))
    context = Context(Corpus("pairs", tuple(FEW), targets=targets), a=model, b=other)
    settings = {"split": split} if split != "additive" else {"mean": "own", "by": "layer"}
    result = Decomposition("a", "b", seed=3, **settings).compute(context)
    kinds = (
        {"target", "source"} if split != "additive" else {"input", "self-attention", "cross-attention", "feed-forward"}
    )
    assert set(result.kinds_a) == kinds | {"correction"}
    assert result.target_a == result.target_b == "next target token"
    found, losses, texts = [], [], []
    for number, (source, target) in enumerate(zip(FEW, targets, strict=True)):
        ids, mask, is_text, given, labels = translated(model, source, target)
        own, out = own_states(model, ids, mask, given)
        stream = (
            decompose(model, ids, mask, by=("layer",), options=Conventions(mean="own"), **given)
            if split == "additive"
            else decompose_source_target(model, ids, mask, **given)
        )
        for_text = []
        for terms in stream:
            state = own[terms.layer, terms.after_norm][0].double().numpy()[is_text]
            values = terms.values[:, 0].numpy()[:, is_text]
            for_text.append([[plain(d, e) for d, e in zip(each, state, strict=True)] for each in values])
        found.append(np.moveaxis(np.array(for_text), -1, 0))
        special = set(model.tokenizer.all_special_ids) - {model.tokenizer.unk_token_id}
        at = [place for place, label in enumerate(labels) if label not in special]
        logits = out.logits[0].double().numpy()
        losses += [-log_softmax(logits[place])[labels[place]] for place in at]
        texts += [number] * len(at)
    every, off = np.concatenate(found, -1), 1e-9 if name.startswith(EXACT) else 1e-4
    with warnings.catch_warnings(action="ignore"):
        np.testing.assert_allclose(result.mean_a, np.nanmean(every, -1), rtol=off, atol=off)
    assert result.tokens_a == every.shape[-1]
    assert result.scored_a == len(losses)
    np.testing.assert_allclose(result.loss_a[0, 0], np.mean(losses), rtol=off)
    np.testing.assert_allclose(result.of("a", "importance").sum(1), 1, atol=1e-9)


def test_an_encoder_decoder_and_another_model_are_taken_apart_side_by_side(tiny_model):
    models = {"a": tiny_model("marian"), "b": tiny_model("gpt2")}
    result = Decomposition("a", "b").compute(Context(Corpus("pairs", tuple(FEW), targets=tuple(FEW)), **models))
    alone_b = run(models["b"], models["b"])
    assert np.array_equal(result.mean_b, alone_b.mean_b, equal_nan=True)
    assert any(
        "next token of the translation and b" in each or "the next token of the translation" in each
        for each in result.notices
    )
    with pytest.raises(InputError, match="few holds no translations"):
        run(models["a"], models["b"])
    with pytest.raises(Incomparable, match="reads one text only, so its states are not split by source and target"):
        Decomposition("a", "b", split="source-target").compute(
            Context(Corpus("pairs", tuple(FEW), targets=tuple(FEW)), **models)
        )
    with pytest.raises(SettingsError, match="not split by head"):
        Decomposition("a", "b", split="source-target", by="head")


def test_pairs_of_which_the_decoder_reads_nothing_are_left_out(tiny_model):
    model = tiny_model("marian")
    corpus = Corpus("pairs", ("the dog", "an old man"), targets=(model.tokenizer.eos_token, "at ten"))
    result = Decomposition("a", "b").compute(Context(corpus, a=model, b=model))
    assert result.items == 1
    assert any("1 sentence was left out" in notice for notice in result.notices)


def test_what_cannot_be_is_refused_in_one_sentence(tiny_model, monkeypatch):
    models = tiny_model("gpt2"), tiny_model("gpt2", 1)
    for changes, message in (
        ({"by": "token"}, "choose one of none, layer, head"),
        ({"mean": "nobody"}, "choose one of correction, own"),
        ({"sentences": 0}, "smallest value is 1"),
        ({"positions": 0}, "smallest value is 1"),
    ):
        with pytest.raises(SettingsError, match=message):
            run(*models, **changes)
    with pytest.raises(Incomparable, match="is a file of vectors"):
        Decomposition("vectors/x", "b").compute(Context(None))
    monkeypatch.setattr(decomposition_run, "KEPT_BYTES", 1000)
    with pytest.raises(SettingsError, match=r"has 10 terms, which take .* where 1\.0 kB may be used; read fewer"):
        run(*models, by="head")
    monkeypatch.setattr(decomposition_texts, "TEXT_BYTES", 100)
    with pytest.raises(SettingsError, match="where 100 bytes may be used"):
        run(*models, by="head")


def test_unknown_names_are_refused(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("gpt2"), FEW[:2], ablation=False)
    with pytest.raises(SettingsError, match="no indicator 'length'"):
        result.of("a", "length")
    with pytest.raises(SettingsError, match="no side 'c'"):
        result.of("c", "cosine")


def test_cancelling_stops_between_states(tiny_model):
    for reports in (1, 4, 6):
        with pytest.raises(Cancelled):
            run(tiny_model("gpt2"), tiny_model("bert-mlm"), stop_after=reports)


def test_tables_hold_every_number(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("bert-mlm"), by="layer")
    frame = result.to_frame()
    assert len(frame) == result.mean_a.size + result.mean_b.size
    for side in "ab":
        own = frame[frame.model == side]
        for name in ("mean", "sd", "low", "high", "undefined"):
            assert np.array_equal(own[name], getattr(result, f"{name}_{side}").ravel(), equal_nan=True)
    state, term = 2, 3
    (row,) = frame[
        (frame.model == "a")
        & (frame.state == result.states_a[state])
        & (frame.term == result.terms_a[term])
        & (frame.indicator == "distance")
    ].to_dict("records")
    assert row["mean"] == result.mean_a[2, state, term]
    assert (row["layer"], row["kind"], row["term_layer"], row["head"]) == (2, "feed-forward", 1, -1)
    losses = result.ablation_frame()
    assert losses.dropped.tolist() == [*result.dropped_a, *result.dropped_b]
    assert np.array_equal(losses[losses.model == "b"].rise_high, result.rise_b[2])
    assert not len(run(tiny_model("gpt2"), tiny_model("gpt2"), FEW[:2], ablation=False).ablation_frame())


def test_demo_models_decompose_are_stored_and_exported_whole(tmp_path):
    settings = Decomposition("demo/gpt2-a", "demo/bert-a", sentences=6)
    store = Store(tmp_path)
    one, again = running.run(settings, store=store), running.run(settings, store=store)
    assert isinstance(again, DecompositionResult)
    assert again.provenance["cached"]
    for item in dataclasses.fields(one):
        value, kept = getattr(one, item.name), getattr(again, item.name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, kept, equal_nan=True)
        elif item.name != "provenance":
            assert value == kept
    for side in "ab":
        assert getattr(one, f"residual_{side}") < 1e-10
        np.testing.assert_allclose(one.of(side, "importance").sum(1), 1, atol=1e-10)
    assert export.to_csv(again)
    assert export.to_json(again)
    assert export.to_npz(again)
