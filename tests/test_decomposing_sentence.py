"""One text taken apart: every indicator, list and part is what plain formulas and the model's own logits give."""

import dataclasses

import numpy as np
import pytest
import torch
from decompositions import EXACT, own_states
from stitching import Context
from tiny import TINY

from embcompare import export, running
from embcompare.decomposition import Conventions, LinearConventions, Readout, decompose, decompose_tokens
from embcompare.demo import OFFERED
from embcompare.errors import Cancelled, Incomparable, InputError, SettingsError
from embcompare.experiments import term_run, term_vocabulary
from embcompare.experiments.decomposition_options import SPLITS
from embcompare.experiments.term_result import BIAS, SOURCE, SUM
from embcompare.experiments.term_sentence import SentenceTerms, SentenceTermsResult
from embcompare.models import demo_names
from embcompare.store import Store

TEXT = "an old dog is at sea"
TARGET = "the sea is at ten"
ENCODER_DECODERS = ("marian", "t5", "t5-gated", "mt5")
HEADLESS = ("bert-plain", "bert-classifier", "distilbert-classifier", "electra-discriminator", "t5-encoder")
TIED = ("gpt2-plain", "gpt2-classifier")


def run(a, b, stop_after=None, **settings):
    context = Context(None, stop_after, a=a, b=b)
    result = SentenceTerms("a", "b", **{"text": TEXT, **settings}).compute(context)
    assert context.reports[-1][0] == context.reports[-1][1] == len(context.reports)
    return result


def read(model, text=TEXT):
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    return ids, torch.ones_like(ids)


