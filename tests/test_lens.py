"""The logit lens: the last layer is the model's own prediction, and everything else is what plain formulas give."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr
from scipy.stats import entropy as scipy_entropy
from tiny import TINY

from embcompare import export
from embcompare.errors import Cancelled, Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments import lens_run, lens_shown
from embcompare.experiments.lens import LogitLens, LogitLensResult
from embcompare.experiments.lens_pairing import equal_depths, match_positions, wrong_pairings
from embcompare.experiments.lens_result import BETWEEN
from embcompare.experiments.lens_sides import read_side
from embcompare.models import ModelSpec, heads, load_model
from embcompare.models.heads import read_head
from embcompare.text.corpora import Corpus, shipped_corpus
from embcompare.text.words import TokenIndex

CAUSAL = (
    "gpt2",
    "gpt2-scaled-by-layer",
    "gpt-neox",
    "gpt-neox-sequential",
    "opt",
    "opt-post-norm",
    "opt-plain-norms",
    "opt-narrow-embedding",
    "llama",
    "llama-tied-biased",
    "mistral",
    "qwen2",
    "gemma",
    "gemma2",
)
MASKED = (
    "bert-mlm",
    "bert-pretraining",
    "bert-untied",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra-generator",
    "electra-square",
)
WITHOUT_HEAD_BUT_TIED = ("gpt2-plain", "gpt2-classifier")
REFUSED = (
    "bert-plain",
    "bert-classifier",
    "distilbert-classifier",
    "electra-discriminator",
    "marian",
    "t5",
    "t5-gated",
    "mt5",
    "t5-encoder",
)
TEXT = ("the old man went to sea", "a big dog ran at me and him", "no one is as far off as he", "we go up or in")


class Context:
    device = "cpu"

    def __init__(self, models, states, corpus, stop_after=None):
        self.models, self.states, self.text = models, states, corpus
        self.reports, self.stop_after = [], stop_after

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def report(self, done, total, message, partial=None):
        self.reports.append((done, total, message, partial))
        if self.stop_after is not None and len(self.reports) > self.stop_after:
            raise Cancelled("stopped")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


@pytest.fixture
def context(tiny_model, states):
    models = {"a": tiny_model("gpt2", 1), "b": tiny_model("gpt2", 2), "llama": tiny_model("llama", 1)}
    models |= {"bert": tiny_model("bert-mlm", 1), "bert2": tiny_model("bert-mlm", 2), "roberta": tiny_model("roberta")}
    return Context(models, states, Corpus("few", TEXT))


def side_of(model, corpus, states, dtype=torch.float64):
    return read_side(model, read_head(model, dtype), corpus, Context({}, states, corpus))


def own_logits(model, sentence):
    """What the module itself gives for one sentence alone, unpadded: (t, V) in float64."""
    given = model.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        out = model.module(input_ids=given["input_ids"], attention_mask=torch.ones_like(given["input_ids"]))
    return (out.logits if "logits" in out else out.prediction_logits)[0].double().numpy()


def softmax(logits, axis=-1):
    moved = np.exp(logits - logits.max(axis, keepdims=True))
    return moved / moved.sum(axis, keepdims=True)


def same(first, second, leave=("provenance",)):
    for item in dataclasses.fields(first):
        one, other = getattr(first, item.name), getattr(second, item.name)
        if item.name in leave:
            continue
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other, err_msg=item.name)
            assert one.dtype == other.dtype, item.name
        else:
            assert one == other, item.name


# --- the head


def test_every_tiny_model_is_either_read_or_refused_here():
    assert {*CAUSAL, *MASKED, *WITHOUT_HEAD_BUT_TIED, *REFUSED} == set(TINY)


@pytest.mark.parametrize("name", [*CAUSAL, *MASKED])
def test_the_last_layer_gives_the_models_own_logits(tiny_model, states, name):
    """In one padded batch of sentences of unequal length, against each sentence alone: padding plays no part."""
    model, corpus = tiny_model(name), Corpus("few", TEXT)
    side = side_of(model, corpus, states)
    index = side.states.index
    assert len(index) > 15
    with torch.no_grad():
        found = side.logits(np.arange(len(index)))[-1].numpy()
    for number, sentence in enumerate(TEXT):
        own, rows = own_logits(model, sentence), np.flatnonzero(index.sentence == number)
        expected = own[index.position[rows]]
        assert found.shape[1] == expected.shape[1]
        np.testing.assert_allclose(found[rows], expected, atol=2e-5 * np.abs(expected).max())


def lower_layers(name, module):
    """How each family brings a state before its final norm to logits, written out."""
    if name == "gpt2":
        return lambda h: module.lm_head(module.transformer.ln_f(h))
    if name == "gpt-neox":
        return lambda h: module.lm_head(module.gpt_neox.final_layer_norm(h))
    if name == "opt-narrow-embedding":
        return lambda h: module.lm_head(module.model.decoder.project_out(h))
    if name == "opt":
        return lambda h: module.lm_head(module.model.decoder.final_layer_norm(h))
    if name == "gemma2":
        cap = module.config.final_logit_softcapping
        return lambda h: cap * torch.tanh(module.lm_head(module.model.norm(h)) / cap)
    if name == "distilbert":
        tail = lambda h: module.vocab_layer_norm(module.activation(module.vocab_transform(h)))  # noqa: E731
        return lambda h: module.vocab_projector(tail(h))
    if name == "electra-generator":
        return lambda h: module.generator_lm_head(module.generator_predictions(h))
    return (lambda h: module.lm_head(h)) if name == "roberta" else (lambda h: module.cls(h))


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "gpt-neox",
        "opt",
        "opt-narrow-embedding",
        "gemma2",
        "distilbert",
        "electra-generator",
        "roberta",
        "bert-mlm",
    ],
)
def test_lower_layers_go_through_norm_and_head_once(tiny_model, states, name):
    model, corpus = tiny_model(name), Corpus("few", TEXT)
    side, module = side_of(model, corpus, states), model.module
    rows = np.arange(5)
    with torch.no_grad():
        found = side.logits(rows)
        for layer in range(side.layers):
            before = torch.as_tensor(np.array(side.states.layer(layer, before_norm=True)[rows])).double()
            expected = lower_layers(name, module)(before)
            np.testing.assert_allclose(found[layer], expected, atol=2e-5 * float(expected.abs().max()))


def test_a_head_that_is_read_wrongly_is_refused(tiny_model, monkeypatch):
    monkeypatch.setitem(heads._HEADS, "bert", ())
    with pytest.raises(UnsupportedFamily, match="does not compute its logits as the family 'bert' does"):
        read_head(tiny_model("bert-mlm"), torch.float32)
    monkeypatch.setitem(heads._HEADS, "bert", ("cls.nothing",))
    with pytest.raises(UnsupportedFamily, match="has no cls.nothing"):
        read_head(tiny_model("bert-mlm"), torch.float32)


def test_reading_a_head_leaves_no_hook_and_changes_nothing(tiny_model):
    module = tiny_model("gemma2").module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    head = read_head(tiny_model("gemma2"), torch.float32)
    assert head.weight.dtype == torch.float32
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert next(module.parameters()).dtype == torch.float64


@pytest.mark.parametrize("name", WITHOUT_HEAD_BUT_TIED)
def test_a_causal_model_without_its_head_is_read_through_the_embedding_it_ties(tiny_model, states, name):
    model, corpus = tiny_model(name), Corpus("few", TEXT)
    side = side_of(model, corpus, states)
    last = np.array(side.states.layer(side.layers - 1)).astype(np.float64)
    expected = last @ model.module.get_input_embeddings().weight.numpy().T
    with torch.no_grad():
        np.testing.assert_allclose(side.logits(np.arange(len(last)))[-1], expected, atol=1e-6)
    result = LogitLens("x", "x", null_draws=0).compute(Context({"x": model}, states, corpus))
    assert any("came without its head" in notice for notice in result.notices)


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_token_head_are_refused_with_what_could_be_done(tiny_model, states, name):
    context = Context({"x": tiny_model(name)}, states, Corpus("few", TEXT))
    with pytest.raises(Incomparable, match="representation-similarity"):
        LogitLens("x", "x").compute(context)
    assert not context.reports


def test_real_splade_is_read_and_minilm_refused(splade_folder, minilm_folder, states):
    splade, minilm = load_model(str(splade_folder)), load_model(str(minilm_folder))
    corpus = Corpus("few", TEXT)
    side = side_of(splade, corpus, states, torch.float32)
    rows = np.flatnonzero(side.states.index.sentence == 1)
    expected = own_logits(splade, TEXT[1])[side.states.index.position[rows]]
    with torch.no_grad():
        np.testing.assert_allclose(side.logits(rows)[-1], expected, atol=1e-4 * np.abs(expected).max())
    with pytest.raises(Incomparable, match="no head that predicts tokens"):
        LogitLens("s", "m").compute(Context({"s": splade, "m": minilm}, states, corpus))


# --- the numbers


def plain(model, corpus, states):
    """Every layer's distribution at every text token, float64 (L, n, V), from the module's own parts, and the index."""
    from embcompare.activations import capture

    captured = capture(model, corpus, folder=states)
    module, layers = model.module, []
    with torch.no_grad():
        for layer in captured.layers:
            h = torch.as_tensor(np.array(captured.layer(layer))).double()
            through = module.lm_head if layer == captured.n_layers else lower_layers("gpt2", module)
            layers.append(softmax(through(h).numpy()))
    return np.stack(layers), captured.index


def test_all_means_are_what_scipy_gives(context, states):
    k = 7
    result = LogitLens("a", "b", dtype="float64", k=k, null_draws=3).compute(context)
    (p, index), (q, other) = (plain(context.models[name], context.text, states) for name in "ab")
    assert np.array_equal(index.token, other.token)
    n, sentence = len(index), index.sentence
    assert (result.positions, result.items, result.k) == (n, len(TEXT), k)
    shared = np.flatnonzero(~context.models["a"].tokens.special)
    assert result.shared == len(shared) < p.shape[-1]

    def mean_and_error(values):
        sums = np.array([values[sentence == each].sum() for each in range(len(TEXT))])
        counts = np.bincount(sentence)
        rest = sums - counts * values.mean()
        c = len(TEXT)
        return values.mean(), np.sqrt(c / (c - 1) * (rest**2).sum()) / n

    def common(x, y):
        return np.array([len(set(np.argsort(-a)[:k]) & set(np.argsort(-b)[:k])) / k for a, b in zip(x, y, strict=True)])

    def between(x, y):
        x, y = (z[:, shared] / z[:, shared].sum(1, keepdims=True) for z in (x, y))
        return (jensenshannon(x, y, axis=1) ** 2, rel_entr(x, y).sum(1), rel_entr(y, x).sum(1), common(x, y))

    _, partners = wrong_pairings(n, 3, 0)
    for i in range(3):
        for j in range(3):
            for at, values in enumerate(between(p[i], q[j])):
                mean, error = mean_and_error(values)
                assert result.values[at, i, j] == pytest.approx(mean, abs=1e-9)
                assert result.spread[at, i, j] == pytest.approx(error, abs=1e-9)
            wrong = np.array([[v.mean() for v in between(p[i], q[j][partner])] for partner in partners])
            np.testing.assert_allclose(result.null_mean[:, i, j], wrong.mean(0), atol=1e-9)
            np.testing.assert_allclose(result.null_sd[:, i, j], wrong.std(0, ddof=1), atol=1e-9)
    follows = np.flatnonzero(np.diff(sentence) == 0)
    for name, x in (("a", p), ("b", q)):
        within, error = getattr(result, f"within_{name}"), getattr(result, f"within_spread_{name}")
        for layer in range(3):
            here = (
                rel_entr(x[-1], x[layer]).sum(1),
                jensenshannon(x[-1], x[layer], axis=1) ** 2,
                common(x[-1], x[layer]),
                scipy_entropy(x[layer], axis=1),
            )
            for at, values in enumerate(here):
                assert within[at, layer] == pytest.approx(mean_and_error(np.nan_to_num(values))[0], abs=1e-9)
                assert error[at, layer] == pytest.approx(mean_and_error(np.nan_to_num(values))[1], abs=1e-9)
            loss = -np.log(x[layer][follows, index.token[follows + 1]])
            assert within[4, layer] == pytest.approx(loss.mean(), abs=1e-9)
            left = 1 - x[layer][:, shared].sum(1)
            assert getattr(result, f"left_out_{name}")[layer] == pytest.approx(left.mean(), abs=1e-12)
    assert result.targets_a == result.targets_b == len(follows)


def test_the_last_layers_log_loss_is_the_models_own_loss(context, states):
    context.text = Corpus("one", TEXT[1:2])
    result = LogitLens("a", "b", null_draws=0).compute(context)
    ids = context.models["a"].tokenizer(TEXT[1], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = float(context.models["a"].module(input_ids=ids, labels=ids).loss)
    assert result.within_a[4, -1] == pytest.approx(loss, rel=1e-5)
    assert np.isnan(result.spread).all()
    assert result.target == "next token"


def test_a_masked_models_target_is_its_own_token_and_special_tokens_never_enter(context):
    result = LogitLens("bert", "bert2", null_draws=0, dtype="float64").compute(context)
    model = context.models["bert"]
    losses, shown = [], ()
    for number, sentence in enumerate(TEXT):
        ids = model.tokenizer(sentence)["input_ids"]
        p = softmax(own_logits(model, sentence))
        assert ids[0] == model.tokenizer.cls_token_id
        assert ids[-1] == model.tokenizer.sep_token_id
        losses += [-np.log(p[at, token]) for at, token in list(enumerate(ids))[1:-1]]
        if number == 0:
            shown = tuple(model.tokens.display(token) for token in ids[1:-1])
    assert result.target == "own token"
    assert result.positions == result.targets_a == len(losses)
    assert result.within_a[4, -1] == pytest.approx(np.mean(losses), abs=1e-5)
    assert result.shown_a == result.shown_b == shown
    assert not any("[" in token for token in result.shown_a)
    assert result.shared == int((~model.tokens.special).sum())
    assert any("see the token that they predict" in notice for notice in result.notices)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_identical_models_are_nothing_apart(context, dtype):
    result = LogitLens("a", "a", dtype=dtype, k=10).compute(context)
    jsd, kl_ab, kl_ba, overlap = (np.diag(result.of(name)) for name in result.measures)
    assert (jsd == 0).all()
    assert max(kl_ab.max(), kl_ba.max()) < 1e-7
    assert (overlap == 1).all()
    np.testing.assert_allclose(result.of("jsd"), result.of("jsd").T, atol=1e-7)
    np.testing.assert_allclose(result.of("kl_ab"), result.of("kl_ba").T, atol=1e-6)
    np.testing.assert_array_equal(result.within_a, result.within_b)
    assert result.within_a[0, -1] == result.within_a[1, -1] == 0
    assert result.within_a[2, -1] == 1
    assert result.assignment.tolist() == [[i, i] for i in range(3)]
    assert result.depth_rate == 1.0
    assert (result.shown_jsd == 0).all()
    assert (np.diagonal(result.z, axis1=1, axis2=2) > 3).all()


def test_divergences_keep_their_bounds(context):
    result = LogitLens("a", "b").compute(context)
    assert (result.values >= 0).all()
    assert (result.of("jsd") <= np.log(2)).all()
    assert (result.of("overlap") <= 1).all()
    assert ((result.left_out_a >= 0) & (result.left_out_a < 1)).all()
    assert (np.abs(result.z[0]) < 50).all()


def test_float32_agrees_with_float64(context):
    one, other = (LogitLens("a", "b", dtype=dtype).compute(context) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(one.values[:3], other.values[:3], atol=2e-5)
    np.testing.assert_allclose(one.within_a[[0, 1, 3, 4]], other.within_a[[0, 1, 3, 4]], atol=2e-5)


def permuted(folder, target, seed=0):
    """Save a copy of a GPT-2 whose tokens have other numbers."""
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    order = np.random.default_rng(seed).permutation(len(tokenizer))
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    spec["model"]["vocab"] = {token: int(order[at]) for token, at in spec["model"]["vocab"].items()}
    for added in spec["added_tokens"]:
        added["id"] = int(order[added["id"]])
    end = tokenizer.eos_token
    moved = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token=end, bos_token=end, pad_token=end
    )
    with torch.no_grad():
        weight = model.transformer.wte.weight
        weight[torch.as_tensor(order)] = weight.clone()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, moved.eos_token_id)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = moved.eos_token_id
    model.save_pretrained(target)
    moved.save_pretrained(target)
    return load_model(ModelSpec.parse(str(target), dtype="float64"))


def test_the_order_of_the_vocabulary_plays_no_part(context, tiny_folders, tmp_path):
    context.models["moved"] = permuted(tiny_folders("gpt2", 2), tmp_path / "moved")
    # a token whose text is not its alone could not be matched
    text = [*context.models["b"].tokens.text]
    assert len(set(zip(text, context.models["b"].tokens.starts_word.tolist(), strict=True))) == len(text)
    one, other = (LogitLens("a", name, dtype="float64").compute(context) for name in ("b", "moved"))
    assert one.shared == other.shared
    np.testing.assert_allclose(one.values, other.values, atol=1e-6)
    np.testing.assert_allclose(one.null_mean, other.null_mean, atol=1e-6)
    np.testing.assert_allclose(one.within_b, other.within_b, atol=1e-6)
    np.testing.assert_allclose(one.shown_jsd, other.shown_jsd, atol=1e-6)
    assert one.shown_top_b == other.shown_top_b
    assert one.shown_target_b == other.shown_target_b


def test_more_top_tokens_than_are_shared_overlap_fully(context, monkeypatch):
    from embcompare.text import vocabulary

    whole = vocabulary.match_vocabularies

    def few(a, b, **options):
        match = whole(a, b, **options)
        return dataclasses.replace(match, rows_a=match.rows_a[:6], rows_b=match.rows_b[:6])

    monkeypatch.setattr(vocabulary, "match_vocabularies", few)
    with pytest.raises(Incomparable, match="share 6 tokens, too few.*allow a small overlap"):
        LogitLens("a", "b", k=50).compute(context)
    result = LogitLens("a", "b", k=50, small_overlap=True).compute(context)
    assert result.k == 6
    assert (result.of("overlap") == 1).all()
    assert (result.left_out_a > 0.5).all()
    assert any("the overlap counts no more of them" in notice for notice in result.notices)


def test_batches_and_blocks_play_no_part(context, monkeypatch):
    whole = LogitLens("a", "b", dtype="float64", sentence=1).compute(context)
    monkeypatch.setattr(lens_run, "BLOCK_BYTES", 1.0)
    one_by_one = LogitLens("a", "b", dtype="float64", sentence=1).compute(context)
    for name in ("values", "spread", "null_mean", "within_a", "within_spread_b", "left_out_a", "shown_jsd"):
        np.testing.assert_allclose(getattr(whole, name), getattr(one_by_one, name), atol=1e-9, err_msg=name)
    assert whole.shown_top_a == one_by_one.shown_top_a
    context.text = Corpus("two", TEXT[:2])
    fewer = LogitLens("a", "b", dtype="float64", sentence=1).compute(context)
    for name in ("shown_probability_a", "shown_entropy_b", "shown_target_probability_a", "shown_jsd"):
        np.testing.assert_allclose(getattr(whole, name), getattr(fewer, name), atol=1e-5, err_msg=name)


def test_positions_are_drawn_and_said(context):
    result = LogitLens("a", "b", positions=9).compute(context)
    assert result.positions == 9
    assert any(notice.startswith("9 of ") and "positions were drawn" in notice for notice in result.notices)
    other = LogitLens("a", "b", positions=9, seed=1).compute(context)
    assert not np.array_equal(result.values, other.values)
    one = LogitLens("a", "b", positions=1).compute(context)
    assert one.null_mean is None
    assert one.z is None
    assert np.isfinite(one.values).all()
    assert np.isnan(one.spread).all()
    assert one.to_frame().jsd_z.isna().all()


def test_same_settings_give_the_same_bits(context):
    settings = LogitLens("a", "b", positions=12)
    same(settings.compute(context), settings.compute(context))


def test_one_token_sentences_have_no_next_token(context):
    context.text = Corpus("short", ("a", "b", "c"))
    result = LogitLens("a", "b", null_draws=0).compute(context)
    assert result.positions == 3
    assert result.targets_a == 0
    assert np.isnan(result.within_a[4]).all()
    assert np.isfinite(result.within_a[:4]).all()
    assert result.shown_target_a == ("",)
    assert np.isnan(result.shown_target_probability_a).all()
    assert result.shown_pairs.tolist() == [[0, 0]]


def test_a_special_token_in_the_text_is_neither_a_position_nor_a_target(context):
    context.text = Corpus("spelt out", ("a", "<|endoftext|>b<|endoftext|>c", "d e"))
    result = LogitLens("a", "b", null_draws=0, sentence=1).compute(context)
    assert result.shown_a == ("##b", "##c")
    assert result.shown_target_a == ("", "")
    assert result.positions == 5
    assert result.targets_a == 1


def test_sentences_longer_than_the_model_reads_are_cut(context):
    context.text = Corpus("long", (" ".join(["sea", "dog", "man"] * 40), TEXT[0]))
    for pair in (("a", "b"), ("bert", "bert2")):
        result = LogitLens(*pair, null_draws=0).compute(context)
        assert any("longer than the 40 tokens" in notice for notice in result.notices)
        assert len(result.shown_a) <= 40
        assert np.isfinite(result.values).all()


def test_a_long_shown_sentence_is_cut_for_the_eye(context, monkeypatch):
    monkeypatch.setattr(lens_shown, "SHOWN", 4)
    result = LogitLens("a", "b", null_draws=0).compute(context)
    assert len(result.shown_a) == 4
    assert result.shown_jsd.shape == (3, 4)
    assert any("the first 4 tokens are shown" in notice for notice in result.notices)


def test_the_shown_sentence_is_read_token_by_token(context, states):
    """What is shown is what is compared: the plain distributions over the shared tokens, renormalised."""
    result = LogitLens("a", "b", sentence=2, dtype="float64").compute(context)
    p, index = plain(context.models["a"], context.text, states)
    rows, tokens = np.flatnonzero(index.sentence == 2), context.models["a"].tokens
    shared = np.flatnonzero(~tokens.special)
    assert 0 < len(shared) < p.shape[-1]
    assert result.text == TEXT[2]
    assert result.shown_a == tuple(tokens.display(int(token)) for token in index.token[rows])
    assert result.shown_target_a == (*result.shown_a[1:], "")
    outside = p[:, rows].sum(-1) - p[:, rows][..., shared].sum(-1)
    np.testing.assert_allclose(result.shown_left_out_a, outside, atol=1e-12)
    assert outside.min() > 1e-6
    kept = np.zeros_like(p)
    kept[..., shared] = p[..., shared] / p[..., shared].sum(-1, keepdims=True)
    for layer in range(3):
        for at, row in enumerate(rows):
            best = np.argsort(-kept[layer, row])[:5]
            assert result.shown_top_a[layer][at] == tuple(tokens.display(int(token)) for token in best)
            np.testing.assert_allclose(result.shown_probability_a[layer, at], kept[layer, row, best], atol=1e-12)
        np.testing.assert_allclose(result.shown_entropy_a[layer], scipy_entropy(kept[layer, rows], axis=1), atol=1e-9)
        following = kept[layer, rows[:-1], index.token[rows[1:]]]
        np.testing.assert_allclose(result.shown_target_probability_a[layer, :-1], following, atol=1e-12)
    q, _ = plain(context.models["b"], context.text, states)
    assert result.depth_pairs.tolist() == [[0, 0], [1, 1], [2, 2]]
    x, y = (z[1][rows][:, shared] for z in (p, q))
    np.testing.assert_allclose(result.shown_jsd[1], jensenshannon(x, y, axis=1) ** 2, atol=1e-9)
    assert result.shown_pairs.tolist() == [[at, at] for at in range(len(rows))]
    assert any("over shared tokens only" in notice for notice in result.notices)


def test_special_tokens_are_never_shown_however_probable(context):
    """A head that says little but one special token: not listed, its mass told, and no target's probability."""
    model = context.models["bert"]
    special = int(np.flatnonzero(model.tokens.special)[0])
    with torch.no_grad():
        bias = model.module.get_output_embeddings().bias
        old = bias[special].item()
        bias[special] = 50.0
    try:
        result = LogitLens("bert", "bert", null_draws=0).compute(context)
    finally:
        with torch.no_grad():
            bias[special] = old
    name = model.tokens.display(special)
    assert not any(name in place for layer in result.shown_top_a for place in layer)
    assert result.shown_left_out_a.min() > 0.99
    np.testing.assert_allclose(result.left_out_a, 1.0, atol=1e-2)
    assert np.isfinite(result.shown_probability_a).all()
    assert (result.sentence_frame().left_out > 0.99).all()


