"""A run of the decomposition: both models' states split batch by batch, and predictions scored without each term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.decomposition import INDICATORS, LayerTerms, Readout, Term, indicators, summarise
from embcompare.decomposition.reading import IGNORED
from embcompare.errors import InputError
from embcompare.experiments.decomposition_options import SPLITS
from embcompare.experiments.decomposition_result import DecompositionResult
from embcompare.experiments.decomposition_split import split_states, split_terms
from embcompare.experiments.decomposition_texts import (
    Scored,
    TextsOf,
    at_tokens,
    could_be_there,
    readout_of,
    state_name,
    states_of,
    term_places,
    translates,
)
from embcompare.experiments.lens_sides import first_sentences
from embcompare.text.translations import targets_of
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.decomposition import Decomposition
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus

KEPT_BYTES = 2**30
"""Bytes that the indicators of all tokens may take, before they are summarised."""
DROPS = 16
"""Terms dropped between two reports."""
_SAID = {
    "next token": "next token",
    "own token": "token it stands on",
    "next target token": "next token of the translation",
}


class DecompositionRun:
    """One run's two sides, and the count of steps done."""

    def __init__(self, settings: Decomposition, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        self.settings, self.context = settings, context
        corpus = first_sentences(context.corpus(settings.corpus), settings.sentences, 0)
        self.notices: list[str] = list(corpus.notices)
        texts = self._texts((a, b), corpus)
        self.items = len(texts[0].encoded)
        self.sides = [_Side(self, each) for each in texts]
        self.done, self.total = 0, sum(side.steps for side in self.sides)

    def _texts(self, models: tuple[LoadedModel, LoadedModel], corpus: Corpus) -> list[TextsOf]:
        """Encode the sentences for both models, those left out in which either finds no token."""
        targets = targets_of(corpus) if any(map(translates, models)) else ()
        texts = [TextsOf.of(model, corpus.sentences, targets=targets) for model in models]
        for each in texts:
            each.check_known(corpus.name)
        empty = sorted({number for each in texts for number in each.encoded.empty})
        if not empty:
            return texts
        kept = [number for number in range(len(corpus)) if number not in set(empty)]
        if not kept:
            raise InputError(
                f"No sentence of {corpus.name} has a token for both {models[0].spec.label} and {models[1].spec.label}; "
                "give other sentences."
            )
        self.notices.append(
            f"{plural(len(empty), 'sentence')} {agree(len(empty), 'was', 'were')} left out, in which one of the models "
            "finds no token."
        )
        sentences = [corpus.sentences[number] for number in kept]
        targets = tuple(targets[number] for number in kept) if targets else ()
        return [TextsOf.of(model, sentences, targets=targets) for model in models]

    def tick(self, message: str) -> None:
        """Count one step of the work."""
        self.done += 1
        self.context.report(self.done, self.total, message)

    def result(self) -> DecompositionResult:
        """Go through both models, one after the other."""
        fields: dict[str, Any] = {}
        for side, which in zip("ab", self.sides, strict=True):
            fields |= {f"{name}_{side}": value for name, value in which.fields().items()}
            self.notices += which.notices
        a, b = self.sides
        if a.losses is not None and b.losses is not None:
            if a.target != b.target:
                self.notices.append(
                    f"{a.label} predicts the {_SAID[a.target]} and {b.label} the {_SAID[b.target]}, so their losses do "
                    "not compare."
                )
            elif a.texts.model.tokens.raw != b.texts.model.tokens.raw:
                self.notices.append("The losses are each per token of the model's own, so they do not compare.")
            if "own token" in (a.target, b.target):
                self.notices.append(
                    "Bidirectional models see the token that they predict; their loss is that of copying it."
                )
        return DecompositionResult(
            indicators=tuple(INDICATORS), items=self.items, notices=tuple(dict.fromkeys(self.notices)), **fields
        )


class _Side:
    """One model: its texts, the table of indicators to fill, and the losses."""

    def __init__(self, run: DecompositionRun, texts: TextsOf) -> None:
        self.run, self.texts, self.label = run, texts, texts.model.spec.label
        settings, model = run.settings, texts.model
        self.by = SPLITS[settings.by]
        self.states = states_of(model)
        self.terms: tuple[Term, ...] = split_terms(model, settings, self.by)
        self.shape = len(self.states), len(self.terms), int(texts.starts[-1])
        kept = 8.0 * len(INDICATORS) * float(np.prod([float(size) for size in self.shape]))
        texts.check_terms(len(self.terms), kept, KEPT_BYTES, "read fewer sentences")
        self.batches = texts.batches(len(self.terms))
        self.notices = texts.notices()
        single = "next token" if texts.causal else "own token"
        self.target = "next target token" if translates(model) else single
        self.readout: Readout | None = None
        self.scored = self._prepare_ablation()
        self.losses: np.ndarray | None = None
        chosen = set(self.scored.texts.tolist())
        groups = -(-len(self.terms) // DROPS)
        self.steps = sum(len(self.states) + groups * bool(chosen & set(batch.tolist())) for batch in self.batches)

    def _prepare_ablation(self) -> Scored:
        none = np.zeros(0, dtype=np.int64)
        if not self.run.settings.ablation:
            return Scored(none, none, none, 0)
        self.readout, said = readout_of(self.texts.model)
        if said:
            self.notices.append(said)
        if self.readout is None:
            return Scored(none, none, none, 0)
        scored = self.texts.scored(self.run.settings.positions, self.run.settings.seed)
        if not scored.candidates:
            self.notices.append(f"{self.label}: no token of these texts is followed by another, so none is predicted.")
        if len(scored.texts) < scored.candidates:
            self.notices.append(
                f"{self.label}: {len(scored.texts):,} of {scored.candidates:,} predictions were drawn to be scored."
            )
        return scored

    def fields(self) -> dict[str, Any]:
        """Fill the tables batch by batch and summarise them; the result's fields of this side."""
        self.table = {name: np.empty(self.shape) for name in INDICATORS}
        self.residual = 0.0
        if len(self.scored.texts):
            self.losses = np.empty((1 + len(self.terms), len(self.scored.texts)))
        for batch in self.batches:
            self._decompose(batch)
        seed, of = self.run.settings.seed, self.texts.token_texts
        found = [summarise(self.table.pop(name), of, seed=seed) for name in INDICATORS]
        stacked = {
            name: np.stack([getattr(each, name) for each in found])
            for name in ("mean", "sd", "low", "high", "undefined")
        }
        self._note_undefined(stacked["undefined"])
        layers, heads = term_places(self.terms)
        return {
            "states": tuple(state_name(*state) for state in self.states),
            "layers": np.array([layer for layer, _ in self.states], dtype=np.int64),
            "terms": tuple(map(str, self.terms)),
            "kinds": tuple(term.kind for term in self.terms),
            "term_layers": layers,
            "term_heads": heads,
            **{name: value.astype(np.int64) if name == "undefined" else value for name, value in stacked.items()},
            "residual": self.residual,
            "tokens": self.shape[2],
            "target": self.target,
            **self._losses(),
        }

    def _losses(self) -> dict[str, Any]:
        if self.losses is None:
            return {"scored": 0, "dropped": (), "loss": None, "rise": None}

        def with_interval(values: np.ndarray) -> np.ndarray:
            found = summarise(values, self.scored.texts, seed=self.run.settings.seed)
            return np.stack([found.mean, found.low, found.high])

        return {
            "scored": self.losses.shape[1],
            "dropped": ("nothing", *map(str, self.terms)),
            "loss": with_interval(self.losses),
            "rise": with_interval(self.losses - self.losses[0]),
        }

    def _decompose(self, batch: np.ndarray) -> None:
        model, settings = self.texts.model, self.run.settings
        ids, mask, is_text = self.texts.batch(batch)
        columns = self.texts.columns(batch)
        terms: LayerTerms | None = None
        stream = split_states(model, settings, ids, mask, self.texts.source(batch), self.by)
        for row, terms in enumerate(stream):
            for name, value in indicators(terms.values[:, is_text], terms.hidden[is_text]).items():
                self.table[name][row][:, columns] = value.numpy(force=True)
            self.residual = max(self.residual, terms.residual)
            self.run.tick(f"{self.label}: {state_name(*self.states[row])}")
        assert terms is not None
        targets, places = self.scored.of(batch, ids.shape[1])
        if len(places) and self.readout is not None:
            self._ablate(self.readout, terms, targets.to(ids.device), places)

    def _ablate(self, readout: Readout, terms: LayerTerms, targets: Tensor, places: np.ndarray) -> None:
        """Score the predictions of one batch with nothing dropped, then with each term dropped."""
        assert self.losses is not None
        at = targets != IGNORED
        few, asked = at_tokens(terms, at), targets[at][None]
        for low in range(0, len(self.terms), DROPS):
            drops = self.terms[low : low + DROPS]
            losses = readout.ablate(few, asked, drops).losses.numpy(force=True)
            self.losses[0, places] = losses[0]
            self.losses[1 + low : 1 + low + len(drops), places] = losses[1:]
            self.run.tick(f"{self.label}: predictions without {drops[0]}")

    def _note_undefined(self, undefined: np.ndarray) -> None:
        """Say where numbers are undefined that a state's terms should have."""
        here = could_be_there(self.terms, self.states)
        for name, counts in zip(INDICATORS, undefined, strict=True):
            missing = np.where(here, counts, 0)
            if not missing.any():
                continue
            terms = [str(self.terms[column]) for column in np.flatnonzero(missing.any(0))]
            which = ", ".join(terms[:3]) + (f" and {len(terms) - 3} more" if len(terms) > 3 else "")
            count = int(missing.sum())
            self.notices.append(
                f"{self.label}: {plural(count, 'value')} of the {name.replace('_', ' ')} {agree(count, 'is', 'are')} "
                f"undefined, where a term or a state has length zero ({which}), and left out of the means."
            )