def plain(d, e):
    """The four indicators of terms (..., d) of states (..., d), from their definitions, indicators first."""
    dot, own, length = (d * e).sum(-1), np.sqrt((e * e).sum(-1)), np.sqrt((d * d).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([dot / own**2, dot / own / length, np.sqrt(((d - e) ** 2).sum(-1)), length / own])


def logits_of(out):
    return (out.logits if "logits" in out else out.prediction_logits)[0].detach().double().numpy()


def tolerance(name):
    """Relative to logits: the module's own, where it computes a norm or a softmax in float32, are that far off."""
    return 1e-9 if name.startswith(EXACT) else 1e-4


@pytest.mark.parametrize("name", TINY)
def test_every_family_is_taken_apart_exactly(tiny_model, name):
    model = tiny_model(name)
    result = run(model, tiny_model("gpt2-plain"), k=4, target=TARGET)
    (ids, mask), given = read(model), {}
    if name in ENCODER_DECODERS:
        source, source_mask = ids, mask
        labels = model.tokenizer(TARGET)["input_ids"]
        ids = torch.tensor([[model.module.config.decoder_start_token_id, *labels[:-1]]])
        mask, given = torch.ones_like(ids), {"source": source, "source_mask": source_mask}
        assert result.source_tokens_a == tuple(map(model.tokens.display, source[0].tolist()))
        assert (result.translation_a, result.own_translation_a) == (TARGET, False)
        assert result.special_a.tolist() == [True] + [False] * (len(labels) - 1)
    else:
        assert result.source_tokens_a is None
        assert result.translation_a is None
    own, out = own_states(model, ids, mask, given)
    states = np.stack([own[each][0].double().numpy() for each in sorted(own)])
    # lengths of the states, whichever way they are reached: |d - e| of a term that is zero is |e|
    first = result.of("a", "distance")[0, result.terms_a.index("self-attention")]
    np.testing.assert_allclose(first, np.linalg.norm(states[0], axis=-1), rtol=tolerance(name))
    np.testing.assert_allclose(result.of("a", "importance").sum(1), 1, atol=1e-9)
    assert result.residual_a < 1e-10
    assert result.source_residual_a < 1e-10
    np.testing.assert_allclose(result.sources_a[0].sum(), 1, atol=1e-9)
    if name in HEADLESS:
        for field in ("top", "top_logits", "bottom", "bottom_logits", "parts", "source_parts", "logit_residual"):
            assert getattr(result, f"{field}_a") is None
        assert result.names_a == ()
        assert any("has no head that predicts tokens, so its terms are not read" in each for each in result.notices)
        assert set(result.vocabulary_frame().model) == set(result.parts_frame().model) == {"b"}
        return
    assert result.logit_residual_a < 1e-10
    scale = np.abs(result.top_logits_a[-1]).max()
    np.testing.assert_allclose(result.parts_a.sum(0), result.top_logits_a[-1], atol=1e-9 * scale)
    np.testing.assert_allclose(
        result.source_parts_a.sum(0), result.top_logits_a[-1, result.position_a], atol=1e-9 * scale
    )
    if name in TIED:
        assert any("its config ties it to the input embedding" in each for each in result.notices)
        return
    logits, cap = logits_of(out)[:, : len(model.tokens)], model.anatomy.unembedding_softcap
    made = result.top_logits_a[-1] if cap is None else cap * np.tanh(result.top_logits_a[-1] / cap)
    assert (cap is not None) == any("squeezes its logits" in each for each in result.notices)
    scale = np.abs(logits).max()
    np.testing.assert_allclose(made, -np.sort(-logits, -1)[:, :4], atol=tolerance(name) * scale)
    np.testing.assert_allclose(
        np.take_along_axis(logits, result.top_a[-1], -1), made, atol=tolerance(name) * scale, err_msg="tokens"
    )


@pytest.mark.parametrize(
    ("name", "by", "options"),
    [("gpt2", "head", {"norm_bias": "correction"}), ("bert-mlm", "layer", {"mean": "own"}), ("llama", "none", {})],
)
def test_indicators_are_what_their_definitions_give_at_every_token(tiny_model, name, by, options):
    model = tiny_model(name)
    result = run(model, tiny_model("gpt2"), by=by, **options)
    ids, mask = read(model)
    every = list(decompose(model, ids, mask, by=SPLITS[by], options=Conventions(**options)))
    assert result.terms_a == every[0].names
    assert result.kinds_a == tuple(term.kind for term in every[0].terms)
    for row, terms in enumerate(every):
        assert result.layers_a[row] == terms.layer
        assert result.states_a[row].endswith("after final norm") == terms.after_norm
        expected = plain(terms.values[:, 0].numpy(), terms.hidden[0].numpy())
        np.testing.assert_allclose(result.values_a[:, row], expected, rtol=1e-9, atol=1e-12)
    assert result.tokens_a == tuple(model.tokens.display(int(token)) for token in ids[0])
    assert result.special_a.tolist() == [bool(int(token) in model.tokenizer.all_special_ids) for token in ids[0]]


@pytest.mark.parametrize(("name", "layer"), [("gpt2", None), ("gpt2", 1), ("llama", 2), ("gpt-neox", 0)])
def test_a_linear_heads_lists_are_terms_times_the_unembedding(tiny_model, name, layer):
    model = tiny_model(name)
    result = run(model, tiny_model("bert-plain"), layer_a=layer, k=6)
    ids, mask = read(model)
    own, _ = own_states(model, ids, mask, {})
    last = model.anatomy.n_layers
    state = (last, True) if layer in (None, last) else (layer, False)
    assert result.states_a[result.state_a] == ("embedding output", "block 1", "block 2, after final norm")[state[0]]
    (terms,) = (each for each in decompose(model, ids, mask) if (each.layer, each.after_norm) == state)
    weight = model.module.get_output_embeddings().weight.detach().numpy()[: len(model.tokens)]
    if not state[1]:
        # a lower state goes through the final norm with its own statistics: (x - m) g / s + b
        x, norm = terms.hidden, model.anatomy.final_norm
        mean = x.mean(-1, keepdim=True)
        scale = norm.gain / (x.var(-1, keepdim=True, unbiased=False) + norm.eps).sqrt()
        values = terms.values * scale
        values[-1] += norm.bias - mean * scale
    else:
        values = terms.values
    shares = values[:, 0].numpy() @ weight.T
    size = np.abs(shares).max()
    for row, each in enumerate(shares):
        if not np.ptp(each, axis=-1).any():
            assert (result.top_a[row] == result.bottom_a[row]).all()
            assert (result.top_a[row] == -1).all()
            assert not result.top_logits_a[row].any()
            continue
        for ids_found, found, ordered in (
            (result.top_a[row], result.top_logits_a[row], -np.sort(-each, -1)),
            (result.bottom_a[row], result.bottom_logits_a[row], np.sort(each, -1)),
        ):
            np.testing.assert_allclose(found, ordered[:, :6], atol=1e-9 * size)
            np.testing.assert_allclose(np.take_along_axis(each, ids_found, -1), found, atol=1e-9 * size)
    total, chosen = shares.sum(0), result.top_a[-1]
    np.testing.assert_allclose(result.bottom_logits_a[-1], np.sort(total, -1)[:, :6], atol=1e-9 * size)
    for row, each in enumerate(shares):
        np.testing.assert_allclose(result.parts_a[row], np.take_along_axis(each, chosen, -1), atol=1e-9 * size)
    assert not result.parts_a[-1].any()
    with torch.no_grad():
        lens = own[state] if state[1] else model.module.get_submodule(model.anatomy.sites["final_norm"])(own[state])
        expected = model.module.get_output_embeddings()(lens)[0].numpy()[:, : len(model.tokens)]
    np.testing.assert_allclose(-np.sort(-expected, -1)[:, :6], result.top_logits_a[-1], atol=tolerance(name) * size)


@pytest.mark.parametrize("mean", ["correction", "own"])
def test_a_masked_heads_lists_are_those_of_its_own_readout(tiny_model, mean):
    model = tiny_model("bert-mlm")
    result = run(model, tiny_model("gpt2"), mean=mean)
    ids, mask = read(model)
    *_, terms = decompose(model, ids, mask, options=Conventions(mean=mean))
    values, _ = Readout.of(model).before_embedding(terms, own_mean=mean == "own").tokens()
    decoder = model.module.cls.predictions.decoder
    shares = (values @ decoder.weight.T).detach()
    for row, each in enumerate(shares):
        np.testing.assert_allclose(result.top_logits_a[row], each.topk(10).values, rtol=1e-9, atol=1e-12)
    chosen = torch.from_numpy(result.top_a[-1])
    np.testing.assert_allclose(result.parts_a[-1], decoder.bias.detach()[chosen], rtol=1e-12)
    np.testing.assert_allclose(result.parts_a[0], shares[0].gather(-1, chosen), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "position", "layer", "options"),
    [
        ("gpt2", None, None, {}),
        ("gpt2", 2, 1, {"mean": "correction"}),
        ("gpt2", 4, 1, {}),
        ("llama", 3, None, {"gate": "held"}),
        ("bert-mlm", 4, None, {}),
        ("gemma2", 0, 2, {}),
    ],
)
def test_input_tokens_have_brought_what_the_whole_texts_split_says(tiny_model, name, position, layer, options):
    model = tiny_model(name)
    named = {"token_mean" if key == "mean" else key: value for key, value in options.items()}
    result = run(model, tiny_model("gpt2"), position_a=position, layer_a=layer, **named)
    ids, mask = read(model)
    inside = np.flatnonzero(~result.special_a)
    position = int(inside[-1]) if position is None else position
    assert result.position_a == position
    # the whole text, all tokens at once: in a causal model nothing behind the position may play a part
    *_, terms = decompose_tokens(model, ids, mask, chunk=99, options=LinearConventions(**options), layers=(layer or 2,))
    values, hidden = terms.values[:, 0, position].numpy(), terms.hidden[0, position].numpy()
    causal = name != "bert-mlm"
    if causal:
        assert not values[position + 1 : -1].any()
        values = np.concatenate([values[: position + 1], values[-1:]])
    np.testing.assert_allclose(result.sources_a, plain(values, hidden), rtol=1e-7, atol=1e-9)
    assert result.sources_a.shape[1] == (position + 1 if causal else ids.shape[1]) + 1
    size = np.abs(result.source_parts_a).max()
    np.testing.assert_allclose(result.source_parts_a.sum(0), result.top_logits_a[-1, position], atol=1e-9 * size)
    if name == "gpt2":
        if layer is not None:
            # a lower state goes through the final norm, where each part loses its own mean or the correction them all
            norm = model.module.transformer.ln_f
            scale = norm.weight.detach().numpy() / np.sqrt(hidden.var() + norm.eps)
            means = values.mean(-1, keepdims=True) if named.get("token_mean") != "correction" else np.zeros((1, 1))
            rest = 0 if means.any() else hidden.mean() * scale
            values = (values - means) * scale
            values[-1] += norm.bias.detach().numpy() - rest
        weight = model.module.lm_head.weight.detach().numpy()[result.top_a[-1, position]]
        np.testing.assert_allclose(result.source_parts_a[:-1], values @ weight.T, atol=1e-9 * size)


