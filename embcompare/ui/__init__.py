"""The face: what the pages are made of. Only this package, app.py and pages/ import Streamlit."""

from __future__ import annotations

from embcompare.ui.page import begin, guard

__all__ = ["begin", "guard"]
