"""Starting: the import and the command line load nothing that they do not need."""

import subprocess
import sys


def test_import(compare):
    compare.benchmark.extra_info.update(process="import ppsim")
    compare(
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        lambda: subprocess.run([sys.executable, "-c", "import ppsim"], check=True),
        other_name="python -c pass",
        own_per_other=1,
        rounds=9,
    )


def test_help(compare):
    compare.benchmark.extra_info.update(process="ppsim --help")
    compare(
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        lambda: subprocess.run([sys.executable, "-m", "ppsim", "--help"], check=True, stdout=subprocess.DEVNULL),
        other_name="python -c pass",
        own_per_other=1,
        rounds=9,
    )
