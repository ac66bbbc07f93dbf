"""Capturing hidden states: planned, computed batch by batch, streamed to disk, found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.activations.files import ArrayWriter, StateFolder
from embcompare.activations.forward import (
    LONGEST,
    Stack,
    batches,
    check_observable,
    chosen_layers,
    forward,
    heads_of,
    longest_input,
    stack_of,
)
from embcompare.activations.states import (
    AFTER_NORM,
    CALLED,
    KINDS,
    HiddenStates,
    Kind,
    What,
    array_name,
    check_kind,
    pool,
)
from embcompare.errors import Incomparable, ModelDamaged, SettingsError, StoreError
from embcompare.text.corpora import Corpus, InputError
from embcompare.text.encoding import Encoded, encode, refuse_unknown
from embcompare.text.words import TokenIndex
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models.loading import LoadedModel

Progress = Callable[[int, int, str], object]

CPU_TOKENS = 1024
"""Tokens in a batch on a processor: what its caches hold. Measured with MiniLM, 4,096 take a fifth longer."""
GPU_TOKENS = 8192
"""Tokens in a batch on a GPU, which wants to be kept busy."""

UNKNOWN_NOTED = 0.01
"""Share of a text's tokens that the vocabulary lacks, above which it is said."""

_VERSION = 2
_COLUMNS = ("sentence", "position", "token", "start", "end")


def capture(
    model: LoadedModel,
    corpus: Corpus,
    layers: Sequence[int] | None = None,
    *,
    what: What = "hidden",
    pooling: Kind | None = None,
    batch_tokens: int | None = None,
    folder: Path,
    progress: Progress | None = None,
    max_bytes: int | None = None,
) -> HiddenStates:
    """Return the hidden states of ``model`` on ``corpus``: those on disk, or new ones, which are then kept.

    ``layers`` are any of 0 to the number of blocks, all by default. ``what`` takes something else of each block, whose
    layers are then 1 to the number of blocks: ``"attention"`` and ``"feed_forward"`` are what the module adds to the
    residual stream, before it is added (behind the output projection and, in Gemma 2, the module's own output norm;
    in a post-norm model before the norm); ``"patterns"`` is, head by head, how much attention each token of the text
    receives, see :mod:`embcompare.activations.patterns`, which is not pooled. ``pooling`` other than ``"token"`` keeps
    one row a sentence only, a small part of the disk. ``batch_tokens`` bounds the tokens, padding counted, that go
    through the model at once, by default what is quick on its device; it changes time and memory, not what is
    captured. States lie in ``folder/states``, at most ``max_bytes`` together (20 GiB by default).
    ``progress(done, total, message)`` counts tokens and may raise to stop: nothing half is left. Equal captures at the
    same time are computed once; do not hold ``model.lock`` meanwhile.

    Raises ``SettingsError`` for an unknown layer or pooling, ``InputError`` when the tokenizer finds no token in the
    corpus, ``ModelDamaged`` when the model computes NaN or infinite states, ``UnsupportedFamily`` when its blocks
    cannot be observed, and ``StoreError`` when the states do not fit the bound or the disk.
    """
    report = progress or (lambda done, total, message: None)
    kind = "token" if pooling is None else pooling
    check_kind(kind)
    if batch_tokens is None:
        batch_tokens = GPU_TOKENS if model.anatomy.embedding.device.type == "cuda" else CPU_TOKENS
    if batch_tokens < 1:
        raise SettingsError(f"batch_tokens cannot be {batch_tokens}; the smallest value is 1.")
    stack = stack_of(model)
    check_observable(model, stack, what, kind)
    chosen = chosen_layers(layers, len(stack.blocks), model.spec.label, what)
    states = StateFolder(Path(folder) / "states", max_bytes)
    key = _key(model, corpus, stack, what)
    request = _Request(model, corpus, stack, chosen, what, kind, states, key)
    found = request.stored()
    if found is not None:
        return found
    waiting = partial(report, 0, 0, f"Another run is capturing these {CALLED[what]}; waiting for it")
    with states.lock(key, waiting):
        damage = request.repair()
        found = request.stored()
        if found is None:
            request.compute(batch_tokens, report)
            found = request.stored()
    if found is None:
        raise StoreError(
            f"The {CALLED[what]} of {model.spec.label} were captured but dropped at once by another run; "
            "raise EMBCOMPARE_STATES_BYTES, or wait until it is done."
        )
    if damage:
        return dataclasses.replace(found, notices=(*found.notices, damage))
    return found


