"""Take the picture of the explorer that the README shows: docs/images/explorer.png, in a Chromium without a window."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "explorer.png"
DRAWN = "return runs.every((run) => run.result && !run.flight) && document.documentElement.dataset.drawn"
CHOSEN = "for (const name of ['critical', 'ledger']) document.querySelector(`[data-name=${name}]`).click();"


def take(address: str) -> None:
    """Open the explorer, show critical path and ledger, and save what is seen."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", "window-size=1280,1000"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tempfile.mkdtemp()}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(address)
        WebDriverWait(browser, 60).until(lambda page: page.execute_script(DRAWN))
        browser.execute_script(CHOSEN)
        browser.execute_script("document.querySelector('#status').textContent = ''")  # a time of this machine
        browser.execute_async_script("setTimeout(arguments[0], 500)")
        browser.save_screenshot(str(PICTURE))
    finally:
        browser.quit()


def main() -> None:
    command = [sys.executable, "-m", "ppsim", "explore", "configs/llama-3-8b-8xh100.yaml", "--no-browser"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)  # noqa: S603 - the program itself
    try:
        assert server.stderr is not None  # noqa: S101 - it is a pipe
        take(re.findall(r"http://\S+", server.stderr.readline())[0])
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


if __name__ == "__main__":
    main()
