"""Writes docs/performance.md from the results of `make bench`; every number on the page is from that one run."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from math import log
from pathlib import Path

import matplotlib
from performance_aims import aim_rows

from ppsim.base.compiling import ROWS_WORTH_COMPILING
from ppsim.base.files import write_atomically
from ppsim.base.units import seconds_text
from ppsim.plots.figures import rendered, settings, titled_axes
from ppsim.plots.many_runs import COLOURS, name_ends
from ppsim.plots.palette import LIGHT

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, CURVES = DOCS / "performance.md", DOCS / "images" / "growth.svg"

INTRODUCTION = """# Performance

This page is written by `scripts/make_performance_docs.py` from {runs} of `make bench`. Each time is the fastest
round, in seconds of processor time of the process and its child processes. On an otherwise idle machine, wall-clock
time is the same except for waits for the disk. Two things that are compared took turns within the run, so their ratio
is more reliable than either time.

Measured on: {cpu}, {cores} cores (of which each benchmark uses one), load average {load:.1f} when the run began;
{python} on {system}; {libraries}. A load above 0 at the start means that other work shared the machine. It lengthens
these times too, because it uses caches and memory bandwidth.
"""

AIMS = """## Aims

The project's aims, each with the least favourable figure of this run.
"""

ENGINES = """## The compiled engine and the event model

`engine="event"` is the SimPy model, with one process per device: it is readable and the reference.
`engine="compiled"` follows the same dependencies in compiled loops. Both do the same floating-point operations in the
same order, so their timelines are equal bit for bit; tests check this. The times are whole calls of `ppsim.simulate`
on a built schedule, with latency. Under queued transports they include lowering.
"""

AUTO = """`engine="auto"` takes the event model below {rows:,} rows and the compiled engine from there on. The event
model needs {milliseconds:.0f} ms for {actions:,} actions; loading Numba and the loops takes {loading:.0f} ms, once in
a process. So small charts never wait for Numba. For a loop over many small schedules, `engine="compiled"` or
`ppsim.simulate_many` is faster.

The first use on a machine compiles for some seconds and prints a line on stderr. The result is stored in the
package's `__pycache__`, in the user's cache directory, or in NUMBA_CACHE_DIR. If no cache can be written, each
process compiles again. If nothing is compiled yet, `auto` takes the event model below {compiling:,} rows: that needs
{event} for {uncached:,} actions, `auto` {chosen}, and the compiled engine with its compilation {compiled}. Rows that
a process has already simulated with the event model count too. So many calls together take at most twice as long as
with the better choice.
"""

COMPILING = """Building and simulating a million actions, with nothing compiled yet and with a filled cache:
"""

ANALYSES = """## Analyses

Each analysis has a run of its own (1F1B, 64 devices, 1,024 microbatches), so no result is cached. One pass over the
chains that set the makespan gives the sensitivities of all kinds, stages, devices and links. It keeps the counts of a
node only while later nodes need them.
"""

SEARCH = """## Schedules by search

