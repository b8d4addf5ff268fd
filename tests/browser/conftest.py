"""A real Chromium for the tests of this folder, the explorer's server, and the accessibility checker axe-core."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import AXE, found, needed

WAIT = 30.0  # seconds for anything that a page does
NO_COMPARISON = """
    {
      const { fetch } = window;
      window.fetch = (path, given) =>
        path === "/api/better" ? Promise.resolve(Response.json({ found: [] })) : fetch(path, given);
    }
"""  # the server simulates all families at each change, a hundred times the work of the page's own schedules


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium without a window; its tests are left out where there is none, unless the environment asks for them."""
    binaries = found()
    if binaries is None:
        if needed():
            pytest.fail("PPSIM_BROWSER=needed, but there is no Chromium with chromedriver, or no selenium")
        pytest.skip("no Chromium with chromedriver and selenium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binaries[0]
    quiet = "no-first-run disable-background-networking disable-component-update disable-sync disable-quic"
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", *quiet.split()):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(binaries[1]))
    driver.set_script_timeout(WAIT)
    yield driver
    driver.quit()


@pytest.fixture
def compared():
    """Lets the explorer's page ask its server for better schedules, in the tests that show them."""


@pytest.fixture
def page(browser, request):
    """The browser's page, in which no script fails and the policy refuses nothing while a test runs."""
    source = "" if "compared" in request.fixturenames else NO_COMPARISON
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}  # whatever a test before it left
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    browser.get("about:blank")
    browser.get_log("browser")
    yield Page(browser)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    faults = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [fault for fault in faults if "favicon" not in fault and "422" not in fault]


class Page:
    """What tests do with a page."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, address):
        """Open an address and wait until the viewer has drawn."""
        self.browser.get("about:blank")
        self.browser.get(str(address))
        self.until("return document.documentElement.dataset.drawn")

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def until(self, script, *arguments):
        """What the script returns, as soon as that is something."""
        return self.until_true(lambda: self.run(script, *arguments), script)

    def until_true(self, found, what):
        """What `found` returns, as soon as that is something."""
        end, pause = time.monotonic() + WAIT, 0.01
        while time.monotonic() < end:
            if result := found():
                return result
            time.sleep(pause := min(2 * pause, 0.1))  # each question costs the browser's processors time
        raise AssertionError(f"nothing after {WAIT} s: {what}")

    def text(self, css):
        return self.run("return document.querySelector(arguments[0]).textContent", css)

    def find(self, css):
        return self.browser.find_element("css selector", css)

    def click(self, css):
        """Click at once: the page may replace what stands upon the charts at any time."""
        self.until("const one = document.querySelector(arguments[0]); one?.click(); return !!one", css)

    def keys(self, css, *keys):
        self.find(css).send_keys(*keys)

    def serious_faults(self):
        """The rules of axe-core that the page breaks, of those that it calls serious or critical."""
        if not AXE.exists():
            if needed():
                pytest.fail(f"PPSIM_BROWSER=needed, but {AXE} is missing")
            pytest.skip("axe-core is not installed")
        self.run(AXE.read_text(encoding="utf-8"))
        result = self.browser.execute_async_script("axe.run(document).then(arguments[0])")
        assert len(result["passes"]) > 10
        return [
            (fault["id"], [node["html"][:120] for node in fault["nodes"]])
            for fault in result["violations"]
            if fault["impact"] in ("serious", "critical")
        ]


@contextmanager
def serving(*configs):
    """The address of a server of `ppsim explore` with some configs."""
    command = [sys.executable, "-m", "ppsim", "explore", *configs, "--no-browser"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
        assert server.stderr is not None
        try:
            yield re.findall(r"http://127\.0\.0\.1:\d+/", server.stderr.readline())[0]
        except BaseException:
            server.kill()  # else a test that fails waits for ever for a server that nobody has ended
            raise
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
    assert "Traceback" not in said


@pytest.fixture(scope="session")
def explorer(browser):
    """The address of a server with two configs."""
    with serving("configs/llama-3-8b-8xh100.yaml", "configs/unit-costs.yaml") as address:
        yield address


@pytest.fixture
def serve(browser):
    """A function that starts a server with other configs."""
    return serving


@pytest.fixture
def sized(page):
    """A function that gives the window a size in pixels, until the test ends."""

    def resize(wide, tall):
        metrics = {"width": wide, "height": tall, "deviceScaleFactor": 1, "mobile": False}
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    yield resize
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