def test_at_the_embedding_output_a_token_is_its_own_only_source(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("gpt2", 1), layer_a=0, layer_b=0, position_a=3)
    np.testing.assert_allclose(result.sources_a[0], [0, 0, 0, 1, 0], atol=1e-12)
    assert (result.state_a, result.states_a[0]) == (0, "embedding output")
    attention = result.terms_a.index("self-attention")
    assert (result.top_a[attention] == -1).all()
    assert result.name("a", -1) == ""


def test_passes_and_blocks_play_no_part_and_the_same_settings_give_the_same_bits(tiny_model, monkeypatch):
    models = tiny_model("gpt2"), tiny_model("bert-mlm")
    one, same = run(*models), run(*models)
    monkeypatch.setattr(term_run, "CHUNK", 3)
    monkeypatch.setattr(term_vocabulary, "NUMBERS", 1)
    parts = run(*models)
    for item in dataclasses.fields(one):
        value, again, other = (getattr(each, item.name) for each in (one, same, parts))
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, again, equal_nan=True)
            np.testing.assert_allclose(other, value, rtol=1e-7, atol=1e-9)
        elif "residual" in item.name:
            assert value == again
            assert other < 1e-10
        else:
            assert value == again == other


def test_the_vocabulary_bounds_the_lists(tiny_model, monkeypatch):
    gpt2 = tiny_model("gpt-neox")
    result = run(gpt2, gpt2, k=50)
    assert result.top_a.max() < len(gpt2.tokens), "rows beyond the tokenizer's tokens have no name"
    assert result.names_a == tuple(gpt2.tokens.display(int(token)) for token in result.listed_a)
    assert result.name("a", int(result.top_a[-1, 0, 0])) == gpt2.tokens.display(int(result.top_a[-1, 0, 0]))


