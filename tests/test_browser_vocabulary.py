"""The page Vocabulary in a real browser, light and dark; the first request of the server is a cold deep link."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from test_browser import PATIENCE, browser, expect, page, rest, server  # noqa: F401

pytestmark = pytest.mark.browser

DEEP_LINK = "/Vocabulary?group=ff_keys&layer_a=4&layer_b=4&vector=a.ff_keys.4.55"


def choose_row(page, row: int, table: int = 0) -> None:  # noqa: F811
    """Click the box before a row: the table is painted, so there is nothing else to take hold of."""
    shown = page.locator("[data-testid=stDataFrame]:visible").nth(table)
    shown.scroll_into_view_if_needed()
    box = shown.bounding_box()
    page.mouse.click(box["x"] + 18, box["y"] + 52 + 32 * row)


def test_cold_deep_link_shows_both_layers_and_the_vector(page):  # noqa: F811
    page.goto(DEEP_LINK)
    expect(page.get_by_role("heading", name="FF key 55 of layer 4 in A")).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(re.compile(r"Nearest in B: vector \d+ of layer \d"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert page.get_by_text(re.compile("starbuck")).count() >= 1
    assert page.get_by_text("Something went wrong").count() == 0


def test_a_chosen_row_becomes_the_vector_and_enters_the_address(page):  # noqa: F811
    page.goto("/Vocabulary?group=ff_keys&layer_a=4&layer_b=4")
    expect(page.get_by_test_id("stDataFrame")).to_have_count(2, timeout=PATIENCE)
    rest(page)
    choose_row(page, 0)
    heading = page.get_by_role("heading", name=re.compile(r"FF key \d+ of layer 4 in A"))
    expect(heading).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(heading).to_be_in_viewport()
    index = re.search(r"FF key (\d+)", heading.inner_text())[1]
    assert f"vector=a.ff_keys.4.{index}" in page.url
    page.get_by_test_id("stButton").get_by_role("button", name="Close").click()
    expect(heading).to_have_count(0)


def test_a_vector_chosen_far_down_is_shown_where_one_looks(page):  # noqa: F811
    page.goto("/Vocabulary?group=ff_keys&layer_a=4&layer_b=4")
    expect(page.get_by_test_id("stDataFrame")).to_have_count(2, timeout=PATIENCE)
    rest(page)
    main = page.get_by_test_id("stMain")
    main.evaluate("each => each.scrollTo(0, 500)")
    before = main.evaluate("each => each.scrollTop")
    assert before > 300
    box = page.locator("[data-testid=stDataFrame]:visible").nth(1).bounding_box()
    page.mouse.click(box["x"] + 18, box["y"] + 52 + 32 * 3)
    expect(page.get_by_text("B says", exact=True)).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert main.evaluate("each => each.scrollTop") == before, "the tables move down, not the window"
    expect(page.get_by_text("B says", exact=True)).to_be_in_viewport()


def test_the_downloaded_reading_is_that_of_the_python_call(page, tmp_path):  # noqa: F811
    page.goto("/Vocabulary?group=w_o&layer_a=2&layer_b=2")
    expect(page.get_by_test_id("stDataFrame")).to_have_count(2, timeout=PATIENCE)
    rest(page)
    with page.expect_download() as waiting:
        page.get_by_test_id("stDownloadButton").filter(has_text="CSV").first.locator("button").click()
    target = tmp_path / "table.csv"
    waiting.value.save_as(target)
    import embcompare

    again = embcompare.run(
        embcompare.TokenReading("demo/gpt2-a", layer=2, group="w_o", common=1, words_only=True), keep=False
    ).to_frame()
    frame = pd.read_csv(target, keep_default_na=False)
    assert frame["index"].tolist() == again["index"].tolist()
    assert frame["top"].tolist() == again["top"].tolist()
    assert frame["z"].tolist() == pytest.approx(again["z"].tolist())


@pytest.mark.parametrize(("scheme", "width"), [("dark", 420)])
def test_every_view_fits_its_window_in_light_and_dark(browser, server, scheme, width):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": width, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    for query, said in (
        ("tab=search&token=whale&words_of=reviews", re.compile("is scored highest by")),
        ("tab=heads&head_layer_a=4", re.compile("The leading direction holds")),
        ("tab=difference&model_b=demo/gpt2-a-sentiment", re.compile("are equal number for number")),
        ("tab=agreement&read_sentences=12&shuffles=2", re.compile("Above chance in")),
    ):
        opened.goto(f"/Vocabulary?{query}")
        expect(opened.get_by_text(said).first).to_be_visible(timeout=PATIENCE)
        rest(opened)
        main = opened.get_by_test_id("stMain")
        assert main.evaluate("each => each.scrollWidth") <= width
        assert opened.get_by_test_id("stException").count() == 0
    ground = opened.get_by_test_id("stApp").evaluate("each => getComputedStyle(each).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()


def test_a_matched_vector_on_the_parameters_page_leads_here(page):  # noqa: F811
    page.goto("/Parameters?group=ff_values&null_draws=4&layer_a=2&layer_b=2")
    expect(page.get_by_text("Choose a row to look at its two vectors")).to_be_visible(timeout=PATIENCE)
    rest(page)
    choose_row(page, 1)
    page.get_by_role("link", name=re.compile("of B and its nearest")).click()
    expect(page.get_by_role("heading", name="Vocabulary", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile(r"FF value \d+ of layer 2 in B"))).to_be_visible(
        timeout=PATIENCE
    )
    rest(page)
    assert page.get_by_text(re.compile("Part of the link")).count() == 0
