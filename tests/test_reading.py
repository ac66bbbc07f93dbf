"""Readings in tokens against the plain float64 formulas, on tiny models of many families."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from readings import Context
from scipy.sparse.linalg import svds

from embcompare.errors import Cancelled, EmbcompareError, Incomparable, SettingsError
from embcompare.experiments.filters import whole_words, word_list
from embcompare.experiments.heads import HeadReading, random_heads
from embcompare.experiments.nearest import NearestVectors
from embcompare.experiments.reading import TokenReading, parse_combination
from embcompare.experiments.surfaces import find_token
from embcompare.experiments.token_search import TokenSearch
from embcompare.experiments.vectors import head_factors
from embcompare.projections import leading_directions
from embcompare.text import Tokens

FAMILIES = ("gpt2", "llama", "qwen2", "bert-untied", "bert-plain", "t5-gated", "gemma")
READ = ("ff_keys", "ff_up", "w_q", "w_k", "w_v")


def prepared(model, embedding="output", centred=True, fold=False):
    """E as it is read with, all rows, and which tokens are no special ones."""
    e = model.anatomy.readout(embedding)[0].double()
    real = ~model.tokens.special[: len(e)]
    e = e - e[real].mean(0) if centred else e
    if fold and embedding == "output" and model.anatomy.final_norm is not None:
        e = e * model.anatomy.final_norm.gain.double()
    return e, real


def dense_scores(model, vectors, group, *, exact=False, **how):
    e, real = prepared(model, **how)
    if exact and group in READ:
        e = e @ torch.linalg.pinv(e[real].T @ e[real], rtol=1e-12)
    return (vectors.double() @ e.T).numpy(), real


def ends_of(scores, allowed, k, largest):
    ids = np.flatnonzero(allowed)
    order = np.argsort(-scores[:, ids] if largest else scores[:, ids], axis=1, kind="stable")[:, :k]
    return ids[order]


def again(result):
    """Through the store's form and back."""
    import json

    arrays, scalars = result.pack()
    back = type(result).unpack(arrays, json.loads(json.dumps(scalars)))
    for item in dataclasses.fields(result):
        one, other = getattr(result, item.name), getattr(back, item.name)
        if isinstance(one, np.ndarray):
            assert one.dtype != object
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other, item.name
    assert len(back.to_frame().to_csv()) > 10
    return back


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exact", [False, True])
def test_every_group_reads_as_the_dense_projection(tiny_model, family, exact):
    model = tiny_model(family)
    for group in model.anatomy.groups():
        how = {"centred": True, "fold": True, "embedding": "output"}
        settings = TokenReading(
            "m", 1, group, top=6, fold_norm=True, inverse="exact" if exact else "transpose", centred=True
        )
        result = settings.compute(Context(m=model))
        scores, real = dense_scores(model, model.anatomy.vectors(group, 1), group, exact=exact, **how)
        np.testing.assert_array_equal(result.top, ends_of(scores, real, 6, True))
        np.testing.assert_array_equal(result.bottom, ends_of(scores, real, 6, False))
        np.testing.assert_allclose(result.top_scores, np.take_along_axis(scores, result.top, 1), rtol=1e-8)
        np.testing.assert_allclose(result.bottom_scores, np.take_along_axis(scores, result.bottom, 1), rtol=1e-8)
        seen = scores[:, real]
        np.testing.assert_allclose(result.sd, seen.std(1), rtol=1e-5)
        np.testing.assert_allclose(result.mean, seen.mean(1), atol=1e-8 * seen.std())
        high, low = (seen.max(1) - seen.mean(1)), (seen.min(1) - seen.mean(1))
        np.testing.assert_allclose(result.z, np.where(high >= -low, high, low) / seen.std(1), rtol=1e-5)
        assert result.vectors == len(scores)
        assert (result.condition is not None) is exact
    again(result)


@pytest.mark.parametrize(("embedding", "centred"), [("input", True), ("output", False), ("input", False)])
def test_choice_of_embedding_and_centring(tiny_model, embedding, centred):
    model = tiny_model("llama")
    result = TokenReading("m", 0, "ff_values", top=5, embedding=embedding, centred=centred).compute(Context(m=model))
    scores, real = dense_scores(
        model, model.anatomy.vectors("ff_values", 0), "ff_values", embedding=embedding, centred=centred
    )
    np.testing.assert_array_equal(result.top, ends_of(scores, real, 5, True))
    np.testing.assert_allclose(result.top_scores, np.take_along_axis(scores, result.top, 1), rtol=1e-10)


