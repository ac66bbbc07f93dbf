"""What every page has: its title and lead, the way to the other pages, and errors told as sentences."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.ui import warm

LOG = logging.getLogger("embcompare.ui")

HOME, PARAMETERS, REPRESENTATIONS = "app.py", "pages/1_Parameters.py", "pages/2_Representations.py"
VOCABULARY, STITCHING = "pages/3_Vocabulary.py", "pages/4_Stitching.py"
BIJECTION, DECOMPOSITION = "pages/5_Bijection.py", "pages/6_Decomposition.py"
RESULTS = "pages/9_Results.py"
PAGES: dict[str, str] = {
    HOME: "Home",
    PARAMETERS: "Parameters",
    REPRESENTATIONS: "Representations",
    VOCABULARY: "Vocabulary",
    STITCHING: "Stitching",
    BIJECTION: "Bijection",
    DECOMPOSITION: "Decomposition",
    RESULTS: "Results",
}
"""Script of each page and its label, in the order of the navigation."""

# Only measure, spacing, the current page's mark and a faded edge where there is more to scroll to; colours and type are
# the theme's (.streamlit/config.toml).
_STYLE = """<style>
.stMainBlockContainer { max-width: 1280px; }
.st-key-navigation { border-bottom: 1px solid color-mix(in srgb, currentColor 16%, transparent);
  padding-bottom: .35rem; margin-bottom: .75rem; }
.st-key-navigation p { font-size: .95rem; }
.st-key-lead p { font-size: 1.06rem; line-height: 1.55; max-width: 46rem; }
.stMarkdown p, .stMarkdown li { max-width: 50rem; }
.stCaption p, [data-testid="stCaptionContainer"] p { max-width: 50rem; }
@keyframes edge { 0%, 98% { mask-image: linear-gradient(to right, black calc(100% - 48px), transparent); }
  100% { mask-image: none; } }
[class*="st-key-scrolled_"] { overflow-x: auto; animation: edge linear; animation-timeline: scroll(self inline); }
@media (max-width: 640px) { .stMainBlockContainer { padding-left: 1rem; padding-right: 1rem; }
  .st-key-navigation { column-gap: .1rem; } }
</style>"""


def begin(title: str, lead: str, here: str) -> None:
    """Open the page whose script is ``here``: browser title, navigation, own title and one sentence on what it is."""
    name = "embcompare" if here == HOME else f"{title} · embcompare"
    st.set_page_config(page_title=name, layout="wide", initial_sidebar_state="collapsed")
    if st.session_state.get("here") != here:  # an address counts as a link only where somebody arrives by it
        st.session_state["here"] = here
        st.session_state.pop("link.published", None)
    warm.start()
    st.html(_STYLE)
    with st.container(key="navigation", horizontal=True, gap="medium", vertical_alignment="center"):
        for script, label in PAGES.items():
            st.page_link(script, label=f"**{label}**" if script == here else label, query_params=pair_of_link(script))
    st.title(title, anchor=False)
    with st.container(key="lead"):
        st.markdown(lead)


def pair_of_link(script: str) -> dict[str, str]:
    """Return the chosen pair as a link's parameters, so that it goes along to ``script``."""
    if script == RESULTS:
        return {}
    return {key: value for key in ("model_a", "model_b") if (value := st.session_state.get(key))}


@contextmanager
def guard() -> Iterator[None]:
    """Show what goes wrong inside the block as one sentence; the unexpected goes to the log with its traceback."""
    try:
        yield
    except EmbcompareError as error:
        complain(error)
    except Exception as error:
        LOG.exception("A page failed")
        st.error(
            f"Something went wrong inside embcompare ({type(error).__name__}). The log has the details; "
            "reloading the page or choosing other settings may help."
        )


def complain(error: Exception) -> None:
    """Show an error whose text is fit to be shown."""
    st.error(plain(str(error)))


def plain(text: str) -> str:
    """Escape what Markdown would read as markup, so that names and messages appear as they are."""
    return re.sub(r"([\\`*_\[\]<>$#~|:{}])", r"\\\1", text)