def test_a_target_that_is_not_shared_has_no_probability(context):
    from embcompare.experiments.lens_sides import first_sentences

    model = context.models["a"]
    side = side_of(model, first_sentences(context.text, 4, 0), context.states)
    rows = np.flatnonzero(side.states.index.sentence == 0)
    target = int(side.target[rows[0]])
    others = np.setdiff1d(np.flatnonzero(~model.tokens.special), [target])
    with torch.inference_mode():
        found = lens_shown._shown(side, rows, 3, torch.as_tensor(others))
    assert np.isnan(found["shown_target_probability"][:, 0]).all()
    assert found["shown_target"][0] == model.tokens.display(target)
    kept = side.target[rows[:-1]] != target
    assert np.isfinite(found["shown_target_probability"][:, :-1][:, kept]).all()


def test_rows_beyond_the_tokenizer_are_named_by_number(tiny_model, states):
    """GPT-NeoX pads its output embedding: those rows are part of what the model predicts, and are not shared."""
    model = tiny_model("gpt-neox")
    context = Context({"x": model}, states, Corpus("few", TEXT))
    result = LogitLens("x", "x", null_draws=0).compute(context)
    side = side_of(model, context.text, states)
    assert side.rows == len(model.tokens) + 12
    assert side.name(len(model.tokens)) == f"[row {len(model.tokens)}]"
    assert result.shared == int((~model.tokens.special).sum())


