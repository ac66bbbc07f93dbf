"""The number translators: their task and its split, their training, and that what ships is what the cards say."""

import dataclasses
import hashlib
import json
from datetime import date
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from embcompare import demo
from embcompare.decomposition import decompose, decompose_source_target
from embcompare.demo import numbers, shipping, translating
from embcompare.demo.build import main
from embcompare.demo.numbers import Pair
from embcompare.demo.translating import Encoded, Translation, make_translator, score_translator, train_translator
from embcompare.experiments.decomposition_texts import TextsOf
from embcompare.models import load_model
from embcompare.text.translations import shipped_numbers

EVERY = [name for names in demo.NUMBERS.values() for name in names]
KNOWN = {
    "forty thousand, eight hundred and forty-six": "cuarenta mil ochocientos cuarenta y seis",
    "the thirtieth of March, twenty sixty-five": "treinta de marzo de dos mil sesenta y cinco",
    "two hundred and eighty-four": "doscientos ochenta y cuatro",
}


@pytest.fixture(autouse=True)
def one_thread():
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


@cache
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo.weights_folder(EVERY[0]), local_files_only=True)


@cache
def pairs():
    corpus = shipped_numbers()
    return [Pair(*each) for each in zip(corpus.sentences, corpus.targets, strict=True)]


def test_words_are_those_that_are_known():
    pytest.importorskip("num2words")
    made = [numbers.number_pair(40_846), numbers.date_pair(date(2065, 3, 30)), numbers.number_pair(284)]
    assert {pair.source: pair.target for pair in made} == KNOWN


def test_what_ships_is_held_out_and_what_num2words_writes():
    pytest.importorskip("num2words")
    assert pairs() == numbers.draw_pairs(400, held_out=True, seed=1) == numbers.shipped_pairs()
    learnt = set(numbers.draw_pairs(5000, held_out=False, seed=0))
    assert not learnt & set(pairs())
    assert len({pair.source for pair in pairs()}) == 400


@settings(max_examples=200, deadline=None)
@given(st.integers(0, numbers.MOST), st.dates(date(1000, 1, 1), date(2099, 12, 31)))
def test_every_pair_survives_the_tokenizer_and_is_in_one_part_of_the_split(number, day):
    pytest.importorskip("num2words")
    tok = tokenizer()
    for pair in (numbers.number_pair(number), numbers.date_pair(day)):
        for text in (pair.source, pair.target):
            ids = tok(text)["input_ids"]
            assert tok.decode(ids, skip_special_tokens=True) == text.lower()
            assert ids[-1] == numbers.EOS
            assert numbers.UNK not in ids
            assert len(ids) < numbers.LENGTH
    assert not (number < 100 and numbers.number_is_held_out(number))


def test_about_a_tenth_is_held_out():
    assert np.mean([numbers.number_is_held_out(n) for n in range(100, 20_100)]) == pytest.approx(0.1, abs=0.01)
    days = [date.fromordinal(day) for day in range(400_000, 410_000)]
    assert np.mean([numbers.date_is_held_out(day) for day in days]) == pytest.approx(0.1, abs=0.01)


def test_the_tokenizer_is_made_the_same_again():
    pytest.importorskip("num2words")
    made = numbers.make_tokenizer()
    assert made.get_vocab() == tokenizer().get_vocab()
    assert (
        made("the second of May, nineteen oh-eight")["input_ids"]
        == tokenizer()("The second of may, nineteen oh-eight")["input_ids"]
    )


def short(seed):
    return Translation("numbers-1", seed, width=16, ff_width=16, heads=2, steps=6, save_at=(3,), pairs=40, warmup=2)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    pytest.importorskip("num2words")
    tok = tokenizer()
    heard = []
    first = train_translator(short(1), tok, lambda step, loss: heard.append((step, loss)))
    again, other = train_translator(short(1), tok), train_translator(short(2), tok)
    assert [each.step for each in first] == [3, 6]
    assert [step for step, _ in heard] == [1, 2, 3, 4, 5, 6]
    for name, weight in first[-1].state.items():
        assert torch.equal(weight, again[-1].state[name])
    assert any(not torch.equal(weight, other[-1].state[name]) for name, weight in first[-1].state.items())
    assert not torch.equal(first[0].state["model.shared.weight"], first[1].state["model.shared.weight"])


def test_the_loss_is_that_of_transformers():
    tok = tokenizer()
    model = make_translator(short(1), len(tok)).eval()
    sources, targets = Encoded.of(pairs()[:4], tok).batch(range(4))
    labels = targets.masked_fill(targets == numbers.PAD, -100)
    own = model(input_ids=sources, attention_mask=(sources != numbers.PAD).long(), labels=labels).loss
    torch.testing.assert_close(translating.translation_loss(model, sources, targets), own)


