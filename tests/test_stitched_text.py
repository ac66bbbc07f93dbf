"""A text continued by both models and by the stitched one: every token and probability is what plain forwards give."""

import numpy as np
import pytest
import torch
from stitching import Context, plain_logits

from embcompare import export, running
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.stitched_text import SIDES, StitchedText, StitchedTextResult
from embcompare.models import load_model
from embcompare.stitching import BridgeOptions
from embcompare.stitching.bridges import bridge_from_weights
from embcompare.store import Store
from embcompare.text.vocabulary import match_vocabularies

PROMPT = "the old man"


def run(a, b, stop_after=None, **settings):
    given = {"text": PROMPT, "cut": 1, "entry": 1, "tokens": 4, **settings}
    return StitchedText("a", "b", **given).compute(Context(None, stop_after, a=a, b=b))


def continued(last, ids, steps):
    """Greedy tokens, their probabilities and all distributions, from the text's first token at every step."""
    tokens, given, every = [], [], []
    for _ in range(steps):
        p = last(ids)[0, -1, :1300].double().softmax(-1)
        tokens.append(int(p.argmax()))
        given.append(float(p.max()))
        every.append(p)
        ids = torch.cat([ids, ids.new_tensor([[tokens[-1]]])], 1)
    return tokens, given, every


@torch.no_grad()
def test_all_three_continue_as_plain_forwards_do(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt-neox", 1)
    result = run(a, b)
    kernel = bridge_from_weights(
        "pseudo_inverse", a, b, lambda: match_vocabularies(a.tokens, b.tokens), BridgeOptions()
    ).single
    ids = torch.tensor([b.tokenizer(PROMPT)["input_ids"]])
    ways = (
        lambda x: a.module(x).logits,
        lambda x: b.module(x).logits,
        lambda x: plain_logits(a, b, lambda s: s @ kernel.matrix, 1, 1, x, torch.ones_like(x)).logits,
    )
    for side, way in enumerate(ways):
        tokens, given, every = continued(way, ids, 4)
        assert result.tokens[side].tolist() == tokens, SIDES[side]
        np.testing.assert_allclose(result.probabilities[side], given, rtol=1e-6)
        for step, p in enumerate(every):
            values, order = p.topk(5)
            assert result.top[side, step].tolist() == order.tolist()
            np.testing.assert_allclose(result.top_probabilities[side, step], values, rtol=1e-6)
        assert result.text[side] == b.tokenizer.decode(tokens)
    assert result.prompt == tuple(b.tokens.display(int(token)) for token in ids[0])
    assert [result.name(int(token)) for token in result.tokens[2]] == [
        b.tokens.display(int(token)) for token in result.tokens[2]
    ]


def test_a_model_stitched_to_itself_continues_as_itself(tiny_model):
    model = tiny_model("gpt2")
    for cut in range(3):
        result = run(model, model, cut=cut, entry=cut, kernel="identity")
        assert result.tokens[2].tolist() == result.tokens[1].tolist() == result.tokens[0].tolist()
        np.testing.assert_allclose(result.probabilities[2], result.probabilities[1], rtol=1e-9)


def test_drawn_tokens_depend_on_the_seed_alone_and_follow_the_probabilities(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", 1)
    one, again, other = (run(a, b, temperature=1.0, seed=seed, tokens=8) for seed in (0, 0, 1))
    assert np.array_equal(one.tokens, again.tokens)
    assert not np.array_equal(one.tokens, other.tokens)
    firsts = np.array([run(a, b, temperature=1.0, seed=seed, tokens=1).tokens[1, 0] for seed in range(200)])
    top = run(a, b, tokens=1)
    likeliest, p = top.top[1, 0, 0], top.top_probabilities[1, 0, 0]
    assert abs((firsts == likeliest).mean() - p) < 4 * np.sqrt(p * (1 - p) / 200)
    cold = run(a, b, temperature=1e-3, tokens=4)
    assert np.array_equal(cold.tokens, run(a, b, tokens=4).tokens)


def test_a_side_that_ends_its_text_stops(tiny_model, tiny_folders):
    a, b = tiny_model("gpt2"), load_model(str(tiny_folders("gpt2", 1)))
    second = int(run(a, b).tokens[1, 1])
    b.tokenizer.eos_token = b.tokenizer.convert_ids_to_tokens(second)
    result = run(a, b)
    assert result.tokens[1].tolist()[1:] == [second, -1, -1]
    assert np.isnan(result.probabilities[1, 2:]).all()
    assert result.name(-1) == ""
    assert len(result.to_frame()) == (result.tokens >= 0).sum()


def test_a_long_text_loses_its_beginning_and_says_so(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", 1)
    result = run(a, b, text=" ".join(["the old man went to sea"] * 10), tokens=3)
    assert any("40 tokens at most" in notice for notice in result.notices)
    assert (result.tokens >= 0).all()


def test_special_tokens_at_the_end_of_the_prompt_are_left_out():
    result = running.run(
        StitchedText("demo/gpt2-a", "demo/gpt2-b", text="The President", cut=3, entry=3, tokens=2), keep=False
    )
    assert result.prompt == ("[CLS]", "the", "president")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": "  "}, "The text is empty"),
        ({"text": "a" * 5001}, "5,001 characters"),
        ({"kernel": "ridge"}, "fitted on hidden states"),
        ({"kernel": "nothing"}, "There is no map"),
        ({"tokens": 0}, "smallest value is 1"),
        ({"tokens": 65}, "largest value is 64"),
        ({"cut": 3}, "cannot be cut after 3 blocks"),
        ({"entry": 3}, "cannot enter"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tiny_model, settings, message):
    with pytest.raises(SettingsError, match=message):
        run(tiny_model("gpt2"), tiny_model("gpt2", 1), **settings)


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ("bert-mlm", "bert-mlm", "does not continue texts"),
        ("gpt2", "gpt2-classifier", "does not continue texts"),
        ("gpt2", "llama", "different tokens"),
    ],
)
def test_models_that_cannot_are_refused_in_one_sentence(tiny_model, lower, upper, message):
    with pytest.raises(Incomparable, match=message):
        run(tiny_model(lower), tiny_model(upper))


def test_cancelling_stops_between_tokens(tiny_model):
    with pytest.raises(Cancelled):
        run(tiny_model("gpt2"), tiny_model("gpt2", 1), stop_after=2)


def test_results_are_stored_and_exported_whole(tmp_path):
    settings = StitchedText("demo/gpt2-a", "demo/gpt2-b", text="War and", cut=5, entry=5, tokens=2)
    store = Store(tmp_path)
    one, again = running.run(settings, store=store), running.run(settings, store=store)
    assert isinstance(again, StitchedTextResult)
    assert np.array_equal(one.tokens, again.tokens)
    assert one.text == again.text
    assert one.names == again.names
    assert export.to_csv(again)
    assert export.to_json(again)