def test_a_long_text_is_cut_and_said(tiny_model, monkeypatch):
    gpt2, bert = tiny_model("gpt2"), tiny_model("bert-mlm")
    result = run(gpt2, bert, text=" ".join([TEXT] * 12))
    assert sum("1 text was cut to the 40 tokens" in notice for notice in result.notices) == 2
    assert (len(result.tokens_a), len(result.tokens_b)) == (40, 40)
    assert result.special_b[[0, -1]].all()
    assert result.position_b == 38
    monkeypatch.setattr(term_run, "LONGEST", 8)
    result = run(gpt2, bert, text=" ".join([TEXT] * 12))
    assert any("cut to the 8 tokens" in notice for notice in result.notices)
    assert len(result.tokens_b) == 8


def test_tokens_that_the_vocabulary_lacks_are_said(tiny_model):
    result = run(tiny_model("bert-mlm"), tiny_model("gpt2"), text="an old ☃")
    assert any("1 token is unknown to its vocabulary" in notice for notice in result.notices)
    assert "[UNK]" in result.tokens_a


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"text": " \n "}, SettingsError, "The text is empty"),
        ({"text": "a" * 5001}, SettingsError, "5,001 characters; give at most 5,000"),
        ({"text": "[SEP]"}, InputError, "The text has no token for"),
        ({"text": "half \ud800"}, SettingsError, "half a character"),
        ({"layer_a": 3}, SettingsError, r"Model A .* has no layer 3; its layers are 0, .* to 2"),
        ({"layer_b": 9}, SettingsError, r"Model B .* has no layer 9"),
        ({"layer_a": -1}, SettingsError, "smallest value is 0"),
        ({"position_a": 99}, SettingsError, r"Model A .* reads \d+ tokens of this text, numbered 0 to"),
        ({"k": 0}, SettingsError, "smallest value is 1"),
        ({"k": 51}, SettingsError, "largest value is 50"),
        ({"by": "token"}, SettingsError, "choose one of none, layer, head"),
        ({"gate": "open"}, SettingsError, "choose one of tangent, held"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tiny_model, settings, error, message):
    with pytest.raises(error, match=message):
        run(tiny_model("bert-mlm"), tiny_model("bert-untied"), **settings)


