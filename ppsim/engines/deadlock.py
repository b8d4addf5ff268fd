"""Turns the state in which an engine stopped into the waiting cycle that explains it."""

from collections.abc import Callable

import numpy as np

from ppsim.engines.plan import Plan
from ppsim.errors import DeadlockError
from ppsim.waiting import waiting_message

Node = tuple[str, int]


def deadlock_error(plan: Plan, position: np.ndarray, posted: np.ndarray, arrived: np.ndarray) -> DeadlockError:
    """The error for a standstill.

    Parameters
    ----------
    position : int array, one per device
        The row at which each device stands; `offsets[d + 1]` where it has finished.
    posted : int array, one per device
        Number of posts that each device has made (all zero under `async`).
    arrived : bool array, one per row
        Transfers that have ended, by consuming row.
    """
    offsets = plan.schedule.offsets
    stuck = np.flatnonzero(np.asarray(position) < offsets[1:])
    explain = _queued(plan, position, posted, arrived) if plan.posts else _unqueued(plan, position, arrived)
    node: Node = ("device", int(stuck[0])) if len(stuck) else ("transfer", int(plan.posts.transfer[0]))
    path: list[Node] = []
    lines: list[str] = []
    while node not in path:
        path.append(node)
        line, node = explain(node)
        lines.append(line)
    cycle = lines[path.index(node) :]
    subject = f"schedule {plan.schedule.name!r} deadlocks under transport {plan.transport!r}"
    return DeadlockError(waiting_message(subject, cycle), cycle)


def _needed(plan: Plan, row: int, arrived: np.ndarray) -> int:
    """The row of the slot at `row` whose transfer has not arrived, or -1."""
    rows = [row]
    if row + 1 < len(plan.fused) and plan.fused[row + 1]:
        rows.append(row + 1)
    return next((part for part in rows if plan.remote[part] and not arrived[part]), -1)


def _unqueued(plan: Plan, position: np.ndarray, arrived: np.ndarray) -> Callable[[Node], tuple[str, Node]]:
    schedule = plan.schedule

    def explain(node: Node) -> tuple[str, Node]:
        device = node[1]
        row = int(position[device])
        part = _needed(plan, row, arrived)
        producer = int(plan.source[part])
        holder = int(schedule.device[producer])
        line = (
            f"device {device} waits at {schedule.label(part)} for {schedule.label(producer)} of device {holder}, "
            f"which stands at {schedule.label(int(position[holder]))}"
        )
        return line, ("device", holder)

    return explain


def _queued(
    plan: Plan, position: np.ndarray, posted: np.ndarray, arrived: np.ndarray
) -> Callable[[Node], tuple[str, Node]]:
    schedule, posts = plan.schedule, plan.posts
    is_posted = np.zeros((2, len(plan.source)), bool)
    heads: dict[int, int] = {}
    queue_of: dict[tuple[bool, int], int] = {}
    for device in range(schedule.devices):
        first = int(posts.offsets[device])
        for index in range(first, first + int(posted[device])):
            transfer, is_send = int(posts.transfer[index]), bool(posts.is_send[index])
            is_posted[int(is_send), transfer] = True
            queue_of[is_send, transfer] = int(posts.queue[index])
            if not arrived[transfer]:
                heads.setdefault(int(posts.queue[index]), transfer)

    def text(transfer: int) -> str:
        producer = int(plan.source[transfer])
        name = "F" if schedule.kind[producer] == 0 else "B"
        return (
            f"{schedule.stage[producer]}SEND_{name}{schedule.microbatch[producer]} "
            f"(device {schedule.device[producer]} to {schedule.device[transfer]})"
        )

    def explain(node: Node) -> tuple[str, Node]:
        where, number = node
        if where == "device":
            return _explain_device(number)
        producer = int(plan.source[number])
        for is_send, holder in ((True, int(schedule.device[producer])), (False, int(schedule.device[number]))):
            if not is_posted[int(is_send), number]:
                verb = "SEND" if is_send else "RECV"
                last = int(schedule.offsets[holder + 1])
                at = schedule.label(int(position[holder])) if position[holder] < last else "the end of its list"
                line = f"{text(number)} waits for its {verb}, which device {holder} posts only after {at}"
                return line, ("device", holder)
            head = heads[queue_of[is_send, number]]
            if head != number:
                return f"{text(number)} waits in a queue of device {holder} behind {text(head)}", ("transfer", head)
        raise AssertionError("a transfer at the head of both queues would have started")

    def _explain_device(device: int) -> tuple[str, Node]:
        row = int(position[device])
        part = _needed(plan, row, arrived)
        if part >= 0:
            return f"device {device} waits at {schedule.label(part)} for {text(part)}", ("transfer", part)
        first = int(posts.offsets[device])
        for index in range(first, first + int(posted[device])):
            transfer = int(posts.transfer[index])
            if posts.is_send[index] and not arrived[transfer]:
                line = f"device {device} waits before {schedule.label(row)} for its blocking {text(transfer)}"
                return line, ("transfer", transfer)
        raise AssertionError("a device with all its inputs would have run")

    return explain