@pytest.mark.parametrize("name", EVERY)
def test_each_loads_and_is_what_its_card_says(name):
    card, folder = demo.read_card(name), demo.weights_folder(name)
    seed = int(name.split("-")[1])
    recipe = Translation(f"numbers-{seed}", seed)
    assert card["name"] == name
    assert card["description"] == demo.DESCRIPTIONS[name]
    assert (
        f"{recipe.encoder_layers} encoder and {recipe.decoder_layers} decoder layers, {recipe.width} wide"
        in (card["description"])
    )
    assert card["recipe"] == json.loads(json.dumps(dataclasses.asdict(recipe)))
    assert recipe.shipped[card["step"]] == name
    assert card["seed"] == seed
    assert card["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert set(card["made_with"]) == {"python", "torch", "transformers", "num2words", "sacrebleu"}
    assert card["command"].endswith(f"--only {name}")
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {str(file.get_slice(key).get_dtype()) for key in file.keys()} == {"F16"}  # noqa: SIM118
        assert not [key for key in file.keys() if "embed_positions" in key]  # noqa: SIM118
    model = load_model(f"demo/{name}")
    assert sum(weight.numel() for weight in model.module.parameters()) == card["parameters"]
    table = model.module.model.decoder.embed_positions.weight
    rates = 10000 ** (-2 * torch.arange(recipe.width // 2) / recipe.width)
    angles = torch.arange(numbers.LENGTH)[:, None] * rates
    torch.testing.assert_close(table, torch.cat([angles.sin(), angles.cos()], 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [f"numbers-{seed}-{step}" for seed, step in ((1, 100), (2, 250), (5, 600))])
def test_a_cards_scores_are_what_the_files_give(name):
    model = load_model(f"demo/{name}")
    found, card = score_translator(model.module, model.tokenizer, pairs()), demo.read_card(name)
    assert found.exact == pytest.approx(card["held_out_exact_match"], abs=0.006)
    assert found.bleu == pytest.approx(card["held_out_bleu"], abs=0.5)
    assert found.chrf == pytest.approx(card["held_out_chrf"], abs=0.5)
    assert found.loss == pytest.approx(card["held_out_loss"], abs=0.002)


@pytest.mark.parametrize("seed", demo.SEEDS)
def test_every_series_goes_from_nothing_to_nearly_all(seed):
    cards = [demo.read_card(name) for name in demo.NUMBERS[seed]]
    exact = [card["held_out_exact_match"] for card in cards]
    bleu = [card["held_out_bleu"] for card in cards]
    assert exact[0] < 0.02
    assert bleu[0] < 5
    assert exact[-1] > 0.9
    assert bleu[-1] > 95
    assert exact == sorted(exact)
    assert bleu == sorted(bleu)
    losses = [card["held_out_loss"] for card in cards]
    assert losses == sorted(losses, reverse=True)


def test_seeds_differ_only_in_the_seed():
    first = dict(load_model("demo/numbers-1-600").module.named_parameters())
    configs = {(demo.weights_folder(name) / "config.json").read_bytes() for name in EVERY}
    tokenizers = {(demo.weights_folder(name) / "tokenizer.json").read_bytes() for name in EVERY}
    assert len(configs) == len(tokenizers) == 1
    for seed in demo.SEEDS[1:]:
        other = dict(load_model(f"demo/numbers-{seed}-600").module.named_parameters())
        assert set(other) == set(first)
        assert not torch.allclose(other["model.shared.weight"], first["model.shared.weight"], atol=0.1)


def test_all_together_are_small_and_a_list_shows_each_training_once():
    files = [file for name in EVERY for file in demo.weights_folder(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < 8e6
    assert len(demo.NUMBERS) >= 5
    assert all(len(names) >= 6 for names in demo.NUMBERS.values())
    assert [name for name in demo.OFFERED if name.startswith("numbers")] == [n[-1] for n in demo.NUMBERS.values()]
    assert "numbers-2-… also ship after 100" in demo.DESCRIPTIONS["numbers-2-600"]


@pytest.mark.parametrize("name", ["numbers-1-100", "numbers-3-600"])
def test_states_are_split_exactly_on_real_pairs(name):
    model = load_model(f"demo/{name}")
    texts = TextsOf.of(model, [p.source for p in pairs()[:6]], targets=[p.target for p in pairs()[:6]])
    every = np.arange(6)
    ids, mask, _ = texts.batch(every)
    source = texts.source(every)
    for terms in decompose(model, ids, mask, by=("layer", "head"), **source):
        assert terms.residual < 1e-10
    for terms in decompose_source_target(model, ids, mask, **source):
        assert terms.residual < 1e-10


def test_a_checkpoint_is_written_so_that_it_loads(tmp_path):
    pytest.importorskip("num2words")
    recipe = dataclasses.replace(Translation("numbers-1", 1), pairs=40, save_at=(), steps=100, warmup=2, batch=2)
    tok = numbers.make_tokenizer()
    model = make_translator(recipe, len(tok))
    checkpoint = translating.Checkpoint(100, {k: v.half() for k, v in model.state_dict().items()}, 0.1)
    score = score_translator(model, tok, pairs()[:3])
    shipping.write_translator(tmp_path / "made", recipe, checkpoint, tok, score)
    found = load_model(str(tmp_path / "made"))
    assert found.anatomy.n_layers == 4
    card = json.loads((tmp_path / "made" / "card.json").read_text())
    assert card["texts"][0]["held_out_pairs"] == 3
    assert card["licence"] == "Weights and pairs: MIT, as the project."


def test_the_command_knows_the_group(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "numbers-9-100"])
    assert "numbers" in capsys.readouterr().err
