"""The tab Attention in a real browser: heads are clicked, two patterns are drawn, a phone is wide enough."""

from __future__ import annotations

import re

import pytest
from test_browser import PATIENCE, browser, expect, page, rest, server  # noqa: F401

pytestmark = pytest.mark.browser

QUICK = "tab=attention&attention_null_draws=2&attention_halves=4"


def test_a_click_on_two_heads_shows_their_patterns_and_enters_the_address(page):  # noqa: F811
    page.goto(f"/Representations?{QUICK}")
    expect(page.get_by_text("on average; the same pairs of heads reach")).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(re.compile("In this sentence they differ by"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    chart = page.locator(".st-key-scrolled_attention_heads [data-testid=stVegaLiteChart]")
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    box = chart.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.5)
    expect(page.get_by_role("heading", name="Two heads, one sentence")).to_be_visible()
    page.wait_for_url(re.compile(r"attention_a=\d+\.\d+.*attention_b=\d+\.\d+"), timeout=PATIENCE)
    rest(page)
    a = re.search(r"attention_a=(\d+)\.(\d+)", page.url).groups()
    expect(page.get_by_text(re.compile(f"Block {a[0]}, head {a[1]} of A and block"))).to_be_visible(timeout=PATIENCE)
    for side in "ab":
        pattern = page.locator(f".st-key-scrolled_attention_pattern_{side} [data-testid=stVegaLiteChart]")
        expect(pattern).to_be_visible()


@pytest.mark.parametrize("scheme", ["dark"])
def test_the_tab_fits_a_phone(browser, server, scheme):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": 420, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    opened.goto(f"/Representations?{QUICK}&attention_pattern=full&attention_measure=jsd")
    expect(opened.get_by_text(re.compile("In this sentence they differ by"))).to_be_visible(timeout=PATIENCE)
    rest(opened)
    assert opened.get_by_test_id("stMain").evaluate("each => each.scrollWidth") <= 420
    assert opened.get_by_role("combobox", name="Space").count() == 0
    assert opened.get_by_test_id("stException").count() == 0
    context.close()
