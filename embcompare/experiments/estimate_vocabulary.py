"""What a run that reads parameters in tokens will cost: products with E, and passes over what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embcompare.experiments import estimate
from embcompare.experiments.estimate import TOKENS_A_SENTENCE, Estimate
from embcompare.experiments.vectors import GROUPS, INTERACTIONS
from embcompare.projections.rows import BLOCK

if TYPE_CHECKING:
    from embcompare.experiments.agreement import ParameterAgreement
    from embcompare.experiments.difference import ParameterDifference
    from embcompare.experiments.heads import HeadReading
    from embcompare.experiments.nearest import NearestVectors
    from embcompare.experiments.reading import TokenReading
    from embcompare.experiments.token_search import TokenSearch
    from embcompare.models import ModelInfo

# Seconds beside the products, one thread of a 2-core machine: for each score of a vector and a token that is searched
# for its extremes at one end, for each candidate there and each number it is proven with in float64, for each pair of
# tokens of a head, for each number of a vector that is read once, for each of E that is brought into blocks.
SCORE_SECONDS, CANDIDATE_SECONDS, PROOF_SECONDS, PAIR_SECONDS = 4e-10, 6e-7, 2e-9, 1e-9
NUMBER_SECONDS, PASS_SECONDS = 2e-9, 1e-8
# Sorting a score among its row's; an eigendecomposition in products of d³; what each call takes whatever its size.
SORT_SECONDS, EIGEN_PRODUCTS, CALL_SECONDS, START_SECONDS = 1e-7, 15.0, 3e-3, 0.05
_BLOCK_BYTES = 32e6
_GROUPS = tuple(name for name in GROUPS if name not in INTERACTIONS)


def reading_cost(settings: TokenReading, info: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`TokenReading` from what the configuration says."""
    heads = settings.group in INTERACTIONS
    size = info.heads if heads else _rows(settings.group, info)
    vectors = max(1, min(size - settings.start, settings.count or size))
    vectors = 1 if settings.combination.strip() else vectors * (2 if heads else 1)
    squares = heads or settings.inverse == "exact" or settings.common > 0
    seconds = _embedding_seconds(info, device, squares=squares) + _ends_seconds(vectors, info, settings.top, device)
    return Estimate(START_SECONDS + seconds, int(_block_bytes(vectors, info, settings.top)))