def test_vectors_and_what_does_not_fit_are_refused(tiny_model, monkeypatch):
    with pytest.raises(Incomparable, match="is a file of vectors"):
        SentenceTerms("a", "vectors/x", text=TEXT).compute(Context(None))
    monkeypatch.setattr(term_run, "KEPT_BYTES", 1000)
    with pytest.raises(SettingsError, match=r"has 4 terms, which take .* where 1\.0 kB may be used; give a shorter"):
        run(tiny_model("gpt2"), tiny_model("gpt2"))


def test_unknown_names_are_refused(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("gpt2"))
    with pytest.raises(SettingsError, match="no indicator 'length'"):
        result.of("a", "length")
    with pytest.raises(SettingsError, match="no side 'c'"):
        result.of("c", "cosine")


def test_cancelling_stops_between_steps(tiny_model):
    for reports in range(6):
        with pytest.raises(Cancelled):
            run(tiny_model("gpt2"), tiny_model("bert-mlm"), stop_after=reports)


def test_tables_hold_every_number(tiny_model):
    result = run(tiny_model("gpt2"), tiny_model("bert-mlm"), k=3, position_a=2)
    frame = result.to_frame()
    for side in "ab":
        own = frame[frame.model == side]
        for at, name in enumerate(result.indicators):
            assert np.array_equal(own[name], getattr(result, f"values_{side}")[at].ravel(), equal_nan=True)
    state, term, place = 1, 2, 3
    (row,) = frame[
        (frame.model == "b")
        & (frame.state == result.states_b[state])
        & (frame.term == result.terms_b[term])
        & (frame.place == place)
    ].to_dict("records")
    assert row["norm_ratio"] == result.values_b[3, state, term, place]
    assert (row["token"], row["layer"], row["kind"]) == (result.tokens_b[place], 1, "feed-forward")
    words = result.vocabulary_frame()
    assert len(words) == result.top_a.size + result.top_b.size
    (row,) = words[(words.model == "a") & (words.place == 1) & (words.term == SUM) & (words["rank"] == 2)].to_dict(
        "records"
    )
    assert row["top"] == result.name("a", int(result.top_a[-1, 1, 1]))
    assert row["top_logit"] == result.top_logits_a[-1, 1, 1]
    assert row["bottom_logit"] == result.bottom_logits_a[-1, 1, 1]
    parts = result.parts_frame()
    sums = parts[parts.model == "b"].groupby(["place", "rank"]).logit.sum().to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(sums, result.top_logits_b[-1], atol=1e-9)
    assert BIAS in set(parts.part)
    sources = result.source_frame()
    own = sources[sources.model == "a"]
    assert own.token.tolist() == [*result.tokens_a[:3], "correction", BIAS]
    assert own.place.tolist() == [0, 1, 2, -1, -1]
    assert np.array_equal(own.importance.to_numpy()[:-1], result.sources_a[0])
    np.testing.assert_allclose(own[["part1", "part2", "part3"]].sum(), result.top_logits_a[-1, 2], atol=1e-9)