@dataclass(frozen=True, eq=False)
class _Request:
    """One call of :func:`capture`."""

    model: LoadedModel
    corpus: Corpus
    stack: Stack
    layers: tuple[int, ...]
    what: What
    kind: Kind
    states: StateFolder
    key: str

    def stored(self) -> HiddenStates | None:
        """Return what is on disk if it is all there and sound."""
        try:
            description = self.states.read(self.key)
            if description is None:
                return None
            names = self._names(description)
            if names is None:
                return None
            arrays = self.states.open(self.key, description, ["index", *names])
        except (OSError, ValueError):
            return None
        table = np.asarray(arrays.pop("index"))
        return HiddenStates(
            label=self.model.spec.label,
            key=self.key,
            n_layers=len(self.stack.blocks),
            width=description["width"],
            layers=self.layers,
            n_sentences=len(self.corpus),
            index=TokenIndex(**{name: table[:, at] for at, name in enumerate(_COLUMNS)}),
            last=AFTER_NORM if self.stack.norm and self.what == "hidden" else "block output",
            cls_reason=description["cls_reason"],
            notices=tuple(description["notices"]),
            provenance=description["identity"],
            arrays=arrays,
            what=self.what,
        )

    def repair(self) -> str:
        """Discard what is on disk if any of it is not what it was; return the notice, or an empty text."""
        try:
            description = self.states.read(self.key)
            if description is not None:
                self.states.open(self.key, description, description["arrays"])
        except ValueError as error:
            return self.states.discard(self.key, str(error))
        except OSError as error:
            return self.states.discard(self.key, (error.strerror or "a file is missing").lower())
        return ""

    def compute(self, batch_tokens: int, report: Progress) -> None:
        """Run the model over the corpus and write what is missing."""
        report(0, 0, f"Reading {plural(len(self.corpus), 'sentence')} with the tokenizer of {self.model.spec.label}")
        encoded = encode(
            self.corpus.sentences, self.model.tokenizer, self.model.tokens, longest_input(self.model, self.stack)
        )
        self._check(encoded)
        table = np.stack([getattr(encoded.index, name) for name in _COLUMNS], axis=1)
        description = self._known(table) or self._description(encoded)
        if self.kind == "cls" and description["cls_reason"]:
            raise Incomparable(description["cls_reason"])
        existing = set(description.get("arrays", {}))
        missing = [name for name in self._wanted(description) if name not in existing]
        rows = {"token": len(encoded.index)}
        arrays = {name: (rows.get(name.split("-")[0], len(encoded)), description["width"]) for name in missing}
        plain = {} if "index" in existing else {"index": table}
        with self.states.writing(self.key, description, arrays, plain) as writers:
            for number in encoded.empty:
                for name, writer in writers.items():
                    if not name.startswith("token"):
                        writer.write(number, np.full((1, description["width"]), np.nan, np.float32))
            self._run(encoded, writers, batch_tokens, report)

    def _known(self, table: np.ndarray) -> dict[str, Any] | None:
        """Return the description to add to, unless the tokenizer now cuts the corpus in another way."""
        description = self.states.read(self.key)
        if description is None:
            return None
        if np.array_equal(self.states.open(self.key, description, ["index"])["index"], table):
            return description
        self.states.discard(self.key, "the tokenizer's library cuts the text in another way now")
        return None

    def _run(self, encoded: Encoded, writers: dict[str, ArrayWriter], batch_tokens: int, report: Progress) -> None:
        import torch

        bounds = encoded.index.bounds(len(encoded))
        lengths = np.array([len(ids) for ids in encoded.ids])
        lengths[list(encoded.empty)] = 0
        total, done = int(lengths.sum()), 0
        wanted = {name.split("-", 1)[1] for name in writers}
        called = CALLED[self.what]
        message = f"{called[:1].upper()}{called[1:]} of {self.model.spec.label}"
        report(0, total, message)
        for batch in batches(lengths, batch_tokens):
            with torch.inference_mode():
                for part, seen in forward(self.model, self.stack, wanted, encoded, batch, self.what):
                    self._write(encoded, bounds, part, seen, writers)
            done += int(lengths[batch].sum())
            report(done, total, message)

    def _write(
        self,
        encoded: Encoded,
        bounds: np.ndarray,
        part: np.ndarray,
        seen: dict[str, Tensor],
        writers: dict[str, ArrayWriter],
    ) -> None:
        """Keep the states (b, t, d) of the sentences ``part``, each where it belongs in the order of the corpus."""
        import torch

        mask = np.zeros(next(iter(seen.values())).shape[:2], dtype=bool)
        for at, number in enumerate(part):
            mask[at, : len(encoded.is_text[number])] = encoded.is_text[number]
        count = mask.sum(axis=1)
        first = np.cumsum(count) - count
        for layer, states in seen.items():
            rows = states[torch.from_numpy(mask).to(states.device)].float().cpu().numpy()
            if not np.isfinite(rows.sum(dtype=np.float64)):  # quicker than to look at each, and the same
                bad = int(part[np.searchsorted(first, np.flatnonzero(~np.isfinite(rows).all(axis=1))[0], "right") - 1])
                raise ModelDamaged(
                    f"{self.model.spec.label} computes NaN or infinite values in layer {layer.partition('-')[0]} "
                    f"of sentence {bad + 1:,}; load it in float32, or check how it was trained."
                )
            for kind in KINDS:
                writer = writers.get(f"{kind}-{layer}")
                if writer is None:
                    continue
                if kind == "token":
                    for at, number in enumerate(part):
                        writer.write(int(bounds[number]), rows[first[at] : first[at] + count[at]])
                    continue
                pooled = states[:, 0].float().cpu().numpy() if kind == "cls" else pool(rows, first, count, kind)
                for at, number in enumerate(part):
                    writer.write(int(number), pooled[at : at + 1])

    def _names(self, description: dict[str, Any]) -> list[str] | None:
        """Return the stored arrays that serve this request, or None when some are missing."""
        arrays = description["arrays"]
        if all(name in arrays for name in self._wanted(description)):
            return self._wanted(description)
        if self.kind in ("mean", "last"):
            tokens = [name.replace(self.kind, "token", 1) for name in self._wanted(description)]
            if all(name in arrays for name in tokens):
                return tokens
        return None

    def _wanted(self, description: dict[str, Any]) -> list[str]:
        if self.what == "patterns":
            return [array_name("token", k, special=special) for k in self.layers for special in (False, True)]
        kinds = [self.kind] if self.kind != "token" or description["cls_reason"] else ["token", "cls"]
        names = [array_name(kind, layer) for kind in kinds for layer in self.layers]
        if self.stack.norm and self.what == "hidden" and len(self.stack.blocks) in self.layers:
            names += [array_name(kind, len(self.stack.blocks), True) for kind in kinds]
        return names

    def _check(self, encoded: Encoded) -> None:
        label = self.model.spec.label
        if not len(encoded.index):
            raise InputError(f"The tokenizer of {label} finds no token in {self.corpus.name}; give ordinary text.")
        refuse_unknown(encoded, label, self.corpus.name)
        table = self.stack.run.get_input_embeddings().weight
        highest = max(int(ids.max()) for ids in encoded.ids if len(ids))
        if highest >= table.shape[0]:
            raise ModelDamaged(
                f"The tokenizer of {label} gives token {highest:,}, but the model has {table.shape[0]:,} embeddings; "
                "give it the tokenizer it was trained with."
            )

    def _description(self, encoded: Encoded) -> dict[str, Any]:
        label, longest = self.model.spec.label, longest_input(self.model, self.stack)
        notices = []
        if self.stack.encoder:
            notices.append(f"Of the encoder-decoder {label} the encoder's {_brief(self.what)} are captured.")
        if encoded.cut:
            notices.append(
                f"{encoded.cut:,} of {plural(len(encoded), 'sentence')} are longer than the {longest:,} tokens that "
                f"{label} reads; their ends are left out."
            )
        if encoded.empty:
            shown = ", ".join(f"{number + 1:,}" for number in encoded.empty[:5])
            more = " and more" if len(encoded.empty) > 5 else ""
            notices.append(f"{label} finds no token in sentence {shown}{more}; such sentences have no states.")
        if encoded.unknown > UNKNOWN_NOTED * len(encoded.index):
            notices.append(
                f"{label} reads {encoded.unknown:,} of {len(encoded.index):,} tokens "
                f"({encoded.unknown / len(encoded.index):.0%}) as the one unknown token: its vocabulary lacks them."
            )
        if not encoded.exact_offsets:
            notices.append(
                f"The tokenizer of {label} does not tell where its tokens stand; they were looked up in the text."
            )
        return {
            "model": label if self.what == "hidden" else f"{CALLED[self.what]} of {label}",
            "corpus": self.corpus.name,
            "identity": _identity(self.model, self.corpus, self.stack, self.what),
            "width": _width(self.model, self.stack, self.what),
            "cls_reason": _no_cls(self.model, self.stack, encoded),
            "notices": notices,
        }


