"""Faults of a program's transfers, sharding actions and copies to host memory, and the texts of all faults."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind, is_copy, is_send, is_transfer
from ppsim.base.immutable import cached_on, index_in
from ppsim.lowering.rows import row_tables, transfer_ends
from ppsim.lowering.sharding import last_backwards
from ppsim.schedule.columns import ScheduleColumns, select_rows
from ppsim.schedule.orders import cell_text

MAX_FAULTS_PER_RULE = 50


def first_faults(sentence: Callable[..., str], *columns: np.ndarray) -> Iterator[str]:
    """Yield a sentence for each of the first entries of equally long columns, and the count of the rest."""
    for entries in zip(*(column[:MAX_FAULTS_PER_RULE].tolist() for column in columns), strict=True):
        yield sentence(*entries)
    more = len(columns[0]) - MAX_FAULTS_PER_RULE
    if more > 0:
        yield f"{more} more faults like: {sentence(*(column[-1].item() for column in columns))}"


def position(schedule: ScheduleColumns, row: int) -> str:
    """Return a row's cell in the schedule's table; both parts of a fused slot share one."""
    return cell_text(int(schedule.device[row]), int(_cell_columns(schedule)[row]))


@cached_on
def _cell_columns(schedule: ScheduleColumns) -> np.ndarray:
    """Return the column of each row's cell in the schedule's table, int64."""
    columns = np.empty(len(schedule.kind), np.int64)
    for device in range(schedule.devices):
        rows, idle = schedule.rows(device), schedule.idle[schedule.idle[:, 0] == device, 1]
        cell = np.cumsum(~schedule.joined[rows]) - 1  # idle cells left out
        columns[rows] = np.setdiff1d(np.arange(len(cell) + len(idle)), idle)[cell]
    return columns


def compute_in_its_cells(program: ScheduleColumns) -> ScheduleColumns:
    """Return a program's compute actions, with an idle cell for each other action, so that `position` stays."""
    others = np.stack([program.device, _cell_columns(program)], axis=1)[program.kind >= FIRST_TRANSFER]
    compute = program.compute
    return select_rows(compute, slice(None), compute.offsets, idle=np.concatenate([program.idle, others]))


def located(schedule: ScheduleColumns, row: int) -> str:
    """Return a row's text and its position."""
    return f"{schedule.label(row)} ({position(schedule, row)})"


def faulty_rows(schedule: ScheduleColumns, rows: np.ndarray, rule: str) -> Iterator[str]:
    """Yield one sentence for each row, with its text, its position and the rule that it breaks."""
    return first_faults(lambda row: f"{located(schedule, row)} {rule}", rows)