def test_a_decoders_state_is_split_by_its_own_tokens_and_the_source(tiny_model):
    model = tiny_model("marian")
    result = run(model, model, target=TARGET, position_a=3, layer_a=1, by="layer", k=2)
    ids, mask = read(model)
    labels = model.tokenizer(TARGET)["input_ids"]
    decoder = torch.tensor([[model.module.config.decoder_start_token_id, *labels[:3]]])
    given = {"source": ids, "source_mask": mask}
    *_, terms = decompose_tokens(model, decoder, torch.ones_like(decoder), layers=(1,), chunk=8, **given)
    state = terms.hidden[0, 3].numpy()
    expected = plain(terms.values[:, 0, 3].numpy(), state)
    assert result.sources_a.shape == (4, 4 + 2)
    np.testing.assert_allclose(result.sources_a, expected, rtol=1e-9)
    frame = result.source_frame()
    assert frame[frame.model == "a"].token.tolist() == [*result.tokens_a[:4], SOURCE, "correction", BIAS]
    assert frame[frame.model == "a"].place.tolist() == [0, 1, 2, 3, -1, -1, -1]


def test_without_a_translation_the_decoder_reads_what_the_model_writes(tiny_model):
    model, other = tiny_model("marian"), tiny_model("gpt2")
    result = run(model, other)
    ids, mask = read(model)
    written = model.module.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=39, forced_eos_token_id=None
    )[0]
    assert result.own_translation_a
    assert result.translation_a == model.tokenizer.decode(written, skip_special_tokens=True)
    shown = [model.tokens.display(token) for token in written.tolist()]
    assert list(result.tokens_a) == shown[: len(result.tokens_a)]
    # at each place the token that it wrote next is the likeliest
    following = written[1 : 1 + len(result.tokens_a)].numpy()
    assert np.array_equal(result.top_a[-1, : len(following), 0], following)
    assert result.translation_b is None
    again = run(model, other, target=result.translation_a)
    assert not again.own_translation_a


def test_translations_that_hold_nothing_are_refused(tiny_model):
    model = tiny_model("marian")
    with pytest.raises(InputError, match="The translation has too few tokens"):
        run(model, model, target=model.tokenizer.eos_token)
    with pytest.raises(SettingsError, match="translation has 5,001 characters"):
        SentenceTerms("a", "b", text=TEXT, target="x" * 5001)


def test_demo_models_are_taken_apart_stored_and_exported_whole(tmp_path):
    text = "The whale swam under the ship."
    names = [name for name in demo_names() if name in OFFERED]
    for one, other in zip(names[::2], [*names[1::2], names[0]], strict=False):
        result = running.run(SentenceTerms(f"demo/{one}", f"demo/{other}", text=text, k=3), keep=False)
        for side in "ab":
            assert getattr(result, f"residual_{side}") < 1e-10
            assert getattr(result, f"source_residual_{side}") < 1e-10
            if getattr(result, f"top_{side}") is not None:
                assert getattr(result, f"logit_residual_{side}") < 1e-10
    settings = SentenceTerms(f"demo/{names[0]}", f"demo/{names[-1]}", text=text, by="layer")
    store = Store(tmp_path)
    first, again = running.run(settings, store=store), running.run(settings, store=store)
    assert isinstance(again, SentenceTermsResult)
    assert again.provenance["cached"]
    for item in dataclasses.fields(first):
        value, kept = getattr(first, item.name), getattr(again, item.name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, kept, equal_nan=True)
        elif item.name != "provenance":
            assert value == kept
    assert export.to_csv(again)
    assert export.to_json(again)
    assert export.to_npz(again)
