"""What happens when, moment by moment, written from the rules of time in docs/glossary.md without the engines' code.

Everything is looked at again at each moment at which something ends: slow, and hard to get wrong. Seconds are multiples
of a power of two, so that the sums of the engines are exact too.
"""

import re
from dataclasses import dataclass, field
from typing import Any

ACTION = re.compile(r"(\d+)([A-Z_]+?)(\d*)$")
BACKWARD = ("B", "I")
COMPUTE = ("F", "B", "I", "W", "R", "S", "T")
REDUCED = {"S": "reduce of S", "T": "reduce of T"}


def parts_of(cell):
    """A cell as its plain actions (kind, stage, microbatch)."""
    texts = re.sub(r"[()]|OVERLAP_F_B", "", cell).split(";") if "(" in cell else [cell]
    found = [ACTION.match(text) for text in texts]
    return [(one[2], int(one[1]), int(one[3]) if one[3] else None) for one in found if one]


def carried(kind, stage, microbatch):
    """The transfer that an action takes, or that a SEND or RECV posts: what goes to which stage."""
    if kind in ("F", "RECV_F"):
        return "to F", stage, microbatch
    if kind == "SEND_F":
        return "to F", stage + 1, microbatch
    return "to B", stage - (kind == "SEND_B"), microbatch


@dataclass
class World:
    """The costs of one program: plain functions, seconds."""

    seconds: Any  # kind, stage
    transfer: Any  # sender, receiver, "F" or "B", sending stage
    overlap: Any = None  # stage of F, stage of B
    ports: Any = None  # sender, receiver -> ports
    capacity: list[int] = field(default_factory=list)
    unshard: Any = None  # stage
    reduce: Any = None  # stage
    copy: Any = None  # stage, microbatch
    switch: int | None = None  # neighbouring devices whose copies of one way share a line
    collective: Any = None  # what, sender, devices with a part, last stage