Building at 64 devices and 512 microbatches, compared with the code of the authors of these schedules:
[sail-sg/zero-bubble-pipeline-parallelism](https://github.com/sail-sg/zero-bubble-pipeline-parallelism) at commit
39f2c18, `zb.py` and `zbv_greedy.py` of `zerobubble/scheduler`, for F, I and W of equal length. It ran once on two
cores of the same kind, shared with other work, with CPython 3.11. Its times are seconds of processor time, the faster
of two rounds. Neither of its V schedules was found within a minute.
"""

AUTHORS = {"zb-1p": "2.5 s", "zb-2p": "2.2 s", "v-half": "more than 60 s", "v-min": "more than 60 s"}

LIMIT = """## Against the limit

The limit is a compiled loop over the same lists. It writes end times into memory that is already allocated, and reads
durations and dependencies from prepared columns. The whole path builds the schedule, validates and simulates it
(`async` with latency), and computes makespan and bubble fraction.
"""

SIMPY = """## The event model against a plain SimPy model

The plain model has one process per device, one event per action, and transfers that their receivers wait for. Ours
creates an event for a transfer only if an action waits for it.
"""

VALIDATION = """## Validation

Validating existing lists, compared with building the same schedule, which includes validation.
"""

CALLS = """## Growth of what users call

All calls are on 1F1B with 64 devices, `async` with latency. `compare` runs 1F1B and eager 1F1B. Its smallest
size is slow because `engine="auto"` takes the event model there. A trace of ten million actions fills gigabytes, and
writing it waits for the disk.

![Time of each call from ten thousand to ten million actions, beside n log n](images/growth.svg)
"""

CHART = """The command `ppsim simulate` on 8 million actions, as a process, with and without a chart:
"""

MANY = """## Many points

Here all cores work, and times are wall-clock times. The sweep simulates each point, of up to 16 devices and 256
microbatches. For `choose` every key is free, and bounds prove that the points not simulated cannot change the answer.
"""

GROWTH = """## Growth

Build, simulate (compiled, `async` with latency) and measure on 64 devices. Below about a hundred thousand actions,
the fixed cost of 64 devices dominates.
"""

DRY_RUN = """## Against PyTorch's own dry run

Both run the same lowered 1F1B of 8 devices and 128 microbatches. PyTorch's `_simulate_comms_compute` counts steps;
ours computes times (`directed` transport).
"""


Cell = Callable[[dict, float], str]  # of a benchmark's notes and its fastest time in seconds


def actions(extra: dict, _: float) -> str:
    """Number of actions."""
    return f"{extra['actions']:,}"


def own_time(_: dict, seconds: float) -> str:
    """The benchmark's own time."""
    return seconds_text(seconds, 3)


def other_time(extra: dict, _: float) -> str:
    """The time that it is compared with."""
    return seconds_text(extra["other_seconds"], 3)


def each_action(extra: dict, seconds: float) -> str:
    """Time of an action."""
    return seconds_text(seconds / extra["actions"], 2)


def note(key: str, layout: str = "{}") -> Cell:
    """One of the benchmark's notes."""
    return lambda extra, _: layout.format(extra[key])


COMPILATION = {
    "transport": note("transport"),
    "with compiling": own_time,
    "from the cache": lambda extra, _: seconds_text(extra["cached_seconds"], 3),
}

COMPARISON = (
    ["test_compiled_against_event"],
    {
        "schedule (64 devices, 1,024 microbatches)": note("family"),
        "transport": note("transport"),
        "actions": actions,
        "event model": other_time,
        "compiled": own_time,
        "ratio": note("ratio", "{:,.0f}"),
    },
)

# Text, names of benchmarks, and the columns of the table below the text.
PARTS: list[tuple[str, list[str], dict[str, Cell]]] = [
    (
        LIMIT,
        ["test_whole_path_against_the_limit"],
        {
            "schedule (64 devices)": note("family"),
            "actions": actions,
            "limit": other_time,
            "whole path": own_time,
            "times the limit": lambda extra, _: f"{1 / extra['ratio']:.1f}",
            "an action": each_action,
        },
    ),
    (
        SIMPY,
        ["test_event_model_against_plain_simpy"],
        {
            "schedule (64 devices)": note("family"),
            "actions": actions,
            "plain SimPy model": other_time,
            "event model": own_time,
            "ratio": note("ratio", "{:.2f}"),
        },
    ),
    (
        VALIDATION,
        ["test_validation_within_build"],
        {
            "actions": actions,
            "build": other_time,
            "validate": own_time,
            "part of the build": lambda extra, _: f"{1 / extra['ratio']:.2f}",
        },
    ),
    (
        ANALYSES,
        ["test_analysis"],
        {"analysis": note("analysis"), "time": own_time},
    ),
    (
        SEARCH,
        ["test_families_by_search"],
        {
            "schedule": note("family"),
            "time": own_time,
            "authors' code": lambda extra, _: AUTHORS[extra["family"]],
        },
    ),
    (
        CALLS,
        ["test_growth"],
        {
            "call": note("call"),
            "actions": actions,
            "time": own_time,
            "an action": each_action,
        },
    ),
    (
        MANY,
        ["test_10_000_points", "test_choose_for_llama_3_70b_on_512_gpus_with_all_axes_free"],
        {
            "call": note("call"),
            "points": note("points", "{:,}"),
            "simulated": note("simulated", "{:,}"),
            "time": own_time,
        },
    ),
    (
        CHART,
        ["test_simulate_8_million_actions_with_a_chart"],
        {
            "actions": actions,
            "without": other_time,
            "with a chart": own_time,
            "ratio": lambda extra, _: f"{1 / extra['ratio']:.1f}",
        },
    ),
    (
        DRY_RUN,
        ["test_against_the_dry_run_of_pytorch"],
        {
            "engine": note("engine"),
            "actions and transfers": actions,
            "PyTorch": other_time,
            "ppsim": own_time,
            "ratio": note("ratio", "{:,.1f}"),
        },
    ),
    (
        GROWTH,
        ["test_whole_path_of_1f1b", "test_whole_path_of_interleaved_1f1b"],
        {
            "schedule": note("family"),
            "actions": actions,
            "time": own_time,
            "an action": each_action,
            "in the slowest round": lambda extra, _: each_action(extra, extra["slowest"]),
            "actions a second": lambda extra, seconds: f"{extra['actions'] / seconds / 1e6:.1f} M",
        },
    ),
    (
        "Peak memory, as the growth of a fresh process:\n",
        ["test_peak_memory"],
        {
            "schedule": note("family"),
            "transport": note("transport"),
            "actions": actions,
            "whole": lambda extra, _: f"{extra['bytes'] / 1e9:.2f} GB",
            "an action": lambda extra, _: f"{extra['bytes'] / extra['actions']:.0f} bytes",
        },
    ),
    (
        "## Batches\n\n`simulate_many` computes once everything that all runs of a schedule share.\n",
        ["test_simulate_many"],
        {
            "runs": lambda extra, _: f"{extra['runs']} of {extra['actions']:,} actions",
            "simulate in a loop, auto": other_time,
            "simulate_many": own_time,
            "ratio": note("ratio", "{:.1f}"),
        },
    ),
    (
        "## Charts and traces\n",
        ["test_png", "test_html", "test_trace"],
        {
            "output": note("output"),
            "actions": actions,
            "time": own_time,
            "size": note("megabytes", "{:.1f} MB"),
        },
    ),
    (
        "## Starting\n\nTimes of whole processes, each with the part that an empty interpreter takes.\n",
        ["test_import", "test_help"],
        {"process": note("process"), "time": own_time, "of which the interpreter": other_time},
    ),
]


def main(*results: str) -> None:
    """Write the page from the JSON files of pytest-benchmark; of what stands in several the last one counts."""
    reports = [json.loads(Path(path).read_text()) for path in results]
    benches = {bench["name"]: bench for report in reports for bench in report["benchmarks"]}
    load = max(report["machine_info"]["load"] for report in reports)
    machine = {**reports[0]["machine_info"], "load": load}
    report = {"machine_info": machine, "benchmarks": list(benches.values()), "runs": len(reports)}
    for bench in report["benchmarks"]:
        bench["extra_info"]["slowest"] = bench["stats"]["max"]
    draw_growth(report)
    write_atomically(PAGE, "\n".join(sections(report)))


def sections(report: dict) -> Iterator[str]:
    """The parts of the page."""
    machine = report["machine_info"]
    yield INTRODUCTION.format(
        runs="one run" if report["runs"] == 1 else f"{report['runs']} parts of a run",
        cpu=machine["cpu"].get("brand_raw", machine["machine"]),
        cores=machine["cores"],
        load=machine["load"],
        python=f"{machine['python_implementation']} {machine['python_version']}",
        system=machine["system"],
        libraries=", ".join(f"{name} {version}" for name, version in machine["libraries"].items()),
    )

    def of(tests: list[str]) -> list[dict]:
        return [bench for test in tests for bench in report["benchmarks"] if bench["name"].split("[")[0] == test]

    def select(test: str, **notes: object) -> list[dict]:
        return [bench for bench in of([test]) if notes.items() <= bench["extra_info"].items()]

    yield AIMS
    yield markdown(["aim", "required", "measured", "met"], aim_rows(select))
    yield ENGINES
    yield table(of(COMPARISON[0]), COMPARISON[1])
    auto = of(["test_where_auto_changes_from_the_event_model_to_the_compiled_engine"])[0]
    loading = of(["test_loading_the_compiled_engine"])[0]
    uncached = of(["test_auto_without_a_cache"])[0]
    yield AUTO.format(
        rows=auto["extra_info"]["limit"],
        actions=auto["extra_info"]["actions"],
        milliseconds=1e3 * auto["stats"]["min"],
        loading=1e3 * (loading["stats"]["min"] - loading["extra_info"]["other_seconds"]),
        compiling=ROWS_WORTH_COMPILING,
        uncached=uncached["extra_info"]["actions"],
        event=seconds_text(uncached["extra_info"]["other_seconds"], 2),
        chosen=seconds_text(uncached["stats"]["min"], 2),
        compiled=seconds_text(uncached["extra_info"]["compiled_seconds"], 2),
    )
    yield COMPILING
    yield table(of(["test_first_compilation"]), COMPILATION)
    for text, tests, columns in PARTS:
        if of(tests):
            yield text
            yield table(of(tests), columns)


def table(benches: list[dict], columns: dict[str, Cell]) -> str:
    """A Markdown table: one row a benchmark, columns made of its notes and its fastest time in seconds."""
    rows = [[make(bench["extra_info"], bench["stats"]["min"]) for make in columns.values()] for bench in benches]
    return markdown(list(columns), rows)


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """Rows as a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def draw_growth(report: dict) -> None:
    """Time of each call over the number of actions, both in powers of ten, with n log n as a dashed line."""
    calls: dict[str, list[tuple[int, float]]] = {}
    for bench in report["benchmarks"]:
        if bench["name"].startswith("test_growth["):
            extra = bench["extra_info"]
            calls.setdefault(extra["call"], []).append((extra["actions"], bench["stats"]["min"]))
    inks, lines = COLOURS[LIGHT.name], sorted(calls.items(), key=lambda call: max(call[1])[1])
    with matplotlib.rc_context(settings()):
        figure, axes = titled_axes(None, LIGHT, "Time of calls on 64 devices", "processor time, logarithmic")
        ends = []
        for (name, sizes), ink, marker in zip(lines, inks, "osD^v", strict=False):
            actions, seconds = zip(*sorted(sizes), strict=True)
            axes.loglog(actions, seconds, color=ink, marker=marker, markersize=3.5, linewidth=1.1, clip_on=False)
            ends.append((actions[-1], seconds[-1], name, {"color": ink}))
            if seconds[0] > seconds[1]:
                axes.annotate(
                    "event model", (actions[0], seconds[0]), (6, 2), textcoords="offset points", color=ink, fontsize=6
                )
        span = [min(size for size, _ in lines[0][1]), max(size for size, _ in lines[0][1])]
        times = [3e-8 * n * log(n) for n in span]
        axes.loglog(span, times, color=LIGHT.edge, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.set(xlabel="actions, logarithmic", xlim=(0.8 * span[0], span[1]))
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
        axes.yaxis.set_major_formatter(lambda seconds, _: seconds_text(seconds, 1))
        name_ends(axes, [*ends, (span[1], times[1], "n log n", {"color": LIGHT.quiet})])
    write_atomically(CURVES, rendered(figure, "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
