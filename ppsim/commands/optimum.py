"""`ppsim optimum`: the exact best schedule of a tiny case, with a proven bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds_text
from ppsim.commands import options
from ppsim.commands.case import read_case
from ppsim.commands.reporting import command, print_data, say, write_json


@command
def optimum(
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    devices: options.Devices = None,
    microbatches: options.Microbatches = None,
    forward: options.Forward = None,
    backward: options.Backward = None,
    input_grad: options.InputGrad = None,
    weight_grad: options.WeightGrad = None,
    latency: options.Latency = None,
    memory_limit: Annotated[float | None, typer.Option(help="Most live activations on a device.")] = None,
    whole_backward: Annotated[bool, typer.Option("--whole-backward", help="Do not split B in I and W.")] = False,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="Stop the solver then.")] = 60.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the schedule found.")] = None,
    json: options.JsonTarget = None,
) -> None:
    """Prove the shortest schedule of a tiny case, one stage a device, no queues (needs the extra `solver`)."""
    from ppsim.studies.optimum import optimum as solve

    case = read_case(
        config, settings, None,
        schedule=None if config else "1f1b", devices=devices, microbatches=microbatches, forward=forward,
        backward=backward, input_grad=input_grad, weight_grad=weight_grad, latency=latency,
    )  # fmt: skip
    section = case.schedule
    if "csv" in section:
        raise ConfigError(f"{config}: schedule.csv fixes the order; the optimum needs devices and microbatches instead")
    found = solve(
        section["devices"],
        section["microbatches"],
        case.costs,
        memory_limit=memory_limit,
        split=not whole_backward,
        time_limit=time_limit,
    )
    if csv:
        found.run.schedule.to_csv(csv)
        say(f"wrote {csv}")
    document = {
        "schema": "ppsim.optimum/1",
        "makespan": found.makespan,
        "bound": found.bound,
        "proven": found.proven,
        "exact": found.exact,
        "peak_activations": found.run.peak_activations.tolist(),
        "units": {
            "makespan": "seconds",
            "bound": "seconds",
            "peak_activations": "microbatches through one device share of the model",
        },
        "orders": found.run.schedule.orders(),
    }
    if json:
        write_json(document, json)
    if json != "-":
        end = "proven optimal" if found.proven else f"proven bound {seconds_text(found.bound, 6)}"
        print_data(f"{found.run.summary()}\n\nshortest schedule found: {seconds_text(found.makespan, 6)}, {end}")