def test_weights_in_bfloat16_are_read_as_they_are_stored(tiny_folders, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from embcompare.models import ModelSpec, load_model

    AutoModelForCausalLM.from_pretrained(tiny_folders("qwen2"), dtype=torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_folders("qwen2")).save_pretrained(tmp_path)
    model = load_model(ModelSpec.parse(str(tmp_path), dtype="stored"))
    assert model.anatomy.embedding.dtype == torch.bfloat16
    for inverse in ("transpose", "exact"):
        result = TokenReading("m", 0, "ff_keys", top=4, inverse=inverse).compute(Context(m=model))
        scores, real = dense_scores(
            model, model.anatomy.vectors("ff_keys", 0), "ff_keys", exact=inverse == "exact", centred=True
        )
        np.testing.assert_array_equal(result.top, ends_of(scores, real, 4, True))
    assert len(HeadReading("m", 0, 3, "w_qk", top=3).compute(Context(m=model)).top_values) == 3
    assert len(NearestVectors("m", "m", 0, 2).compute(Context(m=model)).layer) == 20


def test_special_tokens_and_rows_without_a_token_are_never_listed(tiny_model):
    model = tiny_model("t5-gated")
    result = TokenReading("m", 0, top=200).compute(Context(m=model))
    assert result.usable == int((~model.tokens.special).sum())
    assert not model.tokens.special[np.concatenate([result.top.ravel(), result.bottom.ravel()])].any()


def test_words_only_and_the_stop_list_leave_tokens_out(tiny_model):
    model = tiny_model("gpt2")
    plain = TokenReading("m", 0, top=5, words_only=True).compute(Context(m=model))
    allowed = whole_words(model.tokens)
    assert plain.usable == allowed.sum() < (~model.tokens.special).sum()
    assert all(name.isalpha() for name in plain.tokens)
    stopped = TokenReading("m", 0, top=5, words_only=True, stop_words=", ".join(plain.tokens).upper())
    result = stopped.compute(Context(m=model))
    assert not set(result.tokens) & set(plain.tokens)
    scores, _ = dense_scores(model, model.anatomy.vectors("ff_values", 0), "ff_values")
    keep = allowed & ~np.isin([t.casefold() for t in model.tokens.text], list(word_list(stopped.stop_words)))
    np.testing.assert_array_equal(result.top, ends_of(scores, keep, 5, True))


def test_filters_that_leave_nothing_are_told_in_a_sentence(tiny_model):
    model = tiny_model("gpt2")
    everything = " ".join(text for text in model.tokens.text if text.strip())
    with pytest.raises(SettingsError, match="leave no token"):
        TokenReading("m", 0, words_only=True, stop_words=everything).compute(Context(m=model))
    with pytest.raises(SettingsError, match="leave no token"):
        HeadReading("m", 0, 0, words_only=True, stop_words=everything).compute(Context(m=model))


def test_more_tokens_than_there_are_give_fewer_columns(tiny_model):
    model = tiny_model("gpt2")
    few = set(model.tokens.text[300:304])
    stop = " ".join(t for t, s in zip(model.tokens.text, model.tokens.starts_word, strict=True) if s and t not in few)
    result = TokenReading("m", 0, top=50, words_only=True, stop_words=stop).compute(Context(m=model))
    assert result.usable == result.top.shape[1] == result.bottom.shape[1] < 50


def test_a_part_of_the_layer_equals_that_part_of_the_whole(tiny_model):
    model = tiny_model("gpt2")
    whole = TokenReading("m", 0, top=3).compute(Context(m=model))
    part = TokenReading("m", 0, top=3, start=10, count=7).compute(Context(m=model))
    assert part.index.tolist() == list(range(10, 17))
    np.testing.assert_array_equal(part.top, whole.top[10:17])
    rest = TokenReading("m", 0, start=30, count=1000).compute(Context(m=model))
    assert rest.index[-1] == whole.vectors - 1
    with pytest.raises(SettingsError, match="none starts at 5000"):
        TokenReading("m", 0, start=5000).compute(Context(m=model))


def test_rows_are_ranked_by_how_far_they_stand_out(tiny_model):
    result = TokenReading("m", 0).compute(Context(m=tiny_model("gpt2")))
    assert (np.diff(np.abs(result.z[result.order])) <= 0).all()
    frame = result.to_frame()
    assert frame["index"].tolist() == result.index[result.order].tolist()
    row = int(result.order[0])
    assert frame["top"][0] == " ".join(result.top_tokens[row])
    assert result.top_tokens.shape == result.top.shape


def test_a_combination_reads_the_sum(tiny_model):
    model = tiny_model("gpt2")
    result = TokenReading("m", 1, "ff_keys", combination="12:1, 30:-0.5").compute(Context(m=model))
    vectors = model.anatomy.vectors("ff_keys", 1).double()
    scores, real = dense_scores(model, (vectors[12] - 0.5 * vectors[30])[None], "ff_keys")
    np.testing.assert_array_equal(result.top, ends_of(scores, real, 10, True))
    assert result.index.tolist() == [-1]
    with pytest.raises(SettingsError, match="names vector 4000, and layer 1 of .* has 96 FF values, 0 to 95; name oth"):
        TokenReading("m", 1, combination="4000:1").compute(Context(m=model))


@pytest.mark.parametrize("text", ["12", "12:", ":1", "a:1", "1:1 2:1", "1:1,,2:1", "1:nan", "-1:2", "1:1,", "1.5:2"])
def test_a_combination_is_read_strictly(text):
    with pytest.raises(SettingsError, match="Combination cannot read"):
        TokenReading("m", 0, combination=text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("1:1, 1:2", "twice"), ("1:0", "other than zero"), ("1:1e999", "not finite")],
)
def test_combinations_without_sense_are_refused(text, sentence):
    with pytest.raises(SettingsError, match=sentence):
        TokenReading("m", 0, combination=text)


