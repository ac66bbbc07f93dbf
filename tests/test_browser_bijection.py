"""The page Bijection in a real browser, light and dark: a fit watched, stopped and taken up; cells and dots clicked."""

from __future__ import annotations

import re

import pytest
from test_browser import PATIENCE, browser, cells, expect, page, rest, server  # noqa: F401

pytestmark = pytest.mark.browser

PAIR = "model_a=demo/gpt2-series-2000&model_b=demo/gpt2-series-1000"
GRID = f"{PAIR}&max_rows=900&splits=1&null_draws=1&downstream=4"
QUICK = f"{GRID}&epochs=4"
LONG = f"{GRID}&epochs=4000&patience=4000&maps=mean,orthogonal,ridge,inn,mlp"
DEEP_LINK = f"/Bijection?{QUICK}&layer_a=1&layer_b=2"


def along(page):  # noqa: F811
    return expect(page.get_by_text("At the same depth", exact=True))


def press(page, key: str) -> None:  # noqa: F811
    page.locator(f".st-key-bijection-{key} button").first.click()  # one with a help text has a twin


def fitted(page) -> None:  # noqa: F811
    """Open the fit, which the first who asks for it runs."""
    page.goto(DEEP_LINK)
    along(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    if page.get_by_text("What each map predicts", exact=True).count() == 0:
        press(page, "run")
    expect(page.get_by_text("Texts that fare worst")).to_be_visible(timeout=PATIENCE)
    rest(page)


def grid_cell(page, a: int, b: int):  # noqa: F811
    """The cell of the map of layers: what lies above it must let the mouse through."""
    return cells(page).locator(
        f"xpath=self::*[contains(@aria-label, 'of B: demo/gpt2-series-1000: {b};') and "
        f"contains(@aria-label, 'of A: demo/gpt2-series-2000: {a};')]"
    )


def lines(page):  # noqa: F811
    """The lines of the learning curves."""
    drawn = page.get_by_test_id("stVegaLiteChart").filter(has_text="loss, share of B's variance")
    return drawn.locator("path[aria-roledescription='line mark']")


def test_cold_deep_link_shows_the_map_of_layers_and_a_fit_is_run(page):  # noqa: F811
    page.goto(DEEP_LINK)
    along(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(cells(page).nth(24)).to_be_visible()
    expect(page.get_by_text("Not computed yet: at most").first).to_be_visible()
    press(page, "run")
    expect(page.get_by_text("Layer 1 of A (block 1) to layer 2 of B (block 2).")).to_be_visible(timeout=PATIENCE)
    rest(page)
    for title in ("What each map predicts", "What each richer kind of map adds", "Texts that fare worst"):
        expect(page.get_by_text(title, exact=True)).to_be_visible()
    assert page.get_by_text("Something went wrong").count() == 0
    assert page.get_by_text("Part of the link").count() == 0


def test_curves_grow_while_a_fit_runs_and_a_stopped_one_is_taken_up_by_two_browsers(page, browser, server):  # noqa: F811
    address = f"/Bijection?{LONG}&layer_a=2"
    page.goto(address)
    along(page).to_be_visible(timeout=PATIENCE)
    rest(page)
    press(page, "run")
    epoch = page.get_by_text(re.compile(r"invertible network, run 1 of 1: epoch \d+ of 4000"))
    expect(epoch).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(re.compile("Partial result"))).to_be_visible(timeout=PATIENCE)
    expect(lines(page).first).to_be_visible(timeout=PATIENCE)
    press(page, "cancel")
    stopped = page.get_by_text(re.compile(r"Stopped in invertible network, run 1 of 1 after epoch (\d+); Run takes"))
    expect(stopped).to_be_visible(timeout=PATIENCE)
    after = int(re.search(r"epoch (\d+)", stopped.inner_text())[1])
    expect(lines(page).first).to_be_visible()
    press(page, "run")
    expect(page.get_by_text(f"taken up after epoch {after}.")).to_be_visible(timeout=PATIENCE)
    expect(epoch).to_be_visible(timeout=PATIENCE)
    assert int(re.search(r"epoch (\d+) of", epoch.inner_text())[1]) > after
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, base_url=server.url)
    other = context.new_page()
    other.goto(address)
    both = re.compile("1 other waiting for the same run")
    expect(other.get_by_text(both)).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(both)).to_be_visible(timeout=PATIENCE)
    press(other, "cancel")
    expect(other.get_by_text("Somebody else waits for the same run")).to_be_visible(timeout=PATIENCE)
    context.close()
    press(page, "cancel")
    expect(stopped).to_be_visible(timeout=PATIENCE)
    assert int(re.search(r"epoch (\d+)", stopped.inner_text())[1]) > after


def test_a_click_chooses_layers_and_map_and_the_address_remembers(page):  # noqa: F811
    fitted(page)
    dots = page.locator(".st-key-bijection-reached-inn path[aria-roledescription='point'][aria-label*='map: ridge']")
    dots.last.click()
    expect(page.get_by_text("mapped from A (ridge)")).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert "map=ridge" in page.url
    grid_cell(page, 3, 1).click()
    expect(page.get_by_role("combobox", name="Layer of A")).to_have_value("3", timeout=PATIENCE)
    rest(page)
    assert "layer_a=3" in page.url
    assert "layer_b=1" in page.url
    expect(page.get_by_text("Pairs of layers fitted so far, with these settings")).to_be_visible()
    page.get_by_role("button", name="Shallower").click()
    expect(page.get_by_role("combobox", name="Layer of A")).to_have_value("2", timeout=PATIENCE)
    rest(page)
    grid_cell(page, 3, 1).click()
    expect(page.get_by_role("combobox", name="Layer of A")).to_have_value("3", timeout=PATIENCE)
    page.reload()
    expect(page.get_by_role("combobox", name="Layer of A")).to_have_value("3", timeout=PATIENCE)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 420)])
def test_the_page_fits_its_window_in_light_and_dark(browser, server, scheme, width):  # noqa: F811
    context = browser.new_context(color_scheme=scheme, base_url=server.url, viewport={"width": width, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    fitted(opened)
    assert opened.get_by_test_id("stMain").evaluate("each => each.scrollWidth") <= width
    assert opened.get_by_test_id("stException").count() == 0
    ground = opened.get_by_test_id("stApp").evaluate("each => getComputedStyle(each).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()
