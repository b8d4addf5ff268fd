"""Which Chromium the browser tests use; run as a program, it says whether they can run."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

AXE = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def found() -> tuple[str, str] | None:
    """The paths of Chromium and chromedriver; None where one of them, or selenium, is missing."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver and find_spec("selenium") else None


def needed() -> bool:
    """Whether a missing browser is a fault: continuous integration asks for it where it has installed one."""
    return os.environ.get("PPSIM_BROWSER") == "needed"


def main() -> None:
    binaries = found()
    if binaries is None:
        print("browser tests: did NOT run, for no Chromium was found; apt-get install chromium chromium-driver")
        return
    version = subprocess.run([binaries[0], "--version"], capture_output=True, text=True, check=False).stdout.strip()
    axe = "with axe-core" if AXE.exists() else "but without axe-core, which npm could not install"
    print(f"browser tests: ran in {version}, {axe}")


if __name__ == "__main__":
    main()
