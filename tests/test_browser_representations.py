"""The page Representations in a real browser, light and dark; the first request of the server is a cold deep link."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from test_browser import PATIENCE, browser, cell, chosen, expect, page, rest, server  # noqa: F401

from embcompare.measures import linear_cka

pytestmark = pytest.mark.browser

QUICK = "null_draws=4&halves=4&max_rows=200"
DEEP_LINK = f"/Representations?{QUICK}&layer_a=2&layer_b=3"


def test_cold_deep_link_shows_matrix_profiles_and_the_pair_of_layers(page, server):  # noqa: F811
    page.goto(DEEP_LINK)
    expect(page.get_by_text("Block 2 of A and block 3 of B, 200 sentences")).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(page.get_by_role("heading", name="Linear CKA, debiased, layer by layer")).to_be_visible()
    expect(page.get_by_role("heading", name="Along the depth")).to_be_visible()
    expect(page.get_by_role("heading", name="Each layer by itself")).to_be_visible()
    assert page.get_by_text("Something went wrong").count() == 0


def test_a_cell_click_shows_its_rows_and_enters_the_address(page):  # noqa: F811
    page.goto(f"/Representations?{QUICK}")
    expect(page.get_by_role("heading", name="Along the depth")).to_be_visible(timeout=PATIENCE)
    rest(page)
    cell(page, 1, 4).click()
    expect(page.get_by_text(re.compile(r"Block 1 of A and block 4 of B"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "layer_a=1" in page.url
    assert "layer_b=4" in page.url


def test_the_downloaded_table_holds_the_measure_of_the_captured_states(page, tmp_path):  # noqa: F811
    page.goto("/Representations?null_draws=0&halves=0")
    expect(page.get_by_role("heading", name="Along the depth")).to_be_visible(timeout=PATIENCE)
    rest(page)
    with page.expect_download() as waiting:
        page.get_by_test_id("stDownloadButton").filter(has_text="CSV").first.locator("button").click()
    target = tmp_path / "table.csv"
    waiting.value.save_as(target)
    frame = pd.read_csv(target)
    assert len(frame) == 49
    from embcompare.activations import capture
    from embcompare.models import ModelSpec, load_model
    from embcompare.text.corpora import shipped_corpus

    states = [
        capture(load_model(ModelSpec.parse(name)), shipped_corpus(), pooling="mean", folder=tmp_path)
        for name in ("demo/gpt2-a", "demo/gpt2-b")
    ]
    value = frame.set_index(["layer_a", "layer_b"]).value[2, 5]
    assert value == pytest.approx(linear_cka(states[0].pooled(2, "mean"), states[1].pooled(5, "mean")), abs=1e-6)


def test_difference_and_lens_are_a_click_away(page):  # noqa: F811
    page.goto(f"/Representations?{QUICK}")
    expect(page.get_by_role("heading", name="Along the depth")).to_be_visible(timeout=PATIENCE)
    rest(page)
    page.get_by_role("radio", name="Difference of two matrices").click()
    expect(page.get_by_text("Change at least one setting")).to_be_visible(timeout=PATIENCE)
    page.get_by_role("combobox", name="Second: rows").click()
    page.get_by_role("option", name="Words").click()
    expect(page.get_by_text("They differ most at layer")).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "other_pooling=word" in page.url
    page.get_by_role("radio", name="Logit lens").click()
    expect(page.get_by_text("between the two models' own predictions")).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "tab=lens" in page.url


@pytest.mark.parametrize("scheme", ["light"])
def test_own_text_is_pasted_chosen_and_compared(browser, server, scheme):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    opened.goto(f"/Representations?{QUICK}")
    expect(opened.get_by_role("heading", name="Along the depth")).to_be_visible(timeout=PATIENCE)
    rest(opened)
    ground = opened.get_by_test_id("stApp").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    opened.get_by_role("button", name="Use your own text").click()
    lines = "\n".join(f"On day {n} the {scheme} boat left the harbour with {n * 3} crates." for n in range(2, 40))
    opened.get_by_role("textbox").last.fill(lines)
    opened.get_by_role("button", name=re.compile("^(Use|Take|Keep)", re.IGNORECASE)).last.click()
    expect(opened.get_by_text(re.compile("Not computed yet"))).to_be_visible(timeout=PATIENCE)
    opened.get_by_role("button", name="Run", exact=True).click()
    expect(opened.get_by_text("on 38 sentences")).to_be_visible(timeout=PATIENCE)
    rest(opened)
    assert "corpus=text" in opened.url
    assert opened.get_by_test_id("stException").count() == 0
    context.close()


@pytest.mark.parametrize("scheme", ["dark"])
def test_the_lens_fits_a_phone_and_shows_no_setting_that_it_does_not_use(browser, server, scheme):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": 420, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    opened.goto(f"/Representations?{QUICK}&tab=lens&lens_sentences=16&lens_null_draws=2")
    expect(opened.get_by_text("between the two models' own predictions")).to_be_visible(timeout=PATIENCE)
    rest(opened)
    assert opened.get_by_test_id("stMain").evaluate("each => each.scrollWidth") <= 420
    assert opened.get_by_role("combobox", name="Measure").count() == 0
    assert opened.get_by_test_id("stException").count() == 0
    context.close()
