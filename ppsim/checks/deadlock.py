"""Deadlocks of a plan: the cycle of waits among devices and queued transfers, and slots that wait for themselves."""

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import DeadlockError
from ppsim.lowering.posts import Posts
from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import (
    awaited_rows,
    blocked_rows,
    wait_text,
    waiting_cycle,
    waiting_message,
)

Node = tuple[str, int]


def deadlock_error(
    schedule: ScheduleColumns,  # the compute actions that ran
    transport: str,
    posts: Posts | None,  # if transfers queue
    fused: np.ndarray,  # bool (rows,): the row starts and ends together with the row before it
    position: np.ndarray,  # int (devices,): the row at which each has stopped; `offsets[d + 1]` if it has finished
    posted: np.ndarray,  # int (devices,): posts that each device has made (all zero under `async`)
    arrived: np.ndarray,  # bool (rows,): the transfer that the row needs has ended
) -> DeadlockError:
    """Return the error for a deadlock."""
    # Each transfer has an action that needs it, so a blocked transfer blocks a device too.
    awaited = awaited_rows(schedule, schedule.source, position)
    open_barrier = (awaited >= 0) & (schedule.source < 0)
    missing = blocked_rows(schedule, position, (crosses_devices(schedule) & ~arrived) | open_barrier, fused)
    if transport == "async" or posts is None:
        cycle = waiting_cycle(schedule, missing, awaited)
    else:
        cycle = _BlockedQueues(schedule, missing, awaited, posts, position, posted, arrived).cycle()
    subject = f"schedule {schedule.name!r} deadlocks under transport {transport!r}"
    return DeadlockError(waiting_message(subject, cycle), cycle)


class _BlockedQueues:
    """State in which queued lists stopped, with the wait of each device and transfer."""

    def __init__(
        self,
        schedule: ScheduleColumns,
        missing: dict[int, int],
        awaited: np.ndarray,
        posts: Posts,
        position: np.ndarray,
        posted: np.ndarray,
        arrived: np.ndarray,
    ):
        self.schedule, self.missing, self.awaited = schedule, missing, awaited
        self.position = position.tolist()
        self.queue_of: dict[tuple[bool, int], int] = {}  # of each posted end: (is it the SEND, its transfer)
        self.heads: dict[int, int] = {}  # the transfer at the head of each queue
        self.unsent: dict[int, int] = {}  # the first SEND of each device that has not ended
        for device, count in enumerate(posted.tolist()):
            mine = slice(int(posts.offsets[device]), int(posts.offsets[device]) + count)
            columns = (column[mine].tolist() for column in (posts.transfer, posts.is_send, posts.queue))
            for transfer, is_send, queue in zip(*columns, strict=True):
                self.queue_of[is_send, transfer] = queue
                if not arrived[transfer]:
                    self.heads.setdefault(queue, transfer)
                    if is_send:
                        self.unsent.setdefault(device, transfer)

    def cycle(self) -> list[str]:
        """Return the cycle among devices and transfers."""
        node: Node = ("device", min(self.missing))
        lines: dict[Node, str] = {}
        while node not in lines:
            explain = self._explain_device if node[0] == "device" else self._explain_transfer
            lines[node], following = explain(node[1])
            node = following
        path = list(lines)
        return [lines[waiting] for waiting in path[path.index(node) :]]

    def _explain_device(self, device: int) -> tuple[str, Node]:
        part = self.missing[device]
        if part >= 0 and self.schedule.source[part] < 0:
            needed = int(self.awaited[part])
            return wait_text(self.schedule, part, needed), ("device", int(self.schedule.device[needed]))
        if part >= 0:
            label = self.schedule.label(part)
            return f"device {device} waits at {label} for {self._name(part)}", ("transfer", part)
        label, transfer = self.schedule.label(self.position[device]), self.unsent[device]
        return f"device {device} waits before {label} for its blocking {self._name(transfer)}", ("transfer", transfer)

    def _explain_transfer(self, transfer: int) -> tuple[str, Node]:
        schedule, name = self.schedule, self._name(transfer)
        sender, receiver = int(schedule.device[schedule.source[transfer]]), int(schedule.device[transfer])
        for is_send, holder in ((True, sender), (False, receiver)):
            if (is_send, transfer) not in self.queue_of:
                label = schedule.label(self.position[holder])
                verb = "SEND" if is_send else "RECV"
                text = f"{name} waits for its {verb}, which device {holder} posts only after {label}"
                return text, ("device", holder)
        # A transfer at the head of both queues would have started, so another is before it in one of them.
        holder, head = next(
            (holder, head)
            for is_send, holder in ((True, sender), (False, receiver))
            if transfer != (head := self.heads[self.queue_of[is_send, transfer]])
        )
        return f"{name} waits in a queue of device {holder} behind {self._name(head)}", ("transfer", head)

    def _name(self, transfer: int) -> str:
        schedule, producer = self.schedule, int(self.schedule.source[transfer])
        kind = Kind.SEND_F if schedule.kind[producer] == Kind.F else Kind.SEND_B
        return (
            f"{schedule.stage[producer]}{kind.name}{schedule.microbatch[producer]} "
            f"(device {schedule.device[producer]} to {schedule.device[transfer]})"
        )


def check_slots_can_start(schedule: ScheduleColumns, fused: np.ndarray) -> None:
    """Raise DeadlockError if one part of a fused slot needs the end of the other; `fused` as for `deadlock_error`."""
    second = np.flatnonzero(fused)
    for late, early in ((second, second - 1), (second - 1, second)):
        same_pair = (
            (schedule.stage[late] == schedule.stage[early])
            & (schedule.microbatch[late] == schedule.microbatch[early])
            & (schedule.kind[late] == Kind.B)
        )
        wrong = np.flatnonzero((schedule.source[late] == early) | same_pair)
        if len(wrong):
            backward, forward = int(late[wrong[0]]), int(early[wrong[0]])
            line = (
                f"device {schedule.device[backward]}: {schedule.label(backward)} and {schedule.label(forward)} share "
                f"one fused slot, so they start together, but {schedule.label(backward)} needs the end of "
                f"{schedule.label(forward)}"
            )
            raise DeadlockError(waiting_message(f"schedule {schedule.name!r} deadlocks", [line]), [line])
