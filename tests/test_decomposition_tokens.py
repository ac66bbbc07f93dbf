"""The token-wise decomposition: exact on every family, and the affine map of the papers, run part by part."""

import itertools
import math

import pytest
import torch
from decompositions import batch, by_state, close, last, own_states, tolerance
from tiny import TINY

from embcompare.decomposition import LinearConventions, Term, decompose_source_target, decompose_tokens
from embcompare.decomposition.activations import AffineFeedForward, double_feed_forward, tangent
from embcompare.errors import SettingsError
from embcompare.models.validation import hooked

CONVENTIONS = [LinearConventions(*each) for each in itertools.product(("own", "correction"), ("tangent", "held"))]
DECODERS = ("marian", "t5", "t5-gated", "mt5")


@pytest.mark.parametrize("name", TINY)
def test_token_terms_of_every_family_add_up_to_the_states_that_the_module_computes(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    own, _ = own_states(model, ids, mask, given)
    real = mask.bool()
    for options in CONVENTIONS[::3]:
        seen = []
        for terms in decompose_tokens(model, ids, mask, chunk=4, options=options, **given):
            assert terms.residual < 1e-10
            close(terms.hidden[real], own[terms.layer, terms.after_norm][real], tolerance(name))
            close(terms.values.sum(0), terms.hidden)
            seen += [(terms.layer, terms.after_norm, term.token) for term in terms.terms if term.kind == "token"]
            if model.anatomy.blocks[0].attention.causal:
                for term, value in zip(terms.terms, terms.values, strict=True):
                    if term.kind == "token":
                        assert not value[:, : term.token].any()
        assert sorted(seen) == sorted((*state, token) for state in own for token in range(7))


@pytest.mark.parametrize("name", DECODERS)
def test_source_and_target_add_up_and_the_target_is_the_sum_of_its_tokens(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    for options in CONVENTIONS:
        whole = by_state(decompose_source_target(model, ids, mask, options=options, **given))
        tokens = by_state(decompose_tokens(model, ids, mask, chunk=7, options=options, **given))
        for state, terms in whole.items():
            assert terms.names == ("target", "source", "correction")
            assert terms.residual < 1e-10
            scale = float(terms.values.abs().max())
            for kinds in ("token", "target"), ("source", "source"), ("correction", "correction"):
                torch.testing.assert_close(tokens[state].at(kinds[0]), terms.at(kinds[1]), rtol=0, atol=1e-10 * scale)
    assert not whole[0, False].at("source").any()
    assert whole[1, False].at("source").any()


def test_chunks_change_nothing(tiny_model):
    model = tiny_model("gpt2")
    ids, mask, _ = batch(model)
    whole = by_state(decompose_tokens(model, ids, mask, chunk=7))
    terms = {(state, term): v for state, each in whole.items() for term, v in zip(each.terms, each.values, strict=True)}
    assert not any(term.kind == "other tokens" for _, term in terms)
    for each in decompose_tokens(model, ids, mask, chunk=3, layers=(1, 2)):
        state = (each.layer, each.after_norm)
        for term, value in zip(each.terms, each.values, strict=True):
            if term.kind != "other tokens":
                close(value, terms[state, term], 1e-9)
    with pytest.raises(SettingsError, match="at least one"):
        decompose_tokens(model, ids, mask, chunk=0)
    with pytest.raises(SettingsError, match="gate is tangent or held"):
        LinearConventions(gate="open")
    with pytest.raises(SettingsError, match="one text only"):
        decompose_source_target(model, ids, mask, ids)


def slope_of_gelu_new(z):
    u = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z**2)
    return 0.5 * (1 + torch.tanh(u)) + 0.5 * z * (1 - torch.tanh(u) ** 2) * inner


def test_slopes_are_the_derivatives(tiny_model):
    z = torch.linspace(-4, 4, 81, dtype=torch.float64)
    expected = {
        "gpt2": slope_of_gelu_new(z),
        "bert-mlm": 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        "opt": (z > 0).double(),
        "llama": torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z))),
    }
    for name, slope in expected.items():
        weights = tiny_model(name).anatomy.blocks[0].feed_forward
        value, found = tangent(weights.activate, z)
        torch.testing.assert_close(value, weights.activate(z))
        torch.testing.assert_close(found, slope, rtol=1e-12, atol=1e-12)
        with torch.inference_mode():
            assert torch.equal(tangent(weights.activate, z)[1], found)


@pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "opt", "llama-tied-biased", "gemma2", "t5-gated", "marian"])
def test_the_affine_feed_forward_is_the_layer_and_its_derivative(tiny_model, name):
    weights = double_feed_forward(tiny_model(name).anatomy.blocks[0].feed_forward)
    x, v = torch.randn(2, 5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    for gate in ("tangent", "held"):
        affine = AffineFeedForward.of(weights, x, gate)
        torch.testing.assert_close(affine.linear(x) + affine.shift, weights.output(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(affine.linear(v) + affine.linear(x - v), affine.linear(x), rtol=1e-12, atol=1e-12)
        if gate == "tangent" or weights.up is None:
            _, derivative = torch.func.jvp(weights.output, (x,), (v,))
        else:
            bias = 0 if weights.key_bias is None else weights.key_bias
            derivative = (weights.activate(x @ weights.keys.T + bias) * (v @ weights.up.T)) @ weights.values
        torch.testing.assert_close(affine.linear(v), derivative, rtol=1e-10, atol=1e-12)


def frozen(norm, x, centred=True):
    """A norm with the statistics of x, as an affine function of what it is given."""
    deviation = (x.var(-1, keepdim=True, unbiased=False) + norm.eps).sqrt()
    mean = x.mean(-1, keepdim=True)

    def apply(y, constant):
        taken = y.mean(-1, keepdim=True) if centred else mean * constant
        return (y - taken) / deviation * norm.weight + constant * norm.bias

    return apply


def affine_gpt2(gpt2, ids, mask, centred):
    """GPT-2 as an affine function of its embeddings, activations held: y ↦ f(y, 1), linear part f(y, 0)."""
    seen = {}
    with hooked(gpt2) as hook:
        names = {id(part): name for name, part in gpt2.named_modules()}
        for block in gpt2.h:
            for part in (block.ln_1, block.ln_2, block.attn.c_attn, block.mlp.c_fc):
                hook.before(names[id(part)], lambda x, part=part: seen.__setitem__(part, x))
        hook.before("ln_f", lambda x: seen.__setitem__(gpt2.ln_f, x))
        gpt2(input_ids=ids, attention_mask=mask)
    n, t = ids.shape
    allowed = mask[:, None, None].bool() & torch.ones(t, t).tril().bool()

    def split(y):
        return y.view(n, t, 3, -1).transpose(1, 2)

    def apply(y, constant):
        for block in gpt2.h:
            q, k, _ = (split(part) for part in block.attn.c_attn(seen[block.attn.c_attn]).chunk(3, -1))
            weights = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(~allowed, float("-inf")).softmax(-1)
            read = frozen(block.ln_1, seen[block.ln_1], centred)(y, constant)
            value = read @ block.attn.c_attn.weight[:, -24:] + constant * block.attn.c_attn.bias[-24:]
            out = (weights @ split(value)).transpose(1, 2).reshape(n, t, -1)
            y = y + out @ block.attn.c_proj.weight + constant * block.attn.c_proj.bias
            read = frozen(block.ln_2, seen[block.ln_2], centred)(y, constant)
            z = block.mlp.c_fc(seen[block.mlp.c_fc])
            slope = slope_of_gelu_new(z)
            inner = slope * (read @ block.mlp.c_fc.weight + constant * block.mlp.c_fc.bias)
            inner = inner + constant * (block.mlp.act(z) - slope * z)
            y = y + inner @ block.mlp.c_proj.weight + constant * block.mlp.c_proj.bias
        return frozen(gpt2.ln_f, seen[gpt2.ln_f], centred)(y, constant)

    return apply


@pytest.mark.parametrize("centred", [True, False])
@torch.no_grad()
def test_token_terms_are_what_the_frozen_model_makes_of_each_token(tiny_model, centred):
    model = tiny_model("gpt2")
    ids, mask, _ = batch(model)
    gpt2, real = model.module.transformer, mask.bool()
    frozen_model = affine_gpt2(gpt2, ids, mask, centred)
    start = gpt2.wte(ids) + gpt2.wpe(torch.arange(7))
    options = LinearConventions(mean="own" if centred else "correction")
    terms = last(decompose_tokens(model, ids, mask, chunk=7, options=options))
    found = dict(zip(terms.terms, terms.values, strict=True))
    scale = float(terms.values.abs().max())
    for token in range(7):
        alone = torch.zeros_like(start)
        alone[:, token] = start[:, token]
        expected = frozen_model(alone, 0.0)
        torch.testing.assert_close(found[Term("token", token=token)][real], expected[real], rtol=0, atol=1e-10 * scale)
    expected = frozen_model(torch.zeros_like(start), 1.0)
    torch.testing.assert_close(found[Term("correction")][real], expected[real], rtol=0, atol=1e-10 * scale)


def affine_marian(decoder, seen, allowed, source_mask):
    """Marian's decoder as an affine function of its embeddings and of the encoder's states."""

    def split(y):
        return y.view(*y.shape[:2], 3, -1).transpose(1, 2)

    def weights(part, queries, keys, open_):
        scores = split(part.q_proj(queries)) @ split(part.k_proj(keys)).transpose(-1, -2) / math.sqrt(8)
        return scores.masked_fill(~open_, float("-inf")).softmax(-1)

    def attend(part, alpha, y, constant):
        value = y @ part.v_proj.weight.T + constant * part.v_proj.bias
        out = (alpha @ split(value)).transpose(1, 2).reshape(alpha.shape[0], alpha.shape[2], -1)
        return out @ part.out_proj.weight.T + constant * part.out_proj.bias

    def apply(y, source, constant):
        for layer in decoder.layers:
            read = seen[layer.self_attn.q_proj]
            alpha = weights(layer.self_attn, read, read, allowed)
            y = frozen(layer.self_attn_layer_norm, seen[layer.self_attn_layer_norm])(
                y + attend(layer.self_attn, alpha, y, constant), constant
            )
            read, given = seen[layer.encoder_attn.q_proj], seen[layer.encoder_attn.k_proj]
            alpha = weights(layer.encoder_attn, read, given, source_mask)
            y = frozen(layer.encoder_attn_layer_norm, seen[layer.encoder_attn_layer_norm])(
                y + attend(layer.encoder_attn, alpha, source, constant), constant
            )
            z = layer.fc1(seen[layer.fc1])
            slope = torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z)))
            inner = slope * (y @ layer.fc1.weight.T + constant * layer.fc1.bias)
            inner = inner + constant * (z * torch.sigmoid(z) - slope * z)
            fed = inner @ layer.fc2.weight.T + constant * layer.fc2.bias
            y = frozen(layer.final_layer_norm, seen[layer.final_layer_norm])(y + fed, constant)
        return y

    return apply