class Moments:
    """Runs the lists of a program under a transport; `start` and `end` hold all that takes time."""

    def __init__(self, lists, world, transport):
        self.world, self.transport, self.now = world, transport, 0.0
        self.cells = [self.in_turn([parts_of(cell) for cell in cells]) for cells in lists]
        self.devices = range(len(lists))
        self.home = {part: device for device in self.devices for parts in self.cells[device] for part in parts}
        self.at, self.busy = [0 for _ in self.devices], [0.0 for _ in self.devices]
        self.start, self.end = {}, {}
        self.streams = {}  # (device, name) -> what was posted, in order
        self.queues = {}  # (device, line) -> batches of transfers, each with its place in the list
        self.sent = [[] for _ in self.devices]  # SENDs since the last compute action
        self.turn = {}  # of transfers before ports
        self.asked, self.lines = [], {}  # transfers that may start, and those in line at each port
        self.through = []  # transfers that hold places
        self.ready, self.carries = {}, {}  # copies that wait for their switch, since when; the last copy of each line
        self.find_users()
        self.groups = self.find_collectives()

    def find_collectives(self):
        """Of S and T: collectives in the order of the sender's list, and what each needs, as lists that run in turn.

        A sender without a part has a list for what it sends alone; the first device with a part orders the reductions.
        """
        last = max(part[1] for part in self.home)
        parts = {device: [part for cell in self.cells[device] for part in cell] for device in self.devices}
        holders = sorted({device for (kind, *_), device in self.home.items() if kind == "S"})
        if not holders:
            return []
        sender = next(device for (kind, stage, _), device in self.home.items() if kind == "F" and stage == last)
        self.sender, self.holders, self.last = sender, holders, last
        self.split = any(kind == "T" for kind, *_ in self.home)
        leader = sender if sender in holders else holders[0]
        turns = {}  # collective -> what the device that orders it adds last
        for device in {sender, leader}:
            for at, (kind, stage, microbatch) in enumerate(parts[device]):
                if kind == "F" and stage == last:
                    turns["send", microbatch] = device, at
                if kind in REDUCED and device == leader:
                    turns[REDUCED[kind], microbatch] = device, at
        needs = {
            one: [part for part in self.home if part[2] == one[1] and (
                part[:2] == ("F", last) if one[0] == "send" else REDUCED.get(part[0]) == one[0]
            )]
            for one in turns
        }  # fmt: skip
        order = sorted(turns, key=lambda one: turns[one][1])
        return [[(one, needs[one]) for one in order if turns[one][0] == device] for device in {sender, leader}]

    def collect(self):
        """Begin the next collective of each list whose inputs are there."""
        begun = 0
        for group in self.groups:
            free = True  # whether the one before has ended
            for one, needed in group:
                if one in self.start:
                    free = self.done(one)
                    continue
                if free and all(map(self.done, needed)):
                    self.begin(one, self.world.collective(one[0], self.sender, self.holders, self.last))
                    begun += 1
                break
        return begun

    def collected(self, part, device):
        """The collective or action that S, T or the backward of the last stage needs."""
        kind, stage, microbatch = part
        if kind == "S":
            return ("F", self.last, microbatch) if device == self.sender else ("send", microbatch)
        if kind == "T" or (kind in BACKWARD and self.groups and stage == self.last):
            return REDUCED["S" if kind == "T" or not self.split else "T"], microbatch
        return None

    def in_turn(self, cells):
        """The cells with slots that are no fused kernel taken apart, and reductions where no REDUCE_GRAD stands."""
        if self.world.overlap is None:
            cells = [one for parts in cells for one in ([parts] if "_" in parts[0][0] else [[part] for part in parts])]
        return cells

    def find_users(self):
        """Who waits for each UNSHARD and RELOAD; reductions behind the last backwards; which transfers there are."""
        posted = any(part[0] == "REDUCE_GRAD" for part in self.home)
        self.users = {}
        for device, cells in enumerate(self.cells):
            if not posted:
                cells = self.cells[device] = with_reductions(cells)
            for at, parts in enumerate(cells):
                kind, stage, microbatch = parts[0]
                later = [part for behind in cells[at + 1 :] for part in behind if part[0] in COMPUTE]
                if kind == "UNSHARD" and self.world.unshard:
                    user = next(part for part in later if part[1] == stage)
                    self.users.setdefault(user, []).append(("UNSHARD", device, at))
                if kind == "RELOAD":
                    user = next(part for part in later if part[0] in "RBI" and part[1:] == (stage, microbatch))
                    self.users.setdefault(user, []).append(parts[0])

    def done(self, what):
        return what in self.end and self.end[what] <= self.now

    def begin(self, what, seconds):
        self.start[what], self.end[what] = self.now, self.now + seconds

    def run(self):
        """Whether all lists came to their ends."""
        while True:
            while self.settle() or self.arbitrate() or self.start_copy():
                pass
            coming = [end for end in self.end.values() if end > self.now]
            if not coming:
                return all(at == len(cells) for at, cells in zip(self.at, self.cells, strict=True))
            self.now = min(coming)

    def settle(self):
        """What begins at this moment because of what has ended; False where nothing does."""
        self.through = [transfer for transfer in self.through if not self.done(transfer)]
        moved = sum(self.walk(device) for device in self.devices)
        moved += sum(self.run_stream(stream) for stream in self.streams.values())
        return moved + self.start_transfers() + self.collect()

    def walk(self, device):
        """Take a device through its list as far as it comes now; the number of cells passed."""
        begun = self.at[device]
        while self.at[device] < len(self.cells[device]) and self.busy[device] <= self.now:
            at, parts = self.at[device], self.cells[device][self.at[device]]
            kind = parts[0][0]
            if kind in COMPUTE:
                if not self.may_compute(device, parts):
                    break
                self.compute(device, parts)
            elif kind.startswith(("SEND", "RECV")):
                for number, part in enumerate(parts):
                    self.post(device, at, part, joined=number > 0)
            elif kind == "UNSHARD" and self.world.unshard:
                self.streams.setdefault((device, kind), []).append((("UNSHARD", device, at), parts[0]))
            elif kind in ("OFFLOAD", "RELOAD"):
                self.streams.setdefault((device, kind), []).append((parts[0], parts[0]))
            elif kind == "REDUCE_GRAD" and self.world.reduce:
                self.streams.setdefault((device, kind), []).append((("REDUCE_GRAD", device, at), parts[0]))
            self.at[device] += 1
        return self.at[device] - begun

    def needs(self, part):
        """Actions that an action needs, wherever they run; of B and I the one that there is."""
        kind, stage, microbatch = part
        of_backward = [("F", stage), ("R", stage), ("B", stage + 1), ("I", stage + 1)]
        before = {"S": [], "T": [], "F": [("F", stage - 1)], "R": [("F", stage)], "W": [("I", stage)]}.get(
            kind, of_backward
        )
        return [(*need, microbatch) for need in before if (*need, microbatch) in self.home]

    def may_compute(self, device, parts):
        if any(need in parts for part in parts for need in self.needs(part)):
            return False  # a slot that needs itself
        for part in parts:
            for need in self.needs(part):
                far = self.home[need] != device
                if not self.done(carried(*part) if far else need):
                    return False
        streamed = [what for part in parts for what in self.users.get(part, ())]
        streamed += [what for part in parts if (what := self.collected(part, device))]
        waited = self.sent[device] if self.transport == "blocking" else []
        return all(map(self.done, [*streamed, *waited]))

    def compute(self, device, parts):
        (kind, stage, _), *other = parts
        stages = {kind: stage for kind, stage, _ in parts}
        seconds = self.world.overlap(stages["F"], stages["B"]) if other else self.world.seconds(kind, stage)
        self.sent[device].clear()
        for part in parts:
            self.begin(part, seconds)
        self.busy[device] = self.now + seconds

    def run_stream(self, stream):
        """Begin the next work of a stream: one after the other, a RELOAD also behind its OFFLOAD."""
        for before, (name, (kind, stage, microbatch)) in zip([None, *stream], stream, strict=False):
            if name in self.start:
                continue
            if (before and not self.done(before[0])) or (
                kind == "RELOAD" and not self.done(("OFFLOAD", stage, microbatch))
            ):
                return 0
            if self.world.switch and kind in ("OFFLOAD", "RELOAD"):
                self.ready.setdefault(name, self.now)
                return 0
            seconds = {"UNSHARD": self.world.unshard, "REDUCE_GRAD": self.world.reduce}.get(kind)
            self.begin(name, seconds(stage) if seconds else self.world.copy(stage, microbatch))
            return 1
        return 0

    def start_copy(self):
        """Start the copy that waits longest of those whose switch is free; of equal ones that of the lower device."""
        for name in sorted(self.ready, key=lambda one: (self.ready[one], self.home[one])):
            line = self.home[name] // self.world.switch, name[0]
            if line not in self.carries or self.done(self.carries[line]):
                del self.ready[name]
                self.carries[line] = name
                self.begin(name, self.world.copy(*name[1:]))
                return True
        return False

    def ends_of(self, transfer):
        """(maker, sender, receiver, taker) of a transfer."""
        direction, stage, microbatch = transfer
        takers = [("F", stage, microbatch)] if direction == "to F" else [(kind, stage, microbatch) for kind in BACKWARD]
        taker = next(one for one in takers if one in self.home)
        maker = next(one for one in self.needs(taker) if one[1] != stage)
        return maker, self.home[maker], self.home[taker], taker

    def post(self, device, at, part, joined):
        if self.transport == "async":
            return
        transfer = carried(*part)
        _, sender, receiver, _ = self.ends_of(transfer)
        line = {"pair": frozenset((sender, receiver)), "rank": None, "directions": transfer[0]}.get(
            self.transport, (sender, receiver)
        )
        queue = self.queues.setdefault((device, line), [])
        if joined and queue and queue[-1][1] == at:  # the first of the batch is in this queue too
            queue[-1][0].append(transfer)
        else:
            queue.append(([transfer], at))
        if part[0].startswith("SEND"):
            self.sent[device].append(transfer)
            self.turn[transfer] = device, at

    def let_start(self):
        """Transfers that their transport lets start now."""
        if self.transport == "async":
            for taker, device in self.home.items():
                makers = [] if taker[0] not in COMPUTE else [m for m in self.needs(taker) if m[1] != taker[1]]
                if makers and self.home[makers[0]] != device and self.done(makers[0]):
                    sender = self.home[makers[0]]
                    place = [part for parts in self.cells[sender] for part in parts].index(makers[0])
                    self.turn[carried(*taker)] = sender, place
                    yield carried(*taker)
            return
        heads = []
        for queue in self.queues.values():
            first = next((batch for batch, _ in queue if not all(map(self.done, batch))), [])
            heads += [transfer for transfer in first if not self.done(transfer)]
        yield from (transfer for transfer in set(heads) if heads.count(transfer) == 2)

    def start_transfers(self):
        """Start what shares nothing; what shares ports asks for them."""
        moved = 0
        for transfer in self.let_start():
            if (
                transfer in self.start
                or transfer in self.asked
                or any(transfer in line for line in self.lines.values())
            ):
                continue
            moved += 1
            if self.ports_of(transfer):
                self.asked.append(transfer)
            else:
                self.begin(transfer, self.seconds_of(transfer))
        return moved

    def ports_of(self, transfer):
        _, sender, receiver, _ = self.ends_of(transfer)
        return self.world.ports(sender, receiver) if self.world.ports else []

    def seconds_of(self, transfer):
        (_, stage, _), sender, receiver, _ = self.ends_of(transfer)
        return self.world.transfer(sender, receiver, transfer[0][-1], stage)

    def arbitrate(self):
        """Let what asked join the lines of its ports, then start what heads them all and finds a place at each."""
        for transfer in sorted(self.asked, key=self.turn.__getitem__):
            for port in self.ports_of(transfer):
                self.lines.setdefault(port, []).append(transfer)
        self.asked.clear()
        started = 0
        while free := next((line[0] for line in self.lines.values() if line and self.has_places(line[0])), None):
            for port in self.ports_of(free):
                self.lines[port].remove(free)
            self.through.append(free)
            self.begin(free, self.seconds_of(free))
            started += 1
        return started

    def has_places(self, transfer):
        taken = [port for other in self.through for port in self.ports_of(other)]
        return all(
            self.lines[port][0] == transfer and taken.count(port) < self.world.capacity[port]
            for port in self.ports_of(transfer)
        )

    def steps(self, optimizer, seconds):
        """(start, end) of each device's optimizer step; `seconds` of a stage."""
        ready = [0.0 for _ in self.devices]
        for device, cells in enumerate(self.cells):
            names = [part for parts in cells for part in parts if part[0] in COMPUTE]
            names += [name for name, _ in self.streams.get((device, "REDUCE_GRAD"), ())]
            ready[device] = max(self.end[name] for name in names)
        if optimizer == "sync":
            ready = [max(ready) for _ in ready]
        held = [{part[1] for parts in cells for part in parts} for cells in self.cells]
        return [(begin, begin + sum(map(seconds, sorted(stages)))) for begin, stages in zip(ready, held, strict=True)]


