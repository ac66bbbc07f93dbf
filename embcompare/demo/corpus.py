"""Token streams of the demo texts, and the windows cut from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embcompare.demo.texts import Document
from embcompare.demo.tokenizer import CLS, LENGTH, SEP, VOCABULARY

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """All tokens of one source with [SEP] after each paragraph; ``starts`` are the sentence beginnings in it."""

    tokens: Ids
    starts: Ids

    @classmethod
    def of(cls, tokens: Ids, stops: Iterable[int]) -> Stream:
        """Find sentence beginnings: behind any of the ``stops`` (ids), with a whole window of text to follow."""
        begins = np.flatnonzero(np.isin(tokens, list(stops))) + 1
        begins = np.concatenate([np.zeros(1, np.int64), begins])
        room = begins + LENGTH <= len(tokens)
        closing = np.isin(tokens[np.minimum(begins, len(tokens) - 1)], list(stops))  # . " and . [SEP] belong together
        return cls(tokens, begins[room & ~closing])

    def windows(self, starts: Ids, family: str) -> Ids:
        """Windows of ``LENGTH`` tokens: [CLS] and text; for BERT the last token is [SEP]. Shape (starts, LENGTH)."""
        text = self.tokens[starts[:, None] + np.arange(LENGTH - 1)]
        windows = np.concatenate([np.full((len(starts), 1), CLS), text], axis=1)
        if family == "bert":
            windows[:, -1] = SEP
        return windows


def make_streams(documents: Iterable[Document], tokenizer: Any) -> dict[str, Stream]:
    """Tokenise documents into one stream per source."""
    parts: dict[str, list[int]] = {}
    for document in documents:
        into = parts.setdefault(document.source, [])
        for encoded in tokenizer.backend_tokenizer.encode_batch(document.paragraphs, add_special_tokens=False):
            into.extend((*encoded.ids, SEP))
    stops = [SEP, *tokenizer.convert_tokens_to_ids([".", "!", "?"])]
    return {source: Stream.of(np.array(ids, np.int64), stops) for source, ids in parts.items()}


def save_streams(streams: Mapping[str, Stream], path: Path) -> None:
    """Keep streams in one ``.npz`` file."""
    arrays = {name: stream.tokens for name, stream in streams.items()}
    np.savez(
        path, allow_pickle=False, **arrays, **{f"{name}.starts": stream.starts for name, stream in streams.items()}
    )


def load_streams(path: Path) -> dict[str, Stream]:
    """Read what ``save_streams`` kept."""
    with np.load(path, allow_pickle=False) as arrays:
        names = [name for name in arrays.files if not name.endswith(".starts")]
        return {name: Stream(arrays[name], arrays[f"{name}.starts"]) for name in names}


def sample_batch(
    streams: Mapping[str, Stream], mix: Mapping[str, float], size: int, family: str, random: np.random.Generator
) -> Ids:
    """Draw ``size`` windows at random sentence beginnings, sources in the proportions of ``mix``."""
    names = sorted(mix)
    drawn = random.choice(len(names), size=size, p=[mix[name] for name in names])
    batch = []
    for index, name in enumerate(names):
        starts = random.choice(streams[name].starts, size=int((drawn == index).sum()))
        batch.append(streams[name].windows(starts, family))
    return np.concatenate(batch)


def held_out_windows(streams: Mapping[str, Stream], mix: Mapping[str, float], size: int, family: str) -> Ids:
    """Evenly spread windows of the held-out streams, sources in the proportions of ``mix``; no randomness."""
    batch = []
    for name in sorted(mix):
        starts = streams[name].starts
        chosen = np.linspace(0, len(starts) - 1, round(size * mix[name])).astype(np.int64)
        batch.append(streams[name].windows(starts[chosen], family))
    return np.concatenate(batch)


def unigram_log_probabilities(streams: Mapping[str, Stream], mix: Mapping[str, float]) -> NDArray[np.float64]:
    """Log-probability (nats) of each token when drawn alone from the training mix, one count added to each."""
    counts = {name: np.bincount(streams[name].tokens, minlength=VOCABULARY) + 1.0 for name in mix}
    shares: NDArray[np.float64] = np.stack([share * counts[name] / counts[name].sum() for name, share in mix.items()])
    total: NDArray[np.float64] = shares.sum(axis=0)
    return np.asarray(np.log(total), dtype=np.float64)
