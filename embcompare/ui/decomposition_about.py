"""What stands under every view of sums: the numbers, what they are, the call that makes them again, how to cite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_words as say
from embcompare.ui import exports
from embcompare.ui.page import plain

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.experiments.base import Result, Settings
    from embcompare.experiments.decomposition import Decomposition, DecompositionResult
    from embcompare.experiments.term_result import SentenceTermsResult
    from embcompare.experiments.term_sentence import SentenceTerms
    from embcompare.experiments.term_series import TermSeries, TermSeriesResult

NUMBERS = "decomposition.numbers"
"""Where the session keeps whether the tables are open."""
_SPLIT = (
    "The residual stream is followed block by block: what a part of the model adds goes to its term, every norm on the "
    "stream scales all terms by what it did to the whole state, and biases and the means that norms take out go to the "
    "correction, or where the conventions above put them. The sum is exact, in float64; a model whose terms were off "
    "by more than 1e-6 of the state would be refused, not shown."
)
_TOKENS = (
    "By input tokens, and by source and target, the model is followed with its attention weights, its norms' "
    "statistics and the tangents of its activations held: an affine map of its input, exact at this text, the tangent "
    "beside it."
)
_CITED = (
    "Additive split of post-norm models: Mickus, Paperno and Constant (2022), *How to Dissect a Muppet*, TACL 10. "
    "Terms, indicators and the comparison over trainings: Mickus and Vázquez (2023). Split by input tokens: Oh and "
    "Schuler (2023), *Token-wise Decomposition of Autoregressive Language Model Hidden States*, ACL 2023. Pre-norm, "
    "sandwich and parallel models, {more} are embcompare's own."
)


def sentence(wanted: SentenceTerms, result: SentenceTermsResult) -> None:
    """Show what stands under the view of one text."""
    kinds = pictures.kinds_of((*result.kinds_a, *result.kinds_b))
    _numbers(
        {
            "Indicators": result.to_frame,
            "Vocabulary": result.vocabulary_frame,
            "Parts of logits": result.parts_frame,
            "Input tokens": result.source_frame,
        }
    )
    _explained(kinds, f"{_SPLIT}\n\n{_TOKENS}")
    _rest(wanted, result, "terms read through the vocabulary,")


def layers(wanted: Decomposition, result: DecompositionResult) -> None:
    """Show what stands under the view of a corpus."""
    kinds = pictures.kinds_of((*result.kinds_a, *result.kinds_b))
    _numbers({"Indicators": result.to_frame, "Dropped terms": result.ablation_frame})
    _explained(
        kinds,
        f"{_SPLIT}\n\nMeans and standard deviations are over tokens, special ones left out; intervals are 2.5 to "
        "97.5 % of 1,000 bootstrap samples of whole texts. Where a term is dropped, the rest of the last state goes on "
        "to the head as it is, behind the final norm.",
    )
    _rest(wanted, result, "the intervals, and losses without a term")


def series(wanted: TermSeries, result: TermSeriesResult) -> None:
    """Show what stands under the view of trainings."""
    _numbers(
        {
            "Series": result.series_frame,
            "Performance": result.performance_frame,
            "Correlations": result.correlation_frame,
            "Variance": result.variance_frame,
            "Distances": result.dtw_frame,
            "Text by text": result.text_frame,
        }
    )
    _explained(
        pictures.kinds_of(result.terms),
        f"{_SPLIT if wanted.split == 'additive' else _TOKENS}\n\nCorrelations are Spearman's, of changes between every "
        "two checkpoints of a run, both directions; a positive one means that indicator and metric rise together. "
        "Intervals resample runs and the checkpoints in each. Variance at the last checkpoints is split into runs, "
        "tokens and the rest, crossed. Distances are dynamic time warping between standardised series. The released "
        "analysis of the paper stores its correlations with the opposite sign; none of its numbers is used here.",
    )
    signed = [f"{name}: {text}" for name, text in zip(result.metrics, result.signatures, strict=True) if text]
    if signed:
        st.caption(plain("; ".join(signed)))
    _rest(wanted, result, "intervals, what allows for the number of indicators, and plain signs")


def _numbers(tables: Mapping[str, Callable[[], pd.DataFrame]]) -> None:
    """Show tables, which are made once somebody opens them: those of a long text have many rows."""
    opened = st.expander("Numbers", key=NUMBERS, on_change="rerun")
    if not opened.open:
        return
    with opened:
        for name, make in tables.items():
            table = make()
            if not len(table):
                continue
            number: dict[str, Any] = {
                column: st.column_config.NumberColumn(format="%.4f") for column in table.select_dtypes("float").columns
            }
            st.markdown(f"**{name}**")
            st.dataframe(table, hide_index=True, height=260, column_config=number)


def _explained(kinds: tuple[str, ...], how: str) -> None:
    with st.expander("About these numbers"):
        st.markdown(say.glossary(kinds))
        st.markdown("\n".join(f"- **{label}**: {plain(say.meaning(name))}" for name, label in frame.INDICATORS.items()))
        st.markdown(how)


def _rest(wanted: Settings, result: Result, own: str) -> None:
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        st.markdown(_CITED.format(more=own))
        st.code(say.CITATION, language="bibtex", wrap_lines=True)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)
