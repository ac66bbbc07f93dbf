"""The demo models: files, cards, claims, and the training that made them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch.nn.functional import cross_entropy

from embcompare import demo
from embcompare.demo import corpus, recipes, texts, tokenizer, training
from embcompare.errors import ModelNotFound

SENTENCES = (Path(demo.__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
UNIFORM = float(np.log(tokenizer.VOCABULARY))
TRANSLATORS = [name for names in demo.NUMBERS.values() for name in names]
PRETRAINED = [name for name in demo.NAMES if name not in (*demo.TUNED, *TRANSLATORS)]
BERT = [name for name in PRETRAINED if name.startswith("bert")]
TINY_TEXT = (
    "the cat sat on the mat. the dog sat on the log. a cat saw the dog. the dog saw a cat. "
    "the cat and the dog sat on the mat and the log. a dog ran to the mat. a cat ran to the log. "
) * 30


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(training, "HELD_OUT_WINDOWS", 20)
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


@cache
def load(name):
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind = AutoModelForMaskedLM if name.startswith("bert") else AutoModelForCausalLM
    return kind.from_pretrained(demo.weights_folder(name), dtype=torch.float32, local_files_only=True).eval()


@cache
def encoded(name):
    from transformers import AutoTokenizer

    tok = AutoTokenizer.from_pretrained(demo.weights_folder(name), local_files_only=True)
    return tok(SENTENCES, padding=True, return_tensors="pt")


def sentence_losses(name):
    """Loss of a demo model on sentences.txt and the loss of the best constant guess, the sentences' own unigram."""
    batch = encoded(name)
    ids, real = batch["input_ids"], batch["attention_mask"].bool()
    if name in BERT:
        text = ids >= len(tokenizer.SPECIAL)
        places = torch.arange(ids.shape[1]).expand_as(ids)
        logits, targets = [], []
        for turn in range(6):
            asked = text & (places % 6 == turn)
            hidden = torch.where(asked, tokenizer.MASK, ids)
            with torch.no_grad():
                out = load(name)(input_ids=hidden, attention_mask=batch["attention_mask"]).logits
            logits.append(out[asked])
            targets.append(ids[asked])
        guessed, right = torch.cat(logits), torch.cat(targets)
    else:
        with torch.no_grad():
            out = load(name)(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1]
        guessed, right = out[real[:, 1:]], ids[:, 1:][real[:, 1:]]
    counts = torch.bincount(right, minlength=tokenizer.VOCABULARY).double()
    share = counts[counts > 0] / counts.sum()
    return float(cross_entropy(guessed.float(), right)), float(-(share * share.log()).sum())


@pytest.mark.parametrize("name", PRETRAINED)
def test_each_demo_loads_and_is_what_its_card_says(name):
    model, card, folder = load(name), demo.read_card(name), demo.weights_folder(name)
    recipe = card["recipe"]
    assert card["name"] == name
    assert card["description"] == demo.DESCRIPTIONS[name]
    assert card["architecture"] == type(model).__name__
    assert card["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert (recipe["layers"], recipe["width"], recipe["heads"]) == (
        model.config.num_hidden_layers,
        model.config.hidden_size,
        model.config.num_attention_heads,
    )
    assert f"{recipe['layers']} layers, {recipe['width']} wide" in card["description"]
    assert f"seed {recipe['seed']}" in card["description"]
    assert card["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {str(file.get_slice(key).get_dtype()) for key in file.keys()} == {"F16"}  # noqa: SIM118


@pytest.mark.parametrize("name", PRETRAINED)
def test_each_card_is_complete_and_its_recipe_is_the_one_in_the_code(name):
    card = demo.read_card(name)
    (recipe,) = [r for r in recipes.RECIPES if name in r.shipped.values()]
    assert card["recipe"] == json.loads(json.dumps(recipe.__dict__))
    assert recipe.shipped[card["step"]] == name
    assert card["seed"] == recipe.seed
    assert card["tokens_read"] == card["step"] * recipe.batch * tokenizer.LENGTH
    assert card["command"].endswith(f"--only {name}")
    assert card["train_minutes"] > 0
    assert card["licence"]
    assert set(card["made_with"]) == {"python", "torch", "transformers"}
    assert {entry["source"]: entry["share"] for entry in card["texts"]} == recipes.MIX
    for entry in card["texts"]:
        assert entry["package"] == texts.PACKAGES[entry["source"]]
        assert entry["train_tokens"] > entry["held_out_tokens"] > 0


def test_all_demos_that_read_english_share_one_vocabulary_and_their_files_are_small():
    folders = [demo.weights_folder(name) for name in demo.NAMES if name not in TRANSLATORS]
    assert len({(folder / "tokenizer.json").read_bytes() for folder in folders}) == 1
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) < 40e6
    assert {path.parent.name for path in folders[0].parent.glob("*/card.json")} == set(demo.NAMES)
    ids = encoded("gpt2-a")["input_ids"]
    assert torch.equal(ids, encoded("bert-a")["input_ids"])
    assert (ids[:, 0] == tokenizer.CLS).all()
    assert (ids != tokenizer.UNK).all()


