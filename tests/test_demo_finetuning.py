"""The fine-tuned demo models: files, cards, claims, and the training that made them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest

from embcompare import demo
from embcompare.demo import finetuning, recipes, shipping, texts, tokenizer
from embcompare.demo.finetuning import Examples
from embcompare.text.labelled import shipped_reviews

RECIPES = {recipe.name: recipe for recipe in recipes.FINE_TUNINGS}
GOOD = ("wonderful", "excellent", "best", "beautiful", "great", "moving", "perfect", "delightful", "fascinating")
BAD = ("worst", "bad", "awful", "boring", "dull", "terrible", "stupid", "waste", "mess", "fails", "tedious")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


@cache
def load(name):
    from transformers import AutoModelForTokenClassification

    folder = demo.weights_folder(name)
    return AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@cache
def fast_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo.weights_folder("gpt2-a"), local_files_only=True)


@cache
def stored(name):
    return load_file(demo.weights_folder(name) / "model.safetensors")


def bits(tensor):
    return tensor.view(torch.int16)


@pytest.mark.parametrize("name", demo.TUNED)
def test_each_loads_by_its_class_and_is_what_its_card_says(name):
    model, card, folder = load(name), demo.read_card(name), demo.weights_folder(name)
    assert card["name"] == name
    assert card["description"] == demo.DESCRIPTIONS[name]
    assert card["architecture"] == type(model).__name__
    assert card["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert card["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert card["base_weights_sha256"] == demo.read_card(card["base"])["weights_sha256"]
    assert card["recipe"] == json.loads(json.dumps(RECIPES[name].__dict__))
    assert card["seed"] == RECIPES[name].seed
    assert f"last {RECIPES[name].blocks} blocks" in card["description"] or "all blocks" in card["description"]
    assert card["command"].endswith(f"--only {name}")
    assert card["step"] == RECIPES[name].epochs * (card["texts"][0]["train_examples"] // RECIPES[name].batch)
    assert model.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    assert {weight.dtype for weight in stored(name).values()} == {torch.float16}
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert card["differences_from_paper"] == list(shipping.DIFFERENCES)


@pytest.mark.parametrize("name", demo.TUNED)
def test_only_the_weights_of_the_last_blocks_and_the_head_differ_from_the_base_by_a_bit(name):
    card, recipe = demo.read_card(name), RECIPES[name]
    base, tuned = stored(recipe.base), stored(name)
    depth = load(name).config.num_hidden_layers
    kept = {key for key in tuned if key in base and torch.equal(bits(base[key]), bits(tuned[key]))}
    changed = set(tuned) - kept
    assert sum(tuned[key].numel() for key in card["trained"]) == card["trained_parameters"]
    assert changed == {*card["trained"], "classifier.bias"}
    assert "classifier.bias" not in card["trained"]
    stack = "transformer.h" if recipe.family == "gpt2" else "bert.encoder.layer"
    last = tuple(f"{stack}.{layer}." for layer in range(depth - recipe.blocks, depth))
    expected = {key for key in tuned if key.startswith((*last, "classifier.")) and key.endswith(".weight")}
    assert set(card["trained"]) == expected
    assert [key for key in kept if "wte" in key or "word_embeddings" in key]


def test_the_gpt2_twins_were_fine_tuned_alike_but_for_base_and_seed():
    one, two = (demo.read_card(name) for name in ("gpt2-a-sentiment", "gpt2-b-sentiment"))
    assert [(card["base"], card["seed"]) for card in (one, two)] == [("gpt2-a", 1), ("gpt2-b", 2)]
    measured = ("train_loss", "held_out", "shipped_reviews", "train_minutes", "weights_sha256", "base_weights_sha256")
    for card in (one, two):
        for key in ("name", "base", "seed"):
            card["recipe"].pop(key)
        for key in ("name", "base", "seed", "description", "command", "tokens_read", *measured):
            card.pop(key)
    assert one == two


@pytest.mark.parametrize("name", demo.TUNED)
def test_the_cards_accuracy_on_the_shipped_reviews_is_what_the_files_give(name):
    corpus, card = shipped_reviews(), demo.read_card(name)["shipped_reviews"]
    examples = Examples.of(corpus.sentences, [label == "positive" for label in corpus.labels], fast_tokenizer())
    found = finetuning.score(load(name), examples)
    assert (found.examples, found.majority) == (card["examples"], card["majority"]) == (480, 0.5)
    assert found.right == pytest.approx(card["right"], abs=1)  # another machine rounds a logit the other way
    assert found.loss == pytest.approx(card["loss"], abs=1e-3)


@pytest.mark.parametrize("name", demo.TUNED)
@pytest.mark.parametrize("part", ["held_out", "shipped_reviews"])
def test_the_cards_accuracy_is_with_its_interval_well_above_the_larger_class(name, part):
    found = demo.read_card(name)[part]
    interval = binomtest(found["right"], found["examples"]).proportion_ci(0.95, method="wilson")
    assert found["interval"] == pytest.approx([interval.low, interval.high], abs=1e-4)
    assert found["accuracy"] == pytest.approx(found["right"] / found["examples"], abs=1e-4)
    assert found["interval"][0] > found["majority"] + 0.03


@pytest.mark.parametrize("name", demo.TUNED)
def test_the_heads_difference_reads_as_words_of_praise_and_of_blame(name):
    vocabulary = fast_tokenizer().get_vocab()
    good, bad = ([vocabulary[word] for word in words if word in vocabulary] for words in (GOOD, BAD))
    assert min(len(good), len(bad)) >= 6
    model, corpus = load(name), shipped_reviews()
    ids = [[tokenizer.CLS, token, tokenizer.SEP] for token in (*good, *bad)]
    with torch.no_grad():
        logits = finetuning.batch_logits(model, ids)
    lean = (logits[:, 1] - logits[:, 0]).numpy()
    assert lean[: len(good)].mean() > lean[len(good) :].mean() + 0.5
    assert len(corpus) == 480


def small_examples():
    words = [token for token in sorted(fast_tokenizer().get_vocab()) if token.isalpha() and len(token) > 3][:60]
    random = np.random.default_rng(0)
    chosen = [random.choice(60, size=random.integers(3, 12)) for _ in range(96)]
    sentences = [" ".join(words[index] for index in each) for each in chosen]
    return Examples.of(sentences, [int((each < 30).mean() > 0.5) for each in chosen], fast_tokenizer())


def small_recipe(family, **changes):
    base = {"gpt2": "gpt2-series-50", "bert": "bert-a"}[family]
    return replace(recipes.FineTuning("tiny", base, family, blocks=1, seed=7, epochs=3, batch=8), **changes)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(family):
    recipe = small_recipe(family, hide=0.1)
    base = demo.weights_folder(recipe.base)
    losses = []
    one = finetuning.fine_tune(recipe, base, small_examples(), lambda step, loss: losses.append(loss))
    two = finetuning.fine_tune(recipe, base, small_examples())
    other = finetuning.fine_tune(replace(recipe, seed=8), base, small_examples())
    assert all(torch.equal(bits(one.state[key]), bits(two.state[key])) for key in one.state)
    assert one.train_loss == two.train_loss == pytest.approx(np.mean(losses[-12:]))
    assert not torch.equal(one.state["classifier.weight"], other.state["classifier.weight"])
    assert (one.steps, len(losses)) == (36, 36)
    assert np.mean(losses[-6:]) < np.mean(losses[:6])


def test_what_is_frozen_stays_bit_for_bit_and_what_learns_moves():
    recipe = small_recipe("bert")
    base = demo.weights_folder(recipe.base)
    tuned = finetuning.fine_tune(recipe, base, small_examples())
    before = stored(recipe.base)
    for key, value in tuned.state.items():
        if key in before and key not in tuned.trained:
            assert torch.equal(bits(before[key]), bits(value)), key
    for key in tuned.trained:
        assert key not in before or not torch.equal(before[key], tuned.state[key]), key
    assert all(key.endswith(".weight") and ("layer.3." in key or "classifier" in key) for key in tuned.trained)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_head_begins_as_the_rule_of_the_nearer_mean(family):
    examples, recipe = small_examples(), small_recipe(family)
    model = finetuning.make_classifier(demo.weights_folder(recipe.base))
    assert not model.classifier.weight.any()
    finetuning.begin_with_centroids(model, examples, 1.5)
    with torch.no_grad():
        states = [model.base_model(torch.tensor([ids])).last_hidden_state[0].double().mean(0) for ids in examples.ids]
        logits = torch.cat([finetuning.batch_logits(model, [ids]) for ids in examples.ids]).double()
    states, labels = torch.stack(states), torch.from_numpy(examples.labels)
    bad, good = states[labels == 0].mean(0), states[labels == 1].mean(0)
    nearer = (states - bad).square().sum(1) - (states - good).square().sum(1)
    expected = nearer * 1.5 / (good - bad).norm()
    assert torch.allclose(logits[:, 1] - logits[:, 0], expected, atol=1e-3)
    assert model.classifier.weight.norm(dim=1).tolist() == pytest.approx([1.5, 1.5])


def test_logits_do_not_depend_on_the_padding_and_average_all_tokens():
    examples = small_examples()
    model = load(demo.TUNED[0])
    with torch.no_grad():
        together = finetuning.batch_logits(model, examples.ids)
        for ids, found in zip(examples.ids[:8], together, strict=False):
            alone = model(torch.tensor([ids])).logits[0].mean(0)
            assert torch.allclose(found, alone, atol=1e-4)


def test_hiding_replaces_the_stated_share_of_text_tokens_and_no_special_ones():
    seen = []

    def model(input_ids, attention_mask):
        seen.append(input_ids)
        return type("Out", (), {"logits": torch.zeros(*input_ids.shape, 2)})

    ids = [[tokenizer.CLS, *range(100, 160), tokenizer.SEP]] * 200
    finetuning.batch_logits(model, ids, 0.25, np.random.default_rng(0))
    assert (seen[0][:, 0] == tokenizer.CLS).all()
    assert (seen[0][:, -1] == tokenizer.SEP).all()
    assert (seen[0] == tokenizer.MASK).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_an_epoch_uses_every_text_once_and_batches_have_little_padding():
    examples = Examples(tuple((2,) * size for size in np.random.default_rng(0).integers(3, 64, 500)), np.zeros(500))
    batches = list(finetuning.epoch_batches(examples, 10, np.random.default_rng(1)))
    used = np.concatenate(batches)
    assert [len(batch) for batch in batches] == [10] * 50
    assert np.array_equal(np.sort(used), np.arange(500))
    lengths = np.array([len(each) for each in examples.ids])
    padding = sum(lengths[batch].max() * 10 - lengths[batch].sum() for batch in batches)
    assert padding < 0.15 * lengths.sum()
    assert not np.array_equal(
        used, np.concatenate(list(finetuning.epoch_batches(examples, 10, np.random.default_rng(2))))
    )


def test_reviews_are_split_by_film_and_no_held_out_text_is_learnt():
    films = ["abandon", "about_a_boy"]  # the second is held out
    reviews = [texts.Review(film, text, True) for film in films for text in ("Fine.", f"Only of {film}.", "Fine.")]
    train, held = finetuning.split_reviews(reviews)
    assert [each.text for each in train] == ["Fine.", "Only of abandon."]
    assert [each.text for each in held] == ["Only of about_a_boy."]


def test_a_score_counts_what_is_right():
    examples = Examples(((2, 9, 3), (2, 8, 3), (2, 8, 8, 3)), np.array([1, 0, 1]))

    class Model(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            good = (input_ids == 9).float() * 3
            return type("Out", (), {"logits": torch.stack([torch.full_like(good, 0.5), good], -1)})

    found = finetuning.score(Model(), examples)
    assert (found.right, found.examples) == (2, 3)
    assert found.majority == pytest.approx(2 / 3)
    expected = torch.nn.functional.cross_entropy(
        torch.tensor([[0.5, 1.0], [0.5, 0.0], [0.5, 0.0]]), torch.tensor([1, 0, 1])
    )
    assert found.loss == pytest.approx(expected.item(), rel=1e-6)
