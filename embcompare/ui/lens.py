"""The logit lens on a page: what every layer of both models would predict, layer by layer and token by token."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from embcompare import charts, curves
from embcompare.errors import EmbcompareError
from embcompare.experiments.lens import LogitLens, LogitLensResult
from embcompare.running import resolve_device
from embcompare.ui import exports, links, pair, picture, runs, words
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.experiments.representations import RepresentationSimilarity
    from embcompare.models import ModelInfo

PAGE, SLOT = "representations", "lens"
MEASURES = {
    "jsd": "Jensen–Shannon divergence",
    "kl_ab": "KL(A ‖ B)",
    "kl_ba": "KL(B ‖ A)",
    "overlap": "Top tokens shared",
}
INDICATORS = {
    "kl": ("KL to the last layer", "How far the layer's prediction is from the model's own, in nats."),
    "overlap": ("Top tokens shared with the last layer", "Share of the most probable tokens that both have."),
    "entropy": ("Entropy", "How undecided the layer's prediction is, in nats."),
    "log_loss": ("Log loss", "Minus the log probability of the true token, in nats; lower is better."),
}
OWN = ("sentence", "sentences", "k", "positions", "null_draws")
WINDOW = 10
"""Tokens of the shown sentence that are drawn side by side."""


def _declared() -> dict[str, Any]:
    return {item.name: item for item in LogitLens.__dataclass_fields__.values()}


DEFAULTS: dict[str, Any] = {
    **{f"lens_{name}": _declared()[name].default for name in OWN},
    "lens_measure": "jsd",
}
"""What an address need not say of the lens."""


def readers() -> dict[str, Any]:
    """Return the readers of what an address says about the lens."""
    return {
        **{f"lens_{name}": links.reader(LogitLens, name) for name in OWN},
        "lens_measure": links.choice(*MEASURES),
    }


def show(wanted: RepresentationSimilarity, infos: tuple[ModelInfo | None, ModelInfo | None], *, arriving: bool) -> None:
    """Show the lens of the chosen pair and text: its settings, its run, and its pictures."""
    st.markdown(
        "Every layer is read as if it were the last: through the final norm and the unembedding. Compared are the "
        "predictions that come out, at places where both models have read the same text."
    )
    asked = _form(wanted)
    if asked is None:
        return
    result = runs.obtained(
        asked, LogitLensResult, SLOT, lambda: cost(asked, infos), arriving=True, beside=" beside the two models"
    )
    if result is not None:
        _show(asked, result)


def _form(wanted: RepresentationSimilarity) -> LogitLens | None:
    columns = st.columns(len(OWN), gap="small")
    chosen: dict[str, Any] = {}
    for column, name in zip(columns, OWN, strict=True):
        meta = _declared()[name].metadata
        key = links.key(PAGE, f"lens_{name}")
        st.session_state.setdefault(key, DEFAULTS[f"lens_{name}"])
        high = None if meta["high"] is None else int(meta["high"])
        chosen[name] = column.number_input(
            meta["label"],
            int(meta["low"]),
            high,
            step=1,
            key=key,
            help=meta["help"],
            persist_state="session",
            on_change=links.forget,
        )
    shared = {name: getattr(wanted, name) for name in ("model_a", "model_b", "corpus", "small_overlap", "seed")}
    try:
        return LogitLens(**shared, **chosen)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def cost(asked: LogitLens, infos: tuple[ModelInfo | None, ModelInfo | None]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate import lens_cost

    return lens_cost(asked, *infos, device=resolve_device("auto"))


def _show(asked: LogitLens, result: LogitLensResult) -> None:
    st.subheader("Predictions, layer by layer", anchor=False)
    key = links.key(PAGE, "lens_measure")
    if st.session_state.get(key) not in MEASURES:
        st.session_state[key] = DEFAULTS["lens_measure"]
    measure = st.segmented_control(
        "Compare by",
        list(MEASURES),
        required=True,
        format_func=lambda name: MEASURES[name],
        key=key,
        persist_state="session",
    )
    measure = str(measure or "jsd")
    st.markdown(plain(sentence(result, measure)))
    drawn = compose(asked, result, measure)
    picture.show(drawn, key="lens.matrix")
    st.caption(plain(picture.legend(drawn, asked.null_draws, "wrong pairings")))
    for notice in result.notices:
        st.caption(plain(notice))
    exports.downloads(
        result,
        f"logit lens {measure} {asked.model_a} {asked.model_b}",
        "lens.files",
        {kind: functools.partial(picture.export, drawn, sentence(result, measure), kind) for kind in ("png", "svg")},
    )
    with st.expander("Numbers"):
        st.dataframe(result.to_frame(), hide_index=True, height=280)
        st.dataframe(result.layer_frame(), hide_index=True, height=280)
    st.subheader("How each model's prediction forms", anchor=False)
    _within(asked, result)
    st.subheader("One sentence, token by token", anchor=False)
    _sentence(asked, result)
    with st.expander("Compute it again"):
        exports.again(asked)
    with st.expander("How to cite"):
        st.markdown(
            "The logit lens: nostalgebraist (2020), *interpreting GPT: the logit lens*. Divergences between layers: "
            "Belrose et al. (2023), *Eliciting Latent Predictions from Transformers with the Tuned Lens*. The "
            "comparison across models over their shared tokens, with its null of wrong pairings, is embcompare's own."
        )
    with st.expander("Where the numbers come from"):
        exports.provenance(result)


def compose(asked: LogitLens, result: LogitLensResult, measure: str) -> picture.Picture:
    """Choose matrix, null and scale for one of the lens's measures; nothing is drawn yet."""
    at = result.measures.index(measure)
    z = None if result.z is None else result.z[at]
    known = z is not None and not np.isnan(z).all()
    faint = ~(z >= picture.BEYOND) & ~np.isnan(result.values[at]) if z is not None and known else None
    panels = [picture.Panel(MEASURES[measure], result.values[at], None, result.assignment, faint)]
    if result.null_mean is not None:
        panels.append(picture.Panel("Places wrongly paired, null", result.null_mean[at], None, None, None, null=True))
    title = MEASURES[measure] + ("" if measure == "overlap" else ", nats (lower is closer)")
    high = {"overlap": 1.0, "jsd": float(np.log(2))}.get(measure)
    matrices = [panel.matrix for panel in panels]
    if high is None:
        finite = np.concatenate([m[np.isfinite(m)] for m in matrices])
        high = float(10 ** np.ceil(np.log10(max(float(finite.max(initial=0.0)), 1e-6))))
    scale = charts.sequential_scale(title, matrices, high=high, low_is_bright=measure != "overlap")
    a, b = (pair.label_of(name) for name in (asked.model_a, asked.model_b))
    details = {name: result.values[i] for i, name in enumerate(MEASURES.values())}
    if z is not None and known:
        details["z"] = z
    return picture.Picture(panels, scale, charts.Axes.of_layers(a, b), {}, details, f"Logit lens: {a} and {b}")


