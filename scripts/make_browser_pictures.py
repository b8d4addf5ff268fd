"""Take the pictures of pages in docs/images in a Chromium without a window: explorer, viewer, plotly, notebook."""

import base64
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

import make_gallery
from make_gallery import SIZES, THEMES, run
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

import ppsim
from ppsim.plots.palette import THEMES as THEMES_OF_CHARTS

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DRAWN = "return runs.every((run) => run.result && !run.flight) && document.documentElement.dataset.drawn"
COSTS = {"forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0.1, "transport": "async"}
FOUR = [{"schedule": name} for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")]
PAGE_SIZES = {"viewer": (1200, 800), "explorer": (1440, 900), "plotly": (1100, 320)}
CELL = (1010, 150)  # of a notebook; its picture is as high as what it shows
TALLEST = 1600  # pixels of a picture of a whole page


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


def viewer(path: Path, devices: int, microbatches: int, theme: str) -> str:
    """Write two schedules; show critical path or transfers, memory and idle time by cause, and a followed action."""
    ppsim.compare([run(name, devices, microbatches) for name in ("1f1b", "zb-h1")]).save(path, theme=theme)
    return "#on=transfers,memory,ledger&at=1,70" if devices < 64 else "#on=memory,ledger,critical"


def plotly(path: Path, devices: int, microbatches: int, theme: str) -> str:
    """Write the figure for those who embed one; the script that draws it lies in the page."""
    figure = run("zb-h1", devices, microbatches).to_plotly(theme=theme)
    path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    return ""


def notebook(path: Path, devices: int, microbatches: int, theme: str) -> str:
    """Write what a notebook shows of a schedule and of a timeline."""
    timeline = run("interleaved-1f1b", devices, microbatches)
    write_cells(path, theme, f"{timeline.schedule.to_html(theme)}<br>{timeline.to_html(theme)}")
    return ""


def still(path: Path, devices: int, microbatches: int, theme: str) -> str:
    """Write what a notebook shows of a timeline where no scripts run."""
    shown = run("dualpipe", devices, microbatches).to_html(theme)
    write_cells(path, theme, re.sub("<script>.*?</script>", "", shown, flags=re.DOTALL))
    return ""


def write_cells(path: Path, theme: str, html: str) -> None:
    """Write a page with the colours of a notebook in a theme."""
    colours = THEMES_OF_CHARTS[theme]
    style = f"margin: 12px; background: {colours.paper}; color: {colours.text}"
    path.write_text(f'<!doctype html><meta charset="utf-8"><body style="{style}">{html}', encoding="utf-8")


PAGES: dict[str, Callable[[Path, int, int, str], str]] = {
    "viewer": viewer,
    "plotly": plotly,
    "notebook": notebook,
    "still": still,
}


def resize(browser: webdriver.Chrome, size: tuple[int, int]) -> None:
    """Give the window that many pixels."""
    pixels = {"width": size[0], "height": size[1], "deviceScaleFactor": 2, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", pixels)


def visit(browser: webdriver.Chrome, address: str, size: tuple[int, int], theme: str) -> None:
    """Open a page in a window of that many pixels, for a reader of a light or dark system."""
    resize(browser, size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get("about:blank")
    browser.get(address)


def take(browser: webdriver.Chrome, whole: bool = False) -> bytes:
    """Return a PNG of what is seen of the page, or of the `whole` page, after its last changes."""
    browser.execute_async_script("setTimeout(arguments[0], 1500)")
    if whole:
        script = "const { scrollWidth, scrollHeight } = document.documentElement; return [scrollWidth, scrollHeight]"
        wide, high = browser.execute_script(script)
        resize(browser, (wide, min(high, TALLEST)))
        browser.execute_async_script("setTimeout(arguments[0], 500)")
    return base64.b64decode(browser.get_screenshot_as_base64())


def take_explorer(browser: webdriver.Chrome, address: str, devices: int, microbatches: int, theme: str) -> bytes:
    """Return a PNG of the explorer with four schedules, after the faster families have been found."""
    limit = 5 if devices == 4 else devices
    common = {**COSTS, "devices": devices, "microbatches": microbatches, "memory_limit": limit}
    state = quote(json.dumps({"common": common, "schedules": FOUR, "view": f"theme={theme}"}))
    visit(browser, f"{address}#{state}", PAGE_SIZES["explorer"], theme)
    for script in (DRAWN, "return faster.found.length"):
        WebDriverWait(browser, 120).until(lambda page, script=script: page.execute_script(script))
    return take(browser)


def main() -> None:
    """Write docs/images/explorer.png and the pictures of pages in the gallery."""
    with chromium() as browser, explorer() as address, tempfile.TemporaryDirectory() as folder:
        for chart in (*make_gallery.PAGES, *make_gallery.OTHERS):
            for (devices, microbatches), names in zip(SIZES, make_gallery.files(chart), strict=True):
                for name, theme in zip(names, THEMES, strict=False):
                    if chart.file == "explorer":
                        picture = take_explorer(browser, address, devices, microbatches, theme)
                    else:
                        path = Path(folder, f"{name}.html")
                        fragment = PAGES[chart.file](path, devices, microbatches, theme)
                        visit(browser, path.as_uri() + fragment, PAGE_SIZES.get(chart.file, CELL), theme)
                        picture = take(browser, whole=chart in make_gallery.OTHERS)
                    make_gallery.save_picture(name, picture)
        shutil.copy(IMAGES / "gallery" / "explorer-4-light.png", IMAGES / "explorer.png")


if __name__ == "__main__":
    main()