def _no_cls(model: LoadedModel, stack: Stack, encoded: Encoded) -> str:
    """Return why there is no classification token to take; empty where there is one."""
    way = "choose mean or last instead"
    if not encoded.has_cls:
        return f"The tokenizer of {model.spec.label} adds no classification token before the text; {way}."
    if not stack.encoder and model.anatomy.blocks[0].attention.causal:
        return f"{model.spec.label} reads from left to right, so its first token sees nothing of the sentence; {way}."
    return ""


def _brief(what: What) -> str:
    return "states" if what == "hidden" else CALLED[what]


def _identity(model: LoadedModel, corpus: Corpus, stack: Stack, what: What) -> dict[str, Any]:
    return {
        # hidden states came first, and theirs do not say what they are
        **({} if what == "hidden" else {"what": what}),
        "version": _VERSION,
        "model": model.fingerprint,
        "corpus": corpus.text_digest,
        "part": "encoder" if stack.encoder else "model",
        "dtype": str(model.anatomy.embedding.dtype).removeprefix("torch."),
        "device": model.anatomy.embedding.device.type,
        "longest": LONGEST,
    }


def _key(model: LoadedModel, corpus: Corpus, stack: Stack, what: What) -> str:
    text = json.dumps(_identity(model, corpus, stack, what), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _width(model: LoadedModel, stack: Stack, what: What) -> int:
    if what == "patterns":
        return heads_of(model, stack)
    return int(stack.run.config.hidden_size) if stack.encoder else int(model.anatomy.width)