def test_numbers_of_a_combination_in_every_form():
    assert parse_combination(" 12:1 ,40:-0.5,3:+.5e1") == {12: 1.0, 40: -0.5, 3: 5.0}
    with pytest.raises(SettingsError, match="are matrices"):
        TokenReading("m", 0, "w_qk", combination="1:1")


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "t5-gated"])
@pytest.mark.parametrize("group", ["w_qk", "w_vo"])
def test_heads_are_read_by_the_leading_singular_vectors_of_the_v_by_v_matrix(tiny_model, family, group):
    model = tiny_model(family)
    result = TokenReading("m", 1, group, top=4).compute(Context(m=model))
    e, real = prepared(model)
    left, right = head_factors(model.anatomy, group, 1)
    assert result.vectors == len(left)
    ids = np.flatnonzero(real)
    for head in {0, len(left) - 1}:
        matrix = (e[real] @ left[head].T @ right[head] @ e[real].T).numpy()
        u, (value,), vh = svds(matrix, 1, tol=1e-14)
        sign = 1.0 if u.max() >= -u.min() else -1.0
        for side, vector in enumerate((u[:, 0] * sign, vh[0] * sign)):
            row = 2 * head + side
            order = np.argsort(-vector, kind="stable")
            assert (result.index[row], result.side[row]) == (head, side + 1)
            np.testing.assert_allclose(result.top_scores[row], vector[order[:4]], rtol=1e-6)
            np.testing.assert_array_equal(result.top[row], ids[order[:4]])
            np.testing.assert_allclose(result.bottom_scores[row, 0], vector.min(), rtol=1e-6)
        assert result.norm[2 * head] == pytest.approx(value)
        assert result.share[2 * head] == pytest.approx(value**2 / np.square(matrix).sum())
    again(result)


def test_a_head_of_zeros_has_no_direction():
    one, other, values = leading_directions(
        torch.zeros(3, 5).double(), torch.eye(5).double()[:3], torch.eye(5).double()
    )
    assert not one.any()
    assert not other.any()
    assert values.tolist() == [0.0]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "bert-untied", "t5-gated"])
