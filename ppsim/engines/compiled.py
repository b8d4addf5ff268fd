"""The compiled engine: the same timeline as the event model, bit for bit, some thousand times faster."""

import numpy as np

from ppsim.base.compiling import compiled, run
from ppsim.checks.deadlock import deadlock_error
from ppsim.engines import kernels
from ppsim.engines.ending import Columns
from ppsim.plan.resolve import Plan, Posts
from ppsim.schedule.recurrence import walk


class CompiledModel:
    """Runs a plan by following who waits for whom, without a clock.

    A time is the largest of a few earlier times plus a length, in whatever order the times are worked out. Only where
    transfers share ports does that order matter.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        rows = len(plan.seconds)
        self.position = plan.schedule.offsets[:-1].copy()
        self.posted = np.zeros(plan.schedule.devices, np.int64)
        # One block: the system hands out and takes back one large piece of memory faster than four.
        self.row_start, self.row_end, self.transfer_start, self.transfer_end = np.empty((4, rows))
        self.row_end[:] = -1.0
        gathers = 0 if plan.gathers is None else len(plan.gathers.stage)
        self.gather_start, self.gather_end = np.empty((2, gathers))

    def run(self) -> Columns:
        """Start and end of each row, of each row's transfer (nan where none), and of each gather; DeadlockError."""
        if self.plan.posts is None:
            self._run_unqueued()
        else:
            self._run_queued(self.plan.posts)
        if not np.array_equal(self.position, self.plan.schedule.offsets[1:]):
            plan = self.plan
            state = self.position, self.posted, self._arrived()
            raise deadlock_error(plan.schedule, plan.transport, plan.posts, plan.fused, *state)
        times = self.row_start, self.row_end, self.transfer_start, self.transfer_end
        return *times, self.gather_start, self.gather_end

    def _run_unqueued(self) -> None:
        plan, offsets = self.plan, self.plan.schedule.offsets
        links = (plan.source, plan.remote, plan.transfer_seconds)
        ends = (offsets, plan.seconds, plan.fused, bool(plan.fused.any()), *links, self.position, self.row_end)
        run(compiled(walk), *ends)
        if np.array_equal(self.position, offsets[1:]):
            rest = (offsets, plan.fused, *links, self.row_end, self.row_start, self.transfer_start, self.transfer_end)
            run(kernels.complete, *rest)

    def _run_queued(self, posts: Posts) -> None:
        plan = self.plan
        rows = len(plan.seconds)
        waits = np.zeros(rows, np.int8)
        next_of_send, next_of_recv = np.full(rows, -1, np.int32), np.full(rows, -1, np.int32)
        queues = (posts.offsets, posts.transfer, posts.is_send, posts.queue, waits, next_of_send, next_of_recv)
        run(kernels.link_queues, *queues)
        rows_columns = (
            plan.schedule.offsets, plan.schedule.device, plan.seconds, plan.fused, plan.source, plan.remote,
            plan.transfer_seconds, plan.blocking,
        )  # fmt: skip
        ends = (posts.offsets, posts.transfer, posts.is_send, posts.before, waits, next_of_send, next_of_recv)
        times = (self.row_start, self.row_end, self.transfer_start, self.transfer_end)
        if plan.ports is None:
            run(kernels.walk_and_post, *rows_columns, *ends, self.position, self.posted, *times, self._gathers())
            return
        from ppsim.engines.contention import run_in_time_order

        send_post = np.zeros(rows, np.int64)
        send_post[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
        ports = (plan.ports.of_transfer, plan.ports.capacity, send_post)
        run(run_in_time_order, rows_columns, ends, ports, self._gathers(), self.position, self.posted, times)

    def _gathers(self) -> tuple[np.ndarray, ...]:
        """The gathers as kernels take them."""
        gathers, offsets = self.plan.gathers, self.plan.schedule.offsets
        if gathers is None:
            none = np.empty(0, np.int32)
            return np.zeros_like(offsets), none, self.gather_start, self.gather_start, self.gather_end, none
        gather_of = np.full(int(offsets[-1]), -1, np.int32)
        gather_of[gathers.user] = np.arange(len(gathers.user))
        return gathers.offsets, gathers.before, gathers.seconds, self.gather_start, self.gather_end, gather_of

    def _arrived(self) -> np.ndarray:
        """Transfers that have ended at a standstill, by consuming row."""
        if self.plan.posts is not None:
            return self.plan.remote & ~np.isnan(self.transfer_end)
        return self.plan.remote & (self.row_end[self.plan.source] >= 0)
