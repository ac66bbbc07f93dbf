"""What blocks add to the residual stream, and attention patterns, against the hidden states and transformers itself."""

import copy

import numpy as np
import pytest
import torch
from test_activations import TEXT, runnable
from tiny import TINY

from embcompare.activations import capture
from embcompare.activations.forward import inputs, stack_of
from embcompare.activations.patterns import observe_patterns
from embcompare.decomposition.exact import ExactRun
from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.models import ModelSpec, load_model

PARTS = ("attention", "feed_forward")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parts")


def norms_of(model, block):
    """The norms that a post-norm block has behind its attention and behind its feed-forward."""
    if model.anatomy.blocks[0].cross_attention is None:
        return block.norms["attention"].apply, block.norms["feed_forward"].apply
    layer = model.module.get_encoder().layers[block]
    return layer.self_attn_layer_norm, layer.final_layer_norm


@pytest.mark.parametrize("name", list(TINY))
def test_what_both_modules_add_makes_the_next_hidden_state_of_the_one_before(name, tiny_model, folder):
    model = tiny_model(name)
    hidden, attention, fed = (capture(model, TEXT, what=what, folder=folder) for what in ("hidden", *PARTS))
    blocks = model.anatomy.blocks
    encoder = runnable(model) is not model.module.base_model
    for k in attention.layers:
        before, after = (hidden.layer(k - 1), hidden.layer(k, before_norm=True))
        added = [torch.from_numpy(states.layer(k).astype(np.float64)) for states in (attention, fed)]
        found = torch.from_numpy(before.astype(np.float64))
        if blocks[0].placement == "post":
            norms = norms_of(model, k - 1 if encoder else blocks[k - 1])
            with torch.no_grad():
                for part, norm in zip(added, norms, strict=True):
                    found = norm(found + part)
        else:
            found = found + added[0] + added[1]
        np.testing.assert_allclose(found.numpy(), after, atol=2e-5 * max(1.0, np.abs(after).max()), err_msg=str(k))


ONE_STACK = [name for name in TINY if name not in ("marian", "t5", "t5-gated", "mt5")]


@pytest.mark.parametrize("name", ONE_STACK)
def test_parts_and_patterns_are_those_of_the_exact_forward_pass_of_the_decomposition(name, tiny_model, folder):
    model = tiny_model(name)
    parts = {what: capture(model, TEXT, what=what, folder=folder) for what in PARTS}
    index = parts["attention"].index
    bounds = index.bounds(len(TEXT))
    ids = model.tokenizer(TEXT.sentences[2], verbose=False)["input_ids"]
    rows = slice(bounds[2], bounds[3])
    patterns = {}
    observe_patterns(model, [np.array(ids)], lambda block, p: patterns.setdefault(block, p))
    run = ExactRun(model, torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64))
    with torch.no_grad():
        for block, trace in enumerate(run.blocks(model.anatomy.n_layers, keep_probabilities=True), 1):
            for what in PARTS:
                expected = trace.seen[f"{what}_out"]
                if trace.block.placement == "sandwich":
                    expected = trace.block.norms[f"{what}_output"].apply(expected)
                found = parts[what].layer(block)[rows]
                np.testing.assert_allclose(
                    found, expected[0, index.position[rows].copy()].numpy(), rtol=1e-4, atol=1e-5
                )
            np.testing.assert_allclose(patterns[block].numpy(), trace.probabilities.numpy(), atol=2e-5)


