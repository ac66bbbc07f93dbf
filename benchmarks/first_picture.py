"""From ``make app`` on an installed machine to the first picture in a browser, with an empty cache and a full one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

from benchmarks.common import report

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def seconds_to_picture(cache: str) -> float:
    """Start ``make app``, open the page as soon as the server answers, and wait for the three heat maps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "EMBCOMPARE_CACHE": cache,
        "STREAMLIT_SERVER_HEADLESS": "true",
        "STREAMLIT_SERVER_PORT": str(port),
        "STREAMLIT_SERVER_ADDRESS": "127.0.0.1",
    }
    began = time.perf_counter()
    server = subprocess.Popen(
        ["make", "app"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                if urlopen(f"{url}/_stcore/health", timeout=1).read() == b"ok":
                    break
            except (URLError, ConnectionError, TimeoutError):
                if time.perf_counter() - began > 120:
                    raise
                time.sleep(0.05)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = browser.new_page()
            page.goto(url)
            page.get_by_test_id("stVegaLiteChart").nth(2).locator("canvas.marks, svg.marks").first.wait_for(
                timeout=120_000
            )
            took = time.perf_counter() - began
            browser.close()
        return took
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def main() -> int:
    """Print both times; 1 when the first picture of an empty cache took 20 s or more."""
    os.chdir(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = seconds_to_picture(cache), seconds_to_picture(cache)
    report(
        "`make app` to the three heat maps of the first page, in headless Chromium",
        [
            ("nothing computed before", f"{cold:.1f} s", "aim: under 20 s"),
            ("result kept from an earlier visit", f"{warm:.1f} s", ""),
        ],
    )
    return int(cold >= 20)


if __name__ == "__main__":
    sys.exit(main())
