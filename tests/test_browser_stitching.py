"""The page Stitching in a real browser, light and dark; the first request of the server is a cold deep link."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from test_browser import PATIENCE, browser, cells, expect, page, rest, server  # noqa: F401

pytestmark = pytest.mark.browser

QUICK = "model_a=demo/gpt2-series-2000&model_b=demo/gpt2-series-1000&sentences=4&kernels=pseudo_inverse,permuted"
DEEP_LINK = f"/Stitching?{QUICK}&cut=2&entry=3&prompt=The+whale&tokens=4"


def said(page):  # noqa: F811
    return expect(page.get_by_text(re.compile("all cells allowed for; (no cell of|of) a control")).first)


def grid_cell(page, cut: int, entry: int):  # noqa: F811
    """The cell of the map of cells: what lies above it must let the mouse through."""
    return cells(page).locator(
        f"xpath=self::*[starts-with(@aria-label, 'into layer k of B') and contains(@aria-label, ': {entry}; after i "
        f"blocks of A') and contains(@aria-label, ': {cut}; ')]"
    )


def test_cold_deep_link_shows_grid_cell_and_continued_text(page):  # noqa: F811
    page.goto(DEEP_LINK)
    expect(page.get_by_role("heading", name="After 2 blocks of A, into layer 3 of B")).to_be_visible(timeout=PATIENCE)
    said(page).to_be_visible(timeout=PATIENCE)
    rest(page)  # while the grid is being put in its place, the text that stood there before is on the page as well
    expect(page.get_by_text(re.compile("2 blocks of demo/gpt2-series-2000 under 1 block of"))).to_be_visible(
        timeout=PATIENCE
    )
    expect(page.get_by_text("Alternatives at every step")).to_be_visible()
    expect(page.get_by_role("heading", name="All maps, cut by cut")).to_be_visible()
    assert page.get_by_text("Something went wrong").count() == 0
    assert page.get_by_text("Part of the link").count() == 0


def test_a_click_opens_a_cell_the_address_remembers_it_and_close_lets_it_be_clicked_again(page):  # noqa: F811
    page.goto(f"/Stitching?{QUICK}")
    said(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    heading = page.get_by_role("heading", name="After 1 block of A, into layer 3 of B")
    grid_cell(page, 1, 3).click()
    expect(heading).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "cut=1" in page.url
    assert "entry=3" in page.url
    page.get_by_role("button", name="Close").click()
    expect(heading).to_have_count(0, timeout=PATIENCE)
    rest(page)
    assert "cut=" not in page.url
    grid_cell(page, 1, 3).click()
    expect(heading).to_be_visible(timeout=PATIENCE)


def test_a_typed_text_is_continued_and_kept_in_the_address(page):  # noqa: F811
    page.goto(f"/Stitching?{QUICK}&cut=3&entry=3&tokens=3")
    said(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    page.get_by_placeholder("The whale").fill("My fellow citizens")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("Alternatives at every step")).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "prompt=My+fellow+citizens" in page.url
    for side in ("A", "B", "stitched"):
        added = page.locator(f"path[aria-roledescription='rect mark'][aria-label*='layer: {side};']")
        assert added.count() == 3
        assert re.search(r"probability of the best: [01]\.\d{3}", added.first.get_attribute("aria-label"))


def test_the_downloaded_grid_is_that_of_the_python_call(page, tmp_path):  # noqa: F811
    page.goto(f"/Stitching?{QUICK}")
    said(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    with page.expect_download() as waiting:
        page.get_by_test_id("stDownloadButton").filter(has_text=re.compile("CSV$")).last.locator("button").click()
    target = tmp_path / "table.csv"
    waiting.value.save_as(target)
    frame = pd.read_csv(target)
    assert len(frame) == 2 * 5 * 5
    import embcompare

    again = embcompare.run(
        embcompare.Stitching(
            "demo/gpt2-series-2000", "demo/gpt2-series-1000", sentences=4, kernels="pseudo_inverse, permuted"
        ),
        keep=False,
    ).to_frame()
    assert frame["map"].tolist() == again["map"].tolist()
    assert frame["loss"].tolist() == pytest.approx(again["loss"].tolist(), rel=1e-5)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 420)])
def test_the_page_fits_its_window_in_light_and_dark(browser, server, scheme, width):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": width, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    opened.goto(DEEP_LINK)
    said(opened).to_be_visible(timeout=PATIENCE)
    expect(opened.get_by_text("Alternatives at every step")).to_be_visible(timeout=PATIENCE)
    rest(opened)
    assert opened.get_by_test_id("stMain").evaluate("each => each.scrollWidth") <= width
    assert opened.get_by_test_id("stException").count() == 0
    heading = opened.get_by_role("heading", name="After 2 blocks of A, into layer 3 of B").bounding_box()
    lines = opened.get_by_role("heading", name="All maps, cut by cut").bounding_box()
    assert heading["y"] < lines["y"], "the cell is not below everything"
    if width > 1000:
        chart = opened.get_by_test_id("stVegaLiteChart").first.bounding_box()
        assert heading["x"] > chart["x"] + chart["width"] - 60, "the cell is beside the grid"
        assert abs(heading["y"] - chart["y"]) < 120
    ground = opened.get_by_test_id("stApp").evaluate("each => getComputedStyle(each).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()