def with_reductions(cells):
    """A REDUCE_GRAD behind the last backward of each stage."""
    last = {}
    for at, parts in enumerate(cells):
        last.update({stage: at for kind, stage, _ in parts if kind in tuple("BIWST")})
    out = []
    for at, parts in enumerate(cells):
        out.append(parts)
        out += [[("REDUCE_GRAD", stage, None)] for kind, stage, _ in parts if last.get(stage) == at and kind in "BIWST"]
    return out


class Choosers:
    """Devices that take their lists as priorities: `order` is what each ran, `start` and `end` when.

    `adds` and `net` say what a slot takes of a device's room at its start and what it leaves at its end.
    """

    def __init__(self, lists, world, adds, net, limit=None):
        self.moments = Moments(lists, world, "async")
        self.left = [[parts for parts in cells if parts[0][0] in COMPUTE] for cells in self.moments.cells]
        self.adds, self.net = adds, net
        self.limit = [self.peak(0.0, cells) for cells in self.left] if limit is None else limit
        self.held = [0.0 for _ in lists]
        self.order = [[] for _ in lists]

    def peak(self, held, cells):
        """The most that is held while these slots run one after the other."""
        most = held
        for parts in cells:
            most = max(most, held + self.adds(parts))
            held += self.net(parts)
        return most

    def run(self):
        """Whether all lists came to their ends."""
        moments = self.moments
        while True:
            while moments.start_transfers() or moments.collect() or self.choose():
                pass
            coming = [end for end in moments.end.values() if end > moments.now]
            if not coming:
                return not any(self.left)
            moments.now = min(coming)

    def choose(self):
        """Let every free device start one slot; how many did."""
        free = [device for device in self.moments.devices if self.moments.busy[device] <= self.moments.now]
        chosen = [(device, self.chosen(device)) for device in free]
        for device, parts in chosen:
            if parts:
                self.left[device].remove(parts)
                self.order[device].append(parts)
                self.held[device] += self.net(parts)
                self.moments.compute(device, parts)
        return sum(parts is not None for _, parts in chosen)

    def chosen(self, device):
        """The first slot left that is ready and behind which the rest of the list has room."""
        for at, parts in enumerate(self.left[device]):
            rest = self.left[device][:at] + self.left[device][at + 1 :]
            room = self.peak(self.held[device], [parts, *rest]) <= self.limit[device]
            if room and self.moments.may_compute(device, parts) and not self.overtakes(parts, self.left[device][:at]):
                return parts
        return None

    def overtakes(self, parts, before):
        """Whether the slot would add to a collective ahead of one that stands before it."""
        needed = {part for group in self.moments.groups for _, needs in group for part in needs}
        return not needed.isdisjoint(parts) and any(not needed.isdisjoint(other) for other in before)
