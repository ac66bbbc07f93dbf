"""Taking results away: files, the call that makes them again, and how to cite what they rest on."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare import export
from embcompare.experiments.base import Result, Settings
from embcompare.ui import words
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.measures import Measure


def downloads(result: Result, stem: str, key: str, pictures: Mapping[str, Callable[[], bytes]] | None = None) -> None:
    """Show a row of download buttons; each file is made when its button is pressed."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower()[:80]
    files: dict[str, tuple[Callable[[], Any], str]] = {
        "csv": (lambda: export.to_csv(result), "text/csv"),
        "json": (lambda: export.to_json(result), "application/json"),
        "npz": (lambda: export.to_npz(result), "application/octet-stream"),
    }
    for kind, make in (pictures or {}).items():
        files[kind] = (make, "image/png" if kind == "png" else "image/svg+xml")
    with st.container(horizontal=True, gap="small"):
        for kind, (make, mime) in files.items():
            label = kind if kind == "npz" else kind.upper()
            st.download_button(
                label, make, f"{name}.{kind}", mime, key=f"{key}.{kind}", on_click="ignore", icon=":material/download:"
            )


def again(settings: Settings) -> None:
    """Show the Python call and the shell command that make the run again."""
    st.markdown("**From Python**")
    st.code(f"import embcompare\n\nresult = {settings.call()}\nresult.to_frame()", language="python", wrap_lines=True)
    st.markdown("**From a shell**")
    st.code(shell(settings), language="bash", wrap_lines=True)


def shell(settings: Settings) -> str:
    """Return the shell command of a run, defaults left out."""
    parts = ["python", "-m", "embcompare", "run", settings.experiment]
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if value == item.default:
            continue
        flag = item.name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            given = str(value)
            # a value that begins with a dash would be taken for an option
            parts += [f"--{flag}={given}"] if given.startswith("-") else [f"--{flag}", given]
    return shlex.join(parts)


def cite() -> None:
    """Show how to cite the paper that the experiment implements."""
    st.markdown(
        "Parameters are read in embedding space as in Dar, Geva, Gupta and Berant (2023), "
        "*Analyzing Transformers in Embedding Space*, ACL 2023. The permuted-vocabulary null is embcompare's own."
    )
    st.code(words.CITATION, language="bibtex", wrap_lines=True)


def cite_measure(measure: Measure, space: str) -> None:
    """Show what a measure of representations rests on, and, in embedding space, the paper that reads states so."""
    st.markdown(
        f"Values are {plain(measure.label)} ({plain(measure.source)}). The null of wrong pairings and the intervals "
        "from halves of the sentences are embcompare's own."
    )
    if space == "embedding":
        st.markdown(
            "Hidden states are read in embedding space as in Dar, Geva, Gupta and Berant (2023), *Analyzing "
            "Transformers in Embedding Space*, ACL 2023."
        )
        st.code(words.CITATION, language="bibtex", wrap_lines=True)


def _kind(facts: dict[str, Any], name: str) -> str:
    """Say what a fingerprint is of: the words of a text, vectors that were given, or a model's weights."""
    corpora = {facts.get("settings", {}).get(field) for field in ("corpus", "words_of")}
    if name in corpora:
        return "words of"
    return "numbers of" if name.startswith("vectors/") else "weights of"


def provenance(result: Result) -> None:
    """Show where the numbers come from: models, versions, device, seconds."""
    facts = result.provenance
    rows = {
        "computed": f"{facts.get('created', '–')}, {facts.get('seconds', '–')} s, {facts.get('device', '–')}, "
        f"{facts.get('dtype', '–')}",
        "software": ", ".join(f"{name} {version}" for name, version in facts.get("software", {}).items()),
        **{f"{_kind(facts, name)} {name}": f"`{digest[:16]}…`" for name, digest in facts.get("models", {}).items()},
    }
    st.table(
        [{"": f"**{name}**", " ": value} for name, value in rows.items()],
        border="horizontal",
        hide_index=True,
        hide_header=True,
    )
