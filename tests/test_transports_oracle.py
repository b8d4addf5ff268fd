"""Random programs through every transport against a longest path that is written down independently."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import moved, schedules
from time_oracle import carried, parts_of

import ppsim

TRANSPORTS = ("async", "directed", "directions", "pair", "rank", "blocking")
LATENCY, OVERLAP, COPY = 0.7, 2.3, 0.9
SECONDS = {"F": 1.0, "B": 2.5, "I": 1.5, "W": 1.0, "R": 0.8}
COPIES = ("OFFLOAD", "RELOAD")


class Oracle:
    """Walks the lists over and over, giving each action and transfer its time once all that it waits for is known."""

    def __init__(self, program, transport, overlap, switch=None):
        self.lists, self.transport, self.overlap, self.switch = program, transport, overlap, switch
        self.engines, self.posted, self.copied, self.line_free = {}, {}, {}, {}
        self.ends_of = {}
        for device, row in enumerate(program):
            for cell in row:
                for kind, stage, microbatch in parts_of(cell):
                    if "_" in kind:
                        key = carried(kind, stage, microbatch)
                        self.ends_of.setdefault(key, {})[kind[:4]] = device
        self.times, self.arrivals = {}, {}
        self.position, self.clock = [0] * len(program), [0.0] * len(program)
        self.made, self.blocking = {}, [[] for _ in program]
        self.queues = {}

    def run(self):
        """Times by action and by transfer, or None for a deadlock."""
        moved = True
        while moved:
            moved = sum(self.step(device) for device in range(len(self.lists))) + self.transfer() > 0 or self.copy()
        done = all(at == len(row) for at, row in zip(self.position, self.lists, strict=True))
        return (self.times, self.arrivals) if done else None

    def step(self, device):
        if self.position[device] == len(self.lists[device]):
            return False
        parts = parts_of(self.lists[device][self.position[device]])
        if parts[0][0] in COPIES:
            self.engines.setdefault((device, parts[0][0]), []).append(parts[0])
            self.posted[parts[0]] = self.clock[device]
        elif "_" in parts[0][0]:
            first = self.post(device, *parts[0])
            for part in parts[1:]:
                self.post(device, *part, batch=first)
        elif len(parts) == 2 and self.overlap is None:
            if not self.compute(device, [next(part for part in parts if part not in self.times)], None):
                return False
            if any(part not in self.times for part in parts):
                return True
        elif not self.compute(device, parts, self.overlap if len(parts) == 2 else None):
            return False
        self.position[device] += 1
        return True

    def compute(self, device, parts, seconds):
        needs = [carried(*part) for part in parts if part[0] not in "WR"]
        needs = [need for need in needs if need in self.ends_of] + self.blocking[device]
        needs_itself = len({(stage, microbatch) for _, stage, microbatch in parts}) < len(parts)
        back = [("RELOAD", stage, microbatch) for kind, stage, microbatch in parts if kind in "RBI"]
        back = [copy for copy in back if copy in self.posted]
        late = any(copy not in self.copied for copy in back)
        if needs_itself or late or any(need not in self.arrivals for need in needs):
            return False
        here = [self.arrivals[need][1] for need in needs] + [self.copied[copy][1] for copy in back]
        start = max([self.clock[device], *here])
        self.clock[device] = start + (SECONDS[parts[0][0]] if seconds is None else seconds)
        self.blocking[device].clear()
        for part in parts:
            self.times[part] = start, self.clock[device]
        return True

    def copy(self):
        """Start the copy that can start first: behind its engine's last, its OFFLOAD and what its switch carries."""
        first = None
        for (device, way), line in self.engines.items():
            copy = next((one for one in line if one not in self.copied), None)
            if copy is None:
                continue
            _, stage, microbatch = copy
            needs = [self.posted[copy], *(self.copied[one][1] for one in line if one in self.copied)]
            if way == "RELOAD":
                if ("OFFLOAD", stage, microbatch) not in self.copied:
                    continue
                needs.append(self.copied["OFFLOAD", stage, microbatch][1])
            shared = (device, way) if self.switch is None else (device // self.switch, way)
            ready = max(needs)
            turn = max(ready, self.line_free.get(shared, 0.0)), ready, device, shared, copy
            first = turn if first is None else min(first, turn)
        if first is None:
            return False
        start, _, _, shared, copy = first
        self.copied[copy] = start, start + COPY
        self.line_free[shared] = start + COPY
        return True

    def post(self, device, kind, stage, microbatch, batch=None):
        """Queue one end of a transfer, in the `batch` before it if that is in the same queue; return its batch."""
        key = carried(kind, stage, microbatch)
        sender, receiver = self.ends_of[key]["SEND"], self.ends_of[key]["RECV"]
        self.made[key, kind[:4]] = self.clock[device]
        line = {"pair": frozenset((sender, receiver)), "rank": "all", "directions": key[0]}.get(
            self.transport, (sender, receiver)
        )
        queue = self.queues.setdefault((device, line), [])
        if batch is not None and queue and queue[-1] is batch:
            batch.append(key)
        else:
            queue.append([key])
        if self.transport == "blocking" and kind[:4] == "SEND":
            self.blocking[device].append(key)
        return queue[-1]

    def arrive(self):
        """Under async: every transfer whose producer has run, whatever is posted."""
        known = len(self.arrivals)
        for way, stage, microbatch in self.ends_of:
            makers = [("F", stage - 1)] if way == "to F" else [("B", stage + 1), ("I", stage + 1)]
            for maker in makers:
                if (*maker, microbatch) in self.times:
                    start = self.times[*maker, microbatch][1]
                    self.arrivals[way, stage, microbatch] = start, start + LATENCY
        return len(self.arrivals) > known

    def transfer(self):
        """Start one transfer whose batch heads both its queues."""
        if self.transport == "async":
            return self.arrive()
        for key, ends in self.ends_of.items():
            if key in self.arrivals:
                continue
            heads = []  # what comes before the transfer's batch in a queue that it heads
            for (device, _), queue in self.queues.items():
                first = next((at for at, batch in enumerate(queue) if any(k not in self.arrivals for k in batch)), None)
                if device in ends.values() and first is not None and key in queue[first]:
                    heads.append([k for batch in queue[:first] for k in batch])
            posted = [self.made[key, end] for end in ("SEND", "RECV") if (key, end) in self.made]
            if len(heads) == len(posted) == 2:
                before = [self.arrivals[k][1] for head in heads for k in head]
                start = max(posted + before)
                self.arrivals[key] = start, start + LATENCY
                return True
        return False


def check(program, transport, overlap, switch=None):
    costs = ppsim.Costs(
        forward=SECONDS["F"], input_grad=SECONDS["I"], weight_grad=SECONDS["B"] - SECONDS["I"],
        overlap=overlap, latency=LATENCY, recompute=SECONDS["R"], offload_latency=COPY,
        offload_switch=switch, per="stage",
    )  # fmt: skip
    oracle = Oracle(program.orders(), transport, overlap, switch)
    expected = oracle.run()
    if expected is None:
        with pytest.raises(ppsim.DeadlockError, match="each waits for the next in a cycle"):
            ppsim.simulate(program, costs, transport=transport, engine="event")
        return
    run = ppsim.simulate(program, costs, transport=transport, engine="event")
    times, arrivals = expected
    for row in range(len(run.schedule.kind)):
        action = parts_of(run.schedule.label(row))[0]
        assert (run.row_start[row], run.row_end[row]) == pytest.approx(times[action], abs=1e-9)
        if run.plan.remote[row]:
            arrival = arrivals[carried(*action)]
            assert (run.transfer_start[row], run.transfer_end[row]) == pytest.approx(arrival, abs=1e-9)
    for name, spans in (("OFFLOAD", run.offloads), ("RELOAD", run.reloads)):
        for number in range(len(spans)):
            copy = name, int(spans.stage[number]), int(spans.microbatch[number])
            assert (spans.start[number], spans.end[number]) == pytest.approx(oracle.copied[copy], abs=1e-9)


@settings(deadline=None, max_examples=80)
@given(
    schedule=schedules(), receive=st.sampled_from(["early", "just-in-time"]), timed=st.booleans(), batched=st.booleans()
)
def test_every_transport_follows_the_longest_path(schedule, receive, timed, batched):
    try:
        program = ppsim.lower(schedule, receive=receive, batched=batched)
    except ppsim.DeadlockError:
        return
    for transport in TRANSPORTS:
        check(program, transport, OVERLAP if timed else None)


@settings(deadline=None, max_examples=80)
@given(schedule=schedules(recompute=True, offload=True), switch=st.sampled_from([None, 2, 3]))
def test_recomputes_and_copies_follow_the_longest_path(schedule, switch):
    try:
        program = ppsim.lower(schedule)
    except ppsim.DeadlockError:
        return
    for transport in TRANSPORTS:
        check(program, transport, None, switch)


@settings(deadline=None, max_examples=80)
@given(schedule=schedules(fused=False), random=st.randoms(use_true_random=False))
def test_programs_with_reordered_posts_run_or_deadlock_as_the_longest_path_says(schedule, random):
    program = moved(ppsim.lower(schedule), random)
    for transport in TRANSPORTS:
        check(program, transport, None)


@pytest.mark.parametrize(("p", "m"), list(itertools.product((2, 3, 5), (1, 4, 7))))
def test_one_forward_one_backward_follows_the_longest_path(p, m):
    for transport in TRANSPORTS:
        check(ppsim.lower(ppsim.build("1f1b", devices=p, microbatches=m)), transport, None)
