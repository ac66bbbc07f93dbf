"""The dashboard as people meet it: a real server, a real browser. The first request of all is a cold deep link."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=60_000)

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent
CHROMIUM = next(filter(None, (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEEP_LINK = "/Parameters?group=ff_values&null_draws=4&view=centred&layer_a=2&layer_b=2"
PATIENCE = 120_000


@dataclass
class Server:
    """A running dashboard: where it answers, where it logs, where it keeps results."""

    url: str
    log: Path
    cache: Path

    def stored(self) -> list[Path]:
        return list(self.cache.glob("*.safetensors"))


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("dashboard")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = Server(f"http://127.0.0.1:{port}", folder / "log", folder / "cache")
    environment = {**os.environ, "EMBCOMPARE_CACHE": str(found.cache), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    command += ["--server.address=127.0.0.1", "--server.headless=true", "--server.fileWatcherType=none"]
    with found.log.open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            with suppress(OSError):
                if urllib.request.urlopen(f"{found.url}/_stcore/health").read() == b"ok":
                    break
            assert process.poll() is None, found.log.read_text()
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.fail("chromium is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser, server):
    """A fresh session; whatever a test does, no page may show and no log may hold a traceback."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, base_url=server.url)
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    yield opened
    assert opened.get_by_test_id("stException").count() == 0
    context.close()
    assert not faults(server.log.read_text())


def faults(log: str) -> list[str]:
    """Return what the log complains of, but for browsers that hang up in the middle of a sentence."""
    blocks = re.split(r"(?m)^(?=Traceback|Exception in ASGI|\d{4}-\d\d-\d\d )", log)
    hang_up = ("WebSocketDisconnected", "Exception in ASGI application\n")
    return [b for b in blocks if ("Traceback" in b or " ERROR " in b) and not any(each in b for each in hang_up)]


def rest(page) -> None:
    """Wait until nothing runs and nothing is being computed."""
    expect(page.get_by_test_id("stProgress")).to_have_count(0, timeout=PATIENCE)
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning", timeout=PATIENCE)


def cells(page, panel: int = 0):
    return page.get_by_test_id("stVegaLiteChart").nth(panel).locator("path[aria-roledescription='rect mark']")


def cell(page, a: int, b: int):
    return (
        page.get_by_test_id("stVegaLiteChart")
        .first.locator(f"path[aria-label*='of A: demo/gpt2-a: {a};']")
        .locator(f"xpath=self::*[contains(@aria-label, 'of B: demo/gpt2-b: {b};')]")
    )


def chosen(page, label: str):
    return page.get_by_role("combobox", name=label, exact=True)