def sentence(result: LogitLensResult, measure: str) -> str:
    """Say in two sentences how close the predictions are, at the ends and along the depth."""
    matrix = result.of(measure)
    unit = "" if measure == "overlap" else " nats"
    where = f"{plural(result.positions, 'place')} in {plural(result.items, 'sentence')}"
    text = (
        f"{MEASURES[measure]} over {where}, {plural(result.shared, 'shared token')}: "
        f"{matrix[-1, -1]:.3f}{unit} between the two models' own predictions, "
        f"{np.nanmin(matrix):.3f} to {np.nanmax(matrix):.3f} over all pairs of layers."
    )
    total = len(result.assignment)
    hits = round(result.depth_rate * total) if np.isfinite(result.depth_rate) else 0
    chance = f"{result.depth_chance * total:.1f}".removesuffix(".0")
    return (
        f"{text} The assignment of smallest divergence joins {hits} of {total} layers at equal depth (chance: "
        f"{chance}, {words.probability(result.depth_p)})."
    )


def _within(asked: LogitLens, result: LogitLensResult) -> None:
    a, b = (charts.shortened(pair.label_of(name)) for name in (asked.model_a, asked.model_b))
    names = (f"A: {a}", f"B: {b}")
    columns = st.columns(2, gap="large")
    for number, (name, (label, meaning)) in enumerate(INDICATORS.items()):
        at = result.indicators.index(name)
        means = {names[0]: result.within_a[at], names[1]: result.within_b[at]}
        errors = (result.within_spread_a[at], result.within_spread_b[at])
        bands = {
            side: (mean - 1.96 * error, mean + 1.96 * error)
            for (side, mean), error in zip(means.items(), errors, strict=True)
            if np.isfinite(error).any()
        }
        with columns[number % 2]:
            if name == "log_loss":
                label = f"{label} of the {result.target}"
            st.markdown(f"**{label}**", help=meaning)
            ends = "; ".join(f"{side} from {mean[0]:.3g} to {mean[-1]:.3g}" for side, mean in means.items())
            chart = curves.along(means, "layer", None, bands=bands, height=220)
            st.altair_chart(chart, key=f"lens.{name}", alt=f"{label} by layer: {ends}.")
    st.caption("Shaded: 95 % interval over sentences. Layer 0 is the embedding output.")


