"""`ppsim what-if`: the same config with something changed, or the value at which two schedules are equally fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.commands import options
from ppsim.commands.case import read_case
from ppsim.commands.reporting import aligned, command, print_data, write_json
from ppsim.errors import ConfigError

if TYPE_CHECKING:
    from ppsim.analysis.what_if import BreakEven, Change

SHORT = {"latency": "costs.latency", "bandwidth": "costs.bandwidth", "forward": "costs.forward"}


@command
def what_if(
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    break_even: Annotated[
        tuple[str, str, str] | None,
        typer.Option("--break-even", metavar="A vs B", help="Find where schedules A and B are equally fast."),
    ] = None,
    over: Annotated[str | None, typer.Option(metavar="KEY", help="The cost to vary, such as latency.")] = None,
    between: Annotated[
        tuple[str, str] | None, typer.Option("--range", metavar="LOW HIGH", help="[default: 0 to one device's F + B]")
    ] = None,
    schedule: options.ScheduleName = None,
    devices: options.Devices = None,
    microbatches: options.Microbatches = None,
    json: options.JsonTarget = None,
) -> None:
    """Change a config and see what moves, or find a break-even point."""
    flags = {"schedule": schedule, "devices": devices, "microbatches": microbatches}
    if config is None:
        raise ConfigError("what-if needs a config file: ppsim what-if CONFIG.yaml --set costs.latency=2ms")
    if break_even:
        document, text = _break_even(config, settings, flags, break_even, over, between)
    else:
        if not settings and not any(flags.values()):
            raise ConfigError("nothing to change: give --set KEY=VALUE, or --break-even A vs B --over KEY")
        document, text = _changes(config, settings, flags)
    if json:
        write_json(document, json)
    if json != "-":
        print_data(text)


def _changes(config, settings: list[str] | None, flags: dict) -> tuple[dict, str]:
    from dataclasses import asdict

    from ppsim.analysis.what_if import changes

    before = read_case(config, None, None).simulate()
    after = read_case(config, settings, None, **flags).simulate()
    rows = changes(before, after)
    what = [*(settings or ()), *(f"{name}={value}" for name, value in flags.items() if value)]
    document = {
        "schema": "ppsim.what-if/1",
        "changed": what,
        "changes": [{**asdict(row), "difference": row.difference} for row in rows],
    }
    return document, changes_text(rows, what)


def changes_text(rows: list[Change], what: list[str]) -> str:
    """A table of every number that moved, with units."""
    moved = [row for row in rows if row.difference]
    if not moved:
        return f"with {', '.join(what)} nothing moves"
    cells = [["", "before", "after", "change"]]
    for row in moved:
        difference, before = row.difference or 0.0, row.before or 0.0
        share = f" ({difference / before:+.1%})" if before else ""
        cells.append(
            [row.name, _text(row.before, row.unit), _text(row.after, row.unit), _signed(difference, row.unit) + share]
        )
    table = "\n".join(aligned(cells))
    return f"with {', '.join(what)}:\n{table}"


def _text(value: float | None, unit: str) -> str:
    from ppsim.units import format_quantity

    if value is None:
        return "-"
    if unit == "fraction":
        return f"{value:.2%}"
    return f"{value:.4g}" if unit == "microbatches" else format_quantity(value, unit.removeprefix("device-"))


def _signed(value: float, unit: str) -> str:
    return ("+" if value >= 0 else "-") + _text(abs(value), unit)


def _break_even(
    config, settings: list[str] | None, flags: dict, pair: tuple[str, str, str], over: str | None, between
) -> tuple[dict, str]:
    from dataclasses import asdict

    from ppsim.analysis.what_if import break_even

    first, versus, second = pair
    if versus != "vs" or over is None:
        raise ConfigError("write --break-even A vs B --over KEY, such as --break-even zb-v vs 1f1b --over latency")
    key = SHORT.get(over, over)
    case = read_case(config, settings, None, **{**flags, "schedule": first})
    low, high = _range(between, case)

    def step_time(name: str, value: float) -> float:
        changed = [*(settings or ()), f"{key}={value!r}"]
        return read_case(config, changed, None, **{**flags, "schedule": name}).simulate().makespan

    found = break_even(first, second, step_time, low, high)
    document = {"schema": "ppsim.what-if/1", "over": key, "break_even": asdict(found)}
    return document, break_even_text(found, first, second, key)


def _range(between: tuple[str, str] | None, case) -> tuple[float, float]:
    from ppsim.units import parse_quantity

    if between is not None:
        low, high = (parse_quantity(text, "seconds") for text in between)
        return low, high
    table = case.costs.table(case.build())
    return 0.0, float(table.seconds[:2].max(axis=1).sum()) or 1.0


def break_even_text(found: BreakEven, first: str, second: str, key: str) -> str:
    """One sentence that answers the question."""
    low, high = f"{found.low:.4g}", f"{found.high:.4g}"
    if found.value is None:
        other = second if found.faster_below == first else first
        return f"{found.faster_below} is never slower than {other} for {key} from {low} to {high}"
    return (
        f"{first} and {second} are equally fast at {key} = {found.value:.6g}: below it {found.faster_below} is faster, "
        f"just above it {found.faster_above} (searched {low} to {high})"
    )
