"""Starting: the import and the command line load nothing that they do not need."""

import subprocess
import sys


def test_import(compare):
    compare.benchmark.extra_info.update(process="from ppsim import *")
    compare(
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        lambda: subprocess.run([sys.executable, "-c", "from ppsim import *"], check=True),
        other_name="python -c pass",
        own_per_other=1,
        rounds=9,
    )


def test_loading_the_compiled_engine(compare):
    """The first simulation of a process on the compiled engine, with its loops cached, against the event model."""
    code = "import ppsim; ppsim.simulate(ppsim.build('gpipe', devices=2, microbatches=2), engine={!r})"
    compare.benchmark.extra_info.update(process="the same, and one simulation on the compiled engine")
    compare(
        lambda: subprocess.run([sys.executable, "-c", code.format("event")], check=True),  # noqa: S603 - our own
        lambda: subprocess.run([sys.executable, "-c", code.format("compiled")], check=True),  # noqa: S603 - our own
        other_name="event model",
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
