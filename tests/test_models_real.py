"""Real weights: a sentence encoder without a head and a masked language model of the same vocabulary."""

import numpy as np
import pytest
import torch

from embcompare.models import load_model
from embcompare.text import match_vocabularies


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    return load_model(str(minilm_folder))


@pytest.fixture(scope="module")
def splade(splade_folder):
    return load_model(str(splade_folder))


def test_minilm_is_read_and_has_no_head(minilm):
    anatomy = minilm.anatomy
    assert (anatomy.n_layers, anatomy.width, anatomy.blocks[0].attention.heads) == (6, 384, 12)
    assert anatomy.unembedding is None
    e, note = anatomy.readout()
    assert e.shape == (30522, 384)
    assert "no linear head" in note


def test_splade_is_tied_and_its_norms_are_not_dropped(splade, splade_folder):
    """Its files say gamma and beta; dropped, every gain would be one."""
    from safetensors import safe_open

    assert splade.anatomy.tied
    with safe_open(splade_folder / "model.safetensors", framework="pt") as file:
        stored = file.get_tensor("bert.encoder.layer.0.attention.output.LayerNorm.gamma")
    gain = splade.anatomy.blocks[0].norms["attention"].gain
    assert torch.equal(gain, stored)
    assert not torch.allclose(gain, torch.ones_like(gain))


def test_the_two_share_their_vocabulary(minilm, splade):
    match = match_vocabularies(minilm.tokens, splade.tokens)
    assert match.identical
    assert match.n == 29523
    assert minilm.tokens.display(minilm.tokens.raw.index("##ing")) == "##ing"
    assert minilm.tokens.special.sum() == 999
    assert minilm.tokens.raw[101] == "[CLS]"


def test_feed_forward_values_of_both_meet_in_embedding_space(minilm, splade):
    """Measured with the V-wide formula: mean best match 0.25 to 0.34, and 0.04 in a permuted vocabulary."""
    rows = match_vocabularies(minilm.tokens, splade.tokens).rows_a[::10]

    def wide(model, layer, keep):
        e, _ = model.anatomy.readout()
        projected = model.anatomy.vectors("ff_values", layer) @ e[torch.as_tensor(keep)].T
        projected = projected - projected.mean(1, keepdim=True)
        return projected / projected.norm(dim=1, keepdim=True)

    a = wide(splade, 1, rows)
    shuffled = np.random.default_rng(0).permutation(rows)
    true, chance = ((a @ wide(minilm, 5, keep).T).abs().max(1).values.mean().item() for keep in (rows, shuffled))
    assert 0.2 < true < 0.45
    assert chance < 0.12
    assert true > 2.5 * chance


def test_minilm_tokenizes_and_ranks_sentences_as_it_should(minilm):
    texts = ["a cat sits on the mat", "a kitten is on the rug", "stock prices fell sharply"]
    batch = minilm.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = minilm.module(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    assert means[0] @ means[1] > 0.4 > means[0] @ means[2]
