"""Starting: the import and the command line load nothing that they do not need."""

import os
import subprocess
import sys
from itertools import count

import pytest


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


SIMULATE = """
import sys, time, ppsim
microbatches, transport, engine = sys.argv[1:]
began = time.process_time()
ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=int(microbatches)), transport=transport, engine=engine)
print(time.process_time() - began)
"""


def simulated(folder, *words):
    """Seconds of the processor to build and simulate in a fresh process that keeps what it compiles in `folder`."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", SIMULATE, *map(str, words)]
    printed = subprocess.run(command, env=environment, capture_output=True, check=True).stdout  # noqa: S603 - our own
    return float(printed)


@pytest.mark.parametrize("transport", ["async", "rank"])
def test_first_compilation(benchmark, tmp_path, transport):
    """Everything that building and simulating compile, in a process that finds no cache and in one that does."""
    folder = (tmp_path / str(number) for number in count())
    call = 8192, transport, "compiled"  # a million actions: validation and lowering are compiled too
    benchmark.pedantic(simulated, setup=lambda: ((next(folder), *call), {}), rounds=3)
    benchmark.extra_info.update(
        transport=transport, cached_seconds=min(simulated(tmp_path / "1", *call) for _ in range(3))
    )


def test_auto_without_a_cache(compare, tmp_path):
    """131,072 actions, which the event model ends sooner than the compiled engine is compiled."""
    folder = (tmp_path / str(number) for number in count())
    compare.benchmark.extra_info.update(
        actions=131_072, compiled_seconds=simulated(next(folder), 1024, "async", "compiled")
    )
    compare(
        lambda: simulated(next(folder), 1024, "async", "event"),
        lambda: simulated(next(folder), 1024, "async", "auto"),
        other_name="event model",
        own_per_other=1,
    )