def _sentence(asked: LogitLens, result: LogitLensResult) -> None:
    st.markdown(plain(f"Sentence {result.sentence}: {result.text}"))
    longest = max(len(result.shown_a), len(result.shown_b))
    if not longest:
        st.caption("The sentence has no tokens to show.")
        return
    first = 0
    if longest > WINDOW:
        key = f"lens.window.{result.sentence}"
        first = int(st.slider("First token shown", 0, longest - WINDOW, key=key))
    for side, name in (("a", asked.model_a), ("b", asked.model_b)):
        tokens = getattr(result, f"shown_{side}")[first : first + WINDOW]
        st.markdown(f"**{side.upper()}: {plain(pair.label_of(name))}**")
        if not tokens:
            st.caption("This model reads the sentence in fewer tokens.")
            continue
        tops = getattr(result, f"shown_top_{side}")
        probability = getattr(result, f"shown_probability_{side}")[:, first : first + WINDOW]
        targets = getattr(result, f"shown_target_{side}")[first : first + WINDOW]
        names = getattr(result, f"layers_{side}")
        best = [[lists[first + j][0] for j in range(len(tokens))] for lists in tops]
        others = [
            [_listed(lists[first + j], probability[i, j]) for j in range(len(tokens))] for i, lists in enumerate(tops)
        ]
        targeted = [[targets[j] or "none" for j in range(len(tokens))] for _ in tops]
        labels = [f"{number} · {what}" for number, what in enumerate(names)]
        chart = curves.token_grid(
            tokens, labels, best, probability[:, :, 0], {"most probable": others, result.target: targeted}, first=first
        )
        last = ", ".join(best[-1])
        with st.container(key=f"scrolled_lens_{side}"):
            st.altair_chart(
                chart,
                key=f"lens.grid.{side}",
                width="content",
                alt=f"Best token of each layer, tokens {first} to {first + len(tokens) - 1}; the last layer's: {last}.",
            )
    st.caption(
        f"In each cell the most probable {result.target} of the shared tokens; dark to bright: its probability, from 0 "
        "to 1. Hover for the five most probable."
    )


def _listed(tokens: tuple[str, ...], probability: np.ndarray) -> str:
    return ", ".join(f"{token} {share:.2f}" for token, share in zip(tokens, probability, strict=True))
