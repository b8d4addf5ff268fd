"""Turns the state in which an engine stopped into the waiting cycle that explains it."""

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import DeadlockError
from ppsim.plan.resolve import Plan, Posts
from ppsim.schedule.waiting import waiting_cycle, waiting_message

Node = tuple[str, int]


def deadlock_error(plan: Plan, position: np.ndarray, posted: np.ndarray, arrived: np.ndarray) -> DeadlockError:
    """The error for a standstill.

    Parameters
    ----------
    plan : Plan
        What ran.
    position : int array, one per device
        The row at which each device stands; `offsets[d + 1]` where it has finished.
    posted : int array, one per device
        Number of posts that each device has made (all zero under `async`).
    arrived : bool array, one per row
        Transfers that have ended, by consuming row.

    Every transfer is consumed by an action, so wherever a transfer is stuck some device is stuck too.
    """
    standstill = _Standstill(plan, position, posted, arrived)
    posts = None if plan.transport == "async" else plan.posts
    cycle = standstill.device_cycle() if posts is None else standstill.post_cycle(posts)
    subject = f"schedule {plan.schedule.name!r} deadlocks under transport {plan.transport!r}"
    return DeadlockError(waiting_message(subject, cycle), cycle)


class _Standstill:
    """The state in which an engine stopped, and what each device and transfer in it waits for."""

    def __init__(self, plan: Plan, position: np.ndarray, posted: np.ndarray, arrived: np.ndarray):
        self.plan = plan
        self.position = np.asarray(position).tolist()
        self.posted = np.asarray(posted).tolist()
        self.arrived = arrived
        last = plan.schedule.offsets[1:].tolist()
        self.stuck = [device for device, row in enumerate(self.position) if row < last[device]]

    def missing_input(self, device: int) -> int:
        """The row of the slot at which a stuck device stands whose transfer has not arrived, or -1."""
        row = self.position[device]
        end = row + 2 if row + 1 < len(self.plan.fused) and self.plan.fused[row + 1] else row + 1
        return next((part for part in range(row, end) if self.plan.remote[part] and not self.arrived[part]), -1)

    def device_cycle(self) -> list[str]:
        """The cycle among devices."""
        return waiting_cycle(self.plan.schedule, {device: self.missing_input(device) for device in self.stuck})

    def post_cycle(self, posts: Posts) -> list[str]:
        """The cycle among devices and transfers."""
        self._look_at_queues(posts)
        node: Node = ("device", self.stuck[0])
        lines: dict[Node, str] = {}
        while node not in lines:
            explain = self._explain_device if node[0] == "device" else self._explain_transfer
            lines[node], following = explain(node[1])
            node = following
        path = list(lines)
        return [lines[waiting] for waiting in path[path.index(node) :]]

    def _look_at_queues(self, posts: Posts) -> None:
        """Which ends are posted in which queue, and the transfer at the head of each."""
        self.queue_of: dict[tuple[bool, int], int] = {}
        self.heads: dict[int, int] = {}
        self.unsent: dict[int, int] = {}
        for device, posted in enumerate(self.posted):
            first = int(posts.offsets[device])
            for index in range(first, first + posted):
                transfer, is_send, queue = (
                    int(posts.transfer[index]),
                    bool(posts.is_send[index]),
                    int(posts.queue[index]),
                )
                self.queue_of[is_send, transfer] = queue
                if not self.arrived[transfer]:
                    self.heads.setdefault(queue, transfer)
                    if is_send:
                        self.unsent.setdefault(device, transfer)

    def _explain_device(self, device: int) -> tuple[str, Node]:
        part = self.missing_input(device)
        if part >= 0:
            label = self.plan.schedule.label(part)
            return f"device {device} waits at {label} for {self._name(part)}", ("transfer", part)
        label, transfer = self.plan.schedule.label(self.position[device]), self.unsent[device]
        return f"device {device} waits before {label} for its blocking {self._name(transfer)}", ("transfer", transfer)

    def _explain_transfer(self, transfer: int) -> tuple[str, Node]:
        schedule, name = self.plan.schedule, self._name(transfer)
        sender, receiver = int(schedule.device[self.plan.source[transfer]]), int(schedule.device[transfer])
        for is_send, holder in ((True, sender), (False, receiver)):
            if (is_send, transfer) not in self.queue_of:
                label = schedule.label(self.position[holder])
                verb = "SEND" if is_send else "RECV"
                return f"{name} waits for its {verb}, which device {holder} posts only after {label}", (
                    "device",
                    holder,
                )
        # A transfer at the head of both queues would have started, so at one end another stands before it.
        holder, head = next(
            (holder, head)
            for is_send, holder in ((True, sender), (False, receiver))
            if (head := self.heads[self.queue_of[is_send, transfer]]) != transfer
        )
        return f"{name} waits in a queue of device {holder} behind {self._name(head)}", ("transfer", head)

    def _name(self, transfer: int) -> str:
        schedule = self.plan.schedule
        producer = int(self.plan.source[transfer])
        kind = Kind.SEND_F if schedule.kind[producer] == Kind.F else Kind.SEND_B
        return (
            f"{schedule.stage[producer]}{kind.name}{schedule.microbatch[producer]} "
            f"(device {schedule.device[producer]} to {schedule.device[transfer]})"
        )
