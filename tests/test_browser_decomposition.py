"""The page Decomposition in a real browser, wide and narrow; the first request of the server is a cold deep link."""

from __future__ import annotations

import re

import pytest
from test_browser import PATIENCE, browser, expect, page, rest, server  # noqa: F401

pytestmark = pytest.mark.browser

PAIR = "model_a=demo/gpt2-series-2000&model_b=demo/gpt2-series-1000"
DEEP_LINK = f"/Decomposition?{PAIR}&text=The+whale+was+white&layer_a=2&over=token&brought=logit"
LAYERS = f"/Decomposition?{PAIR}&tab=layers&sentences=5&positions=20"
RUNS = "one:+demo/gpt2-series-50,+demo/gpt2-series-400,+demo/gpt2-series-2000"
SERIES = f"/Decomposition?tab=series&series_runs={RUNS}&series_corpus=shipped&series_sentences=5"


def token(page, place: int):  # noqa: F811
    """A cell of A's row of tokens."""
    chart = page.locator(".st-key-scrolled_tokens_a")
    return chart.locator("path[aria-roledescription='rect mark'][aria-label*='term: feed-forward']").nth(place)


def test_cold_deep_link_shows_bars_tokens_and_parts(page):  # noqa: F811
    page.goto(DEEP_LINK)
    expect(page.get_by_text(re.compile("^A, ‘white’, block 2: "))).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(re.compile("^A, ‘white’, block 2: "))).to_contain_text(
        "B, ‘white’, block 4, after final norm"
    )
    rest(page)
    expect(page.get_by_role("heading", name="What each input token brought")).to_be_visible()
    assert page.get_by_text("Something went wrong").count() == 0
    assert page.get_by_text("Part of the link").count() == 0


def test_a_click_on_a_token_changes_what_is_below_and_the_address_remembers_it(page):  # noqa: F811
    page.goto(f"/Decomposition?{PAIR}&text=The+whale+was+white")
    expect(page.get_by_text(re.compile("^A, ‘white’, "))).to_be_visible(timeout=PATIENCE)
    rest(page)
    token(page, 2).click()
    expect(page.get_by_text(re.compile("^A, ‘whale’, "))).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "position_a=2" in page.url
    assert "position_b=2" in page.url
    assert page.get_by_text(re.compile("· ‘whale’, block 4, after final norm")).count() == 6
    page.reload()
    expect(page.get_by_text(re.compile("^A, ‘whale’, "))).to_be_visible(timeout=PATIENCE)


def test_a_typed_text_is_taken_apart_and_the_views_keep_what_was_chosen(page):  # noqa: F811
    page.goto(f"/Decomposition?{PAIR}&text=The+whale")
    expect(page.get_by_text(re.compile("^A, ‘whale’, "))).to_be_visible(timeout=PATIENCE)
    rest(page)
    page.get_by_role("textbox", name="Text").fill("The captain")
    page.get_by_role("button", name="Take apart").click()
    expect(page.get_by_text(re.compile("^A, ‘captain’, "))).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "text=The+captain" in page.url
    page.get_by_role("radio", name="Layers").click()
    expect(page.get_by_role("button", name=re.compile("First sentences"))).to_be_visible(timeout=PATIENCE)
    assert "tab=layers" in page.url
    page.get_by_role("radio", name="Sentence").click()
    expect(page.get_by_text(re.compile("^A, ‘captain’, "))).to_be_visible(timeout=PATIENCE)


def test_layers_say_what_carries_the_last_state_and_what_a_dropped_term_costs(page):  # noqa: F811
    page.goto(LAYERS)
    expect(page.get_by_text(re.compile("of the last state \\(block 4, after final norm\\)"))).to_be_visible(
        timeout=PATIENCE
    )
    rest(page)
    expect(page.get_by_role("heading", name="Without a term")).to_be_visible()
    page.get_by_role("radio", name="Norm ratio").click()
    expect(page.get_by_text(re.compile("how long the term is beside the state")).first).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "indicator=norm_ratio" in page.url


def test_a_series_says_what_goes_with_the_loss_and_what_one_run_cannot_tell(page):  # noqa: F811
    page.goto(SERIES)
    expect(page.get_by_text(re.compile("One run cannot tell"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(page.get_by_role("heading", name="What goes with loss")).to_be_visible()
    page.get_by_role("radio", name="Accuracy").click()
    expect(page.get_by_role("heading", name="What goes with accuracy")).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "metric=accuracy" in page.url


@pytest.mark.parametrize("address", [DEEP_LINK, LAYERS, SERIES], ids=["sentence", "layers", "series"])
def test_every_view_fits_a_narrow_dark_window(browser, server, address):  # noqa: F811
    width = 420
    context = browser.new_context(color_scheme="dark", base_url=server.url, viewport={"width": width, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    opened.goto(address)
    expect(opened.get_by_test_id("stVegaLiteChart").first).to_be_visible(timeout=PATIENCE)
    rest(opened)
    assert opened.get_by_test_id("stMain").evaluate("each => each.scrollWidth") <= width
    assert opened.get_by_test_id("stException").count() == 0
    assert opened.get_by_text("Something went wrong").count() == 0
    context.close()