@torch.no_grad()
def test_source_and_target_are_what_the_frozen_decoder_makes_of_each(tiny_model):
    model = tiny_model("marian")
    ids, mask, given = batch(model)
    decoder, real, seen = model.module.model.decoder, mask.bool(), {}
    with hooked(decoder) as hook:
        names = {id(part): name for name, part in decoder.named_modules()}
        for layer in decoder.layers:
            for part in (
                *(layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm, layer.fc1),
                *(layer.self_attn.q_proj, layer.encoder_attn.q_proj, layer.encoder_attn.k_proj),
            ):
                hook.before(names[id(part)], lambda x, part=part: seen.__setitem__(part, x))
        hook.before("layers.0", lambda x: seen.__setitem__("start", x))
        model.module(
            input_ids=given["source"],
            attention_mask=given["source_mask"],
            decoder_input_ids=ids,
            use_cache=False,
            decoder_attention_mask=mask,
        )
    allowed = mask[:, None, None].bool() & torch.ones(7, 7).tril().bool()
    frozen_decoder = affine_marian(decoder, seen, allowed, given["source_mask"][:, None, None].bool())
    start, source = seen["start"], seen[decoder.layers[0].encoder_attn.k_proj]
    terms = last(decompose_source_target(model, ids, mask, **given))
    nothing, scale = torch.zeros_like(start), float(terms.values.abs().max())
    for kind, expected in (
        ("target", frozen_decoder(start, torch.zeros_like(source), 0.0)),
        ("source", frozen_decoder(nothing, source, 0.0)),
        ("correction", frozen_decoder(nothing, torch.zeros_like(source), 1.0)),
    ):
        torch.testing.assert_close(terms.at(kind)[real], expected[real], rtol=0, atol=1e-10 * scale)