@pytest.mark.parametrize("kind", ["w_qk", "w_vo"])
@pytest.mark.parametrize("exact", [False, True])
def test_pairs_of_a_head_are_the_extremes_of_the_dense_matrix(tiny_model, family, kind, exact):
    model = tiny_model(family)
    heads = model.anatomy.blocks[1].attention.heads
    settings = HeadReading("m", 1, heads - 1, kind, top=20, inverse="exact" if exact else "transpose", fold_norm=True)
    context = Context(m=model)
    result = settings.compute(context)
    e, real = prepared(model, fold=True)
    inverse = e @ torch.linalg.pinv(e[real].T @ e[real], rtol=1e-12)
    left, right = (factor[heads - 1].double() for factor in head_factors(model.anatomy, kind, 1))
    reader = inverse if exact else e
    matrix = ((reader @ left.T) @ (right @ (reader if kind == "w_qk" else e).T)).numpy()
    seen = matrix[np.ix_(real, real)]
    assert result.mean == pytest.approx(seen.mean(), abs=1e-9 * seen.std())
    assert result.sd == pytest.approx(seen.std())
    np.testing.assert_allclose(result.spectrum[:3], svds(seen, 3, return_singular_vectors=False)[::-1], rtol=1e-6)
    allowed = real[:, None] & real & ~np.eye(len(e), dtype=bool)
    flat = np.flatnonzero(allowed)
    for sign, rows, columns, values in (
        (-1, result.top_rows, result.top_columns, result.top_values),
        (1, result.bottom_rows, result.bottom_columns, result.bottom_values),
    ):
        order = flat[np.argsort(sign * matrix.ravel()[flat], kind="stable")[:20]]
        np.testing.assert_array_equal(rows * len(e) + columns, order)
        np.testing.assert_allclose(values, matrix.ravel()[order], rtol=1e-7)
    assert len({done for done, _, _ in context.reports}) > 1
    again(result)


