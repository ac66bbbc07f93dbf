"""A run over one text: both models' states split, read in tokens, and one state split by input tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embcompare.decomposition import (
    INDICATORS,
    LayerTerms,
    LinearConventions,
    Readout,
    Term,
    decompose,
    decompose_tokens,
    indicators,
)
from embcompare.decomposition.additive import all_terms
from embcompare.decomposition.exact import check_residual
from embcompare.decomposition.terms import layer_terms
from embcompare.errors import InputError, SettingsError
from embcompare.experiments.decomposition_options import SPLITS, conventions
from embcompare.experiments.decomposition_targets import own_output, written_as
from embcompare.experiments.decomposition_texts import (
    TextsOf,
    at_tokens,
    longest_source,
    readout_of,
    state_name,
    states_of,
    term_places,
    translates,
)
from embcompare.experiments.readout import list_tokens
from embcompare.experiments.term_result import SentenceTermsResult
from embcompare.experiments.term_vocabulary import VocabularyReading, read_terms
from embcompare.text.encoding import encode

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.term_sentence import SentenceTerms
    from embcompare.models import LoadedModel

LONGEST = 128
"""Tokens of the text at most, special ones included."""
KEPT_BYTES = 2**28
"""Bytes that the indicators of all tokens may take."""
CHUNK = 16
"""Input tokens that are told apart in one pass."""


class SentenceRun:
    """One run's two sides, and the count of steps done."""

    def __init__(self, settings: SentenceTerms, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        self.settings, self.context = settings, context
        self.sides = [
            _Side(self, model, which, layer, position)
            for model, which, layer, position in (
                (a, "A", settings.layer_a, settings.position_a),
                (b, "B", settings.layer_b, settings.position_b),
            )
        ]
        self.done, self.total = 0, sum(side.steps for side in self.sides)

    def tick(self, message: str) -> None:
        """Count one step of the work."""
        self.done += 1
        self.context.report(self.done, self.total, message)

    def result(self) -> SentenceTermsResult:
        """Go through both models, one after the other."""
        fields: dict[str, Any] = {}
        notices: list[str] = []
        for letter, side in zip("ab", self.sides, strict=True):
            fields |= {f"{name}_{letter}": value for name, value in side.fields().items()}
            notices += side.notices
        return SentenceTermsResult(indicators=tuple(INDICATORS), notices=tuple(dict.fromkeys(notices)), **fields)


class _Side:
    """One model: the text as it reads it, and what is asked of it."""

    def __init__(
        self, run: SentenceRun, model: LoadedModel, which: str, layer: int | None, position: int | None
    ) -> None:
        self.run, self.model, self.label = run, model, model.spec.label
        settings = run.settings
        self.own = translates(model) and not settings.target.strip()
        self.texts = self._read_text()
        self.is_text = self.texts.encoded.is_text[0]
        self.by = SPLITS[settings.by]
        self.terms: tuple[Term, ...] = all_terms(model, self.by, 0)
        self.states = states_of(model)
        self.state = self._state(which, layer)
        self.position = self._position(which, position)
        size = len(INDICATORS) * len(self.states) * len(self.terms) * len(self.is_text)
        self.texts.check_terms(len(self.terms), 8.0 * size, KEPT_BYTES, "give a shorter text")
        self.notices = self.texts.notices()
        self.readout, said = readout_of(model)
        self.notices += [said] if said else []
        if self.readout is not None and self.readout.head.softcap is not None:
            self.notices.append(f"{self.label} squeezes its logits; shown are those before, which terms add up to.")
        self.ids, self.mask, _ = self.texts.batch(np.array([0]))
        self.given = self.texts.source(np.array([0]))
        if self.texts.causal:
            self.read_ids, self.read_mask = (each[:, : self.position + 1] for each in (self.ids, self.mask))
        else:
            self.read_ids, self.read_mask = self.ids, self.mask
        chunks = -(-self.read_ids.shape[1] // CHUNK)
        self.steps = len(self.states) + (self.readout is not None) + chunks

    def _read_text(self) -> TextsOf:
        """Return the text as the model reads it, an encoder-decoder with its translation, a given one or its own."""
        model, settings = self.model, self.run.settings
        if not self.own:
            found = TextsOf.of(model, [settings.text], LONGEST, targets=[settings.target])
        else:
            sources = encode([settings.text], model.tokenizer, model.tokens, longest_source(model, LONGEST))
            found = TextsOf.translated(model, sources, own_output(model, sources, LONGEST), LONGEST)
        read = found.encoded if found.sources is None else found.sources
        if not read.is_text[0].any():
            raise InputError(f"The text has no token for {self.label}; give a few words.")
        if found.encoded.empty:
            whose = "What it writes" if self.own else "The translation"
            raise InputError(
                f"{whose} has too few tokens for {self.label}'s decoder to read any; give a translation of a few words."
            )
        return found

    def _state(self, which: str, layer: int | None) -> int:
        """Return the place of the state that is read in tokens: of the last layer, the one after the final norm."""
        last = self.model.anatomy.n_layers
        if layer is not None and layer > last:
            raise SettingsError(
                f"Model {which} ({self.label}) has no layer {layer}; its layers are 0, the embedding output, to "
                f"{last}, after the last block."
            )
        return len(self.states) - 1 if layer in (None, last) else int(layer or 0)

    def _position(self, which: str, position: int | None) -> int:
        if position is None:
            return int(np.flatnonzero(self.is_text)[-1])
        if position >= len(self.is_text):
            raise SettingsError(
                f"Model {which} ({self.label}) reads {len(self.is_text)} tokens of this text, numbered 0 to "
                f"{len(self.is_text) - 1}; it has no token {position}."
            )
        return position

    def fields(self) -> dict[str, Any]:
        """Take the text apart; the result's fields of this side."""
        values = np.empty((len(INDICATORS), len(self.states), len(self.terms), len(self.is_text)))
        options, chosen, residual = conventions(self.run.settings), None, 0.0
        for row, terms in enumerate(
            decompose(self.model, self.ids, self.mask, by=self.by, options=options, **self.given)
        ):
            found = indicators(*terms.tokens())
            values[:, row] = [found[name].numpy(force=True) for name in INDICATORS]
            residual = max(residual, terms.residual)
            chosen = terms if row == self.state else chosen
            self.run.tick(f"{self.label}: {state_name(*self.states[row])}")
        assert chosen is not None
        reading = self._read(chosen)
        sources, source_residual, source_parts = self._sources(reading)
        ends = [] if reading is None else [each[each >= 0] for each in (reading.top, reading.bottom)]
        listed = list_tokens(self.model.tokens, *ends)
        layers, heads = term_places(self.terms)
        return {
            "tokens": tuple(map(self._written, self.ids[0].tolist())),
            "special": ~self.is_text,
            "states": tuple(state_name(*state) for state in self.states),
            "layers": np.array([layer for layer, _ in self.states], dtype=np.int64),
            "terms": tuple(map(str, self.terms)),
            "kinds": tuple(term.kind for term in self.terms),
            "term_layers": layers,
            "term_heads": heads,
            "values": values,
            "residual": residual,
            "state": self.state,
            **self._reading_fields(reading),
            "position": self.position,
            "sources": sources,
            "source_residual": source_residual,
            "source_parts": source_parts,
            "listed": listed.rows,
            "names": listed.names,
            **self._translation_fields(),
        }

    def _translation_fields(self) -> dict[str, Any]:
        """Return what an encoder-decoder read beside, and the text that its decoder reads; None for other models."""
        if self.texts.sources is None or self.texts.labels is None:
            return {"source_tokens": None, "translation": None, "own_translation": False}
        return {
            "source_tokens": tuple(map(self._written, self.texts.sources.ids[0].tolist())),
            "translation": written_as(self.model, self.texts.labels)[0],
            "own_translation": self.own,
        }

    def _written(self, token: int) -> str:
        tokens = self.model.tokens
        return tokens.display(token) if token < len(tokens) else f"[row {token}]"

    def _read(self, terms: LayerTerms) -> VocabularyReading | None:
        if self.readout is None:
            return None
        rows = self.model.anatomy.embedding.shape[0]
        own_mean = self.run.settings.mean == "own"
        reading = read_terms(self.readout, terms, min(self.run.settings.k, rows), own_mean=own_mean)
        self.run.tick(f"{self.label}: terms through the vocabulary")
        return reading

    @staticmethod
    def _reading_fields(reading: VocabularyReading | None) -> dict[str, Any]:
        names = ("top", "top_logits", "bottom", "bottom_logits", "parts")
        return {
            **{name: None if reading is None else getattr(reading, name) for name in names},
            "logit_residual": None if reading is None else reading.residual,
        }

    def _sources(self, reading: VocabularyReading | None) -> tuple[np.ndarray, float, np.ndarray | None]:
        """Return what each input token, and the correction, is of the chosen state, and of its top logits."""
        terms = self._by_tokens()
        found = indicators(*terms.tokens())
        values = np.stack([found[name].numpy(force=True)[:, 0] for name in INDICATORS])
        parts = None
        if reading is not None and self.readout is not None:
            own_mean = self.run.settings.token_mean == "own"
            parts = _parts_of(self.readout, terms, reading.top[-1, self.position], own_mean)
        return values, terms.residual, parts

    def _by_tokens(self) -> LayerTerms:
        """Return the chosen state at the chosen position as a sum over input tokens, a text of one token."""
        settings, (layer, after_norm) = self.run.settings, self.states[self.state]
        options = LinearConventions(settings.token_mean, settings.gate)  # type: ignore[arg-type]
        at = torch.zeros_like(self.read_mask, dtype=torch.bool)
        at[0, self.position] = True
        state: dict[Term, Tensor] = {}
        hidden = mask = None
        stream = decompose_tokens(
            self.model, self.read_ids, self.read_mask, layers=(layer,), chunk=CHUNK, options=options, **self.given
        )
        for each in stream:
            if each.after_norm != after_norm:
                continue
            here = at_tokens(each, at)
            parts = dict(zip(here.terms, here.values, strict=True))
            # The last two stand in every chunk and say the same in each.
            rest = {term: parts.pop(term) for term in (Term("source"), Term("correction")) if term in parts}
            state |= {term: value for term, value in parts.items() if term.kind == "token"}
            hidden, mask = here.hidden, here.mask
            self.run.tick(f"{self.label}: what {len(state)} input tokens brought")
        assert hidden is not None
        assert mask is not None
        found = layer_terms(layer, {**state, **rest}, hidden, mask, after_norm=after_norm)
        check_residual(self.model, found.residual, layer)
        return found


def _parts_of(readout: Readout, terms: LayerTerms, tokens: np.ndarray, own_mean: bool) -> np.ndarray:
    """Return what each term of one state, and the output bias, gives to some tokens' logits, (terms + 1, k)."""
    values, _ = readout.before_embedding(terms, own_mean=own_mean).tokens()
    rows = torch.from_numpy(tokens).to(values.device)
    shares = values[:, 0] @ readout.head.weight[rows].T * readout.head.scale
    bias = torch.zeros_like(shares[0]) if readout.head.bias is None else readout.head.bias[rows]
    return np.asarray(torch.cat([shares, bias[None]]).numpy(force=True))