def plain_patterns(model, sentence):
    """Every block's probabilities (H, t, t), by transformers alone, and which tokens are the text's."""
    module = copy.deepcopy(runnable(model))
    module.set_attn_implementation("eager")
    encoded = model.tokenizer(sentence, return_special_tokens_mask=True, verbose=False)
    ids = torch.tensor([encoded["input_ids"]])
    with torch.no_grad():
        found = module(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    return [each[0].double().numpy() for each in found], ~np.array(encoded["special_tokens_mask"], dtype=bool)


def plain_received(p, text, causal):
    """What each token receives from the queries of the text that see it, in units of even attention, by loops."""
    heads, length, _ = p.shape
    out, special = np.zeros((length, heads)), np.zeros((length, heads))
    for head in range(heads):
        for key in range(length):
            got = []
            for query in range(length):
                keys = query + 1 if causal else length
                if text[query] and (key <= query or not causal):
                    got.append(p[head, query, key] * keys)
            out[key, head] = np.mean(got) if got else np.nan
        for query in range(length):
            special[query, head] = sum(p[head, query, key] for key in range(length) if not text[key])
    return out[text], special[text]


@pytest.mark.parametrize("name", list(TINY))
def test_attention_received_is_the_plain_mean_over_the_queries_of_unpadded_texts(name, tiny_model, folder):
    model = tiny_model(name)
    states = capture(model, TEXT, what="patterns", folder=folder, batch_tokens=40)
    encoder = runnable(model) is not model.module.base_model
    causal = model.anatomy.blocks[0].attention.causal and not encoder
    bounds = states.index.bounds(len(TEXT))
    for number, sentence in enumerate(TEXT.sentences):
        expected, text = plain_patterns(model, sentence)
        assert len(expected) == len(states.layers)
        for k, p in zip(states.layers, expected, strict=True):
            rows = slice(bounds[number], bounds[number + 1])
            received, special = plain_received(p, text, causal)
            np.testing.assert_allclose(states.layer(k)[rows], received, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(states.special(k)[rows], special, rtol=1e-4, atol=1e-5)


def test_a_head_that_looks_everywhere_alike_gives_one_to_each_token_whatever_the_text(tiny_folders, folder):
    for name in ("gpt2", "bert-mlm"):
        model = load_model(ModelSpec.parse(str(tiny_folders(name))))
        for block in model.anatomy.blocks:
            with torch.no_grad():
                block.attention.w_q.zero_()
                block.attention.b_q.zero_()
        states = capture(model, TEXT, what="patterns", folder=folder / f"even-{name}")
        for k in states.layers:
            np.testing.assert_allclose(states.layer(k), 1.0, atol=1e-5)
        if name == "gpt2":
            np.testing.assert_array_equal(states.special(1), 0.0)
        else:
            length = np.bincount(states.index.sentence)[states.index.sentence] + 2
            np.testing.assert_allclose(states.special(1)[:, 0], 2 / length, atol=1e-6)


def test_permuting_heads_permutes_the_columns(tiny_folders, tiny_model, folder):
    plain = capture(tiny_model("bert-mlm"), TEXT, what="patterns", folder=folder)
    model = load_model(ModelSpec.parse(str(tiny_folders("bert-mlm")), dtype="float64"))
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for block in model.anatomy.blocks:
            for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v"):
                part = getattr(block.attention, name)
                part.copy_(part[order].clone())
    moved = capture(model, TEXT, what="patterns", folder=folder / "moved")
    for k in plain.layers:
        np.testing.assert_allclose(moved.layer(k), plain.layer(k)[:, order.numpy()], atol=1e-5)


def test_everything_is_kept_once_under_its_own_key_and_numbered_from_one(tiny_model, tmp_path, monkeypatch):
    from embcompare.activations import capturing

    model = tiny_model("gpt2")
    found = {what: capture(model, TEXT, what=what, folder=tmp_path) for what in ("hidden", *PARTS, "patterns")}
    assert len({states.key for states in found.values()}) == 4
    assert [states.layers[0] for states in found.values()] == [0, 1, 1, 1]
    assert found["attention"].layer_label(1) == "attention of block 1"
    assert found["feed_forward"].layer_label(2) == "feed-forward of block 2"
    assert found["patterns"].layer_label(2) == "heads of block 2"
    assert found["patterns"].width == 3
    monkeypatch.setattr(capturing, "forward", None)  # a second capture runs nothing
    again = capture(model, TEXT, what="attention", folder=tmp_path)
    np.testing.assert_array_equal(again.layer(1), found["attention"].layer(1))
    pooled = capture(model, TEXT, what="attention", pooling="mean", folder=tmp_path)
    assert pooled.pooled(1, "mean").shape == (len(TEXT), model.anatomy.width)
    with pytest.raises(
        SettingsError, match=r"no layer 0 in .*self-attention outputs are numbered 1 \(first block\) to 2"
    ):
        capture(model, TEXT, [0], what="attention", folder=tmp_path)
    with pytest.raises(SettingsError, match="were captured, which attend to nothing"):
        again.special(1)


def test_hidden_states_keep_the_key_that_they_had_before_anything_else_could_be_captured(tiny_model):
    from embcompare.activations.capturing import _identity

    model = tiny_model("gpt2")
    identity = _identity(model, TEXT, stack_of(model), "hidden")
    assert set(identity) == {"version", "model", "corpus", "part", "dtype", "device", "longest"}
    assert _identity(model, TEXT, stack_of(model), "attention")["what"] == "attention"


def test_what_cannot_be_captured_is_refused_in_one_sentence(tiny_folders, tmp_path):
    model = load_model(str(tiny_folders("gpt2")))
    with pytest.raises(SettingsError, match="nothing called 'residual' to capture; choose one of hidden"):
        capture(model, TEXT, what="residual", folder=tmp_path)
    with pytest.raises(SettingsError, match="one row a token and are not pooled"):
        capture(model, TEXT, what="patterns", pooling="mean", folder=tmp_path)
    attend = model.module.base_model.h[1].attn
    plain = attend.forward
    attend.forward = lambda hidden_states, *a, **k: (torch.zeros_like(hidden_states), None)
    with pytest.raises(UnsupportedFamily, match="does not show the self-attention outputs of layer 2"):
        capture(model, TEXT, what="attention", folder=tmp_path)
    with pytest.raises(UnsupportedFamily, match="does not attend in block 2 as its family does"):
        capture(model, TEXT, what="patterns", folder=tmp_path)
    attend.forward = plain
    model.module.base_model.h[1].mlp.c_proj = None
    with pytest.raises(UnsupportedFamily, match=r"no module 'transformer.h.1.mlp.c_proj'"):
        capture(model, TEXT, what="feed_forward", folder=tmp_path)


def test_texts_longer_than_the_window_that_a_model_sees_are_refused_for_patterns(tiny_folders, tmp_path):
    model = load_model(str(tiny_folders("mistral")))
    model.module.config.sliding_window = 4
    with pytest.raises(Incomparable, match="sees 4 tokens back at a time, and a text here has"):
        capture(model, TEXT, what="patterns", folder=tmp_path)


def test_no_hook_is_left_and_the_model_is_as_before(tiny_folders, tmp_path):
    model = load_model(str(tiny_folders("gemma2")))
    ids = inputs(model, stack_of(model), [np.array([1, 2, 3])])
    with torch.no_grad():
        before = model.module(**ids).logits
    for what in (*PARTS, "patterns"):
        capture(model, TEXT, what=what, folder=tmp_path)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.module.modules())
    assert not any("kept" in part.__dict__ or "keeps" in part.__dict__ for part in model.module.modules())
    with torch.no_grad():
        assert torch.equal(model.module(**ids).logits, before)