@pytest.mark.parametrize("kind", ["w_qk", "w_vo"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_level_of_chance_is_that_of_random_heads_read_in_the_same_way(tiny_model, kind, exact):
    model = tiny_model("llama")
    how = {"inverse": "exact" if exact else "transpose", "identical": "none", "fold_norm": True, "seed": 3}
    settings = HeadReading("m", 1, 0, kind, top=3, null_draws=4, **how)
    result = settings.compute(Context(m=model))
    e, real = prepared(model, fold=True)
    inverse = e @ torch.linalg.pinv(e[real].T @ e[real], rtol=1e-12)
    one, other = (inverse if exact else e)[real], (inverse if exact and kind == "w_qk" else e)[real]
    raw = [factor[0] for factor in head_factors(model.anatomy, kind, 1)]
    for draw, (left, right) in enumerate(random_heads(raw, 4, 3)):
        matrix = ((one @ left.T) @ (right @ other.T)).numpy()
        ends = np.array([matrix.max(), matrix.min()])
        np.testing.assert_allclose(result.null[draw], ends, rtol=1e-6)
        np.testing.assert_allclose(result.null_z[draw], (ends - matrix.mean()) / matrix.std(), rtol=1e-5)
    again(result)
    bare = HeadReading("m", 1, 0, kind, top=3, null_draws=0, **how).compute(Context(m=model))
    assert bare.null is None
    np.testing.assert_array_equal(bare.top_values, result.top_values)
    again(bare)


@given(st.integers(1, 5), st.integers(5, 12), st.integers(0, 10**6))
@hypothesis_settings(max_examples=50, deadline=None)
def test_random_heads_keep_singular_values_and_forget_the_rest(width, d, seed):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(width, d, generator=generator, dtype=torch.float64) for _ in range(2))
    inner = torch.eye(width, dtype=torch.float64) + 0.3 * torch.randn(width, width, generator=generator).double()
    drawn = list(random_heads([left, right], 3, 5))
    strong = torch.linalg.svdvals(left.T @ right)[:width]
    for one, other in drawn:
        np.testing.assert_allclose(torch.linalg.svdvals(one.T @ other)[:width], strong, atol=1e-9)
    assert not torch.allclose(drawn[0][0], drawn[1][0])
    # only the product is the head's: another basis inside it changes nothing, nor does turning the model's space
    turned = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    same = random_heads([inner @ left @ turned, torch.linalg.inv(inner).T @ right @ turned], 3, 5)
    for (one, other), (again_one, again_other) in zip(drawn, same, strict=True):
        np.testing.assert_allclose(again_one.T @ again_other, one.T @ other, atol=1e-7 * float(strong[0]))


def test_directions_of_random_heads_favour_none():
    left, right = torch.eye(2, 6, dtype=torch.float64), torch.eye(2, 6, dtype=torch.float64)
    products = torch.stack([one.T @ other for one, other in random_heads([left, right], 4000, 0)])
    assert float(products.mean(0).abs().max()) < 4 * (2 / 36 / 4000) ** 0.5
    # E[M M'] = Σσ² / d · 1
    squares = (products @ products.mT).mean(0)
    np.testing.assert_allclose(squares, np.eye(6) * 2 / 6, atol=0.03)


def test_a_head_of_zeros_has_zero_as_its_level(tiny_folders):
    from embcompare.models import ModelSpec, load_model

    model = load_model(ModelSpec.parse(str(tiny_folders("gpt2")), dtype="float64"))
    model.anatomy.blocks[0].attention.w_o.data.zero_()
    result = HeadReading("m", 0, 0, "w_vo", null_draws=2).compute(Context(m=model))
    assert not result.null.any()
    assert np.isnan(result.null_z).all()


def test_identical_tokens_are_left_out_by_token_or_by_text(tiny_folders):
    from embcompare.models import ModelSpec, load_model

    model = load_model(ModelSpec.parse(str(tiny_folders("gpt2")), dtype="float64"))
    attention = model.anatomy.blocks[0].attention
    attention.w_k.data.copy_(attention.w_q)  # every token attends to itself
    texts = [text.casefold().strip() for text in model.tokens.text]
    found = {
        how: HeadReading("m", 0, 0, "w_qk", top=400, identical=how).compute(Context(m=model))
        for how in ("none", "token", "text")
    }

    def pairs(result):
        rows = [*result.top_rows, *result.bottom_rows]
        return list(zip(rows, [*result.top_columns, *result.bottom_columns], strict=True))

    assert any(row == column for row, column in pairs(found["none"]))
    assert all(row != column for row, column in pairs(found["token"]))
    assert all(texts[row] != texts[column] for row, column in pairs(found["text"]))


def test_grouped_heads_and_rotary_positions_are_said(tiny_model):
    model = tiny_model("llama")
    result = HeadReading("m", 0, 1, "w_qk").compute(Context(m=model))
    assert result.shared_by == (0, 1)
    assert any("share one key and value head" in note for note in result.notices)
    assert any("offset zero" in note for note in result.notices)
    assert not any("offset" in note for note in HeadReading("m", 0, 1, "w_vo").compute(Context(m=model)).notices)
    gpt2 = HeadReading("m", 0, 1, "w_qk").compute(Context(m=tiny_model("gpt2")))
    assert gpt2.notices == ()
    assert gpt2.shared_by == (1,)


def test_layers_heads_and_groups_that_do_not_exist_are_refused(tiny_model):
    context = Context(m=tiny_model("gpt2"))
    for settings, sentence in (
        (TokenReading("m", 9), "has no layer 9; its layers are 0 to 1"),
        (HeadReading("m", 0, 9), "has no head 9; its heads are 0 to 2"),
        (NearestVectors("m", "m", 0, 9000), "none numbered 9000"),
        (NearestVectors("m", "m", 0, 3, "w_vo"), "3 heads, 0 to 2"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            settings.compute(context)
    for wrong in (TokenReading("m", 0, "ff_up"), TokenSearch("m", "m", "aa", "ff_up")):
        with pytest.raises(Incomparable, match="has no FF up"):
            wrong.compute(context)


def test_what_cannot_be_folded_or_inverted_is_said(tiny_model):
    post = TokenReading("m", 0, fold_norm=True, inverse="exact").compute(Context(m=tiny_model("bert-plain")))
    said = " ".join(post.notices)
    assert "no norm after its last block" in said
    assert "no linear head" in said
    assert "added to the stream" in said
    placed = TokenReading("m", 0, fold_norm=True, embedding="input").compute(Context(m=tiny_model("gpt2")))
    assert "before the output embedding" in placed.notices[0]


@pytest.mark.parametrize(
    "settings",
    [
        TokenReading("m", 0),
        HeadReading("m", 0, 0),
        TokenSearch("m", "m", "aa"),
        NearestVectors("m", "m", 0, 0),
    ],
)
def test_a_run_stops_when_asked(tiny_model, settings):
    with pytest.raises(Cancelled):
        settings.compute(Context(m=tiny_model("gpt2"), stop_after=1))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("families", [("gpt2", "llama"), ("bert-untied", "t5-gated")])
def test_search_ranks_every_vector_by_its_z_within_its_group(tiny_model, families, exact):
    a, b = (tiny_model(name) for name in families)
    inverse = "exact" if exact else "transpose"
    result = TokenSearch("a", "b", "ab", count=30, top=3, inverse=inverse).compute(Context(a=a, b=b))
    again(result)
    for side, model, row, highest, lowest in (
        (0, a, result.row_a, result.highest_a, result.lowest_a),
        (1, b, result.row_b, result.highest_b, result.lowest_b),
    ):
        assert model.tokens.text[row] == "ab"
        entries, plain = [], {}
        for place, group in enumerate(result.groups):
            if group not in model.anatomy.groups():
                assert np.isnan(highest[place]).all()
                continue
            parts = [
                dense_scores(model, model.anatomy.vectors(group, layer), group, exact=exact)[0][:, row]
                for layer in range(model.anatomy.n_layers)
            ]
            every = np.concatenate(parts)
            for layer, part in enumerate(parts):
                z = (part - every.mean()) / every.std()
                assert highest[place, layer] == pytest.approx(z.max())
                assert lowest[place, layer] == pytest.approx(z.min())
                plain |= {(place, layer, i): (part[i], z[i]) for i in range(len(part))}
                entries += [(place, layer, i) for i in range(len(part))]
        for promotes in (True, False):
            rows = np.flatnonzero((result.model == side) & (result.promotes == promotes))
            best = sorted(entries, key=lambda key: -plain[key][1] if promotes else plain[key][1])[:30]
            found = [(result.group[r], result.layer[r], result.index[r]) for r in rows]
            assert found == best
            np.testing.assert_allclose(result.score[rows], [plain[key][0] for key in best], rtol=1e-8)
            np.testing.assert_allclose(result.z[rows], [plain[key][1] for key in best], rtol=1e-8)
        r = int(rows[0])
        group = result.groups[result.group[r]]
        vector = -model.anatomy.vectors(group, int(result.layer[r]))[[int(result.index[r])]]
        scores, real = dense_scores(model, vector, group, exact=exact)
        assert result.tokens[r] == tuple(model.tokens.display(t) for t in ends_of(scores, real, 3, True)[0])


def test_search_in_one_group_without_tokens(tiny_model):
    model = tiny_model("gpt2")
    result = TokenSearch("m", "m", "ab", "w_o", top=0, count=3).compute(Context(m=model))
    assert result.groups == ("w_o",)
    assert result.tokens == ((),) * 12
    assert result.searched_a == 2 * 24
    assert result.to_frame().shape == (12, 8)


def vocabulary(raw, text, starts, uncased=False, scheme="bytes", special=()):
    flags = np.isin(np.arange(len(raw)), list(special))
    return Tokens(tuple(raw), tuple(text), np.array(starts), flags, uncased, scheme)


@pytest.fixture
def byte_level():
    return vocabulary(
        ["dog", "Ġdog", "Ġdogs", "ing", "Ġhouse", "<|end|>"],
        ["dog", "dog", "dogs", "ing", "house", "<|end|>"],
        [False, True, True, False, True, False],
        special=[5],
    )


@pytest.mark.parametrize(
    ("text", "row"),
    [("dog", 1), (" dog", 1), ("Ġdog", 1), ("▁dog", 1), ("##dog", 0), ("##ing", 3), ("ing", 3), ("<|end|>", 5)],
)
def test_a_token_is_found_with_and_without_its_mark(byte_level, text, row):
    assert find_token(byte_level, text, "m", 6)[0] == row


def test_a_token_that_could_be_another_is_said(byte_level):
    assert find_token(byte_level, "dog", "m", 6)[1] == "m reads dog as dog; written alike are ##dog."
    assert find_token(byte_level, "##dog", "m", 6)[1] == ""


def test_lower_casing_tokenizers_find_tokens_in_lower_case():
    tokens = vocabulary(["dog", "##dog"], ["dog", "dog"], [True, False], uncased=True, scheme="wordpiece")
    assert find_token(tokens, "DOG", "m", 2)[0] == 0
    assert find_token(tokens, "##Dog", "m", 2)[0] == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dogz", "m has no token 'dogz'; the nearest it has are ##dog, dog, dogs"),
        (" ing", "it has ##ing inside a word, so give that"),
        ("##house", "it has house at the start of a word"),
        ("xyzzy", "none that is spelt alike"),
        ("  ", "Token is empty"),
    ],
)
def test_an_absent_token_names_the_nearest(byte_level, text, sentence):
    with pytest.raises(SettingsError, match=sentence):
        find_token(byte_level, text, "m", 6)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("dogsing", "it is written dogs ##ing, and each"),
        (" housedog", "written house ##dog"),
        ("##xing", ""),
        ("zz", ""),
    ],
)
def test_an_absent_word_tells_its_pieces(byte_level, text, written):
    forms = {"dogsing": [0, 3], " dogsing": [2, 3], "housedog": [0, 3, 0], " housedog": [4, 0], "xing": [0, 3]}

    def pieces(form):
        return forms.get(form, [5])  # a special token: the tokenizer knows it not

    with pytest.raises(SettingsError) as told:
        find_token(byte_level, text, "m", 6, pieces)
    assert (written in str(told.value)) if written else ("written" not in str(told.value))


