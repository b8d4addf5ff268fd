"""A timeline as text, so that a test can state all of it; and one with all that can stand in a timeline."""

import ppsim


def actions(run):
    """For each device a line such as `0F0 0-1  0B0 8-10`."""
    schedule = run.schedule
    lines = []
    for first, last in zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True):
        rows = range(int(first), int(last))
        lines.append("  ".join(f"{schedule.label(row)} {run.row_start[row]:g}-{run.row_end[row]:g}" for row in rows))
    return lines


def transfers(run):
    """Each transfer as the action that needs it, its start and its end."""
    schedule = run.schedule
    return {
        schedule.label(row): (float(run.transfer_start[row]), float(run.transfer_end[row]))
        for row in range(len(schedule.kind))
        if run.transfer_start[row] == run.transfer_start[row]
    }


def stepped():
    """Two devices and one microbatch, with a weight gather before it, a reduction and an optimizer step after it."""
    program = ppsim.lower(ppsim.build("gpipe", devices=2, microbatches=1), sharded=True)
    return ppsim.simulate(program, ppsim.Costs(unshard=0.3, reduce_grad=0.5, optimizer_step=0.4), optimizer="sync")
