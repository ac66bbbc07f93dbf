"""torch and transformers, imported once in the background while the first page is drawn and the browser sets it."""

from __future__ import annotations

import gc
import importlib
import threading

import streamlit as st

# What every model needs; the modules of single families are small beside these.
HEAVY = (
    "torch",
    "transformers",
    "transformers.modeling_utils",
    "transformers.masking_utils",
    "transformers.generation",
)


@st.cache_resource(show_spinner=False)
def start() -> threading.Thread:
    """Start the imports, the first time any page opens."""
    thread = threading.Thread(target=_imports, name="embcompare-imports", daemon=True)
    thread.start()
    return thread


def ready() -> None:
    """Wait until the imports are done; two threads that import transformers at once can meet in half-made modules."""
    thread = start()
    if thread.is_alive():
        with st.spinner("Starting torch and transformers"):
            thread.join()


def _imports() -> None:
    for name in HEAVY:
        importlib.import_module(name)
    # Streamlit collects garbage after every run of a page and holds all threads meanwhile: with the 400,000 objects
    # of these packages that is a quarter of a second each time, so they are set aside for good.
    gc.collect()
    gc.freeze()