# --- where two models meet


def test_causal_models_of_two_tokenizers_meet_where_both_read_the_same_text(context):
    side, other = (side_of(context.models[name], context.text, context.states) for name in ("a", "llama"))
    rows, others = match_positions(TEXT, side.states.index, other.states.index, causal=True, same_vocabulary=False)
    assert 0 < len(rows) <= min(len(side.states.index), len(other.states.index))
    for one, two in zip(rows, others, strict=True):
        assert side.states.index.sentence[one] == other.states.index.sentence[two]
        assert side.states.index.end[one] == other.states.index.end[two]
    ends = {
        (int(s), int(e))
        for i in (side.states.index, other.states.index)
        for s, e in zip(i.sentence, i.end, strict=True)
        if all(
            (int(s), int(e)) in set(zip(j.sentence.tolist(), j.end.tolist(), strict=True))
            for j in (side.states.index, other.states.index)
        )
    }
    assert len(rows) == len(ends)
    result = LogitLens("a", "llama", small_overlap=True).compute(context)
    assert result.positions == len(rows)
    assert result.shared < min(len(context.models[name].tokens) for name in ("a", "llama"))
    assert any("share" in notice and "tokens" in notice for notice in result.notices)
    assert any("log losses are each per token" in notice for notice in result.notices)
    assert np.isfinite(result.values).all()
    for at, (i, j) in enumerate(result.shown_pairs):
        assert result.shown_jsd[:, at].min() > 0
        assert i < len(result.shown_a)
        assert j < len(result.shown_b)