def search_cost(settings: TokenSearch, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`TokenSearch`: one pass over both models' vectors, then the listed ones read."""
    seconds = memory = 0.0
    for info in (a, b):
        groups = _present(settings.group, info)
        rows = sum(_rows(name, info) for name in groups) * info.layers
        seconds += rows * info.width * NUMBER_SECONDS + len(groups) * info.layers * CALL_SECONDS / 10
        seconds += _embedding_seconds(info, device, squares=settings.inverse == "exact" or settings.common > 0)
        if settings.top:
            # the listed ones are read group by group, and each time E is passed over
            seconds += _ends_seconds(2 * settings.count, info, settings.top, device, ends=1, passes=len(groups))
        memory = max(memory, _block_bytes(2 * settings.count, info, settings.top) + 8.0 * rows)
    return Estimate(START_SECONDS + seconds, int(memory))


def heads_cost(settings: HeadReading, info: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`HeadReading`: every pair looked at, at both ends, were none passed over; so for each draw."""
    width = info.width / max(info.heads, 1)
    pairs = float(info.vocabulary) ** 2 * (1 + settings.null_draws)
    seconds = pairs * (2.0 * width / estimate.product_rate(device) + PAIR_SECONDS)
    readings = 8.0 * info.vocabulary * info.width * width * (1 + settings.null_draws)
    seconds += readings / estimate.product_rate(device, "float64")
    seconds += _embedding_seconds(info, device, squares=settings.inverse == "exact" or settings.common > 0)
    return Estimate(START_SECONDS + seconds, int(6 * 8 * info.vocabulary * width + BLOCK * info.width * 8))


def nearest_cost(settings: NearestVectors, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`NearestVectors`: the shared space, one vector against all of B, its null, what is listed."""
    rate = estimate.product_rate(device, settings.dtype)
    wide = estimate.product_rate(device, "float64")
    vocabulary = min(a.vocabulary, b.vocabulary)
    heads = settings.group in INTERACTIONS
    rows = _rows(INTERACTIONS[settings.group][0] if heads else settings.group, b)
    squares = 2.0 * vocabulary * (a.width**2 + b.width**2 + a.width * b.width)
    squares += EIGEN_PRODUCTS * (a.width**3 + b.width**3)
    # own coordinates, then the meeting of both; a head has two factors
    compared = (4.0 + settings.null_draws / b.width) * rows * b.layers * b.width**2 * (2 if heads else 1)
    null = 0.0 if heads else 4.0 * settings.null_draws * vocabulary * b.width
    seconds = squares / wide + compared / rate + null / wide + b.layers * CALL_SECONDS
    seconds += 2 * _embedding_seconds(a, device, squares=heads) + 2 * _embedding_seconds(b, device, squares=heads)
    seconds += _ends_seconds(settings.count + 1, b, settings.top, device)
    memory = vocabulary * (a.width + b.width) * 4 + 3.0 * rows * b.width * 8
    return Estimate(START_SECONDS + seconds, int(memory + 8.0 * settings.null_draws * vocabulary))


def difference_cost(settings: ParameterDifference, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`ParameterDifference`; two models that cannot be subtracted are refused at once."""
    layers = a.layers if settings.layer < 0 else 1
    groups = _present(settings.group, a)
    wide = estimate.product_rate(device, "float64")
    seconds = 0.0
    for name in groups:
        n, d = _rows(name, a), a.width
        short = min(n, d)
        grams = 2.0 * n * d * (short + d + (short + d if settings.common else 0))
        eigen = EIGEN_PRODUCTS * short**3 * (2 if settings.common else 1)
        seconds += layers * ((grams + eigen) / wide + 12 * n * d * NUMBER_SECONDS + CALL_SECONDS)
    seconds += EIGEN_PRODUCTS * a.width**3 / wide + a.parameters * NUMBER_SECONDS
    seconds += _embedding_seconds(a, device, squares=settings.inverse == "exact" or settings.common > 0)
    rows = settings.count + settings.directions * (1 + layers * len(groups)) + 2
    seconds += _ends_seconds(rows, a, settings.top, device) + rows * CALL_SECONDS / 10
    largest = max(_rows(name, a) for name in groups)
    memory = 5.0 * 8 * largest * a.width + _block_bytes(rows, a, settings.top)
    return Estimate(START_SECONDS + seconds, int(memory + 8.0 * settings.directions * a.width * layers * len(groups)))


def agreement_cost(
    settings: ParameterAgreement, a: ModelInfo, b: ModelInfo, sentences: int, device: str = "cpu"
) -> Estimate:
    """Estimate a :class:`ParameterAgreement` on a corpus of so many sentences; one model twice is measured once."""
    infos = [a] if settings.model_a == settings.model_b else [a, b]
    tokens = min(settings.sentences, sentences) * TOKENS_A_SENTENCE
    parts = [_agreement(settings, info, tokens, device) for info in infos]
    return Estimate(START_SECONDS + sum(part.seconds for part in parts), max(part.bytes for part in parts))


def _agreement(settings: ParameterAgreement, info: ModelInfo, tokens: int, device: str) -> Estimate:
    k, draws = min(settings.k, info.vocabulary), settings.null_draws
    most = settings.pairs or 10**9
    groups = _present("all", info)
    sets = sum(min(_rows(name, info), most) for name in groups)
    pairs = min(info.ff_width, most) + 2 * min(info.width, most)
    seconds = info.layers * _ends_seconds(sets, info, k, device)
    # two sets of a pair are sorted as one, once for the pair and once for each shuffle
    seconds += info.layers * pairs * 2 * k * (2 + draws) * SORT_SECONDS
    seconds += estimate.capture_seconds(info, tokens, device)
    seconds += _ends_seconds(float(tokens) * info.layers, info, k, device, ends=1)
    active = [name for name in groups if name not in ("w_q", "w_k")]
    distinct = sum(min(_rows(name, info), tokens * settings.active) for name in active)
    seconds += info.layers * _ends_seconds(distinct, info, k, device, ends=1)
    looked_up = tokens * (settings.active * k + k * (1 + draws)) * 2 * 4e-9 + tokens * info.vocabulary * 1e-10
    seconds += info.layers * len(active) * (looked_up + CALL_SECONDS)
    # a thousand resampled means of each pair's and each sentence's values
    seconds += info.layers * (pairs * 1.5e-5 + 10 * CALL_SECONDS)
    kept = settings.keep_vectors * info.vocabulary
    steps = 15
    rate = estimate.product_rate(device)
    seconds += 3 * kept * (4 * SORT_SECONDS + steps * (4.0 * settings.keep_vectors / rate + 6 * NUMBER_SECONDS))
    seconds += _embedding_seconds(info, device, squares=True)
    memory = max(32.0 * kept, _block_bytes(max(sets, distinct), info, 2 * k) + tokens * k * 8.0 * info.layers)
    return Estimate(seconds, int(memory))


def _rows(group: str, info: ModelInfo) -> int:
    """Return the vectors of one layer; heads as wide as the model divided by their number are assumed."""
    if group.startswith("ff_"):
        return info.ff_width
    return info.width * info.kv_heads // max(info.heads, 1) if group in ("w_k", "w_v") else info.width


def _present(group: str, info: ModelInfo) -> tuple[str, ...]:
    """Return the groups meant; whether a feed-forward is gated no configuration says in one way, so up is left out."""
    return tuple(name for name in _GROUPS if name != "ff_up") if group == "all" else (group,)


def _ends_seconds(vectors: float, info: ModelInfo, k: int, device: str, ends: int = 2, passes: int = 1) -> float:
    """Seconds of listing the ``k`` tokens at each end of that many vectors, in so many passes over E."""
    scores = vectors * info.vocabulary
    candidates = vectors * ends * min(k + 8, info.vocabulary)
    rate = estimate.product_rate(device)
    seconds = scores * (2.0 * info.width / rate + ends * SCORE_SECONDS)
    seconds += candidates * (CANDIDATE_SECONDS + info.width * PROOF_SECONDS)
    return seconds + passes * (info.vocabulary * info.width * PASS_SECONDS + CALL_SECONDS)


def _embedding_seconds(info: ModelInfo, device: str, *, squares: bool) -> float:
    """Seconds of one pass over E for its mean, and of its Gram matrix in float64 with its decomposition."""
    seconds = info.vocabulary * info.width * NUMBER_SECONDS
    if squares:
        products = 2.0 * info.vocabulary * info.width**2 + EIGEN_PRODUCTS * info.width**3
        seconds += products / estimate.product_rate(device, "float64")
    return seconds


def _block_bytes(vectors: float, info: ModelInfo, k: int) -> float:
    return _BLOCK_BYTES + BLOCK * info.width * 8 + vectors * (info.width * 8 + (k + 8) * 24)
