"""Writes docs/performance.md from the results of `make bench`; every number on the page is from that one run."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ppsim.files import write_atomically

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"

INTRODUCTION = """# Performance

This page is written by `scripts/make_performance_docs.py` from one run of `make bench`. A time is the fastest of its
rounds. Where two things are compared they took turns within the run, so that the ratio tells more than either time.

Measured on: {cpu}, {cores} cores (of which each benchmark uses one), load average {load:.1f} when the run began;
{python} on {system}; {libraries}.
A load above 0 at the start means that the machine was shared with other work, which lengthens the times.
"""

ENGINES = """## The compiled engine and the event model

`engine="event"` is the SimPy model: one process a device, readable, the reference. `engine="compiled"` follows the same
dependencies in compiled loops; both make the same floating-point operations in the same order, so their timelines are
equal bit for bit, and tests hold them to it. The times are whole calls of `ppsim.simulate` on a built schedule, with
latency; under queued transports that includes lowering.
"""

AUTO = """`engine="auto"` takes the event model below {rows:,} rows and the compiled engine from there on. The event
model needs {milliseconds:.0f} ms for {actions:,} actions; loading Numba and the loops takes {loading:.0f} ms, once in a
process. Small charts then never wait for Numba. In a loop over many small schedules `engine="compiled"` or
`ppsim.simulate_many` is the better choice.

The first use on a machine compiles for some seconds and says so on stderr; the result is kept in the package's
`__pycache__`, in the user's cache directory, or where NUMBA_CACHE_DIR points. Where none can be written each process
compiles anew.
"""

DRY_RUN = """## Against PyTorch's own dry run

The same lowered 1F1B of 8 devices and 128 microbatches: PyTorch's `_simulate_comms_compute` counts steps, ours gives
times (`directed` transport).
"""


def main(results: str) -> None:
    """Write the page from a pytest-benchmark JSON file."""
    report = json.loads(Path(results).read_text())
    write_atomically(PAGE, "\n".join(sections(report)))


def sections(report: dict) -> Iterator[str]:
    """The parts of the page."""
    machine = report["machine_info"]
    yield INTRODUCTION.format(
        cpu=machine["cpu"].get("brand_raw", machine["machine"]),
        cores=machine["cores"],
        load=machine["load"],
        python=f"{machine['python_implementation']} {machine['python_version']}",
        system=machine["system"],
        libraries=", ".join(f"{name} {version}" for name, version in machine["libraries"].items()),
    )

    def of(test: str) -> list[dict]:
        return [bench for bench in report["benchmarks"] if bench["name"].split("[")[0] == test]

    yield ENGINES
    yield table(
        of("test_compiled_against_event"),
        {
            "schedule (64 devices, 1,024 microbatches)": lambda extra, _: extra["family"],
            "transport": lambda extra, _: extra["transport"],
            "actions": lambda extra, _: f"{extra['actions']:,}",
            "event model": lambda extra, _: duration(extra["other_seconds"]),
            "compiled": lambda _, seconds: duration(seconds),
            "ratio": lambda extra, _: f"{extra['ratio']:,.0f}",
        },
    )
    auto = of("test_where_auto_changes_from_the_event_model_to_the_compiled_engine")[0]
    loading = of("test_loading_the_compiled_engine")[0]
    yield AUTO.format(
        rows=auto["extra_info"]["limit"],
        actions=auto["extra_info"]["actions"],
        milliseconds=1e3 * auto["stats"]["min"],
        loading=1e3 * (loading["stats"]["min"] - loading["extra_info"]["other_seconds"]),
    )
    yield DRY_RUN
    yield table(
        of("test_against_the_dry_run_of_pytorch"),
        {
            "engine": lambda extra, _: extra["engine"],
            "actions and transfers": lambda extra, _: f"{extra['actions']:,}",
            "PyTorch": lambda extra, _: duration(extra["other_seconds"]),
            "ppsim": lambda _, seconds: duration(seconds),
            "ratio": lambda extra, _: f"{extra['ratio']:,.1f}",
        },
    )
    yield "## Growth\n\nBuild, simulate (compiled, `async` with latency) and measure on 64 devices.\n"
    yield table(
        of("test_whole_path_of_1f1b") + of("test_whole_path_of_interleaved_1f1b"),
        {
            "schedule": lambda extra, _: extra["family"],
            "actions": lambda extra, _: f"{extra['actions']:,}",
            "time": lambda _, seconds: duration(seconds),
            "an action": lambda extra, seconds: f"{1e9 * seconds / extra['actions']:.0f} ns",
            "actions a second": lambda extra, seconds: f"{extra['actions'] / seconds / 1e6:.1f} M",
        },
    )
    yield "Peak memory, as the growth of a fresh process:\n"
    yield table(
        of("test_peak_memory"),
        {
            "schedule": lambda extra, _: extra["family"],
            "actions": lambda extra, _: f"{extra['actions']:,}",
            "an action": lambda extra, _: f"{extra['bytes_per_action']:.0f} bytes",
        },
    )
    yield "## Batches\n\n`simulate_many` works out once what all runs of a schedule share.\n"
    yield table(
        of("test_simulate_many"),
        {
            "runs": lambda extra, _: f"{extra['runs']} of {extra['actions']:,} actions",
            "simulate in a loop, auto": lambda extra, _: duration(extra["other_seconds"]),
            "simulate_many": lambda _, seconds: duration(seconds),
            "ratio": lambda extra, _: f"{extra['ratio']:.1f}",
        },
    )
    yield "## Charts and traces\n"
    yield table(
        of("test_png") + of("test_html") + of("test_trace"),
        {
            "output": lambda extra, _: extra["output"],
            "actions": lambda extra, _: f"{extra['actions']:,}",
            "time": lambda _, seconds: duration(seconds),
            "size": lambda extra, _: f"{extra['megabytes']:.1f} MB",
        },
    )
    yield "## Starting\n\nWhole processes; an empty interpreter takes part of each.\n"
    yield table(
        of("test_import") + of("test_help"),
        {
            "process": lambda extra, _: extra["process"],
            "time": lambda _, seconds: duration(seconds),
            "of which the interpreter": lambda extra, _: duration(extra["other_seconds"]),
        },
    )


def table(benches: list[dict], columns: dict[str, Callable[[dict, float], str]]) -> str:
    """A Markdown table: one row a benchmark, columns made of its notes and its fastest time in seconds."""
    rows = [[make(bench["extra_info"], bench["stats"]["min"]) for make in columns.values()] for bench in benches]
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


if __name__ == "__main__":
    main(*sys.argv[1:])