def test_cold_deep_link_shows_settings_picture_and_matches(page, server):
    page.goto(DEEP_LINK)
    expect(page.get_by_text(re.compile("Layer 2 of A and layer 2 of B"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(page.get_by_role("heading", name="FF values, layer by layer")).to_be_visible()
    expect(chosen(page, "Parameters")).to_have_value("FF values")
    expect(page.get_by_text("Double-centred").first).to_be_visible()
    assert cells(page).count() == 36
    assert len(server.stored()) == 2


def test_reloading_the_link_gives_the_same_page_from_the_store(page, server):
    page.goto(DEEP_LINK)
    expect(page.get_by_text(re.compile("Layer 2 of A and layer 2 of B"))).to_be_visible()
    rest(page)
    first = page.get_by_text(re.compile("assigned to the layer of equal depth")).first.inner_text()
    address = page.url
    before = len(server.stored())
    page.reload()
    expect(page.get_by_text(re.compile("Layer 2 of A and layer 2 of B"))).to_be_visible()
    rest(page)
    assert page.url == address
    assert page.get_by_text(re.compile("assigned to the layer of equal depth")).first.inner_text() == first
    assert len(server.stored()) == before


def test_a_click_on_a_cell_leads_to_its_matches_and_into_the_address(page):
    page.goto("/Parameters?group=ff_values&null_draws=4")
    expect(page.get_by_text("One pair of layers")).to_be_visible()
    rest(page)
    cell(page, 3, 1).click()
    expect(page.get_by_text(re.compile("Layer 3 of A and layer 1 of B"))).to_be_visible()
    rest(page)
    expect(page.get_by_text("top tokens in A")).to_be_attached()
    assert "layer_a=3" in page.url
    assert "layer_b=1" in page.url
    chosen(page, "Layer of A").click()
    chosen(page, "Layer of A").fill("0")
    chosen(page, "Layer of A").press("Enter")
    expect(page.get_by_text(re.compile("Layer 0 of A and layer 1 of B"))).to_be_visible()
    rest(page)
    assert "layer_a=0" in page.url


def test_every_download_opens_and_holds_the_same_numbers(page, tmp_path):
    page.goto("/Parameters?group=ff_values&null_draws=4")
    expect(page.get_by_text("One pair of layers")).to_be_visible()
    rest(page)
    files = {}
    for label in ("CSV", "JSON", "npz", "PNG", "SVG"):
        rest(page)
        with page.expect_download(timeout=PATIENCE) as started:
            # by its own test id: a chart's toolbar has a "Download as PNG" too, hidden until the mouse comes near
            page.get_by_test_id("stDownloadButton").get_by_role("button", name=label).first.click()
        files[label] = tmp_path / started.value.suggested_filename
        started.value.save_as(files[label])
    table = pd.read_csv(files["CSV"])
    document = json.loads(files["JSON"].read_text())
    with np.load(files["npz"], allow_pickle=False) as archive:
        values = archive["values"]
    assert values.shape == (6, 6)
    np.testing.assert_array_equal(table["value"].to_numpy().reshape(6, 6), values)
    np.testing.assert_array_equal(np.array(document["result"]["values"]), values)
    assert document["provenance"]["settings"]["group"] == "ff_values"
    assert files["PNG"].read_bytes().startswith(b"\x89PNG")
    svg = files["SVG"].read_text()
    assert svg.startswith("<svg")
    assert "layer of A: demo/gpt2-a" in svg


def test_home_leads_to_the_parameters_with_its_pair(page):
    page.goto("/")
    expect(page.get_by_text(re.compile("assigned to the layer of equal depth"))).to_be_visible()
    rest(page)
    chosen(page, "Model B").click()
    page.get_by_role("option", name="demo/gpt2-series-2000").click()
    expect(page.get_by_text("layer of B: demo/gpt2-series-2000").first).to_be_visible()
    rest(page)
    page.get_by_role("link", name="Look closer at this pair").click()
    expect(page.get_by_role("heading", name="Parameters", exact=True)).to_be_visible()
    rest(page)
    assert "model_b=demo%2Fgpt2-series-2000" in page.url
    expect(chosen(page, "Model B")).to_have_value("demo/gpt2-series-2000")
    expect(page.get_by_role("heading", name="FF values, layer by layer")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Compare two language models")).to_be_visible()


def test_the_pair_that_nobody_touched_goes_along_from_page_to_page(page):
    page.goto("/")
    expect(page.get_by_test_id("stVegaLiteChart").first).to_be_visible(timeout=PATIENCE)
    for name in ("Parameters", "Representations", "Vocabulary", "Parameters", "Home"):
        page.get_by_role("link", name=name, exact=True).click()
        title = "Compare two language models" if name == "Home" else name
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
        rest(page)
        page.wait_for_timeout(1500)  # the browser's own report of the new widgets comes after the page
        rest(page)
        expect(chosen(page, "Model A")).to_have_value("demo/gpt2-a")
        expect(chosen(page, "Model B")).to_have_value("demo/gpt2-b")
        assert "view=None" not in page.url
        assert "model_b=demo%2Fgpt2-a" not in page.url.replace("gpt2-a-", "")
        if name == "Parameters":
            assert page.get_by_role("radio", name="Score", exact=True).count() == 1
            assert page.get_by_role("radio").and_(page.locator("[aria-checked=true]")).count() >= 1


def test_two_browsers_at_once_share_one_run(browser, server, page):
    before = len(server.stored())
    contexts = [browser.new_context(base_url=server.url) for _ in range(2)]
    pages = [context.new_page() for context in contexts]
    for each in pages:
        each.goto("/Parameters?group=w_v&null_draws=60")
    for each in pages:
        expect(each.get_by_text("One pair of layers")).to_be_visible(timeout=PATIENCE)
        rest(each)
    sentences = {each.get_by_text(re.compile("assigned to the layer")).first.inner_text() for each in pages}
    assert len(sentences) == 1
    assert len(server.stored()) == before + 1
    seconds = set()
    for each in pages:
        each.get_by_text("Where the numbers come from").click()
        seconds.add(each.get_by_text(re.compile(r"\d{4}-\d\d-\d\dT")).first.inner_text())
    assert len(seconds) == 1, "both show the very same computation"
    for context in contexts:
        context.close()


def test_a_long_run_shows_progress_and_can_be_cancelled(page, server):
    before = len(server.stored())
    page.goto("/Parameters?group=ff_keys&null_draws=1000&score=one_to_one")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_test_id("stProgress")).to_be_visible()
    expect(page.get_by_text("Partial result")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("^Cancelled"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    expect(page.get_by_text("Partial result")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    assert len(server.stored()) == before


def test_a_page_loaded_again_meets_its_own_run_and_can_cancel_it(page, server):
    page.goto("/Parameters?group=ff_values&null_draws=1000&score=one_to_one")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("Partial result")).to_be_visible()
    page.reload()
    expect(page.get_by_test_id("stProgress")).to_be_visible()
    expect(page.get_by_text("Partial result")).to_be_visible()
    assert page.get_by_text("waiting for the same run").count() == 0
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("^Cancelled"))).to_be_visible(timeout=PATIENCE)
    rest(page)
    assert page.get_by_text("Somebody else waits").count() == 0


def test_hostile_links_are_answered_with_a_sentence(page):
    page.goto("/Parameters?model_a=../../etc/passwd&group=%3Cscript%3E&null_draws=4&view=raw&bogus=1")
    expect(page.get_by_text(re.compile("Part of the link cannot be followed"))).to_be_visible()
    rest(page)
    assert "passwd" not in page.url
    assert "bogus" not in page.url
    expect(chosen(page, "Model A")).to_have_value("demo/gpt2-a")


def test_results_opens_a_run_where_it_belongs(page):
    page.goto("/Results")
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
    rest(page)
    box = page.get_by_test_id("stDataFrame").first.bounding_box()
    page.mouse.click(box["x"] + 18, box["y"] + 52)
    page.get_by_role("link", name="Open", exact=False).click()
    expect(page.get_by_role("heading", name="Parameters", exact=True)).to_be_visible()
    rest(page)
    assert page.get_by_text(re.compile("Part of the link")).count() == 0


@pytest.fixture(scope="module")
def shots(tmp_path_factory) -> Path:
    named = os.environ.get("EMBCOMPARE_SHOTS", "").strip()
    folder = Path(named) if named else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 420)])