@pytest.mark.parametrize(("a", "b"), [("gpt2-a", "gpt2-b"), ("bert-a", "bert-b")])
def test_twins_differ_only_in_the_seed(a, b):
    assert (demo.weights_folder(a) / "config.json").read_bytes() == (
        demo.weights_folder(b) / "config.json"
    ).read_bytes()
    one, two = demo.read_card(a), demo.read_card(b)
    assert (one["seed"], two["seed"]) == (1, 2)
    measured = ("held_out_loss", "train_minutes", "weights_sha256", "unigram_loss", "description")
    for card in (one, two):
        for key in ("name", "seed", "command", *measured):
            card.pop(key)
        card["recipe"].pop("name")
        card["recipe"].pop("seed")
    assert one == two
    first, second = load(a).get_input_embeddings().weight, load(b).get_input_embeddings().weight
    assert not torch.allclose(first, second, atol=0.1)


@pytest.mark.parametrize("name", [*BERT, "gpt2-a", "gpt2-b", "gpt2-wide"])
def test_each_trained_model_reads_plain_sentences_far_better_than_any_constant_guess(name):
    loss, unigram = sentence_losses(name)
    # the sentences' own entropy is lower than any unigram model trained elsewhere can reach on them
    assert loss < unigram - 0.3
    assert loss < UNIFORM - 3
    card = demo.read_card(name)
    assert card["held_out_loss"] < card["unigram_loss"] - 1


def test_the_series_gets_better_with_every_point():
    series = [name for name in demo.NAMES if name.startswith("gpt2-series")]
    held_out = [demo.read_card(name)["held_out_loss"] for name in series]
    ours = [sentence_losses(name)[0] for name in series]
    assert held_out == sorted(held_out, reverse=True)
    assert ours == sorted(ours, reverse=True)


def test_an_unknown_demo_is_refused_with_the_names_that_exist():
    with pytest.raises(ModelNotFound, match="gpt2-a"):
        demo.weights_folder("../gpt2-a")


def test_importing_the_list_of_demos_costs_no_torch():
    code = "import sys, embcompare.demo; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_films_are_split_stably_and_about_a_fifth_is_held_out():
    assert [texts.film_is_held_out(film) for film in ("abandon", "about_a_boy", "about_schmidt")] == [False, True, True]
    share = np.mean([texts.film_is_held_out(f"film {number}") for number in range(2000)])
    assert 0.17 < share < 0.23


@given(st.text(max_size=20), st.text(max_size=40))
def test_reviews_follow_their_film_whatever_they_say(film, review):
    document = texts.Document("reviews", film, (review,))
    assert texts.document_is_held_out(document) == texts.film_is_held_out(film)


@given(st.text())
def test_cleaned_text_is_one_line_and_cleaning_twice_changes_nothing(text):
    once = texts.clean(text)
    assert texts.clean(once) == once
    assert once == " ".join(once.split())
    assert not set(once) & set("‘’“”—…")


@cache
def tiny_streams():
    words = sorted(set(TINY_TEXT.replace(".", " .").split()))
    ids = np.array([5 + words.index(word) for word in TINY_TEXT.replace(".", " .").split()], np.int64)
    stream = corpus.Stream.of(ids, [5 + words.index("."), tokenizer.SEP])
    return dict.fromkeys(recipes.MIX, stream)


def tiny_training(**changes):
    recipe = recipes.Recipe("tiny", "gpt2", layers=1, width=16, heads=2, seed=7, steps=12, batch=8, warmup=4, rate=1e-2)
    losses = []
    streams = tiny_streams()
    snapshots = training.train(replace(recipe, **changes), streams, streams, lambda step, loss: losses.append(loss))
    return snapshots, losses


def same_bits(one, two):
    return all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(family):
    share = 0.3 if family == "bert" else 0.0
    change = {"family": family, "mask_share": share}
    (first,), losses = tiny_training(**change)
    (again,), _ = tiny_training(**change)
    (other,), _ = tiny_training(**change, seed=8)
    assert same_bits(first.state, again.state)
    assert first.held_out_loss == again.held_out_loss
    assert not same_bits(first.state, other.state)
    assert losses[-1] < losses[0] - 0.5


