"""Upper parts of every family: stitched to itself a model is itself, at every cut, and nothing is left changed."""

import dataclasses
import threading

import pytest
import torch
from stitching import plain_logits, plain_states
from tiny import TINY

from embcompare.errors import EmbcompareError, Incomparable, InputError, SettingsError
from embcompare.models import ModelSpec, load_model
from embcompare.models.heads import read_head
from embcompare.models.reading import read_anatomy
from embcompare.stitching import BridgeOptions, StitchedModel, Tail, stitch
from embcompare.stitching.bridges import bridge_from_weights, parse_kernels
from embcompare.stitching.tails import check_runs_alone, is_classifier, observe, pooled, with_replaced

REFUSED = ("marian", "t5", "t5-gated", "mt5", "t5-encoder")
RUN = tuple(name for name in TINY if name not in REFUSED)


def batch(model, seed=0):
    """Three texts of different lengths, padded on the right."""
    ids = torch.randint(5, 200, (3, 7), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    mask[2, 6:] = 0
    config = model.module.config
    ids[mask == 0] = getattr(config, "pad_token_id", None) or 0
    return ids, mask


def own_logits(out, model, mask):
    if is_classifier(model):
        return pooled(out.logits, mask)
    return out.logits if "logits" in out else out.prediction_logits


@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_stitched_to_itself_a_model_is_itself_at_every_cut(tiny_model, name):
    model = tiny_model(name)
    ids, mask = batch(model)
    states, out = plain_states(model, ids, mask)
    real = mask.bool()
    for entry, given in enumerate(states):
        tail = Tail(model, entry)
        if is_classifier(model):
            torch.testing.assert_close(tail.class_logits(given, ids, mask), own_logits(out, model, mask))
            continue
        found = tail.states(given, ids, mask)
        try:
            head = read_head(model, torch.float64)
        except EmbcompareError:
            base = model.module.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(found[real], base[real])
        else:
            expected = head.logits(states[-1], normed=False) if "last_hidden_state" in out else None
            expected = own_logits(out, model, mask) if expected is None else expected
            torch.testing.assert_close(head.logits(found, normed=True)[real], expected[real], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_what_is_observed_is_what_hooks_see(tiny_model, name):
    model = tiny_model(name)
    ids, mask = batch(model)
    states, out = plain_states(model, ids, mask)
    seen = observe(model, ids, mask, classes=True)
    assert len(seen.states) == model.anatomy.n_layers + 1
    for one, other in zip(seen.states, states, strict=True):
        assert torch.equal(one, other)
    if is_classifier(model):
        assert torch.equal(seen.class_logits, own_logits(out, model, mask))
    else:
        assert seen.class_logits is None


@pytest.mark.parametrize(("lower", "upper"), [("gpt2", "gpt-neox"), ("gpt-neox", "opt"), ("qwen2", "gpt2-classifier")])
@torch.no_grad()
def test_two_models_of_one_tokenizer_stitch_as_hooks_would(tiny_model, lower, upper):
    a, b = tiny_model(lower), tiny_model(upper, 1)
    ids, mask = batch(b)
    for cut in range(a.anatomy.n_layers + 1):
        for entry in range(b.anatomy.n_layers + 1):
            made = stitch(a, b, cut=cut, entry=entry)
            carry = lambda x: x @ made.bridge.single.matrix + made.bridge.single.offset  # noqa: B023, E731
            expected = own_logits(plain_logits(a, b, carry, cut, entry, ids, mask), b, mask)
            found = made.logits(ids, mask)
            kept = mask.bool() if found.ndim == 3 else slice(None)
            torch.testing.assert_close(found[kept], expected[kept], rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_widths_and_depths_may_differ(tmp_path):
    from tiny import _gpt2, bytes_tokenizer

    made = []
    for number, changes in enumerate(({"n_embd": 24, "n_layer": 2}, {"n_embd": 36, "n_layer": 3})):
        torch.manual_seed(number)
        tokenizer = bytes_tokenizer()
        folder = tmp_path / str(number)
        _gpt2(**changes)(len(tokenizer)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        made.append(load_model(str(folder)))
    for a, b in (made, made[::-1]):
        ids, mask = batch(b)
        assert stitch(a, b, cut=1, entry=2).logits(ids, mask).shape[:2] == ids.shape
        with pytest.raises(Incomparable, match="one width"):
            stitch(a, b, cut=1, kernel="identity")


@pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "gpt-neox", "distilbert"])
@torch.no_grad()
def test_positions_are_added_once_more_only_where_asked(tiny_model, name):
    model = tiny_model(name)
    ids, mask = batch(model)
    states, _ = plain_states(model, ids, mask)
    once, again = Tail(model, 1).states(states[1], ids, mask), Tail(model, 1, True).states(states[1], ids, mask)
    rotary = model.anatomy.blocks[0].attention.position == "rotary"
    assert torch.allclose(once, again) == rotary
    # given the token embeddings themselves, at the bottom, that is what the model does anyway
    tokens = model.module.get_input_embeddings()(ids)
    torch.testing.assert_close(
        Tail(model, 0, True).states(tokens, ids, mask)[mask.bool()],
        Tail(model, 0).states(states[0], ids, mask)[mask.bool()],
    )


@pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "llama"])
@torch.no_grad()
def test_the_module_is_left_as_it_was_also_after_an_exception(tiny_model, name):
    model = tiny_model(name)
    before = dict(model.module.named_modules())
    hooks = {label: len(part._forward_hooks) + len(part._forward_pre_hooks) for label, part in before.items()}
    weights = {label: value.clone() for label, value in model.module.state_dict().items()}
    ids, mask = batch(model)
    states, _ = plain_states(model, ids, mask)
    for entry in range(len(states)):
        Tail(model, entry).states(states[entry], ids, mask)
    observe(model, ids, mask)
    with pytest.raises(Exception, match=r".*"):
        Tail(model, 1).states(states[1][..., :5], ids, mask)
    after = dict(model.module.named_modules())
    assert after.keys() == before.keys()
    assert all(after[label] is part for label, part in before.items())
    assert hooks == {label: len(p._forward_hooks) + len(p._forward_pre_hooks) for label, p in after.items()}
    assert all(torch.equal(weights[label], value) for label, value in model.module.state_dict().items())