def test_bidirectional_models_of_two_tokenizers_meet_where_tokens_cover_the_same_characters(context):
    result = LogitLens("bert", "roberta", small_overlap=True).compute(context)
    assert result.positions > 5
    for i, j in result.shown_pairs:
        assert result.shown_a[i].strip("#") == result.shown_b[j].strip("#␠")


def index_of(*spans):
    """A token index from (sentence, token, start, end)."""
    table = np.array(spans, dtype=np.int32).reshape(-1, 4)
    position = np.array([at - np.flatnonzero(table[:, 0] == s)[0] for at, s in enumerate(table[:, 0])], dtype=np.int32)
    return TokenIndex(table[:, 0], position, table[:, 1], table[:, 2], table[:, 3])


def test_causal_positions_pair_equal_ends_and_the_last_token_of_a_split_character():
    a = index_of((0, 1, 0, 3), (0, 2, 3, 7), (1, 3, 0, 2))
    b = index_of((0, 9, 0, 1), (0, 8, 1, 3), (0, 7, 3, 7), (0, 6, 3, 7), (1, 5, 0, 1))
    rows_a, rows_b = match_positions(("abc def", "ab"), a, b, causal=True, same_vocabulary=False)
    assert rows_a.tolist() == [0, 1]
    assert rows_b.tolist() == [1, 3]


