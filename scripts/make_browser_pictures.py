"""Take the pictures of pages in docs/images in a Chromium without a window: explorer, viewer, plotly, notebook."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from make_gallery import run
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

import ppsim

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DRAWN = "return runs.every((run) => run.result && !run.flight) && document.documentElement.dataset.drawn"
COSTS = {"forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0.1, "transport": "async"}
FOUR = [{"schedule": name} for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")]
EXPLORED = {
    "explorer": {"common": {**COSTS, "devices": 4, "microbatches": 8, "memory_limit": 5}, "schedules": FOUR},
    "explorer-64": {"common": {**COSTS, "devices": 64, "microbatches": 256, "memory_limit": 64}, "schedules": FOUR},
}
PAGE = '<!doctype html><meta charset="utf-8"><body style="margin: 12px">'


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A Chromium without a window and with nothing of other sessions in it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    quiet = "no-first-run disable-background-networking disable-component-update disable-sync disable-quic"
    for flag in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", *quiet.split()):
        options.add_argument(f"--{flag}")
    with tempfile.TemporaryDirectory() as folder:
        options.add_argument(f"--user-data-dir={folder}")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()


@contextmanager
def explorer() -> Iterator[str]:
    """The address of a running explorer."""
    command = [sys.executable, "-m", "ppsim", "explore", "--no-browser"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)  # noqa: S603 - the program itself
    try:
        assert server.stderr is not None  # noqa: S101 - it is a pipe
        yield re.findall(r"http://\S+", server.stderr.readline())[0]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def viewer(path: Path) -> str:
    """Two schedules with critical path, transfers, memory and idle time by cause, and an action that is followed."""
    ppsim.compare([run("1f1b", 4, 8), run("zb-h1", 4, 8)]).save(path)
    return "#on=transfers,memory,ledger&at=1,70"


def viewer_overview(path: Path) -> str:
    """More actions than pixels."""
    run("1f1b", 64, 1024).save(path)
    return ""


def plotly(path: Path) -> str:
    """The figure for those who embed one; the script that draws it lies in the page."""
    path.write_text(run("zb-h1", 4, 8).to_plotly().to_html(include_plotlyjs=True), encoding="utf-8")
    return ""


def notebook(path: Path) -> str:
    """What a notebook shows of a schedule and of a timeline."""
    timeline = run("interleaved-1f1b", 4, 8)
    path.write_text(f"{PAGE}{timeline.schedule._repr_html_()}<br>{timeline._repr_html_()}", encoding="utf-8")
    return ""


PAGES: dict[str, tuple[Callable[[Path], str], tuple[int, int]]] = {
    "viewer": (viewer, (1200, 800)),
    "viewer-overview": (viewer_overview, (1200, 720)),
    "plotly": (plotly, (1100, 320)),
    "notebook": (notebook, (1010, 650)),
}


def visit(browser: webdriver.Chrome, address: str, size: tuple[int, int]) -> None:
    """Open a page in a window of that many pixels."""
    pixels = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", pixels)
    browser.get(address)


def take(browser: webdriver.Chrome, picture: Path) -> None:
    """Save what is seen of the page, after its last changes."""
    browser.execute_async_script("setTimeout(arguments[0], 1500)")
    browser.save_screenshot(str(picture))


def main() -> None:
    """Write docs/images/explorer.png, explorer-64.png and the pictures of PAGES in the gallery."""
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for name, (write, size) in PAGES.items():
            path = Path(folder, f"{name}.html")
            fragment = write(path)
            visit(browser, path.as_uri() + fragment, size)
            take(browser, IMAGES / "gallery" / f"{name}.png")
        with explorer() as address:
            for name, state in EXPLORED.items():
                visit(browser, "about:blank", (1440, 900))
                visit(browser, f"{address}#{quote(json.dumps(state))}", (1440, 900))
                WebDriverWait(browser, 60).until(lambda page: page.execute_script(DRAWN))
                WebDriverWait(browser, 60).until(lambda page: page.execute_script("return faster.found.length"))
                take(browser, IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