@torch.no_grad()
def test_many_threads_may_run_upper_parts_of_one_model(tiny_model):
    model = tiny_model("gpt2")
    wanted, found = {}, {}
    for seed in range(4):
        ids, mask = batch(model, seed)
        states, _ = plain_states(model, ids, mask)
        wanted[seed] = [Tail(model, entry).states(states[entry], ids, mask) for entry in range(len(states))]

    def work(seed):
        with torch.no_grad():
            ids, mask = batch(model, seed)
            for _ in range(5):
                states = observe(model, ids, mask).states
                found[seed] = [Tail(model, entry).states(states[entry], ids, mask) for entry in range(len(states))]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, values in wanted.items():
        assert all(torch.equal(one, other) for one, other in zip(values, found[seed], strict=True))


@torch.no_grad()
def test_padding_and_other_texts_of_the_batch_play_no_part(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt-neox", 1)
    made = stitch(a, b, cut=1, entry=1)
    ids, mask = batch(b)
    together = made.logits(ids, mask)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = made.logits(ids[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0])


@torch.no_grad()
def test_half_precision_is_mapped_in_single(tiny_folders):
    model = load_model(ModelSpec.parse(str(tiny_folders("gpt2", 7)), dtype="float32"))
    model.module.to(torch.bfloat16)
    half = dataclasses.replace(model, anatomy=read_anatomy(model.module, tokens=1300, label="half"))
    ids, mask = batch(half)
    found = stitch(half, half, cut=1, kernel="identity").logits(ids, mask)
    expected = half.module(input_ids=ids, attention_mask=mask).logits
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found[mask.bool()].float(), expected[mask.bool()].float(), rtol=0.05, atol=0.05)


