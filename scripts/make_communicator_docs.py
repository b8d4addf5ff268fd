"""Writes the tables and the picture of docs/communicators.md: what each transport costs, and which ones hang."""

from pathlib import Path

import ppsim
from ppsim.base.files import write_atomically
from ppsim.lowering.program import POOLS
from ppsim.plots.chart_files import save_gantt
from ppsim.run.timelines import Timeline

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PICTURE = DOCS / "communicators.md", DOCS / "images" / "communicators.png"
TRANSPORTS = ("rank", "directions", "pair", "directed")
RECEIVES = ("early", "just-in-time")
SHOWN = ("rank", "directions", "directed")
DEVICES, MICROBATCHES = 8, 16
CASE = ("interleaved-1f1b", 2)
FAMILIES = (("gpipe", None), ("1f1b", None), CASE, ("interleaved-1f1b", 4), ("looped-bfs", 2), ("interleaved-zb", 2),
            ("zb-v", None), ("dualpipe-v", None))  # fmt: skip
WINDOWS = ((1, "full"), (2, "full"), (3, "full"), (3, "auto"), (4, "full"), (4, "auto"), (4, 1))
LATENCIES = (0.0, 0.01, 0.05, 0.2)
COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.05)
BEGIN, END = "<!-- {}: written by scripts/make_communicator_docs.py -->\n", "<!-- end of {} -->"


def simulated(
    name: str,
    stages: int | None,
    transport: str,
    receive: str = "early",
    costs: ppsim.Costs = COSTS,
) -> Timeline | ppsim.DeadlockError:
    """Return the run of a schedule under a transport, or the error that shows its deadlock."""
    program = ppsim.lower(
        ppsim.build(name, devices=DEVICES, microbatches=MICROBATCHES, stages_per_device=stages),
        receive=receive,
    )
    try:
        return ppsim.simulate(program, costs, transport=transport)
    except ppsim.DeadlockError as error:
        return error


def _step(run: Timeline | ppsim.DeadlockError) -> str:
    return "hangs" if isinstance(run, ppsim.DeadlockError) else f"{run.makespan:.1f} s"


def _table(head: str, rows: list[list[str]]) -> str:
    columns = [head, *(f"`{transport}`" for transport in TRANSPORTS)]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def families(receive: str) -> str:
    """Return the step of each family under each transport, with one way to post receives."""
    rows = []
    for name, stages in FAMILIES:
        what = f"`{name}`" + (f", v = {stages}" if stages else "")
        rows.append([what, *(_step(simulated(name, stages, transport, receive)) for transport in TRANSPORTS)])
    return _table("schedule", rows)


def latencies() -> str:
    """Return the step of the example by latency and transport."""
    rows = []
    for latency in LATENCIES:
        costs = ppsim.Costs(forward=1.0, backward=2.0, latency=latency)
        rows.append([f"{latency:g} s", *(_step(simulated(*CASE, one, costs=costs)) for one in TRANSPORTS)])
    return _table("latency", rows)


def hangs() -> str:
    """Return the cycle of waits of the example for each transport on which just-in-time receives hang."""
    parts = []
    for transport in TRANSPORTS:
        run = simulated(*CASE, transport, "just-in-time")
        if isinstance(run, ppsim.DeadlockError):
            shown = run.cycle if len(run.cycle) <= 2 else [*run.cycle[:2], f"and {len(run.cycle) - 2} more"]
            parts.append("\n".join([f"`{transport}`:", "```text", *shown, "```"]))
    return "\n\n".join(parts) + "\n"


def windows() -> str:
    """Return gathers and step by the window of gathered stages, with a gather as long as a forward of its stage."""
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=16, stages_per_device=4)
    costs = ppsim.Costs(forward=1.0, backward=2.0, unshard=1.0, reduce_grad=1.0)
    rows = []
    for limit, distance in WINDOWS:
        program = ppsim.lower(schedule, sharded=True, max_active_stages=limit, look_ahead=distance)
        run = ppsim.simulate(program, costs, transport="directed")
        exposed = run.ledger()["sharding"].sum() / schedule.devices
        gathers = len(run.unshards.start) // schedule.devices
        rows.append([str(limit), f"`{distance}`", str(gathers), f"{run.makespan:.2f} s", f"{exposed:.2f} s"])
    head = "| `max_active_stages` | `look_ahead` | gathers per device | step | idle for them, per device |"
    return "\n".join([head, "|---|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def buffers() -> str:
    """Return the receive buffers per device, by when they are allocated and by what shares a slot."""
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=16, stages_per_device=4)
    rows = []
    for receive in RECEIVES:
        program = ppsim.lower(schedule, sharded=True, receive=receive)
        found = {pool: program.receive_buffers(pool) for pool in POOLS}
        kinds = {
            "one per receive": found["device"].received,
            "slots per stage and direction": found["stage"].slots,
            "slots per direction": found["direction"].slots,
            "one pool, or allocated when posted": found["device"].peak,
        }
        rows += [[receive, name, *map(str, counts.tolist()), str(counts.sum())] for name, counts in kinds.items()]
    head = "| receives | buffers | device 0 | device 1 | device 2 | device 3 | all |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


TABLES = {
    "early": lambda: families("early"),
    "just-in-time": lambda: families("just-in-time"),
    "latencies": latencies,
    "hangs": hangs,
    "windows": windows,
    "buffers": buffers,
}


def page(text: str) -> str:
    """Return the page with its tables as the simulator fills them now."""
    for name, table in TABLES.items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        text = before + begin + table() + end + after
    return text


def pictured() -> dict[str, Timeline]:
    """Return the example under three transports, by transport."""
    return {one: run for one in SHOWN if isinstance(run := simulated(*CASE, one), Timeline)}


def draw() -> None:
    """Draw the example under three transports on one time axis."""
    runs = pictured()
    save_gantt(list(runs.values()), PICTURE, titles=list(runs), labels=False)


if __name__ == "__main__":
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
    draw()
