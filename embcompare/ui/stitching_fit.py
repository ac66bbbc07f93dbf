"""Whether two models can be stitched at all, and what the stitched model is asked, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.models import FAMILIES, ModelInfo, default_pool, fingerprint

LIGHT_BYTES = 400 * 2**20
"""Up to this size both models are loaded to see whether they fit; beyond, the run itself finds out."""
ASKED = {
    "next token": "the next token of a text",
    "masked token": "the masked tokens of a text",
    "classes": "the class of a text",
}
"""What a stitched model is asked for, by task."""


@dataclass(frozen=True)
class Fit:
    """What is known of a pair: the task, how states are handed over, and why it cannot be, if so.

    ``by`` is ``"tokens"``, ``"words"``, or empty where only the run finds out; ``refused`` is a sentence or empty.
    """

    task: str
    by: str
    refused: str


def fit(names: tuple[str, str], infos: tuple[ModelInfo, ModelInfo], tuned_blocks: int = 0) -> Fit:
    """Return what is known of A's lower part under B's upper part."""
    from embcompare.experiments.estimate_stitching import task_of

    task = task_of(infos[1], tuned_blocks)
    refused = next(filter(None, map(two_texts, infos)), "")
    if refused:
        return Fit(task, "", refused)
    if tuned_blocks > infos[1].layers:
        return Fit(
            task,
            "",
            f"{infos[1].label} has {infos[1].layers} blocks, so {tuned_blocks} cannot be tuned; choose at most "
            f"{infos[1].layers}.",
        )
    if max(info.bytes for info in infos) > LIGHT_BYTES:
        return Fit(task, "", "")
    return Fit(task, *_loaded(names, task, tuple(fingerprint(name) for name in names)))


def two_texts(info: ModelInfo) -> str:
    """Return why a model's upper blocks do not run alone, as far as its family tells; empty where they do."""
    family = FAMILIES.get(info.family)
    if family is None or not (family.cross_qkv or family.position == "relative"):
        return ""
    why = (
        "is an encoder-decoder, whose upper blocks read a second text as well"
        if family.cross_qkv
        else "computes in its first block what all its blocks use"
    )
    return f"{info.label} {why}, so it cannot be stitched; choose a model that is one stack of blocks."


@st.cache_data(max_entries=64, show_spinner="Reading both models")
def _loaded(names: tuple[str, str], task: str, _prints: tuple[str, ...]) -> tuple[str, str]:
    from embcompare.models.heads import read_head
    from embcompare.stitching.stitched import same_tokens
    from embcompare.stitching.tails import check_runs_alone

    pool = default_pool()
    by = "tokens"
    with pool.lease(names[0]) as a, pool.lease(names[1]) as b:
        try:
            for model in (a, b):
                check_runs_alone(model)
            try:
                same_tokens(a, b)
            except EmbcompareError:
                if task != "classes":
                    raise
                by = "words"
            if task != "classes":
                read_head(b, b.anatomy.embedding.dtype)
        except EmbcompareError as error:
            return "", str(error)
    return by, ""