def test_only_what_lies_on_the_way_is_copied(tiny_model):
    module = tiny_model("gpt2").module
    copy = with_replaced(module, {"transformer.h.1": torch.nn.Identity()})
    assert copy is not module
    assert copy.lm_head is module.lm_head
    assert copy.transformer.h[0] is module.transformer.h[0]
    assert isinstance(copy.transformer.h[1], torch.nn.Identity)
    assert not isinstance(module.transformer.h[1], torch.nn.Identity)
    assert copy.transformer.wte.weight is module.transformer.wte.weight


@pytest.mark.parametrize("name", REFUSED)
def test_models_whose_upper_blocks_need_more_than_states_are_refused(tiny_model, name):
    model = tiny_model(name)
    with pytest.raises(Incomparable, match=r"choose a model"):
        check_runs_alone(model)
    with pytest.raises(Incomparable):
        stitch(model, model, cut=0)


def test_cuts_and_entries_that_do_not_exist_are_refused(tiny_model):
    model = tiny_model("gpt2")
    with pytest.raises(SettingsError, match="cannot enter"):
        Tail(model, 3)
    with pytest.raises(SettingsError, match="cannot be cut after 5 blocks"):
        stitch(model, model, cut=5, entry=1)
    with pytest.raises(SettingsError, match="cannot be cut after -1"):
        StitchedModel(model, model, bridge_from_weights("identity", model, model, None, BridgeOptions()), -1, 1)


def test_different_tokenizers_are_refused(tiny_model):
    with pytest.raises(Incomparable, match="different tokens"):
        stitch(tiny_model("gpt2"), tiny_model("bert-mlm"), cut=1)


def test_maps_are_named_and_unknown_ones_refused(tiny_model):
    assert parse_kernels(" pseudo_inverse,identity  identity") == ("pseudo_inverse", "identity")
    for text in ("", " , ", "pseudo"):
        with pytest.raises(SettingsError, match=r"there are pseudo_inverse|There is no map"):
            parse_kernels(text)
    a = tiny_model("gpt2")
    with pytest.raises(SettingsError, match="fitted on hidden states"):
        stitch(a, a, cut=1, kernel="ridge")


@pytest.mark.parametrize("name", ["pseudo_inverse", "orthogonal", "token_rotation"])
@torch.no_grad()
def test_of_one_model_every_map_between_embeddings_is_the_identity(tiny_model, name):
    model = tiny_model("gpt2")
    ids, mask = batch(model)
    found = stitch(model, model, cut=1, kernel=name).logits(ids, mask)
    expected = model.module(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_the_notebooks_last_state_is_taken_after_the_final_norm(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", 1)
    ids, mask = batch(b)
    made = stitch(a, b, cut=2, entry=1, kernel="identity", positions_again=True)
    normed = a.module.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
    expected = Tail(b, 1, True).states(normed, ids, mask)
    torch.testing.assert_close(made.states(ids, mask)[mask.bool()], expected[mask.bool()])


def test_what_stitch_cannot_take_is_said_in_one_sentence(tiny_model):
    a = tiny_model("gpt2")
    for changes, message in (
        ({"cut": 2.5}, "whole number"),
        ({"cut": "2"}, "whole number"),
        ({"cut": True}, "whole number"),
        ({"cut": None}, "whole number"),
        ({"cut": 1, "options": {}}, "BridgeOptions"),
    ):
        with pytest.raises(SettingsError, match=message):
            stitch(a, a, **changes)
    with pytest.raises(SettingsError, match="load_model"):
        stitch("demo/gpt2-a", a, cut=1)
    made = stitch(a, a, cut=1)
    for ids, message in (
        (torch.ones(1, 41, dtype=torch.int64), "40 tokens at most"),
        (torch.tensor([[1, 5000]]), "no token 5000"),
        (torch.tensor([[-1, 2]]), "no token -1"),
        (torch.ones(0, 3, dtype=torch.int64), "at least one token"),
        (torch.ones(3, dtype=torch.int64), "at least one token"),
        (torch.ones(1, 3), "whole numbers"),
    ):
        with pytest.raises(InputError, match=message):
            made.logits(ids)
    with pytest.raises(InputError, match="mask"):
        made.logits(torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 2))
