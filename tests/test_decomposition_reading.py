"""Terms through the head: their logits add up, dropping nothing is the model itself, dropping a term is without it."""

import pytest
import torch
from decompositions import batch, by_state, close, last, own_states, tolerance
from tiny import TINY

from embcompare.decomposition import Readout, Term, decoder_inputs, decompose, decompose_tokens, next_tokens, without
from embcompare.decomposition.norms import FrozenNorm, double_norm
from embcompare.errors import Incomparable, SettingsError
from embcompare.models import ModelSpec, demo_names, load_model

HEADED = tuple(
    name
    for name in TINY
    if not name.endswith(("plain", "classifier", "discriminator", "encoder")) and "plain" not in name
)


@pytest.mark.parametrize("name", HEADED)
@torch.no_grad()
def test_dropping_nothing_gives_the_models_logits_and_terms_add_up_to_them(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    real = mask.bool()
    _, out = own_states(model, ids, mask, given)
    own = (out.logits if "logits" in out else out.prediction_logits)[real]
    readout = Readout.of(model)
    for state, terms in by_state(decompose(model, ids, mask, **given)).items():
        found = readout.logits(terms)[real]
        total = readout.term_logits(terms).sum(0)
        total = total if readout.head.bias is None else total + readout.head.bias
        cap = readout.head.softcap
        total = total if cap is None else cap * torch.tanh(total / cap)
        close(total, found)
        if state[0] == model.anatomy.n_layers:
            close(found, own, tolerance(name))


@pytest.mark.parametrize("name", [name for name in demo_names() if "sentiment" not in name])
@torch.no_grad()
def test_dropping_nothing_gives_the_logits_of_the_demo_models(name):
    model = load_model(ModelSpec.parse(f"demo/{name}", dtype="float64"))
    ids, mask, given = batch(model)
    _, out = own_states(model, ids, mask, given)
    terms = last(decompose(model, ids, mask, **given))
    close(Readout.of(model).logits(terms)[mask.bool()], out.logits[mask.bool()])


def test_models_without_a_head_are_refused(tiny_model):
    for name in ("bert-plain", "bert-classifier", "t5-encoder"):
        with pytest.raises(Incomparable, match="no head"):
            Readout.of(tiny_model(name))


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
@torch.no_grad()
def test_a_linear_heads_shares_are_the_terms_times_the_unembedding(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    terms = last(decompose(model, ids, mask, **given))
    readout = Readout.of(model)
    shares = readout.term_logits(terms)
    close(shares, terms.values[:, mask.bool()] @ model.module.get_output_embeddings().weight.T)
    scores, tokens = readout.top_tokens(terms, k=5)
    known = model.anatomy.embedding.shape[0]
    expected = shares[..., :known].sort(-1, descending=True)
    close(scores, expected.values[..., :5])
    close(shares.gather(-1, tokens), scores)
    with pytest.raises(SettingsError, match="can be listed"):
        readout.top_tokens(terms, k=0)


def test_the_transform_of_a_masked_head_is_taken_at_the_state(tiny_model):
    model = tiny_model("bert-mlm")
    ids, mask, _ = batch(model)
    terms = last(decompose(model, ids, mask))
    found = Readout.of(model).before_embedding(terms)
    transform = model.module.cls.predictions.transform
    z = transform.dense(terms.hidden)
    slope = torch.autograd.functional.jvp(transform.transform_act_fn, z, torch.ones_like(z))[1]
    read = transform.transform_act_fn(z)
    deviation = (read.var(-1, keepdim=True, unbiased=False) + transform.LayerNorm.eps).sqrt()
    expected = slope * (terms.at("feed-forward") @ transform.dense.weight.T) / deviation * transform.LayerNorm.weight
    real = mask.bool()
    close(found.at("feed-forward")[real], expected[real])
    close(found.hidden[real], transform(terms.hidden)[real])


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "gemma2", "marian", "t5-gated"])
@torch.no_grad()
def test_ablation_is_the_head_on_what_is_left(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    readout = Readout.of(model)
    targets = next_tokens(ids, mask)
    for terms in by_state(decompose(model, ids, mask, **given)).values():
        ablation = readout.ablate(terms, targets)
        assert ablation.dropped == terms.names
        assert ablation.at.tolist() == (mask.bool() & (targets != -100)).tolist()
        at = ablation.at
        losses = torch.nn.functional.cross_entropy(readout.logits(terms)[at], targets[at], reduction="none")
        torch.testing.assert_close(ablation.losses[0], losses)
        for number, kind in enumerate(terms.names, 1):
            left = sum(v for t, v in zip(terms.terms, terms.values, strict=True) if t.kind != kind)
            logits = readout.head.logits(left, normed=terms.after_norm)[at]
            losses = torch.nn.functional.cross_entropy(logits, targets[at], reduction="none")
            torch.testing.assert_close(ablation.losses[number], losses)
            torch.testing.assert_close(ablation.means[number], losses.mean())
    one = readout.ablate(terms, targets, drops=[Term("input")])
    torch.testing.assert_close(one.losses[1], ablation.losses[1])
    with pytest.raises(SettingsError, match="no term 'target'"):
        readout.ablate(terms, targets, drops=["target"])
    with pytest.raises(SettingsError, match="no loss"):
        readout.ablate(terms, torch.full_like(ids, -100))
    with pytest.raises(SettingsError, match="Targets are"):
        readout.ablate(terms, targets[:, :-1])


def test_next_tokens_and_decoder_inputs(tiny_model):
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert next_tokens(ids, mask).tolist() == [[6, 7, 8, -100], [10, -100, -100, -100]]
    assert decoder_inputs(tiny_model("marian"), ids).tolist() == [[0, 5, 6, 7], [0, 9, 10, 0]]
    with pytest.raises(SettingsError, match="starts with"):
        decoder_inputs(tiny_model("gpt2"), ids)


@torch.no_grad()
def test_terms_of_tokens_are_read_as_well(tiny_model):
    model = tiny_model("gpt2")
    ids, mask, _ = batch(model)
    readout = Readout.of(model)
    terms = last(decompose_tokens(model, ids, mask, chunk=7))
    close(readout.term_logits(terms).sum(0), readout.logits(terms)[mask.bool()])
    left = without(terms, Term("token", token=0), "correction")
    close(left.values.sum(0), terms.hidden - terms.at("correction") - terms.values[0])
    with pytest.raises(SettingsError, match="passed the final norm"):
        terms.normed(readout.norm)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_frozen_norm_is_the_norm_and_linear_in_its_parts(tiny_model, name):
    norm = double_norm(tiny_model(name).anatomy.blocks[0].norms["attention"])
    x, part = torch.randn(2, 4, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    for own in (True, False):
        frozen = FrozenNorm.of(norm, x, own_mean=own)
        shift = 0 if frozen.shift() is None else frozen.shift()
        close(frozen.linear(x) + shift, norm.apply(x))
        close(frozen.linear(part) + frozen.linear(x - part), frozen.linear(x))