def test_bidirectional_positions_pair_equal_spans_and_white_space_does_not_count():
    a = index_of((0, 1, 0, 3), (0, 2, 3, 7), (1, 3, 0, 2))
    b = index_of((0, 9, 0, 3), (0, 7, 4, 7), (1, 5, 0, 1), (1, 5, 1, 2))
    rows_a, rows_b = match_positions(("abc def", "ab"), a, b, causal=False, same_vocabulary=False)
    assert rows_a.tolist() == [0, 1]
    assert rows_b.tolist() == [0, 1]
    split = index_of((0, 9, 0, 3), (0, 7, 4, 7), (0, 6, 4, 7), (1, 5, 0, 1))
    assert match_positions(("abc def", "ab"), a, split, causal=False, same_vocabulary=False)[0].tolist() == [0]


def test_equal_tokenizers_pair_token_by_token_even_where_one_is_cut_or_tells_no_offsets():
    a = index_of((0, 1, -1, -1), (0, 2, -1, -1), (0, 3, -1, -1), (1, 4, -1, -1))
    b = index_of((0, 1, -1, -1), (0, 2, -1, -1), (1, 4, -1, -1))
    rows_a, rows_b = match_positions(("x", "y"), a, b, causal=False, same_vocabulary=True)
    assert rows_a.tolist() == [0, 1, 3]
    assert rows_b.tolist() == [0, 1, 2]
    assert len(match_positions(("x", "y"), a, b, causal=False, same_vocabulary=False)[0]) == 0