def test_a_series_ships_the_same_training_at_several_steps():
    snapshots, _ = tiny_training(save_at=(3, 6))
    assert [snapshot.step for snapshot in snapshots] == [3, 6, 12]
    (end,), _ = tiny_training()
    assert same_bits(snapshots[-1].state, end.state)


def test_a_bert_begins_by_looking_at_the_neighbours_its_recipe_names():
    model = training.make_model(recipes.BERT_A).eval()
    model.set_attn_implementation("eager")
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, tokenizer.VOCABULARY, (8, tokenizer.LENGTH)))
    with torch.no_grad():
        probabilities = model(ids, output_attentions=True).attentions[0].mean(0)
    middle = range(2, tokenizer.LENGTH - 2)
    for head, offset in enumerate(recipes.BERT_A.offsets):
        at_offset = np.mean([float(probabilities[head, i, i + offset]) for i in middle])
        elsewhere = np.mean([float(probabilities[head, i, i]) for i in middle])
        assert at_offset > 0.4
        assert at_offset > 3 * elsewhere
    twin = training.make_model(replace(recipes.BERT_A, seed=2))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.ndim == 1 or not torch.equal(ours, theirs) or not ours.any()


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    recipe = replace(recipes.GPT2_A, steps=100, warmup=10, rate=1.0)
    rates = [training.learning_rate(recipe, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(1 / 90)
    assert np.all(np.diff(rates[10:]) < 0)


def test_masking_hides_the_stated_share_and_never_special_tokens():
    ids = np.random.default_rng(0).integers(0, tokenizer.VOCABULARY, (400, 64))
    ids[:, 0] = tokenizer.CLS
    hidden, targets = training.mask_tokens(ids, 0.3, np.random.default_rng(1), corrupt=True)
    asked = targets != -100
    assert asked.mean() == pytest.approx(0.3, abs=0.01)
    assert (ids[asked] >= len(tokenizer.SPECIAL)).all()
    assert np.array_equal(targets[asked], ids[asked])
    assert np.array_equal(hidden[~asked], ids[~asked])
    assert (hidden[asked] == tokenizer.MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (hidden[asked] == ids[asked]).mean() == pytest.approx(0.1, abs=0.01)


def test_losses_equal_those_of_transformers():
    streams = tiny_streams()
    ids = torch.from_numpy(corpus.held_out_windows(streams, recipes.MIX, 10, "gpt2"))
    gpt2 = training.make_model(replace(recipes.GPT2_A, layers=2)).eval()
    bert = training.make_model(recipes.BERT_A).eval()
    hidden, targets = training.mask_tokens(ids.numpy(), 0.3, np.random.default_rng(0), corrupt=False)
    masked, labels = torch.from_numpy(hidden), torch.from_numpy(targets)
    with torch.no_grad():
        assert training.causal_loss(gpt2, ids).item() == pytest.approx(gpt2(ids, labels=ids).loss.item(), rel=1e-5)
        expected = bert(masked, labels=labels).loss.item()
        assert training.masked_loss(bert, masked, labels).item() == pytest.approx(expected, rel=1e-5)


def test_windows_begin_at_sentences_and_keep_the_mix():
    streams = {
        name: corpus.Stream.of(np.arange(3000) % 9 + offset, [offset]) for offset, name in ((10, "a"), (30, "b"))
    }
    batch = corpus.sample_batch(streams, {"a": 0.75, "b": 0.25}, 400, "bert", np.random.default_rng(0))
    assert batch.shape == (400, tokenizer.LENGTH)
    assert (batch[:, 0] == tokenizer.CLS).all()
    assert (batch[:, -1] == tokenizer.SEP).all()
    assert set(np.unique(batch[:, 1])) <= {10, 11, 30, 31}  # the very first token, or the one behind a stop
    assert (batch[:, 1] < 30).mean() == pytest.approx(0.75, abs=0.07)


def test_the_unigram_loss_is_the_entropy_when_training_and_held_out_agree():
    stream = corpus.Stream(np.repeat(np.arange(4096), 50), np.zeros(1, np.int64))
    logs = corpus.unigram_log_probabilities({"a": stream}, {"a": 1.0})
    assert np.exp(logs).sum() == pytest.approx(1)
    assert logs == pytest.approx(-UNIFORM)


def test_the_vocabulary_is_learnt_the_same_twice():
    words = "an honest review of a long film about the sea and the law of the land"
    document = texts.Document("reviews", "any", tuple(f"{word} {words}." for word in words.split()))
    one, two = (tokenizer.train_tokenizer([document]).backend_tokenizer.to_str() for _ in range(2))
    assert one == two
