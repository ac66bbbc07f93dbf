"""The additive split of hidden states: exact on every family, against closed forms written from the papers."""

import dataclasses
import itertools
import math

import pytest
import torch
from decompositions import batch, by_state, close, last, own_states, tolerance
from tiny import TINY, _decoder, sentencepiece_tokenizer

from embcompare.decomposition import Conventions, Term, collect, contributions, decompose, indicators, measure
from embcompare.errors import SettingsError, UnsupportedFamily
from embcompare.models import ModelSpec, demo_names, load_model
from embcompare.models.validation import hooked

ALL_OPTIONS = [
    Conventions(*each)
    for each in itertools.product(("correction", "own"), ("correction", "attention"), ("attention", "correction"))
]
POST_NORM = ("bert-mlm", "distilbert", "electra-generator", "opt-post-norm", "marian")


@pytest.mark.parametrize("name", TINY)
def test_terms_of_every_family_add_up_to_the_states_that_the_module_computes(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    own, _ = own_states(model, ids, mask, given)
    found = by_state(decompose(model, ids, mask, **given))
    assert set(found) == set(own)
    real = mask.bool()
    for state, terms in found.items():
        assert terms.residual < 1e-10
        assert terms.values.dtype == torch.float64
        close(terms.values.sum(0)[real], terms.hidden[real])
        close(terms.hidden[real], own[state][real], tolerance(name))
        assert terms.names == tuple(map(str, terms.terms))
        assert terms.names[0] == "input"
        assert terms.names[-1] == "correction"
        assert not terms.values[:, ~real].any()


@pytest.mark.parametrize("name", TINY)
def test_every_split_and_convention_keeps_the_sum_on_every_family(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    whole = last(decompose(model, ids, mask, **given))
    for by, options in zip(
        (("layer",), ("head",), ("token",), ("layer", "head", "token")),
        (ALL_OPTIONS[0], ALL_OPTIONS[7], ALL_OPTIONS[2], ALL_OPTIONS[5]),
        strict=True,
    ):
        plain = last(decompose(model, ids, mask, options=options, **given))
        fine = last(decompose(model, ids, mask, by=by, options=options, **given))
        close(fine.hidden, whole.hidden)
        for kind in ("input", "self-attention", "cross-attention", "feed-forward", "correction"):
            scale = float(plain.values.abs().max())
            torch.testing.assert_close(fine.at(kind), plain.at(kind), rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("name", TINY)
def test_single_contributions_are_the_terms_of_the_finest_split(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    by = ("layer", "head", "token")
    for layer in (1, model.anatomy.n_layers):
        whole = last(decompose(model, ids, mask, by=by, layers=(layer,), **given))
        terms = dict(zip(whole.terms, whole.values, strict=True))
        scale = float(whole.values.abs().max())
        count = 0
        for each in contributions(model, ids, mask, layer=layer, by=by, **given):
            torch.testing.assert_close(each.value, terms[each.term], rtol=0, atol=1e-10 * scale)
            count += 1
        assert each.term == Term("correction")
        assert each.residual < 1e-10
        assert each.after_norm == whole.after_norm
        # What is of layers above is in the split, and zero.
        assert count == sum(term.layer is None or term.layer <= layer for term in whole.terms)


def attention_of_bert(layer, x, mask):
    """What one layer's attention adds, head by head and attended token by token, (n, H, t, s, d), no biases."""
    part, n, t = layer.attention.self, *x.shape[:2]
    heads = part.num_attention_heads

    def split(y):
        return y.view(n, t, heads, -1).transpose(1, 2)

    scores = split(part.query(x)) @ split(part.key(x)).transpose(-1, -2) / math.sqrt(x.shape[-1] // heads)
    weights = scores.masked_fill(mask[:, None, None] == 0, float("-inf")).softmax(-1)
    values = split(x @ part.value.weight.T)
    out = layer.attention.output.dense.weight.view(x.shape[-1], heads, -1)
    return torch.einsum("nhts,nhsv,dhv->nhtsd", weights, values, out)


def closed_form_of_bert(bert, ids, mask, layer):
    """i, h (heads and tokens apart), f and c of hidden state ``layer``: products of g/s over all norms above."""
    read = {}
    norms = [bert.embeddings.LayerNorm]
    for block in bert.encoder.layer[:layer]:
        norms += [block.attention.output.LayerNorm, block.output.LayerNorm]
    with hooked(bert) as hook:
        names = {id(part): name for name, part in bert.named_modules()}
        for number, norm in enumerate(norms):
            hook.before(names[id(norm)], lambda x, number=number: read.__setitem__(number, x))
        out = bert(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    states = out.hidden_states
    mean = [read[n].mean(-1, keepdim=True) for n in range(len(norms))]
    deviation = [(read[n].var(-1, keepdim=True, unbiased=False) + norms[n].eps).sqrt() for n in range(len(norms))]

    def carry(first):
        out = torch.ones_like(read[0])
        for number in range(first, len(norms)):
            out = out * norms[number].weight / deviation[number]
        return out

    inputs = carry(0) * read[0]
    heads, fed, rest = [], 0, 0
    for number, norm in enumerate(norms):
        rest = rest + carry(number + 1) * norm.bias - carry(number) * mean[number]
    for number, block in enumerate(bert.encoder.layer[:layer], 1):
        heads.append(carry(2 * number - 1)[:, None, :, None] * attention_of_bert(block, states[number - 1], mask))
        out = block.attention.output.dense
        rest = rest + carry(2 * number - 1) * (out.weight @ block.attention.self.value.bias + out.bias)
        middle = torch.nn.functional.layer_norm(
            read[2 * number - 1],
            (len(norm.weight),),
            norms[2 * number - 1].weight,
            norms[2 * number - 1].bias,
            norm.eps,
        )
        inner = torch.nn.functional.gelu(middle @ block.intermediate.dense.weight.T + block.intermediate.dense.bias)
        fed = fed + carry(2 * number) * (inner @ block.output.dense.weight.T)
        rest = rest + carry(2 * number) * block.output.dense.bias
    return inputs, torch.stack(heads), fed, rest


@torch.no_grad()
def test_post_norm_terms_are_those_of_the_closed_form(tiny_model):
    model = tiny_model("bert-mlm")
    ids, mask, _ = batch(model)
    real = mask.bool()
    for layer in (1, 2):
        inputs, heads, fed, rest = closed_form_of_bert(model.module.bert, ids, mask, layer)
        terms = last(decompose(model, ids, mask, layers=(layer,), by=("layer", "head", "token")))
        close(terms.at("input")[real], inputs[real])
        close(terms.at("feed-forward")[real], fed[real])
        close(terms.at("correction")[real], rest[real])
        found = dict(zip(terms.terms, terms.values, strict=True))
        for level, h, k in itertools.product(range(layer), range(3), range(7)):
            value = found[Term("self-attention", level + 1, h, k)]
            torch.testing.assert_close(value[real], heads[level, :, h, :, k][real], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-scaled-by-layer"])
@torch.no_grad()
def test_pre_norm_terms_are_plain_sums_and_the_final_norm_scales_them(tiny_model, name):
    model = tiny_model(name)
    ids, mask, _ = batch(model)
    gpt2, real = model.module.transformer, mask.bool()
    seen = {}
    with hooked(gpt2) as hook:
        for number in range(len(gpt2.h)):
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_proj"):
                hook.after(f"h.{number}.{part}", lambda x, key=(number, part): seen.__setitem__(key, x))
            hook.before(f"h.{number}.ln_1", lambda x, number=number: seen.__setitem__((number, "x"), x))
        hook.before("ln_f", lambda x: seen.__setitem__("end", x))
        after = gpt2(input_ids=ids, attention_mask=mask).last_hidden_state
    attention, fed, rest, moved = 0, 0, 0, 0
    for number, block in enumerate(gpt2.h):
        bias = block.attn.c_attn.bias[-24:] @ block.attn.c_proj.weight + block.attn.c_proj.bias
        attention = attention + seen[number, "attn.c_proj"] - bias
        fed = fed + seen[number, "mlp.c_proj"] - block.mlp.c_proj.bias
        rest = rest + bias + block.mlp.c_proj.bias
        moved = moved + block.ln_1.bias @ block.attn.c_attn.weight[:, -24:] @ block.attn.c_proj.weight
    before = {"input": seen[0, "x"], "self-attention": attention, "feed-forward": fed, "correction": rest}
    found = by_state(decompose(model, ids, mask))
    for kind, expected in before.items():
        close(found[2, False].at(kind)[real], expected.expand_as(after)[real])
    end = seen["end"]
    deviation = (end.var(-1, keepdim=True, unbiased=False) + gpt2.ln_f.eps).sqrt()
    g, b = gpt2.ln_f.weight, gpt2.ln_f.bias
    for kind in ("input", "self-attention", "feed-forward"):
        close(found[2, True].at(kind)[real], (before[kind] * g / deviation)[real])
    close(
        found[2, True].at("correction")[real],
        (rest * g / deviation + b - g * end.mean(-1, keepdim=True) / deviation)[real],
    )
    close(found[2, True].hidden[real], after[real])
    norm_bias = by_state(decompose(model, ids, mask, options=Conventions(norm_bias="correction")))[2, False]
    close(norm_bias.at("correction")[real], (rest + moved).expand_as(after)[real])
    close(norm_bias.at("self-attention")[real], (attention - moved)[real])


def test_a_decoder_of_two_texts_has_cross_attention_as_a_term_of_its_own(tiny_model):
    model = tiny_model("marian")
    ids, mask, given = batch(model)
    here = last(decompose(model, ids, mask, **given))
    assert here.names == ("input", "self-attention", "cross-attention", "feed-forward", "correction")
    other = last(decompose(model, ids, mask, source=given["source"].flip(0), source_mask=given["source_mask"].flip(0)))
    assert not torch.allclose(here.at("cross-attention"), other.at("cross-attention"))
    with pytest.raises(SettingsError, match="encoder-decoder"):
        decompose(model, ids, mask)
    with pytest.raises(SettingsError, match="one text only"):
        decompose(tiny_model("gpt2"), ids, mask, **given)


@pytest.mark.parametrize("name", ["bert-mlm", "roberta", "gpt2", "opt", "llama", "gemma2", "marian", "t5"])
def test_padding_plays_no_part(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    together = by_state(decompose(model, ids, mask, **given))
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = {}
        if given:
            source = int(given["source_mask"][row].sum())
            alone = {"source": given["source"][row : row + 1, :source]}
        own = by_state(decompose(model, ids[row : row + 1, :length], mask[row : row + 1, :length], **alone))
        for state, terms in own.items():
            found = together[state].values[:, row, :length]
            # OPT and T5 give masked tokens the least number of float64: nothing of them is left.
            torch.testing.assert_close(found, terms.values[:, 0], rtol=0, atol=1e-11 * float(found.abs().max()))


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "llama-tied-biased", "gemma2", "t5", *POST_NORM])
def test_conventions_change_what_they_say_and_nothing_else(tiny_model, name):
    model = tiny_model(name)
    ids, mask, given = batch(model)
    plain = by_state(decompose(model, ids, mask, **given))
    post = model.anatomy.blocks[0].placement == "post"

    def changed(state, **options):
        other = by_state(decompose(model, ids, mask, options=Conventions(**options), **given))[state]
        scale = float(plain[state].values.abs().max())
        kinds = [str(term) for term in plain[state].terms]
        different = (other.values - plain[state].values).abs().amax((1, 2, 3)) > 1e-9 * scale
        close(other.values.sum(0), plain[state].values.sum(0))
        return {kind for kind, is_so in zip(kinds, different.tolist(), strict=True) if is_so}

    end, block = max(plain), model.anatomy.blocks[0]
    layer_norms = block.norms["attention"].kind == "layer"
    centred = set(plain[end].names) if layer_norms and (post or end[1]) else set()
    assert changed(end, mean="own") == centred
    attentions = {name for name in plain[end].names if name.endswith("attention")}
    biased = block.attention.b_o is not None or block.attention.b_v is not None
    assert changed((1, False), attention_bias="attention") == (attentions | {"correction"} if biased else set())
    moved = not post and block.norms["attention"].bias is not None
    assert changed((1, False), norm_bias="correction") == ({"self-attention", "correction"} if moved else set())


def test_sliding_windows_are_the_models_own(tiny_folders, monkeypatch):
    monkeypatch.setitem(TINY, "sliding", (sentencepiece_tokenizer, _decoder("Mistral", sliding_window=4), 0))
    model = load_model(ModelSpec.parse(str(tiny_folders("sliding")), dtype="float64"))
    ids, mask, _ = batch(model)
    own, _ = own_states(model, ids, mask, {})
    terms = last(decompose(model, ids, mask, by=("token",)))
    close(terms.hidden[mask.bool()], own[2, True][mask.bool()], 1e-5)
    found = dict(zip(terms.terms, terms.values, strict=True))
    assert not found[Term("self-attention", token=0)][:, 4:].any()
    assert found[Term("self-attention", token=0)][:, 3].all()


def everything_about(module):
    """What could be left behind on a module."""
    return [
        (
            name,
            sorted(part.__dict__),
            [id(each) for each in (*part._parameters.values(), *part._buffers.values(), *part._modules.values())],
            [len(value) for key, value in sorted(part.__dict__.items()) if "_hooks" in key],
            getattr(getattr(part, "config", None), "_attn_implementation", None),
        )
        for name, part in module.named_modules()
    ]


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "llama", "t5"])
def test_nothing_is_left_on_the_module(tiny_folders, name):
    model = load_model(ModelSpec.parse(str(tiny_folders(name)), dtype="float32"))
    ids, mask, given = batch(model)
    before, weights = everything_about(model.module), {k: v.clone() for k, v in model.module.state_dict().items()}
    own, _ = own_states(model, ids, mask, given)
    stream = decompose(model, ids, mask, by=("head",), **given)
    next(stream)
    midway, _ = own_states(model, ids, mask, given)
    next(stream)
    stream.close()
    if model.anatomy.blocks[0].attention.position == "absolute":
        long = torch.ones(1, 50, dtype=torch.long)
        with pytest.raises(SettingsError, match="texts of 50 tokens; cut them shorter"):
            decompose(model, long, long)
    assert everything_about(model.module) == before
    for state, value in own.items():
        assert torch.equal(value, midway[state])
        assert value.dtype == torch.float32
    assert all(torch.equal(value, weights[key]) for key, value in model.module.state_dict().items())


def test_two_decompositions_of_one_model_do_not_disturb_each_other(tiny_model):
    model = tiny_model("gpt2")
    ids, mask, _ = batch(model)
    others = batch(model, seed=1)[0]
    expected = [each.values for each in decompose(model, ids, mask)]
    streams = zip(decompose(model, ids, mask), decompose(model, others, mask, by=("head",)), strict=True)
    for value, (terms, _) in zip(expected, streams, strict=True):
        assert torch.equal(value, terms.values)
    with torch.inference_mode():
        for value, terms in zip(expected, decompose(model, ids, mask), strict=True):
            assert torch.equal(value, terms.values)


def test_a_model_that_does_something_else_is_refused_with_the_number(tiny_model):
    model = tiny_model("bert-mlm")
    ids, mask, _ = batch(model)
    block = model.anatomy.blocks[1]
    norm = block.norms["feed_forward"]
    wrong = dataclasses.replace(norm, gain=norm.gain * 1.001)
    blocks = (model.anatomy.blocks[0], dataclasses.replace(block, norms={**block.norms, "feed_forward": wrong}))
    broken = dataclasses.replace(model, anatomy=dataclasses.replace(model.anatomy, blocks=blocks))
    with pytest.raises(UnsupportedFamily, match=r"hidden state 2 .*relative error [0-9.]+e-0[34]"):
        list(decompose(broken, ids, mask))
    with pytest.raises(UnsupportedFamily, match="hidden state 2"):
        list(contributions(broken, ids, mask))
    damaged = dataclasses.replace(norm, gain=norm.gain * float("nan"))
    blocks = (model.anatomy.blocks[0], dataclasses.replace(block, norms={**block.norms, "feed_forward": damaged}))
    broken = dataclasses.replace(model, anatomy=dataclasses.replace(model.anatomy, blocks=blocks))
    with pytest.raises(UnsupportedFamily, match="relative error nan"):
        list(decompose(broken, ids, mask))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": ("letter",)}, "split by layer, head, token, not by 'letter'"),
        ({"layers": (3,)}, "no layer 3"),
        ({"layers": ()}, "No layer"),
        ({"max_bytes": 1000, "by": ("head",)}, "give fewer texts"),
        ({"ids": torch.full((3, 7), 9999)}, "token ids 0 to 1,299"),
        ({"mask": torch.ones(3, 6)}, r"\(3, 6\)"),
        ({"mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1]] * 3)}, "padding on its right"),
        ({"mask": torch.tensor([[1, 0, 1, 1, 1, 1, 1]] * 3)}, "padding on its right"),
    ],
)
def test_what_cannot_be_decomposed_is_said_before_anything_runs(tiny_model, change, message):
    model = tiny_model("gpt2")
    ids, mask, _ = batch(model)
    given = {"ids": ids, "mask": mask, **change}
    with pytest.raises(SettingsError, match=message):
        decompose(model, **given)


def test_unknown_conventions_are_refused():
    with pytest.raises(SettingsError, match="mean is correction or own, not 'nobody'"):
        Conventions(mean="nobody")


def test_a_corpus_in_batches_is_the_same_as_at_once(tiny_model):
    model = tiny_model("marian")
    ids, mask, given = batch(model)
    heard = []
    few = collect(model, ids, mask, batch_tokens=1, report=lambda *done: heard.append(done), **given)
    many = collect(model, ids, mask, **given)
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert few.states == many.states == ((0, False), (1, False), (2, False))
    close(few.values, many.values)
    close(many.values.sum(1), many.hidden)
    assert many.texts.tolist() == [0] * 7 + [1] * 4 + [2] * 6
    assert many.positions.tolist() == [*range(7), *range(4), *range(6)]
    assert few.residual < 1e-10
    measured = measure(model, ids, mask, batch_tokens=8, **given)
    for name, value in indicators(many.values.transpose(0, 1), many.hidden).items():
        found = torch.from_numpy(measured.indicators[name])
        torch.testing.assert_close(found, value.transpose(0, 1), equal_nan=True, rtol=1e-9, atol=1e-11)
    with pytest.raises(SettingsError, match="differ from text to text"):
        measure(model, ids, mask, by=("token",), **given)


def peak(model, texts):
    """The most bytes that torch held beyond what it held before, decomposing texts of one length."""
    ids = torch.randint(5, 200, (texts, 20), generator=torch.Generator().manual_seed(0))
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in decompose(model, ids, torch.ones_like(ids)):
            pass
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_memory_is_linear_in_tokens(tiny_model):
    model = tiny_model("gpt2")
    decompose(model, torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4))
    first, second, third = (peak(model, texts) for texts in (40, 80, 160))
    assert second > first > 0
    assert (third - second) / (second - first) == pytest.approx(2, rel=0.1)


def test_importance_of_a_real_models_terms_adds_up_in_every_layer(minilm_folder):
    model = load_model(str(minilm_folder))
    texts = ["The cat sat on the mat.", "Numbers add up.", "Who would have thought that of a model this small?"]
    given = model.tokenizer(texts, return_tensors="pt", padding=True)
    measured = measure(model, given["input_ids"], given["attention_mask"])
    assert measured.residual < 1e-10
    assert [layer for layer, _ in measured.states] == list(range(7))
    total = torch.from_numpy(measured.indicators["importance"]).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-10)
    shares = measured.indicators["importance"].mean(2)
    assert shares[0, 0] > 0.9
    assert shares[-1, 0] < 0.5


@pytest.mark.parametrize("name", demo_names())
def test_demo_models_decompose_exactly(name):
    model = load_model(f"demo/{name}")
    ids, mask, given = batch(model)
    for terms in decompose(model, ids, mask, by=("head",), **given):
        assert terms.residual < 1e-10
