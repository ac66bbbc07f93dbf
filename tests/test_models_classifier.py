"""A classifier's head as the anatomy gives it: there where it reads the last hidden state, and then exactly."""

import pytest
import torch
import transformers

from embcompare.models import read_anatomy
from tests.tiny import TINY

SIZES = {"vocab_size": 90, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
WIDE = {"intermediate_size": 40, "max_position_embeddings": 40}
NAMES = {0: "BAD", 1: "FAIR", 2: "GOOD"}
IDS = torch.tensor([[5, 17, 3, 88, 41]])


def tiny(name, head, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **changes, id2label=NAMES, pad_token_id=0)
    module = getattr(transformers, f"{name}{head}")(config).double().eval()
    with torch.no_grad():
        for value in module.parameters():
            value.normal_(std=0.3)
    return module


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("GPT2", {}),
        ("Bert", WIDE),
        ("DistilBert", WIDE),
        ("Roberta", WIDE),
        ("Electra", {**WIDE, "embedding_size": 24}),
    ],
)
def test_a_token_classifiers_logits_are_the_final_states_times_its_rows(name, changes):
    module = tiny(name, "ForTokenClassification", **changes)
    anatomy = read_anatomy(module)
    with torch.no_grad():
        out = module(IDS, output_hidden_states=True)
        found = out.hidden_states[-1] @ anatomy.classifier.T + anatomy.classifier_bias
    assert anatomy.classifier.shape == (3, anatomy.width)
    assert torch.allclose(found, out.logits, rtol=1e-9, atol=1e-9)
    assert anatomy.labels == ("BAD", "FAIR", "GOOD")
    assert anatomy.classifier.data_ptr() == module.classifier.weight.data_ptr()


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_a_decoders_classifier_of_whole_texts_reads_the_last_tokens_state(name):
    module = tiny(name, "ForSequenceClassification", **({} if name == "GPT2" else WIDE))
    anatomy = read_anatomy(module)
    with torch.no_grad():
        out = module(IDS, output_hidden_states=True)
    assert anatomy.classifier_bias is None
    assert torch.allclose(out.hidden_states[-1][:, -1] @ anatomy.classifier.T, out.logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Roberta", "Electra"])
def test_rows_behind_a_pooler_or_another_layer_are_not_given(name):
    anatomy = read_anatomy(tiny(name, "ForSequenceClassification", **WIDE))
    assert (anatomy.classifier, anatomy.classifier_bias, anatomy.labels) == (None, None, ())


def test_only_classifiers_have_one(tiny_model):
    with_head = {name for name in TINY if tiny_model(name).anatomy.classifier is not None}
    assert with_head == {"gpt2-classifier"}
    assert tiny_model("gpt2-classifier").anatomy.labels == ("LABEL_0", "LABEL_1")