def test_a_real_tokenizers_pieces_are_told_and_long_ones_cut(tiny_model):
    for family in ("gpt2", "llama", "bert-untied", "t5-gated"):
        model = tiny_model(family)
        with pytest.raises(SettingsError, match=r"no token 'abbacada'; it is written abb? ##?\S+ .*can be searched"):
            TokenSearch("m", "m", "abbacada").compute(Context(m=model))
    with pytest.raises(SettingsError, match=r"written \S+( \S+){7} …, and"):
        TokenSearch("m", "m", "ab" * 300).compute(Context(m=tiny_model("gpt2")))


def test_rows_cut_off_are_not_found(byte_level):
    with pytest.raises(SettingsError, match="has no token 'house'"):
        find_token(byte_level, "house", "m", 4)


@pytest.mark.parametrize("sign", ["either", "positive", "negative"])
@pytest.mark.parametrize("families", [("gpt2", "gpt-neox"), ("bert-untied", "bert-plain")])
def test_nearest_vectors_are_those_of_pearson_over_the_shared_tokens(tiny_model, families, sign):
    from embcompare.text import match_vocabularies

    a, b = tiny_model(families[0]), tiny_model(families[1], seed=1)
    settings = NearestVectors("a", "b", 1, 5, sign=sign, dtype="float64", count=15, top=4, null_draws=3)
    result = settings.compute(Context(a=a, b=b))
    match = match_vocabularies(a.tokens, b.tokens)
    e_a, e_b = (
        m.anatomy.readout("output")[0][torch.as_tensor(rows)] for m, rows in ((a, match.rows_a), (b, match.rows_b))
    )
    x = (e_a @ a.anatomy.vectors("ff_values", 1)[5]).numpy()
    rho = np.stack(
        [
            np.corrcoef(x[None], (b.anatomy.vectors("ff_values", layer) @ e_b.T).numpy())[0, 1:]
            for layer in range(b.anatomy.n_layers)
        ]
    )
    strength = {"either": np.abs(rho), "positive": rho, "negative": -rho}[sign].ravel()
    order = np.argsort(-strength, kind="stable")[:15]
    assert (result.layer * rho.shape[1] + result.index).tolist() == order.tolist()
    np.testing.assert_allclose(result.correlation, rho.ravel()[order], atol=1e-10)
    np.testing.assert_allclose(np.abs(result.best), np.abs(rho).max(1), atol=1e-10)
    assert result.best_index.tolist() == np.abs(rho).argmax(1).tolist()
    generator = torch.Generator().manual_seed(0)
    for draw in range(3):
        shuffled = x[torch.randperm(len(x), generator=generator).numpy()]
        chance = max(
            np.abs(np.corrcoef(shuffled[None], (b.anatomy.vectors("ff_values", k) @ e_b.T).numpy())[0, 1:]).max()
            for k in range(b.anatomy.n_layers)
        )
        assert result.null_best[draw] == pytest.approx(chance, abs=1e-10)
    assert result.searched == rho.size
    assert result.shared == match.n
    first = b.anatomy.vectors("ff_values", int(result.layer[0]))[[int(result.index[0])]]
    scores, real = dense_scores(b, first * np.sign(result.correlation[0]), "ff_values")
    assert result.tokens_b[0] == tuple(b.tokens.display(t) for t in ends_of(scores, real, 4, True)[0])
    again(result)