def test_pages_fit_their_window_in_light_and_dark(theme, width, browser, server, shots, page):
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=theme, base_url=server.url, reduced_motion="reduce"
    )
    seen = context.new_page()
    grounds = set()
    for name, path in (("home", "/"), ("parameters", DEEP_LINK.replace("view=centred&", "")), ("results", "/Results")):
        seen.goto(path)
        if name != "results":
            expect(seen.get_by_test_id("stVegaLiteChart").nth(3)).to_be_visible(timeout=PATIENCE)
        rest(seen)
        if name == "parameters":
            expect(seen.get_by_text("About these numbers")).to_be_visible()
        main = seen.get_by_test_id("stMain")
        height = min(main.evaluate("each => each.scrollHeight") + 20, 6000)
        seen.set_viewport_size({"width": width, "height": height})
        seen.wait_for_timeout(1200)
        seen.screenshot(path=str(shots / f"{name}-{theme}-{width}.png"))
        assert main.evaluate("each => each.scrollWidth") <= width
        grounds.add(seen.get_by_test_id("stApp").evaluate("each => getComputedStyle(each).backgroundColor"))
        seen.set_viewport_size({"width": width, "height": 1000})
    assert grounds == {"rgb(255, 255, 255)" if theme == "light" else "rgb(18, 24, 26)"}
    context.close()


def test_the_log_of_the_whole_session_is_clean(server, page):
    assert not faults(server.log.read_text())


def test_the_log_check_itself_sees_a_traceback():
    assert faults('Traceback (most recent call last):\n  File "app.py", line 1\nZeroDivisionError: division by zero')
