"""A run of the logit lens: positions paired, layers compared block by block, a sentence looked at, then the null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from embcompare.errors import Incomparable
from embcompare.experiments.depth import depth_agreement
from embcompare.experiments.lens_pairing import match_positions, wrong_pairings
from embcompare.experiments.lens_result import BETWEEN, WITHIN, LogitLensResult
from embcompare.experiments.lens_shown import shown_sentence
from embcompare.experiments.lens_sides import LensSide, of_targets
from embcompare.measures import distributions

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.text.corpora import Corpus
    from embcompare.text.vocabulary import VocabularyMatch

BLOCK_BYTES = 450e6
"""Memory that the distributions of one block of positions take at most, unless one position alone takes more."""
BLOCK_ROWS = 64
"""Positions of a block at most; more do not make it faster."""


class LensSettings(Protocol):
    """The settings that a run reads, once the text has been read."""

    @property
    def sentence(self) -> int:
        """The sentence shown, from 0."""

    @property
    def k(self) -> int:
        """How many top tokens the overlap counts."""

    @property
    def positions(self) -> int:
        """Positions compared at most."""

    @property
    def null_draws(self) -> int:
        """Wrong pairings."""

    @property
    def dtype(self) -> str:
        """Of logits and distributions."""

    @property
    def seed(self) -> int:
        """Of the positions and the wrong pairings."""


class LensRun:
    """One run's moving parts: the paired positions, in blocks, and the count of blocks done."""

    def __init__(
        self,
        settings: LensSettings,
        context: Context,
        corpus: Corpus,
        match: VocabularyMatch,
        a: LensSide,
        b: LensSide,
    ) -> None:
        import torch

        self.settings, self.context, self.corpus, self.a, self.b = settings, context, corpus, a, b
        device = a.head.weight.device
        self.shared = [torch.as_tensor(rows, device=device) for rows in (match.rows_a, match.rows_b)]
        self.match, self.done = match, 0
        self.causal = a.model.anatomy.blocks[0].attention.causal
        found = match_positions(
            corpus.sentences, a.states.index, b.states.index, causal=self.causal, same_vocabulary=match.identical
        )
        self._check_and_note(len(found[0]))
        self.all_pairs = found
        chosen = np.arange(len(found[0]))
        if len(chosen) > settings.positions:
            generator = np.random.default_rng([settings.seed, 1])
            chosen = np.sort(generator.choice(len(chosen), settings.positions, replace=False))
            self.notices.append(f"{len(chosen):,} of {len(found[0]):,} positions were drawn.")
        self.rows = found[0][chosen], found[1][chosen]
        self.items = a.states.index.sentence[self.rows[0]]
        self.step = self._block_rows()
        self.blocks = [np.arange(low, min(low + self.step, len(chosen))) for low in range(0, len(chosen), self.step)]
        self.groups, self.partners = wrong_pairings(len(chosen), settings.null_draws, settings.seed)
        if len(self.partners) < settings.null_draws:
            self.notices.append(f"{len(chosen):,} positions can be paired wrongly in {len(self.partners):,} ways only.")
        self.total = len(self.blocks) + len(self._null_blocks()) * len(self.partners) + 1

    def _check_and_note(self, matched: int) -> None:
        a, b, match = self.a, self.b, self.match
        if not matched:
            where = "end at the same character" if self.causal else "cover the same characters"
            raise Incomparable(
                f"No token of {a.label} and none of {b.label} {where} in this text, so there is no position at which "
                "they can be compared; give more text, or compare sentences with representation-similarity."
            )
        notices = [f"{s.label}: {notice}" for s in (a, b) for notice in s.states.notices]
        notices += [s.head.note for s in (a, b) if s.head.note]
        notices.append(match.sentence())
        counts = [len(s.states.index) for s in (a, b)]
        if matched < max(counts):
            what = "both have read the same text" if self.causal else "a token of each covers the same characters"
            notices.append(
                f"The models are compared at {matched:,} positions where {what} (of {counts[0]:,} and {counts[1]:,})."
            )
        if not match.identical:
            notices.append("The log losses are each per token of the model's own, so they do not compare.")
        if not self.causal:
            notices.append("The models see the token that they predict; their log loss is that of copying it.")
        if self.settings.k > match.n:
            notices.append(f"The models share {match.n:,} tokens, so the overlap counts no more of them.")
        self.notices = list(dict.fromkeys(notices))

    def _block_rows(self) -> int:
        """Return how many positions at once keep a block's distributions within ``BLOCK_BYTES``."""
        whole = 2 * max(side.layers * side.rows for side in (self.a, self.b))
        shared = 5 * (self.a.layers + self.b.layers) * self.match.n
        number = 8 if self.settings.dtype == "float64" else 4
        return int(max(1, min(BLOCK_ROWS, BLOCK_BYTES // (number * (whole + shared)))))

    def _null_blocks(self) -> list[np.ndarray]:
        """Return all positions in blocks: whole groups where these are small enough, so that partners are together."""
        largest = max(map(len, self.groups))
        at_once = max(1, self.step // largest)
        blocks = [np.concatenate(self.groups[low : low + at_once]) for low in range(0, len(self.groups), at_once)]
        return [block[low : low + self.step] for block in blocks for low in range(0, len(block), self.step)]

    def result(self) -> LogitLensResult:
        """Compare at all positions, look at the shown sentence, then pair wrongly."""
        self._compare()
        self._show()
        self.context.report(self.done, self.total, "wrong pairings", self._assemble(None))
        return self._assemble(self._null())

    def _tick(self, message: str) -> None:
        self.done += 1
        self.context.report(self.done, self.total, message)

    def _shared_layers(self, at: int, rows: np.ndarray) -> distributions.Layers:
        return distributions.Layers.of((self.a, self.b)[at].restricted(rows, self.shared[at]), self.settings.k)

    def _compare(self) -> None:
        """Fill the tallies, block by block."""
        n, layers = len(self.corpus), (self.a.layers, self.b.layers)
        self.between = _Tally(n, len(BETWEEN), *layers)
        self.within = [_Tally(n, len(WITHIN) - 1, side.layers) for side in (self.a, self.b)]
        self.loss = [_Tally(n, side.layers) for side in (self.a, self.b)]
        self.left_out = [_Tally(n, side.layers) for side in (self.a, self.b)]
        for block in self.blocks:
            items, shared = self.items[block], []
            for at, side in enumerate((self.a, self.b)):
                rows = self.rows[at][block]
                log_p = side.logits(rows).log_softmax(-1)
                self.within[at].add(items, _positions_first(_within(log_p, self.settings.k)))
                target = side.target[rows]
                known = np.flatnonzero(target >= 0)
                self.loss[at].add(items[known], -of_targets(log_p, target)[:, known].T)
                kept, mass = distributions.restrict(log_p, self.shared[at])
                self.left_out[at].add(items, 1.0 - mass.cpu().numpy().T)
                shared.append(distributions.Layers.of(kept, self.settings.k))
            self.between.add(items, _positions_first(distributions.pairwise(*shared).cpu().numpy()))
            self._tick("all layers of both models")

    def _null(self) -> np.ndarray | None:
        """Return the means over wrongly paired positions, (draws, 4, L_a + 1, L_b + 1)."""
        if not len(self.partners):
            return None
        sums = np.zeros((len(self.partners), len(BETWEEN), self.a.layers, self.b.layers))
        for block in self._null_blocks():
            place = np.full(len(self.items), -1)
            place[block] = np.arange(len(block))
            own, held = (self._shared_layers(at, self.rows[at][block]) for at in (0, 1))
            for draw, partner in enumerate(self.partners):
                wrong = partner[block]
                together = bool((place[wrong] >= 0).all())
                other = held.at(place[wrong]) if together else self._shared_layers(1, self.rows[1][wrong])
                sums[draw] += distributions.pairwise(own, other).sum(-1).cpu().numpy()
                self._tick(f"wrong pairing {draw + 1} of {len(self.partners)}")
        return np.asarray(sums / len(self.items))

    def _show(self) -> None:
        sides, settings = (self.a, self.b), self.settings
        self.shown, notices = shown_sentence(sides, self.shared, self.all_pairs, settings.sentence, self.step)
        self.notices += notices
        self._tick("the shown sentence")

    def _assemble(self, null: np.ndarray | None) -> LogitLensResult:
        values, spread = self.between.mean()
        depth = depth_agreement(-values[0], self.settings.seed)
        within = [self._within(at) for at in (0, 1)]
        states_a, states_b = self.a.states, self.b.states
        few = null is None or len(null) < 2
        return LogitLensResult(
            measures=BETWEEN,
            values=values,
            spread=spread,
            null_mean=None if null is None else null.mean(0),
            null_sd=None if null is None else (np.full(values.shape, np.nan) if few else null.std(0, ddof=1)),
            left_out_a=self.left_out[0].mean()[0],
            left_out_b=self.left_out[1].mean()[0],
            indicators=WITHIN,
            within_a=within[0][0],
            within_b=within[1][0],
            within_spread_a=within[0][1],
            within_spread_b=within[1][1],
            assignment=depth.pairs,
            depth_rate=depth.rate,
            depth_chance=depth.chance,
            depth_p=depth.p_value,
            layers_a=tuple(states_a.layer_label(layer) for layer in states_a.layers),
            layers_b=tuple(states_b.layer_label(layer) for layer in states_b.layers),
            target="next token" if self.causal else "own token",
            k=min(self.settings.k, self.match.n),
            positions=len(self.items),
            items=len(np.unique(self.items)),
            targets_a=int(self.loss[0].counts.sum()),
            targets_b=int(self.loss[1].counts.sum()),
            shared=self.match.n,
            sentence=self.settings.sentence,
            text=self.corpus.sentences[self.settings.sentence],
            notices=tuple(self.notices),
            **self.shown,
        )

    def _within(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.vstack(pair) for pair in zip(self.within[at].mean(), self.loss[at].mean(), strict=True))  # type: ignore[return-value]


class _Tally:
    """Sums of what was seen at positions, kept apart by sentence; the values have a shape of their own."""

    def __init__(self, items: int, *shape: int) -> None:
        self.sums = np.zeros((items, *shape))
        self.counts = np.zeros(items)

    def add(self, items: np.ndarray, values: np.ndarray) -> None:
        """Count values (b, ...) of positions in the sentences ``items`` (b,)."""
        np.add.at(self.sums, items, values)
        np.add.at(self.counts, items, 1.0)

    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean over positions and its standard error over sentences."""
        return distributions.clustered_mean(self.sums, self.counts)


def _positions_first(values: np.ndarray) -> np.ndarray:
    return np.moveaxis(values, -1, 0)


def _within(log_p: Tensor, k: int) -> np.ndarray:
    """Return ``WITHIN``, all but the loss, of every layer at every position, (4, L + 1, b), for (L + 1, b, V)."""
    import torch

    last, top = log_p[-1], distributions.top_tokens(log_p, k)
    found = [
        torch.stack(
            (
                distributions.kl(last, layer),
                distributions.jsd(last, layer),
                distributions.overlap(top[-1], top[at]),
                distributions.entropy(layer),
            )
        )
        for at, layer in enumerate(log_p)
    ]
    return np.asarray(torch.stack(found, dim=1).cpu().numpy())