@pytest.mark.parametrize("centred", [True, False])
def test_null_agrees_with_the_space_of_a_permuted_vocabulary_without_common_directions(tiny_model, centred):
    from embcompare.experiments.vectors import open_space

    a, b = tiny_model("gpt2"), tiny_model("gpt-neox")
    settings = NearestVectors("a", "b", 0, 2, dtype="float64", null_draws=2, common=2, centred=centred, seed=4)
    result = settings.compute(Context(a=a, b=b))
    space, _ = open_space(settings, a, b, "cpu")
    generator = torch.Generator().manual_seed(4)
    for draw in range(2):
        order = torch.randperm(space.size, generator=generator)
        # x read at order[k] meets token k of B: the inverse permutation pairs token k of A with its partner
        permuted = space.permuted(torch.argsort(order))
        x = a.anatomy.vectors("ff_values", 0)[[2]]
        chance = max(float(permuted.cosine(x, b.anatomy.vectors("ff_values", layer)).abs().max()) for layer in range(2))
        assert result.null_best[draw] == pytest.approx(chance, abs=1e-9)


def test_a_model_is_compared_with_itself_without_the_vector_itself(tiny_model):
    result = NearestVectors("m", "m", 0, 4).compute(Context(m=tiny_model("gpt2")))
    assert (0, 4) not in set(zip(result.layer.tolist(), result.index.tolist(), strict=True))
    assert any("left out" in note for note in result.notices)