def pairs_of(schedule: ScheduleColumns, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return one number for stage and microbatch of each of these rows."""
    return schedule.stage[rows].astype(np.int64) * schedule.microbatches + schedule.microbatch[rows]


def late_rows(schedule: ScheduleColumns, early: Kind, late: Kind, rule: str) -> Iterator[str]:
    """Yield actions of the kind `early` after one of the kind `late`, of one activation on one device."""
    earlier, later = np.flatnonzero(schedule.kind == early), np.flatnonzero(schedule.kind == late)
    both = np.intersect1d(pairs_of(schedule, earlier), pairs_of(schedule, later), return_indices=True)
    earlier, later = earlier[both[1]], later[both[2]]
    wrong = (schedule.device[earlier] == schedule.device[later]) & (earlier > later)
    yield from first_faults(
        lambda late, early: f"{located(schedule, late)} comes before {located(schedule, early)}: {rule}",
        later[wrong],
        earlier[wrong],
    )


def program_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield one sentence per fault of transfers, sharding actions and copies; `faults` checks compute actions."""
    yield from transfer_faults(program)
    yield from gather_faults(program)
    yield from reduction_faults(program)
    yield from copy_faults(program)


@dataclass(frozen=True)
class _Ends:
    """Every possible SEND and RECV, one entry per end of a transfer."""

    kind: np.ndarray  # int8
    own: np.ndarray  # int64: row of the compute action at this end: the producer of a SEND, the consumer of a RECV
    other: np.ndarray  # int64: row of the compute action at the other end
    remote: np.ndarray  # True if the two are on different devices, so that the transfer exists


def transfer_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield pointless, doubled, misplaced and missing SEND and RECV; nothing if the program is not lowered yet."""
    rows = np.flatnonzero(is_transfer(program.kind))
    if not len(rows):
        return
    ends = _possible_ends(program)
    keys, first = np.unique(_keys(program, ends.kind, ends.own), return_index=True)
    end = np.append(first, -1)[index_in(keys, _keys(program, program.kind[rows], rows))]

    pointless = (end < 0) | ~np.append(ends.remote, False)[end]
    yield from first_faults(lambda row, at: _pointless(program, ends, row, at), rows[pointless], end[pointless])
    rows, end = rows[~pointless], end[~pointless]
    order = np.argsort(end, kind="stable")
    again = order[1:][end[order][1:] == end[order][:-1]]
    yield from faulty_rows(program, rows[again], "appears twice; each transfer is sent and received once")
    once = np.ones(len(rows), bool)
    once[again] = False
    yield from _misplaced(program, ends, rows[once], end[once])
    seen = np.zeros(len(ends.kind), bool)
    seen[end] = True
    missing = np.flatnonzero(ends.remote & ~seen)
    yield from first_faults(lambda end: _missing(program, ends, end), missing)


def _possible_ends(program: ScheduleColumns) -> _Ends:
    compute = program.compute
    compute_row = np.flatnonzero(program.kind < FIRST_TRANSFER)
    consumer = np.flatnonzero(compute.source >= 0)
    producer = compute.source[consumer]
    forward = compute.kind[producer] == Kind.F
    return _Ends(
        np.concatenate([np.where(forward, Kind.SEND_F, Kind.SEND_B), np.where(forward, Kind.RECV_F, Kind.RECV_B)]),
        compute_row[np.concatenate([producer, consumer])],
        compute_row[np.concatenate([consumer, producer])],
        np.tile(compute.device[producer] != compute.device[consumer], 2),
    )


def _keys(program: ScheduleColumns, kind: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return one number for a kind and a row's stage and microbatch; -1 if no compute action has this pair."""
    stages, microbatches = program.compute.num_stages, program.compute.microbatches
    stage, microbatch = program.stage[rows].astype(np.int64), program.microbatch[rows].astype(np.int64)
    inside = (stage < stages) & (microbatch < microbatches)
    return np.where(inside, (kind.astype(np.int64) * stages + stage) * microbatches + microbatch, -1)


def _misplaced(program: ScheduleColumns, ends: _Ends, rows: np.ndarray, end: np.ndarray) -> Iterator[str]:
    action, sends = ends.own[end], is_send(ends.kind[end])
    elsewhere = program.device[action] != program.device[rows]
    for wrong, rule in (
        (elsewhere, "is on the wrong device: {} runs on device {}"),
        (~elsewhere & sends & (rows < action), "comes before {}, whose result it sends"),
        (~elsewhere & ~sends & (rows > action), "comes after {}, which needs what it receives"),
    ):
        yield from first_faults(
            lambda row, action, rule=rule: (
                f"{located(program, row)} {rule.format(program.label(action), program.device[action])}"
            ),
            rows[wrong],
            action[wrong],
        )


def _pointless(program: ScheduleColumns, ends: _Ends, row: int, end: int) -> str:
    if end < 0:
        rule = "needs" if is_send(program.kind[row]) else "sends"
        return f"{located(program, row)} carries nothing: no action {rule} it"
    own, other = int(ends.own[end]), int(ends.other[end])
    return (
        f"{located(program, row)} carries nothing: {program.label(own)} and {program.label(other)} both run on device "
        f"{program.device[own]}"
    )


def _missing(program: ScheduleColumns, ends: _Ends, end: int) -> str:
    own, other = int(ends.own[end]), int(ends.other[end])
    name = f"{program.stage[own]}{Kind(int(ends.kind[end])).name}{program.microbatch[own]}"
    verb = "makes what is needed by" if is_send(ends.kind[end]) else "needs what is made by"
    return (
        f"{name} is missing on device {program.device[own]}: {program.label(own)} {verb} {program.label(other)} of "
        f"device {program.device[other]}"
    )


def crossed_transfers(program: ScheduleColumns) -> Iterator[str]:
    """Yield pairs of devices that send and receive in different orders; the program must be valid otherwise.

    PyTorch matches the messages of a pair by their order alone, so crossed messages silently give wrong gradients.
    """
    ends = transfer_ends(program)
    owner = program.device[ends.row]
    sender, receiver = np.where(ends.is_send, owner, ends.peer), np.where(ends.is_send, ends.peer, owner)
    sent, received = (
        chosen[np.lexsort((ends.row[chosen], receiver[chosen], sender[chosen]))]
        for chosen in (np.flatnonzero(ends.is_send), np.flatnonzero(~ends.is_send))
    )
    crossed = np.flatnonzero(ends.consumer[sent] != ends.consumer[received])
    _, first = np.unique(
        sender[sent[crossed]].astype(np.int64) * program.devices + receiver[sent[crossed]], return_index=True
    )
    first = crossed[first]
    yield from first_faults(
        lambda send, receive: (
            f"{located(program, send)} meets {located(program, receive)}: transfers between two devices are received "
            f"in the order in which they are sent, and PyTorch would hand over the wrong tensor without an error"
        ),
        ends.row[sent[first]],
        ends.row[received[first]],
    )


_START, _USE, _UNSHARD, _RESHARD = range(4)


def gather_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield UNSHARD and RESHARD that do not bracket the use of their stage, if the program has any.

    On each device the events of one stage must be UNSHARD, uses, RESHARD, any number of times.
    """
    if not np.isin(program.kind, (Kind.UNSHARD, Kind.RESHARD)).any():
        return
    event = np.full(len(Kind), _START)
    event[:FIRST_TRANSFER] = _USE
    event[[Kind.UNSHARD, Kind.RESHARD]] = _UNSHARD, _RESHARD
    rows = np.flatnonzero(event[program.kind] != _START)
    rows = rows[np.lexsort((rows, program.stage[rows], program.device[rows]))]
    what = event[program.kind[rows]]
    is_first = np.append(True, np.diff(program.stage[rows]).astype(bool) | np.diff(program.device[rows]).astype(bool))
    before = np.where(is_first, _START, np.append(_START, what[:-1]))
    is_last = np.append(is_first[1:], True)
    sharded = (before == _START) | (before == _RESHARD)
    rules = {
        "runs while the weights of its stage are sharded; put an UNSHARD of the stage before it": (
            sharded & (what == _USE)
        ),
        "has no UNSHARD of its stage before it": sharded & (what == _RESHARD),
        "gathers weights that are gathered already; put a RESHARD of the stage before it": (
            ~sharded & (what == _UNSHARD)
        ),
        "drops weights that were gathered and not used": (before == _UNSHARD) & (what == _RESHARD),
        "is the last of its stage on the device; put a RESHARD of the stage after it": is_last & (what != _RESHARD),
    }
    for rule, wrong in rules.items():
        yield from faulty_rows(program, rows[wrong], rule)


def holdings_of(program: ScheduleColumns, rows: np.ndarray) -> np.ndarray:
    """Return one number for the device and stage of each of these rows."""
    return program.device[rows].astype(np.int64) * program.num_stages + program.stage[rows]


def reduction_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield doubled REDUCE_GRAD, REDUCE_GRAD before a backward of its stage, and REDUCE_GRAD of foreign stages."""
    rows = np.flatnonzero(program.kind == Kind.REDUCE_GRAD)
    last = last_backwards(program)
    if not len(rows) or not len(last):
        return
    rows = rows[np.lexsort((rows, program.stage[rows], program.device[rows]))]
    same = (np.diff(program.stage[rows]) == 0) & (np.diff(program.device[rows]) == 0)
    yield from faulty_rows(program, rows[1:][same], "appears twice; a stage's gradients are reduced once a step")
    last_row = np.append(last, -1)[index_in(holdings_of(program, last), holdings_of(program, rows))]
    early = last_row > rows
    yield from first_faults(
        lambda row, backward: (
            f"{located(program, row)} comes before {program.label(backward)}, which adds to the gradients that it "
            f"reduces"
        ),
        rows[early],
        last_row[early],
    )
    orphans = rows[last_row < 0]
    yield from faulty_rows(program, orphans, "has no gradients to reduce: no backward of its stage runs on the device")


_RULES = {
    (Kind.OFFLOAD, Kind.F): "an activation leaves after its forward",
    (Kind.RELOAD, Kind.OFFLOAD): "an activation comes back after it has left",
    (Kind.R, Kind.RELOAD): "R needs the stored input back",
    (Kind.B, Kind.RELOAD): "a backward needs its activation back",
    (Kind.I, Kind.RELOAD): "a backward needs its activation back",
}


def copy_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield one sentence per fault of the copies to host memory and back.

    The order of an activation's actions on its device is F, OFFLOAD, RELOAD, then R if there is one, backward.
    """
    offloads, reloads = (_rows_by_pair(program, program.kind == kind) for kind in (Kind.OFFLOAD, Kind.RELOAD))
    if not len(offloads[0]) and not len(reloads[0]):
        return
    for pairs, rows in (offloads, reloads):
        again = rows[1:][pairs[1:] == pairs[:-1]]
        yield from faulty_rows(program, again, "appears twice; an activation leaves once")
    for (pairs, rows), (others, _), missing in ((offloads, reloads, Kind.RELOAD), (reloads, offloads, Kind.OFFLOAD)):
        yield from first_faults(
            lambda row, missing=missing: (
                f"{located(program, row)} has no {program.stage[row]}{missing.name}{program.microbatch[row]}: "
                f"what leaves for host memory comes back before its backward"
            ),
            rows[~np.isin(pairs, others)],
        )
    yield from _foreign(program)
    for (late, early), rule in _RULES.items():
        yield from late_rows(program, early, late, rule)


def eviction_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield evictions that name no activation or no other device, and those of activations that cannot leave."""
    if not len(schedule.evicted):
        return
    evicted = schedule.evicted.astype(np.int64)
    known = ((evicted >= 0) & (evicted < (schedule.num_stages, schedule.microbatches, schedule.devices))).all(axis=1)
    yield from first_faults(
        lambda stage, microbatch, host: (
            f"an eviction of {stage}F{microbatch} to device {host} names what does not exist; the schedule has "
            f"{schedule.num_stages} stages, {schedule.microbatches} microbatches and {schedule.devices} devices"
        ),
        *evicted[~known].T,
    )
    stage, microbatch, host = evicted[known].T
    forward, backward = (table[stage, microbatch] for table in row_tables(schedule))
    pair = stage * schedule.microbatches + microbatch
    rules = (
        (schedule.device[forward] == host, "which runs it; an eviction names another device"),
        (np.isin(pair, pairs_of(schedule, np.flatnonzero(is_copy(schedule.kind)))), "but the lists also OFFLOAD it"),
        ((backward == forward + 1) & schedule.joined[backward], "but its backward is in one slot with its forward"),
        (np.bincount(pair)[pair] > 1, "but it is evicted twice"),
    )
    for wrong, rule in rules:
        yield from first_faults(
            lambda row, host, rule=rule: f"{located(schedule, row)} is evicted to device {host}, {rule}",
            forward[wrong],
            host[wrong],
        )


def _rows_by_pair(program: ScheduleColumns, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return stage and microbatch of the chosen rows as one number, sorted, and the row of each."""
    rows = np.flatnonzero(chosen)
    pairs = pairs_of(program, rows)
    order = np.argsort(pairs, kind="stable")
    return pairs[order], rows[order]


def _foreign(program: ScheduleColumns) -> Iterator[str]:
    """Yield copies on a device that does not run the forward."""
    pairs, rows = _rows_by_pair(program, program.kind == Kind.F)
    copies = np.flatnonzero((program.kind == Kind.OFFLOAD) | (program.kind == Kind.RELOAD))
    holder = np.append(program.device[rows], -1)[index_in(pairs, pairs_of(program, copies))]
    yield from first_faults(
        lambda row: (
            f"{located(program, row)} has nothing to copy: no {program.stage[row]}F{program.microbatch[row]} runs on "
            f"the device"
        ),
        copies[holder != program.device[copies]],
    )
