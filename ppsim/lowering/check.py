"""Faults of a program's transfers: what is missing, doubled, misplaced or pointless."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.schedule import Program

MOST_OF_ONE_RULE = 50


def transfer_faults(program: Program) -> Iterator[str]:
    """One sentence for each fault of the SEND and RECV of a program whose compute actions are valid."""
    compute = program.schedule
    device, source = compute.device, compute.source
    compute_rows = np.flatnonzero(program.kind < Kind.SEND_F)
    consumer = np.flatnonzero(source >= 0)
    consumer = consumer[device[source[consumer]] != device[consumer]]
    producer = source[consumer]
    wanted = {int(Kind.SEND_F): {}, int(Kind.RECV_F): {}, int(Kind.SEND_B): {}, int(Kind.RECV_B): {}}
    for made, used in zip(producer.tolist(), consumer.tolist(), strict=True):
        forward = compute.kind[made] == Kind.F
        wanted[Kind.SEND_F if forward else Kind.SEND_B][_key(compute, made)] = made
        wanted[Kind.RECV_F if forward else Kind.RECV_B][_key(compute, used)] = used

    seen: set[tuple[int, int, int]] = set()
    for row in np.flatnonzero((program.kind >= Kind.SEND_F) & (program.kind <= Kind.RECV_B)).tolist():
        kind = Kind(int(program.kind[row]))
        key = _key(program, row)
        place = f"{program.label(row)} (device {program.device[row]}, position {_position(program, row)})"
        partner = wanted[kind].get(key)
        if partner is None:
            yield f"{place} carries nothing: no action on another device {'needs' if kind in _SENDS else 'sends'} it"
            continue
        if (int(kind), *key) in seen:
            yield f"{place} stands twice; each transfer is sent and received once"
            continue
        seen.add((int(kind), *key))
        action = compute_rows[partner]
        if program.device[action] != program.device[row]:
            yield f"{place} stands on the wrong device: {program.label(int(action))} runs on device {program.device[action]}"
        elif kind in _SENDS and row < action:
            yield f"{place} stands before {program.label(int(action))}, whose result it sends"
        elif kind not in _SENDS and row > action:
            yield f"{place} stands after {program.label(int(action))}, which needs what it receives"
    for kind, actions in wanted.items():
        missing = [(key, row) for key, row in actions.items() if (kind, *key) not in seen]
        for (stage, microbatch), row in missing[:MOST_OF_ONE_RULE]:
            reason = "goes to" if Kind(kind) in _SENDS else "comes from"
            yield (
                f"{stage}{Kind(kind).name}{microbatch} is missing on device {device[row]}: {compute.label(row)} "
                f"{'makes what' if Kind(kind) in _SENDS else 'needs what'} {reason} another device"
            )


_SENDS = (Kind.SEND_F, Kind.SEND_B)


def _key(schedule, row: int) -> tuple[int, int]:
    return int(schedule.stage[row]), int(schedule.microbatch[row])


def _position(program: Program, row: int) -> int:
    first = int(program.offsets[program.device[row]])
    return row - first - int(np.count_nonzero(program.joined[first : row + 1]))