def test_nearest_heads_read_with_the_sign_of_their_correlation(tiny_model):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", seed=1)
    result = NearestVectors("a", "b", 0, 1, "w_vo", top=4).compute(Context(a=a, b=b))
    assert len(result.layer) == 2 * 3
    assert result.null_best is None
    for row in (result.tokens_a, *result.tokens_b):
        assert row[2] == "→"
        assert len(row) == 5
    reading = TokenReading("m", int(result.layer[0]), "w_vo", top=2).compute(Context(m=b))
    head = 2 * int(result.index[0])
    written = reading.top_tokens if result.correlation[0] > 0 else reading.bottom_tokens
    assert result.tokens_b[0] == (*reading.top_tokens[head], "→", *written[head + 1])
    again(result)


def test_a_vector_that_is_constant_over_the_tokens_has_no_neighbours(tiny_folders):
    from embcompare.models import ModelSpec, load_model

    model = load_model(ModelSpec.parse(str(tiny_folders("gpt2")), dtype="float64"))
    model.anatomy.blocks[0].feed_forward.values.data[3] = 0
    with pytest.raises(Incomparable, match="constant over the shared tokens"):
        NearestVectors("m", "m", 0, 3).compute(Context(m=model))
    reading = TokenReading("m", 0, top=3).compute(Context(m=model))
    assert np.isnan(reading.z[3])
    assert reading.order[-1] == 3
    assert reading.top[3].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "words",
    [
        ["token-reading", "--model", "demo/gpt2-a", "--layer", "1", "--count", "5"],
        ["token-search", "--model-a", "demo/gpt2-a", "--model-b", "demo/bert-a", "--token", "dog"],
        ["head-reading", "--model", "demo/bert-a", "--layer", "1", "--head", "0", "--words-only"],
        ["nearest-vectors", "--model-a", "demo/gpt2-a", "--model-b", "demo/gpt2-wide", "--layer", "1", "--index", "3"],
    ],
)
def test_from_a_shell_on_the_demo_models(words, tmp_path, monkeypatch, capsys):
    from embcompare.cli import main

    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    assert main(["run", *words, "--quiet", "--csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5
    assert main(["run", *words, "--quiet", "--json", "-"]) == 0


def test_every_complaint_is_one_of_ours(tiny_model):
    context = Context(m=tiny_model("gpt2"))
    with pytest.raises(EmbcompareError, match="the nearest it has are"):
        TokenSearch("m", "m", "abcq").compute(context)


def test_the_norm_of_a_combination_neither_overflows_nor_vanishes():
    from embcompare.experiments.reading import _norm

    x = torch.tensor([[3e300, 4e300], [3e-300, 4e-300], [0.0, 0.0]], dtype=torch.float64)
    assert _norm(x).tolist() == pytest.approx([5e300, 5e-300, 0.0])