def test_unknown_offsets_never_pair():
    a, b = index_of((0, 1, -1, -1), (0, 2, 1, 2)), index_of((0, 1, -1, -1), (0, 2, 0, 2))
    assert match_positions(("ab",), a, b, causal=True, same_vocabulary=False)[0].tolist() == [1]
    assert len(match_positions(("ab",), a, b, causal=False, same_vocabulary=False)[0]) == 0


def test_models_that_never_read_the_same_text_are_refused(context, monkeypatch):
    nothing = np.empty(0, dtype=np.int64)
    monkeypatch.setattr(lens_run, "match_positions", lambda *_, **__: (nothing, nothing))
    with pytest.raises(Incomparable, match="no position at which they can be compared"):
        LogitLens("a", "b").compute(context)


def test_a_causal_and_a_bidirectional_model_are_refused_with_what_could_be_done(context):
    with pytest.raises(Incomparable, match="predicts the next token and .* the token it stands on.*representation"):
        LogitLens("a", "bert", small_overlap=True).compute(context)
    with pytest.raises(Incomparable, match="file of vectors.*no unembedding"):
        LogitLens("a", "vectors/0123").compute(context)
    assert not context.reports


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_equal_depths_join_the_ends_and_leave_no_layer_out(blocks_a, blocks_b):
    pairs = equal_depths(blocks_a, blocks_b)
    assert len(pairs) == max(blocks_a, blocks_b) + 1
    assert pairs[0].tolist() == [0, 0]
    assert pairs[-1].tolist() == [blocks_a, blocks_b]
    assert set(pairs[:, 0]) == set(range(blocks_a + 1))
    assert set(pairs[:, 1]) == set(range(blocks_b + 1))
    assert (np.diff(pairs, axis=0) >= 0).all()
    np.testing.assert_array_equal(equal_depths(blocks_b, blocks_a), pairs[:, ::-1])
    assert (np.abs(pairs[:, 0] / blocks_a - pairs[:, 1] / blocks_b) <= 0.5 / min(blocks_a, blocks_b) + 1e-12).all()


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.integers(1, 700), st.integers(0, 100), st.integers(0, 5))
def test_wrong_pairings_are_all_different_and_never_right(n, draws, seed):
    groups, partners = wrong_pairings(n, draws, seed)
    assert sorted(np.concatenate(groups).tolist()) == list(range(n))
    assert len(partners) == draws or (n < 2 * draws + 4 and len(partners) < draws)
    assert len({partner.tobytes() for partner in partners}) == len(partners)
    for partner in partners:
        assert sorted(partner.tolist()) == list(range(n))
        away = np.abs(partner - np.arange(n))
        assert away.min() >= max(1, n // 20)


# --- running it


def test_cancelling_before_the_null_leaves_a_partial_result(context):
    context.stop_after = 10**6
    LogitLens("a", "b").compute(context)
    at = next(i for i, report in enumerate(context.reports) if report[3] is not None)
    partial = context.reports[at][3]
    assert partial.null_mean is None
    assert np.isfinite(partial.values).all()
    counts = [(done, total) for done, total, _, _ in context.reports if total > 1]
    assert counts[-1][0] == counts[-1][1]
    assert [done for done, _ in counts] == sorted(done for done, _ in counts)
    context.reports, context.stop_after = [], at
    with pytest.raises(Cancelled):
        LogitLens("a", "b").compute(context)


def test_only_the_first_sentences_are_read(context):
    result = LogitLens("a", "b", sentences=2, sentence=1, null_draws=0).compute(context)
    assert result.items == 2
    assert result.text == TEXT[1]
    with pytest.raises(SettingsError, match="cannot be 2; 2 sentences of few are read, numbered 0 to 1"):
        LogitLens("a", "b", sentences=2, sentence=2).compute(context)
    assert LogitLens("a", "b", sentences=64, null_draws=0).compute(context).items == len(TEXT)


@pytest.mark.parametrize("changes", [{"k": 0}, {"sentences": 0}, {"sentence": -1}, {"positions": 0}, {"dtype": "half"}])
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(SettingsError, match="cannot be"):
        LogitLens("a", "b", **changes)


def test_results_are_stored_and_exported_whole(tiny_folders, tmp_path):
    import embcompare
    from embcompare.store import Store

    store = Store(tmp_path)
    settings = embcompare.LogitLens(
        str(tiny_folders("gpt2", 1)), str(tiny_folders("gpt2", 2)), sentences=4, positions=40
    )
    first, second = (embcompare.run(settings, store=store, device="cpu") for _ in range(2))
    assert isinstance(second, LogitLensResult)
    assert second.provenance["cached"]
    assert first.text == shipped_corpus().sentences[0]
    same(first, second)
    document = json.loads(export.to_json(first))
    assert document["result"]["measures"] == list(BETWEEN)
    assert export.to_csv(first).count("\n") == 1 + 9
    (tmp_path / "lens.npz").write_bytes(export.to_npz(first))
    with np.load(tmp_path / "lens.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["values"], first.values)


def test_tables_hold_every_number(context):
    result = LogitLens("a", "b").compute(context)
    cells = result.to_frame()
    assert len(cells) == 9
    row = cells[(cells.layer_a == 1) & (cells.layer_b == 2)].iloc[0]
    for at, name in enumerate(result.measures):
        assert row[name] == result.of(name)[1, 2] == result.values[at, 1, 2]
        assert row[f"{name}_se"] == result.spread[at, 1, 2]
        assert row[f"{name}_z"] == result.z[at, 1, 2]
    assert cells.equal_depth.sum() == 3
    assert cells.assigned.sum() == 3
    layers = result.layer_frame()
    assert len(layers) == 6
    assert layers[layers.model == "b"].log_loss.tolist() == result.within_b[4].tolist()
    assert layers.name.tolist() == [*result.layers_a, *result.layers_b]
    assert result.layers_a == ("embedding output", "block 1", "block 2, after final norm")
    tokens = result.sentence_frame()
    assert len(tokens) == 3 * (len(result.shown_a) + len(result.shown_b))
    first = tokens.iloc[0]
    assert (first.token, first.top1, first.p1) == (
        result.shown_a[0],
        result.shown_top_a[0][0][0],
        result.shown_probability_a[0, 0, 0],
    )
    with pytest.raises(SettingsError, match="no measure 'cosine'; it has jsd"):
        result.of("cosine")


def test_demo_twins_agree_in_depth_and_beyond_chance(states):
    models = {name: load_model(f"demo/{name}") for name in ("gpt2-a", "gpt2-b")}
    context = Context(models, Path(states), shipped_corpus())
    result = LogitLens("gpt2-a", "gpt2-b", sentences=16, positions=128).compute(context)
    assert result.depth_rate == 1.0
    assert (np.diag(result.z[0]) > 20).all()
    loss = result.within_a[4]
    assert (np.diff(loss) < 0).all()
    assert result.of("jsd")[-1, -1] < 0.15
